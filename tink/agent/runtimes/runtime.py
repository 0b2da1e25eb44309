"""The parts that all runtimes share: their interface, the host's capabilities, volumes, and failure files."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tink.agent.model import ActionError, Reason, RenderedAction, RunResult
from tink.net.urls import redacted

# --- Interface ---
#
# What every way of running actions has in common.
#
# `agent` asks for `pull` and then `run`, one action at a time. Both end early when `stop` is set; a stop is a state,
# not a call, so that it cannot slip through between the two.


STOP_GRACE_SECONDS = 10.0
"""Seconds between TERM and KILL when an action is stopped; Docker's default."""


class Runtime(Protocol):
    """Runs actions."""

    async def prepare(self, held: str = "", /) -> None:
        """Remove what a killed agent has left behind. Called once, before any action runs.

        `held`: the id of the action that `resume` will be called for; that action is not removed. Raises
        AgentSettingsError if the runtime can't be used on this machine.
        """
        ...

    async def pull(self, image: str, stop: asyncio.Event, /) -> None:
        """Pull `image`. Returns without it when `stop` is set. Raises ActionError.

        Reports progress in lines at a limited rate, in the log and to `tink.agent.output.line_sink`.
        """
        ...

    def check(self, action: RenderedAction, /) -> None:
        """Raise ActionError if this machine can't run `action`, whose image is pulled and which runs later."""
        ...

    async def run(self, action: RenderedAction, stop: asyncio.Event, /) -> RunResult:
        """Run `action` to its end, or until `stop` is set: TERM, a grace period, KILL. Raises ActionError.

        Nothing of the action is left afterwards: no process, no mount, no file.
        """
        ...

    async def resume(self, action: RenderedAction, stop: asyncio.Event, /) -> RunResult | None:
        """Look up the action that a killed agent was running. Called after `prepare`, before any action runs.

        If the runtime can know the end (an engine keeps its containers), wait for it like `run`, with the same `stop`,
        and remove the action. Return None if the end is unknown; then nothing of the action runs any more, so that it
        can be reported as failed. Never starts anything. Raises ActionError.
        """
        ...


# --- Host ---
#
# The properties of this machine that containers depend on, for `oci` and `docker` alike.


# fmt: off
CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
    "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
    "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
    "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
    "CHECKPOINT_RESTORE",
)
# fmt: on
"""The capabilities by number, from linux/capability.h."""


@dataclass(frozen=True, slots=True)
class ContainerHost:
    """The properties of this machine that containers depend on.

    `capability_mask`: the agent's own bounding set; runc can't grant more. `shared_files`: files such as
    /etc/resolv.conf that exist here and belong to the machine's network.
    """

    capability_mask: int
    shared_files: tuple[str, ...] = ()

    @classmethod
    def this(cls) -> ContainerHost:
        """Return the properties of this machine."""
        mask = (1 << len(CAPABILITIES)) - 1
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("CapBnd:"):
                mask &= int(line.split()[1], 16)
        return cls(mask, tuple(path for path in ("/etc/resolv.conf", "/etc/hosts") if Path(path).is_file()))


# --- Volumes ---
#
# Volumes of an action: `SRC:DST[:OPTIONS]`, for every runtime that has them.
#
# An absolute SRC is a path of the machine, made as a directory if it is missing, unless it names a socket, a file or a
# device: an action that finds an empty directory there would do something else than it was written for. A name is a
# volume of the runtime, empty or new at first, that lasts as long as the runtime keeps it. Options: ro, rw, and the
# kernel's propagation words.
# Source: `volumes` of the Template of Tinkerbell's v1alpha2, which follows Docker.


_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}")
_FILE = re.compile(
    r"\.(?:sock|socket|conf|cfg|ini|ya?ml|json|toml|env|txt|list|repo|service|pem|crt|cer|key|pub|p12|csr|sh|py"
    r"|img|iso|raw|qcow2|efi|gz|xz|zst|bz2|tgz|tar|zip|squashfs|pid|lock|log|db)\Z"
    r"|/(?:hosts|hostname|passwd|group|shadow|fstab|machine-id|os-release|localtime|cmdline)\Z",
    re.IGNORECASE,
)
"""Names that belong to files and sockets, not to directories such as `conf.d` and `v1.2`."""
_NEVER_MADE = ("/dev/", "/proc/", "/sys/")

_ACCESS = frozenset({"ro", "rw"})
_PROPAGATION = frozenset({"rshared", "shared", "rslave", "slave", "rprivate", "private"})


@dataclass(frozen=True, slots=True)
class Volume:
    """One of the action's volumes: `source` is a path, or a name if `named`."""

    source: str
    target: str
    options: tuple[str, ...]
    named: bool

    @property
    def must_exist(self) -> bool:
        """Return True if the source must exist, because its path or its suffix is not that of a directory."""
        return not self.named and (self.source.startswith(_NEVER_MADE) or bool(_FILE.search(self.source)))

    def __str__(self) -> str:
        return ":".join(part for part in (self.source, self.target, ",".join(self.options)) if part)


def parse_volumes(texts: Iterable[str]) -> tuple[Volume, ...]:
    """Return the volumes of an action in the order of mounting: a nested one after the one around it.

    The order of `texts` has no meaning: volumes of the Template and of the action were merged. Raises ActionError.
    """
    found: dict[str, Volume] = {}
    for text in texts:
        volume = parse_volume(text)
        if other := found.get(volume.target):
            message = f"volumes: {text!r}: {volume.target!r} is the place of another one, {str(other)!r}"
            raise ActionError(Reason.INVALID_ACTION, message)
        found[volume.target] = volume
    return tuple(sorted(found.values(), key=lambda volume: volume.target.count("/")))


