"""Operators and strategies by name, user files, and errors."""

from __future__ import annotations

import importlib
import inspect
import sys

import pytest
import torch

from fredholm.arguments import options_of
from fredholm.domain import Domain
from fredholm.encoders import ENCODERS
from fredholm.errors import DomainError, OptionError, ShapeError, StrategyError
from fredholm.integral import Facts, Form, choose
from fredholm.integral.registry import operator_options, operator_parameters
from fredholm.integral.strategy import read_strategy
from fredholm.integral.windowed import first_gain
from fredholm.kernels import FEATURE_MAPS, HedgehogFeatures, Layout, MLPKernel, SoftmaxKernel
from fredholm.linearization import LinearHeads
from fredholm.models import BODIES, HEADS
from fredholm.operators import (
    Exact,
    IntegralOperator,
    ITNetOperator,
    LinearAttention,
    SoftmaxAttention,
    Strategy,
    create_operator,
    import_file,
    list_operators,
    operator_factory,
    register_operator,
)
from fredholm.registry import Registry


def test_operators_are_created_by_name():
    names = list_operators()
    assert names == sorted(names)
    assert {"itnet", "softmax"} <= set(names)
    assert isinstance(create_operator("itnet", 8, 2, width=4), ITNetOperator)
    assert isinstance(create_operator("softmax", 8, heads=2), SoftmaxAttention)
    assert operator_factory("softmax") is SoftmaxAttention


# Options of operators that add parameters or draw them in another way.
RESETTABLE = [
    *((name, {}) for name in list_operators()),
    ("itnet", {"depth": 3, "per_head_hidden": True, "learned_frequencies": True}),
    ("itnet", {"output": "compact", "start": 0.0, "frequencies": 0}),
    ("itnet", {"proposal": True}),
    ("itnet_low_rank", {"learned_frequencies": True}),
    ("luna", {"cap": "running", "envelope": "channels"}),
    ("luna", {"bank": True, "preset": "exponential"}),
    ("luna", {"tied": False, "window": 2, "decay": "token", "per_head": True}),
    ("ckconv", {"horizon": 3, "learned_omega": True}),
    ("ckconv", {"activation": "rff"}),
    ("ckconv", {"activation": "gelu"}),
    ("ckconv", {"separable": True, "heads": 8}),
    ("infsa", {"learned_decay": True, "bias": True}),
    ("linear_infsa", {"centres": 2, "tied": False}),
    ("linear_infsa", {"causal": "streaming", "learned_decay": True}),
    ("linear_attention", {"decay": "head"}),
    *(("linear_attention", {"feature_map": name, "tied": False}) for name in sorted(FEATURE_MAPS)),
    *(
        ("linear_attention", {"feature_map": name, "window": 2})
        for name in ("elu", "t2r", "hedgehog", "performer", "luna")
    ),
]


@pytest.mark.parametrize(("name", "options"), RESETTABLE)
def test_reset_parameters_initialises_operators_built_on_meta(name, options):
    with torch.device("meta"):
        operator = create_operator(name, 8, **{"heads": 2, **options})
    operator.to_empty(device="cpu")
    with torch.no_grad():
        for x in operator.state_dict().values():
            x.fill_(float("nan"))
    for module in operator.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    assert all(x.isfinite().all() for x in operator.state_dict().values())


def test_a_reset_keeps_maps_that_were_passed_as_modules():
    """They may be trained, or shared by several operators."""
    given = HedgehogFeatures(4, 2)
    torch.nn.init.normal_(given.weight)
    before = given.weight.clone()
    operator = LinearAttention(8, 2, feature_map=given, tied=False)
    operator.kernel.reset_parameters()
    assert torch.equal(given.weight, before)
    assert torch.equal(operator.kernel.key_map.weight, before)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", ["elu", "t2r", "hedgehog", "performer", "luna"])
