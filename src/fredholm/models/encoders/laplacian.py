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
def laplacian_positions(
    edges: Bool[Tensor, "*b n n"],
    k: int,
) -> Float[Tensor, "*b n k"]:
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
    identity = torch.eye(n, dtype=torch.float64, device=edges.device)
    adjacent = adjacent * (1 - identity)
    degree = adjacent.sum(-1)
    has_edge = degree > 0
    scale = torch.where(has_edge, degree.clamp(min=1).rsqrt(), 0.0)

    # I - D^{-1/2} A D^{-1/2}, without the ones of isolated nodes.
    diagonal = torch.diag_embed(has_edge.double())
    scaled = scale[..., :, None] * adjacent * scale[..., None, :]
    laplacian = diagonal - scaled

    # Eigenvalues rise: the null space comes first, with a vector per component.
    vectors = torch.linalg.eigh(laplacian).eigenvectors
    components = _components(adjacent > 0)
    following = torch.arange(min(k, n), device=edges.device)
    order = components[..., None] + following
    exists = order < n
    order = order.clamp(max=n - 1)
    columns = order[..., None, :].expand(*vectors.shape[:-1], -1)
    chosen = vectors.gather(-1, columns)

    # An eigenvector is defined up to its sign.
    place = chosen.abs().argmax(-2, keepdim=True)
    largest = chosen.gather(-2, place)
    sign = torch.where(largest < 0, -1.0, 1.0)
    nodes = has_edge.sum(-1).clamp(min=1)
    size = nodes.double().sqrt()
    chosen = torch.where(exists[..., None, :], chosen * sign, 0.0)
    chosen = chosen * size[..., None, None]

    missing = max(k - chosen.shape[-1], 0)
    positions = torch.nn.functional.pad(chosen, (0, missing))
    return positions.float()


def _components(edges: Bool[Tensor, "*b n n"]) -> Tensor:
    """Return the number of connected components of each graph of undirected edges. O(n³ log n)."""
    n = edges.shape[-1]
    nodes = torch.arange(n, device=edges.device)
    own = nodes == nodes[:, None]
    linked = (edges | own).float()
    # Each round reaches twice as far.
    for _ in range(max(0, n - 1).bit_length()):
        linked = (linked @ linked).clamp(max=1.0)
    # A component counts at its first node, which reaches none before itself.
    first_reached = linked.argmax(-1)
    return (first_reached == nodes).sum(-1)


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
    ones = numpy.ones(len(ends))
    adjacent = coo_array((ones, (ends, others)), (nodes, nodes)).tocsr()
    adjacent.data[:] = 1.0
    degree = numpy.diff(adjacent.indptr)

    # Nodes of a component are neighbours in this order.
    _, label = connected_components(adjacent, directed=False)
    order = numpy.argsort(label, kind="stable")
    modes: list[_Mode] = []
    starts = numpy.flatnonzero(numpy.diff(label[order])) + 1
    for part in numpy.split(order, starts):
        if len(part) > 1:
            within = adjacent[part][:, part]
            modes += _modes(within, part, k)

    positions = numpy.zeros((nodes, k))
    with_edges = int((degree > 0).sum())
    size = max(with_edges, 1) ** 0.5
    modes.sort(key=lambda mode: mode.value)
    for column, mode in enumerate(modes[:k]):
        # An eigenvector is defined up to its sign.
        place = numpy.abs(mode.entries).argmax()
        signed_size = numpy.copysign(size, mode.entries[place])
        positions[mode.nodes, column] = signed_size * mode.entries
    found = torch.from_numpy(positions).float()
    return found.to(edge_index.device)


def _modes(adjacent: Any, nodes: Any, k: int) -> list[_Mode]:
    """Return the lowest k eigenvectors of a connected component outside its null space."""
    from scipy.sparse import diags_array, eye_array

    n = len(nodes)
    degree = numpy.diff(adjacent.indptr)
    root = numpy.sqrt(degree.astype(float))
    scale = diags_array(1.0 / root)
    similar = scale @ adjacent @ scale
    null = root / numpy.linalg.norm(root)
    count = min(k, n - 1)
    if n <= FEW_NODES or count >= n - 1:
        laplacian = numpy.eye(n) - similar.toarray()
        values, vectors = numpy.linalg.eigh(laplacian)
        # The first eigenvalue is 0, of the null vector.
        values = values[1 : count + 1]
        vectors = vectors[:, 1 : count + 1]
    else:
        values, vectors = _lowest(eye_array(n) - similar, null, count)
    modes = []
    for i, value in enumerate(values):
        modes.append(_Mode(float(value), nodes, vectors[:, i]))
    return modes


def _lowest(laplacian: Any, null: Any, count: int) -> tuple[Any, Any]:
    """Return the lowest eigenvalues and eigenvectors of a connected graph, without its null vector
    ``null``.
    """
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    # Eigenvalues lie in [0, 2]. Of 2 - L, without its null vector, the lowest are the largest.
    n = len(null)

    def apply(v: Any) -> Any:
        v = v.reshape(-1)
        of_null = 2 * null * (null @ v)
        return 2 * v - laplacian @ v - of_null

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
        values, vectors = eigsh(
            laplacian.tocsc(),
            count + 1,
            sigma=-1e-4,
            which="LM",
            v0=start,
        )
    order = numpy.argsort(values, kind="stable")
    values = values[order]
    vectors = vectors[:, order]
    if len(values) > count:
        # The null vector is among them: the others are nearly orthogonal to it.
        overlap = numpy.abs(null @ vectors)
        other = numpy.argsort(overlap, kind="stable")[:count]
        other.sort()
        values = values[other]
        vectors = vectors[:, other]
    return values, vectors
