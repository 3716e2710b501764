"""Wrong arguments raise the library's errors that name them, never bare ones of Python or torch."""

from __future__ import annotations

import contextlib
import inspect

import pytest
import torch

from fredholm.arguments import parameters_of
from fredholm.domain import Domain
from fredholm.errors import DomainError, FredholmError, OptionError, ShapeError
from fredholm.integral import IntegralOperator, Strategy
from fredholm.kernels import HopKernel, MLPKernel, SoftmaxKernel
from fredholm.operators import (
    CKConv,
    Exact,
    InfSA,
    ITNetOperator,
    LinearAttention,
    LunaAttention,
    SoftmaxAttention,
    create_operator,
    list_operators,
    operator_factory,
)

EDGES = torch.tensor([[0, 1], [1, 2]])
U = torch.randn(2, 4, 8)
LINE = Domain.line(4, causal=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Domain.line("4"), "Domain.line.n=....: expected a whole number, got '4'"),
        (lambda: Domain.line(float("nan")), "n=....: expected a whole number, got nan"),
        (lambda: Domain.line(4.0), "n=....: expected a whole number, got 4.0"),
        (lambda: Domain.line(True), "n=....: expected a whole number, got True"),
        (lambda: Domain.line(), "Domain.line: expected n, got nothing"),
        (lambda: Domain.line(3, 4), "at most 1 arguments without their names, n, got 2 values"),
        (lambda: Domain.line(4, length="x"), "length=....: expected a number or None, got 'x'"),
        (lambda: Domain.line(4, causal="yes"), "causal=....: expected True or False, got 'yes'"),
        (lambda: Domain.line(4, shape=(4,)), "Domain.line has no option 'shape'"),
        (lambda: Domain.line(4, casual=True), "has no option 'casual'; did you mean 'causal'"),
        (
            lambda: Domain.line(4, device="gpu"),
            "device=....: expected a device that there is.*'gpu'",
        ),
        (
            lambda: Domain.line(4, dtype="float32"),
            "dtype=....: expected a dtype or None, got 'float32'",
        ),
        (
            lambda: Domain.line(4, valid=[True] * 4),
            "valid=....: expected a tensor or None, got a list of 4",
        ),
        (
            lambda: Domain.line(4, pairs="full"),
            "pairs=....: expected a tensor or edges or None, got 'full'",
        ),
        (lambda: Domain.grid((3, 4)), "a tuple of 2; write the numbers one by one"),
        (lambda: Domain.grid(3, None), "shape=....: expected a whole number, got None"),
        (lambda: Domain.points([[0.0], [1.0]]), r"a tensor, got a list of 2; .*torch.tensor"),
        (lambda: Domain.points(torch.rand(3, 1).numpy()), r"torch.from_numpy\(...\)"),
        (lambda: Domain.timestamps([0.0, 1.0]), "t=....: expected a tensor, got a list of 2"),
        (
            lambda: Domain.timestamps(torch.rand(3), step="s"),
            "step=....: expected a number, got 's'",
        ),
        (
            lambda: Domain.graph([[0], [1]], 2),
            "edge_index=....: expected a tensor, got a list of 2",
        ),
        (lambda: Domain.graph(EDGES, "3"), "n=....: expected a whole number, got '3'"),
        (lambda: Domain.graph(EDGES, 3, self_loops="x"), "self_loops=....: expected True or False"),
        (lambda: Domain.graph(EDGES, 3, pairs=None), "Domain.graph has no option 'pairs'"),
        (lambda: Domain.join(LINE, U), "b=....: expected a Domain, got a tensor.*Domain.points"),
        (
            lambda: Domain.join(LINE, LINE, balance=1.0),
            "balance=....: expected two numbers or None",
        ),
        (lambda: Domain.join(LINE, LINE, balance=(-1.0, 2.0)), "masses of 0 or more in balance"),
        (
            lambda: Domain.collate([3, 4]),
            "domains=....: expected a list of Domains, got a list of 2",
        ),
        (lambda: Domain.collate(LINE), "a list of Domains, got a Domain"),
        (lambda: LINE.replace(ordered=True), "field of a domain, got 'ordered'"),
        (lambda: LINE.replace(kind="unifrom").quadrature(), "did you mean 'uniform'"),
        (lambda: LINE.with_masses([1.0] * 4), "measure=....: expected a tensor, got a list of 4"),
        (lambda: LINE.quadrature(3), "query_domain: expected a Domain, got 3"),
    ],
)
def test_wrong_arguments_of_domains_are_refused(call, message):
    with pytest.raises(DomainError, match=message):
        call()


