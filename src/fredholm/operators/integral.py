"""The generic integral operator: one class for every kernel and every strategy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..domain import Domain
from ..errors import DomainError, OptionError, ShapeError
from ..kernels import Kernel, Layout, Problem, WeightedValue, has_trait
from ..kernels.base import head_width, merge_heads, split_heads
from ..ops.integral import dense_apply, kernel_norm
from ..quadrature import Quadrature, Rows
from .strategies import Plan, Strategy, read_strategy, resolve


@dataclass(frozen=True, eq=False)
class CausalState:
    """What a causal operator remembers of a prefix: the domain, how many points came, and the
    strategy's key tensors.
    """

    domain: Domain
    quadrature: Quadrature
    seen: int
    keys: dict[str, Tensor]


class IntegralOperator(nn.Module):
    r"""A kernel bound to a strategy:
    :math:`(Tu)(x) = W u(x) + P\,\big[\int K_h(x,y,u(x),u(y))\,u(y)\,d\mu(y) + o_h\big]_h`.

    Args:
        dim: width of u.
        heads: H; a kernel that is not ``whole`` reads and writes a slice of width dim / H a head.
        kernel: K, a :class:`fredholm.kernels.Kernel` for the same number of heads.
        strategy: ``"auto"``, a name, ``{"name": ..., option: ...}`` as in a recipe, or a
            :class:`Strategy`. It has no parameters and may be replaced: ``op.strategy = ...``.
        out_dim: width of the output, default ``dim``.
        residual: the pointwise term W, initialised to the identity (Xavier-uniform where widths
            differ).
        projection: the output projection P: a layer of your own, or True for one with bias,
            Xavier-uniform; without it the heads are concatenated.

    Shape: u (B, N, dim) on ``domain`` (N points, default a line) to (B, Nq, out_dim). With
    ``query_domain`` the output lives there; ``query`` (B, Nq, dim) are the features at those
    points, needed by W and by kernels that read u(x). Padded points may hold anything, NaN
    included; outputs at padded queries are zero.

    Raises:
        ShapeError: shapes, dtypes or devices that do not fit.
        OptionError: kernel, heads and widths that do not fit one another.

    Reference: ITNet Eq. 1.

    Example:
        >>> from fredholm.kernels import MLPKernel
        >>> op = IntegralOperator(8, heads=2, kernel=MLPKernel(2, 4, width=16))
        >>> op(torch.randn(3, 7, 8), Domain.line(7, causal=True)).shape
        torch.Size([3, 7, 8])
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        kernel: Kernel,
        strategy: Strategy | str | Mapping[str, Any] = "auto",
        out_dim: int | None = None,
        residual: bool = True,
        projection: bool | nn.Linear = True,
    ):
        super().__init__()
        need = dim if kernel.whole else head_width(dim, heads)
        if kernel.heads != heads or kernel.d_in != need:
            got, want = f"{kernel.heads} heads of {kernel.d_in}", f"{heads} heads of {need}"
            raise OptionError(
                f"{type(kernel).__name__} has {got} features, the operator needs {want}"
            )
        self.dim, self.heads, self.out_dim = dim, heads, out_dim or dim
        self.kernel = kernel
        self.strategy = read_strategy(strategy)
        resolve(
            self.strategy, kernel, Layout()
        )  # an unknown name is refused here, not at the first call
        width = heads * kernel.d_out
        if isinstance(projection, nn.Linear):
            if (projection.in_features, projection.out_features) != (width, self.out_dim):
                got = f"{projection.in_features} to {projection.out_features}"
                raise OptionError(
                    f"the projection must map {width} to {self.out_dim} features, it maps {got}"
                )
            self.projection = projection
        elif not projection and width != self.out_dim:
            raise OptionError(
                f"without projection the output has width {width}, but out_dim={self.out_dim}"
            )
        else:
            self.projection = nn.Linear(width, self.out_dim) if projection else None
        self.residual = nn.Linear(dim, self.out_dim, bias=False) if residual else None
        self._reset_parameters(projection is True)

    def reset_parameters(self) -> None:
        """P Xavier-uniform with zero bias; W the identity where it can be. The kernel initialises
        itself.
        """
        self._reset_parameters(True)

    def _reset_parameters(self, projection: bool) -> None:
        if projection and self.projection is not None:
            nn.init.xavier_uniform_(self.projection.weight)
            if self.projection.bias is not None:
                nn.init.zeros_(self.projection.bias)
        if self.residual is not None:
            if self.dim == self.out_dim:
                nn.init.eye_(self.residual.weight)
            else:
                nn.init.xavier_uniform_(self.residual.weight)

    # --- evaluation -------------------------------------------------------------------------------

    def forward(
        self,
        u: Float[Tensor, "b n d"],
        domain: Domain | None = None,
        *,
        query: Float[Tensor, "b q d"] | None = None,
        query_domain: Domain | None = None,
    ) -> Float[Tensor, "b m o"]:
        problem, query, valid = self._problem(u, domain, query, query_domain)
        strategy = resolve(self.strategy, self.kernel, problem.layout)
        path = strategy.path(self.kernel, problem.layout)
        return self._finish(strategy.respond(self.kernel, problem, path), query, valid)

    def dense(
        self,
        u: Float[Tensor, "b n d"],
        domain: Domain | None = None,
        *,
        query: Float[Tensor, "b q d"] | None = None,
        query_domain: Domain | None = None,
    ) -> Float[Tensor, "b m o"]:
        """The output through the dense kernel matrix: the definition that ``forward`` is held to.
        O(N²·d²) memory.
        """
        problem, query, valid = self._problem(u, domain, query, query_domain)
        weights = problem.quadrature.weights().to(problem.uy.dtype)
        response, offset = (
            dense_apply(self.kernel.matrix(problem), weights, problem.uy),
            self.kernel.offset(problem),
        )
        return self._finish(response if offset is None else response + offset, query, valid)

    def kernel_matrix(
        self, u, domain=None, *, query=None, query_domain=None, rows: Rows = None
    ) -> Tensor:
        """K as densities against the measure, (B, H, Nq, Nk, d_out, d_in), before the output
        projection. ``rows`` picks queries.

        Hidden pairs hold whatever the kernel says there; their quadrature weight is zero.
        """
        problem, _, _ = self._problem(u, domain, query, query_domain)
        return self.kernel.matrix(problem.rows(rows))

    def weights(
        self, u, domain=None, *, query=None, query_domain=None, rows: Rows = None
    ) -> Tensor:
        """How much a query takes from a key, (B, H, Nq, Nk): for pictures.

        Scalar-weight kernels: weight times measure (softmax: the attention probabilities). Others:
        ‖K‖_F times measure.
        """
        problem, _, _ = self._problem(u, domain, query, query_domain)
        problem = problem.rows(rows)
        quadrature = problem.quadrature.weights().to(problem.uy.dtype)
        if has_trait(self.kernel, WeightedValue):
            kernel: Any = self.kernel
            return kernel.weights(problem) * quadrature
        return kernel_norm(self.kernel.matrix(problem), quadrature)

    def plan(self, domain: Domain, query_domain: Domain | None = None) -> Plan:
        """Which strategy and form ``forward`` takes on this domain, and why."""
        given = query_domain is not None
        if query_domain is None:
            query_domain = self.kernel.output_domain(domain)
        layout = Layout.of(domain, query_domain, given=given)
        self.kernel.check(layout)
        return resolve(self.strategy, self.kernel, layout).plan(self.kernel, layout)

    # --- causal step ------------------------------------------------------------------------------

    def init_state(self, batch: int, domain: Domain) -> CausalState:
        """State before the first point of a causal ``domain``, which fixes positions, measure and
        masks of all points to come.
        """
        if not domain.causal:
            raise DomainError("init_state needs a causal domain; build it with causal=True")
        if domain.batch not in (None, batch):
            raise ShapeError(f"the domain is batched for {domain.batch}, the state for {batch}")
        self.kernel.check(Layout.of(domain, stepping=True))
        return CausalState(domain, domain.quadrature(), 0, {})

    def step(
        self, u_t: Float[Tensor, "b d"], state: CausalState
    ) -> tuple[Float[Tensor, "b o"], CausalState]:
        """One point of a causal domain: features (B, dim) at the next index to the output there and
        the state after it.

        Keys are computed once and cached, O(t) time and memory at point t; a kernel with a
        ``CausalTransition`` needs O(1).
        """
        t, domain = state.seen, state.domain
        if t >= domain.size:
            raise DomainError(
                f"the state's domain has {domain.size} points and all were seen; build a longer "
                "domain"
            )
        if u_t.dim() != 2 or u_t.shape[-1] != self.dim:
            raise ShapeError(f"u_t must have shape (B, {self.dim}), got {tuple(u_t.shape)}")
        u = u_t[:, None]
        valid = None if domain.valid is None else domain.valid[:, t : t + 1]
        u = _clean(u, valid)
        heads = self._split(u)
        x = _batched(_clean(domain.positions[..., t : t + 1, :], valid), 2)
        x = x.to(u.device, torch.promote_types(u.dtype, x.dtype))
        layout = Layout.of(domain, stepping=True)
        strategy = resolve(self.strategy, self.kernel, layout)
        path = strategy.path(self.kernel, layout)
        response, keys = strategy.step(self.kernel, x, heads, state.quadrature, t, state.keys, path)
        return self._finish(response, u, valid)[:, 0], replace(state, seen=t + 1, keys=keys)

    # --- parts ------------------------------------------------------------------------------------

    def _problem(
        self, u, domain, query, query_domain
    ) -> tuple[Problem, Tensor | None, Tensor | None]:
        """Checked inputs, padding cleaned, heads split: (problem, query features or None, validity
        of the queries).
        """
        if u.dim() != 3 or u.shape[-1] != self.dim:
            raise ShapeError(f"u must have shape (B, N, {self.dim}), got {tuple(u.shape)}")
        if domain is None:
            dtype = torch.promote_types(u.dtype, torch.float32)
            domain = self.kernel.default_domain(u.shape[1], device=u.device, dtype=dtype)
        _check_fit(u, domain, "u", "domain")
        if query is not None and query_domain is None:
            query_domain = Domain.line(
                query.shape[1], device=query.device, dtype=domain.positions.dtype
            )
        given = query_domain is not None
        if query_domain is None:
            query_domain = self.kernel.output_domain(domain)
        layout = Layout.of(domain, query_domain, given=given)
        self.kernel.check(layout)
        cross, target = query_domain is not None, query_domain or domain
        if query is None and not cross:
            query = u
        if query is None and (self.residual is not None or self.kernel.reads_query):
            what = "W" if self.residual is not None else type(self.kernel).__name__
            raise ShapeError(
                f"{what} reads features at the queries: pass query=(B, {target.size}, {self.dim})"
            )
        if cross and query is not None:
            if query.shape[-1] != self.dim:
                raise ShapeError(
                    f"query must have shape (B, {target.size}, {self.dim}), got "
                    f"{tuple(query.shape)}"
                )
            _check_fit(query, target, "query", "query_domain")
            if query.shape[0] != u.shape[0]:
                raise ShapeError(
                    f"query has batch size {query.shape[0]} and u {u.shape[0]}; they must be equal"
                )
        if cross and target.dim != domain.dim:
            raise ShapeError(
                f"domain and query_domain have positions of dimension {domain.dim} and {target.dim}"
            )
        u = _clean(u, domain.valid)
        query = u if not cross else None if query is None else _clean(query, target.valid)
        if query is None:  # nothing reads these values
            heads = self.heads if not self.kernel.whole else 1
            ux = u.new_zeros(()).expand(u.shape[0], heads, target.size, self.kernel.d_in)
        else:
            ux = self._split(query)
        dtype = torch.promote_types(u.dtype, domain.positions.dtype)
        problem = Problem(
            x=_positions(target).to(dtype),
            y=_positions(domain).to(dtype),
            ux=ux,
            uy=self._split(u),
            quadrature=domain.quadrature(query_domain).to(u.dtype),
            layout=layout,
            real=target.valid,
        )
        return problem, query, target.valid

    def _split(self, u: Tensor) -> Tensor:
        return u[:, None] if self.kernel.whole else split_heads(u, self.heads)

    def _finish(self, response: Tensor, query: Tensor | None, valid: Tensor | None) -> Tensor:
        """Concatenation, projection, residual; zero at padded queries."""
        out = merge_heads(response)
        if self.projection is not None:
            out = self.projection(out)
        if self.residual is not None:
            assert query is not None
            out = out + self.residual(query)
        return _clean(out, valid)

    def extra_repr(self) -> str:
        return (
            f"dim={self.dim}, heads={self.heads}, out_dim={self.out_dim}, strategy={self.strategy}"
        )


