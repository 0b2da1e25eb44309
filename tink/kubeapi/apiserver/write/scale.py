"""The scale subresource: the replicas of a custom resource, for `kubectl scale` and autoscalers.

A definition names the paths of the numbers in its objects. They are shown as `autoscaling/v1` Scale, and a written
Scale becomes a patch of the object (k8s.io/apiextensions-apiserver, pkg/registry/customresource).
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from tink.kubeapi.apiserver import errors
from tink.kubeapi.apiserver.media import APPLY_PATCH, MERGE_PATCH, Body
from tink.kubeapi.apiserver.options import Target, WriteOptions
from tink.kubeapi.apiserver.resources.registry import Resource, Rules, ScalePaths, builtin_resource
from tink.kubeapi.apiserver.tables import CUSTOM_AGE, NAME, Column
from tink.kubeapi.apiserver.write import submission
from tink.kubeapi.apiserver.write.pipeline import VerbResult
from tink.kubeapi.apiserver.write.submission import complete, unknown_fields
from tink.kubeapi.apiserver.write.verbs import MAX_ATTEMPTS, Verbs
from tink.kubeapi.schema.shapes import INT32, TEXT, Raw, deep_copy, struct
from tink.offload import offload

_SHOWN: Final = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
_UNSET: Final = -(1 << 31)
"""Replicas of a Scale to be patched, if the object has none."""
_SCALE: Final = struct({"spec": struct({"replicas": INT32}), "status": struct({"replicas": INT32, "selector": TEXT})})
SCALE: Final = builtin_resource(
    *("autoscaling", "scales", "Scale", _SCALE, Rules(typed=True)),
    list_kind="",
    columns=(
        NAME,
        Column("Desired", lambda scale, _: scale["spec"].get("replicas", 0), "Replicas that are wanted.", "integer"),
        Column("Available", lambda scale, _: scale["status"].get("replicas", 0), "Replicas that exist.", "integer"),
        CUSTOM_AGE,
    ),
    virtual=True,
)
"""The resource of every Scale. It is not in the registry, since it has no path of its own."""


class Scales:
    """Verbs on the scale of objects."""

    def __init__(self, verbs: Verbs) -> None:
        self._verbs = verbs

    async def get(self, resource: Resource, target: Target) -> VerbResult:
        """Read a scale. Raises StatusError."""
        obj: Raw = orjson.loads((await self._verbs.get(resource, target)).body)
        paths = _paths(resource)
        if _at(obj, paths.wanted) is None:
            raise errors.internal(f'the spec replicas field "{_text(paths)}" does not exist')
        return VerbResult(orjson.dumps(_scale(obj, paths)))

    async def update(self, resource: Resource, target: Target, body: Body, options: WriteOptions) -> VerbResult:
        """Replace a scale; only spec.replicas counts. Raises StatusError."""
        scale = submission.read_object(SCALE, target.namespace, await offload(body.size, deep_copy, body.value))
        submission.check_name(scale["metadata"], target.name)
        warnings = await offload(body.size, _read, scale, body, options)
        uid = scale["metadata"].pop("uid", "")
        with errors.attach_warnings(warnings):
            obj: Raw = orjson.loads((await self._verbs.get(resource, target)).body)
            submission.check_uid(resource, target.name, uid, obj["metadata"])
            return await self._write(resource, target, scale, options, warnings)

    async def patch(
        self, resource: Resource, target: Target, kind: str, body: Body, options: WriteOptions
    ) -> VerbResult:
        """Patch a scale. Raises StatusError."""
        if kind == APPLY_PATCH:
            return await self._apply(resource, target, body, options)
        paths = _paths(resource)
        for attempt in range(MAX_ATTEMPTS):
            obj: Raw = orjson.loads((await self._verbs.get(resource, target)).body)
            shown = _scale(obj, paths)
            if _at(obj, paths.wanted) is None:
                shown["spec"]["replicas"] = _UNSET
            scale = submission.apply_patch(SCALE, shown, kind, body.value)
            submission.check_patched(SCALE, shown, scale)
            warnings = _read(scale, body, options, orjson.dumps(scale))
            if _replicas(scale) == _UNSET:
                raise errors.bad_request(f'the spec replicas field "{_text(paths)}" cannot be empty')
            try:
                with errors.attach_warnings(warnings):
                    return await self._write(resource, target, scale, options, warnings)
            except errors.StatusError as error:
                named = isinstance(body.value, dict) and (body.value.get("metadata") or {}).get("resourceVersion")
                if error.reason != "Conflict" or named or attempt == MAX_ATTEMPTS - 1:
                    raise
        raise AssertionError("the loop returns or raises")

    async def _apply(self, resource: Resource, target: Target, body: Body, options: WriteOptions) -> VerbResult:
        """Apply the replicas to the object. The applier becomes their manager. Raises StatusError."""
        paths = _paths(resource)
        scale = submission.read_applied(SCALE, await offload(body.size, deep_copy, body.value))
        await offload(body.size, _read, scale, body, options)
        config: Raw = {"apiVersion": resource.api_version, "kind": resource.kind}
        if "replicas" in (scale.get("spec") or {}):
            _set(config, paths.wanted, _replicas(scale))
        names = {name: scale["metadata"][name] for name in ("name", "namespace") if name in scale["metadata"]}
        config["metadata"] = {"name": target.name, **names, **_which(scale)}
        return _shown(await self._verbs.patch(resource, target, APPLY_PATCH, Body(config), options), paths)

    async def _write(
        self, resource: Resource, target: Target, scale: Raw, options: WriteOptions, warnings: list[str]
    ) -> VerbResult:
        paths = _paths(resource)
        change: Raw = {}
        _set(change, paths.wanted, _replicas(scale))
        change["metadata"] = {**change.get("metadata", {}), **_which(scale)}
        result = await self._verbs.patch(resource, target, MERGE_PATCH, Body(change), options)
        result.warnings[:0] = warnings
        return _shown(result, paths)


def _paths(resource: Resource) -> ScalePaths:
    if resource.scale is None:
        raise errors.no_such_path()
    return resource.scale


def _text(paths: ScalePaths) -> str:
    return f".{'.'.join(paths.wanted)}"


def _at(obj: Any, steps: tuple[str, ...]) -> Any:
    for step in steps:
        obj = obj.get(step) if isinstance(obj, dict) else None
    return obj


def _set(obj: Raw, steps: tuple[str, ...], value: Any) -> None:
    for step in steps[:-1]:
        obj = obj.setdefault(step, {})
    obj[steps[-1]] = value


def _shown(result: VerbResult, paths: ScalePaths) -> VerbResult:
    return VerbResult(orjson.dumps(_scale(orjson.loads(result.body), paths)), result.code, result.warnings)


def _scale(obj: Raw, paths: ScalePaths) -> Raw:
    fields = obj["metadata"]
    status: Raw = {"replicas": _at(obj, paths.actual) or 0}
    if paths.selector and (selector := _at(obj, paths.selector)):
        status["selector"] = selector
    wanted = _at(obj, paths.wanted)
    return {
        "kind": SCALE.kind,
        "apiVersion": SCALE.api_version,
        "metadata": {name: fields[name] for name in _SHOWN if name in fields},
        "spec": {"replicas": wanted} if wanted else {},
        "status": status,
    }


def _read(scale: Raw, body: Body, options: WriteOptions, patched: bytes = b"") -> list[str]:
    """Read a Scale as its type, in place. Return warnings. Raises StatusError."""
    found = complete(SCALE, scale)
    return unknown_fields(SCALE, found, body.duplicates, options.validation, patched)


def _replicas(scale: Raw) -> int:
    return int((scale.get("spec") or {}).get("replicas", 0))


def _which(scale: Raw) -> Raw:
    fields = scale["metadata"]
    return {name: fields[name] for name in ("uid", "resourceVersion") if fields.get(name)}
