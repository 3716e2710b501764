"""Infinite Self-Attention as the paper writes it: plain einsums, every pair of tokens in memory.

The page to open first. Nothing here is fast and nothing is shared with the fast forms, so that
they can be tested against it (``tests/kernels/test_token_graph.py``).

Letters of the shapes: b samples, n tokens, d features of a token, h heads, e features of a head's
queries, keys and values. Weight matrices are (h, e, d), one per head. Every response is
(b, h, n, e); the layer joins the heads and multiplies with its output matrix W_O.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

PHI: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "abs": torch.abs,
}

# --- the token graph, and hops on it --------------------------------------------------------------


def token_graph(
    u: Float[Tensor, "b n d"],
    query: Float[Tensor, "h e d"],
    key: Float[Tensor, "h e d"],
    *,
    activation: str = "relu",
    eps: float = 1e-6,
    causal: bool = False,
) -> Float[Tensor, "b h n n"]:
    r"""Return the token graph,
    :math:`\hat A = \phi(QK^\top) / (\|\phi(QK^\top)\|_F + \varepsilon)` (11).

    The edge :math:`\hat A_{ij}` is what token i takes from token j in one hop. The norm is one
    number per sample and head. ``causal`` is ours: edges to later tokens are zero, and row i is
    divided by the norm of the leading i × i block, since the norm of the whole would tell an early
    token how many strong edges come later.

    Example:
        >>> graph = token_graph(torch.randn(2, 5, 8), *torch.randn(2, 4, 2, 8))
        >>> graph.norm(dim=(2, 3)).round(decimals=4).unique().tolist()
        [1.0]
    """
    q = torch.einsum("bnd,hed->bhne", u, query)
    k = torch.einsum("bnd,hed->bhne", u, key)
    scores = torch.einsum("bhie,bhje->bhij", q, k)
    edges = PHI[activation](scores)
    if causal:
        edges = edges.tril()

        # Row i has the norm of the first i + 1 rows, whose later columns are zero.
        norms = []
        for i in range(edges.shape[2]):
            first_rows = edges[:, :, : i + 1]
            norm = torch.linalg.vector_norm(first_rows, dim=(2, 3))
            norms.append(norm)
        norm = torch.stack(norms, 2)[..., None]
    else:
        norm = torch.linalg.vector_norm(
            edges,
            dim=(2, 3),
            keepdim=True,
        )
    return edges / (norm + eps)


def hop(
    u: Float[Tensor, "b n d"],
    query: Float[Tensor, "h e d"],
    key: Float[Tensor, "h e d"],
    value: Float[Tensor, "h e d"],
    *,
    decay: float = 0.7,
    layer: int = 1,
    **options,
) -> Float[Tensor, "b h n e"]:
    r"""Return one hop, which block l of the paper's stack adds: :math:`\gamma^l \hat A V` (12).

    ``options`` are those of :func:`token_graph`.

    Example:
        >>> hop(torch.randn(2, 5, 8), *torch.randn(3, 4, 2, 8)).shape
        torch.Size([2, 4, 5, 2])
    """
    v = torch.einsum("bnd,hed->bhne", u, value)
    graph = token_graph(u, query, key, **options)
    return decay**layer * torch.einsum("bhij,bhje->bhie", graph, v)


def truncated_series(
    u: Float[Tensor, "b n d"],
    query: Float[Tensor, "h e d"],
    key: Float[Tensor, "h e d"],
    value: Float[Tensor, "h e d"],
    *,
    hops: int,
    decay: float = 0.7,
    **options,
) -> Float[Tensor, "b h n e"]:
    r"""Return walks of 1 to ``hops`` hops, :math:`\sum_{t=1}^{hops} (\gamma\hat A)^t V` (6, 10)."""
    v = torch.einsum("bnd,hed->bhne", u, value)
    graph = decay * token_graph(u, query, key, **options)
    reached = v
    total = torch.zeros_like(v)
    for _ in range(hops):
        reached = torch.einsum("bhij,bhje->bhie", graph, reached)
        total = total + reached
    return total


def resolvent(
    u: Float[Tensor, "b n d"],
    query: Float[Tensor, "h e d"],
    key: Float[Tensor, "h e d"],
    value: Float[Tensor, "h e d"],
    *,
    decay: float = 0.7,
    **options,
) -> Float[Tensor, "b h n e"]:
    r"""Return walks of every length, :math:`\big((I - \gamma\hat A)^{-1} - I\big) V` (7)."""
    v = torch.einsum("bnd,hed->bhne", u, value)
    graph = decay * token_graph(u, query, key, **options)
    identity = torch.eye(
        graph.shape[-1],
        dtype=graph.dtype,
        device=graph.device,
    )
    walks = torch.linalg.solve(identity - graph, v)
    # The walk of length zero is v itself.
    return walks - v


# --- the linear form ------------------------------------------------------------------------------


def linear(
    u: Float[Tensor, "b n d"],
    query: Float[Tensor, "h e d"],
    key: Float[Tensor, "h e d"],
    value: Float[Tensor, "h e d"],
    *,
    decay: float = 0.7,
    layer: int = 1,
    activation: str = "relu",
    eps: float = 1e-6,
) -> Float[Tensor, "b h n e"]:
    r"""Linear InfSA (16-21): the keys' likeness to a central query is one step of a power iteration
    towards the graph's leading eigenvector. In the paper keys are queries: ``key`` is ``query``.

    All tokens receive the same response. No token likes the centre where S is zero throughout; the
    paper then divides zero by ε, :class:`.CentreKernel` takes α instead.
    """
    q = torch.einsum("bnd,hed->bhne", u, query)
    k = torch.einsum("bnd,hed->bhne", u, key)
    v = torch.einsum("bnd,hed->bhne", u, value)

    # e (16) and α (17).
    energy = torch.linalg.vector_norm(q, dim=3)
    total = energy.sum(2, keepdim=True)
    alpha = energy / (total + eps)

    # The central query (18), and the likeness S of the keys to it (19, 20).
    centre = torch.einsum("bhn,bhne->bhe", alpha, q)
    likeness = torch.einsum("bhe,bhne->bhn", centre, k)
    score = PHI[activation](likeness)
    total = score.sum(2, keepdim=True)
    a = score / (total + eps)

    # The response (21).
    response = decay**layer * torch.einsum("bhn,bhne->bhe", a, v)
    return response[:, :, None].expand(v.shape)


# --- one product, with a measure, a density of pairs and an order (ours) --------------------------


def edge_product_naive(
    query: Float[Tensor, "b h q e"],
    key: Float[Tensor, "b h k e"],
    value: Float[Tensor, "b h k d"],
    mass: Float[Tensor, "#b #k"],
    density: Float[Tensor, "#b #h q k"] | None = None,
    *,
    causal: bool = False,
    activation: str = "relu",
    statistic: str = "squares",
) -> tuple[Float[Tensor, "b h q d"], Float[Tensor, "b h q"]]:
    """Return the results of :func:`fredholm.families.infsa.graph.edge_product`: edges before they
    are divided by a norm, times values, and the size of every row, of which the norm is made.

    Example:
        >>> one = torch.ones(1, 1, 2, 1)
        >>> out, row = edge_product_naive(one, one, one, torch.ones(1, 2), causal=True)
        >>> out.flatten().tolist(), row.flatten().tolist()
        ([1.0, 2.0], [1.0, 2.0])
    """
    scores = torch.einsum("bhie,bhje->bhij", query, key)
    edges = PHI[activation](scores)
    if density is not None:
        edges = edges * density
    if causal:
        edges = edges.tril()

    size = {
        "squares": edges.square(),
        "sums": edges.abs(),
        "none": torch.zeros_like(edges),
    }
    massive = size[statistic] * mass[:, None, None, :]
    row = massive.sum(3)
    product = torch.einsum("bhij,bhjd->bhid", edges, value)
    return product, row
