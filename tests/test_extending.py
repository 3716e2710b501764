"""docs/extending.md, run unchanged: user-defined parts by name in a recipe."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from fredholm.encoders import ENCODERS
from fredholm.errors import CheckpointError, OptionError, RecipeError
from fredholm.integral import registry
from fredholm.integral.strategy import STRATEGIES
from fredholm.lab.cli.main import main
from fredholm.lab.data.kinds.images import IMAGES
from fredholm.lab.data.registry import DATASETS
from fredholm.lab.report.report import _lead
from fredholm.models import BODIES, from_pretrained
from fredholm.models.registry import PRESETS
from fredholm.operators import import_file
from fredholm.training import load_recipe, load_run, train

TEXT = (Path(__file__).parents[1] / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", TEXT, re.DOTALL)
PARTS = {
    "pulses": DATASETS,
    "pairs": ENCODERS,
    "near": registry.OPERATORS,
    "whole": STRATEGIES,
    "pulse_pico": PRESETS,
    "twice": BODIES,
    "twice_pico": PRESETS,
}


def forget():
    """Forget imported parts, as in a new process."""
    registry._IMPORTED.clear()
    for name, table in PARTS.items():
        table._entries.pop(name, None)
    for name in [name for name in sys.modules if name.startswith("fredholm_user_my_")]:
        del sys.modules[name]


@pytest.fixture
def place(tmp_path, monkeypatch):
    for name, block in BLOCKS:  # blocks of one name follow one another in the file
        with (tmp_path / name).open("a", encoding="utf-8") as file:
            file.write(block)
    monkeypatch.chdir(tmp_path)
    forget()
    yield tmp_path
    forget()


def test_user_defined_parts_are_trained_evaluated_explained_and_trusted(place, capsys):
    assert main(["train", "pulses.yaml"]) == 0
    model, _ = load_run("runs/pulses")  # this process knows the code
    assert type(model.encoder).__name__ == "PairEncoder"
    operator = model.body.blocks[0].operator
    plan = operator.plan(model.encoder(torch.zeros(1, 24, 1))[1])
    assert plan.path == "whole matrix"
    forget()
    capsys.readouterr()
    files = [
        repr(str(place / "runs/pulses/code" / name)) for name, _ in BLOCKS if name[-2:] == "py"
    ]
    assert main(["evaluate", "runs/pulses"]) == 2
    assert all(file in capsys.readouterr().err for file in files[:1])
    with pytest.raises(CheckpointError, match="trust_code=True") as caught:
        from_pretrained("runs/pulses/model")
    assert all(file in str(caught.value) for file in files)
    assert main(["evaluate", "runs/pulses", "--trust-code"]) == 0
    assert "pulses test: accuracy " in capsys.readouterr().out
    assert main(["explain", "runs/pulses", "--trust-code"]) == 0
    assert from_pretrained("runs/pulses/model").config.to_dict() == model.config.to_dict()


def test_a_form_refuses_unsupported_strategies(place):
    from fredholm import Domain, create_operator
    from fredholm.errors import StrategyError

    import_file("my_operator.py")
    operator = create_operator("near", 8, strategy={"name": "whole", "most": 4})
    assert operator.plan(Domain.line(4)).path == "whole matrix"
    with pytest.raises(StrategyError, match="more than 4 points is not kept"):
        operator.plan(Domain.line(5))


@pytest.mark.parametrize("part", ["my_data.py", "my_encoder.py", "my_operator.py"])
def test_a_taken_name_is_refused_with_its_location(place, part):
    import_file(part)
    mine = r"\b(read_pulses|PairConfig|NearOperator)\b"
    other = re.sub(mine, r"\1Anew", Path(part).read_text())
    Path("theirs.py").write_text(other)
    with pytest.raises(OptionError) as caught:
        import_file("theirs.py")
    said = str(caught.value)
    assert f"is taken by {part} (" in said
    assert "choose another name" in said
    assert len(said) < 120
    import_file(part)  # the same definition may come again


BODY = """
from dataclasses import dataclass

from torch import nn
from fredholm.encoders import ImageConfig
from fredholm.models import Body, BodyConfig, ModelConfig, register_body, register_model
from fredholm.operators import create_operator


@register_body("twice")
@dataclass(frozen=True)
class TwiceConfig(BodyConfig):
    depth: int = 2
    width = 8

    def build(self, encoder, config):
        return Twice(self.depth)


class Twice(Body):
    def __init__(self, depth):
        super().__init__()
        self.layers = nn.ModuleList(create_operator("softmax", 8) for _ in range(depth))

    @property
    def operators(self):
        return list(self.layers)

    def forward(self, u, domain):
        for operator in self.layers:
            u = u + operator(u, domain=domain)
        return u, domain


@register_model
def twice_pico():
    return ModelConfig(ImageConfig(image_size=(8, 8), patch=2), TwiceConfig())
"""
RECIPE = """
name: twice
import: my_body.py
data: {name: digits, limit: 64}
model: {name: twice_pico}
schedule: {warmup_epochs: 0}
training: {epochs: 1}
"""


def test_a_user_defined_body_needs_no_operator_heads_or_width(place):
    (place / "my_body.py").write_text(BODY)
    (place / "twice.yaml").write_text(RECIPE)
    train(load_recipe("twice.yaml"), "run")
    model, _ = load_run("run", ["model.body.depth=2"])
    assert [domain.size for _, _, domain in model.trace(torch.zeros(1, 1, 8, 8))] == [16, 16]
    assert _lead(model, IMAGES) == "twice model: 2 layers, width 8, patches of 2×2 pixels"
    with pytest.raises(RecipeError, match="body 'twice' has no option 'operator'; known: depth"):
        train(load_recipe("twice.yaml", ["operator=softmax"]), "other")
