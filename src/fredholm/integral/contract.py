"""The two halves of an integral and what they promise each other: a :class:`Kernel`, what
interacts, lists the forms that may integrate it; a :class:`Form` is one algorithm.
:func:`choose` is a plain loop over the kernel's list.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from ..arguments import Checked
from ..distributed.exchange import distributed, exchange_refusal, owning_targets
from ..domain import Domain, default_line
from ..errors import ConversionError, OptionError, StrategyError
from ..ops.backend import transforms, wants_triton
from ..quadrature import Quadrature
from ..registry import qualified_name
from .capabilities import lacking
from .problem import Facts, Layout, Problem
from .strategy import Plan, Strategy

if TYPE_CHECKING:
    from .memo import Memo
    from .side_by_side import SideBySide

Value = TypeVar("Value")

Memory = dict[str, Tensor]
"""What a causal form keeps of the points before: tensors with the batch on dimension 0."""

# What a kernel may define, and the base class that makes a definition of it.
DEFINITIONS = {
    "WeightedKernel": ("weights", "value_map"),
    "HiddenKernel": ("hidden", "readout"),
    "PairKernel": ("forward",),
    "MatrixKernel": ("matrix",),
}


class Kernel(nn.Module, metaclass=Checked):
    r"""A matrix-valued kernel: heads, widths, where it lives, and the forms that integrate it.

    Concrete kernels derive from one of four definitions, each of which says in its own way what
    ``matrix`` is: :class:`PairKernel` (a function of two ends), :class:`HiddenKernel` (a linear
    readout of hidden units), :class:`WeightedKernel` (a scalar weight times a value map) and
    :class:`MatrixKernel` (all pairs at once). Capabilities (:mod:`fredholm.integral.capabilities`)
    stand beside the definition and allow faster forms.

    Args:
        heads: number of heads H.
        d_in: features a head reads of u: ``dim // heads`` (a slice each), or ``dim`` where
            ``whole``.
        d_out: features a head writes.

    Attributes:
        whole: every head reads all of u instead of its own slice.
        adds_heads: heads write all features and are added up, instead of one slice each.
        reads_query: the kernel depends on u(x), so that queries on another domain need features.
        reads_position: the kernel depends on x and y themselves, so that queries on another domain
            need places.
        pairwise: K(x, y) depends on these two ends alone, so that keys may come in blocks.
        rowwise: what a query receives follows from its own view of the keys, also where the problem
            has no other queries.
        sums: each key counts by its mass, and no normaliser of the kernel's own divides it away.
        forms: the algorithms that may integrate the kernel, best first; see
            :class:`fredholm.forms.Form`. A subclass inherits its base's.

    Raises:
        OptionError: a class without one of the four definitions.
    """

    whole = False
    adds_heads = False
    reads_query = True
    reads_position = True
    sums = False
    pairwise = False
    rowwise = False
    forms: ClassVar[tuple[type[Form], ...]] = ()

    def __init__(self, heads: int, d_in: int, d_out: int | None = None):
        super().__init__()
        if not self.forms:
            raise OptionError(_lacks_definition(type(self)))
        self.heads, self.d_in, self.d_out = heads, d_in, d_out or d_in

    def __init_subclass__(cls, **options) -> None:
        super().__init_subclass__(**options)
        slip = lacking(cls)
        if slip is not None:
            capability, methods = slip
            raise OptionError(
                f"{cls.__name__} defines {', '.join(methods)} but does not inherit "
                f"{capability.__name__}, so its faster form would never be taken; write "
                f"class {cls.__name__}({cls.__mro__[1].__name__}, {capability.__name__})"
            )

    @property
    def local(self) -> bool:
        """Whether what a query receives follows from itself and the keys that it sees, so that a
        sparse domain is answered neighbourhood by neighbourhood.
        """
        return self.pairwise or self.rowwise

    def matrix(self, problem: Problem) -> Float[Tensor, "b h q k o i"]:
        """The kernel at all pairs, (B, H, Nq, Nk, d_out, d_in), densities against the measure.
        O(Nq·Nk).
        """
        raise NotImplementedError(f"{type(self).__name__} must define matrix(problem)")

    def offset(self, problem: Problem) -> Tensor | None:
        """Response to a constant channel, broadcastable to (B, H, Nq, d_out), where the layer is
        affine; None otherwise.
        """
        return None

    # --- where the kernel lives -------------------------------------------------------------------

    def check(self, layout: Layout) -> None:
        """Raise :class:`fredholm.errors.DomainError` for a domain on which the kernel means
        nothing. By default every domain is accepted.
        """

    def observe(self, problem: Problem) -> None:
        """Take note of the points of a call in training, once it is answered: running statistics.
        Nothing by default.
        """

    def default_domain(self, n: int, *, device: torch.device, dtype: torch.dtype) -> Domain:
        """The domain of n points that an operator assumes when it is given none."""
        return default_line(n, device=device, dtype=dtype)

    def small_domain(self) -> Domain:
        """A domain of a few points on which the kernel can be tried, by default the default one."""
        return self.default_domain(6, device=torch.device("cpu"), dtype=torch.float32)

    def output_domain(self, domain: Domain) -> Domain | None:
        """Where the output lives when no query domain is given: None for ``domain`` itself, else
        another (a strided grid).
        """
        return None

    def follow(self) -> None:
        """Take over what layers have replaced that parts of the kernel were made from. Nothing by
        default.
        """

    def extra_repr(self) -> str:
        return f"heads={self.heads}, d_in={self.d_in}, d_out={self.d_out}"


def _lacks_definition(kind: type) -> str:
    """What to tell the author of a kernel that derives from :class:`Kernel` itself."""
    defined = {name for base in kind.__mro__[: kind.__mro__.index(Kernel)] for name in vars(base)}
    for base, methods in DEFINITIONS.items():
        if defined.issuperset(methods):
            return (
                f"{kind.__name__} defines {' and '.join(methods)} but derives from Kernel, which "
                f"no form integrates; derive it from fredholm.kernels.{base}"
            )
    bases = ", ".join(f"{base} ({', '.join(methods)})" for base, methods in DEFINITIONS.items())
    return (
        f"{kind.__name__} has no definition; derive it from one of fredholm.kernels' bases and "
        f"define its methods: {bases}"
    )


class Form:
    """One algorithm for ∫ K u dμ + offset. A kernel lists the forms that may integrate it.

    A form that answers a whole problem defines :meth:`respond`; one that advances through a causal
    domain defines :meth:`step`, and may define :meth:`start` and a faster :meth:`prefill`.

    Args:
        strategy: the options, of class ``word``.

    Attributes:
        word: the strategy that the form belongs to.
        name: what it does in a few words: ``plan(domain).path``.
        reason: why it is right where it is chosen.
        responds, steps: whether it answers whole problems, and single points in causal order.
        triton: whether it has a Triton kernel.
        sparse: whether it is for domains with edges or a reach, which it takes as they are; other
            forms answer one query with its keys at a time there.
        default: the word without options.
    """

    word: ClassVar[type[Strategy]]
    name: ClassVar[str]
    reason: ClassVar[str]
    responds: ClassVar[bool] = True
    steps: ClassVar[bool] = False
    triton: ClassVar[bool] = False
    sparse: ClassVar[bool] = False
    default: ClassVar[Strategy]

    def __init_subclass__(cls, **options) -> None:
        super().__init_subclass__(**options)
        if hasattr(cls, "word"):
            cls.default = cls.word()

    def __init__(self, strategy: Strategy):
        self.strategy = strategy

    # --- choosing ---------------------------------------------------------------------------------

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        """Why the form cannot integrate this kernel here, or None."""
        return None

    def preferred(self, kernel: Kernel, facts: Facts) -> bool:
        """Whether ``"auto"`` may take the form; an approximation answers False."""
        return True

    def plan(self) -> Plan:
        """The form in words."""
        return Plan(repr(self.strategy), self.name, self.reason)

    # --- a whole problem --------------------------------------------------------------------------

    def respond(self, kernel: Kernel, problem: Problem) -> Tensor:
        """∫ K u dμ + offset, (B, H, Nq, d_out)."""
        raise NotImplementedError(f"{type(self).__name__} must define respond(kernel, problem)")

    # --- a causal domain, point by point ----------------------------------------------------------

    def start(self, kernel: Kernel, u: Tensor) -> Memory:
        """The memory before the first point, for features like ``u`` (B, H, d)."""
        return {}

    def step(
        self, kernel: Kernel, x: Tensor, u: Tensor, quadrature: Quadrature, t: int, memory: Memory
    ) -> tuple[Tensor, Memory]:
        """The response at point t (B, H, 1, d_out) from its position (1 | B, 1, p), its features
        (B, H, 1, d), the whole domain's quadrature and the memory of the points before it; and the
        memory after it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define step")

    def prefill(
        self, kernel: Kernel, x: Tensor, u: Tensor, quadrature: Quadrature, t: int, memory: Memory
    ) -> tuple[Tensor, Memory]:
        """A stretch at once: points t, t + 1, … at x (1 | B, n, p) with features u (B, H, n, d) to
        their responses (B, H, n, d_out) and the memory after the last. By
        default one step after another.
        """
        out = []
        for i in range(u.shape[2]):
            part = slice(i, i + 1)
            y, memory = self.step(kernel, x[:, part], u[:, :, part], quadrature, t + i, memory)
            out.append(y)
        return torch.cat(out, 2), memory


