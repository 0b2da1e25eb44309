"""Scripts, boot programs, signs of life and boot media over HTTP: the steps of a boot before kernel and initrd.

**Scripts.** A script is served to its own machine only: the request must come from the address where the machine is
known to be (`edge.callers.by_request`). A machine that may not netboot gets a script that shows the reason. All URLs in
a script use the address of the edge that the machine has reached.

**Signs of life.** iPXE requests `/sign/starting` right before it starts the kernel, and reports its model. The OSIE
requests `/sign/up` when it has an address. So the journey tells a kernel that never ran from a kernel that found no
network card. If the kernel does not start and iPXE continues (mostly under Secure Boot), iPXE requests `/sign/failed`.
Nothing depends on the answers, and neither client waits for them for long.

iPXE also reports two values:

- the memory that SMBIOS knows: of the first two Memory Array Mapped Addresses (type 19) the eight bytes from offset 4
  on, which are the start and end in KiB (DMTF DSP0134, section 7.20);
- the machine's clock, in seconds since the epoch, which iPXE writes with 0x. The OSIE will use that clock to check
  certificates.

**Boot media.** `/iso/<mac or token>/{boot,static}.{iso,img}` is the image of a CD or a USB stick for one machine. A BMC
attaches it as virtual media and reads ranges of it for hours, whenever the machine's firmware reads a block. So nothing
is created or stored for each machine: `ipxe.medium` builds one image at the first request, and the machine's own part
is inserted while the image is sent. `.iso` and `.img` are the same bytes, which boot from a CD and from a USB stick.
Some BMCs choose the kind of device by the name.

A MAC in the path is accepted from the machine itself, which is known by its address, as for scripts. A token
(`edge.callers`) is accepted from any client. The netboot policy is checked when the machine requests its script.
"""

from __future__ import annotations

import asyncio
import logging
import re
import struct
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final

from aiohttp import web

from edge.callers import MEDIUM_PREFIX, Caller, MediumTokens, MetadataTokenError
from edge.http.answers import client_name, local_address, size_text, text
from edge.http.context import HttpServices, asked_by
from edge.http.fast_path import LiveResponse, PreparedResponse
from edge.http.files import begin_response, break_off, bytes_response
from edge.http.routes import GRUB_LIST, Route
from edge.journey.events import NOT_STARTED, STARTING, UP, Outcome, Step, Value
from edge.machines import Machine
from ipxe.binaries import is_optional
from ipxe.grub import WHY, machine_of
from ipxe.medium import Medium, MediumError, Written, make_medium
from ipxe.scripts import Dialect, EdgeOrigin, MediumKind, ScriptError
from tink.limits import Newest
from tink.mac import is_mac
from tink.printable import printable

log = logging.getLogger(__name__)

_KINDS: Final = {kind.value: kind for kind in MediumKind}

_MAX_ORIGINS = 64

_TARGETS = ("/auto.ipxe", "/{mac}/auto.ipxe", "/ipxe/script/auto.ipxe", "/ipxe/script/{mac}/auto.ipxe")
NO_FAILURE = "the edge has the files of the OSIE, but the connection to this machine broke"

AUTOEXEC = "autoexec.ipxe"
"""The file that iPXE of 2022 and later requests next to itself, before its own DHCP."""


