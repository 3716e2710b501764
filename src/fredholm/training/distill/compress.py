"""A trained run's exact operators as low-rank ones: a new run folder and a report."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ... import models
from ...errors import ConversionError, OptionError
from ...families.itnet import compress
from ...families.itnet.operator import LowRankITNetOperator
from ...files import write_json
from ..evaluation import evaluate, load_run, run_dataset
from ..folder import RunFolder, portable
from ..recipe_files import save_recipe

HELD_OUT = 8  # validation samples that the report of a layer is made on


def compress_run(
    run: str | Path,
    rank: int,
    *,
    out: str | Path | None = None,
    steps: int = 500,
    width: int | None = None,
    samples: int = 256,
    batch_size: int = 16,
    report: Callable[[str], None] | None = None,
    trust_code: bool = False,
) -> dict[str, Any]:
    """Distil every operator of a trained run into a low-rank one, and evaluate both on the test
    split.

    The new run folder holds the recipe with the low-rank operator, the model, and
    ``compression.json``: of each layer the errors on signals it was not fitted to, the Eckart-Young
    optimum and Proposition 12's bound (see :class:`fredholm.operators.CompressionReport`). Layers
    are fitted one by one to what the original model's layers see on training samples, and reported
    on eight validation samples.

    Args:
        run: a finished run of an ITNet with the exact operator.
        rank: over all heads, the paper's LR-rank: a head gets ceil(rank / heads).
        out: the new folder, default ``RUN-rank<rank>`` beside it.
        steps: of optimisation a layer.
        width: of the factors' networks, default that of the exact kernel.
        samples, batch_size: training samples whose signals are fitted to, so many at a time.
        report: receives one line a layer.
        trust_code: see :func:`fredholm.training.load_run`.

    Returns: what ``compression.json`` holds: layers, and test results before and after.

    Raises:
        TrustError: the run's recipe imports a file, and ``trust_code`` is not given.
        OptionError: a folder that is there already, an impossible number, a model that is not built
            of blocks with one operator.
        ConversionError: operators without a low-rank form.
        CheckpointError: no run or no model there.
    """
    model, place = load_run(run, trust_code=trust_code)
    extra = model.extra
    target = RunFolder(
        Path(out) if out is not None else place.root.with_name(f"{place.root.name}-rank{rank}")
    )
    if target.root.exists():
        raise OptionError(f"{target.root}: exists; remove it, or give another folder")
    if rank < 1 or samples < 1 or batch_size < 1 or steps < 1:
        raise OptionError(
            f"compress: received rank={rank}, samples={samples}, steps={steps}; needs 1 or more of "
            "each"
        )
    body = model.config.body
    if body.kind != "residual" or body.operator != "itnet":
        raise ConversionError(
            f"{place.root}: compress takes a trained ITNet with the operator 'itnet'"
        )
    fitted = seen(model, run_dataset(model, place, "train"), samples, batch_size)
    unseen = seen(
        model, run_dataset(model, place, "val"), HELD_OUT, HELD_OUT
    )  # every one is decomposed
    own_rank = -(-rank // body.heads)
    options: dict[str, Any] = {"width": width or model.body.blocks[0].operator.kernel.width}
    layers, states = [], {}
    for number, block in enumerate(model.body.blocks):
        signals, held_out = fitted[number], unseen[number]
        low, fit = compress(
            block.operator, own_rank, signals, held_out=held_out, steps=steps, **options
        )
        layers.append({"layer": number + 1, **dataclasses.asdict(fit)})
        states |= {
            f"body.blocks.{number}.operator.{key}": value for key, value in low.state_dict().items()
        }
        if report:
            report(f"layer {number + 1}: {fit}")
    config = low_rank_config(model.config, low, own_rank, options)
    student = models.Model(config)
    kept = {key: value for key, value in model.state_dict().items() if ".operator." not in key}
    student.load_state_dict({**kept, **states}, strict=True)
    _write(place, target, student.eval(), extra)
    result = {"run": str(place.root), "rank": rank, "rank_per_head": own_rank, "layers": layers}
    result |= {"before": evaluate(place.root), "after": evaluate(target.root)}
    write_json(target.root / "compression.json", result)
    return result


def seen(model: Any, dataset: Any, samples: int, batch_size: int) -> list[list[tuple[Any, Any]]]:
    """For each block the batches (u, domain) that its operator sees on the first samples."""
    batches = torch.arange(min(samples, len(dataset))).split(batch_size)
    inputs: list[list[tuple[Any, Any]]] = [[] for _ in model.body.blocks]
    for indices in batches:
        for layer, (_, u, domain) in zip(inputs, model.trace(dataset.batch(indices)[0])):
            layer.append((u, domain))
    return inputs


def low_rank_config(
    config: Any, low: LowRankITNetOperator, rank: int, options: dict[str, Any]
) -> Any:
    """The configuration of a model with such operators."""
    fourier: Any = low.kernel.fourier
    fields = {"rank": rank, "frequencies": fourier.frequencies, **options}
    if isinstance(fourier.matrix, torch.nn.Parameter):
        fields["learned_frequencies"] = True
    return config.replace(body={"operator": "itnet_low_rank", "operator_options": fields})


def _write(place: RunFolder, target: RunFolder, model: Any, extra: dict[str, Any]) -> None:
    recipe = place.load_recipe()
    body = model.config.body
    recipe.operator = type(recipe.operator)(name=body.operator, **body.operator_options)
    recipe.name = target.root.name
    target.root.mkdir(parents=True)
    for source in recipe.imports:  # the files themselves, and nothing else that lies beside them
        target.code.mkdir(exist_ok=True)
        shutil.copyfile(source, target.code / Path(source).name)
    save_recipe(recipe.model_copy(update={"imports": portable(recipe)}), target.recipe)
    models.save_pretrained(model, target.model, **extra)
