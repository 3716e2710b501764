"""Configuration of a model: of an encoder, a body and a head."""

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
PARTS: dict[str, Registry[Any]] = {"encoder": ENCODERS, "body": BODIES, "head": HEADS}


@dataclass(frozen=True)
class ModelConfig:
    """The configuration of a model: of its encoder, its body and its head.

    Fields are read as ``config.encoder.patch``, ``config.body.depth``, ``config.head.pool``.

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
                f"encoder.kind: expected one of {', '.join(kinds)} for the body {body.kind!r}, got "
                f"{encoder.kind!r}; choose another"
            )
        if self.pool not in encoder.pools:
            raise OptionError(
                f"head.pool: expected one of {', '.join(encoder.pools)} for {encoder.kind}, got "
                f"{self.pool!r}{suggest(str(self.pool), encoder.pools)}"
            )
        self.head.check(encoder, self.body.width)

    @property
    def pool(self) -> str:
        """The read-out: the head's, or the encoder's default."""
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
        """Return the configuration with some fields of its parts replaced.

        Args:
            data: a data set's description of its inputs, such as ``{"kind": "text", "vocabulary":
                9}``. The encoder becomes one that reads this kind, by default that of the present
                encoder, and fits the body.
            encoder, body, head: fields by name, or a complete configuration of the part. With
                ``kind`` the part becomes another one, which keeps the fields that both have, except
                those that describe data. Another operator starts from its own defaults unless
                ``operator_options`` are given.

        Raises:
            OptionError: an unknown kind or field, values that do not fit, or data beside a complete
                encoder.
        """
        new_body = _replaced(BODIES, self.body, _with_operator(self.body, body))
        if data:
            if isinstance(encoder, Configuration):
                raise OptionError(
                    "data: expected no description of the data beside a complete encoder, got "
                    f"{dict(data)!r}; give the encoder's fields by name, or leave data out"
                )
            fields = dict(data)
            kind = fields.pop("kind", self.encoder.data)
            chosen = dict(encoder or {})
            chosen.setdefault("kind", _reader(kind, self.encoder, new_body))
            encoder = fields | chosen
        new_encoder = _replaced(ENCODERS, self.encoder, encoder)
        # The read-out of one encoder may be impossible for another: then the default applies.
        old_head = self.head
        if type(new_encoder) is not type(self.encoder) and old_head.pool not in new_encoder.pools:
            old_head = dataclasses.replace(old_head, pool=None)
        return ModelConfig(new_encoder, new_body, _replaced(HEADS, old_head, head))

    def to_dict(self) -> dict[str, Any]:
        """Return each part with its kind, as values that JSON can hold."""
        return {name: getattr(self, name).to_dict() for name in PARTS}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> ModelConfig:
        """Return the configuration that :meth:`to_dict` described.

        Raises:
            OptionError: parts, kinds or fields that are unknown.
        """
        for name in given:
            if name not in PARTS:
                known = ", ".join(PARTS)
                raise OptionError(f"model: expected {known}, got {name!r}{suggest(name, PARTS)}")
        return cls(**{name: from_dict(table, given[name]) for name, table in PARTS.items()})


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
    # A name that several parts have is the body's.
    for part in sorted(PARTS):
        for kind in PARTS[part].values():
            for field_name in kind.fields():
                places.setdefault(field_name, f"{part}.{field_name}")

    near = closest(name, places)
    if near is None:
        return suggest("", ["data", *PARTS])
    return f"; did you mean {prefix}{places[near]}?"


def takes(body: BodyConfig, encoder: type[EncoderConfig]) -> bool:
    """Tell whether a body can stand behind an encoder."""
    named = not body.encoders or encoder.kind in body.encoders
    return named and encoder.own_width == body.any_width


def _reader(kind: str, now: EncoderConfig, body: BodyConfig) -> str:
    """Return the kind of an encoder that reads this kind of data and fits the body.

    The present encoder comes first, then the one named like the data, then the one that was
    registered first, which is one of the library's if it has any.
    """
    if now.data == kind and takes(body, type(now)):
        return now.kind

    # names() registers those of the library.
    ENCODERS.names()
    readers = [e.kind for e in ENCODERS.registered() if e.data == kind and takes(body, e)]
    if not readers:
        raise OptionError(
            f"data: expected a kind that an encoder reads for the body {body.kind!r}, got "
            f"{kind!r}; choose another body"
        )
    if kind in readers:
        return kind
    return readers[0]


def _replaced(table: Registry[Any], now: Any, given: Given) -> Any:
    """Return a part with some fields, or its kind, replaced."""
    if given is None:
        return now
    if isinstance(given, Configuration):
        return given
    fields = dict(given)
    cls = table[fields.pop("kind", now.kind)]
    fields = known_fields(cls, fields, table.what)

    if cls is type(now):
        # A field without effect under the new values returns to its default.
        idle = dict.fromkeys(cls.idle(vars(now) | fields))
        return cls(**vars(now) | idle | fields)

    # Another kind keeps the fields that both have, except those that describe data or belong to one
    # kind alone, and those without effect.
    not_shared = _special_fields(cls) | _special_fields(now)
    kept = {}
    for name, value in vars(now).items():
        if name in cls.fields() and name not in not_shared and value is not None:
            kept[name] = value
    for name in cls.idle(kept | fields):
        kept.pop(name, None)
    return cls(**kept | fields)


def _special_fields(part: Any) -> set[str]:
    """Return the names of fields that describe data, or that belong to one kind alone."""
    return {*getattr(part, "of_data", ()), *getattr(part, "own", ())}


def _with_operator(body: Any, given: Given) -> Given:
    """Drop the options of the present operator where another one is given."""
    if not isinstance(given, Mapping) or "operator" not in given:
        return given
    fields = dict(given)
    if fields["operator"] != getattr(body, "operator", None):
        fields.setdefault("operator_options", {})
    return fields
