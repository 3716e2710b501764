"""Attention as one picture an image: what the class token takes from the patches, rollout over
layers, centrality.

Only an operator's weight of each pair is read, so that every operator has these maps, not InfSA alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..domain import Domain
from ..errors import DomainError, OptionError, ShapeError, suggest
from ..integral import IntegralOperator
from ..models.bodies.body import signal_of
from ..modes import evaluating
from .centrality import DENSE, token_chain
from .kernels import BUDGET, PairwiseOperator, check, class_token, image_grid, masses, pair_weights
from .vision import traced

METHODS = ("attention", "rollout", "incoming")
Seen = tuple[PairwiseOperator, Tensor, Domain]


@torch.no_grad()
def class_attention(
    operator: PairwiseOperator,
    u: Float[Tensor, "b n d"],
    domain: Domain | None = None,
    *,
    budget: int = BUDGET,
) -> Float[Tensor, "b n"]:
    r"""Return the weight of each point in the read-out: the class token's row of the weights,
    :math:`\frac1H \sum_h W_h(\mathrm{cls}, j)`.

    What a class token is: :func:`fredholm.explain.kernels.class_token`. Without one the row is the mean over all queries by their
    measure, as for a read-out by the mean. Negative weights count as 0, and a row sums to 1
    (or to 0 if all its weights are zero).

    Cost: O(N) per sample with a class token, else O(N²) time and ``budget`` memory.

    Reference: InfSA §4.2, §4.6.

    Example:
        >>> from fredholm.operators import create_operator
        >>> class_attention(create_operator("softmax", 8, heads=2), torch.zeros(1, 4, 8)).tolist()
        [[0.25, 0.25, 0.25, 0.25]]
    """
    domain = check(operator, u, domain)
    mass = masses(domain).double()
    token = class_token(domain)
    if token is not None:
        weights = pair_weights(operator, u, domain, rows=[token])
        row = weights.double().mean(1)[:, 0]
    else:
        # Numbers of the kernel per pair of points, over all heads.
        kernel = getattr(operator, "kernel", None)
        heads = getattr(operator, "heads", 1)
        d_out = getattr(kernel, "d_out", 1)
        d_in = getattr(kernel, "d_in", 1)
        entries = d_out * d_in * heads
        bytes_per_row = 8 * entries * domain.size * len(u)
        block = max(1, budget // bytes_per_row)
        row = u.new_zeros(len(u), domain.size, dtype=torch.float64)
        for rows in torch.arange(domain.size).split(block):
            weights = pair_weights(operator, u, domain, rows=rows)
            part = weights.double().mean(1) * mass[:, rows, None]
            row = row + part.sum(1)
    row = row.clamp(min=0)
    return _distribution(row * _others(mass, token))


@torch.no_grad()
def rollout(seen: Sequence[Seen], *, residual: float = 0.5) -> Float[Tensor, "b n"]:
    r"""Return attention through all layers: the read-out's row of
    :math:`\prod_l \big(\rho I + (1 - \rho) \bar W_l\big)`, the last layer first.

    :math:`\bar W_l` is the mean over heads, with negative entries set to 0 and rows normalised to
    sum 1; ρ represents the residual stream.

    Args:
        seen: (operator, its input u, domain) per layer, as returned by ``model.trace``.
        residual: ρ in [0, 1).

    Cost: O(L·N²) time, O(N²) memory.

    Raises:
        DomainError: layers on domains of different sizes, or more than 1,024 points.
        OptionError: no layers, or ρ outside [0, 1).

    Reference: Abnar and Zuidema 2020, with ρ = 0.5.
    """
    if not seen or not 0 <= residual < 1:
        raise OptionError(
            f"rollout needs a layer and residual in [0, 1), got {len(seen)} layers and {residual}"
        )
    sizes = {domain.size for _, _, domain in seen}
    if len(sizes) > 1 or max(sizes) > DENSE:
        raise DomainError(
            f"rollout multiplies the layers' matrices: it needs equal sizes up to {DENSE}, got "
            f"{sorted(sizes)}"
        )
    # The walk starts at the read-out and goes back through the layers.
    _, u, domain = seen[-1]
    mass = masses(domain).double()
    token = class_token(domain)
    if token is not None:
        row = torch.zeros(
            len(u),
            domain.size,
            dtype=torch.float64,
            device=u.device,
        )
        row[:, token] = 1.0
    else:
        row = _distribution(mass).expand(len(u), -1)
    for operator, u, domain in reversed(seen):
        weights = pair_weights(operator, u, domain).double().mean(1)
        step = _distribution(weights.clamp(min=0))
        moved = (row[:, None] @ step)[:, 0]
        row = residual * row + (1 - residual) * moved
    return _distribution(row * _others(mass, token))


@torch.no_grad()
def image_maps(
    model: nn.Module,
    images: Tensor,
    *,
    method: str = "attention",
    layer: int = -1,
) -> Float[Tensor, "b rows columns"]:
    """Return one map per image over its patches, summing to 1; the model runs in evaluation mode.

    Args:
        model: one with ``trace(images)``, as every registered model of images has it, or a vision
            transformer of torch, timm or transformers, see :func:`fredholm.explain.traced`.
        images: the model's input.
        method: ``attention`` of the class token (:func:`class_attention`) and ``incoming``
            centrality (:func:`fredholm.explain.token_chain`), both of one layer, means over heads;
            or ``rollout`` over all layers.
        layer: of the first two; the last by default.

    Raises:
        OptionError: an unknown method.
        DomainError: a model whose operators do not live on a grid of patches.

    Example:
        >>> from fredholm.models import create_model
        >>> image_maps(create_model("infvit_pure_pico"), torch.rand(2, 1, 56, 56)).shape
        torch.Size([2, 8, 8])
    """
    readable = traced(model)
    with evaluating(readable):
        return maps_of(readable.trace(images), method, layer)


def check_method(method: str) -> None:
    """Raise OptionError for a method that is not one of :data:`METHODS`."""
    if method not in METHODS:
        raise OptionError(f"unknown method {method!r}{suggest(method, METHODS)}")


def maps_of(
    seen: Sequence[Seen],
    method: str,
    layer: int = -1,
) -> Tensor:
    """Return :func:`image_maps` from the inputs of a model's operators."""
    check_method(method)
    if not seen or not all(isinstance(operator, IntegralOperator) for operator, _, _ in seen):
        raise DomainError("maps need integral operators; this model has none")
    if not -len(seen) <= layer < len(seen):
        raise OptionError(f"layer: received {layer}; needs one of {len(seen)}, from 0, or from -1")
    operator, u, domain = seen[layer]
    grid = image_grid(domain)
    if grid is None:
        raise DomainError("maps need patches on a full two-dimensional grid, shared by all images")
    if method == "attention":
        result = class_attention(operator, u, domain)
    elif method == "rollout":
        result = rollout(seen)
    else:
        incoming = token_chain(operator, u, domain).incoming
        result = _distribution(incoming.mean(1))
    # The grid leaves out what the class token takes from itself.
    maps = result[:, grid.to(result.device)]
    shares = _distribution(maps.flatten(1))
    return shares.view_as(maps).cpu()


