"""BMC control as an operator uses it: `tinkedge up`, kubectl with manifests like Rufio's, `tinkedge power`.

With the variable RUFIO, a command that runs a real Rufio with the kubeconfig of KUBECONFIG, the test of the Lease uses
that. Without, the test holds the Lease itself.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.rack import IN_EDGE, TINKEDGE, Kubectl, Namespaces, Process
from tests.support.bmc import PASSWORD, USER
from tests.waiting import wait_until

MANIFEST = """
apiVersion: v1
kind: Secret
metadata: {name: node-0-bmc-auth, namespace: default}
type: kubernetes.io/basic-auth
stringData: {username: USER, password: PASSWORD}
---
apiVersion: bmc.tinkerbell.org/v1alpha1
kind: Machine
metadata: {name: node-0, namespace: default}
spec:
  connection:
    host: 127.0.0.1
    insecureTLS: false
    certificateFingerprint: FINGERPRINT
    authSecretRef: {name: node-0-bmc-auth, namespace: default}
    providerOptions: {redfish: {port: PORT}}
"""
JOB = """
apiVersion: bmc.tinkerbell.org/v1alpha1
kind: Job
metadata: {name: node-0-netboot, namespace: default}
spec:
  machineRef: {name: node-0, namespace: default}
  tasks:
    - powerAction: "off"
    - oneTimeBootDeviceAction: {device: [pxe], efiBoot: true}
    - powerAction: "on"
