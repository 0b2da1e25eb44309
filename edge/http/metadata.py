"""Metadata over HTTP: the full path, and the fast path beside it, which gives the same answers.

`edge.callers` identifies the machine. `MetadataService` (the full path) serves its EC2 tree, its NoCloud files, the old
`/metadata`, session tokens (`hegel.imds`) and documents from Secrets, and receives cloud-init's report.

`FastPath` prepares the answers to plain requests of a machine that is known by its connection's address. It prepares
everything but the date at the first request. `edge.http.connections` then sends the answer after a look at the
request's bytes only. The answers of both paths must be equal byte for byte; `--no-fast-path` switches this one off.
`live` adds the answers of other handlers to it, which are made for each request.

`MetadataCache` holds the compiled documents and the prepared answers of each machine, up to a total size. Documents are
compiled (`hegel.metadata`) at the first request after the machine's Hardware has changed.
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

from edge.callers import FORWARDED, NEIGHBOUR_SECONDS, Caller
from edge.http.answers import client_name, not_found, text, uncached
from edge.http.context import HttpServices
from edge.http.fast_path import LiveResponse, PreparedResponse, Responses
from edge.http.routes import Place, Route, spelled
from edge.journey.events import Outcome, Step
from edge.machines import Machine, SecretDocuments
from hegel.imds import TOKEN_HEADER, TTL_HEADER, SessionTokenError, TtlError, check, mint, ttl
from hegel.instance import SecretReference, SecretUnusableError
from hegel.metadata import EC2_VERSIONS, MetadataTree, compile_tree
from tink.api.user_data import MAX_BYTES, UNRECOGNISED, is_recognised, problem
from tink.offload import YAML_WEIGHT, flow, is_large, offload

MAX_CACHE_BYTES = 256 << 20
"""Size of everything that is cached. During its crawl a machine needs 10 kB, and its user-data once for each target."""

OVERHEAD_BYTES = 500
"""Memory of a response or a document beside its content."""


@dataclass(slots=True, eq=False)
class Compiled:
    """The compiled metadata of one machine at one time.

    tree: the documents.
    size_bytes: the memory of all of this.
    responses: the prepared answers of the fast path, by target of the request line.
    problems: by document name, why cloud-init ignores the Hardware's user-data or vendor-data, or "" if it accepts it.
        A document that has not been checked yet is absent.
    """

    machine: Machine
    tree: MetadataTree
    size_bytes: int
    responses: dict[bytes, PreparedResponse | LiveResponse] | None = None
    problems: dict[str, str] = field(default_factory=dict)


class MetadataCache:
    """The compiled metadata of machines, up to a total size. The oldest is dropped first."""

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES) -> None:
        """`size_bytes` is the memory of everything in the cache."""
        self._max_bytes = max_bytes
        self._by_mac: dict[str, Compiled] = {}
        self.size_bytes = 0

    def of(self, machine: Machine) -> Compiled:
        """Return the compiled metadata of `machine`, compiled now if necessary."""
        cached = self._by_mac.get(machine.mac)
        # Compare the machine, too: two Hardware may claim one MAC by mistake, each with its own address.
        if cached is not None and cached.machine is machine:
            return cached
        self.forget(machine.mac)
        tree = compile_tree(machine.hardware)
        bodies = (*tree.ec2.values(), *tree.nocloud.values(), tree.legacy)
        size = sum(len(body) + OVERHEAD_BYTES // 3 for body in bodies)
        compiled = self._by_mac[machine.mac] = Compiled(machine, tree, size)
        self._take(compiled.size_bytes)
        return compiled

    def grow(self, compiled: Compiled, size_bytes: int) -> None:
        """Add to the size of an entry, for a prepared answer."""
        if self._by_mac.get(compiled.machine.mac) is compiled:
            compiled.size_bytes += size_bytes
            self._take(size_bytes)

    def forget(self, mac: str) -> None:
        """Drop the entry of a machine that has changed or is gone."""
        old = self._by_mac.pop(mac, None)
        if old is not None:
            self.size_bytes -= old.size_bytes

    def _take(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        while self.size_bytes > self._max_bytes and len(self._by_mac) > 1:
            self.forget(next(iter(self._by_mac)))


TEXT: Final = "text/plain"
JSON: Final = "application/json"
NOCLOUD: Final = " (NoCloud)"
"""The suffix in the journey of a document that was requested through NoCloud."""


def document(body: bytes, content_type: str = TEXT) -> web.Response:
    """Return the answer with a document."""
    charset = "utf-8" if content_type == TEXT else None
    return web.Response(body=body, content_type=content_type, charset=charset)


def missing(name: str, path: str) -> web.Response:
    """Return the answer for a document that the Hardware `name` does not have."""
    return text(f"the Hardware {name} has no {path}", status=404)


PHONE_HOME_SECONDS = 10.0
MAX_FORM_FIELDS = 32

_DOCUMENTS = ("instance-id", "user-data", "vendor-data", "network-config", "metadata")
"""The documents with a journey entry of their own. All other documents of a crawl share one entry."""

_CLOUD_INIT = "Cloud-Init/"
"""The start of cloud-init's User-Agent (cloudinit/version.py, cloudinit/url_helper.py)."""
_ROOTIO = "bootkit"
"""The User-Agent of rootio, the action that makes partitions and filesystems."""


