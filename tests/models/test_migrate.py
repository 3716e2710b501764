"""What was saved before ``Model(encoder, body, head)``, in today's terms; whole models:
``tests/test_first_house.py``.
"""

from __future__ import annotations

import pytest
import torch

from fredholm.errors import OptionError
from fredholm.models import Model, ModelConfig, create_model
from fredholm.models.migrate import (
    migrate_checkpoint,
    migrate_config,
    migrate_name,
    migrate_override,
    migrate_recipe,
)
from tests.parts import parts

TIMED = {"encoder": "sequence", "timed": True, "channels": 2, "length": 9}


@pytest.mark.parametrize(
    ("family", "flat", "kinds", "pool"),
    [
        ("itnet", {"scales": (2, 4), "image_size": (8, 8)}, "scales residual linear", "mean"),
        ("itnet", {"encoder": "points", "sigma": 9.0, "pool": "cls"},
         "points residual linear", "mean"),
        ("itnet", {"encoder": "field", "patch": 9}, "field residual linear", "every"),
        ("backbone", TIMED, "sequence backbone linear", "points"),
        ("backbone", TIMED | {"causal": True}, "sequence backbone linear", "last"),
        ("lra", {"pair": True, "pool": "cls"}, "text residual mlp", "cls"),
        ("ckcnn", {"encoder": "text", "tied": True, "widths": [8, 100], "num_classes": 50},
         "tokens ckcnn tied", "last"),
        ("ckcnn", {"encoder": "image", "head": "mean", "step": 2.0}, "pixels ckcnn linear", "mean"),
        ("infvit", {"operator": "softmax", "decay": 0.7, "sigma": 10.0},
         "image infvit linear", "cls"),
        ("continuous", {"stages": [[64, 4, 4, 2]], "dim": 64, "penalty": 1.0},
         "pixels stages linear", "mean"),
    ],
)  # fmt: skip
def test_flat_configurations_become_three_parts(family, flat, kinds, pool):
    """Fields that played no role beside the others are gone, so that the parts can be made."""
    config = ModelConfig.from_dict(migrate_config(family, flat))
    assert [config.encoder.kind, config.body.kind, config.head.kind] == kinds.split()
    assert config.pool == pool
    with pytest.raises(OptionError, match="unknown model family"):
        migrate_config("vit", flat)


def test_a_checkpoint_of_a_tied_head_keeps_what_the_optimizer_knew():
    """Its bias was the first of all parameters, and is the last."""
    small = {"vocabulary": 7, "num_classes": 7, "embedding": 4, "widths": (5, 4)}
    model = create_model("ckcnn_ptb", **parts(**small, operator_options={"width": 4}))
    names = {id(p): name for name, p in model.named_parameters()}
    groups = model.weight_decay_groups(0.1)
    old = [groups[0], groups[1] | {"params": groups[1]["params"][-1:] + groups[1]["params"][:-1]}]
    assert names[id(old[1]["params"][0])] == "head.bias"
    before = torch.optim.AdamW(old)
    for group in old:
        for parameter in group["params"]:
            parameter.grad = torch.randn_like(parameter)
    before.step()
    state = {
        "model." + name.replace("body.", "").replace("head.bias", "head_bias"): value
        for name, value in model.state_dict().items()
    }
    checkpoint = {"state_dict": state, "optimizer_states": [before.state_dict()], "loops": {}}
    found = migrate_checkpoint(checkpoint)
    assert found["state_dict"].keys() == {f"model.{name}" for name in model.state_dict()}
    after = torch.optim.AdamW(model.weight_decay_groups(0.1))
    after.load_state_dict(found["optimizer_states"][0])
    for parameter in model.parameters():
        assert after.state[parameter]["exp_avg"].equal(before.state[parameter]["exp_avg"])
    assert migrate_checkpoint(found) is found


def test_names_recipes_and_overrides():
    assert migrate_name("stack.operators.0.kernel.key.weight").startswith("body.stack.operators")
    assert migrate_name("head.weight") == "head.weight"
    assert migrate_override("model.head=every") == "model.head.pool=every"
    assert migrate_override("operator.width=4") == "operator.width=4"
    old = {"name": "lra_skyformer", "dim": 32, "hidden": 64, "pool": "cls"}
    found = migrate_recipe({"model": old})["model"]
    assert found["body"] == {"dim": 32, "mlp_ratio": 2.0}
    assert found["head"] == {"hidden": 64, "pool": "cls"}
    assert migrate_recipe({"model": found})["model"] is found
    stages = {"name": "continuous_cvt_micro", "dim": 8, "stages": [[8, 1, 1, 2]]}
    assert migrate_recipe({"model": stages})["model"]["body"] == {"stages": [[8, 1, 1, 2]]}


def test_another_kind_takes_over_what_both_have_and_the_data_do_not_say():
    base = create_model("itnet_nano").config
    text = base.replace(data={"kind": "text", "vocabulary": 9, "max_length": 5})
    assert (text.encoder.kind, text.encoder.frequencies, text.encoder.sigma) == ("text", 16, 3.0)
    points = base.replace(data={"kind": "points", "channels": 2})
    assert points.encoder.sigma is None, "raw features have no sigma"
    cnn = create_model("ckcnn_small").config
    for kind, reader in (("text", "tokens"), ("image", "pixels"), ("sequence", "samples")):
        assert cnn.replace(data={"kind": kind}, head={"pool": None}).encoder.kind == reader
    with pytest.raises(OptionError, match="'ckcnn' has no encoder that reads 'points'"):
        cnn.replace(data={"kind": "points"})
    classes = ModelConfig.from_dict(migrate_config("itnet", {"pool": "cls"}))
    field = classes.replace(data={"kind": "field", "channels": 1})
    assert field.pool == "every", "a class token that a field does not have"
    assert Model(field)(torch.zeros(1, 1, 3, 2)).shape == (1, 6, 10)