def test_the_gain_beside_a_window_is_that_of_the_maps_after_a_reset(name, tied):
    """torch resets all modules, owners first."""
    options = {"feature_map": name, "window": 2, "tied": tied}
    kernel = create_operator("linear_attention", 8, 2, **options).kernel
    heads = LinearHeads(2, 4, **options)
    for owner in (kernel, heads):
        with torch.no_grad():
            for x in owner.state_dict().values():
                x.fill_(float("nan"))
        for module in owner.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        expected = first_gain(owner.feature_map, owner._key_map, owner.width, owner.heads)
        assert owner.gain.equal(expected)
        assert all(x.isfinite().all() for x in owner.state_dict().values())


def test_a_reset_draws_at_the_scales_of_the_constructor():
    proposal = create_operator("itnet", 8, 2, proposal=True).kernel.proposal
    deviations = [proposal.weight1.std().item(), proposal.weight2.std().item()]
    proposal.reset_parameters()
    after = [proposal.weight1.std().item(), proposal.weight2.std().item()]
    assert after == pytest.approx(deviations, rel=0.2)
    kernel = MLPKernel(2, 4, width=64, epsilon=0.5)
    first = kernel.weight2.std().item()
    kernel.reset_parameters()
    assert kernel.weight2.std().item() == pytest.approx(first, rel=0.1)


def _keyword_options(operator) -> dict[str, object]:
    """Return the options with a default of every constructor inside an operator, by name."""
    found = {}
    for module in operator.modules():
        for kind in type(module).__mro__:
            if not kind.__module__.startswith("fredholm.") or "__init__" not in vars(kind):
                continue
            for option in inspect.signature(kind.__init__).parameters.values():
                if option.kind is option.KEYWORD_ONLY and option.default is not option.empty:
                    found.setdefault(option.name, option.default)
    return found


@pytest.mark.parametrize("name", list_operators())
def test_every_option_that_an_operator_takes_is_listed(name):
    operator = create_operator(name, 8, 2)
    accepted = set()
    for option, default in _keyword_options(operator).items():
        try:
            create_operator(name, 8, 2, **{option: default})
        except OptionError:
            continue
        accepted.add(option)
    assert accepted <= set(operator_options(name))


@pytest.mark.parametrize("name", list_operators())
def test_every_listed_option_is_taken(name):
    for option in operator_parameters(name):
        if option.default is not option.empty:
            create_operator(name, 8, 2, **{option.name: option.default})


def test_options_of_a_user_s_operator_reach_those_of_its_base():
    class Mine(ITNetOperator):
        def __init__(self, dim: int, heads: int = 1, *, sharp: bool = False, **options):
            super().__init__(dim, heads, **options)

    assert set(options_of(Mine)) == {"sharp", *options_of(ITNetOperator)}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("luna", {"flor": 1e-5}, "'flor'; did you mean 'floor'"),
        ("luna", {"chanels": 2}, "'chanels'; did you mean 'channels'"),
        ("ckconv", {"omga": 2.0}, "'omga'; did you mean 'omega'"),
        ("ckconv", {"memory": 3}, "expected memory beside a horizon only, got memory=3"),
    ],
)
def test_options_of_a_kernel_are_suggested(name, options, message):
    with pytest.raises(OptionError, match=message):
        create_operator(name, 8, 2, **options)


