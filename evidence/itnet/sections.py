"""Sections of ITNet's trained variants: a recipe, common overrides, and the variants compared."""

from __future__ import annotations

from pathlib import Path

from fredholm.kernels import ablations

from ..kit.grid import Section


def groups(*names: str) -> dict[str, tuple[str, ...]]:
    """Return variants whose kernels read different inputs (rows of the paper's Table 5).

    Without ``names`` all thirteen are returned.
    """
    known = ablations()
    variants = {}
    for name in names or known:
        variants[name] = (f"operator.groups=[{', '.join(known[name])}]",)
    return variants


CLOTHES = (
    "data.image_size=16",
    "model.name=itnet_nano",
    "model.encoder.patch=4",
    "training.epochs=2",
    "schedule.warmup_epochs=0.5",
)
REVIEWS = ("data.max_length=32", "training.epochs=4")
DIGITS = ("training.epochs=20",)

SECTIONS: dict[str, Section] = {
    "images": Section("Fashion-MNIST at 16 x 16, 16 patches", "fashion-mnist", CLOTHES, groups()),
    "text": Section(
        "Sentences from movie reviews",
        "reviews",
        REVIEWS,
        groups(
            "full",
            "no product",
            "no distance",
            "no relative",
            "content only",
            "position only",
            "constant",
        ),
        seeds=5,
    ),
    "digits": Section(
        "Digits: the kernel network, its features, layers, rank",
        "digits",
        DIGITS,
        {
            "reference": (),
            "w = 32": ("operator.width=32",),
            "w = 64": ("operator.width=64",),
            "w = 128": ("operator.width=128",),
            "depth 3": ("operator.depth=3",),
            "m = 4": ("operator.frequencies=4",),
            "m = 64": ("operator.frequencies=64",),
            "raw coordinates": ("operator.frequencies=0",),
            "sigma = 1": ("operator.sigma=1.0",),
            "sigma = 10": ("operator.sigma=10.0",),
            "learned B": ("operator.learned_frequencies=true",),
            "1 layer": ("model.body.depth=1",),
            "4 layers": ("model.body.depth=4",),
            "low rank, r = 2 a head": (
                "operator=itnet_low_rank",
                "operator.rank=2",
                "operator.width=16",
            ),
            "low rank, r = 8 a head": (
                "operator=itnet_low_rank",
                "operator.rank=8",
                "operator.width=16",
            ),
            "low rank, r = 16 a head": (
                "operator=itnet_low_rank",
                "operator.rank=16",
                "operator.width=16",
            ),
        },
        seeds=10,
    ),
    "start": Section(
        "How layers begin: digits, four layers",
        "digits",
        (*DIGITS, "model.body.depth=4"),
        {
            "W = I, eps = 0.01": (),
            "W = 0": ("operator.start=0.0",),
            "eps = 0.001": ("operator.epsilon=0.001",),
            "eps = 0.1": ("operator.epsilon=0.1",),
            "eps = 1": ("operator.epsilon=1.0",),
        },
        seeds=5,
    ),
    "samples": Section(
        "Digits with sampled keys, 16 patches",
        "itnet-monte-carlo",
        ("training.epochs=20",),
        {
            "exact": ("operator.strategy=exact", "operator.proposal=false"),
            "S = 2": ("operator.strategy.samples=2",),
            "S = 4": ("operator.strategy.samples=4",),
            "S = 8": (),
            "S = 8, drawn by measure": ("operator.proposal=false",),
        },
        further={
            "at all keys": ("operator.strategy=exact",),
            "at 8 keys a query": ("operator.strategy={name: monte_carlo, samples: 8}",),
            "at 8 anchors": ("operator.strategy={name: monte_carlo, samples: 8, anchors: true}",),
        },
        seeds=5,
    ),
    "kjv": Section(
        "The King James Bible, next characters", "itnet-kjv", (), {"causal, low rank": ()}, seeds=1
    ),
    "hidden": Section("Hidden words of Bible verses", "itnet-mlm", (), {"low rank": ()}, seeds=1),
    "paraphrase": Section(
        "The same verse or another, in two translations",
        "itnet-paraphrase",
        (),
        {
            "from hidden words": ("init_from=runs/itnet/hidden-low-rank-0",),
            "from nothing": ("init_from=null", "data.min_count=5"),
        },
        seeds=1,
    ),
}

# --- fresh seeds, named on 28 November 2026 before the first of their runs -------------------------

# The first looks had three seeds. Claims are judged only on all of these seeds: see claims.py.
SECTIONS |= {
    "text again": Section(
        "Sentences from movie reviews, twelve fresh seeds",
        "reviews",
        REVIEWS,
        groups("full", "content only", "position only"),
        seeds=12,
        first=100,
    ),
    "samples again": Section(
        "Digits with sampled keys, 16 patches, ten fresh seeds",
        "itnet-monte-carlo",
        SECTIONS["samples"].common,
        {
            name: SECTIONS["samples"].variants[name]
            for name in ("exact", "S = 8", "S = 8, drawn by measure")
        },
        further=SECTIONS["samples"].further,
        seeds=10,
        first=100,
    ),
}

# --- at each variant's best rate ------------------------------------------------------------------

RATES = tuple(f"optimizer.lr={rate}" for rate in (1e-3, 3e-3, 6e-3))
SIX = groups("full", "content only", "position only", "no distance", "no product", "constant")
SECTIONS |= {
    "images tuned": Section(
        "Fashion-MNIST at 16 x 16, 20,000 pictures; the rate by validation",
        "fashion-mnist",
        (*CLOTHES[:3], "data.limit=20000", "training.epochs=8", "schedule.warmup_epochs=1"),
        SIX,
        seeds=10,
        choices=dict.fromkeys(SIX, RATES),
    ),
}

