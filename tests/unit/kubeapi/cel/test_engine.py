"""The CEL engine beyond the recorded corpus: error texts, budgets, limits for malicious input, unchanged data."""

import contextlib
import copy
import itertools
import sys

import pytest
import re2

from tink.kubeapi import cel
from tink.kubeapi.cel import values
from tink.kubeapi.cel.library import regex

SPEC = cel.types.ObjectType(
    "self",
    {
        "replicas": cel.types.ObjectField(cel.types.INT, "replicas"),
        "name": cel.types.ObjectField(cel.types.StringType(max_size=63), "name"),
        "host__dash__ip": cel.types.ObjectField(cel.types.STRING, "host-ip"),
        "tags": cel.types.ObjectField(cel.types.ListType(cel.types.STRING, max_items=10, kind="set"), "tags"),
        "ports": cel.types.ObjectField(
            cel.types.ListType(
                cel.types.ObjectType(
                    "self.ports.@idx",
                    {"n": cel.types.ObjectField(cel.types.STRING, "n"), "p": cel.types.ObjectField(cel.types.INT, "p")},
                ),
                kind="map",
                keys=("n",),
            ),
            "ports",
        ),
        "since": cel.types.ObjectField(cel.types.TIMESTAMP, "since"),
        "labels": cel.types.ObjectField(cel.types.MapType(cel.types.STRING, cel.types.STRING), "labels"),
    },
)
VARIABLES = {"self": SPEC, "oldSelf": SPEC}


def evaluate(source, value=None, old=None, *, variables=VARIABLES, limit=cel.PER_OBJECT_LIMIT):
    program = cel.compile_expression(source, variables)
    bindings = {name: v for name, v in (("self", value), ("oldSelf", old)) if v is not None}
    return program(bindings, cel.CostBudget(limit, clock=stopped_clock))


def stopped_clock():
    """Return a constant time, so that only costs end a rule."""
    return 0.0


def ticking_clock(seconds):
    """Return a clock that advances by `seconds` at each reading."""
    looks = itertools.count()
    return lambda: next(looks) * seconds


def count_calls(work, *args):
    """Count the function calls of `work`. The number is the same on every machine."""
    counted = itertools.count()
    sys.setprofile(lambda *_: next(counted))
    try:
        with contextlib.suppress(cel.CelError):
            work(*args)
    finally:
        sys.setprofile(None)
    return next(counted)


def compile_errors(source, variables=VARIABLES):
    with pytest.raises(cel.CelError) as caught:
        cel.compile_expression(source, variables)
    return str(caught.value)


REQUEST = {
    "request": cel.types.ObjectType(
        "kubernetes.AdmissionRequest", {"name": cel.types.ObjectField(cel.types.STRING, "name")}
    )
}


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("request.nope == ''", ["undefined field 'nope'"]),
        ("'é' == 'é' &&\n'✓' + 1 == '2'", ["2:5: found no matching overload for '_+_' applied to '(string, int)'"]),
        ("'é' == 'é' &&\n'✓' + 1 == '2'", ["\n | '✓' + 1 == '2'\n | .\uff0e..^"]),
        ("foo + self.bar + 'a'.nope()", ["'foo'", "'bar'", "'nope'"]),
        ("Pod{name: 'x'}", ["undeclared reference to 'Pod'"]),
        ("(self.replicas > 1", ["1:19: Syntax error: mismatched input '<EOF>' expecting ')'"]),
        ("self.replicas >", ["1:16: Syntax error: mismatched input '<EOF>' expecting an expression"]),
        ("self.replicas = 1", ["Syntax error: token recognition error at: '= '"]),
        ("'a\nb'", ["Syntax error: token recognition error at: ''a\\n'"]),
        ("for", ["reserved identifier: for"]),
        (" " * 100_000 + "1", ["expression code point size exceeds limit: size: 100001, limit 100000"]),
        ("optional.of(1)" + ".optMap(x, x)" * 20, ["expression size limit exceeded"]),
    ],
    ids=range(12),
)
def test_compile_errors_show_their_places_in_order(source, parts):
    text = compile_errors(source, VARIABLES | REQUEST)
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_undefined_field_error_shows_its_place():
    assert compile_errors("self.foo") == "ERROR: <input>:1:5: undefined field 'foo'\n | self.foo\n | ....^"


