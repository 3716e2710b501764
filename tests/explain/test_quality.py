"""Attention quality: known maps, measures against other implementations, any operator, the page."""

from __future__ import annotations

import json
import re

import pytest
import torch
from torch import nn

from fredholm.domain import Domain
from fredholm.errors import DomainError, OptionError, ShapeError
from fredholm.explain import (
    ReportOptions,
    Samples,
    attention_quality,
    class_attention,
    degradation,
    eigenvector_alignment,
    image_maps,
    localisation,
    model_alignment,
    operator_inputs,
    patch_targets,
    report,
    rollout,
)
from fredholm.explain.kernels import pair_weights
from fredholm.explain.targets import pr_auc, roc_auc
from fredholm.lab.report.attention.sections import refusal
from fredholm.lab.report.layers import Layer
from fredholm.models import create_model
from fredholm.operators import create_operator
from tests.parts import parts

from ..tolerances import assert_close
from .chromium import BROWSER, open_page

OPERATORS = ("softmax", "infsa", "linear_infsa", "itnet")


def tiny(operator="infsa", **options):
    torch.manual_seed(0)
    own = {"operator_options": {"width": 4, "frequencies": 2}} if operator == "itnet" else {}
    sizes = {"image_size": (12, 12), "patch": 3, "dim": 8, "heads": 2, "depth": 2, "num_classes": 3}
    model = create_model(
        "infvit_pure_pico", **parts(operator=operator, **{**sizes, **own, **options})
    )
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model.eval()


def pictures(count=5):
    return torch.randn(count, 1, 12, 12, generator=torch.Generator().manual_seed(1))


# --- maps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", ["cls", "mean"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_the_map_of_the_class_token_is_its_row(operator, pool):
    model = tiny(operator, pool=pool)
    images = pictures()
    seen = model.trace(images)[-1]
    weights = pair_weights(*seen).double().mean(1)
    row = weights[:, 0, 1:] if pool == "cls" else weights.mean(1)
    expected = (row / row.sum(-1, keepdim=True)).view(-1, 4, 4)
    found = image_maps(model, images)
    assert_close(found, expected, dtype=torch.float32)
    assert_close(found.sum((1, 2)), torch.ones(5).double())
    small = class_attention(*seen, budget=1).view(5, -1)[:, -16:]
    assert_close(small.view(5, 4, 4), found, dtype=torch.float32)


def test_maps_are_computed_in_evaluation_and_modes_are_restored():
    model = tiny("softmax", dropout=0.3)
    images = pictures()
    expected = image_maps(model, images)
    model.train().body.blocks[0].eval()
    modes = [module.training for module in model.modules()]
    assert_close(image_maps(model, images), expected)
    assert_close(attention_quality(model, images, steps=1).maps["attention"], expected)
    operator_inputs(model, images)
    assert [module.training for module in model.modules()] == modes


def test_rollout_equals_the_product_of_the_layers():
    model = tiny("softmax")
    images = pictures()
    seen = model.trace(images)
    product = torch.eye(17).double()
    for operator, u, domain in seen:
        weights = pair_weights(operator, u, domain).double().mean(1)
        product = (0.5 * torch.eye(17) + 0.5 * weights / weights.sum(-1, keepdim=True)) @ product
    row = product[:, 0, 1:]
    assert_close(rollout(seen)[:, 1:], row / row.sum(-1, keepdim=True), dtype=torch.float32)
    assert_close(image_maps(model, images, method="rollout").flatten(1), rollout(seen)[:, 1:])
    with pytest.raises(OptionError, match="residual"):
        rollout(seen, residual=1.0)
    with pytest.raises(DomainError, match="equal sizes"):
        rollout([*seen, (seen[0][0], seen[0][1][:, :9], Domain.line(9))])


def test_operators_inside_any_model_are_captured():
    inner = create_operator("softmax", 6, heads=2)

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.deep = nn.ModuleDict({"a": inner})

        def forward(self, u):
            return self.deep["a"](2 * u, domain=Domain.line(4))

    u = torch.randn(2, 4, 6)
    model = Wrapped()
    ((name, operator, seen, domain),) = operator_inputs(model, u)
    assert (name, operator, domain.size) == ("deep.a", inner, 4)
    assert_close(seen, 2 * u)
    assert model.training
    assert not inner._forward_pre_hooks, "hooks are gone"
    with pytest.raises(ShapeError, match="no operators inside"):
        operator_inputs(nn.Linear(6, 6), u)


