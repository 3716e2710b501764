"""The two halves of an integral and their contract: a :class:`Kernel`, what interacts, lists the
forms that may integrate it; a :class:`Form` is one algorithm. :func:`choose` is a plain loop over
the kernel's list.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from ..arguments import Checked
from ..distributed.exchange import distributed, exchange_refusal, owning_targets
from ..domain import Domain, default_line
from ..errors import OptionError, StrategyError
from ..notebook import NotebookTable
from ..ops.backend import transforms, wants_triton
from ..quadrature import Quadrature
from .capabilities import lacking
from .checks import check_affine
from .facts import Facts, Layout
from .problem import Problem
from .strategy import Plan, Strategy

if TYPE_CHECKING:
    from .memo import Memo

Value = TypeVar("Value")

Memory = dict[str, Tensor]
"""A causal form's cache of the points so far: tensors with the batch on dimension 0."""

# Methods that define a kernel, and the base class to derive from. Bases that inherit from another
# one come first, so that an error names the narrowest.
DEFINITIONS = {
    "WeightedKernel": ("weights", "value_map"),
    "HiddenKernel": ("hidden", "readout"),
    "PairKernel": ("forward",),
    "MatrixKernel": ("matrix",),
}


class DefaultLine(NamedTuple):
    """Options of :meth:`fredholm.Domain.line` for calls without a domain."""

    causal: bool = False
    measure: str = "uniform"


