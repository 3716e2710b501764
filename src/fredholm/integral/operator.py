"""The generic integral operator: one class for every kernel and every strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from ..arguments import Checked, refuse_kind
from ..domain import Domain
from ..errors import DomainError, OptionError, ShapeError
from ..notebook import NotebookTable
from ..ops.backend import cast, result_dtype
from ..ops.dense import dense_apply, kernel_norm
from ..quadrature import Rows
from .capabilities import WeightedValue
from .checks import check_domains, check_features, check_pairs, check_rows, check_steps
from .contract import Form, Kernel, Part, check_inference, choose, first_dtype, with_offset
from .facts import Facts, OperatorFacts
from .features import clean, head_width
from .place import default_domain
from .problem import Problem, merge_heads
from .sharing import Sharing
from .state import CausalState, load_state
from .steps import Stretch
from .strategy import Plan, Strategy, read_strategy


class IntegralOperator(nn.Module, NotebookTable, metaclass=Checked):
    r"""A kernel bound to a strategy:
    :math:`(Tu)(x) = W u(x) + P\,\big[\int K_h(x,y,u(x),u(y))\,u(y)\,d\mu(y) + o_h\big]_h`.

    Args:
        dim: width of u.
        heads: H; each head of a kernel that is not ``whole`` reads and writes a slice of width
            dim / H.
        kernel: K, a :class:`fredholm.kernels.Kernel` with the same number of heads.
        strategy: ``"auto"``, a name, ``{"name": ..., option: ...}`` as in a recipe, or a
            :class:`Strategy`. It has no parameters and may be replaced: ``op.strategy = ...``.
        out_dim: width of the output, default ``dim``.
        residual: the pointwise term W, initialised to the identity (Xavier-uniform where widths
            differ).
        projection: the output projection P: a layer of your own, or True for a new one with bias,
            Xavier-uniform; False concatenates the heads.

    Attributes:
        small: of a class whose defaults are those of a large model: options for the small backbone
            of a comparison.

    Shape: u (B, N, dim) on ``domain`` (N points, default a line) to (B, Nq, out_dim), at the points
    of ``query_domain`` (default: those of ``domain``). ``query`` (B, Nq, dim) are the features at
    these points, which W and kernels that read u(x) need. Without ``query_domain`` they lie on the
    domain of the keys, point by point. Only a kernel that reads no positions, on a domain without
    order and reach, takes any number of them, none of which is padding.

    Padded points may have any values, including NaN; outputs at padded queries are zero.

    u has the parameters' dtype, and the output has u's; sums are in float32 or better. Under
    autocast u may have any floating dtype except float64, and the output has autocast's dtype, as
    with ``nn.Linear``. The dtype of positions and masses is independent of these.

    Raises:
        ShapeError: shapes, dtypes or devices that do not fit.
        OptionError: kernel, heads and widths that do not fit one another.

    Cost: that of the form that ``plan(domain)`` names, plus O(N·dim²) for P and W.

    Reference: ITNet Eq. 1.

    Example:
        >>> from fredholm.kernels import MLPKernel
        >>> op = IntegralOperator(8, heads=2, kernel=MLPKernel(2, 4, width=16))
        >>> op(torch.randn(3, 7, 8), Domain.line(7, causal=True)).shape
        torch.Size([3, 7, 8])
    """

    kernel, projection, residual = Part(), Part(), Part()
    small: ClassVar[Mapping[str, Any]] = {}

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
        _check_kernel(kernel, dim, heads)
        self.dim, self.heads, self.out_dim = dim, heads, out_dim or dim
        self.kernel = kernel
        self.strategy = strategy

        # P before W: both draw their weights, and seeds promise the same weights in this order.
        width = heads * kernel.d_out
        if kernel.adds_heads:
            width = kernel.d_out
        self.projection = _output_projection(projection, width, self.out_dim)
        self.residual = None
        if residual:
            self.residual = nn.Linear(dim, self.out_dim, bias=False)

        # The class of the layer that this operator was made from, and the parameters that both
        # share.
        self.layer: str | None = None
        self.sharing: Sharing | None = None
        self._reset_parameters(projection is True)

    def reset_parameters(self) -> None:
        """Draw P Xavier-uniform with zero bias, and set W to the identity (Xavier-uniform where
        widths differ). The kernel initialises itself.
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
        # Shaped and not Float: other dtypes are refused with a message that names the fix.
        u: Shaped[Tensor, "b n d"],
        domain: Domain | None = None,
        *,
        query: Shaped[Tensor, "b q d"] | None = None,
        query_domain: Domain | None = None,
    ) -> Float[Tensor, "b m o"]:
        problem = self._problem(u, domain, query, query_domain)
        facts = problem.facts
        kernel = self.kernel
        form = choose(self._strategy, kernel, facts)
        response = cast(form.respond(kernel, problem), result_dtype(u))
        if kernel.training and problem.complete:
            kernel.observe(problem)
        return self._finish(response, problem.query, problem.answered_real)

    def dense(
        self,
        u: Float[Tensor, "b n d"],
        domain: Domain | None = None,
        *,
        query: Float[Tensor, "b q d"] | None = None,
        query_domain: Domain | None = None,
    ) -> Float[Tensor, "b m o"]:
        """Return the output computed from the matrix of all pairs.

        This is the operator's definition, which ``forward`` must equal. It needs O(N²·d²) memory.
        """
        problem = self.problem(u, domain, query=query, query_domain=query_domain)
        matrix = self.kernel.matrix(problem)
        weights = problem.quadrature.weights()
        integral = dense_apply(matrix, weights, problem.uy)
        response = with_offset(integral, self.kernel, problem)

        # ``problem`` refuses sharded domains, so that its queries are just those of the caller.
        return self._finish(response.to(result_dtype(u)), problem.query, problem.real)

    def problem(
        self,
        u,
        domain=None,
        *,
        query=None,
        query_domain=None,
    ) -> Problem:
        """Return the problem that a call with the same arguments passes to the kernel.

        It contains positions and features of queries and keys, and the quadrature, which states
        which query sees which key with which mass. Features are split into heads, (B, H, N, d), or
        (B, 1, N, dim) if every head reads all of them. Padding is zero.

        ``operator.kernel.matrix(operator.problem(u, domain))`` is :meth:`kernel_matrix`. Other
        quantities of a kernel, and parts such as ``problem.rows([0])``, are obtained in the same
        way.

        Raises:
            ShapeError, DomainError: as of a call.

        Example:
            >>> from fredholm import SoftmaxAttention
            >>> problem = SoftmaxAttention(8, heads=2).problem(torch.randn(3, 5, 8), Domain.line(5))
            >>> problem.uy.shape, problem.y.shape
            (torch.Size([3, 1, 5, 8]), torch.Size([1, 5, 1]))
        """
        return self._rows_of_problem(u, domain, query, query_domain, None)

    def _rows_of_problem(self, u, domain, query, query_domain, rows: Rows) -> Problem:
        """Return the problem of some queries with all their pairs written out.

        Of a sparse domain the other pairs are written out only where the kernel needs them: a local
        kernel answers a query from its own keys.
        """
        if isinstance(domain, Domain):
            domain.refuse_shards("the definition")
        problem = self._problem(u, domain, query, query_domain)
        check_rows(rows, problem.x.shape[1])
        if rows is None or not self.kernel.local:
            problem = problem.dense()
        return problem.rows(rows)

    def kernel_matrix(
        self,
        u,
        domain=None,
        *,
        query=None,
        query_domain=None,
        rows: Rows = None,
    ) -> Tensor:
        """Return K as densities against the measure, (B, H, Nq, Nk, d_out, d_in), before the output
        projection. O(Nq·Nk·d²) memory; ``rows`` selects queries.

        A hidden pair may hold any value, because its quadrature weight is zero.
        """
        return self.kernel.matrix(self._rows_of_problem(u, domain, query, query_domain, rows))

    @property
    def has_weights(self) -> bool:
        """Whether the kernel is a scalar weight times a value map, so that ``weights`` exist."""
        return isinstance(self.kernel, WeightedValue)

    def weights(
        self,
        u,
        domain=None,
        *,
        query=None,
        query_domain=None,
        rows: Rows = None,
    ) -> Tensor:
        """Return the scalar weight of each pair times the key's measure, (B, H, Nq, Nk). For
        softmax these are the attention probabilities.

        Raises:
            OptionError: the kernel is a matrix for each pair and has no scalar weight;
                ``influence`` has a number for each pair of every kernel.
        """
        kernel = self.kernel
        if not isinstance(kernel, WeightedValue):
            raise OptionError(
                f"expected a kernel with scalar weights, got {type(kernel).__name__}, which is a "
                "matrix for each pair of points; influence(u, domain) has the norm of that matrix "
                "times the measure"
            )
        problem = self._rows_of_problem(u, domain, query, query_domain, rows)
        weights = kernel.weights(problem) * problem.quadrature.weights()
        return _for_each_head(weights.to(problem.uy.dtype), self.heads, problem)

    def influence(
        self,
        u,
        domain=None,
        *,
        query=None,
        query_domain=None,
        rows: Rows = None,
    ) -> Tensor:
        """Return the influence of each key on each query, ‖K‖_F times the key's measure,
        (B, H, Nq, Nk). It is a non-negative number for every kernel.
        """
        problem = self._rows_of_problem(u, domain, query, query_domain, rows)
        quadrature, dtype = problem.quadrature.weights(), problem.uy.dtype
        if isinstance(self.kernel, WeightedValue):
            # ‖α V‖ = |α| ‖V‖, and V is the same for all pairs: no need for the matrix of each.
            value_norm = torch.linalg.matrix_norm(self.kernel.value_map())[:, None, None]
            norm = self.kernel.weights(problem).abs() * value_norm * quadrature
            return _for_each_head(norm.to(dtype), self.heads, problem)
        return kernel_norm(self.kernel.matrix(problem), quadrature).to(dtype)

    def plan(self, domain: Domain, query_domain: Domain | None = None) -> Plan:
        """Return which strategy and form ``forward`` takes on this domain, and why."""
        facts = Facts.on(self.kernel, domain, query_domain, operator=self._facts())
        return choose(self._strategy, self.kernel, facts).plan()

    @property
    def strategy(self) -> Strategy | str:
        """``"auto"``, or the strategy with its options. It may be set to anything that the
        constructor accepts.
        """
        return self._strategy

    @strategy.setter
    def strategy(self, strategy: Strategy | str | Mapping[str, Any]) -> None:
        self._strategy = read_strategy(strategy)

    # --- causal step ------------------------------------------------------------------------------

    def init_state(self, batch: int, domain: Domain) -> CausalState:
        """Return the state before the first point of a causal ``domain``, which determines
        positions, measure and masks of all later points.

        Raises:
            DomainError: a domain without causal order, in shards, or refused by the kernel; edges
                with features, or in a periodic box where the kernel reads positions.
            ShapeError: a domain for another batch size.
        """
        check_domains(domain=domain)
        domain.refuse_shards("init_state")
        if not domain.causal:
            raise DomainError(
                "init_state: expected a causal domain, got one without order; build it with "
                "causal=True"
            )
        if domain.batch not in (None, 1, batch):
            raise ShapeError(
                f"init_state: expected a domain for {batch} sequences or for all, got one for "
                f"{domain.batch}; pass batch={domain.batch}, or another domain"
            )
        check_pairs(domain, batch, self.heads)
        check_steps(self.kernel, domain)

        facts = Facts.on(self.kernel, domain, operator=self._facts(), stepping=True)
        form = choose(self._strategy, self.kernel, facts)
        operator = f"{type(self).__name__}({self.dim}, {self.heads}, out_dim={self.out_dim})"
        return CausalState(domain, domain.quadrature(), 0, {}, form, batch, operator)

    def load_state(self, path: str | Path) -> CausalState:
        """Read a state that :meth:`CausalState.save` wrote, possibly in another process, for this
        operator or for one of the same configuration and weights.

        Raises:
            CheckpointError: a file that is missing or is not a state, or a state of another
                operator, of other sizes or of another algorithm.
        """
        parameter = next(self.parameters(), None)
        device = torch.device("cpu")
        if parameter is not None:
            device = parameter.device
        return load_state(path, lambda domain, batch: self.init_state(batch, domain), device)

    def step(
        self,
        u_t: Float[Tensor, "b d"],
        state: CausalState,
    ) -> tuple[Float[Tensor, "b o"], CausalState]:
        """Advance by one point of a causal domain: map features (B, dim) at the next index to the
        output there, and return it with the state after it.

        O(1) time and memory where the state has a fixed size (a moment, a transition); otherwise
        keys are computed once and cached, O(t) at point t.
        """
        check_features(u_t=u_t)
        if u_t.dim() != 2 or u_t.shape[-1] != self.dim:
            raise ShapeError(
                f"u_t: expected shape (B, {self.dim}), got {tuple(u_t.shape)}; a step takes one "
                "point of each sequence, prefill several"
            )
        out, state = self._advance(u_t[:, None], state, _form(state).step)
        return out[:, 0], state

    def prefill(
        self,
        u: Float[Tensor, "b n d"],
        state: CausalState,
    ) -> tuple[Float[Tensor, "b n o"], CausalState]:
        """Advance by several points at once: map features (B, n, dim) of the next n points to their
        outputs, and return these with the state after the last.

        Any split of a sequence into prefills and steps gives the same outputs as ``forward``.

        Example:
            >>> from fredholm import SoftmaxAttention
            >>> op, u, line = SoftmaxAttention(8), torch.randn(1, 5, 8), Domain.line(5, causal=True)
            >>> _, state = op.prefill(u[:, :4], op.init_state(1, line))
            >>> torch.allclose(op.step(u[:, 4], state)[0], op(u, line)[:, 4], atol=1e-6)
            True
        """
        check_features(u=u)
        if u.dim() != 3 or u.shape[-1] != self.dim or u.shape[1] == 0:
            raise ShapeError(
                f"u: expected shape (B, n, {self.dim}) with n of at least 1, got "
                f"{tuple(u.shape)}; pass the next points of each sequence"
            )
        return self._advance(u, state, _form(state).prefill)

    def _advance(
        self,
        u: Tensor,
        state: CausalState,
        move: Callable[..., tuple[Tensor, dict[str, Tensor]]],
    ) -> tuple[Tensor, CausalState]:
        """Advance by the next points of a causal domain; ``move`` is the form's ``step`` or
        ``prefill``.
        """
        self._follow()
        if u.shape[0] != state.batch:
            raise ShapeError(
                f"u: expected the batch size of the state, {state.batch}, got {u.shape[0]}; begin "
                f"with init_state({u.shape[0]}, domain)"
            )

        kernel, seen = self.kernel, state.seen
        points = Stretch.of(kernel, u, state.domain, seen, operator=self._facts())
        memory = state.keys
        if seen == 0:
            # Shapes and dtype of the memory follow from the first features.
            memory = state.form.start(kernel, points.u[:, :, 0])
        response, memory = move(kernel, points.x, points.u, state.quadrature, seen, memory)

        out = self._finish(cast(response, result_dtype(u)), points.query, points.real)
        return out, replace(state, seen=seen + u.shape[1], keys=memory)

    # --- parts ------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Take over parameters that the layer which this operator was made from has replaced.

        Traced code keeps the parameters that it was traced with.
        """
        check_inference(self)
        if torch.compiler.is_compiling():
            return
        if self.sharing is not None:
            self.sharing.follow()
        self.kernel.follow()

    def _facts(self) -> OperatorFacts:
        """Return the operator's own conditions on arguments, beside the kernel's."""
        return OperatorFacts(self.dim, self._dtype(), self.residual is not None, self.layer)

    def _dtype(self) -> torch.dtype | None:
        """Return the dtype of the weights, which features must have.

        It is None where there are no weights in floating point, for instance in a quantised layer:
        features may then have any floating dtype.
        """
        # P and W come first: one look-up in a table of parameters is faster than a walk through the
        # kernel's modules.
        for layer in (self.projection, self.residual):
            if layer is None:
                continue
            weight = layer._parameters.get("weight")
            if weight is None:
                # A parametrised layer computes its weight as an attribute.
                weight = getattr(layer, "weight", None)
            if isinstance(weight, Tensor):
                if not weight.is_floating_point():
                    return None
                return weight.dtype
        return first_dtype(self.kernel)

    def default_domain(self, u: Float[Tensor, "b n d"]) -> Domain:
        """Return the kernel's default domain for features u, which calls without a domain use."""
        return default_domain(self.kernel, u)

    def _problem(self, u, domain, query, query_domain) -> Problem:
        """Return the problem of a call, whose arguments are not checked yet; on a sharded domain,
        the problem of this rank's points.
        """
        self._follow()
        return Problem.of(
            self.kernel,
            u,
            domain,
            query=query,
            query_domain=query_domain,
            operator=self._facts(),
        )

    def _finish(
        self,
        response: Tensor,
        query: Tensor | None,
        valid: Tensor | None,
    ) -> Tensor:
        """Return the output of a response (B, H, Nq, d_out): heads side by side or added up, then
        the projection P, plus the pointwise term W u; zero at padded queries.
        """
        if self.kernel.adds_heads:
            out = response.sum(1)
        else:
            out = merge_heads(response)
        if self.projection is not None:
            out = self.projection(out)
        if self.residual is not None:
            assert query is not None
            out = out + self.residual(query)
        if valid is not None:
            out = clean(out, valid)
        return out

    def extra_repr(self) -> str:
        return (
            f"dim={self.dim}, heads={self.heads}, out_dim={self.out_dim}, strategy={self.strategy}"
        )