BUILT = {
    **{name: (name, {}) for name in list_operators()},
    "performer": ("linear_attention", {"feature_map": "performer"}),
    "rff": ("linear_attention", {"feature_map": "rff"}),
    "exponential": ("luna", {"preset": "exponential"}),
    "capped": ("luna", {"cap": "running"}),
    "rff ckconv": ("ckconv", {"activation": "rff"}),
}


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("label", BUILT)
def test_a_half_precision_default_dtype_equals_a_cast(label, half):
    name, options = BUILT[label]
    torch.set_default_dtype(half)
    try:
        built = create_operator(name, 8, 2, **options)
    finally:
        torch.set_default_dtype(torch.float32)
    cast = create_operator(name, 8, 2, **options).to(half)
    kinds = [{key: x.dtype for key, x in op.state_dict().items()} for op in (built, cast)]
    assert kinds[0] == kinds[1]
    out = built(torch.randn(1, 6, 8).to(half))
    assert out.dtype == half
    assert out.isfinite().all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: create_operator("sofmax", 8), "'sofmax'; did you mean 'softmax'"),
        (lambda: create_operator("zzzzzz", 8), "known: .*itnet"),
        (lambda: create_operator("itnet", 8, 2, widht=3), "operator 'itnet'.*'widht'"),
        (lambda: create_operator("softmax", 8, 2, width=3), "operator 'softmax'.*'width'"),
        (lambda: create_operator("itnet", 8, 3), "expected a divisor of the width 8, got 3"),
        (lambda: create_operator("softmax", 8, 3), "expected a divisor of the width 8, got 3"),
        (lambda: create_operator("softmax", 8, 0), "heads=....: expected 1 or more, got 0"),
        (lambda: create_operator("itnet", 8, 0), "heads=....: expected 1 or more, got 0"),
        (
            lambda: create_operator("itnet", 8, 2, strategy="exactt"),
            "'exactt'; did you mean 'exact'.*Strategy object",
        ),
        (
            lambda: IntegralOperator(8, 2, kernel=MLPKernel(2, 8)),
            "expected 2 heads of 4 features, got 2 heads of 8",
        ),
        (
            lambda: IntegralOperator(8, 4, kernel=SoftmaxKernel(8, 2)),
            "expected 4 heads of 8 features, got 2 heads of 8",
        ),
        (
            lambda: IntegralOperator(8, 2, kernel=MLPKernel(2, 4), projection=False, out_dim=6),
            "out_dim: expected 8, .*, got 6",
        ),
        (lambda: register_operator("itnet")(SoftmaxAttention), "'itnet' is taken"),
    ],
)
def test_unknown_names_and_mismatched_options_are_refused(call, message):
    with pytest.raises(OptionError, match=message):
        call()


def test_a_type_error_inside_a_factory_propagates(monkeypatch):
    def factory(dim, heads, width):
        return dim + width

    monkeypatch.setattr("fredholm.integral.registry.operator_factory", lambda name: factory)
    with pytest.raises(TypeError, match="unsupported operand") as caught:
        create_operator("itnet", 8, 2, width="wide")
    assert not isinstance(caught.value, OptionError)


def test_registering_the_same_class_again_replaces_it():
    assert register_operator("softmax")(SoftmaxAttention) is SoftmaxAttention


SOURCE = """
from fredholm.operators import SoftmaxAttention, register_operator
COUNT = 1

@register_operator("{name}")
class Mine(SoftmaxAttention):
    pass
"""


@pytest.fixture
def user_file(tmp_path, monkeypatch):
    from fredholm.integral import registry

    monkeypatch.setattr(registry.OPERATORS, "_entries", dict(registry.OPERATORS))
    before = set(sys.modules)
    yield tmp_path / "mine_for_tests.py"
    for name in set(sys.modules) - before:
        if name.startswith("fredholm_user_"):
            del sys.modules[name]


def test_importing_a_file_registers_its_operators(user_file):
    user_file.write_text(SOURCE.format(name="mine-for-tests"))
    module = import_file(user_file)
    assert "mine-for-tests" in list_operators()
    assert isinstance(create_operator("mine-for-tests", 8, 2), module.Mine)
    assert import_file(str(user_file)) is module


def test_a_file_that_failed_is_executed_again(user_file):
    user_file.write_text("raise RuntimeError('half way')")
    with pytest.raises(RuntimeError, match="half way"):
        import_file(user_file)
    user_file.write_text(SOURCE.format(name="mended"))
    import_file(user_file)
    assert "mended" in list_operators()


