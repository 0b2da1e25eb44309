"""What a host loses between v1alpha1 and v1beta1, if anything. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import orjson

from tink.api.metal3 import V1ALPHA1, V1BETA1
from tink.api.v1alpha2 import Raw
from tink.convert.metal3 import ConversionSettings, convert_version, wrongly_md5

HARDWARE_PATH = "status.hardware"
_MOST_A_HOST = 20
_SHOWN = 120


@dataclass(frozen=True, slots=True)
class Difference:
    """A field of a host that is not what it was. `before` and `after` are its values as JSON, cut short; empty: it is
    not there. `harmless`: the same can be found elsewhere, as `reason` says.
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
    """A v1alpha1 host, what it is as v1beta1, and what it is as v1alpha1 again."""

    host: Raw
    up: Raw
    back: Raw

    @classmethod
    def of(cls, host: Raw, settings: ConversionSettings) -> Trip:
        """Convert it both ways."""
        up = convert_version(host, V1BETA1, settings)
        return cls(host, up, convert_version(up, V1ALPHA1, settings))

    def differences(self, settings: ConversionSettings) -> list[Difference]:
        """What is not as it was, and which images v1beta1 misreads."""
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
    """How two states of a host differ, but for what the API server writes itself; the first few of them."""
    found: list[Difference] = []
    old_content, new_content = _content(before), _content(after)
    if digest(old_content) == digest(new_content):
        return found
    for path, old, new in _differing("", old_content, new_content):
        found.append(_difference(before, path, old, new, reason))
        if len(found) == _MOST_A_HOST:
            break
    return found


def digest(value: Any) -> bytes:
    """The same for what is the same as JSON."""
    return hashlib.blake2b(orjson.dumps(value, option=orjson.OPT_SORT_KEYS), digest_size=16).digest()


def state(host: Raw) -> Raw:
    """What users and controllers write of a host."""
    return {part: host[part] for part in ("spec", "status") if part in host}


def _content(host: Raw) -> Raw:
    metadata = host.get("metadata") or {}
    return {"metadata": {key: metadata[key] for key in ("labels", "annotations") if key in metadata}} | state(host)


def _differing(path: str, before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    """Paths with the values there; of a mapping or a list that is on both sides, those inside."""
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
