"""Which program sent a message, and what it boots: RFC 5970, and UEFI 2.10 section 24.7 for HTTP Boot. Pure.

    PXE ROM        a boot program by TFTP, `tftp://[address]/name`
    HTTP Boot      the same by HTTP
    boot path uki  the OSIE itself as one program, for both of them
    Raspberry Pi   the TFTP server, `tftp://[address]/`: it knows the names of its files
    U-Boot         its boot script by TFTP
    iPXE           the URL of the machine's script
    our OSIE       the URL of its parameters: an OSIE that was started as a UKI has no other way to find the edge
    firmware       nothing: UEFI's own network stack takes an address for itself if routers say "managed"
    refused        iPXE and U-Boot their script, which shows the reason; a ROM a file that it does not get, so that it
                   tries the next boot device

A client that declares an architecture (option 61) and requests a boot file (59 in its Option Request option) is one of
these, whatever its vendor classes (16) are: a Raspberry Pi sends none, and BlueField's UEFI one of its own. Over IPv6,
iPXE does not list its features.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from edge.dhcp6.wire import ENTERPRISE, Message6, Option, classes, option
from edge.dhcp_common import NOTHING, REFUSED_FILE, RPIBOOT, BootAnswer, Client, DhcpSite, Stage, uki_path
from edge.machines import Machine
from ipxe.binaries import (
    IPXE_CLASSES,
    BootPath,
    NoBinaryError,
    declared_architectures,
    is_http,
    is_u_boot,
    named_architectures,
    platform_name,
)
from ipxe.uboot import BOOT_SCRIPT

_BARE: Final = frozenset({Option.CLIENTID, Option.SERVERID, Option.IA_NA, Option.ORO, Option.ELAPSED_TIME})
_HTTP_CLASS: Final = option(
    Option.VENDOR_CLASS, ENTERPRISE.to_bytes(4, "big") + len(b"HTTPClient").to_bytes(2, "big") + b"HTTPClient"
)


OSIE_CLASS: Final = b"tinkedge-osie"
"""The user class of deploy/osie (its dhcpcd-uki.conf)."""
OSIE: Final = Client(Stage.OPERATING_SYSTEM, (), "the OSIE")


def identify(message: Message6) -> Client:
    """Return the client that sent `message`."""
    return _identify(
        tuple(message.all(Option.VENDOR_CLASS)),
        tuple(message.all(Option.USER_CLASS)),
        message.get(Option.CLIENT_ARCH_TYPE) or b"",
        message.get(Option.NII) or b"",
        Option.BOOTFILE_URL in message.requested,
        message.requested == (Option.DNS_SERVERS,) and {code for code, _ in message.options} <= _BARE,
    )


# A rack has a handful of kinds of clients. A flood of invented ones evicts others, and the cache does not grow.
@lru_cache(maxsize=256)
def _identify(
    vendors: tuple[bytes, ...], users: tuple[bytes, ...], architecture: bytes, nii: bytes, wants_file: bool, bare: bool
) -> Client:
    # RFC 8415 section 21.16: there is an option for each enterprise number, with any number of classes behind it.
    names = [name for vendor in vendors for name in classes(vendor[4:])]
    user_classes = [name for user in users for name in classes(user)]
    architectures = declared_architectures(architecture) or next(filter(None, map(named_architectures, names)), ())
    platform = platform_name(architectures)
    # iPXE calls itself a PXEClient too, so it is checked first.
    if any(each.startswith(b"iPXE") or each in IPXE_CLASSES for each in user_classes):
        return Client(Stage.IPXE, architectures, f"iPXE ({platform})")
    if OSIE_CLASS in user_classes:
        return OSIE
    by_http, by_tftp = (any(name.startswith(kind) for name in names) for kind in (b"HTTPClient", b"PXEClient"))
    stage = Stage.PXE_ROM if by_tftp else None
    if by_http and not (by_tftp and architectures and not is_http(architectures)):  # the architecture decides a tie
        stage = Stage.HTTP_ROM
    if stage is None and is_u_boot(names, architectures, nii):
        return Client(Stage.U_BOOT, architectures, f"{Stage.U_BOOT} ({platform})")
    if stage is None and architectures and wants_file:
        stage = Stage.HTTP_ROM if is_http(architectures) else Stage.PXE_ROM
    if stage is Stage.PXE_ROM and architectures[:1] == (RPIBOOT,):
        return Client(stage, architectures, "Raspberry Pi (boot ROM)", is_raspberry_pi=True)
    if stage is not None:
        return Client(stage, architectures, f"{platform} {stage}")
    if bare and not users:
        # EDK2's Dhcp6Dxe for Ip6Config requests an address and name servers, and declares nothing. An operating system
        # also requests SOL_MAX_RT, as RFC 8415 section 18.2.1 requires.
        return Client(Stage.FIRMWARE, (), "the firmware's network stack")
    return Client(Stage.OPERATING_SYSTEM, (), Stage.OPERATING_SYSTEM)


class BootChoice6:
    """Chooses what a client boots."""

    def __init__(self, site: DhcpSite, address: str, http_base_url: str) -> None:
        """`address` is this edge's (RFC 5952). `http_base_url` is its HTTP server, without a slash at the end."""
        self._policy = site.policy
        self._binaries = site.binaries
        self.path = site.boot_path
        self._tftp = f"tftp://[{address}]/"
        self._http = http_base_url

    def choose(self, machine: Machine, client: Client) -> BootAnswer:
        """Return what `client` boots on `machine`."""
        if client == OSIE:
            # The HTTP server refuses the parameters to a machine that may not netboot.
            url = f"{self._http}/auto/parameters"
            return BootAnswer(_url(url), f"its parameters at {url}", shared=True)
        if not is_netboot(client):
            return NOTHING
        refusal = self._policy.decide(machine).reason
        if client.stage is Stage.IPXE:
            # The end of the chain, so there is no loop. The script shows a refusal.
            url = f"{self._http}/ipxe/script/{machine.mac}/auto.ipxe"
            return BootAnswer(_url(url), f"script {url}", refusal)
        if client.stage is Stage.U_BOOT:
            # A refused U-Boot shows the text of the TFTP error.
            return BootAnswer(_url(self._tftp + BOOT_SCRIPT), f"boot script {BOOT_SCRIPT}", refusal, not refusal)
        if client.is_raspberry_pi:
            if refusal:
                return BootAnswer(refusal=refusal)
            return BootAnswer(_url(self._tftp), "Raspberry Pi firmware by TFTP", shared=True)
        by_http = client.stage is Stage.HTTP_ROM
        prefix = f"{self._http}/ipxe/binary/{machine.mac}/" if by_http else self._tftp
        file = prefix + REFUSED_FILE
        if not refusal:
            try:
                file = self._file(machine, client, prefix)
            except NoBinaryError as error:
                refusal = str(error)
        # Without class HTTPClient the ROM rejects the offer (EDK2 HttpBootDhcp6.c).
        leading = _HTTP_CLASS if by_http else b""
        text = f"{'a refusal at' if refusal else 'boot file'} {file}"
        shared = not refusal and not by_http and self.path(machine) is not BootPath.UKI
        return BootAnswer(leading + _url(file), text, refusal, shared)

    def _file(self, machine: Machine, client: Client, prefix: str) -> str:
        """Return the URL of the client's boot program, or of the machine's OSIE. Raises NoBinaryError."""
        path, by_http = self.path(machine), client.stage is Stage.HTTP_ROM
        if path is BootPath.UKI and client.is_uefi:
            return (f"{self._http}/" if by_http else self._tftp) + uki_path(machine)
        return prefix + self._binaries.for_architectures(client.architectures, path, http=by_http).name


def is_netboot(client: Client) -> bool:
    """Return True if the client's replies contain a URL: a boot file, or the parameters of the OSIE."""
    return client == OSIE or client.stage not in (Stage.OPERATING_SYSTEM, Stage.FIRMWARE)


def _url(url: str) -> bytes:
    """Return option 59, which has no zero at its end (RFC 5970 section 3.1)."""
    return option(Option.BOOTFILE_URL, url.encode("ascii", "ignore"))
