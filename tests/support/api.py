"""One Kubernetes API for tests: the embedded API's verbs, schemas and lists over its store in memory, without HTTP.

    api = InProcessApi(hardware(), workflow("w", "Running"))  # takes about a millisecond and needs no event loop
    controller = Controller(api, ...)  # the API has the calls and exceptions of `tink.kube.client.KubeClient`
    api.put(workflow("w", "Failed"))  # another client's write: stored unchanged and without admission
    api.read(WORKFLOW, "w")["status"]; api.objects(EVENT); api.remove(WORKFLOW, "w")
    informer = api.informer(WORKFLOW)  # sees every change at once; informer.hold() delays its watch

Faults and counts:

    api.fail("patch", UnreachableError("away"))  # the next patch raises the error and changes nothing
    api.fail("patch", *[error] * 3, of=WORKFLOW, done=True)  # the next three change a Workflow, then raise the error
    gate = api.hold("patch")  # patches change the store and return after gate.open(); await gate.reached.wait()
    api.around("patch", after=do)  # the next patch awaits do() after it has changed the store
    api.recover()  # drop all faults that no call has met
    api.calls, api.count("patch", of=WORKFLOW), api.bodies("create", of=EVENT)

The API works in virtual time. Deleted namespaces keep their contents, and objects without owners stay, until a test
calls `api.start_controllers()`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any

import aiohttp
from aiohttp.base_protocol import BaseProtocol

from tests.support.informer import InMemoryInformer
from tink import versions
from tink.api.crds import generate, generate_bmc
from tink.api.v1alpha2 import Raw
from tink.kube.client import MERGE_PATCH, api_error
from tink.kube.resources import CRD, NAMESPACE, ResourceType
from tink.kubeapi import AdmissionPlugin, LocalApi, LocalSnapshot, StatusError
from tink.metrics import Histograms


@dataclass(frozen=True)
class Call:
    """One call: its verb (get, list, create, patch, apply, delete, watch), its target and its body."""

    verb: str
    resource: ResourceType
    name: str = ""
    namespace: str = ""
    subresource: str | None = None
    body: Any = None


@dataclass
class Gate:
    """Delays the return of calls that have changed the store. `reached` is set when the first call waits."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    def open(self) -> None:
        """Let all calls return, now and later."""
        self.opened.set()


Do = Callable[[], Coroutine[Any, Any, object]]


@dataclass
class _Fault:
    """A fault or a hook for the next call of a verb."""

    verb: str
    of: ResourceType | None = None
    error: Exception | None = None
    done: bool = False
    before: Do | None = None
    after: Do | None = None


