"""The agent: runs inside the OSIE, receives workflows from the server and runs their actions.

The way of a workflow: `connection` receives and translates it, `executor` decides what to do, and `agent` does it with
one of the `runtimes` and the `images` that the action needs. Events go back through the spool (`journal`) and
`connection`. `journal` stores all of it on disk, so that an agent that was killed continues; `output` handles what
actions print. `settings` configures all of that.

Small on purpose: it only imports the standard library, gRPC and protobuf, because every OSIE contains it and it starts
on slow machines.
"""

from __future__ import annotations

from tink.agent.agent import run
from tink.agent.model import AgentError
from tink.agent.settings import AgentSettings, from_kernel_command_line

__all__ = ["AgentError", "AgentSettings", "from_kernel_command_line", "run"]