def test_a_missing_file_is_named():
    with pytest.raises(OptionError, match=r"no such file 'nowhere/mine.py'.*relative"):
        import_file("nowhere/mine.py")


# --- strategies -----------------------------------------------------------------------------------


def test_strategies_are_names_or_objects():
    kernel = MLPKernel(1, 2, width=2)
    facts = Facts(Layout())
    assert choose("auto", kernel, facts).strategy == read_strategy("exact") == Exact()
    mine = Exact(memory=7)
    assert choose(mine, kernel, facts).strategy is mine
    operator = ITNetOperator(4, 2, width=2, strategy=mine)
    assert operator.strategy is mine
    assert "memory=7" in operator.plan(Domain.line(3)).strategy
    assert Exact.exact


def test_a_strategy_without_a_form_names_itself_and_the_kernel():
    class Picky(Strategy):
        needs = "a transition"
        instead = "Exact()"

    operator = ITNetOperator(4, 2, width=2, strategy=Picky())
    with pytest.raises(
        StrategyError,
        match=r"Picky cannot integrate MLPKernel: it needs a transition; use Exact\(\)",
    ):
        operator(torch.randn(1, 3, 4))


def test_a_user_defined_form_needs_one_class():
    class Twice(Form):
        """The doubled definition, which shows that this form ran."""

        word = Exact
        name = "twice the definition"
        reason = "the test asks for it"

        def respond(self, kernel, problem):
            weights = problem.quadrature.weights()
            return 2 * torch.einsum(
                "bhqkoi,bhqk,bhki->bhqo", kernel.matrix(problem), weights, problem.uy
            )

    class Mine(MLPKernel):
        forms = (Twice, *MLPKernel.forms)

    kernel = Mine(2, 2, width=3)
    operator = IntegralOperator(4, 2, kernel=kernel, residual=False, projection=False)
    u = torch.randn(1, 3, 4)
    assert operator.plan(Domain.line(3)).path == "twice the definition"
    assert torch.allclose(operator(u), 2 * operator.dense(u), atol=1e-5)


@pytest.mark.parametrize(
    ("operator", "domain", "path"),
    [
        ("itnet", Domain.line(4), "table"),
        ("itnet", Domain.line(4, causal=True), "table"),
        ("itnet", Domain.points(torch.rand(4, 1)), "columns"),
        ("itnet", Domain.points(torch.rand(2, 4, 1)), "columns"),
        ("softmax", Domain.line(4), "fused attention"),
        ("softmax", Domain.points(torch.rand(4, 3)), "fused attention"),
    ],
)
def test_plans_name_their_path(operator, domain, path):
    plan = create_operator(operator, 8, 2).plan(domain)
    assert path in plan.path
    assert plan.reason
    assert str(plan).startswith("Exact")


def test_plans_depend_on_the_grid_the_queries_and_learned_positions():
    operator = ITNetOperator(8, 2, position_dim=2)
    grid = Domain.grid(2, 2)
    assert "table" in operator.plan(grid).path
    assert "columns" in operator.plan(grid, Domain.points(torch.rand(3, 2))).path
    learned = grid.replace(positions=grid.positions.clone().requires_grad_())
    assert "columns" in operator.plan(learned).path