def test_rule_that_uses_oldself_is_a_transition_rule():
    assert "oldSelf" in cel.compile_expression("self.replicas >= oldSelf.replicas", VARIABLES).variables
    assert "oldSelf" not in cel.compile_expression("self.replicas > 1 && 'oldSelf' != ''", VARIABLES).variables
    shadowed = "['a'].all(oldSelf, oldSelf == 'a')"
    assert "oldSelf" not in cel.compile_expression(shadowed, VARIABLES).variables


NO_NAME = cel.EvaluationError("no such key: name")
BEHIND = cel.EvaluationError("index out of bounds: -1")
ABAC = {"tags": ["a", "b", "a", "c"]}


@pytest.mark.parametrize(
    ("source", "value", "result"),
    [
        ("self.name == 'x' || self.replicas == 1", {"replicas": 1}, True),
        ("self.name == 'x' && self.replicas == 2", {"replicas": 1}, False),
        ("self.name == 'x' || self.replicas == 2", {"replicas": 1}, NO_NAME),
        ("self.replicas == 1 && (self.replicas == 1 && self.name == 'x')", {"replicas": 1}, NO_NAME),
        ("has(self.name)", {"name": None}, False),
        ("self.name", {"name": None}, NO_NAME),
        ("self.replicas == 1", None, cel.EvaluationError("no such attribute")),
        ("'''a\nb'''", None, "a\nb"),
        ("self.host__dash__ip", {"host-ip": "10.0.0.1"}, "10.0.0.1"),
        ("string(cidr('10.1.2.3/8').masked())", None, "10.0.0.0/8"),
        ("string(cidr('2001:db8:1::1/32').masked())", None, "2001:db8::/32"),
        ("quantity('1e100000000').isGreaterThan(quantity('1'))", None, True),
        ("quantity('-1e100000000').compareTo(quantity('-1'))", None, -1),
        *(("int(self.name)", {"name": text}, number) for text, number in (("007", 7), ("+5", 5), ("-0", 0))),
        ("int(self.name)", {"name": "9223372036854775807"}, 2**63 - 1),
        *(
            ("int(self.name)", {"name": text}, cel.EvaluationError(""))
            for text in ("", "9223372036854775808", "1_000", " 1", "\u0661", "\u00b2", "0x1")
        ),
        ("self.tags.indexOf('a')", ABAC, 0),
        ("self.tags.lastIndexOf('a')", ABAC, 2),
        ("self.tags.lastIndexOf('b')", ABAC, 1),
        ("self.tags.indexOf('x') + self.tags.lastIndexOf('x')", ABAC, -2),
        ("[self.name].all(n, n == 'abc')", {}, NO_NAME),
        ("[self.name].all(n, dyn(n))", {"name": "x"}, cel.EvaluationError("no such overload")),
        ("[['b', 'a']].all(t, [-1].all(i, t[i] == 'a'))", {}, BEHIND),
        ("self.tags[-1] == 'a'", {"tags": ["b", "a"]}, BEHIND),
    ],
)
def test_expression_returns_its_result_or_error(source, value, result):
    if isinstance(result, cel.EvaluationError):
        with pytest.raises(cel.EvaluationError) as caught:
            evaluate(source, value)
        assert str(result) in str(caught.value)
    else:
        assert evaluate(source, value) == result


def test_lists_of_kind_set_and_map_compare_without_order():
    assert evaluate("self.tags == oldSelf.tags", {"tags": ["a", "b"]}, {"tags": ["b", "a"]}) is True
    a = {"ports": [{"n": "x", "p": 1}, {"n": "y", "p": 2}]}
    b = {"ports": [{"n": "y", "p": 2}, {"n": "x", "p": 1}]}
    assert evaluate("self.ports == oldSelf.ports", a, b) is True
    assert evaluate("self == oldSelf", a, b) is True
    b["ports"][0]["p"] = 3
    assert evaluate("self.ports == oldSelf.ports", a, b) is False
    assert evaluate("(self.ports + oldSelf.ports).map(p, p.p)", a, b) == [1, 3]
    assert evaluate("self.tags + oldSelf.tags", {"tags": ["a"]}, {"tags": ["b", "a"]}) == ["a", "b"]


