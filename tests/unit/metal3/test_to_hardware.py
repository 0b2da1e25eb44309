"""BareMetalHost to Hardware: converted fields, reports about the others, and no netboot for machines in use."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from edge.cli import main
from hegel.instance import SecretReference
from hegel.metadata import document_of_secret
from tests.unit.convert import conftest as convert
from tink.api.metal3.crds import generate
from tink.api.v1alpha2 import Hardware, Raw
from tink.convert.fields import Fields
from tink.convert.findings import Findings, ObjectPlace
from tink.convert.metal3.network_data import parsed, served
from tink.convert.metal3.root_disk import choose
from tink.convert.metal3.safety import HOST_LABEL, REFUSED_ANNOTATION, label_of, refusals
from tink.convert.metal3.to_hardware import HostOptions, convert_to_hardware, rufio_machine, secrets_to_read
from tink.kube.resources import HARDWARE_DATA
from tink.metal3.controller import HOSTS

BOOT, OTHER = "52:54:00:aa:00:01", "52:54:00:aa:00:02"
CLUSTER_API = {
    "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "Metal3Machine", "name": "cp-0", "namespace": "m",
}  # fmt: skip
DETAILS: Raw = {
    "hostname": "found-0",
    "cpu": {"arch": "x86_64"},
    "nics": [
        {"name": "eno1", "mac": BOOT, "pxe": True, "ip": "192.0.2.50"},
        {"name": "eno1", "mac": BOOT, "pxe": True, "ip": "fe80::1"},
        {"name": "eno2", "mac": OTHER.upper(), "vlanId": 7},
        {"name": "bond0"},
    ],
    "storage": [{"name": "/dev/sda", "sizeBytes": 10**12}, {"name": "/dev/sdb", "hctl": "1:0:0:0"}],
}
NETWORK = f"""
links:
- {{id: eno1, type: phy, ethernet_mac_address: "{BOOT}"}}
networks:
- id: n
  link: eno1
  type: ipv4
  ip_address: 10.77.0.58
  netmask: 255.255.255.0
  routes: [{{network: 0.0.0.0, netmask: 0.0.0.0, gateway: 10.77.0.1}}]
