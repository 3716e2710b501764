"""Compression of a trained run: exact operators become low-rank ones, in a new run folder."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ... import models
from ...errors import ConversionError, OptionError
from ...families.itnet.compress import Fitting, Plateau, optimizer_of
from ...families.itnet.operator import LowRankITNetOperator
from ...files import read_state, write_json
from ..data import LabelledDataset, make_loader
from ..data.kinds.dataset import Indices
from ..training.calibration import calibrate
from ..training.evaluation import evaluate, load_run, run_dataset
from ..training.fit import Limits, continuing, fit
from ..training.folder import RunFolder, portable
from ..training.learner import Descent, Learner
from ..training.leases import hold
from ..training.recipe_files import save_recipe
from ..training.tasks import task_of
from .progress import Progress, check_settings, digest_weights

REPORT = "compression.json"

# The folder of layers that are done, until all are.
STAGES = "layers"

# Learning rate, and steps without progress that end it, as in :func:`fredholm.operators.compress`.
LR = 1e-2
PATIENCE = 200

# Validation samples for the report of a layer. The matrix of each one is decomposed.
HELD_OUT = 8


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Numbers of a compression; all but the first are keywords of :func:`compress_run`.

    Attributes:
        rank: over all heads, the paper's LR-rank: a head gets ceil(rank / heads).
        steps: of optimisation per layer.
        samples: training samples whose signals are fitted to.
        batch_size: samples at a time.
        width: of the factors' networks, default that of the exact kernel.

    Raises:
        OptionError: a number below 1.
    """

    rank: int
    steps: int = 500
    samples: int = 256
    batch_size: int = 16
    width: int | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and value < 1:
                raise OptionError(f"{name}: expected 1 or more, got {value}; raise it")


