"""InfViT: the paper's sizes, depth rules, resolutions, and memory with chunks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fredholm.errors import OptionError
from fredholm.models import count, create_model, from_pretrained, list_models
from fredholm.models.depth import Accumulation
from tests.parts import parts

from ..tolerances import assert_close

NAMES = ("linear", "pure", "softmax")
# Table 3, in millions.
PUBLISHED = {
    "linear_53m": 53.5,
    "pure_57m": 57.7,
    "softmax_57m": 57.7,
    "linear_305m": 305.4,
    "pure_330m": 330.6,
}


def small(kind="linear", **options):
    """Return a model of two layers for 28x28 images, with an initialised head."""
    torch.manual_seed(0)
    sizes = {"image_size": (28, 28), "dim": 16, "depth": 2, "heads": 4, "num_classes": 3}
    model = create_model(f"infvit_{kind}_pico", **parts(**{**sizes, **options}))
    torch.nn.init.normal_(model.head.weight)
    return model.double()


def images(*size):
    return torch.randn(2, 1, *(size or (28, 28)), dtype=torch.float64)


def test_presets_are_listed_by_name():
    sizes = [f"infvit_{kind}_{size}" for kind in NAMES for size in ("4", "24", "pico")]
    published = [f"infvit_{name}" for name in PUBLISHED]
    assert set(list_models("infvit_*")) == {*sizes, *published}


# Table 2's millions of parameters match a width of 1024 and one more square layer with bias per
# block and one in total.
@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("infvit_linear_4", 53.5), ("infvit_pure_4", 57.7), ("infvit_softmax_4", 57.7),
        ("infvit_linear_24", 305.4), ("infvit_pure_24", 330.6), ("infvit_softmax_24", 330.6),
    ],
)  # fmt: skip
def test_parameter_counts_match_the_paper(name, millions):
    with torch.device("meta"):
        model = create_model(name, **parts(dim=1024))
        text = create_model(name)
    square = 1024 * 1024 + 1024
    found = sum(p.numel() for p in model.parameters()) + (model.config.body.depth + 1) * square
    assert found / 1e6 == pytest.approx(millions, abs=0.06), "its rounding and a norm or two"
    assert text.config.body.dim == 768, "64 heads of 12"
    assert text.config.body.heads == (64 if name == "infvit_linear_4" else 16)


@pytest.mark.parametrize(("name", "millions"), [("infvit_linear_4", 53.5), ("infvit_pure_4", 57.7)])
def test_the_texts_width_has_fewer_parameters_than_the_table(name, millions):
    with torch.device("meta"):
        model = create_model(name)
    assert model.config.body.dim == 768
    assert sum(p.numel() for p in model.parameters()) < 0.65e6 * millions


def test_no_reading_of_the_sizes_costs_the_published_operations():
    """59 GFLOPs at 224 x 224 match neither the text's width nor that of Table 2's counts."""
    for width, billions in ((768, 8.7), (1024, 15.3)):
        with torch.device("meta"):
            model = create_model("infvit_linear_4", **parts(dim=width))
        assert round(count(model, (1, 3, 224, 224))[1] / 1e9, 1) == billions


def test_the_published_operations_cross_those_of_vit_b_far_above_512_pixels():
    """At 224 x 224 the paper has 59 GFLOPs for its linear model and 17.5 for ViT-B/16.

    It states that the order reverses beyond about 512. Growth in proportion to the tokens reaches
    ViT-B/16 only beyond 1,700.
    """

    def vit_b(size: int) -> float:
        """Return the billions of multiply-adds of 12 blocks of width 768, the table's unit."""
        tokens = (size // 16) ** 2 + 1
        return 12 * (12 * tokens * 768**2 + 2 * tokens**2 * 768) / 1e9

    def linear(size: int) -> float:
        return 59 * (size / 224) ** 2

    assert vit_b(224) == pytest.approx(17.5, abs=0.2)
    assert linear(512) > 2.5 * vit_b(512)
    crossed = next(size for size in range(224, 4096, 16) if vit_b(size) > linear(size))
    assert 1_700 < crossed < 1_750


def test_our_linear_model_has_fewer_operations_than_softmax_from_the_start():
    for size in (224, 512):
        counts = {}
        for kind in ("linear", "softmax"):
            with torch.device("meta"):
                model = create_model(f"infvit_{kind}_4", **parts(image_size=(size, size)))
            counts[kind] = count(model, (1, 3, size, size))[1]
        assert counts["linear"] < counts["softmax"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_parameter_counts(name):
    with torch.device("meta"):
        model = create_model(f"infvit_{name}")
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) == PUBLISHED[name]


@pytest.mark.parametrize("name", sorted(list_models("infvit_*")))
def test_every_preset_has_the_biases_of_softmax_and_an_ordinary_class_token(name):
    with torch.device("meta"):
        model: Any = create_model(name)
    kernel = model.body.blocks[0].operator.kernel
    parts = ("query", "value") if "linear" in name else ("query", "key", "value")  # tied keys
    assert all(getattr(kernel, part).bias is not None for part in parts)
    assert model.encoder.token_kind == "ordinary"
    domain = model.encoder.domain(torch.empty(1, *model.config.input_shape))
    assert domain.kind == "uniform"


@pytest.mark.parametrize("kind", ["linear", "pure"])
def test_block_l_adds_the_lth_power_of_the_decay(kind):
    model = small(kind, decay=0.5, depth=3)
    assert [block.operator.kernel.power for block in model.body.blocks] == [1, 2, 3]
    assert [block.operator.kernel.gamma for block in model.body.blocks] == [0.5] * 3
    seen = model.trace(images())
    for power, (operator, u, domain) in enumerate(seen, 1):
        one = type(operator)(16, 4, decay=0.5, bias=True).double()
        one.load_state_dict(operator.state_dict())
        bias = operator.projection.bias
        assert_close(operator(u, domain) - bias, 0.5 ** (power - 1) * (one(u, domain) - bias))
    constant = small(kind, depth_rule="constant", learned_decay=True)
    assert [block.operator.kernel.power for block in constant.body.blocks] == [1, 1]
    assert all(block.operator.kernel.decay_logit.requires_grad for block in constant.body.blocks)


@pytest.mark.parametrize("kind", NAMES)
def test_the_accumulated_rule_reads_the_class_from_the_decayed_sum(kind):
    model = small(kind, depth_rule="accumulated", decay=0.6).eval()
    x = images()
    tokens, domain = model.encoder(x)
    stream = tokens
    total = 0
    stack = model.body.stack
    assert isinstance(stack, Accumulation)
    for layer, operator in enumerate(stack.operators):
        part = 0.6 ** (layer + 1) * operator(stack.norms[layer](stream), domain)
        stream, total = stream + part, total + part
        stream = stream + stack.networks[layer](stack.network_norms[layer](stream))
    assert_close(model(x), model.head(model.body.norm(total)[:, 0]))
    assert [operator for operator, _, _ in model.trace(x)] == model.body.operators
    model(x).sum().backward()
    unused = [n for n, p in model.named_parameters() if p.grad is None]
    last = len(stack.operators) - 1  # what follows the last response is not read
    assert all(f"networks.{last}." in n or f"network_norms.{last}." in n for n in unused)


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("positions", ["learned", "fourier"])
def test_every_resolution_divisible_by_the_patch_works(kind, positions):
    model = small(kind, positions=positions)
    for size in ((28, 28), (42, 14), (7, 7)):
        assert model(images(*size)).isfinite().all()
    model(images()).square().sum().backward()
    assert [
        n for n, p in model.named_parameters() if p.grad is None or p.grad.abs().max() == 0
    ] == []


@pytest.mark.parametrize("rule", ["power", "accumulated"])
def test_chunks_change_no_output_and_no_gradient(rule):
    x = images()
    answers = []
    for chunk in (None, 5):
        model = small(chunk=chunk, depth_rule=rule)
        answer = model(x)
        gradients = torch.autograd.grad(
            answer.square().sum(), list(model.parameters()), allow_unused=True
        )
        with torch.no_grad():
            assert_close(model(x), answer.detach())
        answers.append((answer, *(g for g in gradients if g is not None)))
    for one, other in zip(*answers):
        assert_close(one, other)


def test_chunks_bound_the_saved_hidden_units():
    def kept(chunk):
        network = small(chunk=chunk, mlp_ratio=8.0).body.blocks[0].feed_forward
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: sizes.append(t.numel()) or t, lambda t: t
        ):
            network(torch.randn(1, 400, 16, dtype=torch.float64, requires_grad=True))
        return max(sizes)

    assert kept(None) == 400 * 16 * 8
    assert kept(20) <= 16 * 16 * 8, "the weights themselves"


