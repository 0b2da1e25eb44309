"""The embedded Kubernetes API, used by real kubectls, the newest and an old one: every verb, with our resources."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.interop.conftest import Kubectl
from tests.waiting import PATIENCE_SECONDS
from tink.api.crds import generate, to_yaml

pytestmark = pytest.mark.long

HARDWARE = """
apiVersion: tinkerbell.org/v1alpha2
kind: Hardware
metadata:
  name: machine-1
  labels: {rack: a}
spec:
  osie: {name: hook}
  storageDevices: [/dev/sda]
  networkInterfaces:
    52:54:00:12:34:56:
      dhcp: {ip: 10.0.0.5, netmask: 255.255.255.0, gateway: 10.0.0.1, hostname: machine-1}
"""
WORKFLOW = """
apiVersion: tinkerbell.org/v1alpha2
kind: Workflow
metadata: {name: install}
spec: {hardwareRef: {name: machine-1}, templateRef: {name: debian}}
"""
WORKFLOWS = "/apis/tinkerbell.org/v1alpha2/namespaces/default/workflows"
EVENT = """
apiVersion: events.k8s.io/v1
kind: Event
metadata: {name: made, namespace: default}
eventTime: "2026-11-23T23:00:00.000000Z"
regarding: {kind: Hardware, name: machine-1, namespace: default}
reportingController: example.org/controller
reportingInstance: host
action: Make
reason: Making
type: Normal
note: made it
"""
OSIE = """
apiVersion: tinkerbell.org/v1alpha2
kind: OSIE
metadata: {name: hook}
spec: {kernelUrl: "http://example.org/vmlinuz", initrdUrl: "http://example.org/initrd"}
"""
TEMPLATE = """
apiVersion: tinkerbell.org/v1alpha2
kind: Template
metadata: {name: debian}
spec:
  actions:
  - {name: stream, image: "image2disk:1"}
  - {name: kexec, image: "kexec:1"}
