"""Machine, Job and Task: their definitions equal Rufio's but for the listed additions, and objects that can't work are
refused with a reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.api import InProcessApi
from tests.unit.api.test_crds import DOC, bounded, fields, nodes
from tink.api import bmc, v1alpha2
from tink.api.crds import generate_bmc, to_yaml
from tink.api.v1alpha2 import Raw
from tink.api.yaml import objects
from tink.kube.client import ApiError
from tink.kube.manifests import load
from tink.kube.resources import JOB, MACHINE, NAMESPACE, TASK, ResourceType
from tink.kubeapi.apiserver.tables import printer_column

DEPLOY = Path(__file__).parents[3] / "deploy" / "crds" / "bmc"
KINDS = {"Machine": MACHINE, "Job": JOB, "Task": TASK}

# --- Rufio's definitions ----------------------------------------------------------------------------------------------

CONNECTION = """
connection                                                          object
connection.host                                                     string   required minLength=1
connection.port                                                     integer  default=623
connection.insecureTLS                                              boolean  required
connection.authSecretRef                                            object   atomic
connection.authSecretRef.name                                       string
connection.authSecretRef.namespace                                  string
connection.providerOptions                                          object
connection.providerOptions.preferredOrder                           array
connection.providerOptions.preferredOrder[]                         string   pattern
connection.providerOptions.redfish                                  object
connection.providerOptions.redfish.port                             integer
connection.providerOptions.redfish.useBasicAuth                     boolean
connection.providerOptions.redfish.systemName                       string
connection.providerOptions.ipmitool                                 object
connection.providerOptions.ipmitool.port                            integer
connection.providerOptions.ipmitool.cipherSuite                     string
connection.providerOptions.intelAMT                                 object
connection.providerOptions.intelAMT.port                            integer
connection.providerOptions.intelAMT.hostScheme                      string   default=http enum=http,https
connection.providerOptions.rpc                                      object
connection.providerOptions.rpc.consumerURL                          string   required
connection.providerOptions.rpc.logNotificationsDisabled             boolean
connection.providerOptions.rpc.request                              object
connection.providerOptions.rpc.request.httpContentType              string
connection.providerOptions.rpc.request.httpMethod                   string
connection.providerOptions.rpc.request.staticHeaders                object
connection.providerOptions.rpc.request.staticHeaders.*              array
connection.providerOptions.rpc.request.staticHeaders.*[]            string
connection.providerOptions.rpc.request.timestampFormat              string
connection.providerOptions.rpc.request.timestampHeader              string
connection.providerOptions.rpc.signature                            object
connection.providerOptions.rpc.signature.appendAlgoToHeaderDisabled boolean
connection.providerOptions.rpc.signature.headerName                 string
connection.providerOptions.rpc.signature.includedPayloadHeaders     array
connection.providerOptions.rpc.signature.includedPayloadHeaders[]   string
connection.providerOptions.rpc.hmac                                 object
connection.providerOptions.rpc.hmac.prefixSigDisabled               boolean
connection.providerOptions.rpc.hmac.secrets                         object
connection.providerOptions.rpc.hmac.secrets.*                       array
connection.providerOptions.rpc.hmac.secrets.*[]                     object   atomic
connection.providerOptions.rpc.hmac.secrets.*[].name                string
connection.providerOptions.rpc.hmac.secrets.*[].namespace           string
connection.providerOptions.rpc.experimental                         object
connection.providerOptions.rpc.experimental.customRequestPayload    string
connection.providerOptions.rpc.experimental.dotPath                 string
connection.providerOptions.homeassistant                            object
connection.providerOptions.homeassistant.switchEntityID             string   required
connection.providerOptions.homeassistant.powerOperationDelaySeconds integer  format=int32
"""
ACTION = """
{0}                                object   maxProperties=1
{0}.powerAction                    string   enum=on,off,soft,status,cycle,reset
{0}.oneTimeBootDeviceAction        object
{0}.oneTimeBootDeviceAction.device array    required
{0}.oneTimeBootDeviceAction.device[] string
{0}.oneTimeBootDeviceAction.efiBoot boolean
{0}.bootDevice                     object
{0}.bootDevice.device              string
{0}.bootDevice.persistent          boolean
{0}.bootDevice.efiBoot             boolean
{0}.virtualMediaAction             object
{0}.virtualMediaAction.kind        string   required
{0}.virtualMediaAction.mediaURL    string
"""
CONDITIONS = """
conditions            array
conditions[]          object
conditions[].type     string   required
conditions[].status   string   required
conditions[].message  string
"""
TIMES = """
startTime      string   format=date-time
completionTime string   format=date-time
"""
RUFIO = {
    ("Machine", "spec"): CONNECTION.replace("object\n", "object required\n", 1),
    ("Machine", "status"): CONDITIONS
    + "conditions[].lastUpdateTime string format=date-time\npowerState string enum=on,off,unknown\n",
    ("Job", "spec"): """