class StretchForm(Form):
    """Base of forms that advance over a stretch as over a single point: they define
    :meth:`advance`.
    """

    steps = True

    def advance(
        self, kernel: Kernel, x: Tensor, u: Tensor, quadrature: Quadrature, memory: Memory
    ) -> tuple[Tensor, Memory]:
        """The responses (B, H, n, d_out) at the next n points, the last n of what ``quadrature`` is
        about, and the memory after them.
        """
        raise NotImplementedError(f"{type(self).__name__} must define advance")

    def step(
        self, kernel: Kernel, x: Tensor, u: Tensor, quadrature: Quadrature, t: int, memory: Memory
    ) -> tuple[Tensor, Memory]:
        return self.advance(kernel, x, u, quadrature.row(t), memory)

    def prefill(
        self, kernel: Kernel, x: Tensor, u: Tensor, quadrature: Quadrature, t: int, memory: Memory
    ) -> tuple[Tensor, Memory]:
        return self.advance(kernel, x, u, quadrature.stretch(t, t + u.shape[2]), memory)


def with_offset(out: Tensor, kernel: Kernel, problem: Problem) -> Tensor:
    """An integral and the kernel's response to a constant channel."""
    offset = kernel.offset(problem)
    return out if offset is None else out + offset


# --- choosing one ---------------------------------------------------------------------------------


