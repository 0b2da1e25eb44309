"""The clients of firmware, re-implemented from their sources and from nothing of ours: what they accept and boot.

    Edk2Pxe     NetworkPkg/UefiPxeBcDxe/PxeBcDhcp4.c, PxeBcBoot.c; Dhcp4Dxe/Dhcp4Option.c
    Edk2Http    NetworkPkg/HttpBootDxe/HttpBootDhcp4.c
    Ipxe        src/net/udp/dhcp.c, dhcppkt.c; src/usr/autoboot.c
    Pi          what the ROM of a Raspberry Pi looks for

They read only the first instance of an option, write a NUL where they need one, and prefer offers as the firmware does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import urlsplit

from tests.unit.dhcp.firmware.packets import ACK, OFFER, Packet, ip, options_of


class RejectedError(Exception):
    """The client does not boot; says why."""


@dataclass(frozen=True)
class Booted:
    """What the client does next: `file` from `server` (PXE), a URL (`file` alone), or "local boot"."""

    file: str
    server: str = ""
    seconds_lost: int = 0


LOCAL_BOOT = "local boot"


class Edk2:
    """Dhcp4Dxe: what any of EDK2's DHCP clients throws away before it looks (DhcpInput, DhcpValidateOptions)."""

    MAX_PACKET = 1472
    SIZES: ClassVar = {1: 4, 3: 4, 6: 4, 28: 4, 42: 4, 50: 4, 51: 4, 52: 1, 53: 1, 54: 4, 57: 2, 58: 4, 59: 4}
    ONE_ONLY = (1, 28, 50, 51, 52, 53, 54, 57, 58, 59)
    NOT_EMPTY = (12, 15, 43, 60, 61, 66, 67)

    def __init__(self, asked: Packet) -> None:
        self.asked = asked
        self.offers: list[bytearray] = []

    def hear(self, payload: bytes) -> None:
        """Take in an offer."""
        if len(payload) > self.MAX_PACKET:
            raise RejectedError(f"{len(payload)} bytes are more than the {self.MAX_PACKET} it takes")
        self.check(payload)
        options = options_of(payload)
        if options.get(53) != bytes((OFFER,)) or not any(options.get(54, b"")):
            raise RejectedError("no offer with a server identifier")
        self.offers.append(bytearray(payload))

    def check(self, payload: bytes) -> None:
        if payload[0] != 2 or payload[4:8] != self.asked.payload[4:8] or payload[28:34] != self.asked.payload[28:34]:
            raise RejectedError("not the answer to what it asked")
        at = 240
        while payload[at] != 255:  # IndexError: no END, which EDK2 rejects too
            if payload[at] == 0:
                at += 1
                continue
            code, length = payload[at], payload[at + 1]
            unit = self.SIZES.get(code, 1)
            if length % unit or (code in self.ONE_ONLY and length != unit) or (code in self.SIZES and not length):
                raise RejectedError(f"option {code} has {length} bytes")
            if code in self.NOT_EMPTY and not length:
                raise RejectedError(f"option {code} is empty")
            at += 2 + length

    @staticmethod
    def boot_file(packet: bytearray) -> bytes | None:
        """The C string of the boot file; writes a NUL behind option 67 where it has none (PxeBcParseDhcp4Packet)."""
        at = 240
        while at < len(packet) and packet[at] != 255:
            if packet[at] == 0:
                at += 1
                continue
            end = at + 2 + packet[at + 1]
            if packet[at] == 67:
                if packet[end - 1] != 0:
                    packet[end] = 0
                return bytes(packet[at + 2 :]).partition(b"\0")[0]
            at = end
        return bytes(packet[108:236]).partition(b"\0")[0] or None

    def confirm(self, offer: bytes, ack: bytes) -> None:
        """The ACK to its REQUEST (DhcpHandleRequest)."""
        self.check(ack)
        options = options_of(ack)
        if options.get(53) != bytes((ACK,)) or options.get(54) != options_of(offer).get(54):
            raise RejectedError("no ACK of the server that it chose")
        if ack[16:20] != offer[16:20]:
            raise RejectedError("the ACK has another address than the offer")


