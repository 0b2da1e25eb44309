"""The agent's state on disk: the ledger file, the events to send, and the workflow that the agent runs."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Final

from tink.agent.executor import REMEMBERED_WORKFLOWS, AfterWorkflow, ExecutionProgress
from tink.agent.model import (
    ActionFailed,
    ActionStarted,
    ActionSucceeded,
    Event,
    RenderedAction,
    Workflow,
    WorkflowOutcome,
    WorkflowRejected,
)

log = logging.getLogger(__name__)

# --- Ledger ---
#
# A file of records that survives `kill -9`: appended to, verified when it is read, rewritten when it has grown.
#
# The ledger does not interpret its records. A record is stored when `append` returns: it is written and fsynced by
# then. Each record is one line: a CRC-32 in hexadecimal over this record and all before it, a space, the record, a line
# feed. The first line contains the file type, whether the file is whole, and the number of records, which is written
# after the record:
#
#     tinkedge-ledger 2 whole 0000000017
#     tinkedge-ledger 2 blind 0000000017    a record could not be written; the records here are true but not all
#
# The reader distinguishes:
#     as many records as counted, or one more, and then the beginning of a line
#                                           the writer died while writing: that record did not count, and is cut off
#     anything else                         the file is damaged: the records before the damage are returned, and `whole`
#                                           is False. Missing, repeated and reordered records are detected, too
#
# A power loss may lose records that did not count, in any order; but then the reader finds another boot id.
#
# When the disk is full or broken, the ledger logs that once, marks itself blind, which needs no new block, and the
# agent continues without it. Each later `append` tries to rewrite the file, so the ledger recovers when there is room
# again. If not even the mark can be written, because the disk is read-only, the file is *stale*: a reader takes it for
# whole. Then the agent must not do anything that would be wrong to do twice.


WHOLE: Final = b"tinkedge-ledger 2 whole "
BLIND: Final = b"tinkedge-ledger 2 blind "
_HEADER: Final = re.compile(rb"tinkedge-ledger 2 (whole|blind) ([0-9]{10})\n")

MAX_BYTES: Final = 64 * 1024 * 1024
"""Maximum number of bytes that are read. No agent writes a longer file, and the OSIE's memory is small."""

GROWN_BYTES: Final = 256 * 1024
"""The file is rewritten when it exceeds its minimum size by this much."""


class Disk:
    """The system calls of a ledger; tests replace it by one that fails at any of them. Methods raise OSError."""

    def read(self, path: Path, limit: int) -> bytes:
        with path.open("rb") as file:
            return file.read(limit)

    def open(self, path: Path, *, new: bool) -> int:
        """Return a descriptor for writing; `new` truncates the file."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if new else 0), 0o600)

    write = staticmethod(os.pwrite)
    sync = staticmethod(os.fsync)
    close = staticmethod(os.close)

    def replace(self, new: Path, path: Path) -> None:
        """Rename `new` to `path`, so that the rename survives a power loss."""
        new.replace(path)
        directory = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a ledger's file. `length` is the end of the last valid record in bytes."""

    records: tuple[bytes, ...]
    length: int
    whole: bool


