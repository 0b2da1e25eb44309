"""The API without its transport. `server` adds HTTP and a state on disk, `local` a state in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType

import orjson

from tink.kubeapi.apiserver import conversion, errors
from tink.kubeapi.apiserver.admission import webhooks
from tink.kubeapi.apiserver.admission.review import AdmissionPlugin
from tink.kubeapi.apiserver.controllers import GarbageCollector, Lifecycle
from tink.kubeapi.apiserver.media import Body
from tink.kubeapi.apiserver.options import Target, WriteOptions
from tink.kubeapi.apiserver.read import Broadcaster, Lists
from tink.kubeapi.apiserver.resources import builtin, definitions, webhook_configurations
from tink.kubeapi.apiserver.resources.registry import Registry, Resource
from tink.kubeapi.apiserver.store.object_store import ObjectStore
from tink.kubeapi.apiserver.store.objects import Event, Key
from tink.kubeapi.apiserver.webhooks import WebhookClient
from tink.kubeapi.apiserver.write.pipeline import Admit, Pipeline, add_nothing
from tink.kubeapi.apiserver.write.verbs import Verbs
from tink.kubeapi.schema.definition import is_true
from tink.kubeapi.schema.shapes import Raw


def utc_now() -> datetime:
    """Return the present time in UTC."""
    return datetime.now(UTC)


class Core:
    """Verbs, lists, admission, registry and controllers over one store. The store calls `committed` for each change.

    `admit` receives each write before the webhooks do. `plugin` reviews writes in this process. `converters`
    convert the objects of definitions (by the definition's name) between their versions in this process.
    """

    def __init__(
        self,
        store: ObjectStore,
        now: Callable[[], datetime],
        *,
        admit: Admit = add_nothing,
        plugin: AdmissionPlugin | None = None,
        converters: Mapping[str, conversion.VersionConverter] = MappingProxyType({}),
    ) -> None:
        self.store = store
        self.now = now
        self.broadcaster = Broadcaster()  # Ends the watches when the server stops
        self.tasks: list[asyncio.Task[None]] = []  # The running controllers; `stop` cancels them
        self._webhook_client = WebhookClient()
        self._plugin = plugin
        self._converters = converters
        self.registry = Registry(
            (
                *builtin.resources(),
                *webhook_configurations.resources(),
                definitions.definition_resource(lambda new: definitions.names_in_use(new, self.registry.all())),
            )
        )
        self._webhooks = webhooks.Webhooks(
            self._webhook_client.post, self._namespace_labels, self.registry.versions, plugin
        )
        self.verbs = Verbs(Pipeline(store, now, self._webhooks, admit))  # Reads and writes of single objects
        self.lists = Lists(store, self.broadcaster)  # Lists and watches
        self._lifecycle = Lifecycle(store, self.registry, self.verbs, now)
        self._garbage_collector = GarbageCollector(store, self.registry, self.verbs, now)
        self._schemas: dict[str, tuple[bytes, int]] = {}

    def start_controllers(self) -> None:
        """Start the controllers."""
        self.tasks += [
            asyncio.create_task(self._lifecycle.run(), name="apiserver lifecycle"),
            asyncio.create_task(self._garbage_collector.run(), name="apiserver garbage collection"),
        ]

    async def stop(self) -> None:
        """End watches and controllers, and close the store and the connections to webhooks."""
        self.broadcaster.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()
        await self._webhook_client.close()
        await self.store.close()

    async def load(self, compiled: Mapping[str, list[Resource]] = MappingProxyType({})) -> None:
        """Register the stored definitions, and create the system namespaces. `compiled` maps
        the name of a definition to its compiled resources, to save the compilation. Raises StorageError."""
        for key in (definitions.KEY, *webhooks.KEYS):
            async for stored in self.store.scan(key):
                if key == definitions.KEY and stored.name in compiled:
                    self.registry.install(stored.name, compiled[stored.name])
                else:
                    self._use(key, stored.name, orjson.loads(stored.body))
        if self._plugin is not None:
            # Before the first request: a plugin must know the whole state before it reviews a write.
            async for stored in self.store.scan(self._plugin.followed):
                self._plugin.apply(orjson.loads(stored.body))
            self._plugin.synced()
        namespaces = self.registry.stored("/namespaces")
        for name in builtin.SYSTEM_NAMESPACES:
            if await self.store.get(Key(namespaces.key, "", name)) is None:
                body = Body({"metadata": {"name": name}})
                await self.verbs.create(namespaces, Target("", "v1", "namespaces"), body, WriteOptions())

    def _use(self, key: str, name: str, obj: Raw | None) -> None:
        """Apply a stored definition or webhook configuration; None means that it was deleted."""
        if key in webhooks.KEYS:
            self._webhooks.set_configuration(key, name, obj)
        elif obj is None or not is_true(obj, "Established"):
            self.registry.remove(name)
        else:
            # Objects from before the resourceVersion since which a definition has its schemas were checked by others.
            fields = obj["metadata"]
            schemas = orjson.dumps([version.get("schema") for version in obj["spec"]["versions"]])
            known = self._schemas.get(fields["uid"])
            if known is None or known[0] != schemas:
                known = self._schemas[fields["uid"]] = (schemas, int(fields["resourceVersion"]))
            convert = conversion.compile_conversion(obj, self._webhook_client.post, self._converters.get(name))
            self.registry.install(name, definitions.resources(obj, conversion=convert, defined_at=known[1]))

    async def _namespace_labels(self, name: str) -> dict[str, str]:
        stored = await self.store.get(Key("/namespaces", "", name))
        if stored is None:
            raise errors.not_found("", "namespaces", name)
        labels: dict[str, str] = orjson.loads(stored.body)["metadata"].get("labels") or {}
        return labels

    def committed(self, event: Event) -> None:
        """Process a stored change: apply configuration, and notify watches and controllers."""
        key = event.key
        if key.resource == definitions.KEY or key.resource in webhooks.KEYS:
            self._use(key.resource, key.name, None if event.type == "DELETED" else event.object)
            if key.resource == definitions.KEY and event.type == "DELETED":
                self._schemas.pop(event.object["metadata"]["uid"], None)
                spec = event.object["spec"]
                self.broadcaster.end(f"{spec['group']}/{spec['names']['plural']}")
        if self._plugin is not None and key.resource == self._plugin.followed:
            change = self._plugin.remove if event.type == "DELETED" else self._plugin.apply
            change(event.object)
        self.broadcaster.publish(event)
        self._lifecycle.on_event(event)
        self._garbage_collector.on_event(event)
