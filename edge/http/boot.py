"""Scripts and boot programs over HTTP: the step of the boot between DHCP and the kernel.

A script is served to its own machine only: the request must come from the address where the machine is known to be
(`edge.callers.by_request`). Whoever may not netboot gets a script that says why. All that a script names is on the
address of ours that the machine has reached.

Signs of life from where a machine is on its own: `/sign/starting`, from iPXE, and `/sign/up`, from the OSIE.

iPXE asks for the first right before it starts the kernel, and says which model it runs on; the OSIE asks for the second
when it has its address. What lies between tells a kernel that never ran from one that found no network card. If
the kernel does not start, and iPXE goes on, it asks for `/sign/failed`: under Secure Boot, mostly. Nothing
depends on the answer, and neither waits for it for long.

iPXE also says how much memory SMBIOS knows of: of the first two Memory Array Mapped Addresses (type 19) the eight bytes
from offset 4 on, which are where each begins and ends, in KiB (DMTF DSP0134, section 7.20). And what time it is by the
machine's clock, in seconds since the epoch, which iPXE writes with 0x: its OSIE will believe that clock when it is
shown a certificate.

Boot media: `/iso/<mac or token>/{boot,static}.{iso,img}`, the image of a CD or a USB stick for one machine.

A BMC attaches it as virtual media and reads what the machine's firmware asks for, by ranges, for hours: so nothing is
made or kept for it. The image is that of `ipxe.medium`, made once, when the first one is asked for; the machine's own
part is put in as it is sent. `.iso` and `.img` are the same bytes, which boot from a CD and from a USB stick: the names
are for BMCs that tell by them what to show to the machine.

A MAC in the path is for the machine itself, known by its address as for scripts; a token (`edge.callers`) for whoever
was given it. Whether the machine may netboot is asked when it comes for its script.
"""

from __future__ import annotations

import asyncio
import logging
import re
import struct
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Final

from aiohttp import web

from edge.callers import MEDIUM_PREFIX, Caller, MediumTokens, MetadataTokenError
from edge.http.context import Context, asked_by, client_name, local_address, size_text, text
from edge.http.fast_path import LiveResponse, PreparedResponse
from edge.http.files import begun, break_off, requested
from edge.http.routes import Route
from edge.journey.events import Outcome, Step, Value
from edge.journey.steps import NOT_STARTED, STARTING, UP
from edge.machines import Machine, MachineScripts
from ipxe.binaries import is_optional
from ipxe.grub import WHY, machine_of
from ipxe.medium import Medium, MediumError, Written, make_medium
from ipxe.medium_scripts import MediumKind
from ipxe.scripts import Dialect, Origin, ScriptError
from tink.limits.newest import Newest
from tink.mac import is_mac
from tink.printable import printable

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


_MOST = 80
"""Characters of what a machine says of itself."""
_TOLD = {"model": "model", "uuid": "uuid"}
_RANGE = re.compile(r"[0-9a-f]{16}")
_SECONDS = re.compile(r"0x[0-9a-f]{1,16}|[0-9]{1,10}")
_ELSEWHERE = 0xFFFFFFFF
"""An end that is too far for these fields."""
_MESSAGES = {
    STARTING: "iPXE starts the kernel",
    NOT_STARTED: "iPXE could not start the kernel: its screen says why. Where Secure Boot is on, the kernel of the "
    "OSIE must be signed by a key that the firmware trusts",
    UP: "the OSIE is up",
}


class Signs:
    """The handler of both."""

    def __init__(self, context: Context, clock: Callable[[], float] = time.time) -> None:
        """`clock` gives seconds since the epoch."""
        self._context = context
        self._clock = clock

    async def sign(self, request: web.Request, route: Route, caller: Caller) -> web.StreamResponse:
        """GET, HEAD."""
        decision = self._context.policy.decide(caller.machine)
        if caller.mac is None or not decision.allowed:
            return self._context.refuse_caller(caller, f"sign {route.name}", status=403, step=Step.BOOT)
        if request.method == "GET":
            detail: dict[str, Value] = {"phase": route.name}
            for name, key in _TOLD.items():
                if given := _words(request.query.get(name, "")):
                    detail[key] = given
            if memory := _memory(request.query.get("memory", ""), request.query.get("above", "")):
                detail["memory_bytes"] = memory
            if _SECONDS.fullmatch(told := request.query.get("clock", "")):
                detail["clock_ahead_seconds"] = round(int(told, 0 if told.startswith("0x") else 10) - self._clock())
            outcome = Outcome.FAILED if route.name == NOT_STARTED else Outcome.INFO
            self._context.record(caller.mac, Step.BOOT, outcome, _MESSAGES[route.name], **detail)
        return text("ok")


def _words(text: str) -> str:
    return " ".join(printable(text[: 2 * _MOST], " ").split())[:_MOST]