def test_evaluation_does_not_change_the_object():
    value = {"tags": ["b", "a"], "ports": [{"n": "x", "p": 1}], "since": "2024-01-01T00:00:00Z", "labels": {"a": "b"}}
    before = copy.deepcopy(value)
    for source in ("self.tags + ['c']", "self.ports + self.ports", "self.since", "self.tags.sort()", "self.labels"):
        evaluate(source, value)
    assert value == before


def test_data_that_contradict_their_schema_cause_an_evaluation_error():
    for source in (
        "self.name.size() > 1",
        "self.tags.all(t, t == 'a')",
        "self.replicas + 1 > 2",
        "self.ports[0].p > 1",
    ):
        for wrong in ({"name": 5}, {"tags": 5}, {"replicas": "x"}, {"ports": [5]}, {"ports": {"a": 1}}, []):
            with pytest.raises(cel.EvaluationError):
                evaluate(source, wrong)


def test_expensive_rule_is_cancelled_at_the_limit_of_one_call():
    nested = "self.tags.all(a, self.tags.all(b, self.tags.all(c, self.tags.all(d, a + b + c + d != ''))))"
    with pytest.raises(cel.BudgetExceededError, match="operation cancelled: actual cost limit exceeded") as caught:
        evaluate(nested, {"tags": [str(at) for at in range(1000)]})
    assert not caught.value.exhausted


def test_rules_of_one_object_share_its_budget():
    program = cel.compile_expression("self.tags.all(t, t != 'x')", VARIABLES)
    value = {"self": {"tags": ["a", "b"]}}
    budget = cel.CostBudget(30)
    assert program(value, budget) is True
    assert 0 < budget.used <= 30
    while budget.used + 13 <= 30:
        program(value, budget)
    with pytest.raises(cel.BudgetExceededError) as caught:
        program(value, budget)
    assert caught.value.exhausted
    assert budget.remaining == 0


def test_budget_error_is_not_absorbed_by_or():
    with pytest.raises(cel.BudgetExceededError):
        evaluate("self.tags.all(t, t.size() > 0) || true", {"tags": ["a"] * 100}, limit=50)


def test_declared_sizes_limit_the_estimate():
    bounded = cel.compile_expression("self.tags.all(t, t == 'a')", VARIABLES).estimate()
    assert bounded.max < 100
    unbounded = cel.compile_expression("self.labels.all(k, self.labels[k] == 'a')", VARIABLES).estimate()
    assert unbounded.max > 1_000_000


@pytest.mark.parametrize(
    "source",
    [
        "(" * 300 + "1" + ")" * 300,
        "[" * 5000 + "]" * 5000,
        "!" * 50_000 + "true",
        "1" + "+1" * 30_000,
        "self" + ".a" * 20_000,
        "true" + " ? true : false" * 3000,
        "'" + "a" * 200_000 + "'",
        "optional.of(1)" + ".optMap(x, x)" * 40,
        "'''" * 20_000,
        "a" * 100_000,
        "\\" * 20_000,
        '"\\' * 20_000,
        "true" + " && [1] == [1]" * 7_000,
    ],
    ids=range(13),
)
def test_malicious_source_is_rejected_after_little_work(source):
    assert count_calls(cel.compile_expression, source, VARIABLES) < 8_000_000


def test_pattern_that_backtracks_in_other_engines_is_linear():
    assert evaluate("self.name.matches('^(a+)+$')", {"name": "a" * 20_000 + "b"}) is False


@pytest.mark.parametrize(
    "source",
    [
        "lists.range(9223372036854775807)",
        "quantity('1e999999999').add(quantity('1n'))",
        "'a'.replace('', self.name).replace('', self.name).replace('', self.name)",
    ],
)
def test_function_rejects_a_result_that_would_fill_the_memory(source):
    with pytest.raises(cel.EvaluationError):
        evaluate(source, {"name": "x" * 5000})


def test_quantities_that_are_far_apart_are_compared_without_filling_the_memory():
    assert evaluate("quantity('1e-999999999') == quantity('1')", {}) is False


