"""The choice and the order of the machines on the page, as its URL has them. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import chain, islice
from operator import itemgetter
from typing import Final
from urllib.parse import quote, urlencode

from edge.page.rows import Packed, Row
from edge.page.words import KIND_WORDS, RANKS, RowKind

PAGE_ROWS: Final = 100  # machines on one page
PORTION: Final = 2000
SLOW_PORTION: Final = 500
"""Rows that are looked at between two turns of the event loop; fewer if each has to be unpacked."""
MAX_TEXT: Final = 100
SORTS: Final = ("attention", "name", "state", "since", "heard")
GROUPS: Final = ("state", "osie", "namespace")  # beside these, any label
GroupOf = Callable[[Row], str]
_MAC: Final = Row._fields.index("mac")

_RANK, _REACHED, _SINCE, _HEARD = (
    itemgetter(Row._fields.index(name)) for name in ("rank", "reached", "since", "heard")
)
_SORT_KEYS: Final[dict[str, tuple[Callable[[Packed], float], bool] | None]] = {
    "attention": (_RANK, False),
    "name": None,
    "state": (_REACHED, True),
    "since": (_SINCE, True),
    "heard": (_HEARD, True),
}
"""By what, and whether the greatest comes first; what is alike, and all else, is in the order of names."""


@dataclass(frozen=True, slots=True)
class Query:
    """Machines that contain `text`, of one `kind`, `within` one group (None: all); `number` is the page, from 1."""

    text: str = ""
    kind: RowKind | None = None
    sort: str = SORTS[0]
    group: str = ""
    within: str | None = None
    number: int = 1

    def with_(self, **changed: object) -> str:
        """Return the URL of the same page with changed fields; of its first part unless `number` is given."""
        return replace(self, **({"number": 1} | changed)).url  # type: ignore[arg-type]  # templates give the fields

    @property
    def url(self) -> str:
        """The URL, relative to the site."""
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
    """Return the query of a URL. Values that make no sense are ignored."""
    kind = next((kind for kind in RowKind if kind.value == given.get("show")), None)
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
    """The machines that a query finds. `counts` are of all kinds, `groups` of the machines of the query's kind."""

    query: Query
    rows: list[tuple[str, Row]] = field(default_factory=list)  # the machines of this page, each after its group
    total: int = 0
    counts: Counter[RowKind] = field(default_factory=Counter)
    groups: Counter[str] = field(default_factory=Counter)

    @property
    def pages(self) -> int:
        """The number of pages."""
        return max(1, -(-self.total // PAGE_ROWS))

    @property
    def number(self) -> int:
        """The number of this page: the last, if the query asks for a later one."""
        return min(self.query.number, self.pages)


def select(names: Sequence[str], rows: Mapping[str, Packed], query: Query, group_of: GroupOf) -> Iterator[Selection]:
    """Yield the selection after each portion of work; it is complete when the iterator ends.

    `names` are the MACs of `rows` in the order of names.
    """
    found, wanted = Selection(query), query.text.lower()
    ranks: Counter[int] = Counter()
    portions: list[list[Packed]] = []
    groups: dict[str, str] = {}
    by = _SORT_KEYS[query.sort]
    step = SLOW_PORTION if wanted or query.group else PORTION
    for start in range(0, len(names), step):
        portion = [rows[mac] for mac in names[start : start + step]]
        if wanted:
            portion = [packed for packed in portion if wanted in Row._make(packed).text]
        if query.group:
            groups |= {packed[_MAC]: group_of(Row._make(packed)) for packed in portion}
        if query.within is not None:
            portion = [packed for packed in portion if groups[packed[_MAC]] == query.within]
        ranks.update(map(_RANK, portion))
        if query.kind is not None:
            rank = RANKS[query.kind]
            portion = [packed for packed in portion if packed[0] == rank]
        if by is not None:
            portion.sort(key=by[0], reverse=by[1])
        if query.group:
            found.groups.update(groups[packed[_MAC]] for packed in portion)
            portion.sort(key=lambda packed: _group_key(groups[packed[_MAC]]))
        portions.append(portion)
        yield found
    found.counts = Counter({kind: ranks[rank] for kind, rank in RANKS.items() if ranks[rank]})
    found.total = sum(map(len, portions))
    ordered = _merged(portions, by, groups)
    left = (found.number - 1) * PAGE_ROWS
    while left > 0:
        deque(islice(ordered, min(left, SLOW_PORTION)), maxlen=0)
        left -= SLOW_PORTION
        yield found
    found.rows = [(groups.get(packed[_MAC], ""), Row._make(packed)) for packed in islice(ordered, PAGE_ROWS)]
    yield found


def _merged(
    portions: list[list[Packed]], by: tuple[Callable[[Packed], float], bool] | None, groups: Mapping[str, str]
) -> Iterator[Packed]:
    """Merge portions, which are sorted; the first has the first names."""
    key, sign = by[0] if by is not None else (lambda _packed: 0.0), -1 if by is not None and by[1] else 1
    if groups:
        return merge(*portions, key=lambda packed: (*_group_key(groups[packed[_MAC]]), sign * key(packed)))
    if by is None:
        return chain.from_iterable(portions)
    return merge(*portions, key=lambda packed: sign * key(packed))


def _group_key(group: str) -> tuple[bool, str]:
    return not group, group  # those without come last


def group_words(query: Query, group: str) -> str:
    """Return the words for a group."""
    match query.group:
        case "state":
            return next((words for kind, words in KIND_WORDS.items() if kind.value == group), group)
        case "osie":
            return group or "the default OSIE"
        case "namespace":
            return group or "no Hardware"
    return f"{query.group}={group}" if group else f"without the label {query.group}"