def _memory(*ranges: str) -> int:
    """The bytes in these ranges, each as iPXE spells it; 0: it can't be given."""
    total = 0
    for each in filter(None, ranges):
        if _RANGE.fullmatch(each) is None:
            return 0
        begin, end = struct.unpack("<II", bytes.fromhex(each))
        if end == _ELSEWHERE or end < begin:
            return 0
        total += end - begin + 1
    return total << 10


_TYPES: Final = {"iso": "application/x-iso9660-image", "img": "application/octet-stream"}
_KINDS: Final = {kind.value: kind for kind in MediumKind}
_NOT_ITS_OWN: Final = "this medium is served to its own machine, and to whoever has its signed URL (tinkedge iso --url)"


class BootMedia:
    """The handler of boot media."""

    def __init__(
        self,
        context: Context,
        scripts: MachineScripts,
        tokens: MediumTokens,
        directory: Path,
        nearest: Callable[[str], str],
    ) -> None:
        """`directory` has what media are made of (`ipxe.medium`). `nearest(ip)` is the address of ours in the network
        of a machine's one; empty if none is."""
        self._context = context
        self._scripts = scripts
        self._tokens = tokens
        self._directory = directory
        self._nearest = nearest
        self._made: Medium | None = None
        self._making = asyncio.Lock()

    async def image(self, request: web.Request, route: Route, caller: Caller) -> web.StreamResponse:
        """GET, HEAD."""
        name, _, suffix = route.name.partition(".")
        kind = _KINDS[name]
        is_signed = route.who.startswith(MEDIUM_PREFIX)
        try:
            mac = self._tokens.mac(route.who) if is_signed else route.who
        except MetadataTokenError as error:
            why = f"boot medium asked for with a bad token: {error}"
            return self._context.refuse(
                403, f"the token in this path is not good: {error}", seen=caller.address, why=why
            )
        machine = self._context.inventory.by_mac(mac)
        refusal = None if is_signed and machine is not None else self._refusal(mac, machine, caller)
        if refusal is not None:
            return refusal
        try:
            written = await self._written(mac, machine, local_address(request), kind)
        except (ScriptError, MediumError) as error:
            if self._context.first("no medium", mac, str(error)):
                self._context.record(mac, Step.MEDIUM, Outcome.FAILED, f"no boot medium: {error}")
            return text(str(error), status=503 if isinstance(error, MediumError) else 404)
        headers = {"Content-Type": _TYPES[suffix], "ETag": written.etag, "Cache-Control": "no-cache"}
        begin = await begun(request, headers, written.size)
        if isinstance(begin, web.StreamResponse):
            return begin
        response, part = begin
        if self._context.first("medium", mac, route.name, caller.address):
            to = f"to {caller.address}, by its signed URL" if is_signed else "to the machine"
            message = f"boot medium {route.name} of {size_text(written.size)} is sent {to}"
            by = asked_by(caller) if is_signed else {}
            self._context.record(mac, Step.MEDIUM, Outcome.OK, message, medium=kind.value, **by)
        await response.prepare(request)
        try:
            for piece in written.pieces(part.start, part.end):
                await response.write(piece)
            await response.write_eof()
        except ConnectionError:
            break_off(request)
        return response

    def _refusal(self, mac: str, machine: Machine | None, caller: Caller) -> web.Response | None:
        """Why whoever asks does not get the medium of `mac`; None: it does."""
        context, seen = self._context, caller.address
        if not is_mac(mac):
            return context.refuse(404, "not found", seen=seen, why="boot medium asked for with no MAC and no token")
        if machine is None:
            if context.policy.decide(None).allowed and caller.mac in (None, mac):
                return None
            why = f"boot medium asked for {mac}, which no Hardware has, or more than one"
            return context.refuse(403, _NOT_ITS_OWN, seen=seen, why=why)
        if caller.is_from(machine):
            return None
        if caller.status == HTTPStatus.SERVICE_UNAVAILABLE:
            return context.refuse_caller(caller, "boot medium", step=Step.MEDIUM)
        if context.first_refusal("medium address", mac, seen, caller.mac):
            message = f"boot medium asked for from {seen}, which is not known to be this machine, without a signed URL"
            context.record(mac, Step.MEDIUM, Outcome.REFUSED, message, **asked_by(caller))
        return text(_NOT_ITS_OWN, status=403)

    async def _written(self, mac: str, machine: Machine | None, reached: str, kind: MediumKind) -> Written:
        """The image of a machine. Raises ScriptError, MediumError.

        `reached` is the address of ours that the request came to: a BMC's network need not be that of its machine.
        """
        address = self._nearest(machine.ip) if machine is not None and machine.ip else ""
        script = self._scripts.medium(mac, Origin(address or reached), kind)
        async with self._making:
            if self._made is None:
                self._made = await asyncio.to_thread(make_medium, self._directory)
                log.info("boot media: %s", self._made.described)
        return self._made.written(script)