def _batched(x: Tensor, dims: int) -> Tensor:
    return x[None] if x.dim() == dims else x


def _positions(domain: Domain) -> Tensor:
    """Positions (1 | B, N, p). Those of one grid stay the grid's, whatever is padding on it: fast
    forms read displacements there.
    """
    shared = domain.shape is not None and domain.positions.dim() == 2
    return _batched(domain.positions if shared else _clean(domain.positions, domain.valid), 2)


def _clean(x: Tensor, valid: Tensor | None) -> Tensor:
    """Zero at padding, by ``where``, so that NaN there is harmless."""
    if valid is None:
        return x
    return torch.where(valid[..., None], x, torch.zeros((), dtype=x.dtype, device=x.device))


def _check_fit(u: Tensor, domain: Domain, name: str, domain_name: str) -> None:
    if u.shape[1] != domain.size:
        raise ShapeError(
            f"{name} has {u.shape[1]} points and its {domain_name} {domain.size}; they must be "
            "equal"
        )
    if domain.batch not in (None, 1, u.shape[0]):
        raise ShapeError(
            f"{name} has batch size {u.shape[0]} and its {domain_name} {domain.batch}; they must "
            "be equal"
        )
    if domain.positions.device != u.device:
        where = f"{domain.positions.device}, {name} on {u.device}"
        raise ShapeError(
            f"{domain_name} is on {where}; move it with {domain_name}.to({str(u.device)!r})"
        )
