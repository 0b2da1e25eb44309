"""The API in this process and in memory, without HTTP, users and files, for programs that need an API briefly.

    api = LocalApi()
    await api.start()
    await api.request("POST", "/api/v1/namespaces/default/configmaps", body={...})

The verbs, schemas, admission, lists and watches are those of `ApiServer`.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any

import orjson
from multidict import MultiDict

from tink.kubeapi.apiserver import conversion, errors
from tink.kubeapi.apiserver.admission.review import AdmissionPlugin
from tink.kubeapi.apiserver.core import Core, utc_now
from tink.kubeapi.apiserver.media import APPLY_PATCH, JSON, decode, decode_patch
from tink.kubeapi.apiserver.options import DeleteOptions, ListOptions, OptionsKind, Target, WriteOptions, parse_path
from tink.kubeapi.apiserver.read import watch_lines
from tink.kubeapi.apiserver.resources.registry import Resource
from tink.kubeapi.apiserver.store.object_store import MemoryStore
from tink.kubeapi.apiserver.store.objects import Event, Key, Write
from tink.kubeapi.apiserver.write.pipeline import Admit, add_nothing
from tink.kubeapi.schema import meta
from tink.kubeapi.schema.shapes import Raw

_AGENT = "tinkedge"


@dataclass(frozen=True)
class LocalSnapshot:
    """The objects of a LocalApi, and the compiled resources of its definitions by the definition's name."""

    state: bytes = b""
    resources: Mapping[str, list[Resource]] = field(default_factory=dict)


