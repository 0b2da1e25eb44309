"""Which DHCP client sent a message, and what it boots: the fields and options that make its firmware do it. Pure.

One machine is several DHCP clients during a boot, all with the same MAC: the firmware's PXE ROM, UEFI HTTP Boot or
U-Boot first, then iPXE, then the kernel or the operating system. Each boots something else:

    PXE ROM       an iPXE binary for its architecture, or a shim that runs GRUB (`BootPath`), by TFTP
    limited iPXE  the same: an iPXE in a card's ROM that can't start kernels, or a gPXE, which can't read our scripts
    HTTP Boot     the same, as a URL
    Raspberry Pi  its own firmware, by TFTP
    U-Boot        its boot script, by TFTP, beside which it finds the rest
    iPXE          the URL of the machine's script: the end of the chain, so there is no loop
    refused       iPXE its script, which shows the reason; a ROM the answer that makes it try the next boot device
                  soonest; U-Boot a file name for which TFTP answers with the reason

`edge.machines.policy` decides whether a machine may netboot.

A client is identified by what it declares: its architecture (option 93), its UNDI (94), its machine identifier (97) and
iPXE's list of features (175). Vendor and user classes (60, 77) count if a standard or the client's own source defines
them. A vendor class that only names a product says nothing: BlueField's UEFI sends `NVIDIA/BF/PXE`, older ones
`BF2Client`, and the operating system there the like, without option 93.

Server and boot file are in options 66 and 67 and also in the header's `siaddr`, `sname` and `file`: shim and U-Boot
read only the header, EDK2 prefers the options. A ProxyDHCP offer has the same as a lease, except for any iPXE.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from edge.dhcp.wire import options
from edge.dhcp.wire.codec import NO_ADDRESS, Message
from edge.dhcp_common import NOTHING, REFUSED_FILE, RPIBOOT, BootAnswer, Client, DhcpSite, Stage, uki_path
from edge.machines import Machine
from ipxe import raspberry_pi
from ipxe.binaries import (
    IPXE_CLASSES,
    BootPath,
    NoBinaryError,
    declared_architectures,
    is_http,
    is_risc_v,
    is_u_boot,
    named_architectures,
    platform_name,
)
from ipxe.uboot import BOOT_SCRIPT
from tink.printable import printable

# iPXE until 2010. It can't read a script that begins with #!ipxe.
_GPXE_CLASS = b"gPXE"
# The first code of option 175 that is no feature (iPXE include/ipxe/features.h).
_NO_FEATURE = 64
# iPXE's version is in the same table as the features (FEATURE_VERSION), so a list with it is complete.
_IPXE_VERSION = 235
_BIOS = 0

PI_NAME_AT: Final = slice(1, 4)
PI_NAME: Final = b"RPi"
"""Part of the machine identifier (option 97) of a Raspberry Pi 4 or 5: type 0, `RPi4` or `RPi5`, then board, MAC and
serial number. It is the default of DHCP_OPTION97 in its EEPROM, which the user may change."""


def identify(message: Message) -> Client:
    """Return the client that sent `message`: the same object for the same options."""
    found = message.options
    return _identify(
        found.get(options.VENDOR_CLASS, b""),
        found.get(options.USER_CLASS, b""),
        found.get(options.CLIENT_ARCHITECTURE, b""),
        found.get(options.CLIENT_NETWORK_INTERFACE, b""),
        found.get(options.IPXE, b""),
        found.get(options.CLIENT_UUID, b"")[PI_NAME_AT] == PI_NAME,
    )


# A rack has a handful of kinds of clients. A flood of invented ones evicts others, and the cache does not grow.
@lru_cache(maxsize=512)
def _identify(
    vendor_class: bytes, user_class: bytes, architecture: bytes, interface: bytes, ipxe: bytes, names_pi: bool
) -> Client:
    architectures = declared_architectures(architecture) or named_architectures(vendor_class)
    platform = platform_name(architectures)
    users = user_classes(user_class)
    # iPXE calls itself a PXEClient too, so it is checked first. Option 175 identifies it even if a script or an
    # embedded setting changed its user class.
    if _GPXE_CLASS in users:
        return Client(Stage.PXE_ROM, architectures, f"gPXE ({platform})", is_limited_ipxe=True)
    if ipxe or not IPXE_CLASSES.isdisjoint(users):
        return _ipxe(options.suboptions(ipxe) or {}, architectures)
    if vendor_class.startswith(b"HTTPClient"):
        stage = Stage.HTTP_ROM
    elif vendor_class.startswith(b"PXEClient"):
        stage = Stage.PXE_ROM
    elif is_u_boot((vendor_class,), architectures, interface):
        return Client(Stage.U_BOOT, architectures, f"{Stage.U_BOOT} ({platform})")
    elif architectures:
        # RFC 4578 section 2.1: a client that declares an architecture boots from the network.
        stage = Stage.HTTP_ROM if is_http(architectures) else Stage.PXE_ROM
    elif names_pi:
        # The REQUEST of a Pi may have neither option 60 nor 93.
        stage = Stage.PXE_ROM
    else:
        return Client(Stage.OPERATING_SYSTEM, (), Stage.OPERATING_SYSTEM)
    # UEFI on a Pi declares the architecture of UEFI, and is treated as UEFI.
    if stage is Stage.PXE_ROM and (
        architectures[:1] == (RPIBOOT,) or (names_pi and architectures[:1] in ((), (_BIOS,)))
    ):
        return Client(stage, architectures, "Raspberry Pi (boot ROM)", is_raspberry_pi=True)
    return Client(stage, architectures, f"{platform} {stage}")


def _ipxe(listed: Mapping[int, bytes], architectures: tuple[int, ...]) -> Client:
    """Return the client for an iPXE with these sub-options of option 175."""
    # An iPXE that lists features, but no format of kernels, is a ROM that boots a full iPXE first
    # (https://ipxe.org/howto/dhcpd). Each of our boot programs lists a format of kernels, so there is no loop.
    platform = platform_name(architectures)
    # A feature is a sub-option with its version; an iPXE that was built without the feature leaves it out.
    features = frozenset(code for code, value in listed.items() if code < _NO_FEATURE and any(value))
    is_list = bool(features) or _IPXE_VERSION in listed
    # VirtualBox's own ROM lacks both formats: it fetches script and kernel, and then shows "Exec format error".
    # iPXE for RISC-V's SBI starts kernels by image/lkrn.c, which has no code in option 175.
    starts_kernels = is_risc_v(architectures) or not features.isdisjoint((options.IPXE_BZIMAGE, options.IPXE_EFI))
    if is_list and not starts_kernels:
        description = f"iPXE without bzImage and EFI ({platform})"
        return Client(Stage.PXE_ROM, architectures, description, features, is_limited_ipxe=True)
    return Client(Stage.IPXE, architectures, f"iPXE ({platform})", features)


def user_classes(value: bytes) -> tuple[bytes, ...]:
    """Return the whole value of option 77, and its user classes if it is a list with lengths (RFC 3004 section 4)."""
    if not value:
        return ()
    # A bare string may read as a list by chance, so both readings are returned.
    listed = []
    at = 0
    while at < len(value):
        end = at + 1 + value[at]
        if end == at + 1 or end > len(value):
            return (value,)
        listed.append(value[at + 1 : end])
        at = end
    return (value, *listed)


REASON_SECONDS: Final = 3
"""How long a PXE ROM shows the reason of a refusal."""

MAX_CACHED: Final = 4096
"""Maximum number of machines whose boot options are cached: some 500 bytes each."""

_PXE_CLASS = options.option(options.VENDOR_CLASS, b"PXEClient")
_HTTP_CLASS = options.option(options.VENDOR_CLASS, b"HTTPClient")

# PXE 2.1 table 2-1.
_BOOT_MENU, _MENU_PROMPT = 9, 10
_LOCAL_BOOT = bytes(2)  # boot server type 0: "local boot"
_NO_DISCOVERY = b"\x03"  # neither by broadcast nor by multicast
_USE_FILE = b"\x08"

# PXE discovery control, bit 3: "a boot file is named, use it". Without this sub-option EDK2 treats an offer with
# option 60 as a redirection to port 4011 and ignores its boot file (PxeBcParseDhcp4Packet, PxeOfferTypeDhcpBinl).
_USE_THE_BOOT_FILE = options.option(
    options.VENDOR_SPECIFIC, options.encapsulated({options.PXE_DISCOVERY_CONTROL: _USE_FILE})
)

# A Pi's ROM and EEPROM accept only servers that send "Raspberry Pi Boot" in a boot menu. These are the bytes of dnsmasq
# and Smee, because the parser of the Pi 3 is in mask ROM.
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

# Without it iPXE waits 2 s for a ProxyDHCP server in each exchange (iPXE net/udp/dhcp.c, dhcp_discovery_rx).
NO_PROXY_DHCP = options.option(options.IPXE, options.encapsulated({options.IPXE_NO_PXEDHCP: b"\x01"}))

_PAD = bytes((options.PAD,))
_MAX_PROMPT_LENGTH = 70  # EDK2 shows no more (PxeBcDisplayBootItem)


class BootChoice:
    """Chooses what a client boots."""

    def __init__(self, site: DhcpSite, tftp_ip: str, http_base_url: str) -> None:
        """`http_base_url` is the edge's HTTP server, without a slash at the end."""
        self._policy = site.policy
        self._path = site.boot_path
        self._binaries = site.binaries
        self._tftp_ip = tftp_ip
        self._tftp = options.ipv4(tftp_ip)
        self._tftp_name = options.text(tftp_ip)
        self._tftp_option = options.option(options.TFTP_SERVER_NAME, self._tftp_name)
        host = urlsplit(http_base_url).hostname or ""
        self._http = options.ipv4(host) if options.is_ipv4(host) else NO_ADDRESS
        self._base_url = http_base_url
        # The first two are per architecture, the others per machine, which sends at least two requests when it boots.
        self._pxe_rom = lru_cache(maxsize=64)(self._compile_pxe_rom)
        self._limited_ipxe = lru_cache(maxsize=64)(self._compile_limited_ipxe)
        self._http_rom = lru_cache(maxsize=MAX_CACHED)(self._compile_http_rom)
        self._script = lru_cache(maxsize=MAX_CACHED)(self._compile_script)
        # A Pi knows the names of its files, so the reply has none. It reads the server from option 66; a Pi 3 reads it
        # from the option that comes last.
        self._raspberry_pi = BootAnswer(
            _PXE_CLASS + _RASPBERRY_PI + self._tftp_option,
            "Raspberry Pi firmware by TFTP",
            shared=True,
            siaddr=self._tftp,
            sname=self._tftp_name,
        )
        # U-Boot loads this file as soon as it has its address, whatever it boots later. Without a name it makes one up
        # from its address. It looks for `pxelinux.cfg` in the directory of this file. All builds read `siaddr` and
        # `file` (net/bootp.c).
        self._u_boot = replace(self._by_tftp(BOOT_SCRIPT, f"boot script {BOOT_SCRIPT}"), shared=True)

    def answer(self, machine: Machine | None, mac: str, client: Client, *, proxy: bool = False) -> BootAnswer:
        """Return what `client` boots on the machine with this MAC.

        `machine` is None if there is no Hardware. `proxy`: the reply goes beside another server's lease.
        """
        if client.stage is Stage.OPERATING_SYSTEM:
            return NOTHING
        reason = self._policy.decide(machine).reason
        if not reason:
            try:
                path = self._path(machine) if machine is not None else None
                if path is BootPath.UKI and machine is not None and client.is_uefi:
                    return self._uki(client, uki_path(machine))
                return self.choose(client, mac, path, proxy=proxy)
            except NoBinaryError as error:
                reason = str(error)
        return replace(self._refuse(client, mac, reason, proxy=proxy), refusal=reason, shared=False)

    def choose(self, client: Client, mac: str, path: BootPath | None = None, *, proxy: bool = False) -> BootAnswer:
        """Return what `client` boots if it may netboot; `path` None: the usual boot path. Raises NoBinaryError."""
        if client.stage is Stage.IPXE:
            return self._ipxe(client, mac, proxy=proxy)
        if path is BootPath.UKI and client.is_uefi:
            raise NoBinaryError("boot path uki: the file depends on the Hardware")  # see `answer`
        if client.stage is Stage.PXE_ROM:
            if is_raspberry_pi(client, mac):
                return self._raspberry_pi
            if client.is_limited_ipxe:
                return self._limited_ipxe(client.architectures, path, proxy)
            return self._pxe_rom(client.architectures, path)
        if client.stage is Stage.HTTP_ROM:
            name = self._binaries.for_architectures(client.architectures, path, http=True).name
            return self._http_rom(mac, name, "boot file")
        return self._u_boot if client.stage is Stage.U_BOOT else NOTHING

    def _refuse(self, client: Client, mac: str, reason: str, *, proxy: bool) -> BootAnswer:
        """Return the boot part for a client that may not netboot: its machine tries the next boot device soon."""
        # An EDK2 that gets an address and no boot file asks four times, for 60 s, before it gives up.
        if client.stage is Stage.IPXE:
            # Its script shows the reason.
            return self._ipxe(client, mac, proxy=proxy)
        if client.stage is Stage.PXE_ROM and not is_raspberry_pi(client, mac):
            return _local_boot(reason)
        if client.stage is Stage.HTTP_ROM:
            # It has no boot menu. It shows that this edge answers 403 for the URL.
            return self._http_rom(mac, REFUSED_FILE, "a refusal at")
        # U-Boot requests the usual file by TFTP and shows the text of the error, which is the reason.
        return self._u_boot if client.stage is Stage.U_BOOT else NOTHING

    # --- by stage of client ------------------------------------------------------------------------------------------

    def _ipxe(self, client: Client, mac: str, *, proxy: bool) -> BootAnswer:
        # An iPXE that sent no list of features may have all of them.
        has = client.features or {options.IPXE_HTTP}
        return self._script(mac, options.IPXE_HTTP not in has and options.IPXE_TFTP in has, proxy)

    def _compile_script(self, mac: str, by_tftp: bool, proxy: bool) -> BootAnswer:
        if by_tftp:
            server, url = self._tftp, f"tftp://{self._tftp_ip}/{mac}/auto.ipxe"
        else:
            server, url = self._http, f"{self._base_url}/ipxe/script/{mac}/auto.ipxe"
        # A lease has no option 60: iPXE treats an offer of class PXEClient as one of a ProxyDHCP server. A ProxyDHCP
        # offer needs it. With server and file beside it, iPXE sends no request to port 4011 (dhcp_has_pxeopts), and
        # without a boot menu it starts the file (have_pxe_menu).
        return _boot(server, url, f"script {url}", _PXE_CLASS if proxy else NO_PROXY_DHCP)

    def _uki(self, client: Client, path: str) -> BootAnswer:
        """Return the boot part for the machine's OSIE as one program."""
        if client.stage is Stage.HTTP_ROM:
            url = f"{self._base_url}/{path}"
            return _boot(self._http, url, f"boot file {url}", _HTTP_CLASS, b"\0")
        return self._by_tftp(path, f"boot file {path}", _PXE_CLASS + _USE_THE_BOOT_FILE, b"\0")

    def _compile_http_rom(self, mac: str, name: str, what: str) -> BootAnswer:
        url = f"{self._base_url}/ipxe/binary/{mac}/{name}"
        # Without class HTTPClient the ROM rejects the offer (EDK2 HttpBootDhcp4.c).
        return _boot(self._http, url, f"{what} {url}", _HTTP_CLASS, b"\0")

    def _compile_pxe_rom(self, architectures: tuple[int, ...], path: BootPath | None) -> BootAnswer:
        name = self._binaries.for_architectures(architectures, path).name
        boot = self._by_tftp(name, f"boot file {name}", _PXE_CLASS + _USE_THE_BOOT_FILE, b"\0")
        return replace(boot, shared=True)

    def _compile_limited_ipxe(self, architectures: tuple[int, ...], path: BootPath | None, proxy: bool) -> BootAnswer:
        # The options are those of iPXE's script, because it reads replies as every iPXE does.
        name = self._binaries.for_architectures(architectures, path).name
        boot = _boot(self._tftp, name, f"boot file {name}", _PXE_CLASS if proxy else NO_PROXY_DHCP)
        return replace(boot, shared=True)

    def _by_tftp(self, file: str, text: str, leading: bytes = b"", terminator: bytes = b"") -> BootAnswer:
        """Return the boot part for a file by TFTP, with the server in option 66 and in the header, too."""
        boot = _boot(self._tftp, file, text, leading, terminator)
        return replace(boot, sname=self._tftp_name, spare_options=self._tftp_option)