machineRef           object  required
machineRef.name      string  required
machineRef.namespace string  required
tasks                array   required minItems=1
"""
    + ACTION.format("tasks[]"),
    ("Job", "status"): CONDITIONS + TIMES,
    ("Task", "spec"): CONNECTION + ACTION.format("task").replace("object ", "object required ", 1),
    ("Task", "status"): CONDITIONS + TIMES,
}
"""Path, type and the rest of each field of Rufio's (tinkerbell/tinkerbell, crd/bases/v1alpha1, August 2026)."""

CONDITION_ADDED = {"conditions[].reason", "conditions[].lastTransitionTime"}
CONNECTION_ADDED = {
    *("connection.caSecretRef", "connection.caSecretRef.name", "connection.caSecretRef.namespace"),
    "connection.certificateFingerprint",
}
LOGIN_ADDED = {"login", "login.version", "login.redfish", "login.ipmi", "login.retry"}
ADDED = {
    ("Machine", "spec"): CONNECTION_ADDED,
    ("Machine", "status"): CONDITION_ADDED | LOGIN_ADDED,
    ("Job", "spec"): set[str](),
    ("Job", "status"): CONDITION_ADDED,
    ("Task", "spec"): CONNECTION_ADDED,
    ("Task", "status"): {*CONDITION_ADDED, *LOGIN_ADDED, "stage"},
}
"""The fields that Rufio's definitions do not have. All are optional."""
STRICTER = {
    "bootDevice.device": {"enum=pxe,disk,bios,cdrom,safe"},
    "oneTimeBootDeviceAction.device": {"minItems=1"},
    "oneTimeBootDeviceAction.device[]": {"enum=pxe,disk,bios,cdrom,safe"},
}
"""Demands of our definitions beside Rufio's, apart from maxima and CEL rules: objects without them can't work."""
PROVIDERS = "(?i)^(ipmitool|asrockrack|gofish|IntelAMT|dell|supermicro|openbmc)$"


def definition(kind: str) -> Raw:
    return next(each for each in generate_bmc() if each["spec"]["names"]["kind"] == kind)


def schema(kind: str) -> Raw:
    found: Raw = definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def facts(node: Raw, path: str = "", *, required: bool = False) -> Iterator[tuple[str, set[str]]]:
    """Yield each field below a node with its type and the rest, as in the table."""
    if path:
        found = {str(node["type"])} | ({"required"} if required else set())
        found |= {"atomic"} if node.get("x-kubernetes-map-type") == "atomic" else set()
        found |= {"pattern"} if node.get("pattern") == PROVIDERS else set()
        found |= {f"enum={','.join(node['enum'])}"} if "enum" in node else set()
        found |= {f"{key}={node[key]}" for key in ("default", "minLength", "minItems", "minProperties") if key in node}
        if "properties" in node and "maxProperties" in node:  # a maximum of a free map is ours
            found.add(f"maxProperties={node['maxProperties']}")
        if node.get("format", "int64") != "int64":  # the default of an integer
            found.add(f"format={node['format']}")
        yield path, found
    for name, child in node.get("properties", {}).items():
        yield from facts(child, f"{path}.{name}".lstrip("."), required=name in node.get("required", ()))
    for key, mark in (("items", "[]"), ("additionalProperties", ".*")):
        if key in node:
            yield from facts(node[key], path + mark)


