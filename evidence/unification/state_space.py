"""Configurations of state space models, compared with literal recurrences, and of Mamba mixers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fredholm import Domain, IntegralOperator
from fredholm.integral.conversion import register_converter
from fredholm.kernels import DiagonalStateSpaceKernel, SelectiveKernel, StateSpaceKernel
from fredholm.layers.state_space import linear_system

from .measure import Configuration

FAMILY = "state space"
TIMES = torch.tensor([0.0, 0.4, 0.5, 1.3, 2.0], dtype=torch.float64)


# --- literal recurrences --------------------------------------------------------------------------


class LoopedSystem(nn.Module):
    """h_t = Ā h_{t-1} + B̄ u_t + b, y_t = C h_t + D u_t, with Ā and B̄ by the formula of a rule."""

    def __init__(
        self, size: int, inputs: int, outputs: int, rule: str | None, *, rnn: bool = False
    ):
        super().__init__()
        self.rule, self.rnn = rule, rnn
        self.a = nn.Parameter(0.3 * torch.randn(size, size))
        self.b = nn.Parameter(torch.randn(size, inputs))
        self.c = nn.Parameter(torch.randn(outputs, size))
        self.initial = nn.Parameter(torch.randn(size))
        self.bias = nn.Parameter(torch.randn(size)) if rnn else None
        self.d = None if rnn else nn.Parameter(torch.randn(outputs, inputs))
        self.step = None if rule is None else nn.Parameter(torch.tensor(0.3))

    def recurrence(self) -> tuple[Tensor, Tensor]:
        """Return Ā and B̄."""
        if self.rule is None or self.step is None:
            return self.a, self.b
        one, a = torch.eye(len(self.a)).to(self.a), self.a * self.step
        if self.rule == "euler":
            return one + a, self.b * self.step
        if self.rule == "bilinear":
            inverse = torch.linalg.inv(one - a / 2)
            return inverse @ (one + a / 2), inverse @ self.b * self.step
        exponential = torch.linalg.matrix_exp(a)
        return exponential, torch.linalg.inv(self.a) @ (exponential - one) @ self.b

    def forward(self, u: Tensor) -> Tensor:
        a, b = self.recurrence()
        h, out = self.initial.expand(len(u), -1), []
        for u_t in u.unbind(1):
            h = h @ a.mT + u_t @ b.mT
            if self.bias is not None:
                h = h + self.bias
            out.append(self.output(h, u_t))
        return torch.stack(out, 1)

    def output(self, h: Tensor, u_t: Tensor) -> Tensor:
        """Return C h_t + D u_t."""
        y = h @ self.c.mT
        if self.d is not None:
            y = y + u_t @ self.d.mT
        return y


class LoopedTimes(LoopedSystem):
    """h' = A h + B u at irregular times, where u is a sum of impulses with the points' masses."""

    def __init__(self, size: int, inputs: int, outputs: int):
        super().__init__(size, inputs, outputs, None)

    def forward(self, u: Tensor) -> Tensor:
        domain = times(u)
        h, out, before = self.initial.expand(len(u), -1), [], torch.zeros_like(domain.measure[0])
        for t, mass, u_t in zip(domain.positions[:, 0], domain.measure, u.unbind(1)):
            h = h @ torch.linalg.matrix_exp(self.a * (t - before)).mT + mass * u_t @ self.b.mT
            out.append(self.output(h, u_t))
            before = t
        return torch.stack(out, 1)


def times(u: Tensor) -> Domain:
    """Return irregular times in the signal's precision."""
    return Domain.timestamps(TIMES.to(u.dtype))


class LoopedDiagonal(nn.Module):
    """S4D as a loop over steps, with one complex state per conjugate pair and channel."""

    def __init__(self, channels: int, size: int, rule: str):
        super().__init__()
        options: Any = {"state": size, "discretization": rule, "initial_state": True}
        self.kernel = DiagonalStateSpaceKernel(channels, **options)
        self.rule = rule

    def forward(self, u: Tensor) -> Tensor:
        k: Any = self.kernel
        pole, step = -k.log_decay.exp() + 1j * k.frequency, k.log_step.exp()[:, None]
        b, c = torch.view_as_complex(k.input)[..., 0], torch.view_as_complex(k.readout)[:, 0]
        if self.rule == "zoh":
            a, b = (pole * step).exp(), ((pole * step).exp() - 1) / pole * b
        elif self.rule == "bilinear":
            a, b = (1 + pole * step / 2) / (1 - pole * step / 2), step / (1 - pole * step / 2) * b
        else:
            a, b = 1 + pole * step, step * b
        h, out = torch.view_as_complex(k.initial_state).expand(len(u), -1, -1), []
        for u_t in u.unbind(1):
            h = a * h + b * u_t[..., None]
            out.append(2 * (c * h).sum(-1).real)
        return torch.stack(out, 1)


class LoopedSelective(nn.Module):
    """The selective scan as a loop over steps."""

    def __init__(self, channels: int, size: int, rule: str):
        super().__init__()
        self.kernel = SelectiveKernel(channels, size, rank=2, discretization=rule)

    def forward(self, u: Tensor) -> Tensor:
        k = self.kernel
        poles, h, out = -k.log_decay.exp(), 0.0, []
        for u_t in u.unbind(1):
            step = F.softplus(k.step(k.squeeze(u_t)))[..., None]
            gain = (torch.exp(step * poles) - 1) / poles if k.discretization == "zoh" else step
            h = torch.exp(step * poles) * h + gain * k.input(u_t)[:, None] * u_t[..., None]
            out.append((h * k.output(u_t)[:, None]).sum(-1))
        return torch.stack(out, 1)