class BootScripts:
    """The handler of scripts and boot programs."""

    def __init__(self, services: HttpServices, failure: Callable[[str], str]) -> None:
        """`failure(mac)` returns the last failure of a machine's kernel or initrd, or an empty string."""
        self._services = services
        self._failure = failure
        self._scripts = services.scripts
        self._origins: Newest[str, EdgeOrigin] = Newest(_MAX_ORIGINS)
        self._prepared = PreparedResponse.of(_script("#"))

    async def script(self, request: web.Request, route: Route, caller: Caller) -> web.StreamResponse:
        """Answer GET /ipxe/script/[<mac>/]auto.ipxe; with `?failed`, show why the kernel or initrd did not arrive.

        A path without a MAC means the calling machine. `?medium=` names the boot medium that iPXE was started from.
        """
        mac, seen = route.who or caller.mac, caller.address
        if mac is None:
            return self._services.refuse_caller(caller, "script", step=Step.SCRIPT)
        machine = self._services.inventory.by_mac(mac)
        # An unregistered machine has no reserved address, so its MAC is compared as far as it is known.
        if not caller.is_from(machine) if machine is not None else caller.mac not in (None, mac):
            return self._wrong_address(mac, machine, caller)
        if machine is None:
            decision = self._services.policy.decide(None)
            if not is_mac(mac):
                return self._services.refuse(404, "not found", seen=seen, why=f"script request for {mac[:80]}, no MAC")
            if not decision.allowed:
                if self._services.first_refusal("unknown", seen):
                    log.warning("%s: script request for %s: %s, or more than one", seen, mac, decision.reason)
                return _script(self._scripts.why(mac, decision.reason))
        if "failed" in request.query:
            # Never the boot script itself: it would request this URL again, without end.
            return _script(self._scripts.why(mac, self._failure(mac) or NO_FAILURE))
        medium = _KINDS.get(request.query.get("medium", ""))
        origin = EdgeOrigin(local_address(request), static=medium is MediumKind.STATIC)
        return _script(self._scripts.script(mac, origin, client=client_name(request), medium=medium))

    def live(self, machine: Machine) -> Mapping[bytes, LiveResponse]:
        """Return the script of a registered machine for the fast path, by the targets that DHCP and Smee send."""
        known = self._services.inventory.by_mac(machine.mac)
        if known is None or (known.name, known.namespace) != (machine.name, machine.namespace):
            return {}  # several Hardware claim its MAC

        # The same answer as that of `script`: it is decided and recorded at each request.
        def made(client: str, local: str) -> PreparedResponse:
            origin = self._origins.get(local)
            if origin is None:
                origin = self._origins[local] = EdgeOrigin(local)
            script = self._scripts.script(machine.mac, origin, client=client)
            return self._prepared.with_body(script.encode())

        response = LiveResponse(made)
        return {target.format(mac=machine.mac).encode(): response for target in _TARGETS}

    async def grub(self, request: web.Request, route: Route, caller: Caller) -> web.StreamResponse:
        """Answer GET /grub/grub.cfg and the other names (`ipxe.grub`): the script for a GRUB from UEFI HTTP Boot.

        The machine is known by its address, and a MAC in the path must be its own. GRUB also requests its modules and
        fonts, and continues without them.
        """
        named = machine_of(route.name)
        if named is None:
            # GRUB accepts an empty list, but shows an error if the file is missing.
            return web.Response(text="", status=200 if GRUB_LIST.fullmatch(route.name) else 404)
        mac, services = caller.mac, self._services
        if mac is None:
            return services.refuse_caller(caller, "grub.cfg", step=Step.SCRIPT)
        for other in {named, route.who} - {"", mac}:
            machine = services.inventory.by_mac(other)
            if machine is None or not caller.is_from(machine):
                return text("this script is served to its own machine only", status=403)
        mac = named or route.who or mac
        if services.inventory.by_mac(mac) is None and not services.policy.decide(None).allowed:
            return _script(self._scripts.why(mac, services.policy.decide(None).reason, Dialect.GRUB))
        if route.name == WHY:
            if failure := self._failure(mac):
                return _script(self._scripts.why(mac, failure, Dialect.GRUB))
            return _script(self._scripts.not_started(mac) if request.method == "GET" else "")
        origin, client = EdgeOrigin(local_address(request)), client_name(request)
        is_sent = request.method == "GET"  # GRUB sends HEAD first, for the length
        return _script(self._scripts.script(mac, origin, client=client, dialect=Dialect.GRUB, recorded=is_sent))

    async def parameters(self, request: web.Request, _route: Route, caller: Caller) -> web.StreamResponse:
        """Answer GET /auto/parameters: the kernel command line of the machine at the caller's address."""
        # For an OSIE that was started without it: the command line of a UKI is signed and the same for all machines.
        services, machine = self._services, caller.machine
        decision = services.policy.decide(machine)
        if machine is None:
            return services.refuse_caller(caller, "parameters", step=Step.SCRIPT)
        if not decision.allowed:
            return services.refuse_netboot(machine, "parameters", decision.reason, Step.SCRIPT)
        try:
            words = self._scripts.parameters(machine, EdgeOrigin(local_address(request)))
        except ScriptError as error:
            services.record(machine.mac, Step.SCRIPT, Outcome.FAILED, f"no parameters: {error}")
            return text(str(error), status=404)
        if request.method == "GET":
            message = "the OSIE has requested its parameters"
            services.record(machine.mac, Step.BOOT, Outcome.INFO, message, phase="asked")
        return _script(f"{words}\n")

    async def binary(self, request: web.Request, route: Route, caller: Caller) -> web.StreamResponse:
        """Answer GET /ipxe/binary/[<mac>/]<name>: a boot program, for a machine that may netboot."""
        services, seen = self._services, caller.address
        machine, is_stranger = self._booted(route, caller)
        mac = machine.mac if machine is not None else caller.mac
        to, by = (f" to {seen}", asked_by(caller)) if is_stranger else ("", {})
        first = services.first_refusal if is_stranger else services.first
        decision = services.policy.decide(machine)
        if not decision.allowed:
            why = f"boot program {route.name} requested by {route.who or seen}: {decision.reason}"
            if machine is not None and first("binary", machine.mac, decision.reason, to):
                services.record(
                    machine.mac, Step.BINARY, Outcome.REFUSED, f"no boot program{to}: {decision.reason}", **by
                )
            # The reason may quote the Hardware, so only its own machine gets it.
            return services.refuse(
                403, "no netboot" if is_stranger else f"no netboot: {decision.reason}", seen=seen, why=why
            )
        if route.name == AUTOEXEC and mac is not None:
            return _script(self._scripts.autoexec(mac, EdgeOrigin(local_address(request))))
        found = services.binaries.get(route.name)
        if found is None:
            if mac is not None and first("no binary", mac, to):
                message = f"there is no boot program {route.name[:80]}"
                outcome = Outcome.INFO if is_optional(route.name) else Outcome.FAILED
                services.record(mac, Step.BINARY, outcome, f"{message}{to and f', requested by {seen}'}", **by)
            return text(f"there is no boot program {route.name}", status=404)
        # UEFI HTTP Boot compares the whole header: a charset parameter would break it (EDK2 HttpBootSupport.c).
        media_type = "application/efi" if ".efi" in route.name else "application/octet-stream"
        response = bytes_response(request, {"Content-Type": media_type, "ETag": found.etag}, found.content)
        if request.method == "GET" and mac is not None and response.status in (200, 206):
            size = response.content_length or 0
            message = f"boot program {route.name} sent over HTTP{to}: {size_text(size)}"
            services.record(mac, Step.BINARY, Outcome.OK, message, name=route.name, size_bytes=size, **by)
        return response

    def _booted(self, route: Route, caller: Caller) -> tuple[Machine | None, bool]:
        """Return the machine that a boot program is for, and True if the caller is known to be another one."""
        named, own = self._services.inventory.by_mac(route.who) if route.who else None, caller.machine
        if named is None or caller.mac == named.mac:
            return named or own, False
        return named, own is None or (named.namespace, named.name) != (own.namespace, own.name)

    def _wrong_address(self, mac: str, machine: Machine | None, caller: Caller) -> web.Response:
        if caller.status == HTTPStatus.SERVICE_UNAVAILABLE:
            return self._services.refuse_caller(caller, "script", step=Step.SCRIPT)
        seen = caller.address
        if machine is not None and self._services.first_refusal("script address", mac, seen, caller.mac):
            if caller.owner is not None and caller.owner.mac == mac:
                reason = f" by {caller.mac}, which is no MAC of this machine"
            elif machine.addresses:
                reason = f", but the machine's address is {' or '.join(machine.addresses)}"
            else:
                reason = ", but the machine's Hardware has no address"
            message = f"script request from {seen}{reason}"
            self._services.record(mac, Step.SCRIPT, Outcome.REFUSED, message, **asked_by(caller))
        return text("this script is served to its own machine only", status=403)