"""
WAIT = "--timeout=120s"


class BmcHost(Namespaces):
    """A host with `tinkedge up`, whose loopback is for BMCs."""

    served: Process
    kubectl: Kubectl

    def build(self) -> None:
        self.network("rack0", {})
        data = self.directory / "data"
        self.served = self.tinkedge(IN_EDGE, "up", "--interface", "rack0", "--data-dir", data)
        self.ready(self.served)
        self.kubectl = Kubectl(self, data / "kubeconfig")

    def command(self, *words: str) -> Process:
        """Run a command of tinkedge as the operator."""
        return self.run(IN_EDGE, *TINKEDGE, *words, "--kubeconfig", self.directory / "data" / "kubeconfig")

    def job(self, name: str, *tasks: dict[str, Any], machine: str = "node-0") -> list[str]:
        """Apply a Job and wait for its end. Return how its Tasks ended, in their order."""
        reference = {"name": machine, "namespace": "default"}
        body = {"apiVersion": "bmc.tinkerbell.org/v1alpha1", "kind": "Job", "metadata": {"name": name}}
        self.kubectl.apply(json.dumps(body | {"spec": {"machineRef": reference, "tasks": tasks}}))

        def ended() -> bool:
            status = json.loads(self.kubectl("get", "jobs.bmc", name, "-o", "json")).get("status", {})
            return any(each["type"] in ("Completed", "Failed") for each in status.get("conditions", []))

        wait_until(ended, lambda: self.served.err, every=0.3)
        found = json.loads(self.kubectl("get", "tasks.bmc", "-l", f"owner-name={name}", "-o", "json"))["items"]
        ends = {each["metadata"]["name"]: each["status"]["conditions"] for each in found}
        return [
            f"{condition['type']}: {condition['message']}"
            for number in range(len(found))
            for condition in ends[f"{name}-task-{number}"]
            if condition["type"] in ("Completed", "Failed")
        ]


class BmcSite(BmcHost):
    """A host with `tinkedge up`, and a fake BMC on its loopback."""

    bmc: Process

    def build(self) -> None:
        super().build()
        self.bmc = self.start(IN_EDGE, sys.executable, "-m", "tests.interop.fake_bmc", "On")
        wait_until(lambda: "\n" in self.bmc.out, lambda: self.bmc.err)
        about = json.loads(self.bmc.out.splitlines()[0])
        words = {"FINGERPRINT": about["fingerprint"], "PORT": str(about["port"]), "USER": USER, "PASSWORD": PASSWORD}
        self.manifest = MANIFEST
        for word, value in words.items():
            self.manifest = self.manifest.replace(word, value)

    def state(self) -> dict[str, Any]:
        """Return the last state that the BMC has printed."""
        found: dict[str, Any] = json.loads(self.bmc.out.rstrip("\n").splitlines()[-1])
        return found


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BmcSite]:
    with BmcSite(tmp_path_factory.mktemp("bmc")) as site:
        yield site


@pytest.mark.smoke
def test_manifests_of_rufio_power_a_machine_and_kubectl_waits_for_the_effect(site: BmcSite) -> None:
    kubectl = site.kubectl
    kubectl.apply(site.manifest)
    kubectl("wait", WAIT, "--for=condition=Contactable", "machine.bmc/node-0")
    assert kubectl("get", "machines.bmc.tinkerbell.org", "--no-headers").split()[:2] == ["node-0", "on"]
    kubectl.apply(JOB)
    kubectl("wait", WAIT, "--for=condition=Completed", "job.bmc/node-0-netboot")
    wait_until(lambda: site.state()["boots"], lambda: site.bmc.out)
    assert site.state()["resets"] == ["ForceOff", "On"]
    assert site.state()["boots"] == ["Pxe"]

    done = site.command("power", "node-0", "off")
    assert done.popen.returncode == 0, done.err
    wait_until(lambda: site.command("power", "node-0", "status").out == "off\n", lambda: site.served.err)
    checked = site.command("bmc", "check", "node-0")
    assert checked.popen.returncode == 0, checked.out + checked.err
    assert "must have the fingerprint" in checked.out
    events = kubectl("get", "events", "-o", "json")
    written = kubectl("get", "machine.bmc,job.bmc,task.bmc", "-o", "json") + events + done.err + checked.out
    assert PASSWORD not in written + site.served.err
    wait_until(lambda: site.state()["open_sessions"] == 0, lambda: site.bmc.out)
    assert site.state()["failed_logins"] == 0


# --- Rufio's samples --------------------------------------------------------------------------------------------------

_IN_RUFIO_SYSTEM = {"name": "sample-machine-auth", "namespace": "rufio-system"}
_BMC = {"host": "127.0.0.1", "authSecretRef": _IN_RUFIO_SYSTEM, "insecureTLS": True}
_HMAC = [{"name": f"secret{number}", "namespace": "default"} for number in (1, 2)]
_RPC = {"rpc": {"consumerURL": "https://example.com/rpc", "hmac": {"secrets": {"sha256": _HMAC, "sha512": _HMAC}}}}


def _sample(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "bmc.tinkerbell.org/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def _secret(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": "Opaque", "data": data}


SAMPLES = {
    "auth-secret.yaml": _secret("sample-machine-auth", username="YWRtaW4=", password="dDBwLVNlY3JldA=="),
    "hmac-secret1.yaml": _secret("secret1", secret="c3VwZXJTZWNyZXQx"),
    "hmac-secret2.yaml": _secret("secret2", secret="c3VwZXJTZWNyZXQy"),
    "machine_v1alpha1.yaml": _sample("Machine", "machine-sample", {"connection": _BMC}),
    "machine_with_opts_v1alpha1.yaml": _sample(
        "Machine",
        "machine-sample-with-opts",
        {"connection": {"host": "127.0.0.1", "insecureTLS": True, "providerOptions": _RPC}},
    ),
    "job_v1alpha1.yaml": _sample(
        "Job",
        "job-sample",
        {
            "machineRef": {"name": "machine-sample", "namespace": "rufio-system"},
            "tasks": [
                {"powerAction": "off"},
                {"oneTimeBootDeviceAction": {"device": ["pxe"], "efiBoot": False}},
                {"powerAction": "on"},
            ],
        },
    ),
    "task_v1alpha1.yaml": _sample("Task", "task-sample", {"connection": _BMC, "task": {"powerAction": "off"}}),
}
"""The objects of all files in config/samples of github.com/tinkerbell/rufio (8a70b84, July 2025), value by value."""


class SampleSite(BmcHost):
    """A host with `tinkedge up`, and a BMC where Rufio's samples have theirs."""

    bmc: Process

    def build(self) -> None:
        super().build()
        state = "On,PORT=443,USER=admin,PASSWORD=t0p-Secret"
        self.bmc = self.start(IN_EDGE, sys.executable, "-m", "tests.interop.fake_bmc", state)
        wait_until(lambda: "\n" in self.bmc.out, lambda: self.bmc.err)


