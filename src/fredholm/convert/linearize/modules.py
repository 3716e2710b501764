"""Linear attention in models of torch, of timm and of fredholm: attention modules matched by their
structure.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...domain import Domain
from ...errors import ConversionError
from ...families.infsa.centre_kernel import CentreKernel
from ...families.infsa.kernel import HopKernel, TokenGraphKernel
from ...families.softmax.kernel import SoftmaxKernel
from ...families.softmax.linear import LinearAttentionKernel
from ...integral import AttentionKernel, IntegralOperator
from ...integral.conversion import as_operator
from ...integral.multihead import MultiheadAdapter
from ...models import Model
from .divergence import divergence
from .graph_heads import GRAPHS
from .heads import CONVERSION_OPTIONS
from .replaced import Layer, Replaced

NEW = (
    "feature_map",
    "key_map",
    "decay_logit",
)  # what a converted kernel has beside its projections
ATTENTION = (
    "Attention"  # part of the class name of modules that are named where they are not understood
)
BIASES = (
    "relative_position_bias_table",
    "rel_pos",
    "rel_pos_h",
    "rel_pos_bias",
    "relative_attention_bias",
)


class LinearizedOperator(IntegralOperator):
    """Linear attention that took a softmax operator's place, and still knows its teacher.

    Args:
        teacher: the softmax operator, which shares its projections; it holds no parameters of its
            own.
        kernel: the linear one.

    Attributes:
        mode, loss: see :class:`fredholm.convert.linearize.replaced.Part`.
    """

    def __init__(self, teacher: IntegralOperator, kernel: AttentionKernel):
        projection = False if teacher.projection is None else teacher.projection
        options = {"out_dim": teacher.out_dim, "residual": False, "projection": projection}
        self._graph = isinstance(kernel, TokenGraphKernel)
        super().__init__(kernel.d_in, kernel.heads, kernel=kernel, **options)  # type: ignore[arg-type]
        self._teacher = (teacher,)  # in a tuple, so that it is no part of the state
        self.mode = "linear"
        self.loss: Tensor | None = None

    def forward(self, u, domain=None, *, query=None, query_domain=None):
        if self.mode == "linear":
            return super().forward(u, domain, query=query, query_domain=query_domain)
        (teacher,) = self._teacher
        teacher.eval()  # its dropout would be no operator
        call: dict[str, Any] = {"query": query, "query_domain": query_domain}
        if self.mode == "distil":
            own = query_domain is None
            real = domain.valid if domain is not None and own else None
            if real is not None:
                real = real.expand(u.shape[0], -1)
            weights = self.weights(u, domain, **call)
            if self._graph:  # whose rows do not sum to one
                weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-6)
            self.loss = divergence(teacher.weights(u, domain, **call), weights, real)
        return teacher(u, domain, **call)

    def _finish(self, response: Tensor, query: Tensor | None, valid: Tensor | None) -> Tensor:
        if self._graph and query is not None:  # linear InfSA gives all queries one response
            response = response.expand(-1, -1, query.shape[1], -1)
        return super()._finish(response, query, valid)


TIMM_CALL = ("x", "attn_mask", "is_causal")


class TimmAdapter(nn.Module):
    """An operator behind the call of timm's ``Attention``: ``forward(x, attn_mask=None,
    is_causal=False)``.
    """

    def __init__(self, operator: IntegralOperator):
        super().__init__()
        self.operator = operator
        self.num_heads = operator.heads

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)
        domain = Domain.line(x.shape[1], causal=is_causal, device=x.device, dtype=dtype)
        return self.operator(x, domain if attn_mask is None else domain.replace(pairs=attn_mask))


def replace_modules(
    model: nn.Module,
    to: str,
    options: dict[str, Any],
    tied: bool,
    choose: Callable[[list[str]], list[str]],
    keep_refused: bool,
) -> Replaced:
    """:func:`replace_attention` for everything that is not of transformers."""
    from .replace import check_found

    modes = {module: module.training for module in model.modules()}
    model.eval()
    found, reasons = _find(model)
    wanted = choose(list(found) + [name for name in reasons if name not in found])
    refused = {name: why for name, why in reasons.items() if name in wanted}
    names = [name for name in found if name in wanted]
    check_found(model, names, refused, keep_refused)
    ecosystem, before = "torch", model
    if isinstance(model, Model):
        if set(names) != set(found):
            raise ConversionError(
                "a model of fredholm has one kind of operator in all its blocks; leave layers out"
            )
        ecosystem, model = "fredholm", _rebuilt(model, to, options, tied)
        found = {name: _operator_teacher(before.get_submodule(name)) for name in names}
    layers, parts, roots = [], {}, []
    for name in names:
        source, teacher = before.get_submodule(name), found[name]
        kept = tuple(f"{name}.{p}" for p, _ in source.named_parameters())
        if ecosystem == "fredholm":
            built: Any = model.get_submodule(name)
            teacher = _shared_teacher(built, teacher)
            part = LinearizedOperator(teacher, built.kernel)
        else:
            part = LinearizedOperator(teacher, _kernel(teacher.kernel, to, options, tied))
        part.to(next(source.parameters()).device)
        holder = _adapter(source, part)
        model = _put(model, name, holder)
        where = ".".join(x for x in (name, "" if holder is part else "operator") if x)
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
                kept,
                new,
            )
        )
        parts[name] = part
    for module in model.modules():
        module.training = modes.get(module, next(iter(modes.values())))
    extra = {"roots": roots}
    return Replaced(model, ecosystem, to, options, tied, layers, refused, parts, extra)


def _put(model: nn.Module, name: str, module: nn.Module) -> nn.Module:
    """The model with a module in another's place; the module itself where the name is that of the
    whole.
    """
    if not name:
        return module
    model.set_submodule(name, module)
    return model


def _find(model: nn.Module) -> tuple[dict[str, IntegralOperator], dict[str, str]]:
    """Each attention's softmax operator, and why others cannot be converted."""
    found: dict[str, IntegralOperator] = {}
    reasons: dict[str, str] = {}
    inside: list[str] = []
    for name, module in model.named_modules():
        if any(name.startswith(f"{outer}.") if outer else name for outer in inside):
            continue
        try:
            operator = _teacher_of(module)
        except ConversionError as error:
            reasons[name] = str(error)
            inside.append(name)
            continue
        if operator is not None:
            found[name] = operator
            inside.append(name)
    return found, reasons


