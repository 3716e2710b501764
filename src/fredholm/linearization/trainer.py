"""transformers' Trainer with converted models.

This file imports transformers, and is imported when somebody asks for its class.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers

from ..errors import CheckpointError
from ..tensor_files import list_misfits, misfits, read_tensors
from .auto import WEIGHTS
from .description import FIX


class FredholmLinearTrainer(transformers.Trainer):
    """The library's, which also finds the weights of a converted model in its checkpoints: to go on
    from one, and for ``load_best_model_at_end``, where the library's own keeps the last ones.

    Of other trainers: ``class Mine(FredholmLinearTrainer, transformers.Seq2SeqTrainer)``.

    Raises:
        CheckpointError: weights in a checkpoint that are damaged or not the model's.
    """

    def _load_from_checkpoint(
        self,
        resume_from_checkpoint: str,
        model: Any = None,
    ) -> None:
        if not self._read(resume_from_checkpoint, model):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_best_model(self) -> None:
        if not self._read(self.state.best_model_checkpoint, None):
            super()._load_best_model()

    def _read(self, folder: Any, model: Any) -> bool:
        """Load the weights of a checkpoint of a converted model; return False for any other."""
        path = Path(folder) / WEIGHTS
        if self.is_deepspeed_enabled or self.is_fsdp_enabled or not path.is_file():
            return False
        if model is None:
            model = self.model
        read_into(model, path)
        return True


def read_into(model: Any, path: Path) -> None:
    """Load a file of :data:`WEIGHTS` into a model. It holds each tied weight once.

    Raises:
        CheckpointError: tensors that are damaged, missing, unknown or of other shapes.
    """
    tensors = read_tensors(path, FIX)
    own = model.state_dict(keep_vars=True)

    # A tied weight has several names in the model, one of which is in the file.
    given = {id(x) for name, x in own.items() if name in tensors}
    wanted = {}
    for name, x in own.items():
        if name in tensors or id(x) not in given:
            wanted[name] = x
    faults = misfits(wanted, tensors)
    if faults:
        raise CheckpointError(
            f"{path}: the weights do not fit {type(model).__name__} ({list_misfits(faults)}); "
            "the checkpoint is of another model"
        )
    model.load_state_dict(tensors, strict=False)