def test_expression_cannot_reach_python_objects():
    for source in ("self.__class__", "self.name.__class__", "self.labels.__class__", "''.format.__globals__"):
        with pytest.raises((cel.CelError, cel.EvaluationError)):
            evaluate(source, {"name": "x", "labels": {}})
    assert evaluate("has(self.labels.keys)", {"labels": {}}) is False


FOUR = "self.replicas {0} 1 {1} self.replicas {0} 2 {1} self.replicas {0} 3 {1} self.replicas {0} 4"


@pytest.mark.parametrize(
    ("source", "value", "result", "counted"),
    [
        # 2 for the range, for each of two rounds 3 + 3 + 1 + 1, and 1 for the result; the index costs nothing
        ("self.tags.all(i, t, self.tags[i] == t)", {"tags": ["a", "b"]}, True, 19),
        ("self.name == ''", {"name": "abc"}, False, 2),
        ("self.name == 'abc'", {"name": ""}, False, 2),
        ("self.name == 'abc'", {"name": "abcdefghijklm"}, False, 3),
        ("self.name != 'abcdefghijklm'", {"name": "abcdefghijklm"}, False, 4),
        ("self.name != 'abcdefghijklm'", {"name": "abc"}, True, 3),
        # 10 for the list and 2 for its elements, for the round 1 + 2 + 2, and 1 for the result
        ("[self.name].all(n, n == 'abc')", {"name": "abc"}, True, 18),
        *(  # texts in tens of characters
            ("self.tags.indexOf('x') == -1", {"tags": ["a" * size for size in sizes]}, True, counted + 3)
            for sizes, counted in (((9,), 0), ((10, 19), 2), ((20, 29, 30), 7), ((9, 99), 9))
        ),
        # terms cost only if they are evaluated
        (FOUR.format("==", "||"), {"replicas": 3}, True, 9),
        (FOUR.format(">", "&&"), {"replicas": 2}, False, 6),
        ("self.replicas == 1 || self.replicas == 2", {"replicas": 2}, True, 6),
    ],
)
def test_rule_costs_the_same_as_in_a_cluster(source, value, result, counted):
    budget = cel.CostBudget(clock=stopped_clock)
    assert cel.compile_expression(source, VARIABLES)({"self": value}, budget) is result
    assert budget.used == counted


COUNTING = "self.tags.all(a, self.tags.all(b, a != b + 'x'))"
HUNDRED = {"self": {"tags": [str(at) for at in range(100, 200)]}}


def test_exact_budget_is_enough_and_one_less_is_not():
    program = cel.compile_expression(COUNTING, VARIABLES)
    budget = cel.CostBudget()
    assert program(HUNDRED, budget) is True
    assert budget.used > 50_000
    exact = cel.CostBudget(budget.used)
    assert program(HUNDRED, exact) is True
    assert exact.remaining == 0
    for less in (1, 2, 999, 1000, 1001):
        with pytest.raises(cel.BudgetExceededError) as caught:
            program(HUNDRED, cel.CostBudget(budget.used - less))
        assert caught.value.exhausted


@pytest.mark.parametrize("rounds", range(328, 338))
def test_budget_that_ends_right_after_reading_the_clock_is_enough(rounds):
    program = cel.compile_expression("self.tags.all(a, true)", VARIABLES)
    value = {"self": {"tags": ["a"] * rounds}}
    budget = cel.CostBudget()
    program(value, budget)
    assert program(value, cel.CostBudget(budget.used)) is True
    with pytest.raises(cel.BudgetExceededError):
        program(value, cel.CostBudget(budget.used - 1))


def test_cost_does_not_depend_on_the_cost_of_earlier_evaluations():
    program = cel.compile_expression(COUNTING, VARIABLES)
    alone = cel.CostBudget()
    program(HUNDRED, alone)
    budget = cel.CostBudget()
    for spent in (1, 998, 999, 1000, 1001, 1999):
        budget.used += spent
        before = budget.used
        program(HUNDRED, budget)
        assert budget.used - before == alone.used