def test_samples_of_rufio_work_unchanged_with_kubectl_wait(tmp_path: Path) -> None:
    with SampleSite(tmp_path) as site:
        kubectl = site.kubectl
        kubectl("create", "namespace", "rufio-system")

        def apply(name: str) -> None:
            path = tmp_path / name
            path.write_text(json.dumps(SAMPLES[name]))
            kubectl("apply", "-n", "rufio-system", "-f", str(path))

        def wait(condition: str, name: str) -> None:
            kubectl("wait", "-n", "rufio-system", WAIT, f"--for=condition={condition}", name)

        for name in ("auth-secret.yaml", "machine_v1alpha1.yaml"):
            apply(name)
        wait("Contactable", "machine.bmc/machine-sample")
        apply("job_v1alpha1.yaml")
        wait("Completed", "job.bmc/job-sample")
        apply("task_v1alpha1.yaml")
        wait("Completed", "task.bmc/task-sample")

        def state() -> dict[str, Any]:
            found: dict[str, Any] = json.loads(site.bmc.out.rstrip("\n").splitlines()[-1])
            return found

        wait_until(lambda: state()["resets"] == ["ForceOff", "On", "ForceOff"], lambda: site.bmc.out)
        assert state()["failed_logins"] == 0
        for name in ("hmac-secret1.yaml", "hmac-secret2.yaml", "machine_with_opts_v1alpha1.yaml"):
            apply(name)
        kubectl(
            *("wait", "-n", "rufio-system", WAIT, "--for=condition=Contactable=False"),
            "machine.bmc/machine-sample-with-opts",
        )
        shown = ("-o", "jsonpath={.status.conditions[0].reason}")
        reason = kubectl("get", "-n", "rufio-system", "machine.bmc/machine-sample-with-opts", *shown)
        assert reason == "NotSupported"


LEASES = ("e74dec1a.bmc.tinkerbell.org", "e74dec1a.tinkerbell.org")
"""The Lease of a Rufio of Tinkerbell, which tinkedge holds, too, and that of a Rufio of its own repository."""
LEASE = """
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: NAME, namespace: default}
spec: {holderIdentity: HOLDER, leaseDurationSeconds: 600}
"""


def held_lease(kubectl: Kubectl) -> tuple[str, str] | None:
    """Return the name and the holder of the first Lease that is held; None if there is none."""
    held = [(name, lease(kubectl, name, "holderIdentity")) for name in LEASES]
    return next((each for each in held if each[1]), None)


def lease(kubectl: Kubectl, name: str, part: str) -> str:
    """Return a field of the spec of a Lease; empty without the Lease."""
    return kubectl.run("get", "lease", name, "--ignore-not-found", "-o", f"jsonpath={{.spec.{part}}}").out


@pytest.mark.parametrize("name", LEASES)
def test_control_waits_while_a_rufio_holds_its_lease_and_continues_after_that(site: BmcSite, name: str) -> None:
    kubectl, data = site.kubectl, site.directory / "data"
    rufio = os.environ.get("RUFIO")
    if rufio:
        process = site.start(IN_EDGE, "sh", "-c", f"exec {rufio}", KUBECONFIG=str(data / "kubeconfig"))
        name, holder = wait_until(lambda: held_lease(kubectl), lambda: process.err, every=0.5)
    else:
        holder = "rufio-7d9f_4f6c"
        kubectl.apply(LEASE.replace("NAME", name).replace("HOLDER", holder))
    kubectl.apply(site.manifest)
    waits = f"BMC control waits: the Rufio {holder if name == LEASES[0] else f'default/{holder}'}"
    wait_until(lambda: f"{waits} works" in site.served.err, lambda: site.served.err)
    assert waits in site.operators(data, "/readyz")
    assert "\ntinkedge_bmc_waits_for_rufio 1.0\n" in site.operators(data, "/metrics")
    assert "tink.bmc.machines: " not in site.served.err

    if rufio:  # it keeps the Lease, which expires
        process.end()
    else:
        kubectl.apply(LEASE.replace("NAME", name).replace("HOLDER", '""'))
    assert site.command("power", "node-0", "off").popen.returncode == 0
    assert lease(kubectl, LEASES[0], "holderIdentity").startswith("tinkedge_")
    assert "waits" not in site.operators(data, "/readyz")
    assert "\ntinkedge_bmc_waits_for_rufio 0.0\n" in site.operators(data, "/metrics")
    assert site.state()["failed_logins"] == 0
    if rufio and name == LEASES[0]:
        another_waits_for_our_lease(site, rufio)


