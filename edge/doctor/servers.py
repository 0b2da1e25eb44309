"""Which DHCP servers answer on a segment: ask as a new UEFI machine would, and listen to all who offer.

The question comes from a hardware address that nobody has, so no server has a reason to answer but that it answers
everybody. The offers are not taken up; a server with a pool holds one of its addresses back for the usual minute.
"""

from __future__ import annotations

import struct
import threading
import time
from dataclasses import dataclass
from random import Random
from typing import Any

from edge.dhcp.wire import Message, MessageType, codec, options
from edge.doctor import extra, headers, selection
from edge.doctor.capture import listen
from edge.doctor.extra import DiagnoseError
from edge.doctor.headers import Packet

LISTEN_SECONDS = 3.0
_ASK_AGAIN_SECONDS = 1.0

_CLASS = b"PXEClient:Arch:00007:UNDI:003016"
_ASKED_FOR = bytes((1, 3, 6, 15, 43, 51, 54, 60, 66, 67))


@dataclass(frozen=True, slots=True)
class Offer:
    """What one server offered. `address` is "" where it only tells what to boot (proxyDHCP), `boots` "" where nothing.

    `mac` is that of the frame: the server's, or of the relay that it is behind.
    """

    server: str
    mac: str
    address: str
    boots: str


def find(interface: str, seconds: float, random: Random) -> list[Offer]:
    """Ask on `interface`, and give what was offered within `seconds`, each server once. Raises DiagnoseError."""
    scapy = extra.scapy_sockets()
    mac = bytes((random.randrange(256) & 0xFC | 0x02, *random.randbytes(5)))  # locally administered, one machine's
    xid = random.randbytes(4)
    found: dict[tuple[str, str], Offer] = {}
    # Some servers send to the hardware address although they are asked to broadcast.
    sock = listen(scapy, interface, selection.conversation_of(mac), promiscuous=True)
    started = threading.Event()

    def heard(packet: Any) -> None:
        offer = _read(packet.load, xid)
        if offer is not None:
            found.setdefault((offer.server, offer.mac), offer)

    sniffer = scapy.AsyncSniffer(opened_socket=sock, prn=heard, store=False, started_callback=started.set)
    try:
        sniffer.start()
        started.wait(_ASK_AGAIN_SECONDS)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            _send(scapy, interface, mac, discover(mac, xid))
            time.sleep(min(_ASK_AGAIN_SECONDS, left))
        sniffer.stop()
    finally:
        sock.close()
    return sorted(found.values(), key=lambda offer: (offer.server, offer.mac))


def discover(mac: bytes, xid: bytes) -> bytes:
    """A DHCPDISCOVER as EDK2 sends it, to be answered by broadcast."""
    return codec.build(
        Message(
            op=codec.BOOTREQUEST, htype=codec.ETHERNET, hops=0, xid=xid, secs=0, flags=codec.BROADCAST_FLAG,
            ciaddr=codec.NO_ADDRESS, yiaddr=codec.NO_ADDRESS, siaddr=codec.NO_ADDRESS, giaddr=codec.NO_ADDRESS,
            chaddr=mac, sname=b"", file=b"",
            options={
                options.MESSAGE_TYPE: bytes((MessageType.DISCOVER,)),
                options.MAX_MESSAGE_SIZE: struct.pack("!H", 1472),
                options.PARAMETER_REQUEST_LIST: _ASKED_FOR,
                options.CLIENT_UUID: bytes(11) + mac,
                options.CLIENT_ARCHITECTURE: struct.pack("!H", 7),
                options.VENDOR_CLASS: _CLASS,
            },
        )
    )  # fmt: skip


def _send(scapy: Any, interface: str, mac: bytes, payload: bytes) -> None:
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


def _read(frame: bytes, xid: bytes) -> Offer | None:
    """The offer in a frame; None if it holds something else."""
    packet = headers.parse(frame)
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
    server = options.dotted(server_id) if len(server_id) == 4 else packet.source
    name = message.file or message.options.get(options.BOOTFILE_NAME, b"").rstrip(b"\0")
    where = options.dotted(message.siaddr) if any(message.siaddr) else ""
    boots = name.decode("ascii", "replace")
    return Offer(
        server=server,
        mac=frame[6:12].hex(":"),
        address=options.dotted(message.yiaddr) if any(message.yiaddr) else "",
        boots=f"{boots} from {where}" if boots and where else boots,
    )
