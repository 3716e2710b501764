"""ITNet's pair tensors are described once: what the description generates, and what one more term
costs.
"""

from __future__ import annotations

import ast
import inspect
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fredholm
from fredholm.errors import OptionError, ShapeError
from fredholm.families.itnet.hidden_first import mlp_kernel, mlp_kernel_naive
from fredholm.families.itnet.hidden_first.forward import as_given, heads_first
from fredholm.families.itnet.hidden_first.terms import PAIR_TENSORS, Tensors
from tests.ops.test_mlp_kernel import inputs

SOURCE = Path(fredholm.__file__).parent
SIZES = {"b": 2, "h": 3, "q": 7, "k": 5, "d": 4, "w": 6, "v": 8, "e": 9, "f": 3, "p": 2}


def shape_of(fact, shared=False):
    return [1 if shared and s else SIZES.get(n, 11) for n, s in zip(fact.sizes, fact.shared)]


# --- what the description generates ---------------------------------------------------------------


def test_the_schema_lists_every_tensor_in_order():
    schema = torch.ops.fredholm.mlp_kernel.default._schema
    names = [a.name for a in schema.arguments]
    assert names == [*PAIR_TENSORS, "mid", "activation", "memory"]
    optional = {a.name for a in schema.arguments if str(a.type) == "Optional[Tensor]"}
    assert optional == set(PAIR_TENSORS) - {"value", "readout", "query_bias"}


@pytest.mark.parametrize("name", [n for n, fact in PAIR_TENSORS.items() if fact.kind != "index"])
@pytest.mark.parametrize("shared", [False, True])
def test_layouts_are_invertible(name, shared):
    """``as_given`` inverts ``heads_first``, whose layout begins with the sizes h and b."""
    fact = PAIR_TENSORS[name]
    x = torch.randn(shape_of(fact, shared))
    laid_out = heads_first(fact, x)
    assert torch.equal(as_given(fact, laid_out, x), x)
    for place, size in enumerate("hb"):
        alone = size not in fact.sizes or (shared and fact.shared[fact.sizes.index(size)])
        assert laid_out.shape[place] == (1 if alone else SIZES[size])


@pytest.mark.parametrize("name", list(PAIR_TENSORS))
def test_the_shape_of_every_tensor_is_checked(name):
    """Each tensor in turn gets too many dimensions, and then one wrong size."""
    arguments = inputs("second", "key_bias", "table", "distance", "density", "time")
    x, plain = arguments[name], inspect.unwrap(mlp_kernel)  # without the tests' check of shapes
    assert mlp_kernel(**arguments).shape == (2, 3, 7, 2)
    wrong = [x[None, None]]
    decides = name in ("value", "query_bias")  # a size of these is what others are compared with
    if not decides and PAIR_TENSORS[name].sizes[-1] not in ("T", "p", "e", "f"):
        wrong.append(torch.cat([x, x[..., :1]], -1))
    for bad in wrong:
        with pytest.raises(ShapeError, match=rf"^mlp_kernel's {name}: expected shape"):
            plain(**{**arguments, name: bad})


def test_unknown_tensors_are_refused():
    for function in (mlp_kernel, mlp_kernel_naive):
        with pytest.raises(OptionError, match=r"got 'key_bais'; did you mean 'key_bias'"):
            function(**inputs("product"), key_bais=torch.ones(1))


def test_the_documentation_names_every_tensor():
    documentation = str(mlp_kernel.__doc__)
    for name, fact in PAIR_TENSORS.items():
        assert f"\n        {name}: {fact.text}, (" in documentation


# --- what one more term costs ---------------------------------------------------------------------

ITNET = "families/itnet"
DESCRIBED, COMPUTED, SUPPLIED = (
    f"{ITNET}/hidden_first/terms.py", f"{ITNET}/hidden_first/first_layer.py", f"{ITNET}/kernel.py",
)  # fmt: skip
# What knows single terms besides: the same arithmetic on a GPU and its limits, the sum over drawn
# keys, the form that makes a grid's indices, the count of FLOPs, and the form of sparse domains,
# whose ends are gathered per edge.
BESIDES = (
    f"{ITNET}/triton/", f"{ITNET}/hidden_first/limits.py", "ops/anchors/sampled.py",
    f"{ITNET}/hidden_first/tiled.py", f"{ITNET}/hidden_first/registration.py",
    f"{ITNET}/neighbours.py",
)  # fmt: skip
ADDITIVE = (
    "key_bias", "scale2", "query2", "query_index", "key_index", "distance_scale",
    "query_positions", "key_positions",
)  # fmt: skip