class Edk2Pxe(Edk2):
    """PxeBcCacheDhcp4Offer, PxeBcSelectDhcp4Offer, PxeBcHandleDhcp4Offer, PxeBcDiscoverBootFile."""

    def offer_type(self, offer: bytearray) -> str:
        options = options_of(bytes(offer))
        is_pxe = options.get(60, b"")[:9] == b"PXEClient"
        vendor = self.vendor(offer) if is_pxe else {}
        if any(code in vendor for code in (6, 7, 8, 9, 10)):
            return "pxe10"
        return "binl" if is_pxe else "dhcp"

    @staticmethod
    def vendor(offer: bytearray) -> dict[int, bytes]:
        """PxeBcParseVendorOptions."""
        raw, found, at = options_of(bytes(offer)).get(43, b""), {}, 0
        while at < len(raw) and raw[at] != 255:
            if raw[at] == 0:
                at += 1
                continue
            found[raw[at]] = raw[at + 2 : at + 2 + raw[at + 1]]
            at += 2 + raw[at + 1]
        return found

    def boot(self, boot_server: Callable[[str], bytes | None] = lambda _server: None) -> Booted:
        """What it boots from the offers that it has heard; `boot_server(ip)` asks on port 4011."""
        types = [("proxy-" if not any(o[16:20]) else "") + self.offer_type(o) for o in self.offers]
        files = [self.boot_file(o) for o in self.offers]

        def first(kind: str) -> int:
            return types.index(kind)

        if "pxe10" in types:
            return self.boot_info(first("pxe10"), files)
        if "dhcp" in types and "proxy-pxe10" in types:
            return self.boot_info(first("proxy-pxe10"), files)
        if "binl" in types or ("dhcp" in types and "proxy-binl" in types):
            offer = self.offers[first("binl" if "binl" in types else "proxy-binl")]
            server = ip(offer[20:24]) if any(offer[20:24]) else ip(options_of(bytes(offer))[54])
            answer = boot_server(server)
            if answer is None:
                raise RejectedError("no answer on port 4011")
            self.offers.append(bytearray(answer))
            return self.boot_info(-1, [self.boot_file(self.offers[-1])])
        for kind, file, offer in zip(types, files, self.offers, strict=True):
            if kind == "dhcp" and file is not None:
                return Booted(file.decode(), ip(offer[20:24]))
        raise RejectedError("no offer has a boot file: it asks again and again, for 60 s")

    def boot_info(self, index: int, files: list[bytes | None]) -> Booted:
        """PxeBcSelectBootPrompt, PxeBcSelectBootMenu, PxeBcDhcp4BootInfo."""
        offer, file = self.offers[index], files[index]
        vendor = self.vendor(offer)
        skip_menu = vendor.get(6, b"\0")[0] & 8 and file is not None
        lost = 0
        if not skip_menu and self.offer_type(offer) == "pxe10":
            if 10 in vendor:
                lost = vendor[10][0]
                assert lost != 255, "waits for a key for ever"
            menu = vendor.get(9)
            if menu is not None and not menu:
                raise RejectedError("an empty menu")
            if menu is None or menu[:2] == b"\0\0":
                return Booted(LOCAL_BOOT, seconds_lost=lost)
            raise RejectedError("asks a boot server by discovery")
        if file is None:
            raise RejectedError("no boot file")
        server = offer[20:24] if any(offer[20:24]) else options_of(bytes(offer))[54]
        return Booted(file.decode(), ip(server), lost)


