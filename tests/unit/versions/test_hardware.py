"""Hardware in both versions: what an edit in one version changes in the other, and what it leaves alone."""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Callable, Iterator
from functools import cache
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from tests.support import objects
from tink.api.annotations import (
    AGENT_ID_ANNOTATION,
    INCOMPLETE_ANNOTATION,
    INSTANCE_ID_ANNOTATION,
    METADATA_ANNOTATION,
    SSH_PUBLIC_KEYS_ANNOTATION,
    STORAGE_ANNOTATION,
    V1ALPHA1_ANNOTATION,
    V1ALPHA2_ANNOTATION,
)
from tink.api.crds import generate
from tink.api.mistakes import Reason, Site
from tink.api.v1alpha2 import Raw
from tink.api.yaml import objects as read_objects
from tink.convert.findings import Findings, ObjectPlace
from tink.convert.v1alpha1 import convert_hardware
from tink.kubeapi.schema.checker import Checker, compile_definition
from tink.mistakes import hardware_mistakes
from tink.versions import NEW, OLD, ConversionError, convert, ignored_field_mistakes, is_uefi, restore
from tink.versions.hardware import DEFAULT_OSIE, IGNORED
from tink.versions.residue import PLAIN, difference, same

OBJECTS = int(os.environ.get("TINKEDGE_VERSIONS_OBJECTS", "300"))
"""Random objects of each property; 100,000 for a long run."""
CORPUS = Path(__file__).parents[1] / "convert/corpora/hardware"
MAC = "52:54:00:00:00:01"
OTHER_MAC = "52:54:00:00:00:02"


def up(old: Raw) -> Raw:
    return convert(old, NEW)


def down(new: Raw) -> Raw:
    return convert(new, OLD)


@cache
def checker() -> Checker:
    definition = next(each for each in generate() if each["spec"]["names"]["kind"] == "Hardware")
    return compile_definition(definition)["v1alpha2"]


def completed(new: Raw) -> Raw:
    """Return a v1alpha2 object with the defaults that the API adds; fails if the API would refuse it."""
    checked = checker().check(new)
    assert checked.problems == [], json.dumps(new)
    return checked.object


def without_residue(obj: Raw) -> Raw:
    """Return an object without the annotation that the conversion to its version wrote, and without empty metadata."""
    name = V1ALPHA1_ANNOTATION if obj["apiVersion"] == NEW else V1ALPHA2_ANNOTATION
    obj = copy.deepcopy(obj)
    metadata = obj.pop("metadata", None)
    # Kubernetes drops empty metadata and refuses other values.
    if isinstance(metadata, dict):
        annotations = metadata.pop("annotations", None)
        if isinstance(annotations, dict) and annotations.keys() - {name}:
            metadata["annotations"] = {key: value for key, value in annotations.items() if key != name}
        if metadata:
            obj["metadata"] = metadata
    return obj


def equal(one: Raw, other: Raw) -> bool:
    """Compare two objects. Print their differences if there are any."""
    for entry in difference(one, other, PLAIN):
        print(json.dumps(entry)[:2000])
    return same(one, other)


# --- random objects


