"""The paths on the machines' port: a pure function from the raw path of a request to a `Route`.

The paths of Smee and Tootles lead to the same handlers as ours, because scripts, firmware and templates of existing
sites request them. The table is ours and not aiohttp's because firmware needs three things that no redirecting router
has: `//` in a path means `/` (a UEFI ROM does not follow a redirect), `%3A` in a MAC is a colon (iPXE of 2019 encodes
it), and `%2F` never creates a new segment, so each resource can be reached by its own spelling only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from urllib.parse import unquote

from edge.machines import UKI
from hegel.metadata import EC2_VERSIONS, NOCLOUD_FILES
from ipxe.grub import is_directory, is_script
from ipxe.scripts import MediumKind
from tink.mac import from_any, from_path

GRUB_LIST = re.compile(r"[a-z0-9_]+-efi/(command|fs|crypto|terminal)\.lst")
_END_OPTION = re.compile(r"(?:%[fF]{2}|\udcff)+$")
MAX_PATH = 1024
"""Number of characters of a path that is parsed."""

_MEDIA = frozenset(f"{kind}.{suffix}" for kind in MediumKind for suffix in ("iso", "img"))


class Place(Enum):
    """The resource that a request is for; each has one handler."""

    SCRIPT = auto()
    GRUB = auto()
    BINARY = auto()
    OSIE = auto()
    MEDIUM = auto()
    SIGN = auto()
    PARAMETERS = auto()
    EC2 = auto()
    IMDS_TOKEN = auto()
    LEGACY = auto()
    NOCLOUD = auto()
    PHONE_HOME = auto()
    AGENT_CA = auto()
    AGENT_REGISTRIES = auto()
    FILE = auto()
    REGISTRY = auto()
    PEER = auto()
    HEALTH = auto()
    HEALTH_OF_SMEE = auto()
    READY = auto()


_FIXED = {
    "healthz": Place.HEALTH,
    "healthcheck": Place.HEALTH_OF_SMEE,
    "readyz": Place.READY,
    "auto.ipxe": Place.SCRIPT,
    "ipxe/script/auto.ipxe": Place.SCRIPT,
    "auto/parameters": Place.PARAMETERS,
    "v2": Place.REGISTRY,
    "agent/ca.pem": Place.AGENT_CA,
    "agent/registries.json": Place.AGENT_REGISTRIES,
}
"""Paths that name neither a machine nor a file."""


@dataclass(frozen=True, slots=True)
class Route:
    """A parsed path.

    place: the resource.
    name: the file or document there.
    who: the machine or object that the path names, or empty: a MAC (lower case, colons), the name of an OSIE or of an
        image's repository, or a token of `edge.callers.metadata_tokens`, which is a secret.
    instance: the instance id in a path of Tootles, or empty.
    """

    place: Place
    name: str = ""
    who: str = ""
    instance: str = ""


def route(raw_path: str) -> Route | None:
    """Return the route of a raw path (percent-encoded, without query), or None if there is none."""
    if len(raw_path) > MAX_PATH:
        return None
    # Some firmware reads DHCP option 67 one byte too far and appends the end option (255) to the URL.
    path = _END_OPTION.sub("", raw_path)
    segments = [unquote(segment) for segment in path.split("/") if segment]
    for segment in segments:
        if "/" in segment or segment in (".", "..") or not segment.isprintable():
            return None
    if segments and (script := _grub(segments)) is not None:
        return script
    if (place := _FIXED.get("/".join(segments))) is not None:
        return Route(place)
    match segments:
        case [who, "auto.ipxe"] if from_any(who):
            return Route(Place.SCRIPT, who=spelled(who))
        case ["ipxe", "script", who, "auto.ipxe"]:
            return Route(Place.SCRIPT, who=spelled(who))
        case ["ipxe", "binary", name]:
            return Route(Place.BINARY, name=name)
        case ["ipxe", "binary", who, name]:
            return Route(Place.BINARY, name=name, who=spelled(who))
        case ["grub", *rest] if rest:
            return Route(Place.GRUB, name="/".join(rest))
        case ["osie", name, "uki.efi"]:
            return Route(Place.OSIE, name=UKI, who=name)
        case ["osie", name, ("kernel" | "initrd") as part]:
            return Route(Place.OSIE, name=part, who=name)
        case ["iso", who, name] if name in _MEDIA:
            return Route(Place.MEDIUM, name=name, who=spelled(who))
        case ["sign", ("starting" | "failed" | "up") as name]:
            return Route(Place.SIGN, name=name)
        case ["nocloud", who, name] if name in NOCLOUD_FILES:
            return Route(Place.NOCLOUD, name=name, who=spelled(who))
        case ["files", name]:
            return Route(Place.FILE, name=name)
        case ["v2", *repository, ("manifests" | "blobs") as kind, name] if repository:
            return Route(Place.REGISTRY, name=f"{kind}/{name}", who="/".join(repository))
        case ["peers", ("hello" | "ask" | "happened" | "chain" | "fetch") as name]:
            return Route(Place.PEER, name=name)
        case ["peers", "artifacts", key, version]:
            return Route(Place.PEER, name=version, who=key)
        case ["phone-home", who]:
            return Route(Place.PHONE_HOME, who=spelled(who))
        case ["machine", who, *rest]:
            return _metadata(rest, spelled(who))
        case ["tootles", "instanceID", instance, version, *rest] if version in EC2_VERSIONS:
            return Route(Place.EC2, name="/".join(rest), instance=instance)
    return _metadata(segments, "")


def _grub(segments: list[str]) -> Route | None:
    """Return the route of a file that GRUB searches for, below the programs or a machine's directory; None if none."""
    rest = segments[2:] if segments[:2] == ["ipxe", "binary"] else segments
    who, rest = from_path(rest)
    if rest and is_script(rest):
        return Route(Place.GRUB, name=rest[-1], who=who or "")
    if len(rest) > 1 and is_directory(rest[:-1]) and GRUB_LIST.fullmatch("/".join(rest[-2:])):
        return Route(Place.GRUB, name="/".join(rest[-2:]))
    return None


def _metadata(segments: list[str], who: str) -> Route | None:
    """Return the route of a metadata document. `who` comes from the prefix `/machine/<who>`, or is empty."""
    match segments:
        case ["metadata"]:
            return Route(Place.LEGACY, name="metadata", who=who)
        case ["latest", "api", "token"]:
            return Route(Place.IMDS_TOKEN, who=who)
        case [version, *rest] if version in EC2_VERSIONS:
            return Route(Place.EC2, name="/".join(rest), who=who)
    return None


def spelled(who: str) -> str:
    """Return a MAC in our spelling (lower case, colons) whatever the sender's, or anything else as it is."""
    return from_any(who) or who
