"""Saving and loading: bitwise exact, and damaged or wrong files are refused."""

from __future__ import annotations

import json
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file

from fredholm.errors import CheckpointError
from fredholm.models import Model, create_model, from_pretrained, save_pretrained
from tests.parts import parts

NANO = {"image_size": (8, 8), "dim": 8, "depth": 1}


@pytest.fixture
def folder(tmp_path):
    return save_pretrained(
        create_model("itnet_nano", **parts(**NANO)), tmp_path / "model", classes=["a", "b"]
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"operator": "softmax", "operator_options": {}, "pool": "cls"},
        {"operator_options": {"width": 4, "groups": ("query", "key"), "output": "compact"}},
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_saving_and_loading_is_bitwise_exact(tmp_path, options, dtype):
    model = create_model("itnet_nano", **parts(**{**NANO, **options})).to(dtype)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    model.save_pretrained(tmp_path / "new" / "folder", note={"accuracy": 0.5})
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    state = torch.get_rng_state()
    twin = Model.from_pretrained(tmp_path / "new" / "folder")
    assert not twin.training
    assert twin.extra == {"note": {"accuracy": 0.5}}
    for name, tensor in model.state_dict().items():
        kept = name.endswith("fourier.matrix")  # frequencies stay float32
        assert tensor.dtype == (torch.promote_types(dtype, torch.float32) if kept else dtype)
        assert twin.state_dict()[name].dtype == tensor.dtype
        assert twin.state_dict()[name].equal(tensor), name
    torch.set_rng_state(state)
    if dtype == torch.float32:
        images = torch.rand(2, 1, 8, 8)
        assert twin(images).equal(model.eval()(images))
    assert all(p.requires_grad for p in twin.parameters())


def edited(folder, **changes):
    """Change the configuration as its error message advises: without the checksum."""
    path = folder / "config.json"
    saved = json.loads(path.read_text())
    saved.pop("sha256", None)
    for key, value in changes.items():
        if value is None:
            del saved[key]
        else:
            saved[key] = value
    path.write_text(json.dumps(saved))


def test_missing_folders_and_files_are_named(folder, tmp_path):
    with pytest.raises(
        CheckpointError, match=r"expected a folder with config.json, .*save_pretrained"
    ):
        from_pretrained(tmp_path / "nowhere")
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no model\.safetensors"):
        from_pretrained(folder)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "3", "null", '"family"', "{}"])
def test_invalid_configuration_files_are_refused(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(
        CheckpointError, match=r"expected the configuration of a model with 'format' and 'config'"
    ):
        from_pretrained(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": None}, "with 'format' and 'config'"),
        ({"format": 1}, "expected format 2, got format 1; read it with the version"),
        ({"format": 1, "family": "itnet"}, "expected format 2, got format 1"),
        ({"format": 3}, "expected format 2, got format 3; update"),
        ({"format": "new"}, "expected the configuration of a model"),
        ({"body": {"dpeth": 3}}, "no option 'dpeth'; did you mean 'depth'"),
        ({"body": {"depth": -3}}, "depth: expected a positive integer, got -3"),
        ({"body": {"depth": "three"}}, "(?s)expected a model that can be built here.*depth"),
        ({"body": {"operator": "nobodys"}}, "unknown operator 'nobodys'"),
        (
            {"body": {"operator": "gru"}},
            "got the baseline 'gru'; give it to a body of the kind 'backbone'",
        ),
        ({"body": {"dropout": 7.0}}, "dropout: expected a rate"),
        ({"body": {"kind": "nobodys"}}, "unknown body 'nobodys'.*import that file first"),
        ({"tail": {}}, "model: expected encoder, body, head, got 'tail'"),
        ({"config": [1]}, "expected a model that can be built here"),
    ],
)
def test_wrong_configurations_are_refused(folder, changes, message):
    config = json.loads((folder / "config.json").read_text())["config"]
    for part in changes.keys() & {"body", "tail"}:
        changed = config.get(part, {}) | changes[part]
        changes = {"config": config | {part: changed}}
    edited(folder, **changes)
    with pytest.raises(CheckpointError, match=message):
        from_pretrained(folder)