# A user's own layer becomes convertible in the same way.
@register_converter(f"{__name__}.LoopedSystem")
def _system(module: LoopedSystem) -> IntegralOperator:
    m = module
    if m.rnn:
        kernel = StateSpaceKernel(m.a, m.b, m.c, initial_state=m.initial, bias=m.bias)
        return IntegralOperator(
            kernel.d_in, kernel=kernel, out_dim=kernel.d_out, residual=False, projection=False
        )
    options: Any = {
        "discretization": m.rule,
        "step": m.step,
        "initial_state": m.initial,
    }
    return linear_system(m.a, m.b, m.c, m.d, **options)


@register_converter(
    f"{__name__}.LoopedTimes", domain=lambda m: times(torch.zeros(1, dtype=torch.float32))
)
def _times(module: LoopedTimes) -> IntegralOperator:
    m = module
    return linear_system(m.a, m.b, m.c, m.d, initial_state=m.initial, continuous=True)


@register_converter(f"{__name__}.LoopedDiagonal")
def _diagonal(module: LoopedDiagonal) -> IntegralOperator:
    heads = module.kernel.heads
    return IntegralOperator(heads, heads, kernel=module.kernel, residual=False, projection=False)


@register_converter(f"{__name__}.LoopedSelective")
def _selective(module: LoopedSelective) -> IntegralOperator:
    return IntegralOperator(
        module.kernel.d_in, kernel=module.kernel, residual=False, projection=False
    )


# --- Mamba ----------------------------------------------------------------------------------------


class WithoutCasts(TorchFunctionMode):
    """Ignore ``x.float()`` and ``x.to(torch.float32)``.

    Mixers cast parts of a float64 scan to float32, and so do some norms, which would hide an error
    of 1e-10.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        casts = func is Tensor.float or (func is Tensor.to and args[1:] == (torch.float32,))
        if casts and args[0].is_floating_point():
            return args[0]
        return func(*args, **(kwargs or {}))


def uncast(module: Callable[[Tensor], Tensor], u: Tensor) -> Tensor:
    """Call a module in the precision of its input throughout."""
    with WithoutCasts():
        return module(u)


def mixer(dim: int, **options: Any) -> nn.Module:
    """Make Hugging Face's MambaMixer with random weights."""
    from transformers import MambaConfig
    from transformers.models.mamba.modeling_mamba import MambaMixer
    from transformers.utils import logging

    # It would warn that no CUDA kernel is installed.
    logging.set_verbosity_error()
    return MambaMixer(MambaConfig(hidden_size=dim, num_hidden_layers=1, **options), 0).eval()


def block(dim: int, **options: Any) -> nn.Module:
    """Make mamba.py's MambaBlock with random weights."""
    from mambapy.mamba import MambaBlock, MambaConfig

    return MambaBlock(MambaConfig(d_model=dim, n_layers=1, **options)).eval()


def _case(label: str, build: Callable[[], nn.Module], width: int, **options: Any) -> Configuration:
    signal = partial(torch.randn, 2, options.pop("points", 7), width, dtype=torch.float64)
    options.setdefault("reference", lambda module, u: module(u))
    return Configuration(FAMILY, label, build, lambda: (signal(),), **options)


def _mamba(label: str, build: Callable[[], nn.Module], width: int, requires: str) -> Configuration:
    return _case(label, build, width, reference=uncast, requires=requires)


CONFIGURATIONS = [
    _case("dense system, matrices of the recurrence", lambda: LoopedSystem(4, 2, 3, None), 2),
    *(
        _case(f"dense system, {rule}, learned step", partial(LoopedSystem, 4, 2, 3, rule), 2)
        for rule in ("zoh", "bilinear", "euler")
    ),
    _case(
        "linear RNN with bias and initial state", lambda: LoopedSystem(4, 3, 2, None, rnn=True), 3
    ),
    _case(
        "linear system in real time, irregular timestamps",
        lambda: LoopedTimes(3, 2, 2),
        2,
        points=5,
        apply=lambda call, u: call(u, times(u)),
    ),
    *(
        _case(f"S4D, {rule}", partial(LoopedDiagonal, 3, 4, rule), 3)
        for rule in ("zoh", "bilinear", "euler")
    ),
    _case("selective scan, zoh", lambda: LoopedSelective(5, 3, "zoh"), 5),
    _case("selective scan, ΔB", lambda: LoopedSelective(5, 3, "simplified"), 5),
    _mamba(
        "MambaMixer (transformers), 6 → 12, state 3",
        lambda: mixer(6, state_size=3, conv_kernel=3, time_step_rank=2),
        6,
        "transformers",
    ),
    _mamba(
        "MambaMixer (transformers), 4 → 12, state 2, all biases",
        lambda: mixer(4, state_size=2, expand=3, conv_kernel=4, use_bias=True),
        4,
        "transformers",
    ),
    _mamba(
        "MambaMixer (transformers), no convolution bias",
        lambda: mixer(4, state_size=2, use_conv_bias=False),
        4,
        "transformers",
    ),
    _mamba(
        "MambaBlock (mamba.py), parallel scan", lambda: block(5, d_state=3, bias=True), 5, "mambapy"
    ),
    _mamba(
        "MambaBlock (mamba.py), sequential scan",
        lambda: block(5, d_state=3, pscan=False),
        5,
        "mambapy",
    ),
]

SPEED = [
    (
        f"MambaMixer (transformers), {dim} channels, {n} steps, batch {batch}",
        partial(mixer, dim),
        partial(torch.randn, batch, n, dim),
        lambda module, u: module(u),
        lambda call, u: call(u),
    )
    for dim, n, batch in ((64, 256, 2), (128, 512, 2), (256, 128, 1))
]
