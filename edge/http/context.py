"""The context of the handlers of the machines' HTTP server, and the short answers that they share.

`edge.http.app` creates one `Context` for all handlers (scripts, OSIE, metadata).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from aiohttp import web

from edge.callers import Caller, RequestCallers, dotted
from edge.journey.events import Outcome, Recorder, Step, Value
from edge.machines import Inventory, NetbootPolicy, OsieFiles
from ipxe.binaries import BootBinaries
from tink.limits.once_per import OncePer
from tink.printable import printable

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Context:
    """The services that all handlers use.

    `clock` gives monotonic seconds. `ready` gives why the edge can't serve yet, or an empty string. `default_osie` is
    the namespace and name of the OSIE for machines without a Hardware, or None.
    """

    inventory: Inventory
    callers: RequestCallers
    policy: NetbootPolicy
    osie_files: OsieFiles
    default_osie: tuple[str, str] | None
    binaries: BootBinaries
    record: Recorder
    clock: Callable[[], float]
    ready: Callable[[], str]
    machine_lines: OncePer
    """The recent log lines about registered machines."""
    stranger_lines: OncePer
    """The recent log lines about strangers. Separate, so that strangers can't suppress the lines about machines."""

    def first(self, what: str, mac: str, *more: Hashable) -> bool:
        """Return True if this event of a registered machine is due for a log line now."""
        return self.machine_lines.due((what, mac, *more), self.clock(), owner=mac)

    def first_refusal(self, *key: Hashable) -> bool:
        """Return True if a refusal with this key is due for a log line now. A stranger may choose parts of the key."""
        return self.stranger_lines.due(key, self.clock())

    def refuse(self, status: int, body: str, *, seen: str, why: str) -> web.Response:
        """Return an error answer with `body`, and log `why`, once in a while for each sender."""
        if self.first_refusal("refused", seen, status):
            log.warning("%s: %d: %s", seen, status, why)
        return text(body, status=status)

    def refuse_caller(self, caller: Caller, what: str, *, status: int = 0, step: Step = Step.METADATA) -> web.Response:
        """Return the error for a caller that is not recognised as a machine, and asked for `what`.

        `status` 0 means the caller's own status. If the request comes from a machine's address, the refusal is recorded
        on that machine's journey, as `step`. If the caller's MAC belongs to a machine with another address, that
        machine's journey records that its address is wrong.
        """
        owner = caller.owner
        if owner is not None and self.first_refusal("address", owner.mac, caller.mac, step):
            message = f"{what} asked for from {caller.address} by {caller.mac}, which is no MAC of this machine"
            self.record(owner.mac, step, Outcome.REFUSED, message, **asked_by(caller))
        asker = self.inventory.by_mac(caller.mac) if caller.mac is not None else None
        reserved = asker.addresses if asker is not None else ()
        is_elsewhere = bool(reserved) and caller.address not in reserved
        if asker is not None and is_elsewhere and self.first("elsewhere", asker.mac, step):
            whose = (
                f"the address of Hardware {owner.namespace}/{owner.name}" if owner is not None else "not its address"
            )
            message = (
                f"{what} asked for from {caller.address}, which is {whose}: its Hardware says {' and '.join(reserved)}"
            )
            self.record(asker.mac, step, Outcome.FAILED, message, **asked_by(caller))
        return self.refuse(
            status or caller.status, caller.reason, seen=caller.address, why=f"{what} asked for {caller.why}"
        )


def asked_by(caller: Caller) -> dict[str, Value]:
    """Return the caller's address and MAC, as the detail of an event on another machine's journey."""
    detail: dict[str, Value] = {"from": caller.address}
    return detail if caller.mac is None else detail | {"from_mac": caller.mac}


def text(body: str, *, status: int = 200) -> web.Response:
    """Return an answer with a line of plain text."""
    return web.Response(text=body + "\n", status=status, content_type="text/plain")


def not_found() -> web.Response:
    """Return the answer for an unknown path."""
    return text("not found", status=404)


def for_people(request: web.Request, here: str, instead: str) -> web.Response:
    """Return the answer for an unknown path: people read where the page is, programs read `not found`.

    A browser is recognised by its Accept header, another client (curl) by the path `/`. `here` and `instead` are
    sentences, without HTML.
    """
    if "text/html" in request.headers.get("Accept", ""):
        html = f"<!doctype html><title>tinkedge</title><p>{here}<p>{instead}\n"
        headers = {"Content-Security-Policy": "default-src 'none'", "X-Content-Type-Options": "nosniff"}
        return web.Response(text=html, status=404, content_type="text/html", headers=headers)
    return text(f"not found: {here} {instead}", status=404) if request.rel_url.raw_path == "/" else not_found()


def not_allowed(methods: Sequence[str]) -> web.Response:
    """Return the answer to a request with the wrong method."""
    response = text(f"the method must be {' or '.join(methods)}", status=405)
    response.headers["Allow"] = ", ".join(methods)
    return response


def local_address(request: web.Request) -> str:
    """Return the edge's address on the connection; empty if the connection is closed already.

    The next URLs for the machine contain this address: the machine may be unable to reach the edge's other addresses.
    """
    name = request.protocol.sockname
    return dotted(str(name[0])) if isinstance(name, tuple) else ""


def client_name(request: web.Request) -> str:
    """Return the first word of the User-Agent for a log line, such as `Cloud-Init/22.4.2`."""
    return agent_name(request.headers.get("User-Agent", ""))


def agent_name(user_agent: str) -> str:
    """Return the same from the header's value."""
    words = user_agent.split()
    word = words[0] if words else "an unnamed client"
    return printable(word, ascii_only=True)[:60]


def size_text(size: int) -> str:
    """Return a size as people write it: `850 B`, `14.2 kB`, `14.2 MB`."""
    if size < 1000:
        return f"{size} B"
    return f"{size / 1e3:.1f} kB" if size < 1e6 else f"{size / 1e6:.1f} MB"
