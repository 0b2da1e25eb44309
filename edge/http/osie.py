"""Kernels and initrds: `/osie/<name>/{kernel,initrd}`, and `/osie/<name>/uki.efi` which has both.

The files come from the URLs in the OSIE object, through the cache. A machine is known by its address and may request
the OSIEs of its own namespace. If the edge serves machines without a Hardware (auto-proxy), those get the default OSIE
only. A problem with the upstream is reported to the machine (iPXE shows the status), in the log and on the journey. The
journey also shows the progress of a file that the machine still waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from urllib.parse import urlsplit

from aiohttp import web

from edge.artifacts.artifact import Artifact, ArtifactError, NotFoundError, StorageError, UpstreamTimeoutError
from edge.callers import Caller
from edge.http.answers import size_text, text
from edge.http.context import HttpServices
from edge.http.files import MachineGoneError, Span
from edge.http.routes import Route
from edge.journey.events import BEGUN, PROGRESS, Outcome, Step, Value
from edge.machines import UKI, Located, NoArtifactError
from tink.limits import Newest

FIRST_PROGRESS_SECONDS, PROGRESS_SECONDS = 0.5, 5.0
"""Time until a machine's journey first shows the progress of the awaited file, and the interval after that."""

STALLED_SECONDS = 2.0
"""If a machine hangs up after the upstream was silent for this time, the upstream is to blame."""

MAX_FAILURES = 4096
"""Number of machines whose last failure is stored for their screens."""