@pytest.mark.parametrize("source", [COUNTING, "self.tags.all(a, a != 'x')"], ids=["one rule", "many short rules"])
def test_rules_that_take_too_long_exceed_the_budget(source):
    budget = cel.CostBudget(clock=ticking_clock(0.3))
    program = cel.compile_expression(source, VARIABLES)
    with pytest.raises(cel.BudgetExceededError) as caught:
        [program(HUNDRED, budget) for _ in range(1000)]
    assert caught.value.exhausted
    assert budget.remaining == 0
    assert 2000 < budget.used < 10_000
    with pytest.raises(cel.BudgetExceededError):
        cel.compile_expression("self.replicas == 1", VARIABLES)({"self": {"replicas": 1}}, budget)


def test_cheap_rules_do_not_read_the_clock():
    looked = []
    budget = cel.CostBudget(clock=lambda: looked.append(1) or 0.0)
    assert cel.compile_expression("self.replicas == 1", VARIABLES)({"self": {"replicas": 1}}, budget) is True
    assert not looked
    cel.compile_expression(COUNTING, VARIABLES)(HUNDRED, budget)
    assert 50 < len(looked) < 200


@pytest.mark.parametrize(
    "source",
    [
        "self.tags.all(a, self.tags.all(b, self.tags.all(c, self.tags.all(d, self.tags.all(e, a + b + c + d != e)))))",
        "self.tags.all(a, self.tags.all(b, !self.tags.exists_one(c, self.tags.map(d, d).size() == 0)))",
        "self.tags.all(a, self.tags.all(b, self.tags.all(c, self.ports == oldSelf.ports)))",
        "self.tags.all(a, self.tags.all(b, " + " && ".join(["self == oldSelf"] * 50) + "))",
    ],
    ids=("loops", "lists", "comparisons", "conditions"),
)
def test_most_expensive_rules_of_one_object_do_not_block_the_server(source):
    program = cel.compile_expression(source, VARIABLES)
    value = {"tags": [str(at) for at in range(60)], "ports": [{"n": str(at), "p": at} for at in range(500)]}
    before = copy.deepcopy(value)
    budget = cel.CostBudget(clock=ticking_clock(0.01))
    for _ in range(100):
        with contextlib.suppress(cel.BudgetExceededError):
            program({"self": value, "oldSelf": before}, budget)
    assert budget.remaining == 0
    assert budget.used < 200 * 1000, "a hundred looks at the clock, each after a slice of a thousand"


def test_text_that_doubles_repeatedly_is_stopped_before_it_fills_the_memory():
    source = "self.name"
    for name in "abcdefghijklmnopqrstuvwx":
        source = f"[{source}].map({name}, {name} + {name})[0]"
    with pytest.raises(cel.BudgetExceededError):
        evaluate(f"size({source}) > 0", {"name": "x" * 10_000})


# --- values nested in themselves: `[a, a]` of `[a, a]` of ... is small in memory, and a traversal has 2**n nodes ---

OBJECT = cel.types.ObjectType(
    "self.o",
    {
        "n": cel.types.ObjectField(cel.types.STRING, "n"),
        "in": cel.types.ObjectField(cel.types.ListType(cel.types.INT), "in"),
    },
)
NESTED = {
    "self": cel.types.ObjectType(
        "self",
        {
            "old": cel.types.ObjectField(OBJECT, "old"),
            "set": cel.types.ObjectField(cel.types.ListType(cel.types.DYN, kind="set"), "set"),
            "many": cel.types.ObjectField(cel.types.ListType(OBJECT), "many"),
            "others": cel.types.ObjectField(cel.types.ListType(OBJECT), "others"),
            "s": cel.types.ObjectField(cel.types.STRING, "s"),
            "t": cel.types.ObjectField(cel.types.STRING, "t"),
            "any": cel.types.ObjectField(cel.types.DYN, "any"),
            "other": cel.types.ObjectField(cel.types.DYN, "other"),
        },
    )
}
LEVELS = 21


def doubling_rule(start: str, result: str, *, levels: int = LEVELS, node: str = "dyn([{0}, {0}])") -> str:
    """Return a rule about `z`: a list of `start` twice, in a list twice, and so on."""
    steps = "".join(f".map(n, {node.format('n')})" for _ in range(levels))
    return f"[{start}]{steps}.all(z, {result})"


def run_nested(source, value=None, *, budget=None):
    program = cel.compile_expression(source, NESTED)
    return program({"self": value or {}}, budget or cel.CostBudget(clock=ticking_clock(0.01)))


