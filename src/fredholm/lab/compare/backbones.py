"""Transformers of pretrained starts, from the files that ``fredholm data fetch`` brought."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...errors import require
from ...linearization.transformers_folder import load_local
from ..data.catalogue.weights_onnx import read_onnx_tensors

LENGTH = 256  # tokens of a text, as many as MiniLM was tuned with
PATCH = 14  # pixels of the vision transformer


@dataclass(frozen=True)
class Backbone:
    """A transformer, and what is made of it.

    Attributes:
        model: of transformers, without a head.
        arguments: of the model, from texts or pictures.
        pool: features (B, D) from the last layer's (B, N, E) and the arguments.
    """

    model: Any
    arguments: Callable[[Any], dict[str, Tensor]]
    pool: Callable[[Tensor, dict[str, Tensor]], Tensor]

    def __call__(self, inputs: Any) -> Float[Tensor, "b d"]:
        arguments = self.arguments(inputs)
        return self.pool(self.model(**arguments).last_hidden_state, arguments)


def minilm(folder: Path) -> Backbone:
    """Means over the tokens of all-MiniLM-L6-v2."""
    library: Any = require("transformers", "hf", "MiniLM")
    tokenizer = load_local(library.AutoTokenizer, folder)

    def arguments(texts: list[str]) -> dict[str, Tensor]:
        options = {"padding": True, "truncation": True, "max_length": LENGTH}
        return dict(tokenizer(texts, return_tensors="pt", **options))

    return Backbone(load_local(library.AutoModel, folder).eval(), arguments, mean_of_tokens)


def mean_of_tokens(states: Tensor, arguments: dict[str, Tensor]) -> Tensor:
    """Over those that are no padding."""
    mask = arguments["attention_mask"][..., None]
    return (states * mask).sum(1) / mask.sum(1)


def vit(folder: Path) -> Backbone:
    """The class token of the ViT-S/14 beside the mean over its patches."""
    library: Any = require("transformers", "hf", "the ViT-S")
    config = library.Dinov2Config(
        hidden_size=384, num_attention_heads=6, image_size=518, patch_size=PATCH
    )
    tensors = vit_tensors(folder) | {"embeddings.mask_token": torch.zeros(1, 384)}
    model = library.Dinov2Model.from_pretrained(None, config=config, state_dict=tensors).eval()
    return Backbone(model, lambda images: {"pixel_values": images}, class_and_mean)


def class_and_mean(states: Tensor, arguments: dict[str, Tensor]) -> Tensor:
    """The class token beside the mean over the others."""
    return torch.cat([states[:, 0], states[:, 1:].mean(1)], 1)


def vit_tensors(folder: Path) -> dict[str, Tensor]:
    """The weights of ``vit-s-focus`` by DINOv2's names; its positions have lost theirs."""
    tensors = read_onnx_tensors(folder / "vit_s_focus.onnx")
    positions = [
        tensor
        for name, tensor in tensors.items()
        if name.startswith("onnx::") and tensor.shape[1:] in ((1, 384), (1369, 384))
    ]
    own = {
        name.removeprefix("backbone."): tensor
        for name, tensor in tensors.items()
        if name.startswith("backbone.")
    }
    positions.sort(key=lambda tensor: tensor.shape[1])
    own["embeddings.position_embeddings"] = torch.cat(positions, 1)
    return own
