"""Linear attention in models of torch, of timm and of fredholm: attention modules matched by their
structure.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ..errors import ConversionError
from ..families.infsa.centre_kernel import CentreKernel
from ..families.infsa.kernel import HopKernel
from ..families.softmax.kernel import SoftmaxKernel
from ..families.softmax.linear import LinearAttentionKernel
from ..integral import AttentionKernel, IntegralOperator
from ..integral.code_path import check_path
from ..integral.conversion import as_operator
from ..integral.multihead import MultiheadAdapter
from ..integral.probe import probe as compare
from ..layers.multihead_attention import call_multihead
from ..models import Model
from .graph_heads import GRAPHS, graph_options
from .heads import CONVERSION_OPTIONS
from .linearized import LinearizedOperator, TimmAdapter
from .rebuilt import NEW, projections_of, rebuilt, shared_teacher, source_options
from .replaced import Layer, Replaced, check_found

# A module whose class has this in its name, and which is not understood, is refused by name.
ATTENTION = "Attention"

# Attributes by which modules add a relative position bias.
BIASES = (
    "relative_position_bias_table",
    "rel_pos",
    "rel_pos_h",
    "rel_pos_bias",
    "relative_attention_bias",
)

# Points of the signal on which a module and its replacement are compared.
POINTS = 6

# Arguments of timm's Attention that its adapter takes.
TIMM_CALL = ("x", "attn_mask", "is_causal")


def replace_modules(
    model: nn.Module,
    to: str,
    options: dict[str, Any],
    tied: bool,
    choose: Callable[[list[str]], list[str]],
    keep_refused: bool,
    compared: bool,
) -> Replaced:
    """Convert a model that is not of transformers, see :func:`replace_attention`."""
    # A model of fredholm is built again from its configuration. A module that was put into it by
    # hand would be lost.
    rebuilds = isinstance(model, Model)
    if rebuilds:
        check_path(model)
    modes = {module: module.training for module in model.modules()}
    model.eval()
    result, reasons = _find(model)
    wanted = choose(list(result) + [name for name in reasons if name not in result])
    refused = {name: why for name, why in reasons.items() if name in wanted}
    names = [name for name in result if name in wanted]
    check_found(model, names, refused, keep_refused)
    ecosystem = "torch"
    dropped_options: dict[str, Any] = {}
    before: Any = model
    if rebuilds:
        if set(names) != set(result):
            raise ConversionError(
                "a model of fredholm has one kind of operator in all its blocks; leave layers out"
            )
        ecosystem = "fredholm"
        model = rebuilt(model, to, options, tied)
        dropped_options = source_options(before.config.body, to).dropped
        result = {name: _operator_teacher(before.get_submodule(name)) for name in names}

    layers = []
    parts = {}
    roots: list[str] = []
    # One attention module may stand at several places.
    places: dict[nn.Module, list[str]] = {}
    for name, module in before.named_modules(remove_duplicate=False):
        places.setdefault(module, []).append(name)
    for name in names:
        source = before.get_submodule(name)
        teacher = result[name]
        kept = {f"{name}.{key}": p.numel() for key, p in source.named_parameters()}
        if ecosystem == "fredholm":
            built: Any = model.get_submodule(name)
            teacher = shared_teacher(built, teacher)
            part = LinearizedOperator(teacher, built.kernel)
        else:
            part = LinearizedOperator(teacher, _kernel(teacher.kernel, to, options, tied))
        part.to(next(source.parameters()).device)
        holder = _adapter(source, part)
        if compared:
            _verify(source, holder, part)
        for place in places[source]:
            model = _put(model, place, holder)

        # The operator is the module itself, or lies in an adapter.
        path = []
        if name:
            path.append(name)
        if holder is not part:
            path.append("operator")
        where = ".".join(path)
        maps = [
            key
            for key in NEW
            if isinstance(getattr(part.kernel, key, None), nn.Module | nn.Parameter)
        ]
        mine = [f"{where}.kernel.{key}".removeprefix(".") for key in maps]
        new = tuple(
            n
            for n, _ in model.named_parameters()
            if any(n == root or n.startswith(f"{root}.") for root in mine)
        )
        roots += mine
        kernel: Any = part.kernel
        sizes = (kernel.heads, kernel.groups, kernel.width)
        softmax: Any = teacher.kernel
        layers.append(
            Layer(
                name,
                type(source).__name__,
                *sizes,
                softmax.causal,
                float(softmax.dropout),
                tuple(kept),
                new,
                sum(kept.values()),
            )
        )
        parts[name] = part
    for module in model.modules():
        module.training = modes.get(module, next(iter(modes.values())))
        if isinstance(module, nn.TransformerEncoder):
            # Only torch's own attention takes padded samples as nested tensors.
            module.use_nested_tensor &= not any(
                isinstance(part, MultiheadAdapter) for part in module.modules()
            )
    extra = {"roots": roots}
    return Replaced(
        model,
        ecosystem,
        to,
        options,
        tied,
        layers,
        refused,
        parts,
        extra,
        dropped_options=dropped_options,
    )


def _verify(source: nn.Module, holder: nn.Module, part: LinearizedOperator) -> None:
    """Compare a module with its replacement, switched to softmax, on a random signal.

    Args:
        source: the module that is replaced.
        holder: the replacement, called as ``source`` is: an adapter around ``part``, or ``part``.
        part: the operator, whose mode is linear afterwards.

    Raises:
        ConversionError: outputs or input gradients differ.
    """

    def call(module: nn.Module, u: Tensor) -> Tensor:
        """Return the self-attention of ``module`` on u, (B, N, d)."""
        if isinstance(source, nn.MultiheadAttention):
            return call_multihead(module, u)
        return module(u)

    part.mode = "softmax"
    try:
        compare(
            source,
            lambda u: call(source, u),
            lambda u: call(holder, u),
            (2, POINTS, part.kernel.d_in),  # type: ignore[union-attr]
            advice="only attention that is understood to the end can be converted; probe=False "
            "leaves this comparison out",
        )
    finally:
        part.mode = "linear"


def _put(
    model: nn.Module,
    name: str,
    module: nn.Module,
) -> nn.Module:
    """Return the model with a module at ``name``: the module itself where the name is empty."""
    if not name:
        return module
    model.set_submodule(name, module)
    return model


def _find(model: nn.Module) -> tuple[dict[str, IntegralOperator], dict[str, str]]:
    """Return each attention's softmax operator, and why others cannot be converted, by name."""
    result: dict[str, IntegralOperator] = {}
    reasons: dict[str, str] = {}
    # Parts of an attention module are not attention of their own. The whole model has no name.
    inside: list[str] = []
    for name, module in model.named_modules():
        if any(not outer or name.startswith(f"{outer}.") for outer in inside):
            continue
        try:
            operator = _teacher_of(module)
        except ConversionError as error:
            reasons[name] = str(error)
            inside.append(name)
            continue
        if operator is not None:
            result[name] = operator
            inside.append(name)
    return result, reasons