def test_a_saved_model_loads_with_overrides(tmp_path):
    model = small("pure", operator_options={"activation": "abs"}, positions="fourier").eval()
    model.save_pretrained(tmp_path)
    x = images()
    again = from_pretrained(tmp_path, overrides={"body": {"chunk": 3}})
    assert again.config.body.chunk == 3
    assert_close(again(x), model(x))


def test_biases_norms_and_tokens_have_no_weight_decay():
    model = small()
    decayed = {id(p) for p in model.weight_decay_groups(0.1)[0]["params"]}
    free = [n for n, p in model.named_parameters() if id(p) not in decayed]
    assert {"encoder.table", "encoder.token", "body.norm.weight", "head.bias"} <= set(free)
    assert all("table" in n or "token" in n or "norm" in n or "bias" in n for n in free)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth_rule": "powers"}, "did you mean 'power'"),
        ({"decay": 1.0}, r"decay γ in \(0, 1\), got 1.0"),
        ({"chunk": 0}, "chunk: expected 1 token or more"),
        ({"heads": 5}, "expected heads that divide dim=16, got heads=5"),
        ({"patch": 5}, "expected a patch that divides the image of 28x28, got 5x5"),
        ({"operator_options": {"decay": 0.3}}, "give body.decay"),
        ({"operator_options": {"activaton": "abs"}}, "did you mean 'activation'"),
        ({"operator": "infssa"}, "did you mean 'infsa'"),
        ({"positions": "sine"}, "positions: expected a known name, got 'sine'"),
        ({"pool": "max"}, "head.pool: expected one of .*, got 'max'"),
        ({"depth": 0}, "depth: expected a positive integer, got 0"),
        ({"dropout": 1.0}, "a rate in"),
        ({"mlp_ratio": -1}, "mlp_ratio: expected a number.*, got -1"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        small(**options)