def another_waits_for_our_lease(site: BmcSite, rufio: str) -> None:
    """Start a Rufio, and check that it does nothing while tinkedge renews the Lease."""
    process = site.start(IN_EDGE, "sh", "-c", f"exec {rufio}", KUBECONFIG=str(site.directory / "data" / "kubeconfig"))

    def log() -> str:
        return (process.out + process.err).lower()

    wait_until(lambda: "attempting to acquire leader lease" in log(), log)
    for _ in range(4):  # tinkedge renews it every 5 seconds, and a Rufio tries to acquire it every 2 seconds
        renewed = lease(site.kubectl, LEASES[0], "renewTime")
        wait_until(lambda before=renewed: lease(site.kubectl, LEASES[0], "renewTime") != before, every=0.5)
    assert lease(site.kubectl, LEASES[0], "holderIdentity").startswith("tinkedge_")
    assert not [words for words in ("successfully acquired lease", "starting workers") if words in log()]
    process.end()


EVERY_KIND = """
apiVersion: v1
kind: Namespace
metadata: {name: sample}
---
apiVersion: v1
kind: Secret
metadata: {name: bm-auth, namespace: sample}
type: Opaque
data: {username: USER64, password: PASSWORD64}
---
apiVersion: bmc.tinkerbell.org/v1alpha1
kind: Machine
metadata: {name: machine-sample, namespace: sample}
spec:
  connection:
    host: 127.0.0.1
    port: 623
    authSecretRef: {name: bm-auth, namespace: sample}
    insecureTLS: true
    providerOptions:
      preferredOrder: [gofish, IPMITool]
      redfish: {port: PORT}
---
apiVersion: bmc.tinkerbell.org/v1alpha1
kind: Job
metadata: {name: job-sample, namespace: sample}
spec:
  machineRef: {name: machine-sample, namespace: sample}
  tasks:
    - powerAction: "off"
    - powerAction: status
    - oneTimeBootDeviceAction: {device: [pxe], efiBoot: false}
    - bootDevice: {device: disk, persistent: true, efiBoot: true}
    - virtualMediaAction: {kind: CD, mediaURL: "http://192.0.2.1/a.iso"}
    - bootDevice: {device: cdrom, efiBoot: true}
    - powerAction: "on"
    - powerAction: cycle
    - powerAction: reset
    - powerAction: soft
    - virtualMediaAction: {kind: CD, mediaURL: ""}
"""
"""The fields of the examples in Rufio's documentation, and each kind of task."""


def test_each_kind_of_task_of_rufio_is_completed_with_its_effect(site: BmcSite) -> None:
    words = {"PORT": str(json.loads(site.bmc.out.splitlines()[0])["port"])}
    words |= {
        f"{name}64": base64.b64encode(text.encode()).decode() for name, text in (("USER", USER), ("PASSWORD", PASSWORD))
    }
    manifest = EVERY_KIND
    for word, value in words.items():
        manifest = manifest.replace(word, value)
    site.kubectl.apply(manifest)
    site.kubectl("wait", WAIT, "--for=condition=Completed", "-n", "sample", "job.bmc/job-sample")
    assert (
        len(site.kubectl("get", "tasks.bmc", "-n", "sample", "-l", "owner-name=job-sample", "-o", "name").split()) == 11
    )
    wait_until(lambda: site.state()["image"] is None, lambda: site.bmc.out)
    state = site.state()
    assert [each["BootSourceOverrideTarget"] for each in state["writes"]] == ["Pxe", "Hdd", "Cd"]
    assert [each["BootSourceOverrideEnabled"] for each in state["writes"]] == ["Once", "Continuous", "Once"]
    assert state["boots"][0] == "Cd"
    assert state["resets"] == ["ForceOff", "On", "ForceOff", "On", "ForceRestart", "GracefulShutdown"]
    assert state["power"] == "Off"


POWER_OFF = """
apiVersion: bmc.tinkerbell.org/v1alpha1
kind: Job
metadata:
  name: tm1-poweroff
  namespace: default
  labels: {cluster.x-k8s.io/cluster-name: c1}
  ownerReferences:
    - apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
      kind: TinkerbellMachine
      name: tm1
      uid: 7f3e0f7a-52f0-4a0c-8f0c-0e5b1f7a9c11
      controller: true
spec:
  machineRef: {name: node-0, namespace: default}
  tasks:
    - powerAction: "off"
"""


def test_job_by_which_cluster_api_powers_a_machine_off_is_completed(site: BmcSite) -> None:
    site.kubectl.apply(site.manifest)
    site.kubectl.apply(POWER_OFF)
    site.kubectl("wait", WAIT, "--for=condition=Completed", "job.bmc/tm1-poweroff")
    wait_until(lambda: site.state()["power"] == "Off", lambda: site.bmc.out)
