"""Metadata over HTTP: who is asking, and what `hegel.metadata` has compiled for that machine.

The EC2 tree has no machine in its paths: the address of the connection says who is asking, no header does. The NoCloud
files and the phone-home report have one; they are served to that machine's own addresses only, and to everybody else
the answer is the same whether such a machine exists or not.
"""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qs

from aiohttp import web

from edge.http.context import Context, client_name, seen_address, text
from edge.http.routes import Route
from edge.inventory import Machine
from edge.journey.events import Outcome, Step
from hegel.metadata import MetadataTree, compile_tree

PHONE_HOME_SECONDS = 10.0
MAX_FORM_FIELDS = 32

_DOCUMENTS = ("instance-id", "user-data", "vendor-data", "network-config")
"""What gets a journey entry of its own; all else that a crawl reads is one entry."""


class MetadataService:
    """The handlers of metadata."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._trees: dict[str, tuple[Machine, MetadataTree]] = {}
        context.inventory.on_change(self._forget)

    async def ec2(self, request: web.Request, route: Route) -> web.StreamResponse:
        """GET /2009-04-04/... and /latest/...."""
        seen = seen_address(request)
        machine = self._context.callers.machine(seen)
        if machine is None:
            return self._unknown(seen)
        body = self._tree(machine).ec2.get(route.name)
        if body is None:
            return text(f"the Hardware of {seen} has no {route.name}", status=404)
        self._note(request, machine, route.name.rpartition("/")[2], "")
        return web.Response(body=body, content_type="text/plain", charset="utf-8")

    async def nocloud(self, request: web.Request, route: Route) -> web.StreamResponse:
        """GET /nocloud/<mac-or-name>/<file>."""
        seen = seen_address(request)
        machine = self._own(seen, route.who)
        if isinstance(machine, web.Response):
            return machine
        self._note(request, machine, route.name, " (NoCloud)")
        body = self._tree(machine).nocloud[route.name]
        return web.Response(body=body, content_type="text/plain", charset="utf-8")

    async def phone_home(self, request: web.Request, route: Route) -> web.StreamResponse:
        """POST /phone-home/<mac-or-name>: cloud-init's module phone_home says that it has finished."""
        seen = seen_address(request)
        machine = self._own(seen, route.who)
        if isinstance(machine, web.Response):
            return machine
        if request.content_type != "application/x-www-form-urlencoded":
            return text("the report must be a form: application/x-www-form-urlencoded", status=415)
        try:
            async with asyncio.timeout(PHONE_HOME_SECONDS):
                form = parse_qs((await request.read()).decode(errors="replace"), max_num_fields=MAX_FORM_FIELDS)
        except TimeoutError:
            return text(f"the report did not arrive within {PHONE_HOME_SECONDS:g} s", status=408)
        except ValueError:
            return text(f"the report has more than {MAX_FORM_FIELDS} fields", status=400)
        hostname = form.get("hostname", [machine.name])[0][:253]
        detail = {"hostname": hostname, "instance_id": form.get("instance_id", [""])[0][:253]}
        if self._context.first("phone home", machine.mac, detail["instance_id"]):
            message = f"cloud-init finished on {hostname}"
            self._context.record(machine.mac, Step.METADATA, Outcome.OK, message, **detail)
        return text("thank you")

    def _own(self, seen: str, who: str) -> Machine | web.Response:
        """The machine that asks, if it is the one named `who` (MAC or Hardware name)."""
        machine = self._context.callers.machine(seen)
        if machine is None:
            return self._unknown(seen)
        own = self._context.inventory.by_name(machine.name, machine.namespace)
        if who == machine.name or any(who == interface.mac for interface in own):
            return machine
        why = f"asked for the metadata of {who}, but this address is that of {machine.namespace}/{machine.name}"
        return self._context.refuse(403, f"{seen} is not an address of the machine asked for", seen=seen, why=why)

    def _unknown(self, seen: str) -> web.Response:
        why = "asked for metadata, but no Hardware has this address, or more than one"
        return self._context.refuse(404, f"no Hardware has the address {seen}", seen=seen, why=why)

    def _note(self, request: web.Request, machine: Machine, name: str, how: str) -> None:
        """One journey entry for each document and crawl, not for each of its requests."""
        if request.method != "GET":
            return
        document = name if name in _DOCUMENTS else "meta-data"
        if self._context.first("metadata", machine.mac, document, how):
            outcome = Outcome.INFO if document == "meta-data" else Outcome.OK
            message = f"{document} to {client_name(request)}{how}"
            self._context.record(machine.mac, Step.METADATA, outcome, message, document=document)

    def _tree(self, machine: Machine) -> MetadataTree:
        compiled = self._trees.get(machine.mac)
        # Two Hardware may claim one MAC by mistake; each is still known by its own address.
        if compiled is None or compiled[0] is not machine:
            compiled = (machine, compile_tree(machine.hardware))
            self._trees[machine.mac] = compiled
        return compiled[1]

    def _forget(self, mac: str) -> None:
        self._trees.pop(mac, None)
