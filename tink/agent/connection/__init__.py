"""The server, as the agent reaches it: the gRPC `channel`, the calls over it (`transport`), their messages (`wire`)."""

from __future__ import annotations

from tink.agent.connection.channel import connect, registry_authorities
from tink.agent.connection.transport import Transport

__all__ = ["Transport", "connect", "registry_authorities"]