class OperatorInput(NamedTuple):
    """An operator of a model, by its name, and its input u (B, N, D) on a domain."""

    name: str
    operator: IntegralOperator
    u: Tensor
    domain: Domain


@torch.no_grad()
def operator_inputs(model: nn.Module, inputs: Tensor) -> list[OperatorInput]:
    """Return the input of every operator in a model, read from one forward pass in evaluation mode,
    in the order of the calls.

    An operator that is called twice is listed twice. Calls of cross-attention are omitted, because
    their queries are a different signal, and a token graph needs one set of points.

    Raises:
        ShapeError: a model without operators, or an input that does not fit its domain.
        DomainError: an operator whose points all have no mass.

    Example:
        >>> from fredholm.models import create_model
        >>> [name for name, *_ in operator_inputs(create_model("infvit_pure_pico", body={"depth": 2}), torch.rand(1, 1, 56, 56))]
        ['body.blocks.0.operator', 'body.blocks.1.operator']
    """
    seen: list[OperatorInput] = []

    def note(name: str):
        def hook(
            module: IntegralOperator,
            given: tuple,
            named: dict[str, Any],
        ) -> None:
            """Record the input of one call, before the operator runs: ``given`` are its positional
            arguments, ``named`` those by keyword. Returns None, so that the call is unchanged.
            """
            # In cross-attention the queries are other points than the keys, and their weights are
            # not the transitions of a graph. ``query`` is always passed by keyword.
            if named.get("query") is not None:
                return
            u, domain = signal_of(module, given, named)
            domain = check(module, u, domain)
            seen.append(OperatorInput(name, module, u, domain))

        return hook

    result = []
    for name, module in model.named_modules():
        if isinstance(module, IntegralOperator):
            result.append((name, module))
    if not result:
        raise ShapeError(
            f"{type(model).__name__} has no operators inside; convert its layers with as_operator "
            "or linearize first"
        )
    with evaluating(model), ExitStack() as hooks:
        for name, module in result:
            hook = module.register_forward_pre_hook(note(name), with_kwargs=True)
            hooks.enter_context(hook)
        model(inputs)
    return seen


def _others(mass: Tensor, token: int | None) -> Tensor:
    """Return which points have a mass and are not the class token."""
    there = mass > 0
    if token is not None:
        there[:, token] = False
    return there


def _distribution(rows: Tensor) -> Tensor:
    """Return rows that sum to 1; rows without anything stay zero."""
    total = rows.sum(-1, keepdim=True)
    positive = total > 0
    divisor = torch.where(positive, total, 1.0)
    return torch.where(positive, rows / divisor, 0.0)