class Line(ITNetOperator):
    def __init__(self, dim, heads=1, **options):
        super().__init__(dim, heads, position_dim=1, **options)


class LineInside(ITNetOperator):
    def __init__(self, dim, **options):
        line = Line(dim, **options)
        super().__init__(dim, position_dim=line.kernel.position_dim)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: create_operator("softmax", 0), "dim=....: expected 1 or more, got 0"),
        (lambda: create_operator("softmax", 8, 0), "heads=....: expected 1 or more, got 0"),
        (lambda: SoftmaxAttention("8"), "dim=....: expected a whole number, got '8'"),
        (lambda: create_operator("infsa", 8, num_heads=2), "operator 'infsa'.* mean 'heads'"),
        (lambda: SoftmaxAttention(8, num_heads=2), "SoftmaxAttention .*did you mean 'heads'"),
        (lambda: SoftmaxAttention(embed_dim=8), "no option 'embed_dim'; did you mean 'dim'"),
        (lambda: SoftmaxAttention(), "SoftmaxAttention: expected dim, got nothing"),
        (lambda: SoftmaxAttention(8, 2, "auto"), "without their names, dim, heads, got 3 values"),
        (lambda: SoftmaxAttention(8, causal=True), r"order belongs to the domain: .*causal=True"),
        (lambda: InfSA(8, causal=True), "InfSA .*order belongs to the domain"),
        (lambda: LunaAttention(8, attn_mask=U), "who sees whom belongs to the domain"),
        (lambda: ITNetOperator(8, key_padding_mask=U), "padding belongs to the domain"),
        (lambda: InfSA(8, decai=0.5), "InfSA has no option 'decai'; did you mean 'decay'"),
        (lambda: InfSA(8, decay="high"), "InfSA.decay=....: expected a number or None, got 'high'"),
        (lambda: InfSA(8, preset=["paper"]), "preset=....: expected a name, got a list of 1"),
        (lambda: InfSA(8, projections="shared"), "a Linear layer or three or None"),
        (lambda: LinearAttention(8, feature_options="x"), "a dictionary of options or None"),
        (lambda: LunaAttention(8, width=3), "sets 'width' itself; leave it out"),
        (lambda: Line(8, position_dim=2), "^Line sets 'position_dim' itself; leave it out"),
        (lambda: LineInside(8, position_dim=2), "^LineInside sets 'position_dim' itself"),
        (lambda: CKConv(8, bias="no"), "bias=....: expected True or False, got 'no'"),
        (lambda: HopKernel(8, 2, norms="rows"), "HopKernel .*did you mean 'norm'"),
        (
            lambda: MLPKernel(2, 4, groups=3),
            "groups=....: expected names or a list of names, got 3",
        ),
        (
            lambda: IntegralOperator(8, kernel="softmax"),
            "kernel=....: expected a Kernel, got 'softmax'",
        ),
        (lambda: IntegralOperator(8, kernel=SoftmaxKernel(8, 1), projection=U), "True or False"),
        (
            lambda: Exact(memory="1 GB"),
            "Exact.memory=....: expected a whole number or None, got '1 GB'",
        ),
        (lambda: Exact(memori=1), "Exact has no option 'memori'; did you mean 'memory'"),
        (lambda: SoftmaxAttention(8, strategy=3), "expected a Strategy or a name or a mapping"),
    ],
)
def test_wrong_arguments_of_constructors_are_refused(call, message):
    with pytest.raises(OptionError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda op: op.kernel_matrix(U, LINE, rows=[7]), ShapeError, "each from 0 to 3, got .7"),
        (lambda op: op.weights(U, LINE, rows=[-1]), ShapeError, "each from 0 to 3, got .-1"),
        (lambda op: op.weights(U, LINE, rows=[]), ShapeError, r"at least one, .*, got \[\]"),
        (lambda op: op.weights(U, LINE, rows=torch.zeros(0)), ShapeError, "got a tensor"),
        (
            lambda op: op.weights(U, U),
            DomainError,
            "domain: expected a Domain, got a tensor.*points",
        ),
        (lambda op: op.weights(None), ShapeError, "u: expected a tensor of features, got None"),
        (
            lambda op: op.weights(U, query=U[0, 0]),
            ShapeError,
            r"query: expected shape .*got \(8,\)",
        ),
        (
            lambda op: op.step(U[:1, 0], op.init_state(2, LINE)),
            ShapeError,
            "batch size of the state, 2, got 1",
        ),
        (lambda op: op.prefill(U[:1], op.init_state(2, LINE)), ShapeError, "init_state.1, domain"),
        (
            lambda op: op(U, Domain.line(4, pairs=torch.ones(1, 5, 4, 4).bool())),
            ShapeError,
            r"pairs: expected 2 heads or one for all, got 5 in shape \(1, 5, 4, 4\)",
        ),
        (
            lambda op: op(U, Domain.line(4, pairs=torch.ones(7, 4, 4).bool())),
            ShapeError,
            "expected 2 samples or one for all, got 7",
        ),
    ],
)
def test_wrong_arguments_of_calls_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call(SoftmaxAttention(8, 2))


