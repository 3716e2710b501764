"""Linear attention in the place of a model's softmax, matched by structure; nothing is trained
here.
"""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from ..errors import CheckpointError, ConversionError, OptionError, suggest
from ..integral.feature_map import FEATURE_MAPS
from .decay import check_decay
from .graph_heads import GRAPHS, GraphHeads
from .heads import Heads, LinearHeads
from .interface import (
    MIXED,
    NAME,
    SLOT,
    Call,
    is_transformers,
    keep_softmax,
    register,
    uses_interface,
)
from .kept import Keep, MixedHeads, read_keep
from .modules import replace_modules
from .positions import limit_positions
from .probe import probe, verify
from .replaced import Layer, Replaced, check_found

# The last and the first tokens on which causal layers keep softmax by default.
AUTO = "auto"
WINDOW = 64
SINKS = 4


def replace_attention(
    model: nn.Module,
    to: str = "luna",
    *,
    options: dict[str, Any] | None = None,
    tied: bool = True,
    window: int | str | None = AUTO,
    sinks: int | str = AUTO,
    store: int = 0,
    decay: str | None = None,
    keep: int | str | Sequence[str] | None = None,
    layers: Sequence[str] | None = None,
    inputs: dict[str, Any] | None = None,
    keep_refused: bool = False,
    copied: bool = True,
    probe: bool = True,
) -> Replaced:
    """Return the model with linear attention in place of its softmax. Projections, networks and
    norms are unchanged; the maps are new.

    Args:
        model: an encoder or decoder of transformers; a model of :mod:`fredholm.models`; or a model
            with ``nn.MultiheadAttention`` or timm's ``Attention`` inside.
        to: a name of :data:`fredholm.kernels.FEATURE_MAPS`, ``"infsa"`` or ``"linear_infsa"``.
        options: of the map, such as ``{"channels": 16}``.
        tied: one map for queries and keys, or one for each.
        window: for causal layers of transformers: the number of last tokens that keep softmax, and
            share one normaliser with the linear attention to all earlier tokens. ``"auto"`` is 64
            where the layer is causal and the map positive; None or 0 for linear attention alone.
        sinks: with a window, the number of first tokens, which keep softmax too. ``"auto"`` is 4 if
            there is a window.
        store: with a window, the number of earlier tokens that keep softmax as well, for each group
            of heads: those that the state reproduces worst, selected as tokens leave the window.
        decay: for causal layers of transformers: ``"head"`` lets the state fade at a learned rate
            per group of heads, ``"token"`` at a rate computed from each token's value. At
            initialisation half of a token is left after 700. Tokens that keep softmax do not fade.
            None for neither.
        keep: groups of heads in causal layers of transformers that keep full softmax,
            ``"18.2,17.1"`` or a list: layer.group, where a group is one head of keys and values
            with the heads of queries that share it. Not to be confused with ``keep_refused``.
        layers: patterns of module names to convert (``"*.layer.[0-3].*"``); default all.
        inputs: arguments of one small call of a transformers model, if its dummy inputs do not
            suffice.
        keep_refused: leave attention that cannot be converted unchanged and list it in ``refused``;
            otherwise it is an error.
        copied: convert a copy and leave ``model`` unchanged.
        probe: compare output and input gradient of the model and of its conversion, run with the
            original softmax, on a small signal. Random state, buffers and gradients are restored.

    Raises:
        ConversionError: nothing to convert; attention that cannot be converted, with name and
            reason; or a model that uses its softmax otherwise than its converted layers do.
        OptionError: an unknown map, an option it does not have, or a pattern that matches no
            layer.

    Example:
        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> encoder = nn.TransformerEncoder(layer, 2).eval()
        >>> replaced = replace_attention(encoder, "hedgehog")
        >>> [layer.name for layer in replaced.layers]
        ['layers.0.self_attn', 'layers.1.self_attn']
    """
    if not isinstance(model, nn.Module):
        raise ConversionError(f"a torch.nn.Module can be converted, got {type(model).__name__}")
    if to not in FEATURE_MAPS and to not in GRAPHS:
        raise OptionError(
            f"unknown linear attention to={to!r}{suggest(to, [*FEATURE_MAPS, *GRAPHS])}"
        )
    if to in GRAPHS and keep is not None:
        raise OptionError(f"expected keep beside a feature map, got to={to!r}; leave keep out")
    if to in GRAPHS and not tied:
        raise OptionError(f"{to} has no feature maps that could be untied")
    choose = _chooser(layers)
    options = dict(options or {})
    softmax = SoftmaxPart.of(window, sinks, to, options, store)._replace(decay=decay)
    check_decay(decay)
    if to in GRAPHS and decay is not None:
        raise OptionError(f"expected decay beside a feature map, got to={to!r}; leave decay out")

    # A copy may end half converted. The caller's own model is restored after an error.
    restoring: AbstractContextManager[None] = nullcontext()
    if copied:
        model = copy.deepcopy(model)
    else:
        restoring = kept_on_error(model)
    with restoring:
        if is_transformers(model):
            if not copied:
                _own_configuration(model)
            asked = window != AUTO or sinks not in (AUTO, 0) or store > 0
            request = Request(
                to=to,
                options=options,
                tied=tied,
                softmax=softmax,
                asked=asked,
                choose=choose,
                inputs=inputs,
                keep_refused=keep_refused,
                compared=probe,
                keep=keep,
            )
            return _transformers(model, request)
        causal: dict[str, Any] = {"keep": keep, "decay": decay, "store": store or None}
        if sinks not in (AUTO, 0):
            causal["sinks"] = sinks
        for name, value in causal.items():
            if value is not None:
                raise ConversionError(
                    f"expected {name}={value!r} with causal layers of transformers, got "
                    f"{type(model).__name__}; leave {name} out"
                )
        if softmax.window is not None and window != AUTO:
            raise ConversionError(
                f"window={window} is of causal layers of transformers, got {type(model).__name__}; "
                "leave window out, or train a model of fredholm with this option of its operator"
            )
        return replace_modules(model, to, options, tied, choose, keep_refused, probe)


