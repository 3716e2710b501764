"""Measurements of LUNA's theory (Props. 1-3), and pictures.

They show Gram matrices, the sampling error against M, the error against hidden width, learned ψ
over the projections of data, and a class token's attention with softmax, Hedgehog and LUNA.
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import matplotlib
import torch
from torch import Tensor

from fredholm.data import make_loader
from fredholm.explain.kernels import pair_weights
from fredholm.integral.feature_map import build_feature_map
from fredholm.kernels import FEATURE_MAPS, LunaMap
from fredholm.lab import data
from fredholm.lab.report.style import LIGHT, new_figure, settings
from fredholm.models import create_model
from fredholm.ops.feature_map import Bank, scalar_bank, scalar_bank_naive

from ..kit.machine import describe
from ..kit.page import load, save
from ..kit.subject import Options

FILE = "luna-theory.json"
EPOCHS = 4
"""Epochs of the maps' models on reviews; four times as many on digits."""
DIRECTIONS = (4, 8, 16, 32, 64, 128, 256, 512)
DRAWS = 40
"""Draws of the directions for each number M."""
PAIRS = 300
"""Number of pairs (x, y) of the kernel."""
REFERENCE = 200_000
"""Number of directions that stands for the expectation."""
WIDTHS = (2, 4, 8, 16, 32, 64, 128)
TARGETS = {
    "exp(-u²)": lambda u: (-u.square()).exp(),
    "tanh(2u) + 1": lambda u: torch.tanh(2 * u) + 1,
    "sin(3u) + 1": lambda u: torch.sin(3 * u) + 1,
}
ROWS = {
    "softmax": ("softmax", {}),
    "hedgehog": (
        "linear_attention",
        {"feature_map": "hedgehog", "feature_options": {"softmax": True}},
    ),
    "luna": ("luna", {}),
}


def gram_matrices(points: int = 200, width: int = 16) -> dict[str, float]:
    """Return the smallest over the largest eigenvalue of each map's Gram matrix, in float64.

    The matrix is positive semi-definite for every map, so it is 0 up to rounding.
    """
    found = {}
    for name in FEATURE_MAPS:
        torch.manual_seed(0)
        made = build_feature_map(name, width, 1)
        if isinstance(made, torch.nn.Module):
            made = made.double()
        with torch.no_grad():
            features = made(torch.randn(1, 1, points, width, dtype=torch.float64))[0, 0]
        values = torch.linalg.eigvalsh(features @ features.mT)
        found[name] = float(values[0] / values[-1])
    return found


