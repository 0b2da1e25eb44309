"""TFTP as a machine sees it: a boot program fetched by tftpy, another implementation than the one that serves it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edge.doctor import extra
from edge.doctor.extra import DiagnoseError, MissingExtraError
from edge.doctor.findings import Finding, Severity, note, passed, problem
from edge.doctor.firewall import FirstPacket, check_firewall
from edge.doctor.host import BOOT_PROGRAMS, is_readable
from edge.doctor.ports import Port, holders
from edge.neighbour.host import Network

_TIMEOUT_SECONDS = 2
_TRIES: Final = 2
_BLOCK_BYTES: Final = 1468  # the size that UEFI asks for


def check_tftp(network: Network, ipxe_dir: Path, ports: Sequence[Port]) -> Finding:
    """Fetch a boot program from our TFTP server if it runs, and compare it with the file in `ipxe_dir`."""
    name = f"TFTP from {network.address}"
    port = next((port for port in ports if port.name == "tftp"), None)
    if port is None or not any(holders(port)):
        return passed(name, "not tried: it does not run here now")
    file = next((ipxe_dir / name for name in BOOT_PROGRAMS if is_readable(ipxe_dir / name)), None)
    if file is None:
        return passed(name, "not tried: there is no boot program to ask for")
    try:
        fetched = fetch(network.address, file.name, port.number)
    except MissingExtraError as error:
        return note(name, "not tried", str(error))
    except DiagnoseError as error:
        return problem(name, str(error), "see its log, and whether a firewall is in between")
    content = file.read_bytes()
    if fetched.sha256 != hashlib.sha256(content).hexdigest():
        seen = f"{file.name} is not the file in {ipxe_dir}: {fetched.size} bytes instead of {len(content)}"
        return problem(name, seen, "restart tinkedge if the file is new; else see which program has the port")
    seen = f"{file.name}, {fetched.size} bytes in {fetched.seconds:.2f} s"
    return _with_firewall(name, seen, network.interface, port.number)


def _with_firewall(name: str, fetched: str, interface: str, port: int) -> Finding:
    """Add the rules of this host's packet filter to the finding, because the file was fetched by way of lo."""
    filtered = list(check_firewall((FirstPacket("udp", port, interface),)))
    worst = max(filtered, key=lambda finding: finding.severity)
    if not worst.is_fine:
        seen = f"{fetched}, here on this host; but requests of machines on {interface} get no answer: {worst.seen}"
        return Finding(name, worst.severity, seen, worst.remedy)
    if worst.severity is Severity.NOTE:
        seen = f"{fetched}, here on this host; not known whether its packet filter lets machines ask: {worst.seen}"
        return note(name, seen, worst.remedy)
    return passed(name, f"{fetched}, as it should be, here on this host")


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file that was fetched: bytes, SHA-256 in hexadecimal digits, duration."""

    size: int
    sha256: str
    seconds: float


class _HashingFile:
    """A file to write to, for tftpy, which keeps only the size and the hash."""

    def __init__(self) -> None:
        self.size = 0
        self.hash = hashlib.sha256()

    def write(self, block: bytes) -> None:
        self.size += len(block)
        self.hash.update(block)

    def close(self) -> None:
        """Do nothing; tftpy calls it."""


def fetch(host: str, name: str, port: int = 69) -> Fetched:
    """Fetch the file `name` from the TFTP server at `host`. Raises DiagnoseError with the message of tftpy."""
    tftpy: Any = extra.tftpy()
    file = _HashingFile()
    began = time.monotonic()
    try:
        client = tftpy.TftpClient(host, port, {"blksize": _BLOCK_BYTES}, flock=False)
        client.download(name, file, timeout=_TIMEOUT_SECONDS, retries=_TRIES)
    except tftpy.TftpTimeout as error:
        raise DiagnoseError(f"{host} port {port} does not answer") from error
    except (tftpy.TftpException, OSError) as error:
        raise DiagnoseError(f"{host} port {port}: {' '.join(str(error).split())}") from error
    return Fetched(file.size, file.hash.hexdigest(), time.monotonic() - began)