def compress_run(
    run: str | Path,
    rank: int,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    report: Callable[[str], None] | None = None,
    trust_code: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Distil every operator of a trained run into a low-rank one, and evaluate both on the test
    split.

    Layers are fitted one by one to the signals that the original model's layers read on training
    samples. The new run folder holds the recipe with the low-rank operator, the model, and
    ``compression.json``: for each layer the errors on eight validation samples, the Eckart-Young
    optimum and Proposition 12's bound (see :class:`fredholm.operators.CompressionReport`).

    Args:
        run: a finished run of an ITNet with the exact operator.
        rank: see :class:`Sizes`.
        out: the new folder, default ``RUN-rank<rank>`` beside it.
        resume: continue in the new folder; finished layers are read.
        report: receives one line per layer.
        trust_code: see :func:`fredholm.training.load_run`.
        options: the other fields of :class:`Sizes`: ``steps``, ``samples``, ``batch_size`` and
            ``width``.

    Returns:
        The content of ``compression.json``: layers, and test results before and after.

    Raises:
        TrustError: the run's recipe imports a file, and ``trust_code`` is not given.
        OptionError: a folder that is there already, an impossible number, a model that is not built
            of blocks with one operator.
        ConversionError: operators without a low-rank form.
        CheckpointError: no run or no model there.
        RecipeError: the compression to resume has other settings.
        InUseError: another process works in the new folder.
        Interrupted: Ctrl-C; ``resume=True`` continues.
    """
    model, place = load_run(run, trust_code=trust_code)
    sizes = Sizes(rank, **options)
    body = model.config.body
    if body.kind != "residual" or body.operator != "itnet":
        operator = getattr(body, "operator", body.kind)
        raise ConversionError(
            f"{place.root}: expected a trained ITNet with the operator 'itnet', got {operator!r}; "
            "name another run"
        )
    first = model.body.blocks[0].operator
    factors = {"width": sizes.width or first.kernel.width}
    settings = {
        **vars(sizes),
        "weights": digest_weights(model),
        **factors,
    }

    target = RunFolder(place.root.with_name(f"{place.root.name}-rank{rank}"))
    if out is not None:
        target = RunFolder(Path(out))
    stages = target.root / STAGES
    written = target.root / REPORT
    if resume and written.is_file():
        known = read_state(written)
        check_settings(target.root, known["settings"], settings)
        return known
    continues = resume and (stages / "progress.json").is_file()
    if target.root.exists() and not continues:
        raise OptionError(
            f"{target.root}: expected no such folder, got one that exists; remove it, give another "
            "folder, or resume a compression that was stopped (resume=True, --resume)"
        )

    train = run_dataset(model, place, "train")
    fitted = seen(model, train, sizes.samples, sizes.batch_size)
    val = run_dataset(model, place, "val")
    unseen = seen(model, val, HELD_OUT, HELD_OUT)
    own_rank = math.ceil(rank / body.heads)
    layers = []
    students = []
    with hold(target.root, report):
        known = {"run": str(place.root.resolve()), **settings}
        progress = Progress(stages, known, resume)
        for number, block in enumerate(model.body.blocks):
            fitting = Fitting(
                block.operator,
                own_rank,
                fitted[number],
                held_out=unseen[number],
                **factors,
            )
            row = fit_layer(progress, number + 1, fitting, sizes.steps, report)
            layers.append({"layer": number + 1, **row})
            students.append(fitting.student)

        student = _with_operators(model, students, own_rank, factors)
        _write(place, target, student, model.extra)
        recipe = place.load_recipe()
        loader = make_loader(val, recipe.data.eval_batch_size)
        calibrate(target, task_of(val), loader)
        result = {
            "run": str(place.root),
            "rank": rank,
            "rank_per_head": own_rank,
            "layers": layers,
            "settings": settings,
            "before": evaluate(place.root),
            "after": evaluate(target.root),
        }
        write_json(written, result)
        shutil.rmtree(stages)
    return result


# --- a layer --------------------------------------------------------------------------------------


class Signals(LabelledDataset):
    """Batches (u, domain), repeated until there are ``steps`` of them."""

    def __init__(
        self,
        batches: Sequence[tuple[Any, Any]],
        steps: int,
    ):
        super().__init__("signals", "train", torch.zeros(steps), ())
        self.batches = batches

    def raw(self, indices: Indices) -> tuple[Any, Tensor]:
        """Return one batch, and the indices of its samples."""
        u, domain = self.batches[int(indices[0]) % len(self.batches)]
        return (u, domain), torch.arange(len(u))


class Factors(Learner):
    """Fit a low-rank operator to the responses of the exact one, and to rows of its matrix."""

    def __init__(self, fitting: Fitting, steps: int):
        def loader(rank: int, world_size: int) -> Any:
            return make_loader(Signals(fitting.batches, steps), 1, shuffle=True)

        super().__init__(fitting.student, loader, Descent(LR), seed=0)
        self.fitting = fitting
        self.steps = steps
        self.plateau = Plateau(PATIENCE)

    def trained(self) -> list[nn.Parameter]:
        return list(self.fitting.student.kernel.parameters())

    def configure_optimizers(self):
        optimizer, schedule = optimizer_of(self.fitting, LR, self.steps)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def transfer_batch_to_device(
        self,
        batch: Any,
        device: Any,
        dataloader_idx: int,
    ) -> Any:
        (u, domain), labels = batch
        return (u.to(device), domain.to(device)), labels

    def on_train_start(self) -> None:
        self.fitting.teacher.to(self.device)

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        return self.fitting.loss(*inputs)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        if self.plateau.reached(float(loss.detach())):
            self.trainer.should_stop = True
        return loss

    # A resumed fit ends at the same step only if it continues the count of steps without progress.
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["plateau"] = vars(self.plateau).copy()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        vars(self.plateau).update(checkpoint["plateau"])


def fit_layer(
    progress: Progress,
    number: int,
    fitting: Fitting,
    steps: int,
    report: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Fit a layer, resume it or read it; return the fields of its :class:`CompressionReport`.

    Afterwards ``fitting.student`` is the fitted operator. ``report`` receives lines of progress.
    """
    key = f"layer-{number}"
    if key in progress.done:
        # The student has the exact operator's precision and residual before its weights are read.
        fitting.operator()
        progress.restore(key, fitting.student)
        return progress.done[key]

    fitted = fit(
        Factors(fitting, steps),
        limits=Limits(epochs=1, clip_norm=None),
        # The last weights are the result, and the student has them.
        keep=lambda model: None,
        saving=continuing(progress.folder and progress.folder / key),
    )
    operator, found = fitting.finish(fitted.rows[-1]["step"])
    progress.keep(key, operator)
    if report:
        report(f"layer {number}: {found}")
    return progress.get(key, lambda: dataclasses.asdict(found))


def seen(
    model: Any,
    dataset: Any,
    samples: int,
    batch_size: int,
) -> list[list[tuple[Any, Any]]]:
    """Return the signals that each block's operator reads on the first samples of a data set.

    All of them stay in memory: samples × N × D numbers per block. They have no gradients.

    Args:
        model: a model with one operator per block, in evaluation mode.
        samples: number of samples; a smaller data set gives all of its own.
        batch_size: samples per batch.

    Returns:
        One list per block, the first block first, of one pair per batch: the signal u (B, N, D) and
        its domain.
    """
    signals: list[list[tuple[Any, Any]]] = [[] for _ in model.body.blocks]
    chosen = torch.arange(min(samples, len(dataset)))
    for indices in chosen.split(batch_size):
        inputs, _ = dataset.batch(indices)
        for layer, (_, u, domain) in zip(signals, model.trace(inputs)):
            layer.append((u, domain))
    return signals


def _with_operators(
    model: Any,
    operators: Sequence[LowRankITNetOperator],
    rank: int,
    options: dict[str, Any],
) -> models.Model:
    """Return a copy of a model with other operators in its blocks."""
    states = {}
    for key, value in model.state_dict().items():
        if ".operator." not in key:
            states[key] = value
    for number, operator in enumerate(operators):
        for key, value in operator.state_dict().items():
            states[f"body.blocks.{number}.operator.{key}"] = value

    # All layers have the same configuration; the last one stands for it.
    config = low_rank_config(model.config, operators[-1], rank, options)
    result = models.Model(config)
    result.load_state_dict(states, strict=True)
    return result.eval()


def low_rank_config(
    config: Any,
    low: LowRankITNetOperator,
    rank: int,
    options: dict[str, Any],
) -> Any:
    """Return the configuration of a model with low-rank operators like ``low``."""
    fourier: Any = low.kernel.fourier
    fields = {
        "rank": rank,
        "frequencies": fourier.frequencies,
        **options,
    }
    if isinstance(fourier.matrix, torch.nn.Parameter):
        fields["learned_frequencies"] = True
    return config.replace(body={"operator": "itnet_low_rank", "operator_options": fields})


def _write(
    place: RunFolder,
    target: RunFolder,
    model: Any,
    extra: dict[str, Any],
) -> None:
    """Write the run folder of the compressed model: its recipe, imported files and weights."""
    recipe = place.load_recipe()
    body = model.config.body
    recipe.operator = type(recipe.operator)(name=body.operator, **body.operator_options)
    recipe.name = target.root.name

    # Only the imported files are copied, nothing else that lies beside them.
    for source in recipe.imports:
        target.code.mkdir(exist_ok=True)
        shutil.copyfile(source, target.code / Path(source).name)
    recipe = recipe.model_copy(update={"imports": portable(recipe)})
    save_recipe(recipe, target.recipe)
    models.save_pretrained(model, target.model, **extra)
