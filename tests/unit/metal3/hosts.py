"""Random BareMetalHosts of either version, the same for the same seed: every field there, empty or not there at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import orjson
import yaml

from tink.convert.metal3.conversion_data import ANNOTATION

Raw = dict[str, Any]

_EXAMPLES = yaml.safe_load((Path(__file__).parent / "hosts.yaml").read_text())

V1ALPHA1 = "metal3.io/v1alpha1"
V1BETA1 = "metal3.io/v1beta1"
PROFILES = ("unknown", "libvirt", "dell", "dell-raid", "openstack", "empty", "", "no-such-profile")
ADDRESSES = ("ipmi://192.0.2.1", "libvirt://192.0.2.2:6230", "libvirt+redfish://x/1", "redfish://[2001:db8::1]/1", "")
DIGESTS = ("0" * 32, "a" * 64, "F" * 128, "http://192.0.2.9/image.md5sum", "")
TEXTS = ("", "x", "node-1", "ü €", '"{}\\', "<a&b>")

HINT_NAMES = {"deviceName": "devicePath", "model": "modelContains", "vendor": "vendorContains"}
"""v1alpha1 -> v1beta1, and so is `online` -> `poweredOn`."""


class Hosts:
    """A generator of hosts of one version."""

    def __init__(self, seed: int, version: str) -> None:
        self.rng = Random(seed)
        self.version = version
        self.old = version == V1ALPHA1

    def some(self, **fields: Callable[[], Any]) -> Raw:
        """About half of the fields."""
        bits = self.rng.getrandbits(len(fields))
        return {name: make() for place, (name, make) in enumerate(fields.items()) if bits >> place & 1}

    def text(self) -> str:
        return self.rng.choice(TEXTS)

    def flag(self) -> bool:
        return self.rng.random() < 0.5

    def number(self) -> int:
        return self.rng.randrange(1000)

    def several(self, make: Callable[[], Any], most: int = 2) -> list[Any]:
        return [make() for _ in range(self.rng.randint(0, most))]

    def name(self, old: str) -> str:
        return old if self.old else HINT_NAMES.get(old, old)

    def hints(self) -> Raw:
        device, model, vendor = (self.name(name) for name in HINT_NAMES)
        hints = self.some(
            **{device: self.device, model: self.text, vendor: self.text},
            hctl=lambda: self.rng.choice(("0:0:0:0", "0:2:0:0")),
            serialNumber=self.text,
            minSizeGigabytes=self.number,
            wwn=self.text,
            wwnWithExtension=self.text,
            wwnVendorExtension=self.text,
            rotational=self.flag,
            note=self.text,
        )
        if self.rng.random() < 0.4:  # as those of a profile, very often
            one = self.rng.choice((device, "hctl"))
            return {name: value for name, value in hints.items() if name == one}
        return hints

    def device(self) -> str:
        return self.rng.choice(("/dev/sda", "/dev/vda", "/dev/vdb", "/dev/disk/by-path/pci-0000:01:00.0"))

    def image(self) -> Raw:
        return {
            "url": self.text(),
            **self.some(
                checksum=lambda: self.rng.choice(DIGESTS),
                checksumType=lambda: self.rng.choice(("", None, "md5", "sha256", "sha512", "auto")),
                format=lambda: self.rng.choice(("raw", "qcow2", "live-iso")),
                ociAuthSecretName=self.text,
                note=self.text,
            ),
        }

    def raid(self) -> Raw:
        return self.some(
            hardwareRAIDVolumes=lambda: self.rng.choice((None, self.several(self.hardware_volume))),
            softwareRAIDVolumes=lambda: self.rng.choice((None, self.several(self.software_volume))),
        )

    def hardware_volume(self) -> Raw:
        names = self.some(physicalDisks=lambda: self.several(lambda: self.rng.choice(("deviceName", "devicePath"))))
        return {"level": "1", **names, **self.some(sizeGibibytes=self.number, name=self.text)}

    def software_volume(self) -> Raw:
        root = self.some(rootVolume=lambda: self.rng.random() < 0.3)
        return {"level": "1", **root, **self.some(physicalDisks=lambda: self.several(self.hints, 3))}

    def secret(self) -> Raw:
        return self.some(name=self.text, namespace=self.text)

    def spec(self) -> Raw:
        power = {"online" if self.old else "poweredOn": self.flag()} if self.rng.random() < 0.9 else {}
        profile = self.some(hardwareProfile=lambda: self.rng.choice(PROFILES)) if self.old else {}
        bmc = {"credentialsName": self.text()}
        return (
            power
            | profile
            | self.some(
                bmc=lambda: {**bmc, "address": self.rng.choice(ADDRESSES)},
                rootDeviceHints=lambda: self.hints() if self.rng.random() < 0.95 else None,
                raid=self.raid,
                image=lambda: self.image() if self.rng.random() < 0.95 else None,
                bootMACAddress=lambda: "00:5C:52:31:3a:9c",
                architecture=lambda: "aarch64",
                userData=self.secret,
                consumerRef=self.secret,
                externallyProvisioned=self.flag,
                automatedCleaningMode=lambda: "metadata",
                firmware=lambda: {"sriovEnabled": True},
                taints=lambda: [{"key": "k", "effect": "NoSchedule"}],
                networkInterfaces=lambda: [{"name": "eth0"}],
                customDeploy=lambda: {"method": "install"},
                newcomer=lambda: {"online": True, "deviceName": "model"},
            )
        )

    def status(self) -> Raw:
        profile = self.some(hardwareProfile=lambda: self.rng.choice(PROFILES)) if self.old else {}
        hardware = self.some(hardware=self.hardware) if self.old else {}
        return (
            profile
            | hardware
            | self.some(
                operationalStatus=lambda: "OK",
                poweredOn=self.flag,
                errorMessage=self.text,
                errorCount=self.number,
                provisioning=self.provisioning,
                lastAttemptedImage=self.image,
                goodCredentials=lambda: {"credentials": self.secret()},
                operationHistory=lambda: {"register": {"start": None, "end": "2026-01-02T03:04:05Z"}},
                newcomer=lambda: [{"hardware": 1}],
            )
        )

    def provisioning(self) -> Raw:
        return {"state": "available", "ID": ""} | self.some(
            image=lambda: self.rng.choice((self.image(), {"url": ""}, {})),
            rootDeviceHints=self.hints,
            raid=self.raid,
            bootMode=lambda: "UEFI",
        )

    def hardware(self) -> Raw | None:
        disk = {"name": "/dev/sda", "sizeBytes": 10**12, "type": "HDD", "vendor": "ATA", "model": "M"}
        return self.rng.choice(
            (
                None,
                {},
                {
                    "storage": [disk] * self.rng.randrange(3),
                    "nics": [{"name": "eth0", "mac": "00:5c:52:31:3a:9c", "vlans": [{"id": 7}]}],
                    "cpu": {"arch": "x86_64", "clockMegahertz": 2400.5, "count": self.number()},
                    "hostname": self.text(),
                    "newcomer": {"deviceName": 1},
                },
            )
        )

    def metadata(self) -> Raw:
        annotations: Raw = self.some(annotations=lambda: self.rng.choice(({}, {"a/b": "c"}, {"a": "", "ü": "€" * 9})))
        return {"name": "node-1", "namespace": "metal3", "uid": "u", **annotations, **self.some(labels=self.secret)}

    def host(self) -> Raw:
        host = {"apiVersion": self.version, "kind": "BareMetalHost", "metadata": self.metadata()}
        for part, make in (("spec", self.spec), ("status", self.status)):
            if (die := self.rng.random()) < 0.93:
                host[part] = make()
            elif die < 0.96:
                host[part] = self.rng.choice((None, {}))
        return host


def hosts(version: str, count: int, seed: int) -> Iterator[Raw]:
    """So many hosts of a version."""
    generator = Hosts(seed, version)
    for _ in range(count):
        yield generator.host()


def full(version: str) -> Raw:
    """A host with every field that the versions treat in a way of its own, in all of its places."""
    host = copied(_EXAMPLES[version.rpartition("/")[2]])
    if version == V1ALPHA1:
        host["status"]["hardware"] = hardware(2)
    return host


def hardware(disks: int) -> Raw:
    """Hardware details with four interfaces and so many disks, each with all that inspection finds."""
    found = copied(_EXAMPLES["hardware"])
    (nic,), (disk,) = found["nics"], found["storage"]
    found["nics"] = [nic | {"name": f"eno{n}", "mac": f"00:5c:52:31:3a:{n:02x}", "pxe": n == 0} for n in range(4)]
    found["storage"] = [_disk(disk, index) for index in range(disks)]
    return copied(found)


def _disk(first: Raw, index: int) -> Raw:
    """Another disk: its paths and serial numbers end in its index."""
    number, changed = f"{index:08x}", dict(first)
    for name in ("serialNumber", "wwnVendorExtension", "wwnWithExtension"):
        changed[name] = f"{first[name][:-8]}{number}"
    changed["alternateNames"] = [f"/dev/sd{index}", f"{first['alternateNames'][1][:-8]}{number}"]
    changed |= {"name": f"{first['name'].removesuffix('0:0')}{index}:0", "hctl": f"0:2:{index}:0"}
    return changed


def copied(host: Raw) -> Raw:
    """A copy that shares nothing with its source."""
    copy: Raw = orjson.loads(orjson.dumps(host))
    return copy


def view(host: Raw) -> Raw:
    """A v1beta1 host without the annotation that keeps its old version: what users see, as they left it."""
    seen = copied(host)
    metadata = seen.get("metadata")
    if isinstance(metadata, dict) and isinstance(metadata.get("annotations"), dict):
        metadata["annotations"].pop(ANNOTATION, None)
        if not metadata["annotations"]:
            del metadata["annotations"]
    return seen


def with_auto(host: Raw) -> Raw:
    """A v1beta1 host with the checksum type that it has by default, where it says none."""
    said = copied(host)
    spec, status = (said.get(part) or {} for part in ("spec", "status"))
    provisioning = status.get("provisioning") or {}
    for image in (spec.get("image"), status.get("lastAttemptedImage"), provisioning.get("image")):
        if isinstance(image, dict) and not image.get("checksumType"):
            image["checksumType"] = "auto"
    return said