class Kernel(nn.Module, NotebookTable, metaclass=Checked):
    r"""A matrix-valued kernel: heads, widths, the domains that it accepts, and its forms.

    Concrete kernels derive from one of four definitions, each of which defines ``matrix`` in its
    own way: :class:`PairKernel` (a function of two ends), :class:`HiddenKernel` (a linear readout
    of hidden units), :class:`WeightedKernel` (a scalar weight times a value map) and
    :class:`MatrixKernel` (all pairs at once). Capabilities (:mod:`fredholm.integral.capabilities`)
    are inherited in addition and make faster forms available.

    Args:
        heads: number of heads H.
        d_in: features a head reads of u: ``dim // heads`` (a slice each), or ``dim`` where
            ``whole``.
        d_out: features a head writes, default ``d_in``.

    Attributes:
        whole: every head reads all of u instead of a slice.
        adds_heads: every head writes all features, and heads are added, not concatenated.
        reads_query: the kernel depends on u(x), so that queries on another domain need features.
        reads_position: the kernel depends on x and y themselves, so that queries on another domain
            need positions.
        pairwise: K(x, y) depends on these two ends alone, so that keys can be processed in blocks.
        rowwise: a query's response depends only on the keys that it sees, not on other queries in
            the problem.
        sums: the response is proportional to the masses of keys; the kernel has no normaliser.
        line: the line for calls without a domain.
        forms: the algorithms that may integrate the kernel, best first; see
            :class:`fredholm.forms.Form`. A subclass inherits its base's.

    Raises:
        OptionError: a class without one of the four definitions.
    """

    whole = False
    adds_heads = False
    reads_query = True
    reads_position = True
    sums = False
    pairwise = False
    rowwise = False
    line = DefaultLine()
    forms: ClassVar[tuple[type[Form], ...]] = ()

    def __init__(self, heads: int, d_in: int, d_out: int | None = None):
        super().__init__()
        if not self.forms:
            raise OptionError(_lacks_definition(type(self)))
        self.heads = heads
        self.d_in = d_in
        self.d_out = d_out or d_in

    def __init_subclass__(cls, **options) -> None:
        super().__init_subclass__(**options)
        slip = lacking(cls)
        if slip is not None:
            capability = slip.capability.__name__
            raise OptionError(
                f"{cls.__name__} defines {', '.join(slip.methods)} but does not inherit "
                f"{capability}, so its faster form would never be taken; write "
                f"class {cls.__name__}({cls.__mro__[1].__name__}, {capability})"
            )

    @property
    def local(self) -> bool:
        """Whether the response at a query depends only on the query and the keys that it sees. A
        sparse domain can then be evaluated neighbourhood by neighbourhood.
        """
        return self.pairwise or self.rowwise

    def matrix(self, problem: Problem) -> Float[Tensor, "b h q k o i"]:
        """Return the kernel at all pairs, (B, H, Nq, Nk, d_out, d_in), densities against the
        measure. O(Nq·Nk).
        """
        raise NotImplementedError(f"{type(self).__name__} must define matrix(problem)")

    def offset(self, problem: Problem) -> Tensor | None:
        """Return the response to a constant channel, broadcastable to (B, H, Nq, d_out), where the
        layer is affine; None otherwise.
        """
        return None

    # --- where the kernel lives -------------------------------------------------------------------

    def check(self, layout: Layout) -> None:
        """Raise :class:`fredholm.errors.DomainError` for a domain on which the kernel is not
        defined. By default every domain is accepted.
        """

    def observe(self, problem: Problem) -> None:
        """Update running statistics from the points of a call in training, after the response has
        been computed. By default there are none.
        """

    def default_domain(
        self,
        n: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> Domain:
        """Return the domain of n points that an operator assumes when it is called without one."""
        return default_line(
            n,
            **self.line._asdict(),
            device=device,
            dtype=dtype,
        )

    def small_domain(self) -> Domain:
        """Return a domain of a few points on which the kernel can be tested."""
        return self.default_domain(6, device=torch.device("cpu"), dtype=torch.float32)

    def output_domain(self, domain: Domain) -> Domain | None:
        """Return the domain of the output of a call without a query domain: None for ``domain``
        itself, otherwise another one (a strided grid).
        """
        return None

    def follow(self) -> None:
        """Take over parameters that layers have replaced which parts of the kernel were made from.
        Nothing by default.
        """

    def extra_repr(self) -> str:
        return f"heads={self.heads}, d_in={self.d_in}, d_out={self.d_out}"


def _lacks_definition(kind: type) -> str:
    """Return the message to the author of a kernel that derives from :class:`Kernel` itself."""
    own_classes = kind.__mro__[: kind.__mro__.index(Kernel)]
    defined = {name for base in own_classes for name in vars(base)}
    for base, methods in DEFINITIONS.items():
        if defined.issuperset(methods):
            return (
                f"{kind.__name__} defines {' and '.join(methods)} but derives from Kernel, which "
                f"no form integrates; derive it from fredholm.kernels.{base}"
            )
    bases = ", ".join(f"{base} ({', '.join(methods)})" for base, methods in DEFINITIONS.items())
    return (
        f"{kind.__name__} has no definition; derive it from one of fredholm.kernels' bases and "
        f"define its methods: {bases}"
    )


class Form:
    """One algorithm for ∫ K u dμ + offset. A kernel lists the forms that may integrate it.

    A form that answers a whole problem defines :meth:`respond`; one that advances through a causal
    domain defines :meth:`step`, and may define :meth:`start` and a faster :meth:`prefill`.

    Args:
        strategy: the options, of class ``word``.

    Attributes:
        word: the strategy that the form belongs to.
        name: the algorithm in a few words: ``plan(domain).path``.
        reason: why it is right where it is chosen.
        responds, steps: whether it answers whole problems, and single points in causal order.
        triton: whether it has a Triton kernel.
        sparse: whether it is for domains with edges or a reach, which it takes as they are; other
            forms answer one query with its keys at a time there.
        default: the word without options.
    """

    word: ClassVar[type[Strategy]]
    name: ClassVar[str]
    reason: ClassVar[str]
    responds: ClassVar[bool] = True
    steps: ClassVar[bool] = False
    triton: ClassVar[bool] = False
    sparse: ClassVar[bool] = False
    default: ClassVar[Strategy]

    def __init_subclass__(cls, **options) -> None:
        super().__init_subclass__(**options)
        if hasattr(cls, "word"):
            cls.default = cls.word()

    def __init__(self, strategy: Strategy):
        self.strategy = strategy

    # --- choosing ---------------------------------------------------------------------------------

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        """Return why the form cannot integrate this kernel here, or None."""
        return None

    def preferred(self, kernel: Kernel, facts: Facts) -> bool:
        """Whether ``"auto"`` may take the form; an approximation answers False."""
        return True

    def plan(self) -> Plan:
        """Return the form in words."""
        return Plan(repr(self.strategy), self.name, self.reason)

    # --- a whole problem --------------------------------------------------------------------------

    def respond(self, kernel: Kernel, problem: Problem) -> Tensor:
        """Return ∫ K u dμ + offset, (B, H, Nq, d_out)."""
        raise NotImplementedError(f"{type(self).__name__} must define respond(kernel, problem)")

    # --- a causal domain, point by point ----------------------------------------------------------

    def start(self, kernel: Kernel, u: Tensor) -> Memory:
        """Return the memory before the first point, for features like ``u`` (B, H, d)."""
        return {}

    def step(
        self,
        kernel: Kernel,
        x: Tensor,
        u: Tensor,
        quadrature: Quadrature,
        t: int,
        memory: Memory,
    ) -> tuple[Tensor, Memory]:
        """Return the response at point t, (B, H, 1, d_out), and the memory after it.

        Args:
            kernel: the kernel.
            x: position of the point, (1 | B, 1, p).
            u: its features, (B, H, 1, d).
            quadrature: of the whole domain.
            t: index of the point.
            memory: of the points before it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define step")

    def prefill(
        self,
        kernel: Kernel,
        x: Tensor,
        u: Tensor,
        quadrature: Quadrature,
        t: int,
        memory: Memory,
    ) -> tuple[Tensor, Memory]:
        """Return the responses at points t, t + 1, …, (B, H, n, d_out), and the memory after the
        last, from positions x (1 | B, n, p) and features u (B, H, n, d).

        By default one step after another.
        """
        responses = []
        for i in range(u.shape[2]):
            point = slice(i, i + 1)
            response, memory = self.step(
                kernel,
                x[:, point],
                u[:, :, point],
                quadrature,
                t + i,
                memory,
            )
            responses.append(response)
        return torch.cat(responses, 2), memory


class StretchForm(Form):
    """Base of forms that advance over several points as over a single one: they define
    :meth:`advance`.
    """

    steps = True

    def advance(
        self,
        kernel: Kernel,
        x: Tensor,
        u: Tensor,
        quadrature: Quadrature,
        memory: Memory,
    ) -> tuple[Tensor, Memory]:
        """Return the responses (B, H, n, d_out) at the next n points and the memory after them.

        ``quadrature`` is that of these points over all keys up to the last of them.
        """
        raise NotImplementedError(f"{type(self).__name__} must define advance")

    def step(
        self,
        kernel: Kernel,
        x: Tensor,
        u: Tensor,
        quadrature: Quadrature,
        t: int,
        memory: Memory,
    ) -> tuple[Tensor, Memory]:
        return self.advance(kernel, x, u, quadrature.row(t), memory)

    def prefill(
        self,
        kernel: Kernel,
        x: Tensor,
        u: Tensor,
        quadrature: Quadrature,
        t: int,
        memory: Memory,
    ) -> tuple[Tensor, Memory]:
        return self.advance(kernel, x, u, quadrature.stretch(t, t + u.shape[2]), memory)


def with_offset(out: Tensor, kernel: Kernel, problem: Problem) -> Tensor:
    """Add the kernel's response to a constant channel to an integral."""
    offset = kernel.offset(problem)
    if offset is None:
        return out
    return out + offset


# --- choosing a form ------------------------------------------------------------------------------


def choose(strategy: Strategy | str, kernel: Kernel, facts: Facts) -> Form:
    """Return the form that integrates a kernel on a domain.

    That is the first form of ``kernel.forms`` that belongs to the strategy and does not refuse;
    ``"auto"`` takes the first that any strategy prefers, which is always exact. Where queries see
    few keys, and where the domain is in shards, another form is put around it.

    The choice follows static facts alone and is made anew at every call (about 5 µs), so that a
    kernel's options may change and traced lengths stay free.

    Raises:
        StrategyError: no form of the strategy integrates this kernel here; it says why.

    Example:
        >>> from fredholm.kernels import Layout, SoftmaxKernel
        >>> choose("auto", SoftmaxKernel(8, 2), Facts(Layout())).name
        'fused attention'
    """
    if facts.sparse and not facts.layout.stepping:
        # Imported here, because forms are written against this module.
        from ..forms.neighbourhoods import choose_sparse

        form = choose_sparse(strategy, kernel, facts)
        if facts.layout.sharded:
            return owning_targets(form, kernel, facts.layout)
        return form
    form = first_form(strategy, kernel, facts)
    if facts.layout.sharded:
        return distributed(form, kernel)
    return form


def first_form(strategy: Strategy | str, kernel: Kernel, facts: Facts) -> Form:
    """Return the first form of ``kernel.forms`` that belongs to the strategy and does not refuse.

    :func:`choose` also knows the domains that need another form around it.

    Raises:
        StrategyError: no form of the strategy integrates this kernel here; it says why.
    """
    stepping = facts.layout.stepping
    automatic = isinstance(strategy, str)
    if stepping and not isinstance(strategy, str):
        strategy = strategy.stepping()

    reasons = []
    for kind in kernel.forms:
        serves = kind.responds
        if stepping:
            serves = kind.steps
        if kind.sparse or not serves:
            continue
        if isinstance(strategy, str):
            form = kind(kind.default)
            if not form.preferred(kernel, facts):
                continue
        elif isinstance(strategy, kind.word):
            form = kind(strategy)
        else:
            continue

        why = form.refuses(kernel, facts)
        if why is None and facts.layout.sharded:
            why = exchange_refusal(form, kernel, facts)
        if why is None:
            if automatic:
                return form
            return _on_backend(form, kernel)
        reasons.append(why)
    raise _refusal(strategy, kernel, facts.layout, reasons)


def _on_backend(form: Form, kernel: Kernel) -> Form:
    """Return the form.

    Raises:
        StrategyError: its strategy demands Triton, and it has no Triton kernel.
    """
    backend = getattr(form.strategy, "backend", "auto")
    if form.triton or not wants_triton(backend):
        return form
    raise StrategyError(
        f"{form.strategy!r} would integrate {type(kernel).__name__} by {form.name}, which has no "
        "Triton kernel; use backend='auto'"
    )


def _refusal(
    strategy: Strategy | str,
    kernel: Kernel,
    layout: Layout,
    reasons: list[str],
) -> StrategyError:
    """Return the error of a strategy that cannot integrate a kernel."""
    name = strategy
    if not isinstance(strategy, str):
        name = type(strategy).__name__
    other = type(kernel).__name__
    if layout.sharded:
        why = ""
        if reasons:
            why = f": {'; '.join(reasons)}"
        return StrategyError(
            f"{name} cannot integrate {other} over a sharded domain{why}; give each process the "
            "whole domain, or take another strategy"
        )
    if isinstance(strategy, str):
        return StrategyError(
            f"{other} has no form for {layout}; give it another domain, or a kernel of another base"
        )
    if reasons:
        return StrategyError(f"{name} cannot integrate {other}: {reasons[-1]}")
    if layout.stepping and any(isinstance(strategy, kind.word) for kind in kernel.forms):
        return StrategyError(f"{name} has no causal step; set op.strategy = 'exact' to generate")
    return StrategyError(
        f"{name} cannot integrate {other}: it needs {strategy.needs}; "
        f"use {strategy.instead} instead"
    )


# --- parameters, read where they are stored -------------------------------------------------------


class Part:
    """A submodule as an attribute of its class, found ten times sooner than by the search of
    ``nn.Module.__getattr__``.

    That search remains for submodules that are missing here, and None is an ordinary attribute.

    Example:
        >>> class Layer(nn.Module):
        ...     inner = Part()
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.inner = nn.Linear(2, 3)
        >>> Layer().inner
        Linear(in_features=2, out_features=3, bias=True)
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, module: Any, owner: type | None = None) -> Any:
        try:
            return module._modules[self.name]
        except (AttributeError, KeyError):
            # Asked of the class, it is itself.
            if module is None:
                return self
            raise AttributeError(self.name) from None


def first_dtype(module: nn.Module) -> torch.dtype | None:
    """Return the dtype of a module's first parameter of floating-point numbers, or None.

    Modules that stay in float32 where the others do not (``keeps_single``) are passed over. The
    generators of ``parameters()`` would take as long as a small problem does.
    """
    if getattr(type(module), "keeps_single", False):
        return None
    for x in module._parameters.values():
        if x is not None and x.is_floating_point():
            return x.dtype
    for part in module._modules.values():
        if part is None:
            continue
        dtype = first_dtype(part)
        if dtype is not None:
            return dtype
    return None


def weight_and_bias(layer: nn.Module, name: str) -> tuple[Tensor, Tensor | None]:
    """Return a linear layer's parameters, read where they are stored.

    At small sizes a matrix product takes no longer than finding them as attributes. Parametrised
    layers compute them as attributes, and pruned ones by the hooks of ``torch.nn.utils``.

    Raises:
        OptionError: a layer whose ``forward`` may compute more than W x + b.
    """
    stored = layer._parameters
    if type(layer) is nn.Linear and "weight" in stored and "bias" in stored:
        return stored["weight"], stored["bias"]  # type: ignore[return-value]

    check_affine(layer, name)
    for hook in layer._forward_pre_hooks.values():
        if type(hook).__module__.startswith("torch.nn.utils."):
            # torch's types say that a hook takes the inputs alone; it takes the module as well.
            hook(layer, ())  # type: ignore[call-arg]
    return layer.weight, layer.bias  # type: ignore[return-value]


# --- results that depend on weights alone ---------------------------------------------------------

# The caches of the modules inside :class:`.inference`.
MEMOS: dict[nn.Module, Memo] = {}


class _Apart(threading.local):
    """Modules that this thread calls with other weights: nothing is cached of them meanwhile."""

    modules: frozenset[nn.Module] = frozenset()


APART = _Apart()


def _memo(module: nn.Module) -> Memo | None:
    """Return the cache of a module inside :class:`.inference`, or None."""
    if torch.compiler.is_compiling() or not MEMOS or module in APART.modules:
        return None
    return MEMOS.get(module)


def prepared(
    module: nn.Module,
    name: Hashable,
    make: Callable[[], Value],
    *,
    of: Sequence[Tensor] = (),
) -> Value:
    """Return ``make()``; inside :class:`.inference`, from the cache of the module.

    The value must depend on nothing but the weights of ``module``, ``name`` and the tensors ``of``.

    Args:
        module: whose parameters, buffers and submodules ``make`` reads.
        name: a word, and with it every option that the value depends on: dtypes, sizes, switches.
        make: returns a tensor or a tuple of tensors that nobody writes to.
        of: positions, or results that were prepared from them.

    Example:
        >>> from fredholm import inference
        >>> layer = nn.Linear(1, 1)
        >>> with inference(layer):
        ...     first, second = (prepared(layer, "twice", lambda: 2 * layer.weight) for _ in "ab")
        >>> first is second
        True
    """
    memo = _memo(module)
    if memo is None or transforms():
        return make()
    return memo.get(name, make, of)


def call_with(
    module: nn.Module,
    weights: Mapping[str, Tensor],
    arguments: tuple[Any, ...],
) -> Any:
    """Call a module with other weights, as :func:`torch.func.functional_call` does, also inside
    :class:`.inference`.

    Nothing is cached of these weights, and the results cached of the module's own remain.

    Args:
        module: the module.
        weights: parameters and buffers by their names in it.
        arguments: of the call.
    """
    if torch.compiler.is_compiling() or not MEMOS:
        return functional_call(module, dict(weights), arguments)

    # For this thread the module and its parts have no cache during the call.
    before = APART.modules
    APART.modules = before | set(module.modules())
    try:
        return functional_call(module, dict(weights), arguments)
    finally:
        APART.modules = before


def answering(module: nn.Module) -> bool:
    """Whether a module is inside :class:`.inference`, where :func:`prepared` caches results."""
    return _memo(module) is not None and not transforms()


def check_inference(module: nn.Module) -> None:
    """Raise InferenceError where a module inside :class:`.inference` is trained."""
    memo = _memo(module)
    if memo is not None:
        memo.check()