def choose(strategy: Strategy | str, kernel: Kernel, facts: Facts) -> Form:
    """Return the form that integrates a kernel on a domain.

    That is the first form of ``kernel.forms`` that belongs to the strategy and does not refuse;
    ``"auto"`` takes the first that any strategy prefers, which is always exact. Where queries see
    few keys, and where the domain is in shards, another form is put around it.

    The choice follows static facts alone and is made anew at every call (about 5 µs), so that a
    kernel's options may change and traced lengths stay free.

    Raises:
        StrategyError: no form of the strategy integrates this kernel here; it says why.

    Example:
        >>> from fredholm.kernels import Layout, SoftmaxKernel
        >>> choose("auto", SoftmaxKernel(8, 2), Facts(Layout())).name
        'fused attention'
    """
    if facts.sparse and not facts.layout.stepping:
        from ..forms.neighbourhoods import choose_sparse  # it wraps forms, which lie above

        form = choose_sparse(strategy, kernel, facts)
        return owning_targets(form) if facts.layout.sharded else form
    form = first_form(strategy, kernel, facts)
    if facts.layout.sharded:
        return distributed(form, kernel)
    return form


def first_form(strategy: Strategy | str, kernel: Kernel, facts: Facts) -> Form:
    """Return the first form of ``kernel.forms`` that belongs to the strategy and does not refuse.

    :func:`choose` also knows the domains that need another form around it.

    Raises:
        StrategyError: no form of the strategy integrates this kernel here; it says why.
    """
    stepping, auto = facts.layout.stepping, isinstance(strategy, str)
    if stepping and not isinstance(strategy, str):
        strategy = strategy.stepping()
    reasons = []
    for kind in kernel.forms:
        if kind.sparse or not (kind.steps if stepping else kind.responds):
            continue
        if isinstance(strategy, str):
            form = kind(kind.default)
            if not form.preferred(kernel, facts):
                continue
        elif isinstance(strategy, kind.word):
            form = kind(strategy)
        else:
            continue
        why = form.refuses(kernel, facts)
        if why is None and facts.layout.sharded:
            why = exchange_refusal(form, kernel, facts)
        if why is None:
            return form if auto else _on_backend(form, kernel)
        reasons.append(why)
    raise _refusal(strategy, kernel, facts.layout, reasons)


