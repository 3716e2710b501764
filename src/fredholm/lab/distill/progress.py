"""Progress of a conversion or a compression, in memory or in a folder from which it can resume."""

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

# Settings that the first format did not have, with the values that its conversions used.
ABSENT = {
    "sinks": 0,
    "keep": None,
    "store": 0,
    "state": True,
}


class Progress:
    """Results so far: numbers in ``progress.json`` and weights beside it, or in memory.

    Args:
        folder: of the conversion; None: in memory.
        settings: plain data that identify the conversion.
        resume: continue the conversion that the folder holds.

    Raises:
        OptionError: a folder that holds something else, or a conversion without ``resume``.
        RecipeError: the conversion to resume has other settings.
    """

    def __init__(
        self,
        folder: Path | None,
        settings: dict[str, Any],
        resume: bool,
    ):
        self.folder = folder
        self.done: dict[str, Any] = {}
        self.weights: dict[str, dict[str, Tensor]] = {}
        if folder is None:
            if resume:
                raise OptionError(
                    "folder: expected the one in which the conversion was begun beside "
                    "resume=True, got None; name it"
                )
            return

        # As they come back from the file, for the comparison.
        path = folder / "progress.json"
        settings = json.loads(json.dumps(settings))
        if path.is_file():
            saved = read_json(path)
            if not resume:
                raise OptionError(
                    f"{folder}: expected an empty folder, got one with a conversion; resume it "
                    "(resume=True, --resume), or choose another folder"
                )
            check_settings(folder, saved["settings"], settings)
            self.done = saved["done"]
        elif folder.is_dir() and any(folder.iterdir()):
            raise OptionError(
                f"{folder}: expected an empty folder or one with a conversion, got other files; "
                "choose another folder"
            )
        with storing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self.settings = settings
        self._write()

    def get(
        self,
        key: str,
        compute: Callable[[], Any],
        of: Any = None,
    ) -> Any:
        """Return a result of an earlier call, or compute and keep it.

        Args:
            key: name of the result.
            compute: returns plain data.
            of: plain data that the result depends on; if they have changed, it is computed again.
        """
        mark = f"{key} of"
        of = json.loads(json.dumps(of))
        # Results of earlier versions have no mark, and are taken to be of the same data.
        changed = of is not None and self.done.get(mark, of) != of
        if key not in self.done or changed:
            self.done[key] = compute()
            if of is not None:
                self.done[mark] = of
            self._write()
        return self.done[key]

    def keep(self, key: str, model: nn.Module) -> None:
        """Keep a copy of a model's weights."""
        state = {}
        for name, value in model.state_dict().items():
            state[name] = value.detach().cpu().clone()
        if self.folder is None:
            self.weights[key] = state
            return
        write_checkpoint(state, self.folder / f"{key}.pt")

    def restore(self, key: str, model: nn.Module) -> None:
        """Load the kept weights into a model.

        Raises:
            CheckpointError: their file is damaged.
        """
        if self.folder is None:
            state = self.weights[key]
        else:
            state = read_state(self.folder / f"{key}.pt")
        model.load_state_dict(state)

    def _write(self) -> None:
        if self.folder is not None:
            content = {"settings": self.settings, "done": self.done}
            write_json(self.folder / "progress.json", content)


def check_settings(
    folder: Path,
    before: dict[str, Any],
    settings: dict[str, Any],
) -> None:
    """Refuse to resume with settings other than ``before``, those in ``folder``.

    Raises:
        RecipeError: some of them differ, or are in only one of the two.
    """
    # An option that is left out now counts as well: without it another model would result.
    changed = []
    for key in sorted(before.keys() | settings.keys()):
        default = ABSENT.get(key)
        if before.get(key, default) != settings.get(key, default):
            changed.append(key)
    if changed:
        raise RecipeError(
            f"{folder}: expected the settings with which it was started, got others for "
            f"{', '.join(changed)}; give the same, or choose another folder"
        )


def digest_weights(model: nn.Module) -> str:
    """Return a hash of a model's weights."""
    tensors = {}
    for name, value in model.state_dict().items():
        if isinstance(value, Tensor):
            tensors[name] = value
    return digest_tensors(tensors)