@pytest.mark.parametrize(("kind", "part"), RUFIO, ids=lambda each: str(each))
def test_fields_are_rufios_with_the_listed_additions(kind: str, part: str) -> None:
    lines = [line.split() for line in RUFIO[kind, part].splitlines() if line]
    rufio = {path: set(rest) for path, *rest in lines}
    ours = dict(facts(schema(kind)["properties"][part]))
    assert set(ours) - set(rufio) == ADDED[kind, part]
    assert set(rufio) - set(ours) == set()
    for path in ADDED[kind, part]:
        assert "required" not in ours[path], path
    for path, wanted in rufio.items():
        more = next((found for end, found in STRICTER.items() if path.endswith(f".{end}")), set())
        assert ours[path] == wanted | more, path


def test_names_labels_and_subresources_are_rufios() -> None:
    found = {}
    for each in generate_bmc():
        names, (version,) = each["spec"]["names"], each["spec"]["versions"]
        assert (each["spec"]["group"], version["name"]) == ("bmc.tinkerbell.org", "v1alpha1")
        assert (names["categories"], each["spec"]["scope"]) == (["tinkerbell"], "Namespaced")
        assert version["subresources"] == {"status": {}}
        assert version["schema"]["openAPIV3Schema"]["required"] == ["spec"]
        found[names["kind"], each["metadata"]["name"]] = names.get("shortNames")
    assert found == {
        ("Machine", "machines.bmc.tinkerbell.org"): None,
        ("Job", "jobs.bmc.tinkerbell.org"): ["j"],
        ("Task", "tasks.bmc.tinkerbell.org"): ["t"],
    }
    moved = {"clusterctl.cluster.x-k8s.io": "", "clusterctl.cluster.x-k8s.io/move": ""}
    assert [each["metadata"].get("labels") for each in generate_bmc()] == [moved, None, None]
    assert {each["metadata"]["name"].partition(".")[0] for each in generate_bmc()} == {r.plural for r in KINDS.values()}


def test_deploy_holds_the_definitions() -> None:
    """Out of date? tinkedge crds --bmc --out deploy/crds/bmc"""
    expected = {f"{each['spec']['names']['plural']}.yaml": to_yaml([each]) for each in generate_bmc()}
    assert {path.name: path.read_text() for path in DEPLOY.iterdir()} == expected
    assert list(yaml.safe_load_all(to_yaml(generate_bmc()))) == generate_bmc()


@pytest.mark.parametrize("kind", KINDS)
def test_spec_is_bounded_and_every_rule_has_its_message(kind: str) -> None:
    assert [
        path for path in bounded(schema(kind)["properties"]["spec"], kind, []) if "connection.port" not in path
    ] == []
    for node in nodes(schema(kind)):
        assert node.get("type") != "array" or node["x-kubernetes-list-type"] == "atomic"
        assert not ("pattern" in node and "x-kubernetes-validations" in node)
        for rule in node.get("x-kubernetes-validations", ()):
            assert rule["message"]


# --- the documentation ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_operator_finds_every_field_with_its_description_and_bounds(kind: str) -> None:
    section = DOC[DOC.index(f"\n## {kind}\n") :].partition("\n## ")[2]
    lines = section.partition("\n## ")[0].splitlines()
    for part in ("spec", "status"):
        for path, field in fields(schema(kind)["properties"][part], ""):
            if kind == "Task" and path.startswith(("task.", "connection.")):
                continue  # as spec.tasks of Job, and as spec.connection of Machine
            assert field.get("description", "").endswith(".") or path.endswith("]"), path
            rows = [line for line in lines if line.startswith(f"| `{path}` |")]
            assert any(field.get("description", "") in row for row in rows) or path.endswith("]"), f"{part}.{path}"
            for bound in ("maxLength", "maxItems", "maximum", "default"):
                if bound in field:
                    assert any(str(field[bound]) in row for row in rows), f"{part}.{path}: {bound}"


def test_operator_finds_every_message() -> None:
    for node in (node for kind in KINDS for node in nodes(schema(kind))):
        for rule in node.get("x-kubernetes-validations", ()):
            assert rule["message"] in DOC


async def test_examples_of_the_documentation_are_accepted() -> None:
    api, kinds = InProcessApi(), []
    for block in re.findall(r"```yaml\n(.*?)```", DOC, re.DOTALL):
        (found,) = objects(block)
        if found["kind"] in KINDS:
            kinds.append(found["kind"])
            await api.create(KINDS[found["kind"]], found, "default")
    assert kinds == [*KINDS]


# --- what kubectl shows -----------------------------------------------------------------------------------------------


