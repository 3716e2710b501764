"""Positions of the nodes of a graph: eigenvectors of its normalised Laplacian."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...edges import check_edge_index
from ...errors import ShapeError, require

# scipy is an extra, which only large graphs need: their functions import it.

# Nodes of a component up to which its matrix is dense.
FEW_NODES = 512

# Restarts of the Lanczos iteration, after which a shifted inverse is factorised instead.
LANCZOS_STEPS = 400


@torch.no_grad()
def laplacian_positions(edges: Bool[Tensor, "*b n n"], k: int) -> Float[Tensor, "*b n k"]:
    r"""Return the first k eigenvectors of :math:`I - D^{-1/2} A D^{-1/2}` outside its null space,
    times :math:`\sqrt{n}`, where n is the number of nodes with an edge.

    Directions of edges are ignored. The null space only tells the components apart and is left out:
    in a graph of several components each eigenvector belongs to one of them, or to several with the
    same eigenvalue, and isolated (or padded) nodes are at the origin. The dimension of the null
    space is the number of components, counted from the edges, since long or clustered graphs have
    very small eigenvalues as well. Missing eigenvectors are zero. The sign makes the entry of
    largest magnitude positive; the basis for equal eigenvalues is the solver's. Cost: O(N³).

    Raises:
        ShapeError: edges that are not a square mask.

    Example:
        >>> path = torch.tensor([[0, 1, 0], [1, 0, 1], [0, 1, 0]], dtype=torch.bool)
        >>> laplacian_positions(path, 1).abs().flatten().tolist()[1] < 1e-6
        True
    """
    if edges.dim() < 2 or edges.shape[-1] != edges.shape[-2] or edges.dtype != torch.bool:
        raise ShapeError(
            "edges: expected a boolean mask (..., N, N), got "
            f"{tuple(edges.shape)} of {edges.dtype}; convert it"
        )
    n = edges.shape[-1]
    adjacent = (edges | edges.mT).double()
    adjacent = adjacent * (1 - torch.eye(n, dtype=torch.float64, device=edges.device))
    degree = adjacent.sum(-1)
    scale = torch.where(degree > 0, degree.clamp(min=1).rsqrt(), 0.0)
    laplacian = (
        torch.diag_embed((degree > 0).double())
        - scale[..., :, None] * adjacent * scale[..., None, :]
    )
    # Eigenvalues rise: the null space comes first, with a vector per component.
    vectors = torch.linalg.eigh(laplacian).eigenvectors
    order = _components(adjacent > 0)[..., None] + torch.arange(min(k, n), device=edges.device)
    exists = order < n
    order = order.clamp(max=n - 1)
    chosen = vectors.gather(-1, order[..., None, :].expand(*vectors.shape[:-1], -1))

    # An eigenvector is defined up to its sign.
    largest = chosen.gather(-2, chosen.abs().argmax(-2, keepdim=True))
    sign = torch.where(largest < 0, -1.0, 1.0)
    size = (degree > 0).sum(-1).clamp(min=1).double().sqrt()
    chosen = torch.where(exists[..., None, :], chosen * sign, 0.0) * size[..., None, None]
    missing = max(k - chosen.shape[-1], 0)
    return torch.nn.functional.pad(chosen, (0, missing)).float()


def _components(edges: Bool[Tensor, "*b n n"]) -> Tensor:
    """Return the number of connected components of each graph of undirected edges. O(n³ log n)."""
    n = edges.shape[-1]
    nodes = torch.arange(n, device=edges.device)
    linked = (edges | (nodes == nodes[:, None])).float()
    # Each round reaches twice as far.
    for _ in range(max(0, n - 1).bit_length()):
        linked = (linked @ linked).clamp(max=1.0)
    # A component counts at its first node, which reaches none before itself.
    return (linked.argmax(-1) == nodes).sum(-1)


# --- of a large graph -----------------------------------------------------------------------------


class _Mode(NamedTuple):
    """An eigenvector of one component: eigenvalue, nodes, and entries at the nodes."""

    value: float
    nodes: Any
    entries: Any


def sparse_laplacian_positions(
    edge_index: Int[Tensor, "2 e"],
    nodes: int,
    k: int,
) -> Float[Tensor, "n k"]:
    """Return :func:`laplacian_positions` of a large graph, from its edges, in memory O(E + N·k).

    Components are solved one by one, small ones as dense matrices. Large ones take Lanczos
    iterations, or the inverse of the shifted Laplacian if the lowest eigenvalues lie too close
    together (in a long path). Needs scipy, extra ``search``.

    Args:
        edge_index: (2, E); directions, loops and repetitions are ignored.
        nodes: N.
        k: how many eigenvectors.

    Raises:
        DomainError: edges between nodes that the graph does not have.

    Example:
        >>> path = torch.tensor([[0, 1], [1, 2]])
        >>> sparse_laplacian_positions(path, 3, 1).shape
        torch.Size([3, 1])
    """
    require("scipy.sparse", "search", "eigenvectors of a large graph")
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    check_edge_index(edge_index, nodes, nodes)
    source, target = edge_index.cpu().numpy()
    apart = source != target
    ends = numpy.concatenate([source[apart], target[apart]])
    others = numpy.concatenate([target[apart], source[apart]])
    adjacent = coo_array((numpy.ones(len(ends)), (ends, others)), (nodes, nodes)).tocsr()
    adjacent.data[:] = 1.0
    degree = numpy.diff(adjacent.indptr)

    # Nodes of a component are neighbours in this order.
    _, label = connected_components(adjacent, directed=False)
    order = numpy.argsort(label, kind="stable")
    modes: list[_Mode] = []
    for part in numpy.split(order, numpy.flatnonzero(numpy.diff(label[order])) + 1):
        if len(part) > 1:
            modes += _modes(adjacent[part][:, part], part, k)

    positions = numpy.zeros((nodes, k))
    size = max(int((degree > 0).sum()), 1) ** 0.5
    for column, mode in enumerate(sorted(modes, key=lambda mode: mode.value)[:k]):
        largest = mode.entries[numpy.abs(mode.entries).argmax()]
        positions[mode.nodes, column] = numpy.copysign(size, largest) * mode.entries
    return torch.from_numpy(positions).float().to(edge_index.device)


def _modes(adjacent: Any, nodes: Any, k: int) -> list[_Mode]:
    """Return the lowest k eigenvectors of a connected component outside its null space."""
    from scipy.sparse import diags_array, eye_array

    n = len(nodes)
    root = numpy.sqrt(numpy.diff(adjacent.indptr).astype(float))
    scale = diags_array(1.0 / root)
    similar = scale @ adjacent @ scale
    null = root / numpy.linalg.norm(root)
    count = min(k, n - 1)
    if n <= FEW_NODES or count >= n - 1:
        values, vectors = numpy.linalg.eigh(numpy.eye(n) - similar.toarray())
        values, vectors = values[1 : count + 1], vectors[:, 1 : count + 1]
    else:
        values, vectors = _lowest(eye_array(n) - similar, null, count)
    return [_Mode(float(values[i]), nodes, vectors[:, i]) for i in range(len(values))]


def _lowest(laplacian: Any, null: Any, count: int) -> tuple[Any, Any]:
    """Return the lowest eigenvalues and eigenvectors of a connected graph, without its null vector
    ``null``.
    """
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    # Eigenvalues lie in [0, 2]. Of 2 - L, without its null vector, the lowest are the largest.
    n = len(null)

    def apply(v: Any) -> Any:
        v = v.reshape(-1)
        return 2 * v - laplacian @ v - 2 * null * (null @ v)

    operator: Any = LinearOperator
    turned = operator((n, n), matvec=apply, dtype=float)
    start = numpy.random.default_rng(0).standard_normal(n)
    krylov = min(n - 1, max(64, 4 * count))
    try:
        values, vectors = eigsh(
            turned,
            count,
            which="LA",
            v0=start,
            ncv=krylov,
            maxiter=LANCZOS_STEPS,
        )
        values = 2 - values
    except ArpackNoConvergence:
        # The inverse tells close eigenvalues apart, at the cost of a factorisation.
        values, vectors = eigsh(laplacian.tocsc(), count + 1, sigma=-1e-4, which="LM", v0=start)
    order = numpy.argsort(values, kind="stable")
    values, vectors = values[order], vectors[:, order]
    if len(values) > count:
        other = numpy.argsort(numpy.abs(null @ vectors), kind="stable")[:count]
        other.sort()
        values, vectors = values[other], vectors[:, other]
    return values, vectors
