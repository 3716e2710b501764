"""Sections of CKConv's trained variants."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..kit.grid import Section

COPY = {100: (19.2, 15), 200: (34.71, 25), 1000: (170.0, 30)}
"""T to omega and epochs.

At 100 and 200, omega is the paper's. At 1,000, the paper's 68.69 was still at chance after 14
epochs and its 2.03 after one (docs/log.md).
"""
ADDING = {100: (14.55, 5), 200: (18.19, 5), 1000: (18.19, 8, "data.batch_size=16")}
"""T to omega, epochs, and further overrides.

At T = 1,000, omega is that of 200, and half the batch size gives twice the steps at the same cost.
"""
DIGITS = (
    "data.name=digits",
    "data.batch_size=32",
    "data.options.sequence=rows",
    "operator.omega=10",
    "schedule.warmup_epochs=1",
    "training.epochs=20",
)
ACTIVATIONS = ("sine", "relu", "leaky_relu", "silu", "gelu", "rff")
BLOCKS = {2: 30, 4: 19, 8: 13}
"""Number of blocks to the channels that give about 98,000 parameters."""


def permuted(*common: str) -> tuple[str, ...]:
    """Return the overrides for pixels in a fixed random order."""
    return tuple(override.replace("=rows", "=permuted") for override in common)


SECTIONS = {
    "copy": Section(
        "Copy memory",
        "ckcnn-copy-memory",
        (),
        {
            f"T = {t}": (
                f"data.options.delay={t}",
                f"operator.omega={omega}",
                f"training.epochs={epochs}",
            )
            for t, (omega, epochs) in COPY.items()
        },
        seeds=1,
    ),
    "adding": Section(
        "Adding problem",
        "ckcnn-adding",
        (),
        {
            f"T = {t}": (
                f"data.options.length={t}",
                f"operator.omega={omega}",
                f"training.epochs={epochs}",
                *more,
            )
            for t, (omega, epochs, *more) in ADDING.items()
        },
        seeds=1,
    ),
    "activation": Section(
        "Activation of the kernel network, digits pixel by pixel",
        "ckcnn-smnist",
        DIGITS,
        {name: (f"operator.activation={name}",) for name in ACTIVATIONS},
    ),
    "activation permuted": Section(
        "Activation of the kernel network, digits in a fixed random order",
        "ckcnn-smnist",
        permuted(*DIGITS),
        {name: (f"operator.activation={name}",) for name in ACTIVATIONS},
    ),
    "blocks": Section(
        "Blocks at one size, permuted digits",
        "ckcnn-smnist",
        permuted(*DIGITS),
        {f"{n} blocks": (f"model.body.widths={[width] * n}",) for n, width in BLOCKS.items()},
    ),
    "omega": Section(
        "omega on permuted digits",
        "ckcnn-smnist",
        permuted(*DIGITS),
        {f"omega = {omega:g}": (f"operator.omega={omega:g}",) for omega in (1, 3, 10, 30, 100)},
    ),
}

# --- at each variant's best setting ---------------------------------------------------------------

OMEGAS = tuple(f"operator.omega={omega}" for omega in (3, 10, 30, 100))
KNOTS = tuple(f"operator.knots={knots}" for knots in ("uniform", "zero"))
CHOICES = {name: OMEGAS if name in ("sine", "rff") else KNOTS for name in ACTIVATIONS}
"""Alternatives to choose from on validation: omega for sines and random features, the positions of
the knots for piecewise activations, whose omega has no effect.
"""
SECTIONS |= {
    f"{name} tuned": replace(
        SECTIONS[name],
        title=f"{SECTIONS[name].title}; omega or knots by validation",
        seeds=5,
        choices=CHOICES,
    )
    for name in ("activation", "activation permuted")
}
SECTIONS["blocks tuned"] = replace(
    SECTIONS["blocks"],
    title=f"{SECTIONS['blocks'].title}; omega by validation",
    seeds=5,
    choices=dict.fromkeys(SECTIONS["blocks"].variants, OMEGAS),
)

# --- MNIST at 14 x 14, pixel by pixel, beside recurrences and convolutions ------------------------


def tcn(levels: int) -> tuple[str, str]:
    """Return overrides for blocks of a convolution with 7 taps whose dilations double.

    Their receptive field has 1 + 6 (2^levels - 1) points.
    """
    dilations = [2**level for level in range(levels)]
    options = f"taps: 7, dilation: {{blocks: {dilations}}}"
    return f"model.body.depth={levels}", f"operator={{name: convolution, {options}}}"


BESIDE = {
    "gru": ("model.body.dim=66", "operator=gru"),
    "lstm": ("model.body.dim=60", "operator=lstm"),
    "tcn": ("model.body.dim=38", *tcn(6)),
    "convolution": ("model.body.dim=66", "operator=convolution"),
}
"""Backbones with about the 98,000 parameters of the CKCNN.

They have two blocks, or six convolutions whose dilations double and whose receptive field has 379
pixels. Two plain convolutions have a field of 13.
"""
RATES = tuple(f"optimizer.lr={rate}" for rate in (1e-3, 3e-3))


def mnist(sequence: str, omegas: tuple[float, ...], beside: Iterable[str]) -> Section:
    """Return a section on 196 pixels in a row or permuted.

    The CKCNN has the better omega and the baselines the better learning rate. Training with 2,000
    pictures in batches of 32 takes 2,500 steps; 60,000 pictures would take a hundred hours.
    """
    causal = ("model.encoder.causal=true", "model.head.pool=last")
    others = {name: ("model=backbone_nano", *BESIDE[name], *causal) for name in beside}
    return Section(
        f"MNIST at 14 x 14, pixel by pixel, {sequence}, 2,000 pictures",
        "ckcnn-smnist",
        (
            "data.image_size=14",
            "data.limit=2000",
            "data.batch_size=32",
            f"data.options.sequence={sequence}",
            "training.epochs=40",
        ),
        {"ckcnn": (), **others},
        seeds=5,
        choices={
            "ckcnn": tuple(f"operator.omega={omega}" for omega in omegas),
            **dict.fromkeys(others, RATES),
        },
        brief=("training.epochs=10",),
    )


SECTIONS |= {
    "smnist 14": mnist("rows", (15.0, 31.09), BESIDE),
    "pmnist 14": mnist("permuted", (30.0, 60.0), ("gru", "lstm", "tcn")),
}

SMALL = {
    "ckcnn-smnist": ("training.epochs=8",),
    "ckcnn-pmnist": ("data.limit=20000", "training.epochs=8"),
    "ckcnn-scifar10": ("data.limit=2000", "training.epochs=4"),
    "ckcnn-kjv": ("data.limit=4000", "training.epochs=3"),
    "ckcnn-japanese-vowels": ("training.epochs=40",),
    "ckcnn-plaid": ("data.options.every=8", "training.epochs=20"),
}
"""Recipes and the overrides that shorten them. The table of the page has their minutes."""
SECTIONS |= {
    recipe: Section(f"{recipe} cut short", recipe, small, {"small": ()}, seeds=1)
    for recipe, small in SMALL.items()
}
