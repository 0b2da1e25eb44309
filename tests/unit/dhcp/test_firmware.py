"""Whether real firmware boots what we mean it to boot, judged by its own rules of acceptance.

`firmware.txt` holds what clients sent (`record_firmware.py` made it). Every packet is answered by our responder, and
the answer goes to a re-implementation of the client that sent it, made from its source and from nothing of ours:

    Edk2Pxe     NetworkPkg/UefiPxeBcDxe/PxeBcDhcp4.c, PxeBcBoot.c; Dhcp4Dxe/Dhcp4Option.c
    Edk2Http    NetworkPkg/HttpBootDxe/HttpBootDhcp4.c
    Ipxe        src/net/udp/dhcp.c, dhcppkt.c; src/usr/autoboot.c
    Pi          what the ROM of a Raspberry Pi looks for

They read only the first instance of an option, write a NUL where they need one, and prefer offers as the firmware does.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest

from edge.dhcp.responder import DhcpSettings, Received, Reply, Responder
from edge.machines import DhcpMode, Inventory, NetbootPolicy, NetbootWhen
from ipxe.binaries import BootBinaries

SERVER, OTHER_SERVER, ADDRESS = "10.77.0.1", "10.77.0.254", "10.77.0.58"
DISCOVER, OFFER, REQUEST, ACK = 1, 2, 3, 5
MAGIC = bytes.fromhex("63825363")


# --- packets, read and written without our codec ---------------------------------------------------------------------


@dataclass(frozen=True)
class Packet:
    """What one client sent."""

    capture: str
    source_port: int
    port: int
    payload: bytes

    @property
    def kind(self) -> int:
        return self.option(53)[0]

    @property
    def mac(self) -> str:
        return self.payload[28:34].hex(":")

    def option(self, code: int) -> bytes:
        return options_of(self.payload).get(code, b"")

    def changed(self, **fields: bytes) -> Packet:
        """With other options: `o53=b"..."`; an empty value takes it away."""
        options = options_of(self.payload)
        options.update({int(name[1:]): value for name, value in fields.items()})
        body = b"".join(bytes((code, len(value))) + value for code, value in options.items() if value)
        return Packet(self.capture, self.source_port, self.port, self.payload[:240] + body + b"\xff")

    def of(self, mac: str) -> Packet:
        payload = self.payload[:28] + bytes.fromhex(mac.replace(":", "")) + self.payload[34:]
        return Packet(self.capture, self.source_port, self.port, payload)


def options_of(payload: bytes) -> dict[int, bytes]:
    """The first instance of each option."""
    assert payload[236:240] == MAGIC
    found: dict[int, bytes] = {}
    at = 240
    while payload[at] != 255:
        if payload[at] == 0:
            at += 1
            continue
        end = at + 2 + payload[at + 1]
        assert end < len(payload), "an option runs over the end of the packet"
        found.setdefault(payload[at], payload[at + 2 : end])
        at = end
    return found


def ip(four: bytes) -> str:
    return ".".join(map(str, four))


def captures() -> list[Packet]:
    packets = []
    for line in (Path(__file__).parent / "firmware.txt").read_text().splitlines():
        capture, source, destination, packed = line.split()
        packets.append(Packet(capture, int(source), int(destination), zlib.decompress(base64.b64decode(packed))))
    return packets


CAPTURES = captures()


def starting(vendor_class: bytes, *, ipxe: bool | None = None) -> list[Packet]:
    """The DISCOVERs of one kind of firmware."""
    found = []
    for packet in CAPTURES:
        if packet.kind != DISCOVER or not packet.option(60).startswith(vendor_class):
            continue
        if ipxe is None or bool(packet.option(175)) is ipxe:
            found.append(packet)
    return found


ROMS = starting(b"PXEClient", ipxe=False)
HTTP_ROMS = starting(b"HTTPClient")
IPXES = starting(b"PXEClient", ipxe=True)


def ids(packets: list[Packet]) -> list[str]:
    return [f"{number}-{packet.capture}" for number, packet in enumerate(packets)]


# --- the clients -----------------------------------------------------------------------------------------------------


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


# --- the edge --------------------------------------------------------------------------------------------------------


class Edge:
    """Our responder with one machine, and the other DHCP server of the proxy modes."""

    def __init__(self, binaries: BootBinaries, mode: DhcpMode = DhcpMode.RESERVATION, **how: Any) -> None:
        self.inventory = Inventory()
        self.has_pending = True
        self.mode = mode
        when = NetbootWhen.WORKFLOW if how.pop("when_workflow", False) else NetbootWhen.ALLOWED
        policy = NetbootPolicy(mode, when, lambda _namespace, _name: self.has_pending)
        self.dhcp = {"ip": ADDRESS, "netmask": "255.255.255.0", "gateway": "10.77.0.1", "leaseTimeSeconds": 3600}
        self.dhcp |= {"hostname": "m1", "nameservers": ["10.77.0.1", "10.77.0.2"], "timeservers": ["10.77.0.3"]}
        self.dhcp |= how.pop("dhcp", {})
        self.interface = how
        self.messages: list[str] = []
        settings = DhcpSettings(SERVER, SERVER, f"http://{SERVER}:7080")

        def record(mac: str, step: Any, outcome: Any, message: str, **detail: Any) -> None:
            self.messages.append(message)

        self.responder = Responder(self.inventory, settings, record, lambda: 0.0, binaries, policy)

    def register(self, mac: str) -> None:
        spec = {"networkInterfaces": {mac: {"dhcp": self.dhcp, **self.interface}}}
        self.inventory.apply({"metadata": {"name": "m1", "namespace": "default"}, "spec": spec})

    def ask(self, packet: Packet, source: str = "0.0.0.0") -> bytes | None:
        reply: Reply | None = self.responder.respond(packet.payload, Received(source, packet.source_port, packet.port))
        return reply.payload if reply is not None else None

    def offers(self, packet: Packet) -> list[bytes]:
        """All offers that a client hears to its DISCOVER."""
        ours = self.ask(packet)
        offers = [] if ours is None else [ours]
        return offers if self.mode is DhcpMode.RESERVATION else [*offers, other_servers(packet, OFFER)]

    def acks(self, packet: Packet, offer: bytes) -> list[bytes]:
        """What comes to the REQUEST with which a client takes `offer`."""
        request = packet.changed(o53=bytes((REQUEST,)), o54=options_of(offer)[54], o50=offer[16:20])
        ours = self.ask(request)
        acks = [] if ours is None else [ours]
        return acks if self.mode is DhcpMode.RESERVATION else [*acks, other_servers(packet, ACK)]


def other_servers(packet: Packet, kind: int) -> bytes:
    """The plain answer of the DHCP server beside which ours is a proxy."""
    asked = packet.payload
    lease = struct.pack("!4s4s4s", bytes(4), bytes((10, 77, 0, 99)), bytes(4))
    head = b"\x02" + asked[1:12] + lease + asked[24:28] + asked[28:44] + bytes(192) + MAGIC
    server = bytes((10, 77, 0, 254))
    options = bytes((53, 1, kind, 54, 4)) + server + bytes.fromhex("330400000e100104ffffff0003040a4d00fe")
    return (head + options + b"\xff").ljust(300, b"\0")


@pytest.fixture
def binaries(tmp_path: Path) -> BootBinaries:
    for name in ("undionly.kpxe", "snponly.efi", "snponly-arm64.efi"):
        (tmp_path / name).write_bytes(name.encode())
    return BootBinaries(tmp_path)


@pytest.fixture(params=[DhcpMode.RESERVATION, DhcpMode.PROXY, DhcpMode.AUTO_PROXY], ids=str)
def edge(request: pytest.FixtureRequest, binaries: BootBinaries) -> Edge:
    return Edge(binaries, request.param)


def pxe(edge: Edge, packet: Packet) -> Booted:
    """The whole conversation of EDK2's PXE driver."""
    firmware = Edk2Pxe(packet)
    for offer in edge.offers(packet):
        firmware.hear(offer)
    if edge.mode is DhcpMode.RESERVATION:
        (ack,) = edge.acks(packet, bytes(firmware.offers[0]))
        firmware.confirm(bytes(firmware.offers[0]), ack)
    return firmware.boot()


