"""What a definition says of objects, compiled: fields that nobody knows go, defaults come, what is wrong is found.

`compile_definition` gives a `Checker` for each version that a CustomResourceDefinition serves. The API server builds
what it serves from them; whoever wants to know what it would say of an object asks `Checker.check`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import orjson

from tink.kubeapi.schema import field_errors, meta, structs
from tink.kubeapi.schema.definition import check as check_definition
from tink.kubeapi.schema.definition import fill_in
from tink.kubeapi.schema.field_errors import CompiledSchema, FieldError, Outcome, TooMuchAddedError
from tink.kubeapi.schema.rules import Validations, compile_rules, ratcheted
from tink.kubeapi.schema.shapes import Raw, deep_copy
from tink.kubeapi.schema.structural import compile_schema, root_schema

MAX_KEPT_BYTES = 8 << 20
"""Bytes of schemas that are kept compiled: a definition is written again whenever its conditions change."""

_kept: dict[bytes, tuple[CompiledSchema, Validations | None]] = {}
_lock = threading.Lock()


class DefinitionError(Exception):
    """A definition that is wrong; the message says which fields are, and why."""


@dataclass(frozen=True, slots=True)
class Checked:
    """An object as it would be stored, what is wrong with it, and the paths of the fields that nobody knows."""

    object: Raw
    errors: list[FieldError]
    unknown: list[str]

    @property
    def problems(self) -> list[str]:
        """All of it in words, as a client with strict field validation would be told."""
        return [*(f'unknown field "{path}"' for path in self.unknown), *map(str, self.errors)]


@dataclass(frozen=True, slots=True)
class Checker:
    """One version of a definition: its schema `openapi`, `compiled` to a function, and its CEL rules `validations`."""

    api_version: str
    kind: str
    openapi: Raw
    compiled: CompiledSchema
    validations: Validations | None

    def check(self, obj: Raw, old: Raw | None = None) -> Checked:
        """Complete a copy of an object and check it; `old` is the one that it replaces. Neither is changed."""
        new = deep_copy(obj)
        new.setdefault("metadata", {})
        try:
            found = complete_by_schema(self.compiled, new, read_metadata)
        except structs.MistypedError as error:
            return Checked(new, [FieldError("", "FieldValueTypeInvalid", str(error))], [])
        except TooMuchAddedError as error:
            return Checked(new, [field_errors.forbidden(error.path, str(error))], [])
        wrong = found.errors if old is None else ratcheted(found.errors, new, old, self.openapi)
        wrong = wrong + meta.check(new["metadata"], meta.subdomain)
        if self.validations is not None:
            wrong += self.validations.check_after(wrong, new, old)
        return Checked(new, wrong, found.unknown)


def compile_definition(definition: Raw) -> dict[str, Checker]:
    """Compile a CustomResourceDefinition: a checker for each version that is served, by its name.

    Raises DefinitionError when it is not one that Kubernetes would take.
    """
    definition = deep_copy(definition)
    fill_in(definition)
    versions = definition["spec"].get("versions") or ()
    stored = [version["name"] for version in versions if version.get("storage")]
    definition.setdefault("status", {"storedVersions": stored})  # as the API server would
    if wrong := check_definition(definition, None):
        raise DefinitionError("; ".join(map(str, wrong)))
    return checkers(definition)


def checkers(definition: Raw) -> dict[str, Checker]:
    """As `compile_definition`, for a definition that was found right when it was stored."""
    described = definition["spec"]
    made = {}
    for version in described["versions"]:
        if version.get("served"):
            openapi = version["schema"]["openAPIV3Schema"]
            api_version = f"{described['group']}/{version['name']}"
            made[version["name"]] = Checker(api_version, described["names"]["kind"], openapi, *compiled(openapi))
    return made


def compiled(openapi: Raw) -> tuple[CompiledSchema, Validations | None]:
    """Compile the schema of a version and its rules (None when there are none), or give what was compiled before.

    What a definition describes is compiled when it is checked, in a thread where it is large; when the change is on the
    disk and is served, on the event loop, the work has been done.
    """
    text = bytes(memoryview(orjson.dumps(openapi)))
    with _lock:
        made = _kept.pop(text, None)
    if made is None:
        made = compile_schema(root_schema(openapi)), compile_rules(openapi)
    with _lock:
        _kept[text] = made
        while sum(map(len, _kept)) > MAX_KEPT_BYTES and len(_kept) > 1:
            del _kept[next(iter(_kept))]
    return made


def complete_by_schema(
    compiled: CompiledSchema, new: Raw, read: Callable[[Raw], list[str]], *, keeps_nulls: bool = False
) -> Outcome:
    """Prune, complete and check an object in place.

    `read` reads what Kubernetes reads into Go types, in place, and gives the paths of fields that these do not have.
    `keeps_nulls`: see `Outcome`. Raises what `read` raises, and TooMuchAddedError.
    """
    unknown = read(new)
    found = Outcome(keeps_nulls=keeps_nulls)
    compiled(new, None, found)
    if unknown or found.unknown or found.late:
        found.unknown = [*unknown, *sorted(found.unknown), *found.late]
    # Kubernetes never writes empty metadata fields.
    new["metadata"] = {key: value for key, value in new["metadata"].items() if value not in ("", [], {})}
    return found


def read_metadata(new: Raw) -> list[str]:
    """Read the metadata of a custom resource, in place; give the paths of unknown fields. Raises MistypedError."""
    new["metadata"], unknown = structs.METADATA.read(new["metadata"], "metadata")
    return unknown
