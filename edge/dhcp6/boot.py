"""Which program asks, and what it is told to boot: RFC 5970, and UEFI 2.10 section 24.7 for HTTP Boot. Pure.

PXE ROM       -> a boot program by TFTP, `tftp://[address]/name`
HTTP Boot     -> the same by HTTP, and the class that says that the server can do that
boot path uki -> either of them the OSIE itself, as one program
Raspberry Pi  -> the TFTP server, `tftp://[address]/`: it names the files of its firmware itself
U-Boot        -> its boot script by TFTP
iPXE          -> the URL of the machine's script
our OSIE      -> the URL of its parameters, by its user class: one that was started as a UKI knows nothing of the edge
firmware      -> nothing: UEFI's own network stack takes an address for itself where routers say "managed"
refused       -> iPXE and U-Boot their script, which shows why; a ROM a file that it will not get, so that it goes on

A client that declares an architecture (option 61) and asks for a boot file (59 in its Option Request option) is one of
these whatever its vendor classes (16) say, or without any: a Raspberry Pi sends none, and BlueField's UEFI one of its
own. iPXE says over IPv6 nothing of its features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final
from urllib.parse import quote

from edge.dhcp6.wire import ENTERPRISE, Message6, Option, classes, option
from edge.machines import UKI_FILE, Machine, NetbootPolicy
from ipxe.binaries import (
    IPXE_CLASSES,
    BootBinaries,
    BootPath,
    NoBinaryError,
    architecture_name,
    declared_architectures,
    is_http,
    is_u_boot,
    named_architectures,
    platform_name,
)
from ipxe.uboot import BOOT_SCRIPT

REFUSED_FILE: Final = "netboot-not-allowed"
"""What a refused ROM asks for in vain, as over IPv4."""

_BARE: Final = frozenset({Option.CLIENTID, Option.SERVERID, Option.IA_NA, Option.ORO, Option.ELAPSED_TIME})
_HTTP_CLASS: Final = option(
    Option.VENDOR_CLASS, ENTERPRISE.to_bytes(4, "big") + len(b"HTTPClient").to_bytes(2, "big") + b"HTTPClient"
)


class Stage(StrEnum):
    """The part of the boot that a client belongs to, in the words of `edge.journey.steps`."""

    FIRMWARE = "firmware"
    PXE_ROM = "PXE ROM"
    HTTP_ROM = "HTTP Boot ROM"
    U_BOOT = "U-Boot"
    IPXE = "iPXE"
    OPERATING_SYSTEM = "operating system"


@dataclass(frozen=True, slots=True)
class Client6:
    """One DHCPv6 client: what all machines say alike that run the same program. `description` is for people.

    `is_raspberry_pi`: a PXE ROM that is the firmware of a Raspberry Pi.
    """

    stage: Stage
    architectures: tuple[int, ...]
    description: str
    is_raspberry_pi: bool = False

    @property
    def netboots(self) -> bool:
        """Whether it is told what to boot, or, as the OSIE, where its parameters are."""
        return self == OSIE or self.stage not in (Stage.OPERATING_SYSTEM, Stage.FIRMWARE)


@dataclass(frozen=True, slots=True)
class Boot6:
    """What a client boots: options, encoded, and the same in words; `refusal` says why not what it wanted.

    `shared`: all clients of its kind on machines with its boot path are told the same.
    """

    options: bytes = b""
    text: str = ""
    refusal: str = ""
    shared: bool = False

    @property
    def words(self) -> str:
        """The same behind the name of the message that was sent: empty, or from a comma on."""
        if self.refusal:
            what = f"{self.text}, because it may not netboot" if self.text else "nothing to boot"
            return f", {what}: {self.refusal}"
        return f", {self.text}" if self.text else ""


NOTHING: Final = Boot6(shared=True)

OSIE_CLASS: Final = b"tinkedge-osie"
"""The user class of deploy/osie (its dhcpcd-uki.conf)."""
OSIE: Final = Client6(Stage.OPERATING_SYSTEM, (), "the OSIE")


_RPIBOOT: Final = 41


def identify(message: Message6) -> Client6:
    """Return the client that sent `message`."""
    return _identify(
        tuple(message.all(Option.VENDOR_CLASS)),
        tuple(message.all(Option.USER_CLASS)),
        message.get(Option.CLIENT_ARCH_TYPE) or b"",
        message.get(Option.NII) or b"",
        Option.BOOTFILE_URL in message.requested,
        message.requested == (Option.DNS_SERVERS,) and {code for code, _ in message.options} <= _BARE,
    )


@lru_cache(maxsize=256)  # a rack has a handful; a flood of invented ones evicts, never grows
def _identify(
    vendors: tuple[bytes, ...], users: tuple[bytes, ...], architecture: bytes, nii: bytes, wants_file: bool, bare: bool
) -> Client6:
    # RFC 8415 section 21.16: an option for each enterprise number, with any number of classes behind it.
    names = [name for vendor in vendors for name in classes(vendor[4:])]
    user_classes = [name for user in users for name in classes(user)]
    architectures = declared_architectures(architecture) or next(filter(None, map(named_architectures, names)), ())
    platform = platform_name(architectures)
    if any(each.startswith(b"iPXE") or each in IPXE_CLASSES for each in user_classes):  # a PXEClient, too
        return Client6(Stage.IPXE, architectures, f"iPXE ({platform})")
    if OSIE_CLASS in user_classes:
        return OSIE
    stage = _rom(names, architectures)
    if stage is None and is_u_boot(names, architectures, nii):
        return Client6(Stage.U_BOOT, architectures, f"{Stage.U_BOOT} ({platform})")
    if stage is None and architectures and wants_file:
        stage = Stage.HTTP_ROM if is_http(architectures) else Stage.PXE_ROM
    if stage is Stage.PXE_ROM and architectures[:1] == (_RPIBOOT,):
        return Client6(stage, architectures, "Raspberry Pi (boot ROM)", is_raspberry_pi=True)
    if stage is not None:
        return Client6(stage, architectures, f"{platform} {stage}")
    if bare and not users:
        # EDK2's Dhcp6Dxe for Ip6Config wants an address and name servers, and says nothing of itself; an operating
        # system also asks for SOL_MAX_RT, as RFC 8415 section 18.2.1 wants it.
        return Client6(Stage.FIRMWARE, (), "the firmware's network stack")
    return Client6(Stage.OPERATING_SYSTEM, (), Stage.OPERATING_SYSTEM.value)


def _rom(names: list[bytes], architectures: tuple[int, ...]) -> Stage | None:
    """Return the stage of a client with these vendor classes; with both, by its architecture. None: no ROM's class."""
    by_http, by_tftp = (any(name.startswith(kind) for name in names) for kind in (b"HTTPClient", b"PXEClient"))
    if by_http and not (by_tftp and architectures and not is_http(architectures)):
        return Stage.HTTP_ROM
    return Stage.PXE_ROM if by_tftp else None


