"""Which machines are shown, in which order: what stands in the page's URL, read and written. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import islice
from typing import Final
from urllib.parse import quote, urlencode

from edge.page.rows import Row
from edge.page.words import KIND_WORDS, RANKS, Kind

PAGE_ROWS: Final = 100
"""Machines on one page."""
PORTION: Final = 250
"""So many rows are looked at between two turns of the event loop."""
MAX_TEXT: Final = 100
SORTS: Final = ("attention", "name", "state", "since", "heard")
GROUPS: Final = ("state", "osie", "namespace")
"""Beside these, any label."""

_Key = tuple[object, ...]
_SORT_KEYS: Final[dict[str, Callable[[Row], _Key]]] = {
    "attention": lambda row: (RANKS[row.kind], row.order, row.mac),
    "name": lambda row: (row.order, row.mac),
    "state": lambda row: (-row.reached, row.order, row.mac),
    "since": lambda row: (-row.since, row.order, row.mac),
    "heard": lambda row: (-row.heard, row.order, row.mac),
}


@dataclass(frozen=True, slots=True)
class Query:
    """`text` is searched for, `within` one group alone is shown; `number` is that of the page, from 1."""

    text: str = ""
    kind: Kind | None = None
    sort: str = SORTS[0]
    group: str = ""
    within: str | None = None
    number: int = 1

    def with_(self, **changed: object) -> str:
        """The URL of the same page, with something changed; of its first part unless the number is what changes."""
        other = replace(self, **({"number": 1} | changed))  # type: ignore[arg-type]  # by those who write templates
        return other.url

    @property
    def url(self) -> str:
        """Relative to the site."""
        wanted = {
            "q": self.text,
            "show": self.kind.value if self.kind is not None else "",
            "sort": self.sort if self.sort != SORTS[0] else "",
            "group": self.group,
            "in": self.within,
            "page": str(self.number) if self.number > 1 else "",
        }
        text = urlencode([(name, value) for name, value in wanted.items() if value or (name == "in" and value == "")],
                         quote_via=quote)  # fmt: skip
        return f"/?{text}" if text else "/"


def read_query(given: Mapping[str, str]) -> Query:
    """What a URL asks for; what makes no sense is as if it were not there."""
    kind = next((kind for kind in Kind if kind.value == given.get("show")), None)
    sort = given.get("sort", "")
    group = given.get("group", "")[:MAX_TEXT].strip()
    number = given.get("page", "")
    return Query(
        text=given.get("q", "")[:MAX_TEXT].strip(),
        kind=kind,
        sort=sort if sort in SORTS else SORTS[0],
        group=group,
        within=given["in"][:MAX_TEXT] if group and "in" in given else None,
        number=max(1, int(number)) if number.isascii() and number.isdigit() and len(number) < 7 else 1,
    )


@dataclass(slots=True)
class Selection:
    """What a query finds. `counts` are of all machines that its text finds, whatever their kind; `groups` of those that
    are shown."""

    query: Query
    rows: list[tuple[str, Row]] = field(default_factory=list)
    """Of this page: the group of each, and the machine."""
    total: int = 0
    counts: Counter[Kind] = field(default_factory=Counter)
    groups: Counter[str] = field(default_factory=Counter)

    @property
    def pages(self) -> int:
        """How many there are."""
        return max(1, -(-self.total // PAGE_ROWS))

    @property
    def number(self) -> int:
        """Which of them this is: the last, where the query asks for a later one."""
        return min(self.query.number, self.pages)


def select(rows: Mapping[str, Row], query: Query, group_of: Callable[[Row], str]) -> Iterator[Selection]:
    """The selection, again and again: complete when the iterator ends. In between others have their turn."""
    found = Selection(query)
    wanted, key = query.text.lower(), _SORT_KEYS[query.sort]
    portions: list[list[tuple[str, _Key, Row]]] = []
    every = list(rows.values())
    for start in range(0, len(every), PORTION):
        portion = []
        for row in every[start : start + PORTION]:
            if wanted and wanted not in row.text:
                continue
            group = group_of(row) if query.group else ""
            if query.within is not None and group != query.within:
                continue
            found.counts[row.kind] += 1
            if query.kind is None or row.kind is query.kind:
                found.groups[group] += 1
                portion.append((group, key(row), row))
        portion.sort(key=_first_two)
        portions.append(portion)
        yield found
    found.total = sum(map(len, portions))
    ordered = merge(*portions, key=_first_two)
    first = (found.number - 1) * PAGE_ROWS
    while first > 0:
        skipped = sum(1 for _ in islice(ordered, min(first, PORTION)))
        if not skipped:
            break
        first -= skipped
        yield found
    found.rows = [(group, row) for group, _, row in islice(ordered, PAGE_ROWS)]
    yield found


def _first_two(item: tuple[str, _Key, Row]) -> tuple[bool, str, _Key]:
    return not item[0], item[0], item[1]  # those without come last


def group_words(query: Query, group: str) -> str:
    """A group, in words."""
    if query.group == "state":
        return next((words for kind, words in KIND_WORDS.items() if kind.value == group), group)
    if query.group == "osie":
        return group or "the default OSIE"
    if query.group == "namespace":
        return group or "no Hardware"
    return f"{query.group}={group}" if group else f"without the label {query.group}"