def _script(script: str) -> web.Response:
    # A script may contain a secret of the machine.
    return web.Response(text=script, content_type="text/plain", headers={"Cache-Control": "no-store"})


_MAX_CHARACTERS = 80
"""Length of a text that a machine reports about itself."""
_RANGE = re.compile(r"[0-9a-f]{16}")
_SECONDS = re.compile(r"0x[0-9a-f]{1,16}|[0-9]{1,10}")
_EXTENDED = 0xFFFFFFFF
"""The end of a range that is too large for these fields (DSP0134 section 7.20)."""
_MESSAGES = {
    STARTING: "iPXE starts the kernel",
    NOT_STARTED: "iPXE could not start the kernel: its screen says why. Where Secure Boot is on, the kernel of the "
    "OSIE must be signed by a key that the firmware trusts",
    UP: "the OSIE is up",
}


async def sign(services: HttpServices, request: web.Request, route: Route, caller: Caller) -> web.StreamResponse:
    """Record a sign of life: `/sign/starting`, `/sign/failed` or `/sign/up`. HEAD records nothing."""
    decision = services.policy.decide(caller.machine)
    if caller.mac is None or not decision.allowed:
        return services.refuse_caller(caller, f"sign {route.name}", status=403, step=Step.BOOT)
    if request.method == "GET":
        detail: dict[str, Value] = {"phase": route.name}
        for name in ("model", "uuid"):
            given = printable(request.query.get(name, "")[: 2 * _MAX_CHARACTERS], " ")
            if given := " ".join(given.split())[:_MAX_CHARACTERS]:
                detail[name] = given
        if memory := _memory(request.query.get("memory", ""), request.query.get("above", "")):
            detail["memory_bytes"] = memory
        if _SECONDS.fullmatch(clock := request.query.get("clock", "")):
            detail["clock_ahead_seconds"] = round(int(clock, 0 if clock.startswith("0x") else 10) - time.time())
        outcome = Outcome.FAILED if route.name == NOT_STARTED else Outcome.INFO
        services.record(caller.mac, Step.BOOT, outcome, _MESSAGES[route.name], **detail)
    return text("ok")