def http(edge: Edge, packet: Packet) -> Booted:
    firmware = Edk2Http(packet)
    for offer in edge.offers(packet):
        firmware.hear(offer)
    if edge.mode is DhcpMode.RESERVATION:
        (ack,) = edge.acks(packet, bytes(firmware.offers[0]))
        firmware.confirm(bytes(firmware.offers[0]), ack)
    return firmware.boot()


def ipxe(edge: Edge, packet: Packet) -> Booted:
    offers = edge.offers(packet)
    lease = next(offer for offer in offers if any(offer[16:20]))
    return Ipxe(packet).boot(offers, edge.acks(packet, lease))


# --- what boots ------------------------------------------------------------------------------------------------------


def test_captures_hold_each_kind_of_firmware() -> None:
    assert (len(ROMS), len(HTTP_ROMS), len(IPXES)) >= (2, 2, 8)
    assert {packet.option(93) for packet in ROMS + HTTP_ROMS + IPXES} == {b"\0\0", b"\0\x07", b"\0\x10"}


@pytest.mark.parametrize("packet", ROMS, ids=ids(ROMS))
def test_uefi_pxe_boots_ipxe_without_asking_on_port_4011(edge: Edge, packet: Packet) -> None:
    edge.register(packet.mac)
    expected = {b"\0\0": "undionly.kpxe", b"\0\x07": "snponly.efi"}[packet.option(93)]
    assert pxe(edge, packet) == Booted(expected, SERVER)


