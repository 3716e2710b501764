"""What has no program is refused by name, and leaves no file."""

from __future__ import annotations

import sys

import pytest
import torch

from fredholm.errors import ExportError, MissingExtraError, OptionError
from fredholm.export import Program, Signature, export_decoder, export_onnx, signature_of
from fredholm.lab.training.exporting import export_run
from fredholm.models import create_model

GRAPH = {"kind": "graph", "features": 3}


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
