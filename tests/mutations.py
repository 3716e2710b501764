"""Put twenty plausible bugs into the library, one at a time, and see which tests find each.

    python -m tests.mutations              all of them, about a quarter of an hour on two cores
    python -m tests.mutations --only order,window
    python -m tests.mutations --list

A copy of ``src`` is changed and comes before the installed package; the checkout stays as it is.
Each bug names the few tests that have to fail. First these run on the copy without a bug, where all
of them have to pass. The exit code is 1 where a bug survives or a line to change is gone.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Seconds for the tests of one bug.
LIMIT = 600


class FragmentGone(Exception):
    """The line that a bug changes is not in its file exactly once."""


@dataclass(frozen=True)
class Bug:
    """One plausible mistake.

    Attributes:
        name: its name for ``--only``.
        what: its effect, as a sentence.
        file: the changed file, below ``src/fredholm``.
        line: the fragment to replace, which occurs exactly once in the file.
        instead: the replacement.
        tests: tests that must fail, as arguments of pytest.
    """

    name: str
    what: str
    file: str
    line: str
    instead: str
    tests: tuple[str, ...]


BUGS = [
    Bug(
        "order",
        "a causal query does not see its own point",
        "quadrature.py",
        "return self.key_time[:, None, :] <= self.query_time[:, :, None]",
        "return self.key_time[:, None, :] < self.query_time[:, :, None]",
        ("tests/test_quadrature.py",),
    ),
    Bug(
        "padding",
        "padding is seen",
        "quadrature.py",
        "parts.append(part.valid[:, None, None, :])",
        "parts.append(torch.ones_like(part.valid)[:, None, None, :])",
        ("tests/test_quadrature.py",),
    ),
    Bug(
        "normaliser",
        "dense weights are not divided by what a query sees",
        "quadrature.py",
        "            dense = dense * part.scale[..., None]",
        "            dense = dense * torch.ones_like(part.scale)[..., None]",
        ("tests/test_quadrature.py",),
    ),
    Bug(
        "softmax-scale",
        "scores are divided by the width and not by its root",
        "families/softmax/kernel.py",
        "self.scale = self.width**-0.5 if scale is None else scale",
        "self.scale = self.width**-1.0 if scale is None else scale",
        ("tests/layers/test_attention.py::test_weights_are_the_modules_attention_weights",),
    ),
    Bug(
        "rotary",
        "positions turn one half of the features only",
        "integral/rotary.py",
        "turned = torch.cat([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)",
        "turned = torch.cat([a * cos - b * sin, b * cos], -1).flatten(-2)",
        ("tests/layers/test_huggingface.py::test_llama_rotates_as_its_model_does",),
    ),
    Bug(
        "window",
        "a window counts hidden points",
        "ops/linear_attention/window_stretch.py",
        "        points = visible_first(points, valid)",
        "        visible_first(points, valid)",
        ("tests/linearize/test_window.py::test_a_window_is_of_visible_tokens",),
    ),
    Bug(
        "scan-gradient",
        "the gradient of a scan's drive has the wrong sign",
        "ops/scan/recurrence.py",
        "    return drive * before.conj(), drive",
        "    return drive * before.conj(), -drive",
        ("tests/ops/test_scan.py::test_scan_is_the_recurrence",),
    ),
    Bug(
        "bank-gradient",
        "the gradient of a feature map's bias is dropped",
        "ops/feature_map/bank.py",
        "            total.bias[s].add_(delta.sum(-1))",
        "            total.bias[s].add_(0 * delta.sum(-1))",
        ("tests/ops/test_feature_map.py::test_the_piecewise_form_equals_the_literal_bank",),
    ),
    Bug(
        "sampling",
        "a Monte Carlo sum is not divided by the number of its samples",
        "forms/monte_carlo/drawn.py",
        "        return Samples(index, weight / self.strategy.samples)",
        "        return Samples(index, weight / max(1, self.strategy.samples - 1))",
        ("tests/operators/test_monte_carlo.py::test_values_and_gradients_are_unbiased",),
    ),
    Bug(
        "saved-state-code",
        "a saved state is unpickled with whatever objects it holds",
        "integral/state.py",
        "saved = torch.load(path, map_location=device, weights_only=True)",
        "saved = torch.load(path, map_location=device, weights_only=False)",
        ("tests/test_security.py::test_no_pickle_is_executed",),
    ),
    Bug(
        "checkpoint-code",
        "a checkpoint is unpickled with whatever objects it holds",
        "lab/training/checkpoints.py",
        'return torch.load(path, map_location="cpu", weights_only=True)',
        'return torch.load(path, map_location="cpu", weights_only=False)',
        ("tests/test_security.py::test_no_pickle_with_a_right_checksum_is_executed",),
    ),
    Bug(
        "hdf5-links",
        "an HDF5 file reads other files by external storage",
        "lab/data/hdf5.py",
        "        if item.external:",
        "        if item.external and item.is_virtual:",
        ("tests/test_security.py::test_an_hdf5_file_reads_no_other",),
    ),
    Bug(
        "cosine",
        "the cosine ends a warm-up too late",
        "lab/training/schedules.py",
        "course_steps = max(1, steps - warmup)",
        "course_steps = max(1, steps)",
        ("tests/lab/training/test_schedules.py::test_a_course_is_its_formula",),
    ),
    Bug(
        "decay",
        "biases decay as weights do",
        "models/decay.py",
        "    return parameter.dim() >= 2 and not exempt",
        "    return not exempt or parameter.dim() >= 1",
        ("tests/models/test_models.py::test_weight_decay_groups",),
    ),
    Bug(
        "scaling-leak",
        "held-out samples take part in the scaling",
        "lab/data/files/source.py",
        "return measure(self.collection, self.training)",
        "return measure(self.collection, np.arange(len(self.collection)))",
        ("tests/lab/data/test_leaks.py::test_held_out_samples_change_no_scaling",),
    ),
    Bug(
        "groups",
        "a group is divided between training and test",
        "lab/data/files/division.py",
        '    if reading.split == "group":',
        '    if reading.split == "groups":',
        ("tests/lab/data/test_files.py::test_groups_are_not_divided_and_the_latest_are_the_test",),
    ),
    Bug(
        "times",
        "times are divided before they are subtracted",
        "lab/data/files/times.py",
        "        return (self.values - self.values[:1]) / self.per_second",
        "        whole = (self.values + self.origin) / self.per_second\n"
        "        return whole - whole[:1]",
        ("tests/lab/data/test_times.py::test_times_in_a_table_keep_their_digits",),
    ),
    Bug(
        "temperature",
        "probabilities are not calibrated in predict",
        "lab/training/prediction.py",
        "    logits = output / predictor.temperature",
        "    logits = output",
        ("tests/lab/training/test_calibration.py",),
    ),
    Bug(
        "weights",
        "the weights of samples do not enter the loss",
        "lab/training/weights.py",
        "        mean = (weights * losses).mean()",
        "        mean = (weights * 0 + losses).mean()",
        ("tests/lab/test_weights.py::test_the_loss_is_the_weighted_mean",),
    ),
    Bug(
        "names",
        "columns of a data frame are taken as they lie",
        "lab/data/frames.py",
        "        in_order = [place_of[name] for name in order]",
        "        in_order = [place_of[name] for name in columns]",
        ("tests/lab/test_frames.py::test_columns_are_matched_by_name",),
    ),
]


def put_in(bug: Bug, source: Path) -> None:
    """Change the line of a bug in a copy of ``src``.

    Raises:
        FragmentGone: where it is missing, or comes twice.
    """
    file = source / "fredholm" / bug.file
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    count = text.count(bug.line)
    if count != 1:
        raise FragmentGone(
            f"{bug.name}: expected once in {bug.file}, got {count} times: {bug.line.strip()!r}; "
            "write the bug anew"
        )
    file.write_text(text.replace(bug.line, bug.instead), encoding="utf-8")


def copied(folder: Path) -> Path:
    """Copy ``src`` into a folder."""
    source = folder / "src"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src", source, ignore=ignored)
    return source


def failing(tests: tuple[str, ...], source: Path, *, first: bool) -> list[str] | None:
    """Return the tests that fail against a copy of ``src``, the ``first`` alone or all.

    None where pytest did not come to an end.
    """
    path = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["-q", "-p", "no:cacheprovider", *(["-x"] if first else [])]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode == 0:
        return []
    # An error of pytest itself, such as a missing test.
    if done.returncode != 1:
        print(done.stdout[-2000:], done.stderr[-2000:], sep="\n")
        return None
    return re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, flags=re.MULTILINE)


def check_tests(bugs: list[Bug]) -> bool:
    """Return whether all tests of the bugs pass where there is none."""
    tests = tuple(dict.fromkeys(test for bug in bugs for test in bug.tests))
    with tempfile.TemporaryDirectory() as folder:
        found = failing(tests, copied(Path(folder)), first=False)
    if found == []:
        print(f"without a bug: {len(tests)} selections of tests pass", flush=True)
        return True
    print(f"without a bug: expected all to pass, got {found}")
    return False


def try_bug(bug: Bug) -> str:
    """Return ``killed``, ``survives`` or ``gone``, and say which test did it."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        source = copied(Path(folder))
        try:
            put_in(bug, source)
        except FragmentGone as gone:
            print(gone, flush=True)
            return "gone"
        found = failing(bug.tests, source, first=True)
    seconds = time.perf_counter() - start
    state = "killed" if found else "survives"
    by = f" by {found[0]}" if found else ""
    print(f"{state:9} {bug.name:17} {bug.what}{by} ({seconds:.0f} s)", flush=True)
    return state


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", help="names of bugs, with commas")
    parser.add_argument("--list", action="store_true", help="name the bugs and their tests")
    args = parser.parse_args()
    known = {bug.name: bug for bug in BUGS}
    names = args.only.split(",") if args.only else list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"--only: expected among {', '.join(known)}, got {', '.join(unknown)}")
    bugs = [known[name] for name in names]
    if args.list:
        for bug in bugs:
            print(f"{bug.name:17} {bug.what}: {bug.file}; {' '.join(bug.tests)}")
        return 0
    if not check_tests(bugs):
        return 1
    states = [try_bug(bug) for bug in bugs]
    print(f"{states.count('killed')} of {len(bugs)} bugs are found")
    return int(set(states) != {"killed"})


if __name__ == "__main__":
    sys.exit(main())