@pytest.mark.parametrize("packet", HTTP_ROMS, ids=ids(HTTP_ROMS))
def test_uefi_http_boots_the_url_of_ipxe(edge: Edge, packet: Packet) -> None:
    edge.register(packet.mac)
    assert http(edge, packet) == Booted(f"http://{SERVER}:7080/ipxe/binary/{packet.mac}/snponly.efi")


@pytest.mark.parametrize("packet", IPXES, ids=ids(IPXES))
def test_ipxe_goes_to_its_script_at_once_and_never_to_ipxe_again(edge: Edge, packet: Packet) -> None:
    edge.register(packet.mac)
    assert ipxe(edge, packet) == Booted(f"http://{SERVER}:7080/ipxe/script/{packet.mac}/auto.ipxe")


def test_every_captured_packet_gets_a_valid_answer_or_a_meant_silence(binaries: BootBinaries) -> None:
    for packet in CAPTURES:
        server = ip(packet.option(54)) if packet.option(54) else SERVER
        asked = ip(packet.option(50) or packet.payload[12:16])
        edge = Edge(binaries, dhcp={"ip": asked if asked != "0.0.0.0" else ADDRESS})
        edge.register(packet.mac)
        answer = edge.ask(packet, source=asked if packet.port == 4011 else "0.0.0.0")
        if packet.kind == 7 or (server != SERVER and packet.option(54)):
            assert answer is None, packet.capture
            continue
        assert answer is not None, packet.capture
        Edk2(packet).check(answer)
        assert len(answer) >= 300
        assert options_of(answer)[53] == {DISCOVER: b"\x02", REQUEST: b"\x05"}[packet.kind]
        limit = int.from_bytes(packet.option(57) or b"\x02\x40", "big")
        assert len(answer) <= max(576, min(limit, 1500)) - 28


@pytest.mark.parametrize("packet", [p for p in CAPTURES if p.port == 4011], ids=lambda p: p.capture)
def test_request_on_port_4011_gets_the_boot_file(edge: Edge, packet: Packet) -> None:
    edge.register(packet.mac)
    answer = edge.ask(packet.changed(o54=b""), source=ADDRESS)
    assert answer is not None
    if packet.option(175):
        assert Ipxe(packet).field(answer, 67).decode().endswith(f"/{packet.mac}/auto.ipxe")
        assert any(answer[20:24])
    else:
        firmware = Edk2Pxe(packet)
        firmware.offers.append(bytearray(answer))
        assert firmware.boot_info(0, [firmware.boot_file(bytearray(answer))]) == Booted("snponly.efi", SERVER)


def test_shim_and_u_boot_find_the_same_in_the_header_as_others_in_the_options(edge: Edge) -> None:
    """shim: parseDhcp4 (netboot.c) takes `file` and `siaddr`; U-Boot: net/bootp.c."""
    for packet in (ROMS[0], HTTP_ROMS[0], IPXES[0]):
        edge.register(packet.mac)
        offer = edge.offers(packet)[0]
        options = options_of(offer)
        assert offer[108:236].partition(b"\0")[0] == options[67].rstrip(b"\0") != b""
        assert ip(offer[20:24]) == SERVER
        assert offer[44:108].partition(b"\0")[0] == options.get(66, b"")
        # A C string for firmware; the bare name for iPXE, which would count the NUL.
        assert options[67].endswith(b"\0") is (packet is not IPXES[0])
    assert options_of(edge.offers(ROMS[0])[0])[66] == SERVER.encode()


