"""Where TFTP's files come from: the agreement between the server, which knows the protocol, and whoever has the files.

The server calls one function with a TftpRequest and gets a TftpFile to send or a Refusal to pass on. It is called
between packets, so it answers from memory or gives something to await. `edge.tftp.files` is that function for the edge.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from edge.journey.events import Step
from edge.tftp.packets import ErrorCode


def _nothing_to_close() -> None:
    """For files that are kept in memory."""


@dataclass(frozen=True, slots=True)
class TftpRequest:
    """A file name as the client wrote it, and the client's IPv4 address."""

    name: str
    client_ip: str


@dataclass(frozen=True, slots=True)
class TftpFile:
    """A file to send. `content` stays alive and unchanged as long as this object does (bytes, or a view of an mmap).

    `label` names it for people; `mac` is the machine on whose journey the transfer goes (None: an unknown client), and
    `step` which part of it. `filled(offset)` is set for a file that is still arriving: it gives up to which offset
    `content` may be read, as soon as that is beyond `offset`, and raises when that will never be. `close` is called
    once, when the file is not needed any more.
    """

    content: bytes | memoryview
    label: str
    mac: str | None = None
    step: Step = Step.TFTP
    filled: Callable[[int], Awaitable[int]] | None = None
    close: Callable[[], None] = _nothing_to_close

    @property
    def size(self) -> int:
        """Length in bytes."""
        return memoryview(self.content).nbytes


@dataclass(frozen=True, slots=True)
class Refusal:
    """No file: `code` and `message` go to the client's screen, `mac` says whose journey it belongs to: the client's.

    `expected` is true where clients ask by habit for something that nobody has; it is no failure then. `about` is the
    machine in whose name somebody else asked: its journey says so.
    """

    code: ErrorCode
    message: str
    mac: str | None = None
    expected: bool = False
    about: str | None = None


Opened = TftpFile | Refusal

OpenFile = Callable[[TftpRequest], Opened | Awaitable[Opened]]
"""Answers at once where it can; where it has to wait (an upstream), the client's repeated requests are passed over."""
