"""The agent: runs inside the OSIE, takes workflows from the server and runs their actions.

The way of a workflow: `connection` receives and translates it, `executor` decides what to do, `agent` does it with one
of the `runtimes` and the `images` that it needs, and events go back through the spool and `connection`. `journal` keeps
all of it on disk, so that an agent that was killed goes on; `output` has what actions print. `settings` says where all
that is configured.

Light on purpose: the standard library, gRPC and protobuf only, because it is packed into every OSIE and starts on slow
machines.
"""

from __future__ import annotations

from tink.agent.agent import run
from tink.agent.model import AgentError
from tink.agent.settings import AgentSettings, from_kernel_command_line

__all__ = ["AgentError", "AgentSettings", "from_kernel_command_line", "run"]