def mentions(path, name):
    """Return whether a file uses the name: as a string, attribute, argument or variable."""
    text = path.read_text()
    # Most files need no parsing.
    if name not in text:
        return False

    fields = {ast.Constant: "value", ast.Attribute: "attr", ast.Name: "id"}
    fields |= {ast.arg: "arg", ast.keyword: "arg"}
    return any(
        getattr(node, fields[type(node)]) == name
        for node in ast.walk(ast.parse(text))
        if type(node) in fields
    )


@pytest.mark.parametrize("name", ADDITIVE)
def test_a_tensor_is_named_where_it_is_described_computed_and_supplied(name):
    paths = {p.relative_to(SOURCE).as_posix(): p for p in SOURCE.rglob("*.py")}
    files = {file for file, path in paths.items() if mentions(path, name)}
    assert DESCRIBED in files
    assert {f for f in files if not f.startswith(BESIDES)} <= {DESCRIBED, COMPUTED, SUPPLIED}


# A term cos(a_i - b_j) with a coefficient per hidden unit, and all that it takes.
PATCHES = {
    DESCRIBED: {
        "    mid: list[Tensor] = field(": """\
    query_phase: Tensor | None = tensor("b|1 h|1 q", "query", "a", term="phase")
    key_phase: Tensor | None = tensor("b|1 h|1 k", "key", "b", term="phase")
    phase_scale: Tensor | None = tensor("h|1 w", "layer", "c", term="phase")
    mid: list[Tensor] = field(""",
        "FIRST_LAYER: tuple": """\
def phase_term(x: Tensors) -> Tensor | None:
    if x.query_phase is None or x.key_phase is None or x.phase_scale is None:
        return None
    angle = x.query_phase[:, :, :, None, None] - x.key_phase[:, :, None, :, None]
    return angle.cos() * x.phase_scale[:, None, None, :]


FIRST_LAYER: tuple""",
        "table_term, distance_term,": "table_term, distance_term, phase_term,",
    },
    COMPUTED: {
        "        keys = matrices_of_points(f.key, chunk, k)\n        flat = rows.view(": """\
        if f.phase_scale is not None:
            part = cut(f.phase_scale, *chunk)[:, :, None, :, None] * self._angle(chunk).cos()
            s.add_(part) if terms else s.copy_(part.expand_as(s))
            terms.append(part)
        keys = matrices_of_points(f.key, chunk, k)
        flat = rows.view(""",
        "        add_shared(cut(shared, *chunk), slope)\n": """\
        add_shared(cut(shared, *chunk), slope)
        if f.phase_scale is not None:
            angle, q = self._angle(chunk), self.q
            add_shared(cut(g.phase_scale, *chunk), (slope * angle.cos()).sum((2, 4)))
            scale = cut(f.phase_scale, *chunk)[:, :, None, :, None]
            pull = -(slope * scale).sum(3) * angle.sin()[:, :, :, 0]
            if g.query_phase is not None:
                add_shared(cut(g.query_phase, *chunk)[:, :, q], pull.sum(3))
            if g.key_phase is not None:
                add_shared(cut(g.key_phase, *chunk)[:, :, k], -pull.sum(2))
""",
        '    if "distance_scale" in of:\n': """\
    if "phase_scale" in of:
        angle = of["query_phase"][:, :, None, :, None] - of["key_phase"][..., None, None]
        total = total + angle.cos() * of["phase_scale"][:, None, None]
    if "distance_scale" in of:
""",
        "    # --- gradients": """\
    def _angle(self, chunk):
        query, key = cut(self.f.query_phase, *chunk), cut(self.f.key_phase, *chunk)
        return query[:, :, self.q, None, None] - key[:, :, None, None, self.k]

    # --- gradients""",
    },
    SUPPLIED: {
        "        self.reset_parameters()\n": """\
        self.phase_scale = nn.Parameter(torch.randn(1, width))
        self.reset_parameters()
""",
        "        parts = []\n": """\
        terms["key_phase"] = uy[..., 0]
        parts = []
""",
        "        if self.depth > 2:\n            terms": """\
        terms["query_phase"], terms["phase_scale"] = ux[..., 0], self.phase_scale
        if self.depth > 2:
            terms""",
        "        weights = [self.weight1.expand(self.heads, -1, -1), *self.mid_weights]\n": """\
        phase = self.phase_scale.expand(self.heads, -1)[..., None]
        first = torch.cat([self.weight1.expand(self.heads, -1, -1), phase], -1)
        inputs.append((ux[..., :1] - uy[..., :1]).cos().expand(*lead, -1))
        weights = [first, *self.mid_weights]
""",
    },
}  # fmt: skip

