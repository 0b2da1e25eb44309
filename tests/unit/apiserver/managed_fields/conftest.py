"""The steps of a write around the field manager, as short as they can be: what `verbs` does, without a store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from tink.apiserver import patch
from tink.apiserver.managed_fields import FieldManager, keep_times
from tink.schema.outcome import Outcome
from tink.schema.structural.compiler import compile_schema, root_schema

HERE = Path(__file__).parent
SCHEMAS = json.loads((HERE / "schemas.json").read_text())
Raw = dict[str, Any]
VERSIONS = {version["name"]: version for version in SCHEMAS["definition"]["spec"]["versions"]}


class RefusedError(Exception):
    """The schema refuses the object (422)."""


def _copy(value: Any) -> Any:
    return orjson.loads(orjson.dumps(value))


class Api:
    """One object of one resource, and what may be done with it."""

    def __init__(self, resource: str) -> None:
        self.live: Raw | None = None
        self._things = resource == "things"
        if self._things:
            schemas = {
                f"managed.example/{name}": root_schema(version["schema"]["openAPIV3Schema"])
                for name, version in VERSIONS.items()
            }
            self._fields = {
                api: FieldManager(
                    schemas[api],
                    api,
                    status=True,
                    kind="Thing",
                    others={other: found for other, found in schemas.items() if other != api},
                )
                for api in schemas
            }
        else:
            api, blank = ("v1", {}) if resource == "configmaps" else ("coordination.k8s.io/v1", {"spec": {}})
            schemas = {api: root_schema(SCHEMAS[resource])}
            self._fields = {api: FieldManager(schemas[api], api, status=False, blank=blank, others={})}
        self._schemas = schemas
        self._nodes = {api: compile_schema(_lenient(found)) for api, found in schemas.items()}

    def write(self, step: Raw) -> Raw:
        """Do what a step of a recording does. Gives the object. Raises StatusError, RefusedError."""
        api = f"managed.example/{step['version'] or 'v1'}" if self._things else next(iter(self._fields))
        live = None if self.live is None else {**_copy(self.live), "apiVersion": api}
        who = (step["manager"], step["subresource"], step["now"])
        verb, sent = step["verb"], _copy(step["sent"])
        if verb == "apply":
            new = self._fields[api].apply(live, sent, *who, force=step["force"])
            if self._things and _has_nulls(new, self._schemas[api]):
                raise RefusedError
        elif verb in ("post", "put"):
            new = sent
        elif verb == "merge":
            new = _copy(patch.merge(live, sent))
        else:
            new = patch.apply_operations(live, sent)
        self._walk(api, new)
        if verb != "apply":
            self._fields[api].update(live, new, *who)
        new = self._kept_apart(live, new, step["subresource"])
        if live is not None:
            keep_times(new, live)
        self.live = _copy(new)
        return new

    def _walk(self, api: str, new: Raw) -> None:
        walk = Outcome()
        managed = new["metadata"].get("managedFields")
        self._nodes[api](new, None, walk)
        if walk.errors:
            raise RefusedError
        new["metadata"] = {name: value for name, value in new["metadata"].items() if value not in ("", [], {}, None)}
        if managed is not None:
            new["metadata"]["managedFields"] = managed
        if not self._things:
            for name in [name for name, value in new.items() if value == {} and name != "spec"]:
                del new[name]
            if api.startswith("coordination"):
                new.setdefault("spec", {})

    def _kept_apart(self, live: Raw | None, new: Raw, subresource: str) -> Raw:
        new["metadata"].pop("creationTimestamp", None)
        new["metadata"]["uid"] = "uid-of-the-object"
        if not self._things:
            return new
        if subresource:
            assert live is not None
            kept = {name: value for name, value in live.items() if name != "status"}
            kept["metadata"] = {**live["metadata"], "managedFields": new["metadata"].get("managedFields")}
            if "status" in new:
                kept["status"] = new["status"]
            new = kept
        else:
            new.pop("status", None)
            if live is not None and "status" in live:
                new["status"] = live["status"]
        if not new["metadata"].get("managedFields"):
            new["metadata"].pop("managedFields", None)
        return new


def _lenient(found: Raw) -> Raw:
    """Allow what the real server allows in metadata: owners and finalizers that stand twice."""
    found = _copy(found)
    for name in ("ownerReferences", "finalizers"):
        found["properties"]["metadata"]["properties"][name].pop("x-kubernetes-list-type")
    return found


def _has_nulls(value: Any, found: Raw) -> bool:
    """Whether there is a null that the schema does not allow: what is applied is not rid of nulls."""
    if value is None:
        return not found.get("nullable") and bool(found.get("type"))
    if isinstance(value, dict):
        properties, extra = found.get("properties") or {}, found.get("additionalProperties") or {}
        return any(_has_nulls(item, properties.get(key, extra)) for key, item in value.items() if key != "metadata")
    if isinstance(value, list):
        return any(_has_nulls(item, found.get("items") or {}) for item in value)
    return False


@pytest.fixture(scope="session")
def api() -> Callable[[str], Api]:
    return Api


@pytest.fixture(scope="session")
def do() -> Callable[..., Raw]:
    """Write something, in one line."""

    def write(on: Api, verb: str, manager: str, body: Raw, **more: Any) -> Raw:
        sent = body
        if verb in ("post", "apply", "put"):
            head = {"apiVersion": f"managed.example/{more.get('version') or 'v1'}", "kind": "Thing"}
            sent = {**head, **body, "metadata": {"name": "x", **(body.get("metadata") or {})}}
        step = {"version": "", "subresource": "", "now": "2026-01-01T00:00:00Z", "force": False, **more}
        return on.write({**step, "verb": verb, "manager": manager, "sent": sent})

    return write
