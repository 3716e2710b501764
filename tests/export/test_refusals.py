"""Unsupported exports are refused by name and leave no file."""

from __future__ import annotations

import errno
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from evidence.itnet import two_streams  # noqa: F401  registers the body

from fredholm.encoders import EncoderConfig
from fredholm.errors import (
    ExportError,
    MissingExtraError,
    OptionError,
    StorageError,
    TrustError,
)
from fredholm.export import (
    Program,
    Signature,
    decoder,
    export_decoder,
    export_onnx,
    export_package,
    export_program,
    largest_error,
    signature_of,
    trace,
)
from fredholm.export.decoder import DecoderErrors, StateNames
from fredholm.export.onnx import INPUT, converted
from fredholm.export.program import check_ops, without_torchs_warning
from fredholm.export.signature import tensors_of
from fredholm.lab.training.exporting import export_run, export_run_steps
from fredholm.models import create_model
from fredholm.ops.custom_op import custom_op

from .programs import decoder as text_decoder


@pytest.fixture
def model():
    return create_model("itnet_nano", body={"operator": "softmax"}).eval()


def test_a_module_without_a_configuration_is_refused():
    with pytest.raises(OptionError, match=r"expected a fredholm\.models\.Model, got Linear"):
        signature_of(torch.nn.Linear(2, 2))


def test_an_axis_beyond_the_inputs_is_refused(model):
    with pytest.raises(OptionError, match="expected names among height, width, got length"):
        signature_of(model, fixed=["length"])


