"""Lightning strategies for several processes.

With ``fsdp2`` each process holds a part of the weights and of the optimizer's state. Checkpoints
hold complete tensors all the same, as those of a single process do.
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
    """Make the strategy of a Trainer.

    It is ``auto`` for one process, and for several ``ddp`` unless ``fsdp2`` is asked for.
    """
    if group.size == 1:
        return "auto"
    if name == "fsdp2":
        return ShardedStrategy(
            data_parallel_size=group.size,
            tensor_parallel_size=1,
            timeout=timeout(),
        )
    return DDPStrategy(timeout=timeout())


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """Shard the parameters of ``model`` over the processes, layer by layer.

    During a forward, only one layer at a time is gathered in full.
    """
    body = getattr(model, "body", model)
    for layer in getattr(body, "blocks", ()):
        parameters = layer.parameters()
        is_complete = any(not isinstance(parameter, DTensor) for parameter in parameters)
        if is_complete:
            fully_shard(layer, mesh=mesh)

    # Parameters outside the layers are sharded again after each forward. Averaged weights are
    # swapped in between forwards, when every parameter has to be a shard.
    fully_shard(model, mesh=mesh, reshard_after_forward=True)


def is_sharded(model: nn.Module) -> bool:
    """Tell whether :func:`shard` has sharded the model."""
    return isinstance(model, FSDPModule)


def gather_full(state: Any) -> Any:
    """Gather the sharded tensors of ``state`` in rank 0, which writes checkpoints.

    All processes have to call it. The other ranks get empty tensors in their place.
    """

    def gather(x: Any) -> Any:
        if not isinstance(x, DTensor):
            return x
        full = x.full_tensor()
        if dist.get_rank() == 0:
            return full
        return full.new_empty(0)

    return tree_map(gather, state)


def shard_like(value: Tensor, target: Tensor) -> Tensor:
    """Shard a complete tensor as ``target`` is sharded, if it is."""
    if not isinstance(target, DTensor) or isinstance(value, DTensor):
        return value
    value = value.to(target.device)
    return distribute_tensor(value, target.device_mesh, target.placements)


def load_full(module: nn.Module, state: Mapping[str, Tensor], strict: bool = True) -> None:
    """Load complete tensors into a module that may be sharded."""
    targets = module.state_dict()
    shards = {}
    for name, value in state.items():
        target = targets.get(name, value)
        shards[name] = shard_like(value, target)
    module.load_state_dict(shards, strict=strict)


class ShardedStrategy(ModelParallelStrategy):
    """Fully sharded training with checkpoints of complete tensors in one file.

    A run can be resumed from them with any number of processes and any strategy.
    """

    def lightning_module_state_dict(self) -> dict[str, Any]:
        return gather_full(self._module.state_dict())

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        # Lightning wraps optimizers.
        torch_optimizer = getattr(optimizer, "optimizer", optimizer)
        return gather_full(torch_optimizer.state_dict())

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        filepath: Any,
        storage_options: Any = None,
    ) -> None:
        Strategy.save_checkpoint(self, checkpoint, filepath, storage_options)

    def load_checkpoint(
        self,
        checkpoint_path: Any,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        return Strategy.load_checkpoint(self, checkpoint_path, weights_only)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        load_full(self._module, checkpoint["state_dict"], strict)

    @property
    def lightning_restore_optimizer(self) -> bool:
        return True

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        states = checkpoint["optimizer_states"]
        for optimizer, state in zip(self.optimizers, states, strict=True):
            parameters: list[Tensor] = []
            for group in optimizer.param_groups:
                parameters += group["params"]

            shards = {}
            for number, moments in state["state"].items():
                shards[number] = _shard_moments(moments, parameters[number])
            optimizer.load_state_dict({**state, "state": shards})

    @property
    def _module(self) -> pl.LightningModule:
        assert self.lightning_module is not None
        return self.lightning_module


def _shard_moments(moments: Mapping[str, Any], parameter: Tensor) -> dict[str, Any]:
    """Shard the optimizer's state of a parameter like the parameter itself.

    Other entries, such as the number of steps, have another shape and stay as they are.
    """
    shards = dict(moments)
    for key, value in moments.items():
        if isinstance(value, Tensor) and value.shape == parameter.shape:
            shards[key] = shard_like(value, parameter)
    return shards
