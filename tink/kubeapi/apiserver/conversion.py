"""Conversion of objects between the versions of a resource.

An object is stored in the storage version of its definition at the time of the write. The strategy None changes only
the apiVersion. With the strategy Webhook, a server that the definition names converts many objects at a time. The
program that embeds this API may itself convert the objects of a definition with the strategy None (`VersionConverter`).
An object that is older than the definition is first pruned and completed by today's schema, so that newer defaults
show. Text that is already in the requested version, under today's definition, is passed on unchanged.

Few small texts are converted on the event loop, and all others in the thread of `tink.offload`, in turns with other
requests. A text that is being converted or was converted lately is not converted again for another watch. The texts of
lists are kept only while there is room.

Source: k8s.io/apiextensions-apiserver, pkg/apiserver/conversion and customresource_handler.go.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from math import inf
from time import thread_time
from typing import Any, Final, Protocol

import orjson

from tink.kubeapi.apiserver import errors
from tink.kubeapi.apiserver.errors import StatusError
from tink.kubeapi.apiserver.resources.registry import Resource
from tink.kubeapi.apiserver.store.objects import Event, StoredObject
from tink.kubeapi.apiserver.webhooks import MAX_ANSWER, CallWebhook, WebhookCallError, check_review, group_version_kind
from tink.kubeapi.schema import field_errors, meta, structs
from tink.kubeapi.schema.field_errors import CompiledSchema, TooMuchAddedError, WalkResult
from tink.kubeapi.schema.shapes import Raw, deep_copy
from tink.kubeapi.schema.structural import compile_schema, root_schema
from tink.kubeapi.schema.webhooks import ClientConfig
from tink.limits import RecentlyUsed, shrink_to_fit
from tink.offload import LARGE, is_large, offload

TIMEOUT_SECONDS = 30  # Timeout of a conversion webhook, in seconds
MAX_BATCH = 500
MAX_BATCH_BYTES = 1 << 20
"""Maximum number of objects, and of bytes of objects, in one call of a conversion webhook."""
GROUP = "apiextensions.k8s.io"
MAX_KEPT_BYTES: Final = 8 << 20
"""Maximum bytes of texts that are kept with their conversions, for each definition."""
_ENTRY_BYTES: Final = 400
"""Approximate memory of a kept text besides the texts."""
TURN_SECONDS: Final = 0.02
"""Processor time of the conversions of a list in the thread, before another request gets its turn."""


class VersionConverter(Protocol):
    """Converts the objects of one definition between its versions in this process. Pure."""

    def convert(self, obj: Raw, api_version: str) -> Raw:
        """Return an object in a version (an apiVersion). `obj` may have some of its fields only. Never raises."""

    def restore(self, new: Raw, old: Raw) -> None:
        """Add to the body `new` of an update, in place, what its version can't hold of the stored object `old`.

        Both are in one version. A client that replaces an object does not send what it can't see.
        """

    def weight(self, body: bytes) -> int:
        """Return the time that the conversion of an object's JSON takes, in bytes of JSON (`tink.offload`)."""


class Converter(Protocol):
    """Converts objects of one resource between versions."""

    by_webhook: bool  # True if a webhook converts, so that this server does not know how fields correspond
    here: Callable[[Raw, str], Raw] | None
    """Converts an object to a version in this process, neither pruned nor completed; None if fields do not move."""

    def restore(self, new: Raw, old: Raw) -> None:
        """Add to the body of an update, in place, what its version can't hold of the stored object."""

    def weight(self, obj: Raw, /) -> int:
        """Return the time that the conversion of an object takes in this process, in bytes of JSON (`tink.offload`)."""

    def complete(self, obj: Raw) -> None:
        """Prune and complete an object by the schema of its own version, in place. Raises StatusError."""

    async def convert(self, objects: list[Raw], target: str) -> list[Raw]:
        """Return the objects in a version (an apiVersion), neither pruned nor completed. Raises StatusError."""

    async def convert_texts(
        self, target: str, bodies: Sequence[bytes], *, older: Set[bytes], listed: bool
    ) -> list[bytes]:
        """Return stored texts in a version (an apiVersion). Raises StatusError.

        Those in `older` are older than the schema, and are pruned and completed first. `listed` is True for the texts
        of a list, which may be too many to keep their conversions.
        """


