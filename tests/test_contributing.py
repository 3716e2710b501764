"""The examples of CONTRIBUTING.md, run unchanged: each is one file, and no other file changes."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fredholm
from fredholm import Domain
from fredholm.convert import as_operator
from fredholm.errors import OptionError, RecipeError
from fredholm.models import create_model, from_pretrained, list_models
from fredholm.operators import IntegralOperator, import_file
from fredholm.training import load_recipe

from .tolerances import assert_close

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def block(name: str) -> str:
    found = re.search(rf"<!-- {re.escape(name)} -->\n```\w+\n(.*?)```", TEXT, re.DOTALL)
    assert found, f"CONTRIBUTING.md has no block {name!r}"
    return found.group(1)


@pytest.fixture(scope="module")
def workshop(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("workshop")
    for name in ("my_kernel.py", "my_recipe.yaml"):
        (folder / name).write_text(block(f"file: {name}"), encoding="utf-8")
    return folder


def run(command: str, workshop: Path) -> str:
    words = shlex.split(command)
    if words[0] == "fredholm":
        words = ["-m", "fredholm.lab.cli.main", *words[1:]]
        folder = workshop
    else:  # commands of the checkout run there
        words = [str(workshop / word) if word == "my_kernel.py" else word for word in words[1:]]
        folder = ROOT
    if "pytest" in words:
        words += ["-p", "no:cacheprovider"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def test_the_example_kernel_has_at_most_sixty_lines():
    assert len(block("file: my_kernel.py").splitlines()) <= 60


LOOK = """
import torch
from fredholm import Domain
from fredholm.operators import create_operator, list_operators
assert "bilateral" in list_operators()
operator = create_operator("bilateral", 8, 2)
assert type(operator).__module__ == "fredholm.families.bilateral"
assert operator(torch.randn(1, 6, 8), Domain.line(6)).shape == (1, 6, 8)
"""


@pytest.mark.slow
def test_the_example_kernel_becomes_a_family_by_changing_its_imports(tmp_path):
    source = block("file: my_kernel.py")
    outside = re.search(r"import torch\n(from .*\n)+", source)
    assert outside, "the kernel's imports have moved"
    inside = source.replace(outside[0], block("imports in the library"))
    shutil.copytree(Path(fredholm.__file__).parent, tmp_path / "fredholm")
    folder = tmp_path / "fredholm" / "families" / "bilateral"
    folder.mkdir()
    (folder / "__init__.py").write_text(inside, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", LOOK], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_example_passes_contract_training_report_and_benchmark_in_one_file(workshop):
    outputs = {command: run(command, workshop) for command in block("commands").splitlines()}
    contract = next(text for command, text in outputs.items() if "pytest" in command)
    assert int(re.search(r"(\d+) passed", contract).group(1)) > 40
    assert (workshop / "runs/bilateral-digits/model/model.safetensors").is_file()
    assert (workshop / "runs/bilateral-digits/report/index.html").is_file()
    timed = next(text for command, text in outputs.items() if "evidence" in command)
    assert "bilateral forward+backward" in timed
    listed = next(text for command, text in outputs.items() if " operators --import" in command)
    assert re.search(r"bilateral +create_operator", listed)
    compared = next(text for command, text in outputs.items() if " compare " in command)
    assert "| bilateral |" in compared


# --- ten lines each -----------------------------------------------------------------------------

PIECES = {
    "my_features.py": "SoftplusKernel",
    "my_form.py": "WholeMatrix",
    "my_data.py": "Walks",
    "my_converter.py": "my_attention",
    "my_op.py": "power",
    "my_encoder.py": "RowEncoder",
    "my_preset.py": "softmax_pico",
}


def piece_lines(text: str, name: str) -> list[str]:
    """Return the lines of one class, function or assignment without blank ones."""
    tree = ast.parse(text)
    for node in tree.body:
        names = {getattr(node, "name", None), *(getattr(t, "id", None) for t in targets(node))}
        if name in names:
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            lines = text.splitlines()[first - 1 : node.end_lineno]
            return [line for line in lines if line.strip()]
    raise AssertionError(f"the block defines no {name}")


def targets(node: ast.stmt) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else []


@pytest.mark.parametrize("file", PIECES)
def test_each_example_has_at_most_ten_lines(file):
    assert len(piece_lines(block(f"file: {file}"), PIECES[file])) <= 10


@pytest.fixture
def written(tmp_path):
    def write(file: str):
        path = tmp_path / file
        path.write_text(block(f"file: {file}"), encoding="utf-8")
        return import_file(path)

    return write


def assert_keeps_the_contract(operator: IntegralOperator, domain: Domain) -> None:
    """Check that the forward equals the definition in values, gradients and any causal split."""
    operator = operator.double()
    u = torch.randn(2, domain.size, operator.dim, dtype=torch.float64, requires_grad=True)
    inputs = [u, *operator.parameters()]
    outputs = [operator(u, domain), operator.dense(u, domain)]
    if domain.causal:
        first, state = operator.prefill(u[:, :3], operator.init_state(2, domain))
        second, state = operator.step(u[:, 3], state)
        third, _ = operator.prefill(u[:, 4:], state)
        outputs.append(torch.cat([first, second[:, None], third], 1))
    direction = torch.randn_like(outputs[0])
    expected = torch.autograd.grad(outputs[0], inputs, direction, retain_graph=True)
    for other in outputs[1:]:
        assert_close(other, outputs[0])
        for g, h in zip(torch.autograd.grad(other, inputs, direction), expected):
            assert_close(g, h, "gradient")


@pytest.mark.parametrize("causal", [False, True])
def test_a_separable_kernel_passes_the_contract_in_linear_time(written, causal):
    kernel = written("my_features.py").SoftplusKernel(2, 4)
    operator = IntegralOperator(8, 2, kernel=kernel)
    domain = line(causal)
    assert operator.plan(domain).path == ("causal chunks" if causal else "two sums")
    assert_keeps_the_contract(operator, domain)


@pytest.mark.parametrize("causal", [False, True])
def test_a_listed_form_is_selected_and_passes_the_contract(written, causal):
    module = written("my_form.py")
    operator = IntegralOperator(8, 2, kernel=module.SmallKernel(2, 4))
    domain = line(causal)
    assert operator.plan(domain).path == "whole matrix"
    assert operator.plan(Domain.line(65)).path != "whole matrix"
    assert_keeps_the_contract(operator, domain)


def test_a_file_with_a_new_kind_can_be_edited_and_imported_again(written, tmp_path):
    first = written("my_data.py")
    file = tmp_path / "my_data.py"
    file.write_text(file.read_text() + "# a remark\n")
    assert import_file(file).Walks.kind is not first.Walks.kind


def test_a_new_kind_of_data_is_trained_and_explained(written, tmp_path):
    from fredholm.data import describe
    from fredholm.training import evaluate, explain, load_recipe, predict, train

    torch.manual_seed(0)
    written("my_data.py")
    sizes = {"name": "backbone_nano", "body": {"dim": 8, "depth": 1}}
    recipe = {"name": "walks", "data": {"name": "walks", "batch_size": 32}, "model": sizes}
    recipe |= {"schedule": {"warmup_epochs": 0}, "training": {"epochs": 1}}
    train(load_recipe(recipe), tmp_path / "run")
    assert evaluate(tmp_path / "run")["n"] == 128
    assert "test walks" in explain(tmp_path / "run").read_text(encoding="utf-8")
    assert describe("walks")["kind"] == "walks"
    with pytest.raises(OptionError, match="the run reads walks of walks"):
        predict(tmp_path / "run", ["walk.csv"])
    refusal = "data.mixup: expected none, since walks holds walks, got 0.5; remove it"
    with pytest.raises(RecipeError, match=refusal):
        load_recipe(recipe | {"data": {"name": "walks", "mixup": 0.5}})


def test_a_converter_gives_the_output_and_gradients_of_its_layer(written):
    layer = written("my_converter.py").MyAttention(8).double()
    operator = as_operator(layer)
    u = torch.randn(2, 6, 8, dtype=torch.float64, requires_grad=True)
    inputs = [u, *layer.parameters()]
    direction = torch.randn(2, 6, 8, dtype=torch.float64)
    assert_close(operator(u), layer(u))
    converted, original = (torch.autograd.grad(f(u), inputs, direction) for f in (operator, layer))
    for g, h in zip(converted, original):
        # the bias of the keys has no effect on a softmax: its gradient is rounding alone
        assert_close(g, h, "gradient")
    assert_keeps_the_contract(operator, line(False))


def test_an_op_has_shapes_gradient_and_flops(written):
    from torch.utils.flop_counter import FlopCounterMode

    power = written("my_op.py").power
    x = torch.rand(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: power(x, 3), x)
    torch.library.opcheck(torch.ops.fredholm.my_power.default, (x, 3))
    with FlopCounterMode(display=False) as counter:
        power(x, 3)
    assert counter.get_total_flops() == 15


def line(causal: bool) -> Domain:
    valid = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    return Domain.line(6, causal=causal, valid=valid, dtype=torch.float64)


def test_a_new_encoder_works_by_name_with_every_body_and_can_be_saved(written, tmp_path):
    written("my_encoder.py")
    data = {"kind": "image", "image_size": (6, 5), "channels": 2}
    images = torch.randn(3, 2, 6, 5)
    for name in ("itnet_nano", "infvit_pure_pico", "continuous_vit_micro"):
        model = create_model(name, data=data, encoder={"kind": "rows"}, head={"pool": "mean"})
        torch.nn.init.normal_(model.head.weight)
        assert model.features(images)[0].shape[:2] == (3, 6)
        assert_close(
            from_pretrained(model.save_pretrained(tmp_path / name))(images), model.eval()(images)
        )
    (tmp_path / "recipe.yaml").write_text(
        "name: rows\nimport: my_encoder.py\ndata: {name: digits}\n"
        "model: {name: itnet_nano, encoder: {kind: rows}}\n"
    )
    assert load_recipe(tmp_path / "recipe.yaml").model.encoder == {"kind": "rows"}


def test_a_preset_is_a_model_by_name(written):
    written("my_preset.py")
    assert "softmax_pico" in list_models()
    model = create_model("softmax_pico", head={"outputs": 3})
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 3)
    assert load_recipe({"name": "x", "data": {"name": "digits"}, "model": "softmax_pico"})


def test_a_page_of_claims_needs_one_file_of_ten_lines(tmp_path, monkeypatch):
    from evidence.kit.subject import find_subject

    import evidence
    from fredholm.training import load_recipe

    text = block("file: my_claims.py")
    own = [line for line in text.splitlines() if line.strip() and not line.startswith("from ")]
    assert len(own) <= 10
    (tmp_path / "my_claims.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(evidence, "__path__", [*evidence.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "evidence.my_claims", raising=False)  # of another test
    subject = find_subject("my_claims")
    assert [path.name for path in subject.pages] == ["my_claims.md"]
    assert "| 81.4 over 80.8 | not run |  |  | open: not run |" in subject.call(":page")
    for run in subject.find("SECTIONS")["digits"].plan(1):
        load_recipe(run["recipe"], run["overrides"])
