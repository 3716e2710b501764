"""``fredholm linearize``: folders of transformers, runs, and refusals."""

from __future__ import annotations

import pytest
import torch

from fredholm.convert import load_linearized
from fredholm.lab.cli.main import main
from fredholm.models import from_pretrained
from tests.lab.training.conftest import SMALL
from tests.linearize import models

pytest.importorskip("transformers")


def test_a_folder_of_transformers_is_converted(tmp_path, capsys):
    models.bert().save_pretrained(tmp_path / "bert")
    (tmp_path / "bert" / "tokenizer.json").write_text('{"as": "it is"}')
    out = tmp_path / "out"
    arguments = [
        "linearize",
        str(tmp_path / "bert"),
        "--out",
        str(out),
        "--to",
        "performer",
        "--option",
        "features=12",
    ]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "2 attention layers converted" in shown
    assert "nothing was trained; pass --data NAME" in shown
    assert load_linearized(out / "model")(**models.padded()).logits.isfinite().all()
    assert (out / "model" / "tokenizer.json").read_text() == '{"as": "it is"}'
    assert "2 attention layers converted" in (out / "model" / "README.md").read_text()
    assert main(["linearize", str(out / "model"), "--out", str(tmp_path / "twice")]) == 2
    assert "was converted already" in capsys.readouterr().err

    assert main(arguments) == 2
    assert "got one with a conversion" in capsys.readouterr().err
    for wrong, message in (
        (["--to", "hedgehod"], "did you mean 'hedgehog'"),
        (["--option", "features"], "KEY=VALUE"),
        (["--layer", "none.*"], "fits no attention"),
        (["--data", __file__], "expected the name of a data set, got the file"),
    ):
        assert (
            main(["linearize", str(tmp_path / "bert"), "--out", str(tmp_path / "other"), *wrong])
            == 2
        )
        assert message in capsys.readouterr().err
    for unread in (
        ["--samples", "8"],
        ["--max-length", "8"],
        ["--task", "regression"],
        ["--precision", "bf16"],
        ["--batch-size", "2"],
        ["--distil-lr", "0.1"],
        ["--match-steps", "3"],
        ["--lora", "2"],
        ["--epochs", "4"],
        ["--vary-window"],
    ):
        arguments = ["linearize", str(tmp_path / "bert"), "--out", str(tmp_path / "other"), *unread]
        assert main(arguments) == 2
        message = " ".join(capsys.readouterr().err.split())
        assert f"{unread[0]}: expected" in message
        assert "give --data" in message
    assert not (tmp_path / "other").exists()
    assert main(["linearize", str(tmp_path / "nowhere"), "--out", str(out)]) == 2
    assert "expected a folder with config.json" in capsys.readouterr().err


def test_a_run_is_converted_on_its_data(tmp_path, capsys):
    assert (
        main(
            [
                "train",
                "digits",
                *SMALL,
                "training.epochs=1",
                "schedule.warmup_epochs=0",
                "--runs",
                str(tmp_path),
            ]
        )
        == 0
    )
    run = str(tmp_path / "digits")
    out = tmp_path / "linear"
    stages = ["--samples", "64", "--distil-epochs", "1", "--epochs", "1", "--lr", "1e-4"]
    assert main(["linearize", run, "--to", "luna", "--out", str(out), *stages]) == 0
    shown = capsys.readouterr().out
    assert "accuracy: teacher" in shown
    assert "recovered" in shown
    converted = from_pretrained(out / "model")
    assert converted.config.body.operator == "luna"
    assert converted(torch.zeros(1, 1, 8, 8)).isfinite().all()
    assert main(["linearize", run, "--data", "digits", "--out", str(tmp_path / "x")]) == 2
    assert "expected none beside a run, which has its own data" in capsys.readouterr().err

    again = ["linearize", run, "--out", str(tmp_path / "x")]
    assert main([*again, "--max-length", "8"]) == 2
    assert "--max-length: expected a transformers model" in capsys.readouterr().err
    assert main([*again, "--match-lr", "1e-3"]) == 2
    assert "--match-lr: expected an epoch or more of the stage" in capsys.readouterr().err
    assert main([*again, "--distil-epochs", "0", "--epochs", "0", "--batch-size", "4"]) == 2
    assert "--batch-size: expected an epoch or more of the stage" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_flags_of_texts_are_refused_for_pictures(tmp_path, capsys):
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=8,
        intermediate_size=8,
        num_attention_heads=2,
        num_hidden_layers=1,
        image_size=8,
        patch_size=4,
        num_channels=1,
        num_labels=10,
    )
    ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    out = tmp_path / "out"
    arguments = ["linearize", str(tmp_path / "vit"), "--data", "digits", "--out", str(out)]
    assert main([*arguments, "--max-length", "8"]) == 2
    assert "--max-length: expected a transformers model" in capsys.readouterr().err
    assert not out.exists()


def test_a_model_without_a_head_is_named(tmp_path, capsys, monkeypatch):
    from transformers import BertModel

    from fredholm.lab.distill import sources
    from tests.lab.training.test_conversion import DATA

    BertModel(models.bert().config).save_pretrained(tmp_path / "bert")
    monkeypatch.setattr(sources, "_splits", lambda *arguments: DATA)
    out = tmp_path / "out"
    arguments = ["linearize", str(tmp_path / "bert"), "--data", "movie-reviews", "--out", str(out)]
    assert main(arguments) == 2
    shown = capsys.readouterr().err
    assert "BertModel: expected logits, got last_hidden_state, pooler_output" in shown
    assert "BertForSequenceClassification" in shown
    assert not out.exists()


def test_a_decoder_is_converted_with_a_decay(tmp_path, capsys):
    models.llama().save_pretrained(tmp_path / "llama")
    arguments = ["linearize", str(tmp_path / "llama"), "--out", str(tmp_path / "out")]
    arguments += ["--window", "4", "--decay", "token"]
    assert main(arguments) == 0
    assert "2 attention layers converted" in capsys.readouterr().out
    model = load_linearized(tmp_path / "out" / "model").eval()
    assert any(".decay." in name for name, _ in model.named_parameters())
    prompt = torch.tensor([[4, 2, 5]])
    text = model.generate(prompt, max_new_tokens=6, do_sample=False)
    logits = model(text[:, :-1]).logits
    assert torch.equal(logits[:, 2:].argmax(-1), text[:, 3:])

    arguments[-1] = "tokens"
    assert main([*arguments[:3], str(tmp_path / "other"), *arguments[4:]]) == 2
    assert "expected decay='head', 'token'" in capsys.readouterr().err