WALKS = {
    "equal": doubling_rule("dyn([1])", "z == [z[0], z[1]]"),
    "unequal": doubling_rule("dyn([1])", "z != [z[0], z[1]]"),
    "typed": doubling_rule("[1]", "z == z", node="[{0}, {0}]"),
    "empty": doubling_rule("dyn([])", "z == z"),
    "maps": doubling_rule("dyn({'x': 1})", "z == z", node="dyn({{'a': {0}, 'b': {0}}})"),
    "optionals": doubling_rule("dyn([1])", "optional.of(z) == optional.of(z)"),
    "members": doubling_rule("dyn([1])", "[dyn(0), z] in [[dyn(1), z], [dyn(0), z]]"),
    "places": doubling_rule("dyn([1])", "[z].indexOf(z) == 0"),
    "last": doubling_rule("dyn([1])", "[z].lastIndexOf(z) == 0"),
    "places of none": doubling_rule("dyn([])", "[z].indexOf('x') == 0"),
    "flat": doubling_rule("dyn([1])", "z.flatten(100).size() == 0"),
    "flat and empty": doubling_rule("dyn([])", "z.flatten(100).size() == 0"),
    "texts": doubling_rule("dyn([1])", "'%s'.format([z]) == ''"),
    "texts of maps": doubling_rule("dyn({'x': 1})", "'%s'.format([z]) == ''", node="dyn({{'a': {0}, 'b': {0}}})"),
    "distinct": doubling_rule("dyn([1])", "[z, z].distinct().size() == 1"),
    "contains": doubling_rule("dyn([1])", "sets.contains([z], [z])"),
    "equivalent": doubling_rule("dyn([1])", "sets.equivalent([z], [z])"),
    "intersects": doubling_rule("dyn([1])", "sets.intersects([z], [z])"),
    "union": doubling_rule("dyn([1])", "size(self.set + [z, z]) == 2"),
}


@pytest.mark.parametrize("source", WALKS.values(), ids=WALKS)
def test_traversal_of_a_value_nested_in_itself_exceeds_the_budget(source):
    with pytest.raises(cel.BudgetExceededError):
        run_nested(source, {"set": [1]})


@pytest.mark.parametrize("levels", [25, 60])
def test_time_does_not_grow_with_the_nesting(levels):
    with pytest.raises(cel.BudgetExceededError):
        run_nested(doubling_rule("dyn([1])", "z == z", levels=levels))


def test_budget_is_checked_during_a_traversal():
    """A traversal ends within one slice of the remaining budget, not at the limit of a call."""
    budget = cel.CostBudget(3_000, clock=stopped_clock)
    with pytest.raises(cel.BudgetExceededError):
        run_nested(doubling_rule("dyn([1])", "z == z"), budget=budget)
    assert budget.used < 6_000


@pytest.mark.parametrize("source", ["[z].join() == ''", "optional.unwrap([dyn(optional.of(1)), z]).size() == 0"])
def test_error_message_cuts_nested_values(source):
    with pytest.raises(cel.EvaluationError) as caught:
        run_nested(doubling_rule("dyn([1])", source, levels=21))
    assert len(str(caught.value)) < 10_000


def lists_of_numbers(width: int, parts: int) -> list:
    """Return `parts` lists of `width` numbers, like those of an object."""
    return [[at] * width for at in range(parts)]


def test_comparison_of_large_objects_costs_the_same_as_in_a_cluster():
    def costs(source, value, other=None):
        budget = cel.CostBudget(clock=stopped_clock)
        assert run_nested(source, {"any": value, "other": other}, budget=budget) is True
        return budget.used

    assert costs("self.any == self.other", lists_of_numbers(9, 300), lists_of_numbers(9, 300)) <= 45
    assert costs("self.any[0] in self.any", lists_of_numbers(9, 300)) <= 303
    assert costs("self.any == self.other", [*range(100_000)], [*range(100_000)]) == 10_004
    large = [{str(at): {"a": [1, 2, {"b": "c"}], "d": "e"} for at in range(15_000)} for _ in range(2)]
    assert 50_000 < costs("self.any == self.other", *large) < 500_000