SCRIPT = """
import torch
from fredholm import Domain, ITNetOperator
from fredholm.errors import BackendError, ShapeError
from fredholm.families.itnet.hidden_first import mlp_kernel, mlp_kernel_naive

def draw(*shape, grad=True):
    return torch.randn(*shape, dtype=torch.float64).requires_grad_(grad)

torch.manual_seed(0)
for shared in (1, 3):
    x = {"value": draw(2, 3, 5, 4), "readout": draw(3, 2, 4, 6), "query_bias": draw(2, 3, 7, 6)}
    x |= {"query_phase": draw(2, shared, 7), "key_phase": draw(1, 3, 5)}
    x |= {"phase_scale": draw(shared, 6)}
    weight = draw(2, 3, 7, 2, grad=False)
    for extra in ({}, {"key_bias": draw(2, 3, 5, 6)}):
        for memory in (400, 10**6):
            found = mlp_kernel(None, None, **x, **extra, memory=memory)
            exact = mlp_kernel_naive(None, None, **x, **extra)
            torch.testing.assert_close(found, exact)
            leaves = [*x.values(), *extra.values()]
            grads = [torch.autograd.grad(out, leaves, weight) for out in (found, exact)]
            for a, b in zip(*grads):
                torch.testing.assert_close(a, b)
try:
    mlp_kernel(None, None, **{n: t for n, t in x.items() if n != "key_phase"})
except ShapeError as error:
    assert "without key_phase" in str(error), error
from fredholm.families.itnet.hidden_first.tiled import complete
from fredholm.families.itnet.hidden_first.limits import refusal
single = {n: t.float() for n, t in x.items()}
assert refusal(complete(single), []) == "it has no kernels with query_phase"
assert "query_phase: a, (B | 1, H | 1, Nq)" in mlp_kernel.__doc__

operator = ITNetOperator(8, 2, width=6, frequencies=3, sigma=1.0).double()
torch.nn.init.normal_(operator.kernel.weight2)
u = draw(2, 9, 8)
points = Domain.points(torch.rand(2, 9, 1).double())
for domain in (Domain.line(9), Domain.line(9, causal=True), points):
    torch.testing.assert_close(operator(u, domain), operator.dense(u, domain))
print("one more term")
"""


@pytest.mark.slow
def test_one_more_term_touches_three_files(tmp_path):
    """A term that none of the other files knows is added to a copy of the package: the description,
    a tile's arithmetic and the kernel. The op equals its definition in values and gradients, the
    operator equals its own, the argument is documented and checked, and Triton refuses it.
    """
    assert len(PATCHES) <= 3
    package = tmp_path / "fredholm"
    shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
    for file, patches in PATCHES.items():
        text = (package / file).read_text()
        for before, after in patches.items():
            assert text.count(before) == 1, f"{file} has {text.count(before)} times: {before}"
            text = text.replace(before, after)
        (package / file).write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.stdout.strip() == "one more term", done.stderr[-3000:]


def test_the_tuple_of_tensors_has_the_ops_tensors_and_further_layers():
    assert [*PAIR_TENSORS, "mid"] == list(Tensors.__dataclass_fields__)
