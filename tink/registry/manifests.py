"""Finds the manifest of a tag or digest, through image indexes, by containerd's platform rules.

- An index entry is a candidate if its platform is one that this machine runs (`_preferences`); the best one wins, and
  of equal ones the first.
- An entry without a platform is read, and the platform in its image configuration counts.
- An index may name further indexes, to a limited depth.
- Attestations (`unknown/unknown`) and entries of unknown media types are never candidates.

Sources: OCI image specification 1.1 (index, manifest, descriptor); containerd's platforms package (`Only`).
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tink.errors import TinkedgeError
from tink.registry.names import RegistryError, is_digest

MANIFEST_LIMIT_BYTES = 4 * 1024 * 1024
"""The distribution specification's own limit for a manifest."""
MAX_VALUES = 100_000
"""Maximum number of values in a document: two bytes of JSON take some 70 bytes in Python."""
MAX_DEPTH = 4
"""Maximum number of indexes on the way to a manifest."""
MAX_DOCUMENTS = 64
"""Maximum number of documents that are read to find one manifest."""

_INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_IMAGE_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
MANIFEST_TYPES = (*_INDEX_TYPES, *_IMAGE_TYPES)
"""The value of an Accept header, in parts."""

_ARCHITECTURES = {
    "x86_64": "amd64", "x86-64": "amd64", "aarch64": "arm64", "aarch64_be": "arm64be", "loongarch64": "loong64",
    "i386": "386", "i486": "386", "i586": "386", "i686": "386", "x86": "386",
    "armv5tel": "arm/v5", "armv6l": "arm/v6", "armv7l": "arm/v7", "armv8l": "arm/v8", "armhf": "arm/v7",
    "armel": "arm/v6",
}  # fmt: skip
"""Go's names for processors: by those of `uname -m`, Debian and careless index writers."""
_AMD64_LEVELS = (
    ("v2", "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"),
    ("v3", "abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"),
    ("v4", "avx512bw avx512cd avx512dq avx512f avx512vl"),
)
"""Flags of /proc/cpuinfo that each level adds (x86-64 psABI, "Micro-Architecture Levels")."""

Read = Callable[[str], bytes]


class DigestError(RegistryError):
    """The registry sent other bytes than the digest says."""


def own_platform() -> str:
    """Return this machine's processor as `architecture[/variant]`, such as `amd64/v3` or `arm/v7`."""
    found = normal(platform.machine(), "")
    if found != "amd64":
        return found
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return found
    flags = set(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), []))
    for level, needed in _AMD64_LEVELS:
        if not flags.issuperset(needed.split()):
            break
        found = f"amd64/{level}"
    return found


def normal(architecture: str, variant: str) -> str:
    """Return `architecture[/variant]` with Go's names, and without the variants that every such processor has."""
    name = architecture.lower()
    name, _, implied = _ARCHITECTURES.get(name, name).partition("/")
    variant = variant.lower() or implied
    if variant.isdigit():
        variant = f"v{variant}"
    if name == "arm" and not variant:
        variant = "v7"
    if (name, variant) in (("amd64", "v1"), ("arm64", "v8")):
        variant = ""
    return f"{name}/{variant}" if variant else name


def is_made_for(own: str, config: Mapping[str, Any]) -> bool:
    """Return True if an image configuration is for the processor `own`, or names none."""
    architecture, variant = _text(config, "architecture"), _text(config, "variant")
    return not architecture or normal(architecture, variant) in _preferences(own)


def _preferences(own: str) -> tuple[str, ...]:
    """Return the platforms that a machine runs, the best first, as containerd's `platforms.Only` orders them."""
    name, _, variant = own.partition("/")
    level = int(variant[1:]) if variant[1:].isdigit() else 0
    if name == "amd64":
        # containerd takes the baseline alone; here the levels that the processor has follow it.
        return ("amd64", *(f"amd64/v{each}" for each in range(min(level, 4), 1, -1)), "386")
    if name == "arm64":
        # v9.x has what v8.(x+5) has; machines tell neither, so `own` is arm64 here.
        return (*dict.fromkeys((own, "arm64")), "arm/v8", "arm/v7", "arm/v6", "arm/v5")
    if name == "arm":
        return tuple(f"arm/v{each}" for each in range(min(level or 7, 8), 4, -1))
    return (own,)


def resolve(
    version: str, read: Read, read_config: Read, *, own: str = "", for_disk: bool = False
) -> tuple[str, dict[str, Any]]:
    """Return digest and content of the manifest for this machine that `version` (tag or digest) leads to.

    `read` gets a manifest or index by tag or digest, `read_config` a blob by digest; neither checks it. `own`:
    `architecture[/variant]`; empty: this machine's. `for_disk`: the index lists disk images, which may be of any
    operating system, and whose user does not choose between two for one processor.

    Raises RegistryError, and what the readers raise.
    """
    return _Search(read, read_config, own or own_platform(), for_disk=for_disk).find(version)