class Ledger:
    """The file at `path`, for one writer. `snapshot` returns one record that replaces all records so far."""

    def __init__(self, path: Path, snapshot: Callable[[], bytes], disk: Disk | None = None) -> None:
        self._path = path
        self._snapshot = snapshot
        self._disk = disk or Disk()
        self._descriptor: int | None = None
        self._length = 0
        self._least = 0
        self._count = 0
        self._chain = 0
        self.durable = True
        """True if the file is complete. False: the agent continues in memory."""
        self.stale = False
        """True if the file looks complete although it is not."""

    def read(self) -> Content:
        """Return the content of an earlier writer; empty if there is no file. Never raises."""
        try:
            raw = self._disk.read(self._path, MAX_BYTES + 1)
        except FileNotFoundError:
            return Content((), 0, whole=True)
        except OSError as error:
            log.error("%s cannot be read: %s; what the agent did before is not known", self._path, error.strerror)
            return Content((), 0, whole=False)
        content = parse(raw[:MAX_BYTES])
        if len(raw) > MAX_BYTES:
            content = Content(content.records, content.length, whole=False)
        if not content.whole:
            log.error(
                "%s is damaged, or of another version, or was not written to its end because the disk was full: %d "
                "records up to byte %d of %d are used",
                *(self._path, len(content.records), content.length, len(raw)),
            )
        elif content.length < len(raw):
            log.warning("%s: the last record was cut off while it was written; it is ignored", self._path)
        return content

    def append(self, record: bytes, *, sync: bool = True) -> bool:
        """Store `record`, which the next snapshot must contain, too; without `sync` a power loss may remove it.

        Return False if it is not stored (see `durable`). Never raises.
        """
        if self._descriptor is None or self._length > 2 * self._least + GROWN_BYTES:
            return self.rewrite()
        line, chain = line_of(record, self._chain)
        try:
            self._write(self._descriptor, line, self._length)
            self._write(self._descriptor, b"%010d" % (self._count + 1), len(WHOLE))
            if sync:
                self._disk.sync(self._descriptor)
        except OSError as error:
            self._fail(error)
            return False
        self._length += len(line)
        self._count += 1
        self._chain = chain
        return True

    def rewrite(self) -> bool:
        """Replace the file by one with only the snapshot. Return False if that fails. Never raises."""
        new = self._path.with_suffix(".new")
        content, chain = file_of([self._snapshot()])
        try:
            descriptor = self._disk.open(new, new=True)
            try:
                self._write(descriptor, content, 0)
                self._disk.sync(descriptor)
                self._disk.replace(new, self._path)
            except OSError:
                self._disk.close(descriptor)
                raise
        except OSError as error:
            self._fail(error)
            return False
        self.close()
        if not self.durable:
            log.warning("%s: can be written again, and has everything", self._path)
        self._descriptor, self._length, self._least = descriptor, len(content), len(content)
        self._count, self._chain = 1, chain
        self.durable, self.stale = True, False
        return True

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):  # every record that counts was fsynced
                self._disk.close(self._descriptor)
            self._descriptor = None

    def _write(self, descriptor: int, content: bytes, offset: int) -> None:
        while content:
            count = self._disk.write(descriptor, content, offset)
            if count == 0:
                raise OSError(errno.ENOSPC, "nothing could be written")
            content, offset = content[count:], offset + count

    def _fail(self, error: OSError) -> None:
        """Mark the file as incomplete, and let the next `append` rewrite it."""
        if self.durable:
            log.error(
                "%s cannot be written: %s; the agent goes on, but if it is killed now, what it runs will be reported "
                "as lost. Make room there, or give it another --state-dir",
                *(self._path, error.strerror or error),
            )
        self.durable, self.stale = False, True
        self.close()
        try:
            descriptor = self._disk.open(self._path, new=False)
            try:
                self._write(descriptor, BLIND, 0)
                self._disk.sync(descriptor)
            finally:
                self._disk.close(descriptor)
        except FileNotFoundError:  # the directory was removed with the file
            self.stale = False
        except OSError as worse:
            log.error("%s cannot even be marked as incomplete: %s", self._path, worse.strerror or worse)
        else:
            self.stale = False


def line_of(record: bytes, chain: int = 0) -> tuple[bytes, int]:
    """Return the line of a record, which follows records with the checksum `chain`, and the new checksum."""
    chain = zlib.crc32(record, chain)
    return b"%08x %s\n" % (chain, record), chain


def file_of(records: Iterable[bytes]) -> tuple[bytes, int]:
    """Return a whole file of these records, and their checksum."""
    lines, chain = [], 0
    for record in records:
        line, chain = line_of(record, chain)
        lines.append(line)
    return b"%b%010d\n%b" % (WHOLE, len(lines), b"".join(lines)), chain


def parse(raw: bytes) -> Content:
    """Parse the bytes of a file."""
    header = _HEADER.match(raw)
    if header is None:  # this includes an empty file, which only a full disk can leave
        return Content((), 0, whole=False)
    kind, counted = header[1], int(header[2])
    records: list[bytes] = []
    length, chain = header.end(), 0
    while (end := raw.find(b"\n", length)) >= 0:
        record = raw[length + 9 : end]
        line, chain = line_of(record, chain)
        if raw[length : end + 1] != line:
            return Content(tuple(records), length, whole=False)
        records.append(record)
        length = end + 1
    return Content(tuple(records), length, whole=kind == b"whole" and len(records) in (counted, counted + 1))


