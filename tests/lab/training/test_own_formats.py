"""Every format of docs/your-data.md through describe, train, evaluate, predict and explain. Kinds
of data are in test_own_files.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fredholm.lab.cli.main import main

RNG = np.random.default_rng(0)
COUNT = 16
LABELS = np.array(["cup", "hat"] * (COUNT // 2))
SMALL = ["model.body.dim=8", "model.body.depth=1", "model.body.heads=2", "operator=softmax"]
SHORT = [*SMALL, "training.epochs=1", "schedule.warmup_epochs=0"]
PLY = ["ply", "format ascii 1.0", "element vertex 6", *(f"property float {a}" for a in "xyz")]


def write(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def parquet(path: Path, **columns) -> Path:
    arrow, file = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    file.write_table(arrow.table(columns), path)
    return path


def h5(path: Path, **arrays) -> Path:
    with pytest.importorskip("h5py").File(path, "w") as file:
        for name, values in arrays.items():
            file[name] = values
    return path


def npz(path: Path, **arrays) -> Path:
    np.savez(path, **arrays)
    return path


def rows(folder: Path) -> Path:
    size, colour = np.arange(COUNT) % 5 + 0.5, ["red", "blue", "red", "green"] * (COUNT // 4)
    return parquet(folder / "rows.parquet", size=size, colour=colour, price=1000 + 7.5 * size)


def texts(folder: Path) -> Path:
    review = [f"a {'fine' if i % 2 else 'dull'} film, number {i}" for i in range(COUNT)]
    return parquet(folder / "texts.parquet", review=review, label=LABELS)


def wide(folder: Path) -> Path:
    cells = [
        ",".join(f"{i % 2 + k / 9:.2f}" for k in range(9)) + "," + LABELS[i] for i in range(16)
    ]
    return write(folder / "wide.csv", ",".join([*(f"t{k}" for k in range(9)), "label"]), *cells)


def ts(folder: Path) -> Path:
    lines = [f"{i},2,{'3,' * (i % 3)}4:5,6,{'7,' * (i % 3)}8:{LABELS[i]}" for i in range(COUNT)]
    return write(folder / "walk.ts", "@classLabel true cup hat", "@data", *lines)


def series(folder: Path) -> Path:
    times = RNG.uniform(0.5, 2, (COUNT, 6)).cumsum(1)
    return npz(folder / "series.npz", X=RNG.normal(size=(COUNT, 6, 2)), y=LABELS, times=times)


def picture(path: Path, i: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8, 3), 200 * (i % 2) + i, np.uint8)).save(path)


def split(folder: Path) -> Path:
    for i in range(COUNT):
        for part in ("train", "test"):
            picture(folder / "split" / part / LABELS[i] / f"{i}.png", i)
    return folder / "split"


def paths(folder: Path) -> Path:
    for i in range(COUNT):
        picture(folder / "pictures" / f"{i}.png", i)
    lines = [f"pictures/{i}.png,{LABELS[i]}" for i in range(COUNT)]
    return write(folder / "paths.csv", "file,label", *lines)


def clouds(folder: Path, suffix: str, *head: str) -> Path:
    for i in range(COUNT):
        points = [" ".join(f"{v:.3f}" for v in RNG.normal(size=3)) for _ in range(6)]
        write(folder / suffix / LABELS[i] / f"{i}.{suffix}", *head, *points)
    return folder / suffix


def cloud_arrays(folder: Path) -> Path:
    labels = (np.arange(COUNT) % 2)[:, None]
    return h5(folder / "clouds.h5", data=RNG.normal(size=(COUNT, 6, 3)), label=labels)


def grid(folder: Path) -> Path:
    a = RNG.normal(size=(COUNT, 4, 4))
    return h5(folder / "grid.h5", inputs=a, outputs=np.stack([a, 2 * a], 1))


def points(folder: Path) -> Path:
    places = RNG.uniform(size=(COUNT, 7, 2))
    places[1, 5:] = np.nan
    inputs, outputs = places.sum(2)[..., None], places.prod(2)[..., None]
    return h5(folder / "points.h5", coordinates=places, inputs=inputs, outputs=outputs)


WALKS = {
    "rows.parquet": (rows, "rows, regression", "mean squared error", "row"),
    "texts.parquet": (texts, "texts, classification", "accuracy", "text"),
    "wide.csv": (wide, "series, classification", "accuracy", "sequence"),
    "walk.ts": (ts, "series, classification", "accuracy", "sequence"),
    "series.npz": (series, "series, classification", "accuracy", "sequence"),
    "split": (split, "images, classification", "accuracy", "image"),
    "paths.csv": (paths, "images, classification", "accuracy", "image"),
    "ply": (lambda f: clouds(f, "ply", *PLY, "end_header"), "clouds, class", "accuracy", "cloud"),
    "xyz": (lambda f: clouds(f, "xyz"), "clouds, class", "accuracy", "cloud"),
    "off": (lambda f: clouds(f, "off", "OFF", "6 0 0"), "clouds, class", "accuracy", "cloud"),
    "clouds.h5": (cloud_arrays, "clouds, classification", "accuracy", "cloud"),
    "grid.h5": (grid, "fields, inputs to outputs", "relative L2 error", "field"),
    "points.h5": (points, "fields, inputs to outputs", "relative L2 error", "field"),
}


def walk(name: str, folder: Path, capsys) -> tuple[str, str]:
    """Run describe, train, evaluate and predict; return the path and the run."""
    make, kind, measure, _ = WALKS[name]
    path, run, runs = str(make(folder)), str(folder / "runs" / "walk"), str(folder / "runs")
    assert main(["data", "describe", path]) == 0
    described = capsys.readouterr().out
    assert f"kind {kind}" in described
    assert main(["train", path, *SHORT, "--runs", runs, "--name", "walk"]) == 0
    assert main(["evaluate", run]) == 0
    assert f"test: {measure} " in capsys.readouterr().out
    answers = folder / ("answers.npz" if measure.startswith("relative") else "answers.csv")
    assert main(["predict", run, path, "--out", str(answers)]) == 0
    samples = int(re.search(r"(\d+) samples", described)[1])  # pyright: ignore[reportOptionalSubscript]
    with np.load(answers) if answers.suffix == ".npz" else answers.open() as file:
        found = len(file["path"]) if answers.suffix == ".npz" else len([*csv.DictReader(file)])  # type: ignore
    assert found == samples
    return path, run


@pytest.mark.parametrize("name", WALKS)
def test_every_format_is_described_trained_evaluated_and_predicted(name, tmp_path, capsys):
    walk(name, tmp_path, capsys)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["rows.parquet", "texts.parquet", "wide.csv", "split", "ply", "grid.h5", "points.h5"]
)
def test_every_format_is_explained_in_its_terms(name, tmp_path, capsys):
    _, run = walk(name, tmp_path, capsys)
    assert main(["explain", run]) == 0
    page = (Path(run) / "report/index.html").read_text(encoding="utf-8")
    page = re.sub(r"<(style|pre).*?</\1>|<[^>]*>", " ", page, flags=re.DOTALL).lower()
    page = page.replace("class token", "")  # a read-out of pictures may have one
    one = WALKS[name][3]
    assert re.search(rf"\b{one}s?\b", page)
    if one == "row":
        assert re.search(r"\.parquet, row \d+", page), "where its samples are"
    foreign = {"image": "image|patch|pixel", "text": "token"}
    for kind, words in foreign.items():
        if kind != one:
            assert not re.search(rf"\b({words})", page), words
