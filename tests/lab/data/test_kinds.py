"""Facts of data sets of every kind, and of the kinds alone."""

from __future__ import annotations

import pytest
import torch

from fredholm.data import (
    Augment,
    CloudAugment,
    FieldDataset,
    Graph,
    GraphDataset,
    HiddenTokens,
    Network,
    NextTokens,
    NodeDataset,
    PointDataset,
    QuestionDataset,
    Rows,
    SequenceDataset,
    TextDataset,
    TokenDataset,
    Vocabulary,
    create_dataset,
)
from fredholm.errors import OptionError, ShapeError
from fredholm.lab.data.kinds.kind import KINDS, SAMPLES, Page, kind_of, saved_kind
from fredholm.lab.training.tasks import task_of
from fredholm.models import create_model

TWO = torch.tensor([0, 1])
BOTH = ("a", "b")
WORDS = Vocabulary.of_words(["a b c"], min_count=1)


def texts() -> TextDataset:
    return TextDataset("t", "train", ["a b c d", "c"], TWO, BOTH, WORDS, 3, targets=TWO.float())


def sequences(**options) -> SequenceDataset:
    values = torch.rand(2, 5, 3)
    if options.get("timed"):
        values[..., 0] = values[..., 0].sort().values
    shape = (5, 2) if options.get("timed") else (5, 3)
    return SequenceDataset("s", "train", TWO, BOTH, lambda i: values[i], shape=shape, **options)


def tokens(pair: bool = False) -> TokenDataset:
    rows = Rows.of([torch.tensor([1, 2, 3]), torch.tensor([4])])
    read = (lambda i: torch.stack([rows(i, 3), rows(i, 3)], 1)) if pair else rows
    return TokenDataset("k", "train", TWO, BOTH, read, tokens=6, max_length=4, pair=pair)


def questions() -> QuestionDataset:
    def white(indices):
        return torch.full((len(indices), 1, 8, 8), 255, dtype=torch.uint8)

    return QuestionDataset("q", "train", white, ["a b", "c"], TWO, BOTH, WORDS, 4, shape=(1, 8, 8))


def graphs(steps: bool = False) -> GraphDataset:
    path = Graph(torch.rand(3, 2), torch.tensor([[0, 1], [1, 2]]))
    labels = [torch.tensor([0, 1, 1])] * 2 if steps else TWO
    return GraphDataset("g", "train", [path, path], labels, BOTH, eigenvectors=2)


def nodes() -> NodeDataset:
    network = Network(torch.tensor([[0, 1], [1, 2]]), 4)
    words = torch.tensor([[2], [3], [0], [1]])
    return NodeDataset("n", "train", network, words, TWO, TWO, BOTH, size=3, vocabulary=4)


def fields() -> FieldDataset:
    return FieldDataset("f", "train", torch.rand(2, 1, 4, 4), torch.rand(2, 1, 4, 4), ("u",))


# data set, kind, a model that reads it
CASES = {
    "images": (lambda: create_dataset("digits", "val"), "images", "backbone_nano"),
    "texts": (texts, "text", "backbone_nano"),
    "next": (
        lambda: NextTokens("x", "train", torch.tensor(WORDS.encode("a b c a b")), WORDS, 2),
        "text",
        "backbone_nano",
    ),
    "hidden": (lambda: HiddenTokens(texts(), 0.5), "text", "backbone_nano"),
    "sequences": (sequences, "sequence", "backbone_nano"),
    "timed": (lambda: sequences(timed=True), "sequence", "backbone_nano"),
    "tokens": (tokens, "symbols", "backbone_nano"),
    "pairs": (lambda: tokens(pair=True), "symbols", "lra_skyformer"),
    "points": (
        lambda: PointDataset("p", "train", torch.rand(2, 6, 3), TWO, BOTH, points=5),
        "points",
        "backbone_nano",
    ),
    "fields": (fields, "field", "backbone_nano"),
    "questions": (questions, "question", "itnet_nano"),
    "graphs": (graphs, "graph", "itnet_nano"),
    "graph nodes": (lambda: graphs(steps=True), "graph", "itnet_nano"),
    "nodes": (nodes, "graph", "itnet_nano"),
}


@pytest.fixture(params=CASES)
def case(request):
    make, kind, model = CASES[request.param]
    return make(), KINDS[kind], model


def build(name: str, dataset):
    encoder = {"patch": 4} if dataset.kind.name in ("images", "question") else {}
    head = {"outputs": task_of(dataset).outputs(dataset.classes)} | dataset.head()
    if dataset.task == "tokens":
        head["pool"] = "every"
    return create_model(name, data=dataset.encoder(), encoder=encoder, head=head).eval()


def test_the_encoder_of_a_kind_reads_its_example_and_samples(case):
    dataset, _, name = case
    model = build(name, dataset)
    inputs, labels = dataset.batch(torch.tensor([0, 1]))
    with torch.no_grad():
        assert len(model(dataset.example())) == 1
        assert task_of(dataset).loss(model(inputs), labels).isfinite()


def test_kinds_are_inferred_from_inputs_or_saved_facts(case):
    dataset, kind, _ = case
    assert dataset.kind is kind
    assert saved_kind(dataset.describe()) is kind
    inputs, _ = dataset.batch(torch.tensor([0, 1]))
    told = kind_of(inputs, kind.encoder)
    single = kind.name == "symbols" and inputs.dim() == 2  # cannot be distinguished from a text
    assert told is (KINDS["text"] if single else kind)
    _, shown = kind.prepare(inputs, Page())
    assert shown is None or len(shown) == 2


def test_a_selection_has_the_facts_of_its_data_set(case):
    dataset, _, _ = case
    second = dataset.select(torch.tensor([1]))
    assert len(second) == 1
    assert second.encoder() == dataset.encoder()
    assert torch.equal(second.labels, dataset.labels[1:2])
    assert second.shown(torch.tensor([0])).keys() == dataset.shown(torch.tensor([0])).keys()


def test_models_saved_without_kind_names_are_recognised():
    facts = {"dataset": "x", "classes": []}
    assert saved_kind(facts | {"mean": [0.5], "std": [0.5]}).name == "images"
    assert saved_kind(facts | {"vocabulary": {}, "max_length": 3}).name == "text"
    assert saved_kind(facts | {"task": "steps"}) is SAMPLES


def test_unknown_shapes_are_refused():
    with pytest.raises(ShapeError, match=r"inputs: expected images.*got \(2, 3\)"):
        kind_of(torch.rand(2, 3), "image")


def test_augmentations_of_other_kinds_are_refused():
    images = create_dataset("digits", "val")
    points = CASES["points"][0]()
    assert images.augmentation({"crop": 1, "scale": 0.0}) == Augment(crop=1)
    assert images.augmentation({"crop": 0, "flip": False}) is None
    assert points.augmentation({"scale": 0.1, "crop": 0}) == CloudAugment(scale=0.1)
    for dataset, option in ((images, "scale"), (points, "flip"), (sequences(), "crop")):
        with pytest.raises(OptionError, match=rf"augment.{option}: expected an augmentation of"):
            dataset.augmentation({option: 1})


def test_texts_have_classes_or_numbers():
    assert torch.equal(texts().texts_and_targets(numbers=False)[1], TWO)
    assert texts().texts_and_targets(numbers=True)[1].is_floating_point()
    with pytest.raises(OptionError, match="digits: expected a data set of texts, got images"):
        create_dataset("digits", "val").texts_and_targets(numbers=False)