@contextmanager
def kept_on_error(model: nn.Module) -> Iterator[None]:
    """Restore a model that is converted in place where the conversion ends in an error."""
    before = []
    for module in model.modules():
        tables = [(x, dict(x)) for x in vars(module).values() if isinstance(x, dict)]
        before.append((module, type(module), dict(vars(module)), tables))
    try:
        yield
    except BaseException:
        for module, kind, fields, tables in before:
            module.__class__ = kind
            vars(module).clear()
            vars(module).update(fields)
            for table, content in tables:
                table.clear()
                table.update(content)
        raise


def window_length(
    window: int | str | None,
    to: str,
    options: dict[str, Any],
) -> int | None:
    """Return the window that causal layers get.

    Raises:
        OptionError: not a number of tokens, or a window beside what has no normaliser in common
            with it.

    Example:
        >>> window_length("auto", "luna", {}), window_length(0, "luna", {})
        (64, None)
    """
    if window == AUTO:
        # Softmax shares its normaliser with features, which must be positive.
        positive = to not in GRAPHS and getattr(FEATURE_MAPS[to], "positive", True)
        if positive and options.get("nonneg", True):
            return WINDOW
        return None
    if window is None or window == 0:
        return None
    if type(window) is not int or window < 0:
        raise OptionError(f"window is a number of tokens, 0 or {AUTO!r}, got {window!r}")
    if to in GRAPHS:
        raise OptionError(f"{to} has no feature map beside which a window could stand")
    return window


class SoftmaxPart(NamedTuple):
    """The tokens that causal layers keep softmax on, and how all others fade.

    Attributes:
        window: the last ones.
        sinks: the first ones.
        store: of each group of heads, so many between both.
        decay: ``"head"``, ``"token"`` or None, see :func:`replace_attention`.
    """

    window: int | None
    sinks: int
    store: int = 0
    decay: str | None = None

    @classmethod
    def of(
        cls,
        window: int | str | None,
        sinks: int | str,
        to: str,
        options: dict[str, Any],
        store: int = 0,
    ) -> SoftmaxPart:
        """Return the sizes that the arguments of :func:`replace_attention` ask for.

        Raises:
            OptionError: not a number of tokens, sinks or a store without a window, or a window
                beside what has no normaliser in common with it.

        Example:
            >>> SoftmaxPart.of("auto", "auto", "luna", {})
            SoftmaxPart(window=64, sinks=4, store=0, decay=None)
        """
        if type(store) is not int or store < 0:
            raise OptionError(f"expected store as a number of tokens, at least 0, got {store!r}")
        length = window_length(window, to, options)
        if store and length is None:
            raise OptionError(
                f"expected a window beside store={store}, got window={window!r} with to={to!r}; "
                "give window=..., or leave store out"
            )
        if sinks == AUTO:
            sinks = SINKS
            if length is None:
                sinks = 0
        if type(sinks) is not int or sinks < 0:
            raise OptionError(f"expected sinks as a number of tokens or {AUTO!r}, got {sinks!r}")
        if sinks and length is None:
            raise OptionError(
                f"expected a window beside sinks={sinks}, got window={window!r} with to={to!r}; "
                "give window=..., or leave sinks out"
            )
        return cls(length, sinks, store)


