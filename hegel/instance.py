"""A machine's instance data, from the Hardware's metadata and annotations."""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from tink.api.annotations import (
    INSTANCE_ID_ANNOTATION,
    METADATA_ANNOTATION,
    SSH_PUBLIC_KEYS_ANNOTATION,
    STORAGE_ANNOTATION,
)
from tink.api.v1alpha2 import Hardware
from tink.errors import TinkedgeError

log = logging.getLogger(__name__)

# --- SSH keys ---
#
# The annotation has the form of OpenSSH's authorized_keys (sshd(8), "AUTHORIZED_KEYS FILE FORMAT"): one key a line,
# with optional options before it and a comment after it. Invalid lines are omitted, so a bad line locks out one person
# and does not damage the machine's whole metadata: a line break or a control character would end a value early.

_OPTIONS = re.compile(r'(?:[^\s"]|"(?:[^"\\]|\\.)*")+ +')
_PUBLIC_KEY = re.compile(
    r"((?:sk-)?(?:ssh|ecdsa-sha2)-[a-z0-9-]+(?:@openssh\.com)?) +([A-Za-z0-9+/]{16,}={0,2})(?: +(.*))?"
)
_KEY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}")


def ssh_keys(annotation: str) -> tuple[list[str], list[int]]:
    """Return the keys without repetition, and the numbers (from 1) of invalid lines. Comment lines are neither."""
    keys: dict[str, None] = {}
    bad: list[int] = []
    for number, raw in enumerate(annotation.split("\n"), 1):
        line = raw.replace("\t", " ").strip()
        if not line or line.startswith("#"):
            continue
        if _is_key(line):
            keys[line] = None
        else:
            bad.append(number)
    return list(keys), bad


def names(keys: list[str]) -> list[str]:
    """Return a name for each key, as EC2 lists it: its comment if that is one unique plain word, else `key-N`."""
    found: dict[str, None] = {}
    for number, key in enumerate(keys):
        comment = key.rpartition(" ")[2]
        # cloud-init keeps keys by name: of two keys with one name, it would install one.
        is_usable = _KEY_NAME.fullmatch(comment) is not None and not comment.startswith("key-")
        found[comment if is_usable and comment not in found else f"key-{number}"] = None
    return list(found)


def _is_key(line: str) -> bool:
    if not line.isprintable():
        return False
    match = _PUBLIC_KEY.fullmatch(line)
    if match is None and (options := _OPTIONS.match(line)) is not None:
        match = _PUBLIC_KEY.fullmatch(line, options.end())
    if match is None:
        return False
    try:
        blob = base64.b64decode(match[2], validate=True)
    except ValueError:
        return False
    # RFC 4253 section 6.6: the key's bytes begin with its type, a string with its length before it.
    kind = match[1].encode()
    return blob.startswith(len(kind).to_bytes(4) + kind) and len(blob) > 4 + len(kind)


# --- Secrets ---
#
# An annotation names the Secret that holds a document. The Secret is in the Hardware's own namespace. `edge.http` reads
# it when the document is requested; `hegel.metadata` decodes it.

DEFAULT_KEYS = ("userData", "value")
"""The keys of a Secret that are tried if the annotation names none: Metal3's, then that of Cluster API's bootstrap."""

_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*")
_KEY = re.compile(r"(?!\.\.?\Z)[-._a-zA-Z0-9]{1,253}")


class SecretUnusableError(TinkedgeError):
    """A reference or its Secret can't provide a document. The message has the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class SecretReference:
    """A Secret's name and the keys that may contain the document, in the order of trial."""

    name: str
    keys: tuple[str, ...] = DEFAULT_KEYS

    @classmethod
    def parse(cls, annotation: str) -> SecretReference:
        """Read `NAME` or `NAME/KEY`; raise SecretUnusableError if it is neither."""
        name, slash, key = annotation.strip().partition("/")
        if not _NAME.fullmatch(name) or (slash and not _KEY.fullmatch(key)):
            raise SecretUnusableError("must be NAME or NAME/KEY of a Secret in the Hardware's namespace")
        return cls(name, (key,)) if slash else cls(name)