"""
USER_DATA = b"#cloud-config\nhostname: x\n\xc3\xa4"


def host(version: str = "v1alpha1", **spec: Any) -> Raw:
    power = "online" if version == "v1alpha1" else "poweredOn"
    return {
        "apiVersion": f"metal3.io/{version}",
        "kind": "BareMetalHost",
        "metadata": {"name": "n0", "namespace": "m", "uid": "0f0f", "labels": {"rack": "1"}},
        "spec": {power: True, "bootMACAddress": BOOT.upper(), **spec},
        "status": {"operationalStatus": "OK", "provisioning": {"state": "available", "ID": ""}},
    }


def secret(name: str, namespace: str = "m", **values: bytes) -> Raw:
    data = {key: base64.b64encode(value).decode() for key, value in values.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}, "data": data}


def details(**more: Any) -> Raw:
    return {
        "apiVersion": "metal3.io/v1alpha1", "kind": "HardwareData", "metadata": {"name": "n0", "namespace": "m"},
        "spec": {"hardware": {**DETAILS, **more}},
    }  # fmt: skip


class Result:
    def __init__(self, obj: Raw, *others: Raw, **options: Any) -> None:
        known = {(each["kind"], each["metadata"]["namespace"], each["metadata"]["name"]): each for each in others}
        before = copy.deepcopy(obj)
        findings = Findings(ObjectPlace("in.yaml", 1, "BareMetalHost", "m", "n0"))
        self.made = convert_to_hardware(obj, findings, lambda *what: known.get(what), HostOptions(**options))
        assert obj == before
        self.findings = [(str(each.kind), each.path) for each in findings]
        self.reasons = {each.path: each.reason for each in findings}
        for each in self.made:
            assert each["kind"] != "Hardware" or not convert.refusals(each)
        self.hardware: Any = self.made[0] if self.made else {"spec": {}, "metadata": {}}
        self.spec = self.hardware["spec"]
        self.interfaces = self.spec.get("networkInterfaces")
        self.annotations = self.hardware["metadata"].get("annotations", {})


# --- interfaces and names


@pytest.mark.parametrize("version", ["v1alpha1", "v1beta1"])
def test_host_gives_name_label_uid_and_a_lower_case_mac_that_netboots(version: str) -> None:
    made = Result(host(version))
    assert made.interfaces == {BOOT: {"dhcp": {"hostname": "n0"}}}
    metadata = made.hardware["metadata"]
    assert (metadata["name"], metadata["namespace"]) == ("n0", "m")
    assert metadata["labels"] == {"rack": "1", HOST_LABEL: "m.n0"}
    assert made.annotations["tinkerbell.org/instance-id"] == "0f0f"
    assert Hardware.model_validate(made.hardware)


def test_inspected_interfaces_come_along_and_only_those_with_pxe_netboot() -> None:
    made = Result(host(), details())
    assert list(made.interfaces) == [BOOT, OTHER]
    assert made.interfaces[BOOT] == {"dhcp": {"ip": "192.0.2.50", "hostname": "found-0"}}
    assert made.interfaces[OTHER] == {"dhcp": {"vlanId": "7"}, "disableNetboot": True}
    assert "192.0.2.50" in made.reasons["HardwareData.spec.hardware.nics"]


def test_details_are_found_in_status_and_annotation_too() -> None:
    old = host()
    old["status"]["hardware"] = DETAILS
    assert OTHER in Result(old).interfaces
    by_hand = host()
    by_hand["metadata"]["annotations"] = {"inspect.metal3.io/hardwaredetails": json.dumps(DETAILS)}
    assert OTHER in Result(by_hand).interfaces
    assert list(Result(by_hand).annotations) == ["tinkerbell.org/instance-id"]
    by_hand["metadata"]["annotations"] = {"inspect.metal3.io/hardwaredetails": "{"}
    assert ("dropped", 'metadata.annotations["inspect.metal3.io/hardwaredetails"]') in Result(by_hand).findings


def test_without_a_boot_mac_the_inspected_pxe_interface_netboots() -> None:
    made = Result(host(bootMACAddress=None), details())
    assert "disableNetboot" not in made.interfaces[BOOT]
    nics = [{"mac": BOOT}, {"mac": OTHER}]
    made = Result(host(bootMACAddress=None), details(nics=nics))
    assert all(each["disableNetboot"] for each in made.interfaces.values())
    assert "cannot netboot by MAC" in made.reasons["spec.bootMACAddress"]


@pytest.mark.parametrize("mac", [None, "", "52:54", "x52:54:00:aa:00:01", "52:54:00:aa:00:01:02"])
def test_host_without_a_usable_mac_is_an_error(mac: str | None) -> None:
    made = Result(host(bootMACAddress=mac))
    assert made.made == []
    assert ("error", "spec.bootMACAddress") in made.findings


def test_network_data_is_served_by_dhcp_and_beats_what_inspection_saw() -> None:
    made = Result(host(networkData={"name": "net"}), details(), secret("net", networkData=NETWORK.encode()))
    served = {"ip": "10.77.0.58", "netmask": "255.255.255.0", "gateway": "10.77.0.1"}
    assert made.interfaces[BOOT]["dhcp"] == served | {"hostname": "found-0"}
    for field, key in (({"networkData": {"name": "net"}}, "value"), ({"preprovisioningNetworkDataName": "net"}, None)):
        made = Result(host(**field), secret("net", **{key or "networkData": NETWORK.encode()}))
        assert made.interfaces[BOOT]["dhcp"]["ip"] == "10.77.0.58"


@pytest.mark.parametrize(
    ("spec", "others", "path", "why"),
    [
        ({"networkData": {"name": "net"}}, [], "spec.networkData", "Secret m/net is not there"),
        ({"networkData": {"name": "net"}}, [secret("net", other=b"")], "spec.networkData", "no key networkData"),
        ({"networkData": {"name": "net"}}, [secret("net", networkData=b"\xff")], "spec.networkData", "is not UTF-8"),
        ({"networkData": {"name": "net"}}, [secret("net", networkData=b"a: [")], "spec.networkData", "neither"),
        ({"networkData": {"name": "net", "namespace": "x"}}, [secret("net", "x", networkData=NETWORK.encode())],
         "spec.networkData.namespace", "own namespace, m"),
        ({"userData": {"name": "u", "namespace": "x"}}, [], "spec.userData.namespace", "own namespace, m"),
        ({"metaData": {"name": "../x"}}, [], "spec.metaData.name", ""),
    ],
)  # fmt: skip
def test_secret_that_cannot_be_used_is_a_finding_and_no_other_is_read(
    spec: Raw, others: list[Raw], path: str, why: str
) -> None:
    made = Result(host(**spec), *others)
    assert ("dropped", path) in made.findings
    assert why in made.reasons[path]
    assert "ip" not in made.interfaces[BOOT]["dhcp"]
    assert "tinkerbell.org/userdata-secret" not in made.annotations


def test_meta_data_gives_name_instance_id_and_keys_and_other_keys_are_reported_without_values() -> None:
    data = b"local-hostname: web-1\nuuid: abc\npublic_keys: {a: ssh-ed25519 AAAA x}\nprovider: s3cret\n"
    made = Result(host(metaData={"name": "meta"}), details(), secret("meta", metaData=data))
    assert made.interfaces[BOOT]["dhcp"]["hostname"] == "web-1"
    assert made.annotations["tinkerbell.org/instance-id"] == "abc"
    assert made.annotations["tinkerbell.org/ssh-public-keys"] == "ssh-ed25519 AAAA x"
    assert ("dropped", "spec.metaData.provider") in made.findings
    assert "s3cret" not in str(made.made) + str(made.reasons)


def test_name_that_every_machine_has_is_not_served() -> None:
    for name in ("localhost", "localhost.localdomain", "LOCALHOST4"):
        assert Result(host(), details(hostname=name)).interfaces[BOOT]["dhcp"]["hostname"] == "n0"
    made = Result(host(), details(hostname="a_b"))
    assert made.interfaces[BOOT]["dhcp"]["hostname"] == "n0"
    assert ("dropped", "HardwareData.spec.hardware.hostname") in made.findings


# --- user-data, disks, OSIE, BMC


def test_user_data_is_named_and_never_copied_and_hegel_serves_its_bytes() -> None:
    for key in ("userData", "value"):
        stored = secret("user", **{key: USER_DATA})
        made = Result(host(userData={"name": "user", "namespace": "m"}), stored)
        said = made.annotations["tinkerbell.org/userdata-secret"]
        assert said == f"user/{key}"
        assert document_of_secret(SecretReference.parse(said), stored) == USER_DATA
        assert "instance" not in made.spec
        assert stored["data"][key] not in str(made.made)
    assert Result(host(userData={"name": "user"})).annotations["tinkerbell.org/userdata-secret"] == "user"


NAMED, ELSEWHERE = {"name": "n"}, {"name": "n", "namespace": "other"}


@pytest.mark.parametrize(
    ("obj", "read"),
    [
        (host(userData={"name": "u"}, networkData=NAMED, metaData=NAMED, bmc={"credentialsName": "b"}), ["n"]),
        (host(preprovisioningNetworkDataName="p"), ["p"]),
        (host(networkData=NAMED, preprovisioningNetworkDataName="p"), ["n"]),
        *((host(networkData=ELSEWHERE), []), (host(networkData="n", metaData={"name": 1}), []), ({}, [])),
    ],
)
def test_secrets_of_network_and_meta_data_are_all_that_is_read(obj: Raw, read: list[str]) -> None:
    assert list(secrets_to_read(obj, "m")) == [("m", each) for each in read]


RAID = {"softwareRAIDVolumes": [{"level": "1", "rootVolume": True}]}
DELL_DISK = details(storage=[{"name": "/dev/sdx", "hctl": "0:0:0:0"}])


@pytest.mark.parametrize(
    ("version", "spec", "inventory", "devices"),
    [
        ("v1alpha1", {"rootDeviceHints": {"hctl": "1:0:0:0"}}, details(), ["/dev/sdb", "/dev/sda"]),
        ("v1alpha1", {"rootDeviceHints": {"deviceName": "/dev/sdb"}}, details(), ["/dev/sdb", "/dev/sda"]),
        ("v1beta1", {"rootDeviceHints": {"devicePath": "/dev/sdb"}}, details(), ["/dev/sdb", "/dev/sda"]),
        ("v1alpha1", {"rootDeviceHints": {}}, details(), None),
        ("v1beta1", {}, details(), None),
        ("v1alpha1", {"rootDeviceHints": {"model": "nothing"}}, details(), None),
        ("v1alpha1", {"rootDeviceHints": "sda"}, details(), None),
        ("v1alpha1", {}, details(), ["/dev/sda", "/dev/sdb"]),  # as the profile of every host, and the disk is there
        ("v1alpha1", {}, None, None),  # a default profile is not used without an inventory
        ("v1alpha1", {"hardwareProfile": "unknown"}, None, ["/dev/sda"]),
        ("v1alpha1", {"hardwareProfile": "empty"}, None, None),
        ("v1alpha1", {"hardwareProfile": "dell"}, DELL_DISK, ["/dev/sdx"]),
        ("v1alpha1", {"raid": RAID}, details(), None),
        ("v1alpha1", {"raid": RAID, "rootDeviceHints": {"hctl": "1:0:0:0"}}, details(), None),
    ],
)
def test_root_disk_is_the_one_that_metal3_means_or_none(
    version: str, spec: Raw, inventory: Raw | None, devices: list[str] | None
) -> None:
    made = Result(host(version, **spec), *([inventory] if inventory else []))
    assert made.spec.get("storageDevices") == devices
    if "raid" in spec:
        assert ("dropped", "spec.raid") in made.findings
    elif devices is None:
        assert any(path in ("spec.rootDeviceHints", "spec.hardwareProfile") for _, path in made.findings)
    hints = spec.get("rootDeviceHints")
    if hints and isinstance(hints, dict) and "raid" not in spec:
        assert json.loads(made.annotations["tinkerbell.org/metal3-root-device-hints"]) == hints


def test_interfaces_beyond_the_maximum_are_reported_as_dropped() -> None:
    nics = [{"mac": f"52:54:00:bb:00:{number:02x}"} for number in range(70)]
    made = Result(host(), details(nics=nics))
    assert len(made.interfaces) == 64
    assert BOOT in made.interfaces
    assert made.findings.count(("dropped", "HardwareData.spec.hardware.nics")) == 7


def test_address_that_two_inspected_interfaces_had_is_served_to_one() -> None:
    made = Result(host(), details(nics=[{"mac": BOOT, "ip": "192.0.2.50"}, {"mac": OTHER, "ip": "192.0.2.50"}]))
    assert made.interfaces[BOOT]["dhcp"]["ip"] == "192.0.2.50"
    assert "dhcp" not in made.interfaces[OTHER]


@pytest.mark.parametrize(
    ("arch", "inspected", "osie"),
    [("x86_64", None, "hook"), ("arm64", "x86_64", "hook-arm"), (None, "aarch64", "hook-arm"), (None, "amd64", "hook"),
     ("riscv64", None, None), (None, None, None)],
)  # fmt: skip
def test_osie_is_chosen_by_architecture(arch: str | None, inspected: str | None, osie: str | None) -> None:
    osies = {"x86_64": "hook", "aarch64": "hook-arm"}
    made = Result(host(architecture=arch), details(cpu={"arch": inspected}), osies=osies)
    assert made.spec.get("osie") == ({"name": osie} if osie else None)
    assert (osie is None) == any("spec.osie is empty" in reason for reason in made.reasons.values())


def test_bmc_becomes_a_machine_with_the_same_secret_if_asked_for() -> None:
    bmc = {"address": "redfish://192.0.2.7", "credentialsName": "n0-bmc", "disableCertificateVerification": True}
    made = Result(host(bmc=bmc))
    assert len(made.made) == 1
    assert ("dropped", "spec.bmc") in made.findings
    made = Result(host(bmc=bmc), bmc=True)
    rufio_machine = made.made[1]
    assert made.spec["bmcRef"] == {"name": rufio_machine["metadata"]["name"]}
    assert rufio_machine["spec"]["connection"]["authSecretRef"] == {"name": "n0-bmc", "namespace": "m"}
    assert rufio_machine["metadata"]["labels"][HOST_LABEL] == "m.n0"
    made = Result(host(bmc={**bmc, "address": "irmc://x"}), bmc=True)
    assert len(made.made) == 1
    assert "bmcRef" not in made.spec


# --- what is not carried over


def test_host_of_cluster_api_is_taken_only_if_asked_for_and_never_netboots() -> None:
    made = Result(host(consumerRef=CLUSTER_API))
    assert made.made == []
    assert made.findings == [("dropped", "spec.consumerRef")]
    made = Result(host(consumerRef=CLUSTER_API), consumed=True)
    assert made.interfaces[BOOT]["disableNetboot"] is True
    assert "Metal3Machine cp-0" in made.annotations[REFUSED_ANNOTATION]
    assert Result(host(consumerRef={"kind": "Team", "name": "x"})).interfaces[BOOT]["disableNetboot"] is True


def test_every_field_without_a_place_is_reported() -> None:
    unmapped = {
        "raid": {"hardwareRAIDVolumes": [{"level": "1"}]}, "automatedCleaningMode": "disabled",
        "customDeploy": {"method": "x"}, "disablePowerOff": True, "inspectionMode": "agent",
        "firmware": {"sriovEnabled": True}, "taints": [{"key": "a", "effect": "NoSchedule"}],
        "networkInterfaces": [{"name": "eno1"}], "invented": 1, "bootMode": "UEFISecureBoot",
        "image": {"url": "http://user:pw@x/i.qcow2", "checksum": "c", "checksumType": "sha256", "format": "qcow2"},
    }  # fmt: skip
    made = Result(host(**unmapped))
    assert {path for _, path in made.findings} >= {f"spec.{key}" for key in unmapped}
    params = made.reasons["spec.image"]
    assert "image_url=http://…@x/i.qcow2 image_checksum=c image_checksum_type=sha256 image_format=qcow2" in params
    assert "pw" not in str(made.reasons)
    assert ("dropped", "spec.bootMode") in Result(host(bootMode="odd")).findings
    quiet = Result(host(automatedCleaningMode="metadata", bootMode="UEFI", description="rack 1"))
    assert quiet.findings == [("changed", "spec.rootDeviceHints"), ("changed", "status")]
    assert quiet.annotations["kubernetes.io/description"] == "rack 1"


def test_annotations_of_metal3_stay_behind_and_others_come_along() -> None:
    obj = host()
    obj["metadata"]["annotations"] = {
        "reboot.metal3.io": "", "inspect.metal3.io": "", "baremetalhost.metal3.io/status": "{}", "site": "a",
        "cluster.x-k8s.io/conversion-data": "{}", REFUSED_ANNOTATION: "old",
    }  # fmt: skip
    made = Result(obj)
    assert made.annotations == {"site": "a", "tinkerbell.org/instance-id": "0f0f"}
    dropped = [path for kind, path in made.findings if kind == "dropped"]
    assert dropped == [f'metadata.annotations["{name}.metal3.io"]' for name in ("reboot", "inspect")]


def test_long_names_fit_into_the_label() -> None:
    label = label_of("n" * 40, "h" * 60)
    assert len(label) <= 63
    assert label != label_of("n" * 40, "h" * 61)
    obj = host()
    obj["metadata"]["labels"] = {HOST_LABEL: "somebody.else"}
    assert Result(obj).hardware["metadata"]["labels"] == {HOST_LABEL: "m.n0"}


@pytest.mark.parametrize("change", [{"apiVersion": "metal3.io/v9"}, {"metadata": {"name": "a/b"}}, {"spec": None}])
def test_object_that_is_no_host_is_an_error(change: Raw) -> None:
    made = Result({**host(), **change})
    assert made.made == []
    assert "error" in [kind for kind, _ in made.findings]


# --- the command


def run(tmp_path: Path, *objects: Raw, options: tuple[str, ...] = ()) -> Any:
    file = tmp_path / "in.json"
    file.write_text("\n---\n".join(json.dumps(obj) for obj in objects))
    words = ["convert", "--to", "hardware", "-f", str(file), "-o", "json", *options]
    return CliRunner().invoke(main, words, catch_exceptions=False)


def test_command_finds_data_and_secrets_wherever_they_stand_in_the_input(tmp_path: Path) -> None:
    obj = host(networkData={"name": "net"}, rootDeviceHints={"hctl": "1:0:0:0"})
    parts = [obj, details(), secret("net", networkData=NETWORK.encode())]
    first = run(tmp_path, *parts, options=("--osie", "x86_64=hook"))
    assert first.exit_code == 0, first.stderr
    assert first.stdout == run(tmp_path, *reversed(parts), options=("--osie", "x86_64=hook")).stdout
    assert '"10.77.0.58"' in first.stdout
    assert '"hook"' in first.stdout
    assert "Secret" not in first.stdout


def test_command_refuses_options_that_mean_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, host(), options=("--osie", "x86=hook")).exit_code == 2
    assert run(tmp_path, host(), options=("--osie", "x86_64=a", "--osie", "x86_64=b")).exit_code == 2
    file = tmp_path / "in.json"
    result = CliRunner().invoke(main, ["convert", "--to", "v1beta1", "--bmc", "-f", str(file)])
    assert result.exit_code == 2
    assert "--to hardware" in result.stderr
    assert run(tmp_path, host(consumerRef=CLUSTER_API)).exit_code == 2
    assert run(tmp_path, host(consumerRef=CLUSTER_API), options=("--consumed",)).exit_code == 0
    bare = host()
    del bare["status"]
    assert '"disableNetboot": true' in run(tmp_path, bare).stdout
    assert '"disableNetboot"' not in run(tmp_path, bare, options=("--netboot-unmanaged",)).stdout


def test_controller_follows_every_version_of_the_host_definition() -> None:
    versions = {crd["spec"]["names"]["plural"]: crd["spec"]["versions"] for crd in generate()}
    served = {(plural, version["name"]) for plural, each in versions.items() for version in each}
    assert served == {(each.plural, each.version) for each in (*HOSTS, HARDWARE_DATA)}


# --- no machine that may run a workload netboots, whatever else its host says

MAC = "52:54:00:00:00:01"
SOURCE = ObjectPlace("in.yaml", 1, "BareMetalHost", "metal3", "n0")
NICS = [{"mac": MAC, "pxe": True}, {"mac": "52:54:00:00:00:02", "pxe": True}, {"mac": "52:54:00:00:00:03"}]
ALL = HostOptions(bmc=True, consumed=True)
DATA: Raw = {"spec": {"hardware": {"nics": NICS}}}


def free(version: str = "v1alpha1") -> Raw:
    made = host(version, bootMACAddress=MAC)
    made["status"]["provisioning"] |= {"ID": "i", "image": {"url": ""}}
    return made


def converted(obj: Raw, options: HostOptions = ALL) -> Raw | None:
    made = convert_to_hardware(
        obj, Findings(SOURCE), lambda kind, *_: DATA if kind == "HardwareData" else None, options
    )
    return made[0] if made else None


def netboots(obj: Raw, options: HostOptions = ALL) -> list[str]:
    made = converted(obj, options)
    interfaces = made["spec"]["networkInterfaces"] if made else {}
    return [mac for mac, each in interfaces.items() if each.get("disableNetboot") is not True]


def put(*path: str, value: Any) -> Callable[[Raw], None]:
    def change(obj: Raw) -> None:
        at = obj
        for key in path[:-1]:
            if not isinstance(at.get(key), dict):
                at[key] = {}
            at = at[key]
        at[path[-1]] = value

    return change


PAUSED = "baremetalhost.metal3.io/paused"
UNSAFE = {
    what: put(*path, value=value)
    for what, (*path, value) in yaml.safe_load((Path(__file__).parent / "unsafe_hosts.yaml").read_text()).items()
}


@pytest.mark.parametrize("version", ["v1alpha1", "v1beta1"])
@pytest.mark.parametrize("state", ["available", "ready"])
def test_free_host_with_its_power_on_in_the_words_of_its_version_netboots(version: str, state: str) -> None:
    obj = free(version)
    obj["status"]["provisioning"]["state"] = state
    assert netboots(obj) == [MAC, "52:54:00:00:00:02"]
    assert refusals(obj) == []
    own, other = ("online", "poweredOn") if version == "v1alpha1" else ("poweredOn", "online")
    for power in ({own: False}, {other: True}):
        obj["spec"] = {**power, "bootMACAddress": MAC}
        assert netboots(obj) == []


@pytest.mark.parametrize("what", UNSAFE)
def test_host_that_may_run_something_never_netboots(what: str) -> None:
    obj = free()
    UNSAFE[what](obj)
    assert netboots(obj) == []
    said = refusals(obj)
    assert said
    assert all(each.path and each.reason for each in said)
    made = converted(obj)
    if made is not None:
        assert len(made["spec"]["networkInterfaces"]) == 3
        assert made["metadata"]["annotations"][REFUSED_ANNOTATION]


def test_unmanaged_host_netboots_only_if_the_operator_permits_it() -> None:
    said = HostOptions(unmanaged=True)
    for status in (None, {}, {"provisioning": {}}, {"provisioning": {"state": "unmanaged"}}):
        obj = free()
        obj["status"] = status
        assert netboots(obj, HostOptions()) == []
        assert netboots(obj, said)
    for change in (
        put("spec", "image", value={"url": "http://x/y"}),
        put("spec", "customDeploy", value={"method": "x"}),
        put("spec", "online", value=False),
        put("metadata", "annotations", "baremetalhost.metal3.io/status", value="{}"),
        put("metadata", "annotations", PAUSED, value=""),
        put("status", "provisioning", "state", value="provisioned"),
        put("status", "provisioning", "state", value="inspecting"),
    ):
        obj = free()
        obj["status"] = {}
        change(obj)
        assert netboots(obj, said) == []


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5000)
    | st.sampled_from(["", "available", "true", "x", MAC, "detached"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["state", "url", "mac", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
PATHS = [
    ("metadata",), ("metadata", "annotations"), ("metadata", "labels"), ("metadata", "annotations", "x/y"),
    ("spec",), ("spec", "online"), ("spec", "poweredOn"), ("spec", "bootMACAddress"), ("spec", "bmc"),
    ("spec", "image"), ("spec", "raid"), ("spec", "rootDeviceHints"), ("spec", "userData"), ("spec", "networkData"),
    ("spec", "metaData"),
    ("spec", "consumerRef"), ("spec", "externallyProvisioned"), ("spec", "architecture"), ("spec", "bootMode"),
    ("spec", "unknown"), ("status",), ("status", "hardware"), ("status", "provisioning"),
    ("status", "provisioning", "state"), ("status", "provisioning", "image"), ("status", "operationalStatus"),
    ("status", "errorType"), ("apiVersion",),
]  # fmt: skip


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(["v1alpha1", "v1beta1"]), st.lists(st.tuples(st.sampled_from(PATHS), _JSON), max_size=5), _JSON)
@example("v1alpha1", [(("status", "provisioning", "image"), {"url": [None]})], None)
@example("v1beta1", [(("status", "provisioning", "customDeploy"), {"method": {"a": ""}})], None)
@example("v1beta1", [(("spec", "consumerRef"), {"name": [None]})], None)
def test_odd_host_is_converted_or_refused_and_netboots_only_if_all_fields_are_known(
    version: str, changes: list[tuple[tuple[str, ...], Any]], secret: Any
) -> None:
    obj = free(version)
    for path, value in changes:
        put(*path, value=copy.deepcopy(value))(obj)
    before = copy.deepcopy(obj)
    findings = Findings(SOURCE)
    made = convert_to_hardware(obj, findings, lambda kind, *_: secret if kind == "Secret" else DATA, ALL)
    assert obj == before, "a converter changes nothing in what it reads"
    assert made or findings.failed
    if made and any(each.get("disableNetboot") is not True for each in made[0]["spec"]["networkInterfaces"].values()):
        status, spec = obj["status"], obj["spec"]
        assert status["provisioning"]["state"] in ("available", "ready")
        assert spec["online" if obj["apiVersion"] == "metal3.io/v1alpha1" else "poweredOn"] is True
        assert spec.get("online", True) is True
        assert spec.get("poweredOn", True) is True
        assert not spec.get("externallyProvisioned")
        assert status.get("operationalStatus") in (None, "", "OK", "discovered", "error", "delayed")
        assert not (status["provisioning"].get("image") or {}).get("url")
        assert not (status["provisioning"].get("customDeploy") or {}).get("method")
        assert not any((spec.get("consumerRef") or {}).values())


ONE, TWO = "52:54:00:aa:00:01", "52:54:00:aa:00:02"
CASES = yaml.safe_load((Path(__file__).parent / "network_data.yaml").read_text())


def phy(name: str, mac: str) -> Raw:
    return {"id": name, "type": "phy", "ethernet_mac_address": mac}


NOWHERE = {"id": "n", "link": "nowhere", "type": "ipv4", "ip_address": "10.0.0.5"}
LINKS = [phy("eno1", ONE.upper()), phy("eno2", TWO)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["networks"])[:80])
def test_network_data_is_served_by_dhcp_or_named_with_the_reason(case: Raw) -> None:
    findings = Findings(ObjectPlace("f", 1, "BareMetalHost", "m", "n"))
    document = {"links": LINKS} | {name: case[name] for name in ("networks", "links", "services") if name in case}
    found = served(document, "data", case.get("boot", ONE), findings)
    assert {mac: dhcp for mac, dhcp in found.items() if dhcp} == case.get("served", {})
    assert [f"{each.path}: {each.reason}" for each in findings] == case.get("report", [])


def test_yaml_and_json_are_read_and_nothing_else_is_quoted() -> None:
    document = {"links": [phy("eno1", ONE)]}
    assert parsed(json.dumps(document)) == document
    assert parsed(f"links:\n- id: eno1\n  type: phy\n  ethernet_mac_address: {ONE}\n") == document
    for bad in ("a: [", "a: 1\n---\nb: 2\n", "&a [*a]", "[" * 100_000, "secret: *x"):
        with pytest.raises(ValueError) as caught:
            parsed(bad)
        assert "secret" not in str(caught.value)
        assert len(str(caught.value)) < 100
    assert parsed("") is None


@pytest.mark.parametrize(
    "document",
    [
        1,
        "x",
        [],
        {"links": 1},
        {"links": [1], "networks": [None, 1]},
        {"networks": [NOWHERE]},
    ],
)
def test_odd_document_serves_nothing_and_is_reported(document: Any) -> None:
    findings = Findings(ObjectPlace("f", 1, "BareMetalHost", "m", "n"))
    assert served(document, "data", ONE, findings) == {}
    assert document == [] or len(findings)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"links": ["x" * 100] * 3000}),
        "a: &a '" + "x" * 10_000 + "'\nlinks: [" + ",".join(["*a"] * 40) + "]\n",
        "\n".join(["a0: &a0 {k: v}", *(f"a{i + 1}: &a{i + 1} {{<<: [{','.join([f'*a{i}'] * 9)}]}}" for i in range(9))]),
    ],
    ids=["long", "aliases", "merge-keys"],
)
def test_document_of_a_tenant_that_is_or_becomes_large_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"larger than 256 KiB|neither JSON nor YAML"):
        parsed(text)


GIB = 1 << 30
SSD: Raw = {
    "name": "/dev/disk/by-path/pci-0000:00:17.0-ata-1",
    "alternateNames": ["/dev/sda", "/dev/disk/by-id/wwn-0x5000"],
    "model": "SAMSUNG MZ7LH480",
    "vendor": "ATA",
    "serialNumber": "S45PNA0M1",
    "sizeBytes": 447 * GIB,
    "wwn": "0x5002538e",
    "wwnWithExtension": "0x5002538e0x1",
    "wwnVendorExtension": "0x1",
    "hctl": "0:0:0:0",
    "type": "SSD",
}
HDD: Raw = {
    "name": "/dev/sdb",
    "model": "WD 40",
    "vendor": "Western Digital",
    "serialNumber": "wd-1",
    "sizeBytes": 3700 * GIB,
    "hctl": "1:0:0:0",
    "type": "HDD",
    "rotational": True,
}
NVME: Raw = {"name": "/dev/nvme0n1", "model": "SAMSUNG PM9A3", "sizeBytes": 900 * GIB, "type": "NVME"}
DISKS = [SSD, HDD, NVME]
FIRST, SECOND, THIRD = (disk["name"] for disk in DISKS)


@pytest.mark.parametrize(
    ("hints", "root"),
    [
        ({"hctl": "1:0:0:0"}, SECOND),
        ({"serialNumber": " s45pna0m1 "}, FIRST),
        ({"model": "mz7"}, FIRST),
        ({"modelContains": "PM9"}, THIRD),
        ({"vendorContains": "western"}, SECOND),
        ({"vendor": "Western%20Dig"}, SECOND),
        ({"wwn": "0X5002538E"}, FIRST),
        ({"wwnWithExtension": "0x5002538e0x1"}, FIRST),
        ({"wwnVendorExtension": "0x1"}, FIRST),
        ({"rotational": True}, SECOND),
        ({"rotational": False, "minSizeGigabytes": 500}, THIRD),
        ({"minSizeGigabytes": 3700}, SECOND),
        ({"modelContains": "samsung", "minSizeGigabytes": 448}, THIRD),
        (
            {"modelContains": "samsung", "hctl": "0:0:0:0", "serialNumber": "", "wwn": None, "minSizeGigabytes": 0},
            FIRST,
        ),
    ],
)
def test_hints_that_one_disk_fits_choose_it(hints: Raw, root: str) -> None:
    choice = choose(hints, DISKS)
    assert choice.devices[0] == root
    assert sorted(choice.devices) == sorted((FIRST, SECOND, THIRD))
    assert not choice.problem


@pytest.mark.parametrize(
    ("hints", "why"),
    [
        ({}, "3 disks"),
        ({"modelContains": "samsung"}, "2 disks fit: /dev/disk/by-path/pci-0000:00:17.0-ata-1, /dev/nvme0n1"),
        ({"minSizeGigabytes": 1}, "3 disks fit"),
        ({"rotational": False}, "2 disks fit"),
        ({"hctl": "0:0:0"}, "none of the host's 3 disks fits"),
        ({"serialNumber": "S45"}, "none"),
        ({"vendorContains": "SAMSUNG"}, "none"),
        ({"minSizeGigabytes": 3701}, "none"),
        ({"deviceName": "/dev/sdz"}, "none"),
        ({"deviceName": "/dev/sda", "hctl": "1:0:0:0"}, "none"),
        ({"colour": "red"}, "colour is no hint"),
        ({"hctl": 1}, "hctl must be a string"),
        ({"rotational": "true"}, "rotational must be true or false"),
        ({"minSizeGigabytes": "9"}, "minSizeGigabytes must be a number"),
        ({"minSizeGigabytes": True}, "minSizeGigabytes must be a number"),
    ],
)
def test_disk_that_would_be_a_guess_is_not_chosen(hints: Raw, why: str) -> None:
    choice = choose(hints, DISKS)
    assert choice.devices == ()
    assert why in choice.problem


def test_path_is_taken_as_it_was_written_and_not_twice() -> None:
    assert choose({"deviceName": "/dev/sda"}, DISKS).devices == ("/dev/sda", SECOND, THIRD)
    assert choose({"devicePath": FIRST}, DISKS).devices == (FIRST, SECOND, THIRD)
    by_id = choose({"devicePath": "/dev/disk/by-id/wwn-0x5000"}, DISKS)
    assert by_id.devices == ("/dev/disk/by-id/wwn-0x5000", SECOND, THIRD)


def test_two_paths_to_one_disk_are_ambiguous() -> None:
    again = {**SSD, "name": "/dev/sdc"}
    assert "2 disks fit" in choose({"serialNumber": "S45PNA0M1"}, [SSD, again]).problem


def test_without_an_inventory_only_a_path_is_taken() -> None:
    for nothing in (None, []):
        assert choose({"deviceName": "/dev/sda"}, nothing).devices == ("/dev/sda",)
        for hints in ({}, {"hctl": "0:0:0:0"}, {"deviceName": "/dev/sda", "hctl": "0:0:0:0"}):
            assert choose(hints, nothing).devices == ()
            assert "no HardwareData" in choose(hints, nothing).problem
        assert choose({"deviceName": "/dev/sda"}, nothing, verified=True).devices == ()
        assert "refused" in choose({"deviceName": "/dev/sda1"}, nothing).problem
    assert choose({"deviceName": "/dev/sda"}, DISKS, verified=True).devices[0] == "/dev/sda"


def test_only_disk_is_the_root_without_hints() -> None:
    assert choose({}, [HDD]).devices == (SECOND,)


@pytest.mark.parametrize("storage", ["sda", {"name": "/dev/sda"}, [None], ["/dev/sda"], [HDD, 1]])
def test_odd_inventory_chooses_nothing(storage: Any) -> None:
    choice = choose({}, storage)
    assert choice.devices == ()
    assert choice.problem


@pytest.mark.parametrize("name", [None, 1, "", "sda", "/dev/sda1", "/dev/" + "x" * 300])
def test_disk_whose_name_the_api_refuses_is_no_root_and_left_out_otherwise(name: Any) -> None:
    odd = {"name": name, "hctl": "9:0:0:0"}
    assert choose({"hctl": "9:0:0:0"}, [HDD, odd]).devices == ()
    choice = choose({"hctl": "1:0:0:0"}, [odd, HDD])
    assert choice.devices == (SECOND,)
    assert choice.left_out[0][0] == 0


def test_more_disks_than_the_api_takes_are_left_out() -> None:
    disks = [{"name": f"/dev/disk/by-path/p{number}", "hctl": f"{number}:0:0:0"} for number in range(300)]
    choice = choose({"hctl": "299:0:0:0"}, disks)
    assert choice.devices[0] == "/dev/disk/by-path/p299"
    assert (len(choice.devices), len(choice.left_out)) == (256, 44)


def test_disk_with_platters_is_rotational_though_only_its_type_says_so() -> None:
    disk = {"name": "/dev/sdx", "type": "HDD"}
    assert choose({"rotational": True}, [SSD, disk]).devices[0] == "/dev/sdx"
    assert choose({"rotational": False}, [NVME, disk]).devices[0] == THIRD


def test_disk_that_stands_there_twice_is_listed_once() -> None:
    assert choose({"hctl": "1:0:0:0"}, [NVME, NVME, HDD]).devices == (SECOND, THIRD)


METADATA = {"name": "n0", "namespace": "metal3", "labels": {"a": "b"}}


def made(address: Any, **more: Any) -> tuple[Raw | None, list[str]]:
    findings = Findings(ObjectPlace("f", 1, "BareMetalHost", "metal3", "n0"))
    bmc = Fields({"address": address, "credentialsName": "n0-bmc", **more}, findings, "spec.bmc")
    return rufio_machine(bmc, METADATA), [f"{each.path}: {each.reason}" for each in findings]


@pytest.mark.parametrize(
    ("address", "host", "port", "provider"),
    [
        ("redfish://192.0.2.7/redfish/v1", "192.0.2.7", 443, "redfish"),
        ("redfish://192.0.2.7:8000", "192.0.2.7", 8000, "redfish"),
        ("redfish+http://bmc.example.org", "bmc.example.org", 80, "redfish"),
        ("redfish-virtualmedia+https://192.0.2.7:444", "192.0.2.7", 444, "redfish"),
        ("redfish-uefihttp://192.0.2.7", "192.0.2.7", 443, "redfish"),
        ("idrac-virtualmedia://192.0.2.7", "192.0.2.7", 443, "redfish"),
        ("ilo5-redfish://[2001:db8::7]:443", "2001:db8::7", 443, "redfish"),
        ("ipmi://192.0.2.7", "192.0.2.7", 623, "ipmitool"),
        ("ipmi://192.0.2.7:6230", "192.0.2.7", 6230, "ipmitool"),
        ("libvirt://192.0.2.7:6231", "192.0.2.7", 6231, "ipmitool"),
        ("192.0.2.7", "192.0.2.7", 623, "ipmitool"),
        ("192.0.2.7:6230", "192.0.2.7", 6230, "ipmitool"),
        ("[2001:db8::7]:6230", "2001:db8::7", 6230, "ipmitool"),
        ("2001:db8::7", "2001:db8::7", 623, "ipmitool"),
    ],
)
def test_controller_is_reached_where_metal3_reaches_it(address: str, host: str, port: int, provider: str) -> None:
    found, said = made(address, disableCertificateVerification=True)
    assert said == []
    assert found is not None
    assert found["metadata"] == METADATA
    connection = found["spec"]["connection"]
    assert (connection["host"], connection["port"], connection["insecureTLS"]) == (host, port, True)
    assert connection["providerOptions"][provider] == {"port": port}
    assert connection["authSecretRef"] == {"name": "n0-bmc", "namespace": "metal3"}


@pytest.mark.parametrize(
    "address",
    ["", "ftp://x", "redfish://", "irmc://192.0.2.7", "redfish://user:pw@192.0.2.7", "redfish://x:99999", "redfish://[x",
     "redfish+ftp://192.0.2.7", "ipmi://a_b"],
)  # fmt: skip
def test_address_that_rufio_cannot_use_makes_no_machine_and_a_finding(address: str) -> None:
    found, said = made(address)
    assert found is None
    assert said
    assert said[0].startswith("spec.bmc.address: ")
    assert "pw" not in said[0]


def test_system_of_a_shared_controller_is_reported() -> None:
    found, said = made("redfish://192.0.2.7/redfish/v1/Systems/1")
    assert found is not None
    assert "systemName" in said[0]


def test_odd_fields_are_reported_and_no_bad_reference_is_written() -> None:
    assert made("ipmi://192.0.2.7", credentialsName="Not A Name")[0] is None
    found, said = made("ipmi://192.0.2.7", credentialsName="", verbose=True)
    assert found is not None
    assert "authSecretRef" not in found["spec"]["connection"]
    assert [each.partition(":")[0] for each in said] == ["spec.bmc.verbose", "spec.bmc.credentialsName"]
