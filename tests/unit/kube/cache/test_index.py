"""Which keys have a value: right whatever was noted before, and nothing is left of what is gone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tink.kube.cache import Index


@given(st.lists(st.tuples(st.integers(0, 3), st.sets(st.integers(0, 4)))))
def test_every_value_has_the_keys_that_have_it_now_and_no_others(steps: list[tuple[int, set[int]]]) -> None:
    index: Index[int, int] = Index()
    now: dict[int, set[int]] = {}
    for key, values in steps:
        assert index.set(key, values) == now.get(key, set()) - values
        now[key] = values
        for value in range(5):
            assert set(index.keys(value)) == {key for key, values in now.items() if value in values}
    assert len(index) == sum(1 for values in now.values() if values)
    for key in now:
        index.set(key, ())
    assert (index._keys, index._values) == ({}, {})


def test_who_has_a_value_for_longest_comes_first() -> None:
    index: Index[str, str] = Index()
    for key in ("b", "a", "c"):
        index.set(key, ["v"])
    index.set("b", ["v", "w"])
    assert list(index.keys("v")) == ["b", "a", "c"]