# --- Annotations ---
#
# A bad annotation never costs a machine its metadata: it is logged, and the value that it would have replaced is
# served.

_LINES_NAMED = 10


def instance_id(hardware: Hardware) -> str:
    """Return the annotation `tinkerbell.org/instance-id`, else the Hardware's name.

    It names this installation of the machine: cloud-init runs its per-instance modules again when it changes.
    """
    name = hardware.metadata.name
    given = hardware.metadata.annotations.get(INSTANCE_ID_ANNOTATION)
    if given is None:
        return name
    identity = given.strip()
    # In braces, cloud-init would read it as JSON.
    if identity and identity.isprintable() and " " not in identity and identity[0] != "{":
        return identity
    complain(hardware, INSTANCE_ID_ANNOTATION, f"is ignored: it must be one word; the instance id is {name}")
    return name


def public_keys(hardware: Hardware) -> list[str]:
    """Return the SSH keys for the machine's default user: the valid lines of the annotation."""
    given = hardware.metadata.annotations.get(SSH_PUBLIC_KEYS_ANNOTATION)
    if given is None:
        return []
    keys, bad = ssh_keys(given)
    if bad:
        lines = ", ".join(map(str, bad[:_LINES_NAMED])) + (", ..." if len(bad) > _LINES_NAMED else "")
        problem = (
            f"has no SSH key in line {lines}: left out; write a key as in authorized_keys, e.g. ssh-ed25519 AAAA..."
        )
        complain(hardware, SSH_PUBLIC_KEYS_ANNOTATION, problem)
    return keys


def secret_reference(
    hardware: Hardware, annotation: str, *, replaces: str | None, field: str
) -> SecretReference | None:
    """Return the Secret that `annotation` names, if any. It has precedence over `replaces`, the value of `field`."""
    given = hardware.metadata.annotations.get(annotation)
    if given is None:
        return None
    try:
        reference = SecretReference.parse(given)
    except SecretUnusableError as error:
        complain(hardware, annotation, f"is ignored, and {field} is served: it {error}")
        return None
    if replaces is not None:
        meta = hardware.metadata
        text = "Hardware %s/%s: %s is not served, because annotation %s names a Secret: remove one of them"
        log.warning(text, meta.namespace, meta.name, field, annotation)
    return reference


def complain(hardware: Hardware, annotation: str, what: str) -> None:
    """Log an error in an annotation."""
    log.error("Hardware %s/%s: annotation %s %s", hardware.metadata.namespace, hardware.metadata.name, annotation, what)


# --- Instance ---
#
# Values that Hegel and Tootles served and v1alpha2 has no fields for, from an annotation:
#
#     tinkerbell.org/metadata: {"facility": "ams1", "tags": ["a", "b"], "operating-system": {"distro": "ubuntu"}}
#
# The names are those of the EC2 tree. Other names and invalid values are omitted and logged, and so are values that
# cloud-init could not read (see `hegel.metadata`).

TEXTS: Final = ("facility", "iqn", "plan", "public-ipv4", "public-ipv6")
LISTS: Final = ("tags",)
OPERATING_SYSTEM: Final = "operating-system"
OS_TEXTS: Final = ("distro", "image_tag", "slug", "version")
LICENSE: Final = "license_activation"

_MAX_ITEMS = 256


def instance_tree(hardware: Hardware) -> dict[str, bytes]:
    """Return values and listings by their path below `meta-data/`; `entries` lists `meta-data` itself."""
    given = _object(hardware, METADATA_ANNOTATION)
    if not given:
        return {}
    values = dict(_values(given))
    bad = sorted({*given} - {*TEXTS, *LISTS, OPERATING_SYSTEM}) + [
        path for path, value in values.items() if not _is_value(value)
    ]
    if bad:
        complain(hardware, METADATA_ANNOTATION, f"has values that can't be served, left out: {', '.join(bad[:10])}")
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
    """Return the listing of `meta-data` for such a tree; directories end in a slash."""
    return [f"{path}/" if path == OPERATING_SYSTEM else path for path in tree if "/" not in path]


def storage_of(hardware: Hardware) -> dict[str, Any] | str:
    """Return the `storage` of the old `/metadata` from the annotation, or a text with the reason why there is none.

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