def _on_backend(form: Form, kernel: Kernel) -> Form:
    """The form, or a StrategyError where Triton was demanded of a form without a Triton kernel."""
    options: Any = form.strategy
    if form.triton or not wants_triton(getattr(options, "backend", "auto")):
        return form
    raise StrategyError(
        f"{options!r} would integrate {type(kernel).__name__} by {form.name}, which has no Triton "
        "kernel; use backend='auto'"
    )


def _refusal(
    strategy: Strategy | str, kernel: Kernel, layout: Layout, reasons: list[str]
) -> StrategyError:
    """The error of a strategy that cannot integrate a kernel."""
    name = strategy if isinstance(strategy, str) else type(strategy).__name__
    other = type(kernel).__name__
    if layout.sharded:
        why = f": {'; '.join(reasons)}" if reasons else ""
        return StrategyError(
            f"{name} cannot integrate {other} over a sharded domain{why}; give each process the "
            "whole domain, or take another strategy"
        )
    if isinstance(strategy, str):
        return StrategyError(f"{other} has no form for {layout}")
    if reasons:
        return StrategyError(f"{name} cannot integrate {other}: {reasons[-1]}")
    if layout.stepping and any(isinstance(strategy, kind.word) for kind in kernel.forms):
        return StrategyError(f"{name} has no causal step; set op.strategy = 'exact' to generate")
    return StrategyError(
        f"{name} cannot integrate {other}: it needs {strategy.needs}; "
        f"use {strategy.instead} instead"
    )


# --- what concrete kernels share ------------------------------------------------------------------


