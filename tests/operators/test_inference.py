"""Inside ``fredholm.inference`` every operator gives the same result as outside, training is
refused, and leaving clears all caches.
"""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

import fredholm
from fredholm.domain import Domain
from fredholm.errors import InferenceError, OptionError
from fredholm.families.continuous.splitting import Evolution, FeedForwardTerm, OperatorTerm
from fredholm.integral import prepared
from fredholm.integral.contract import MEMOS, call_with
from fredholm.kernels import HedgehogFeatures, LunaMap, T2RFeatures, WeightedKernel
from fredholm.operators import IntegralOperator, create_operator, list_operators

from ..tolerances import assert_close

VARIANTS = {
    **{name: (name, {}) for name in list_operators()},
    "luna per head": ("luna", {"per_head": True}),
    "luna capped": ("luna", {"cap": "running"}),
    "luna gelu": ("luna", {"activation": "gelu"}),
    "depthwise ckconv": ("ckconv", {"separable": True}),
    "ckconv with an end": ("ckconv", {"horizon": 3}),
    "deep itnet": ("itnet", {"depth": 3}),
}


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    assert not MEMOS


def made(name: str, **options):
    torch.manual_seed(0)
    heads = 8 if options.get("separable") else 2
    return create_operator(name, 8, heads, **options).eval()


@torch.no_grad()
def change(operator) -> None:
    """Other weights, and other tensors in the place of some."""
    for parameter in operator.parameters():
        parameter.mul_(1.1)
    operator.load_state_dict(
        {
            name: 0.9 * x if x.is_floating_point() else x
            for name, x in operator.state_dict().items()
        },
        assign=True,
    )


@pytest.mark.parametrize("label", VARIANTS)
@torch.no_grad()
def test_values_equal_those_outside_the_context(label):
    """At two lengths, twice each, with and without causal order, in steps, and with new weights."""
    name, options = VARIANTS[label]
    operator = made(name, **options)
    for _weights in range(2):
        calls = []
        for n in (3, 6):
            u = torch.randn(2, n, 8)
            line = Domain.line(n, causal=True, length=20.0)
            calls += [lambda u=u: operator(u), lambda u=u, line=line: operator(u, line)]
        expected = [call() for call in calls]
        with fredholm.inference(operator):
            for again in range(2):
                for call, want in zip(calls, expected):
                    assert_close(call(), want, f"{label}, call {again}")
            part, state = operator.prefill(u[:, :3], operator.init_state(2, line))
            assert_close(part, expected[-1][:, :3], "a stretch")
            for t in range(3, 6):
                y, state = operator.step(u[:, t], state)
                assert_close(y, expected[-1][:, t], "a step")
        change(operator)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@torch.no_grad()