def is_raspberry_pi(client: Client, mac: str) -> bool:
    """Return True if a PXE ROM is a Raspberry Pi's own. UEFI on a Pi declares UEFI, and is none."""
    if client.stage is not Stage.PXE_ROM or client.is_limited_ipxe:
        return False
    # The mask ROM of a Pi 3, and a Pi with another DHCP_OPTION97 in its EEPROM, declare an x86 BIOS: the MAC decides.
    return client.is_raspberry_pi or (client.architectures[:1] == (_BIOS,) and mac[:8] in raspberry_pi.OUIS)


def _boot(siaddr: bytes, file: str, text: str, leading: bytes, terminator: bytes = b"") -> BootAnswer:
    name = options.text(file)
    # EDK2 writes a NUL after a boot file name that has none, over the code of the next option (PxeBcParseDhcp4Packet),
    # and shim copies the option as a C string. So ROMs get a NUL inside the option, and a pad follows it for all
    # clients. iPXE gets the bare string, as RFC 2132 section 2 requires.
    encoded = leading + options.option(options.BOOTFILE_NAME, name + terminator) + _PAD
    return BootAnswer(encoded, text, siaddr=siaddr, file=name if len(name) < 128 else b"")


def _local_boot(reason: str) -> BootAnswer:
    """Return a boot menu with the single item "local boot" (PXE 2.1 section 2.1), whose prompt is the reason."""
    shown = printable(f"No netboot: {reason}", ascii_only=True)
    if len(shown) > _MAX_PROMPT_LENGTH:
        # The object, and what is wrong with it, are at the two ends of the reason.
        half = (_MAX_PROMPT_LENGTH - 3) // 2
        shown = f"{shown[:half]}...{shown[-half:]}"
    item = b"Local boot"
    menu = {
        options.PXE_DISCOVERY_CONTROL: _NO_DISCOVERY,
        _BOOT_MENU: _LOCAL_BOOT + bytes((len(item),)) + item,
        _MENU_PROMPT: bytes((REASON_SECONDS,)) + shown.encode(),
    }
    encoded = _PXE_CLASS + options.option(options.VENDOR_SPECIFIC, options.encapsulated(menu))
    return BootAnswer(encoded, "local boot")
