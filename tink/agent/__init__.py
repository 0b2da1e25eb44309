"""The agent: runs inside the OSIE, receives workflows from the server and runs their actions.

The way of a workflow: `connection` receives and translates it, `executor` decides what to do, and `agent` does it with
one of the `runtimes` and the `images` that the action needs. Events go back through the spool (`journal`) and
`connection`. `journal` stores all of it on disk, so that an agent that was killed continues; `output` handles what
actions print. `settings` configures all of that. `inventory` describes the machine to the server.

Small on purpose: it only imports the standard library, gRPC and protobuf, because every OSIE contains it and it starts
on slow machines.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from tink.agent.model import AgentError
from tink.agent.settings import AgentSettings, from_kernel_command_line

if TYPE_CHECKING:
    from tink.agent.agent import run
    from tink.agent.inventory.collector import collect

_MODULE_OF: Final = {"collect": "inventory.collector", "run": "agent"}
"""Names that are imported at their first use: `tinkedge agent --print-inventory` needs no gRPC."""

__all__ = ["AgentError", "AgentSettings", "collect", "from_kernel_command_line", "run"]


def __getattr__(name: str) -> object:
    """Import an exported name when it is first used."""
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
