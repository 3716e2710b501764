"""Lightning's strategies for several processes; with ``fsdp2`` each holds its part of weights and
optimizer state, and checkpoints are those of one process all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map

from .processes import Group, timeout


def make_strategy(name: str, group: Group) -> Strategy | str:
    """The strategy of a Trainer: ``auto`` for one process, and of several ``ddp`` unless ``fsdp2``
    is asked for.
    """
    if group.size == 1:
        return "auto"
    given: dict[str, Any] = {"timeout": timeout()}
    if name == "fsdp2":
        return ShardedStrategy(data_parallel_size=group.size, tensor_parallel_size=1, **given)
    return DDPStrategy(**given)


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """Split the parameters of ``model`` over the processes: layer by layer, so that one layer at a
    time is whole.
    """
    for layer in getattr(getattr(model, "body", model), "blocks", ()):
        if any(not isinstance(parameter, DTensor) for parameter in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    # The rest too: averaged weights are exchanged between forwards, when no part may be whole.
    fully_shard(model, mesh=mesh, reshard_after_forward=True)


def is_sharded(model: nn.Module) -> bool:
    """Whether :func:`shard` has split the model."""
    return isinstance(model, FSDPModule)


def whole(state: Any) -> Any:
    """``state`` with the tensors that are split over processes put together in rank 0, which
    writes; all processes call it, and the others keep nothing of them.
    """

    def gather(x: Any) -> Any:
        if not isinstance(x, DTensor):
            return x
        full = x.full_tensor()
        return full if dist.get_rank() == 0 else full.new_empty(0)

    return tree_map(gather, state)


def split_like(value: Tensor, place: Tensor) -> Tensor:
    """A whole tensor as ``place`` is split."""
    if not isinstance(place, DTensor) or isinstance(value, DTensor):
        return value
    return distribute_tensor(value.to(place.device), place.device_mesh, place.placements)


def load_whole(module: nn.Module, state: Mapping[str, Tensor], strict: bool = True) -> None:
    """Load whole tensors into a module that may be split."""
    mine = module.state_dict()
    module.load_state_dict(
        {
            name: split_like(value, mine[name]) if name in mine else value
            for name, value in state.items()
        },
        strict=strict,
    )


class ShardedStrategy(ModelParallelStrategy):
    """Fully sharded training whose checkpoints are one file with whole tensors: any number of
    processes, with any strategy, goes on from it.
    """

    def lightning_module_state_dict(self) -> dict[str, Any]:
        return whole(self._module.state_dict())

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        return whole(getattr(optimizer, "optimizer", optimizer).state_dict())

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        Strategy.save_checkpoint(self, checkpoint, filepath, storage_options)

    def load_checkpoint(
        self, checkpoint_path: Any, weights_only: bool | None = None
    ) -> dict[str, Any]:
        return Strategy.load_checkpoint(self, checkpoint_path, weights_only)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        load_whole(self._module, checkpoint["state_dict"], strict)

    @property
    def lightning_restore_optimizer(self) -> bool:
        return True

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            places = [p for group in optimizer.param_groups for p in group["params"]]
            parts = {
                number: {
                    key: split_like(value, places[number])
                    if isinstance(value, Tensor) and value.shape == places[number].shape
                    else value
                    for key, value in values.items()
                }
                for number, values in state["state"].items()
            }
            optimizer.load_state_dict({**state, "state": parts})

    @property
    def _module(self) -> pl.LightningModule:
        assert self.lightning_module is not None
        return self.lightning_module
