"""Hardware of v1alpha1 as a whole: corpora, the instance, disks, the BMC, metadata; nothing is lost in silence."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hegel.metadata import compile_tree
from tests.unit.convert.v1alpha1.old_hardware import MAC, OTHER_MAC, SOURCE, convert, interface, machine
from tink.api.v1alpha2 import Hardware, Raw
from tink.convert.documents import read
from tink.convert.findings import Findings, Kind
from tink.convert.run import Result, convert_documents
from tink.convert.v1alpha1 import hardware

CORPORA = Path(__file__).parent.parent / "corpora" / "hardware"
Refused = Callable[[Raw], list[str]]


def run(file: str) -> Result:
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


# --- the instance


def instance(**fields: Any) -> Raw:
    return machine({"interfaces": [interface()], "metadata": {"instance": fields}})


@pytest.mark.parametrize(
    "field",
    [
        "state", "allow_pxe", "rescue", "operating_system", "always_pxe", "ipxe_script_url", "userdata",
        "crypted_root_password", "tags", "storage", "network_ready", "unheard_of",
    ],
)  # fmt: skip
def test_instance_field_without_a_place_is_named(field: str) -> None:
    result, found, _ = convert(instance(**{field: "x"}))
    assert list(result[0]["spec"]) == ["networkInterfaces"]
    assert found == [("dropped", f"spec.metadata.instance.{field}")]


@pytest.mark.parametrize("field", ["state", "bonding_mode", "manufacturer", "custom", "facility", "unheard_of"])
def test_metadata_field_without_a_place_is_named(field: str) -> None:
    _, found, _ = convert(machine({"interfaces": [interface()], "metadata": {field: "x"}}))
    assert found == [("dropped", f"spec.metadata.{field}")]


@pytest.mark.parametrize("field", ["tinkVersion", "resources", "references", "unheardOf"])
def test_spec_field_without_a_place_is_named(field: str) -> None:
    _, found, _ = convert(machine({"interfaces": [interface()], field: 3}))
    assert found == [("dropped", f"spec.{field}")]


def test_annotation_that_is_there_is_kept() -> None:
    obj = instance(id="new", ssh_keys=["a b"])
    obj["metadata"]["annotations"] = {"tinkerbell.org/instance-id": "old", "tinkerbell.org/ssh-public-keys": "a b"}
    result, found, _ = convert(obj)
    assert result[0]["metadata"]["annotations"]["tinkerbell.org/instance-id"] == "old"
    assert found == [("dropped", "spec.metadata.instance.id")]


def test_key_of_two_lines_does_not_become_two_keys() -> None:
    result, found, _ = convert(instance(ssh_keys=["ssh-rsa A a\n", "ssh-rsa B b\nssh-rsa C c", "", "ssh-rsa D"]))
    assert result[0]["metadata"]["annotations"]["tinkerbell.org/ssh-public-keys"] == "ssh-rsa A a\nssh-rsa D"
    assert found == [("dropped", "spec.metadata.instance.ssh_keys[1]")]


def test_hostname_of_the_instance_becomes_that_of_dhcp_if_there_is_none() -> None:
    result, found, _ = convert(instance(hostname="db.example"))
    assert result[0]["spec"]["networkInterfaces"][MAC]["dhcp"] == {"hostname": "db.example"}
    assert found == [("changed", "spec.metadata.instance.hostname")]
    assert convert(instance(hostname="not a name"))[1] == [("dropped", "spec.metadata.instance.hostname")]
    obj = instance(hostname="db")
    obj["spec"]["interfaces"][0]["dhcp"]["hostname"] = "other"
    result, found, _ = convert(obj)
    assert result[0]["spec"]["networkInterfaces"][MAC]["dhcp"] == {"hostname": "other"}
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


def test_agent_id_comes_through_unless_it_is_a_mac_of_the_machine() -> None:
    result, found, _ = convert(machine({"interfaces": [interface()], "agentID": "rack1-u7"}))
    assert (result[0]["metadata"]["annotations"], found) == ({"tinkerbell.org/agent-id": "rack1-u7"}, [])
    result, found, _ = convert(machine({"interfaces": [interface()], "agentID": MAC.upper()}))
    assert ("annotations" in result[0]["metadata"], found) == (False, [])
    assert convert(machine({"interfaces": [interface()], "agentID": "a b"}))[1] == [("dropped", "spec.agentID")]


def test_user_data_and_vendor_data_come_through_and_too_much_is_named() -> None:
    obj = machine({"interfaces": [interface()], "userData": "#cloud-config\n", "vendorData": "v" * ((1 << 20) + 1)})
    result, found, _ = convert(obj)
    assert result[0]["spec"]["instance"] == {"userdata": "#cloud-config\n"}
    assert found == [("dropped", "spec.vendorData")]


# --- disks, BMC, metadata


@pytest.mark.parametrize("device", ["/dev/sda1", "sda", "/dev/nvme0n1p2", "/dev/s da", 5, "/dev/disk/by-id/x-part1"])
def test_disk_that_is_no_whole_disk_is_named(device: Any) -> None:
    result, found, _ = convert(
        machine({"interfaces": [interface()], "disks": [{"device": device}, {"device": "/dev/sdb"}]})
    )
    assert result[0]["spec"]["storageDevices"] == ["/dev/sdb"]
    assert found == [("dropped", "spec.disks[0].device")]


@pytest.mark.parametrize(
    ("reference", "path"),
    [
        ({"name": "x", "kind": "BaseboardManagement"}, ""),
        ({"name": "x", "apiGroup": "example.org", "kind": "Machine"}, ""),
        ({"name": "X y"}, ".name"),
        ("x", ""),
    ],
)
def test_reference_to_no_machine_of_rufio_is_named(reference: Any, path: str) -> None:
    result, found, _ = convert(machine({"interfaces": [interface()], "bmcRef": reference}))
    assert "bmcRef" not in result[0]["spec"]
    assert found == [("dropped", f"spec.bmcRef{path}")]


def test_owners_and_finalizers_are_named_and_left_behind() -> None:
    obj = machine(
        finalizers=["x/y"],
        ownerReferences=[{"uid": "u"}],
        uid="u",
        resourceVersion="1",
        labels={"n": 1, "a": [], "b": "c"},
    )
    result, found, _ = convert(obj)
    assert result[0]["metadata"] == {"name": "node-1", "labels": {"n": "1", "b": "c"}}
    assert found == [
        ("changed", "metadata.labels.n"),
        ("dropped", "metadata.labels.a"),
        ("dropped", "metadata.ownerReferences"),
        ("dropped", "metadata.finalizers"),
    ]


def test_status_is_not_carried_over_and_that_is_no_loss() -> None:
    obj = machine() | {"status": {"state": "Ready"}, "extra": 1}
    assert convert(obj)[1] == [("changed", "status"), ("dropped", "extra")]


# --- anything

_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 2**33),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)
_ANY = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def either(good: Any, *others: Any) -> Any:
    """Mostly what belongs there."""
    return st.one_of(good, good, *others, _ANY)


_NAMES = st.sampled_from(["node-1", "db.example.org", "", "BAD_", "x" * 64])
_ADDRESSES = st.sampled_from(
    [
        "10.0.0.1",
        "10.0.0.2",
        "10.0.1.1",
        "10.0.0.256",
        "fe80::1",
        "2001:DB8::1",
        "2001:db8::2/64",
        "",
        "1.2.3.4\n",
        "01.2.3.4",
    ]
)
_IP = st.fixed_dictionaries(
    {},
    optional={
        "address": either(_ADDRESSES),
        "gateway": either(_ADDRESSES),
        "netmask": either(st.sampled_from(["255.255.255.0", "255.255.255.255", "0.0.0.0", "255.0.255.0", "24"])),
        "family": either(st.sampled_from([4, 6, 0])),
    },
)
_DHCP = st.fixed_dictionaries(
    {"mac": either(st.sampled_from([MAC, OTHER_MAC, MAC.upper(), "52:54:00:12:34:58", "52:54:00:12:34:59"]))},
    optional={
        "hostname": either(_NAMES),
        "ip": either(_IP),
        "lease_time": either(st.integers(-1, 2**33)),
        "name_servers": either(st.lists(either(_ADDRESSES | _NAMES), max_size=3)),
        "time_servers": either(st.lists(either(_ADDRESSES | _NAMES), max_size=3)),
        "vlan_id": either(st.sampled_from(["1", "4094", "4095", "007", 12])),
        "arch": either(st.sampled_from(["x86_64", "arm64"])),
    },
)
_URLS = st.sampled_from(["http://10.0.0.1", "https://x/y?z#q", "file:///a", "http://", "http://a\u00a0b/", "x"])
_NETBOOT = st.fixed_dictionaries(
    {},
    optional={
        "allowPXE": either(st.booleans()),
        "allowWorkflow": either(st.booleans()),
        "ipxe": either(
            st.fixed_dictionaries({}, optional={"url": either(_URLS), "contents": either(st.text(max_size=9))})
        ),
        "osie": either(
            st.fixed_dictionaries(
                {},
                optional={
                    "baseURL": either(_URLS),
                    "kernel": either(st.sampled_from(["k", "/k", "k k"])),
                    "initrd": either(st.sampled_from(["i"])),
                    "kernelParams": either(
                        st.lists(either(st.sampled_from(["a=b", "#x", "a ; b", "\x85", "\u2028#"])))
                    ),
                },
            )
        ),
    },
)
_INTERFACE = st.fixed_dictionaries(
    {"dhcp": either(_DHCP)}, optional={"netboot": either(_NETBOOT), "disableDhcp": either(st.booleans())}
)
_DEVICES = st.sampled_from(
    ["/dev/sda", "/dev/sda1", "/dev/disk/by-id/x\n-part1", "/dev/x/", "/", "/dev/\u00a0", "/dev/mapper/a-part2"]
)
_SPEC = st.fixed_dictionaries(
    {"interfaces": either(st.lists(either(_INTERFACE), max_size=3))},
    optional={
        "disks": either(st.lists(either(st.fixed_dictionaries({"device": either(_DEVICES)})), max_size=3)),
        "metadata": either(
            st.fixed_dictionaries(
                {},
                optional={
                    "instance": either(
                        st.fixed_dictionaries(
                            {},
                            optional={
                                "id": either(st.text(max_size=9)),
                                "hostname": either(_NAMES),
                                "ssh_keys": either(st.lists(either(st.text(max_size=9)), max_size=2)),
                                "ips": either(st.lists(either(_IP), max_size=2)),
                            },
                        )
                    )
                },
            )
        ),
        "bmcRef": either(st.fixed_dictionaries({"name": either(st.sampled_from(["bmc-1", "B", "a..", "-"]))})),
        "userData": either(st.text()),
        "status": _ANY,
    },
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spec=_SPEC)
def test_whatever_a_machine_says_the_result_is_one_that_the_api_takes(refused: Refused, spec: Raw) -> None:
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
    assert all(each.reason for each in findings if each.kind is Kind.ERROR)