def cells(kind: str, obj: Raw) -> dict[str, Any]:
    columns = definition(kind)["spec"]["versions"][0]["additionalPrinterColumns"]
    obj = {"metadata": {"creationTimestamp": None}} | obj
    return {each["name"]: printer_column(each).cell(obj, datetime.now(UTC)) for each in columns}


def test_machine_shows_power_and_whether_its_bmc_is_contactable() -> None:
    columns = definition("Machine")["spec"]["versions"][0]["additionalPrinterColumns"]
    assert [each["name"] for each in columns if not each.get("priority")] == ["Power", "Contactable", "Age"]
    lost = {"type": "Contactable", "status": "False", "message": "no answer"}
    found = cells("Machine", {"status": {"powerState": "unknown", "conditions": [lost]}})
    assert (found["Power"], found["Contactable"], found["Message"]) == ("unknown", "False", "no answer")
    assert cells("Machine", {})["Contactable"] is None


@pytest.mark.parametrize("kind", ["Job", "Task"])
def test_job_and_task_show_their_last_condition_as_state(kind: str) -> None:
    assert cells(kind, {})["State"] is None
    running, failed = {"type": "Running", "status": "True"}, {"type": "Failed", "status": "True", "message": "refused"}
    assert cells(kind, {"status": {"conditions": [running]}})["State"] == "Running"
    found = cells(kind, {"status": {"conditions": [running, failed]}})
    assert (found["State"], found["Message"]) == ("Failed", "refused")


def test_task_shows_its_action() -> None:
    found = cells("Task", {"spec": {"task": {"powerAction": "off"}}, "status": {"stage": "off"}})
    assert (found["Action"], found["Stage"]) == ('{"powerAction":"off"}', "off")


# --- objects ----------------------------------------------------------------------------------------------------------

MANIFESTS = """
apiVersion: bmc.tinkerbell.org/v1alpha1
kind: Machine
metadata: {name: rack1-u07, namespace: tink-system}
spec:
  connection:
    host: 192.168.2.50
    port: 623
    authSecretRef: {name: rack1-u07-auth, namespace: tink-system}
    insecureTLS: true
    providerOptions:
      preferredOrder: [gofish, IPMITOOL]
      redfish: {port: 443, useBasicAuth: true, systemName: System.Embedded.1}
      ipmitool: {port: 623, cipherSuite: "3"}
---
apiVersion: bmc.tinkerbell.org/v1alpha1
kind: Machine
metadata: {name: by-rpc, namespace: tink-system}
spec:
  connection:
    host: 192.168.2.51
    insecureTLS: true
    providerOptions:
      rpc:
        consumerURL: https://rpc.example.org/bmc
        request: {httpMethod: POST, staticHeaders: {X-Rack: ["1", "2"]}}
        hmac: {secrets: {sha256: [{name: rpc, namespace: tink-system}]}}
---
apiVersion: bmc.tinkerbell.org/v1alpha1
kind: Job
metadata: {name: netboot, namespace: tink-system}
spec:
  machineRef: {name: rack1-u07, namespace: tink-system}
  tasks:
  - powerAction: "off"
  - oneTimeBootDeviceAction: {device: [pxe], efiBoot: true}
  - bootDevice: {device: disk, persistent: true, efiBoot: true}
  - virtualMediaAction: {kind: CD, mediaURL: ""}
  - virtualMediaAction: {kind: CD, mediaURL: "http://192.168.2.1:7080/iso/52-54-00-00-00-01/boot.iso"}
  - powerAction: "on"
---
apiVersion: bmc.tinkerbell.org/v1alpha1
kind: Task
metadata: {name: netboot-task-0, namespace: tink-system, labels: {owner-name: netboot}}
spec:
  task: {powerAction: "off"}
  connection:
    host: 192.168.2.50
    insecureTLS: true
    caSecretRef: {name: rack1-ca, namespace: tink-system}
    certificateFingerprint: "{FINGERPRINT}"
"""
MANIFESTS = MANIFESTS.replace("{FINGERPRINT}", ":".join(["AB"] * 32))
"""Manifests like those of Rufio's documentation."""


