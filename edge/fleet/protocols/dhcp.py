"""The DHCP clients of a boot: their packets, their timeouts, and the answers that they accept. Pure.

One machine is several clients: its firmware, iPXE, the OSIE and the installed system. Their packets were recorded from
the real programs, and are equal byte for byte where a server looks. Their timeouts differ:

    firmware   4, 8, 16 and 32 s (PXE 2.1 section 2.2.2.2, EDK2's PxeBcDhcp4.c); EDK2 collects offers for 4 s
    iPXE       1, 2, 4 and 8 s (config/dhcp.h); without option 175.176 it waits for ProxyDHCP (net/udp/dhcp.c)
    Linux      4, 8, 16, 32 and 64 s, each up to a second more or less (RFC 2131 section 4.1)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from edge.dhcp.wire import Message, MessageType, codec, options
from tink.errors import TinkedgeError

_SERVERS_ASKED: Final = bytes(
    (1, 3, 6, 7, 12, 15, 17, 26, 43, 60, 66, 67, 119, 128, 129, 130, 131, 132, 133, 134, 135, 175, 203)
)
_EDK2_ASKED: Final = bytes((
    1, 2, 3, 4, 5, 6, 12, 13, 15, 17, 18, 22, 23, 28, 40, 41, 42, 43, 50, 51, 54, 58, 59, 60, 66, 67, 97,
    128, 129, 130, 131, 132, 133, 134, 135,
))  # fmt: skip
_LINUX_ASKED: Final = bytes((1, 3, 6, 12, 15, 26, 28, 42, 121))
_BOOT_MENU: Final = 9  # PXE 2.1 table 2-1
_LOCAL_BOOT: Final = bytes(2)  # boot server type 0
_FEATURES: Final = options.encapsulated(
    {
        177: b"\x01\x1a\xf4\x10\x00",
        235: b"\x01\x00\x00",
        options.IPXE_DNS: b"\x01",
        options.IPXE_HTTP: b"\x01",
        options.IPXE_MENU: b"\x01",
        options.IPXE_TFTP: b"\x01",
        options.IPXE_BZIMAGE: b"\x01",
    }
)[:-1]
"""iPXE's option 175, which has no END."""


@dataclass(frozen=True, slots=True)
class Client:
    """A DHCP client program.

    `waits`: seconds before each repetition, the last before giving up. `jitter`: maximum seconds by which a wait
    varies. `collects`: the client accepts no offer before the first wait is over.
    """

    name: str
    waits: tuple[float, ...]
    vendor_class: bytes = b""
    architecture: bytes = b""
    interface: bytes = b""
    asked: bytes = _LINUX_ASKED
    max_message_bytes: int = 1472
    user_class: bytes = b""
    features: bytes = b""
    client_id: bool = True
    sends_uuid: bool = False
    broadcast: bool = False
    jitter: float = 0.0
    collects: bool = False
    awaits_proxy: float = 0.0
    """Seconds for which the client waits for ProxyDHCP, unless the offer excludes it."""
    needs_file: bool = False
    needs_class: bytes = b""


_FIRMWARE_WAITS: Final = (4.0, 8.0, 16.0, 32.0)
_LINUX_WAITS: Final = (4.0, 8.0, 16.0, 32.0, 64.0)


