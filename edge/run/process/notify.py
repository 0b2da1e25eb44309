"""What a service tells the manager that started it (systemd): a datagram of NAME=VALUE lines, sd_notify(3).

Without a manager there is nobody to tell, and nothing is sent.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Final, Self

log = logging.getLogger(__name__)

_SEND_SECONDS: Final = 0.5
"""A manager that does not take its datagrams for so long is not waited for: machines are."""

_MICROSECONDS: Final = 1_000_000


@dataclass(slots=True)
class Notifier:
    """`address`: a path, or `@` and an abstract name (unix(7)); empty: nobody listens.

    `watchdog_seconds`: within how many the manager wants to hear of us again and again; 0: never.
    """

    address: str = ""
    watchdog_seconds: float = 0.0
    _failed: bool = False

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] | None = None) -> Self:
        """From NOTIFY_SOCKET and WATCHDOG_USEC (sd_watchdog_enabled(3)), taken out: no child inherits them."""
        variables = os.environ if environment is None else environment
        address = variables.pop("NOTIFY_SOCKET", "")
        usec, pid = variables.pop("WATCHDOG_USEC", ""), variables.pop("WATCHDOG_PID", "")
        wanted = usec.isdecimal() and pid in ("", str(os.getpid()))
        # Of vsock:CID:PORT speak only managers of virtual machines, to whole systems.
        return cls(address if address[:1] in ("/", "@") else "", int(usec) / _MICROSECONDS if wanted else 0.0)

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._send(f"STATUS={_line(text)}")

    def extend_start(self, seconds: float) -> None:
        """The start goes on: give it so many more seconds from now (EXTEND_TIMEOUT_USEC)."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * _MICROSECONDS)}")

    def ready(self, text: str) -> None:
        """The start, or a reload, is done; `text` as for `status`."""
        self._send(f"READY=1\nSTATUS={_line(text)}")

    def reloading(self) -> None:
        """A reload begins; `ready` ends it. MONOTONIC_USEC says which request to reload it answers."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        """The end begins."""
        self._send("STOPPING=1\nSTATUS=stopping")

    def alive(self) -> None:
        """Once within `watchdog_seconds`."""
        self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        if not self.address:
            return
        address = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.settimeout(_SEND_SECONDS)
                sock.sendto(text.encode(), address)
        except OSError as error:
            if not self._failed:
                log.warning("the service manager at %s is not told: %s", self.address, error)
            self._failed = True
        else:
            self._failed = False


def _line(text: str) -> str:
    return " ".join(text.split())
