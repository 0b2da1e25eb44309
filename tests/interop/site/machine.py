"""A machine that boots from the network like firmware and iPXE, with their timeouts, but without an emulator.

    ROM     DHCP (DISCOVER, OFFER, REQUEST, ACK, repeated as iPXE and EDK2 repeat them), the boot program by TFTP.
            After a failure, the firmware tries the next boot device and then the network again: `restarts`
    iPXE    DHCP as iPXE, the script by HTTP; then the script's commands: kernel and initrd from its URLs, in their
            order, `attempts` times; then DHCP once more

A boot has failed after `MOST_RESTARTS` restarts of the firmware, or if a byte is wrong.
"""

from __future__ import annotations

import contextlib
import http.client
import random
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from scapy.layers.dhcp import BOOTP, DHCP

from tests.interop.conftest import enter_namespace
from tests.interop.rack import ip
from tests.interop.site.site import Site, ip_of, mac_of

MOST_RESTARTS = 8
ROUND_SECONDS = 3.0
"""Seconds from a failure to the firmware's next attempt; real firmware takes longer."""
_WAITS = (1.0, 2.0, 4.0, 8.0)
"""Seconds between repetitions of a DHCP packet: those of iPXE (config/dhcp.h); EDK2 begins with 4."""
_SO_BINDTODEVICE = 25
_PXE = [("vendor_class_id", b"PXEClient:Arch:00000:UNDI:002001"), ("pxe_client_architecture", b"\0\0")]


class TryAgainError(Exception):
    """This boot attempt has failed; the firmware tries again."""


@dataclass
class Boot:
    """The result of a boot.

    restarts: the steps in which the firmware started over.
    elsewhere: how many files came from another edge than the script.
    rediscoveries: how often the script asked DHCP for another edge.
    """

    machine: int
    ok: bool = False
    restarts: list[str] = field(default_factory=list)
    elsewhere: int = 0
    rediscoveries: int = 0
    seconds: float = 0.0
    why: list[str] = field(default_factory=list)


@dataclass
class Lease:
    server: str
    next_server: str
    file: str