class Any_:  # noqa: N801
    """Builds random Hardware."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def may(self, chance: float = 0.5) -> bool:
        return self.rng.random() < chance

    def pick(self, *values: Any) -> Any:
        return copy.deepcopy(self.rng.choice(values))

    def some(self, chance: float = 0.5, **fields: Callable[[], Any]) -> Raw:
        return {name: make() for name, make in fields.items() if self.may(chance)}

    def mac(self) -> str:
        return ":".join(f"{self.rng.randrange(256):02x}" for _ in range(6))

    def words(self, *values: Any) -> list[Any]:
        return [self.pick(*values) for _ in range(self.rng.randrange(4))]

    def old_interface(self, macs: list[str]) -> Raw:
        pick = self.pick
        mac = self.mac()
        if self.may(0.1):
            mac = pick(mac.upper(), mac.replace(":", "-"), "x" + mac, "", *macs[:1])
        macs.append(mac)
        dhcp = {} if self.may(0.05) else {"mac": mac}
        dhcp |= self.some(
            0.5,
            hostname=lambda: pick("h", "h.example.org", "no name", ""),
            vlan_id=lambda: pick("7", "4095", "1,2", ""),
            arch=lambda: pick("x86_64", "arm64"),
            uefi=lambda: pick(True, False),
            iface_name=lambda: "eth0",
            domain_name=lambda: "example.org",
            lease_time=lambda: pick(0, 86400, 3600, 4294967296, -1),
            name_servers=lambda: self.words("1.1.1.1", "2001:DB8::53", "fe80::1", "10.0.0.256", ""),
            time_servers=lambda: self.words("ntp.example.org", "2001:db8::1", "9.9.9.9"),
            classless_static_routes=lambda: [{"destination_descriptor": "10.0.0.0/8", "router": "10.0.0.1"}],
            ip=lambda: self.some(
                0.7,
                address=lambda: pick("10.0.0.7", "10.0.0.8", "2001:db8::7", "2001:DB8::7/56", "fe80::1%eth0", "x", ""),
                netmask=lambda: pick("255.255.255.0", "255.0.0.0", "64", "56", "ffff::", "x"),
                gateway=lambda: pick("10.0.0.1", "10.9.0.1", "2001:db8::1", ""),
                family=lambda: pick(0, 4, 6),
            ),
        )
        netboot = lambda: self.some(  # noqa: E731
            0.6,
            allowPXE=lambda: pick(True, True, False),
            allowWorkflow=lambda: pick(True, False),
            ipxe=lambda: self.some(
                url=lambda: pick("http://a/x", "http://b/x", "ftp://x", ""), contents=lambda: pick("#!ipxe", "\0", ""),
                binary=lambda: "snp.efi",
            ),
            osie=lambda: self.some(
                baseURL=lambda: "http://hook", kernel=lambda: "vmlinuz",
                kernelParams=lambda: self.words("a=1", "b", "bad\n", "x && y"),
            ),
            rpi=lambda: {"serialNum": "1"},
        )  # fmt: skip
        made = {"dhcp": dhcp} if self.may(0.95) else {}
        return made | self.some(
            0.8,
            netboot=netboot,
            disableDhcp=lambda: pick(True, False),
            isoboot=lambda: {"sourceISO": "http://iso"},
        )

    def old_metadata(self) -> Raw:
        pick = self.pick
        return self.some(
            state=lambda: "provisioning",
            bonding_mode=lambda: 5,
            facility=lambda: self.some(facility_code=lambda: pick("ams", ""), plan_slug=lambda: "c3"),
            custom=lambda: {"private_subnets": []},
            instance=lambda: self.some(
                0.6,
                id=lambda: pick("m1", MAC, ""),
                hostname=lambda: pick("h", "other", "no name", ""),
                tags=lambda: self.words("a", "b", ""),
                ssh_keys=lambda: self.words("ssh-ed25519 AAAA", " padded ", "two\nlines", ""),
                operating_system=lambda: self.some(slug=lambda: pick("ubuntu", ""), os_slug=lambda: "x"),
                storage=lambda: pick({}, {"disks": []}, {"disks": [{"device": "/dev/sda", "wipe_table": True}]}),
                ips=lambda: [
                    self.some(
                        0.8,
                        address=lambda: pick("192.0.2.1", "2001:db8::1", "x"),
                        public=lambda: pick(True, False),
                        family=lambda: 4,
                    )
                    for _ in range(self.rng.randrange(3))
                ],
                crypted_root_password=lambda: "x",
                allow_pxe=lambda: True,
            ),
        )

    def old(self) -> Raw:
        """Return a Hardware that v1alpha1's schema accepts, and often one that no machine needs."""
        pick = self.pick
        macs: list[str] = []
        spec = self.some(
            0.6,
            interfaces=lambda: [self.old_interface(macs) for _ in range(self.pick(0, 1, 1, 2, 3))],
            metadata=self.old_metadata,
            disks=lambda: pick([], [{"device": "/dev/sda"}], [{"device": "/dev/sda1"}, {}, {"device": "/dev/sdb"}]),
            userData=lambda: pick("", "#cloud-config"),
            vendorData=lambda: "v",
            agentID=lambda: pick("agent", "no word", MAC, "", *macs[:1]),
            tinkVersion=lambda: 0,
            resources=lambda: {"cpu": "4"},
            references=lambda: {"lvm": {"name": "x"}},
            auto=lambda: pick({}, {"enrollmentEnabled": True}),
            bmcRef=lambda: (
                {"name": pick("bmc", "BAD")}
                | self.some(
                    kind=lambda: pick("Machine", "machine.bmc.tinkerbell.org", "Host"),
                    apiGroup=lambda: pick("bmc.tinkerbell.org", "x.org", None),
                )
            ),
        )
        annotations = self.some(
            0.1,
            **{
                "user": lambda: "1",
                INSTANCE_ID_ANNOTATION: lambda: "by-user",
                METADATA_ANNOTATION: lambda: pick("{", '{"iqn":"i"}', '{"tags": ["x"]}'),
                INCOMPLETE_ANNOTATION: lambda: "by user",
                V1ALPHA1_ANNOTATION: lambda: pick("x", "[]"),
            },
        )
        metadata: Raw = {"name": "m1", "namespace": "default", "labels": {"a": "b"}}
        if annotations or self.may(0.05):
            metadata["annotations"] = annotations
        made: Raw = {"apiVersion": OLD, "kind": "Hardware", "metadata": metadata}
        if self.may(0.95):
            made["spec"] = spec
        return made

    def new_interface(self) -> Raw:
        pick = self.pick
        address = pick("10.0.0.7", "10.0.0.8")
        return self.some(
            dhcp=lambda: self.some(
                ip=lambda: address,
                netmask=lambda: pick("255.255.255.0", "255.0.0.0"),
                gateway=lambda: "10.0.0.1",
                hostname=lambda: pick("h", "g"),
                vlanId=lambda: "7",
                ipv6=lambda: (
                    {"address": "2001:db8::7"}
                    | self.some(prefixLength=lambda: pick(64, 56), nameservers=lambda: self.words("2001:db8::53"))
                ),
                nameservers=lambda: self.words("1.1.1.1", "dns.example.org"),
                timeservers=lambda: self.words("1.1.1.1"),
                leaseTimeSeconds=lambda: pick(0, 3600, 86400),
            ),
            disableDhcp=lambda: pick(True, False),
            disableNetboot=lambda: pick(True, False),
        )

    def new(self) -> Raw:
        """Return a valid Hardware of v1alpha2."""
        pick = self.pick
        spec = self.some(
            0.5,
            networkInterfaces=lambda: {self.mac(): self.new_interface() for _ in range(pick(1, 2, 3))},
            ipxe=lambda: pick({"inline": "#!ipxe"}, {"url": "http://u/x"}, {"inline": "#!ipxe", "url": "http://u/x"}),
            osie=lambda: pick({"name": "lab"}, {}),
            kernelParams=lambda: self.words("a", "b=1"),
            instance=lambda: self.some(userdata=lambda: pick("", "x"), vendordata=lambda: "v"),
            storageDevices=lambda: self.words("/dev/sda", "/dev/nvme0n1"),
            bmcRef=lambda: pick({"name": "bmc"}, {"name": ""}, {}),
        )
        annotations = self.some(
            0.3,
            **{
                "user": lambda: "1",
                INSTANCE_ID_ANNOTATION: lambda: pick("m1", "other", ""),
                METADATA_ANNOTATION: lambda: pick('{"iqn":"i","tags":["a"]}', '{"facility": "f"}', "{", "[]"),
                SSH_PUBLIC_KEYS_ANNOTATION: lambda: pick("k1\nk2", "k1\n\n # x\n", ""),
                STORAGE_ANNOTATION: lambda: pick('{"disks":[{"device":"/dev/sda"}]}', '{"a": 1}', "x"),
                AGENT_ID_ANNOTATION: lambda: pick("agent", "no word"),
                INCOMPLETE_ANNOTATION: lambda: "by user",
                V1ALPHA2_ANNOTATION: lambda: "by user",
            },
        )
        made = objects.hardware(annotations=annotations) | {"spec": spec}
        if self.may(0.7):
            made["status"] = self.some(
                state=lambda: pick("Failed", "Waiting", "Absent"),
                mac=lambda: MAC,
                conditions=lambda: [{"type": "AsExpected", "status": "True"}],
                inventory=lambda: self.some(
                    outOfBand=lambda: pick({}, {"cpu": {"totalCores": 4}, "psus": [{"vendor": "v"}]}),
                    inBand=lambda: {"architecture": "x86_64", "clockOffsetSeconds": -1.5},
                ),
            )
        return made