def test_a_model_of_the_first_format_is_refused_by_name(folder):
    """It had a family instead of a format."""
    (folder / "config.json").write_text(json.dumps({"family": "itnet", "config": {"dim": 8}}))
    with pytest.raises(CheckpointError, match="expected format 2, got format 1; read"):
        from_pretrained(folder)


def test_a_newer_format_is_named_even_where_its_keys_are_unknown(folder):
    edited(folder, format=9, config=None)
    with pytest.raises(CheckpointError, match="format 9"):
        from_pretrained(folder)


def test_weights_of_another_shape_are_refused(folder):
    saved = json.loads((folder / "config.json").read_text())
    edited(folder, config=saved["config"] | {"head": {"kind": "linear", "outputs": 7}})
    with pytest.raises(CheckpointError, match=r"head.weight \(10, 8\) for \(7, 8\)"):
        from_pretrained(folder)


def test_missing_and_unknown_weights_are_refused(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["stray"] = tensors.pop("head.bias")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"missing: head\.bias; unknown: stray"):
        from_pretrained(folder)


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_truncated_weights_are_refused(folder, kept):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"model.safetensors is corrupt or truncated"):
        from_pretrained(folder)


def test_a_flipped_bit_is_refused(folder):
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 64]))
    with pytest.raises(CheckpointError, match=r"model.safetensors is corrupt .*checksum"):
        from_pretrained(folder)
    weights.write_bytes(whole)
    text = (folder / "config.json").read_text()
    for old, new in (('"dropout": 0.0', '"dropout": 0.5'), ('"a"', '"c"')):
        assert old in text
        (folder / "config.json").write_text(text.replace(old, new))
        with pytest.raises(
            CheckpointError, match=r"config.json: expected the content that its checksum says"
        ):
            from_pretrained(folder)
    (folder / "config.json").write_text(text.replace(" ", ""))
    assert from_pretrained(folder).extra == {"classes": ["a", "b"]}


def test_models_without_checksums_load(folder):
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    edited(folder)
    twin = from_pretrained(folder)
    assert all(twin.state_dict()[name].equal(tensor) for name, tensor in tensors.items())


class Trap:
    """An object whose unpickling writes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("save", [lambda x, path: path.write_bytes(pickle.dumps(x)), torch.save])
def test_no_pickle_is_executed(folder, tmp_path, save):
    sprung = tmp_path / "sprung"
    save(Trap(sprung), folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="corrupt"):
        from_pretrained(folder)
    assert not sprung.exists()
    pickle.loads(pickle.dumps(Trap(sprung))).close()
    assert sprung.exists(), "the trap works where it is unpickled"


def test_numbers_as_keys_become_texts(folder):
    """As texts, 10 comes before 2."""
    from_pretrained(folder).save_pretrained(folder, names={2: "a", 10: "b", "other": {11: 0, 3: 1}})
    names = from_pretrained(folder).extra["names"]
    assert names == {"2": "a", "10": "b", "other": {"11": 0, "3": 1}}


def test_a_failed_save_leaves_the_folder_unchanged(folder):
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    with pytest.raises(TypeError, match="JSON"):
        save_pretrained(create_model("itnet_nano", **parts(**NANO)), folder, tensor=torch.zeros(1))
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_a_folder_of_another_class_is_refused(folder):
    class Other(Model):
        pass

    with pytest.raises(CheckpointError, match="expected a Other, got a Model"):
        Other.from_pretrained(folder)


def test_metadata_survives_loading_and_saving(tmp_path):
    model = create_model("itnet_nano", body={"depth": 1})
    save_pretrained(model, tmp_path / "a", classes=["x", "y"], mean=[0.5])
    from_pretrained(tmp_path / "a").save_pretrained(tmp_path / "b", mean=[0.1])
    assert from_pretrained(tmp_path / "b").extra == {"classes": ["x", "y"], "mean": [0.1]}
