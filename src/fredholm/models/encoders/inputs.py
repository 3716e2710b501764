"""Named tensors of one batch, for models that read several."""

from __future__ import annotations

from typing import Any, overload

from torch import Tensor

from ...errors import ShapeError


class Inputs:
    """Named tensors that share their first dimension, the batch. A training loop moves, counts and
    cuts them like one tensor.

    Args:
        tensors: by name, each (B, …) with the same B. They are stored as they are, without a copy.

    Raises:
        ShapeError: tensors of different batch sizes, or none; a name that none of them has.

    Example:
        >>> import torch
        >>> batch = Inputs(image=torch.zeros(4, 1, 8, 8), tokens=torch.ones(4, 3, dtype=torch.long))
        >>> len(batch), len(batch[::2]), batch["tokens"].shape
        (4, 2, torch.Size([4, 3]))
    """

    def __init__(self, **tensors: Tensor):
        sizes = {name: tensor.shape[0] for name, tensor in tensors.items()}
        # Compared one by one: torch.export's symbolic sizes cannot be hashed into a set.
        first = next(iter(sizes.values()), None)
        if first is None or any(size != first for size in sizes.values()):
            raise ShapeError(
                f"inputs: expected one batch size for all tensors, got {sizes}; pad or cut them"
            )
        self.tensors = tensors

    @overload
    def __getitem__(self, key: str) -> Tensor: ...
    @overload
    def __getitem__(self, key: int) -> dict[str, Tensor]: ...
    @overload
    def __getitem__(self, key: slice | Tensor | list[int]) -> Inputs: ...

    def __getitem__(self, key: str | int | slice | Tensor | list[int]) -> Any:
        """Return a tensor by its name, or with any other index the same samples of every tensor."""
        if isinstance(key, str):
            if key not in self.tensors:
                raise ShapeError(
                    f"inputs: expected {key}, got {', '.join(self.tensors)}; give "
                    f"Inputs({key}=..., ...)"
                )
            return self.tensors[key]
        if isinstance(key, int):
            return {name: tensor[key] for name, tensor in self.tensors.items()}
        selected = {name: tensor[key] for name, tensor in self.tensors.items()}
        return Inputs(**selected)

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __len__(self) -> int:
        first = next(iter(self.tensors.values()))
        return first.shape[0]

    def to(self, *args, **kwargs) -> Inputs:
        """Move the tensors like :meth:`torch.Tensor.to`; integers and masks keep their dtype."""
        moved = {}
        for name, tensor in self.tensors.items():
            result = tensor.to(*args, **kwargs)
            if not tensor.is_floating_point():
                result = tensor.to(result.device)
            moved[name] = result
        return Inputs(**moved)

    def __repr__(self) -> str:
        shapes = []
        for name, tensor in self.tensors.items():
            shapes.append(f"{name}={tuple(tensor.shape)}")
        return f"Inputs({', '.join(shapes)})"
