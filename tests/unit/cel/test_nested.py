"""Values nested in themselves: `[a, a]` of `[a, a]` of ... is small in memory, and has 2**n parts for who walks it."""

import itertools

import pytest

from tink import cel
from tink.cel import values

OBJECT = cel.ObjectType("self.o", {"n": cel.Field(cel.STRING, "n"), "in": cel.Field(cel.ListType(cel.INT), "in")})
VARIABLES = {
    "self": cel.ObjectType(
        "self",
        {
            "old": cel.Field(OBJECT, "old"),
            "set": cel.Field(cel.ListType(cel.DYN, kind="set"), "set"),
            "many": cel.Field(cel.ListType(OBJECT), "many"),
            "others": cel.Field(cel.ListType(OBJECT), "others"),
            "s": cel.Field(cel.STRING, "s"),
            "t": cel.Field(cel.STRING, "t"),
            "any": cel.Field(cel.DYN, "any"),
            "other": cel.Field(cel.DYN, "other"),
        },
    )
}
LEVELS = 21


def doubled(start: str, result: str, *, levels: int = LEVELS, node: str = "dyn([{0}, {0}])") -> str:
    """A rule about `z`, which is `start` twice in a list, that twice in a list, and so on."""
    steps = "".join(f".map(n, {node.format('n')})" for _ in range(levels))
    return f"[{start}]{steps}.all(z, {result})"


def ticking(seconds=0.01):
    """Return a clock that goes on by `seconds` each time it is looked at."""
    looks = itertools.count()
    return lambda: next(looks) * seconds


def run(source, value=None, *, budget=None):
    program = cel.compile_expression(source, VARIABLES)
    return program({"self": value or {}}, budget or cel.Budget(clock=ticking()))


WALKS = {
    "equal": doubled("dyn([1])", "z == [z[0], z[1]]"),
    "unequal": doubled("dyn([1])", "z != [z[0], z[1]]"),
    "typed": doubled("[1]", "z == z", node="[{0}, {0}]"),
    "empty": doubled("dyn([])", "z == z"),
    "maps": doubled("dyn({'x': 1})", "z == z", node="dyn({{'a': {0}, 'b': {0}}})"),
    "optionals": doubled("dyn([1])", "optional.of(z) == optional.of(z)"),
    "members": doubled("dyn([1])", "[dyn(0), z] in [[dyn(1), z], [dyn(0), z]]"),
    "places": doubled("dyn([1])", "[z].indexOf(z) == 0"),
    "last": doubled("dyn([1])", "[z].lastIndexOf(z) == 0"),
    "places of none": doubled("dyn([])", "[z].indexOf('x') == 0"),
    "flat": doubled("dyn([1])", "z.flatten(100).size() == 0"),
    "flat and empty": doubled("dyn([])", "z.flatten(100).size() == 0"),
    "texts": doubled("dyn([1])", "'%s'.format([z]) == ''"),
    "texts of maps": doubled("dyn({'x': 1})", "'%s'.format([z]) == ''", node="dyn({{'a': {0}, 'b': {0}}})"),
    "distinct": doubled("dyn([1])", "[z, z].distinct().size() == 1"),
    "contains": doubled("dyn([1])", "sets.contains([z], [z])"),
    "equivalent": doubled("dyn([1])", "sets.equivalent([z], [z])"),
    "intersects": doubled("dyn([1])", "sets.intersects([z], [z])"),
    "union": doubled("dyn([1])", "size(self.set + [z, z]) == 2"),
}


@pytest.mark.parametrize("source", WALKS.values(), ids=WALKS)
def test_walk_over_what_is_nested_in_itself_ends_as_what_costs_too_much(source):
    with pytest.raises(cel.BudgetExceededError):
        run(source, {"set": [1]})


@pytest.mark.parametrize("levels", [25, 60])
def test_time_does_not_grow_with_the_depth(levels):
    with pytest.raises(cel.BudgetExceededError):
        run(doubled("dyn([1])", "z == z", levels=levels))


def test_budget_is_not_looked_at_only_when_all_is_done():
    """A traversal ends within a slice of what is left, not at the limit of a call."""
    budget = cel.Budget(3_000, clock=lambda: 0.0)
    with pytest.raises(cel.BudgetExceededError):
        run(doubled("dyn([1])", "z == z"), budget=budget)
    assert budget.used < 6_000


