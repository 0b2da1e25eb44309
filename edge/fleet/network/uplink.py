"""A namespace for machines that reach a site by an interface of this host: a macvlan on it, and no more changes."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from edge.building.shell import run
from edge.lab.namespaces import NAMESPACES, remove_abandoned

PREFIX: Final = "tinkedge-fleet-"


async def uplink(stack: AsyncExitStack, interface: str, address: str) -> Path:
    """The namespace; an interface of the same name in it has `address` (with a prefix length). Raises CommandError."""
    await remove_abandoned(PREFIX)
    name = f"{PREFIX}{os.getpid()}-machines"
    await run(["ip", "netns", "add", name])
    stack.push_async_callback(run, ["ip", "netns", "delete", name])
    await run(["ip", "-n", name, "link", "set", "lo", "up"])
    temporary = f"fleet{os.getpid() % 100_000}"
    await run(["ip", "link", "add", temporary, "link", interface, "type", "macvlan", "mode", "bridge"])
    try:
        await run(["ip", "link", "set", temporary, "netns", name, "name", interface])
    except BaseException:
        await run(["ip", "link", "delete", temporary])
        raise
    await run(["ip", "-n", name, "address", "add", address, "dev", interface])
    await run(["ip", "-n", name, "link", "set", interface, "up"])
    return NAMESPACES / name