def test_unsupported_maps_are_refused():
    model = tiny()
    with pytest.raises(OptionError, match="did you mean 'rollout'"):
        image_maps(model, pictures(), method="rolout")
    text = create_model("continuous_text_micro", **parts(vocabulary=9))
    with pytest.raises(DomainError, match="two-dimensional grid"):
        image_maps(text, torch.randint(1, 9, (2, 5)))


# --- measures -------------------------------------------------------------------------------------


def test_areas_agree_with_scikit_learn():
    from sklearn.metrics import average_precision_score, roc_auc_score

    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 6, (20, 30), generator=generator).double()  # with ties
    inside = torch.rand(20, 30, generator=generator) < 0.3
    for found, known in ((roc_auc, roc_auc_score), (pr_auc, average_precision_score)):
        expected = torch.tensor(
            [known(i.numpy(), s.numpy()) for s, i in zip(scores, inside)], dtype=torch.float64
        )
        assert_close(found(scores, inside), expected)
    none = torch.zeros(1, 30, dtype=torch.bool)
    assert roc_auc(scores[:1], none).isnan().all()
    assert pr_auc(scores[:1], none).isnan().all()
    assert roc_auc(scores[:1], ~none).isnan().all()


def test_measures_rank_perfect_uniform_and_wrong_maps():
    inside = torch.zeros(1, 4, 4, dtype=torch.bool)
    inside[0, 1:3, 1:3] = True
    perfect, flat, wrong = (
        localisation(m, inside) for m in (inside.float(), torch.ones(1, 4, 4), (~inside).float())
    )
    assert [perfect[k].item() for k in ("roc_auc", "pr_auc", "mass", "chance")] == [
        1.0,
        1.0,
        1.0,
        0.25,
    ]
    assert [flat[k].item() for k in ("roc_auc", "pr_auc", "mass")] == [0.5, 0.25, 0.25]
    assert [wrong[k].item() for k in ("roc_auc", "mass")] == [0.0, 0.0]
    assert wrong["pr_auc"].item() == pytest.approx(0.25)
    assert localisation(torch.zeros(1, 4, 4), inside)["mass"].isnan().all()


def test_patches_of_an_object_follow_its_mask():
    masks = torch.zeros(3, 4, 4, dtype=torch.bool)
    masks[0, :2, :3] = True  # one whole patch, half of the next
    masks[1, 3, 3] = True  # a quarter of one
    found = patch_targets(masks, (2, 2))
    assert found[0].tolist() == [[True, True], [False, False]]
    assert found[1].tolist() == [[False, False], [False, True]]
    assert not found[2].any()
    with pytest.raises(ShapeError, match="does not divide"):
        patch_targets(masks, (3, 2))


class Corner(nn.Module):
    """A model whose class 0 depends only on the brightness of the first patch."""

    def forward(self, x):
        return torch.stack([x[:, 0, :3, :3].mean((1, 2)), torch.zeros(len(x))], 1)


def test_removal_curves_reveal_the_decisive_patch():
    images = torch.full((2, 1, 12, 12), 8.0)
    right = torch.zeros(2, 4, 4)
    wrong = torch.ones(2, 4, 4)
    right[:, 0, 0], wrong[:, 0, 0] = 1.0, 0.0
    best = degradation(Corner(), images, right, steps=16)
    worst = degradation(Corner(), images, wrong, steps=16)
    low = 0.5 / torch.tensor(8.0).double().sigmoid()
    assert_close(best.curves["morf"], torch.cat([torch.ones(2, 1), low.expand(2, 16)], 1))
    assert_close(best.curves["lerf"][:, :16], torch.ones(2, 16).double())
    assert_close(best.curves["lerf"], worst.curves["morf"])
    assert (best.area("morf") > best.area("random").neg() + 1).all() or (
        best.area("morf") > 0.45
    ).all()
    assert (best.area("lerf") > 0.98).all()
    assert worst.area("morf").max() < 0.02
    random = best.curves["random"]
    assert random[:, 0].eq(1).all()
    assert_close(random[:, -1], low.expand(2))
    again = degradation(Corner(), images, right, steps=16)
    assert again.curves["random"].equal(random)
    assert best.fractions.tolist() == [i / 16 for i in range(17)]


