"""Data sets of every kind: where they come from, how they are split, varied and handed out in
batches, and what they say of themselves.

``create_dataset(name, split)`` gives a torch data set, ``make_loader`` resumable batches of it,
``fetch(name)`` brings one here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .augment import Augment as Augment
    from .augment import cutmix as cutmix
    from .augment import mixup as mixup
    from .create import create_dataset as create_dataset
    from .fetching import fetch as fetch
    from .kinds.dataset import LabelledDataset as LabelledDataset
    from .kinds.dataset import limit_samples as limit_samples
    from .kinds.fields import FieldDataset as FieldDataset
    from .kinds.graphs import Graph as Graph
    from .kinds.graphs import GraphDataset as GraphDataset
    from .kinds.graphs import Network as Network
    from .kinds.graphs import NodeDataset as NodeDataset
    from .kinds.images import ArrayDataset as ArrayDataset
    from .kinds.images import FolderDataset as FolderDataset
    from .kinds.images import ImageDataset as ImageDataset
    from .kinds.kind import Kind as Kind
    from .kinds.kind import register_kind as register_kind
    from .kinds.language import HiddenTokens as HiddenTokens
    from .kinds.language import NextTokens as NextTokens
    from .kinds.points import CloudAugment as CloudAugment
    from .kinds.points import PointDataset as PointDataset
    from .kinds.questions import QuestionDataset as QuestionDataset
    from .kinds.sequences import SequenceDataset as SequenceDataset
    from .kinds.sequences import image_sequences as image_sequences
    from .kinds.sequences import padded as padded
    from .kinds.texts import TextDataset as TextDataset
    from .kinds.texts import encode_texts as encode_texts
    from .kinds.tokens import Rows as Rows
    from .kinds.tokens import TokenDataset as TokenDataset
    from .kinds.tokens import image_tokens as image_tokens
    from .loader import EpochOrder as EpochOrder
    from .loader import ResumableLoader as ResumableLoader
    from .loader import make_loader as make_loader
    from .registry import Entry as Entry
    from .registry import data_root as data_root
    from .registry import dataset_path as dataset_path
    from .registry import describe as describe
    from .registry import get_entry as get_entry
    from .registry import list_datasets as list_datasets
    from .registry import register_dataset as register_dataset
    from .splits import stratified as stratified
    from .stored import StoredRows as StoredRows
    from .stored import rows_of_parquet as rows_of_parquet
    from .vocabulary import Vocabulary as Vocabulary

# Names are looked up when they are first used, so that reading a file does not wait for torch. The
# registry of data sets imports the catalogue at its first look-up.
_PLACES = {
    "ArrayDataset": "kinds.images",
    "Augment": "augment",
    "CloudAugment": "kinds.points",
    "Entry": "registry",
    "EpochOrder": "loader",
    "FieldDataset": "kinds.fields",
    "FolderDataset": "kinds.images",
    "Graph": "kinds.graphs",
    "GraphDataset": "kinds.graphs",
    "HiddenTokens": "kinds.language",
    "ImageDataset": "kinds.images",
    "Kind": "kinds.kind",
    "LabelledDataset": "kinds.dataset",
    "Network": "kinds.graphs",
    "NextTokens": "kinds.language",
    "NodeDataset": "kinds.graphs",
    "PointDataset": "kinds.points",
    "QuestionDataset": "kinds.questions",
    "ResumableLoader": "loader",
    "Rows": "kinds.tokens",
    "SequenceDataset": "kinds.sequences",
    "StoredRows": "stored",
    "TextDataset": "kinds.texts",
    "TokenDataset": "kinds.tokens",
    "Vocabulary": "vocabulary",
    "create_dataset": "create",
    "cutmix": "augment",
    "data_root": "registry",
    "dataset_path": "registry",
    "describe": "registry",
    "encode_texts": "kinds.texts",
    "fetch": "fetching",
    "get_entry": "registry",
    "image_sequences": "kinds.sequences",
    "image_tokens": "kinds.tokens",
    "limit_samples": "kinds.dataset",
    "list_datasets": "registry",
    "make_loader": "loader",
    "mixup": "augment",
    "padded": "kinds.sequences",
    "register_dataset": "registry",
    "register_kind": "kinds.kind",
    "rows_of_parquet": "stored",
    "stratified": "splits",
}

__all__ = list(_PLACES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_PLACES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