async def as_served(resource: Resource, items: Sequence[StoredObject | Event], *, listed: bool = False) -> list[bytes]:
    """Return stored objects as text in the version of the resource. Raises StatusError if conversion fails.

    `listed` is True for the objects of a list.
    """
    head = _head(resource.api_version)
    bodies = [item.body for item in items]
    since = resource.defined_at
    other = [index for index, item in enumerate(items) if item.version < since or not item.body.startswith(head)]
    if not other:
        return bodies
    rule: Converter | None = resource.conversion
    if rule is None:
        for index in other:
            if not bodies[index].startswith(head):
                bodies[index] = head + bodies[index][bodies[index].index(b',"kind"') :]
        return bodies
    older = {bodies[index] for index in other if items[index].version < since}
    converted = await rule.convert_texts(
        resource.api_version, [bodies[index] for index in other], older=older, listed=listed
    )
    for index, body in zip(other, converted, strict=True):
        bodies[index] = body
    return bodies


async def as_stored(resource: Resource, obj: Raw) -> Raw:
    """Return the object of a request in the storage version; the same object if it is in that version already. Raises
    StatusError if conversion fails."""
    api_version = resource.stored_api_version
    if obj["apiVersion"] == api_version:
        return obj
    if resource.conversion is None:
        return {**obj, "apiVersion": api_version}
    rule: Converter = resource.conversion
    made = (await rule.convert([obj], api_version))[0]
    # Also add the defaults of the storage version: Kubernetes adds them whenever the object is read.
    return await offload(_size(made), _completed, rule, made)


def _completed(rule: Converter, obj: Raw) -> Raw:
    made: Raw = deep_copy(obj)
    rule.complete(made)
    return made


def _size(obj: Raw) -> int:
    """Return the bytes of an object as JSON; more than is small if they can't be counted."""
    try:
        return len(orjson.dumps(obj))
    except TypeError:  # an integer of more than 64 bits, or too deep
        return LARGE + 1


def tracking_size(resource: Resource, obj: Raw | None, size: int) -> int:
    """Return the time to find the owners of fields in a write of `size` bytes, in bytes of JSON (`tink.offload`).

    If the stored object `obj` has owners in another version, the objects before and after are converted to it.
    """
    rule: Converter | None = resource.conversion
    if rule is None or rule.here is None or obj is None:
        return size
    owners = obj["metadata"].get("managedFields") or ()
    is_converted = any(owner.get("apiVersion") != resource.api_version for owner in owners)
    return size + 2 * rule.weight(obj) if is_converted else size


def is_current(resource: Resource, item: StoredObject) -> bool:
    """Return True if a stored object is in today's storage version."""
    return item.body.startswith(_head(resource.stored_api_version))


def with_version(obj: Raw, version: int) -> bytes:
    """Return an object as text in its own version, with a resourceVersion."""
    obj["metadata"] = {**obj["metadata"], "resourceVersion": str(version)}
    return text(obj, obj["apiVersion"])


async def convert(resource: Resource, obj: Raw) -> Raw:
    """Return an object in the version of the resource, neither pruned nor completed. Raises StatusError."""
    if obj["apiVersion"] == resource.api_version:
        return obj
    if resource.conversion is None:
        return obj | {"apiVersion": resource.api_version}
    rule: Converter = resource.conversion
    return (await rule.convert([obj], resource.api_version))[0]


def text(obj: Raw, api_version: str) -> bytes:
    """Return an object as JSON: apiVersion, kind and metadata first, and metadata in a readable order."""
    head = {"apiVersion": api_version, "kind": obj["kind"], "metadata": meta.ordered(obj["metadata"])}
    return orjson.dumps(head | {key: value for key, value in obj.items() if key not in head})


_Key = tuple[bytes, str]
"""A stored text, and the apiVersion that it is converted to."""
_Converted = dict[bytes, bytes | Exception]
"""The results of conversions by their texts."""


