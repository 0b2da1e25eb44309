"""Scripts and boot programs over HTTP: the step of the boot between DHCP and the kernel.

A script is served to its own machine only: the request must come from the address where the machine is known to be
(`edge.callers.by_request`). Whoever may not netboot gets a script that says why. All that a script names is on the
address of ours that the machine has reached.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from http import HTTPStatus

from aiohttp import web

from edge.callers import Caller
from edge.http.context import Context, asked_by, client_name, local_address, size_text, text
from edge.http.files.response_head import requested
from edge.http.routes import Route
from edge.http.transport.fast_path import LiveResponse, PreparedResponse
from edge.journey.events import Outcome, Step
from edge.machines import Machine, MachineScripts
from ipxe.binaries import is_optional
from ipxe.grub import WHY, machine_of
from ipxe.scripts import Dialect, MediumKind, Origin, ScriptError
from tink.limits.newest import Newest
from tink.mac import is_mac

_MEDIA = {kind.value: kind for kind in MediumKind}
_GRUB_LIST = re.compile(r"[a-z0-9_]+-efi/(command|fs|crypto|terminal)\.lst")

_MAX_ORIGINS = 64

_TARGETS = ("/auto.ipxe", "/{mac}/auto.ipxe", "/ipxe/script/auto.ipxe", "/ipxe/script/{mac}/auto.ipxe")

log = logging.getLogger(__name__)

NO_FAILURE = "the edge has the files of the OSIE, but the connection to this machine broke"

AUTOEXEC = "autoexec.ipxe"
"""What iPXE of 2022 and later asks for where it was loaded from, before its own DHCP."""


class BootScripts:
    """The handler of scripts, and of boot programs."""

    def __init__(self, context: Context, scripts: MachineScripts, failure: Callable[[str], str]) -> None:
        """`failure(mac)` says what went wrong last with a machine's kernel or initrd; empty if nothing did."""
        self._context = context
        self._failure = failure
        self._scripts = scripts
        self._origins: Newest[str, Origin] = Newest(_MAX_ORIGINS)
        self._as_sent = PreparedResponse.of(_script("#"))

    async def script(self, request: web.Request, route: Route, caller: Caller) -> web.StreamResponse:
        """GET /ipxe/script/[<mac>/]auto.ipxe; with `?failed`, why the kernel or initrd did not come.

        A path without a MAC means the machine that asks. With `?medium=`, iPXE was started from such a boot medium.
        """
        mac, seen = route.who or caller.mac, caller.address
        if mac is None:
            return self._context.refuse_caller(caller, "script", step=Step.SCRIPT)
        machine = self._context.inventory.by_mac(mac)
        # Of one that nobody registered: as far as is known.
        if not caller.is_from(machine) if machine is not None else caller.mac not in (None, mac):
            return self._wrong_address(mac, machine, caller)
        if machine is None:
            decision = self._context.policy.decide(None)
            if not is_mac(mac):
                return self._context.refuse(404, "not found", seen=seen, why=f"script asked for {mac[:80]}, no MAC")
            if not decision.allowed:
                if self._context.first_refusal("unknown", seen):
                    log.warning("%s: script asked for %s: %s, or more than one", seen, mac, decision.reason)
                return _script(self._scripts.why(mac, decision.reason))
        if "failed" in request.query:
            # Never the boot script itself: it would ask again, and run in itself for ever.
            return _script(self._scripts.why(mac, self._failure(mac) or NO_FAILURE))
        medium = _MEDIA.get(request.query.get("medium", ""))
        origin = Origin(local_address(request), static=medium is MediumKind.STATIC)
        return _script(self._scripts.script(mac, origin, client=client_name(request), medium=medium))

    def live(self, machine: Machine) -> Mapping[bytes, LiveResponse]:
        """The script of a registered machine that is known by its address, for the fast path: as `script` answers.

        It is decided on and recorded at each request; only the way there is shorter. By target of the request line, in
        the spellings of what DHCP names and of Smee's.
        """
        known = self._context.inventory.by_mac(machine.mac)
        if known is None or (known.name, known.namespace) != (machine.name, machine.namespace):
            return {}  # several Hardware claim its MAC

        def made(client: str, local: str) -> PreparedResponse:
            script = self._scripts.script(machine.mac, self._origin(local), client=client)
            return self._as_sent.with_body(script.encode())

        response = LiveResponse(made)
        return {target.format(mac=machine.mac).encode(): response for target in _TARGETS}

    def _origin(self, local: str) -> Origin:
        """Scripts name the address of ours that was reached; there are few."""
        origin = self._origins.get(local)
        if origin is None:
            origin = self._origins[local] = Origin(local)
        return origin

    async def grub(self, request: web.Request, route: Route, caller: Caller) -> web.StreamResponse:
        """GET /grub/grub.cfg and the other names (`ipxe.grub`): the script for a GRUB that came by UEFI HTTP Boot.

        The machine is known by its address, and a MAC in the path must be its own. GRUB asks for its modules and fonts,
        too, and does without.
        """
        named = machine_of(route.name)
        if named is None:
            # An empty list is what it does without; for one that is missing it shows an error.
            return web.Response(text="", status=200 if _GRUB_LIST.fullmatch(route.name) else 404)
        mac, context = caller.mac, self._context
        if mac is None:
            return context.refuse_caller(caller, "grub.cfg", step=Step.SCRIPT)
        for other in {named, route.who} - {"", mac}:
            machine = context.inventory.by_mac(other)
            if machine is None or not caller.is_from(machine):
                return text("this script is served to its own machine only", status=403)
        mac = named or route.who or mac
        if context.inventory.by_mac(mac) is None and not context.policy.decide(None).allowed:
            return _script(self._scripts.why(mac, context.policy.decide(None).reason, Dialect.GRUB))
        if route.name == WHY:
            if failure := self._failure(mac):
                return _script(self._scripts.why(mac, failure, Dialect.GRUB))
            return _script(self._scripts.not_started(mac) if request.method == "GET" else "")
        origin, client = Origin(local_address(request)), client_name(request)
        is_sent = request.method == "GET"  # GRUB asks for the length first
        return _script(self._scripts.script(mac, origin, client=client, dialect=Dialect.GRUB, recorded=is_sent))

    async def parameters(self, request: web.Request, _route: Route, caller: Caller) -> web.StreamResponse:
        """GET /auto/parameters: the words of the machine's kernel command line, for an OSIE that was started without
        them (a UKI, whose command line is signed), by the caller's address."""
        context, machine = self._context, caller.machine
        decision = context.policy.decide(machine)
        if machine is None:
            return context.refuse_caller(caller, "parameters", step=Step.SCRIPT)
        if not decision.allowed:
            if context.first("parameters", machine.mac, decision.reason):
                message = f"no parameters: {decision.reason}"
                context.record(machine.mac, Step.SCRIPT, Outcome.REFUSED, message)
            return text(f"no netboot: {decision.reason}", status=403)
        try:
            words = self._scripts.parameters(machine, Origin(local_address(request)))
        except ScriptError as error:
            context.record(machine.mac, Step.SCRIPT, Outcome.FAILED, f"no parameters: {error}")
            return text(str(error), status=404)
        if request.method == "GET":
            context.record(machine.mac, Step.BOOT, Outcome.INFO, "the OSIE has asked for its parameters", phase="asked")
        return _script(f"{words}\n")

    async def binary(self, request: web.Request, route: Route, caller: Caller) -> web.StreamResponse:
        """GET /ipxe/binary/[<mac>/]<name>: a boot program, to a machine that may netboot."""
        context, seen = self._context, caller.address
        machine, is_stranger = self._booted(route, caller)
        mac = machine.mac if machine is not None else caller.mac
        to, by = (f" to {seen}", asked_by(caller)) if is_stranger else ("", {})
        first = context.first_refusal if is_stranger else context.first
        decision = context.policy.decide(machine)
        if not decision.allowed:
            why = f"boot program {route.name} asked for by {route.who or seen}: {decision.reason}"
            if machine is not None and first("binary", machine.mac, decision.reason, to):
                context.record(
                    machine.mac, Step.BINARY, Outcome.REFUSED, f"no boot program{to}: {decision.reason}", **by
                )
            # What a Hardware says is told to its own machine only.
            return context.refuse(
                403, "no netboot" if is_stranger else f"no netboot: {decision.reason}", seen=seen, why=why
            )
        if route.name == AUTOEXEC and mac is not None:
            return _script(self._scripts.autoexec(mac, Origin(local_address(request))))
        found = context.binaries.get(route.name)
        if found is None:
            if mac is not None and first("no binary", mac, to):
                message = f"there is no boot program {route.name[:80]}"
                outcome = Outcome.INFO if is_optional(route.name) else Outcome.FAILED
                context.record(mac, Step.BINARY, outcome, f"{message}{to and f', asked for by {seen}'}", **by)
            return text(f"there is no boot program {route.name}", status=404)
        # UEFI HTTP Boot compares the whole header: a charset parameter would break it (EDK2 HttpBootSupport.c).
        media_type = "application/efi" if ".efi" in route.name else "application/octet-stream"
        headers = {"Content-Type": media_type, "ETag": found.etag, "Accept-Ranges": "bytes"}
        part = requested(request, headers, len(found.content))
        if isinstance(part, web.Response):
            return part
        if request.method == "GET" and mac is not None:
            message = f"boot program {route.name} sent over HTTP{to}: {size_text(part.length)}"
            context.record(mac, Step.BINARY, Outcome.OK, message, name=route.name, size_bytes=part.length, **by)
        body = found.content[part.start : part.end]
        return web.Response(body=body, status=206 if part.partial else 200, headers=headers)

    def _booted(self, route: Route, caller: Caller) -> tuple[Machine | None, bool]:
        """Which machine a boot program is for, and whether it is somebody else who asks, as far as can be told."""
        named, own = self._context.inventory.by_mac(route.who) if route.who else None, caller.machine
        if named is None or caller.mac == named.mac:
            return named or own, False
        return named, own is None or (named.namespace, named.name) != (own.namespace, own.name)

    def _wrong_address(self, mac: str, machine: Machine | None, caller: Caller) -> web.Response:
        if caller.status == HTTPStatus.SERVICE_UNAVAILABLE:
            return self._context.refuse_caller(caller, "script", step=Step.SCRIPT)
        seen = caller.address
        if machine is not None and self._context.first_refusal("script address", mac, seen, caller.mac):
            if caller.owner is not None and caller.owner.mac == mac:
                reason = f" by {caller.mac}, which is no MAC of this machine"
            elif machine.addresses:
                reason = f", but its address is {' or '.join(machine.addresses)}"
            else:
                reason = ", but its Hardware reserves no address"
            message = f"script asked for from {seen}{reason}"
            self._context.record(mac, Step.SCRIPT, Outcome.REFUSED, message, **asked_by(caller))
        return text("this script is served to its own machine only", status=403)


def _script(script: str) -> web.Response:
    # It may have a secret of this machine in it.
    return web.Response(text=script, content_type="text/plain", headers={"Cache-Control": "no-store"})