"""


async def test_crds_from_deploy_are_applied_and_served_at_once(bare: Kubectl) -> None:
    crds = Path(__file__).parents[2] / "deploy" / "crds"
    out = await bare("apply", "-f", str(crds))
    assert out.count("created") == 4
    out = await bare("apply", "-f", str(crds))
    assert out.count("unchanged") == 4
    await bare("wait", "--for=condition=Established", "--timeout=20s", "crd", "--all")
    listed = await bare("api-resources", "--api-group=tinkerbell.org")
    rows = {tuple(line.split()) for line in listed.splitlines()[1:]}
    assert rows == {
        ("hardware", "hw", "tinkerbell.org/v1alpha2", "true", "Hardware"),
        ("osies", "tinkerbell.org/v1alpha2", "true", "OSIE"),
        ("templates", "tpl", "tinkerbell.org/v1alpha2", "true", "Template"),
        ("workflows", "wf", "tinkerbell.org/v1alpha2", "true", "Workflow"),
    }


@pytest.mark.smoke
async def test_apply_of_good_manifests_is_created_then_unchanged_then_configured(kubectl: Kubectl) -> None:
    manifests = "---".join((HARDWARE, OSIE, TEMPLATE, WORKFLOW))
    assert (await kubectl("apply", "-f", "-", stdin=manifests)).count("created") == 4
    assert (await kubectl("apply", "-f", "-", stdin=manifests)).count("unchanged") == 4
    assert "configured" in await kubectl("apply", "-f", "-", stdin=HARDWARE.replace("/dev/sda", "/dev/nvme0n1"))
    out = await kubectl.object("hw", "machine-1")
    assert out["spec"]["storageDevices"] == ["/dev/nvme0n1"]
    assert out["spec"]["networkInterfaces"]["52:54:00:12:34:56"]["dhcp"]["leaseTimeSeconds"] == 86400
    assert out["metadata"]["generation"] == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("10.0.0.5,", "10.0.0.555,"),
            'The Hardware "machine-1" is invalid: spec.networkInterfaces[52:54:00:12:34:56].dhcp.ip: Invalid value: '
            '"10.0.0.555": must be an IPv4 address',
        ),
        (
            ("osie: {name: hook}", "osie: {name: 5}"),
            'spec.osie.name: Invalid value: "integer": spec.osie.name in body must be of type string: "integer"',
        ),
        (("osie: {name: hook}", "osy: {name: hook}"), 'strict decoding error: unknown field "spec.osy"'),
        (("name: machine-1\n", "name: Machine_1\n"), "a lowercase RFC 1123 subdomain must consist of"),
    ],
)
async def test_bad_manifest_gets_the_error_of_kubernetes_and_is_not_stored(
    kubectl: Kubectl, change: tuple[str, str], said: str
) -> None:
    assert change[0] in HARDWARE
    # An old kubectl finds some of it itself, in its own words; without that, it does not ask the server to be strict.
    validate = "true"
    if kubectl.minor < 27 and "unknown field" in said:
        said = 'ValidationError(Hardware.spec): unknown field "osy" in org.tinkerbell.v1alpha2.Hardware.spec'
    elif kubectl.minor < 27:
        validate = "false"
    ran = await kubectl.run("apply", "-f", "-", f"--validate={validate}", stdin=HARDWARE.replace(*change))
    assert ran.code == 1
    assert said in ran.err
    assert "No resources found" in (await kubectl.run("get", "hardware")).err


async def test_missing_and_duplicate_fields_are_all_named_at_once(kubectl: Kubectl) -> None:
    actions = "[{name: a}, {name: a, image: x}]"
    bad = f"apiVersion: tinkerbell.org/v1alpha2\nkind: Template\nmetadata: {{name: t}}\nspec: {{actions: {actions}}}"
    ran = await kubectl.run("create", "-f", "-", "--validate=false", stdin=bad)
    assert "spec.actions[0].image: Required value" in ran.err
    assert 'spec.actions[1]: Duplicate value: {"name":"a"}' in ran.err
    ran = await kubectl.run("create", "-f", "-", stdin=bad.replace(actions, "[]"))
    assert "spec.actions: Invalid value: 0: spec.actions in body should have at least 1 items" in ran.err


@pytest.mark.smoke
async def test_watch_shows_a_status_that_was_written_to_the_subresource(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", stdin=WORKFLOW)
    watch = await kubectl.start("get", "workflow", "install", "-w")
    assert watch.stdout is not None
    try:
        head = (await asyncio.wait_for(watch.stdout.readline(), PATIENCE_SECONDS)).decode().split()
        assert head == ["NAME", "STATE", "ACTION", "HARDWARE", "TEMPLATE", "MESSAGE", "AGE"]
        assert (await asyncio.wait_for(watch.stdout.readline(), PATIENCE_SECONDS)).decode().split()[:8] == [
            *("install", "Pending"),
            "machine-1",
            "debian",
            *("waits", "for", "the", "controller"),
        ]
        await kubectl.set_status(f"{WORKFLOWS}/install", {"state": "Running", "currentAction": "stream"})
        line = (await asyncio.wait_for(watch.stdout.readline(), PATIENCE_SECONDS)).decode().split()
        assert line[:5] == ["install", "Running", "stream", "machine-1", "debian"]
    finally:
        watch.kill()
        await watch.wait()


async def test_status_cannot_be_written_through_the_main_resource_nor_spec_through_status(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", stdin=WORKFLOW)
    both = '{"status": {"state": "Running"}, "spec": {"timeout": 60}}'
    await kubectl("patch", "wf", "install", "--type=merge", "-p", both)
    first = await kubectl.object("wf", "install")
    assert (first["status"]["state"], first["spec"]["timeout"], first["metadata"]["generation"]) == ("Pending", 60, 2)
    changed = json.dumps(first | {"status": {"state": "Running"}, "spec": first["spec"] | {"timeout": 70}})
    await kubectl("replace", "--raw", f"{WORKFLOWS}/install/status", "-f", "-", stdin=changed)
    second = await kubectl.object("wf", "install")
    assert (second["status"], second["spec"]["timeout"]) == ({"state": "Running"}, 60)
    assert second["metadata"]["generation"] == 2


@pytest.mark.since(24)  # --subresource
async def test_status_can_be_patched(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", stdin=WORKFLOW)
    patch = ("patch", "wf", "install", "--subresource=status", "--type=merge", "-p")
    await kubectl(*patch, '{"status": {"state": "Running"}}')
    assert (await kubectl.object("wf", "install", "--subresource=status"))["status"]["state"] == "Running"
    ran = await kubectl.run(*patch, '{"status": {"state": "Dancing"}}')
    assert 'status.state: Unsupported value: "Dancing": supported values: "Pending", "Scheduled"' in ran.err


async def test_get_knows_short_names_categories_labels_and_fields(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", stdin=HARDWARE + "---" + WORKFLOW)
    listed = await kubectl("get", "tinkerbell", "-o", "name")
    assert listed.split() == ["hardware.tinkerbell.org/machine-1", "workflow.tinkerbell.org/install"]
    assert "machine-1" in await kubectl("get", "hw", "-A", "-l", "rack in (a, b),rack!=c")
    assert "No resources" in (await kubectl.run("get", "hw", "-l", "rack=b")).err
    assert "machine-1" in await kubectl("get", "hw", "--field-selector=metadata.name=machine-1")
    assert "field label not supported" in (await kubectl.run("get", "hw", "--field-selector=spec.x=1")).err
    ran = await kubectl.run("get", "hw", "nothere")
    assert ran.err.strip() == 'Error from server (NotFound): hardware.tinkerbell.org "nothere" not found'


async def test_describe_shows_the_object_and_its_events(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", stdin=HARDWARE)
    about = (await kubectl.object("hw", "machine-1"))["metadata"]
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "machine-1.1", "namespace": "default"},
        "involvedObject": {"kind": "Hardware", "name": "machine-1", "namespace": "default", "uid": about["uid"]},
        "reason": "Booted",
        "message": "it is up",
        "type": "Normal",
    }
    await kubectl("create", "-f", "-", stdin=json.dumps(event))
    out = await kubectl("describe", "hw", "machine-1")
    assert "Lease Time Seconds:  86400" in out
    assert "it is up" in out


async def test_event_of_either_name_is_listed_and_described(kubectl: Kubectl) -> None:
    listed = [line.split() for line in (await kubectl("api-resources", "--no-headers", "-o", "wide")).splitlines()]
    assert sum(line[0] == "events" for line in listed) == 2
    await kubectl("apply", "-f", "-", stdin=HARDWARE)
    uid = (await kubectl.object("hw", "machine-1"))["metadata"]["uid"]
    event = EVENT.replace("name: machine-1", f"name: machine-1, uid: {uid}")
    await kubectl("create", "-f", "-", stdin=event)
    assert "Making" in await kubectl("get", "events")
    assert "made it" in await kubectl("get", "events.v1.events.k8s.io", "-o", "wide")
    assert "made it" in await kubectl("describe", "hw", "machine-1")
    assert (await kubectl("diff", "-f", "-", stdin=event)) == ""
    assert "What happened" in await kubectl("explain", "events.note", "--api-version=events.k8s.io/v1")
    await kubectl("delete", "events.events.k8s.io", "made")
    assert "Making" not in await kubectl("get", "events")


@pytest.mark.smoke
async def test_explain_prints_the_descriptions_of_the_models(kubectl: Kubectl) -> None:
    out = await kubectl("explain", "hardware.spec.networkInterfaces.dhcp.leaseTimeSeconds")
    assert "Lease time to serve, in seconds" in out
    out = await kubectl("explain", "workflow.status")
    assert "currentAction\t<string>" in out
    assert "creationTimestamp" in await kubectl("explain", "hw.metadata")


async def test_patches_of_all_kinds(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", stdin=HARDWARE)
    await kubectl("patch", "hw", "machine-1", "--type=merge", "-p", '{"spec": {"osie": null, "kernelParams": ["a"]}}')
    await kubectl(
        "patch", "hw", "machine-1", "--type=json", "-p", '[{"op": "add", "path": "/spec/kernelParams/-", "value": "b"}]'
    )
    spec = (await kubectl.object("hw", "machine-1"))["spec"]
    assert spec["kernelParams"] == ["a", "b"]
    assert "osie" not in spec
    ran = await kubectl.run("patch", "hw", "machine-1", "-p", '{"spec": {}}')
    new, old = "strategic-merge-patch+json is not supported by tinkerbell.org/v1alpha2", "(UnsupportedMediaType)"
    assert new in ran.err or old in ran.err
    ran = await kubectl.run(
        "patch", "hw", "machine-1", "--type=json", "-p", '[{"op": "test", "path": "/spec/x", "value": 1}]'
    )
    assert ran.code == 1


async def test_label_and_annotate(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", stdin=HARDWARE)
    await kubectl("label", "hw", "machine-1", "row=7", "rack-")
    await kubectl("annotate", "hw", "machine-1", "note=here it stands")
    fields = (await kubectl.object("hw", "machine-1"))["metadata"]
    assert fields["labels"] == {"row": "7"}
    assert fields["annotations"]["note"] == "here it stands"
    assert fields["generation"] == 1
    ran = await kubectl.run("label", "hw", "machine-1", "bad=not/allowed")
    assert "a valid label must be an empty string or consist of" in ran.err


async def test_edit_and_replace_refuse_to_overwrite_somebody_elses_change(kubectl: Kubectl) -> None:
    await kubectl("create", "-f", "-", stdin=HARDWARE)
    mine = await kubectl("get", "hw", "machine-1", "-o", "json")
    await kubectl("label", "hw", "machine-1", "by=somebody")
    ran = await kubectl.run("replace", "-f", "-", stdin=mine)
    assert "the object has been modified; please apply your changes to the latest version and try again" in ran.err
    fresh = await kubectl("get", "hw", "machine-1", "-o", "json")
    await kubectl("replace", "-f", "-", stdin=fresh.replace("/dev/sda", "/dev/sdb"))
    assert "/dev/sdb" in await kubectl("get", "hw", "machine-1", "-o", "yaml")
    assert "replaced" in await kubectl("replace", "--force", "-f", "-", stdin=HARDWARE)


@pytest.mark.smoke
async def test_delete_waits_for_the_finalizer(kubectl: Kubectl) -> None:
    await kubectl("create", "-f", "-", stdin=HARDWARE.replace("labels:", "finalizers: [example.org/hold]\n  labels:"))
    deleting = await kubectl.start("delete", "hw", "machine-1", "--timeout=20s")
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while "deletionTimestamp" not in (await kubectl.object("hw", "machine-1"))["metadata"]:
                await asyncio.sleep(0.05)
        assert deleting.returncode is None
        ran = await kubectl.run(
            "patch", "hw", "machine-1", "--type=merge", "-p", '{"metadata": {"finalizers": ["example.org/more"]}}'
        )
        assert "no new finalizers can be added if the object is being deleted" in ran.err
        await kubectl("patch", "hw", "machine-1", "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
        assert await asyncio.wait_for(deleting.wait(), PATIENCE_SECONDS) == 0
    finally:
        if deleting.returncode is None:
            deleting.kill()
    assert "not found" in (await kubectl.run("get", "hw", "machine-1")).err


async def test_wait_for_a_field_and_for_deletion(kubectl: Kubectl) -> None:
    await kubectl("create", "-f", "-", stdin=WORKFLOW)
    if kubectl.minor >= 23:
        waiting = await kubectl.start("wait", "wf/install", "--for=jsonpath={.status.state}=Succeeded", "--timeout=20s")
        await kubectl.set_status(f"{WORKFLOWS}/install", {"state": "Succeeded"})
        assert await asyncio.wait_for(waiting.wait(), PATIENCE_SECONDS) == 0
    waiting = await kubectl.start("wait", "wf/install", "--for=delete", "--timeout=20s")
    await kubectl("delete", "wf", "--all")
    _, err = await asyncio.wait_for(waiting.communicate(), PATIENCE_SECONDS)
    # An old kubectl that comes too late complains that there is nothing to wait for.
    assert waiting.returncode == 0 or (kubectl.minor < 24 and (b"NotFound" in err or b"no matching" in err))


async def test_diff_and_dry_run_show_the_change_and_store_nothing(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", stdin=HARDWARE)
    ran = await kubectl.run("diff", "-f", "-", stdin=HARDWARE.replace("/dev/sda", "/dev/sdb"))
    assert ran.code == 1
    assert "-  - /dev/sda" in ran.out
    assert "+  - /dev/sdb" in ran.out
    await kubectl("create", "--dry-run=server", "-f", "-", stdin=WORKFLOW)
    await kubectl("delete", "--dry-run=server", "hw", "machine-1")
    assert (await kubectl("get", "hw,wf", "-o", "name")).split() == ["hardware.tinkerbell.org/machine-1"]


async def test_server_side_apply_makes_conflicts_known_and_takes_over_only_when_forced(kubectl: Kubectl) -> None:
    apply = ("apply", "--server-side", "-f", "-")
    assert "serverside-applied" in await kubectl(*apply, stdin=HARDWARE)
    await kubectl(*apply, stdin=HARDWARE)
    other = HARDWARE.replace("/dev/sda", "/dev/sdb")
    ran = await kubectl.run(*apply, "--field-manager=other", stdin=other)
    assert ran.code == 1
    assert 'conflict with "kubectl": .spec.storageDevices' in ran.err
    await kubectl(*apply, "--field-manager=other", "--force-conflicts", stdin=other)
    assert (await kubectl.object("hw", "machine-1"))["spec"]["storageDevices"] == ["/dev/sdb"]
    ran = await kubectl.run(*apply, stdin=HARDWARE)
    assert 'conflict with "other"' in ran.err


async def test_server_side_apply_takes_away_what_its_manager_no_longer_names(kubectl: Kubectl) -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: applied}\ndata: {one: '1', two: '2'}"
    await kubectl("apply", "--server-side", "-f", "-", stdin=text)
    await kubectl("patch", "cm", "applied", "-p", '{"data": {"mine": "x"}}')
    await kubectl("apply", "--server-side", "-f", "-", stdin=text.replace(", two: '2'", ""))
    assert (await kubectl.object("cm", "applied"))["data"] == {"one": "1", "mine": "x"}


async def test_core_resources_work_with_strategic_patches(kubectl: Kubectl) -> None:
    await kubectl("create", "configmap", "settings", "--from-literal=a=1")
    await kubectl("patch", "configmap", "settings", "-p", '{"data": {"b": "2"}}')
    assert (await kubectl.object("cm", "settings"))["data"] == {"a": "1", "b": "2"}
    await kubectl("create", "secret", "generic", "key", "--from-literal=password=hunter2")
    secret = await kubectl.object("secret", "key")
    assert (secret["type"], secret["data"]) == ("Opaque", {"password": "aHVudGVyMg=="})
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: applied}\ndata: {one: '1'}"
    await kubectl("apply", "-f", "-", stdin=text)
    assert "configured" in await kubectl("apply", "-f", "-", stdin=text.replace("one:", "uno:"))
    assert (await kubectl.object("cm", "applied"))["data"] == {"uno": "1"}


async def test_namespace_goes_with_everything_in_it(kubectl: Kubectl) -> None:
    await kubectl("create", "namespace", "rack-b")
    await kubectl("-n", "rack-b", "create", "-f", "-", stdin=HARDWARE)
    await kubectl("delete", "namespace", "rack-b", "--timeout=20s")
    assert "No resources found" in (await kubectl.run("get", "hw", "-A")).err
    ran = await kubectl.run("-n", "rack-b", "create", "-f", "-", stdin=HARDWARE)
    assert 'namespaces "rack-b" not found' in ran.err


async def test_crd_goes_with_all_its_objects(kubectl: Kubectl) -> None:
    await kubectl("create", "-f", "-", stdin=OSIE)
    await kubectl("delete", "crd", "osies.tinkerbell.org", "--timeout=20s")
    ran = await kubectl.run("get", "osies.tinkerbell.org")
    assert "the server doesn't have a resource type" in ran.err or "could not find the requested resource" in ran.err
    await kubectl(
        "create", "-f", "-", stdin=to_yaml([crd for crd in generate() if crd["spec"]["names"]["kind"] == "OSIE"])
    )
    assert "No resources found" in (await kubectl.run("get", "osies.tinkerbell.org")).err


async def test_long_lists_come_in_chunks_and_whole(kubectl: Kubectl) -> None:
    many = "---".join(OSIE.replace("name: hook", f"name: osie-{number:02}") for number in range(25))
    await kubectl("create", "-f", "-", stdin=many)
    names = (await kubectl("get", "osies", "--chunk-size=10", "-o", "name")).split()
    assert names == [f"osie.tinkerbell.org/osie-{number:02}" for number in range(25)]
    assert (await kubectl("get", "osies", "--chunk-size=10", "--no-headers")).count("osie-") == 25


async def test_kubectl_with_a_wrong_token_is_told_so(kubectl: Kubectl) -> None:
    ran = await kubectl.run("--token=wrong", "get", "hw")
    assert ran.code == 1
    assert "You must be logged in to the server" in ran.err
