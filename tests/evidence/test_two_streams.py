"""A picture and a text in separate streams, with either fusion."""

from __future__ import annotations

import pytest
import torch
from evidence.itnet.two_streams import CrossBlock, TwoStreamsBody
from torch import Tensor, nn

from fredholm.domain import Domain
from fredholm.encoders import Inputs
from fredholm.errors import OptionError, ShapeError
from fredholm.models import Model, create_model, from_pretrained, save_pretrained
from fredholm.operators import create_operator

from ..tolerances import assert_close

TOKENS = torch.tensor([[3, 4, 0], [5, 6, 7]])
ENCODER = {
    "kind": "multimodal",
    "image_size": 8,
    "channels": 1,
    "patch": 4,
    "vocabulary": 9,
    "max_length": 6,
    "frequencies": 4,
}
BODY = {"kind": "two_streams", "dim": 8, "depth": 2, "heads": 2, "mlp_ratio": 2.0, "dropout": 0.0}


def pair(**changed: Tensor) -> Inputs:
    torch.manual_seed(1)
    return Inputs(**{"image": torch.rand(2, 1, 8, 8), "tokens": TOKENS} | changed)


def make(pool: str = "mean", operator: str = "itnet", **body) -> Model:
    torch.manual_seed(0)
    model = create_model(
        "itnet_nano",
        encoder=ENCODER,
        body=BODY | {"operator": operator, **body},
        head={"kind": "mlp", "hidden": 6, "outputs": 5, "pool": pool},
    ).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize("fusion", ["cross", "concatenation"])
def test_a_layer_equals_its_formula(fusion):
    """The reference combines the operators' dense forms on the domain of each stream."""
    torch.manual_seed(0)
    body = TwoStreamsBody(
        lambda block: create_operator("itnet", 8, 2, width=4, position_dim=2),
        8,
        depth=1,
        first=4,
        fusion=fusion,
        ratio=2.0,
    ).double()
    for parameter in body.parameters():
        nn.init.normal_(parameter, std=0.3)
    x, u = torch.rand(7, 2).double(), torch.randn(2, 7, 8).double()
    at_p, at_t = Domain.points(x[:4]), Domain.points(x[4:])
    whole = Domain.join(at_p, at_t, balance=(0.8, 0.2))
    p, t = u[:, :4], u[:, 4:]
    own_p, own_t = body.picture.own[0], body.text.own[0]
    p = p + own_p.operator.dense(own_p.norm1(p), at_p)
    t = t + own_t.operator.dense(own_t.norm1(t), at_t)
    if fusion == "cross":
        of_p, of_t = body.picture.other[0], body.text.other[0]
        p, t = (
            p
            + of_p.operator.dense(
                of_p.norm_source(t), at_t, query=of_p.norm1(p), query_domain=at_p
            ),
            t
            + of_t.operator.dense(
                of_t.norm_source(p), at_p, query=of_t.norm1(t), query_domain=at_t
            ),
        )
    else:
        of_p, of_t = own_p, own_t
    p = p + of_p.feed_forward(of_p.norm2(p))
    t = t + of_t.feed_forward(of_t.norm2(t))
    expected = torch.cat([body.picture.read_out(p), body.text.read_out(t)], 1)
    result, domain = body(u, whole)
    assert_close(result, expected)
    assert domain is whole


def test_gradients_of_a_cross_block_pass_gradcheck():
    torch.manual_seed(0)
    block = CrossBlock(create_operator("softmax", 4, 2), 4, ratio=2.0).double()
    here, there = Domain.line(3), Domain.line(2)
    u, s = (torch.randn(1, n, 4, dtype=torch.float64, requires_grad=True) for n in (3, 2))
    assert torch.autograd.gradcheck(
        lambda u, s: block(u, here, source=s, source_domain=there), (u, s)
    )