def _teacher_of(module: nn.Module) -> IntegralOperator | None:
    """The softmax operator that a module is; None where it is no attention; ConversionError where
    it is one that is not understood.
    """
    if isinstance(module, IntegralOperator):
        return _operator_teacher(module) if isinstance(module.kernel, SoftmaxKernel) else None
    if isinstance(module, nn.MultiheadAttention):
        return as_operator(module)
    bias = next((name for name in BIASES if getattr(module, name, None) is not None), None)
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
            f"{type(module).__name__} with the parts {', '.join(names)} is no structure that is "
            "understood"
        )
    return None


def _operator_teacher(operator: Any) -> IntegralOperator:
    """A softmax operator of ours, or a ConversionError for an option that features cannot carry."""
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
    """timm's ``Attention`` by its parts: one layer ``qkv``, an output layer ``proj``, and nothing
    on the weights.
    """
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
    packed, out, heads = module.qkv, module.proj, module.num_heads
    if type(packed) is not nn.Linear or type(out) is not nn.Linear:
        raise ConversionError(
            f"{kind}: qkv and proj must be plain torch.nn.Linear, got {type(packed).__name__}, "
            f"{type(out).__name__}"
        )
    if packed.out_features % (3 * heads) or packed.out_features != 3 * out.in_features:
        raise ConversionError(
            f"{kind}: {heads} heads do not divide qkv's {packed.out_features} features into "
            "queries, keys and values"
        )
    kernel = SoftmaxKernel(packed.in_features, heads, projections=packed)
    if abs(float(module.scale) - kernel.scale) > 1e-9:
        raise ConversionError(
            f"{kind} has scale={module.scale}; supported: one over the root of a head's width, "
            f"{kernel.scale:.6g}"
        )
    return IntegralOperator(
        kernel.d_in, heads, kernel=kernel, out_dim=out.out_features, residual=False, projection=out
    )