def test_cached_values_depend_on_precision_and_autocast(dtype):
    operator = made("luna")
    u = torch.randn(1, 5, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = operator(u)
    plain = operator(u)
    with fredholm.inference(operator):
        assert_close(operator(u), plain)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert_close(operator(u), cast)
    operator.to(dtype)
    expected = operator(u.to(dtype))
    with fredholm.inference(operator):
        assert_close(operator(u.to(dtype)), expected)


def test_work_on_weights_is_done_once(monkeypatch):
    from fredholm.families.luna import kernel

    count = []
    segments = kernel.segments
    monkeypatch.setattr(kernel, "segments", lambda bank: count.append(1) or segments(bank))
    operator = made("luna")
    u = torch.randn(1, 5, 8)
    with fredholm.inference(operator):
        for _call in range(3):
            operator(u)
        assert len(count) == 1
    with fredholm.inference(operator):
        operator(u)
    assert len(count) == 2


def test_interpolated_controls_are_not_cached():
    """An evolution interpolates its weights between knots."""
    torch.manual_seed(0)
    knots = [[OperatorTerm.of("luna", 8, 2), FeedForwardTerm(8, 6)] for _ in range(2)]
    evolution = Evolution(knots, controls="linear", steps=5)
    u = torch.randn(2, 5, 8)
    with torch.no_grad():
        expected = evolution(u)
        at_knots = evolution(u, steps=2)
    with fredholm.inference(evolution):
        memos = dict(MEMOS)
        for _call in range(2):
            assert_close(evolution(u), expected)
            assert_close(evolution(u, steps=2), at_knots)
        assert memos == MEMOS
    assert not MEMOS


def test_contexts_nest_overlap_and_end_after_errors():
    operator = made("luna")
    u = torch.randn(1, 5, 8)
    model = nn.Sequential(operator).train()
    switch = fredholm.inference(model)
    with pytest.raises(ZeroDivisionError), switch:  # noqa: PT012
        with switch, fredholm.inference(operator) as inner:
            assert inner is operator
            assert not operator.training
            assert not model(u).requires_grad
        assert operator in MEMOS
        assert not torch.is_grad_enabled()
        raise ZeroDivisionError
    assert torch.is_grad_enabled()
    assert operator.training
    assert model(u).requires_grad
    with pytest.raises(OptionError, match=r"model: expected a module: .* got 'luna'"):
        fredholm.inference("luna")


def test_the_last_of_overlapping_contexts_restores_the_modes():
    operator = made("luna").train()
    u = torch.randn(1, 5, 8)
    first, second = fredholm.inference(operator), fredholm.inference(nn.Sequential(operator))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not operator.training
    assert not operator(u).requires_grad
    with torch.enable_grad(), fredholm.inference(operator):
        assert not torch.is_grad_enabled()
    assert not torch.is_grad_enabled()
    second.__exit__(None, None, None)
    assert operator.training
    assert torch.is_grad_enabled()


def in_threads(work, count=4):
    """Return the errors of ``work`` in threads that start together."""
    errors = []
    begin = threading.Barrier(count)

    def run():
        try:
            begin.wait()
            work()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_threads_may_enter_and_call_concurrently():
    """The switch interval is so short that threads alternate after a few instructions."""
    interval = sys.getswitchinterval()
    u = torch.randn(1, 5, 8)
    sys.setswitchinterval(1e-6)
    try:
        for _trial in range(10):
            operator = made("luna").train()
            switch = fredholm.inference(operator)

            def apart(operator=operator, switch=switch):
                with switch:
                    operator(u)

            def inside(operator=operator):
                with torch.no_grad():
                    operator(u)

            assert not in_threads(apart)
            with switch:
                assert not in_threads(inside)
            assert operator.training
            assert not MEMOS
    finally:
        sys.setswitchinterval(interval)
    assert torch.is_grad_enabled()


def test_leaving_in_another_thread_keeps_that_threads_modes():
    operator = made("luna").train()
    switch = fredholm.inference(operator)
    assert not in_threads(switch.__enter__, count=1)
    switch.__exit__(None, None, None)
    assert operator.training
    assert torch.is_grad_enabled()


def test_training_inside_the_context_is_refused():
    u = torch.randn(1, 5, 8)
    for name in ("luna", "softmax", "infsa"):
        operator = made(name)
        with fredholm.inference(operator), torch.enable_grad():
            with pytest.raises(InferenceError, match="with gradients enabled inside"):
                operator(u)
            operator.requires_grad_(False)
            assert torch.autograd.grad(operator(v := u.clone().requires_grad_()).sum(), v)[0].any()
        with fredholm.inference(operator):
            operator.train()
            with pytest.raises(InferenceError, match="put into training mode"):
                operator(u)


@pytest.mark.parametrize("how", ["step", "assign", "move"])
def test_changing_weights_inside_the_context_is_refused(how):
    operator = made("luna")
    u = torch.randn(1, 5, 8)
    with fredholm.inference(operator):
        operator(u)
        with torch.no_grad():
            weight = operator.kernel.feature_map.weight
            if how == "step":
                weight.add_(1.0)
            elif how == "assign":
                operator.kernel.feature_map.weight = nn.Parameter(2 * weight)
            else:
                operator.double().float()
        with pytest.raises(InferenceError, match="weights of LunaAttention have changed"):
            operator(u)


def test_copies_pickles_and_state_dicts_are_outside_the_context():
    operator = made("ckconv")
    u = torch.randn(1, 5, 8)
    names = list(operator.state_dict())
    with fredholm.inference(operator):
        expected = operator(u)
        others = [copy.deepcopy(operator), pickle.loads(pickle.dumps(operator))]
        assert list(operator.state_dict()) == names
        for other in others:
            assert other not in MEMOS
            torch.nn.init.zeros_(other.kernel.readout_layer.magnitude)
            assert not torch.equal(other(u), expected)


class Moody(WeightedKernel):
    """A kernel that does not use the context, with an option that changes."""

    def __init__(self):
        super().__init__(1, 8)
        self.power = 1.0
        self.value = nn.Parameter(torch.eye(8)[None])

    def weights(self, problem):
        return torch.ones(1, 1, problem.ux.shape[2], problem.uy.shape[2]) * self.power

    def value_map(self):
        return self.value


@torch.no_grad()
def test_a_kernel_without_caching_is_correct():
    operator = IntegralOperator(8, kernel=Moody())
    u = torch.randn(1, 5, 8)
    with fredholm.inference(operator):
        first = operator(u)
        operator.kernel.power = 2.0
        second = operator(u)
    assert_close(second, operator(u))
    assert not torch.allclose(first, second)


def test_the_positions_that_were_used_last_are_kept():
    layer = nn.Linear(1, 1)
    grids = [torch.full((2,), float(n)) for n in range(6)]
    made: list[int] = []

    def call(n: int) -> None:
        prepared(layer, "sum", lambda: made.append(n) or grids[n].sum(), of=[grids[n]])

    with fredholm.inference(layer):
        for n in (0, 1, 2, 3):
            call(n)
        # Used again, the first grid outlives the others when new ones come.
        for n in (0, 4, 0, 5, 0):
            call(n)
    assert made == [0, 1, 2, 3, 4, 5]


def test_prepared_results_follow_the_values_of_their_tensors():
    layer = nn.Linear(1, 1)
    x = torch.zeros(3)
    with fredholm.inference(layer):
        double = lambda x: prepared(layer, "double", lambda: 2 * x, of=(x,))  # noqa: E731
        first = double(x)
        assert double(x) is first
        assert double(x.clone()) is first
        x.add_(1.0)
        assert double(x).tolist() == [2.0] * 3
        with torch.inference_mode():
            y = torch.zeros(3)
            double(y)
            y.add_(5.0)
            assert double(y).tolist() == [10.0] * 3
        assert torch.func.vmap(double)(torch.eye(2)).tolist() == [[2.0, 0.0], [0.0, 2.0]]


COMPILED = """
import torch, fredholm
for name in ("luna", "ckconv"):
    operator, u = fredholm.create_operator(name, 8, 2).eval(), torch.randn(1, 6, 8)
    line = fredholm.Domain.line(6, causal=True)
    expected = operator(u, line).detach()
    compiled = torch.compile(operator, backend="eager", fullgraph=True)
    with fredholm.inference(operator):
        inside = [compiled(u, line), operator(u, line), compiled(u, line)]
    for out in (*inside, compiled(u, line)):
        torch.testing.assert_close(out.detach(), expected, rtol=1e-5, atol=1e-5)
print("compiled")
"""


# The tests' type checks cannot be traced, so this runs in a process without them.
@pytest.mark.slow
def test_compiled_code_is_correct_inside_and_outside():
    command = [sys.executable, "-c", COMPILED]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "compiled" in done.stdout, done.stderr


# Dispatcher calls of one causal step inside the context. A change of the code may lower them. They
# do not depend on the machine's load, as a timing would.
STEP_CALLS = {
    "ckconv": 38,
    "infsa": 45,
    "itnet": 133,  # turns of both ends are counted in float64
    "itnet_low_rank": 71,  # the same
    "linear_attention": 39,
    "linear_infsa": 73,
    "luna": 64,
    "softmax": 26,
}


class Calls(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", STEP_CALLS)
def test_a_step_makes_at_most_its_recorded_number_of_calls(name):
    operator = made(name)
    line = operator.kernel.default_domain(6, device=torch.device("cpu"), dtype=torch.float32)
    u = torch.randn(1, 4, 8)
    with torch.inference_mode(), fredholm.inference(operator):
        _, state = operator.prefill(u[:, :3], operator.init_state(1, line.replace(causal=True)))
        operator.step(u[:, 3], state)
        x = u[:, 3]
        with Calls() as calls:
            operator.step(x, state)
    assert calls.count <= STEP_CALLS[name]


def test_a_context_may_begin_or_end_inside_a_functional_call():
    class Entering(nn.Module):
        def forward(self, x):
            late.__enter__()
            return x

    module = Entering()
    late = fredholm.inference(module)
    with fredholm.inference(module):
        call_with(module, {}, (torch.ones(1),))
        assert MEMOS
        late.__exit__(None, None, None)
        assert not module.training
    assert module.training
    assert not MEMOS


@pytest.mark.parametrize(
    "feature_map",
    [
        HedgehogFeatures(4, softmax=True),
        HedgehogFeatures(4),
        T2RFeatures(4),
        LunaMap(4),
    ],
    ids=["hedgehog softmax", "hedgehog", "t2r", "luna"],
)
@pytest.mark.parametrize("batch", [1, 2])
def test_a_map_that_all_heads_share_answers_as_outside(feature_map, batch):
    operator = create_operator("linear_attention", 8, 2, feature_map=feature_map)
    u = torch.randn(batch, 5, 8)
    expected = operator(u)
    with fredholm.inference(operator):
        assert_close(operator(u), expected)
