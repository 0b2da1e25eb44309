"""What Hegel and Tootles gave besides what v1alpha2 knows, from an annotation: facility, plan, tags, operating system.

    tinkerbell.org/metadata: {"facility": "ams1", "tags": ["a", "b"], "operating-system": {"distro": "ubuntu"}}

The names are those of the EC2 tree. What is no such name, or no value for it, is left out and logged; so is what
cloud-init could not read as a value (see `hegel.metadata`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from hegel.annotations import complain
from tink.api.annotations import METADATA_ANNOTATION, STORAGE_ANNOTATION
from tink.api.v1alpha2 import Hardware

TEXTS: Final = ("facility", "iqn", "plan", "public-ipv4", "public-ipv6")
LISTS: Final = ("tags",)
OPERATING_SYSTEM: Final = "operating-system"
OS_TEXTS: Final = ("distro", "image_tag", "slug", "version")
LICENSE: Final = "license_activation"

_MAX_ITEMS = 256


def instance_tree(hardware: Hardware) -> dict[str, bytes]:
    """Values and listings by their path below `meta-data/`; `entries` are those of `meta-data` itself."""
    given = _object(hardware, METADATA_ANNOTATION)
    if not given:
        return {}
    values = dict(_values(given))
    bad = sorted({*given} - {*TEXTS, *LISTS, OPERATING_SYSTEM}) + [
        path for path, value in values.items() if not _is_value(value)
    ]
    if bad:
        complain(hardware, METADATA_ANNOTATION, f"has what can't be served, left out: {', '.join(bad[:10])}")
    tree = {path: value.encode() for path, value in values.items() if _is_value(value)}
    directories: dict[str, set[str]] = {}
    for path in tree:
        name = path
        while "/" in name:
            directory, _, name = name.rpartition("/")
            directories.setdefault(directory, set()).add(path.removeprefix(f"{directory}/").partition("/")[0])
            name = directory
    for directory, names in directories.items():
        listed = (f"{name}/" if f"{directory}/{name}" in directories else name for name in names)
        tree[directory] = "\n".join(sorted(listed)).encode()
    return tree


def entries(tree: Mapping[str, bytes]) -> list[str]:
    """What the listing of `meta-data` has of such a tree; directories with a slash."""
    return [f"{path}/" if path == OPERATING_SYSTEM else path for path in tree if "/" not in path]


def storage_of(hardware: Hardware) -> dict[str, Any] | str:
    """The `storage` of the old `/metadata`: that of the annotation, or a text that says why there is none.

    rootio reads it, and fails at a text. Without partitions it would write an empty table on each disk, or find nothing
    to do, and call both a success.
    """
    name = hardware.metadata.name
    if STORAGE_ANNOTATION not in hardware.metadata.annotations:
        return f"Hardware {name} has no annotation {STORAGE_ANNOTATION}, which names partitions and filesystems"
    found = _object(hardware, STORAGE_ANNOTATION)
    if found is None or not all(isinstance(found.get(key, []), list) for key in ("disks", "filesystems")):
        return f"the annotation {STORAGE_ANNOTATION} of Hardware {name} can't be read"
    return {"disks": [], "filesystems": []} | found


def _values(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in TEXTS:
        if given.get(name, "") != "":
            yield name, given[name]
    for name in LISTS:
        if given.get(name, []) != []:
            items = given[name]
            fit = isinstance(items, list) and len(items) <= _MAX_ITEMS and all(map(_is_line, items))
            yield name, "\n".join(items) if fit else None
    system = given.get(OPERATING_SYSTEM)
    if not isinstance(system, dict):
        return
    for name in OS_TEXTS:
        if system.get(name, "") != "":
            yield f"{OPERATING_SYSTEM}/{name}", system[name]
    licence = system.get(LICENSE)
    if isinstance(licence, dict) and licence.get("state", "") != "":
        yield f"{OPERATING_SYSTEM}/{LICENSE}/state", licence["state"]


def _is_line(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and value.isprintable() and value[0] not in "{["


def _is_value(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and all(map(_is_line, value.split("\n")))


def _object(hardware: Hardware, annotation: str) -> dict[str, Any] | None:
    given = hardware.metadata.annotations.get(annotation)
    if given is None:
        return {}
    try:
        found = orjson.loads(given)
    except orjson.JSONDecodeError as error:
        complain(hardware, annotation, f"is no JSON: {error}")
        return None
    if not isinstance(found, dict):
        complain(hardware, annotation, "must be a JSON object")
        return None
    return found