def _teacher_of(module: nn.Module) -> IntegralOperator | None:
    """Return a softmax operator that computes what a module does; None where it is not attention.

    Raises:
        ConversionError: attention that is not understood.
    """
    if isinstance(module, IntegralOperator):
        if not isinstance(module.kernel, SoftmaxKernel):
            return None
        return _operator_teacher(module)
    if isinstance(module, nn.MultiheadAttention):
        return as_operator(module)
    present = (name for name in BIASES if getattr(module, name, None) is not None)
    bias = next(present, None)
    if bias is not None:
        raise ConversionError(
            f"{type(module).__name__} adds a relative position bias ({bias}) to pairs, which "
            "linear attention does not form"
        )
    if all(hasattr(module, name) for name in ("qkv", "proj", "num_heads", "scale")):
        return _timm_teacher(module)
    if ATTENTION in type(module).__name__ and any(
        isinstance(child, nn.Linear) for child in module.children()
    ):
        names = [name for name, _ in module.named_children()]
        raise ConversionError(
            f"{type(module).__name__} with the parts {', '.join(names)} has a structure that "
            "is not understood"
        )
    return None


def _operator_teacher(operator: Any) -> IntegralOperator:
    """Return a softmax operator of ours, checked.

    Raises:
        ConversionError: an option that linear attention does not have.
    """
    check_path(operator)
    kernel = operator.kernel
    for name, what in (
        ("query_norm", "normalised queries"),
        ("key_norm", "normalised keys"),
        ("rotary", "rotary positions"),
    ):
        if getattr(kernel, name) is not None:
            raise ConversionError(
                f"{type(operator).__name__} has {what}, which the linear kernel of fredholm does "
                "not apply"
            )
    if operator.residual is not None:
        raise ConversionError(
            f"{type(operator).__name__} has a pointwise term W, which linear attention lacks"
        )
    return operator


