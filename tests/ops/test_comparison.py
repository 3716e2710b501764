"""backend="auto" takes a Triton kernel where it agrees with PyTorch's operations, and remembers.

Without a GPU the kernels run in Triton's interpreter, and these tests let "auto" consider them
there.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from fredholm.domain import Domain
from fredholm.errors import BackendError
from fredholm.families.infsa.graph import EDGE_PRODUCT, edge_product
from fredholm.families.infsa.graph.sample import sample as edge_sample
from fredholm.families.itnet.hidden_first.sample import sample as mlp_sample
from fredholm.operators import InfSA
from fredholm.ops import backend, comparison
from fredholm.ops.comparison import compare
from fredholm.ops.linear_attention.sample import sample_banked, sample_given

from .triton_device import interpreted

triton_op = pytest.importorskip("fredholm.families.infsa.triton.op")
pytestmark = pytest.mark.skipif(not interpreted(), reason="kernels run on the GPU here")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def new_process(monkeypatch, tmp_path):
    """Forget what this process knows; call it again for another process."""
    monkeypatch.setenv("FREDHOLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(backend, "accelerated", lambda device: True)
    monkeypatch.setattr(comparison, "POINTS", 20)

    def forget():
        comparison._KNOWN.clear()
        comparison._ANSWERS.clear()

    forget()
    yield forget
    forget()


@pytest.fixture
def compared(monkeypatch):
    """The cases that were compared, in order."""
    cases, real = [], comparison.compare

    def record(*arguments):
        cases.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(comparison, "compare", record)
    return cases


class Wrong:
    """A kernel that runs the real one, and then spoils a result."""

    def __init__(self, kernel, place, spoil):
        self.kernel, self.place, self.spoil = kernel, place, spoil

    def __getitem__(self, grid):
        def run(*arguments, **options):
            self.kernel[grid](*arguments, **options)
            self.spoil(arguments[self.place])

        return run


def spoiled(monkeypatch, name="forward_kernel", place=5, spoil=lambda x: x.mul_(1.001)):
    monkeypatch.setattr(triton_op, name, Wrong(getattr(triton_op, name), place, spoil))


def inputs():
    g = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, 9, 4, generator=g) for _ in range(3)] + [torch.ones(1, 9)]


def test_a_right_kernel_is_compared_once_and_taken(compared, new_process):
    x = inputs()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out, _ = edge_product(*x)
        edge_product(*x)
    assert torch.equal(out, edge_product(*x, backend="triton")[0])
    assert len(compared) == 1
    edge_product(*x, causal=True)
    assert len(compared) == 2  # another form
    new_process()
    edge_product(*x)
    assert len(compared) == 2  # from the disk


@pytest.mark.parametrize(
    "spoil",
    [
        {},
        {"name": "backward_queries", "place": 7},
        {"spoil": lambda x: x.view(-1)[-1:].fill_(torch.nan)},
    ],
    ids=["value", "gradient", "nan"],
)
def test_a_wrong_kernel_is_not_taken_and_it_is_said_once(monkeypatch, compared, new_process, spoil):
    spoiled(monkeypatch, **spoil)
    x = inputs()
    with pytest.warns(UserWarning, match="stays with PyTorch's operations for the edge product"):
        out, _ = edge_product(*x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        edge_product(*x)
    assert torch.equal(out, edge_product(*x, backend="torch")[0])
    new_process()
    with pytest.warns(UserWarning, match="does not agree"):
        edge_product(*x)
    assert len(compared) == 1


def test_by_name_a_wrong_kernel_runs(monkeypatch):
    x = inputs()
    right, _ = edge_product(*x, backend="triton")
    spoiled(monkeypatch)
    assert torch.allclose(edge_product(*x, backend="triton")[0], 1.001 * right)
    with pytest.raises(BackendError, match="float64"):
        edge_product(*(t.double() for t in x), backend="triton")


def test_a_kernel_that_fails_is_not_taken(monkeypatch):
    def fail(x):
        raise RuntimeError("out of resource: shared memory\nmore")

    spoiled(monkeypatch, spoil=fail)
    with pytest.warns(UserWarning, match="RuntimeError: out of resource: shared memory"):
        edge_product(*inputs())


def test_plan_says_what_is_known(monkeypatch):
    op, line = InfSA(8, 2), Domain.line(9)
    assert "PyTorch until the first call compares" in str(op.plan(line))
    op(torch.randn(1, 9, 8), line)
    assert op.plan(line).backend.startswith(f"Triton for {EDGE_PRODUCT}: float32, activation relu")
    monkeypatch.setattr(backend, "INSTALLED", False)
    assert op.plan(line).backend.startswith("PyTorch: the package triton is not installed")
    op.strategy = {"name": "exact", "backend": "torch"}
    assert op.plan(line).backend == ""


def test_another_driver_or_other_kernels_are_compared_again(monkeypatch, compared, new_process):
    for place in ("_driver", "_digest"):
        edge_product(*inputs())
        new_process()
        monkeypatch.setattr(comparison, place, lambda: "another")
        edge_product(*inputs())
        new_process()
    assert len(compared) == 3


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\x00", b"[]", b'{"m": 3}', b'{"m": {"c": {"agrees": 1, "note": ""}}}'],
)
def test_a_corrupt_file_is_written_anew(compared, content):
    file = comparison.path()
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    edge_product(*inputs())
    assert len(compared) == 1
    assert list(comparison._read()) == [comparison.machine(CPU)]


def test_a_disk_that_takes_no_file(monkeypatch, tmp_path, compared):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FREDHOLM_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="not remembered; set FREDHOLM_CACHE"):
        edge_product(*inputs())
    edge_product(*inputs())
    assert len(compared) == 1


def test_the_folder_follows_the_environment(monkeypatch, tmp_path):
    assert comparison.path() == tmp_path / "cache" / "kernels.json"
    monkeypatch.delenv("FREDHOLM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert comparison.path() == tmp_path / "fredholm" / "kernels.json"


def test_the_caller_notices_nothing(compared):
    """Neither random numbers nor the tensors that a checkpoint or inference mode looks after."""
    u, op, state = torch.randn(1, 9, 8, requires_grad=True), InfSA(8, 2), torch.get_rng_state()
    checkpoint(op, u, use_reentrant=False).sum().backward()
    with torch.inference_mode():
        op(u, Domain.line(9, causal=True))
    assert len(compared) == 2
    assert torch.equal(state, torch.get_rng_state())


EDGE: dict = {"activation": "relu", "statistic": "squares", "causal": False, "density": True}
EDGE |= {"e": 3, "d": 5}
BANKS = {"query bank": (2, 2, 1, 3), "key bank": (2, 1, 2, 3)}
ORDER = {"causal": True, "normalised": True, "r": 2, "c": 3}
MLP = (
    "query key value readout query_bias key_bias scale query2 scale2 table query_index key_index "
    "distance_scale query_positions key_positions density query_time key_time"
)
WIDTHS = {"d": 3, "w": 4, "v": 4, "e": 3, "f": 2, "o": 2, "p": 1}


@pytest.mark.parametrize(
    ("sampler", "form"),
    [
        (edge_sample, EDGE | {"activation": "gelu", "statistic": "sums", "causal": True}),
        (edge_sample, EDGE | {"density": False, "d": 0}),
        (sample_given, ORDER),
        (sample_given, ORDER | {"normalised": False, "causal": False}),
        (sample_banked, ORDER | BANKS | {"activation": "relu", "nonneg": True}),
        (sample_banked, ORDER | BANKS | {"activation": "gelu", "nonneg": False, "causal": False}),
        (mlp_sample, {"activation": "silu", "mask": True, "terms": MLP} | WIDTHS),
    ],
)
def test_samples_of_every_op_agree(sampler, form):
    known = compare(sampler, CPU, torch.float32, form)
    assert known.agrees, known
