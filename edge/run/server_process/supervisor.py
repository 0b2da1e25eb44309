"""Supervises the gRPC server's process from the parent: starts it, watches it, and restarts it when it ends.

The supervisor waits before it restarts the child. The delay doubles with each child that ends within GOOD_SECONDS. The
parent stores the addresses that the child has blocked, so an attacker that crashed the child can't connect to the next
one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from edge.journey.events import Notice, Outcome
from edge.run.errors import StackError
from edge.run.server_process.channel import (
    Channel,
    Failed,
    KeptAway,
    LogLine,
    Message,
    Ping,
    Pong,
    Reread,
    ServerState,
    Up,
    log_line,
    pair,
)
from edge.run.server_process.core_log import CoreLog
from edge.settings.model import Service, StackSettings
from tink.files.rereading import register
from tink.limits import Backoff
from tink.metrics.families import counter, gauge
from tink.server import AgentActivity, why_unusable

log = logging.getLogger(__name__)

MODULE: Final = "edge.run.server_process"
START_SECONDS: Final = 120.0
STOP_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 0.5
PING_SECONDS: Final = 5.0
PATIENCE_SECONDS: Final = 30.0  # a child that does not answer for this time is killed and replaced
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.1, 10.0
GOOD_SECONDS: Final = 60.0
CERTIFICATE_SECONDS: Final = 5.0
"""Interval at which a certificate that can't be used is read again. No child is started meanwhile."""
KEEPS_ENDING: Final = 3  # number of ends within GOOD_SECONDS that make a note on /readyz
_LAST_WORDS_SECONDS: Final = 1.0
_SERVICE_MANAGER_VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC")
"""Variables of sd_notify(3) that only the parent may use."""
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class ServerBegin:
    """The initial settings of the child. `kept_away`: the blocked networks (CIDR), and until when (CLOCK_MONOTONIC)."""

    settings: StackSettings
    log_level: int
    kept_away: tuple[tuple[str, float], ...] = ()


def child_settings(settings: StackSettings, kubeconfig: Path | None) -> StackSettings:
    """Return the settings of the child: only the service `server`, at the parent's API, without outputs of its own."""
    return replace(
        settings,
        services=frozenset({Service.SERVER}),
        kubeconfig=kubeconfig,
        manifests=None,
        leader_elect=False,
        server_apart=False,
        edge=replace(settings.edge, reports_key=None),
    )


