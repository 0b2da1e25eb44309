"""What is compiled of a machine's metadata, and kept while there is room: its tree, and a table of plain answers.

Trees are made when a machine first asks after its Hardware changed. Of an answer that stands in the table, everything
but the date is made once: `edge.http.transport.fast_path` sends it without a look at anything but the request's own
bytes. A line of the table is made when it is first asked for; there are only as many as there are paths.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiohttp import web

from edge.http.context import not_found, text
from edge.http.routes import spelled
from edge.http.transport.fast_path import Ready
from edge.machines import Inventory, Machine
from hegel.metadata import EC2_VERSIONS, MetadataTree, compile_tree

MAX_BYTES = 256 << 20
"""Of all that is kept. A machine whose crawl is under way takes some 10 kB, and its user-data as often as it asked."""

_OVERHEAD = 500
"""Bytes that a line of the table, or of the tree, takes besides its content."""

TEXT, JSON = "text/plain", "application/json"
NOCLOUD = " (NoCloud)"
"""What the journey adds to a document that was asked for in this way."""
_PROBED = ("2021-03-23", "2018-09-24", "2016-09-02")
"""Versions of the EC2 tree that cloud-init asks for first, and must not find."""


Note = Callable[[Machine, str, str, str], None]
"""`note(machine, document, how, client)`: a document was sent."""
Noted = Callable[[str, str], Callable[[str], None]]
"""`noted(document, how)`: what is called with the client's name when a document was sent."""


class Table(dict[bytes, Ready]):
    """Answers by target of the request line, in the spellings that clients use; `get` makes a line that is missing."""

    def __init__(
        self, tree: MetadataTree, name: str, own: frozenset[str], noted: Noted, grown: Callable[[int], None]
    ) -> None:
        """`own`: what the machine may call itself, its `name` and its MACs; `grown` hears of bytes that are taken."""
        super().__init__()
        self._tree = tree
        self._name = name
        self._own = own
        self._noted = noted
        self._grown = grown

    def get(self, target: bytes, default: Any = None, /) -> Any:
        """The answer to a plain request of `target`; `default` if it takes more than a look."""
        ready = super().get(target)
        if ready is None:
            ready = self._ready(target)
            if ready is None:
                return default
            self[target] = ready
            self._grown(len(ready.body) + _OVERHEAD)
        return ready

    def _ready(self, target: bytes) -> Ready | None:
        """Only what `edge.http.app` would answer with the same bytes, whatever else a plain request has in it."""
        tree = self._tree
        match target.decode("latin-1").split("/", 2):
            case ["", "metadata"]:
                return self._document(tree.legacy, "metadata", "", content_type=JSON)
            case ["", "nocloud", rest]:
                who, _, name = rest.partition("/")
                body = tree.nocloud.get(name) if who in self._own else None
                return self._document(body, name, NOCLOUD) if body is not None else None
            case ["", version, "meta-data/instance-id"] if version in _PROBED:
                return Ready.of(not_found())
            case ["", version, *rest] if version in EC2_VERSIONS:
                return self._ec2("".join(rest))
        return None

    def _ec2(self, path: str) -> Ready | None:
        path = path.removesuffix("/")
        body = self._tree.ec2.get(path)
        if body is not None:
            return self._document(body, path.rpartition("/")[2], "")
        if path in ("user-data", "vendor-data") and path not in self._tree.secrets:
            return Ready.of(not_to_keep(missing(self._name, path)))
        return None

    def _document(self, body: bytes, name: str, how: str, content_type: str = TEXT) -> Ready:
        return Ready.of(not_to_keep(document(body, content_type)), self._noted(name, how))


@dataclass(slots=True)
class Compiled:
    """Of one machine, as its Hardware was at that time. `size` in bytes, of both."""

    machine: Machine
    tree: MetadataTree
    table: Table
    size: int


class Shelf:
    """Compiled metadata by machine; where it is full, the oldest goes."""

    def __init__(self, inventory: Inventory, note: Note, room: int = MAX_BYTES) -> None:
        """`room` in bytes. `size_bytes` is what all that is kept takes."""
        self.inventory = inventory
        self._note = note
        self._room = room
        self._kept: dict[str, Compiled] = {}
        self.size_bytes = 0
        inventory.on_change(self._forget)

    def of(self, machine: Machine) -> Compiled:
        """What is compiled of `machine`; made now if it has to be."""
        kept = self._kept.get(machine.mac)
        # Two Hardware may claim one MAC by mistake; each is still known by its own address.
        if kept is not None and kept.machine is machine:
            return kept
        self._forget(machine.mac)
        tree = compile_tree(machine.hardware)
        own = {one.mac for one in self.inventory.by_name(machine.name, machine.namespace)}
        if spelled(machine.name) == machine.name:
            own.add(machine.name)

        def grown(size: int) -> None:
            if self._kept.get(machine.mac) is compiled:
                compiled.size += size
                self._take(size)

        def noted(name: str, how: str) -> Callable[[str], None]:
            return partial(self._note, machine, name, how)

        table = Table(tree, machine.name, frozenset(own), noted, grown)
        compiled = Compiled(machine, tree, table, _size(tree))
        self._kept[machine.mac] = compiled
        self._take(compiled.size)
        return compiled

    def _take(self, size: int) -> None:
        self.size_bytes += size
        while self.size_bytes > self._room and len(self._kept) > 1:
            self._forget(next(iter(self._kept)))

    def _forget(self, mac: str) -> None:
        old = self._kept.pop(mac, None)
        if old is not None:
            self.size_bytes -= old.size


def document(body: bytes, content_type: str) -> web.Response:
    """A document of a machine."""
    charset = "utf-8" if content_type == TEXT else None
    return web.Response(body=body, content_type=content_type, charset=charset)


def missing(name: str, path: str) -> web.Response:
    """For a machine that asks for what its Hardware, `name`, does not have."""
    return text(f"the Hardware {name} has no {path}", status=404)


def not_to_keep(response: web.Response) -> web.Response:
    """One path has another answer for each machine: a proxy in between must keep none of them."""
    response.headers["Cache-Control"] = "no-store"
    return response


def _size(tree: MetadataTree) -> int:
    bodies = [*tree.ec2.values(), *tree.nocloud.values(), tree.legacy]
    return sum(len(body) + _OVERHEAD // 3 for body in bodies)