def test_a_missing_runtime_is_named_before_tracing(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"fredholm\[onnx\]"):
        export_onnx(model, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_format_is_named_with_the_known_ones(tmp_path):
    with pytest.raises(OptionError, match="expected one of onnx, aoti, program, got 'onxx'"):
        export_run(tmp_path, "onxx")


def test_a_program_with_another_output_is_refused(model):
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


class Rounded(torch.nn.Module):
    """A model whose float32 outputs have a known relative error, with another's configuration."""

    def __init__(self, model: torch.nn.Module, share: float):
        super().__init__()
        self.config = model.config
        self.share = share
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        answer = inputs.flatten(1).sum(1, keepdim=True).double()
        if self.weight.dtype == torch.float32:
            answer = answer * (1 + self.share)
        return answer


@pytest.mark.parametrize(
    ("rounding", "error", "allowed"),
    [
        # The tolerance of exact models is fixed; that of others is their rounding error,
        # up to a limit.
        (0.0, 2e-5, "1e-05"),
        (1e-4, 2e-5, None),
        (1e-4, 2e-4, "1e-04"),
        (1e-2, 2e-3, "1e-03"),
    ],
)
def test_the_tolerance_follows_the_models_own_rounding(model, rounding, error, allowed):
    anything = torch.export.export(torch.nn.Identity(), (torch.zeros(1),))
    rounded = Rounded(model, rounding)
    program = Program(rounded, signature_of(model), anything)
    if allowed is None:
        assert program.check(lambda inputs: rounded(inputs) * (1 + error), "program") > 1e-5
        return
    with pytest.raises(ExportError, match=f"where {allowed} is allowed; nothing was written"):
        program.check(lambda inputs: rounded(inputs) * (1 + error), "program")


def test_models_without_float64_use_the_fixed_tolerance(model):
    class Single(Rounded):
        def forward(self, inputs):
            assert self.weight.dtype == torch.float32
            return super().forward(inputs)

    anything = torch.export.export(torch.nn.Identity(), (torch.zeros(1),))
    single = Single(model, 1e-4)
    program = Program(single, signature_of(model), anything)
    with pytest.raises(ExportError, match="where 1e-05 is allowed"):
        program.check(lambda inputs: single(inputs) * (1 + 2e-5), "program")


def test_deprecation_warnings_inside_torch_are_hidden():
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        with without_torchs_warning():
            program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
            program.run_decompositions({})


def test_tracing_uses_sizes_that_differ_from_the_models(model):
    signature = signature_of(model)
    traced = signature.traced_sizes()
    counts = [traced.batch, *(size // 4 for size in traced.extents)]
    assert len(set(counts)) == 3
    assert not signature.avoid & set(counts)
    assert model.config.body.heads in signature.avoid
    assert all(size % 4 == 0 for sizes in signature.checked_sizes() for size in sizes.extents)


def test_texts_are_traced_and_checked_over_several_blocks():
    """A compiler would treat the block of a point as constant if the traced text had one block."""
    text = {"kind": "text", "vocabulary": 9, "max_length": 64}
    signature = signature_of(create_model("itnet_nano", encoder=text))
    lengths = [sizes.extents[0] for sizes in signature.checked_sizes()]
    assert lengths[0] > 64
    assert lengths[1] < 64
    assert lengths[2] > 2 * 64


def test_traced_sizes_stay_below_the_longest_text():
    text = {"kind": "text", "vocabulary": 9, "max_length": 12, "positions": "learned"}
    signature = signature_of(create_model("itnet_nano", encoder=text))
    assert [sizes.extents for sizes in signature.checked_sizes()][-1] == (12,)
    assert signature.shape == ("batch", "length")


@pytest.mark.parametrize("kind", ["text", "sequence"])
def test_generated_inputs_have_padding(kind):
    options = {"text": {"vocabulary": 9}, "sequence": {"channels": 2}}
    signature = signature_of(create_model("itnet_nano", encoder={"kind": kind} | options[kind]))
    inputs = signature.example(signature.traced_sizes())
    padded = inputs == 0 if kind == "text" else inputs.isnan().all(-1)
    assert padded.nonzero().tolist() == [[inputs.shape[0] - 1, inputs.shape[1] - 1]]


def test_signatures_compare_by_value(model):
    assert signature_of(model) == signature_of(model)
    assert isinstance(signature_of(model), Signature)


def test_steps_need_texts_of_some_tokens(tmp_path):
    pytest.importorskip("onnxruntime")
    with pytest.raises(OptionError, match=r"texts of 4 tokens or more.*got a model of 3"):
        export_decoder(text_decoder("softmax", 3), tmp_path / "model.onnx")


@pytest.mark.parametrize("longest", [4, 6, 8, 64])
def test_traced_prompts_fit_short_texts(longest):
    """The prompt, and one more token of it, by which the axes of a state are found."""
    model = text_decoder("softmax", longest)
    names = StateNames.of(model.prefill(torch.ones(1, 3).long(), model.init_state(longest))[1])
    for axes in decoder._free_axes(model, names):
        assert "batch" in axes.values()


def test_steps_need_a_model_of_the_next_token(model, tmp_path):
    pytest.importorskip("onnxruntime")
    with pytest.raises(OptionError, match="expected an encoder of causal texts"):
        export_decoder(model, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("answer", "error"), [(0.0, 0.0), (1e-7, 1e30), (9.0, 1e38)])
def test_programs_of_a_new_decoder_answer_zero(answer, error, monkeypatch):
    """A head starts at zero; answers that differ have a large error, which is a number."""
    model = text_decoder("softmax")
    for weight in model.head.parameters():
        torch.nn.init.zeros_(weight)

    def run(inputs):
        return [np.full((*inputs[INPUT].shape, 9), answer, np.float32)]

    monkeypatch.setattr(decoder, "runner_of", lambda _: run)
    for found in decoder.decoder_errors(model, b"prefill", b"step"):
        assert error <= found < float("inf")
        assert bool(found) == bool(error)


def test_answers_of_a_decoder_that_are_not_finite_are_refused(monkeypatch):
    def run(inputs):
        return [np.full((*inputs[INPUT].shape, 9), np.nan, np.float32)]

    monkeypatch.setattr(decoder, "runner_of", lambda _: run)
    with pytest.raises(ExportError, match="expected finite answers of both programs"):
        decoder.decoder_errors(text_decoder("softmax"), b"prefill", b"step")


GRAPH = {"kind": "graph", "channels": 3, "eigenvectors": 4}
PAIR = {"kind": "multimodal", "vocabulary": 9, "max_length": 16}


def test_edges_and_positions_of_a_graph_are_inputs():
    signature = signature_of(create_model("itnet_nano", encoder=GRAPH))
    assert signature.shape == {
        "edges": ("batch", "nodes", "nodes"),
        "positions": ("batch", "nodes", 4),
        "valid": ("batch", "nodes"),
        "features": ("batch", "nodes", 3),
    }
    bags = GRAPH | {"channels": None, "vocabulary": 9}
    signature = signature_of(create_model("itnet_nano", encoder=bags))
    assert signature.shape["tokens"] == ("batch", "nodes", "words")
    tensors = signature.example(signature.traced_sizes()).tensors
    assert list(tensors) == signature.names
    assert tensors["edges"].equal(tensors["edges"].mT)
    assert (~tensors["valid"]).nonzero().tolist() == [[n - 1 for n in tensors["valid"].shape]]


def test_a_picture_and_its_text_are_separate_inputs():
    joint = signature_of(create_model("itnet_nano", encoder=PAIR))
    assert joint.shape == {
        "image": ("batch", 1, "height", "width"),
        "tokens": ("batch", "length"),
    }
    views = signature_of(create_model("itnet_nano", encoder=PAIR | {"views": 2}))
    assert views.shape["image"] == ("batch", 2, 1, "height", "width")
    # Two streams are cut at the end of the picture, so its size is that of training.
    body = {"kind": "two_streams", "operator": "softmax"}
    streams = signature_of(create_model("itnet_nano", encoder=PAIR, body=body))
    assert streams.shape["image"] == ("batch", 1, 28, 28)
    assert streams.shape["tokens"] == ("batch", "length")


def test_an_encoder_without_listed_tensors_is_refused(monkeypatch):
    class Silent(EncoderConfig):
        kind = "silent"
        one_tensor = False

    with pytest.raises(OptionError, match="lists its tensors, got one of silent; give Silent"):
        _ = Silent().parts
    monkeypatch.setattr(Silent, "one_tensor", True)
    with pytest.raises(OptionError, match="expected Silent to say the shape of an input"):
        _ = Silent().parts


class Elsewhere(Exception):
    """Raised instead of tracing."""


@pytest.mark.parametrize("several", [False, True])
def test_generated_inputs_are_on_the_models_device(several, monkeypatch):
    """The meta device stands for an accelerator, and nothing is computed there."""
    options = {"body": {"operator": "softmax"}}
    if several:
        options["encoder"] = {"kind": "graph", "channels": 3}
    model = create_model("itnet_nano", **options).to("meta")
    seen = []

    def note(*tensors: torch.Tensor) -> None:
        seen.extend(tensor.device.type for tensor in tensors)
        raise Elsewhere

    monkeypatch.setattr("torch.export.export", lambda _, inputs, **__: note(*inputs))
    with pytest.raises(ExportError, match="got Elsewhere"):
        trace(model)

    monkeypatch.setattr(
        type(model), "forward", lambda _, inputs: note(*tensors_of(inputs).values())
    )
    with pytest.raises(Elsewhere):
        largest_error(model, signature_of(model), lambda inputs: torch.zeros(1))
    assert set(seen) == {"meta"}
    assert len(seen) == 2 * len(signature_of(model).names)


def test_generated_texts_are_on_the_decoders_device():
    encoder = {"kind": "text", "vocabulary": 9, "max_length": 64, "causal": True}
    model = create_model("itnet_nano", encoder=encoder, body={"operator": "softmax"})
    assert decoder._texts(model.to("meta"), 2, 3).device.type == "meta"


def never(*_: object, **__: object) -> None:
    raise AssertionError("the model was traced")


@pytest.mark.parametrize("export", [export_onnx, export_package, export_program])
def test_an_unwritable_file_is_named_before_tracing(export, model, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr("torch.export.export", never)
    with pytest.raises(StorageError, match=r"missing: No such file or directory; make the folder"):
        export(model, tmp_path / "missing" / "model.onnx")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="a file lies where a folder is needed"):
        export(model, tmp_path / "file" / "model.onnx")
    with pytest.raises(StorageError, match="expected a file's name, got a folder"):
        export(model, tmp_path)


def test_old_operator_sets_of_onnx_are_refused_before_tracing(model, tmp_path, monkeypatch):
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
    """Replace every export by that of a small program, without comparison."""
    program = torch.export.export(torch.nn.Identity(), (torch.zeros(1),))
    found = Program(model, signature_of(model), program)
    monkeypatch.setattr("fredholm.export.program.trace", lambda *_, **__: found)
    monkeypatch.setattr(Program, "check", lambda *_: 0.0)
    return found


def test_a_full_disk_keeps_the_old_file(traced, tmp_path, monkeypatch):
    path = tmp_path / "model.pt2"
    path.write_text("old")

    def full(self: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StorageError, match="No space left on device; free some space"):
        export_program(traced.model, path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_neither_program_of_a_decoder(model, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    for name, value in {
        "_traced": (None, None, StateNames(())),
        "converted": b"program",
        "decoder_errors": DecoderErrors(0.0, 0.0),
    }.items():
        monkeypatch.setattr(decoder, name, lambda *_, value=value: value)
    written = Path.write_bytes

    def full(self: Path, content: bytes) -> int:
        if "step" in self.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return written(self, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StorageError, match="No space left on device; free some space"):
        export_decoder(model, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_compiler_that_fails_is_named_and_leaves_no_file(traced, tmp_path, monkeypatch):
    def fails(*_: object, package_path: str, **__: object) -> None:
        Path(package_path).write_text("half")
        raise RuntimeError("no g++\nand more")

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", fails)
    monkeypatch.setattr("fredholm.export.package.trace", lambda *_, **__: traced)
    with pytest.raises(
        ExportError, match=r"AOTInductor compiles, got RuntimeError: no g\+\+; keep its sizes"
    ):
        export_package(traced.model, tmp_path / "model.pt2")
    assert list(tmp_path.iterdir()) == []


def test_unsupported_operator_sets_of_onnx_are_refused():
    pytest.importorskip("onnxruntime")
    exported = torch.export.export(torch.nn.ReLU(), (torch.zeros(3),))
    with pytest.raises(ExportError, match=r"ONNX's operators of version 99, got \d+, beyond which"):
        converted(exported, ["inputs"], ["outputs"], {}, 99)


def test_untrusted_code_of_a_run_is_not_executed(tmp_path):
    recipe = tmp_path / "run" / "recipe.yaml"
    recipe.parent.mkdir()
    (tmp_path / "own.py").write_text("raise AssertionError('executed')")
    recipe.write_text(
        f"name: own\nimport: {tmp_path / 'own.py'}\n"
        "data: {name: digits}\nmodel: {name: itnet_nano}\n"
    )
    for export in (export_run, lambda run, _: export_run_steps(run)):
        with pytest.raises(TrustError, match=r"own\.py"):
            export(tmp_path / "run", "onnx")


def test_two_exports_to_one_file_leave_a_complete_program(traced, tmp_path):
    path = tmp_path / "model.pt2"
    for name in ("first", "second"):
        export_program(traced.model, path, metadata={"name": name})
    extra = {"metadata.json": ""}
    torch.export.load(path, extra_files=extra)
    assert extra["metadata.json"] == '{"name": "second"}'
    assert list(tmp_path.iterdir()) == [path]


def test_clouds_and_stages_are_traced_at_sufficient_sizes():
    cloud = {"kind": "points", "neighbours": 16}
    signature = signature_of(create_model("itnet_nano", encoder=cloud))
    assert min(size for sizes in signature.checked_sizes() for size in sizes.extents) == 16
    signature = signature_of(create_model("continuous_cvt_micro"))
    assert min(size for sizes in signature.checked_sizes() for size in sizes.extents) == 3 * 4 * 2
