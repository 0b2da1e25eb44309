"""The workflow server: sends Workflows to agents and stores the events that they report.

- server        builds the parts, opens the ports, and handles changes of Hardware and Workflows
- service       the gRPC services: commands, events, output of actions, health, reflection
- older/        the services of Tinkerbell's older agents, translated
- callers       admits or rejects the caller of each call, and stores reported events
- streams       the command streams of connected agents, and what it means when an agent has none
- decision      the next command of an agent (pure)
- events        writes claims and agents' events into the status of Workflows
- workflows     the Workflows of each machine in creation order, and their protobuf messages
- auth, tls     agent ids, tokens, certificates, and which Hardware an agent may act for
- connections/  limits on connections and calls
- peer          the address and the metadata of a call
- activity      the callback that reports what agents do
- settings      the operator's settings, and gRPC's own limits
"""

from tink.server.activity import ActivityKind, AgentActivity
from tink.server.auth import DEFAULT_LIFETIME_SECONDS, AgentAuth, OlderAgentAuth, TokenKeys, TokenSettings
from tink.server.server import WorkflowServer
from tink.server.settings import ServerSettings
from tink.server.tls import Certificates, TlsError, TlsFiles, authority_of, endings, what_ends, why_unusable

__all__ = [
    "DEFAULT_LIFETIME_SECONDS", "ActivityKind", "AgentActivity", "AgentAuth", "Certificates", "OlderAgentAuth",
    "ServerSettings", "TlsError", "TlsFiles", "TokenKeys", "TokenSettings", "WorkflowServer", "authority_of", "endings",
    "what_ends", "why_unusable",
]  # fmt: skip
