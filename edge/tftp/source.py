"""The interface between the TFTP server, which knows the protocol, and the code that has the files.

The server calls one function with a `TftpRequest` and gets a `TftpFile` to send, or a `TftpRefusal` to pass on. It
calls the function between packets, so the function answers from memory or returns an awaitable. `edge.tftp.files` is
that function for the edge.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from edge.journey.events import Step
from edge.tftp.packets import ErrorCode


@dataclass(frozen=True, slots=True)
class TftpRequest:
    """A file name as the client wrote it, and the client's IPv4 address."""

    name: str
    client_ip: str


@dataclass(frozen=True, slots=True)
class TftpFile:
    """A file to send. `content` (bytes, or a view of an mmap) stays unchanged during the lifetime of this object.

    label: the file's name for people.
    mac: the machine whose journey records the transfer, or None for an unknown client.
    step: the step of that journey.
    filled: set for a file that is still arriving. `await filled(offset)` returns the number of available bytes as soon
        as it is greater than `offset`, and raises if the file will not arrive.
    close: called once, after the last use.
    """

    content: bytes | memoryview
    label: str
    mac: str | None = None
    step: Step = Step.TFTP
    filled: Callable[[int], Awaitable[int]] | None = None
    close: Callable[[], None] = lambda: None  # a file in memory

    @property
    def size(self) -> int:
        """Length in bytes."""
        return memoryview(self.content).nbytes


@dataclass(frozen=True, slots=True)
class TftpRefusal:
    """The reason why the client gets no file: `code` and `message` go to its screen.

    mac: the client, on whose journey the refusal is recorded.
    expected: True if clients always try this name and a missing file is no failure.
    about: the machine whose MAC the client used without being that machine; its journey records it, too.
    """

    code: ErrorCode
    message: str
    mac: str | None = None
    expected: bool = False
    about: str | None = None


Opened = TftpFile | TftpRefusal

OpenFile = Callable[[TftpRequest], Opened | Awaitable[Opened]]
"""Returns the file at once if possible. While it waits for an upstream, repeated requests of the client are ignored."""
