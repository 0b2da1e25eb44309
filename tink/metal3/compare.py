"""Compare a host with its conversion to v1beta1 and back. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import orjson

from tink.api.metal3 import V1ALPHA1, V1BETA1
from tink.api.v1alpha2 import Raw
from tink.convert.metal3.versions import ConversionSettings, convert_version, wrongly_md5

HARDWARE_PATH = "status.hardware"
_MAX_DIFFERENCES = 20
_SHOWN = 120


@dataclass(frozen=True, slots=True)
class Difference:
    """A field of a host that differs.

    `before` and `after` are its values as shortened JSON; empty if absent. `harmless`: the value is available
    elsewhere, as `reason` says.
    """

    namespace: str
    name: str
    path: str
    before: str
    after: str
    reason: str
    harmless: bool = False


@dataclass(frozen=True, slots=True)
class Trip:
    """A v1alpha1 host, its conversion to v1beta1, and the conversion of that back to v1alpha1."""

    host: Raw
    up: Raw
    back: Raw

    @classmethod
    def of(cls, host: Raw, settings: ConversionSettings) -> Trip:
        """Convert a host to v1beta1 and back."""
        up = convert_version(host, V1BETA1, settings)
        return cls(host, up, convert_version(up, V1ALPHA1, settings))

    def differences(self, settings: ConversionSettings) -> list[Difference]:
        """Return the differences, and the images whose checksum v1beta1 would misread."""
        found = [
            replace(each, reason="too large for an annotation of v1beta1; HardwareData has it", harmless=True)
            if each.path == HARDWARE_PATH
            else each
            for each in differences(self.host, self.back, "v1alpha1 to v1beta1 and back")
        ]
        if settings.empty_checksum_type == "md5":
            why = "the checksum is not MD5: see --empty-checksum-type"
            for path in wrongly_md5(self.host):
                found.append(_difference(self.host, f"{path}.checksumType", None, "md5", why))
        return found


def differences(before: Raw, after: Raw, reason: str) -> list[Difference]:
    """Return the first differences of two states of a host, except for fields that the API server writes."""
    found: list[Difference] = []
    old_content, new_content = _content(before), _content(after)
    if digest(old_content) == digest(new_content):
        return found
    for path, old, new in _differing("", old_content, new_content):
        found.append(_difference(before, path, old, new, reason))
        if len(found) == _MAX_DIFFERENCES:
            break
    return found


def digest(value: Any) -> bytes:
    """Return a digest that is equal for equal JSON."""
    return hashlib.blake2b(orjson.dumps(value, option=orjson.OPT_SORT_KEYS), digest_size=16).digest()


def state(host: Raw) -> Raw:
    """Return the parts of a host that users and controllers write."""
    return {part: host[part] for part in ("spec", "status") if part in host}


def _content(host: Raw) -> Raw:
    metadata = host.get("metadata") or {}
    return {"metadata": {key: metadata[key] for key in ("labels", "annotations") if key in metadata}} | state(host)


def _differing(path: str, before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the paths that differ with both values. Mappings and lists on both sides are compared inside."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from _differing(f"{path}.{key}" if path else key, before.get(key), after.get(key))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from _differing(f"{path}[{index}]", one, other)
    elif before != after or type(before) is not type(after):
        yield path, before, after


def _difference(host: Raw, path: str, before: Any, after: Any, reason: str) -> Difference:
    metadata = host["metadata"]
    return Difference(metadata.get("namespace", ""), metadata["name"], path, _shown(before), _shown(after), reason)


def _shown(value: Any) -> str:
    if value is None:
        return ""
    text = orjson.dumps(value).decode()
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
