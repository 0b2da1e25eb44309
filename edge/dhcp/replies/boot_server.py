"""Port 4011: a PXE client that has its address asks a boot server for its boot file only (PXE 2.1 section 2.2.3).

EDK2 does so after an offer that calls itself PXEClient's and has no boot file or menu (PxeBcRetryBinlOffer), iPXE after
a ProxyDHCP offer without a boot file (dhcp_proxy_tx). EDK2 asks from port 4011, iPXE from 68, and each expects the
answer where it asked from. The reply has no address and no network, for the client has both.
"""

from __future__ import annotations

from edge.dhcp.boot import Client, Verdict
from edge.dhcp.datagram import Received, Reply
from edge.dhcp.replies.assembly import TooSmallError, assemble
from edge.dhcp.reports import Reports
from edge.dhcp.wire import Message, MessageType, options
from edge.dhcp.wire.relay_agent import relay_agent_of

_NO_ANSWER = "answer as PXE boot server"


def boot_server_reply(
    reports: Reports,
    mac: str,
    message: Message,
    received: Received,
    client: Client,
    verdict: Verdict,
    server_id: bytes,
) -> Reply | None:
    """The ACK to a REQUEST on port 4011, or None where there is nothing to tell the client or nobody to tell it to."""
    if not options.is_host(received.source):
        return None
    if not verdict.boot.options:
        reports.refused(mac, _NO_ANSWER, verdict.refusal)
        return None
    try:
        payload = assemble(
            message,
            MessageType.ACK,
            server_id,
            verdict.boot,
            ciaddr=message.ciaddr,
            relay=relay_agent_of(message).echo,
        )
    except TooSmallError as error:
        reports.refused(mac, _NO_ANSWER, str(error))
        return None
    reports.sent(mac, "PXE boot server ACK", client, verdict)
    return Reply(payload, received.source, received.source_port)
