"""The fast path of metadata: the responses to plain requests, prepared for the machine at a connection's address.

Of a prepared response everything but the date is made once, when it is first asked for;
`edge.http.transport.fast_path` sends it without a look at anything but the request's own bytes. What is here must equal
what `edge.http.metadata.full` answers, byte for byte; without it (`--no-fast-path`) everything is answered there.
Beside it stands what other rooms answer the machine without being asked in full (`live`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from edge.callers import NEIGHBOUR_SECONDS, RequestCallers
from edge.http.context import not_found
from edge.http.metadata.compiled import OVERHEAD_BYTES, Compiled, MetadataCache
from edge.http.metadata.responses import JSON, NOCLOUD, TEXT, document, missing, not_to_keep
from edge.http.routes import spelled
from edge.http.transport.fast_path import LiveResponse, PreparedResponse, Responses
from edge.machines import Inventory, Machine
from hegel.metadata import EC2_VERSIONS

_PROBED = ("2021-03-23", "2018-09-24", "2016-09-02")
"""Versions of the EC2 tree that cloud-init asks for first, and must not find."""

Sent = Callable[[Machine, str, str, str], None]
"""`sent(machine, document, how, client)`: a document was sent."""

Live = Callable[[Machine], Mapping[bytes, LiveResponse]]
"""`live(machine)`: what is made for each of its requests, by target; asked for anew after a change of its Hardware."""


class FastPath:
    """Prepared responses by address and target."""

    def __init__(
        self,
        inventory: Inventory,
        callers: RequestCallers,
        cache: MetadataCache,
        sent: Sent,
        live: Live,
        clock: Callable[[], float],
    ) -> None:
        """`clock` gives monotonic seconds."""
        self._inventory = inventory
        self._callers = callers
        self._cache = cache
        self._sent = sent
        self._live = live
        self._clock = clock
        self._by_address: dict[str, Responses] = {}  # of those that have asked in this second
        self._until = 0.0

    def responses(self, address: str) -> Responses | None:
        """What plain requests on a connection from `address` get, by target; None: each request has to be looked at."""
        now = self._clock()
        if now >= self._until:
            self._by_address.clear()
            self._until = now + NEIGHBOUR_SECONDS
        found = self._by_address.get(address)
        if found is None:
            machine = self._callers.machine_at(address)
            if machine is None:
                return None
            found = self._by_address[address] = self.of(machine)
        return found

    def forget_callers(self) -> None:
        """Somebody may be at another address than a moment ago, or another machine."""
        self._by_address.clear()

    def of(self, machine: Machine) -> Responses:
        """What plain requests of `machine` get."""
        compiled = self._cache.of(machine)
        if compiled.responses is None:
            own = {one.mac for one in self._inventory.by_name(machine.name, machine.namespace)}
            if spelled(machine.name) == machine.name:
                own.add(machine.name)
            compiled.responses = _Responses(compiled, frozenset(own), self._sent, self._cache.grow)
            live = self._live(machine)
            compiled.responses.update(live)
            self._cache.grow(compiled, len(live) * OVERHEAD_BYTES)
        return compiled.responses


class _Responses(dict[bytes, PreparedResponse | LiveResponse]):
    """By target of the request line, in the spellings that clients use; `get` prepares one that is missing."""

    def __init__(
        self, compiled: Compiled, own: frozenset[str], sent: Sent, grow: Callable[[Compiled, int], None]
    ) -> None:
        """`own`: what the machine may call itself, its name and its MACs."""
        super().__init__()
        self._compiled = compiled
        self._own = own
        self._sent = sent
        self._grow = grow

    def get(self, target: bytes, default: Any = None, /) -> Any:
        """The response to a plain request of `target`; `default` if it takes more than a look."""
        response = super().get(target)
        if response is None:
            response = self._prepare(target)
            if response is None:
                return default
            self[target] = response
            self._grow(self._compiled, len(response.body) + OVERHEAD_BYTES)
        return response

    def _prepare(self, target: bytes) -> PreparedResponse | None:
        """Only what the full path would answer with the same bytes, whatever else a plain request has in it."""
        tree = self._compiled.tree
        match target.decode("latin-1").split("/", 2):
            case ["", "metadata"]:
                return self._document(tree.legacy, "metadata", "", content_type=JSON)
            case ["", "nocloud", rest]:
                who, _, name = rest.partition("/")
                body = tree.nocloud.get(name) if who in self._own else None
                return self._document(body, name, NOCLOUD) if body is not None else None
            case ["", version, "meta-data/instance-id"] if version in _PROBED:
                return PreparedResponse.of(not_found())
            case ["", version, *rest] if version in EC2_VERSIONS:
                return self._ec2("".join(rest).removesuffix("/"))
        return None

    def _ec2(self, path: str) -> PreparedResponse | None:
        tree = self._compiled.tree
        body = tree.ec2.get(path)
        if body is not None:
            return self._document(body, path.rpartition("/")[2], "")
        if path in ("user-data", "vendor-data") and path not in tree.secrets:
            return PreparedResponse.of(not_to_keep(missing(self._compiled.machine.name, path)))
        return None

    def _document(self, body: bytes, name: str, how: str, content_type: str = TEXT) -> PreparedResponse:
        sent = partial(self._sent, self._compiled.machine, name, how)
        return PreparedResponse.of(not_to_keep(document(body, content_type)), sent)