# --- Spool ---
#
# The queue of events to the server: ordered, stored until the server has acknowledged them.
#
# The agent appends events as actions begin and end. The publisher sends the oldest until it is acknowledged or rejected
# for good, and settles it. Running actions never wait for it, so a workflow continues through a broken connection. The
# agent writes the queue to the journal in the same step, before the publisher can see the event, and a new agent's
# spool begins with it.
#
# An event may have to wait for something that must be sent first; those behind it wait as well.


REJECTION_LIMIT = 256
"""Maximum number of queued rejections: a server that repeats commands and ignores answers must not fill the memory."""


class Spool:
    """A FIFO queue whose head stays until it is settled. For one event loop and one publisher.

    `pending`: the numbered events that an earlier agent has left.
    """

    def __init__(self, pending: Sequence[tuple[int, Event]] = ()) -> None:
        loop = asyncio.get_running_loop()
        self._events = deque(pending)
        self._count = pending[-1][0] if pending else 0
        self._arrived = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[bool]] = {number: loop.create_future() for number, _ in pending}
        self._after: dict[int, asyncio.Future[None]] = {}
        self.on_settle: Callable[[], None] = lambda: None
        """Called whenever an event has left the spool."""
        self.on_append: Callable[[], None] = lambda: None
        """Called whenever an event has come, or may be sent now."""

    def __len__(self) -> int:
        return len(self._events)

    @property
    def pending(self) -> tuple[tuple[int, Event], ...]:
        """All events that wait, oldest first, with their numbers."""
        return tuple(self._events)

    def last_of(self, workflow_id: str) -> asyncio.Future[bool]:
        """Return the future of the workflow's newest queued event; a completed one if none is queued."""
        for number, event in reversed(self._events):
            if event.workflow_id == workflow_id:
                return self._waiting[number]
        taken: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        taken.set_result(True)
        return taken

    def append(self, event: Event, *, after: asyncio.Future[None] | None = None) -> asyncio.Future[bool]:
        """Queue `event`. The future's result is True if the server has acknowledged it, False if it is dropped.

        The publisher does not see the event before `after` is done. A queued rejection is not queued a second time.
        """
        if isinstance(event, WorkflowRejected):
            rejections = [(number, queued) for number, queued in self._events if isinstance(queued, WorkflowRejected)]
            for number, queued in rejections:
                if (queued.workflow_id, queued.reason) == (event.workflow_id, event.reason):
                    return self._waiting[number]
            if len(rejections) >= REJECTION_LIMIT:
                log.warning("%d rejections wait for the server; dropped one more: %s", REJECTION_LIMIT, event.message)
                return self._waiting[rejections[-1][0]]
        self._count += 1
        self._events.append((self._count, event))
        self._waiting[self._count] = asyncio.get_running_loop().create_future()
        if after is not None:
            self._after[self._count] = after
            after.add_done_callback(lambda _: self._news())
        self._news()
        return self._waiting[self._count]

    async def head(self) -> tuple[int, Event]:
        """Wait for an event that may be sent, and return the oldest with its number."""
        while not self.first(1):
            self._arrived.clear()
            await self._arrived.wait()
        return self._events[0]

    def first(self, count: int) -> list[tuple[int, Event]]:
        """Return the oldest events that may be sent, at most `count`, with their numbers."""
        return list(takewhile(lambda each: self._may_be_sent(each[0]), islice(self._events, count)))

    def _may_be_sent(self, number: int) -> bool:
        after = self._after.get(number)
        return after is None or after.done()

    def _news(self) -> None:
        if self.first(1):
            self._arrived.set()
            self.on_append()

    def settle(self, number: int, *, delivered: bool) -> None:
        """Remove the head, `number`, which was acknowledged, or was dropped (`delivered` False)."""
        head, _ = self._events.popleft()
        if head != number:
            raise RuntimeError(f"event {number} is settled while {head} is the oldest")
        future = self._waiting.pop(number)
        self._after.pop(number, None)
        self.on_settle()
        if not future.done():
            future.set_result(delivered)