def each_random(seed: int) -> Iterator[Any_]:
    """Yield OBJECTS builders with random state."""
    for number in range(OBJECTS):
        yield Any_(seed * 1_000_000 + number)


# --- properties


def test_v1alpha1_returns_as_it_was() -> None:
    for any_ in each_random(1):
        old = any_.old()
        new = up(old)
        assert equal(down(new), old)
        assert equal(up(down(new)), new)


def test_v1alpha1_returns_as_it_was_after_the_api_added_defaults() -> None:
    for any_ in each_random(2):
        old = any_.old()
        stored = completed(up(old))
        del stored["status"]
        assert equal(down(stored), old)


def test_each_v1alpha1_object_becomes_a_valid_v1alpha2_object() -> None:
    for any_ in each_random(3):
        completed(up(any_.old()))


def test_v1alpha2_returns_as_it_was() -> None:
    for any_ in each_random(4):
        new = completed(any_.new())
        old = down(new)
        again = up(old)
        assert equal(without_residue(completed(again)), new)
        assert equal(down(again), old)


def test_a_status_needs_no_annotation() -> None:
    for any_ in each_random(5):
        new = any_.new()
        old = down(new)
        old["metadata"].pop("annotations", None)
        assert equal({"status": up(old).get("status")}, {"status": new.get("status")})


def test_conversion_does_not_change_its_input() -> None:
    for any_ in each_random(6):
        old, new = any_.old(), any_.new()
        kept = copy.deepcopy((old, new, up(old), down(new)))
        made = up(old), down(new)
        down(made[0])
        up(made[1])
        assert equal({"all": [old, new, *made]}, {"all": [*kept]})


def test_conversion_does_not_depend_on_the_order_of_fields() -> None:
    def turned(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: turned(each) for key, each in reversed(value.items())}
        return [turned(each) for each in value] if isinstance(value, list) else value

    for any_ in each_random(7):
        old, new = any_.old(), any_.new()
        assert equal(up(turned(old)), up(old))
        assert equal(down(turned(new)), down(new))


def test_an_edit_in_v1alpha2_shows_in_v1alpha1_and_stays() -> None:
    for any_ in each_random(8):
        old = any_.old()
        new = completed(up(old))
        spec = new.setdefault("spec", {})
        spec.setdefault("instance", {})["userdata"] = "NEW"
        spec.setdefault("networkInterfaces", {})[mac := any_.mac()] = {"dhcp": {"ip": "10.9.9.9"}}
        spec["storageDevices"] = ["/dev/sdz"]
        new = completed(new)
        seen = down(new)
        assert seen["spec"]["userData"] == "NEW"
        assert seen["spec"]["disks"] == [{"device": "/dev/sdz"}]
        assert seen["spec"]["interfaces"][-1]["dhcp"] == {"mac": mac, "ip": {"address": "10.9.9.9"}}
        edited = {"userData", "disks", "interfaces", "metadata"}
        before = old.get("spec", {})
        assert equal(
            {key: value for key, value in seen["spec"].items() if key not in edited},
            {key: value for key, value in before.items() if key not in edited},
        )
        if "interfaces" in before:
            assert equal({"": seen["spec"]["interfaces"][:-1]}, {"": before["interfaces"]})
        assert equal(completed(up(seen))["spec"], new["spec"])


def test_an_interface_removed_or_switched_in_v1alpha2_is_so_in_v1alpha1() -> None:
    for any_ in each_random(9):
        new = completed(up(any_.old()))
        interfaces = new.get("spec", {}).get("networkInterfaces")
        if not interfaces:
            continue
        mac = any_.rng.choice(list(interfaces))
        switched = copy.deepcopy(new)
        is_disabled = not interfaces[mac]["disableNetboot"]
        switched["spec"]["networkInterfaces"][mac]["disableNetboot"] = is_disabled
        found = next(each for each in down(switched)["spec"]["interfaces"] if _is(each, mac))
        assert found["netboot"]["allowPXE"] is not is_disabled
        assert equal(completed(up(down(switched)))["spec"], switched["spec"])
        removed = copy.deepcopy(new)
        del removed["spec"]["networkInterfaces"][mac]
        if not removed["spec"]["networkInterfaces"]:
            del removed["spec"]["networkInterfaces"]
        again = down(removed)
        assert equal(completed(up(again))["spec"], removed["spec"])


def _is(interface: Raw, mac: str) -> bool:
    written = interface.get("dhcp", {}).get("mac", "")
    return bool(written.lower().replace("-", ":") == mac)


def test_an_edit_in_v1alpha1_changes_only_its_fields_in_v1alpha2() -> None:
    for any_ in each_random(10):
        new = completed(any_.new())
        old = down(new)
        old["spec"]["userData"] = "CAPT"
        old["metadata"]["labels"] = {"v1alpha1.tinkerbell.org/ownerName": "tm1"}
        expected = copy.deepcopy(new)
        expected["spec"].setdefault("instance", {})["userdata"] = "CAPT"
        expected["metadata"]["labels"] = {"v1alpha1.tinkerbell.org/ownerName": "tm1"}
        assert equal(without_residue(completed(up(old))), expected)


