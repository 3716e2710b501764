"""The course of a search: sizes, rungs of successive halving, finalists."""

from __future__ import annotations

import json
import math
import shlex
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...errors import FredholmError, OptionError
from ...files import write_json
from ..build import build_model
from ..comparison.budgets import count_points, make_recipe, refusal, solve_size
from ..comparison.tasks import ComparedTask, Contender, find_task, options_of, read_contenders
from ..failures import TrainingFailed
from ..grid import Cell, Grid, Report, quiet, recipe_cell, safe_name
from ..recipe import Recipe
from ..tasks import task_of
from . import report as words
from .clock import FEWEST, Clock, Pace, rounds_of, share_steps
from .growth import growth
from .plain import PLAIN, serves
from .splits import Splits
from .trial import measure_of, run_trial
from .verdict import conclude

RESULTS = "choice.json"
FINALISTS = 3
RATES = (1 / 3, 1.0, 3.0)  # times the recipe's learning rate
SHARES = (0.25, 0.25)  # of the time left, for the first rung and for each later one
LAST = 0.9  # of the time left, for the finalists
# What a recipe says of its length and its averages is replaced, and samples are not blended.
NEUTRAL = (
    "training.epochs=null", "training.max_minutes=null", "training.ema_decay=null",
    "training.early_stop=null", "data.mixup=0.0", "data.cutmix=0.0", "schedule.name=cosine",
    "schedule.warmup_epochs=0",
)  # fmt: skip
Row = dict[str, Any]
Alive = list[tuple[str, float | None]]  # contenders and their learning rates; None: not yet chosen


def choose(source: str | Path, minutes: float = 30.0, **given: Any) -> dict[str, Any]:
    """Find the operator that suits a data set, in ``minutes``; write ``choice.json``,
    ``choice.md`` and ``index.html``, and return what the first of them holds.

    Every operator and baseline gets the same backbone, at equal parameters. Rungs of successive
    halving compare them at three learning rates on validation samples and keep the better half;
    the last ones are trained with several seeds beside gradient boosting on simple features, and
    these alone are judged on the test split. The pick is the best on validation. The same call
    goes on where an earlier one stopped, with the time that is left. Arguments are those of
    :func:`open_search`.

    Raises:
        OptionError: no minutes, no seeds, an unknown operator, or a folder of another search.
        RecipeError, DataError: a source that cannot be read.
        TrainingFailed: every trial failed.
        Interrupted: Ctrl-C; the same call goes on.
    """
    return open_search(source, minutes, **given).run()


def open_search(
    source: str | Path,
    minutes: float = 30.0,
    *,
    operators: str | None = None,
    out: str | Path | None = None,
    changes: Sequence[str] = (),
    seeds: int = 5,
    always: Sequence[str] = (),
    command: str | None = None,
    report: Report | None = None,
    timer: Callable[[], float] = time.perf_counter,
) -> Search:
    """A search, before or after its beginning.

    Args:
        source: files of the user's, or a recipe.
        minutes: of all of it.
        operators: see :func:`fredholm.training.comparison.tasks.read_contenders`; None: all, and
            all baselines.
        out: the folder; ``runs/compare-NAME`` by default.
        changes: overrides of the recipe.
        seeds: of the finalists, as many as fit.
        always: operators that are finalists whatever they reach.
        command: that trains on the source, for the recommendation.
        report: receives lines of progress.
        timer: see :class:`.clock.Clock`.
    """
    if not (minutes > 0 and math.isfinite(minutes)):
        raise OptionError(f"minutes: received {minutes}; needs a positive number")
    if seeds < 1:
        raise OptionError(f"seeds: received {seeds}; needs 1 or more")
    task = find_task(str(source), tuple(changes))  # its imports register operators
    contenders = read_contenders(operators)
    place = Path(out or Path("runs") / f"compare-{task.name}")
    setting = {"source": str(source), "minutes": minutes, "changes": list(changes)}
    setting |= {"operators": [c.label for c in contenders], "seeds": seeds, "always": [*always]}
    search = Search.open(task, contenders, place, setting, report or quiet, timer)
    given = shlex.join(["fredholm", "train", str(source), *changes])
    search.state["command"] = command or given
    return search


