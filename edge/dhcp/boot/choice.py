"""Whether a client may boot from the network now, and the DHCP fields and options that make its firmware do it.

`edge.machines.policy` says whether; what is told depends on the client:

    PXE ROM       -> an iPXE binary for its architecture, or a shim that runs GRUB (`BootPath`), by TFTP
    limited iPXE  -> the same; it is in a card's ROM and can't start kernels, or a gPXE, which reads no script of ours
    HTTP Boot     -> the same, as a URL
    Raspberry Pi  -> its own firmware, by TFTP
    U-Boot        -> its boot script, by TFTP, beside which it finds the rest
    iPXE          -> the URL of the machine's script: the end of the chain, so it can't loop
    refused       -> iPXE its script, which shows why; a ROM what makes it go on to the next boot device soonest;
                     U-Boot the name of a file that it does not get, with the reason

The same facts are said twice, in options 66 and 67 and in the header's `siaddr`, `sname` and `file`: shim and U-Boot
read only the header, EDK2 prefers the options. A ProxyDHCP offer says the same as a lease, except to iPXE of any kind.
Leases, ProxyDHCP offers and PXE boot server replies (`edge.dhcp.replies`) carry what comes out here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final
from urllib.parse import quote, urlsplit

from edge.dhcp.boot.client import Client, ClientKind
from edge.dhcp.wire import options
from edge.dhcp.wire.codec import NO_ADDRESS
from edge.machines import UKI_FILE, Machine, NetbootPolicy
from ipxe import raspberry_pi
from ipxe.binaries import BootBinaries, BootPath, NoBinaryError, architecture_name
from ipxe.uboot import BOOT_SCRIPT
from tink.printable import printable

REFUSED_FILE: Final = "netboot-not-allowed"
"""The name at the end of the URL that a refused HTTP Boot ROM asks for in vain; Smee's, which operators know."""

REASON_SECONDS: Final = 3
"""How long a PXE ROM shows why it is refused."""

MAX_KEPT: Final = 4096
"""Machines whose boot options are kept: some 500 bytes each."""

_PXE_CLASS = options.option(options.VENDOR_CLASS, b"PXEClient")
_HTTP_CLASS = options.option(options.VENDOR_CLASS, b"HTTPClient")

# PXE 2.1 table 2-1.
_BOOT_MENU, _MENU_PROMPT = 9, 10
_LOCAL_BOOT = bytes(2)  # boot server type 0: "local boot"
_NO_DISCOVERY = b"\x03"  # neither by broadcast nor by multicast
_USE_FILE = b"\x08"

# PXE discovery control, bit 3: "a boot file is named, use it". EDK2 takes an offer with option 60 and without this
# sub-option for a redirection to port 4011 and ignores its boot file (PxeBcParseDhcp4Packet, PxeOfferTypeDhcpBinl).
_USE_THE_BOOT_FILE = options.option(
    options.VENDOR_SPECIFIC, options.encapsulated({options.PXE_DISCOVERY_CONTROL: _USE_FILE})
)

# A Pi's ROM and EEPROM look for the words "Raspberry Pi Boot" in a boot menu, and take nobody for a server who does not
# have it. Byte for byte what dnsmasq and Smee send, for the parser of the Pi 3 is in mask ROM.
_RASPBERRY_PI = options.option(
    options.VENDOR_SPECIFIC,
    options.encapsulated(
        {
            options.PXE_DISCOVERY_CONTROL: _USE_FILE,
            _BOOT_MENU: bytes(2) + bytes((17,)) + b"Raspberry Pi Boot",
            _MENU_PROMPT: bytes(1) + b"PXE",
        }
    ),
)

# Without it iPXE waits 2 s for a ProxyDHCP server, every time (iPXE net/udp/dhcp.c, dhcp_discovery_rx).
NO_PROXY_DHCP = options.option(options.IPXE, options.encapsulated({options.IPXE_NO_PXEDHCP: b"\x01"}))

_PAD = bytes((options.PAD,))
_PROMPT_CHARACTERS = 70  # EDK2 shows no more (PxeBcDisplayBootItem)


