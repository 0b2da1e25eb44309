"""Boot media: `/iso/<mac or token>/{boot,static}.{iso,img}`, the image of a CD or a USB stick for one machine.

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
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Final

from aiohttp import web

from edge.callers import MEDIUM_PREFIX, Caller, MediumTokens, MetadataTokenError
from edge.http.context import Context, asked_by, local_address, size_text, text
from edge.http.files.response_head import begun, break_off
from edge.http.routes import Route
from edge.journey.events import Outcome, Step
from edge.machines import Machine, MachineScripts
from ipxe.medium import Medium, MediumError, Written, make_medium
from ipxe.scripts import MediumKind, Origin, ScriptError
from tink.mac import is_mac

log = logging.getLogger(__name__)

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
