"""A learnable proposal: the distribution from which a query samples its keys."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...errors import OptionError
from ...integral.capabilities import OwnForm
from ...integral.contract import Kernel
from ...integral.fourier import FourierFeatures
from ...ops.backend import full_precision
from .drawn import DrawnKeys, ProposalScores


class Proposal(nn.Module):
    r"""Scores of a mixture of few distributions over keys, one mixture per head:

    .. math:: q(y|x) = \sum_a \pi_a(x)\,r_a(y), \quad
        \pi(x) = \mathrm{softmax}_a f(x, u(x)), \quad r_a = \mathrm{softmax}_y(g_a + \log\mu)

    f and g are two-layer networks of :math:`[\gamma(x), u(x)]`. They read detached features, so
    that the task's gradient and the proposal's never mix.

    Args:
        heads, dim: H, and features of a head's slice.
        position_dim: p.
        components: A.
        width: hidden width of f and g.
        frequencies, sigma: of γ.

    Cost: O(N·A) numbers for all pairs.

    Raises:
        OptionError: sizes that are not positive.

    Reference: ITNet §3.2; the mixture is ours, the paper leaves the proposal open.

    Example:
        >>> x, ux = torch.rand(1, 5, 1), torch.rand(1, 2, 5, 4)
        >>> y, uy = torch.rand(1, 7, 1), torch.rand(1, 2, 7, 4)
        >>> share, score = Proposal(2, 4, components=3)(x, y, ux, uy)
        >>> share.shape, score.shape
        (torch.Size([1, 2, 5, 3]), torch.Size([1, 2, 3, 7]))
    """

    def __init__(
        self,
        heads: int,
        dim: int,
        *,
        position_dim: int = 1,
        components: int = 8,
        width: int = 32,
        frequencies: int = 8,
        sigma: float = 1.0,
    ):
        super().__init__()
        if components < 1 or width < 1:
            raise OptionError(
                f"expected components and width of 1 or more, got {components} and {width}"
            )
        self.components = components
        self.fourier = FourierFeatures(position_dim, frequencies, sigma)

        # Each tensor holds both networks: [0] is f, of the queries, and [1] is g, of the keys. The
        # inputs are γ, a sine and a cosine per frequency, and the features of a head's slice.
        columns = 2 * frequencies + dim
        self.weight1 = nn.Parameter(torch.empty(2, heads, width, columns))
        self.bias1 = nn.Parameter(torch.empty(2, heads, width))
        self.weight2 = nn.Parameter(torch.empty(2, heads, components, width))
        self.bias2 = nn.Parameter(torch.empty(2, heads, components))
        self.reset_parameters()

        # The loss of the last training forward, until `auxiliary_loss` takes it.
        self._loss: Tensor | None = None

    def reset_parameters(self) -> None:
        """Draw normal weights of variance one over the number of inputs, and set biases to zero."""
        for weight, bias in ((self.weight1, self.bias1), (self.weight2, self.bias2)):
            columns = weight.shape[-1]
            nn.init.normal_(weight, std=columns**-0.5)
            nn.init.zeros_(bias)

    def forward(
        self,
        x: Tensor,
        y: Tensor,
        ux: Tensor,
        uy: Tensor,
    ) -> ProposalScores:
        """Return shares π (B, H, Nq, A), and scores g (B, H, A, Nk) before the softmax over keys.
        In float32 at least.
        """
        with full_precision(ux):
            share = self._scores(0, x, ux).softmax(-1)
            score = self._scores(1, y, uy).mT
        return ProposalScores(share, score)

    def _scores(self, end: int, x: Tensor, u: Tensor) -> Tensor:
        """Return f (end 0, queries) or g (end 1, keys), (B, H, N, A)."""
        batch, heads = u.shape[:2]
        dtype = torch.promote_types(u.dtype, self.weight1.dtype)
        gamma = self.fourier(x.detach())[:, None].to(dtype)
        gamma = gamma.expand(batch, heads, -1, -1)
        inputs = torch.cat([gamma, u.detach().to(dtype)], -1)

        units = inputs @ self.weight1[end].mT + self.bias1[end][:, None]
        hidden = nn.functional.gelu(units)
        return hidden @ self.weight2[end].mT + self.bias2[end][:, None]

    # --- the loss of the last call ----------------------------------------------------------------

    def leave_loss(self, loss: Tensor) -> None:
        """Store the loss of a training forward until :func:`auxiliary_loss` takes it."""
        self._loss = loss

    def take_loss(self) -> Tensor | None:
        """Return the loss of the last training forward, once."""
        loss, self._loss = self._loss, None
        return loss

    def __getstate__(self) -> dict:
        # Copies and pickles carry no graph.
        return self.__dict__ | {"_loss": None}


def add_proposal(
    module: nn.Module,
    position_dim: int = 1,
    **options,
) -> int:
    """Add a :class:`Proposal` with these options to every kernel in a module that may draw its
    keys, and return the number of these kernels.

    Without one, ``MonteCarlo`` draws keys by their measure. Call it before the optimiser is built.

    Example:
        >>> from fredholm.operators import ITNetOperator
        >>> add_proposal(ITNetOperator(8, 2, width=4))
        1
    """
    kernels = [m for m in module.modules() if isinstance(m, Kernel) and _draws(m)]
    for kernel in kernels:
        proposal = Proposal(
            kernel.heads,
            kernel.d_in,
            position_dim=position_dim,
            **options,
        )
        weight = next(kernel.parameters(), None)
        if weight is not None:
            proposal = proposal.to(weight)
        kernel.proposal = proposal
    return len(kernels)


def _draws(kernel: Kernel) -> bool:
    """Whether one of a kernel's forms draws keys."""
    if isinstance(kernel, OwnForm):
        return False
    return any(issubclass(form, DrawnKeys) for form in kernel.forms)


def auxiliary_loss(module: nn.Module) -> Tensor | None:
    """Return the term that a training loop adds to its loss: the mean over layers of the losses
    that their last forward stored, or None.

    Taking a loss removes it, so that no graph outlives its step.

    Example:
        >>> auxiliary_loss(nn.Linear(1, 1)) is None
        True
    """
    proposals = [each for each in module.modules() if isinstance(each, Proposal)]
    losses = [proposal.take_loss() for proposal in proposals]
    left = [loss for loss in losses if loss is not None]
    if not left:
        return None
    return torch.stack(left).mean()