async def test_documented_manifests_are_accepted_complete_and_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "bmc.yaml").write_text(MANIFESTS)
    api, models = InProcessApi(), {"Machine": bmc.Machine, "Job": bmc.Job, "Task": bmc.Task}
    found = [obj for _, obj in load(tmp_path)]
    assert len(found) == 4
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tink-system"}}
    await api.create(NAMESPACE, namespace)
    for obj in found:
        stored = await api.create(KINDS[obj["kind"]], obj)
        connection = obj["spec"].get("connection")
        if connection is not None:
            connection.setdefault("port", 623)
        assert stored["spec"] == obj["spec"]
        models[obj["kind"]].model_validate(stored)
    machine = bmc.Machine.model_validate(found[0]).spec.connection
    assert machine.provider_options is not None
    assert machine.provider_options.redfish is not None
    assert (machine.insecure_tls, machine.provider_options.redfish.use_basic_auth) == (True, True)
    actions = bmc.Job.model_validate(found[2]).spec.tasks
    assert [each.power_action for each in actions] == ["off", None, None, None, None, "on"]
    assert actions[3].virtual_media_action == v1alpha2.VirtualMediaAction(kind="CD", media_url="")


async def test_status_as_a_controller_writes_it_is_stored() -> None:
    api, now = InProcessApi(), "2026-11-30T18:00:00Z"
    written = {
        "Machine": {
            "powerState": "on",
            "conditions": [{"type": "Contactable", "status": "True", "lastUpdateTime": now, "reason": "Answers"}],
        },
        "Job": {"conditions": [{"type": "Running", "status": "True"}], "startTime": now},
        "Task": {
            "stage": "off",
            "startTime": now,
            "completionTime": now,
            "conditions": [{"type": "Failed", "status": "True", "reason": "BmcBusy", "lastTransitionTime": now}],
        },
    }
    for obj in objects(MANIFESTS):
        api.put(obj)
        name, namespace = obj["metadata"]["name"], obj["metadata"]["namespace"]
        resource, status = KINDS[obj["kind"]], written[obj["kind"]]
        stored = await api.patch(resource, name, namespace, {"status": status}, subresource="status")
        assert stored["status"] == status


def obj(resource: ResourceType, spec: Raw) -> Raw:
    metadata = {"name": "x", "namespace": "default"}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec}


def job(*tasks: Any) -> Raw:
    return obj(JOB, {"machineRef": {"name": "m", "namespace": "default"}, "tasks": list(tasks)})


def machine(**connection: Any) -> Raw:
    return obj(MACHINE, {"connection": {"host": "192.168.2.50", "insecureTLS": True} | connection})


NAME_ACTION = "name one action: powerAction, bootDevice, virtualMediaAction or oneTimeBootDeviceAction"
NAME_DEVICE = "name a boot device: pxe, disk, bios, cdrom or safe"
DEVICES = 'supported values: "pxe", "disk", "bios", "cdrom", "safe"'
URL = "must be an http:// or https:// URL without spaces, such as http://192.168.1.1/boot.iso, or empty to eject"
FINGERPRINT = "must be the SHA-256 of a certificate: 64 hex digits, with or without colons"


