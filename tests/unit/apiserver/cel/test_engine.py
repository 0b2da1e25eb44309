"""The engine's own promises: texts with a caret, budgets, bounds on what outsiders send, data left as they are."""

import contextlib
import copy
import time

import pytest

from tink.apiserver import cel

SPEC = cel.ObjectType(
    "self",
    {
        "replicas": cel.Field(cel.INT, "replicas"),
        "name": cel.Field(cel.StringType(max_size=63), "name"),
        "host__dash__ip": cel.Field(cel.STRING, "host-ip"),
        "tags": cel.Field(cel.ListType(cel.STRING, max_items=10, kind="set"), "tags"),
        "ports": cel.Field(
            cel.ListType(
                cel.ObjectType("self.ports.@idx", {"n": cel.Field(cel.STRING, "n"), "p": cel.Field(cel.INT, "p")}),
                kind="map",
                keys=("n",),
            ),
            "ports",
        ),
        "since": cel.Field(cel.TIMESTAMP, "since"),
        "labels": cel.Field(cel.MapType(cel.STRING, cel.STRING), "labels"),
    },
)
VARIABLES = {"self": SPEC, "oldSelf": SPEC}


def evaluate(source, value=None, old=None, *, variables=VARIABLES, limit=cel.PER_OBJECT_LIMIT):
    program = cel.compile_expression(source, variables)
    bindings = {name: v for name, v in (("self", value), ("oldSelf", old)) if v is not None}
    return program(bindings, cel.Budget(limit))


def refused(source, variables=VARIABLES, **expected):
    with pytest.raises(cel.CelError) as caught:
        cel.compile_expression(source, variables, **expected)
    return str(caught.value)


def test_undefined_field_is_shown_with_its_place():
    assert refused("self.foo") == "ERROR: <input>:1:5: undefined field 'foo'\n | self.foo\n | ....^"


def test_error_on_second_line_after_wide_characters_points_at_its_column():
    text = refused("'é' == 'é' &&\n'✓' + 1 == '2'")
    assert text.startswith("ERROR: <input>:2:5: found no matching overload for '_+_' applied to '(string, int)'")
    assert text.endswith("\n | '✓' + 1 == '2'\n | .\uff0e..^")


def test_several_errors_are_listed_in_the_order_of_their_places():
    text = refused("foo + self.bar + 'a'.nope()")
    assert [line.split(": ")[1].split(":")[0] for line in text.split("\n") if "ERROR" in line]
    assert text.index("'foo'") < text.index("'bar'") < text.index("'nope'")


def test_rule_that_is_no_condition_is_refused():
    assert refused("self.replicas", expected=cel.BOOL) == "cel expression must evaluate to a bool"


def test_message_literal_is_refused():
    assert "undeclared reference to 'Pod'" in refused("Pod{name: 'x'}")


def test_transition_rule_is_known_by_its_use_of_oldself():
    assert cel.compile_expression("self.replicas >= oldSelf.replicas", VARIABLES).uses("oldSelf")
    assert not cel.compile_expression("self.replicas > 1 && 'oldSelf' != ''", VARIABLES).uses("oldSelf")
    shadowed = "['a'].all(oldSelf, oldSelf == 'a')"
    assert not cel.compile_expression(shadowed, VARIABLES).uses("oldSelf")


def test_error_on_one_side_does_not_hide_a_decision_on_the_other():
    assert evaluate("self.name == 'x' || self.replicas == 1", {"replicas": 1}) is True
    assert evaluate("self.name == 'x' && self.replicas == 2", {"replicas": 1}) is False
    with pytest.raises(cel.EvaluationError, match="no such key: name"):
        evaluate("self.name == 'x' || self.replicas == 2", {"replicas": 1})
    with pytest.raises(cel.EvaluationError, match="no such key: name"):
        evaluate("self.replicas == 1 && (self.replicas == 1 && self.name == 'x')", {"replicas": 1})


def test_null_field_counts_as_absent():
    assert evaluate("has(self.name)", {"name": None}) is False
    with pytest.raises(cel.EvaluationError, match="no such key: name"):
        evaluate("self.name", {"name": None})


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


def test_evaluation_leaves_the_object_as_it_was():
    value = {"tags": ["b", "a"], "ports": [{"n": "x", "p": 1}], "since": "2024-01-01T00:00:00Z", "labels": {"a": "b"}}
    before = copy.deepcopy(value)
    for source in ("self.tags + ['c']", "self.ports + self.ports", "self.since", "self.tags.sort()", "self.labels"):
        evaluate(source, value)
    assert value == before


def test_data_that_belie_their_schema_are_an_evaluation_error_not_a_crash():
    for source in (
        "self.name.size() > 1",
        "self.tags.all(t, t == 'a')",
        "self.replicas + 1 > 2",
        "self.ports[0].p > 1",
    ):
        for wrong in ({"name": 5}, {"tags": 5}, {"replicas": "x"}, {"ports": [5]}, {"ports": {"a": 1}}, []):
            with pytest.raises(cel.EvaluationError):
                evaluate(source, wrong)


