"""Applies manifests of a directory to the API, like `kubectl apply -f DIR`, for a stack that starts alone.

The objects pass through the same API, validation and informers as those that an operator applies with kubectl.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import orjson

from tink.api.v1alpha2 import Raw
from tink.api.yaml import MAX_BYTES, YamlError, objects_and_errors
from tink.errors import TinkedgeError
from tink.kube.client import ApiError, ConflictError, KubeClient, NotFoundError
from tink.kube.resources import (
    CRD,
    HARDWARE,
    JOB,
    MACHINE,
    OLD_HARDWARE,
    OLD_TEMPLATE,
    OLD_WORKFLOW,
    OSIE,
    TASK,
    TEMPLATE,
    WORKFLOW,
    WORKFLOW_RULE_SET,
    ResourceType,
)

log = logging.getLogger(__name__)

DEFAULT_NAMESPACE = "default"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

_OLDER = (OLD_HARDWARE, OLD_TEMPLATE, OLD_WORKFLOW, WORKFLOW_RULE_SET)
_TYPES = (CRD, HARDWARE, OSIE, TEMPLATE, WORKFLOW, MACHINE, JOB, TASK, *_OLDER)
_KNOWN = {(each.api_version, each.kind): each for each in _TYPES}
_SUFFIXES = (".yaml", ".yml", ".json")
MAX_PROBLEMS = 100
"""Maximum number of reported problems of one file."""


class ManifestError(TinkedgeError):
    """A manifest can't be used; the message names the file."""


def load(path: Path) -> list[tuple[Path, Raw]]:
    """Return the objects of a file, or of the YAML and JSON files of a directory (not below it), in name order.

    All of them have `apiVersion`, `kind` and `metadata` with a name and maybe a namespace, of the right types. Raises
    ManifestError.
    """
    found: list[tuple[Path, Raw]] = []
    for file in manifest_files(path):
        usable, problems = read(file)
        if problems:
            raise problems[0]
        found.extend((file, obj) for obj in usable)
    return found


def read(file: Path) -> tuple[list[Raw], list[ManifestError]]:
    """Return the usable objects of one file (see `load`), and the problems of the others or of the file.

    If the YAML is malformed from some line on, the documents before it are read. Reading ends after `MAX_PROBLEMS`.
    """
    found: list[Raw] = []
    problems: list[ManifestError] = []
    try:
        if file.stat().st_size > MAX_BYTES:
            raise ManifestError(f"larger than {MAX_BYTES} bytes")
        for obj in objects_and_errors(file.read_text()):
            try:
                if isinstance(obj, YamlError):
                    raise obj
                found.append(_checked(obj))
            except (YamlError, ManifestError) as error:
                problems.append(_named(file, error))
                if len(problems) == MAX_PROBLEMS:
                    break
    except (UnicodeDecodeError, ManifestError, OSError) as error:
        problems.append(_named(file, error))
    return found, problems


def _named(file: Path, error: Exception) -> ManifestError:
    what = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", None)
    found = ManifestError(f"{file}: {what or error}")
    found.__cause__ = error
    return found


def resource_type(obj: Raw) -> ResourceType | None:
    """Return the resource type of an object if it is one of this program's, or None."""
    return _KNOWN.get((obj["apiVersion"], obj["kind"]))


async def apply(client: KubeClient, manifests: list[tuple[Path, Raw]]) -> None:
    """Create each object, or merge it into the existing one. Raises ManifestError for the first refused object."""
    for file, obj in manifests:
        resource = resource_type(obj)
        if resource is None:
            raise ManifestError(f"{file}: {obj['apiVersion']} {obj['kind']} is not a resource of this program")
        await apply_object(client, resource, obj, str(file))


async def apply_object(client: KubeClient, resource: ResourceType, obj: Raw, source: str) -> None:
    """Create an object, or merge it into the existing one; errors name `source`. Raises ManifestError."""
    metadata = obj["metadata"]
    name = metadata["name"]
    namespace = (metadata.get("namespace") or DEFAULT_NAMESPACE) if resource.namespaced else None
    if namespace is not None:
        obj = {**obj, "metadata": {**metadata, "namespace": namespace}}
    try:
        try:
            await client.patch(resource, name, namespace, obj)
            log.info("%s %s: merged from %s", obj["kind"], name, source)
        except NotFoundError:
            try:
                await client.create(resource, obj, namespace)
                log.info("%s %s: created from %s", obj["kind"], name, source)
            except ConflictError:  # another client was faster
                await client.patch(resource, name, namespace, obj)
    except ApiError as error:
        message = f"{source}: {obj['kind']} {name}: {error}"
        if error.status == 404 and resource in _OLDER:
            advice = f"convert it with `tinkedge convert -f {source} --out {source}`"
            message = f"{message}: if this API does not serve {resource.api_version}, {advice}"
        raise ManifestError(message) from error


def with_last_applied(obj: Raw) -> Raw:
    """Return an object with the annotation of `kubectl apply`, which warns of each object without it.

    The text equals kubectl's, so that neither program changes the annotation of the other.
    """
    metadata = obj["metadata"]
    bare = {**obj, "metadata": {**metadata, "annotations": metadata.get("annotations") or {}}}
    text = orjson.dumps(bare, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE).decode()
    for character in "<>&\u2028\u2029":  # as Go's encoding/json escapes them
        text = text.replace(character, f"\\u{ord(character):04x}")
    return {**bare, "metadata": {**metadata, "annotations": {**bare["metadata"]["annotations"], LAST_APPLIED: text}}}


def _checked(obj: Any) -> Raw:
    """Return an object if it has what `load` promises. The items of a List may be anything. Raises ManifestError."""
    if not isinstance(obj, dict) or not all(isinstance(obj.get(key), str) for key in ("apiVersion", "kind")):
        raise ManifestError("an item of a List is not a Kubernetes object: apiVersion or kind is missing")
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict) or metadata.get("name") in (None, ""):
        raise ManifestError(f"{obj['kind']}: metadata.name is missing")
    for key in ("name", "namespace"):
        value = metadata.get(key)
        if value is not None and not isinstance(value, str):
            raise ManifestError(f"{obj['kind']}: metadata.{key} must be a string, not {value!r} (put it in quotes)")
    return obj


def manifest_files(path: Path) -> list[Path]:
    """Return the file, or the YAML and JSON files of the directory in name order. Raises ManifestError."""
    try:
        if not path.is_dir():
            return [path]
        return [file for file in sorted(path.iterdir()) if file.suffix in _SUFFIXES and file.is_file()]
    except OSError as error:
        raise ManifestError(f"{path}: {error.strerror}") from error
