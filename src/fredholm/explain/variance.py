"""How much of a kernel's variance is position, and how much is content."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..domain import Domain
from ..errors import DomainError, OptionError, ShapeError
from .kernels import BUDGET, PairwiseOperator, check, choose_queries, matrix_rows, output_points


@dataclass(frozen=True, eq=False)
class VarianceShare:
    """A kernel's variance in two parts; see :func:`variance_share`.

    Attributes:
        position, content: variance between position pairs and within them, per head, (H,).
            Estimates are unbiased, so that a part which is truly 0 may come out slightly negative.
        head_share: position / (position + content) per head, (H,); NaN where the kernel is
            constant.
        share, error: the share of all heads together, and its jackknife standard error.
        relative: root of the total variance divided by the kernel's root mean square; if it is near
            0, the kernel is almost a constant matrix.
        samples, pairs: the numbers of signals and of position pairs that were used.
    """

    position: Float[Tensor, " h"]
    content: Float[Tensor, " h"]
    head_share: Float[Tensor, " h"]
    share: float
    error: float
    relative: float
    samples: int
    pairs: int


@torch.no_grad()
def variance_share(
    operator: PairwiseOperator,
    u: Float[Tensor, "b n d"],
    domain: Domain | None = None,
    *,
    queries: int = 8,
    keys: int = 32,
    seed: int = 0,
    budget: int = BUDGET,
) -> VarianceShare:
    r"""Return the share of a kernel's variance that is explained by the positions of the two points.

    Let p = (i, j) be a pair of positions drawn uniformly and s a signal (an image). For the kernel
    matrix :math:`K_{sp}`, with
    :math:`\mathrm{Var}` summed over matrix entries, the law of total variance says

    .. math:: \mathrm{Var}\,K = \underbrace{\mathbb E_p\,\mathrm{Var}_s(K_{sp})}_{\text{content}}
        + \underbrace{\mathrm{Var}_p\,\mathbb E_s(K_{sp})}_{\text{position}}, \qquad
        \text{share} = \frac{\text{position}}{\text{position} + \text{content}}.

    A kernel that depends only on positions has share 1. A kernel that depends only on features, with
    the same distribution everywhere, has share 0. Information about position in the features
    (position codes, borders that are always black) counts as position.

    With :math:`G_{st} = \mathrm{mean}_p \langle K_{sp}, K_{tp}\rangle` and
    :math:`M_{st} = \langle \mathrm{mean}_p K_{sp}, \mathrm{mean}_p K_{tp}\rangle` both parts are
    means over distinct signals, free of the bias of plug-in variances: position =
    :math:`\mathrm{mean}_{s\neq t}(G - M)_{st}`, content =
    :math:`\mathrm{mean}_s G_{ss} - \mathrm{mean}_{s\neq t}G_{st}`. The standard error is the
    delete-one-signal jackknife's.

    Args:
        operator: anything that obeys the operator contract.
        u: features of at least three signals on the same points, (B, N, D).
        domain: where they live, shared by all signals; by default where the operator puts them
            without one.
        queries, keys: how many queries, and how many of the keys each of them sees, are drawn with
            ``seed``.
        budget: bytes of kernel matrix evaluated at once.

    Cost: O(B · queries · N · H · d_out · d_in) time; memory ``budget`` and B · keys · H · d_out ·
    d_in numbers.

    Raises:
        ShapeError: fewer than three signals.
        DomainError: signals on different points, so that no pair of positions is fixed.
        OptionError: no query or no key.

    Example:
        >>> from fredholm.operators import create_operator
        >>> op = create_operator("itnet", 8, heads=2, width=8, groups=["relative", "distance"])
        >>> round(variance_share(op, torch.randn(6, 10, 8)).share, 6)
        1.0
    """
    domain = check(operator, u, domain)
    if len(u) < 3:
        raise ShapeError(f"content varies over signals: need at least 3 of them, got {len(u)}")
    if queries < 1 or keys < 1:
        raise OptionError(
            f"need at least one query and one key, got queries={queries} and keys={keys}"
        )
    if domain.batch not in (None, 1):
        raise DomainError(
            "the signals have a domain each; give signals that share their positions, measure and "
            "padding"
        )
    generator = torch.Generator().manual_seed(seed)
    # Sums over the position pairs, which become means below: inner products of two signals' kernel
    # matrices, (H, S, S), and the matrices themselves, (S, H, d_out · d_in).
    gram: Tensor | float = 0.0
    total: Tensor | float = 0.0
    pairs = 0
    target = output_points(operator, domain)
    quadrature = domain.quadrature()
    if target is not domain:
        quadrature = domain.quadrature(target)
    for query in choose_queries(target, queries, seed):
        # Keys that every head sees, in a domain that all signals share. Weights of one query are
        # (1, 1 | H, 1, N).
        visible = quadrature.weights([query]) > 0
        seen_by_all_heads = visible[0].all(0)[0]
        seen = seen_by_all_heads.nonzero()[:, 0].cpu()
        order = torch.randperm(len(seen), generator=generator)
        chosen = seen[order[:keys]]
        if not len(chosen):
            continue

        # One query of all signals: (B, H, keys, d_out · d_in)
        parts = []
        pieces = matrix_rows(operator, u, domain, [query], budget)
        for _, _, matrix in pieces:
            columns = chosen.to(matrix.device)
            part = matrix[:, :, 0, columns]
            parts.append(part.flatten(3).double().cpu())
        entries = torch.cat(parts)
        gram = gram + torch.einsum("shke,thke->hst", entries, entries)
        total = total + entries.sum(2)
        pairs += len(chosen)
    if not isinstance(gram, Tensor) or not isinstance(total, Tensor):
        raise DomainError("no chosen query sees any key; draw more queries")

    # G, and G - M: the inner products once the mean over pairs is taken off each signal.
    gram = gram / pairs
    mean = total / pairs
    of_means = torch.einsum("she,the->hst", mean, mean)
    centred = gram - of_means
    position, content = _parts(gram, centred)
    squares = gram.diagonal(dim1=1, dim2=2)
    mean_square = squares.mean(1)
    head_share, share = _share(position, content, scale=mean_square)

    head_variance = position + content
    variance = head_variance.sum().clamp(min=0)
    square = mean_square.sum().clamp(min=1e-300)
    relative = (variance / square).sqrt()
    return VarianceShare(
        position=position,
        content=content,
        head_share=head_share,
        share=float(share),
        error=_jackknife_error(gram, centred),
        relative=float(relative),
        samples=len(u),
        pairs=pairs,
    )


def _jackknife_error(gram: Tensor, centred: Tensor) -> float:
    """Return the standard error of the share of all heads, from the two Gram matrices (H, S, S)."""
    signals = range(gram.shape[-1])
    shares = []
    for left_out in signals:
        others = [signal for signal in signals if signal != left_out]
        gram_of_others = _take(gram, others)
        centred_of_others = _take(centred, others)
        position, content = _parts(gram_of_others, centred_of_others)
        _, share = _share(position, content)
        shares.append(share)

    # The variance is (S - 1) times the uncorrected variance of the S estimates.
    spread = torch.stack(shares).var(correction=0)
    variance = (len(signals) - 1) * spread
    return float(variance.sqrt())


def _parts(gram: Tensor, centred: Tensor) -> tuple[Tensor, Tensor]:
    """Return (position, content) per head from the two Gram matrices (H, S, S)."""
    size = gram.shape[-1]

    def between(g: Tensor) -> Tensor:
        """Return the mean over two distinct signals."""
        diagonal = g.diagonal(dim1=1, dim2=2)
        pairs = size * (size - 1)
        distinct = g.sum((1, 2)) - diagonal.sum(1)
        return distinct / pairs

    squares = gram.diagonal(dim1=1, dim2=2)
    within = squares.mean(1)
    return between(centred), within - between(gram)


def _share(
    position: Tensor,
    content: Tensor,
    scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the share per head and of all heads; NaN where the variance is rounding error of
    ``scale``, the mean square.
    """
    variance = position + content
    floor = torch.zeros_like(variance)
    if scale is not None:
        floor = 1e-12 * scale
    head_shares = position / variance
    head_shares = torch.where(variance > floor, head_shares, torch.nan)

    total = variance.sum()
    share = position.sum() / total
    total_floor = floor.sum()
    share = torch.where(total > total_floor, share, torch.nan)
    return head_shares, share


def _take(matrix: Tensor, kept: list[int]) -> Tensor:
    rows = matrix[:, kept]
    return rows[:, :, kept]
