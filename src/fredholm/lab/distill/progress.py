"""What a conversion or a compression has done, in memory or in a folder from which it can go on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ...errors import OptionError, RecipeError
from ...files import read_state as read_json
from ...files import storing, write_json
from ...tensor_files import digest_tensors
from ..training.checkpoints import read_state, write_checkpoint

# Settings that joined the first format, and what its conversions did.
ABSENT = {"sinks": 0, "keep": None, "store": 0, "state": True}


class Progress:
    """What a conversion has done: numbers in ``progress.json`` and weights beside it, or in memory
    without a folder.
    """

    def __init__(self, folder: Path | None, settings: dict[str, Any], resume: bool):
        self.folder, self.done, self.weights = folder, {}, {}
        if folder is None:
            if resume:
                raise OptionError("resume=True needs the folder in which the conversion was begun")
            return
        path = folder / "progress.json"
        settings = json.loads(json.dumps(settings))
        if path.is_file():
            saved = read_json(path)
            if not resume:
                raise OptionError(
                    f"{folder}: holds a conversion; pass resume=True to go on, or choose another "
                    "folder"
                )
            check_settings(folder, saved["settings"], settings)
            self.done = saved["done"]
        elif folder.is_dir() and any(folder.iterdir()):
            raise OptionError(f"{folder}: exists and holds no conversion; choose another folder")
        with storing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self.settings = settings
        self._write()

    def get(self, key: str, compute: Callable[[], Any], of: Any = None) -> Any:
        """A number of an earlier call, or computed now and kept: where it was computed ``of``
        something else, and says so, anew.
        """
        mark = {} if of is None else {f"{key} of": json.loads(json.dumps(of))}
        changed = any(self.done.get(name, value) != value for name, value in mark.items())
        if key not in self.done or changed:
            self.done |= {key: compute(), **mark}
            self._write()
        return self.done[key]

    def keep(self, key: str, model: nn.Module) -> None:
        """Keep a model's weights."""
        state = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
        if self.folder is None:
            self.weights[key] = state
            return
        write_checkpoint(state, self.folder / f"{key}.pt")

    def restore(self, key: str, model: nn.Module) -> None:
        """Give a model the weights kept; CheckpointError where their file is damaged."""
        folder = self.folder
        state = self.weights[key] if folder is None else read_state(folder / f"{key}.pt")
        model.load_state_dict(state)

    def _write(self) -> None:
        if self.folder is not None:
            write_json(
                self.folder / "progress.json", {"settings": self.settings, "done": self.done}
            )


def check_settings(folder: Path, before: dict[str, Any], settings: dict[str, Any]) -> None:
    """Go on only with what was begun.

    Raises:
        RecipeError: ``before``, the settings that were kept in ``folder``, are others.
    """
    known = ABSENT | before
    changed = sorted(key for key in settings if known.get(key) != settings[key])
    if changed:
        raise RecipeError(
            f"{folder}: was started otherwise; it differs in {', '.join(changed)}; give the same, "
            "or choose another folder"
        )


def digest_weights(model: nn.Module) -> str:
    """What tells one model from another of the same class."""
    state = model.state_dict().items()
    return digest_tensors({name: value for name, value in state if isinstance(value, Tensor)})
