"""Random BareMetalHosts of either version, reproducible by seed: every field present, empty or absent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import orjson
import yaml

from tink.api.metal3.crds import generate
from tink.convert.metal3.versions import CONVERSION_DATA_ANNOTATION

Raw = dict[str, Any]

_EXAMPLES = yaml.safe_load((Path(__file__).parent / "hosts.yaml").read_text())

V1ALPHA1 = "metal3.io/v1alpha1"
V1BETA1 = "metal3.io/v1beta1"
PROFILES = ("unknown", "libvirt", "dell", "dell-raid", "openstack", "empty", "", "no-such-profile")
ADDRESSES = ("ipmi://192.0.2.1", "libvirt://192.0.2.2:6230", "libvirt+redfish://x/1", "redfish://[2001:db8::1]/1", "")
DIGESTS = ("0" * 32, "a" * 64, "F" * 128, "http://192.0.2.9/image.md5sum", "")
TEXTS = ("", "x", "node-1", "ü €", '"{}\\', "<a&b>")

HINT_NAMES = {"deviceName": "devicePath", "model": "modelContains", "vendor": "vendorContains"}
"""The field names of v1alpha1 -> those of v1beta1."""


_SAMPLES: dict[str, tuple[Any, ...]] = {
    "hardwareProfile": PROFILES,
    "address": ADDRESSES,
    "checksum": DIGESTS,
    "checksumType": ("", None, "md5", "sha256", "sha512", "auto"),
    "hctl": ("0:0:0:0", "0:2:0:0"),
    **dict.fromkeys(("deviceName", "devicePath"), ("/dev/sda", "/dev/vda", "/dev/vdb", "/dev/disk/by-path/pci-1")),
}
"""Values with a meaning for the conversion, by the field's name."""

_SCHEMAS = {
    f"metal3.io/{version['name']}": version["schema"]["openAPIV3Schema"]["properties"]
    for version in generate()[0]["spec"]["versions"]
}


class Hosts:
    """A generator of hosts of one version: each has about half of the fields of its schema, at every depth."""

    def __init__(self, seed: int, version: str, *, odd: bool = True) -> None:
        """`odd`: some hosts have values that no API would accept."""
        self.rng = Random(seed)
        self.version = version
        self.odd = odd

    def value(self, schema: Raw, name: str = "") -> Any:
        rng = self.rng
        may_be_none = self.odd and name in ("rootDeviceHints", "image", "hardware")
        if (schema.get("nullable") or may_be_none) and rng.random() < 0.1:
            return None
        if name in _SAMPLES and (self.odd or "enum" not in schema):
            return rng.choice(_SAMPLES[name])
        if "properties" in schema:
            needed = () if self.odd else schema.get("required", ())
            fields = [each for each in schema["properties"].items() if each[0] in needed or rng.random() < 0.5]
            made = {key: self.value(each, key) for key, each in fields}
            if name == "rootDeviceHints" and rng.random() < 0.4:  # as those of a profile, very often
                one = rng.choice(("deviceName", "devicePath", "hctl"))
                return {key: value for key, value in made.items() if key == one}
            is_newer = self.odd and rng.random() < 0.1
            return made | ({"newcomer": {"online": True, "deviceName": "model"}} if is_newer else {})
        if "items" in schema:
            least, most = schema.get("minItems", 0), 1 if "x-kubernetes-list-map-keys" in schema else 2
            return [self.value(schema["items"]) for _ in range(rng.randint(least, most))]
        if "enum" in schema:
            return rng.choice(schema["enum"])
        if "date" in schema.get("format", ""):
            return "2026-01-02T03:04:05Z"
        if "pattern" in schema:
            return "00:5C:52:31:3a:9c" if "{5}" in schema["pattern"] else "eth0"
        return {"boolean": rng.random() < 0.5, "integer": rng.randrange(1, 1000), "number": 2400.5}.get(
            schema["type"], rng.choice(TEXTS)
        )

    def host(self) -> Raw:
        metadata: Raw = {"name": "node-1", "namespace": "metal3", "uid": "u"}
        if self.rng.random() < 0.5:
            metadata["annotations"] = self.rng.choice(({}, {"a/b": "c"}, {"a": "", "ü": "€" * 9}))
        host: Raw = {"apiVersion": self.version, "kind": "BareMetalHost", "metadata": metadata}
        for part in ("spec", "status"):
            if (die := self.rng.random()) < 0.93 or not self.odd:
                host[part] = self.value(_SCHEMAS[self.version][part])
            elif die < 0.96:
                host[part] = self.rng.choice((None, {}))
        return host


def hosts(version: str, count: int, seed: int) -> Iterator[Raw]:
    """Yield a number of hosts of a version."""
    generator = Hosts(seed, version)
    for _ in range(count):
        yield generator.host()


def full(version: str) -> Raw:
    """Return a host with every field that the versions treat differently, in all of its places."""
    host = copied(_EXAMPLES[version.rpartition("/")[2]])
    if version == V1ALPHA1:
        host["status"]["hardware"] = hardware(2)
    return host


def hardware(disks: int) -> Raw:
    """Return hardware details with four interfaces and a number of disks, with all fields that inspection finds."""
    found = copied(_EXAMPLES["hardware"])
    (nic,), (disk,) = found["nics"], found["storage"]
    found["nics"] = [nic | {"name": f"eno{n}", "mac": f"00:5c:52:31:3a:{n:02x}", "pxe": n == 0} for n in range(4)]
    found["storage"] = [_disk(disk, index) for index in range(disks)]
    return copied(found)


def _disk(first: Raw, index: int) -> Raw:
    """Return another disk, whose paths and serial numbers end with its index."""
    number, changed = f"{index:08x}", dict(first)
    for name in ("serialNumber", "wwnVendorExtension", "wwnWithExtension"):
        changed[name] = f"{first[name][:-8]}{number}"
    changed["alternateNames"] = [f"/dev/sd{index}", f"{first['alternateNames'][1][:-8]}{number}"]
    changed |= {"name": f"{first['name'].removesuffix('0:0')}{index}:0", "hctl": f"0:2:{index}:0"}
    return changed


def copied(host: Raw) -> Raw:
    """Return a copy that shares nothing with its source."""
    copy: Raw = orjson.loads(orjson.dumps(host))
    return copy


def view(host: Raw) -> Raw:
    """Return a v1beta1 host without the conversion annotation: the part that users see."""
    seen = copied(host)
    metadata = seen.get("metadata")
    if isinstance(metadata, dict) and isinstance(metadata.get("annotations"), dict):
        metadata["annotations"].pop(CONVERSION_DATA_ANNOTATION, None)
        if not metadata["annotations"]:
            del metadata["annotations"]
    return seen


def with_auto(host: Raw) -> Raw:
    """Return a v1beta1 host with the default checksum type where it has none."""
    said = copied(host)
    spec, status = (said.get(part) or {} for part in ("spec", "status"))
    provisioning = status.get("provisioning") or {}
    for image in (spec.get("image"), status.get("lastAttemptedImage"), provisioning.get("image")):
        if isinstance(image, dict) and not image.get("checksumType"):
            image["checksumType"] = "auto"
    return said
