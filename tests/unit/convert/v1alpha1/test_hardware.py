"""Hardware of v1alpha1: corpora, interfaces, the instance, disks, the BMC, metadata. Every loss is reported."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hegel.metadata import compile_tree
from tink.api.v1alpha2 import Hardware, Raw
from tink.convert.documents import InputDocument, read
from tink.convert.findings import FindingKind, Findings, ObjectPlace
from tink.convert.run import ConversionResult, convert_documents
from tink.convert.v1alpha1 import hardware

CORPORA = Path(__file__).parent.parent / "corpora" / "hardware"
CASES = yaml.safe_load((Path(__file__).parent / "hardware.yaml").read_text())
MAC = "52:54:00:12:34:56"
OTHER_MAC = "52:54:00:12:34:57"
SOURCE = ObjectPlace("in.yaml", 1, "Hardware", "", "node-1")
Refused = Callable[[Raw], list[str]]


def machine(spec: Any = None, **metadata: Any) -> Raw:
    spec = {"interfaces": [interface()]} if spec is None else spec
    metadata = {"name": "node-1", **metadata}
    return {"apiVersion": "tinkerbell.org/v1alpha1", "kind": "Hardware", "metadata": metadata, "spec": spec}


def interface(mac: Any = MAC, *, netboot: Any = None, dhcp: Raw | None = None, **more: Any) -> Raw:
    netboot = {"allowPXE": True, "allowWorkflow": True} if netboot is None else netboot
    return {"dhcp": {"mac": mac, **(dhcp or {})}, "netboot": netboot, **more}


def convert(obj: Raw) -> tuple[list[Raw], list[tuple[str, str]], dict[str, str]]:
    """Return the result, (kind, path) of the findings, and their reasons by path."""
    before = copy.deepcopy(obj)
    findings = Findings(SOURCE)
    result = hardware.convert_hardware(obj, findings)
    assert obj == before, "a converter changes nothing in what it reads"
    return result, [(str(each.kind), each.path) for each in findings], {each.path: each.reason for each in findings}


def nics(result: list[Raw]) -> Raw:
    found: Raw = result[0]["spec"]["networkInterfaces"]
    return found


def run(file: str) -> ConversionResult:
    return convert_documents(read(file, (CORPORA / file).read_bytes()))


# --- as users have it


def test_playground_machine_comes_through_with_its_osie_keys_and_bmc(refused: Refused) -> None:
    result = run("playground.yaml")
    osie, machine, bmc, secret = result.objects
    assert osie["spec"] == {
        "kernelUrl": "http://172.20.0.2:7173/hook/vmlinuz-lts-x86_64",
        "initrdUrl": "http://172.20.0.2:7173/hook/initramfs-lts-x86_64",
    }
    assert osie["metadata"]["namespace"] == "tink-system"
    assert machine == {
        "apiVersion": "tinkerbell.org/v1alpha2",
        "kind": "Hardware",
        "metadata": {
            "name": "rack1-u07",
            "namespace": "tink-system",
            "labels": {"rack": "1"},
            "annotations": {
                "tinkerbell.org/instance-id": "3c:ec:ef:00:07:01",
                "tinkerbell.org/ssh-public-keys": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE7 ops@lab",
                "tinkerbell.org/metadata": '{"facility":"lab"}',
            },
        },
        "spec": {
            "networkInterfaces": {
                "3c:ec:ef:00:07:01": {
                    "dhcp": {
                        "ip": "172.20.1.7",
                        "netmask": "255.255.0.0",
                        "gateway": "172.20.0.1",
                        "hostname": "rack1-u07",
                        "vlanId": "120",
                        "nameservers": ["172.20.0.1", "9.9.9.9"],
                        "timeservers": ["ntp.lab.example"],
                        "leaseTimeSeconds": 86400,
                    }
                },
                "3c:ec:ef:00:07:02": {
                    "dhcp": {"ip": "172.21.1.7", "netmask": "255.255.0.0"},
                    "disableNetboot": True,
                },
            },
            "osie": {"name": osie["metadata"]["name"]},
            "kernelParams": ["console=ttyS1", "tink_worker_image=registry.lab.example/tink-agent"],
            "instance": {"userdata": "#cloud-config\n# our defaults\npackage_update: true\n"},
            "storageDevices": ["/dev/nvme0n1", "/dev/sda"],
            "bmcRef": {"name": "rack1-u07"},
        },
    }
    assert (bmc["kind"], secret["kind"]) == ("Machine", "Secret")
    assert [(str(each.kind), each.path) for each in result.findings] == [
        ("dropped", "spec.interfaces[0].dhcp.arch"),
        ("dropped", "spec.interfaces[0].dhcp.uefi"),
        ("changed", "spec.interfaces[1].dhcp.mac"),
    ]
    assert refused(osie) == refused(machine) == []


def test_eksa_machine_comes_through(refused: Refused) -> None:
    result = run("eksa.yaml")
    (machine,) = result.objects
    assert machine["spec"]["networkInterfaces"]["0c:c4:7a:10:20:01"]["dhcp"]["leaseTimeSeconds"] == 4294967294
    assert machine["spec"]["bmcRef"] == {"name": "bmc-eksa-a01"}
    assert "instance" not in machine["spec"]
    assert [(str(each.kind), each.path) for each in result.findings] == [
        ("dropped", "spec.interfaces[0].dhcp.arch"),
        ("dropped", "spec.interfaces[0].dhcp.uefi"),
        ("dropped", "spec.metadata.instance.allow_pxe"),
        ("dropped", "spec.metadata.instance.always_pxe"),
    ]
    assert refused(machine) == []


def test_capt_dump_leaves_behind_what_the_old_api_server_wrote(refused: Refused) -> None:
    result = run("capt.json")
    osie, machine = result.objects
    assert machine["metadata"] == {
        "name": "node-3",
        "namespace": "capt",
        "labels": {
            "v1alpha1.tinkerbell.org/ownerName": "cluster-a-md-0-xyz",
            "v1alpha1.tinkerbell.org/ownerNamespace": "capt",
        },
        "annotations": {
            "v1alpha1.tinkerbell.org/provisioned": "true",
            "tinkerbell.org/instance-id": "dc:a6:32:aa:00:03",
            "tinkerbell.org/storage": '{"disks":[{"device":"/dev/sda","partitions":[{"label":"root","number":1}]}]}',
        },
    }
    assert "status" not in machine
    assert osie["spec"]["kernelUrl"] == "https://images.example.org/hook/vmlinuz-aarch64"
    paths = {each.path: str(each.kind) for each in result.findings}
    assert paths["items[0].metadata.finalizers"] == "dropped"
    assert paths["items[0].status"] == "changed"
    assert paths["items[0].spec.interfaces[0].netboot.osie"] == "changed"
    assert "items[0].spec.metadata.instance.storage" not in paths
    assert refused(osie) == refused(machine) == []


# --- fields


def report(found: list[tuple[str, str]], prefix: str) -> list[str]:
    """Return the findings without the prefix of their paths, as the table has them."""
    assert all(path.startswith(prefix) for _, path in found)
    return [f"{kind} {path.removeprefix(prefix).lstrip('.')}".strip() for kind, path in found]


@pytest.mark.parametrize("case", CASES["dhcp"], ids=lambda case: str(case["in"])[:60])
def test_field_of_dhcp_comes_through_or_is_named(case: Raw, refused: Refused) -> None:
    result, found, _ = convert(machine({"interfaces": [interface(dhcp=case["in"])]}))
    assert result[0]["spec"] == {"networkInterfaces": {MAC: {"dhcp": case["out"]} if "out" in case else {}}}
    assert report(found, "spec.interfaces[0].dhcp") == case.get("found", [])
    assert refused(result[0]) == []


@pytest.mark.parametrize("case", CASES["netboot"], ids=lambda case: str(case["in"])[:60])
def test_field_of_netboot_comes_through_or_is_named(case: Raw, refused: Refused) -> None:
    (made,), found, _ = convert(machine({"interfaces": [{"dhcp": {"mac": MAC}, "netboot": case["in"]}]}))
    spec = made["spec"]
    assert spec.pop("networkInterfaces")[MAC] | spec == case.get("out", {})
    assert report(found, "spec.interfaces[0].netboot") == case.get("found", [])


@pytest.mark.parametrize("case", CASES["spec"], ids=lambda case: str(case["in"])[:60])
def test_field_of_the_spec_comes_through_or_is_named(case: Raw, refused: Refused) -> None:
    result, found, _ = convert(machine({"interfaces": [interface()], **case["in"]}))
    assert refused(result[0]) == []
    spec = dict(result[0]["spec"])
    made = {"interface": spec.pop("networkInterfaces")[MAC], "annotations": result[0]["metadata"].get("annotations")}
    assert {name: value for name, value in made.items() if value} | spec == case.get("out", {})
    assert report(found, "spec") == case.get("found", [])


def test_text_of_more_than_a_mebibyte_is_named() -> None:
    large = "v" * ((1 << 20) + 1)
    one = interface(netboot={"allowPXE": True, "ipxe": {"contents": large}})
    result, found, _ = convert(machine({"interfaces": [one], "userData": "#cloud-config\n", "vendorData": large}))
    assert set(result[0]["spec"]) == {"networkInterfaces", "instance"}
    assert result[0]["spec"]["instance"] == {"userdata": "#cloud-config\n"}
    assert set(found) == {("dropped", "spec.interfaces[0].netboot.ipxe.contents"), ("dropped", "spec.vendorData")}


def instance(**fields: Any) -> Raw:
    return machine({"interfaces": [interface()], "metadata": {"instance": fields}})


def test_annotation_and_hostname_that_are_there_are_kept() -> None:
    obj = instance(id="new", ssh_keys=["a b"])
    obj["metadata"]["annotations"] = {"tinkerbell.org/instance-id": "old", "tinkerbell.org/ssh-public-keys": "a b"}
    result, found, _ = convert(obj)
    assert result[0]["metadata"]["annotations"]["tinkerbell.org/instance-id"] == "old"
    assert found == [("dropped", "spec.metadata.instance.id")]
    obj = instance(hostname="db")
    obj["spec"]["interfaces"][0]["dhcp"]["hostname"] = "other"
    result, found, _ = convert(obj)
    assert nics(result)[MAC]["dhcp"] == {"hostname": "other"}
    assert found == [("dropped", "spec.metadata.instance.hostname")]


def test_addresses_of_the_instance_are_lost_only_where_no_interface_has_them() -> None:
    obj = instance(
        ips=[
            {"address": "10.0.0.2", "netmask": "255.0.0.0", "family": 4},
            {"address": "10.0.0.2", "netmask": "255.255.0.0"},
            {"address": "10.0.0.3", "public": True},
            {"address": "10.0.0.2", "management": True, "cidr": 8},
            {},
        ]
    )
    obj["spec"]["interfaces"][0]["dhcp"]["ip"] = {"address": "10.0.0.2", "netmask": "255.0.0.0"}
    result, found, _ = convert(obj)
    assert result[0]["metadata"]["annotations"] == {"tinkerbell.org/metadata": '{"public-ipv4":"10.0.0.3"}'}
    paths = ("[1]", "[3].management", "[3].cidr")
    assert found == [("dropped", f"spec.metadata.instance.ips{path}") for path in paths]


def test_what_tootles_served_comes_through_and_is_served(refused: Refused) -> None:
    storage = {"disks": [{"device": "/dev/sda", "partitions": [{"label": "ROOT", "number": 1, "size": 0}]}]}
    obj = instance(
        tags=["db", "blue"],
        operating_system={"distro": "ubuntu", "version": "24.04", "os_slug": "x"},
        storage=storage,
        ips=[
            {"address": "10.0.0.2", "family": 4, "public": True},
            {"address": "2001:db8::5", "family": 6, "public": True, "netmask": "ffff:ffff::", "gateway": "2001:db8::1"},
        ],
    )
    obj["spec"]["interfaces"][0]["dhcp"]["ip"] = {"address": "10.0.0.2", "netmask": "255.0.0.0"}
    obj["spec"]["metadata"]["facility"] = {"facility_code": "ams1", "plan_slug": "c3.small", "plan_version_slug": "2"}
    result, found, _ = convert(obj)
    assert found == [
        ("dropped", "spec.metadata.facility.plan_version_slug"),
        ("dropped", "spec.metadata.instance.operating_system.os_slug"),
    ]
    tree = compile_tree(Hardware.model_validate(result[0]))
    names = ("facility", "plan", "tags", "public-ipv4", "public-ipv6", "operating-system/distro")
    assert [tree.ec2[f"meta-data/{name}"].decode() for name in names] == [
        *("ams1", "c3.small", "db\nblue", "10.0.0.2", "2001:db8::5", "ubuntu")
    ]
    assert orjson.loads(tree.legacy)["metadata"]["instance"]["storage"] == storage | {"filesystems": []}
    assert refused(result[0]) == []


def test_owners_finalizers_and_status_are_named_and_left_behind() -> None:
    obj = {"status": {"state": "Ready"}, "extra": 1} | machine(
        finalizers=["x/y"],
        ownerReferences=[{"uid": "u"}],
        uid="u",
        resourceVersion="1",
        labels={"n": 1, "t": True, "a": [], "b": "c"},
    )
    result, found, _ = convert(obj)
    assert result[0]["metadata"] == {"name": "node-1", "labels": {"n": "1", "t": "true", "b": "c"}}
    assert found == [
        ("changed", "metadata.labels.n"),
        ("changed", "metadata.labels.t"),
        ("dropped", "metadata.labels.a"),
        ("dropped", "metadata.ownerReferences"),
        ("dropped", "metadata.finalizers"),
        ("changed", "status"),
        ("dropped", "extra"),
    ]


# --- interfaces


@pytest.mark.parametrize(
    ("spec", "macs", "finding"),
    [
        ([interface("52-54-00-AB-CD-EF")], ["52:54:00:ab:cd:ef"], ("changed", "spec.interfaces[0].dhcp.mac")),
        *(
            ([interface(), interface(mac)], None, ("error", "spec.interfaces[1].dhcp.mac"))
            for mac in ("52:54:00:12:34", "x", "52:54:00:12:34:5g", "5254.0012.3456", MAC + "\n\n:", MAC)
        ),
        *(
            ([broken, interface()], [MAC], ("dropped", "spec.interfaces[0]"))
            for broken in ({}, {"dhcp": {"hostname": "x"}}, {"dhcp": None}, {"dhcp": {"mac": ""}})
        ),
        *((none, None, ("error", "spec.interfaces")) for none in (None, [], [{"netboot": {}}], "x")),
        (
            [interface(dhcp={"name_servers": ["1.1.1.1"] * 33})],
            [MAC],
            ("dropped", "spec.interfaces[0].dhcp.name_servers[32]"),
        ),
    ],
)
def test_interface_comes_through_or_is_named_and_a_machine_without_a_good_mac_is_an_error(
    spec: Any, macs: list[str] | None, finding: tuple[str, str], refused: Refused
) -> None:
    result, found, reasons = convert(machine({} if spec is None else {"interfaces": spec}))
    assert (list(nics(result)) if result else None) == macs
    assert found[-1] == finding
    assert not result or refused(result[0]) == []
    if spec == [interface()] * 2:
        assert "spec.interfaces[0].dhcp.mac" in reasons["spec.interfaces[1].dhcp.mac"], "both are named"
    if spec is None:
        obj = machine()
        del obj["spec"]
        assert convert(obj)[1] == [finding]


def test_disabled_dhcp_stays_disabled() -> None:
    result, found, _ = convert(machine({"interfaces": [interface(disableDhcp=True)]}))
    assert nics(result)[MAC] == {"disableDhcp": True}
    assert found == [("changed", "spec.interfaces[0].disableDhcp")]
    result, found, _ = convert(machine({"interfaces": [{"dhcp": {"mac": MAC}, "disableDhcp": True}]}))
    assert nics(result)[MAC] == {"disableDhcp": True, "disableNetboot": True}
    assert found == []


def test_interfaces_may_share_an_address(refused: Refused) -> None:
    for address, family in (("10.0.0.2", "ip"), ("2001:DB8:0::2", "ipv6")):
        ip = {"ip": {"address": address}}
        result, found, _ = convert(machine({"interfaces": [interface(dhcp=ip), interface(OTHER_MAC, dhcp=ip)]}))
        assert nics(result)[MAC]["dhcp"] == nics(result)[OTHER_MAC]["dhcp"] != {}
        assert family in nics(result)[MAC]["dhcp"]
        assert not [kind for kind, _ in found if kind in ("dropped", "error")]
        assert refused(result[0]) == []


# --- what the machine boots


OSIE = {"baseURL": "http://10.0.0.1/osie", "kernel": "k", "initrd": "i"}


def booting(*netboots: Raw) -> Raw:
    macs = (MAC, OTHER_MAC)
    return machine({"interfaces": [interface(mac, netboot=each) for mac, each in zip(macs, netboots, strict=False)]})


def test_hardware_with_the_same_urls_shares_one_osie(converting: Callable[..., ConversionResult]) -> None:
    one, two, three = (machine(name=name) for name in ("a", "b", "c"))
    for obj in (one, two, three):
        obj["spec"] = booting({"allowPXE": True, "osie": OSIE})["spec"]
    three["spec"]["interfaces"][0]["netboot"]["osie"]["baseURL"] += "/"
    one["spec"]["interfaces"][0]["dhcp"]["mac"] = "52:54:00:00:00:01"
    elsewhere = {**three, "metadata": {"name": "c", "namespace": "elsewhere"}}
    result = converting(one, two, three, elsewhere)
    assert [obj["kind"] for obj in result.objects] == ["OSIE", "OSIE", "Hardware", "Hardware", "Hardware", "Hardware"]
    here, there = result.objects[:2]
    assert (here["metadata"].get("namespace"), there["metadata"]["namespace"]) == (None, "elsewhere")
    names = {obj["spec"]["osie"]["name"] for obj in result.objects[2:]}
    assert names == {here["metadata"]["name"]}
    result, _, _ = convert(booting({"allowPXE": True, "osie": {**OSIE, "initrd": "j"}}))
    assert result[1]["metadata"]["name"] not in names, "one that differs in the initrd alone is not shared"
    assert result[0]["spec"]["osie"] == {"name": result[1]["metadata"]["name"]}


def test_osie_without_file_names_has_those_of_the_architecture() -> None:
    base = {"baseURL": "http://10.0.0.1"}
    for arch, name in (("x86_64", "x86_64"), ("arm64", "aarch64"), (None, "x86_64"), (7, "x86_64")):
        obj = booting({"allowPXE": True, "osie": base})
        obj["spec"]["interfaces"][0]["dhcp"]["arch"] = arch
        result, found, _ = convert(obj)
        assert result[1]["spec"]["kernelUrl"] == f"http://10.0.0.1/vmlinuz-{name}"
        assert result[1]["spec"]["initrdUrl"] == f"http://10.0.0.1/initramfs-{name}"
        assert ("changed", "spec.interfaces[0].netboot.osie") in found


def test_interface_that_netboots_decides_what_the_machine_boots() -> None:
    other = {**OSIE, "baseURL": "http://10.0.0.9", "kernelParams": ["b"]}
    first = {"allowPXE": False, "osie": {**OSIE, "kernelParams": ["a"]}, "ipxe": {"url": "http://10.0.0.1/a"}}
    second = {"allowPXE": True, "osie": other, "ipxe": {"url": "http://10.0.0.1/b"}}
    result, found, _ = convert(booting(first, second))
    spec = result[0]["spec"]
    assert result[1]["spec"]["kernelUrl"] == "http://10.0.0.9/k"
    assert (spec["kernelParams"], spec["ipxe"]) == (["b"], {"url": "http://10.0.0.1/b"})
    lost = [f"spec.interfaces[0].netboot.{key}" for key in ("ipxe", "osie", "osie.kernelParams")]
    assert found == [("dropped", path) for path in lost]
    same = {"allowPXE": True, "osie": {**OSIE, "kernelParams": ["a"]}, "ipxe": {"contents": "#!ipxe\nshell"}}
    result, found, _ = convert(booting(same, copy.deepcopy(same)))
    assert (result[0]["spec"]["ipxe"], found) == ({"inline": "#!ipxe\nshell"}, []), "those that agree lose nothing"


# --- anything

_ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**33) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


# Odd values of each kind of field. Machines of the corpora get them in place of their own.
_ODD = st.sampled_from(
    [
        *("", "BAD_", "x" * 64, "db.example.org", 6, 0, -1, 12, 2**33, MAC, MAC.upper(), "4095", "007", "24"),
        *("10.0.0.256", "fe80::1", "2001:DB8::1", "2001:db8::2/64", "1.2.3.4\n", "01.2.3.4", "255.0.255.0", "0.0.0.0"),
        *("file:///a", "http://", "http://a\u00a0b/", "https://x/y?z#q", "k k", "#x", "a ; b", "\x85", "\u2028#"),
        *("/dev/sda1", "/dev/disk/by-id/x\n-part1", "/dev/x/", "/", "/dev/\u00a0", "/dev/mapper/a-part2", "a..", "-"),
        *(True, False, None, [], {}, [{}], ["10.0.0.1"] * 40),
    ]
)
_SPECS = [
    each.obj["spec"]
    for file in ("playground.yaml", "eksa.yaml", "capt.json")
    for each in read(file, (CORPORA / file).read_bytes())
    if isinstance(each, InputDocument) and each.obj["kind"] == "Hardware"
]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each field and item of a value, as container and key."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


@st.composite
def specs(draw: st.DrawFn) -> Raw:
    spec: Raw = copy.deepcopy(draw(st.sampled_from(_SPECS)))
    for _ in range(draw(st.integers(0, 8))):
        container, key = draw(st.sampled_from([*places(spec)]) if spec else st.just((spec, "interfaces")))
        container[key] = copy.deepcopy(draw(_ODD | _ANY))
    return spec


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spec=specs())
def test_result_of_any_hardware_is_valid_for_the_api(refused: Refused, spec: Raw) -> None:
    findings = Findings(SOURCE)
    obj = machine(spec)
    before = copy.deepcopy(obj)
    result = hardware.convert_hardware(obj, findings)
    assert obj == before
    assert bool(result) != findings.failed
    for made in result:
        assert refused(made) == []
    if result:
        Hardware.model_validate(result[0])


@settings(max_examples=100, deadline=None)
@given(_ANY, _ANY)
def test_no_object_brings_the_converter_down(spec: Any, metadata: Any) -> None:
    obj = machine() | {"spec": spec, "metadata": metadata}
    findings = Findings(SOURCE)
    hardware.convert_hardware(obj, findings)
    assert findings.failed
    assert all(each.reason for each in findings if each.kind is FindingKind.ERROR)