@dataclass(frozen=True, slots=True)
class Boot:
    """The boot part of a reply, encoded.

    `spare_options` may be left out where the client takes only small messages; the header says the same.
    `file` and `sname` are empty where the text is too long for the header. `shared`: the same is chosen for the same
    client on every machine of one maker (the first three bytes of the MAC) that has the usual boot path, so that DHCP
    need not ask again.
    """

    siaddr: bytes
    sname: bytes
    file: bytes
    options: bytes
    spare_options: bytes
    text: str
    shared: bool = False


NO_BOOT = Boot(siaddr=NO_ADDRESS, sname=b"", file=b"", options=b"", spare_options=b"", text="")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a client is told to boot, and why not what it wanted, if it is refused."""

    boot: Boot
    refusal: str = ""

    @property
    def words(self) -> str:
        """The same in words that follow the name of the message that was sent: empty, or from a comma on."""
        text = self.boot.text
        if self.refusal:
            return (
                f", {text}, because it may not netboot: {self.refusal}"
                if text
                else f", nothing to boot: {self.refusal}"
            )
        return f", {text}" if text else ""


_NOT_ASKED: Final = Verdict(NO_BOOT)  # by an operating system


class BootChoice:
    """Chooses what a client boots. `http_base_url` is that of the edge's HTTP server, without a slash at the end."""

    def __init__(
        self,
        policy: NetbootPolicy,
        binaries: BootBinaries,
        tftp_ip: str,
        http_base_url: str,
        path: Callable[[Machine], BootPath | None] = lambda machine: machine.boot_path,
    ) -> None:
        """`path(machine)` is by which program a machine is to boot; None: by the usual one."""
        self._policy = policy
        self.path = path
        self._binaries = binaries
        self._tftp_ip = tftp_ip
        self._tftp = options.ipv4(tftp_ip)
        self._tftp_name = options.text(tftp_ip)
        host = urlsplit(http_base_url).hostname or ""
        self._http = options.ipv4(host) if options.is_ipv4(host) else NO_ADDRESS
        self._base_url = http_base_url
        self._script_prefix = f"{http_base_url}/ipxe/script/"
        self._binary_prefix = f"{http_base_url}/ipxe/binary/"
        # One per architecture, whatever the number of machines; the rest for the machines that boot just now, for each
        # asks at least twice.
        self._pxe_rom = lru_cache(maxsize=64)(self._compile_pxe_rom)
        self._limited_ipxe = lru_cache(maxsize=64)(self._compile_limited_ipxe)
        self._http_rom = lru_cache(maxsize=MAX_KEPT)(self._compile_http_rom)
        self._script = lru_cache(maxsize=MAX_KEPT)(self._compile_script)
        self._raspberry_pi = self._compile_raspberry_pi()
        self._u_boot = self._compile_u_boot()

    def verdict(self, machine: Machine | None, mac: str, client: Client, *, proxy: bool = False) -> Verdict:
        """What `client` boots on the machine with this MAC; `machine` is None where it has no Hardware.

        With `proxy`, as it is said beside another server's lease.
        """
        if client.kind is ClientKind.OPERATING_SYSTEM:
            return _NOT_ASKED
        reason = self._policy.decide(machine).reason
        if not reason:
            try:
                path = self.path(machine) if machine is not None else None
                if path is BootPath.UKI and machine is not None and is_uefi(client):
                    return Verdict(self._uki(client, machine))
                return Verdict(self.choose(client, mac, path, proxy=proxy))
            except NoBinaryError as error:
                reason = str(error)
        return Verdict(self._refuse(client, mac, reason, proxy=proxy), reason)

    def choose(self, client: Client, mac: str, path: BootPath | None = None, *, proxy: bool = False) -> Boot:
        """What `client` boots on a machine that may; NO_BOOT for an operating system. `path`: None for the usual one.

        Raises:
            ipxe.binaries.NoBinaryError: there is no file for its architecture.
        """
        if client.kind is ClientKind.IPXE:
            return self._ipxe(client, mac, proxy=proxy)
        if path is BootPath.UKI and is_uefi(client):
            raise NoBinaryError("boot path uki: which file that is, the Hardware says")  # `verdict` asks it
        if client.kind is ClientKind.PXE_ROM:
            if is_raspberry_pi(client, mac):
                return self._raspberry_pi
            if client.is_limited_ipxe:
                return self._limited_ipxe(client.architectures, path, proxy)
            return self._pxe_rom(client.architectures, path)
        if client.kind is ClientKind.HTTP_ROM:
            name = self._binaries.for_architectures(client.architectures, path, http=True).name
            return self._http_rom(mac, name, "boot file")
        return self._u_boot if client.kind is ClientKind.U_BOOT else NO_BOOT

    def _refuse(self, client: Client, mac: str, reason: str, *, proxy: bool) -> Boot:
        """What a client is told that gets nothing to boot, so that its machine goes on to the next boot device.

        EDK2 that gets an address and no boot file asks four times, for 60 s, before it gives up. So:

        - A PXE ROM gets a boot menu with the one item "local boot" (PXE 2.1 section 2.1), whose prompt is the reason.
        - An HTTP Boot ROM has no such thing; it gets a URL where this edge answers 403, which it shows.
        - iPXE gets its script, which will show the reason.
        - U-Boot asks by TFTP as it would if it might boot, and shows the error's text, which is the reason.
        """
        if client.kind is ClientKind.IPXE:
            return self._ipxe(client, mac, proxy=proxy)
        if client.kind is ClientKind.PXE_ROM and not is_raspberry_pi(client, mac):
            return _local_boot(reason)
        if client.kind is ClientKind.HTTP_ROM:
            return self._http_rom(mac, REFUSED_FILE, "a refusal at")
        return self._u_boot if client.kind is ClientKind.U_BOOT else NO_BOOT

    # --- by kind of client ------------------------------------------------------------------------------------------

    def _ipxe(self, client: Client, mac: str, *, proxy: bool) -> Boot:
        by_tftp = client.lacks(options.IPXE_HTTP) and not client.lacks(options.IPXE_TFTP)
        return self._script(mac, by_tftp, proxy)

    def _compile_script(self, mac: str, by_tftp: bool, proxy: bool) -> Boot:
        if by_tftp:
            server, url = self._tftp, options.text(f"tftp://{self._tftp_ip}/{mac}/auto.ipxe")
        else:
            server, url = self._http, options.text(f"{self._script_prefix}{mac}/auto.ipxe")
        # In a lease no option 60: iPXE counts an offer that says PXEClient as one of a ProxyDHCP server. In a ProxyDHCP
        # offer it must be there; with server and file beside it, iPXE asks no further on port 4011 (dhcp_has_pxeopts),
        # and without a boot menu it starts the file (have_pxe_menu).
        return _boot(server, url, f"script {url.decode()}", _PXE_CLASS if proxy else NO_PROXY_DHCP, b"")

    def _uki(self, client: Client, machine: Machine) -> Boot:
        """The OSIE as one program. Raises NoBinaryError."""
        named = machine.hardware.spec.osie
        if named is None or not named.name:
            raise NoBinaryError("boot path uki: spec.osie.name is not set: name the OSIE that the machine is to boot")
        path = f"osie/{quote(named.name, safe='')}/{UKI_FILE}"
        if client.kind is ClientKind.HTTP_ROM:
            url = options.text(f"{self._base_url}/{path}")
            return _boot(self._http, url, f"boot file {url.decode()}", _HTTP_CLASS, b"\0")
        boot = _boot(self._tftp, options.text(path), f"boot file {path}", _PXE_CLASS + _USE_THE_BOOT_FILE, b"\0")
        server = options.option(options.TFTP_SERVER_NAME, self._tftp_name)
        return replace(boot, sname=self._tftp_name, spare_options=server)

    def _compile_http_rom(self, mac: str, name: str, what: str) -> Boot:
        url = options.text(f"{self._binary_prefix}{mac}/{name}")
        # Without the class of its own the ROM takes the offer for one that can't boot it (HttpBootDhcp4.c).
        return _boot(self._http, url, f"{what} {url.decode()}", _HTTP_CLASS, b"\0")

    def _compile_pxe_rom(self, architectures: tuple[int, ...], path: BootPath | None) -> Boot:
        name = self._binaries.for_architectures(architectures, path).name
        boot = _boot(self._tftp, options.text(name), f"boot file {name}", _PXE_CLASS + _USE_THE_BOOT_FILE, b"\0")
        return replace(
            boot,
            sname=self._tftp_name,
            spare_options=options.option(options.TFTP_SERVER_NAME, self._tftp_name),
            shared=True,
        )

    def _compile_limited_ipxe(self, architectures: tuple[int, ...], path: BootPath | None, proxy: bool) -> Boot:
        # As a script is named to iPXE, for it takes DHCP's answers as every iPXE does.
        name = self._binaries.for_architectures(architectures, path).name
        boot = _boot(self._tftp, options.text(name), f"boot file {name}", _PXE_CLASS if proxy else NO_PROXY_DHCP, b"")
        return replace(boot, shared=True)

    def _compile_raspberry_pi(self) -> Boot:
        # It asks for files under names of its own, so none is named here; the server is told by option 66 and, to the
        # Pi 3, by the option that comes last.
        server = options.option(options.TFTP_SERVER_NAME, self._tftp_name)
        return Boot(
            siaddr=self._tftp,
            sname=self._tftp_name,
            file=b"",
            options=_PXE_CLASS + _RASPBERRY_PI + server,
            spare_options=b"",
            text="Raspberry Pi firmware by TFTP",
            shared=True,
        )

    def _compile_u_boot(self) -> Boot:
        # It loads the file that is named here when it asks for its address, whatever it is to boot: of none it makes
        # up a name from its address, and a boot program would be loaded in vain. In which directory the file is, there
        # it looks for `pxelinux.cfg`. `siaddr` and `file` are what all builds read (net/bootp.c).
        boot = _boot(self._tftp, options.text(BOOT_SCRIPT), f"boot script {BOOT_SCRIPT}", b"", b"")
        return replace(
            boot,
            sname=self._tftp_name,
            spare_options=options.option(options.TFTP_SERVER_NAME, self._tftp_name),
            shared=True,
        )