# --- Journal ---
#
# What the agent has begun, finished and not yet reported: kept on disk, so that no action is run twice.
#
# The agent writes here before it acts: which workflow it took, which action is about to begin, what has ended, and the
# events that the server has not acknowledged. All of one step is one record of the `ledger`: either it happened, or it
# did not. An agent that starts makes its `Executor` and its `Spool` of what `restore` gives, and goes on.
#
# A record has what has changed, as JSON, under these keys; reading is putting one over the other:
#     boot                 the kernel's id of this boot
#     workflow             what runs, with its actions; null: nothing
#     at                   [index of the action, whether it has begun, whether it is to stop]
#     ended                {id of a workflow: how it ended}, added to those before
#     settling             [id, outcome, whether the after-workflow command has begun], or null
#     first                the number of the oldest event that waits; older ones have been acknowledged
#     events               [[number, kind, fields], ...], added to those before
#
# Three findings make what ran *lost*: the file is damaged or incomplete; it can't be written any more, so it may be
# old; or the machine has booted since (its state outlived the reboot, its processes did not). The workflow counts as
# ended and is not run again; the agent does not say that it holds it, so the server decides: it failed, or it has
# succeeded because its last action reboots the machine.


FILE_NAME = "journal"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_EVENTS = {kind.__name__: kind for kind in (ActionStarted, ActionSucceeded, ActionFailed, WorkflowRejected)}

NumberedEvent = tuple[int, Event]


@dataclass(frozen=True, slots=True)
class Restored:
    """The state with which an agent continues: its progress, and the queued events, oldest first.

    `lost`: the id of a workflow whose progress is unknown.
    """

    progress: ExecutionProgress
    pending: tuple[NumberedEvent, ...] = ()
    lost: str = ""


class Journal:
    """The journal in `state_dir`, for one agent. `boot` identifies the boot of the machine."""

    def __init__(self, state_dir: Path, boot: str, disk: Disk | None = None) -> None:
        self._boot = boot
        self.ledger = Ledger(state_dir / FILE_NAME, self._snapshot, disk)
        self._progress = ExecutionProgress()
        self._pending: Sequence[NumberedEvent] = ()

    def restore(self) -> Restored:
        """Return the state of an earlier agent; an empty one if there was none. Never raises."""
        content = self.ledger.read()
        whole = content.whole
        try:
            state = _replay(content.records)
            events = tuple((int(number), _EVENTS[kind](**values)) for number, kind, values in state["events"])
            restored = Restored(_progress_from(state), events)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            log.error("the journal is not one of this version: %r; what the agent did before is not known", error)
            restored, whole, state = Restored(ExecutionProgress()), False, {}
        if not whole:
            restored = _without_what_ran(restored, "the journal is incomplete")
        elif state["boot"] not in ("", self._boot):
            restored = _without_what_ran(restored, "the machine has booted since")
        self._progress, self._pending = restored.progress, restored.pending
        if not self.ledger.rewrite() and self.ledger.stale:
            restored = _without_what_ran(restored, "the journal can't be written, and may be old")
        return replace(restored, lost=restored.lost or _unreported(restored))

    def write(self, progress: ExecutionProgress, pending: Sequence[NumberedEvent], *, sync: bool = True) -> None:
        """Store the progress and the queued events, on disk if possible (`Ledger.durable`).

        Without `sync` they may be lost when the machine loses power.
        """
        change = _differences(self._progress, self._pending, progress, pending)
        self._progress, self._pending = progress, pending
        if change or not self.ledger.durable:
            self.ledger.append(_dump(change), sync=sync)

    def _snapshot(self) -> bytes:
        return _dump({"boot": self._boot, **_differences(ExecutionProgress(), (), self._progress, self._pending)})