def test_boot_data_and_pxe_set_in_v1alpha1_show_in_v1alpha2() -> None:
    for any_ in each_random(16):
        old = down(completed(up(any_.old())))
        spec = old.setdefault("spec", {})
        spec["userData"] = "BOOT"
        for interface in spec.get("interfaces", []):
            interface.setdefault("netboot", {})["allowPXE"] = True
        new = up(old)
        assert new["spec"]["instance"]["userdata"] == "BOOT"
        assert not any("disableNetboot" in each for each in new["spec"].get("networkInterfaces", {}).values())
        assert equal(down(completed(new))["spec"], spec)


def test_any_edit_in_v1alpha1_gives_a_valid_object_and_returns() -> None:
    for any_ in each_random(11):
        old = down(completed(any_.new() if any_.may() else up(any_.old())))
        other = any_.old().get("spec", {})
        spec = old.setdefault("spec", {})
        for field in other:
            if any_.may(0.4):
                spec[field] = other[field]
        for interface in spec.get("interfaces") or []:
            if any_.may(0.3):
                interface["dhcp"] = interface.get("dhcp", {}) | {"ip": {"address": "2001:db8::9"}}
            if any_.may(0.3):
                interface["netboot"] = {"allowPXE": True}
        if any_.may(0.2) and spec.get("interfaces"):
            spec["interfaces"].pop()
        new = completed(up(old))
        assert equal(without_residue(down(new)), without_residue(old) | {"status": down(new)["status"]})


# --- hostile and partial objects


def _damaged(any_: Any_, value: Any, chance: float) -> Any:
    if any_.may(chance):
        return any_.pick(
            None, True, 0, 1.5, -(2**63), "text", [], {}, ["x"], [None], [{}], {"": ["x"]}, {"x": {"y": 1}}
        )
    if isinstance(value, dict):
        return {key: _damaged(any_, each, chance) for key, each in value.items() if not any_.may(chance / 2)}
    return [_damaged(any_, each, chance) for each in value] if isinstance(value, list) else value


def _any_shape(any_: Any_, obj: Raw) -> Raw:
    """Return an object with damage in every part, but of its kind and version, and with annotations that are texts."""
    chance = any_.pick(0.02, 0.1, 0.3)
    damaged = {name: _damaged(any_, value, chance) for name, value in obj.items()}
    metadata = damaged["metadata"]
    if isinstance(metadata, dict) and metadata.get("annotations") is not None:
        annotations = metadata["annotations"] if isinstance(metadata["annotations"], dict) else {}
        metadata["annotations"] = {key: str(value) for key, value in annotations.items()}
    return damaged | {"apiVersion": obj["apiVersion"], "kind": "Hardware"}


def test_objects_of_any_shape_are_carried() -> None:
    for any_ in each_random(12):
        old = _any_shape(any_, any_.old())
        new = up(old)
        assert equal(down(new), old)
        if isinstance(old.get("metadata"), dict) and not isinstance(old["metadata"].get("annotations"), dict):
            completed({**new, "metadata": {"name": "m1"}})


def test_v1alpha2_objects_of_any_shape_are_carried() -> None:
    for any_ in each_random(13):
        new = _any_shape(any_, any_.new())
        new.pop("status", None)
        assert equal(without_residue(_plain(up(down(new)))), without_residue(_plain(new)))


def _plain(new: Raw) -> Raw:
    """Return a v1alpha2 object without explicit defaults."""
    from tink.versions.hardware import HARDWARE

    return HARDWARE.without_defaults(new)


@pytest.mark.parametrize("deep", ['{"a":', "["])
def test_a_deep_value_is_carried(deep: str) -> None:
    value = json.loads(deep * 200 + "1" + {"[": "]"}.get(deep, "}") * 200)
    old = old_hardware(resources=value, references={"a": [value]})
    assert equal(down(up(old)), old)


@pytest.mark.parametrize("field", ["metadata", "spec", "status"])
def test_a_part_of_an_object_is_converted_without_the_rest(field: str) -> None:
    for any_ in each_random(14):
        for version, whole, there, back in ((OLD, any_.old(), up, down), (NEW, completed(any_.new()), down, up)):
            part = {"apiVersion": version, "kind": "Hardware"}
            if field in whole:
                part[field] = whole[field]
            made = there(part)
            assert ("spec" in made) is ("spec" in part)
            assert equal(without_residue(_plain(back(made))), without_residue(_plain(part)))


HOSTILE_PATHS = [
    ["annotations", "other"],
    ["annotations", INSTANCE_ID_ANNOTATION],
    ["annotations", METADATA_ANNOTATION],
    ["metadata"],
    ["spec", "interfaces"],
    ["spec", "interfaces", ""],
    ["spec", "networkInterfaces", MAC],
]


def test_a_hostile_residue_raises_nothing_and_adds_no_annotation() -> None:
    for any_ in each_random(15):
        old, new = any_.old(), any_.new()
        for obj, name in ((old, V1ALPHA2_ANNOTATION), (new, V1ALPHA1_ANNOTATION)):
            residue = json.loads(up(any_.old())["metadata"].get("annotations", {}).get(V1ALPHA1_ANNOTATION, "[]"))
            entries = [_damaged(any_, each, 0.1) for each in residue]
            entries += [{"path": path, "to": any_.pick(1, {}, ["x"])} for path in HOSTILE_PATHS]
            obj["metadata"]["annotations"] = {name: json.dumps(entries)}
        for made in (up(old), down(up(old)), down(new), up(down(new))):
            assert same(json.loads(json.dumps(made)), made)
            annotations = made["metadata"].get("annotations", {})
            assert all(isinstance(each, str) for each in annotations.values())
            assert "other" not in annotations


# --- real objects


def _corpus() -> list[Raw]:
    files = sorted(CORPUS.iterdir())
    return [each for file in files for each in read_objects(file.read_text()) if each["kind"] == "Hardware"]


