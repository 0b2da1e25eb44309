"""The definitions of metal3.io: up to date in `deploy/crds-metal3/`, and what hosts need of the API."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from edge.commands.crds import crds
from tests.unit.metal3.hosts import Raw
from tink.api.crds import to_yaml
from tink.api.metal3.crds import generate

DEPLOY = Path(__file__).parents[3] / "deploy" / "crds-metal3"


def definition(kind: str) -> Raw:
    return next(crd for crd in generate() if crd["spec"]["names"]["kind"] == kind)


def version(name: str) -> Raw:
    versions: list[Raw] = definition("BareMetalHost")["spec"]["versions"]
    return next(version for version in versions if version["name"] == name)


def properties(version: Raw) -> Raw:
    found: Raw = version["schema"]["openAPIV3Schema"]["properties"]
    return found


def test_deploy_holds_what_the_package_says() -> None:
    """Out of date? tinkedge crds --metal3 --out deploy/crds-metal3"""
    expected = {f"{crd['spec']['names']['plural']}.yaml": to_yaml([crd]) for crd in generate()}
    assert {path.name: path.read_text() for path in DEPLOY.iterdir()} == expected


def test_definitions_applied_again_after_a_migration_do_not_undo_it() -> None:
    def versions(*words: str) -> dict[str, tuple[bool, bool]]:
        shown = CliRunner().invoke(crds, ["--metal3", *words])
        assert shown.exit_code == 0, shown.output
        hosts = next(yaml.load_all(shown.output, Loader=yaml.CSafeLoader))
        return {each["name"]: (each["served"], each["storage"]) for each in hosts["spec"]["versions"]}

    assert versions() == {"v1alpha1": (True, True), "v1beta1": (True, False)}
    migrated = ("--storage-version", "v1beta1")
    assert versions(*migrated) == {"v1alpha1": (True, False), "v1beta1": (True, True)}
    assert versions(*migrated, "--stop-serving-v1alpha1") == {"v1alpha1": (False, False), "v1beta1": (True, True)}


@pytest.mark.parametrize("words", [("--storage-version", "v1beta1"), ("--metal3", "--stop-serving-v1alpha1")])
def test_options_that_would_do_nothing_or_hide_all_hosts_are_refused(words: tuple[str, ...]) -> None:
    refused = CliRunner().invoke(crds, words)
    assert refused.exit_code == 2
    assert "add --metal3" in refused.output or "--storage-version" in refused.output


def test_command_prints_them(tmp_path: Path) -> None:
    shown = CliRunner().invoke(crds, ["--metal3"])
    assert shown.exit_code == 0
    assert list(yaml.load_all(shown.output, Loader=yaml.CSafeLoader)) == generate()
    assert "metal3.io" not in CliRunner().invoke(crds, []).output
    assert CliRunner().invoke(crds, ["--metal3", "--out", str(tmp_path)]).exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"baremetalhosts.yaml", "hardwaredata.yaml"}


def test_conversion_is_not_turned_off_by_applying_the_file_again() -> None:
    assert "conversion" not in definition("BareMetalHost")["spec"]
    webhook = {"strategy": "Webhook"}
    hosts, found = generate(webhook)
    assert hosts["spec"]["conversion"] == webhook
    assert "conversion" not in found["spec"]


def test_operators_see_the_names_columns_and_warning_of_the_baremetal_operator() -> None:
    short = {crd["metadata"]["name"]: crd["spec"]["names"]["shortNames"] for crd in generate()}
    assert short == {"baremetalhosts.metal3.io": ["bmh", "bmhost"], "hardwaredata.metal3.io": ["hd"]}
    assert {crd["spec"]["scope"] for crd in generate()} == {"Namespaced"}
    old, new = version("v1alpha1"), version("v1beta1")
    assert old["subresources"] == new["subresources"] == {"status": {}}
    assert old["deprecated"] is True
    assert "deprecated" not in new
    assert len(old["deprecationWarning"]) <= 256, "Kubernetes takes no longer one"
    assert old["deprecationWarning"].isprintable()
    columns = old["additionalPrinterColumns"]
    names = [*("Status", "State", "Consumer", "BMC", "Online", "Error", "Age")]
    assert [column["name"] for column in columns] == names
    assert [column["name"] for column in columns if column.get("priority")] == ["Status", "BMC"]
    assert [column["jsonPath"] for column in new["additionalPrinterColumns"]] == [
        *(".status.operationalStatus", ".status.provisioning.state", ".spec.consumerRef.name", ".spec.bmc.address"),
        *(".spec.poweredOn", ".status.errorType", ".metadata.creationTimestamp"),
    ]
    assert re.search(properties(new)["spec"]["properties"]["bootMACAddress"]["pattern"], "00:5C:52:31:3A:9C")


def schema(version: Raw) -> Raw:
    found: Raw = version["schema"]["openAPIV3Schema"]
    return found


def nodes(node: Any, path: str = "") -> Iterator[tuple[str, Raw]]:
    """The schemas of all fields, by their paths."""
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    if "items" in node:
        yield from nodes(node["items"], path)


def test_versions_differ_in_what_the_proposal_changes_and_in_nothing_else() -> None:
    old, new = ({path for path, _ in nodes(schema(version(name)))} for name in ("v1alpha1", "v1beta1"))
    hints = ("rootDeviceHints", "raid.softwareRAIDVolumes.physicalDisks")
    places = [f"{part}.{hint}" for part in (".spec", ".status.provisioning") for hint in hints]
    added = {f"{place}.{name}" for place in places for name in ("devicePath", "modelContains", "vendorContains")}
    assert new - old == {".spec.poweredOn", *added}
    gone = {path for path in old - new if not path.startswith(".status.hardware.")}
    assert {path.rpartition(".")[2] for path in gone} == {
        *("online", "deviceName", "model", "vendor", "hardwareProfile", "hardware")
    }
    assert len(gone) == 1 + 4 * 3 + 3
    images = [properties(version("v1beta1"))["spec"]["properties"]["image"]["properties"]["checksumType"]]
    status = properties(version("v1beta1"))["status"]["properties"]
    images += [status["lastAttemptedImage"]["properties"]["checksumType"]]
    images += [status["provisioning"]["properties"]["image"]["properties"]["checksumType"]]
    assert {image["default"] for image in images} == {"auto"}
    assert "default" not in properties(version("v1alpha1"))["spec"]["properties"]["image"]["properties"]["checksumType"]


def test_hardware_of_a_host_is_that_of_hardware_data() -> None:
    inside = properties(version("v1alpha1"))["status"]["properties"]["hardware"]
    apart = properties(definition("HardwareData")["spec"]["versions"][0])["spec"]["properties"]["hardware"]
    assert apart["properties"] == inside["properties"]


def defaults(version: Raw) -> dict[str, Any]:
    return {path: node["default"] for path, node in nodes(schema(version)) if "default" in node}


def test_api_writes_no_default_but_those_of_the_baremetal_operator() -> None:
    """With any other one, converting a stored host there and back would change it."""
    assert defaults(version("v1alpha1")) == {
        ".spec.automatedCleaningMode": "metadata",
        ".spec.raid.softwareRAIDVolumes.rootVolume": False,
        ".status.provisioning.raid.softwareRAIDVolumes.rootVolume": False,
        ".status.errorCount": 0,
        ".status.provisioningFailCount": 0,
    }
    assert defaults(definition("HardwareData")["spec"]["versions"][0]) == {}


def test_every_field_explains_itself() -> None:
    for each in (version for crd in generate() for version in crd["spec"]["versions"]):
        inside = [node for path, node in nodes(schema(each)) if path.startswith((".spec", ".status"))]
        fields = [field for node in inside for field in node.get("properties", {}).items()]
        assert [name for name, child in fields if not child.get("description", "").endswith(".")] == []


def test_nulls_that_go_writes_are_taken() -> None:
    """Times that are not there, and lists of volumes: null is not the same as an empty list there."""
    for name in ("v1alpha1", "v1beta1"):
        parts = properties(version(name))
        raid = parts["spec"]["properties"]["raid"]["properties"]
        assert raid["hardwareRAIDVolumes"]["nullable"] is raid["softwareRAIDVolumes"]["nullable"] is True
        history = parts["status"]["properties"]["operationHistory"]["properties"]
        ends = [operation["properties"][end] for operation in history.values() for end in ("start", "end")]
        assert all(end["nullable"] is True for end in ends)
        assert set(history) == {"register", "inspect", "provision", "deprovision"}