class MetadataService:
    """The handlers of metadata."""

    def __init__(self, services: HttpServices, cache: MetadataCache) -> None:
        self._services = services
        self._settings = services.metadata
        self._cache = cache
        self._secrets = SecretDocuments(services.metadata.read_secret, services.clock)
        self._crawled: dict[str, str] = {}  # by MAC, the datasource through which the machine last got its user-data
        self._checks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Cancel the running checks of user-data."""
        for task in self._checks:
            task.cancel()

    def machine_changed(self, mac: str) -> None:
        """Drop the documents of a machine, and everything if no Hardware has its MAC any more."""
        self._cache.forget(mac)
        if not self._services.inventory.claimants(mac):
            self._crawled.pop(mac, None)

    async def document(self, request: web.Request, route: Route, caller: Caller) -> web.StreamResponse:
        """Answer GET of a document in the EC2 tree, of a NoCloud file, or of the old /metadata."""
        machine = self._admitted(request, caller)
        if isinstance(machine, web.Response):
            return machine
        tree, name = self._cache.of(machine).tree, route.name
        if route.instance and route.instance != tree.instance_id:
            # The instance id alone gives no access to another machine's user-data. The answer does not reveal whether
            # the instance exists.
            why = f"metadata of another instance requested by {machine.namespace}/{machine.name}"
            reason = f"{caller.address} is not an address of the requested instance"
            return self._services.refuse(403, reason, seen=caller.address, why=why)
        if route.place is Place.LEGACY:
            return self._sent_document(request, machine, name, "", tree.legacy, JSON)
        how, documents = (NOCLOUD, tree.nocloud) if route.place is Place.NOCLOUD else ("", tree.ec2)
        if name in tree.secrets:
            return await self._secret(request, machine, tree.secrets[name], name, how)
        if name not in documents:
            return missing(machine.name, name)
        return self._sent_document(request, machine, name.rpartition("/")[2], how, documents[name])

    async def session(self, request: web.Request, _route: Route, caller: Caller) -> web.StreamResponse:
        """Answer PUT /latest/api/token with a session token of the machine."""
        if caller.machine is None:
            return self._services.refuse_caller(caller, "a session token")
        if FORWARDED in request.headers and not caller.proxied:
            # As on EC2: an open proxy on the machine must not fetch tokens for its clients.
            return text(f"no session token for a request with {FORWARDED}", status=403)
        try:
            seconds = ttl(request.headers.get(TTL_HEADER))
        except TtlError as error:
            return text(str(error), status=400)
        token = mint(self._settings.keys, _identity(caller.machine), int(time.time()) + seconds)
        return web.Response(text=token, content_type="text/plain", headers={TTL_HEADER: str(seconds)})

    async def phone_home(self, request: web.Request, _route: Route, caller: Caller) -> web.StreamResponse:
        """Answer POST /phone-home/<who>: cloud-init's module phone_home reports that cloud-init has finished."""
        machine = caller.machine
        if machine is None:
            return self._services.refuse_caller(caller, "a place for a report")
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
        if self._services.first("phone home", machine.mac, detail["instance_id"]):
            message = f"cloud-init finished on {hostname}"
            if detail["instance_id"]:
                message += f", instance {detail['instance_id']}"
            # The report does not contain the datasource.
            datasource = self._crawled.pop(machine.mac, "")
            if datasource:
                message += f", datasource {datasource}"
                detail["datasource"] = datasource
            self._services.record(machine.mac, Step.METADATA, Outcome.OK, message, **detail)
        return text("thank you")

    def sent(self, machine: Machine, name: str, how: str, client: str, of_secret: bytes | None = None) -> None:
        """Record one journey entry for each document and crawl, not for each request.

        `of_secret` is the document if a Secret holds it, and not the Hardware.
        """
        document = name if name in _DOCUMENTS else "meta-data"
        if document == "metadata" and client == _ROOTIO and (why := self._cache.of(machine).tree.storage_problem):
            # rootio's own message comes from a decoder and does not name the missing field.
            if self._services.first("storage", machine.mac, why):
                message = f"rootio leaves the disks alone and fails: {why}"
                self._services.record(machine.mac, Step.METADATA, Outcome.FAILED, message, document=document)
            return
        if document == "user-data":
            self._crawled[machine.mac] = "NoCloud" if how == NOCLOUD else "Ec2"
        if self._services.first("metadata", machine.mac, document, how):
            message = f"{document} to {client}{how}"
            if document in ("user-data", "vendor-data"):
                self._check_document(machine, document, message, client, of_secret)
                return
            outcome = Outcome.INFO if document == "meta-data" else Outcome.OK
            self._services.record(machine.mac, Step.METADATA, outcome, message, document=document)

    def _check_document(
        self, machine: Machine, document: str, message: str, client: str, of_secret: bytes | None
    ) -> None:
        """Record that user-data or vendor-data was sent, and the reason if cloud-init ignores it."""
        problems = self._cache.of(machine).problems
        content = _content(machine, document, of_secret)
        unrecognised = client.startswith(_CLOUD_INIT) and not is_recognised(content)

        def record(wrong: str) -> None:
            if of_secret is None:
                problems[document] = wrong
            wrong = wrong or (UNRECOGNISED if unrecognised else "")
            detail = {"document": document} | ({"problem": wrong} if wrong else {})
            outcome, words = (Outcome.FAILED, f"{message}: {wrong}") if wrong else (Outcome.OK, message)
            self._services.record(machine.mac, Step.METADATA, outcome, words, **detail)

        # A Hardware's document is checked once after each change of the Hardware.
        if of_secret is None and document in problems:
            record(problems[document])
            return
        size = len(content) * YAML_WEIGHT if len(content) <= MAX_BYTES else 0
        if not is_large(size):
            record(problem(content))
            return

        # The tenant controls the time that a check takes: check a large document beside the event loop.
        async def check_and_record() -> None:
            flow.set(machine.namespace)
            record(await offload(size, problem, content))

        task = asyncio.get_running_loop().create_task(check_and_record())
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    def _admitted(self, request: web.Request, caller: Caller) -> Machine | web.Response:
        """Return the calling machine, or the error if its session token is wrong or missing."""
        machine = caller.machine
        if machine is None:
            return self._services.refuse_caller(caller, "metadata")
        shown = request.headers.getall(TOKEN_HEADER, [])
        if not shown and (caller.signed or not self._settings.imds_required):
            return machine
        try:
            if not shown:
                raise SessionTokenError("a session token is needed: PUT /latest/api/token gives one")
            for token in shown:
                check(self._settings.keys, token, _identity(machine), time.time())
        except SessionTokenError as error:
            return self._services.refuse(401, str(error), seen=caller.address, why=f"metadata request refused: {error}")
        return machine

    async def _secret(
        self, request: web.Request, machine: Machine, reference: SecretReference, name: str, how: str
    ) -> web.Response:
        """Return a document from a Secret. If the Secret is unusable, answer 503 so that the machine tries again."""
        try:
            body = await self._secrets.document(machine.namespace, reference)
        except SecretUnusableError as error:
            if self._services.first("secret", machine.mac, name, str(error)):
                message = f"no {name}: {error}"
                self._services.record(machine.mac, Step.METADATA, Outcome.FAILED, message, document=name)
            return text(f"there is no {name} yet: {error}", status=503, headers={"Retry-After": "10"})
        if request.method == "GET":
            self.sent(machine, name, how, client_name(request), body)
        return document(body, TEXT)

    def _sent_document(
        self, request: web.Request, machine: Machine, name: str, how: str, body: bytes, content_type: str = TEXT
    ) -> web.Response:
        if request.method == "GET":
            self.sent(machine, name, how, client_name(request))
        return document(body, content_type)


