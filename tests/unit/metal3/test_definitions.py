"""The definitions of metal3.io: current in `deploy/`, and how an API server handles them and hosts."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from edge.commands.crds import crds
from tests.unit.kubeapi.apiserver.conftest import CRDS, Client
from tests.unit.metal3.hosts import V1ALPHA1, V1BETA1, Hosts, Raw, copied, full, hardware, view, with_auto
from tink.api.crds import to_yaml
from tink.api.metal3.crds import generate
from tink.convert.metal3.versions import ConversionSettings, convert_version
from tink.kubeapi import ApiServer
from tink.kubeapi.schema.field_errors import WalkResult
from tink.kubeapi.schema.structural import compile_schema

DEPLOY = Path(__file__).parents[3] / "deploy" / "crds-metal3"


def definition(kind: str) -> Raw:
    return next(crd for crd in generate() if crd["spec"]["names"]["kind"] == kind)


def version(name: str) -> Raw:
    versions: list[Raw] = definition("BareMetalHost")["spec"]["versions"]
    return next(version for version in versions if version["name"] == name)


def properties(version: Raw) -> Raw:
    found: Raw = version["schema"]["openAPIV3Schema"]["properties"]
    return found


def test_deploy_holds_the_definitions_of_the_package() -> None:
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
    """Return the schemas of all fields, by their paths."""
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
    """With any other default, a conversion there and back would change a stored host."""
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
    """Absent times, and lists of volumes: null differs from an empty list there."""
    for name in ("v1alpha1", "v1beta1"):
        parts = properties(version(name))
        raid = parts["spec"]["properties"]["raid"]["properties"]
        assert raid["hardwareRAIDVolumes"]["nullable"] is raid["softwareRAIDVolumes"]["nullable"] is True
        history = parts["status"]["properties"]["operationHistory"]["properties"]
        ends = [operation["properties"][end] for operation in history.values() for end in ("start", "end")]
        assert all(end["nullable"] is True for end in ends)
        assert set(history) == {"register", "inspect", "provision", "deprovision"}


SETTINGS = ConversionSettings()
HOSTS = "/apis/metal3.io/v1alpha1/namespaces/metal3/baremetalhosts"
NEW_HOSTS = "/apis/metal3.io/v1beta1/namespaces/metal3/baremetalhosts"
FOUND = "/apis/metal3.io/v1alpha1/namespaces/metal3/hardwaredata"


@cache
def walk(version: str) -> Any:
    versions = {f"metal3.io/{each['name']}": each for each in generate()[0]["spec"]["versions"]}
    return compile_schema(versions[version]["schema"]["openAPIV3Schema"])


def stored(host: Raw) -> Raw:
    """Return a host as the API would store it: with defaults and without unknown fields. It must be valid."""
    made, found = copied(host), WalkResult()
    metadata = made.pop("metadata")
    walk(host["apiVersion"])({**made, "metadata": {}}, None, found)
    assert [str(error) for error in found.errors] == []
    assert list(found.unknown) == []
    return {**made, "metadata": metadata}


def test_converted_hosts_are_valid_and_nothing_of_them_is_pruned() -> None:
    old, new = Hosts(12, V1ALPHA1, odd=False), Hosts(13, V1BETA1, odd=False)
    for host in (stored(old.host()) for _ in range(400)):
        shown = stored(convert_version(host, V1BETA1, SETTINGS))
        assert stored(convert_version(shown, V1ALPHA1, SETTINGS)) == host
    for host in (stored(new.host()) for _ in range(400)):
        kept = stored(convert_version(host, V1ALPHA1, SETTINGS))
        assert view(stored(convert_version(kept, V1BETA1, SETTINGS))) == view(with_auto(host))


@pytest.fixture
async def bare(tmp_path: Path) -> AsyncIterator[Client]:
    """Return a client of a server without definitions."""
    server = ApiServer(tmp_path / "state", port=0)
    await server.start()
    client = Client(server.kubeconfig)
    assert (await client("POST", "/api/v1/namespaces", {"metadata": {"name": "metal3"}})).status == 201
    yield client
    await client.close()
    await server.stop()


async def install(client: Client, storage: str) -> Client:
    for definition in generate():
        for version in definition["spec"]["versions"]:
            version["storage"] = len(definition["spec"]["versions"]) == 1 or version["name"] == storage
        answer = await client("POST", CRDS, definition)
        assert answer.status == 201, answer.json
        conditions = {item["type"]: item["status"] for item in answer.json["status"]["conditions"]}
        assert conditions == {"NamesAccepted": "True", "Established": "True"}
    return client


@pytest.fixture
async def api(bare: Client) -> Client:
    return await install(bare, "v1alpha1")


@pytest.mark.parametrize(("path", "version"), [(HOSTS, V1ALPHA1), (NEW_HOSTS, V1BETA1)])
async def test_hosts_of_each_version_are_taken_as_they_are(bare: Client, path: str, version: str) -> None:
    api = await install(bare, version.rpartition("/")[2])
    host = full(version)
    answer = await api("POST", path, host, fieldValidation="Strict")
    assert answer.status == 201, answer.json
    assert "status" not in answer.json
    assert answer.json["spec"] == stored(host)["spec"]
    host["metadata"]["resourceVersion"] = answer.json["metadata"]["resourceVersion"]
    answer = await api("PUT", f"{path}/node-1/status", host, fieldValidation="Strict")
    assert answer.status == 200, answer.json
    assert answer.json["status"] == stored(host)["status"]


@pytest.mark.parametrize(
    ("path", "version", "spec", "field"),
    [
        (HOSTS, V1ALPHA1, {}, "spec.online"),
        (NEW_HOSTS, V1BETA1, {}, "spec.poweredOn"),
        (NEW_HOSTS, V1BETA1, {"poweredOn": "yes"}, "spec.poweredOn"),
        (NEW_HOSTS, V1BETA1, {"poweredOn": True, "bootMACAddress": "no"}, "spec.bootMACAddress"),
        (NEW_HOSTS, V1BETA1, {"poweredOn": True, "image": {"url": "u", "checksumType": "crc"}}, "checksumType"),
        (NEW_HOSTS, V1BETA1, {"poweredOn": True, "image": {}}, "spec.image.url"),
        (NEW_HOSTS, V1BETA1, {"poweredOn": True, "rootDeviceHints": {"minSizeGigabytes": -1}}, "minSizeGigabytes"),
    ],
)
async def test_mistakes_are_refused_by_the_name_of_the_field(
    api: Client, path: str, version: str, spec: Raw, field: str
) -> None:
    host = {"apiVersion": version, "kind": "BareMetalHost", "metadata": {"name": "n"}, "spec": spec}
    answer = await api("POST", path, host)
    assert answer.status == 422
    assert field in answer.json["message"]


async def test_inspected_hardware_is_used_unchanged(api: Client) -> None:
    found = {"apiVersion": V1ALPHA1, "kind": "HardwareData", "metadata": {"name": "node-1"}}
    answer = await api("POST", FOUND, {**found, "spec": {"hardware": hardware(9)}}, fieldValidation="Strict")
    assert answer.status == 201, answer.json
    assert answer.json["spec"] == {"hardware": hardware(9)}
    wrong = {"hardware": {"storage": [{"type": "TAPE"}]}}
    answer = await api("POST", FOUND, {**found, "metadata": {"name": "o"}, "spec": wrong})
    assert answer.status == 422


async def test_columns_show_the_state_of_a_host_and_v1alpha1_is_answered_with_a_warning(api: Client) -> None:
    host = full(V1ALPHA1)
    made = await api("POST", HOSTS, host)
    host["metadata"]["resourceVersion"] = made.json["metadata"]["resourceVersion"]
    assert (await api("PUT", f"{HOSTS}/node-1/status", host)).status == 200
    answer = await api("GET", HOSTS, accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    assert any("use metal3.io/v1beta1" in warning for warning in answer.headers["Warning"])
    assert "Warning" not in (await api("GET", NEW_HOSTS)).headers
    names = [column["name"] for column in answer.json["columnDefinitions"]]
    cells = dict(zip(names, answer.json["rows"][0]["cells"], strict=True))
    assert cells.pop("Age")
    state = {"Name": "node-1", "Status": "OK", "State": "provisioned", "Online": "true"}
    assert cells == state | {"Consumer": None, "BMC": "redfish://192.0.2.1/1", "Error": None}