def clock_readings(source, value) -> int:
    """Return how often a rule reads the clock."""
    count = 0

    def clock() -> float:
        nonlocal count
        count += 1
        return 0.0

    run_nested(source, value, budget=cel.CostBudget(clock=clock))
    return count


def test_comparison_of_objects_in_one_step_brings_the_next_clock_reading_nearer():
    """Python compares them in one step of unknown size and counts nothing."""
    same = {"n": "x", "in": [1, 2]}
    value = {"many": [same] * 2_000, "old": {"n": "x", "in": [1, 2]}}
    value["others"] = [value["old"]] * 2_000
    assert clock_readings("self.many == self.others", value) >= 2_000 // 64
    assert clock_readings("self.many.all(o, o == self.old)", value) >= 2_000 // 16


MANY = "lists.range({0}).map(i, {1})"
ORDERED = MANY.format(20000, "i % 7 < 3 ? self.s : self.t")


@pytest.mark.parametrize(
    ("source", "millions"),
    [
        (f"'%s'.format([{MANY.format(2000, '[dyn(self.s)]')}]) == ''", 1),
        (f"[dyn(self.t)] in {MANY.format(2000, '[dyn(self.s)]')}", 1),
        *((f"{ORDERED}.{function} == dyn(1)", 3) for function in ("sort()", "sortBy(x, x)", "max()", "min()")),
        (f"{MANY.format(200, 'self.s')}.join() == ''", 1),
        (f"'{'%s' * 200}'.format({MANY.format(200, 'self.s')}) == ''", 1),
    ],
    ids=["format", "in", "sort", "sortBy", "max", "min", "join", "format many"],
)
def test_long_texts_are_counted_before_they_are_read_or_copied(source, millions):
    long = "x" * millions * 1_000_000
    with pytest.raises((cel.BudgetExceededError, cel.EvaluationError)) as caught:
        run_nested(source, {"s": long + "a", "t": long + "b"}, budget=cel.CostBudget(clock=stopped_clock))
    assert isinstance(caught.value, cel.BudgetExceededError) or "200" in source


def test_nested_values_are_compared_by_content():
    for source, answer in (
        ("dyn([dyn([1, 2]), dyn({'a': [3u]})]) == dyn([dyn([1u, 2u]), dyn({'a': [3.0]})])", True),
        ("dyn([[true], [true]]) == dyn([[1], [1]])", False),
        ("[{'a': [1]}] == [{'a': [1], 'b': [2]}]", False),
        ("dyn([[{'a': 1}]]).indexOf([{'a': 1.0}]) == 0", True),
        ("lists.range(200).map(i, [i]) == lists.range(200).map(i, [i])", True),
        ("lists.range(200).map(i, [i]) == lists.range(200).map(i, [i % 199])", False),
        ("[lists.range(200)] == [lists.range(199) + [199]]", True),
        ("[lists.range(200)] == [lists.range(199) + [198]]", False),
    ):
        assert run_nested(source) is answer, source
    assert values.type_name([]) == "list"


# --- regular expressions: the same results through the private and the public names of re2 ---


@pytest.mark.parametrize("missing", ["_re2", "_Regexp"])
def test_expressions_match_the_same_without_the_private_names_of_re2(missing, monkeypatch):
    texts = ("ab", "b", "", "äbä", "abab", "x\ny")
    patterns = ("b", "^b", "b*", "[^a]", "ä")

    def all_of_it():
        return [
            (regex.pattern_tester(p)(t), regex.find_all(p, t), regex.find_all(p, t, 1)) for p in patterns for t in texts
        ]

    before = all_of_it()
    assert regex._match_of is not regex._public_match
    if missing == "_re2":
        monkeypatch.delattr(re2, missing)
    else:  # a pattern whose inner match means something else
        monkeypatch.setattr(re2, "compile", lambda *_, **__: type("Pattern", (), {"_regexp": None})())
    match_of, anywhere = regex._choose_match()
    assert (match_of, anywhere) == (regex._public_match, None)
    monkeypatch.undo()
    monkeypatch.setattr(regex, "_match_of", match_of)
    monkeypatch.setattr(regex, "_ANYWHERE", anywhere)
    assert all_of_it() == before