def test_ipxe_is_not_given_a_lease_that_looks_like_a_proxy_offer(binaries: BootBinaries) -> None:
    edge = Edge(binaries)
    edge.register(IPXES[0].mac)
    offer = edge.ask(IPXES[0])
    assert offer is not None
    assert 60 not in options_of(offer)


def test_machine_gets_the_shim_and_the_shim_its_second_stage(tmp_path: Path) -> None:
    for name in ("snponly-shim.efi", "snponly.efi"):
        (tmp_path / name).write_bytes(name.encode())
    binaries = BootBinaries(tmp_path)
    edge = Edge(binaries)
    edge.register(ROMS[0].mac)
    assert pxe(edge, ROMS[0]).file == "snponly-shim.efi"
    name = http(edge, HTTP_ROMS[0]).file.rpartition("/")[2]
    hyphen = name.rindex("-")  # automatic_next_path of the shim: "-shim[arch].efi" becomes ".efi"
    assert name[hyphen : hyphen + 5] == "-shim"
    assert binaries.get(name[:hyphen] + ".efi") is not None


@pytest.mark.parametrize("architecture", [11, 22])
def test_arm_pxe_boots_its_own_ipxe(edge: Edge, architecture: int) -> None:
    packet = ROMS[0].changed(o93=struct.pack("!H", architecture))
    edge.register(packet.mac)
    assert pxe(edge, packet) == Booted("snponly-arm64.efi", SERVER)


@pytest.mark.parametrize("architecture", [19, 24])
def test_arm_http_boots_its_own_ipxe(edge: Edge, architecture: int) -> None:
    packet = HTTP_ROMS[0].changed(o93=struct.pack("!H", architecture))
    edge.register(packet.mac)
    url = http(edge, packet).file
    assert url == f"http://{SERVER}:7080/ipxe/binary/{packet.mac}/snponly-arm64.efi"
    assert "//" not in url.removeprefix("http://")


def test_ipxe_that_was_built_without_http_goes_to_its_script_by_tftp(edge: Edge) -> None:
    for packet in IPXES:
        without = packet.option(175).replace(b"\x13\x01\x01", b"")
        assert without != packet.option(175)
        edge.register(packet.mac)
        assert ipxe(edge, packet.changed(o175=without)) == Booted(f"tftp://{SERVER}/{packet.mac}/auto.ipxe")


def test_ipxe_that_smee_has_left_in_the_flash_goes_to_its_script(edge: Edge) -> None:
    for packet in (IPXES[0].changed(o77=b"Tinkerbell"), IPXES[0].changed(o77=b"Tinkerbell", o175=b"")):
        edge.register(packet.mac)
        assert ipxe(edge, packet).file.endswith("/auto.ipxe")


def test_machine_on_a_vlan_boots_as_any_other_and_its_ipxe_is_told(binaries: BootBinaries) -> None:
    edge = Edge(binaries, dhcp={"vlanId": "50"})
    edge.register(ROMS[0].mac)
    assert pxe(edge, ROMS[0]).server == SERVER
    assert http(edge, HTTP_ROMS[0]).file.endswith(".efi")
    assert ipxe(edge, IPXES[0]).file.endswith("/auto.ipxe")
    offer = edge.ask(IPXES[0])
    assert offer is not None
    assert Ipxe.inside(offer, 43, 116) == b"50"


PI = ROMS[0].changed(o93=b"\0\0", o60=b"PXEClient:Arch:00000:UNDI:002001")


@pytest.mark.parametrize("oui", ["b8:27:eb", "dc:a6:32", "e4:5f:01", "28:cd:c1", "d8:3a:dd", "2c:cf:67", "88:a2:9e"])
def test_raspberry_pi_gets_its_menu_and_never_a_pc_program(edge: Edge, oui: str) -> None:
    packet = PI.of(f"{oui}:00:00:01")
    edge.register(packet.mac)
    ours = edge.offers(packet)[0]
    if edge.mode is DhcpMode.RESERVATION:
        assert Pi.boot(ours) == Booted("", SERVER)
        # What dnsmasq and Smee send, byte for byte.
        menu = "060108" + "0914000011" + b"Raspberry Pi Boot".hex() + "0a0400" + b"PXE".hex() + "ff"
        assert options_of(ours)[43].hex() == menu
    assert b"Raspberry Pi Boot" in options_of(ours)[43]
    assert ip(ours[20:24]) == SERVER
    assert b"undionly" not in ours


