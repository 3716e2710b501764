"""Data sets of every kind: where they come from, how they are split, varied and handed out in
batches, and what they say of themselves.

``create_dataset(name, split)`` gives a torch data set, ``make_loader`` resumable batches of it,
``fetch(name)`` brings one here.
"""

import fredholm.lab.data.catalogue  # noqa: F401  registers the data sets

from .augment import Augment, cutmix, mixup
from .create import create_dataset
from .fetching import fetch
from .kinds.dataset import LabelledDataset
from .kinds.fields import FieldDataset
from .kinds.graphs import Graph, GraphDataset, Network, NodeDataset
from .kinds.images import ArrayDataset, FolderDataset, ImageDataset
from .kinds.kind import Kind, register_kind
from .kinds.language import HiddenTokens, NextTokens
from .kinds.points import CloudAugment, PointDataset
from .kinds.questions import QuestionDataset
from .kinds.sequences import SequenceDataset, image_sequences, padded
from .kinds.texts import TextDataset, encode_texts
from .kinds.tokens import Rows, TokenDataset, image_tokens
from .loader import EpochOrder, ResumableLoader, make_loader
from .registry import (
    Entry,
    data_root,
    dataset_path,
    describe,
    get_entry,
    list_datasets,
    register_dataset,
)
from .splits import stratified
from .stored import StoredRows, rows_of_parquet
from .subset import limit_samples
from .vocabulary import Vocabulary

__all__ = [
    "ArrayDataset",
    "Augment",
    "CloudAugment",
    "Entry",
    "EpochOrder",
    "FieldDataset",
    "FolderDataset",
    "Graph",
    "GraphDataset",
    "HiddenTokens",
    "ImageDataset",
    "Kind",
    "LabelledDataset",
    "Network",
    "NextTokens",
    "NodeDataset",
    "PointDataset",
    "QuestionDataset",
    "ResumableLoader",
    "Rows",
    "SequenceDataset",
    "StoredRows",
    "TextDataset",
    "TokenDataset",
    "Vocabulary",
    "create_dataset",
    "cutmix",
    "data_root",
    "dataset_path",
    "describe",
    "encode_texts",
    "fetch",
    "get_entry",
    "image_sequences",
    "image_tokens",
    "limit_samples",
    "list_datasets",
    "make_loader",
    "mixup",
    "padded",
    "register_dataset",
    "register_kind",
    "rows_of_parquet",
    "stratified",
]
