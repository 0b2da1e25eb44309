"""What an operator may set of the server."""

from __future__ import annotations

from dataclasses import dataclass

from tink.server.agents import AgentAuth


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """All times in seconds."""

    agent_auth: AgentAuth = AgentAuth.ADDRESS
    rejection_first: float = 5.0
    rejection_longest: float = 300.0
    """How long a rejected Workflow is not offered again: the first time, and at most."""
    keepalive: float = 20.0
    """How often a silent agent is asked whether it is there; one that does not answer for half as long is gone."""
    stop_grace: float = 2.0
    """How long calls under way may take to end when the server stops."""

    def __post_init__(self) -> None:
        for name in ("rejection_first", "rejection_longest", "keepalive", "stop_grace"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be a number of seconds above 0, not {getattr(self, name)}")
