"""Untrusted files execute no code, read no other files, and do not exhaust memory."""

from __future__ import annotations

import ast
import gzip
import json
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from evidence.datasets.official_clouds import read_h5

import fredholm
from fredholm import Domain, create_operator
from fredholm.errors import CheckpointError, DataError, FredholmError, TrustError
from fredholm.lab.data import formats
from fredholm.lab.data.files.arrays import read_arrays
from fredholm.lab.data.files.clouds import read_cloud
from fredholm.lab.data.formats import opened_picture, read_bytes
from fredholm.lab.data.stored import StoredRows
from fredholm.lab.report.sources import load_inputs, load_state
from fredholm.lab.training.checkpoints import read_checkpoint, write_checkpoint
from fredholm.models import from_pretrained

SOURCES = Path(fredholm.__file__).parent


class Trap:
    """An object whose unpickling writes a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


# --- no code is executed --------------------------------------------------------------------------


def state_of_operator(path: Path) -> None:
    create_operator("luna", 4, 1).load_state(path)


def weights_of_module(path: Path) -> None:
    load_state(torch.nn.Linear(2, 2), path)


def inputs_of_module(path: Path) -> None:
    load_inputs(torch.nn.Linear(2, 2), inputs=path)


def weights_of_model(path: Path) -> None:
    (path.parent / "config.json").write_text('{"model": {}}')
    from_pretrained(path.parent)


def weights_of_estimator(path: Path) -> None:
    from fredholm.estimators import FredholmClassifier

    FredholmClassifier.load(path.parent)


def fields_of_darcy(path: Path) -> None:
    from evidence.datasets.darcy import _read

    _read(path)


def folder_of_transformers(path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from fredholm.linearization.transformers_folder import load_local

    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, vocab_size=9
    )
    config.save_pretrained(path.parent)
    load_local(transformers.BertModel, path.parent)


TORCH_LOADERS = {
    "state.ckpt": state_of_operator,
    "weights.pt": weights_of_module,
    "step-000000001.ckpt": read_checkpoint,
    "piececonst_r421_N1024_smooth1.pt": fields_of_darcy,
    "pytorch_model.bin": folder_of_transformers,
}
PICKLE_LOADERS = TORCH_LOADERS | {
    "model.safetensors": weights_of_model,
    "estimator/model.safetensors": weights_of_estimator,
    "inputs.safetensors": inputs_of_module,
}


@pytest.mark.parametrize("name", PICKLE_LOADERS)
@pytest.mark.parametrize("save", [torch.save, lambda x, path: path.write_bytes(pickle.dumps(x))])
def test_no_pickle_is_executed(name, save, tmp_path):
    sprung, path = tmp_path / "sprung", tmp_path / name
    path.parent.mkdir(exist_ok=True)
    save({"state_dict": Trap(sprung), "x": Trap(sprung)}, path)
    with pytest.raises((FredholmError, pickle.UnpicklingError, OSError)):
        PICKLE_LOADERS[name](path)
    assert not sprung.exists()


def test_no_pickle_with_a_right_checksum_is_executed(tmp_path):
    """Anyone can write a valid checksum, so it does not make a checkpoint trusted."""
    sprung, path = tmp_path / "sprung", tmp_path / "step-000000001.ckpt"
    write_checkpoint({"state_dict": {}, "loops": {}}, path)
    assert read_checkpoint(path) == {"state_dict": {}, "loops": {}}
    write_checkpoint({"state_dict": Trap(sprung), "loops": {}}, path)
    with pytest.raises(CheckpointError, match="not a readable checkpoint"):
        read_checkpoint(path)
    assert not sprung.exists()


def test_unpickling_the_trap_executes_it(tmp_path):
    sprung = tmp_path / "sprung"
    torch.save(Trap(sprung), tmp_path / "trap.pt")
    torch.load(tmp_path / "trap.pt", weights_only=False).close()
    assert sprung.exists()


ARRAY_LOADERS = {
    "inputs.npy": inputs_of_module,
    "inputs.npz": inputs_of_module,
    "cloud.npy": read_cloud,
    "series.npz": read_arrays,
    "rows.npy": StoredRows,
}


@pytest.mark.parametrize("name", ARRAY_LOADERS)
def test_no_object_in_an_array_is_loaded(name, tmp_path):
    sprung, path = tmp_path / "sprung", tmp_path / name
    objects = np.array([Trap(sprung)], dtype=object)
    save = np.savez if path.suffix == ".npz" else np.save
    save(path, objects)
    with pytest.raises(FredholmError):
        ARRAY_LOADERS[name](path)
    assert not sprung.exists()


def test_a_recipe_creates_no_objects(tmp_path):
    from fredholm.lab.training.recipe_files import load_recipe

    sprung, path = tmp_path / "sprung", tmp_path / "recipe.yaml"
    path.write_text(f"name: !!python/object/apply:builtins.open ['{sprung}', 'w']\n")
    with pytest.raises(FredholmError):
        load_recipe(path)
    assert not sprung.exists()


def calls_of(name: str) -> dict[str, list[ast.Call]]:
    """Return all calls of ``name``, such as torch.load, in package and data sets, by file."""
    found: dict[str, list[ast.Call]] = {}
    data_sets = Path(__file__).parents[1] / "evidence" / "datasets"
    for path in sorted([*SOURCES.rglob("*.py"), *data_sets.rglob("*.py")]):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == name:
                found.setdefault(path.name, []).append(node)
    return found


def test_every_call_of_torch_load_is_tested():
    """A new loader needs a row in TORCH_LOADERS."""
    calls = calls_of("torch.load")
    assert set(calls) == {"checkpoints.py", "darcy.py", "sources.py", "state.py"}
    for file, found in calls.items():
        assert len(found) == 1, file
        options = {option.arg: ast.unparse(option.value) for option in found[0].keywords}
        assert options["weights_only"] == "True", file


def test_no_array_is_loaded_with_objects():
    for file, found in calls_of("np.load").items():
        for call in found:
            options = {option.arg: ast.unparse(option.value) for option in call.keywords}
            assert options.get("allow_pickle", "False") == "False", file
    for module in ("pickle.load", "pickle.loads", "joblib.load", "yaml.unsafe_load", "eval"):
        assert not calls_of(module), module


# --- no other file is read ------------------------------------------------------------------------

SECRET = np.arange(24.0).reshape(4, 3, 2)


def external_storage(h5py, file, secret: Path) -> None:
    file.create_dataset("X", (4, 3, 2), "f8", external=[(str(secret), 0, 192)])


def external_link(h5py, file, secret: Path) -> None:
    file["X"] = h5py.ExternalLink(secret.with_suffix(".h5"), "/x")


def soft_link_to_an_external_one(h5py, file, secret: Path) -> None:
    file.create_group("group")["link"] = h5py.ExternalLink(secret.with_suffix(".h5"), "/")
    file["X"] = h5py.SoftLink("/group/link/x")


def virtual_source(h5py, file, secret: Path) -> None:
    layout = h5py.VirtualLayout((4, 3, 2), "f8")
    layout[...] = h5py.VirtualSource(secret.with_suffix(".h5"), "x", (4, 3, 2))
    file.create_virtual_dataset("X", layout)


def virtual_source_of_an_external_one(h5py, file, secret: Path) -> None:
    group = file.create_group("group")
    group.create_dataset("x", (4, 3, 2), "f8", external=[(str(secret), 0, 192)])
    layout = h5py.VirtualLayout((4, 3, 2), "f8")
    layout[...] = h5py.VirtualSource(".", "group/x", (4, 3, 2))
    file.create_virtual_dataset("X", layout)


WAYS = {
    external_storage: "external storage",
    external_link: "a link into another file",
    soft_link_to_an_external_one: "a link into another file",
    virtual_source: "a virtual data set",
    virtual_source_of_an_external_one: "external storage|a virtual data set",
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["X", "data"])
def test_an_hdf5_file_reads_no_other(way, name, tmp_path):
    h5py = pytest.importorskip("h5py")
    secret = tmp_path / "secret.bin"
    secret.write_bytes(SECRET.tobytes())
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["x"] = SECRET
    sent = tmp_path / "sent.h5"
    with h5py.File(sent, "w") as file:
        way(h5py, file, secret)
        file.move("X", name)
        file["label"] = np.arange(4)
    with h5py.File(sent) as file:
        assert np.array_equal(file[name], SECRET), "the library itself follows it"
    read = read_arrays if name == "X" else read_h5
    with pytest.raises(DataError, match=rf"sent\.h5: expected arrays in the file.*{WAYS[way]}"):
        read(sent)


def test_links_within_an_hdf5_file_are_followed(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["group/x"] = SECRET
        file["X"] = h5py.SoftLink("/group/x")
        file["y"] = np.arange(4)
    found = read_arrays(tmp_path / "a.h5")
    assert set(found) == {"X", "y"}
    assert np.array_equal(found["X"], SECRET)


def test_an_onnx_file_does_not_read_other_files(tmp_path, monkeypatch):
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    from fredholm.lab.data.catalogue.weights_onnx import read_onnx_tensors

    (tmp_path / "secret.bin").write_bytes(SECRET.tobytes())
    tensor = TensorProto(name="w", data_type=TensorProto.DOUBLE, dims=[24])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="secret.bin")
    graph = helper.make_graph([], "g", [], [], [tensor])
    (tmp_path / "m.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    monkeypatch.chdir(tmp_path)
    assert onnx.numpy_helper.to_array(tensor).tolist() == list(range(24))
    with pytest.raises(DataError, match="'w', whose values lie in another file"):
        read_onnx_tensors(tmp_path / "m.onnx")


@pytest.mark.parametrize("outside", ["../secret/model.safetensors", "/etc/passwd"])
def test_an_index_of_weights_cannot_name_files_outside_its_folder(outside, tmp_path):
    transformers = pytest.importorskip("transformers")
    from fredholm.linearization.transformers_folder import load_local

    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": {"w": "model-1.safetensors", "v": outside}})
    )
    with pytest.raises(TrustError, match=r"index\.json: expected names of files beside it"):
        load_local(transformers.AutoModel, tmp_path)


def test_an_adapter_cannot_name_a_model_elsewhere(tmp_path):
    transformers = pytest.importorskip("transformers")
    from fredholm.linearization.transformers_folder import load_local

    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "/home/me/model"}')
    with pytest.raises(TrustError, match="got an adapter of '/home/me/model'"):
        load_local(transformers.AutoModel, tmp_path)


@pytest.mark.parametrize("name", ["a.eps", "a.png"])
def test_postscript_is_not_passed_to_another_program(name, tmp_path, monkeypatch):
    monkeypatch.setattr("subprocess.check_call", lambda *_, **__: pytest.fail("a program ran"))
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a program ran"))
    (tmp_path / name).write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n")
    with (
        pytest.raises(DataError, match="not a readable picture"),
        opened_picture(tmp_path / name) as image,
    ):
        image.load()


# --- no file fills the memory ---------------------------------------------------------------------


def test_an_hdf5_file_that_declares_forty_gigabytes_is_refused(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("X", (5_000_000_000,), "f8", chunks=(1000,))
    with pytest.raises(DataError, match=r"at most 4,294,967,296 bytes.*got 40,000,000,000"):
        read_arrays(tmp_path / "a.h5")


def npy_header(shape: str) -> bytes:
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) + 1) + text + b"\n"


@pytest.mark.parametrize("shape", ["(5000000000,)", "(4000000000, 4000000000)", "(-1, 4)"])
def test_an_array_that_declares_more_than_its_data_is_refused(shape, tmp_path):
    (tmp_path / "a.npy").write_bytes(npy_header(shape) + bytes(64))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as packed:
        packed.writestr("X.npy", npy_header(shape) + bytes(64))
    with pytest.raises(DataError, match=r"a\.npy: not a valid .npy file"):
        read_cloud(tmp_path / "a.npy")
    with pytest.raises(DataError, match=r"a\.npz: .*(declares|corrupt)"):
        read_arrays(tmp_path / "a.npz")


def test_compressed_files_unpack_to_a_stated_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "UNPACKED_BYTES", 100_000)
    (tmp_path / "a.gz").write_bytes(gzip.compress(bytes(10_000_000)))
    np.savez_compressed(tmp_path / "a.npz", X=np.zeros(1_000_000))
    for read, name in ((read_bytes, "a.gz"), (read_arrays, "a.npz")):
        with pytest.raises(DataError, match=rf"{name}: expected at most [\d,]+ bytes"):
            read(tmp_path / name)
    np.savez(tmp_path / "b.npz", X=np.zeros(100_000))  # large, and of that size on the disk
    assert len(read_arrays(tmp_path / "b.npz")["X"]) == 100_000


def test_intact_states_of_domains_load(tmp_path):
    """The loaders above still accept valid files."""
    operator = create_operator("luna", 4, 1).eval()
    domain = Domain.line(6, causal=True)
    operator.init_state(1, domain).save(tmp_path / "a")
    assert operator.load_state(tmp_path / "a") is not None
