"""What a booting client is told to boot: the DHCP fields and options that make each kind of firmware do it.

    PXE ROM    -> an iPXE binary for its architecture, by TFTP
    HTTP Boot  -> the same, as a URL
    iPXE       -> the URL of the machine's script: the end of the chain, so it can't loop

The same facts are said twice, in options 66 and 67 and in the header's `siaddr`, `sname` and `file`: shim and U-Boot
read only the header, EDK2 prefers the options.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from edge.dhcp import options
from edge.dhcp.client import Client, Kind
from edge.dhcp.codec import NO_ADDRESS
from ipxe.binaries import BootBinaries

_PXE_CLASS = options.option(options.VENDOR_CLASS, b"PXEClient")
_HTTP_CLASS = options.option(options.VENDOR_CLASS, b"HTTPClient")

# PXE discovery control, bit 3: "a boot file is named, use it". EDK2 takes an offer with option 60 and without this
# sub-option for a redirection to port 4011 and ignores its boot file (PxeBcParseDhcp4Packet, PxeOfferTypeDhcpBinl).
_USE_THE_BOOT_FILE = options.option(
    options.VENDOR_SPECIFIC, options.encapsulated({options.PXE_DISCOVERY_CONTROL: b"\x08"})
)

# Without it iPXE waits 2 s for a ProxyDHCP server, every time (iPXE net/udp/dhcp.c, dhcp_discovery_rx).
NO_PROXY_DHCP = options.option(options.IPXE, options.encapsulated({options.IPXE_NO_PXEDHCP: b"\x01"}))

_PAD = bytes((options.PAD,))


@dataclass(frozen=True, slots=True)
class Boot:
    """The boot part of a reply, encoded.

    `spare_options` may be left out where the client takes only small messages; the header says the same.
    `file` and `sname` are empty where the text is too long for the header.
    """

    siaddr: bytes
    sname: bytes
    file: bytes
    options: bytes
    spare_options: bytes
    text: str


NO_BOOT = Boot(siaddr=NO_ADDRESS, sname=b"", file=b"", options=b"", spare_options=b"", text="")


class BootChoice:
    """Chooses what a client boots. `http_base_url` is that of the edge's HTTP server, without a slash at the end."""

    def __init__(self, binaries: BootBinaries, tftp_ip: str, http_base_url: str) -> None:
        self._binaries = binaries
        self._tftp = options.ipv4(tftp_ip)
        self._tftp_name = options.text(tftp_ip)
        host = urlsplit(http_base_url).hostname or ""
        self._http = options.ipv4(host) if options.is_ipv4(host) else NO_ADDRESS
        self._script_prefix = f"{http_base_url}/ipxe/script/"
        self._binary_prefix = f"{http_base_url}/ipxe/binary/"
        # One per architecture, whatever the number of machines.
        self._pxe_rom = lru_cache(maxsize=64)(self._compile_pxe_rom)

    def choose(self, client: Client, mac: str) -> Boot:
        """What `client` of the machine `mac` boots; NO_BOOT for an operating system.

        Raises:
            ipxe.binaries.NoBinaryError: there is no file for its architecture.
        """
        if client.kind is Kind.IPXE:
            return self._ipxe(mac)
        if client.kind is Kind.PXE_ROM:
            return self._pxe_rom(client.architectures)
        if client.kind is Kind.HTTP_ROM:
            return self._http_rom(client.architectures, mac)
        return NO_BOOT

    def _ipxe(self, mac: str) -> Boot:
        url = options.text(f"{self._script_prefix}{mac}/auto.ipxe")
        # No option 60: iPXE counts an offer that says PXEClient as one of a ProxyDHCP server.
        return self._boot(self._http, url, f"script {url.decode()}", NO_PROXY_DHCP, options.BOOTFILE_NAME, b"")

    def _http_rom(self, architectures: tuple[int, ...], mac: str) -> Boot:
        name = self._binaries.for_architectures(architectures).name
        url = options.text(f"{self._binary_prefix}{mac}/{name}")
        # Without the class of its own the ROM takes the offer for one that can't boot it (HttpBootDhcp4.c).
        return self._boot(self._http, url, f"boot file {url.decode()}", _HTTP_CLASS, options.BOOTFILE_NAME, b"\0")

    def _compile_pxe_rom(self, architectures: tuple[int, ...]) -> Boot:
        name = self._binaries.for_architectures(architectures).name
        boot = self._boot(
            self._tftp,
            options.text(name),
            f"boot file {name}",
            _PXE_CLASS + _USE_THE_BOOT_FILE,
            options.BOOTFILE_NAME,
            b"\0",
        )
        return Boot(
            siaddr=boot.siaddr,
            sname=self._tftp_name,
            file=boot.file,
            options=boot.options,
            spare_options=options.option(options.TFTP_SERVER_NAME, self._tftp_name),
            text=boot.text,
        )

    @staticmethod
    def _boot(siaddr: bytes, file: bytes, text: str, leading: bytes, code: int, terminator: bytes) -> Boot:
        # EDK2 writes a NUL behind a boot file name that has none, over the code of the next option
        # (PxeBcParseDhcp4Packet), and shim copies the option as a C string: so a NUL inside for ROMs, and a pad
        # behind for all. iPXE is given the bare string, as RFC 2132 section 2 wants it.
        encoded = leading + options.option(code, file + terminator) + _PAD
        return Boot(
            siaddr=siaddr,
            sname=b"",
            file=file if len(file) < 128 else b"",
            options=encoded,
            spare_options=b"",
            text=text,
        )