class Edk2Http(Edk2):
    """HttpBootParseDhcp4Packet, HttpBootSelectDhcpOffer (the "corporate environment"), HttpBootDhcp4ExtractUriInfo."""

    def boot(self) -> Booted:
        types: list[tuple[str, str]] = []
        for offer in self.offers:
            options, uri = options_of(bytes(offer)), self.boot_file(offer)
            proxy = not any(offer[16:20])
            if options.get(60, b"")[:10] != b"HTTPClient":
                if not proxy:
                    types.append(("dhcp", ""))
                continue
            if uri is None or not urlsplit(uri.decode()).hostname:
                continue  # ignored
            url = uri.decode()
            is_ip = (urlsplit(url).hostname or "").replace(".", "").isdigit()
            if not is_ip and 6 not in options and not proxy:
                continue
            types.append(("proxy-uri" if proxy else "uri", url))
        kinds = [kind for kind, _ in types]
        if "uri" in kinds:
            url = types[kinds.index("uri")][1]
        elif "dhcp" in kinds and "proxy-uri" in kinds:
            url = types[kinds.index("proxy-uri")][1]
        else:
            raise RejectedError("no HTTP offer: it asks again and again, for 60 s")
        if not url.startswith(("http://", "https://")):
            raise RejectedError("invalid URI address")
        return Booted(url)


class Ipxe:
    """dhcp_discovery_rx, dhcp_request_rx, dhcp_has_pxeopts, have_pxe_menu, fetch_next_server_and_filename."""

    def __init__(self, asked: Packet) -> None:
        self.asked = asked

    def field(self, packet: bytes, code: int) -> bytes:
        """dhcppkt_fetch: header fields go before their options."""
        header = {66: packet[44:108], 67: packet[108:236]}.get(code, b"").partition(b"\0")[0]
        return header or options_of(packet).get(code, b"")

    @staticmethod
    def inside(packet: bytes, code: int, sub: int) -> bytes:
        raw, at = options_of(packet).get(code, b""), 0
        while at < len(raw) and raw[at] != 255:
            if raw[at] == sub:
                return raw[at + 2 : at + 2 + raw[at + 1]]
            at += 2 + raw[at + 1]
        return b""

    def boot(self, offers: list[bytes], acks: list[bytes]) -> Booted:
        """`acks`: what comes to its REQUEST."""
        lease, proxy, waited = None, None, 2
        for offer in offers:
            if offer[4:8] != self.asked.payload[4:8] or offer[28:34] != self.asked.payload[28:34]:
                raise RejectedError("not the answer to what it asked")
            if any(offer[16:20]) and options_of(offer).get(53) == bytes((OFFER,)):
                lease = offer
                waited = 0 if any(self.inside(offer, 175, 176)) else waited
            if self.field(offer, 60)[:9] == b"PXEClient":
                proxy = offer
        if lease is None:
            raise RejectedError("no offer with an address")
        waited = 0 if proxy is not None else waited
        for ack in acks:
            options = options_of(ack)
            if (
                options.get(53) == bytes((ACK,))
                and options.get(54) == options_of(lease).get(54)
                and ack[16:20] == lease[16:20]
            ):
                break
        else:
            raise RejectedError("no ACK")
        sources = [ack]
        if proxy is not None and not any(self.inside(lease, 175, 176)):
            if not (any(proxy[20:24]) and self.field(proxy, 67)):
                raise RejectedError("asks the ProxyDHCP server on port 4011")
            sources.append(proxy)
        for source in sources:
            if self.field(source, 60)[:9] == b"PXEClient" and self.inside(source, 43, 9):
                raise RejectedError("shows a PXE menu")
        for source in sources:
            name = self.field(source, 67).decode()
            if name:
                return Booted(name, "" if "://" in name else ip(source[20:24]), waited)
        raise RejectedError("nothing to boot")


class Pi:
    """What is known of the ROM of a Raspberry Pi: the words in option 43, and a TFTP server."""

    @staticmethod
    def boot(offer: bytes) -> Booted:
        options = options_of(offer)
        if b"Raspberry Pi Boot" not in options.get(43, b""):
            raise RejectedError("not a server for Raspberry Pis")
        if 1 not in options:
            raise RejectedError("no subnet mask")
        return Booted("", options[66].decode())