def sampling_error(width: int = 16) -> list[dict[str, Any]]:
    """Compare the kernel of M random directions with its expectation, over draws of W ~ N(0, I/d).

    Returns the root mean square and the 95% quantile of the error, beside σ/√M. ψ is LUNA's before
    training, or the same clipped at 1.
    """
    torch.manual_seed(0)
    start = LunaMap(width, directions=1, channels=4).bank
    bank = Bank(*(x.detach() for x in start))
    functions = {
        "ψ at the start": lambda u: scalar_bank(u[None, None], bank)[0, 0],
        "ψ clipped at 1": lambda u: scalar_bank(u[None, None], bank)[0, 0].clamp(max=1.0),
    }
    x, y = torch.randn(2, PAIRS, width)
    rows = []
    for name, psi in functions.items():

        def products(count: int, psi=psi) -> Tensor:
            """Return ψ(w·x)·ψ(w·y) for every direction and pair, (count, pairs)."""
            w = torch.randn(count, width) * width**-0.5
            a = psi((w @ x.mT).flatten()).unflatten(1, (count, PAIRS))
            b = psi((w @ y.mT).flatten()).unflatten(1, (count, PAIRS))
            return (a * b).sum(0)

        with torch.no_grad():
            # Parts of 2,000 directions limit the memory.
            total = sum(products(2000).double().sum(0) for _ in range(REFERENCE // 2000))
            exact = total / REFERENCE
            spread = float(products(20_000).double().std(0).square().mean().sqrt())
            for m in DIRECTIONS:
                errors = torch.stack([products(m).double().mean(0) - exact for _ in range(DRAWS)])
                rms, tail = errors.square().mean().sqrt(), errors.abs().flatten().quantile(0.95)
                row = {"psi": name, "m": m, "rms": float(rms), "q95": float(tail)}
                rows.append(row | {"theory": spread / math.sqrt(m)})
    return rows


def width_error(draws: int = 20) -> list[dict[str, Any]]:
    """Fit known functions on N(0, 1) by scalar networks of different hidden widths.

    Hidden units are drawn as in LUNA; the readout is the best one, by least squares. The error is
    the root mean square relative to the target's, median over draws.
    """
    # Quantiles of the normal distribution stand for samples of it.
    u = torch.special.ndtri((torch.arange(4096, dtype=torch.float64) + 0.5) / 4096)
    rows = []
    for name, target in TARGETS.items():
        wanted = target(u)[:, None]
        for hidden in WIDTHS:
            torch.manual_seed(0)
            errors = []
            for _ in range(draws):
                bank = LunaMap(1, directions=1, channels=1, hidden=hidden).bank
                weight = bank.weight.detach().double()[0, 0]
                bias = bank.bias.detach().double()[0, 0]
                hidden_units = torch.relu(weight * u[:, None] + bias)
                units = torch.cat([hidden_units, torch.ones_like(wanted)], 1)
                readout = torch.linalg.lstsq(units, wanted, driver="gelsd").solution
                left = wanted - units @ readout
                errors.append(float((left.square().mean() / wanted.square().mean()).sqrt()))
            rows.append({"target": name, "hidden": hidden, "error": statistics.median(errors)})
    return rows


def plot_theory(found: dict[str, Any], path: Path) -> None:
    """Draw the sampling error against M beside σ/√M, and the fitting error against hidden width."""
    with matplotlib.rc_context(settings(LIGHT)):  # type: ignore[arg-type]
        figure = new_figure(7.6, 2.8)
        left, right = figure.subplots(1, 2)
        for i, name in enumerate(dict.fromkeys(row["psi"] for row in found["sampling"])):
            rows = [row for row in found["sampling"] if row["psi"] == name]
            m, colour = [row["m"] for row in rows], LIGHT.series[i]
            errors = [row["rms"] for row in rows]
            left.loglog(m, errors, "o-", color=colour, markersize=3, label=name)
            left.loglog(m, [row["theory"] for row in rows], ":", color=colour, label="σ/√M")
        left.set(xlabel="directions M", ylabel="error of the kernel (RMS)")
        for i, name in enumerate(dict.fromkeys(row["target"] for row in found["width"])):
            rows = [row for row in found["width"] if row["target"] == name]
            x, y = [row["hidden"] for row in rows], [row["error"] for row in rows]
            right.loglog(x, y, "o-", color=LIGHT.series[i], markersize=3, label=name)
        right.set(xlabel="hidden width", ylabel="relative error of ψ")
        for axes in (left, right):
            axes.legend(fontsize=6)
        figure.savefig(path, dpi=110, facecolor="white")


def trained(run: Path | None, epochs: int) -> tuple[Any, Any, str]:
    """Return a model with LUNA's attention, samples that it was not trained on, and its name.

    The model is that of a run, or without one a small model of digits that is trained now.
    """
    if run is None:
        model, val, _ = fit("luna", {}, "digits", epochs)
        return model, val, "itnet_nano on digits"
    from fredholm.lab.training.build import build_dataset
    from fredholm.lab.training.evaluation import load_run

    model, place = load_run(run)
    return model, build_dataset(place.load_recipe(), "test"), run.name


def plot_psi(run: Path | None, path: Path, epochs: int) -> dict[str, Any]:
    """Draw the learned ψ of each layer over the histogram of its inputs for unseen samples."""
    model, dataset, name = trained(run, epochs)
    inputs, _ = dataset.batch(range(64))
    layers = []
    for operator, u, domain in model.trace(inputs):
        kernel = operator.kernel
        # The projections of queries and keys, without padding.
        with torch.no_grad():
            inputs_of_psi = [
                kernel.feature_map.scalars(kernel._heads(u[:, None], part)) for part in (0, 1)
            ]
        if domain.valid is not None:
            valid = domain.valid[:, None, None].expand(inputs_of_psi[0].shape)
            inputs_of_psi = [x[valid] for x in inputs_of_psi]
        layers.append((kernel.feature_map, torch.cat([x.flatten() for x in inputs_of_psi])))
    shown = min(8, layers[0][0].channels)
    facts: dict[str, Any] = {"run": name, "dataset": dataset.name, "samples": 64, "layers": []}
    with matplotlib.rc_context(settings(LIGHT)):  # type: ignore[arg-type]
        figure = new_figure(9.0, 1.5 * len(layers) + 0.3)
        grid = figure.subplots(len(layers), shown, squeeze=False)
        for row, (feature_map, u) in enumerate(layers):
            # torch.quantile takes at most 2^24 numbers.
            if len(u) < 2**24:
                low, high = float(u.quantile(0.001)), float(u.quantile(0.999))
            else:
                low, high = float(u.min()), float(u.max())
            at = torch.linspace(low, high, 400)
            with torch.no_grad():
                curves = scalar_bank_naive(at[None, None], feature_map.bank)[0, 0]
            dead = int((curves.amax(1) <= 0).sum())
            facts["layers"].append({"low": low, "high": high, "dead": dead})
            for channel in range(shown):
                axes = grid[row][channel]
                bars = axes.twinx()
                bars.hist(u.numpy(), bins=60, range=(low, high), color="0.85")
                bars.set_yticks([])
                axes.set_zorder(2)
                axes.patch.set_visible(False)
                axes.plot(at, curves[channel], color=LIGHT.series[1], linewidth=1.2)
                axes.tick_params(labelsize=5)
                axes.set_title(f"layer {row + 1}, ψ{channel + 1}", fontsize=6)
        figure.savefig(path, dpi=110, facecolor="white")
    return facts


def fit(
    operator: str, options: dict[str, Any], name: str, epochs: int, **sizes: Any
) -> tuple[Any, Any, float]:
    """Train a small classifier with a class token by AdamW at 2e-3.

    Returns the model, the validation set and the accuracy on it.
    """
    torch.manual_seed(0)
    train: Any = data.create_dataset(name, "train")
    val: Any = data.create_dataset(name, "val")
    if name == "digits":
        encoder = {"image_size": (8, 8), "channels": 1, "patch": 2}
    else:
        train = data.limit_samples(train, 3000)
        words = len(train.vocabulary)
        encoder = {"kind": "text", "vocabulary": words, "max_length": train.max_length}
    model = create_model(
        "itnet_nano",
        encoder=encoder,
        body={"dropout": 0.1, "operator": operator, "operator_options": options, **sizes},
        head={"outputs": len(train.classes), "pool": "cls"},
    )
    optimizer = torch.optim.AdamW(model.weight_decay_groups(0.05), lr=2e-3)
    loader = make_loader(train, 64, seed=0, shuffle=True, drop_last=True)
    for epoch in range(epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        print(f"{name} {operator} epoch {epoch + 1}/{epochs}", flush=True)
    model.eval()
    inputs, labels = val.batch(range(len(val)))
    with torch.no_grad():
        return model, val, float((model(inputs).argmax(-1) == labels).float().mean())


@torch.no_grad()
def class_token_map(model: Any, inputs: Tensor) -> Tensor:
    """Return the class token's attention to the first sample's points in the last layer.

    It is the mean over heads, normalised to sum 1 in absolute value.
    """
    operator, u, domain = model.trace(inputs)[-1]
    shares = pair_weights(operator, u, domain, rows=[0])[0, :, 0].mean(0)[1:]
    return shares / shares.abs().sum()


def plot_maps(path: Path, epochs: int) -> dict[str, Any]:
    """Draw the class token's attention to a digit's patches and a review's words.

    There is one column per kind of attention.
    """
    facts: dict[str, Any] = {}
    with matplotlib.rc_context(settings(LIGHT)):  # type: ignore[arg-type]
        figure = new_figure(8.4, 4.4)
        grid = figure.subplots(2, 1 + len(ROWS), gridspec_kw={"height_ratios": [1.2, 1]})
        for column, (name, (operator, options)) in enumerate(ROWS.items(), 1):
            model, val, accuracy = fit(operator, options, "digits", 4 * epochs)
            image, label = val.batch([11])
            shares = class_token_map(model, image).view(4, 4)
            grid[0][0].imshow(image[0, 0], cmap="gray")
            grid[0][0].set_title(f"a {val.classes[int(label)]}", fontsize=7)
            grid[0][column].imshow(shares, cmap="magma", vmin=0)
            grid[0][column].set_title(f"{name}, validation {100 * accuracy:.0f}%", fontsize=7)
            model, val, text_accuracy = fit(operator, options, "movie-reviews", epochs)
            # A review that is short enough for the picture.
            lengths = [len(val.vocabulary.encode(text)) for text in val.texts]
            index = next(i for i, length in enumerate(lengths) if 8 <= length <= 11)
            numbers, _ = val.batch([index])
            words = val.vocabulary.decode(numbers[0].tolist())
            shares = class_token_map(model, numbers)
            axes = grid[1][column]
            axes.barh(range(len(words)), shares, color=LIGHT.series[0])
            labels = words if column == 1 else [""] * len(words)
            axes.set_yticks(range(len(words)), labels, fontsize=6)
            axes.invert_yaxis()
            axes.set_title(f"validation {100 * text_accuracy:.0f}%", fontsize=7)
            axes.tick_params(axis="x", labelsize=5)
            facts[name] = {"digits": accuracy, "reviews": text_accuracy, "words": words}
        for axes in (*grid[0], grid[1][0]):
            axes.axis("off")
        figure.savefig(path, dpi=110, facecolor="white")
    return facts


def keep(part: dict[str, Any], options: Options) -> None:
    """Replace one part of the file and leave the others unchanged."""
    about = {"command": "python -m evidence run luna theory psi maps", "machine": describe()}
    save((load(FILE, options.results) or {}) | about | part, FILE, options.results)


def run_theory(options: Options) -> None:
    """Measure Propositions 1 to 3 and draw them."""
    found = {"gram": gram_matrices(), "sampling": sampling_error(), "width": width_error()}
    keep(found, options)
    plot_theory(found, options.images / "luna-theory.png")


def run_psi(options: Options) -> None:
    """Draw the learned functions of the run that ``--only`` names, or of a model of digits."""
    run = Path(options.only[0]) if options.only else None
    epochs = 1 if options.small else 4 * EPOCHS
    keep({"psi": plot_psi(run, options.images / "luna-psi.png", epochs)}, options)


def run_maps(options: Options) -> None:
    """Train the models and draw their class tokens' attention."""
    epochs = 1 if options.small else EPOCHS
    keep({"maps": plot_maps(options.images / "luna-maps.png", epochs)}, options)