def is_raspberry_pi(client: Client, mac: str) -> bool:
    """Return True if a PXE ROM is a Raspberry Pi's own.

    A Pi 4 or 5 declares it. The mask ROM of a Pi 3, and a Pi with another DHCP_OPTION97 in its EEPROM, say only that
    they are an x86 BIOS, so the MAC decides there. UEFI on a Pi says that it is UEFI.
    """
    if client.kind is not ClientKind.PXE_ROM or client.is_limited_ipxe:
        return False
    return client.is_raspberry_pi or (client.architectures[:1] == (0,) and mac[:8] in raspberry_pi.OUIS)


def is_uefi(client: Client) -> bool:
    """Whether a ROM runs programs for UEFI, by the first architecture that it names."""
    is_rom = client.kind in (ClientKind.PXE_ROM, ClientKind.HTTP_ROM)
    return is_rom and bool(client.architectures) and "UEFI" in architecture_name(client.architectures[0])


def _boot(siaddr: bytes, file: bytes, text: str, leading: bytes, terminator: bytes) -> Boot:
    # EDK2 writes a NUL behind a boot file name that has none, over the code of the next option (PxeBcParseDhcp4Packet),
    # and shim copies the option as a C string: so a NUL inside for ROMs, and a pad behind for all. iPXE is given the
    # bare string, as RFC 2132 section 2 wants it.
    encoded = leading + options.option(options.BOOTFILE_NAME, file + terminator) + _PAD
    return Boot(
        siaddr=siaddr,
        sname=b"",
        file=file if len(file) < 128 else b"",
        options=encoded,
        spare_options=b"",
        text=text,
    )


def _local_boot(reason: str) -> Boot:
    shown = printable(f"No netboot: {reason}", ascii_only=True)
    if len(shown) > _PROMPT_CHARACTERS:  # which object, and what is wrong with it, stand at its two ends
        half = (_PROMPT_CHARACTERS - 3) // 2
        shown = f"{shown[:half]}...{shown[-half:]}"
    item = b"Local boot"
    menu = {
        options.PXE_DISCOVERY_CONTROL: _NO_DISCOVERY,
        _BOOT_MENU: _LOCAL_BOOT + bytes((len(item),)) + item,
        _MENU_PROMPT: bytes((REASON_SECONDS,)) + shown.encode(),
    }
    encoded = _PXE_CLASS + options.option(options.VENDOR_SPECIFIC, options.encapsulated(menu))
    return replace(NO_BOOT, options=encoded, text="local boot")