def _memory(*ranges: str) -> int:
    """Return the size of memory ranges in bytes, each in iPXE's spelling; 0 if it is unknown."""
    total = 0
    for each in filter(None, ranges):
        if _RANGE.fullmatch(each) is None:
            return 0
        begin, end = struct.unpack("<II", bytes.fromhex(each))
        if end == _EXTENDED or end < begin:
            return 0
        total += end - begin + 1
    return total << 10


_TYPES: Final = {"iso": "application/x-iso9660-image", "img": "application/octet-stream"}
_NOT_ITS_OWN: Final = (
    "this medium is served to its own machine, and to clients that have its signed URL (tinkedge iso --url)"
)


class BootMedia:
    """The handler of boot media."""

    def __init__(self, services: HttpServices) -> None:
        self._services = services
        self._tokens = MediumTokens(services.metadata.keys)
        self._made: Medium | None = None
        self._making = asyncio.Lock()

    async def image(self, request: web.Request, route: Route, caller: Caller) -> web.StreamResponse:
        """Answer GET and HEAD of a boot medium."""
        name, _, suffix = route.name.partition(".")
        kind = _KINDS[name]
        is_signed = route.who.startswith(MEDIUM_PREFIX)
        try:
            mac = self._tokens.mac(route.who) if is_signed else route.who
        except MetadataTokenError as error:
            why = f"boot medium request with an invalid token: {error}"
            return self._services.refuse(
                403, f"the token in this path is not valid: {error}", seen=caller.address, why=why
            )
        machine = self._services.inventory.by_mac(mac)
        refusal = None if is_signed and machine is not None else self._refusal(mac, machine, caller)
        if refusal is not None:
            return refusal
        try:
            written = await self._written(mac, machine, local_address(request), kind)
        except (ScriptError, MediumError) as error:
            if self._services.first("no medium", mac, str(error)):
                self._services.record(mac, Step.MEDIUM, Outcome.FAILED, f"no boot medium: {error}")
            return text(str(error), status=503 if isinstance(error, MediumError) else 404)
        headers = {"Content-Type": _TYPES[suffix], "ETag": written.etag, "Cache-Control": "no-cache"}
        begin = await begin_response(request, headers, written.size)
        if isinstance(begin, web.StreamResponse):
            return begin
        response, part = begin
        if self._services.first("medium", mac, route.name, caller.address):
            to = f"to {caller.address}, by its signed URL" if is_signed else "to the machine"
            message = f"boot medium {route.name} of {size_text(written.size)} is sent {to}"
            by = asked_by(caller) if is_signed else {}
            self._services.record(mac, Step.MEDIUM, Outcome.OK, message, medium=kind.value, **by)
        await response.prepare(request)
        try:
            for piece in written.pieces(part.start, part.end):
                await response.write(piece)
            await response.write_eof()
        except ConnectionError:
            break_off(request)
        return response

    def _refusal(self, mac: str, machine: Machine | None, caller: Caller) -> web.Response | None:
        """Return the error for a caller that may not have the medium of `mac`, or None."""
        services, seen = self._services, caller.address
        if not is_mac(mac):
            return services.refuse(404, "not found", seen=seen, why="boot medium request without a MAC and a token")
        if machine is None:
            if services.policy.decide(None).allowed and caller.mac in (None, mac):
                return None
            why = f"boot medium request for {mac}, which no Hardware has, or more than one"
            return services.refuse(403, _NOT_ITS_OWN, seen=seen, why=why)
        if caller.is_from(machine):
            return None
        if caller.status == HTTPStatus.SERVICE_UNAVAILABLE:
            return services.refuse_caller(caller, "boot medium", step=Step.MEDIUM)
        if services.first_refusal("medium address", mac, seen, caller.mac):
            message = f"boot medium request from {seen}, which is not known to be this machine, without a signed URL"
            services.record(mac, Step.MEDIUM, Outcome.REFUSED, message, **asked_by(caller))
        return text(_NOT_ITS_OWN, status=403)

    async def _written(self, mac: str, machine: Machine | None, reached: str, kind: MediumKind) -> Written:
        """Return the image of a machine, which the edge has reached at `reached`. Raises ScriptError, MediumError."""
        # The request may come from a BMC in another network than the machine.
        address = self._services.nearest(machine.ip) if machine is not None and machine.ip else ""
        script = self._services.scripts.medium(mac, EdgeOrigin(address or reached), kind)
        async with self._making:
            if self._made is None:
                self._made = await asyncio.to_thread(make_medium, self._services.ipxe_dir)
                log.info("boot media: %s", self._made.described)
        return self._made.written(script)