class _Search:
    def __init__(self, read: Read, read_config: Read, own: str, *, for_disk: bool) -> None:
        self._read = read
        self._read_config = read_config
        self._own = own
        self._for_disk = for_disk
        self._preferences = _preferences(own)
        self._left = MAX_DOCUMENTS
        self._last: tuple[str, dict[str, Any]] = "", {}
        self._ranked: dict[int, list[str]] = {}
        self._unknown: list[str] = []
        self._offered: list[str] = []

    def find(self, version: str) -> tuple[str, dict[str, Any]]:
        digest, document = self._document(version)
        for depth in range(MAX_DEPTH):
            if not _is_index(document):
                return digest, document
            self._ranked, self._unknown, self._offered = {}, [], []
            self._walk(document, depth)
            digest, document = self._document(self._best())
        raise _too_deep()

    def _document(self, version: str) -> tuple[str, dict[str, Any]]:
        if version == self._last[0]:
            return self._last
        self._left -= 1
        if self._left < 0:
            raise RegistryError(f"its index leads to more than {MAX_DOCUMENTS} documents; name one by its digest")
        content = self._read(version)
        self._last = _checked(version, content, "manifest"), json_object(content, "its manifest")
        return self._last

    def _walk(self, index: Mapping[str, Any], depth: int) -> None:
        if depth >= MAX_DEPTH:
            raise _too_deep()
        later = []
        for entry in filter(_is_candidate, index["manifests"]):
            on = self._platform(entry.get("platform"))
            if on and not self._matches(on):
                self._offered.append(on)
            elif entry.get("mediaType") in _INDEX_TYPES or not on:
                later.append(entry["digest"])
            else:
                self._offer(on, entry["digest"])
        for digest in later:
            if 0 in self._ranked and not self._for_disk:
                return  # none is better
            _, document = self._document(digest)
            if _is_index(document):
                self._walk(document, depth + 1)
            else:
                self._offer(self._configured(document), digest)

    def _configured(self, manifest: Mapping[str, Any]) -> str:
        """Return the platform in the image configuration of `manifest`, or an empty string."""
        config = manifest.get("config")
        digest = config.get("digest") if isinstance(config, dict) else None
        if not is_digest(digest):
            return ""
        self._left -= 1
        content = self._read_config(digest)
        _checked(digest, content, "configuration")
        try:
            return self._platform(json_object(content, "its configuration"))
        except RegistryError:
            return ""  # an artefact's configuration may be anything

    def _platform(self, fields: Any) -> str:
        """Return `os/architecture[/variant]` of a platform, or an empty string if it names no processor."""
        architecture = _text(fields, "architecture")
        if not architecture:
            return ""
        # os.version and os.features are Windows' own: containerd compares them there alone.
        return f"{_text(fields, 'os').lower() or 'linux'}/{normal(architecture, _text(fields, 'variant'))}"

    def _matches(self, on: str) -> bool:
        system, _, processor = on.partition("/")
        return processor in self._preferences and (system == "linux" or self._for_disk)

    def _offer(self, on: str, digest: str) -> None:
        if not on:
            self._unknown.append(digest)
            return
        self._offered.append(on)
        if self._matches(on):
            rank = self._preferences.index(on.partition("/")[2])
            self._ranked.setdefault(rank, []).append(digest)

    def _best(self) -> str:
        found = list(dict.fromkeys(self._ranked[min(self._ranked)])) if self._ranked else []
        if not found and len(self._unknown) == 1:
            return self._unknown[0]  # nothing says that it is for another machine
        if len(found) == 1 or (found and not self._for_disk):
            return found[0]
        if found:
            raise RegistryError(f"its index has {len(found)} manifests for {self._own}: name one by its digest")
        there = ", ".join(dict.fromkeys(self._offered[:1000])) if self._offered else "nothing that says for which"
        raise RegistryError(f"there is none for this machine, linux/{self._own}; there is {there[:300]}")


def _is_index(document: Mapping[str, Any]) -> bool:
    """Return True for an index. Raises RegistryError for a document that is an index and a manifest."""
    # Two programs that read such a document differently run different images under one digest (CVE-2021-41190).
    is_index = isinstance(document.get("manifests"), list)
    kind = document.get("mediaType")
    is_both = is_index and ("layers" in document or "config" in document)
    if is_both or kind in (_IMAGE_TYPES if is_index else _INDEX_TYPES):
        raise RegistryError("its manifest can be read as an image and as an index; push it again")
    return is_index


def _is_candidate(entry: Any) -> bool:
    if not isinstance(entry, dict) or not is_digest(entry.get("digest")):
        return False
    if entry.get("mediaType") not in (None, "", *MANIFEST_TYPES):
        return False  # a reader ignores what it does not know (image specification, "Image Index")
    notes = entry.get("annotations")
    if isinstance(notes, dict) and notes.get("vnd.docker.reference.type"):
        return False  # BuildKit's attestations
    return _text(entry.get("platform"), "architecture") != "unknown"


def _checked(version: str, content: bytes, what: str) -> str:
    """Return the digest of `content`. Raises DigestError if `version` is another one."""
    algorithm = "sha512" if version.startswith("sha512:") else "sha256"
    digest = f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}"
    if is_digest(version) and digest != version:
        raise DigestError(f"{what} {version}: what the registry sent has the digest {digest}")
    return digest


def json_object(content: bytes, what: str, error: type[TinkedgeError] = RegistryError) -> dict[str, Any]:
    """Parse `content`, a JSON object that messages call `what`. Raises `error`."""
    if sum(map(content.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise error(f"{what} has more than {MAX_VALUES} values")
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise error(f"{what} is not JSON") from None
    if not isinstance(value, dict):
        raise error(f"{what} is not a JSON object")
    return value


def _text(fields: Any, name: str) -> str:
    value = fields.get(name) if isinstance(fields, dict) else None
    return value if isinstance(value, str) else ""


def _too_deep() -> RegistryError:
    return RegistryError(f"its index names indexes more than {MAX_DEPTH} deep; name a manifest by its digest")