# --- steps and shapes -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["itnet", "softmax"])
def test_steps_refuse_wrong_domains_batches_and_sizes(name):
    operator = create_operator(name, 8, 2)
    with pytest.raises(DomainError, match="causal=True"):
        operator.init_state(2, Domain.line(3))
    with pytest.raises(ShapeError, match="for 2 sequences or for all, got one for 3"):
        operator.init_state(2, Domain.points(torch.rand(3, 4, 1), causal=True))
    state = operator.init_state(2, Domain.line(2, causal=True))
    with pytest.raises(ShapeError, match=r"u_t: expected shape \(B, 8\), got \(2, 7\)"):
        operator.step(torch.randn(2, 7), state)
    for t in range(2):
        assert state.seen == t
        _, state = operator.step(torch.randn(2, 8), state)
    with pytest.raises(DomainError, match="at most 0 more points of the state's domain of 2"):
        operator.step(torch.randn(2, 8), state)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda op, u: op(u, Domain.line(4)), "u: expected the 4 points of its domain, got 3"),
        (
            lambda op, u: op(u, Domain.points(torch.rand(5, 3, 1))),
            "its domain, 5, got 2",
        ),
        (
            lambda op, u: op(u, Domain.line(3).to("meta")),
            "domain: expected the device of u, cpu, got meta",
        ),
        (
            lambda op, u: op(u, Domain.line(3), query_domain=Domain.line(5)),
            r"W reads.*query=\(B, 5, 8\)",
        ),
        (
            lambda op, u: op(u, Domain.line(3), query=torch.randn(2, 5, 7)),
            r"query: expected shape \(B, 5, 8\)",
        ),
        (
            lambda op, u: op(
                u, Domain.line(3), query=torch.randn(1, 5, 8), query_domain=Domain.line(5)
            ),
            "query: expected the batch size of u, 2, got 1",
        ),
        (
            lambda op, u: op(u, Domain.line(3), query=torch.randn(2, 5, 8)),
            "query: expected the 3 points of domain, got 5; pass query_domain",
        ),
        (
            lambda op, u: op(
                u, Domain.line(3), query=torch.randn(2, 4, 8), query_domain=Domain.grid(2, 2)
            ),
            "dimension 1, as in domain, got 2",
        ),
    ],
)
def test_wrong_shapes_are_refused(call, message):
    # kernel_matrix is not under the tests' shape checker, which would refuse some calls first.
    operator = ITNetOperator(8, 2, width=4)
    with pytest.raises(ShapeError, match=message):
        call(
            lambda u, domain, **more: operator.kernel_matrix(u, domain, **more),
            torch.randn(2, 3, 8),
        )


def test_a_domain_without_points_is_refused():
    operator = ITNetOperator(8, 2, width=4)
    empty = Domain.line(4)[:0]
    u = torch.randn(2, 3, 8)
    with pytest.raises(DomainError, match="expected a domain of at least one point"):
        operator(u[:, :0], empty)
    with pytest.raises(DomainError, match="expected a domain of at least one point"):
        operator(
            torch.randn(2, 0, 8), empty, query=torch.randn(2, 3, 8), query_domain=Domain.line(3)
        )


def test_unknown_option_is_named_with_a_suggestion():
    with pytest.raises(OptionError, match="'itnet' has no option 'widht'; did you mean 'width'"):
        create_operator("itnet", 8, widht=3)
    with pytest.raises(
        OptionError, match="'itnet' has no option 'frequncies'; did you mean 'frequencies'"
    ):
        create_operator("itnet", 8, frequncies=3)


def test_an_unknown_option_inside_a_factory_names_the_inner_class(monkeypatch):
    def wrapper(dim, heads=1):
        return SoftmaxAttention(dim, heads, bogus=1)

    monkeypatch.setattr("fredholm.integral.registry.operator_factory", lambda name: wrapper)
    with pytest.raises(OptionError, match="SoftmaxAttention") as caught:
        create_operator("wrapper", 8)
    assert "'wrapper'" not in str(caught.value)


def test_registration_writes_the_name_to_each_part():
    for table in (ENCODERS, BODIES, HEADS):
        assert {name: table[name].kind for name in table} == {name: name for name in table}
    assert ENCODERS["samples"].data == "sequence"
    assert ENCODERS["field"].data == "field", "by default its own name"
    colours: Registry[type] = Registry("colour", None, attribute="name")

    class Red: ...

    assert colours.register("red")(Red) is Red
    assert Red.name == "red"
    with pytest.raises(OptionError, match="'red' is taken"):
        colours.register("red")(Registry)
    assert not hasattr(Registry, "name")