def test_uefi_on_a_raspberry_pi_is_uefi(edge: Edge) -> None:
    packet = ROMS[0].changed(o93=b"\0\x0b", o60=b"PXEClient:Arch:00011:UNDI:003000").of("dc:a6:32:00:00:01")
    edge.register(packet.mac)
    assert pxe(edge, packet) == Booted("snponly-arm64.efi", SERVER)


# --- what goes on to the next boot device ----------------------------------------------------------------------------


def refused_edges(binaries: BootBinaries, mode: DhcpMode) -> list[Edge]:
    idle = Edge(binaries, mode, when_workflow=True)
    idle.has_pending = False
    return [Edge(binaries, mode, disableNetboot=True), idle]


@pytest.mark.parametrize("mode", [DhcpMode.RESERVATION, DhcpMode.PROXY, DhcpMode.AUTO_PROXY])
def test_refused_machine_goes_on_within_seconds_and_its_ipxe_shows_why(binaries: BootBinaries, mode: DhcpMode) -> None:
    for edge in refused_edges(binaries, mode):
        edge.register(ROMS[0].mac)
        booted = pxe(edge, ROMS[0])
        assert booted.file == LOCAL_BOOT
        assert booted.seconds_lost <= 3
        prompt = Edk2Pxe.vendor(bytearray(edge.offers(ROMS[0])[0]))[10][1:]
        assert prompt.startswith(b"No netboot: ")
        assert b"default/m1" in prompt
        assert len(prompt) <= 70
        assert http(edge, HTTP_ROMS[0]).file == f"http://{SERVER}:7080/ipxe/binary/{ROMS[0].mac}/netboot-not-allowed"
        assert ipxe(edge, IPXES[0]).file.endswith("/auto.ipxe")


def test_machine_without_a_binary_goes_on_and_the_journey_says_what_is_missing(binaries: BootBinaries) -> None:
    edge = Edge(binaries)
    packet = ROMS[0].changed(o93=b"\0\x1b")
    edge.register(packet.mac)
    assert pxe(edge, packet).file == LOCAL_BOOT
    assert any("no iPXE binary for architecture 27 (UEFI RISC-V 64-bit); put one of" in m for m in edge.messages)


def test_refused_raspberry_pi_is_not_told_that_it_has_a_server(binaries: BootBinaries) -> None:
    edge = Edge(binaries, disableNetboot=True)
    packet = PI.of("dc:a6:32:00:00:01")
    edge.register(packet.mac)
    offer = edge.ask(packet)
    assert offer is not None
    assert 43 not in options_of(offer)
    assert not any(offer[20:24])


def test_workflow_that_comes_lets_the_machine_boot_and_one_that_ends_stops_it(binaries: BootBinaries) -> None:
    edge = Edge(binaries, when_workflow=True)
    edge.register(ROMS[0].mac)
    for work, file in ((True, "snponly.efi"), (False, LOCAL_BOOT), (True, "snponly.efi")):
        edge.has_pending = work
        assert pxe(edge, ROMS[0]).file == file


# --- the judges themselves -------------------------------------------------------------------------------------------


def test_judges_reject_what_breaks_real_firmware(binaries: BootBinaries) -> None:
    edge = Edge(binaries)
    edge.register(ROMS[0].mac)
    good = edge.ask(ROMS[0])
    assert good is not None

    def judged(offer: bytes) -> Booted:
        firmware = Edk2Pxe(ROMS[0])
        firmware.hear(offer)
        return firmware.boot()

    control = bytes.fromhex("2b04060108ff")
    assert control in good
    with pytest.raises(RejectedError, match="no answer on port 4011"):
        judged(good.replace(control, b"\0" * len(control)))
    with pytest.raises(RejectedError, match="more than"):
        judged(good.ljust(1473, b"\0"))
    # A boot file without its NUL, right before another option: EDK2 writes the NUL over that option's code.
    name = b"snponly.efi"
    unterminated = good[:240] + bytes((67, len(name))) + name + b"\x3c\x09PXEClient" + control + good[240:]
    firmware = Edk2Pxe(ROMS[0])
    firmware.hear(unterminated)
    Edk2.boot_file(firmware.offers[0])
    assert firmware.offers[0][240 + 2 + len(name)] == 0
    with pytest.raises(RejectedError, match="option 54 has 3 bytes"):
        judged(good[:240] + b"\x36\x03\x0a\x4d\x00" + good[240:])