@pytest.mark.parametrize("old", _corpus(), ids=lambda old: str(old["metadata"]["name"]))
def test_real_hardware_returns_as_it_was_and_means_what_convert_makes_of_it(old: Raw) -> None:
    old.pop("status", None)
    new = up(old)
    assert equal(down(new), old)
    assert equal(up(down(new)), new)
    [converted, *_] = convert_hardware(copy.deepcopy(old), Findings(ObjectPlace("-", 1)))
    # A conversion of one object cannot make an OSIE.
    converted["spec"]["osie"] = {"name": DEFAULT_OSIE}
    # An empty text means nothing to `tinkedge convert`.
    if old["spec"].get("userData") == "":
        converted["spec"].setdefault("instance", {})["userdata"] = ""
    assert equal(completed(new)["spec"], completed(converted)["spec"])
    for name in (INSTANCE_ID_ANNOTATION, SSH_PUBLIC_KEYS_ANNOTATION, METADATA_ANNOTATION, STORAGE_ANNOTATION):
        assert new["metadata"]["annotations"].get(name) == converted["metadata"]["annotations"].get(name)


def old_hardware(*interfaces: Raw, annotations: Raw | None = None, **spec: Any) -> Raw:
    metadata: Raw = {"name": "m1", "namespace": "default"} | ({"annotations": annotations} if annotations else {})
    interfaces = interfaces or ({"dhcp": {"mac": MAC}, "netboot": {"allowPXE": True, "allowWorkflow": True}},)
    return {
        "apiVersion": OLD,
        "kind": "Hardware",
        "metadata": metadata,
        "spec": {"interfaces": [*interfaces], "metadata": {"instance": {"id": "m1"}}, **spec},
    }


def _allowed(**netboot: Any) -> Raw:
    return {"netboot": {"allowPXE": True, "allowWorkflow": True, **netboot}}


SAME = [
    ({"userData": ""}, {"instance": {"userdata": ""}}),
    ({"userData": "u", "vendorData": "v"}, {"instance": {"userdata": "u", "vendordata": "v"}}),
    ({"disks": [{"device": "/dev/sda"}, {"device": "/dev/sdb"}]}, {"storageDevices": ["/dev/sda", "/dev/sdb"]}),
    (
        {"bmcRef": {"apiGroup": "bmc.tinkerbell.org", "kind": "Machine", "name": "bmc"}},
        {"bmcRef": {"name": "bmc"}},
    ),
]
"""Fields of the specs that mean the same."""
SAME_INTERFACES: list[tuple[Raw, Raw, Raw]] = [
    ({"netboot": {"allowPXE": False, "allowWorkflow": False}}, {"disableNetboot": True}, {}),
    ({**_allowed(), "disableDhcp": True}, {"disableDhcp": True}, {}),
    (_allowed(ipxe={"url": "http://a/x"}), {}, {"ipxe": {"url": "http://a/x"}}),
    (_allowed(ipxe={"contents": "#!ipxe"}), {}, {"ipxe": {"inline": "#!ipxe"}}),
    (_allowed(osie={"kernelParams": ["a", "b=1"]}), {}, {"kernelParams": ["a", "b=1"]}),
]
"""Fields of a v1alpha1 interface, of a v1alpha2 interface, and of v1alpha2's spec that mean the same."""
SAME_DHCP = [
    (
        {"ip": {"address": "10.0.0.7", "netmask": "255.0.0.0", "gateway": "10.0.0.1"}},
        {"ip": "10.0.0.7", "netmask": "255.0.0.0", "gateway": "10.0.0.1"},
    ),
    ({"hostname": "h", "vlan_id": "7"}, {"hostname": "h", "vlanId": "7"}),
    ({"lease_time": 3600}, {"leaseTimeSeconds": 3600}),
    ({"name_servers": ["1.1.1.1"], "time_servers": ["ntp.x"]}, {"nameservers": ["1.1.1.1"], "timeservers": ["ntp.x"]}),
    ({"ip": {"address": "2001:db8::7", "family": 6}}, {"ipv6": {"address": "2001:db8::7"}}),
    (
        {"ip": {"address": "2001:db8::7", "family": 6, "netmask": "56"}, "name_servers": ["1.1.1.1", "2001:db8::53"]},
        {
            "ipv6": {"address": "2001:db8::7", "prefixLength": 56, "nameservers": ["2001:db8::53"]},
            "nameservers": ["1.1.1.1"],
        },
    ),
]
"""Fields of both versions' `dhcp` that mean the same."""


def _same_pairs() -> Iterator[tuple[Raw, Raw]]:
    for old, new in SAME:
        yield old_hardware(**old), {"networkInterfaces": {MAC: {}}, **new}
    for old, new, machine in SAME_INTERFACES:
        yield old_hardware({"dhcp": {"mac": MAC}, **old}), {"networkInterfaces": {MAC: new}, **machine}
    for old, new in SAME_DHCP:
        yield (
            old_hardware({"dhcp": {"mac": MAC, **old}, **_allowed()}),
            {"networkInterfaces": {MAC: {"dhcp": new}}},
        )


@pytest.mark.parametrize(("old", "spec"), [*_same_pairs()])
def test_a_field_of_both_versions_needs_no_residue(old: Raw, spec: Raw) -> None:
    new = up(old)
    assert new["spec"] == spec | {"osie": {"name": DEFAULT_OSIE}}
    # The order of the interfaces is always kept.
    assert json.loads(new["metadata"].pop("annotations")[V1ALPHA1_ANNOTATION]) == [
        {"path": ["spec", "interfaces", ""], "to": [MAC]}
    ]
    assert new["metadata"] == old["metadata"]
    assert equal(down(new), old)