def _content(machine: Machine, document: str, of_secret: bytes | None) -> str:
    """Return user-data or vendor-data as text, or "" if it is not text (for example gzip)."""
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
    """Return the subject of a session token: all interfaces of a Hardware are one machine."""
    return f"{machine.namespace}/{machine.name}"


_PROBED = ("2021-03-23", "2018-09-24", "2016-09-02")
"""Versions of the EC2 tree that cloud-init tries first. They must not exist."""

Sent = Callable[[Machine, str, str, str], None]
"""`sent(machine, document, how, client)` is called after a document was sent."""

Live = Callable[[Machine], Mapping[bytes, LiveResponse]]
"""`live(machine)` returns the live answers of a machine by target. Called again after each change of its Hardware."""


class FastPath:
    """Prepared answers by address and target."""

    def __init__(self, services: HttpServices, cache: MetadataCache, sent: Sent, live: Live) -> None:
        self._services = services
        self.cache = cache
        self.sent = sent
        self._live = live
        self._by_address: dict[str, Responses] = {}  # of the clients of this second
        self._until = 0.0

    def responses(self, address: str) -> Responses | None:
        """Return the answers to plain requests from `address` by target, or None: aiohttp has to answer."""
        now = self._services.clock()
        if now >= self._until:
            self._by_address.clear()
            self._until = now + NEIGHBOUR_SECONDS
        found = self._by_address.get(address)
        if found is None:
            machine = self._services.request_callers.machine_at(address)
            if machine is None:
                return None
            found = self._by_address[address] = self.of(machine)
        return found

    def forget_callers(self) -> None:
        """Drop the addresses: a machine may have moved."""
        self._by_address.clear()

    def of(self, machine: Machine) -> Responses:
        """Return the answers to plain requests of `machine`."""
        compiled = self.cache.of(machine)
        if compiled.responses is None:
            own = {one.mac for one in self._services.inventory.by_name(machine.name, machine.namespace)}
            if spelled(machine.name) == machine.name:
                own.add(machine.name)
            compiled.responses = _Responses(compiled, frozenset(own), self)
            live = self._live(machine)
            compiled.responses.update(live)
            self.cache.grow(compiled, len(live) * OVERHEAD_BYTES)
        return compiled.responses


