"""The other DHCP servers of a segment, found by asking as a new UEFI machine would.

The DHCPDISCOVER comes from a random hardware address, so only a server that answers every client answers it. The offers
are not accepted; a server with a pool reserves one of its addresses for the usual minute.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random, SystemRandom
from typing import Any, Final

from edge.dhcp.wire import Message, MessageType, codec, options
from edge.doctor import extra
from edge.doctor.capture import conversation_of, listen
from edge.doctor.extra import DiagnoseError
from edge.doctor.findings import Finding, passed, problem
from edge.doctor.frames import Packet, parse
from edge.neighbour.host import Network

LISTEN_SECONDS = 3.0
_INTERVAL_SECONDS: Final = 1.0

_VENDOR_CLASS: Final = b"PXEClient:Arch:00007:UNDI:003016"
_PARAMETERS: Final = bytes((1, 3, 6, 15, 43, 51, 54, 60, 66, 67))


def check_other_servers(network: Network) -> Iterator[Finding]:
    """Report the DHCP servers on a network beside this host. Takes LISTEN_SECONDS."""
    name = f"other DHCP servers on {network.interface}"
    try:
        offers = find_servers(network.interface, LISTEN_SECONDS, SystemRandom())
    except DiagnoseError as error:
        yield problem(name, "not looked for", str(error))
        return
    others = [offer for offer in offers if offer.server != network.address]
    for offer in others:
        address = f"an address ({offer.address})" if offer.address else "no address"
        yield problem(
            name,
            f"{offer.server} ({offer.mac}) offers {address} and {offer.boot_file or 'nothing'} to boot",
            "machines take the first answer: stop it, or leave addresses to it with --dhcp-mode proxy",
        )
    if not others:
        yield passed(name, f"none answered within {LISTEN_SECONDS:g} s")


@dataclass(frozen=True, slots=True)
class Offer:
    """The offer of one server."""

    server: str  # its address
    mac: str  # the source of the frame: the server, or the relay in front of it
    address: str  # the offered address; empty if it offers none (proxyDHCP)
    boot_file: str  # the boot file and its server; empty if it offers none


def find_servers(interface: str, seconds: float, random: Random) -> list[Offer]:
    """Ask on `interface` for some seconds. Return the first offer of each server. Raises DiagnoseError."""
    scapy = extra.scapy_sockets()
    mac = bytes((random.randrange(256) & 0xFC | 0x02, *random.randbytes(5)))  # locally administered, unicast
    xid = random.randbytes(4)
    found: dict[tuple[str, str], Offer] = {}
    # Promiscuous: some servers send to the hardware address although they are asked to broadcast.
    sock = listen(scapy, interface, conversation_of(mac), promiscuous=True)
    started = threading.Event()

    def on_packet(packet: Any) -> None:
        offer = read_offer(packet.load, xid)
        if offer is not None:
            found.setdefault((offer.server, offer.mac), offer)

    sniffer = scapy.AsyncSniffer(opened_socket=sock, prn=on_packet, store=False, started_callback=started.set)
    try:
        sniffer.start()
        started.wait(_INTERVAL_SECONDS)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            _broadcast(scapy, interface, mac, discover(mac, xid))
            time.sleep(min(_INTERVAL_SECONDS, left))
        sniffer.stop()
    finally:
        sock.close()
    return sorted(found.values(), key=lambda offer: (offer.server, offer.mac))


def discover(mac: bytes, xid: bytes) -> bytes:
    """Build a DHCPDISCOVER as EDK2 sends it, to be answered by broadcast."""
    return codec.build(
        Message(
            op=codec.BOOTREQUEST, htype=codec.ETHERNET, hops=0, xid=xid, secs=0, flags=codec.BROADCAST_FLAG,
            ciaddr=codec.NO_ADDRESS, yiaddr=codec.NO_ADDRESS, siaddr=codec.NO_ADDRESS, giaddr=codec.NO_ADDRESS,
            chaddr=mac, sname=b"", file=b"",
            options={
                options.MESSAGE_TYPE: bytes((MessageType.DISCOVER,)),
                options.MAX_MESSAGE_SIZE: struct.pack("!H", 1472),
                options.PARAMETER_REQUEST_LIST: _PARAMETERS,
                options.CLIENT_UUID: bytes(11) + mac,
                options.CLIENT_ARCHITECTURE: struct.pack("!H", 7),
                options.VENDOR_CLASS: _VENDOR_CLASS,
            },
        )
    )  # fmt: skip


def _broadcast(scapy: Any, interface: str, mac: bytes, payload: bytes) -> None:
    frame = (
        scapy.Ether(src=mac.hex(":"), dst="ff:ff:ff:ff:ff:ff")
        / scapy.IP(src="0.0.0.0", dst="255.255.255.255")  # noqa: S104 - a client without an address
        / scapy.UDP(sport=68, dport=67)
        / scapy.Raw(payload)
    )
    try:
        scapy.sendp(frame, iface=interface, verbose=False)
    except OSError as error:
        raise DiagnoseError(f"can't send on {interface}: {error.strerror}") from error


def read_offer(frame: bytes, xid: bytes) -> Offer | None:
    """Return the offer in a frame, or None if the frame is not an offer for the transaction `xid`."""
    packet = parse(frame)
    if not isinstance(packet, Packet):
        return None
    try:
        message = codec.parse(packet.payload)
    except codec.ParseError:
        return None
    kind = message.options.get(options.MESSAGE_TYPE)
    if message.op != codec.BOOTREPLY or message.xid != xid or kind != bytes((MessageType.OFFER,)):
        return None
    server_id = message.options.get(options.SERVER_IDENTIFIER, b"")
    name = message.file or message.options.get(options.BOOTFILE_NAME, b"").rstrip(b"\0")
    boot_file = name.decode("ascii", "replace")
    from_server = f" from {options.dotted(message.siaddr)}" if boot_file and any(message.siaddr) else ""
    return Offer(
        server=options.dotted(server_id) if len(server_id) == 4 else packet.source,
        mac=frame[6:12].hex(":"),
        address=options.dotted(message.yiaddr) if any(message.yiaddr) else "",
        boot_file=boot_file + from_server,
    )
