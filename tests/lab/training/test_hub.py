"""A run as a repository of the Hugging Face hub; nothing here opens a connection."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fredholm.errors import CheckpointError, OptionError
from fredholm.training import hub_folder, load_run, push_to_hub, unpack_pretrained


@pytest.fixture
def run(tmp_path) -> Path:
    return unpack_pretrained("digits", tmp_path)


def test_a_pushed_run_loads_again(run, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    (run / "checkpoints").mkdir()
    (run / "model-onnx.onnx").write_text("a program")
    sent: dict[str, Any] = {}

    class Api:
        def __init__(self, token=None):
            sent["token"] = token

        def create_repo(self, repo_id, private, exist_ok):
            sent["private"] = private
            return type("Url", (), {"repo_id": repo_id})

        def upload_folder(self, repo_id, folder_path, **options):
            sent.update(repo_id=repo_id, **options)
            shutil.copytree(folder_path, tmp_path / "downloaded")

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    push_to_hub(run, "me/digits", private=True, token="mine", commit_message="first")
    assert sent == {
        "token": "mine",
        "private": True,
        "repo_id": "me/digits",
        "commit_message": "first",
    }
    again, _ = load_run(tmp_path / "downloaded")
    pictures = torch.rand(2, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(again(pictures), load_run(run)[0](pictures))
    names = {path.name for path in (tmp_path / "downloaded").iterdir()}
    assert names >= {"README.md", "recipe.yaml", "result.json", "calibration.json"}
    assert not names & {"checkpoints", "model-onnx.onnx"}
    card = (tmp_path / "downloaded" / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: fredholm\n")
    assert 'snapshot_download("me/digits")' in card
    assert "| test_accuracy | 0.9777 |" in card
    assert "standardised numbers" not in card


def test_an_unfinished_run_is_refused_without_writing(run, tmp_path):
    (run / "result.json").unlink()
    with pytest.raises(CheckpointError, match="expected a finished run, got none"):
        hub_folder(run, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_a_folder_that_exists_is_refused(run, tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OptionError, match="expected a new folder, got one that exists"):
        hub_folder(run, tmp_path / "folder")
