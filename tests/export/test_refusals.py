"""What has no program is refused by name, and leaves no file."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import pytest
import torch

from fredholm.errors import ExportError, MissingExtraError, OptionError, StorageError
from fredholm.export import (
    Program,
    Signature,
    export_decoder,
    export_onnx,
    export_package,
    export_program,
    signature_of,
)
from fredholm.export.program import check_ops
from fredholm.lab.training.exporting import export_run
from fredholm.models import create_model
from fredholm.ops.custom_op import custom_op


@pytest.fixture
def model():
    return create_model("itnet_nano", body={"operator": "softmax"}).eval()


def test_a_module_without_a_configuration_is_refused():
    with pytest.raises(OptionError, match=r"expected a fredholm\.models\.Model, got Linear"):
        signature_of(torch.nn.Linear(2, 2))


def test_an_axis_that_the_inputs_lack_is_refused(model):
    with pytest.raises(OptionError, match="expected names among height, width, got length"):
        signature_of(model, fixed=["length"])


def test_a_missing_runtime_is_named_before_anything_is_traced(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"fredholm\[onnx\]"):
        export_onnx(model, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_format_is_named_with_the_known_ones(tmp_path):
    with pytest.raises(OptionError, match="expected one of onnx, aoti, program, got 'onxx'"):
        export_run(tmp_path, "onxx")


def test_another_answer_is_refused(model):
    anything = torch.export.export(torch.nn.Identity(), (torch.zeros(1),))
    program = Program(model, signature_of(model), anything)
    for weight in model.head.parameters():
        torch.nn.init.normal_(weight)
    assert program.check(model, "program") == 0
    with pytest.raises(ExportError, match=r"relative error of .*nothing was written"):
        program.check(lambda inputs: model(inputs) * 1.001, "program")
    with pytest.raises(ExportError, match="expected finite answers"):
        program.check(lambda inputs: model(inputs) / 0, "program")
    with pytest.raises(ExportError, match="expected answers of shape"):
        program.check(lambda inputs: model(inputs)[:1], "program")


def test_programs_are_traced_at_sizes_unlike_the_models(model):
    signature = signature_of(model)
    traced = signature.traced_sizes()
    counts = [traced.batch, *(size // 4 for size in traced.extents)]
    assert len(set(counts)) == 3
    assert not signature.avoid & set(counts)
    assert model.config.body.heads in signature.avoid
    assert all(size % 4 == 0 for sizes in signature.checked_sizes() for size in sizes.extents)


def test_sizes_stay_below_the_longest_text():
    text = {"kind": "text", "vocabulary": 9, "max_length": 12, "positions": "learned"}
    signature = signature_of(create_model("itnet_nano", encoder=text))
    assert [sizes.extents for sizes in signature.checked_sizes()][-1] == (12,)
    assert signature.shape == ("batch", "length")


@pytest.mark.parametrize("kind", ["text", "sequence"])
def test_made_up_inputs_have_padding(kind):
    options = {"text": {"vocabulary": 9}, "sequence": {"channels": 2}}
    signature = signature_of(create_model("itnet_nano", encoder={"kind": kind} | options[kind]))
    inputs = signature.example(signature.traced_sizes())
    padded = inputs == 0 if kind == "text" else inputs.isnan().all(-1)
    assert padded.nonzero().tolist() == [[inputs.shape[0] - 1, inputs.shape[1] - 1]]


def test_signatures_are_values(model):
    assert signature_of(model) == signature_of(model)
    assert isinstance(signature_of(model), Signature)


def test_steps_need_a_model_of_the_next_token(model, tmp_path):
    pytest.importorskip("onnxruntime")
    with pytest.raises(OptionError, match="expected an encoder of causal texts"):
        export_decoder(model, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "options"), [("graph", {"channels": 3}), ("multimodal", {"vocabulary": 9})]
)
def test_models_of_several_tensors_are_refused_by_name(kind, options):
    several = create_model("itnet_nano", encoder={"kind": kind} | options)
    with pytest.raises(OptionError, match=f"reads one tensor, got an encoder of {kind}"):
        signature_of(several)


def never(*_: object, **__: object) -> None:
    raise AssertionError("the model was traced")


@pytest.mark.parametrize("export", [export_onnx, export_package, export_program])
def test_a_file_that_cannot_be_written_is_named_before_anything_is_traced(
    export, model, tmp_path, monkeypatch
):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr("torch.export.export", never)
    with pytest.raises(StorageError, match=r"missing: No such file or directory; make the folder"):
        export(model, tmp_path / "missing" / "model.onnx")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="a file lies where a folder is needed"):
        export(model, tmp_path / "file" / "model.onnx")
    with pytest.raises(StorageError, match="expected a file's name, got a folder"):
        export(model, tmp_path)


def test_old_operators_of_onnx_are_refused_before_anything_is_traced(model, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr("torch.export.export", never)
    with pytest.raises(OptionError, match="opset: expected 18 or more, got 11"):
        export_onnx(model, tmp_path / "model.onnx", opset=11)
    with pytest.raises(OptionError, match="opset: expected --to onnx beside it, got aoti"):
        export_run(tmp_path, "aoti", opset=18)
    assert list(tmp_path.iterdir()) == []


def test_an_op_without_a_plain_form_is_named():
    double = custom_op(
        "export_test_double",
        "(Tensor x) -> Tensor",
        lambda x: 2 * x,
        fake=torch.empty_like,
        flops=lambda x: x.numel(),
    )

    class Double(torch.nn.Module):
        def forward(self, x):
            return double(x)

    exported = torch.export.export(Double(), (torch.zeros(3),))
    with pytest.raises(ExportError, match="a plain form, got fredholm::export_test_double"):
        check_ops(exported)
    check_ops(torch.export.export(torch.nn.Identity(), (torch.zeros(1),)))


@pytest.fixture
def traced(model, monkeypatch):
    """Every export of a model is that of another, small program, which is not compared."""
    program = torch.export.export(torch.nn.Identity(), (torch.zeros(1),))
    found = Program(model, signature_of(model), program)
    monkeypatch.setattr("fredholm.export.program.trace", lambda *_, **__: found)
    monkeypatch.setattr(Program, "check", lambda *_: 0.0)
    return found


def test_a_full_disk_leaves_the_old_file(traced, tmp_path, monkeypatch):
    path = tmp_path / "model.pt2"
    path.write_text("old")

    def full(self: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StorageError, match="No space left on device; free some space"):
        export_program(traced.model, path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_last_of_two_exports_to_one_file_is_whole(traced, tmp_path):
    path = tmp_path / "model.pt2"
    for name in ("first", "second"):
        export_program(traced.model, path, metadata={"name": name})
    extra = {"metadata.json": ""}
    torch.export.load(path, extra_files=extra)
    assert extra["metadata.json"] == '{"name": "second"}'
    assert list(tmp_path.iterdir()) == [path]


def test_clouds_and_stages_are_traced_at_sizes_that_leave_enough():
    cloud = {"kind": "points", "neighbours": 16}
    signature = signature_of(create_model("itnet_nano", encoder=cloud))
    assert min(size for sizes in signature.checked_sizes() for size in sizes.extents) == 16
    signature = signature_of(create_model("continuous_cvt_micro"))
    assert min(size for sizes in signature.checked_sizes() for size in sizes.extents) == 3 * 4 * 2