def _timm_teacher(module: Any) -> IntegralOperator:
    """Return the softmax operator of timm's ``Attention``: one layer ``qkv``, an output layer
    ``proj``, and nothing that changes the weights.

    Raises:
        ConversionError: further arguments or parts.
    """
    check_path(module)
    kind = type(module).__name__
    further = [
        name for name in inspect.signature(module.forward).parameters if name not in TIMM_CALL
    ]
    if further:
        raise ConversionError(
            f"{kind} is called with {', '.join(further)}, which linear attention of fredholm does "
            "not take"
        )
    for name, option in (
        ("gate", "gated"),
        ("norm", "scale_norm"),
        ("q_norm", "qk_norm"),
        ("k_norm", "qk_norm"),
    ):
        part = getattr(module, name, None)
        if part is not None and not isinstance(part, nn.Identity):
            raise ConversionError(f"{kind} with {option}=True: its {name} would be lost")
    _check_drop(module, "proj_drop")
    packed = module.qkv
    out = module.proj
    heads = module.num_heads
    if type(packed) is not nn.Linear or type(out) is not nn.Linear:
        raise ConversionError(
            f"{kind}: qkv and proj must be plain torch.nn.Linear, got {type(packed).__name__}, "
            f"{type(out).__name__}"
        )
    features = packed.out_features
    if features % (3 * heads) or features != 3 * out.in_features:
        raise ConversionError(
            f"{kind}: {heads} heads do not divide qkv's {features} features into queries, keys "
            "and values"
        )
    kernel = SoftmaxKernel(
        packed.in_features,
        heads,
        projections=packed,
        dropout=_check_drop(module, "attn_drop"),
    )
    if abs(float(module.scale) - kernel.scale) > 1e-9:
        raise ConversionError(
            f"{kind} has scale={module.scale}; supported: one over the root of a head's width, "
            f"{kernel.scale:.6g}"
        )
    return IntegralOperator(
        kernel.d_in,
        heads,
        kernel=kernel,
        out_dim=out.out_features,
        residual=False,
        projection=out,
    )


def _check_drop(module: Any, name: str) -> float:
    """Return the rate of a dropout of timm's ``Attention``, 0 where it has none.

    Raises:
        ConversionError: another kind of module.
    """
    part = getattr(module, name, None)
    if part is None or isinstance(part, nn.Identity):
        return 0.0
    if type(part) is not nn.Dropout:
        raise ConversionError(
            f"{type(module).__name__}: {name} must be a plain torch.nn.Dropout, got "
            f"{type(part).__name__}"
        )
    return part.p


def _kernel(
    teacher: Any,
    to: str,
    options: dict[str, Any],
    tied: bool,
) -> AttentionKernel:
    """Return the linear kernel on a softmax kernel's own projections."""
    projections = projections_of(teacher)
    if to in GRAPHS:
        kind: type[AttentionKernel] = CentreKernel
        if to == "infsa":
            kind = HopKernel
        return kind(teacher.d_in, teacher.heads, projections=projections, **graph_options(options))
    chosen = {**CONVERSION_OPTIONS.get(to, {}), **options}
    return LinearAttentionKernel(
        teacher.d_in,
        teacher.heads,
        feature_map=to,
        feature_options=chosen,
        tied=tied,
        projections=projections,
    )


def _adapter(source: nn.Module, part: LinearizedOperator) -> nn.Module:
    """Return the operator behind the call of the module that it replaces."""
    if isinstance(source, nn.MultiheadAttention):
        return MultiheadAdapter(part, batch_first=source.batch_first)
    if isinstance(source, IntegralOperator):
        return part
    return TimmAdapter(part, getattr(source, "proj_drop", None))