class LocalApi:
    """An API in memory. `on_commit` receives the type of each change (ADDED, MODIFIED, DELETED) and the object.

    It starts with the objects of `snapshot`, which is much cheaper than creating them.
    """

    def __init__(
        self,
        *,
        snapshot: LocalSnapshot | None = None,
        admit: Admit = add_nothing,
        plugin: AdmissionPlugin | None = None,
        converters: Mapping[str, conversion.VersionConverter] = MappingProxyType({}),
        history: int = 10_000,
        now: Callable[[], datetime] = utc_now,
        on_commit: Callable[[str, Raw], object] | None = None,
    ) -> None:
        self._now = now
        self._on_commit = on_commit
        self._snapshot = snapshot or LocalSnapshot()
        self._store = MemoryStore(self._committed, history=history, state=self._snapshot.state)
        self._core = Core(self._store, now, admit=admit, plugin=plugin, converters=converters)

    async def start(self) -> None:
        """Register the built-in and the stored resources. `start_controllers` starts the rest."""
        await self._core.load(self._snapshot.resources)

    def snapshot(self) -> LocalSnapshot:
        """Return the present objects, as the start of other instances."""
        found: dict[str, list[Resource]] = {}
        for resource in self._core.registry.all():
            if resource.custom:
                found.setdefault(resource.crd_name, []).append(resource)
        return LocalSnapshot(self._store.dump(), found)

    def start_controllers(self) -> None:
        """Start garbage collection and the deletion of namespaces, definitions and old Events."""
        self._core.start_controllers()

    async def stop(self) -> None:
        """End watches and controllers, and drop all objects."""
        await self._core.stop()

    async def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Raw | None = None,
        content_type: str = JSON,
    ) -> Raw:
        """Answer a request: GET of an object or list, POST, PUT, PATCH, DELETE of an object. Raises StatusError."""
        resource, target = self._route(path)
        raw = orjson.dumps(body) if body is not None else b""
        options = MultiDict(query or {})
        if not target.name and method == "GET":
            return await self._list(resource, target, ListOptions.of(options))
        made = await self._single(method, resource, target, options, raw, content_type)
        answer: Raw = orjson.loads(made)
        return answer

    async def _single(
        self, method: str, resource: Resource, target: Target, query: MultiDict[str], raw: bytes, content_type: str
    ) -> bytes:
        verbs = self._core.verbs
        if method == "GET":
            return (await verbs.get(resource, target)).body
        if method == "DELETE":
            options = DeleteOptions.of(query, decode(content_type, raw, strict=False).value if raw else None)
            return (await verbs.delete(resource, target, options)).body
        if method == "PATCH":
            verbs.check_patch_type(resource, content_type)
            apply = content_type == APPLY_PATCH
            patch = decode_patch(content_type, raw, strict=True)
            how = WriteOptions.of(query, "PatchOptions", _AGENT, apply=apply)
            return (await verbs.patch(resource, target, content_type, patch, how)).body
        kind: OptionsKind = "CreateOptions" if method == "POST" else "UpdateOptions"
        body = decode(content_type, raw, strict=True, kind=resource.kind, custom=resource.custom, values=len(raw))
        do = {"POST": verbs.create, "PUT": verbs.update}.get(method)
        if do is None:
            raise errors.method_not_allowed()
        return (await do(resource, target, body, WriteOptions.of(query, kind, _AGENT))).body

    async def _list(self, resource: Resource, target: Target, options: ListOptions) -> Raw:
        listing = await self._core.lists.read(resource, target, options)
        items: list[Any] = [orjson.loads(body) async for part in listing.parts for body in part]
        metadata: Raw = {"resourceVersion": str(listing.version), "continue": listing.continues}
        if listing.remaining:
            metadata["remainingItemCount"] = listing.remaining
        head = {"apiVersion": resource.api_version, "kind": resource.list_kind, "metadata": metadata}
        return {**head, "items": items}

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        """Watch a collection. Yields events as lines of JSON. Raises StatusError if the watch cannot begin."""
        resource, target = self._route(path)
        options = ListOptions.of({**query, "watch": "true"})
        return self._lines(watch_lines(self._core.lists.watch(resource, target, options)))

    @staticmethod
    async def _lines(parts: AsyncGenerator[list[bytes], None]) -> AsyncGenerator[bytes, None]:
        async with aclosing(parts):
            async for part in parts:
                for line in part:
                    yield line

    # --- without admission ---

    def restore(self, obj: Raw) -> Raw:
        """Store an object unchanged, with its uid, times and status, and return it with its resourceVersion. Missing
        values of these are added. Nothing is reviewed. Raises LookupError for an unknown apiVersion or kind."""
        key = self._where(obj)[1]
        fields = {
            "uid": str(uuid.uuid4()),
            "creationTimestamp": meta.timestamp(self._now()),
            "generation": 1,
            **obj["metadata"],
        }
        return self._commit(key, {**obj, "metadata": fields})

    def remove(self, obj: Raw) -> None:
        """Delete an object regardless of its finalizers. Raises LookupError if there is none."""
        resource, key = self._where(obj)
        stored = self._store.read(key)
        if stored is None:
            raise LookupError(f"{resource.kind} {key.namespace}/{key.name}")
        self._commit(key, orjson.loads(stored.body), delete=True)

    def find(self, api_version: str, kind: str, namespace: str, name: str) -> Raw | None:
        """Return a stored object; None if there is none."""
        stored = self._store.read(Key(self._of_kind(api_version, kind).key, namespace, name))
        found: Raw | None = None if stored is None else orjson.loads(stored.body)
        return found

    def objects(self, api_version: str, kind: str) -> list[Raw]:
        """Return all stored objects of a kind."""
        resource = self._of_kind(api_version, kind)
        return [orjson.loads(stored.body) for stored in self._store.read_all(resource.key)]

    def _commit(self, key: Key, obj: Raw, *, delete: bool = False) -> Raw:
        stored = self._store.read(key)
        version = self._store.next_version()
        body = conversion.with_version(obj, version)
        event = self._store.commit(Write(key, version, body, stored.version if stored else 0, delete=delete))
        made: Raw = orjson.loads(event.body)
        return made

    def _where(self, obj: Raw) -> tuple[Resource, Key]:
        resource = self._of_kind(obj["apiVersion"], obj["kind"])
        fields = obj["metadata"]
        return resource, Key(resource.key, fields.get("namespace", "") if resource.namespaced else "", fields["name"])

    def _of_kind(self, api_version: str, kind: str) -> Resource:
        for resource in self._core.registry.all():
            if resource.kind == kind and resource.api_version == api_version == resource.stored_api_version:
                return resource
        raise LookupError(f"{api_version} {kind} is not stored here")

    # --- parts ---

    def _route(self, path: str) -> tuple[Resource, Target]:
        target = parse_path(path)
        resource = self._core.registry.find(target.group, target.version, target.plural) if target is not None else None
        if target is None or resource is None or resource.virtual:
            raise errors.no_such_path()
        if target.subresource and target.subresource != "status":
            raise errors.not_found(resource.group, resource.plural, target.name)
        return resource, target

    def _committed(self, event: Event) -> None:
        self._core.committed(event)
        if self._on_commit is not None:
            self._on_commit(event.type, event.object)