def parse_volume(text: str) -> Volume:
    """Parse a volume, `SRC:DST[:OPTIONS]`. Raises ActionError."""

    def invalid(why: str) -> ActionError:
        return ActionError(Reason.INVALID_ACTION, f"volumes: {text!r}: {why}")

    pieces = text.split(":")
    if len(pieces) not in (2, 3):
        raise invalid("is not SRC:DST or SRC:DST:OPTIONS")
    source, target = pieces[0], pieces[1]
    options = tuple(option for option in pieces[2].split(",") if option) if len(pieces) == 3 else ()
    if unknown := [option for option in options if option not in _ACCESS | _PROPAGATION]:
        raise invalid(f"option {unknown[0]!r} is none of {', '.join(sorted(_ACCESS | _PROPAGATION))}")
    for kind in (_ACCESS, _PROPAGATION):
        if len(of_kind := [option for option in options if option in kind]) > 1:
            raise invalid(f"{' and '.join(of_kind)}: only one of {', '.join(sorted(kind))} can be")
    named = not source.startswith("/")
    if named and not _NAME.fullmatch(source):
        raise invalid(f"{source!r} is neither an absolute path nor a name of letters, digits, dots and dashes")
    if named and not _PROPAGATION.isdisjoint(options):
        raise invalid("a volume with a name has no mounts to propagate")
    parts = [part for part in target.split("/") if part not in ("", ".")]
    if not target.startswith("/") or ".." in parts or not parts:
        raise invalid(f"{target!r} is not an absolute path in the container below /")
    return Volume(source, "/" + "/".join(parts), options, named)


# --- Failure files ---
#
# The files with which an action explains its failure, and the defaults.
#
# An action may write one word to `/tinkerbell/failure-reason` and one line to `/tinkerbell/failure-message`; they are
# read when it exits with anything but 0. Runtimes show it the two files of `FailureFiles`; any user of the container
# may write them (mode 0666). Contract: Tinkerbell's failure-reason design of 2023-03-13.
#
# Without a reason: `NonZeroExit`. A reason that is not letters only: `InvalidReason`, and what it wrote goes into the
# message. Without a message: the exit code and the last lines of the output. Messages are one line of at most 2 KiB,
# and the URLs in them have no login and no query.


MESSAGE_LIMIT_BYTES = 2048
_REASON = re.compile(r"[a-zA-Z]{1,128}")


class FailureFiles:
    """The two files of one action, in `directory` (which must exist and be the agent's own)."""

    def __init__(self, directory: Path) -> None:
        self.reason = directory / "failure-reason"
        self.message = directory / "failure-message"

    def create(self) -> None:
        """Create both files, empty and writable by any user of the container whatever the agent's umask is."""
        for path in (self.reason, self.message):
            path.write_bytes(b"")
            path.chmod(0o666)

    def judge(self, exit_code: int, output: str) -> RunResult:
        """Return the result of an action with this exit code and the last lines `output`."""
        return judge(exit_code, _read(self.reason), _read(self.message), output)


def judge(exit_code: int, reason: str, message: str, output: str) -> RunResult:
    """Decide the result for `FailureFiles.judge`, from texts alone."""
    if exit_code == 0:
        return RunResult(0)
    # A program that fails to fetch something names its URL, with a password or signature, and the message goes into the
    # Workflow's status.
    message, output = redacted(message), redacted(output)
    text = f"exit code {exit_code}"
    if exit_code > 128:
        with contextlib.suppress(ValueError):  # a program may exit with any code, also one of no signal
            text += f" ({signal.Signals(exit_code - 128).name})"
    message = one_line(message) or one_line(f"{text}\n{output}" if output else text, keep_end=True)
    reason = reason.strip()
    if not reason:
        return RunResult(exit_code, Reason.NON_ZERO_EXIT, message)
    if not _REASON.fullmatch(reason):
        shown = one_line(reason)[:80]
        message = one_line(f"failure-reason {shown!r} is not a word of letters only; {message}")
        return RunResult(exit_code, Reason.INVALID_REASON, message)
    return RunResult(exit_code, reason, message)


def one_line(text: str, *, keep_end: bool = False) -> str:
    """Return `text` as one line of at most 2 KiB: lines joined by " | ", without control characters."""
    lines = (re.sub(r"[\x00-\x1f\x7f]+", " ", line).strip() for line in text.splitlines())
    raw = " | ".join(line for line in lines if line).encode(errors="replace")
    if len(raw) <= MESSAGE_LIMIT_BYTES:
        return raw.decode(errors="replace")
    room = MESSAGE_LIMIT_BYTES - 3
    cut = b"..." + raw[-room:] if keep_end else raw[:room] + b"..."
    return cut.decode(errors="ignore")


def _read(path: Path) -> str:
    # O_NOFOLLOW: the process runtime's actions could put a link here, and the content goes to the server.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""  # the action removed it
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""  # a directory, or a FIFO that may never have data
        return os.read(descriptor, 2 * MESSAGE_LIMIT_BYTES).decode(errors="replace")
    finally:
        os.close(descriptor)
