"""The scale subresource: the number of replicas of a custom resource, as `kubectl scale` and autoscalers see it.

A definition says where the numbers stand in its objects; here they are shown as `autoscaling/v1` Scale, and a written
Scale becomes a change of the object (k8s.io/apiextensions-apiserver, pkg/registry/customresource).
"""

from __future__ import annotations

from typing import Any

import orjson

from tink.apiserver import errors, patch
from tink.apiserver.requests import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, Body, Target, WriteOptions
from tink.apiserver.resources import Resource, ScalePaths
from tink.apiserver.write.strategy import Result
from tink.apiserver.write.verbs import ATTEMPTS, Verbs
from tink.schema import Raw, field_errors

_SHOWN = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
_INT32 = 1 << 31


class Scales:
    """Verbs on the scale of objects."""

    def __init__(self, verbs: Verbs) -> None:
        self._verbs = verbs

    async def get(self, resource: Resource, target: Target) -> Result:
        """Read a scale. Raises StatusError."""
        obj: Raw = orjson.loads((await self._verbs.get(resource, target)).body)
        paths = _paths(resource)
        if _at(obj, paths.wanted) is None:
            raise errors.internal(f'the spec replicas field ".{".".join(paths.wanted)}" does not exist')
        return Result(orjson.dumps(_scale(obj, paths)))

    async def update(self, resource: Resource, target: Target, body: Body, options: WriteOptions) -> Result:
        """Replace a scale: what counts is spec.replicas. Raises StatusError."""
        return await self._write(resource, target, body.value, options)

    async def patch(self, resource: Resource, target: Target, kind: str, body: Body, options: WriteOptions) -> Result:
        """Patch a scale. Raises StatusError."""
        if kind == APPLY_PATCH:
            return await self._write(resource, target, body.value, options)
        for attempt in range(ATTEMPTS):
            obj: Raw = orjson.loads((await self._verbs.get(resource, target)).body)
            scale = _scale(obj, _paths(resource))
            try:
                if kind == JSON_PATCH:
                    scale = patch.apply_operations(scale, body.value)
                else:
                    scale = patch.merge(scale, body.value)
            except patch.PatchError as error:
                raise error.status() from error
            try:
                return await self._write(resource, target, scale, options)
            except errors.StatusError as error:
                named = isinstance(body.value, dict) and (body.value.get("metadata") or {}).get("resourceVersion")
                if error.reason != "Conflict" or named or attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("the loop returns or raises")

    async def _write(self, resource: Resource, target: Target, scale: Any, options: WriteOptions) -> Result:
        """Write the replicas of a Scale into the object. Raises StatusError."""
        replicas, version = _read(scale)
        paths = _paths(resource)
        change: Raw = {}
        at = change
        for step in paths.wanted[:-1]:
            at = at.setdefault(step, {})
        at[paths.wanted[-1]] = replicas
        if version:
            change["metadata"] = {**change.get("metadata", {}), "resourceVersion": version}
        result = await self._verbs.patch(resource, target, MERGE_PATCH, Body(change), options)
        made = _scale(orjson.loads(result.body), paths)
        return Result(orjson.dumps(made), result.code, result.warnings)


def _paths(resource: Resource) -> ScalePaths:
    if resource.scale is None:
        raise errors.no_such_path()
    return resource.scale


def _at(obj: Any, steps: tuple[str, ...]) -> Any:
    for step in steps:
        obj = obj.get(step) if isinstance(obj, dict) else None
    return obj


def _scale(obj: Raw, paths: ScalePaths) -> Raw:
    fields = obj["metadata"]
    status: Raw = {"replicas": _at(obj, paths.actual) or 0}
    if paths.selector and (selector := _at(obj, paths.selector)):
        status["selector"] = selector
    wanted = _at(obj, paths.wanted)
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: fields[name] for name in _SHOWN if name in fields},
        "spec": {"replicas": wanted} if wanted else {},
        "status": status,
    }


def _read(scale: Any) -> tuple[int, str]:
    """Give the replicas and the resourceVersion of a Scale. Raises StatusError (400, 422)."""
    if not isinstance(scale, dict) or not isinstance(scale.get("spec") or {}, dict):
        raise errors.bad_request("the body must be a Scale")
    fields = scale.get("metadata") or {}
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if not isinstance(fields, dict) or isinstance(replicas, bool) or not isinstance(replicas, int):
        raise errors.bad_request('Scale in version "v1" cannot be handled as a Scale: spec.replicas must be a number')
    if not 0 <= replicas < _INT32:
        wrong = field_errors.invalid("spec.replicas", replicas, "must be greater than or equal to 0")
        raise errors.invalid("autoscaling", "Scale", str(fields.get("name", "")), [wrong])
    return replicas, str(fields.get("resourceVersion") or "")
