"""The configuration of a model: an encoder's, a body's and a head's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..configuration import Configuration, from_dict, known_fields
from ..errors import OptionError, closest, suggest
from ..registry import Registry
from .bodies import BODIES, BodyConfig, ResidualConfig
from .encoders import ENCODERS, EncoderConfig, ImageConfig
from .heads import HEADS, HeadConfig, LinearConfig

Given = Mapping[str, Any] | Configuration | None


@dataclass(frozen=True)
class ModelConfig:
    """What a model is built from: ``config.encoder.patch``, ``config.body.depth``,
    ``config.head.pool``.

    Raises:
        OptionError: parts that do not fit one another.

    Example:
        >>> config = ModelConfig(ImageConfig(patch=7), ResidualConfig(dim=8, heads=2))
        >>> config.pool, config.replace(body={"depth": 1}).body.depth
        ('mean', 1)
    """

    encoder: EncoderConfig = field(default_factory=ImageConfig)
    body: BodyConfig = field(default_factory=ResidualConfig)
    head: HeadConfig = field(default_factory=LinearConfig)

    def __post_init__(self) -> None:
        encoder, body = self.encoder, self.body
        if not takes(body, type(encoder)):
            kinds = [kind for kind in ENCODERS.names() if takes(body, ENCODERS[kind])]
            raise OptionError(
                f"encoder.kind: the body {body.kind!r} cannot take {encoder.kind!r}; it takes "
                f"{', '.join(kinds)}"
            )
        if self.pool not in encoder.pools:
            raise OptionError(
                f"head.pool: received {self.pool!r}; of {encoder.kind} needs "
                f"{', '.join(encoder.pools)}{suggest(str(self.pool), encoder.pools)}"
            )
        self.head.check(encoder, self.body.width)

    @property
    def pool(self) -> str:
        """The read-out: the head's, or what the encoder usually takes."""
        return self.head.pool or self.encoder.default_pool

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input that the model is built for.

        Raises:
            OptionError: an input of several tensors.
        """
        return self.encoder.input_shape

    def replace(
        self,
        *,
        data: Mapping[str, Any] | None = None,
        encoder: Given = None,
        body: Given = None,
        head: Given = None,
    ) -> ModelConfig:
        """The configuration with some fields of its parts replaced.

        Args:
            data: what a data set says of its inputs, ``{"kind": "text", "vocabulary": 9, ...}``:
                the encoder becomes one that reads this kind and suits the body.
            encoder, body, head: fields by name, ``kind`` among them where the part becomes another
                one; or a whole configuration of the part. Another kind takes over the fields that
                both have, but for what the data say. Another operator starts from its own defaults
                unless ``operator_options`` are given.

        Raises:
            OptionError: an unknown kind or field, or values that do not fit.
        """
        new_body = _replaced(BODIES, self.body, _with_operator(self.body, body))
        fields = dict(data or {})
        kind = fields.pop("kind", None)
        if kind is not None and not isinstance(encoder, Configuration):
            chosen = dict(encoder or {})
            chosen.setdefault("kind", _reader(kind, self.encoder, new_body))
            encoder = fields | chosen
        new_encoder = _replaced(ENCODERS, self.encoder, encoder)
        old_head = self.head
        if type(new_encoder) is not type(self.encoder) and old_head.pool not in new_encoder.pools:
            old_head = dataclasses.replace(old_head, pool=None)
        return ModelConfig(new_encoder, new_body, _replaced(HEADS, old_head, head))

    def to_dict(self) -> dict[str, Any]:
        """Each part with its kind, as JSON takes them."""
        return {name: getattr(self, name).to_dict() for name in ("encoder", "body", "head")}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> ModelConfig:
        """What :meth:`to_dict` wrote.

        Raises:
            OptionError: parts, kinds or fields that are unknown.
        """
        tables: dict[str, Registry[Any]] = {"encoder": ENCODERS, "body": BODIES, "head": HEADS}
        for name in given:
            if name not in tables:
                raise OptionError(f"a model has no {name!r}{suggest(name, tables)}")
        return cls(**{name: from_dict(table, given[name]) for name, table in tables.items()})


def suggest_field(name: str, prefix: str = "") -> str:
    """Return the hint for a field that was given without its part, from the fields of all
    registered encoders, bodies and heads.

    Example:
        >>> suggest_field("depth"), suggest_field("dimm", "model.")
        ('; did you mean body.depth?', '; did you mean model.body.dim?')
        >>> suggest_field("xyz")
        '; known: body, data, encoder, head'
    """
    places: dict[str, str] = {}
    tables: dict[str, Registry[Any]] = {"body": BODIES, "encoder": ENCODERS, "head": HEADS}
    for part, table in tables.items():
        for kind in table.names():
            for field_name in table[kind].fields():
                places.setdefault(field_name, f"{part}.{field_name}")

    near = closest(name, places)
    if near is None:
        return suggest("", ["data", *tables])
    return f"; did you mean {prefix}{places[near]}?"


def takes(body: BodyConfig, encoder: type[EncoderConfig]) -> bool:
    """Whether a body can stand behind an encoder."""
    named = not body.encoders or encoder.kind in body.encoders
    return named and encoder.own_width == body.any_width


def _reader(kind: str, now: EncoderConfig, body: BodyConfig) -> str:
    """The kind of the encoder that reads this kind of data: today's if it does, else the one of
    its name, else the first that was registered: the library's, where it has one.
    """
    if now.data == kind and takes(body, type(now)):
        return now.kind
    ENCODERS.names()  # all of them are known from here on
    result = [e.kind for e in ENCODERS.registered() if e.data == kind and takes(body, e)]
    if not result:
        raise OptionError(f"data: the body {body.kind!r} has no encoder that reads {kind!r}")
    return kind if kind in result else result[0]


def _replaced(table: Registry[Any], now: Any, given: Given) -> Any:
    """A part with some fields, or its kind, replaced."""
    if given is None or isinstance(given, Configuration):
        return now if given is None else given
    fields = dict(given)
    cls = table[fields.pop("kind", now.kind)]
    fields = known_fields(cls, fields, table.what)
    if cls is type(now):
        # What a change puts out of play goes with it.
        idle = dict.fromkeys(cls.idle(vars(now) | fields))
        return cls(**vars(now) | idle | fields)
    said = {name for part in (cls, now) for name in (*_said(part, "of_data"), *_said(part, "own"))}
    kept = {
        name: value
        for name, value in vars(now).items()
        if name in cls.fields() and name not in said and value is not None
    }
    idle = cls.idle(kept | fields)
    return cls(**{name: value for name, value in kept.items() if name not in idle} | fields)


def _said(part: Any, what: str) -> tuple[str, ...]:
    return getattr(part, what, ())


def _with_operator(body: Any, given: Given) -> Given:
    """A part's options belong to its own operator: another one starts without them."""
    if not isinstance(given, Mapping) or "operator" not in given:
        return given
    fields = dict(given)
    if fields["operator"] != getattr(body, "operator", None):
        fields.setdefault("operator_options", {})
    return fields