Chooser = Callable[[list[str]], list[str]]


def _chooser(patterns: Sequence[str] | None) -> Chooser:
    """Return a function that selects module names by shell-style patterns (``encoder.*``)."""

    def choose(names: list[str]) -> list[str]:
        """Return the names of attention modules that match any pattern, in the order of ``names``;
        all of them where ``patterns`` is None.

        Raises:
            OptionError: a pattern that matches no name.
        """
        if patterns is None:
            return names

        # A pattern that matches nothing is a mistake of the caller, even beside others that match.
        # Unlike fnmatch.filter, fnmatchcase tells capitals apart on every operating system.
        for pattern in patterns:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
                raise OptionError(
                    f"layers: {pattern!r} fits no attention of the model{suggest(pattern, names)}"
                )

        return [
            name
            for name in names
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        ]

    return choose


class Request(NamedTuple):
    """The arguments of a conversion, checked; see :func:`replace_attention`.

    Attributes:
        softmax: sizes of the causal layers.
        asked: whether the caller asked for a window, sinks or a store.
        choose: selects the names of layers to convert.
        compared: compare the converted model with the model before.
    """

    to: str
    options: dict[str, Any]
    tied: bool
    softmax: SoftmaxPart
    asked: bool
    choose: Chooser
    inputs: dict[str, Any] | None
    keep_refused: bool
    compared: bool
    keep: int | str | Sequence[str] | None


def _transformers(model: Any, request: Request) -> Replaced:
    """Convert a transformers model."""
    softmax = request.softmax
    probed = probe(model, request.inputs, keep_refused=request.keep_refused)
    calls = {call.name: call for call in probed.calls}
    reasons = {name: call.problem for name, call in calls.items() if call.problem}
    reasons |= probed.unreached
    ordered = any(call.causal for call in calls.values())
    if softmax.window is not None and request.asked and not ordered:
        reasons |= dict.fromkeys(
            calls,
            f"has no causal order, along which window={softmax.window} could look back, with "
            f"sinks={softmax.sinks} at its beginning and store={softmax.store} between them",
        )
    if softmax.decay is not None and not ordered:
        reasons |= dict.fromkeys(
            calls, f"has no causal order, along which decay={softmax.decay!r} could fade"
        )

    wanted = request.choose([*calls, *probed.unreached])
    refused = {name: reasons[name] for name in wanted if name in reasons}
    names = [name for name in wanted if name not in refused]
    check_found(model, names, refused, request.keep_refused)
    chosen = [calls[name] for name in names]

    # A layer that keeps all of its groups stays as it is.
    kept = read_keep(request.keep, chosen, layer_numbers(model, names))
    for call in chosen:
        if len(kept.get(call.name, ())) == call.groups:
            refused[call.name] = "keep names all of its groups"
            del kept[call.name]
    chosen = [call for call in chosen if call.name not in refused]
    check_found(model, [call.name for call in chosen], refused, True)

    map_facts = request.to, request.options, request.tied
    replaced = attach(model, chosen, *map_facts, softmax, refused, kept)
    if request.compared:
        with replaced.mode("softmax"):
            verify(model, probed)
    return replaced


def layer_numbers(model: Any, names: Sequence[str]) -> dict[str, int]:
    """Return the number by which users name each attention layer, as in ``keep="18.2"``: its own
    ``layer_idx`` where it has one, else its position in ``names``, from 0.

    Where these are not distinct, all layers are numbered by position.

    Args:
        model: the model that contains them.
        names: module names of the attention layers, in the order of the model.
    """
    places = {name: place for place, name in enumerate(names)}
    numbers = {}
    for name, place in places.items():
        own = getattr(model.get_submodule(name), "layer_idx", None)
        if own is None:
            own = place
        numbers[name] = int(own)

    # An encoder and a decoder in one model both number their layers from 0.
    if len(set(numbers.values())) < len(numbers):
        return places
    return numbers


def _own_configuration(model: nn.Module) -> None:
    """Give a part of a larger model configurations of its own, so that the rest keeps the attention
    it has.
    """
    memo: dict[int, Any] = {}
    for module in model.modules():
        if "config" in vars(module):
            module.config = copy.deepcopy(module.config, memo)  # type: ignore[assignment]