def _check_kernel(kernel: Kernel, dim: int, heads: int) -> None:
    """Raise OptionError for a kernel of other heads or widths than its operator."""
    if kernel.whole:
        need = dim
    else:
        need = head_width(dim, heads)
    if kernel.heads != heads or kernel.d_in != need:
        raise OptionError(
            f"{type(kernel).__name__}: expected {heads} heads of {need} features, got "
            f"{kernel.heads} heads of {kernel.d_in}; build kernel and operator for the same widths"
        )


def _output_projection(
    projection: bool | nn.Linear,
    width: int,
    out_dim: int,
) -> nn.Linear | None:
    """Return the layer P, a new one or the caller's, or None for none.

    Raises:
        OptionError: a layer of other widths; no layer where the widths differ.
    """
    if isinstance(projection, nn.Module):
        widths = (projection.in_features, projection.out_features)
        if widths != (width, out_dim):
            raise OptionError(
                f"projection: expected a layer from {width} to {out_dim} features, got one from "
                f"{widths[0]} to {widths[1]}; pass one of these widths, or True"
            )
        return projection
    if projection:
        return nn.Linear(width, out_dim)
    if width != out_dim:
        raise OptionError(
            f"out_dim: expected {width}, the width of the heads without a projection, got "
            f"{out_dim}; pass projection=True"
        )
    return None


def _for_each_head(weights: Tensor, heads: int, problem: Problem) -> Tensor:
    """Expand weights that samples or heads share to (B, H, Nq, Nk)."""
    return weights.expand(problem.uy.shape[0], heads, -1, -1)


def _form(state: object) -> Form:
    """Return the form of a causal state, or raise ShapeError where the argument is not one."""
    if not isinstance(state, CausalState):
        raise ShapeError(refuse_kind("state", state, "what init_state or the step before returned"))
    return state.form