class Clients(Enum):
    """The DHCP clients of a machine."""

    BIOS = Client(
        "PXE ROM", _FIRMWARE_WAITS, b"PXEClient:Arch:00000:UNDI:002001", b"\0\0", b"\1\2\1", _EDK2_ASKED, 1260,
        client_id=False, sends_uuid=True, broadcast=True, needs_file=True,
    )  # fmt: skip
    UEFI = Client(
        "UEFI PXE", _FIRMWARE_WAITS, b"PXEClient:Arch:00007:UNDI:003000", b"\0\7", b"\1\3\0", _EDK2_ASKED,
        client_id=False, sends_uuid=True, broadcast=True, collects=True, needs_file=True,
    )  # fmt: skip
    UEFI_HTTP = Client(
        "UEFI HTTP Boot", _FIRMWARE_WAITS, b"HTTPClient:Arch:00016:UNDI:003000", b"\0\x10", b"\1\3\0", _EDK2_ASKED,
        client_id=False, sends_uuid=True, broadcast=True, collects=True, needs_file=True, needs_class=b"HTTPClient",
    )  # fmt: skip
    IPXE_BIOS = Client(
        "iPXE", (1.0, 2.0, 4.0, 8.0), b"PXEClient:Arch:00000:UNDI:002001", b"\0\0", b"\1\2\1", _SERVERS_ASKED,
        user_class=b"iPXE", features=_FEATURES, sends_uuid=True, awaits_proxy=3.0,
    )  # fmt: skip
    IPXE_UEFI = Client(
        "iPXE", (1.0, 2.0, 4.0, 8.0), b"PXEClient:Arch:00007:UNDI:003010", b"\0\7", b"\1\3\x0a", _SERVERS_ASKED,
        user_class=b"iPXE", features=_FEATURES, sends_uuid=True, awaits_proxy=3.0,
    )  # fmt: skip
    OSIE = Client("OSIE", _LINUX_WAITS, b"udhcp 1.35.0", max_message_bytes=576, jitter=1.0)
    SYSTEM = Client("installed system", _LINUX_WAITS, max_message_bytes=1472, jitter=1.0)


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease. `server` is option 54; `next_server` and `file` name the boot program."""

    address: str
    server: str
    next_server: str
    file: str
    local_boot: bool
    """The answer is a boot menu with only "local boot": firmware tries the next boot device."""


class DhcpError(TinkedgeError):
    """The client rejects an answer."""


class NakError(DhcpError):
    """The server answered with DHCPNAK."""


class Conversation:
    """A client's conversation up to its lease: makes packets and takes answers. The caller has the clock.

    `receive` returns True when the conversation can go on: first `offer` is set, then `lease`.
    """

    __slots__ = ("_chaddr", "_client", "_giaddr", "_offer", "_requesting", "_uuid", "_xid", "lease")

    def __init__(
        self, client: Client, chaddr: bytes, uuid: bytes, xid: bytes, giaddr: bytes = codec.NO_ADDRESS
    ) -> None:
        """Start a conversation.

        `giaddr`: the relay's address, for packets as a relay sends them on (RFC 1542 section 4.1).
        """
        self._client = client
        self._chaddr = chaddr
        self._uuid = uuid
        self._xid = xid
        self._giaddr = giaddr
        self._offer: Message | None = None
        self._requesting = False
        self.lease: Lease | None = None

    @property
    def waits_for_proxy(self) -> float:
        """Seconds for which the client waits with this offer (iPXE, dhcp_discovery_rx)."""
        if self._offer is None or not self._client.awaits_proxy:
            return 0.0
        told = options.suboptions(self._offer.options.get(options.IPXE, b"")) or {}
        return 0.0 if told.get(options.IPXE_NO_PXEDHCP, b"\0") != b"\0" else self._client.awaits_proxy

    def take(self) -> None:
        """Accept the offer: the next packets are REQUESTs for it."""
        self._requesting = self._offer is not None

    def packet(self, seconds: float) -> bytes:
        """Return the packet to send: DISCOVER, or REQUEST for the offer. `seconds` since the first packet."""
        client = self._client
        kind = MessageType.REQUEST if self._requesting else MessageType.DISCOVER
        values = {options.MESSAGE_TYPE: bytes((kind,))}
        if self._requesting and self._offer is not None:
            values[options.SERVER_IDENTIFIER] = self._offer.options[options.SERVER_IDENTIFIER]
            values[options.REQUESTED_ADDRESS] = self._offer.yiaddr
        values[options.MAX_MESSAGE_SIZE] = client.max_message_bytes.to_bytes(2, "big")
        values[options.PARAMETER_REQUEST_LIST] = client.asked
        if client.sends_uuid:
            values[options.CLIENT_UUID] = b"\0" + self._uuid
        for code, value in (
            (options.CLIENT_ARCHITECTURE, client.architecture),
            (94, client.interface),  # RFC 4578 section 2.2
            (options.VENDOR_CLASS, client.vendor_class),
            (options.USER_CLASS, client.user_class),
            (options.IPXE, client.features),
        ):
            if value:
                values[code] = value
        if client.client_id:
            values[options.CLIENT_IDENTIFIER] = b"\x01" + self._chaddr
        relayed = any(self._giaddr)
        return codec.build(
            Message(
                codec.BOOTREQUEST, codec.ETHERNET, int(relayed), self._xid, min(int(seconds), 65535),
                codec.BROADCAST_FLAG if client.broadcast else 0, codec.NO_ADDRESS, codec.NO_ADDRESS, codec.NO_ADDRESS,
                self._giaddr, self._chaddr, b"", b"", values,
            )
        )  # fmt: skip

    def receive(self, payload: bytes) -> bool:
        """Process a packet; return True if the conversation can go on. Ignores wrong packets. Raises NakError."""
        try:
            message = codec.parse(payload)
        except codec.ParseError:
            return False
        if message.op != codec.BOOTREPLY or message.xid != self._xid or message.chaddr != self._chaddr:
            return False
        kind = message.options.get(options.MESSAGE_TYPE, b"\0")[0]
        if not self._requesting:
            return kind == MessageType.OFFER and self._take_offer(message)
        if (
            self._offer is None
            or message.options.get(options.SERVER_IDENTIFIER) != (self._offer.options[options.SERVER_IDENTIFIER])
        ):
            return False
        if kind == MessageType.NAK:
            said = message.options.get(options.MESSAGE, b"").decode("ascii", "replace")
            raise NakError(f"DHCPNAK{': ' + said if said else ''}")
        if kind != MessageType.ACK:
            return False
        self.lease = _lease(message)
        return True

    def _take_offer(self, message: Message) -> bool:
        client = self._client
        if self._offer is not None or not any(message.yiaddr):
            return False
        if len(message.options.get(options.SERVER_IDENTIFIER, b"")) != 4:
            return False
        if client.needs_class and not message.options.get(options.VENDOR_CLASS, b"").startswith(client.needs_class):
            return False
        found = _lease(message)
        if client.needs_file and not found.file and not found.local_boot:
            return False
        self._offer = message
        return True


def _lease(message: Message) -> Lease:
    found = message.options
    file = found.get(options.BOOTFILE_NAME, b"").partition(b"\0")[0] or message.file
    server = found.get(options.SERVER_IDENTIFIER, b"")
    menu = options.suboptions(found.get(options.VENDOR_SPECIFIC, b"")) or {}
    return Lease(
        address=options.dotted(message.yiaddr),
        server=options.dotted(server) if len(server) == 4 else "",
        next_server=options.dotted(message.siaddr) if any(message.siaddr) else "",
        file=file.decode("ascii", "replace"),
        local_boot=not file and menu.get(_BOOT_MENU, b"").startswith(_LOCAL_BOOT),
    )
