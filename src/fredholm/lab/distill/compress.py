"""A trained run's exact operators as low-rank ones: a new run folder and a report."""

from __future__ import annotations

import dataclasses
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
from ..training.calibration import calibrate
from ..training.checkpoints import list_checkpoints
from ..training.evaluation import evaluate, load_run, run_dataset
from ..training.fit import Limits, fit
from ..training.folder import RunFolder, portable
from ..training.learner import Descent, Learner
from ..training.leases import hold
from ..training.recipe_files import save_recipe
from ..training.tasks import task_of
from .progress import Progress, check_settings, digest_weights

REPORT = "compression.json"
STAGES = "layers"  # what is done so far, until all is
LR, PATIENCE = 1e-2, 200  # of :func:`fredholm.operators.compress`
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
    resume: bool = False,
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
        resume: go on with what was stopped in the new folder; what is finished is read.
        report: receives one line a layer.
        trust_code: see :func:`fredholm.training.load_run`.

    Returns: what ``compression.json`` holds: layers, and test results before and after.

    Raises:
        TrustError: the run's recipe imports a file, and ``trust_code`` is not given.
        OptionError: a folder that is there already, an impossible number, a model that is not built
            of blocks with one operator.
        ConversionError: operators without a low-rank form.
        CheckpointError: no run or no model there.
        RecipeError: the compression to resume was started otherwise.
        InUseError: another process is at work in the new folder.
        Interrupted: Ctrl-C; ``resume=True`` goes on.
    """
    model, place = load_run(run, trust_code=trust_code)
    extra = model.extra
    target = RunFolder(
        Path(out) if out is not None else place.root.with_name(f"{place.root.name}-rank{rank}")
    )
    if min(rank, samples, batch_size, steps, 1 if width is None else width) < 1:
        raise OptionError(
            f"compress: received rank={rank}, samples={samples}, batch_size={batch_size}, "
            f"steps={steps}, width={width}; needs 1 or more of each"
        )
    body = model.config.body
    if body.kind != "residual" or body.operator != "itnet":
        raise ConversionError(
            f"{place.root}: compress takes a trained ITNet with the operator 'itnet'"
        )
    own = model.body.blocks[0].operator.kernel.width
    options: dict[str, Any] = {"width": own if width is None else width}
    settings = {"rank": rank, "steps": steps, "samples": samples, "batch_size": batch_size}
    settings |= {"weights": digest_weights(model), **options}
    stages, written = target.root / STAGES, target.root / REPORT
    if resume and written.is_file():
        known = read_state(written)
        check_settings(target.root, known["settings"], settings)
        return known
    if target.root.exists() and not (resume and (stages / "progress.json").is_file()):
        raise OptionError(
            f"{target.root}: exists; remove it, or give another folder (or resume=True, --resume, "
            "where a compression was stopped)"
        )
    fitted = seen(model, run_dataset(model, place, "train"), samples, batch_size)
    val = run_dataset(model, place, "val")
    unseen = seen(model, val, HELD_OUT, HELD_OUT)  # every one is decomposed
    own_rank = -(-rank // body.heads)
    layers, states = [], {}
    with hold(target.root, report):
        progress = Progress(stages, {"run": str(place.root.resolve()), **settings}, resume)
        for number, block in enumerate(model.body.blocks):
            fitting = Fitting(
                block.operator, own_rank, fitted[number], held_out=unseen[number], **options
            )
            row = fit_layer(progress, number + 1, fitting, steps, report)
            low = fitting.student
            layers.append({"layer": number + 1, **row})
            states |= {
                f"body.blocks.{number}.operator.{key}": value
                for key, value in low.state_dict().items()
            }
        config = low_rank_config(model.config, low, own_rank, options)
        student = models.Model(config)
        kept = {key: value for key, value in model.state_dict().items() if ".operator." not in key}
        student.load_state_dict({**kept, **states}, strict=True)
        _write(place, target, student.eval(), extra)
        size = place.load_recipe().data.eval_batch_size
        calibrate(target, task_of(val), make_loader(val, size))
        result = {"run": str(place.root), "rank": rank, "rank_per_head": own_rank, "layers": layers}
        result |= {"settings": settings}
        result |= {"before": evaluate(place.root), "after": evaluate(target.root)}
        write_json(written, result)
        shutil.rmtree(stages)
    return result


# --- a layer --------------------------------------------------------------------------------------


class Signals(LabelledDataset):
    """Batches (u, domain), again and again until there are ``steps``."""

    def __init__(self, batches: Sequence[tuple[Any, Any]], steps: int):
        super().__init__("signals", "train", torch.zeros(steps), ())
        self.batches = batches

    def batch(self, indices: Any, transform: Any = None) -> tuple[Any, Tensor]:
        """One batch, and the numbers of its samples."""
        u, domain = self.batches[int(indices[0]) % len(self.batches)]
        return (u, domain), torch.arange(len(u))


class Factors(Learner):
    """A low-rank operator learns what the exact one responds, and rows of its matrix."""

    def __init__(self, fitting: Fitting, steps: int):
        def loader(rank: int, world_size: int) -> Any:
            return make_loader(Signals(fitting.batches, steps), 1, shuffle=True)

        super().__init__(fitting.student, loader, Descent(LR), seed=0)
        self.fitting, self.steps, self.plateau = fitting, steps, Plateau(PATIENCE)

    def trained(self) -> list[nn.Parameter]:
        return list(self.fitting.student.kernel.parameters())

    def configure_optimizers(self):
        optimizer, schedule = optimizer_of(self.fitting, LR, self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
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
    """One layer's report: fitted, resumed, or read; ``fitting.student`` is its operator."""
    key = f"layer-{number}"
    if key not in progress.done:
        place = progress.folder and progress.folder / key
        fitted = fit(
            Factors(fitting, steps),
            limits=Limits(epochs=1, clip_norm=None),
            keep=lambda model: None,  # the last weights, which the student has
            folder=place,
            resume=place is not None and bool(list_checkpoints(place / "checkpoints")),
            again="continue with resume=True, or the same command and --resume",
        )
        low, found = fitting.finish(fitted.rows[-1]["step"])
        progress.keep(key, low)
        if report:
            report(f"layer {number}: {found}")
        return progress.get(key, lambda: dataclasses.asdict(found))
    fitting.operator()
    progress.restore(key, fitting.student)
    return progress.done[key]


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
    for source in recipe.imports:  # the files themselves, and nothing else that lies beside them
        target.code.mkdir(exist_ok=True)
        shutil.copyfile(source, target.code / Path(source).name)
    save_recipe(recipe.model_copy(update={"imports": portable(recipe)}), target.recipe)
    models.save_pretrained(model, target.model, **extra)
