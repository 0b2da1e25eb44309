"""Metadata over HTTP, in full: what `hegel.metadata` has compiled for the machine that asks.

Who asks is known before (`edge.callers`); here is what they get: the EC2 tree, the NoCloud files, the old `/metadata`,
session tokens (`hegel.imds`), documents that stand in Secrets, and what becomes of cloud-init's report. Plain requests
of machines that are known by their address are answered by `edge.http.metadata.fast_path`, without coming here.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from urllib.parse import parse_qs

from aiohttp import web

from edge.callers import FORWARDED, TRUST_NOBODY, Caller, TrustedNetworks
from edge.http.context import Context, client_name, text
from edge.http.metadata.compiled import Compiled, MetadataCache
from edge.http.metadata.responses import JSON, NOCLOUD, TEXT, document, missing
from edge.http.routes import Route
from edge.journey.events import Outcome, Step
from edge.machines import Machine, ReadSecret, SecretDocuments, no_api
from hegel.imds import TOKEN_HEADER, TTL_HEADER, SessionTokenError, TtlError, check, mint, ttl
from hegel.instance import SecretUnusableError
from tink.api.user_data import MAX_BYTES, UNRECOGNISED, is_recognised, problem
from tink.files.key_file import KeyFile
from tink.offload import YAML_WEIGHT, flow, is_large, offload

PHONE_HOME_SECONDS = 10.0
MAX_FORM_FIELDS = 32

_DOCUMENTS = ("instance-id", "user-data", "vendor-data", "network-config", "metadata")
"""What gets a journey entry of its own; all else that a crawl reads is one entry."""

_CLOUD_INIT = "Cloud-Init/"
"""How the User-Agent of cloud-init begins (cloudinit/version.py, cloudinit/url_helper.py)."""
_ROOTIO = "bootkit"
"""The User-Agent of rootio, the action that makes partitions and filesystems."""


@dataclass(frozen=True, slots=True)
class MetadataSettings:
    """`keys` sign tokens, those in paths and those of sessions; `token_lifetime` of the former in seconds, 0: for ever.

    `imds_required`: whoever has no token in the path needs one of a session. `read_secret` is the Kubernetes API's.
    """

    keys: KeyFile
    read_secret: ReadSecret = no_api
    trusted: TrustedNetworks = TRUST_NOBODY
    token_lifetime: float = 0.0
    imds_required: bool = False


class MetadataService:
    """The handlers of metadata."""

    def __init__(self, context: Context, settings: MetadataSettings, cache: MetadataCache) -> None:
        self._context = context
        self._settings = settings
        self._cache = cache
        self._secrets = SecretDocuments(settings.read_secret, context.clock)
        self._crawled: dict[str, str] = {}  # the datasource whose user-data a machine was given last, by MAC
        self._checks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Cancel the running checks of user-data."""
        for task in self._checks:
            task.cancel()

    def machine_changed(self, mac: str) -> None:
        """Make its documents anew; of one that is gone, forget everything."""
        self._cache.forget(mac)
        if not self._context.inventory.claimants(mac):
            self._crawled.pop(mac, None)

    async def ec2(self, request: web.Request, route: Route, caller: Caller) -> web.StreamResponse:
        """GET /2009-04-04/... and /latest/..., and the same below /tootles/instanceID/<instance>/."""
        machine = self._admitted(request, caller)
        if isinstance(machine, web.Response):
            return machine
        compiled = self._cache.of(machine)
        if route.instance and route.instance != compiled.tree.instance_id:
            # Whoever knew another's id would have its user-data. The answer is the same whether there is such a one.
            why = f"metadata of another instance asked for by {machine.namespace}/{machine.name}"
            reason = f"{caller.address} is not an address of the instance asked for"
            return self._context.refuse(403, reason, seen=caller.address, why=why)
        if route.name in compiled.tree.secrets:
            return await self._secret(request, machine, compiled, route.name, "")
        body = compiled.tree.ec2.get(route.name)
        if body is None:
            return missing(machine.name, route.name)
        return self._document(request, machine, route.name.rpartition("/")[2], "", body)

    async def nocloud(self, request: web.Request, route: Route, caller: Caller) -> web.StreamResponse:
        """GET /nocloud/<who>/<file>."""
        machine = self._admitted(request, caller)
        if isinstance(machine, web.Response):
            return machine
        compiled = self._cache.of(machine)
        if route.name in compiled.tree.secrets:
            return await self._secret(request, machine, compiled, route.name, NOCLOUD)
        return self._document(request, machine, route.name, NOCLOUD, compiled.tree.nocloud[route.name])

    async def legacy(self, request: web.Request, route: Route, caller: Caller) -> web.StreamResponse:
        """GET /metadata: what actions of Tinkerbell's first years read."""
        machine = self._admitted(request, caller)
        if isinstance(machine, web.Response):
            return machine
        return self._document(request, machine, route.name, "", self._cache.of(machine).tree.legacy, JSON)

    async def session(self, request: web.Request, _route: Route, caller: Caller) -> web.StreamResponse:
        """PUT /latest/api/token: a session token of this machine."""
        if caller.machine is None:
            return self._context.refuse_caller(caller, "a session token")
        if FORWARDED in request.headers and not caller.proxied:
            # As on EC2: an open proxy on the machine must not fetch tokens for whoever uses it.
            return text(f"no session token for a request with {FORWARDED}", status=403)
        try:
            seconds = ttl(request.headers.get(TTL_HEADER))
        except TtlError as error:
            return text(str(error), status=400)
        token = mint(self._settings.keys, _identity(caller.machine), int(time.time()) + seconds)
        return web.Response(text=token, content_type="text/plain", headers={TTL_HEADER: str(seconds)})

    async def phone_home(self, request: web.Request, _route: Route, caller: Caller) -> web.StreamResponse:
        """POST /phone-home/<who>: cloud-init's module phone_home says that it has finished."""
        machine = caller.machine
        if machine is None:
            return self._context.refuse_caller(caller, "a place for a report")
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
            if detail["instance_id"]:
                message += f", instance {detail['instance_id']}"
            # The report does not say where cloud-init had its metadata from.
            datasource = self._crawled.pop(machine.mac, "")
            if datasource:
                message += f", datasource {datasource}"
                detail["datasource"] = datasource
            self._context.record(machine.mac, Step.METADATA, Outcome.OK, message, **detail)
        return text("thank you")

    def sent(self, machine: Machine, name: str, how: str, client: str, of_secret: bytes | None = None) -> None:
        """Record one journey entry for each document and crawl, not for each of its requests.

        `of_secret` is the document if a Secret holds it, and not the Hardware.
        """
        document = name if name in _DOCUMENTS else "meta-data"
        if document == "metadata" and client == _ROOTIO and (why := self._cache.of(machine).tree.storage_problem):
            # Its own message is a decoder's, of the field and not of what is missing there.
            if self._context.first("storage", machine.mac, why):
                message = f"rootio leaves the disks alone and fails: {why}"
                self._context.record(machine.mac, Step.METADATA, Outcome.FAILED, message, document=document)
            return
        if document == "user-data":
            self._crawled[machine.mac] = "NoCloud" if how == NOCLOUD else "Ec2"
        if self._context.first("metadata", machine.mac, document, how):
            message = f"{document} to {client}{how}"
            if document in ("user-data", "vendor-data"):
                self._check_document(machine, document, message, client, of_secret)
                return
            outcome = Outcome.INFO if document == "meta-data" else Outcome.OK
            self._context.record(machine.mac, Step.METADATA, outcome, message, document=document)

    def _check_document(
        self, machine: Machine, document: str, message: str, client: str, of_secret: bytes | None
    ) -> None:
        """Record that user-data or vendor-data was sent, and the reason if cloud-init ignores it.

        The tenant controls the time that a check takes. A large document is checked beside the event loop, and the
        journey entry follows later. A Hardware's document is checked once after each change of the Hardware.
        """
        problems = self._cache.of(machine).problems
        content = _content(machine, document, of_secret)
        unrecognised = client.startswith(_CLOUD_INIT) and not is_recognised(content)

        def record(wrong: str) -> None:
            if of_secret is None:
                problems[document] = wrong
            self._record_document(machine, document, message, wrong or (UNRECOGNISED if unrecognised else ""))

        if of_secret is None and document in problems:
            record(problems[document])
            return
        size = len(content) * YAML_WEIGHT if len(content) <= MAX_BYTES else 0
        if not is_large(size):
            record(problem(content))
            return

        async def check_and_record() -> None:
            flow.set(machine.namespace)
            record(await offload(size, problem, content))

        task = asyncio.get_running_loop().create_task(check_and_record())
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    def _record_document(self, machine: Machine, document: str, message: str, wrong: str) -> None:
        if wrong:
            message = f"{message}: {wrong}"
            self._context.record(machine.mac, Step.METADATA, Outcome.FAILED, message, document=document, problem=wrong)
        else:
            self._context.record(machine.mac, Step.METADATA, Outcome.OK, message, document=document)

    def _admitted(self, request: web.Request, caller: Caller) -> Machine | web.Response:
        """The machine that asks; not if it shows a session token that is not its own, or none where it must."""
        machine = caller.machine
        if machine is None:
            return self._context.refuse_caller(caller, "metadata")
        shown = request.headers.getall(TOKEN_HEADER, [])
        if not shown and (caller.signed or not self._settings.imds_required):
            return machine
        try:
            if not shown:
                raise SessionTokenError("a session token is needed: PUT /latest/api/token gives one")
            for token in shown:
                check(self._settings.keys, token, _identity(machine), time.time())
        except SessionTokenError as error:
            return self._context.refuse(401, str(error), seen=caller.address, why=f"metadata asked for, but {error}")
        return machine

    async def _secret(
        self, request: web.Request, machine: Machine, compiled: Compiled, name: str, how: str
    ) -> web.Response:
        """A document that stands in a Secret. Where it can't be had, the machine must ask again, and not go without."""
        try:
            body = await self._secrets.document(machine.namespace, compiled.tree.secrets[name])
        except SecretUnusableError as error:
            if self._context.first("secret", machine.mac, name, str(error)):
                message = f"no {name}: {error}"
                self._context.record(machine.mac, Step.METADATA, Outcome.FAILED, message, document=name)
            response = text(f"there is no {name} yet: {error}", status=503)
            response.headers["Retry-After"] = "10"
            return response
        if request.method == "GET":
            self.sent(machine, name, how, client_name(request), body)
        return document(body, TEXT)

    def _document(
        self, request: web.Request, machine: Machine, name: str, how: str, body: bytes, content_type: str = TEXT
    ) -> web.Response:
        if request.method == "GET":
            self.sent(machine, name, how, client_name(request))
        return document(body, content_type)


def _content(machine: Machine, document: str, of_secret: bytes | None) -> str:
    """Return user-data or vendor-data as text, or "" if it is no text, as gzip is none."""
    if of_secret is None:
        instance = machine.hardware.spec.instance
        if instance is None:
            return ""
        return (instance.userdata if document == "user-data" else instance.vendordata) or ""
    try:
        return of_secret.decode()
    except UnicodeDecodeError:
        return ""


def _identity(machine: Machine) -> str:
    """Whose a session token is: all interfaces of a Hardware are one machine."""
    return f"{machine.namespace}/{machine.name}"
