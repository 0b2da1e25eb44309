"""A file from a TFTP server, fetched by tftpy: by another implementation than the one that serves it."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import Any

from edge.doctor import extra
from edge.doctor.extra import DiagnoseError

_TIMEOUT_SECONDS = 2
_TRIES = 2
_BLOCK_BYTES = 1468  # what UEFI asks for


@dataclass(frozen=True, slots=True)
class Fetched:
    """What arrived."""

    size: int
    sha256: str
    seconds: float


class _Hash:
    """A file to write to, of which only size and hash are kept."""

    def __init__(self) -> None:
        self.size = 0
        self.hash = hashlib.sha256()

    def write(self, block: bytes) -> None:
        self.size += len(block)
        self.hash.update(block)

    def close(self) -> None:
        """Nothing to do; tftpy calls it."""


def fetch(host: str, name: str, port: int = 69) -> Fetched:
    """The file `name` of the TFTP server at `host`. Raises DiagnoseError, with what tftpy says."""
    tftpy: Any = extra.tftpy()
    sink = _Hash()
    began = time.monotonic()
    try:
        client = tftpy.TftpClient(host, port, {"blksize": _BLOCK_BYTES}, flock=False)
        client.download(name, sink, timeout=_TIMEOUT_SECONDS, retries=_TRIES)
    except tftpy.TftpTimeout as error:
        raise DiagnoseError(f"{host} port {port} does not answer") from error
    except (tftpy.TftpException, OSError) as error:
        raise DiagnoseError(f"{host} port {port}: {' '.join(str(error).split())}") from error
    return Fetched(sink.size, sink.hash.hexdigest(), time.monotonic() - began)