@dataclass
class Search:
    """A search under way; ``state`` is what ``choice.json`` holds.

    Attributes:
        task, contenders: what is compared on what.
        place: folder of the results.
        splits: the data.
        clock: the time.
        say: receives lines of progress.
    """

    task: ComparedTask
    contenders: dict[str, Contender]
    place: Path
    state: dict[str, Any]
    splits: Splits
    clock: Clock
    say: Report

    @classmethod
    def open(
        cls,
        task: ComparedTask,
        contenders: list[Contender],
        place: Path,
        setting: dict[str, Any],
        say: Report,
        timer: Callable[[], float],
    ) -> Search:
        """Begin a search, or go on with the one in its folder.

        Raises:
            OptionError: a folder of a search with another setting.
        """
        state = _read(place / RESULTS)
        if state and state["setting"] != setting:
            raise OptionError(
                f"{place}: holds a comparison with {state['setting']}; received {setting}; choose "
                "another --out"
            )
        clock = Clock(setting["minutes"], state.get("spent", 0.0), timer)
        splits = Splits(make_recipe(task, Contender("softmax", "softmax", {})))
        for line in splits.train.remarks():
            say(line)
        known = {contender.label: contender for contender in contenders}
        search = cls(task, known, place, state, splits, clock, say)
        if not state:
            state |= {"setting": setting} | search._facts()
        return search

    def _facts(self) -> dict[str, Any]:
        """What is compared on what."""
        train, recipe = self.splits.train, self.splits.recipe
        name, higher = measure_of(train)
        batch = min(recipe.data.batch_size, len(self.splits.fold(0)[0]))
        full = recipe.training.steps
        if recipe.training.epochs is not None:
            by_epochs = recipe.training.epochs * max(1, len(train) // batch)
            full = by_epochs if full is None else min(full, by_epochs)
        return {
            "name": self.task.name,
            "title": self.task.title,
            "kind": train.kind.many,
            "task": train.task,
            "classes": list(train.classes),
            "samples": {"train": len(train), "val": len(self.splits.val)},
            "folds": self.splits.folds,
            "measure": name if higher else task_of(train).measure,
            "higher": higher,
            "batch": batch,
            "full_steps": max(1, full or 1),
            "lr": recipe.optimizer.lr,
            "sizes": {},
            "rungs": [],
            "finals": {"steps": {}, "rows": []},
        }

    # --- the course -------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """All of it; what is there already is read."""
        self.say(
            f"{self.task.name}: {len(self.contenders)} operators and baselines, "
            f"{self.clock.minutes:g} minutes ({self.clock})"
        )
        self.measure()
        alive: Alive = [(label, None) for label in self.serving]
        if not alive:
            why = next(iter(self.state["sizes"].values()))
            raise TrainingFailed(
                f"{self.task.name}: no operator serves it: {why.get('refused', why)}"
            )
        number = 0
        while number == 0 or len(alive) > FINALISTS:
            kept = self.rung(number, alive)
            if not kept:  # no time for another rung: the best of the last one
                break
            alive, number = kept, number + 1
        self.finals(self._finalists(alive[:FINALISTS]), self.state["setting"]["seeds"])
        return self.end()

    @property
    def serving(self) -> list[str]:
        return [label for label, size in self.state["sizes"].items() if "refused" not in size]

    def measure(self) -> None:
        """The width of every contender, and the time of its training step."""
        sizes = self.state["sizes"]
        for label, contender in self.contenders.items():
            if label in sizes:
                continue
            sizes[label] = self._size(contender)
            if "refused" in sizes[label]:
                self.say(f"{label}: does not serve this task: {sizes[label]['refused']}")
            else:
                size = sizes[label]
                self.say(
                    f"{label}: width {size['dim']}, {size['parameters']:,} parameters "
                    f"({size['off']:+.1%}), {1e3 * size['step']:.1f} ms a step ({self.clock})"
                )
            self._save()

    def _size(self, contender: Contender) -> dict[str, Any]:
        train = self.splits.train
        why = refusal(self.task, contender, train, ())
        if why:
            return {"refused": why.partition("\n")[0]}
        size = solve_size(self.task, contender, train, "params")
        recipe = make_recipe(self.task, contender, (f"model.body.dim={size.dim}",))
        model: Any = build_model(recipe, train)
        whole = self.state["batch"]
        few = min(2, whole)
        once = _step_seconds(model, train, few, 1, self.clock.timer) * whole / few
        # A step of which not even the fewest fit in the time of a trial is not tried as a whole.
        hopeless = once * FEWEST > 60 * self.clock.minutes / 4
        step = once if hopeless else _step_seconds(model, train, whole, 4, self.clock.timer)
        return asdict(size) | {"step": step, "points": count_points(train, model)}

    def rung(self, number: int, alive: Alive) -> Alive:
        """Try contenders on validation, each at its learning rate or at all; the better half with
        their rates.
        """
        while len(self.state["rungs"]) <= number:
            self.state["rungs"].append(self._plan_rung(number, alive))
        rung, found = self.state["rungs"][number], {}
        if not rung["steps"]:
            return []
        cells = list(self._rung_cells(number, rung["steps"], alive))
        for place, (label, lr, cell) in enumerate(cells, 1):
            if self.clock.left < 0.1 * 60 * self.clock.minutes and not self._known(cell):
                rung["cut"] = f"{place - 1} of {len(cells)} trials"
                self.say(f"the time of the rung is up after {rung['cut']}")
                break
            row = {"operator": label, "lr": lr, "fold": cell.settings["fold"]}
            row |= self._compute(cell)
            found.setdefault((label, lr), []).append(row)
            self.say(f"[{place}/{len(cells)}] {self._line(row)}")
        rung["rows"] = [row for rows in found.values() for row in rows]
        kept = self._better_half(found, len(alive))
        rung["kept"] = [[label, lr] for label, lr in kept]
        names = ", ".join(f"{label} (lr {lr:.2g})" for label, lr in kept)
        self.say(f"rung {number + 1}: kept {names} ({self.clock})")
        self._save()
        return kept

    def _plan_rung(self, number: int, alive: Alive) -> dict[str, Any]:
        folds = self._folds(number)
        trials = len(folds) * (len(RATES) if alive[0][1] is None else 1)
        paces = {label: self._pace(label) for label, _ in alive}
        seconds = SHARES[min(number, len(SHARES) - 1)] * max(self.clock.left, 1.0)
        steps = share_steps(paces, trials, seconds, self.state["full_steps"])
        for label in [label for label, count in steps.items() if not count]:
            step = self.state["sizes"][label]["step"]
            self.say(f"{label}: left out, {FEWEST} steps of {step:.1f} s do not fit in its share")
        if not any(steps.values()) and number == 0:
            raise OptionError(
                f"minutes: received {self.clock.minutes:g}; {FEWEST} steps of no operator fit in a "
                "share of them, give more"
            )
        return {"steps": {label: n for label, n in steps.items() if n}, "seconds": seconds}

    def _folds(self, number: int) -> list[int]:
        """Which validation splits a rung is judged on."""
        return [0] if number == 0 or self.state["folds"] == 1 else [2 * number - 1, 2 * number]

    def _rung_cells(
        self, number: int, steps: dict[str, int], alive: Alive
    ) -> Iterator[tuple[str, float, Cell]]:
        rates = [self.state["lr"] * rate for rate in RATES]
        middle_first = sorted(rates, key=lambda lr: abs(math.log(lr / self.state["lr"])))
        for lr in middle_first if alive[0][1] is None else [None]:
            for fold in self._folds(number):
                for label, own in alive:
                    if label in steps:
                        rate = own if lr is None else lr
                        assert rate is not None
                        yield label, rate, self._cell(label, rate, steps[label], number, fold)

    def _better_half(self, found: dict[Any, list[Row]], count: int) -> Alive:
        """The best contenders, each at its best rate, the best one first."""
        best: dict[str, tuple[Any, float]] = {}
        for (label, lr), rows in found.items():
            good = [row for row in rows if "error" not in row]
            if good:
                key = self._key(good)
                if label not in best or key > best[label][0]:
                    best[label] = (key, lr)
        if not best:
            failed = next((row["error"] for rows in found.values() for row in rows), "no time")
            raise TrainingFailed(f"{self.task.name}: every trial failed: {failed}")
        order = sorted(best, key=lambda label: best[label][0], reverse=True)
        keep = max(FINALISTS, math.ceil(count / 2))
        return [(label, best[label][1]) for label in order[: min(keep, max(1, count - 1))]]

    def _key(self, rows: list[Row]) -> tuple[float, float]:
        sign = 1 if self.state["higher"] else -1
        score = statistics.fmean(row["val"]["score"] for row in rows)
        return sign * score, -statistics.fmean(row["val"]["loss"] for row in rows)

    def _finalists(self, alive: Alive) -> Alive:
        """The last ones, those that are always, and the methods beside the operators."""
        chosen = [*alive]
        for label in self.state["setting"]["always"]:
            if label in self.serving and label not in dict(chosen):
                chosen.append((label, self.best_rate(label)))
        plain = [name for name in PLAIN if serves(name, self.splits.train) is None]
        return [*chosen, *((name, None) for name in plain)]

    def best_rate(self, label: str) -> float:
        """The learning rate at which a contender was best in the first rung."""
        rows = [r for r in self.state["rungs"][0]["rows"] if r["operator"] == label]
        good = [row for row in rows if "error" not in row]
        return max(good, key=lambda row: self._key([row]))["lr"] if good else self.state["lr"]

    def finals(self, finalists: Alive, seeds: int) -> None:
        """Train finalists seed by seed and judge them on the test split too."""
        finals = self.state["finals"]
        trained = [label for label, lr in finalists if lr is not None]
        paces = {label: self._pace(label, test=True) for label in trained}
        if any(label not in finals["steps"] for label in trained):
            seconds = LAST * max(self.clock.left, 1.0)
            new = share_steps(paces, seeds, seconds, self.state["full_steps"])
            least = {label: max(FEWEST, self._tried(label)) for label in trained}
            # Fewer seeds rather than less training than the rungs had.
            finals["steps"] |= {label: max(n, least[label]) for label, n in new.items()}
            self._save()
        rows = {(row["operator"], row["seed"]): row for row in finals["rows"]}
        steps = {label: finals["steps"][label] for label in trained}
        for seed in range(seeds):
            cells = [
                (label, lr, self._cell(label, lr, steps.get(label, 0), -1, seed, seed=seed))
                for label, lr in finalists
            ]
            late = rounds_of(paces, steps) > self.clock.left
            if seed and late and not all(self._known(cell) for _, _, cell in cells):
                self.say(f"the time is up after {seed} of {seeds} seeds ({self.clock})")
                break
            for label, lr, cell in cells:
                row = {"operator": label, "lr": lr, "seed": seed} | self._compute(cell)
                rows[label, seed] = row
                self.say(f"final, seed {seed}: {self._line(row)}")
            finals["rows"] = list(rows.values())
            self._save()

    def outsiders(self) -> list[Row]:
        """For evidence alone: what the operators that are no finalists reach on the test split with
        one seed and as many steps as the finalists, or as fit in twice as long.
        """
        finals, rows = self.state["finals"], []
        steps = max(finals["steps"].values())
        seconds = [self._pace(label, test=True).seconds(n) for label, n in finals["steps"].items()]
        for label in self.serving:
            if label in finals["steps"]:
                continue
            pace, lr = self._pace(label, test=True), self.best_rate(label)
            fits = int((2 * statistics.fmean(seconds) - pace.judging) / pace.step)
            if fits < FEWEST:
                self.say(f"{label}: left out, {FEWEST} of its steps take too long")
                continue
            cell = self._cell(label, lr, min(steps, fits), -1, 0)
            rows.append({"operator": label, "lr": lr, "seed": 0} | self._compute(cell))
            self.say(f"beside the finalists: {self._line(rows[-1])}")
        return rows

    def end(self) -> dict[str, Any]:
        """The recommendation, what longer samples cost, and the tables."""
        state = self.state
        state["verdict"] = conclude(state["finals"]["rows"], state["higher"])
        if not state["verdict"]:
            failed = state["finals"]["rows"][0]["error"]
            raise TrainingFailed(f"{self.task.name}: every finalist failed: {failed}")
        grown = state.setdefault("growth", {})
        for line in state["verdict"]["table"]:
            label = line["operator"]
            if label not in PLAIN and label not in grown:
                body = build_model(
                    self._recipe(label, line["lr"], 1), self.splits.train
                ).config.body  # type: ignore[union-attr]
                grown[label] = growth(body, state["sizes"][label]["points"])
        state["verdict"]["train"] = self._command()
        self._save()
        words.write(self.place, state)
        return state

    # --- parts of it ------------------------------------------------------------------------------

    def _tried(self, label: str) -> int:
        return max((rung["steps"].get(label, 0) for rung in self.state["rungs"]), default=0)

    def _pace(self, label: str, test: bool = False) -> Pace:
        """Judging is a forward pass, a third of a step, of each sample."""
        step = self.state["sizes"][label]["step"]
        judged = len(self.splits.fold(0)[1]) + (4 * len(self.splits.test) if test else 0)
        return Pace(step, step / self.state["batch"] * judged / 3)

    def _recipe(self, label: str, lr: float | None, steps: int, seed: int = 0) -> Recipe:
        size = self.state["sizes"].get(label, {})
        changes = [*NEUTRAL, f"training.steps={max(1, steps)}", f"seed={seed}"]
        changes += [f"schedule.warmup_steps={max(1, steps // 10)}"]
        changes += [f"data.batch_size={self.state['batch']}"]
        changes += [f"optimizer.lr={lr!r}"] if lr is not None else []
        changes += [f"model.body.dim={size['dim']}"] if "dim" in size else []
        contender = self.contenders.get(label, Contender("softmax", "softmax", {}))
        return make_recipe(self.task, contender, tuple(changes))

    def _cell(
        self, label: str, lr: float | None, steps: int, rung: int, fold: int, seed: int = 0
    ) -> Cell:
        """A trial; rung -1 is the final one."""
        fold = fold % self.state["folds"]
        if label in PLAIN:  # the same with every seed
            seed = fold
        recipe = self._recipe(label, lr, steps, seed)
        seconds = self._pace(label, rung < 0).seconds(steps) if label not in PLAIN else 60.0
        settings = recipe_cell(recipe, self.place).settings | {"fold": fold, "test": rung < 0}
        settings |= {"method": label if label in PLAIN else "model"}
        most = None if self.clock.alone else round(max(3 * seconds, 5.0) / 60, 4)
        settings |= {"most_minutes": most}
        rate = "" if lr is None else f",lr={lr:.3g}"
        part = "final" if rung < 0 else f"rung={rung}"
        name = f"{part},{safe_name(label)}{rate},fold={fold},seed={seed}"
        return Cell(settings, self.place / "trials" / name, recipe)

    def _grid(self) -> Grid:
        return Grid(partial(run_trial, self.splits))

    def _known(self, cell: Cell) -> bool:
        return self._grid().read(cell) is not None

    def _compute(self, cell: Cell) -> Row:
        return self._grid().compute(cell)

    def _line(self, row: Row) -> str:
        rate = "" if row["lr"] is None else f" lr {row['lr']:.2g}"
        what = f"{row['operator']}{rate}"
        if "error" in row:
            return f"{what}: failed: {row['error']} ({self.clock})"
        measure, after = self.state["measure"], f"in {row['seconds']:.1f} s ({self.clock})"
        return f"{what}: val {measure} {row['val']['score']:.4g}, {row['steps']} steps {after}"

    def _command(self) -> str | None:
        """The command that trains the best operator in full."""
        verdict = self.state["verdict"]
        label = verdict["operator"]
        if label is None:
            return None
        line = next(line for line in verdict["table"] if line["operator"] == label)
        contender = self.contenders[label]
        options = options_of(self.task, contender)
        chosen = json.dumps({"name": contender.name, **options}) if options else contender.name
        parts = [o for o in self.task.overrides if o not in self.state["setting"]["changes"]]
        parts += [f"operator={chosen}", f"model.body.dim={self.state['sizes'][label]['dim']}"]
        parts += [f"optimizer.lr={line['lr']:.3g}"]
        return f"{self.state['command']} {shlex.join(parts)}"

    def _save(self) -> None:
        self.state["spent"] = round(self.clock.spent, 2)
        self.place.mkdir(parents=True, exist_ok=True)
        write_json(self.place / RESULTS, self.state)


def _step_seconds(
    model: Any, dataset: Any, batch: int, repeats: int, timer: Callable[[], float]
) -> float:
    """Seconds of a training step: the shortest, which other work on the machine disturbs least."""
    optimizer, task = torch.optim.AdamW(model.parameters(), lr=1e-4), task_of(dataset)
    inputs, labels = dataset.batch(torch.arange(min(batch, len(dataset))))
    times = []
    for _ in range(repeats):
        start = timer()
        optimizer.zero_grad()
        task.loss(model.train()(inputs), labels).backward()
        optimizer.step()
        times.append(timer() - start)
    return min(times)


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise FredholmError(f"{path}: cannot be read ({error}); delete it and run again") from error
