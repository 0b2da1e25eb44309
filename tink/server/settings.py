"""What an operator may set of the server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tink.server.auth import AgentAuth, OlderAgentAuth, TokenSettings
from tink.server.tls import TlsFiles


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """All times in seconds. Raises ValueError when built with what does not fit together."""

    agent_auth: AgentAuth = AgentAuth.ADDRESS
    older_agents: OlderAgentAuth = OlderAgentAuth.AUTO
    tokens: TokenSettings | None = None
    """Needed for AgentAuth.TOKEN."""
    tls: TlsFiles | None = None
    """None: without encryption. AgentAuth.MTLS needs it, with an authority of the clients."""
    tls_ca: Path | None = None
    """What agents are told to trust the server by, by the edge. None: the last certificate of `tls`, if that is set."""
    calls: int = 50_000
    calls_per_address: int = 512
    """How many calls, command streams among them, are served at once: in all, and for one address but loopback."""
    connections_per_address: int | None = None
    """How many connections one address but loopback may have. None: 512, or a quarter of what there are files for."""
    rejection_first: float = 5.0
    rejection_longest: float = 300.0
    """How long a rejected Workflow is not offered again: the first time, and at most."""
    reboot_grace: float = 30.0
    """How long an agent may be gone before a last action that reboots its machine counts as succeeded."""
    keepalive: float = 20.0
    """How often a silent agent is asked whether it is there; one that does not answer for half as long is gone."""
    memory: int | None = None
    """Maximum memory of the server's process in bytes; None: the memory is not watched."""
    stop_grace: float = 2.0
    """How long calls under way may take to end when the server stops."""

    def __post_init__(self) -> None:
        for name in ("rejection_first", "rejection_longest", "reboot_grace", "keepalive", "stop_grace"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be a number of seconds above 0, not {getattr(self, name)}")
        for name in ("calls", "calls_per_address", "connections_per_address"):
            given = getattr(self, name)
            if given is not None and given < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.agent_auth is AgentAuth.TOKEN and self.tokens is None:
            raise ValueError("agent auth by token needs --agent-token-key")
        if self.agent_auth is AgentAuth.MTLS and (self.tls is None or self.tls.client_ca is None):
            raise ValueError("agent auth by mtls needs --grpc-tls-cert, --grpc-tls-key and --grpc-client-ca")
