"""The metadata of the calls in `workflow.proto` between our agent and our server.

The messages stay what the proposal has. An agent that sends none of this is served all the same, where the server does
not demand a token; a server that knows none of it ignores it.
"""

from __future__ import annotations

from typing import Final

WORKFLOW: Final = "tinkedge-workflow"
"""With GetWorkflows, once for each Workflow (uid) that the agent runs, or of which it has events that no server has
acknowledged yet. Once with an empty value: there is none. Missing: the agent does not say."""

AUTHORIZATION: Final = "authorization"
"""With every call, `Bearer TOKEN`: the token from the machine's iPXE script."""

TOKEN: Final = "tinkedge-token"  # noqa: S105 - the name, not one
"""With the server's initial metadata of GetWorkflows: a new token, which the agent shows from then on. The server ends
a stream in time for the next one."""

STOPPING: Final = "the server is stopping"
"""With the status UNAVAILABLE of a stream: the server goes in order, and another one, or the next, takes over."""