def test_missing_variable_is_an_evaluation_error():
    with pytest.raises(cel.EvaluationError, match="no such attribute"):
        evaluate("self.replicas == 1")


def test_expensive_rule_is_cancelled_at_the_limit_of_one_call():
    nested = "self.tags.all(a, self.tags.all(b, self.tags.all(c, self.tags.all(d, a + b + c + d != ''))))"
    started = time.monotonic()
    with pytest.raises(cel.BudgetExceededError, match="operation cancelled: actual cost limit exceeded") as caught:
        evaluate(nested, {"tags": [str(at) for at in range(1000)]})
    assert not caught.value.exhausted
    assert time.monotonic() - started < 20


def test_rules_of_one_object_share_its_budget():
    program = cel.compile_expression("self.tags.all(t, t != 'x')", VARIABLES)
    value = {"self": {"tags": ["a", "b"]}}
    budget = cel.Budget(30)
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


def test_declared_sizes_bound_the_estimate():
    bounded = cel.estimate(cel.compile_expression("self.tags.all(t, t == 'a')", VARIABLES))
    assert bounded.max < 100
    unbounded = cel.estimate(cel.compile_expression("self.labels.all(k, self.labels[k] == 'a')", VARIABLES))
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
def test_source_made_to_exhaust_the_server_is_refused_soon(source):
    started = time.monotonic()
    with contextlib.suppress(cel.CelError):
        cel.compile_expression(source, VARIABLES)
    assert time.monotonic() - started < 8


def test_pattern_that_backtracks_elsewhere_is_linear():
    started = time.monotonic()
    assert evaluate("self.name.matches('^(a+)+$')", {"name": "a" * 20_000 + "b"}) is False
    assert time.monotonic() - started < 1


@pytest.mark.parametrize(
    "source",
    [
        "lists.range(9223372036854775807)",
        "quantity('1e999999999').add(quantity('1n'))",
        "'a'.replace('', self.name).replace('', self.name).replace('', self.name)",
        "quantity('1e-999999999') == quantity('1')",
    ],
)
def test_function_cannot_make_a_value_that_fills_the_memory(source):
    with contextlib.suppress(cel.EvaluationError):
        evaluate(source, {"name": "x" * 5000})


def test_nothing_of_python_is_reachable():
    for source in ("self.__class__", "self.name.__class__", "self.labels.__class__", "''.format.__globals__"):
        with pytest.raises((cel.CelError, cel.EvaluationError)):
            evaluate(source, {"name": "x", "labels": {}})
    assert evaluate("has(self.labels.keys)", {"labels": {}}) is False


def test_json_names_that_expressions_cannot_write_are_escaped():
    assert cel.escaped("a-b.c/d__e") == "a__dash__b__dot__c__slash__d__underscores__e"
    assert cel.escaped("namespace") == "__namespace__"
    assert cel.escaped("$x") is None
    assert evaluate("self.host__dash__ip", {"host-ip": "10.0.0.1"}) == "10.0.0.1"


def test_syntax_slips_are_told_as_on_a_cluster():
    assert "Syntax error: missing ')' at '<EOF>'" in refused("(self.replicas > 1")
    assert "Syntax error: mismatched input '<EOF>' expecting {'[', '{', '('," in refused("self.replicas >")
    assert "Syntax error: token recognition error at: '= '" in refused("self.replicas = 1")
    assert "reserved identifier: for" in refused("for")


def test_prefix_of_an_address_with_host_bits_is_masked():
    assert evaluate("string(cidr('10.1.2.3/8').masked())") == "10.0.0.0/8"
    assert evaluate("string(cidr('2001:db8:1::1/32').masked())") == "2001:db8::/32"


def test_string_does_not_go_over_the_end_of_its_line():
    assert "Syntax error: token recognition error at: ''a\\n'" in refused("'a\nb'")
    assert evaluate("'''a\nb'''") == "a\nb"


def test_quantities_of_any_distance_are_compared_at_once():
    started = time.monotonic()
    assert evaluate("quantity('1e100000000').isGreaterThan(quantity('1'))") is True
    assert evaluate("quantity('-1e100000000').compareTo(quantity('-1'))") == -1
    assert time.monotonic() - started < 1


def test_source_longer_than_kubernetes_takes_is_refused_for_its_length():
    assert "expression code point size exceeds limit: size: 100001, limit 100000" in refused(" " * 100_000 + "1")


def test_copies_that_macros_make_of_their_targets_are_bounded():
    assert "expression size limit exceeded" in refused("optional.of(1)" + ".optMap(x, x)" * 20)


def test_reading_an_index_out_of_a_variable_costs_nothing_of_its_own():
    budget = cel.Budget()
    program = cel.compile_expression("self.tags.all(i, t, self.tags[i] == t)", VARIABLES)
    assert program({"self": {"tags": ["a", "b"]}}, budget) is True
    # Kubernetes counts as many: 2 for the range, for each of two rounds 3 + 3 + 1 + 1, and 1 for the result.
    assert budget.used == 19
