"""Exchanges: how an integral is computed when the points of its domain lie in several processes.

A form knows nothing of ranks. What it needs from other ranks is written down beside it, as an
exchange, and found here by the classes of form and kernel. The exchanges of the library's own forms
lie in :mod:`fredholm.distributed.exchanges`, which is imported at the first look-up.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar, TypeVar

from torch import Tensor

from ..errors import StrategyError
from .shards import Shards

if TYPE_CHECKING:
    from ..integral.contract import Form, Kernel
    from ..integral.facts import Facts, Layout
    from ..integral.problem import Problem

HOME = "fredholm.distributed.exchanges"
"""The module whose import registers the exchanges of the library's own forms."""


class Exchange:
    """One way to compute a form's response at one rank's points of a sharded domain.

    Every rank must use what it received, if only an empty slice of it. A message that is missing
    from one rank's graph is not sent back in its backward, and the other ranks wait for it.

    Attributes:
        passes: what passes between the ranks, in words: ``plan(domain).exchange``.
    """

    passes: ClassVar[str]

    def refuses(
        self,
        form: Form,
        kernel: Kernel,
        facts: Facts,
    ) -> str | None:
        """Return why there is no such exchange for this kernel here, or None."""
        return None

    def words(self, form: Form) -> str:
        """Return what passes between the ranks, for ``plan``."""
        return self.passes

    def respond(
        self,
        form: Form,
        kernel: Kernel,
        problem: Problem,
        shards: Shards,
    ) -> Tensor:
        """Return ∫ K u dμ + offset at this rank's points, (B, H, n, d_out)."""
        raise NotImplementedError(f"{type(self).__name__} must define respond")


_EXCHANGES: dict[tuple[type, type], Exchange] = {}

Registered = TypeVar("Registered", bound=Exchange)


def register_exchange(
    form: type[Form], kernel: type
) -> Callable[[type[Registered]], type[Registered]]:
    """Register an exchange for a class of forms and a class of kernels, or a capability.

    Subclasses of both find it too, unless they have one of their own.

    Example:
        >>> from fredholm.forms import Dense
        >>> from fredholm.kernels import MLPKernel
        >>> class MyDense(Dense): ...
        >>> @register_exchange(MyDense, MLPKernel)
        ... class Never(Exchange):
        ...     passes = "nothing"
        >>> exchange_of(MyDense, MLPKernel).passes, exchange_of(Dense, MLPKernel).passes
        ('nothing', "a ring of the ranks' keys")
    """

    def register(kind: type[Registered]) -> type[Registered]:
        _EXCHANGES[form, kernel] = kind()
        return kind

    return register


def exchange_of(form: type[Form], kernel: type[Kernel]) -> Exchange | None:
    """Return the exchange that is registered for a form with a kernel, or None.

    An exchange for a nearer base class of the form wins; among those for the same form, one for a
    nearer base class of the kernel.
    """
    # Registers the exchanges of the library's own forms.
    import_module(HOME)
    for form_class in form.__mro__:
        for kernel_class in kernel.__mro__:
            exchange = _EXCHANGES.get((form_class, kernel_class))
            if exchange is not None:
                return exchange
    return None


def exchange_refusal(form: Form, kernel: Kernel, facts: Facts) -> str | None:
    """Return why a form cannot integrate a kernel over a sharded domain, or None."""
    exchange = exchange_of(type(form), type(kernel))
    if exchange is None:
        return f"{form.name} has no exchange between ranks"
    return exchange.refuses(form, kernel, facts)


def distributed(form: Form, kernel: Kernel) -> Form:
    """Return a form at one rank's points of a sharded domain: a :class:`.form.Distributed`."""
    return import_module(HOME).Distributed(form, kernel)


def owning_targets(form: Form, kernel: Kernel, layout: Layout) -> Form:
    """Return a form that responds at the points that a rank owns, on a sharded domain with edges or
    a reach; see :class:`.form.OwnTargets`.

    Each form is built with the words that ``plan(domain).exchange`` shows.

    Raises:
        StrategyError: a domain with a reach, and a kernel whose response at a query depends on more
            than the keys that the query sees: those are the only ones that a rank has.
    """
    # Imported here, because :mod:`.form` is written against this module.
    own_targets = import_module(HOME).OwnTargets
    if layout.reach is None:
        # Edges may lead to any point, so each rank has the keys of all.
        return own_targets(form, "the keys of all ranks, gathered")
    if not kernel.local:
        raise StrategyError(
            f"expected a whole domain for {type(kernel).__name__}, whose answer at a point follows "
            "from all points, got a reach in shards; give each process the whole domain"
        )
    return own_targets(form, "the points of other ranks within reach")
