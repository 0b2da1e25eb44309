"""The other edges of a site: they answer for the same machines, and share what they have fetched. docs/cluster.md.

signatures                who speaks: HMAC with the key that all edges of a site have
messages, membership      what is said; which edges there are, and who decides about what (pure, as claims is)
claims                    who fetches what nobody has
calls, caches             asking others; files from their caches
upstream_edge             the one that fetches for this one, and what this one fetches for others
leases                    how edges of a cluster find each other
publisher, receiver       what machines do, sent to all edges and taken from them; server: by one that is no edge
site                      all of that, put together; `edge.http.peers` is where others ask
"""

from edge.peers.calls import CallError
from edge.peers.leases import EdgeLeases
from edge.peers.messages import MAX_BATCH_BYTES, MAX_MESSAGE_BYTES, MessageError
from edge.peers.metrics import event_batch_metrics, peer_metrics
from edge.peers.server import ServerReports
from edge.peers.signatures import HEADER, Refusal, Request, StrangerError, VerifiedRequest
from edge.peers.site import Peers
from edge.peers.upstream_edge import probe

__all__ = [
    "HEADER",
    "MAX_BATCH_BYTES",
    "MAX_MESSAGE_BYTES",
    "CallError",
    "EdgeLeases",
    "MessageError",
    "Peers",
    "Refusal",
    "Request",
    "ServerReports",
    "StrangerError",
    "VerifiedRequest",
    "event_batch_metrics",
    "peer_metrics",
    "probe",
]