def test_removal_refuses_mismatched_arguments():
    with pytest.raises(ShapeError, match="do not fit images"):
        degradation(Corner(), torch.zeros(2, 1, 12, 12), torch.zeros(2, 5, 5))
    with pytest.raises(OptionError, match="1 or more"):
        degradation(Corner(), torch.zeros(2, 1, 12, 12), torch.zeros(2, 4, 4), steps=0)
    with pytest.raises(ShapeError, match="box: received"):
        attention_quality(tiny(), pictures(), boxes=torch.zeros(5, 3, 3, dtype=torch.bool))


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_suite_runs_for_any_operator(operator):
    boxes = torch.zeros(5, 12, 12, dtype=torch.bool)
    boxes[:4, 3:9, 3:9] = True
    found = attention_quality(tiny(operator), pictures(), boxes=boxes, masks=boxes, steps=4)
    summary = found.summary()
    assert set(summary["degradation"]) == {"attention", "rollout", "incoming"}
    place = summary["localisation"]["attention"]["box"]
    assert (place["roc_auc"]["n"], place["mass"]["n"], place["chance"]["n"]) == (4, 4, 4)
    assert place["chance"]["mean"] == pytest.approx(0.25)
    assert json.loads(json.dumps(summary)) == summary


def test_chains_of_negative_weights_are_skipped_by_name():
    model = tiny(operator_options={"activation": "gelu"})
    found = attention_quality(model, pictures(), steps=2)
    assert set(found.maps) == {"attention", "rollout"}
    assert "non-negative weights" in found.skipped["incoming"]


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (["atention"], "unknown method 'atention'; did you mean 'attention'"),
        (("attention", "rolout"), "unknown method 'rolout'; did you mean 'rollout'"),
        ([], "expected one or more of attention, rollout, incoming, got none"),
    ],
)
def test_unknown_methods_are_refused(methods, message):
    with pytest.raises(OptionError, match=message):
        attention_quality(tiny(), pictures(), methods=methods)


def test_a_model_without_any_map_is_refused_with_the_reasons():
    model = tiny(operator_options={"activation": "gelu"})
    with pytest.raises(DomainError, match=r"got none: incoming: .*non-negative weights"):
        attention_quality(model, pictures(), methods=["incoming"])


# --- alignment ------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [{"reach": 1}, {"causal": True}])
def test_alignment_refuses_points_that_see_few(hidden):
    op = create_operator("softmax", 8, heads=2)
    with pytest.raises(DomainError, match=r"without order, pairs, reach or padding.*got Domain"):
        eigenvector_alignment(op, torch.randn(1, 6, 8), Domain.line(6, **hidden))


def test_alignment_is_measured_against_the_operators_limit():
    torch.manual_seed(2)
    op = create_operator("infsa", 8, heads=2).double()
    u = torch.rand(2, 9, 8, dtype=torch.float64)
    weights = op.weights(u).detach()
    values, vectors = torch.linalg.eig(weights.mT)
    lead = vectors.gather(-1, values.abs().argmax(-1)[..., None, None].expand(2, 2, 9, 1))[
        ..., 0
    ].real
    cosine = torch.nn.functional.cosine_similarity(weights.sum(2), lead, dim=-1).abs()
    assert_close(eigenvector_alignment(op, u).cosine, cosine, dtype=torch.float32)


@pytest.mark.parametrize("name", ["infsa", "linear_infsa"])
def test_a_class_token_is_left_out_of_alignment(name):
    torch.manual_seed(3)
    op = create_operator(name, 8, heads=2).double()
    u = torch.rand(2, 9, 8, dtype=torch.float64)
    patches = Domain.points(torch.rand(9, 2, dtype=torch.float64))
    both = Domain.join(
        Domain.points(torch.rand(1, 2, dtype=torch.float64)), patches, balance=(0.0, 1.0)
    )
    token = torch.cat([100 * torch.rand(2, 1, 8, dtype=torch.float64), u], 1)
    alone, joined = eigenvector_alignment(op, u, patches), eigenvector_alignment(op, token, both)
    if name == "linear_infsa":
        assert_close(joined.cosine, alone.cosine)
        assert_close(joined.spearman, alone.spearman)
    assert joined.cosine.min() > 0.9


def test_alignment_of_a_model_covers_every_layer():
    model = tiny("linear_infsa")
    found = model_alignment(model, pictures())
    assert list(found) == ["body.blocks.0.operator", "body.blocks.1.operator"]
    operator, u, domain = model.trace(pictures())[1]
    assert_close(
        found["body.blocks.1.operator"].cosine, eigenvector_alignment(operator, u, domain).cosine
    )