@pytest.mark.parametrize(
    ("dhcp", "expected"),
    [
        ({"ip": {"address": "10.0.0.300", "netmask": "255.0.255.0", "gateway": "x"}}, {}),
        (
            {"ip": {"address": "10.0.0.7", "netmask": "255.255.255.0", "gateway": "10.0.1.1"}},
            {"ip": "10.0.0.7", "netmask": "255.255.255.0"},
        ),
        ({"lease_time": 0}, {}),
        ({"lease_time": -1}, {}),
        ({"lease_time": True}, {}),
        ({"lease_time": 2**40}, {"leaseTimeSeconds": 2**32 - 1}),
        ({"vlan_id": "4095"}, {}),
        ({"vlan_id": 7}, {"vlanId": "7"}),
        ({"name_servers": ["1.1.1.1", "10.0.0.256", "", 8]}, {"nameservers": ["1.1.1.1"]}),
        ({"name_servers": ["2001:db8::53"]}, {}),
        ({"ip": {"address": "fe80::1", "family": 6}}, {}),
        ({"ip": {"address": "10.0.0.7", "family": 6}}, {}),
        ({"ip": {"address": "x:y"}}, {}),
        ({"ip": {"address": "2001:DB8:0::7/56"}}, {"ipv6": {"address": "2001:db8::7", "prefixLength": 56}}),
        ({"hostname": "no name"}, {}),
    ],
)
def test_a_value_that_v1alpha2_refuses_is_residue(dhcp: Raw, expected: Raw) -> None:
    old = old_hardware({"dhcp": {"mac": MAC, **dhcp}, **_allowed()})
    new = up(old)
    assert new["spec"]["networkInterfaces"][MAC].get("dhcp", {}) == expected
    completed(new)
    assert equal(down(new), old)


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ({"kind": "machine.bmc.tinkerbell.org", "name": "bmc"}, {"name": "bmc"}),
        ({"kind": "Machine", "name": "bmc", "apiGroup": None}, {"name": "bmc"}),
        ({"kind": "Host", "name": "bmc"}, None),
        ({"kind": "Machine", "name": "bmc", "apiGroup": "example.org"}, None),
        ({"kind": "Machine", "name": "BMC"}, None),
        ({"kind": ["Machine"], "name": "bmc"}, None),
    ],
)
def test_bmc_ref_is_mapped_if_it_names_a_machine(reference: Raw, expected: Raw | None) -> None:
    old = old_hardware(bmcRef=reference)
    assert up(old)["spec"].get("bmcRef") == expected
    assert equal(down(up(old)), old)


def test_pxe_is_allowed_only_where_v1alpha1_allows_it() -> None:
    interfaces = [{"dhcp": {"mac": MAC}}, {"dhcp": {"mac": OTHER_MAC}, "netboot": {"allowPXE": True}}]
    new = up(old_hardware(*interfaces))
    assert new["spec"]["networkInterfaces"] == {MAC: {"disableNetboot": True}, OTHER_MAC: {}}


def test_the_first_interface_that_allows_pxe_speaks_for_the_machine() -> None:
    old = old_hardware(
        {"dhcp": {"mac": MAC}, "netboot": {"osie": {"kernelParams": ["no"]}}},
        {"dhcp": {"mac": OTHER_MAC}, **_allowed(osie={"kernelParams": ["yes"]})},
        {"dhcp": {"mac": "52:54:00:00:00:03"}, **_allowed(osie={"kernelParams": ["third"]})},
    )
    new = up(old)
    assert new["spec"]["kernelParams"] == ["yes"]
    new["spec"]["kernelParams"] = ["edited"]
    params = [each["netboot"]["osie"]["kernelParams"] for each in down(new)["spec"]["interfaces"]]
    assert params == [["no"], ["edited"], ["edited"]]


def test_without_a_mac_address_there_is_no_interface_until_v1alpha2_adds_one() -> None:
    old = old_hardware({"dhcp": {"arch": "x86_64"}}, {"dhcp": {"mac": "x" + MAC}})
    new = up(old)
    assert "networkInterfaces" not in new["spec"]
    completed(new)
    new["spec"]["networkInterfaces"] = {MAC: {"disableNetboot": True}}
    interfaces = down(new)["spec"]["interfaces"]
    assert interfaces[:2] == old["spec"]["interfaces"]
    assert interfaces[2]["dhcp"] == {"mac": MAC}


def test_more_interfaces_than_v1alpha2_takes_are_carried() -> None:
    old = old_hardware(*({"dhcp": {"mac": f"52:54:00:00:01:{number:02x}"}} for number in range(66)))
    new = completed(up(old))
    assert len(new["spec"]["networkInterfaces"]) == 64
    del new["status"]
    assert equal(down(new), old)


def test_a_new_interface_does_not_become_the_first_one() -> None:
    new = up(old_hardware({"dhcp": {"mac": OTHER_MAC}}))
    new["spec"]["networkInterfaces"] = {MAC: {}} | new["spec"]["networkInterfaces"]
    assert [each["dhcp"]["mac"] for each in down(new)["spec"]["interfaces"]] == [OTHER_MAC, MAC]


def test_an_interface_that_v1alpha1_removes_stays_removed() -> None:
    both = {mac: {"dhcp": {"ip": "10.0.0.7", "ipv6": {"address": "2001:db8::7"}}} for mac in (MAC, OTHER_MAC)}
    old = down(objects.hardware(interfaces=both))
    del old["spec"]["interfaces"][0]
    assert up(old)["spec"]["networkInterfaces"] == {OTHER_MAC: both[OTHER_MAC]}


def test_capt_changes_what_it_writes_and_nothing_else() -> None:
    new = completed(
        objects.hardware(
            osie={"name": "lab"},
            ipxe={"inline": "#!ipxe"},
            dhcp={"ipv6": {"address": "2001:db8::7"}},
            instance={"vendordata": "v"},
            annotations={"tinkerbell.org/boot-path": "auto"},
        )
    )
    old = down(new)
    # CAPT dereferences metadata.instance unchecked.
    assert old["spec"]["metadata"]["instance"]["id"] == "m1"
    old["metadata"]["labels"] = {"v1alpha1.tinkerbell.org/ownerName": "tm1"}
    old["metadata"]["finalizers"] = ["infrastructure.cluster.x-k8s.io/tinkerbellmachine"]
    old["metadata"]["annotations"]["v1alpha1.tinkerbell.org/provisioned"] = "true"
    old["spec"]["userData"] = "boot"
    again = completed(up(old))
    assert again["spec"] == new["spec"] | {"instance": {"userdata": "boot", "vendordata": "v"}}
    assert again["status"] == new["status"]
    annotations = again["metadata"]["annotations"]
    assert annotations.pop(V1ALPHA1_ANNOTATION) == f'[{{"path":["spec","interfaces",""],"to":["{MAC}"]}}]'
    assert annotations == {"tinkerbell.org/boot-path": "auto", "v1alpha1.tinkerbell.org/provisioned": "true"}