def test_concatenation_mixes_the_streams_only_in_the_read_out():
    model = make(fusion="concatenation")
    features, domain = model.features(pair())
    other, _ = model.features(pair(tokens=torch.tensor([[1, 1, 0], [2, 2, 2]])))
    assert other[:, :4].equal(features[:, :4])
    assert (other[:, 4:] - features[:, 4:]).abs().max() > 1e-3
    dark, _ = model.features(pair(image=torch.zeros(2, 1, 8, 8)))
    assert dark[:, 4:].equal(features[:, 4:])
    # The balanced mean of both is half the sum of their means.
    valid = TOKENS != 0
    p = features[:, :4].mean(1)
    t = (features[:, 4:] * valid[..., None]).sum(1) / valid.sum(1, keepdim=True)
    first = model.head[0]
    beside = torch.cat([p, t], 1) @ torch.cat([first.weight, first.weight], 1).T / 2 + first.bias
    assert_close(model(pair()), model.head[2](beside.relu()), dtype=torch.float32)
    assert domain.size == 7


@pytest.mark.parametrize("pool", ["cls", "mean"])
@pytest.mark.parametrize("operator", ["itnet", "softmax", "luna"])
@pytest.mark.parametrize("joint", [True, False])
def test_outputs_depend_on_both_modalities_and_not_on_padding(joint, operator, pool):
    """One stream on a joint domain, and two streams with cross attention."""
    body: dict = {"kind": "residual"} if joint else {"fusion": "cross"}
    model = make(pool, operator, **body)
    logits = model(pair())
    longer = model(pair(tokens=nn.functional.pad(TOKENS, (0, 2))))
    assert_close(longer, logits, dtype=torch.float32)
    other = model(pair(tokens=torch.tensor([[3, 5, 0], [5, 6, 7]])))
    assert (other[0] - logits[0]).abs().max() > 1e-4
    assert_close(other[1], logits[1], dtype=torch.float32)
    dark = pair()["image"].clone()
    dark[1] = 0
    assert (model(pair(image=dark))[1] - logits[1]).abs().max() > 1e-4


def test_the_streams_share_no_weights():
    joint = create_model("itnet_nano", encoder=ENCODER, body={**BODY, "kind": "residual"}).body
    sizes = [
        sum(p.numel() for p in body.parameters())
        for body in (joint, make(fusion="concatenation").body, make(fusion="cross").body)
    ]
    assert 2 * sizes[0] - 100 < sizes[1] < sizes[2]
    body = make(fusion="cross").body
    assert body.layer_names == ["picture 1", "text 1", "picture 2", "text 2"]
    assert len({id(p) for p in body.parameters()}) == len(list(body.parameters()))


def test_unsupported_options_and_inputs_are_refused():
    with pytest.raises(OptionError, match=r"would read the picture only; choose head\.pool=mean"):
        make("cls", fusion="concatenation")
    with pytest.raises(OptionError, match="did you mean 'cross'"):
        make(fusion="kross")
    with pytest.raises(OptionError, match="for the body 'two_streams', got 'image'"):
        create_model("itnet_nano", body={"kind": "two_streams"})
    with pytest.raises(OptionError, match="at other points beside 'cross', got 'infsa'"):
        make(fusion="cross", operator="infsa")
    assert make(fusion="concatenation", operator="infsa")(pair()).shape == (2, 5)
    with pytest.raises(ShapeError, match="expected 8 x 8 pixels, for which this body was built"):
        make(fusion="cross")(pair(image=torch.rand(2, 1, 8, 12)))


@pytest.mark.parametrize("fusion", ["cross", "concatenation"])
def test_a_model_can_be_saved_trained_in_bfloat16_and_traced(fusion, tmp_path):
    model = make(fusion=fusion)
    again = from_pretrained(save_pretrained(model, tmp_path / "model")).eval()
    assert again(pair()).equal(model(pair()))
    with pytest.raises(ShapeError, match="8 x 8 pixels"):
        again(pair(image=torch.rand(2, 1, 12, 8)))
    seen = model.trace(pair())
    assert [u.shape[1] for _, u, _ in seen] == [4, 3, 4, 3]
    assert [operator for operator, _, _ in seen] == model.body.operators
    with torch.autocast("cpu", torch.bfloat16):
        rough = model(pair())
    assert_close(rough.float(), model(pair()), dtype=torch.bfloat16)
    model.train()(pair()).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.body.parameters())


def test_blocks_accept_separate_options_and_drop_rates():
    model = make(fusion="cross", operator_options={"width": {"blocks": [4, 6]}}, drop_path=0.4)
    stream = model.body.text
    assert [block.operator.kernel.width for block in stream.own] == [4, 6]
    assert [block.drop_path.rate for block in stream.other] == [0.0, 0.4]