class _Responses(dict[bytes, PreparedResponse | LiveResponse]):
    """Prepared answers by target of the request line. `get` prepares a missing one."""

    def __init__(self, compiled: Compiled, own: frozenset[str], fast_path: FastPath) -> None:
        """`own` has the names that the machine may use in paths: its name and its MACs."""
        super().__init__()
        self._compiled = compiled
        self._own = own
        self._fast_path = fast_path

    def get(self, target: bytes, default: Any = None, /) -> Any:
        """Return the answer to a plain request of `target`, or `default` if the full path has to answer."""
        response = super().get(target)
        if response is None:
            response = self._prepare(target)
            if response is None:
                return default
            self[target] = response
            self._fast_path.cache.grow(self._compiled, len(response.body) + OVERHEAD_BYTES)
        return response

    def _prepare(self, target: bytes) -> PreparedResponse | None:
        """Prepare an answer if the full path would send the same bytes for any plain request of `target`."""
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
                path = "".join(rest).removesuffix("/")
                body = tree.ec2.get(path)
                if body is not None:
                    return self._document(body, path.rpartition("/")[2], "")
                if path in ("user-data", "vendor-data") and path not in tree.secrets:
                    return PreparedResponse.of(uncached(missing(self._compiled.machine.name, path)))
        return None

    def _document(self, body: bytes, name: str, how: str, content_type: str = TEXT) -> PreparedResponse:
        sent = partial(self._fast_path.sent, self._compiled.machine, name, how)
        return PreparedResponse.of(uncached(document(body, content_type)), sent)
