"""``backend="checked"`` runs a Triton kernel and refuses a result that PyTorch does not share."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from fredholm.domain import Domain
from fredholm.errors import BackendError, StrategyError
from fredholm.families.infsa.graph import edge_product
from fredholm.operators import CKConv, InfSA, ITNetOperator, LunaAttention, create_operator
from fredholm.ops import checked

from .triton_device import devices

triton_op = pytest.importorskip("fredholm.families.infsa.triton.op")
pytestmark = devices

SPOILED = "expected the Triton kernel of the edge product to agree"


class Wrong:
    """A kernel that runs the correct one and then spoils one of its results."""

    def __init__(self, kernel, place, spoil):
        self.kernel = kernel
        self.place = place
        self.spoil = spoil

    def __getitem__(self, grid):
        def run(*arguments, **options):
            self.kernel[grid](*arguments, **options)
            self.spoil(arguments[self.place])

        return run


def spoil_kernel(monkeypatch, name="forward_kernel", place=5, spoil=lambda x: x.mul_(1.001)):
    monkeypatch.setattr(triton_op, name, Wrong(getattr(triton_op, name), place, spoil))


def inputs(device):
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(1, 2, 9, 4, generator=generator) for _ in range(3)]
    tensors.append(torch.ones(1, 9))
    return [x.to(device).requires_grad_() for x in tensors]


def test_a_correct_kernel_returns_its_own_result(device):
    x = inputs(device)
    values, rows = edge_product(*x, backend="checked")
    expected_values, expected_rows = edge_product(*x, backend="triton")
    assert torch.equal(values, expected_values)
    assert torch.equal(rows, expected_rows)
    gradients = torch.autograd.grad(values.sum(), x)
    expected = torch.autograd.grad(expected_values.sum(), x)
    assert all(torch.equal(a, b) for a, b in zip(gradients, expected))


@pytest.mark.parametrize(
    ("spoil", "where"),
    [
        ({}, "result 0"),
        ({"name": "backward_queries", "place": 7}, "gradient 0"),
        ({"spoil": lambda x: x.view(-1)[-1:].fill_(torch.nan)}, "difference of inf in result 0"),
    ],
    ids=["value", "gradient", "nan"],
)
def test_a_wrong_kernel_is_refused(device, monkeypatch, spoil, where):
    spoil_kernel(monkeypatch, **spoil)
    with pytest.raises(BackendError, match=f"{SPOILED}.*{where}.*use backend='torch'"):
        edge_product(*inputs(device), backend="checked")


def test_no_gradient_is_computed_under_no_grad(device, monkeypatch):
    spoil_kernel(monkeypatch, name="backward_queries", place=7)
    with torch.no_grad():
        edge_product(*inputs(device), backend="checked")


def test_the_triton_backend_does_not_check_a_wrong_kernel(device, monkeypatch):
    x = inputs(device)
    right, _ = edge_product(*x, backend="triton")
    spoil_kernel(monkeypatch)
    wrong, _ = edge_product(*x, backend="triton")
    assert torch.allclose(wrong, 1.001 * right)


def test_the_auto_backend_runs_torch_operations(device, monkeypatch):
    spoil_kernel(monkeypatch, spoil=lambda x: x.fill_(torch.nan))
    x = inputs(device)
    values, _ = edge_product(*x)
    assert torch.equal(values, edge_product(*x, backend="torch")[0])


def test_errors_of_a_kernel_propagate(device, monkeypatch):
    def fail(x):
        raise RuntimeError("out of resource: shared memory")

    spoil_kernel(monkeypatch, spoil=fail)
    with pytest.raises(RuntimeError, match="out of resource"):
        edge_product(*inputs(device), backend="checked")


def test_unsupported_dtypes_are_refused(device):
    with pytest.raises(BackendError, match=r"cannot run .* float64"):
        edge_product(*(x.detach().double() for x in inputs(device)), backend="checked")


def test_a_form_without_a_kernel_is_refused(device):
    operator = create_operator("softmax", 8, 2, strategy={"name": "exact", "backend": "checked"})
    with pytest.raises(StrategyError, match="has no Triton kernel"):
        operator.to(device)(torch.randn(1, 9, 8, device=device))


def test_transforms_of_torch_func_are_refused(device):
    query, *others = [x.detach() for x in inputs(device)]

    def total(query):
        return edge_product(query, *others, backend="checked")[0].sum()

    with pytest.raises(BackendError, match=r"transform of torch\.func; use backend='triton'"):
        torch.func.grad(total)(query)


def test_checking_draws_no_random_numbers_and_works_under_a_checkpoint(device):
    operator = InfSA(8, 2, strategy={"name": "exact", "backend": "checked"}).to(device)
    u = torch.randn(1, 9, 8, device=device, requires_grad=True)
    state = torch.get_rng_state()
    checkpoint(operator, u, use_reentrant=False).sum().backward()
    assert torch.equal(state, torch.get_rng_state())

    found = u.grad
    operator.strategy = {"name": "exact", "backend": "triton"}
    (expected,) = torch.autograd.grad(operator(u).sum(), u)
    assert torch.equal(found, expected)


OPERATORS = {
    "ITNet on points": lambda: ITNetOperator(8, 2, position_dim=1, strategy="exact"),
    "ITNet without heads": lambda: ITNetOperator(8, position_dim=1, strategy="exact"),
    "LUNA": lambda: LunaAttention(8, 2, directions=2, channels=2, hidden=2),
    "linear attention": lambda: create_operator("linear_attention", 8, 2),
    "InfSA": lambda: InfSA(8, 2, strategy="exact"),
    "CKConv": lambda: CKConv(8, position_dim=1, strategy="fft"),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", OPERATORS)
def test_every_kernel_agrees_with_torch(device, name, causal, monkeypatch):
    operator = OPERATORS[name]().to(device)
    chosen = operator.plan(Domain.line(5, causal=causal)).strategy.split("(")[0].lower()
    operator.strategy = {"name": chosen, "backend": "checked"}
    compared = []
    difference = checked.relative_difference
    monkeypatch.setattr(
        checked, "relative_difference", lambda *pair: compared.append(1) or difference(*pair)
    )
    u = torch.randn(1, 5, 8, device=device, requires_grad=True)
    operator(u, Domain.line(5, causal=causal, device=device)).sum().backward()
    assert compared
    assert u.grad is not None
