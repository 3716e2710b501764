"""The conversion report: every layer, what was kept, new and refused, how well attention and task
were recovered, speed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from ..files import write_json
from .card import softmax_tokens
from .divergence import ExactDivergence
from .replaced import Replaced

FORMAT = 1

# The scores of a report in their order, and the words for them.
STAGES = {
    "teacher": "teacher",
    "before": "replaced",
    "distilled": "distilled",
    "matched": "matched",
    "lengthened": "lengthened",
    "tuned": "tuned",
}


@dataclass(frozen=True)
class LayerReport:
    """One layer: its facts, the names of parameters kept and new and how many numbers they hold,
    and the exact divergence of its attention from the teacher's in nats.

    ``before`` and ``after`` the maps are distilled, the mean over rows (a query and a head each)
    where it is finite; None where it was not measured. ``zeros_before`` and ``zeros_after`` count
    the rows where it is infinite: the student gives nothing to a key that the teacher weighs.
    Reports of the first format have neither count. Buffers, such as random frequencies, are not
    parameters, and a parameter that two names share counts once.
    """

    name: str
    kind: str
    heads: int
    groups: int
    width: int
    causal: bool
    dropped: float
    kept: list[str]
    new: list[str]
    before: float | None = None
    after: float | None = None
    kept_numbers: int | None = None
    new_numbers: int | None = None
    zeros_before: int | None = None
    zeros_after: int | None = None


@dataclass
class ConversionReport:
    """Report of a conversion by :func:`fredholm.linearize`.

    Attributes:
        source: class of the model.
        to, options, tied: the map; ``window``: the last tokens on which causal layers keep softmax;
            ``sinks``: the first, on which they keep it too; ``store``: those of each group between
            both; ``decay``: by what all others fade; ``keep``: groups of heads that keep it on all
            tokens, by layer.
        dropped_options: options of the source's softmax that do not apply to the new operator.
        ranking: of groups of heads by retrieval, where they were probed, see
            :func:`fredholm.lab.distill.retrieval.rank_groups`.
        layers, refused: see :class:`LayerReport`; refused modules with the reason.
        data: what it was trained on.
        parameters, new_parameters: numbers of the converted model, and of those that are new.
        metric: name of the score; ``scores`` holds it for ``teacher``, ``before``, ``distilled``
            (after the maps' stage), ``matched`` (after the teacher's logits), ``lengthened`` and
            ``tuned``.
        mode: whether more (``"max"``) or less (``"min"``) of it is better.
        epochs: of each stage; ``minutes`` likewise.
        speed: rows of ``length``, milliseconds and peak bytes of teacher and student, for one
            forward pass of batch 1.
        receipt: for a decoder, its cost and its losses by length; see
            :mod:`fredholm.lab.distill.receipt`.
    """

    source: str
    to: str
    options: dict[str, Any]
    tied: bool
    layers: list[LayerReport]
    refused: dict[str, str]
    parameters: int
    new_parameters: int
    data: str | None = None
    metric: str | None = None
    mode: str | None = None
    scores: dict[str, float] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    minutes: dict[str, float] = field(default_factory=dict)
    speed: list[dict[str, float]] = field(default_factory=list)
    window: int | None = None
    sinks: int = 0
    store: int = 0
    decay: str | None = None
    keep: dict[str, list[int]] = field(default_factory=dict)
    dropped_options: dict[str, Any] = field(default_factory=dict)
    ranking: list[dict[str, Any]] = field(default_factory=list)
    receipt: dict[str, Any] | None = None
    format: int = FORMAT

    @classmethod
    def of(cls, replaced: Replaced, source: str) -> ConversionReport:
        """Return the report of a model whose attention was replaced and not yet trained."""
        result = dict(replaced.model.named_parameters(remove_duplicate=False))
        rows = [
            LayerReport(
                *(x.name, x.kind, x.heads, x.groups, x.width, x.causal, x.dropout),
                list(x.kept),
                list(x.new),
                kept_numbers=x.numbers,
                new_numbers=_count(result[name] for name in x.new),
            )
            for x in replaced.layers
        ]
        return cls(
            source=source,
            to=replaced.to,
            options=replaced.options,
            tied=replaced.tied,
            layers=rows,
            refused=dict(replaced.refused),
            parameters=_count(result.values()),
            new_parameters=_count(replaced.new_parameters().values()),
            window=replaced.window,
            sinks=replaced.sinks,
            store=replaced.store,
            decay=replaced.decay,
            keep={name: list(groups) for name, groups in replaced.keep.items()},
            dropped_options=replaced.dropped_options,
        )

    def measured(
        self,
        when: str,
        found: Mapping[str, ExactDivergence | Sequence[float] | float],
    ) -> None:
        """Record the layers' divergences ``"before"`` or ``"after"`` the maps are distilled.

        Args:
            found: by layer, as measured, as a list of its three values, or as the mean alone, which
                folders of earlier versions have.
        """
        rows = []
        for row in self.layers:
            value = found[row.name]
            changes: dict[str, Any] = {}
            if isinstance(value, float | int):
                changes[when] = float(value)
            else:
                exact = ExactDivergence(value[0], int(value[1]), int(value[2]))
                changes[f"zeros_{when}"] = exact.zero_rows
                # JSON has no NaN for a mean over nothing.
                changes[when] = None
                if exact.rows:
                    changes[when] = exact.mean
            rows.append(dataclasses.replace(row, **changes))
        self.layers = rows

    @property
    def smaller(self) -> bool:
        """Whether the smaller score is the better one."""
        return self.mode == "min"

    @property
    def recovered(self) -> float | None:
        """Percentage of the teacher's score that the converted model has after its last stage; None
        if less is better, or if the teacher's score is negative.
        """
        teacher, student = self.scores.get("teacher"), self._last()
        if self.smaller or not teacher or teacher < 0 or student is None:
            return None
        return 100.0 * student / teacher

    @property
    def ratio(self) -> float | None:
        """The converted model's score divided by the teacher's; None if more is better."""
        teacher, student = self.scores.get("teacher"), self._last()
        if not self.smaller or not teacher or student is None:
            return None
        return student / teacher

    def _last(self) -> float | None:
        """Return the score after the last stage; None before any."""
        stages = ("tuned", "lengthened", "matched", "distilled")
        return next((self.scores[key] for key in stages if key in self.scores), None)

    @property
    def crossover(self) -> int | None:
        """The shortest measured length from which on the converted model is faster; None if there
        is none.
        """
        return faster_from(self.speed, lambda row: row["student_ms"] >= row["teacher_ms"])

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as in ``conversion.json``."""
        return {
            **dataclasses.asdict(self),
            "recovered": self.recovered,
            "ratio": self.ratio,
            "crossover": self.crossover,
        }

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> ConversionReport:
        """Return the report that :meth:`to_dict` wrote."""
        known = {f.name for f in dataclasses.fields(cls)}
        values = {key: value for key, value in saved.items() if key in known}
        values["layers"] = [LayerReport(**row) for row in values["layers"]]
        return cls(**values)

    def save(self, path: str | Path) -> Path:
        """Write the report as JSON, atomically."""
        return write_json(Path(path), self.to_dict())

    def summary(self) -> list[str]:
        """Return a line for each fact about the layers, the score and the speed."""
        lines = [
            f"{self.source} → {self.to}: {len(self.layers)} attention layers converted, "
            f"{self.new_parameters:,} of {self.parameters:,} parameters are new"
        ]
        if self.window is not None:
            tokens = softmax_tokens(self.window, self.sinks, self.store)
            lines.append(f"causal layers keep softmax on {tokens}")
        if self.keep:
            count = sum(map(len, self.keep.values()))
            where = "; ".join(f"{name}: {groups}" for name, groups in self.keep.items())
            lines.append(f"groups of heads that keep softmax on all tokens: {count} ({where})")
        if self.ranking:
            best = ", ".join(f"{x['group']} {x['mass']:.2f}" for x in self.ranking[:5])
            lines.append(f"groups by their mass on what is to be retrieved: {best}, …")
        lines += [f"kept as it was: {name} ({why})" for name, why in self.refused.items()]
        rates = {row.dropped for row in self.layers if row.dropped}
        if rates:
            lines.append(
                f"dropped: dropout on attention weights ({max(rates):g}), which linear attention "
                "does not form"
            )
        if self.dropped_options:
            named = ", ".join(f"{name}={value!r}" for name, value in self.dropped_options.items())
            lines.append(f"dropped: options of softmax that do not apply to {self.to} ({named})")
        if self.data:
            lines.append(f"data: {self.data}")
        if self.scores:
            shown = ", ".join(
                f"{label} {self.scores[key]:.4f}"
                for key, label in STAGES.items()
                if key in self.scores
            )
            percent = ""
            if self.recovered is not None:
                percent = f"; {self.recovered:.1f}% recovered"
            if self.ratio is not None:
                percent = f"; {self.ratio:.3f} times the teacher's"
            lines.append(f"{self.metric}: {shown}{percent}")
        if self.receipt:
            lines.append(f"{self.receipt['sentence']}")
        if self.speed:
            where = "none measured"
            if self.crossover is not None:
                where = f"{self.crossover} tokens"
            lines.append(f"faster than its teacher from: {where}")
        return lines

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return head and rows of the layers' table."""
        head = ["layer", "kind", "heads", "kept", "new", "divergence before", "distilled"]
        rows = []
        for x in self.layers:
            heads = f"{x.heads}×{x.width}"
            if x.groups != x.heads:
                heads += f", {x.groups} of keys"
            counts = [_whole(x.kept_numbers), _whole(x.new_numbers)]
            before = _divergence(x.before, x.zeros_before)
            after = _divergence(x.after, x.zeros_after)
            rows.append([x.name, x.kind, heads, *counts, before, after])
        return head, rows

    def __str__(self) -> str:
        head, rows = self.table()
        rows = [head, *rows]
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = self.summary()
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths)]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)


def _count(parameters: Iterable[Tensor]) -> int:
    """Return how many numbers parameters hold, each parameter once."""
    distinct = {id(p): p for p in parameters}
    return sum(p.numel() for p in distinct.values())


def _whole(value: int | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}"


def _divergence(value: float | None, zeros: int | None) -> str:
    text = "–"
    if value is not None:
        text = f"{value:.4f}"
    if zeros:
        text += f" ({zeros:,} rows infinite)"
    return text


def faster_from(
    rows: list[dict[str, float]],
    slower: Callable[[dict[str, float]], bool],
) -> int | None:
    """Return the shortest measured length from which on no row is slower; None where the longest
    is.
    """
    slow = [row["length"] for row in rows if slower(row)]
    longest_slow = max(slow, default=0.0)
    fast = [row["length"] for row in rows if row["length"] > longest_slow]
    if not fast:
        return None
    return int(min(fast))
