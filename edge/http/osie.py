"""Kernels and initrds: `/osie/<name>/{kernel,initrd}`, from the URLs that the OSIE object names, through the cache.

The machine is known by its address, and may ask for the OSIEs of its own namespace. Whatever goes wrong with the
upstream is told three times: to the machine (iPXE shows the status), to the log and to the journey.
"""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web
from pydantic import ValidationError

from edge.artifacts.cache import Artifact, ArtifactError, NotFoundError, StorageError, UpstreamTimeoutError
from edge.http.body import BodySender, MachineGoneError
from edge.http.boot import requested
from edge.http.context import Context, seen_address, size_text, text
from edge.http.ranges import Span
from edge.http.routes import Route
from edge.inventory import Machine
from edge.journey.events import Outcome, Step
from tink.api.v1alpha2 import OSIE

_STEP = {"kernel": Step.KERNEL, "initrd": Step.INITRD}


class _NoUrlError(Exception):
    """The OSIE does not lead to a URL; the message names it and says why."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which file, for whom. `field` is that of the OSIE object; `url` where the file comes from."""

    machine: Machine
    part: str
    osie: str
    field: str
    url: str

    @property
    def what(self) -> str:
        return f"{self.part} of OSIE {self.osie}"


class OsieFiles:
    """The handler of both files."""

    def __init__(self, context: Context, sender: BodySender) -> None:
        self._context = context
        self._sender = sender
        self._failures: dict[str, str] = {}
        context.inventory.on_change(self._forget)

    def failure(self, mac: str) -> str:
        """Why the file that this machine asked for last did not come; empty if it did."""
        return self._failures.get(mac, "")

    async def answer(self, request: web.Request, route: Route) -> web.StreamResponse:
        """GET, HEAD."""
        seen = seen_address(request)
        machine = self._context.callers.machine(seen)
        if machine is None:
            why = f"{route.name} of OSIE {route.who} asked for, but no Hardware has this address, or more than one"
            return self._context.refuse(403, f"no Hardware has the address {seen}", seen=seen, why=why)
        decision = self._context.policy.decide(machine)
        if not decision.allowed:
            if self._context.first("osie", machine.mac, route.name, decision.reason):
                message = f"no {route.name}: {decision.reason}"
                self._context.record(machine.mac, _STEP[route.name], Outcome.REFUSED, message)
            return text(f"no netboot: {decision.reason}", status=403)
        try:
            wanted = self._wanted(machine, route)
        except _NoUrlError as error:
            return self._failed(machine, route.name, str(error), status=404)
        started = self._context.clock()
        try:
            artifact = await self._context.cache.open(wanted.url)
        except ArtifactError as error:
            message = f"OSIE {wanted.osie}: {wanted.field} {error}"
            return self._failed(machine, route.name, message, status=_status(error))
        with artifact:
            return await self._send(request, wanted, artifact, started)

    def _wanted(self, machine: Machine, route: Route) -> _Wanted:
        """Raises _NoUrlError."""
        full_name = f"{machine.namespace}/{route.who}"
        raw = self._context.osie(machine.namespace, route.who)
        if raw is None:
            raise _NoUrlError(f"OSIE {full_name} does not exist")
        try:
            spec = OSIE.model_validate(raw).spec
        except ValidationError as error:
            problem = error.errors()[0]
            raise _NoUrlError(f"OSIE {full_name}: {'.'.join(map(str, problem['loc']))}: {problem['msg']}") from error
        if route.name == "kernel":
            return _Wanted(machine, "kernel", full_name, "kernelUrl", spec.kernel_url)
        return _Wanted(machine, "initrd", full_name, "initrdUrl", spec.initrd_url)

    def _failed(self, machine: Machine, part: str, message: str, *, status: int) -> web.Response:
        self._say_failed(machine, part, message)
        return text(message, status=status)

    def _say_failed(self, machine: Machine, part: str, message: str) -> None:
        self._failures[machine.mac] = message
        self._context.record(machine.mac, _STEP[part], Outcome.FAILED, message)

    def _forget(self, mac: str) -> None:
        self._failures.pop(mac, None)

    async def _send(
        self, request: web.Request, wanted: _Wanted, artifact: Artifact, started: float
    ) -> web.StreamResponse:
        headers = {
            "Content-Type": "application/octet-stream",
            "ETag": f'"{artifact.version}"',
            "Accept-Ranges": "bytes",
        }
        part = requested(request, headers, artifact.size)
        if isinstance(part, web.Response):
            return part
        response = web.StreamResponse(status=206 if part.partial else 200, headers=headers)
        response.content_length = part.length
        await response.prepare(request)
        if request.method != "HEAD":
            sent = await self._send_body(request, wanted, artifact, part, started)
            if not sent and request.transport is not None:
                # The promised length can't be kept any more; only a broken connection tells the machine so.
                request.transport.abort()
        return response

    async def _send_body(
        self, request: web.Request, wanted: _Wanted, artifact: Artifact, part: Span, started: float
    ) -> bool:
        """Whether the machine has got it all. Says in the journey how it went."""
        mac, step = wanted.machine.mac, _STEP[wanted.part]
        try:
            await self._sender.send(request, artifact, part.start, part.end)
        except MachineGoneError as gone:
            message = f"{wanted.what} broken off after {size_text(gone.sent)} of {size_text(part.length)}: {gone}"
            self._context.record(mac, step, Outcome.FAILED, message, size_bytes=gone.sent)
            return False
        except ArtifactError as error:
            self._say_failed(wanted.machine, wanted.part, f"OSIE {wanted.osie}: {wanted.field} {error}")
            return False
        self._failures.pop(mac, None)
        seconds = self._context.clock() - started
        which = f" (bytes from {part.start})" if part.partial else ""
        message = f"{wanted.what} sent{which}: {size_text(part.length)} in {seconds:.1f} s ({artifact.source.value})"
        detail = {"size_bytes": part.length, "duration_seconds": round(seconds, 3)}
        self._context.record(mac, step, Outcome.OK, message, source=artifact.source.value, **detail)
        return True


def _status(error: ArtifactError) -> int:
    if isinstance(error, NotFoundError):
        return 404
    if isinstance(error, UpstreamTimeoutError):
        return 504
    return 500 if isinstance(error, StorageError) else 502