class Part:
    """A submodule as an attribute of its class: found ten times sooner than by the search of
    ``nn.Module.__getattr__``, which remains for what is not there. None is an ordinary attribute.

    Example:
        >>> class Layer(nn.Module):
        ...     inner = Part()
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.inner = nn.Linear(2, 3)
        >>> Layer().inner
        Linear(in_features=2, out_features=3, bias=True)
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, module: Any, owner: type | None = None) -> Any:
        try:
            return module._modules[self.name]
        except (AttributeError, KeyError):
            if module is None:
                return self
            raise AttributeError(self.name) from None


def first_dtype(module: nn.Module) -> torch.dtype | None:
    """The dtype of a module's first parameter of floating-point numbers, or None where there is
    none; without the generators of ``parameters()``, which take as long as small problems do.
    Modules that stay in float32 where the others do not (``keeps_single``) say nothing.
    """
    if getattr(type(module), "keeps_single", False):
        return None
    for x in module._parameters.values():
        if x is not None and x.is_floating_point():
            return x.dtype
    found = (first_dtype(part) for part in module._modules.values() if part is not None)
    return next((dtype for dtype in found if dtype is not None), None)


def weight_and_bias(layer: nn.Module, name: str) -> tuple[Tensor, Tensor | None]:
    """A linear layer's parameters, read where they are stored: at small sizes a product takes no
    longer than to find them as attributes. Parametrised layers compute them as attributes, and
    pruned ones by the hooks of ``torch.nn.utils``.

    Raises:
        OptionError: a layer whose ``forward`` may give more than its weight and bias do.
    """
    stored = layer._parameters
    if type(layer) is nn.Linear and "weight" in stored and "bias" in stored:
        return stored["weight"], stored["bias"]  # type: ignore[return-value]
    check_affine(layer, name)
    for hook in layer._forward_pre_hooks.values():
        if type(hook).__module__.startswith("torch.nn.utils."):
            hook(layer, ())  # type: ignore[call-arg]  # torch's types forget that it has no module
    return layer.weight, layer.bias  # type: ignore[return-value]


def check_affine(layer: nn.Module, name: str) -> None:
    """OptionError unless a layer computes W x + b of its ``weight`` and ``bias``: a linear layer of
    torch, or a class that says so by ``affine = True``.
    """
    kind = type(layer)
    if kind.forward is not nn.Linear.forward and not getattr(kind, "affine", False):
        raise OptionError(
            f"{name} is a {qualified_name(kind)}, whose forward would not run: its weight "
            "and bias alone are read here. Put an nn.Linear there: "
            "merge what was added to it (PEFT: merge_and_unload), leave it out of quantisation, or "
            "write the change with torch.nn.utils.parametrize. A class of your own whose weight "
            "and bias give all that it computes says so by affine = True"
        )


def read_together(
    aligned: SideBySide | None, modules: Mapping[str, nn.Module | None]
) -> tuple[Tensor, Tensor | None] | None:
    """Weights and biases of layers that lie side by side, as one of each. None where ``modules``
    are no longer these layers, their parameters have been replaced or moved, gradients are recorded
    or code is traced.
    """
    if aligned is None or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return None
    of_weight, of_bias = aligned.names
    for name, layer, table, weight, bias in aligned.layers:
        if modules.get(name) is not layer:
            return None
        if table.get(of_weight) is not weight or table.get(of_bias) is not bias:
            return None
    for parameter, place in zip(aligned.parameters, aligned.memory):
        if parameter.data_ptr() != place:
            return None
    return aligned.weight, aligned.bias


def check_dropout(training: bool, rate: float) -> None:
    """ConversionError where dropout is active: such a layer is random, and no integral operator."""
    if training and rate:
        raise ConversionError(
            f"dropout={rate} is active in training mode, where the layer is random and no integral "
            "operator; "
            "call .eval(), or set the dropout to 0 to train without it"
        )


def own_parameter(x: Tensor) -> nn.Parameter:
    """The very same Parameter, or a new one: a Parameter that is wrapped again would be trained
    apart from its layer.
    """
    return x if isinstance(x, nn.Parameter) else nn.Parameter(x)


def identity(heads: int, dim: int) -> Tensor:
    """One identity matrix a head, (H, dim, dim)."""
    return torch.eye(dim).repeat(heads, 1, 1)


# --- what weights alone decide --------------------------------------------------------------------

MEMOS: dict[nn.Module, Memo] = {}  # of the modules inside :class:`.inference`


class _Apart(threading.local):
    """Modules that this thread calls with other weights: nothing is kept of them meanwhile."""

    modules: frozenset[nn.Module] = frozenset()


APART = _Apart()


def _memo(module: nn.Module) -> Memo | None:
    """What is kept of a module inside :class:`.inference`, or None."""
    return None if module in APART.modules else MEMOS.get(module)


def prepared(
    module: nn.Module, name: Any, make: Callable[[], Value], *, of: Sequence[Tensor] = ()
) -> Value:
    """``make()``, which depends on the weights of ``module``, ``name`` and the tensors ``of``, and
    nothing else; inside :class:`.inference` it is called once.

    Args:
        module: whose parameters, buffers and submodules it reads.
        name: a word, and with it every option that it depends on: dtypes, sizes, switches.
        make: returns a tensor or a tuple of tensors that nobody writes to.
        of: positions, or what was prepared from them.

    Example:
        >>> from fredholm import inference
        >>> layer = nn.Linear(1, 1)
        >>> with inference(layer):
        ...     first, second = (prepared(layer, "twice", lambda: 2 * layer.weight) for _ in "ab")
        >>> first is second
        True
    """
    if torch.compiler.is_compiling() or not MEMOS:  # traced code computes it where it is used
        return make()
    memo = _memo(module)
    if memo is None or transforms():
        return make()
    return memo.get(name, make, of)


def call_with(module: nn.Module, weights: Mapping[str, Tensor], arguments: tuple[Any, ...]) -> Any:
    """:func:`torch.func.functional_call`, also inside :class:`.inference`: what the module computes
    of other weights is not kept, and what it keeps of its own stays.
    """
    if torch.compiler.is_compiling() or not MEMOS:
        return functional_call(module, dict(weights), arguments)
    before = APART.modules
    APART.modules = before | set(module.modules())
    try:
        return functional_call(module, dict(weights), arguments)
    finally:
        APART.modules = before


def answering(module: nn.Module) -> bool:
    """Whether a module is inside :class:`.inference`, where :func:`prepared` keeps things."""
    if torch.compiler.is_compiling() or not MEMOS:
        return False
    return _memo(module) is not None and not transforms()


def check_inference(module: nn.Module) -> None:
    """InferenceError where a module inside :class:`.inference` is trained."""
    if MEMOS and not torch.compiler.is_compiling():
        memo = _memo(module)
        if memo is not None:
            memo.check()
