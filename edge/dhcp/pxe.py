"""Port 4011: a PXE client that has its address asks a boot server for its boot file only (PXE 2.1 section 2.2.3).

EDK2 does so after an offer that calls itself PXEClient's and has no boot file or menu (PxeBcRetryBinlOffer), iPXE after
a ProxyDHCP offer without a boot file (dhcp_proxy_tx). EDK2 asks from port 4011, iPXE from 68, and each expects the
answer where it asked from. The reply has no address and no network, for the client has both.
"""

from __future__ import annotations

from edge.dhcp import codec, options, relay
from edge.dhcp.assembly import Parts, TooSmallError, assemble, echo_identifier, echo_uuid, size_limit
from edge.dhcp.client import Client
from edge.dhcp.codec import Message, MessageType
from edge.dhcp.datagram import Received, Reply
from edge.dhcp.netboot import Verdict
from edge.dhcp.reports import Reports


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
    if not options.is_ipv4(received.source) or not options.is_host_address(options.ipv4(received.source)):
        return None
    boot = verdict.boot
    if not boot.options:
        reports.refused(mac, "answer as PXE boot server", verdict.refusal)
        return None
    head = codec.header(message, ciaddr=message.ciaddr, siaddr=boot.siaddr, sname=boot.sname, file=boot.file)
    parts = Parts(
        start=options.option(options.MESSAGE_TYPE, bytes((MessageType.ACK,)))
        + options.option(options.SERVER_IDENTIFIER, server_id),
        identifier=echo_identifier(message),
        uuid=echo_uuid(message),
        boot=boot,
        relay=relay.echo(message),
    )
    try:
        payload = assemble(head, parts, size_limit(message))
    except TooSmallError as error:
        reports.refused(mac, "answer as PXE boot server", str(error))
        return None
    reports.told(mac, "PXE boot server ACK", client, verdict)
    return Reply(payload, received.source, received.source_port)