def test_an_object_replaced_without_its_annotation_keeps_the_fields_of_v1alpha2() -> None:
    stored = completed(objects.hardware(osie={"name": "lab"}, dhcp={"ipv6": {"address": "2001:db8::7"}}))
    old = without_residue(down(stored))
    old["spec"]["userData"] = "boot"
    restore(old, down(stored))
    assert completed(up(old))["spec"] == stored["spec"] | {"instance": {"userdata": "boot"}}
    for replaced in (down(objects.hardware()), objects.hardware()):  # nothing is hidden; another version
        before = copy.deepcopy(old)
        restore(old, replaced)
        assert old == before


# --- annotations


def _annotations(new: Raw) -> Raw:
    found: Raw = new["metadata"].get("annotations", {})
    return {key: value for key, value in found.items() if key != V1ALPHA1_ANNOTATION}


def test_metadata_of_v1alpha1_becomes_annotations_and_returns() -> None:
    instance = {
        "id": "i-1",
        "ssh_keys": ["k1", "k2"],
        "tags": ["a"],
        "operating_system": {"slug": "ubuntu"},
        "storage": {"disks": [{"device": "/dev/sda"}]},
        "ips": [{"address": "192.0.2.1", "family": 4, "public": True}],
    }
    metadata = {"instance": instance, "facility": {"facility_code": "ams", "plan_slug": "c3"}}
    old = old_hardware(metadata=metadata, agentID="agent")
    new = up(old)
    assert _annotations(new) == {
        INSTANCE_ID_ANNOTATION: "i-1",
        SSH_PUBLIC_KEYS_ANNOTATION: "k1\nk2",
        STORAGE_ANNOTATION: '{"disks":[{"device":"/dev/sda"}]}',
        METADATA_ANNOTATION: '{"facility":"ams","operating-system":{"slug":"ubuntu"},"plan":"c3",'
        '"public-ipv4":"192.0.2.1","tags":["a"]}',
        AGENT_ID_ANNOTATION: "agent",
    }
    assert equal(down(new), old)
    new["metadata"]["annotations"][INSTANCE_ID_ANNOTATION] = "i-2"
    del new["metadata"]["annotations"][AGENT_ID_ANNOTATION]
    edited = down(new)["spec"]
    assert edited["metadata"]["instance"] == instance | {"id": "i-2"}
    assert "agentID" not in edited


def test_partitions_that_are_too_long_for_an_annotation_are_residue() -> None:
    storage = {"disks": [{"device": "/dev/sda", "wipe_table": True}] * 4000}
    old = old_hardware(metadata={"instance": {"storage": storage}})
    new = up(old)
    assert STORAGE_ANNOTATION not in new["metadata"]["annotations"]
    assert equal(down(new), old)


def test_an_edit_of_tags_keeps_further_metadata_of_v1alpha2() -> None:
    new = objects.hardware(annotations={METADATA_ANNOTATION: '{"iqn":"i","tags":["a"]}'})
    old = down(new)
    assert old["spec"]["metadata"]["instance"]["tags"] == ["a"]
    old["spec"]["metadata"]["instance"]["tags"] = ["b"]
    assert _annotations(up(old)) == {METADATA_ANNOTATION: '{"iqn":"i","tags":["b"]}'}


def test_an_annotation_by_the_user_of_v1alpha1_wins_over_the_spec() -> None:
    old = old_hardware(annotations={INSTANCE_ID_ANNOTATION: "mine"}, metadata={"instance": {"id": "i-1"}})
    new = up(old)
    assert _annotations(new) == {INSTANCE_ID_ANNOTATION: "mine"}
    assert equal(down(new), old)


@pytest.mark.parametrize("agent_id", [MAC, MAC.upper(), "no word", ""])
def test_an_agent_id_that_needs_no_annotation_is_residue(agent_id: str) -> None:
    old = old_hardware(agentID=agent_id)
    assert AGENT_ID_ANNOTATION not in _annotations(up(old))
    assert equal(down(up(old)), old)


def test_the_hostname_of_the_instance_is_served_if_no_interface_has_one() -> None:
    metadata = {"instance": {"id": "m1", "hostname": "h"}}
    old = old_hardware({"dhcp": {"mac": OTHER_MAC}}, {"dhcp": {"mac": MAC}}, metadata=metadata)
    new = up(old)
    assert new["spec"]["networkInterfaces"][OTHER_MAC]["dhcp"] == {"hostname": "h"}
    assert equal(down(new), old)
    new["spec"]["networkInterfaces"][OTHER_MAC]["dhcp"]["hostname"] = "edited"
    assert down(new)["spec"]["interfaces"][0]["dhcp"]["hostname"] == "edited"
    named = old_hardware({"dhcp": {"mac": MAC, "hostname": "own"}}, metadata=metadata)
    assert up(named)["spec"]["networkInterfaces"][MAC]["dhcp"] == {"hostname": "own"}


def test_a_large_residue_is_compressed_and_fits_into_annotations() -> None:
    old = old_hardware(references={f"reference-{number}": {"name": "x" * 200} for number in range(2000)})
    new = up(old)
    assert new["metadata"]["annotations"][V1ALPHA1_ANNOTATION].startswith("gzip:")
    assert sum(map(len, new["metadata"]["annotations"].values())) < 256 << 10
    assert equal(down(new), old)


# --- status


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ({"state": "Waiting"}, "Ready"),
        ({"state": "Failed"}, "Error"),
        ({"state": "Netbooting", "bootProblem": "NoKernel"}, "Error"),
        ({"state": "Absent"}, None),
        ({}, None),
    ],
)
def test_the_state_is_written_in_v1alpha1_words(status: Raw, state: str | None) -> None:
    old = down(objects.hardware() | {"status": status})
    assert old["status"].get("state") == state
    assert old["status"]["v1alpha2"] == status


