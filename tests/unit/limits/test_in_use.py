"""What was learnt stays while it is used, and no more of it than was said."""

from __future__ import annotations

from dataclasses import dataclass

from tink.limits.in_use import InUse


@dataclass
class _Entry:
    name: str
    used: bool = False


def test_oldest_of_a_key_goes_when_its_list_is_full() -> None:
    known: InUse[str, _Entry] = InUse(100, 2)
    for name in "abc":
        known.add("x", _Entry(name))
    known.add("y", _Entry("d"))
    assert [entry.name for entry in known.lists["x"]] == ["b", "c"]
    assert len(known) == 3


def test_what_was_not_used_goes_when_all_are_too_many() -> None:
    known: InUse[int, _Entry] = InUse(4, 2)
    for number in range(4):
        known.add(number, _Entry(str(number), used=number == 1))
    lists = known.lists
    known.add(4, _Entry("4"))
    assert list(lists) == [1]
    assert len(known) == 1
    for number in range(5, 9):  # it was not used since
        known.add(number, _Entry(str(number)))
    assert list(lists) == []
    assert len(known) == 0