class Machine:
    """A machine in one namespace. Call `boot` in a thread of its own, since the thread enters the namespace.

    `pace`: the maximum delay of each of a boot's dozen steps in seconds, so that an edge can die in between.
    `before(step, address)` is called before some steps, with the address of the next request.
    """

    def __init__(
        self,
        site: Site,
        number: int,
        pace: float = 0.0,
        before: Callable[[str, str], None] = lambda _step, _address: None,
    ) -> None:
        self._site = site
        self._program = site.program
        self._step = ""
        self._pace = pace
        self._before = before
        self._number = number
        self._mac = mac_of(number)
        self._namespace = site.namespaces[f"m{number}"]

    def enter(self) -> None:
        enter_namespace(self._namespace)

    def boot(self) -> Boot:
        """Boot from power-on until the kernel and the initrd are complete."""
        report = Boot(self._number)
        began = time.monotonic()
        while len(report.restarts) <= MOST_RESTARTS and not report.ok:
            try:
                self._power_on()
                self._step = "DHCP"
                rom = self._dhcp(_PXE)
                self._dawdle()
                self._step = "TFTP"
                self._tftp(rom.next_server, rom.file)
                self._dawdle()
                self._ipxe(report)
                report.ok = True
            except (TryAgainError, OSError, http.client.HTTPException) as error:
                why = f"{time.monotonic() - began:.1f} s: {self._step}: {type(error).__name__}: {error}"
                report.why.append(why)
                report.restarts.append(self._step)
                time.sleep(ROUND_SECONDS)
        report.seconds = time.monotonic() - began
        return report

    def _dawdle(self) -> None:
        time.sleep(random.uniform(0, self._pace))

    def _power_on(self) -> None:
        ip("-4", "-n", self._namespace, "address", "flush", "dev", "eth0")

    # --- DHCP ---

    def _dhcp(self, options: list[tuple[str, bytes]]) -> Lease:
        """Request a lease and configure it. Raises TryAgainError."""
        xid = random.getrandbits(32)
        with self._socket() as sock:
            offer = self._ask(sock, xid, [("message-type", "discover"), *options], 2)
            self._dawdle()
            self._before("REQUEST", offer.server)
            chosen = [("server_id", offer.server), ("requested_addr", ip_of(self._number))]
            lease = self._ask(sock, xid, [("message-type", "request"), *chosen, *options], 5, offer.server)
        ip("-n", self._namespace, "address", "replace", f"{ip_of(self._number)}/24", "dev", "eth0")
        return lease

    @contextlib.contextmanager
    def _socket(self) -> Iterator[socket.socket]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            sock.setsockopt(socket.SOL_SOCKET, _SO_BINDTODEVICE, b"eth0\0")
            sock.bind(("0.0.0.0", 68))
            yield sock

    def _ask(
        self, sock: socket.socket, xid: int, options: list[tuple[str, object]], kind: int, server: str = ""
    ) -> Lease:
        """Repeat a message until an answer of this kind arrives, from `server` if one was chosen; return it."""
        chaddr = bytes.fromhex(self._mac.replace(":", ""))
        packet = bytes(BOOTP(op=1, xid=xid, flags=0x8000, chaddr=chaddr) / DHCP(options=[*options, "end"]))
        for wait in _WAITS:
            sock.sendto(packet, ("255.255.255.255", 67))
            give_up = time.monotonic() + wait
            while (left := give_up - time.monotonic()) > 0:
                sock.settimeout(left)
                try:
                    answer = BOOTP(sock.recv(2048))
                except TimeoutError:
                    break
                if answer.op != 2 or answer.xid != xid or DHCP not in answer:
                    continue
                options_by_name = {
                    name: value for name, value, *_ in (o for o in answer[DHCP].options if isinstance(o, tuple))
                }
                if options_by_name.get("message-type") != kind or server not in ("", options_by_name.get("server_id")):
                    continue
                if answer.yiaddr != ip_of(self._number):
                    raise TryAgainError(f"was given {answer.yiaddr}")
                file = options_by_name.get("boot-file-name") or answer.file
                return Lease(str(options_by_name["server_id"]), answer.siaddr, bytes(file).split(b"\0")[0].decode())
        raise TryAgainError(f"no answer of DHCP to {options[0][1]}")

    # --- TFTP ---

    def _tftp(self, server: str, name: str) -> None:
        """Fetch the boot program in blocks of 1,408 bytes (RFC 1350, RFC 2348). Raises TryAgainError."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            packet = b"\0\1" + name.encode() + b"\0octet\0blksize\x001408\0"
            to, content, expected = (server, 69), b"", 0
            while True:
                answer, to = _exchange(sock, packet, to, expected)
                code, number = struct.unpack("!HH", answer[:4])
                if code == 3:
                    content += answer[4:]
                    if number == 20:
                        self._dawdle()
                    expected = number + 1
                    packet = struct.pack("!HH", 4, number)
                    if len(answer) < 4 + 1408:
                        sock.sendto(packet, to)
                        break
                elif code == 6:
                    packet, expected = b"\0\4\0\0", 1
                else:
                    raise TryAgainError(f"TFTP: {answer[4:].decode(errors='replace')}")
        if content != self._program:
            raise AssertionError(f"m{self._number}: the boot program has other bytes")

    # --- iPXE ---

    def _ipxe(self, report: Boot, *, is_second: bool = False) -> None:
        self._step = "DHCP"
        lease = self._dhcp([("user_class", b"iPXE"), *_PXE])
        self._dawdle()
        self._step = "script"
        script = self._get(lease.file).decode()
        self._step = "files"
        self._run(script, urlsplit(lease.file).hostname or "", report, is_second=is_second)

    def _run(self, script: str, edge: str, report: Boot, *, is_second: bool) -> None:
        """Execute the script as iPXE does. Raises TryAgainError."""
        for part in ("kernel", "initrd"):
            urls = re.findall(rf"^(?:kernel|initrd --name initrd) (\S+/{part})(?: .*)? && goto ", script, re.MULTILINE)
            assert urls, script
            self._dawdle()
            self._before(part, edge)
            if (content := self._fetch(urls, edge, report)) is None:
                why = re.search(r"^imgfetch --name why (\S+) \|\| goto anew$", script, re.MULTILINE)
                assert why
                try:
                    output = self._get(why[1]).decode()
                except (OSError, http.client.HTTPException, TryAgainError):
                    pass
                else:
                    raise TryAgainError(f"the edge says why not: {output}")
                if is_second:
                    raise TryAgainError("nobody has the files, nor says why")
                report.rediscoveries += 1
                self._ipxe(report, is_second=True)
                return
            if content != self._site.files[part]:
                expected = self._site.files[part]
                same = next(
                    (n for n, (a, b) in enumerate(zip(content, expected, strict=False)) if a != b), len(content)
                )
                sizes = f"{len(content)} for {len(expected)}"
                raise AssertionError(f"m{self._number}: {part} has other bytes from {same} on: {sizes}")

    def _fetch(self, urls: list[str], edge: str, report: Boot) -> bytes | None:
        for attempt in range(5):
            if attempt:
                time.sleep(2)
            for url in urls:
                try:
                    content = self._get(url)
                except (OSError, http.client.HTTPException, TryAgainError) as error:
                    report.why.append(f"{url}: {type(error).__name__}: {error}")
                    continue
                report.elsewhere += urlsplit(url).hostname != edge
                return content
        return None

    def _get(self, url: str) -> bytes:
        """Fetch the first half of a file, then the rest. Raises OSError, HTTPException, TryAgainError."""
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=15)
        with contextlib.closing(connection):
            connection.request("GET", parts.path + (f"?{parts.query}" if parts.query else ""))
            answer = connection.getresponse()
            length = answer.length or 0
            content = answer.read(length // 2)
            self._dawdle()
            self._before(f"half of {parts.path}", parts.hostname or "")
            content += answer.read()
            if len(content) < length:  # an edge was killed after the headers: http.client returns an empty body
                raise http.client.IncompleteRead(content, length - len(content))
            if answer.status != 200:
                raise TryAgainError(f"{answer.status} {content[:200].decode(errors='replace')}")
            return content


def _exchange(sock: socket.socket, packet: bytes, to: tuple[str, int], expected: int) -> tuple[bytes, tuple[str, int]]:
    """Send a packet and return the answer with block number `expected` (0: any). Raises TryAgainError."""
    for _ in range(5):
        sock.sendto(packet, to)
        give_up = time.monotonic() + 1.0
        while (left := give_up - time.monotonic()) > 0:
            sock.settimeout(left)
            try:
                answer, sender = sock.recvfrom(2048)
            except TimeoutError:
                break
            except ConnectionRefusedError:
                continue
            code, number = struct.unpack("!HH", answer[:4])
            if code != 3 or not expected or number == expected:
                return answer, sender
    raise TryAgainError(f"TFTP: {to[0]} is silent")