def test_rufio_writes_the_inventory_of_both_versions() -> None:
    new = objects.hardware() | {"status": {"state": "Waiting", "inventory": {"inBand": {"architecture": "x86_64"}}}}
    old = down(new)
    old["status"]["attributes"] = {"outOfBand": {"bios": {"vendor": "v"}}}
    again = up(old)
    assert again["status"]["state"] == "Waiting"
    assert again["status"]["inventory"] == {
        "inBand": {"architecture": "x86_64"},
        "outOfBand": {"bios": {"vendor": "v"}},
    }
    assert down(again)["status"] == old["status"]


def test_an_inventory_is_cut_to_the_bounds_of_v1alpha2() -> None:
    port = {"mac": MAC, "speedMbps": -1, "linkStatus": "x" * 300}
    attributes = {
        "outOfBand": {
            "networkInterfaces": [{"ports": [port]}] * 300,
            "bios": {"status": {"postCode": -1}},
        }
    }
    found = completed(up(old_hardware() | {"status": {"attributes": attributes}}))["status"]["inventory"]["outOfBand"]
    assert len(found["networkInterfaces"]) == 256
    assert found["networkInterfaces"][0] == {"ports": [{"mac": MAC, "linkStatus": "x" * 256}]}
    assert found["bios"] == {"status": {"postCode": -1}}


# --- the door


@pytest.mark.parametrize(
    ("obj", "to"),
    [
        ({}, NEW),
        ({"apiVersion": OLD, "kind": "OSIE"}, NEW),
        ({"apiVersion": OLD, "kind": ["Hardware"]}, NEW),
        ({"apiVersion": OLD, "kind": "Hardware"}, "tinkerbell.org/v1"),
        ({"apiVersion": "v1", "kind": "Hardware"}, NEW),
        ({"kind": "Hardware"}, OLD),
        ({"apiVersion": [], "kind": "Hardware"}, OLD),
    ],
)
def test_another_kind_or_version_is_refused(obj: Raw, to: str) -> None:
    with pytest.raises(ConversionError, match="no conversion of"):
        convert(obj, to)


def test_an_object_of_the_wanted_version_is_unchanged() -> None:
    old = old_hardware()
    assert convert(old, OLD) == old


# --- the OSIE


def test_machine_boots_the_default_osie_until_v1alpha2_names_another_one() -> None:
    new = up(old_hardware({"dhcp": {"mac": MAC}}))
    assert new["spec"]["osie"] == {"name": DEFAULT_OSIE}
    new["spec"]["osie"] = {"name": "rescue"}
    for allowed in (True, False, True):
        old = down(new)
        old["spec"]["interfaces"][0]["netboot"] = {"allowPXE": allowed}
        new = up(old)
        assert new["spec"]["osie"] == {"name": "rescue"}
    native = completed(objects.hardware())
    assert "osie" not in native["spec"]
    assert "osie" not in up(down(native))["spec"], "a Hardware of v1alpha2 without an OSIE gets none"


# --- fields without an effect


def test_fields_without_an_effect_are_a_mistake_by_name() -> None:
    interface: Raw = {
        "dhcp": {"mac": MAC, "domain_name": "rack.example", "arch": "x86_64"},
        "netboot": {"allowPXE": True, "osie": {"kernel": "vmlinuz"}, "rpi": {}},
        "isoboot": {"sourceISO": "http://h/x.iso"},
    }
    made = up(old_hardware(interface, {"netboot": {"allowPXE": True}}))
    (found,) = ignored_field_mistakes(made)
    assert str(found) == (
        "tinkerbell.org/v1alpha1: no effect here, see docs/migrating.md: spec.interfaces[0].dhcp.domain_name, "
        "spec.interfaces[0].netboot.osie.kernel, spec.interfaces[0].isoboot, "
        "spec.interfaces[1] (it has no usable dhcp.mac)"
    )
    del interface["isoboot"], interface["dhcp"]["domain_name"], interface["netboot"]["osie"]
    assert ignored_field_mistakes(up(old_hardware(interface))) == []


@pytest.mark.parametrize(
    ("modes", "expected"),
    [((True,), True), ((False,), False), ((False, True), True), ((None, False), False), ((None,), None), ((), None)],
)
def test_firmware_mode_is_uefi_if_one_interface_has_it(modes: tuple[bool | None, ...], expected: bool | None) -> None:
    dhcp = [{"ip": {"address": "10.0.0.5"}} | ({} if mode is None else {"uefi": mode}) for mode in modes]
    assert is_uefi(up(old_hardware(*[{"dhcp": each} for each in dhcp], agentID="a"))) is expected
    assert is_uefi(completed(objects.hardware())) is None


def test_mistakes_of_both_versions_come_together_the_worst_first() -> None:
    dhcp = {"mac": MAC, "domain_name": "rack.example", "ip": {"address": "10.0.0.5", "netmask": "255.255.255.0"}}
    made = up(old_hardware({"dhcp": dhcp, "netboot": {"allowPXE": True}}))
    made["metadata"]["annotations"]["tinkerbell.org/kernel-sha256"] = "0" * 64
    site = Site(networks=[IPv4Network("192.0.2.0/24")])
    reasons = [each.reason for each in hardware_mistakes(made, site)]
    assert reasons == [Reason.INVALID_CHECKSUM, Reason.IGNORED_FIELDS, Reason.NETWORK_NOT_SERVED]
    del made["metadata"]["annotations"]["tinkerbell.org/v1alpha1"]
    assert [each.reason for each in hardware_mistakes(made, site)] == [reasons[0], reasons[2]]
    assert hardware_mistakes(None, site) == []


def test_fields_without_an_effect_are_those_that_the_definition_says() -> None:
    """`kubectl explain` and the condition Misconfigured name the same fields."""

    def ignored(schema: Raw, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if "Ignored, with the condition" in schema.get("description", ""):
            yield path
            return
        for name, child in schema.get("properties", {}).items():
            yield from ignored(child, (*path, name))

    definition = next(
        each for each in generate(serve_v1alpha1=True) if each["metadata"]["name"].startswith("hardware.")
    )
    old = next(each for each in definition["spec"]["versions"] if each["name"] == "v1alpha1")
    spec = old["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert set(ignored(spec["interfaces"]["items"], ())) == set(IGNORED)