@dataclass(frozen=True, eq=False)
class Conversion:
    """Converts the objects of one definition. It serves all versions, and is replaced with the definition.

    `schemas` are the schemas of all versions, served or not, by apiVersion. `client` is the address of the webhook,
    None for the strategy None. `review` is the version of ConversionReview to send. `local` converts in this process.
    """

    schemas: Mapping[str, Raw]
    client: ClientConfig | None = None
    review: str = ""
    post: CallWebhook | None = None
    local: VersionConverter | None = None
    turn_seconds: float = TURN_SECONDS
    """Processor time after which a conversion of several texts ends its turn in the thread."""
    nodes: dict[tuple[str, bool], CompiledSchema] = field(default_factory=dict)
    """The compiled schemas, made on first use: by apiVersion, without and with defaults."""
    texts: RecentlyUsed[_Key, bytes] = field(default_factory=lambda: RecentlyUsed(MAX_KEPT_BYTES))
    """The texts that were converted last in this process."""
    running: dict[_Key, asyncio.Task[_Converted]] = field(default_factory=dict)
    """The conversions that are being done in the thread."""

    @property
    def by_webhook(self) -> bool:
        """True if a webhook converts, so that this server does not know how fields correspond."""
        return self.client is not None

    @property
    def here(self) -> Callable[[Raw, str], Raw] | None:
        """The conversion in this process; None with a webhook, or if only the apiVersion changes."""
        return self.local.convert if self.local is not None else None

    def restore(self, new: Raw, old: Raw) -> None:
        """Add to the body of an update, in place, what its version can't hold of the stored object."""
        if self.local is not None:
            self.local.restore(new, old)

    # --- the schemas ---

    def complete(self, obj: Raw) -> None:
        """Prune and complete an object by the schema of its own version, in place. Raises StatusError."""
        try:
            self._node(obj["apiVersion"], defaults=True)(obj, None, WalkResult())
        except TooMuchAddedError as error:
            raise errors.too_much_added(obj["apiVersion"].partition("/")[0], obj["kind"], obj, error) from error

    def _node(self, api_version: str, *, defaults: bool) -> CompiledSchema:
        found = self.nodes.get((api_version, defaults))
        if found is None:
            self._check_version(api_version)
            shape = _shape(self.schemas[api_version], defaults=defaults)
            found = self.nodes[api_version, defaults] = compile_schema(root_schema(shape))
        return found

    def _check_version(self, api_version: str) -> None:
        if api_version not in self.schemas:
            raise _failed(f"request to convert CR from an invalid group/version: {api_version}")

    # --- from version to version ---

    async def convert_texts(
        self, target: str, bodies: Sequence[bytes], *, older: Set[bytes], listed: bool
    ) -> list[bytes]:
        """Return stored texts in the version `target`. Those in `older` are completed first. Raises StatusError."""
        if self.client is None:
            return await self._convert_here(target, bodies, older=older, listed=listed)
        if older:
            completed = await self._completed(older)
            bodies = [completed.get(body, body) for body in bodies]
        head = _head(target)
        made: list[bytes] = []
        for batch in _batches([body for body in bodies if not body.startswith(head)]):
            objects = await self.convert([orjson.loads(body) for body in batch], target)
            try:
                for obj in objects:
                    self._node(obj["apiVersion"], defaults=False)(obj, None, WalkResult())
                    made.append(text(obj, target))
            except (orjson.JSONEncodeError, RecursionError) as error:
                raise _failed(f"conversion webhook for {target} returned what cannot be written: {error}") from error
        rest = iter(made)
        return [body if body.startswith(head) else next(rest) for body in bodies]

    async def _completed(self, older: Set[bytes]) -> dict[bytes, bytes]:
        """Return older texts in their own version, as today's schema completes them. Raises StatusError."""
        by_version: dict[str, list[bytes]] = {}
        for body in older:
            by_version.setdefault(_api_version(body), []).append(body)
        made: dict[bytes, bytes] = {}
        for version, bodies in by_version.items():
            converted = await self._convert_here(version, bodies, older=older, listed=True)
            made.update(zip(bodies, converted, strict=True))
        return made

    async def _convert_here(
        self, target: str, bodies: Sequence[bytes], *, older: Set[bytes], listed: bool
    ) -> list[bytes]:
        """Convert texts in this process."""
        found: _Converted = {}
        tasks: dict[bytes, asyncio.Task[_Converted]] = {}
        new: list[bytes] = []
        for body in dict.fromkeys(bodies):
            if (kept := self.texts.get((body, target))) is not None:
                found[body] = kept
            elif (task := self.running.get((body, target))) is not None:
                tasks[body] = task
            else:
                new.append(body)
        weight = sum(map(self._weight, new))
        if is_large(weight):
            task = asyncio.create_task(self._convert_in_turns(weight, target, new, older))
            self.running.update(dict.fromkeys(((body, target) for body in new), task))
            task.add_done_callback(partial(self._end, target, new, listed))
            tasks.update(dict.fromkeys(new, task))
        elif new:
            found |= self._keep(target, self._convert_some(target, new, older, inf), listed=listed)
        for body, task in tasks.items():
            # Other watches may wait for the same task, so it does not end with this one.
            found[body] = (await asyncio.shield(task))[body]
        return [_raised(found[body]) for body in bodies]

    async def _convert_in_turns(
        self, weight: int, target: str, bodies: Sequence[bytes], older: Set[bytes]
    ) -> _Converted:
        """Convert texts in the thread. After `turn_seconds`, another request may have its turn."""
        made: _Converted = {}
        while len(made) < len(bodies):
            made |= await offload(weight, self._convert_some, target, bodies[len(made) :], older, self.turn_seconds)
        return made

    def _end(self, target: str, bodies: Sequence[bytes], listed: bool, task: asyncio.Task[_Converted]) -> None:
        for body in bodies:
            del self.running[body, target]
        if not task.cancelled() and task.exception() is None:
            self._keep(target, task.result(), listed=listed)

    def _keep(self, target: str, made: _Converted, *, listed: bool) -> _Converted:
        """Keep conversions; those of a list only if there is room for them."""
        for body, converted in made.items():
            if isinstance(converted, bytes):
                size = len(body) + len(converted) + _ENTRY_BYTES
                self.texts.put((body, target), converted, size, displaces=not listed)
        return made

    def _convert_some(self, target: str, bodies: Sequence[bytes], older: Set[bytes], seconds: float) -> _Converted:
        """Convert the first texts, perhaps in another thread, for so much processor time, at least one.

        An error belongs to its text.
        """
        made: _Converted = {}
        end = thread_time() + seconds
        for body in bodies:
            try:
                made[body] = shrink_to_fit(self._convert_text(body, target, is_older=body in older))
            except (StatusError, RecursionError, orjson.JSONEncodeError) as error:
                made[body] = error
            if thread_time() >= end:
                break
        return made

    def _convert_text(self, body: bytes, target: str, *, is_older: bool) -> bytes:
        """Return a text in a version. Raises StatusError."""
        if not is_older and body.startswith(_head(target)):
            return body
        obj: Raw = orjson.loads(body)
        if is_older:
            self.complete(obj)
        self._check_version(obj["apiVersion"])
        if obj["apiVersion"] != target:
            obj = self.here(obj, target) if self.here is not None else obj | {"apiVersion": target}
            self._node(target, defaults=False)(obj, None, WalkResult())
        return text(obj, target)

    def weight(self, obj: Raw) -> int:
        """Return the time that the conversion of an object takes in this process, in bytes of JSON."""
        try:
            return self._weight(orjson.dumps(obj))
        except TypeError:  # an integer of more than 64 bits, or too deep
            return LARGE + 1

    def _weight(self, body: bytes) -> int:
        return self.local.weight(body) if self.local is not None else len(body)

    async def convert(self, objects: list[Raw], target: str) -> list[Raw]:
        """Convert objects from any versions, without pruning. Raises StatusError (500)."""
        for obj in objects:
            self._check_version(obj["apiVersion"])
        if self.here is not None:
            return [await offload(self.weight(obj), self.here, obj, target) for obj in objects]
        if self.client is None:
            return [obj | {"apiVersion": target} for obj in objects]
        whom = f"conversion webhook for {objects[0]['apiVersion']}, Kind={objects[0]['kind']}"
        uid = str(uuid.uuid4())
        review = _review(self.review, uid, target, objects)
        try:
            if self.post is None:
                raise WebhookCallError("no client for webhooks")
            answer = await self.post(self.client, review, TIMEOUT_SECONDS, MAX_ANSWER + 4 * len(review))
            converted = _converted(answer, uid, self.review)
        except (WebhookCallError, ValueError) as error:
            raise _failed(f"{whom} failed: {error}") from error
        if len(converted) != len(objects):
            raise _failed(f"{whom} returned {len(converted)} objects, expected {len(objects)}")
        return [
            _checked(whom, index, before, after, target)
            for index, (before, after) in enumerate(zip(objects, converted, strict=True))
        ]