# Named on 29 November 2026 before the first run, with fresh seeds. In numbers of parameters, the models
# of a section differ by at most 4%.
LINEAR = {
    "low rank": ("operator=itnet_low_rank", "operator.rank=4", "operator.width=12"),
    "linear attention": ("operator=linear_attention",),
    "performer": ("operator={name: linear_attention, feature_map: performer}",),
    "softmax": ("operator=softmax",),
}
# Added after a look at the first seven seeds: the rate that validation had chosen for linear attention
# is unstable.
SLOW = {"linear attention, rate 0.001": LINEAR["linear attention"]}
SECTIONS |= {
    "linear digits": Section(
        "Digits: low rank beside linear attention, at the best rate of each; the last row was added after "
        "a look at the others",
        "digits",
        DIGITS,
        LINEAR | SLOW,
        seeds=10,
        first=100,
        choices=dict.fromkeys(LINEAR, RATES) | dict.fromkeys(SLOW, ("optimizer.lr=1e-3",)),
    ),
    "linear clothes": Section(
        "Fashion-MNIST at 16 x 16, 10,000 pictures: low rank beside linear attention, at the best rate "
        "of each",
        "fashion-mnist",
        (
            "data.image_size=16",
            "data.limit=10000",
            "model.name=itnet_micro",
            "model.encoder.patch=4",
            "training.epochs=4",
            "schedule.warmup_epochs=1",
        ),
        LINEAR,
        seeds=10,
        first=100,
        # The last two were added when validation had chosen 6e-3 for low rank, before the tests of the
        # first seeds were read.
        choices=dict.fromkeys(LINEAR, (*RATES, "optimizer.lr=1.2e-2", "optimizer.lr=2.4e-2")),
    ),
}

KICAD = (
    "data.options.points=48",
    "data.batch_size=32",
    "data.augment.rotate=false",
    "model.name=itnet_nano",
    "model.encoder.neighbours=8",
    "training.epochs=4",
    "training.label_smoothing=0.0",
)
MOSAICS = (
    "data.options.train=8000",
    "data.options.val=300",
    "data.options.test=2000",
    "data.options.cell=14",
    "data.options.kinds=[cell]",
    "model.name=itnet_nano",
    "model.encoder.patch=7",
    "optimizer.lr=4e-3",
    "training.epochs=8",
)
MEASURES = {
    "balanced": (),
    "uniform": ("model.encoder.measure=uniform",),
    "3:1 for the picture": ("model.encoder.measure=0.75",),
    "3:1 for the text": ("model.encoder.measure=0.25",),
}
BESIDE = ("model.head.kind=mlp", "model.head.pool=mean")
IMPORTED = f"import={Path(__file__).with_name('two_streams.py')}"
STREAMS = {
    "two streams, cross-attention": (IMPORTED, "model.body.kind=two_streams"),
    "two streams, concatenation": (
        IMPORTED,
        "model.body.kind=two_streams",
        "model.body.fusion=concatenation",
        *BESIDE,
    ),
    "joint, read out as the concatenation": BESIDE,
}
MOLECULES = ("model.name=itnet_nano", "training.epochs=8")
PACKAGES = ("data.limit=8000", "model.name=itnet_nano", "training.epochs=4")
DARCY = ("model.body.depth=2", "training.epochs=4")
CENTRAL = groups("full", "content only", "position only")

SECTIONS |= {
    "points": Section("KiCad's parts, split by families; 48 points", "itnet-kicad", KICAD, CENTRAL),
    "mosaics": Section(
        "What lies where in mosaics of 28 x 28 pixels, eight epochs; picture and question in one domain",
        "itnet-mosaics-qa",
        MOSAICS,
        {
            **CENTRAL,
            "uniform measure": ("model.encoder.measure=uniform",),
            "image-heavy, 3:1": ("model.encoder.measure=0.75",),
        },
    ),
    "measures": Section(
        "The same mosaics to convergence, four measures; the rate by validation",
        "itnet-mosaics-qa",
        (*MOSAICS[:-2], "training.epochs=30"),
        MEASURES,
        seeds=5,
        choices=dict.fromkeys(MEASURES, ("optimizer.lr=2e-3", "optimizer.lr=4e-3")),
    ),
    "streams": Section(
        "The same mosaics to convergence, picture and question in streams of their own, fused",
        "itnet-mosaics-qa",
        (*MOSAICS[:-2], "training.epochs=30"),
        STREAMS,
        seeds=5,
        choices=dict.fromkeys(STREAMS, ("optimizer.lr=2e-3", "optimizer.lr=4e-3")),
    ),
    "graphs": Section(
        "Solubility of molecules",
        "itnet-graphs",
        MOLECULES,
        {
            "learned weight off the edges": (),
            "edges alone": ("model.encoder.off_edges=none",),
            "all pairs alike": ("model.encoder.off_edges=all",),
        },
    ),
    "packages": Section(
        "Sections of Debian's packages, 8,000 to train on",
        "itnet-debian-graph",
        PACKAGES,
        {"15 packages around each": (), "the package alone": ("data.options.size=1",)},
    ),
    "darcy": Section(
        "Darcy flow, trained at 16 x 16",
        "itnet-darcy",
        DARCY,
        {"full": ()},
        further={"at 32 x 32": ("data.options.resolution=32",)},
    ),
}
