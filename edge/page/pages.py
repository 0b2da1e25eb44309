"""The pages as HTML: whole ones, or the parts that have changed. The work is done in short turns of the event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from edge.page.live import TimeSlice
from edge.page.machine import Machines, MachineShown, WorkflowLookup
from edge.page.query import GROUPS, Query, Selection, group_words
from edge.page.rack import Rack
from edge.page.render import Templates
from edge.page.rows import Row
from edge.page.status import EdgeStatus, ExpectedShown, ExpectedStatus

_MACHINE_PARTS: Final = ("summary", "discovery", "power", "timeline", "workflow", "output", "manifest", "events")


@dataclass(eq=False)
class Pages:
    """Renders the rack, a machine, and the edge. `clock` gives seconds since the epoch."""

    rack: Rack
    status: EdgeStatus
    workflow: WorkflowLookup
    clock: Callable[[], float]
    expected: ExpectedStatus = field(default_factory=ExpectedStatus)

    def __post_init__(self) -> None:
        rack = self.rack
        self.machines = Machines(rack.journey, rack.inventory, rack.expectations, self.workflow, self.clock)
        self.templates = Templates()

    # --- the rack -------------------------------------------------------------------------------------------------

    async def rack_page(self, query: Query) -> str:
        """Return the page of the machines that a query finds."""
        await self.templates.compile()
        turns = TimeSlice()
        async with self.rack.looked_at():
            await self.rack.update()
            found = await self.rack.select(query, turns)
            groups = [*GROUPS, *await self.rack.labels()]
        await self.expected.update(turns)
        rows = [html async for _, html in self.rows(found, {}, turns)]
        live = "/live" + query.url[1:]
        return self._page(
            "rack.html", rows=rows, found=found, query=query, groups=groups, expected=self.missing(), live=live
        )

    async def rows(
        self, found: Selection, known: dict[str, object], turns: TimeSlice
    ) -> AsyncIterator[tuple[str, str]]:
        """Yield the ID and the HTML of each row that is not `known` yet in its present form."""
        now, before = self.clock(), None
        for group, row in found.rows:
            if found.query.group and group != before:
                before = group
                count = found.groups[group]
                identity = group_id(group)
                if known.get(identity) != count:
                    known[identity] = count
                    words = group_words(found.query, group)
                    yield identity, self.templates.part("rows.html", "group", identity, words, count,
                                                        found.query.with_(within=group))  # fmt: skip
            identity = row_id(row)
            if known.get(identity) != row:
                known[identity] = row
                yield identity, self.templates.part("rows.html", "row", identity, now, *_values(row))
            await turns.rest()

    def missing(self) -> str:
        """Return the part of the rack with the machines that are expected and have not come yet."""
        return self.templates.part("parts.html", "expected", self.expected.shown)

    def head(self) -> str:
        """Return the part of each page that shows if the edge can serve."""
        return self.templates.part("parts.html", "health", self.status.health())

    # --- one machine ----------------------------------------------------------------------------------------------

    async def machine_page(self, mac: str, number: int) -> str | None:
        """Return the page of a machine; None if the machine is unknown."""
        await self.templates.compile()
        shown = self.machines.shown(mac, number)
        if shown is None:
            return None
        parts = {name: html async for name, html in self.machine_parts(shown, TimeSlice())}
        return self._page("machine.html", shown=shown, parts=parts, live=f"/live/machine/{mac}?boot={shown.number}")

    async def machine_parts(self, shown: MachineShown, turns: TimeSlice) -> AsyncIterator[tuple[str, str]]:
        """Yield the name and the HTML of each part."""
        now = self.clock()
        for name in _MACHINE_PARTS:
            yield name, self.templates.part("machine_parts.html", name, shown, now)
            await turns.rest()

    # --- the edge -------------------------------------------------------------------------------------------------

    async def edge_page(self) -> str:
        """Return the page of the edge."""
        await self.templates.compile()
        await self.status.update(TimeSlice())
        return self._page("edge.html", status=self.edge_part(), live="/live/edge")

    def edge_part(self) -> str:
        """Return the part of that page that changes."""
        return self.templates.part("edge_parts.html", "status", self.status.shown())

    async def closed_page(self, why: str) -> str:
        """Return the page for a browser without a session."""
        await self.templates.compile()
        return self._page("closed.html", why=why, live="")

    async def entered_page(self) -> str:
        """Return the page for a browser that has just got a session."""
        await self.templates.compile()
        return self.templates.page("entered.html")

    async def not_found_page(self, mac: str) -> str:
        """Return the page for an unknown machine."""
        return self._page("unknown.html", mac=mac, live="")

    def _page(self, name: str, **values: Any) -> str:
        health = self.head() if name != "closed.html" else ""
        return self.templates.page(name, now=self.clock(), health=health, **values)


def _values(row: Row) -> tuple[object, ...]:
    """Return the values of a row in the order of the template's parameters."""
    return (
        row.kind.value,
        row.mac,
        row.name.rpartition("/")[2],
        row.ip,
        row.state,
        row.message,
        row.since,
        row.heard,
        row.first,
        row.awaited,
        row.until,
        row.wrong,
        row.reason,
        row.warning,
        row.osie,
        row.model,
        row.power,
    )