def compile_conversion(
    definition: Mapping[str, Any], post: CallWebhook | None = None, local: VersionConverter | None = None
) -> Conversion:
    """Return the converter for the objects of a stored definition.

    `post` calls its webhook. `local` converts in this process, if the definition names no webhook.
    """
    spec = definition["spec"]
    schemas = {
        f"{spec['group']}/{version['name']}": (version.get("schema") or {}).get("openAPIV3Schema") or {}
        for version in spec["versions"]
    }
    rule = spec.get("conversion") or {}
    if rule.get("strategy", "None") != "Webhook":
        return Conversion(schemas, local=local)
    webhook = rule.get("webhook") or {}
    spoken = [version for version in webhook.get("conversionReviewVersions") or () if version in ("v1", "v1beta1")]
    client = ClientConfig.of(webhook.get("clientConfig") or {})
    return Conversion(schemas, client, spoken[0] if spoken else "v1", post)


def _head(api_version: str) -> bytes:
    """Return the beginning of each stored text in a version."""
    return b'{"apiVersion":"%b"' % api_version.encode()


def _api_version(body: bytes) -> str:
    """Return the version of a stored text."""
    begin = len(_head("")) - 1
    return body[begin : body.index(b'"', begin)].decode()


def _raised(converted: bytes | Exception) -> bytes:
    if isinstance(converted, Exception):
        raise converted
    return converted