def boot_id() -> str:
    """Return the kernel's id of this boot; empty if it has none, which is never another boot."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _differences(
    old: ExecutionProgress,
    old_pending: Sequence[NumberedEvent],
    new: ExecutionProgress,
    new_pending: Sequence[NumberedEvent],
) -> dict[str, Any]:
    change: dict[str, Any] = {}
    if new.workflow is not old.workflow:
        change["workflow"] = asdict(new.workflow) if new.workflow else None
    at = [new.index, new.begun, new.stopping]
    if at != [old.index, old.begun, old.stopping]:
        change["at"] = at
    if ended := {workflow_id: outcome for workflow_id, outcome in new.ended.items() if workflow_id not in old.ended}:
        change["ended"] = ended
    if new.after_workflow != old.after_workflow:
        change["settling"] = None
        if after := new.after_workflow:
            waits = [asdict(after.finally_run)] if after.finally_run is not None else []
            change["settling"] = [after.workflow_id, after.outcome, after.begun, *waits]
    newest = old_pending[-1][0] if old_pending else 0
    if added := [[number, type(event).__name__, asdict(event)] for number, event in new_pending if number > newest]:
        change["events"] = added
    if new_pending and (not old_pending or new_pending[0][0] != old_pending[0][0]):
        change["first"] = new_pending[0][0]
    elif old_pending and not new_pending:
        change["first"] = newest + 1
    return change


def _replay(records: Sequence[bytes]) -> dict[str, Any]:
    state: dict[str, Any] = {"boot": "", "workflow": None, "at": [0, False, False], "settling": None, "first": 0}
    state |= {"ended": {}, "events": []}
    for record in records:
        change = json.loads(record)
        state["ended"] |= change.pop("ended", {})
        state["events"] += change.pop("events", [])
        state |= change
    state["events"] = [raw for raw in state["events"] if raw[0] >= state["first"]]
    return state


def _progress_from(state: Mapping[str, Any]) -> ExecutionProgress:
    raw = state["workflow"]
    workflow = Workflow(raw["id"], tuple(_action_from(action) for action in raw["actions"])) if raw else None
    index, begun, stopping = state["at"]
    after = None
    if state["settling"]:
        workflow_id, outcome, after_begun, *waits = state["settling"]
        finally_run = _action_from(waits[0]) if waits else None
        after = AfterWorkflow(workflow_id, WorkflowOutcome(outcome), after_begun, finally_run)
    if workflow is not None and not 0 <= index < len(workflow.actions):
        raise IndexError(f"action {index} of workflow {workflow.id}")
    ended = list(state["ended"].items())[-REMEMBERED_WORKFLOWS:]
    return ExecutionProgress(
        workflow=workflow,
        index=index,
        begun=begun,
        stopping=stopping,
        ended={workflow_id: WorkflowOutcome(outcome) for workflow_id, outcome in ended},
        after_workflow=after,
    )


def _action_from(raw: Mapping[str, Any]) -> RenderedAction:
    values: dict[str, Any] = {field.name: raw[field.name] for field in fields(RenderedAction) if field.name in raw}
    values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return RenderedAction(**values)


def _without_what_ran(restored: Restored, why: str) -> Restored:
    """Return `restored` without a command to run; its running workflow has ended without a known outcome."""
    progress = ExecutionProgress(ended=restored.progress.ended)
    workflow = restored.progress.workflow
    if workflow is None:
        return Restored(progress, restored.pending)
    log.warning("workflow %s ran here, but %s: it is not continued; the server decides", workflow.id, why)
    return Restored(progress.with_ended(workflow.id, WorkflowOutcome.FAILED), restored.pending, workflow.id)


def _unreported(restored: Restored) -> str:
    """Return the workflow that an earlier agent lost and died before it could report that; empty if none."""
    reported = [event for _, event in restored.pending if not isinstance(event, WorkflowRejected)]
    for event in reversed(reported):
        if restored.progress.ended.get(event.workflow_id) is WorkflowOutcome.FAILED:
            return "" if isinstance(event, ActionFailed) else event.workflow_id
    return ""


def _dump(record: Mapping[str, Any]) -> bytes:
    # ASCII: JSON then contains no line feed, and lone surrogates survive
    return json.dumps(record, separators=(",", ":")).encode("ascii")
