"""How an action says why it failed, and what is said for one that did not.

An action may write one word to `/tinkerbell/failure-reason` and one line to `/tinkerbell/failure-message`; they are
read when it exits with anything but 0. Runtimes show it the two files of `FailureFiles`; any user of the container
may write them (mode 0666). Contract: Tinkerbell's failure-reason design of 2023-03-13.

Without a reason: `NonZeroExit`. A reason that is not letters only: `InvalidReason`, and what it wrote goes into the
message. Without a message: the exit code and the last lines of the output. Messages are one line of at most 2 KiB, and
the URLs in them have no login and no query.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
from pathlib import Path

from tink.agent.model import Reason, RunResult
from tink.net.urls import redacted

MESSAGE_LIMIT_BYTES = 2048
_REASON = re.compile(r"[a-zA-Z]{1,128}")


class FailureFiles:
    """The two files of one action, in `directory` (which must exist and be the agent's own)."""

    def __init__(self, directory: Path) -> None:
        self.reason = directory / "failure-reason"
        self.message = directory / "failure-message"

    def create(self) -> None:
        """Make both, empty, writable by any user of the container whatever the agent's umask is."""
        for path in (self.reason, self.message):
            path.write_bytes(b"")
            path.chmod(0o666)

    def judge(self, exit_code: int, output: str) -> RunResult:
        """The result of an action that left with `exit_code` after the last lines `output`."""
        return judge(exit_code, _read(self.reason), _read(self.message), output)


def judge(exit_code: int, reason: str, message: str, output: str) -> RunResult:
    """What `FailureFiles.judge` decides, from texts alone."""
    if exit_code == 0:
        return RunResult(0)
    # A program that fails to fetch something names its URL, with a password or signature, and the message goes into the
    # Workflow's status.
    message, output = redacted(message), redacted(output)
    message = one_line(message) or one_line(_describe(exit_code, output), keep_end=True)
    reason = reason.strip()
    if not reason:
        return RunResult(exit_code, Reason.NON_ZERO_EXIT, message)
    if not _REASON.fullmatch(reason):
        shown = one_line(reason)[:80]
        message = one_line(f"failure-reason {shown!r} is not a word of letters only; {message}")
        return RunResult(exit_code, Reason.INVALID_REASON, message)
    return RunResult(exit_code, reason, message)


def one_line(text: str, *, keep_end: bool = False) -> str:
    """`text` on one line of at most 2 KiB: lines joined by " | ", control characters dropped."""
    lines = (re.sub(r"[\x00-\x1f\x7f]+", " ", line).strip() for line in text.splitlines())
    raw = " | ".join(line for line in lines if line).encode(errors="replace")
    if len(raw) <= MESSAGE_LIMIT_BYTES:
        return raw.decode(errors="replace")
    room = MESSAGE_LIMIT_BYTES - 3
    cut = b"..." + raw[-room:] if keep_end else raw[:room] + b"..."
    return cut.decode(errors="ignore")


def _describe(exit_code: int, output: str) -> str:
    text = f"exit code {exit_code}"
    if exit_code > 128:
        with contextlib.suppress(ValueError):  # a program may leave with any code, also with one that is no signal's
            text += f" ({signal.Signals(exit_code - 128).name})"
    return f"{text}\n{output}" if output else text


def _read(path: Path) -> str:
    # O_NOFOLLOW: the process runtime's actions could put a link here, and the content goes to the server.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""  # the action removed it: it has nothing to say
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""  # a directory, or a FIFO that may be empty for ever
        return os.read(descriptor, 2 * MESSAGE_LIMIT_BYTES).decode(errors="replace")
    finally:
        os.close(descriptor)