@pytest.mark.parametrize("source", ["[z].join() == ''", "optional.unwrap([dyn(optional.of(1)), z]).size() == 0"])
def test_error_does_not_show_all_that_is_nested(source):
    with pytest.raises(cel.EvaluationError) as caught:
        run(doubled("dyn([1])", source, levels=21))
    assert len(str(caught.value)) < 10_000


def nested(width: int, parts: int) -> list:
    """`parts` lists of `width` numbers, as an object has them."""
    return [[at] * width for at in range(parts)]


def test_objects_of_some_thousand_parts_cost_what_a_cluster_counts():
    for source, cost in (("self.any == self.other", 45), ("self.any[0] in self.any", 303)):
        budget = cel.Budget(clock=lambda: 0.0)
        assert run(source, {"any": nested(9, 300), "other": nested(9, 300)}, budget=budget) is True
        assert budget.used <= cost, source


def test_long_list_costs_what_a_cluster_counts():
    budget = cel.Budget(clock=lambda: 0.0)
    value = list(range(100_000))
    assert run("self.any == self.other", {"any": value, "other": value[:]}, budget=budget) is True
    assert budget.used == 10_004


def test_large_objects_of_real_size_are_still_compared():
    value = {"any": {str(at): {"a": [1, 2, {"b": "c"}], "d": "e"} for at in range(15_000)}}
    value["other"] = {str(at): {"a": [1, 2, {"b": "c"}], "d": "e"} for at in range(15_000)}
    budget = cel.Budget(clock=lambda: 0.0)
    assert run("self.any == self.other", value, budget=budget) is True
    assert 50_000 < budget.used < 500_000


def looks(source, value) -> int:
    """How often a rule looks at the clock."""
    count = 0

    def clock() -> float:
        nonlocal count
        count += 1
        return 0.0

    run(source, value, budget=cel.Budget(clock=clock))
    return count


def test_objects_that_are_compared_in_one_go_bring_the_clock_nearer():
    """The interpreter itself compares them, and counts nothing; how large they are is not known either."""
    same = {"n": "x", "in": [1, 2]}
    value = {"many": [same] * 2_000, "old": {"n": "x", "in": [1, 2]}}
    value["others"] = [value["old"]] * 2_000
    assert looks("self.many == self.others", value) >= 2_000 // 64
    assert looks("self.many.all(o, o == self.old)", value) >= 2_000 // 16


def test_long_texts_within_lists_are_walked_too():
    value = {"s": "x" * 1_000_000 + "a", "t": "x" * 1_000_000 + "b"}
    many = "lists.range(2000).map(i, [dyn(self.{0})])"
    with pytest.raises(cel.BudgetExceededError):
        run(f"'%s'.format([{many.format('s')}]) == ''", value)
    with pytest.raises(cel.BudgetExceededError):
        run(f"[dyn(self.t)] in {many.format('s')}", value)


@pytest.mark.parametrize("function", ["sort()", "sortBy(x, x)", "max()", "min()"])
def test_long_texts_that_are_put_in_order_are_counted_before(function):
    value = {"s": "x" * 3_000_000 + "a", "t": "x" * 3_000_000 + "b"}
    with pytest.raises(cel.BudgetExceededError):
        run(
            f"lists.range(20000).map(i, i % 7 < 3 ? self.s : self.t).{function} == dyn(1)",
            value,
            budget=cel.Budget(clock=lambda: 0.0),
        )


def test_join_and_format_end_before_they_fill_the_memory():
    value = {"s": "x" * 1_000_000}
    with pytest.raises((cel.EvaluationError, cel.BudgetExceededError)):
        run("lists.range(200).map(i, self.s).join() == ''", value)
    with pytest.raises((cel.EvaluationError, cel.BudgetExceededError)):
        run(f"'{'%s' * 200}'.format(lists.range(200).map(i, self.s)) == ''", value)


def test_nested_values_are_equal_or_not_by_what_is_in_them():
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
        assert run(source) is answer, source
    assert values.type_name([]) == "list"