def test_taken_names_are_refused_for_classes_of_equal_name(user_file):
    user_file.write_text(SOURCE.format(name="softmax").replace("Mine(", "SoftmaxAttention("))
    with pytest.raises(OptionError, match=r"'softmax' is taken by fredholm\.families\.softmax"):
        import_file(user_file)
    assert operator_factory("softmax") is SoftmaxAttention
    other = user_file.with_name("theirs_for_tests.py")
    for file in (user_file, other):
        file.write_text(SOURCE.format(name="mine-for-tests"))
    import_file(user_file)
    with pytest.raises(OptionError, match=r"is taken by mine_for_tests\.py \(Mine\)"):
        import_file(other)


def test_a_file_of_the_same_name_with_other_content_is_named(user_file, recwarn):
    """Runs keep copies of a user's files: a copy says nothing, another version does."""
    user_file.write_text(SOURCE.format(name="mine-for-tests"))
    import_file(user_file)
    copies = [user_file.parent / folder / user_file.name for folder in ("copy", "other")]
    for copy in copies:
        copy.parent.mkdir()
        copy.write_text(user_file.read_text())
    import_file(copies[0])
    user_file.write_text(user_file.read_text() + "\n# edited\n")
    import_file(user_file)
    assert not recwarn.list

    copies[1].write_text(user_file.read_text().replace("COUNT = 1", "COUNT = 2"))
    with pytest.warns(UserWarning, match=r"other/mine_for_tests\.py replaces that of .*mine_for"):
        module = import_file(copies[1])
    assert operator_factory("mine-for-tests") is module.Mine


@pytest.mark.parametrize("first", ["original", "copy"])
def test_an_edited_file_does_not_replace_another_one(first, user_file, recwarn):
    """A run's copy of a file was imported as well: the file is still the one that was known."""
    copy = user_file.parent / "copy" / user_file.name
    copy.parent.mkdir()
    for file in (user_file, copy):
        file.write_text(SOURCE.format(name="mine-for-tests"))
    files = [user_file, copy]
    if first == "copy":
        files.reverse()
    for file in files:
        # Content that was imported before is not executed again from another path.
        sys.modules.pop("fredholm_user_mine_for_tests", None)
        import_file(file)
    user_file.write_text(SOURCE.format(name="mine-for-tests") + "\n# edited\n")
    import_file(user_file)
    assert not recwarn.list

    # The copy has the older content now.
    with pytest.warns(UserWarning, match=r"copy/mine_for_tests\.py replaces that of"):
        import_file(copy)


def test_the_librarys_definition_wins_over_a_users(monkeypatch):
    colours: Registry[type] = Registry("colour", home="the.library")
    library = {"the.library": SoftmaxAttention}
    monkeypatch.setattr(
        "fredholm.registry.import_module", lambda home: colours.add("red", library[home])
    )

    class Red: ...

    with pytest.raises(OptionError, match="'red' is taken"):
        colours.add("red", Red)
    assert colours["red"] is SoftmaxAttention


def test_imported_executed_and_named_files_are_one_module(user_file, monkeypatch):
    user_file.write_text(SOURCE.format(name="mine-for-tests"))
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(user_file), raising=False)
    for module in ("mine_for_tests", "__main__"):
        exec(user_file.read_text(), {"__name__": module})
    assert import_file(user_file).Mine is operator_factory("mine-for-tests")


def test_a_module_of_a_package_and_its_file_are_one_module(tmp_path, monkeypatch):
    """Imported as ``package.part`` in a program, and named as ``package/part.py`` in a recipe."""
    package = tmp_path / "tests_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "tests_part.py").write_text(
        "from fredholm.operators import SoftmaxAttention, register_operator\n\n\n"
        '@register_operator("tests-packaged")\nclass Packaged(SoftmaxAttention):\n    pass\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("tests_package.tests_part")
    import_file(package / "tests_part.py")
    assert "tests-packaged" in list_operators()
