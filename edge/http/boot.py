"""Scripts and boot programs over HTTP: the step of the boot between DHCP and the kernel.

A script is served to its own machine only: the request must come from the address that the Hardware reserves for the
interface whose MAC stands in the path. Whoever is registered but may not netboot gets a script that says why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from edge.http.context import Context, client_name, seen_address, size_text, text
from edge.http.ranges import Span, UnsatisfiableError, matches, span
from edge.http.routes import Route
from edge.inventory import Machine
from edge.journey.events import Outcome, Step
from ipxe.scripts import Script, ScriptError, Scripts

NO_FAILURE = "the edge has the files of the OSIE, but the connection to this machine broke"


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A script, or the problem of the Hardware that there is none for."""

    script: Script | None
    problem: str = ""


class BootScripts:
    """Scripts by machine, rendered when first asked for after each change of the Hardware."""

    def __init__(self, context: Context, scripts: Scripts, failure: Callable[[str], str]) -> None:
        """`failure(mac)` says what went wrong last with a machine's kernel or initrd; empty if nothing did."""
        self._context = context
        self._scripts = scripts
        self._failure = failure
        self._compiled: dict[str, _Compiled] = {}
        context.inventory.on_change(self._forget)

    async def answer(self, request: web.Request, route: Route) -> web.StreamResponse:
        """GET /ipxe/script/<mac>/auto.ipxe; with `?failed`, why the kernel or initrd did not come."""
        seen = seen_address(request)
        machine = self._context.inventory.by_mac(route.who)
        if machine is None:
            why = f"script asked for {route.who}: no Hardware has this MAC address, or more than one"
            return self._context.refuse(404, f"no Hardware has the MAC address {route.who}", seen=seen, why=why)
        if not self._context.callers.is_at(machine, seen):
            return self._wrong_address(machine, seen)
        if "failed" in request.query:
            # Never the boot script itself: it would ask again, and run in itself for ever.
            failure = self._failure(machine.mac) or NO_FAILURE
            return web.Response(text=self._scripts.reason(machine.mac, failure), content_type="text/plain")
        return self._script(machine, by=client_name(request))

    def _wrong_address(self, machine: Machine, seen: str) -> web.Response:
        expected = f"its address is {machine.ip}" if machine.ip is not None else "its Hardware reserves no address"
        if self._context.first_refusal("script address", machine.mac, seen):
            message = f"script asked for from {seen}, but {expected}"
            self._context.record(machine.mac, Step.SCRIPT, Outcome.REFUSED, message, address=seen)
        return text("this script is served to its own machine only", status=403)

    def _script(self, machine: Machine, *, by: str) -> web.Response:
        decision = self._context.policy.decide(machine)
        compiled = self._compile(machine)
        script, outcome = compiled.script, Outcome.OK
        if not decision.allowed:
            script, outcome, reason = None, Outcome.REFUSED, decision.reason
        elif script is None:
            outcome, reason = Outcome.FAILED, compiled.problem
        elif script.osie is not None and self._context.osie(machine.namespace, script.osie) is None:
            reason = f"OSIE {machine.namespace}/{script.osie}, which Hardware {machine.name} names, does not exist"
            script, outcome = None, Outcome.FAILED
        if script is not None:
            body = script.text
            self._context.record(machine.mac, Step.SCRIPT, outcome, f"script sent: {script.what}", client=by)
        else:
            body = self._scripts.reason(machine.mac, reason)
            self._context.record(machine.mac, Step.SCRIPT, outcome, f"no boot: {reason}", client=by, reason=reason)
        return web.Response(text=body, content_type="text/plain")

    def _compile(self, machine: Machine) -> _Compiled:
        compiled = self._compiled.get(machine.mac)
        if compiled is None:
            try:
                compiled = _Compiled(self._scripts.compile(machine.mac, machine.hardware))
            except ScriptError as error:
                compiled = _Compiled(None, str(error))
            self._compiled[machine.mac] = compiled
        return compiled

    def _forget(self, mac: str) -> None:
        self._compiled.pop(mac, None)


async def binary(context: Context, request: web.Request, route: Route) -> web.StreamResponse:
    """GET /ipxe/binary/[<mac>/]<name>: a boot program, to a machine that may netboot."""
    seen = seen_address(request)
    machine = context.inventory.by_mac(route.who) if route.who else context.callers.machine(seen)
    decision = context.policy.decide(machine)
    if machine is None or not decision.allowed:
        why = f"boot program {route.name} asked for by {route.who or seen}: {decision.reason}"
        if machine is not None and context.first("binary", machine.mac, decision.reason):
            context.record(machine.mac, Step.BINARY, Outcome.REFUSED, f"no boot program: {decision.reason}")
        return context.refuse(403, f"no netboot: {decision.reason}", seen=seen, why=why)
    found = context.binaries.get(route.name)
    if found is None:
        # iPXE itself asks for autoexec.ipxe where it came from, and goes on without.
        outcome = Outcome.INFO if route.name == "autoexec.ipxe" else Outcome.FAILED
        if context.first("no binary", machine.mac, outcome):
            message = f"there is no boot program {route.name[:80]}"
            context.record(machine.mac, Step.BINARY, outcome, message)
        return text(f"there is no boot program {route.name}", status=404)
    # UEFI HTTP Boot compares the whole header: a charset parameter would break it (EDK2 HttpBootSupport.c).
    media_type = "application/efi" if route.name.endswith(".efi") else "application/octet-stream"
    headers = {"Content-Type": media_type, "ETag": found.etag, "Accept-Ranges": "bytes"}
    part = requested(request, headers, len(found.content))
    if isinstance(part, web.Response):
        return part
    if request.method == "GET":
        message = f"boot program {route.name} sent over HTTP: {size_text(part.length)}"
        context.record(machine.mac, Step.BINARY, Outcome.OK, message, size_bytes=part.length)
    body = found.content[part.start : part.end]
    return web.Response(body=body, status=206 if part.partial else 200, headers=headers)


def requested(request: web.Request, headers: dict[str, str], size: int) -> Span | web.Response:
    """The bytes that a request asks for, or the answer if it asks for none (304, 412, 416).

    Puts Content-Range into `headers`, which must hold the ETag.
    """
    etag = headers["ETag"]
    if_match = request.headers.get("If-Match")
    if if_match is not None and not matches(if_match, etag):
        return text("the file has changed", status=412)
    if_none_match = request.headers.get("If-None-Match")
    if if_none_match is not None and matches(if_none_match, etag):
        return web.Response(status=304, headers={"ETag": etag})
    if_range = request.headers.get("If-Range")
    range_header = request.headers.get("Range") if if_range is None or if_range.strip() == etag else None
    try:
        part = span(range_header, size)
    except UnsatisfiableError:
        response = text(f"the file has {size} bytes", status=416)
        response.headers["Content-Range"] = f"bytes */{size}"
        return response
    if part.partial:
        headers["Content-Range"] = part.content_range
    return part