def _failed(why: str) -> StatusError:
    """Return the error for a failed conversion: as in Kubernetes, 500 without a reason."""
    return StatusError(500, "", why)


_SHAPE = (
    *("type", "nullable", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"),
    "x-kubernetes-int-or-string",
)


def _shape(openapi: Mapping[str, Any], *, defaults: bool) -> Raw:
    """Return the part of a schema that prunes and, with `defaults`, completes. Reading checks no values."""
    made: Raw = {key: openapi[key] for key in (*_SHAPE, *(("default",) if defaults else ())) if key in openapi}
    if "properties" in openapi:
        made["properties"] = {name: _shape(child, defaults=defaults) for name, child in openapi["properties"].items()}
    for name in ("items", "additionalProperties"):
        child = openapi.get(name)
        if isinstance(child, Mapping):
            made[name] = _shape(child, defaults=defaults)
        elif child is not None:
            made[name] = child
    return made


def _batches(bodies: Sequence[bytes]) -> Iterable[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for body in bodies:
        if batch and (len(batch) == MAX_BATCH or size + len(body) > MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(body)
        size += len(body)
    if batch:
        yield batch


# --- ConversionReview -------------------------------------------------------------------------------------------


def _review(version: str, uid: str, target: str, objects: list[Raw]) -> bytes:
    empty: Raw = {"uid": "", "convertedObjects": None, "result": {"metadata": {}}}
    sent = [
        obj | {"metadata": {name: value for name, value in obj["metadata"].items() if name != "resourceVersion"}}
        for obj in objects
    ]
    return orjson.dumps(
        {
            "kind": "ConversionReview",
            "apiVersion": f"{GROUP}/{version}",
            "request": {"uid": uid, "desiredAPIVersion": target, "objects": sent},
            "response": empty,
        }
    )


def _converted(answer: Any, uid: str, version: str) -> list[Any]:
    answer = check_review(answer, f"{GROUP}/{version}", "ConversionReview")
    got, expected, response = group_version_kind(answer), f"{GROUP}/v1, Kind=ConversionReview", answer.get("response")
    if version == "v1" and got != expected:
        raise ValueError(f"expected webhook response of {expected}, got {got}")
    if not isinstance(response, dict):
        raise ValueError("no response provided")  # noqa: TRY004
    if version == "v1" and response.get("uid", "") != uid:
        raise ValueError(f'expected response.uid="{uid}", got {field_errors.quote(response.get("uid", ""))}')
    result = response.get("result")
    result = result if isinstance(result, dict) else {}
    if result.get("status") != "Success":
        raise ValueError(
            str(result.get("message") or "")
            or f"response.result.status was '{result.get('status') or ''}', not 'Success'"
        )
    objects = response.get("convertedObjects")
    return objects if isinstance(objects, list) else []


def _checked(whom: str, index: int, before: Raw, after: Any, target: str) -> Raw:
    """Check a converted object against the original, and restore its metadata. Raises StatusError (500)."""
    shown = after if isinstance(after, dict) else {}
    theirs = shown.get("metadata")
    try:
        for name, wanted in (("kind", before["kind"]), ("apiVersion", target)):
            if shown.get(name) != wanted:
                raise ValueError(f"invalid {name} (expected {wanted}, received {shown.get(name) or ''})")
        return shown | {"metadata": _metadata(before["metadata"], theirs if isinstance(theirs, dict) else {})}
    except ValueError as error:
        raise _failed(f"{whom} returned an invalid object at index {index}: {error}") from error


def _metadata(ours: Raw, theirs: Raw) -> Raw:
    """Return the original metadata with the labels and annotations of the answer. Raises ValueError."""
    for name in ("name", "namespace", "uid"):
        if (theirs.get(name) or "") != (ours.get(name) or ""):
            raise ValueError(f"must have the same {name}: {ours.get(name) or ''} != {theirs.get(name) or ''}")
    made = dict(ours)
    for name in ("labels", "annotations"):
        found = theirs.get(name)
        if found is None:
            made.pop(name, None)
            continue
        structs.METADATA.read({name: found}, "metadata")
        if found != ours.get(name):
            wrong = meta.check({"name": "x", name: found}, meta.subdomain)
            if wrong := [error for error in wrong if error.field.startswith(f"metadata.{name}")]:
                raise ValueError("; ".join(map(str, wrong)))
        made[name] = found
    return made