class ServerProcess:
    """The gRPC server's process: `start`, wait until it is `listening`, and `stop` it. Belongs to one event loop."""

    def __init__(
        self,
        settings: StackSettings,
        kubeconfig: Path | None,
        observe: Callable[[AgentActivity], None],
        announce: Callable[[Notice], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`observe` receives the agents' activity; `announce` is called when the child ends and after a restart."""
        self._settings = child_settings(settings, kubeconfig)
        self._limit = settings.server.memory
        self._observe = observe
        self._announce = announce
        self._clock = clock
        self._keeper: asyncio.Task[None] | None = None
        self._channel: Channel | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._began = asyncio.Event()  # set when the child listens or has failed
        self._serves = False
        self._failure = self._reason = ""
        """The reason why the supervisor ends the child, and the child's own reason why it can't start."""
        self._ends: deque[tuple[float, str]] = deque(maxlen=16)
        self._restarts = 0
        self._asked = self._answered = 0
        self._state = ServerState("", "")
        self._kept_away: dict[str, float] = {}
        self._lacks = ""  # the reason why the certificate can't be used; empty if it can
        self._has_lacked = False
        self._asked_to_read = asyncio.Event()
        register(self)

    # --- lifecycle ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the child."""
        self._keeper = asyncio.create_task(self._keep(), name="gRPC server")

    async def listening(self) -> None:
        """Wait until the child listens for agents, unless its certificate can't be used yet. Raises StackError if it
        can't.
        """
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._began.wait()
        except TimeoutError:
            raise StackError(f"the gRPC server did not begin within {START_SECONDS:.0f} s") from None
        if not self._serves and not self._has_lacked:
            raise StackError(self._reason or self.problem)

    async def stop(self) -> None:
        """Stop the child in order: it closes its connections, so the agents learn that the server stops."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)

    async def _keep(self) -> None:
        backoff = Backoff(FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        while True:
            # A child that begins with a bad certificate would end at once.
            while not self._has_usable_certificate():
                self._began.set()
                self._asked_to_read.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(CERTIFICATE_SECONDS):
                        await self._asked_to_read.wait()
            since = self._clock()
            try:
                how = await self._live()
            except OSError as error:
                how = f"can't be started: {error.strerror or error}"
            except Exception as error:  # Whatever the error is: agents need another child.
                log.exception("the gRPC server's process")
                how = f"can't be started: {error!r}"
            how = self._failure or how
            self._failure, self._state = how, ServerState("", "")
            how = f"the gRPC server's process {how}"
            if self._began.is_set():
                log.error("%s: it is started again, and agents connect again", how)
                self._announce(Notice(time.time(), Outcome.FAILED, how))
            self._ends.append((self._clock(), how))
            self._began.set()
            if self._clock() - since >= GOOD_SECONDS:
                backoff.reset()
            await asyncio.sleep(backoff.next())
            self._restarts += 1

    def _has_usable_certificate(self) -> bool:
        """Read the certificate, and report a reason why it can't be used, once."""
        tls = self._settings.server.tls
        why = why_unusable(tls, time.time()) if tls is not None else ""
        if why and why != self._lacks:
            self._has_lacked = True
            log.error("agents are not served until then: %s", why)
            self._announce(Notice(time.time(), Outcome.FAILED, f"agents are not served: {why}"))
        elif self._lacks and not why:
            log.info("the gRPC server's certificate can be used now: agents are served")
        self._lacks = why
        return not why

    async def _live(self) -> str:
        """Start one child, wait until it ends, and return how it ended. Raises OSError."""
        lost = asyncio.Event()
        self._failure, self._asked, self._answered = "", 0, 0
        now = self._clock()
        self._kept_away = {block: until for block, until in self._kept_away.items() if until > now}
        begin = ServerBegin(self._settings, logging.getLogger().level, tuple(self._kept_away.items()))
        ours, theirs = pair()
        with ExitStack() as ends:
            with theirs:
                channel = await Channel.open(ours, self._take, lost.set)
                ends.callback(channel.close)
                read, write = os.pipe2(os.O_CLOEXEC)
                core_log = CoreLog(read)
                ends.callback(core_log.close)
                try:
                    process = await start_process(begin, theirs.fileno(), write)
                finally:
                    os.close(write)
            self._process, self._channel = process, channel
            watching = asyncio.create_task(self._watch(process))
            try:
                await process.wait()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LAST_WORDS_SECONDS):
                        await lost.wait()
            except asyncio.CancelledError:
                await self._stop(process, channel, lost)
                raise
            finally:
                watching.cancel()
                self._serves, self._process, self._channel = False, None, None
        if core_log.lacks_memory and self._limit is not None:
            return f"ended: it needed more memory than --grpc-memory allows ({self._limit / 1e6:.0f} MB)"
        return f"ended {how_ended(process.returncode or 0)}"

    @staticmethod
    async def _stop(process: asyncio.subprocess.Process, channel: Channel, lost: asyncio.Event) -> None:
        channel.finish()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
                await lost.wait()
        if process.returncode is None:
            _kill(process)
            await process.wait()

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """End a child that does not answer, or that uses too much memory and was not ended by its own limit."""
        asked = self._clock()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            resident = resident_bytes(process.pid) or 0
            if self._limit is not None and resident > self._limit:
                self._failure = f"had {resident / 1e6:.0f} MB of memory; --grpc-memory is {self._limit / 1e6:.0f} MB"
                _kill(process)
            elif self._asked > self._answered and self._clock() - asked > PATIENCE_SECONDS:
                self._failure = f"answered nothing for {PATIENCE_SECONDS:.0f} s"
                _kill(process)
            elif self._asked == self._answered and self._clock() - asked >= PING_SECONDS:
                asked = self._clock()
                if self._serves and self._channel is not None:
                    self._asked += 1
                    self._channel.send(Ping(self._asked))

    # --- messages from the child --------------------------------------------------------------------------------------

    def _take(self, message: Message) -> None:
        match message:
            case AgentActivity():
                self._observe(message)
            case LogLine():
                log_line(message)
            case ServerState():
                self._state = message
            case KeptAway():
                self._kept_away = dict(message.blocks)  # also those of earlier children
            case Pong():
                self._answered = message.number
            case Failed():
                self._reason, self._failure = message.reason, f"can't start: {message.reason}"
            case Up():
                self._serves = True
                if self._ends:
                    log.info("agents are served again")
                    self._announce(Notice(time.time(), Outcome.OK, "agents are served again"))
                self._began.set()

    def reread(self) -> bool:
        """Request that the child reads keys and certificates again (SIGHUP, `tink.files.rereading`), and logs the
        result.
        """
        if self._channel is not None:
            self._channel.send(Reread(logging.getLogger().level))
        elif self._lacks:
            self._lacks = ""  # so that the problem is logged again
            is_usable = self._has_usable_certificate()
            self._asked_to_read.set()
            return is_usable
        return True

    # --- status -------------------------------------------------------------------------------------------------------

    @property
    def problem(self) -> str:
        """The reason why agents are not served; empty if they are, or if the child starts for the first time."""
        if self._lacks and not self._serves:
            return f"agents are not served: {self._lacks}"
        if self._has_lacked and not self._serves and not self._ends:
            return "agents are not served yet: the gRPC server starts"
        return f"agents are not served: {self._ends[-1][1]}" if self._ends and not self._serves else ""

    @property
    def note(self) -> str:
        """The child's own note and a note about repeated restarts; empty if there is none."""
        since = self._clock() - GOOD_SECONDS
        often = sum(when >= since for when, _ in self._ends)
        keeps = f"{self._ends[-1][1]}, {often} times within {GOOD_SECONDS:.0f} s" if often >= KEEPS_ENDING else ""
        return "; ".join(filter(None, (self._state.note, keeps)))

    def metrics(self) -> Iterator[Metric]:
        """Yield the metrics of the process, and those that the child last reported."""
        yield gauge("tinkedge_server_up", "Whether the gRPC server's process serves.", [], {(): float(self._serves)})
        yield counter("tinkedge_server_restarts", "How often it was started again.", [], {(): self._restarts})
        size = resident_bytes(self._process.pid) if self._process is not None else None
        yield gauge("tinkedge_server_resident_memory_bytes", "Its memory.", [], {(): size or 0.0})
        limit = {(): float(self._limit)} if self._limit is not None else {}
        yield gauge("tinkedge_server_memory_limit_bytes", "Bytes at which it is ended (--grpc-memory).", [], limit)
        if self._serves and self._state.metrics:
            yield from text_string_to_metric_families(self._state.metrics)
        else:
            yield gauge("tinkedge_agents_served", "Whether agents are served.", [], {(): 0.0})


async def start_process(begin: ServerBegin, channel: int, stderr: int) -> asyncio.subprocess.Process:
    """Start the child with the file descriptors of its end of the channel and of its standard error. Raises OSError."""
    # The child's standard input. Unlike a pipe, a file in memory takes all bytes even if the child never reads them.
    with open(os.memfd_create("begin"), "w+b") as stdin:  # noqa: ASYNC230, PTH123 - memory, and no path
        pickle.dump(begin, stdin)
        stdin.seek(0)
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-I" if sys.flags.isolated else "-P",
            *("-m", MODULE, str(channel)),
            stdin=stdin,
            stderr=stderr,
            pass_fds=(channel,),
            env={name: value for name, value in os.environ.items() if name not in _SERVICE_MANAGER_VARIABLES},
        )


def how_ended(status: int) -> str:
    """Return an exit status (negative: a signal) as text for people."""
    if status >= 0:
        return f"with exit status {status}"
    name: object = -status
    with suppress(ValueError):
        name = signal.Signals(-status).name
    return f"by signal {name}"


def resident_bytes(pid: int) -> float | None:
    """Return the resident memory of a process (proc(5)), or None if it has ended."""
    try:
        return float(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES)
    except OSError:
        return None


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