# --- the page -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    model = tiny("linear_infsa")
    model.extra = {"mean": [0.5], "std": [0.25], "classes": ["a", "b", "c"]}
    images = torch.randint(
        0, 256, (12, 1, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    boxes = torch.zeros(12, 12, 12, dtype=torch.bool)
    boxes[::2, 3:9, 3:9] = True
    folder = tmp_path_factory.mktemp("quality")
    return report(
        model,
        Samples(images, torch.arange(12) % 3, boxes=boxes),
        out_dir=folder,
        options=ReportOptions(samples=4, quality=9),
    )


def test_the_report_shows_maps_curves_and_centrality(page):
    text = page.read_text(encoding="utf-8")
    sections = re.findall(r'<section id="(\w+)"', text)
    assert {"attention", "removal", "localisation", "centrality"} <= set(sections)
    assert {"overlays", "removal", "rankings", "alignment"} <= set(
        re.findall(r'<figure id="([\w-]+)"', text)
    )
    numbers = json.loads((page.parent / "numbers.json").read_text())["attention"]
    assert numbers["localisation"]["attention"]["box"]["roc_auc"]["n"] == 6, (
        "the marked images come first"
    )
    assert numbers["localisation"]["attention"]["box"]["mass"]["n"] == 6
    assert 0 <= numbers["centrality"]["layer 1"]["cosine"]["mean"] <= 1
    assert f"{numbers['degradation']['rollout']['morf']['mean']:.3f}" in text


@pytest.mark.skipif(BROWSER is None, reason="no chromium")
def test_the_page_renders_in_a_browser(page, tmp_path):
    found, console = open_page(page, tmp_path)
    assert found["pictures"] == found["drawn"] != "0"
    assert found["requests"] == "0"
    assert found["overflow"] == "false"
    assert console == []


def test_the_report_says_why_maps_are_missing(monkeypatch):
    layer = Layer("layer 1", *tiny().trace(pictures())[0])
    line = Layer("layer 1", layer.operator, layer.u[:, 1:], Domain.line(16))
    size = pictures().shape[2:]
    assert refusal([layer], size) is None
    assert refusal([line], size).startswith("the operators do not live on a grid")
    assert "does not divide" in refusal([layer], (13, 12))
    monkeypatch.setattr("fredholm.lab.report.attention.sections.WORK", 10)
    assert "too many" in refusal([layer], size)


def test_without_quality_images_there_are_no_maps(tmp_path):
    page = report(
        tiny(), Samples(pictures(4)), out_dir=tmp_path, options=ReportOptions(quality=0, samples=3)
    )
    assert 'id="attention"' not in page.read_text()


@pytest.mark.parametrize("size", [56, 49], ids=["8 x 8", "7 x 7, the token on a patch"])
def test_the_map_of_an_ordinary_class_token_excludes_itself(size):
    """The map contains its weights on the patches, not the weight on itself."""
    torch.manual_seed(0)
    model = create_model("infvit_softmax_pico", encoder={"image_size": (size, size)}).eval()
    images = torch.rand(2, 1, size, size)
    maps = image_maps(model, images)
    operator, u, domain = model.trace(images)[-1]
    assert domain.measure.reshape(-1)[0] > 0, "a token with a mass"
    row = operator.weights(u, domain, rows=[0]).mean(1)[:, 0, 1:]
    expected = (row / row.sum(-1, keepdim=True)).view(2, size // 7, size // 7)
    torch.testing.assert_close(maps, expected.double().detach(), rtol=1e-5, atol=1e-7)
    assert image_maps(model, images, method="rollout").sum((1, 2)) == pytest.approx(1.0)


def test_the_row_of_a_class_token_does_not_depend_on_padding():
    """It has measure 0 and is part of every sample, whatever the batch."""
    torch.manual_seed(0)
    encoder = {"kind": "text", "vocabulary": 20, "max_length": 16}
    body = {"operator": "softmax", "dim": 8, "depth": 2, "heads": 2}
    head = {"outputs": 3, "pool": "cls"}
    model = create_model("itnet_nano", encoder=encoder, body=body, head=head).eval()
    short, long = torch.randint(1, 20, (1, 9)), torch.randint(1, 20, (1, 12))
    alone = model.trace(short)
    together = model.trace(torch.cat([nn.functional.pad(short, (0, 3)), long]))
    assert_close(
        class_attention(*together[-1])[:1, :10], class_attention(*alone[-1]), dtype=torch.float32
    )
    assert_close(rollout(together)[:1, :10], rollout(alone), dtype=torch.float32)
