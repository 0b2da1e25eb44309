"""The edge that runs here, as its operators' port tells of it, and whether the kernel agrees."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final

from edge.admin_token import AdminTokenError, read, token_file
from edge.doctor.checks.findings import Finding, note
from edge.neighbour.links import look

_PATIENCE_SECONDS: Final = 3.0
_MOST_BYTES: Final = 1 << 20


def running_edge(data_dir: Path, address: str = "127.0.0.1", port: int = 7081) -> Iterator[Finding]:
    """Whether it is ready, and with which addresses it serves. One that does not run is worth a note."""
    name = "running edge"
    try:
        status, text = _get(address, port, "/readyz")
    except (OSError, HTTPException) as error:
        why = getattr(error, "strerror", None) or str(error)
        yield note(name, f"none answers at {address} port {port} ({why})")
        return
    if status == 200:
        notes = text.strip().removeprefix("ok").removeprefix(": ")
        yield Finding(name, True, f"ready; {notes}" if notes else "ready")
    else:
        text = text.strip().removeprefix("not ready: ")
        yield Finding(name, False, f"not ready: {text}", "mend that: it goes on by itself then; its log says more")
    try:
        shown = _get(address, port, "/api/v1/networks", read(token_file(data_dir, None)))
    except (AdminTokenError, OSError, HTTPException) as error:
        yield note("running edge's networks", f"not asked for: {error}")
        return
    if shown[0] != 200:
        yield note("running edge's networks", f"not told: it answers {shown[0]}")
        return
    for network in json.loads(shown[1]):
        yield from _network(network)


def _network(network: dict[str, Any]) -> Iterator[Finding]:
    """Whether it serves with an address that is there."""
    interface, served = str(network["interface"]), str(network["address"])
    name = f"running edge's network {interface}"
    link = look(interface)
    if not served or network["problem"]:
        return  # /readyz has told
    if link is not None and not network["fixed"] and not link.has(served):
        has = ", ".join(str(one.ip) for one in link.addresses) or "none"
        yield Finding(name, False, f"it serves with {served}, and {interface} has {has}", "restart tinkedge")
    else:
        yield Finding(name, True, f"it serves with {served}")


def _get(address: str, port: int, path: str, token: str = "") -> tuple[int, str]:
    """Status and body. Raises OSError, HTTPException."""
    connection = HTTPConnection(address, port, timeout=_PATIENCE_SECONDS)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        return answer.status, answer.read(_MOST_BYTES).decode(errors="replace")
    finally:
        connection.close()
