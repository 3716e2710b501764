"""The kinds of data, a file each.

A data set says what it is (:class:`.dataset.LabelledDataset`): the encoder it needs, an example,
what is saved with a model, how it is varied. Its :class:`.kind.Kind` says what holds of samples
without a data set: how they are called, shown, and read from files. Nothing outside asks for a
class or a name.
"""

from . import fields, graphs, images, language, points, questions, sequences, texts, tokens

__all__ = [
    "fields",
    "graphs",
    "images",
    "language",
    "points",
    "questions",
    "sequences",
    "texts",
    "tokens",
]
