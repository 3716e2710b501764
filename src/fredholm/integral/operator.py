"""The generic integral operator: one class for every kernel and every strategy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from ..arguments import Checked, refuse_kind
from ..domain import Domain
from ..errors import DomainError, OptionError, ShapeError
from ..ops.backend import cast, result_dtype
from ..ops.dense import dense_apply, kernel_norm
from ..quadrature import Rows
from .capabilities import WeightedValue
from .contract import Form, Kernel, Part, check_inference, choose, first_dtype, with_offset
from .heads import head_width
from .problem import (
    Facts,
    OperatorFacts,
    Problem,
    Stretch,
    check_domains,
    check_features,
    check_pairs,
    check_rows,
    clean,
    default_domain,
    merge_heads,
)
from .sharing import Sharing
from .state import CausalState, load_state
from .strategy import Plan, Strategy, read_strategy


class IntegralOperator(nn.Module, metaclass=Checked):
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

    Attributes:
        small: of a class, options at the width of a comparison's small backbone, where its defaults
            are those of a large model.

    Shape: u (B, N, dim) on ``domain`` (N points, default a line) to (B, Nq, out_dim). With
    ``query_domain`` the output lives there; ``query`` (B, Nq, dim) are the features at those
    points, needed by W and by kernels that read u(x); without it they lie where the keys do, on the
    default domain or on the given one, of as many points. Padded points may hold anything, NaN
    included; outputs at padded queries are zero. u has the parameters' dtype, and the output u's:
    half precisions sum in float32. Under autocast both may be of any floating dtype but float64,
    and the output has autocast's, as of ``nn.Linear``. Positions and masses keep a dtype of their
    own.

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
        need = dim if kernel.whole else head_width(dim, heads)
        if kernel.heads != heads or kernel.d_in != need:
            got, want = f"{kernel.heads} heads of {kernel.d_in}", f"{heads} heads of {need}"
            raise OptionError(
                f"{type(kernel).__name__} has {got} features, the operator needs {want}"
            )
        self.dim, self.heads, self.out_dim = dim, heads, out_dim or dim
        self.kernel = kernel
        self.strategy = strategy
        width = kernel.d_out if kernel.adds_heads else heads * kernel.d_out
        if isinstance(projection, nn.Module):
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
        self.layer: str | None = None  # the class of the layer that this operator was made from
        self.sharing: Sharing | None = None  # the parameters it has in common with that layer
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
        u: Shaped[Tensor, "b n d"],  # other dtypes are refused by name
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
        return self._finish(response, problem.query, problem.real)

    def dense(
        self,
        u: Float[Tensor, "b n d"],
        domain: Domain | None = None,
        *,
        query: Float[Tensor, "b q d"] | None = None,
        query_domain: Domain | None = None,
    ) -> Float[Tensor, "b m o"]:
        """The output through the dense kernel matrix: the definition that ``forward`` must equal.
        O(N²·d²) memory.
        """
        problem = self.problem(u, domain, query=query, query_domain=query_domain)
        matrix, weights = self.kernel.matrix(problem), problem.quadrature.weights()
        response = with_offset(dense_apply(matrix, weights, problem.uy), self.kernel, problem)
        return self._finish(response.to(result_dtype(u)), problem.query, problem.real)

    def problem(self, u, domain=None, *, query=None, query_domain=None) -> Problem:
        """What the kernel is asked in a call with the same arguments: positions and features of
        queries and keys, the features by head (B, H, N, d) or, where a kernel reads them whole,
        (B, 1, N, dim), and the quadrature that says who sees whom with which mass. Padding is zero
        in it.

        ``operator.kernel.matrix(operator.problem(u, domain))`` is :meth:`kernel_matrix`; a kernel's
        own quantities, and parts such as ``problem.rows([0])``, are had in the same way.

        Raises:
            ShapeError, DomainError: as of a call.

        Example:
            >>> from fredholm import SoftmaxAttention
            >>> problem = SoftmaxAttention(8, heads=2).problem(torch.randn(3, 5, 8), Domain.line(5))
            >>> problem.uy.shape, problem.y.shape
            (torch.Size([3, 1, 5, 8]), torch.Size([1, 5, 1]))
        """
        if isinstance(domain, Domain):
            domain.refuse_shards("the definition")
        return self._problem(u, domain, query, query_domain).dense()

    def _rows(
        self,
        u,
        domain,
        query,
        query_domain,
        rows: Rows,
    ) -> Problem:
        """The problem of some queries with all their pairs written out. Where the kernel is local,
        no other pairs of a sparse domain are.
        """
        if isinstance(domain, Domain):
            domain.refuse_shards("the definition")
        problem = self._problem(u, domain, query, query_domain)
        check_rows(rows, problem.x.shape[1])
        if rows is None or not self.kernel.local:
            problem = problem.dense()
        return problem.rows(rows)

    def kernel_matrix(
        self, u, domain=None, *, query=None, query_domain=None, rows: Rows = None
    ) -> Tensor:
        """K as densities against the measure, (B, H, Nq, Nk, d_out, d_in), before the output
        projection. ``rows`` picks queries.

        Hidden pairs hold whatever the kernel says there; their quadrature weight is zero.
        """
        return self.kernel.matrix(self._rows(u, domain, query, query_domain, rows))

    @property
    def has_weights(self) -> bool:
        """Whether the kernel is a scalar weight times a value map, so that ``weights`` exist."""
        return isinstance(self.kernel, WeightedValue)

    def weights(
        self, u, domain=None, *, query=None, query_domain=None, rows: Rows = None
    ) -> Tensor:
        """The scalar weight of each pair times the key's measure, (B, H, Nq, Nk); of softmax: the
        attention probabilities.

        Raises:
            OptionError: the kernel is a matrix a pair and has no scalar weight; ``influence`` has
                a number a pair for every kernel.
        """
        kernel = self.kernel
        if not isinstance(kernel, WeightedValue):
            raise OptionError(
                f"{type(kernel).__name__} is a matrix for each pair of points and has no scalar "
                "weights; influence(u, domain) has the norm of that matrix times the measure"
            )
        problem = self._rows(u, domain, query, query_domain, rows)
        weights = kernel.weights(problem) * problem.quadrature.weights()
        return _of_all_heads(weights.to(problem.uy.dtype), self.heads, problem)

    def influence(
        self, u, domain=None, *, query=None, query_domain=None, rows: Rows = None
    ) -> Tensor:
        """How much of a key reaches a query, ‖K‖_F times the key's measure, (B, H, Nq, Nk): one
        number, never negative, for every kernel.
        """
        problem = self._rows(u, domain, query, query_domain, rows)
        quadrature, dtype = problem.quadrature.weights(), problem.uy.dtype
        if isinstance(self.kernel, WeightedValue):
            # The value map is the same for all pairs: no need for the matrix of each.
            scale = torch.linalg.matrix_norm(self.kernel.value_map())[:, None, None]
            norm = self.kernel.weights(problem).abs() * scale * quadrature
            return _of_all_heads(norm.to(dtype), self.heads, problem)
        return kernel_norm(self.kernel.matrix(problem), quadrature).to(dtype)

    def plan(self, domain: Domain, query_domain: Domain | None = None) -> Plan:
        """Which strategy and form ``forward`` takes on this domain, and why."""
        facts = Facts.on(self.kernel, domain, query_domain, operator=self._facts())
        return choose(self._strategy, self.kernel, facts).plan()

    @property
    def strategy(self) -> Strategy | str:
        """``"auto"``, or the strategy with its options. May be set to anything that the constructor
        takes.
        """
        return self._strategy

    @strategy.setter
    def strategy(self, strategy: Strategy | str | Mapping[str, Any]) -> None:
        self._strategy = read_strategy(strategy)

    # --- causal step ------------------------------------------------------------------------------

    def init_state(self, batch: int, domain: Domain) -> CausalState:
        """State before the first point of a causal ``domain``, which fixes positions, measure and
        masks of all points to come.
        """
        check_domains(domain=domain)
        domain.refuse_shards("init_state")
        if not domain.causal:
            raise DomainError("init_state needs a causal domain; build it with causal=True")
        if domain.batch not in (None, 1, batch):
            raise ShapeError(f"the domain is batched for {domain.batch}, the state for {batch}")
        check_pairs(domain, batch, self.heads)
        facts = Facts.on(self.kernel, domain, operator=self._facts(), stepping=True)
        form = choose(self._strategy, self.kernel, facts)
        operator = f"{type(self).__name__}({self.dim}, {self.heads}, out_dim={self.out_dim})"
        return CausalState(domain, domain.quadrature(), 0, {}, form, batch, operator)

    def load_state(self, path: str | Path) -> CausalState:
        """The state that :meth:`CausalState.save` wrote, also in another process: of this operator,
        or of one built alike with the same weights.

        Raises:
            CheckpointError: a file that is missing or of something else, or a state of another
                operator, of other sizes or of another algorithm.
        """
        parameter = next(self.parameters(), None)
        device = torch.device("cpu") if parameter is None else parameter.device
        return load_state(path, lambda domain, batch: self.init_state(batch, domain), device)

    def step(
        self, u_t: Float[Tensor, "b d"], state: CausalState
    ) -> tuple[Float[Tensor, "b o"], CausalState]:
        """One point of a causal domain: features (B, dim) at the next index to the output there and
        the state after it.

        O(1) time and memory where the state has a fixed size (a moment, a transition); otherwise
        keys are computed once and cached, O(t) at point t.
        """
        check_features(u_t=u_t)
        if u_t.dim() != 2 or u_t.shape[-1] != self.dim:
            raise ShapeError(f"u_t must have shape (B, {self.dim}), got {tuple(u_t.shape)}")
        out, state = self._advance(u_t[:, None], state, _form(state).step)
        return out[:, 0], state

    def prefill(
        self, u: Float[Tensor, "b n d"], state: CausalState
    ) -> tuple[Float[Tensor, "b n o"], CausalState]:
        """A stretch at once: features (B, n, dim) of the next n points to their outputs and the
        state after the last. Any split of a sequence into stretches and steps gives what
        ``forward`` gives on the whole of it.

        Example:
            >>> from fredholm import SoftmaxAttention
            >>> op, u, line = SoftmaxAttention(8), torch.randn(1, 5, 8), Domain.line(5, causal=True)
            >>> _, state = op.prefill(u[:, :4], op.init_state(1, line))
            >>> torch.allclose(op.step(u[:, 4], state)[0], op(u, line)[:, 4], atol=1e-6)
            True
        """
        check_features(u=u)
        if u.dim() != 3 or u.shape[-1] != self.dim or u.shape[1] == 0:
            need = f"(B, n, {self.dim}) with n of at least 1"
            raise ShapeError(f"u must have shape {need}, got {tuple(u.shape)}")
        return self._advance(u, state, _form(state).prefill)

    def _advance(self, u: Tensor, state: CausalState, move: Any) -> tuple[Tensor, CausalState]:
        """The next points of a causal domain, by the form's ``step`` or ``prefill``."""
        self._follow()
        if u.shape[0] != state.batch:
            raise ShapeError(
                f"the features have batch size {u.shape[0]}, the state {state.batch}; begin with "
                f"init_state({u.shape[0]}, domain)"
            )
        kernel, seen = self.kernel, state.seen
        points = Stretch.of(kernel, u, state.domain, seen, operator=self._facts())
        memory = state.keys if seen else state.form.start(kernel, points.u[:, :, 0])
        response, memory = move(kernel, points.x, points.u, state.quadrature, seen, memory)
        out = self._finish(cast(response, result_dtype(u)), points.query, points.real)
        return out, replace(state, seen=seen + u.shape[1], keys=memory)

    # --- parts ------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Take over what the layer that this operator was made from has replaced.

        Traced code keeps the parameters that it was traced with.
        """
        check_inference(self)
        if torch.compiler.is_compiling():
            return
        if self.sharing is not None:
            self.sharing.follow()
        self.kernel.follow()

    def _facts(self) -> OperatorFacts:
        """What arguments must fit, beside the kernel."""
        return OperatorFacts(self.dim, self._dtype(), self.residual is not None, self.layer)

    def _dtype(self) -> torch.dtype | None:
        """The parameters' dtype, or None where they have none of floating-point numbers."""
        for layer in (self.projection, self.residual):
            if layer is None:
                continue
            weight = layer._parameters.get("weight")
            if weight is None:  # parametrised, or another layer in its place
                weight = getattr(layer, "weight", None)
            if isinstance(weight, Tensor):
                return weight.dtype if weight.is_floating_point() else None
        return first_dtype(self.kernel)

    def default_domain(self, u: Float[Tensor, "b n d"]) -> Domain:
        """The domain that a call without one takes for features u: the kernel's."""
        return default_domain(self.kernel, u)

    def _problem(self, u, domain, query, query_domain) -> Problem:
        """The problem of a call, whose arguments are not checked yet; on a part of a domain in
        shards, that of one rank.
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

    def _finish(self, response: Tensor, query: Tensor | None, valid: Tensor | None) -> Tensor:
        """Heads side by side or added up, projection, residual; zero at padded queries."""
        out = response.sum(1) if self.kernel.adds_heads else merge_heads(response)
        if self.projection is not None:
            out = self.projection(out)
        if self.residual is not None:
            assert query is not None
            out = out + self.residual(query)
        return clean(out, valid)

    def extra_repr(self) -> str:
        return (
            f"dim={self.dim}, heads={self.heads}, out_dim={self.out_dim}, strategy={self.strategy}"
        )


def _of_all_heads(weights: Tensor, heads: int, problem: Problem) -> Tensor:
    """Weights that samples or heads share, of each: (B, H, Nq, Nk)."""
    return weights.expand(problem.uy.shape[0], heads, -1, -1)


def _form(state: object) -> Form:
    """The form of a causal state, or a ShapeError where there is none."""
    if not isinstance(state, CausalState):
        raise ShapeError(refuse_kind("state", state, "what init_state or the step before returned"))
    return state.form