@pytest.mark.parametrize(
    ("wrong", "field", "words"),
    [
        (job({}), "spec.tasks[0]", NAME_ACTION),
        (job({"secureBoot": {"enable": True}}), "spec.tasks[0]", NAME_ACTION),
        (job({"powerAction": "on", "bootDevice": {"device": "pxe"}}), "spec.tasks[0]", "must have at most 1 item"),
        (job(), "spec.tasks", "at least 1 items"),
        (job({"powerAction": "hard"}), "spec.tasks[0].powerAction", 'supported values: "on", "off", "soft"'),
        (job({"bootDevice": {}}), "spec.tasks[0].bootDevice.device", NAME_DEVICE),
        (job({"bootDevice": {"device": "floppy"}}), "spec.tasks[0].bootDevice.device", DEVICES),
        (job({"oneTimeBootDeviceAction": {}}), "spec.tasks[0].oneTimeBootDeviceAction.device", "Required value"),
        (
            job({"oneTimeBootDeviceAction": {"device": []}}),
            "spec.tasks[0].oneTimeBootDeviceAction.device",
            "at least 1 items",
        ),
        (
            job({"oneTimeBootDeviceAction": {"device": ["pxe", "usb"]}}),
            "spec.tasks[0].oneTimeBootDeviceAction.device[1]",
            DEVICES,
        ),
        *(
            (job({"virtualMediaAction": {"kind": "CD", "mediaURL": url}}), "virtualMediaAction.mediaURL", URL)
            for url in ("nfs://192.168.2.1/x.iso", "http://", "/x.iso", "http://h/a b")
        ),
        (job(*[{"powerAction": "on"}] * 65), "spec.tasks", "must have at most 64 items"),
        (obj(TASK, {"task": {}}), "spec.task", NAME_ACTION),
        (obj(JOB, {"machineRef": {"name": "m"}, "tasks": [{"powerAction": "on"}]}), "machineRef.namespace", "Required"),
        (machine(host=""), "spec.connection.host", "at least 1 chars long"),
        (obj(MACHINE, {"connection": {"host": "h"}}), "spec.connection.insecureTLS", "Required value"),
        (obj(MACHINE, {}), "spec.connection", "Required value"),
        (machine(providerOptions={"preferredOrder": ["redfish"]}), "preferredOrder[0]", "should match"),
        (machine(providerOptions={"redfish": {"port": 70000}}), "redfish.port", "less than or equal to 65535"),
        (machine(certificateFingerprint="ab:cd"), "spec.connection.certificateFingerprint", FINGERPRINT),
        (machine(certificateFingerprint=""), "spec.connection.certificateFingerprint", FINGERPRINT),
    ],
)  # fmt: skip
async def test_object_that_can_not_work_is_refused_by_its_field(wrong: Raw, field: str, words: str) -> None:
    with pytest.raises(ApiError) as refused:
        await InProcessApi().create(KINDS[wrong["kind"]], wrong)
    assert refused.value.status == 422
    assert f"{field}: " in str(refused.value)
    assert words in str(refused.value)


async def test_on_without_quotes_is_refused_with_the_words_that_are_meant() -> None:
    """YAML 1.1, which kubectl reads, has `on` and `off` for true and false."""
    (found,) = objects(
        "apiVersion: bmc.tinkerbell.org/v1alpha1\nkind: Job\nmetadata: {name: x}\nspec: {tasks: [{powerAction: on}]}"
    )
    assert found["spec"]["tasks"] == [{"powerAction": True}]
    with pytest.raises(ApiError) as refused:
        await InProcessApi().create(JOB, job(*found["spec"]["tasks"]))
    assert 'spec.tasks[0].powerAction in body must be of type string: "boolean"' in str(refused.value)
    assert 'Unsupported value: true: supported values: "on", "off"' in str(refused.value)
    described = schema("Job")["properties"]["spec"]["properties"]["tasks"]["items"]["properties"]["powerAction"]
    assert 'Write "on" and "off" in quotes' in described["description"]


def test_models_read_what_rufios_definitions_let_in() -> None:
    odd: list[Raw] = [
        {},
        {"bootDevice": {}},
        {"bootDevice": {"device": "floppy"}},
        {"oneTimeBootDeviceAction": {"device": []}},
    ]
    odd += [{"virtualMediaAction": {"kind": "", "mediaURL": "nfs://x"}}, {"secureBoot": {"enable": True}}]
    tasks = bmc.Job.model_validate(job(*odd)).spec.tasks
    assert tasks[2].boot_device == v1alpha2.BootDeviceAction(device="floppy")
    assert tasks[5] == v1alpha2.BmcAction()
    connection = {
        "host": "h" * 300,
        "insecureTLS": False,
        "certificateFingerprint": "x",
        "providerOptions": {"redfish": {"port": -1}},
    }
    assert bmc.Machine.model_validate(obj(MACHINE, {"connection": connection})).spec.connection.port == 623


@pytest.mark.parametrize(
    ("conditions", "ended"),
    [
        ([], False),
        ([{"type": "Running", "status": "True"}], False),
        ([{"type": "Running", "status": "True"}, {"type": "Completed", "status": "True"}], True),
        ([{"type": "Failed", "status": "True"}], True),
        ([{"type": "Failed", "status": "False"}], False),
        ("strange", False),
        (["strange"], False),
    ],
)
def test_job_has_ended_when_it_is_completed_or_failed(conditions: Any, ended: bool) -> None:
    assert bmc.is_ended({"status": {"conditions": conditions}}) is ended
    assert not bmc.is_ended({})