def row_id(row: Row) -> str:
    """Return the ID of the element that shows a row."""
    return "m" + row.mac.replace(":", "")


def group_id(group: str) -> str:
    """Return the ID of the element that shows a group: safe in an attribute, whatever the label has."""
    return "g" + group.encode().hex()


@dataclass(eq=False)
class RackSource:
    """The rack page of one browser."""

    pages: Pages
    query: Query
    _version: int = -1
    _known: dict[str, object] = field(default_factory=dict)
    _parts: dict[str, int] = field(default_factory=dict)
    _order: list[str] = field(default_factory=list)
    _shown: list[str] = field(default_factory=list)
    _expected: ExpectedShown = field(default_factory=ExpectedShown)

    async def news(self, turns: TimeSlice) -> dict[str, object]:
        """Return the parts that have changed (`edge.page.live.News`)."""
        pages, rack, part = self.pages, self.pages.rack, self.pages.templates.part
        news: dict[str, object] = {}
        parts = {"health": pages.head()}
        await rack.update(turns, self._shown)
        if rack.version != self._version:
            self._version = rack.version
            found = await rack.select(self.query, turns)
            rows = {identity: html async for identity, html in pages.rows(found, self._known, turns)}
            order = list(_order(found))
            self._shown = [row.mac for _, row in found.rows]
            for gone in self._known.keys() - set(order):
                del self._known[gone]
            if rows or order != self._order:
                self._order = order
                news["rows"] = {"order": order, "html": rows}
            parts["counts"] = part("parts.html", "counts", found, self.query)
            parts["pager"] = part("parts.html", "pager", found, self.query)
            parts["empty"] = part("parts.html", "empty", found)
        await pages.expected.update(turns)
        if pages.expected.shown != self._expected:
            self._expected = pages.expected.shown
            parts["expected"] = pages.missing()
        return news | _changed(parts, self._parts)


def _order(found: Selection) -> Iterator[str]:
    before = None
    for group, row in found.rows:
        if found.query.group and group != before:
            before = group
            yield group_id(group)
        yield row_id(row)


@dataclass(eq=False)
class MachineSource:
    """The page of one machine in one browser."""

    pages: Pages
    mac: str
    number: int
    _parts: dict[str, int] = field(default_factory=dict)
    _seen: object = None
    _drawn: float = 0.0

    async def news(self, turns: TimeSlice) -> dict[str, object]:
        """Return the parts that have changed (`edge.page.live.News`)."""
        pages = self.pages
        parts = {"health": pages.head()}
        seen, now = pages.machines.state(self.mac), pages.clock()
        if seen != self._seen or now - self._drawn >= 1.0:  # an open bar grows
            self._seen, self._drawn = seen, now
            shown = pages.machines.shown(self.mac, self.number)
            if shown is not None:
                parts |= {name: html async for name, html in pages.machine_parts(shown, turns)}
        return _changed(parts, self._parts)


@dataclass(eq=False)
class EdgeSource:
    """The page of the edge in one browser."""

    pages: Pages
    _parts: dict[str, int] = field(default_factory=dict)

    async def news(self, turns: TimeSlice) -> dict[str, object]:
        """Return the parts that have changed (`edge.page.live.News`)."""
        health = self.pages.head()
        await self.pages.status.update(turns)
        await turns.rest()
        return _changed({"health": health, "status": self.pages.edge_part()}, self._parts)


def _changed(parts: dict[str, str], known: dict[str, int]) -> dict[str, object]:
    """Return the parts that have changed, if any. Only a hash of each is kept."""
    changed = {name: html for name, html in parts.items() if known.get(name) != hash(html)}
    known |= {name: hash(html) for name, html in changed.items()}
    return {"parts": changed} if changed else {}
