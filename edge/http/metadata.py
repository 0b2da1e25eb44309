"""What is compiled of a machine's metadata, and kept while there is room: its documents, and the fast path's responses.

Documents are compiled when a machine first asks after its Hardware changed (`hegel.metadata`).

Responses with metadata: the same on the full path (`full`) and on the fast one (`fast_path`).

Metadata over HTTP, in full: what `hegel.metadata` has compiled for the machine that asks.

Who asks is known before (`edge.callers`); here is what they get: the EC2 tree, the NoCloud files, the old `/metadata`,
session tokens (`hegel.imds`), documents that stand in Secrets, and what becomes of cloud-init's report. Plain requests
of machines that are known by their address are answered by `edge.http.metadata`, without coming here.

The fast path of metadata: the responses to plain requests, prepared for the machine at a connection's address.

Of a prepared response everything but the date is made once, when it is first asked for;
`edge.http.fast_path` sends it without a look at anything but the request's own bytes. What is here must equal
what `edge.http.metadata` answers, byte for byte; without it (`--no-fast-path`) everything is answered there.
Beside it stands what other rooms answer the machine without being asked in full (`live`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs

from aiohttp import web

from edge.callers import FORWARDED, NEIGHBOUR_SECONDS, TRUST_NOBODY, Caller, RequestCallers, TrustedNetworks
from edge.http.context import Context, client_name, not_found, text
from edge.http.fast_path import LiveResponse, PreparedResponse, Responses
from edge.http.routes import Route, spelled
from edge.journey.events import Outcome, Step
from edge.machines import Inventory, Machine, ReadSecret, SecretDocuments, no_api
from hegel.imds import TOKEN_HEADER, TTL_HEADER, SessionTokenError, TtlError, check, mint, ttl
from hegel.metadata import EC2_VERSIONS, MetadataTree, compile_tree
from hegel.secret import SecretUnusableError
from tink.api.user_data import MAX_BYTES, UNRECOGNISED, is_recognised, problem
from tink.files.key_file import KeyFile
from tink.offload import YAML_WEIGHT, flow, is_large, offload

MAX_CACHE_BYTES = 256 << 20
"""Of all that is kept. A machine whose crawl is under way takes some 10 kB, and its user-data as often as it asked."""

OVERHEAD_BYTES = 500
"""What a response, or a document, takes besides its content."""


@dataclass(slots=True, eq=False)
class Compiled:
    """The compiled metadata of one machine at one time: the documents in `tree`, and the `size_bytes` of all of it.

    `responses` are the ready responses of `edge.http.metadata`, by target of the request line.
    `problems` holds, by document name, the reason why cloud-init ignores the Hardware's user-data or vendor-data, or ""
    if cloud-init accepts it; a document that has not been checked yet is absent.
    """

    machine: Machine
    tree: MetadataTree
    size_bytes: int
    responses: dict[bytes, PreparedResponse | LiveResponse] | None = None
    problems: dict[str, str] = field(default_factory=dict)


class MetadataCache:
    """Compiled metadata by machine; where it is full, the oldest goes."""

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES) -> None:
        """`size_bytes` is what all that is kept takes."""
        self._max_bytes = max_bytes
        self._kept: dict[str, Compiled] = {}
        self.size_bytes = 0

    def of(self, machine: Machine) -> Compiled:
        """What is compiled of `machine`; made now if it has to be."""
        kept = self._kept.get(machine.mac)
        # Two Hardware may claim one MAC by mistake; each is still known by its own address.
        if kept is not None and kept.machine is machine:
            return kept
        self.forget(machine.mac)
        tree = compile_tree(machine.hardware)
        compiled = self._kept[machine.mac] = Compiled(machine, tree, _size_bytes(tree))
        self._take(compiled.size_bytes)
        return compiled

    def grow(self, compiled: Compiled, size_bytes: int) -> None:
        """More has been made of it."""
        if self._kept.get(compiled.machine.mac) is compiled:
            compiled.size_bytes += size_bytes
            self._take(size_bytes)

    def forget(self, mac: str) -> None:
        """The machine has changed, or is gone."""
        old = self._kept.pop(mac, None)
        if old is not None:
            self.size_bytes -= old.size_bytes

    def _take(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        while self.size_bytes > self._max_bytes and len(self._kept) > 1:
            self.forget(next(iter(self._kept)))


def _size_bytes(tree: MetadataTree) -> int:
    bodies = [*tree.ec2.values(), *tree.nocloud.values(), tree.legacy]
    return sum(len(body) + OVERHEAD_BYTES // 3 for body in bodies)


TEXT: Final = "text/plain"
JSON: Final = "application/json"
NOCLOUD: Final = " (NoCloud)"
"""What the journey adds to a document that was asked for in this way."""


def document(body: bytes, content_type: str = TEXT) -> web.Response:
    """A document of a machine."""
    charset = "utf-8" if content_type == TEXT else None
    return web.Response(body=body, content_type=content_type, charset=charset)


def missing(name: str, path: str) -> web.Response:
    """For a machine that asks for what its Hardware, `name`, does not have."""
    return text(f"the Hardware {name} has no {path}", status=404)


def not_to_keep(response: web.Response) -> web.Response:
    """One path has another answer for each machine: a proxy in between must keep none of them."""
    response.headers["Cache-Control"] = "no-store"
    return response


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


_PROBED = ("2021-03-23", "2018-09-24", "2016-09-02")
"""Versions of the EC2 tree that cloud-init asks for first, and must not find."""

Sent = Callable[[Machine, str, str, str], None]
"""`sent(machine, document, how, client)`: a document was sent."""

Live = Callable[[Machine], Mapping[bytes, LiveResponse]]
"""`live(machine)`: what is made for each of its requests, by target; asked for anew after a change of its Hardware."""


class FastPath:
    """Prepared responses by address and target."""

    def __init__(
        self,
        inventory: Inventory,
        callers: RequestCallers,
        cache: MetadataCache,
        sent: Sent,
        live: Live,
        clock: Callable[[], float],
    ) -> None:
        """`clock` gives monotonic seconds."""
        self._inventory = inventory
        self._callers = callers
        self._cache = cache
        self._sent = sent
        self._live = live
        self._clock = clock
        self._by_address: dict[str, Responses] = {}  # of those that have asked in this second
        self._until = 0.0

    def responses(self, address: str) -> Responses | None:
        """What plain requests on a connection from `address` get, by target; None: each request has to be looked at."""
        now = self._clock()
        if now >= self._until:
            self._by_address.clear()
            self._until = now + NEIGHBOUR_SECONDS
        found = self._by_address.get(address)
        if found is None:
            machine = self._callers.machine_at(address)
            if machine is None:
                return None
            found = self._by_address[address] = self.of(machine)
        return found

    def forget_callers(self) -> None:
        """Somebody may be at another address than a moment ago, or another machine."""
        self._by_address.clear()

    def of(self, machine: Machine) -> Responses:
        """What plain requests of `machine` get."""
        compiled = self._cache.of(machine)
        if compiled.responses is None:
            own = {one.mac for one in self._inventory.by_name(machine.name, machine.namespace)}
            if spelled(machine.name) == machine.name:
                own.add(machine.name)
            compiled.responses = _Responses(compiled, frozenset(own), self._sent, self._cache.grow)
            live = self._live(machine)
            compiled.responses.update(live)
            self._cache.grow(compiled, len(live) * OVERHEAD_BYTES)
        return compiled.responses


class _Responses(dict[bytes, PreparedResponse | LiveResponse]):
    """By target of the request line, in the spellings that clients use; `get` prepares one that is missing."""

    def __init__(
        self, compiled: Compiled, own: frozenset[str], sent: Sent, grow: Callable[[Compiled, int], None]
    ) -> None:
        """`own`: what the machine may call itself, its name and its MACs."""
        super().__init__()
        self._compiled = compiled
        self._own = own
        self._sent = sent
        self._grow = grow

    def get(self, target: bytes, default: Any = None, /) -> Any:
        """The response to a plain request of `target`; `default` if it takes more than a look."""
        response = super().get(target)
        if response is None:
            response = self._prepare(target)
            if response is None:
                return default
            self[target] = response
            self._grow(self._compiled, len(response.body) + OVERHEAD_BYTES)
        return response

    def _prepare(self, target: bytes) -> PreparedResponse | None:
        """Only what the full path would answer with the same bytes, whatever else a plain request has in it."""
        tree = self._compiled.tree
        match target.decode("latin-1").split("/", 2):
            case ["", "metadata"]:
                return self._document(tree.legacy, "metadata", "", content_type=JSON)
            case ["", "nocloud", rest]:
                who, _, name = rest.partition("/")
                body = tree.nocloud.get(name) if who in self._own else None
                return self._document(body, name, NOCLOUD) if body is not None else None
            case ["", version, "meta-data/instance-id"] if version in _PROBED:
                return PreparedResponse.of(not_found())
            case ["", version, *rest] if version in EC2_VERSIONS:
                return self._ec2("".join(rest).removesuffix("/"))
        return None

    def _ec2(self, path: str) -> PreparedResponse | None:
        tree = self._compiled.tree
        body = tree.ec2.get(path)
        if body is not None:
            return self._document(body, path.rpartition("/")[2], "")
        if path in ("user-data", "vendor-data") and path not in tree.secrets:
            return PreparedResponse.of(not_to_keep(missing(self._compiled.machine.name, path)))
        return None

    def _document(self, body: bytes, name: str, how: str, content_type: str = TEXT) -> PreparedResponse:
        sent = partial(self._sent, self._compiled.machine, name, how)
        return PreparedResponse.of(not_to_keep(document(body, content_type)), sent)
