"""The operator's settings of the server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tink.server.auth import AgentAuth, OlderAgentAuth, TokenSettings
from tink.server.tls import TlsFiles


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of the server. All times are in seconds. Raises ValueError if they contradict each other."""

    agent_auth: AgentAuth = AgentAuth.ADDRESS
    older_agents: OlderAgentAuth = OlderAgentAuth.AUTO
    tokens: TokenSettings | None = None
    """Required for AgentAuth.TOKEN."""
    tls: TlsFiles | None = None
    """The server listens without encryption if None. AgentAuth.MTLS requires it, with an authority for clients."""
    tls_ca: Path | None = None
    """The authority that the edge gives to agents for verifying the server; the last certificate of `tls` if None."""
    calls: int = 50_000
    calls_per_address: int = 512
    """Maximum number of simultaneous calls, including command streams: in total, and for one address except
    loopback.
    """
    connections_per_address: int | None = None
    """Maximum number of connections of one address except loopback. None: 512, or a quarter of the file descriptors."""
    rejection_first: float = 5.0
    rejection_longest: float = 300.0
    """First and longest delay before a rejected Workflow is offered again."""
    reboot_grace: float = 30.0
    """Seconds without the agent after which a last action that reboots the machine counts as succeeded."""
    keepalive: float = 20.0
    """Seconds between pings of a silent agent; without an answer within half of that the connection is closed."""
    memory: int | None = None
    """Maximum memory of the server's process in bytes; None: the memory is not watched."""
    stop_grace: float = 2.0
    """Seconds that running calls may take when the server stops."""

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