_STATUSES = ((NotFoundError, 404), (UpstreamTimeoutError, 504), (StorageError, 500))
"""The HTTP status by the kind of error; 502 for all others."""
_STEP = {"kernel": Step.KERNEL, "initrd": Step.INITRD, UKI: Step.BINARY}


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A requested file. `mac` is empty if the machine is unknown."""

    mac: str
    part: str
    located: Located
    started: float

    @property
    def what(self) -> str:
        return f"{'UKI' if self.part == UKI else self.part} of OSIE {self.located.full_name}"

    @property
    def host(self) -> str:
        return urlsplit(self.located.url).hostname or "this host"


class OsieDownloads:
    """The handler of kernel, initrd and UKI."""

    def __init__(self, services: HttpServices) -> None:
        self._services = services
        self._failures: Newest[str, str] = Newest(MAX_FAILURES)

    def failure(self, mac: str) -> str:
        """Return why the last file that a machine requested failed, or an empty string."""
        return self._failures.get(mac, "")

    def machine_changed(self, mac: str) -> None:
        """Forget a machine's failure."""
        self._failures.pop(mac, None)

    async def file(self, request: web.Request, route: Route, caller: Caller) -> web.StreamResponse:
        """Answer GET and HEAD of a file."""
        machine, mac = caller.machine, caller.mac or ""
        if (refusal := self._refusal(caller, route)) is not None:
            return refusal
        namespace = machine.namespace if machine is not None else (self._services.default_osie or ("", ""))[0]
        try:
            located = self._services.osie_files.locate(namespace, route.who, route.name)
        except NoArtifactError as error:
            self._say_failed(mac, route.name, str(error))
            return text(str(error), status=404)
        wanted = _Wanted(mac, route.name, located, self._services.clock())
        if request.method == "GET":
            self._say(mac, route.name, Outcome.INFO, f"{wanted.what} requested", phase=BEGUN, osie=located.full_name)
        try:
            async with self._waiting(wanted):
                artifact = await self._services.osie_files.open(located)
        except ArtifactError as error:
            message = self._say_failed(mac, route.name, f"OSIE {located.full_name}: {located.field} {error}")
            return text(message, status=next((status for kind, status in _STATUSES if isinstance(error, kind)), 502))
        # UEFI HTTP Boot decides by the media type what to do with the file (UEFI 2.10 section 24.7.3.5).
        media_type = "application/efi" if route.name == UKI else "application/octet-stream"
        headers = {"Content-Type": media_type, "ETag": f'"{artifact.version}"'}
        with artifact:
            async with self._waiting(wanted, artifact):
                return await self._services.sender.answer(
                    request, headers, artifact, partial(self._sent, wanted, artifact)
                )

    # --- permission ---

    def _refusal(self, caller: Caller, route: Route) -> web.Response | None:
        machine = caller.machine
        decision = self._services.policy.decide(machine)
        if machine is None:
            default = self._services.default_osie
            if decision.allowed and default is not None and default[1] == route.who:
                return None
            status = caller.status if caller.status == HTTPStatus.SERVICE_UNAVAILABLE else 403
            what = f"{route.name} of OSIE {route.who}"
            return self._services.refuse_caller(caller, what, status=status, step=_STEP[route.name])
        if decision.allowed:
            return None
        return self._services.refuse_netboot(machine, route.name, decision.reason, _STEP[route.name])

    # --- the journey ---

    def _say_failed(self, mac: str, part: str, message: str) -> str:
        if mac:
            self._failures[mac] = message
        self._say(mac, part, Outcome.FAILED, message)
        return message

    def _say(self, mac: str, part: str, outcome: Outcome, message: str, **detail: Value) -> None:
        if mac:
            whole: dict[str, Value] = {"uki": "yes"} if part == UKI else {}
            self._services.record(mac, _STEP[part], outcome, message, **whole, **detail)

    @asynccontextmanager
    async def _waiting(self, wanted: _Wanted, artifact: Artifact | None = None) -> AsyncIterator[None]:
        """Report the progress of the file's download during this context. A complete file has none."""
        if artifact is not None and artifact.progress is None:
            yield
            return
        reporting = asyncio.create_task(self._report_progress(wanted, artifact))
        try:
            yield
        finally:
            reporting.cancel()

    async def _report_progress(self, wanted: _Wanted, artifact: Artifact | None) -> None:
        await asyncio.sleep(FIRST_PROGRESS_SECONDS if artifact is not None else PROGRESS_SECONDS)
        while True:
            progress = artifact.progress if artifact is not None else None
            if progress is None:
                seconds = self._services.clock() - wanted.started
                message = f"{wanted.what}: waiting for {wanted.host} for {seconds:.0f} s"
            elif progress.received != progress.size:
                far = size_text(progress.received)
                whole = f" of {size_text(progress.size)}" if progress.size is not None else ""
                message = f"{wanted.what} is being fetched from {wanted.host}: {far}{whole}"
            else:
                return  # from now on only the machine is slow
            received = progress.received if progress is not None else 0
            detail: dict[str, Value] = {"phase": PROGRESS, "received_bytes": received, "upstream": wanted.host}
            self._say(wanted.mac, wanted.part, Outcome.INFO, message, **detail)
            await asyncio.sleep(PROGRESS_SECONDS)

    def _sent(
        self, wanted: _Wanted, artifact: Artifact, part: Span, error: MachineGoneError | ArtifactError | None
    ) -> None:
        """Record the outcome of sending a body."""
        if isinstance(error, MachineGoneError):
            far = f"{size_text(error.sent)} of {size_text(part.length)}"
            message = f"{wanted.what} broken off after {far}: {error}"
            if error.waited >= STALLED_SECONDS:  # not the machine's fault
                why = f"{wanted.host} had sent nothing for {error.waited:.0f} s, and the machine gave up"
                message = f"{wanted.what} stalled after {far}: {why}"
            self._say(wanted.mac, wanted.part, Outcome.FAILED, message, size_bytes=error.sent)
            return
        if error is not None:
            located = wanted.located
            self._say_failed(wanted.mac, wanted.part, f"OSIE {located.full_name}: {located.field} {error}")
            return
        self._failures.pop(wanted.mac, None)
        seconds = self._services.clock() - wanted.started
        which = f" (bytes from {part.start})" if part.partial else ""
        message = f"{wanted.what} sent{which}: {size_text(part.length)} in {seconds:.1f} s ({artifact.source.value})"
        detail = {"size_bytes": part.length, "duration_seconds": round(seconds, 3)}
        self._say(wanted.mac, wanted.part, Outcome.OK, message, source=artifact.source.value, **detail)