def attach(
    model: Any,
    calls: list[Call],
    to: str,
    options: dict[str, Any],
    tied: bool,
    softmax: SoftmaxPart,
    refused: dict[str, str] | None = None,
    keep: Keep | None = None,
) -> Replaced:
    """Put :class:`Heads` into a transformers model's attention modules, and let the model call
    them.

    Args:
        calls: of the modules.
        softmax: sizes of the causal layers.
        refused: modules that stay as they are, with the reason.
        keep: groups of heads that keep softmax, by layer.
    """
    # Imported here, because both files import transformers, an extra.
    from .auto import become_linear, facts_of
    from .cache import keep_state

    register()
    keep_softmax(model)
    layers, parts = [], {}
    for call in calls:
        module = model.get_submodule(call.name)
        kept = {f"{call.name}.{name}": p.numel() for name, p in module.named_parameters()}
        part: Heads
        if to in GRAPHS:
            part = GraphHeads(call.heads, call.width, to, options)
        else:
            given = {"options": options, "tied": tied}
            if call.causal:
                given |= softmax._asdict()
            # Kept groups take their heads of queries along.
            groups = (keep or {}).get(call.name, ())
            heads = call.heads - len(groups) * (call.heads // call.groups)
            given["groups"] = call.groups - len(groups)
            part = LinearHeads(heads, call.width, feature_map=to, **given)
            part.quieten()
            if groups:
                part = MixedHeads(part, groups, call.groups)

        part.to(next(module.parameters()).device).train(module.training)
        setattr(module, SLOT, part)
        if call.causal:
            keep_state(module)
        new = tuple(f"{call.name}.{SLOT}.{name}" for name, _ in part.named_parameters())
        layer = Layer(
            call.name,
            type(module).__name__,
            call.heads,
            call.groups,
            call.width,
            call.causal,
            call.dropout,
            tuple(kept),
            new,
            sum(kept.values()),
        )
        layers.append(layer)
        parts[call.name] = part
    limit_positions(model)
    name = NAME
    if any(uses_interface(m) and not hasattr(m, SLOT) for m in model.modules()):
        name = MIXED
    model.set_attn_implementation(name)

    roots = [f"{call.name}.{SLOT}" for call in calls]
    if not any(call.causal for call in calls):
        softmax = SoftmaxPart(None, 0)
    replaced = Replaced(
        *(model, "transformers", to, options, tied, layers, refused or {}, parts),
        {"roots": roots},
        softmax.window,
        softmax.sinks,
        keep or {},
        softmax.store,
        softmax.decay,
    )
    become_linear(model, facts_of(replaced))
    return replaced


def restore(
    model: Any,
    facts: dict[str, Any],
    maps: dict[str, Tensor] | None,
    folder: Path,
) -> None:
    """Put linear attention into a transformers model that was read as softmax.

    Args:
        facts: of the conversion, as its configuration describes them.
        maps: weights of the feature maps, by name; None leaves them as they are drawn.
        folder: where they come from, for messages.

    Raises:
        CheckpointError: layers that the model does not have, or weights that do not fit.
    """
    present = {name for name, _ in model.named_modules()}
    names = [layer["name"] for layer in facts["layers"]]
    # A base model's names lack the prefix that they have in a model with a head.
    prefix = f"{model.base_model_prefix}."
    if present & set(names):
        prefix = ""

    def local(name: str) -> str:
        return name.removeprefix(prefix)

    absent = [name for name in names if local(name) not in present]
    if absent:
        raise CheckpointError(
            f"{folder}: {type(model).__name__} has no attention {', '.join(absent)}; restore it or "
            "convert again"
        )
    calls = []
    for layer in facts["layers"]:
        call = Call(
            local(layer["name"]),
            layer["heads"],
            layer["groups"],
            layer["width"],
            layer["causal"],
            None,
            layer["dropout"],
        )
        calls.append(call)
    # All four are absent from what earlier versions wrote.
    softmax = SoftmaxPart(
        facts.get("window"),
        facts.get("sinks", 0),
        facts.get("store", 0),
        facts.get("decay"),
    )
    map_facts = facts["to"], facts["options"], facts["tied"]
    keep = {local(name): tuple(groups) for name, groups in facts.get("keep", {}).items()}
    replaced = attach(model, calls, *map_facts, softmax, facts["refused"], keep)
    if maps is not None:
        replaced.fill({local(name): value for name, value in maps.items()}, folder)
