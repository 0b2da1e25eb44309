"""The check of objects by a definition: drops unknown fields, fills in defaults and reports errors.

`compile_definition` returns a `Checker` for each version that a CustomResourceDefinition serves. The API server uses
them for its resources. `Checker.check` answers what the API server would say about an object.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import orjson

from tink.errors import TinkedgeError
from tink.kubeapi.schema import field_errors, meta
from tink.kubeapi.schema.definition import check as check_definition
from tink.kubeapi.schema.definition import fill_in
from tink.kubeapi.schema.field_errors import CompiledSchema, FieldError, TooMuchAddedError
from tink.kubeapi.schema.rules import Validations, compile_rules, ratcheted
from tink.kubeapi.schema.shapes import Raw, deep_copy
from tink.kubeapi.schema.structs import MistypedError, read_metadata
from tink.kubeapi.schema.structural import compile_schema, complete_by_schema, root_schema
from tink.limits import shrink_to_fit

MAX_CACHED_BYTES = 8 << 20
"""Maximum size in bytes of the schemas in the cache. A definition is written whenever its conditions change."""

_cache: dict[bytes, tuple[CompiledSchema, Validations | None]] = {}
_lock = threading.Lock()


class DefinitionError(TinkedgeError):
    """The definition is invalid. The message lists the fields and the reasons."""


@dataclass(frozen=True, slots=True)
class Checked:
    """An object as the API server would store it, its errors, and the paths of its unknown fields."""

    object: Raw
    errors: list[FieldError]
    unknown: list[str]

    @property
    def problems(self) -> list[str]:
        """All problems in words, as a client with strict field validation sees them."""
        return [*(f'unknown field "{path}"' for path in self.unknown), *map(str, self.errors)]


@dataclass(frozen=True, slots=True)
class Checker:
    """One version of a definition: its schema `openapi`, the `compiled` schema, and its CEL rules `validations`."""

    api_version: str
    kind: str
    openapi: Raw
    compiled: CompiledSchema
    validations: Validations | None

    def check(self, obj: Raw, old: Raw | None = None) -> Checked:
        """Complete a copy of an object and check it. `old` is the object that it replaces. Neither is changed."""
        new = deep_copy(obj)
        new.setdefault("metadata", {})
        try:
            found = complete_by_schema(self.compiled, new, read_metadata)
        except MistypedError as error:
            return Checked(new, [FieldError("", "FieldValueTypeInvalid", str(error))], [])
        except TooMuchAddedError as error:
            return Checked(new, [field_errors.forbidden(error.path, str(error))], [])
        wrong = found.errors if old is None else ratcheted(found.errors, new, old, self.openapi)
        wrong = wrong + meta.check(new["metadata"], meta.subdomain)
        if self.validations is not None:
            wrong += self.validations.check_after(wrong, new, old)
        return Checked(new, wrong, found.unknown)


def compile_definition(definition: Raw) -> dict[str, Checker]:
    """Compile a CustomResourceDefinition. Return a checker for each served version, by the version's name.

    Raises DefinitionError if Kubernetes would reject the definition.
    """
    definition = deep_copy(definition)
    fill_in(definition)
    versions = definition["spec"].get("versions") or ()
    stored = [version["name"] for version in versions if version.get("storage")]
    definition.setdefault("status", {"storedVersions": stored})  # as the API server does
    if wrong := check_definition(definition, None):
        raise DefinitionError("; ".join(map(str, wrong)))
    return checkers(definition)


def checkers(definition: Raw) -> dict[str, Checker]:
    """Compile a stored definition, which has been checked before. Return the same as `compile_definition`."""
    described = definition["spec"]
    made = {}
    for version in described["versions"]:
        if version.get("served"):
            openapi = version["schema"]["openAPIV3Schema"]
            api_version = f"{described['group']}/{version['name']}"
            made[version["name"]] = Checker(api_version, described["names"]["kind"], openapi, *compiled(openapi))
    return made


def compiled(openapi: Raw) -> tuple[CompiledSchema, Validations | None]:
    """Return the compiled schema of a version and its rules (None if it has none), from the cache if possible.

    A definition is compiled when it is checked, for large ones in a thread. When the change is stored and the event
    loop needs the result, it is in the cache.
    """
    text = shrink_to_fit(orjson.dumps(openapi))
    with _lock:
        made = _cache.pop(text, None)
    if made is None:
        made = compile_schema(root_schema(openapi)), compile_rules(openapi)
    with _lock:
        _cache[text] = made
        while sum(map(len, _cache)) > MAX_CACHED_BYTES and len(_cache) > 1:
            del _cache[next(iter(_cache))]
    return made
