"""Data sets of labelled images, texts and sequences: where they come from, how they are split,
varied and handed out in batches.

``create_dataset(name, split)`` gives a torch data set, ``make_loader`` resumable batches of it,
``fetch(name)`` brings one here.
"""

import fredholm.data.catalogue  # noqa: F401  registers the data sets
from fredholm.data.augment import Augment, cutmix, mixup
from fredholm.data.clouds import CloudAugment, PointDataset
from fredholm.data.create import create_dataset
from fredholm.data.datasets import ArrayDataset, FolderDataset, ImageDataset, LabelledDataset
from fredholm.data.fetching import fetch
from fredholm.data.fields import FieldDataset, solve_darcy
from fredholm.data.graphs import Graph, GraphDataset, Network, NodeDataset
from fredholm.data.language import HiddenTokens, NextTokens
from fredholm.data.loader import EpochOrder, ResumableLoader, make_loader
from fredholm.data.questions import QuestionDataset
from fredholm.data.registry import (
    Entry,
    data_root,
    dataset_path,
    describe,
    get_entry,
    list_datasets,
    register_dataset,
)
from fredholm.data.sequences import SequenceDataset, image_sequences, padded
from fredholm.data.splits import stratified
from fredholm.data.subset import limit_samples
from fredholm.data.texts import TextDataset, encode_texts
from fredholm.data.tokens import Rows, TokenDataset, image_tokens
from fredholm.data.vocabulary import Vocabulary

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
    "LabelledDataset",
    "Network",
    "NextTokens",
    "NodeDataset",
    "PointDataset",
    "QuestionDataset",
    "ResumableLoader",
    "Rows",
    "SequenceDataset",
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
    "solve_darcy",
    "stratified",
]
