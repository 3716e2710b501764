"""Transformers of the pretrained starts, loaded from files that ``fredholm data fetch`` brought."""

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

# Tokens of a text at most, as many as MiniLM was tuned with.
LENGTH = 256

# Side of the vision transformer's patches in pixels.
PATCH = 14

WIDTH = 384  # of the ViT-S


@dataclass(frozen=True)
class Backbone:
    """A transformer without a head, as a function from inputs to features (B, D).

    Attributes:
        model: a model of the library transformers.
        arguments: makes the model's arguments from texts or pictures.
        pool: makes features (B, D) from the last layer's (B, N, E) and the arguments.
    """

    model: Any
    arguments: Callable[[Any], dict[str, Tensor]]
    pool: Callable[[Tensor, dict[str, Tensor]], Tensor]

    def __call__(self, inputs: Any) -> Float[Tensor, "b d"]:
        arguments = self.arguments(inputs)
        states = self.model(**arguments).last_hidden_state
        return self.pool(states, arguments)


def minilm(folder: Path) -> Backbone:
    """Load all-MiniLM-L6-v2; its features are means over the tokens."""
    library: Any = require("transformers", "hf", "MiniLM")
    tokenizer = load_local(library.AutoTokenizer, folder)
    model = load_local(library.AutoModel, folder).eval()

    def arguments(texts: list[str]) -> dict[str, Tensor]:
        encoded = tokenizer(
            texts,
            return_tensors="pt",
            padding=True,
            truncation=True,
            max_length=LENGTH,
        )
        return dict(encoded)

    return Backbone(model, arguments, mean_of_tokens)


def mean_of_tokens(states: Tensor, arguments: dict[str, Tensor]) -> Tensor:
    """Return the mean over the tokens of each text, without its padding."""
    mask = arguments["attention_mask"][..., None]
    total = (states * mask).sum(1)
    return total / mask.sum(1)


def vit(folder: Path) -> Backbone:
    """Load the ViT-S/14; its features are the class token and the mean over the patches."""
    library: Any = require("transformers", "hf", "the ViT-S")
    config = library.Dinov2Config(
        hidden_size=WIDTH,
        num_attention_heads=6,
        image_size=518,
        patch_size=PATCH,
    )

    # The class has a mask token, which no forward pass without masks reads; the file has none.
    tensors = vit_tensors(folder)
    tensors["embeddings.mask_token"] = torch.zeros(1, WIDTH)
    model = library.Dinov2Model.from_pretrained(
        None,
        config=config,
        state_dict=tensors,
    )

    def arguments(images: Tensor) -> dict[str, Tensor]:
        return {"pixel_values": images}

    return Backbone(model.eval(), arguments, class_and_mean)


def class_and_mean(states: Tensor, arguments: dict[str, Tensor]) -> Tensor:
    """Concatenate the class token with the mean over the other tokens: (B, N, d) to (B, 2 d).

    Pictures have no padding, so the model's ``arguments`` are not read.
    """
    token = states[:, 0]
    patches = states[:, 1:]
    return torch.cat([token, patches.mean(1)], 1)


def vit_tensors(folder: Path) -> dict[str, Tensor]:
    """Return the weights of ``vit-s-focus`` under the names that DINOv2 gives them."""
    prefix = "backbone."
    result = {}
    positions = []
    # The export has split the table of positions in two, for the class token and for the 37 x 37
    # patches, and has lost the names of both parts.
    shapes = ((1, WIDTH), (37 * 37, WIDTH))
    tensors = read_onnx_tensors(folder / "vit_s_focus.onnx")
    for name, tensor in tensors.items():
        if name.startswith(prefix):
            result[name.removeprefix(prefix)] = tensor
        elif name.startswith("onnx::") and tensor.shape[1:] in shapes:
            positions.append(tensor)

    positions.sort(key=lambda tensor: tensor.shape[1])
    result["embeddings.position_embeddings"] = torch.cat(positions, 1)
    return result
