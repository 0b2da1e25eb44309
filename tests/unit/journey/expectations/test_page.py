"""docs/faults.md, where operators look for what they read, has what is said of each fault that is played."""

from __future__ import annotations

import re

from tests.interop.faults import boots, page, work
from tests.interop.faults.fault import Fault

FAULTS: list[Fault] = [*boots.FAULTS, *work.FAULTS]


def test_page_has_what_is_said_of_each_fault_and_of_no_other() -> None:
    said = page.said()
    assert list(said) == [fault.name for fault in FAULTS], "write it anew: TINKEDGE_RECORD=1, tests/interop/faults"
    for fault in FAULTS:
        reason, _, sentence = said[fault.name].partition(": ")
        assert re.fullmatch(fault.rules, reason.strip("`")), fault.name
        assert re.search(page.expected(fault), sentence), fault.name
