"""Reports of small models, written once."""

from __future__ import annotations

import csv
import json

import pytest
import torch

from tests.parts import parts

MEAN, STD = [0.3], [0.35]
CLASSES = ["zero", "<one>", "two"]


def tiny_model(operator="itnet", **options):
    from fredholm import create_model

    torch.manual_seed(0)
    sizes = {"width": 8, "frequencies": 4} if operator == "itnet" else {}
    model = create_model(
        "itnet_nano",
        **parts(
            operator=operator,
            operator_options=sizes,
            image_size=(8, 8),
            patch=2,
            num_classes=3,
            dim=16,
            **options,
        ),
    )
    torch.nn.init.normal_(model.head.weight)
    return model.eval()


def tiny_images(number=20):
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (number, 1, 8, 8), generator=generator, dtype=torch.uint8)
    return images, torch.arange(number) % 3


HISTORY = [
    {
        "epoch": e,
        "step": 10 * e,
        "train_loss": 1 / e,
        "val_loss": 1.1 / e,
        "val_accuracy": 1 - 0.5 / e,
        "lr": 1e-3,
        "seconds": e,
    }
    for e in (1, 2, 3)
]


@pytest.fixture
def every_theme():
    """Draw the reports of a test in all themes."""
    from fredholm.lab.report import style

    return style.THEMES


@pytest.fixture(autouse=True)
def light_theme_alone(request, monkeypatch):
    """Draw the reports of a test in one theme, unless it uses ``every_theme``. Reports shared by
    several tests do not change.
    """
    from fredholm.lab.report import style

    if "every_theme" not in request.fixturenames:
        monkeypatch.setattr(style, "THEMES", (style.LIGHT,))


@pytest.fixture(scope="session", params=["itnet", "softmax", "softmax-cls"])
def written(request, tmp_path_factory):
    """Return a model and the report of its run."""
    from fredholm.explain import ReportOptions, Samples, report_run
    from fredholm.lab.report import style

    name, _, pool = request.param.partition("-")
    run = tmp_path_factory.mktemp(request.param) / "tiny"
    model = tiny_model(name, pool=pool or "mean")
    model.save_pretrained(run / "model", mean=MEAN, std=STD, classes=CLASSES)
    with (run / "metrics.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(HISTORY[0]))
        table.writeheader()
        table.writerows(HISTORY)
    evaluation = {
        "split": "test", "n": 9, "accuracy": 7 / 9, "loss": 0.75, "classes": CLASSES, "confusion": [[3, 0, 0], [1, 2, 0], [0, 1, 2]],
    }  # fmt: skip
    (run / "evaluation.json").write_text(json.dumps(evaluation))
    (run / "recipe.yaml").write_text("name: tiny  # <not a tag>\n")
    model.extra = {"mean": MEAN, "std": STD, "classes": CLASSES}  # as a loaded model has it
    with pytest.MonkeyPatch.context() as patch:
        if name != "itnet":  # one theme is enough
            patch.setattr(style, "THEMES", (style.LIGHT,))
        page = report_run(
            run, Samples(*tiny_images()), model=model, options=ReportOptions(samples=6)
        )
    return model, page


@pytest.fixture
def page(written):
    return written[1]
