"""The server: agents get their Workflows from it and report what became of them. What is imported here is its door.

server        puts the parts together, listens, and feeds them with what changes
service       the calls of agents, and what went wrong, in gRPC's words
older/        the calls of Tinkerbell's older agents, translated
callers       who calls; known and allowed, or refused in the operator's sight
reports       what agents report, whatever they speak
output        the call that takes what actions print
health        gRPC's own services: health and reflection
messages      between the messages of proto/workflow.proto and the state machine
dispatch/     which command an agent gets next; its stream; what its absence means
events        what becomes of Workflows, written into their status
workflows     the Workflows of each machine, in the order of their creation
agents/       who an agent is, and whether it may speak for a machine
connections/  what connections and calls of strangers may cost
peer          gRPC's names of who is at the other end
activity      what the floor above hears of agents
settings      what an operator may set
"""

from tink.server.activity import ActivityKind, AgentActivity
from tink.server.auth import DEFAULT_LIFETIME_SECONDS, AgentAuth, OlderAgentAuth, TokenKeys, TokenSettings
from tink.server.server import WorkflowServer
from tink.server.settings import ServerSettings
from tink.server.tls import Certificates, TlsError, TlsFiles, authority_of, endings, what_ends, why_unusable

__all__ = [
    "DEFAULT_LIFETIME_SECONDS",
    "ActivityKind",
    "AgentActivity",
    "AgentAuth",
    "Certificates",
    "OlderAgentAuth",
    "ServerSettings",
    "TlsError",
    "TlsFiles",
    "TokenKeys",
    "TokenSettings",
    "WorkflowServer",
    "authority_of",
    "endings",
    "what_ends",
    "why_unusable",
]