BAD = [None, "x", -1, 1.5, float("nan"), [1, 2], {}, U, object()]


@pytest.mark.parametrize("name", list_operators())
def test_wrong_values_of_options_give_errors_of_the_library(name):
    factory = operator_factory(name)
    for option in {p.name for p in parameters_of(factory)} - {"dim", "d_in"}:
        for value in BAD:
            with contextlib.suppress(FredholmError):
                factory(8, **{option: value})


def test_user_defined_operators_are_checked_too():
    class Mine(SoftmaxAttention):
        def __init__(self, dim: int, heads: int = 1, *, sharp: bool = False, **options):
            super().__init__(dim, heads, **options)

    assert Mine(8, sharp=True, bias=False).dim == 8
    with pytest.raises(OptionError, match="Mine has no option 'sharpp'; did you mean 'sharp'"):
        Mine(8, sharpp=True)
    with pytest.raises(OptionError, match=r"Mine.bias=....: expected True or False"):
        Mine(8, bias="x")


def test_a_user_s_own_option_may_take_what_that_of_the_base_refuses():
    class Mine(SoftmaxAttention):
        def __init__(self, dim: int, heads: int = 1, *, bias: object = "none", **options):
            super().__init__(dim, heads, bias=bias != "none", **options)

    class Inherits(Mine):
        pass

    for kind in (Mine, Inherits):
        assert kind(8, bias="all").kernel.query.bias is not None
        with pytest.raises(OptionError, match=r"strategy=....: expected"):
            kind(8, strategy=3)


def test_errors_inside_a_constructor_propagate():
    class Broken(Strategy):
        def __init__(self, n: int):
            {}["missing"]

    with pytest.raises(KeyError):
        Broken(3)


def test_a_domain_has_a_short_representation():
    valid = torch.ones(2, 1000, dtype=torch.bool)
    domain = Domain.line(1000, causal=True, valid=valid, dtype=torch.float64)
    assert repr(domain) == (
        "Domain(batch of 2, 1000 points in 1 dimension, line 1000, uniform measure, causal, "
        "padding, float64, cpu)"
    )
    assert repr(Domain.grid(2, 3)).startswith("Domain(6 points in 2 dimensions, grid 2 × 3")


def test_help_shows_the_constructor():
    assert list(inspect.signature(SoftmaxAttention).parameters)[:3] == ["dim", "heads", "bias"]
    assert {"strategy", "norm", "decay"} <= {p.name for p in parameters_of(InfSA)}
