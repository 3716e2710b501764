"""Groups of heads with softmax: ranked by a retrieval probe, listed in the report."""

from __future__ import annotations

import json

import pytest
import torch

from fredholm import linearize
from fredholm.convert import ConversionReport, replace_attention
from fredholm.errors import DataError, OptionError, RecipeError
from fredholm.lab.cli.main import main
from fredholm.lab.distill.receipt import Documents, recall
from fredholm.lab.distill.retrieval import Retrieval, _samples, best_groups, rank_groups

from .test_decoder_conversion import OFF, TEXTS, Letters, llama

pytest.importorskip("transformers")

SMALL = {"samples": 2, "distance": 60}
PLAIN = {"to": "hedgehog", "window": 4, "tune": OFF}


def retrieval(**options) -> Retrieval:
    return Retrieval(TEXTS, Letters(), **{**SMALL, **options})


def test_samples_end_in_the_hidden_number():
    samples = _samples(retrieval(), torch.Generator().manual_seed(0))
    assert len(samples) == 4
    kinds = set()
    for tokens, queries, keys in samples:
        text = bytes(tokens.tolist()).decode()
        number = text[-5:]
        assert number.isdigit()
        assert text.count(number) == 2
        assert bytes(tokens[keys].tolist()).decode().strip() == number
        assert tokens[queries + 1].equal(tokens[keys])
        assert int(queries[-1]) == len(tokens) - 2
        kinds.add(text.startswith("The pass key is"))
    assert kinds == {True, False}


@torch.no_grad()
def test_a_group_has_the_mass_of_its_best_head():
    """The reference is the teacher's attention."""
    teacher = llama()
    teacher.set_attn_implementation("eager")
    ranking = rank_groups(replace_attention(llama(), "hedgehog", window=4), retrieval())
    samples = _samples(retrieval(), torch.Generator().manual_seed(0))
    found = torch.zeros(2, 4)
    for tokens, queries, keys in samples:
        shares = teacher(tokens[None], output_attentions=True).attentions
        for layer, share in enumerate(shares):
            found[layer] += share[0][:, queries, keys].mean(-1) / len(samples)
    expected = found.view(2, 2, 2).amax(-1)
    masses = torch.tensor([row["mass"] for row in ranking])
    torch.testing.assert_close(
        masses, expected.flatten().sort(descending=True).values, atol=1e-5, rtol=0
    )
    for row in ranking:
        layer, group = map(int, row["group"].split("."))
        assert row["mass"] == pytest.approx(float(expected[layer, group]), abs=1e-5)


def test_the_best_groups_keep_softmax_and_the_report_has_the_ranking(tmp_path):
    given = PLAIN | {"keep": 2, "retrieval": retrieval(), "folder": tmp_path / "out"}
    result = linearize(llama(), **given)
    ranking = result.report.ranking
    assert len(ranking) == 4
    named = {row["group"] for row in ranking[:2]}
    kept = {
        f"{int(name.split('.')[2])}.{group}"
        for name, groups in result.replaced.keep.items()
        for group in groups
    }
    whole = [name for name, why in result.replaced.refused.items() if why.startswith("keep")]
    kept |= {f"{int(name.split('.')[2])}.{group}" for name in whole for group in range(2)}
    assert kept == named
    saved = json.loads((tmp_path / "out" / "model" / "conversion.json").read_text())
    assert saved["ranking"] == ranking
    assert "groups by their mass on what is to be retrieved" in str(
        ConversionReport.from_dict(saved)
    )
    again = linearize(llama(), **given, resume=True)
    assert again.report.ranking == ranking
    with pytest.raises(RecipeError, match="got others for keep"):
        linearize(llama(), **given | {"keep": 1}, resume=True)


@pytest.mark.parametrize("keep", [None, "0.1"])
def test_the_ranking_does_not_depend_on_the_kept_groups(keep):
    expected = linearize(llama(), **PLAIN, keep=2, retrieval=retrieval()).report.ranking
    result = linearize(llama(), **PLAIN, keep=keep, retrieval=retrieval())
    assert result.report.ranking == expected
    assert list(result.replaced.keep.values()) == ([] if keep is None else [(1,)])


def test_unsupported_rankings_are_refused():
    ranking = [{"group": "0.0", "mass": 0.01}]
    for wrong in (0, 2, "1", "proeb"):
        with pytest.raises(OptionError, match="keep: expected 1 to 1 groups"):
            best_groups(ranking, wrong)
    with pytest.raises(OptionError, match="expected groups that retrieve, got none"):
        best_groups(ranking, "probe")
    with pytest.raises(OptionError, match="expected texts on which groups of heads are ranked"):
        linearize(llama(), **PLAIN, keep=2)
    with pytest.raises(OptionError, match=r"expected keep as groups .* \(layer\.group\), got 2"):
        replace_attention(llama(), "hedgehog", keep=2)
    replaced = replace_attention(llama(), "hedgehog", window=4)
    with pytest.raises(DataError, match="more than 5000 tokens for the probe"):
        rank_groups(replaced, retrieval(distance=5000))
    with pytest.raises(OptionError, match="positions for the probe's"):
        rank_groups(replaced, retrieval(distance=800))

    class Drifting(Letters):
        """A tokenizer whose numbers depend on their position."""

        def __call__(self, texts):
            rows = [[(x + i) % 128 for i, x in enumerate(text.encode())] for text in texts]
            return {"input_ids": rows}

    with pytest.raises(DataError, match="expected a tokenizer with a vocabulary of digits"):
        rank_groups(replaced, Retrieval(TEXTS, Drifting(), **SMALL))

    class Words(Letters):
        """A tokenizer with one unknown token for all digits."""

        def __call__(self, texts):
            rows = [[0 if 48 <= x < 58 else x for x in text.encode()] for text in texts]
            return {"input_ids": rows}

    with pytest.raises(DataError, match="reads different digits as the same tokens"):
        rank_groups(replaced, Retrieval(TEXTS, Words(), **SMALL))
    documents = Documents({"seen": TEXTS}, Words(), distances=(8,))
    lines = []
    tokens = [torch.tensor(x) for x in Words()(TEXTS)["input_ids"]]
    assert recall({"teacher": llama()}, tokens, documents, 512, say=lines.append) == []
    assert "the tokenizer does not tell digits apart" in lines[0]


def test_the_command_selects_groups_by_name(tmp_path, capsys):
    llama().save_pretrained(tmp_path / "llama")
    command = ["linearize", str(tmp_path / "llama"), "--to", "hedgehog", "--out"]
    assert main([*command, str(tmp_path / "out"), "--keep", "0.1,1.0", "--window", "4"]) == 0
    assert "groups of heads that keep softmax on all tokens: 2" in capsys.readouterr().out
    assert main([*command, str(tmp_path / "other"), "--keep", "12"]) == 2
    assert "--keep: expected a language model that learns from texts" in capsys.readouterr().err
    assert main([*command, str(tmp_path / "other"), "--probe"]) == 2
    assert "--probe: expected a language model that learns from texts" in capsys.readouterr().err
    assert main([*command, str(tmp_path / "other"), "--needles", "3"]) == 2
    assert "--needles: expected a language model that learns from texts" in capsys.readouterr().err
    assert main([*command, str(tmp_path / "third"), "--keep", "7.0"]) == 2
    assert "expected keep as layer.group among 0.0" in capsys.readouterr().err