class BootChoice6:
    """Chooses. `address` is this edge's, in the one spelling of RFC 5952; `http_base_url` of its HTTP, without `/`;
    `path` says by which program a machine boots (None: by the usual one)."""

    def __init__(
        self,
        policy: NetbootPolicy,
        binaries: BootBinaries,
        address: str,
        http_base_url: str,
        path: Callable[[Machine], BootPath | None],
    ) -> None:
        self._policy = policy
        self._binaries = binaries
        self.path = path
        self._tftp = f"tftp://[{address}]/"
        self._http = http_base_url

    def choose(self, machine: Machine, client: Client6) -> Boot6:
        """What `client` boots on `machine`."""
        if client == OSIE:  # a machine that may not netboot is refused there, with the reason
            url = f"{self._http}/auto/parameters"
            return Boot6(_url(url), f"its parameters at {url}", shared=True)
        if not client.netboots:
            return NOTHING
        refusal = self._policy.decide(machine).reason
        if client.stage is Stage.IPXE:  # the end of the chain, so it can't loop; a refusal is its script's to show
            url = f"{self._http}/ipxe/script/{machine.mac}/auto.ipxe"
            return Boot6(_url(url), f"script {url}", refusal)
        if client.stage is Stage.U_BOOT:  # it shows the text of the error, if it is refused
            return Boot6(_url(self._tftp + BOOT_SCRIPT), f"boot script {BOOT_SCRIPT}", refusal, not refusal)
        if client.is_raspberry_pi:
            named = _url(self._tftp)
            return Boot6(refusal=refusal) if refusal else Boot6(named, "Raspberry Pi firmware by TFTP", shared=True)
        by_http = client.stage is Stage.HTTP_ROM
        prefix = f"{self._http}/ipxe/binary/{machine.mac}/" if by_http else self._tftp
        file = prefix + REFUSED_FILE
        if not refusal:
            try:
                file = self._file(machine, client, prefix)
            except NoBinaryError as error:
                refusal = str(error)
        # Without the class of its own the ROM takes the offer for one that can't boot it (EDK2 HttpBootDhcp6.c).
        leading = _HTTP_CLASS if by_http else b""
        text = f"{'a refusal at' if refusal else 'boot file'} {file}"
        shared = not refusal and not by_http and self.path(machine) is not BootPath.UKI
        return Boot6(leading + _url(file), text, refusal, shared)

    def _file(self, machine: Machine, client: Client6, prefix: str) -> str:
        """The URL of its boot program, which begins with `prefix` if that is none of the machine's own.

        Raises:
            NoBinaryError: there is none for it.
        """
        path, by_http = self.path(machine), client.stage is Stage.HTTP_ROM
        if path is BootPath.UKI and client.architectures and "UEFI" in architecture_name(client.architectures[0]):
            named = machine.hardware.spec.osie
            if named is None or not named.name:
                raise NoBinaryError(
                    "boot path uki: spec.osie.name is not set: name the OSIE that the machine is to boot"
                )
            base = f"{self._http}/" if by_http else self._tftp
            return f"{base}osie/{quote(named.name, safe='')}/{UKI_FILE}"
        return prefix + self._binaries.for_architectures(client.architectures, path, http=by_http).name


def _url(url: str) -> bytes:
    """Option 59: no zero at its end (RFC 5970 section 3.1)."""
    return option(Option.BOOTFILE_URL, url.encode("ascii", "ignore"))