class InProcessApi:
    """The embedded API in this process, with the calls of `KubeClient`. The arguments are its first objects."""

    def __init__(
        self,
        *objects: Raw,
        definitions: Iterable[Raw] | None = None,
        serve_v1alpha1: bool = False,
        plugin: AdmissionPlugin | None = None,
        history: int = 10_000,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`definitions` are the CustomResourceDefinitions; None: those of this program.

        `serve_v1alpha1`: Hardware, Templates and Workflows are also served as Tinkerbell's v1alpha1.
        """
        self.calls: list[Call] = []
        self.url, self.cluster = "https://in-process.test", frozenset({"in-process"})
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.retries: Counter[tuple[str, str, str]] = Counter()
        self.durations = Histograms((1.0,))
        self._faults: list[_Fault] = []
        self._gates: dict[tuple[str, ResourceType | None], Gate] = {}
        self._informers: list[InMemoryInformer] = []
        base = _installed(serve_v1alpha1) if definitions is None else _install(definitions)
        self._api = LocalApi(snapshot=base, plugin=plugin, history=history, now=now, on_commit=self._committed)
        _at_once(self._api.start())
        for obj in objects:
            self.put(obj)

    # --- what a test does and sees ---

    def put(self, obj: Raw) -> Raw:
        """Store an object unchanged and return it with its resourceVersion. Creates its namespace if there is none."""
        namespace = obj["metadata"].get("namespace")
        if namespace and self.read(NAMESPACE, namespace, "") is None:
            spec = {"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
            self._api.restore({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}, **spec})
        return self._api.restore(obj)

    def change(self, resource: ResourceType, name: str, namespace: str = "default", **fields: Any) -> Raw:
        """Store an object with changed fields. Merges two levels deep: `status={"state": "Failed"}`."""
        obj = self.read(resource, name, namespace)
        assert obj is not None, f"there is no {resource.kind} {namespace}/{name}"
        return self.put(obj | {key: {**obj.get(key, {}), **value} for key, value in fields.items()})

    def read(self, resource: ResourceType, name: str, namespace: str = "default") -> Raw | None:
        """Return the stored object, or None if there is none."""
        return self._api.find(resource.api_version, resource.kind, namespace if resource.namespaced else "", name)

    def objects(self, resource: ResourceType) -> list[Raw]:
        """Return all objects of a resource, in the order of namespace and name."""
        return self._api.objects(resource.api_version, resource.kind)

    def remove(self, resource: ResourceType, name: str, namespace: str = "default") -> None:
        """Delete an object without regard to its finalizers."""
        obj = self.read(resource, name, namespace)
        assert obj is not None, f"there is no {resource.kind} {namespace}/{name}"
        self._api.remove(obj)

    def informer(self, resource: ResourceType, **options: Any) -> InMemoryInformer:
        """Return an informer that sees each change before the call that makes it returns."""
        informer = InMemoryInformer(resource, **options)
        self._informers.append(informer)
        for obj in self.objects(resource):
            informer.feed("ADDED", obj)
        return informer

    def fail(self, verb: str, *errors: Exception, of: ResourceType | None = None, done: bool = False) -> None:
        """Let the next calls of a verb raise these errors, one each. `done`: after they have changed the store."""
        self._faults += [_Fault(verb, of, error, done) for error in errors]

    def around(
        self, verb: str, *, before: Do | None = None, after: Do | None = None, of: ResourceType | None = None
    ) -> None:
        """Let the next call of a verb await `before`, change the store, and await `after`."""
        self._faults.append(_Fault(verb, of, before=before, after=after))

    def recover(self) -> None:
        """Drop all faults that no call has met."""
        self._faults.clear()

    def hold(self, verb: str, *, of: ResourceType | None = None) -> Gate:
        """Delay the return of all further calls of a verb until the gate is open. They change the store at once."""
        gate = self._gates[verb, of] = Gate()
        return gate

    def count(self, verb: str, *, of: ResourceType | None = None) -> int:
        """Return the number of calls of a verb, with those that failed."""
        return len(self.bodies(verb, of=of))

    def bodies(self, verb: str, *, of: ResourceType | None = None) -> list[Any]:
        """Return the bodies of the calls of a verb."""
        return [call.body for call in self.calls if call.verb == verb and of in (None, call.resource)]

    def start_controllers(self) -> None:
        """Start the namespace controller and the garbage collector. `close` stops them."""
        self._api.start_controllers()

    def _committed(self, kind: str, obj: Raw) -> None:
        for informer in self._informers:
            resource = informer.resource
            if (obj["apiVersion"], obj["kind"]) == (resource.api_version, resource.kind):
                informer.feed(kind, obj)

    # --- the calls of KubeClient ---

    async def __aenter__(self) -> InProcessApi:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._api.stop()

    async def get(self, resource: ResourceType, name: str, namespace: str | None) -> Raw:
        return await self._do(Call("get", resource, name, namespace or ""))

    async def list(
        self,
        resource: ResourceType,
        namespace: str | None = None,
        *,
        limit: int = 0,
        after: str = "",
        label_selector: str = "",
        field_selector: str = "",
    ) -> Raw:
        selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
        query = {"limit": str(limit), "continue": after, **selectors}
        return await self._do(Call("list", resource, "", namespace or ""), query)

    async def create(self, resource: ResourceType, obj: Raw, namespace: str | None = None) -> Raw:
        namespace = namespace or obj.get("metadata", {}).get("namespace")
        if resource.namespaced and not namespace:
            raise ValueError(f"{resource.kind}: metadata.namespace is missing")
        return await self._do(Call("create", resource, "", namespace or "", body=obj))

    async def patch(
        self,
        resource: ResourceType,
        name: str,
        namespace: str | None,
        patch: Raw,
        *,
        subresource: str | None = None,
    ) -> Raw:
        return await self._do(Call("patch", resource, name, namespace or "", subresource, patch), content=MERGE_PATCH)

    async def apply(
        self, resource: ResourceType, name: str, namespace: str | None, obj: Raw, *, manager: str, force: bool = False
    ) -> Raw:
        query = {"fieldManager": manager, "force": "true" if force else "false"}
        call = Call("apply", resource, name, namespace or "", body=obj)
        return await self._do(call, query, content="application/apply-patch+yaml")

    async def send(
        self,
        method: str,
        resource: ResourceType,
        name: str,
        body: Any,
        *,
        subresource: str = "",
        content: str = "",
        **query: str,
    ) -> Raw:
        """Send a request that `KubeClient` does not have: PUT, or PATCH of the media type `content`.

        Without `content`, a PATCH is a server-side apply.
        """
        content = content or ("application/apply-patch+yaml" if method == "PATCH" else "application/json")
        path = resource.path("default", name, subresource or None)
        return await self._api.request(method, path, query, body=body, content_type=content)

    async def delete(
        self,
        resource: ResourceType,
        name: str,
        namespace: str | None,
        *,
        preconditions: Mapping[str, str] | None = None,
    ) -> Raw:
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        return await self._do(Call("delete", resource, name, namespace or "", body=options if preconditions else None))

    @contextlib.asynccontextmanager
    async def watch(
        self,
        resource: ResourceType,
        namespace: str | None,
        resource_version: str,
        seconds: int,
        *,
        name: str = "",
        label_selector: str = "",
        send_initial_events: bool = False,
    ) -> AsyncIterator[aiohttp.StreamReader]:
        query = {"resourceVersion": resource_version, "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        query |= {"fieldSelector": f"metadata.name={name}"} if name else {}
        query |= {"labelSelector": label_selector} if label_selector else {}
        if send_initial_events:
            query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        call = Call("watch", resource, name, namespace or "")
        loop = asyncio.get_running_loop()
        connection = BaseProtocol(loop)
        connection.connection_made(asyncio.Transport())  # The reader checks that its transport is open.
        reader = aiohttp.StreamReader(connection, 1 << 20, loop=loop)
        lines = await self._carry_out(call, lambda: self._api.watch(resource.path(namespace), query))

        async def pump() -> None:
            async for line in lines:
                reader.feed_data(line)
            reader.feed_eof()

        pumping = asyncio.create_task(pump())
        try:
            yield reader
        finally:
            pumping.cancel()
            await asyncio.wait([pumping])
            await lines.aclose()

    async def _do(
        self, call: Call, query: Mapping[str, str] | None = None, *, content: str = "application/json"
    ) -> Raw:
        method = {"list": "GET", "create": "POST", "apply": "PATCH"}.get(call.verb, call.verb.upper())
        path = call.resource.path(call.namespace or None, call.name or None, call.subresource)
        query = {key: value for key, value in (query or {}).items() if value not in ("", "0")}
        return await self._carry_out(call, lambda: self._api.request(method, path, query, call.body, content))

    async def _carry_out(self, call: Call, do: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        self.calls.append(call)
        await asyncio.sleep(0)  # A real call yields to other tasks before it changes the store.
        fault = next((one for one in self._faults if one.verb == call.verb and one.of in (None, call.resource)), None)
        if fault is not None:
            self._faults.remove(fault)
            if fault.error is not None and not fault.done:
                raise fault.error
            if fault.before is not None:
                await fault.before()
        try:
            answer = await do()
        except StatusError as error:
            raise api_error(error.code, error.body()) from error
        gate = self._gates.get((call.verb, call.resource)) or self._gates.get((call.verb, None))
        if gate is not None:
            gate.reached.set()
            await gate.opened.wait()
        if fault is not None and fault.after is not None:
            await fault.after()
        if fault is not None and fault.error is not None:
            raise fault.error
        return answer


@cache
def _installed(serve_v1alpha1: bool) -> LocalSnapshot:
    return _install([*generate(serve_v1alpha1=serve_v1alpha1), *generate_bmc()])


def _install(definitions: Iterable[Raw]) -> LocalSnapshot:
    """Return a store with these definitions. Uses an event loop of its own, since the API offloads large requests."""

    async def make() -> LocalSnapshot:
        api = LocalApi(converters=dict.fromkeys(versions.DEFINITIONS, versions))
        await api.start()
        for definition in definitions:
            await api.request("POST", CRD.path(), body=definition)
        made = api.snapshot()
        await api.stop()
        return made

    with ThreadPoolExecutor(1) as executor:
        return executor.submit(asyncio.run, make()).result()


def _at_once(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that never waits, without an event loop."""
    with contextlib.suppress(StopIteration):
        work.send(None)
        raise AssertionError("the coroutine waits")