def _kernel(teacher: Any, to: str, options: dict[str, Any], tied: bool) -> AttentionKernel:
    """The linear kernel on a softmax kernel's own projections."""
    projections = (
        teacher.packed
        if teacher.packed is not None
        else (teacher.query, teacher.key, teacher.value)
    )
    if to in GRAPHS:
        kind = HopKernel if to == "infsa" else CentreKernel
        return kind(teacher.d_in, teacher.heads, projections=projections, **_graph_options(options))
    chosen = {**CONVERSION_OPTIONS.get(to, {}), **options}
    return LinearAttentionKernel(
        teacher.d_in,
        teacher.heads,
        feature_map=to,
        feature_options=chosen,
        tied=tied,
        projections=projections,
    )


def _graph_options(options: dict[str, Any]) -> dict[str, Any]:
    """InfSA's options with a γ that is learned, from the same start as in :class:`GraphHeads`."""
    return {"decay": 0.95, "tied": False, **options, "learned_decay": True}


def _adapter(source: nn.Module, part: LinearizedOperator) -> nn.Module:
    """The operator behind the call of the module that it replaces."""
    if isinstance(source, nn.MultiheadAttention):
        return MultiheadAdapter(part, batch_first=source.batch_first)
    return part if isinstance(source, IntegralOperator) else TimmAdapter(part)


# --- models of fredholm ---------------------------------------------------------------------------


def operator_fields(to: str, options: dict[str, Any], tied: bool) -> dict[str, Any]:
    """The fields of a model's configuration that name the converted operator."""
    if to in GRAPHS:
        return {"operator": to, "operator_options": {"bias": True, **_graph_options(options)}}
    chosen = {**CONVERSION_OPTIONS.get(to, {}), **options}
    if to == "luna":
        return {"operator": "luna", "operator_options": {**chosen, "tied": tied}}
    return {
        "operator": "linear_attention",
        "operator_options": {"feature_map": to, "feature_options": chosen, "tied": tied},
    }


def _rebuilt(model: Any, to: str, options: dict[str, Any], tied: bool) -> Any:
    """The same model with the converted operator by its configuration; every other weight is
    copied.
    """
    if not hasattr(model.config.body, "operator_options"):
        raise ConversionError(
            f"{type(model.body).__name__} has no operator in its configuration to be exchanged"
        )
    rebuilt: Any = Model(model.config.replace(body=operator_fields(to, options, tied)))
    parameter = next(model.parameters())
    rebuilt.to(parameter.device, parameter.dtype)
    missing, unknown = rebuilt.load_state_dict(model.state_dict(), strict=False)
    stray = [name for name in missing if not any(f".kernel.{key}" in name for key in NEW)]
    if stray or unknown:
        raise ConversionError(
            f"{type(model).__name__}: weights without a place: {stray + list(unknown)}"
        )
    return rebuilt


def _shared_teacher(built: Any, teacher: IntegralOperator) -> IntegralOperator:
    """A softmax operator on the projections of a rebuilt model's operator."""
    kernel = built.kernel
    projections = (
        kernel.packed if kernel.packed is not None else (kernel.query, kernel.key, kernel.value)
    )
    own: Any = teacher.kernel
    softmax = SoftmaxKernel(
        kernel.d_in, kernel.heads, projections=projections, scale=own.scale, causal=own.causal
    )
    projection = False if built.projection is None else built.projection
    return IntegralOperator(
        kernel.d_in,
        kernel.heads,
        kernel=softmax,
        out_dim=built.out_dim,
        residual=False,
        projection=projection,
    )
