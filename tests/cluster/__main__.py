"""The chart on a real Kubernetes, from an empty cluster to a booted machine and helm uninstall: `make test-cluster`.

    python -m tests.cluster [IMAGE]

    build the image, as `make image` does, and a node of real etcd, kube-apiserver, controllers, kubelet, kube-proxy
    each set of values as a dry run; helm install, helm test; a machine boots from pods until its Workflow has succeeded
    upgrade and rollback while 20 Workflows run each: all succeed, no action runs twice
    keys survive an upgrade; the tokens of the release's accounts allow no attack; the controllers power a machine
    by its BMC; a machine without a Hardware is discovered and approved; v1alpha1 is served, survives hostile reviews,
    ends and comes back; a drain leaves a server and a controller; `helm uninstall` leaves only the documented objects

It prints its progress with the time of each step, and exits with 1 at the first failure. It needs root and Debian; the
first run needs Go. The network is a namespace of its own without a route out of it, like that of `tinkedge lab`.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import shutil
import socket
import sys
import tarfile
import tempfile
import time
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from deploy.package.chart import CHART, DEPLOY
from edge.building.builder import Artifacts, Builder, default_cache
from edge.building.shell import CommandError, run
from edge.lab.machine import Firmware, MachineSettings, VirtualMachine
from edge.lab.rack import Rack, RackNetwork, start_depot, start_registry
from tests.cluster.attacks import Thief, attack_conversion
from tests.cluster.machines import Machines, Simulated, listed, machine_with_bmc, power_job, template, v1alpha1_objects
from tests.cluster.node import NEEDED, Node
from tests.cluster.pki import NODE
from tests.programs.build import built, kubernetes_version, version_of
from tests.support.bmc import FakeBmc, serve
from tink.discovery.model import discovered_name

NAMESPACE = "tinkedge"
VIP = "172.31.77.10"
MACHINES = 20
ACTIONS = 3
SECONDS = 4.0
"""Each of the actions, so that Workflows run while pods are replaced."""
MAC = "52:54:00:12:34:56"
BOOT_SECONDS = 600
KEYS = {"agent-token.key", "metadata-token.key", "reports.key", "admin-token"}
SETS = sorted((CHART / "ci").glob("*-values.yaml"))
MACHINES_OF_BMC = "machines.bmc.tinkerbell.org"
RUFIO_LEASE = "e74dec1a.bmc.tinkerbell.org"
DISCOVERY_LEASE = "tinkedge-discovery"
HOLDER = "{.spec.holderIdentity}"
ELSEWHERE = {"Certificate", "PrometheusRule", "ServiceMonitor"}
"""Kinds that other projects define."""


class Story:
    """Prints progress, with the seconds since the beginning."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def log(self, text: str) -> None:
        """Print a line."""
        print(f"{time.monotonic() - self._began:7.1f} s  {text}", flush=True)


class Trial:
    """One run of the whole test."""

    def __init__(self, story: Story, directory: Path, image: Path | None) -> None:
        """`image`: the file that `make image` has built; None: build it now."""
        self._log = story.log
        self._image = image
        self._digest = ""
        self._directory = directory
        self._network = RackNetwork()
        self._programs: dict[str, Path] = {}
        self._values = directory / "values.yaml"

    async def run(self) -> None:
        """Run all steps. Raises CommandError at the first failure."""
        async with AsyncExitStack() as stack:
            await self._build()
            rack = Rack(self._network)
            stack.push_async_callback(rack.down)
            await rack.up()
            address = self._network.address
            # Act as a load balancer: this host has the address, and forwards it to the servers.
            await run(["ip", "address", "add", f"{VIP}/24", "dev", self._network.bridge])
            registry, _ = await asyncio.gather(
                start_registry(stack, address, default_cache() / "registry", self._directory, self._artifacts),
                start_depot(stack, address, self._artifacts),
            )
            await self._push(registry)
            self._node = Node(self._directory / "node", address, self._network.bridge, self._programs, registry)
            self._node.directory.mkdir()
            stack.push_async_callback(self._node.down)
            await self._node.up()
            self._log(f"node ready: Kubernetes {kubernetes_version()}, etcd {version_of('etcd')}, no CNI but ptp")
            await self._namespace()
            await self._check_dry_runs()
            await self._install(registry)
            await self._metrics()
            await self._boot(stack)
            await self._many(stack)
            await self._keys()
            await self._rights()
            await self._bmcs()
            await self._discovery()
            await self._v1alpha1()
            await self._drain()
            await self._beside()
            await self._uninstall()

    # --- preparation --------------------------------------------------------------------------------------------------

    async def _build(self) -> None:
        self._programs = await asyncio.to_thread(built, *NEEDED, "helm")
        self._log("programs are built")
        self._artifacts: Artifacts = await Builder(default_cache(), self._log).build(full=False)
        if self._image is None:
            out = self._directory / "image"
            await run([sys.executable, "-m", "deploy.package", "image", "--out", out], timeout=1800)
            (self._image,) = out.glob("*.oci.tar")
        with tarfile.open(self._image) as archive:
            index = archive.extractfile("index.json")
            self._digest = json.load(index)["manifests"][0]["digest"] if index is not None else ""
        self._log(f"image: {self._digest}")

    async def _push(self, authority: str) -> None:
        source, target = f"oci-archive:{self._image}", f"docker://{authority}/tinkedge:trial"
        copied = [
            "skopeo",
            "copy",
            "--insecure-policy",
            "--preserve-digests",
            "--dest-tls-verify=false",
            source,
            target,
        ]
        await run(copied, timeout=300)

    async def _install(self, authority: str) -> None:
        values = {
            "image": {"repository": f"{authority}/tinkedge", "digest": self._digest},
            "edge": {
                "interfaces": [f"{self._network.bridge}={self._network.address}"],
                "nodeSelector": {"tinkedge": "edge"},
                "settings": {
                    "insecure-registry": [authority],
                    "router-advertisements": True,
                    "allow-upstream": [self._network.address],
                },
            },
            "server": {
                "mode": "service",
                "address": VIP,
                "service": {"type": "ClusterIP", "externalIPs": [VIP]},
            },
        }
        self._values.write_text(yaml.safe_dump(values))
        notes = await self._helm("install", "tinkedge", str(CHART), "--values", str(self._values), "--wait")
        self._log("helm install: " + await self._pods())
        for line in notes.partition("NOTES:")[2].strip().splitlines():
            self._log(f"    {line}")
        await self._helm("test", "tinkedge")
        self._log("helm test: every role says that it is ready")

    async def _namespace(self) -> None:
        labels = {"pod-security.kubernetes.io/enforce": "privileged"}
        names = {"bmcs", "machines", "hosts"}
        for values in SETS:  # a set may restrict a role to namespaces, which must exist
            names.update((yaml.safe_load(values.read_text()).get("scope") or {}).get("namespaces", ()))
        made = [_namespace(NAMESPACE, labels), *(_namespace(name, {}) for name in sorted(names - {NAMESPACE}))]
        await self._node.kubectl("apply", "-f", "-", stdin=listed(made))

    async def _check_dry_runs(self) -> None:
        """Check with a dry run that the API server accepts the chart with each set of values, and the kustomization."""
        dry = ["apply", "--server-side", "--dry-run=server"]
        count = 0
        for values in SETS:
            text = await run([self._programs["helm"], "template", "t", CHART, "-n", NAMESPACE, "--values", values])
            objects = [each for each in yaml.safe_load_all(text) if each and each["kind"] not in ELSEWHERE]
            await self._node.kubectl(*dry, "-f", "-", stdin=listed(objects))
            count += len(objects)
        await self._node.kubectl(*dry, "-k", str(DEPLOY / "kustomize"))
        self._log(f"the API server would take {count} objects of {len(SETS)} sets of values, and deploy/kustomize")

    async def _helm(self, *arguments: str, timeout: float = 420) -> str:
        kubeconfig = ["--kubeconfig", str(self._node.kubeconfig), "--namespace", NAMESPACE]
        home = {
            name: str(self._directory / "helm") for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")
        }
        try:
            return await run([self._programs["helm"], *arguments, *kubeconfig], timeout=timeout, env=home)
        except CommandError as error:
            seen = await self._node.kubectl("get", "pods,events", "-n", NAMESPACE, "-o", "wide")
            raise CommandError(f"{error}\n{seen}\n{await self._last_words()}") from None

    async def _last_words(self) -> str:
        """Return the ends of the pods' logs."""
        lines = []
        for pod in (await self._node.kubectl("get", "pods", "-n", NAMESPACE, "-o", "name")).split():
            try:
                lines.append(f"{pod}:\n{await self._node.kubectl('logs', '-n', NAMESPACE, pod, '--tail=15')}")
            except CommandError as error:
                lines.append(f"{pod}: {error}")
        return "\n".join(lines)

    async def _pods(self) -> str:
        text = await self._node.kubectl("get", "pods", "-n", NAMESPACE, "-o", "json")
        pods = [pod for pod in json.loads(text)["items"] if pod["status"]["phase"] == "Running"]
        return f"{len(pods)} pods run: " + ", ".join(sorted(pod["metadata"]["name"] for pod in pods))

    async def _metrics(self) -> None:
        """Check the metrics that each pod exports to Prometheus."""
        text = await self._node.kubectl("get", "pods", "-n", NAMESPACE, "-o", "json")
        for pod in json.loads(text)["items"]:
            (port,) = [each for each in pod["spec"]["containers"][0]["ports"] if each["name"] == "health"]
            where = f"{pod['metadata']['name']}:{port['containerPort']}"
            output = await self._node.kubectl(
                "get", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/{where}/proxy/metrics"
            )
            if "\ntinkedge_ready 1.0\n" not in output:
                raise CommandError(f"{where}/metrics does not say that it is ready: {output[:1000]}")
        self._log("/metrics of every pod: tinkedge_ready 1")

    # --- one machine --------------------------------------------------------------------------------------------------

    async def _boot(self, stack: AsyncExitStack) -> None:
        """Boot a machine with a blank disk until its Workflow has succeeded."""
        files = ("hardware", "osie", "template", "workflow")
        await self._node.kubectl(
            "apply", *(word for file in files for word in ("-f", str(DEPLOY / "examples" / f"{file}.yaml")))
        )
        settings = MachineSettings(mac=MAC, tap=self._network.tap, firmware=Firmware.BIOS, memory_mib=1024)
        directory = self._directory / "machine"
        directory.mkdir()
        machine = VirtualMachine(settings, directory)
        stack.push_async_callback(machine.power_off)
        began = time.monotonic()
        await machine.power_on()
        try:
            await self._succeeded(["install"], BOOT_SECONDS)
        except CommandError as error:
            raise CommandError(f"{error}\n{chr(10).join(machine.last_lines(20))}\n{await self._last_words()}") from None
        self._log(f"a machine booted from pods: Workflow Succeeded {time.monotonic() - began:.0f} s after power-on")
        await machine.power_off()

    async def _succeeded(self, names: list[str], within: float) -> None:
        """Wait until these Workflows have succeeded. Raises CommandError if one fails or does not end."""
        states: dict[str, str] = {}
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            text = await self._node.kubectl("get", "workflows", "-o", "json")
            workflows = {each["metadata"]["name"]: each for each in json.loads(text)["items"]}
            states = {name: workflows[name].get("status", {}).get("state", "") for name in names}
            wrong = [
                f"{name}: {workflows[name]['status']}"
                for name, state in states.items()
                if state in ("Failed", "Canceled")
            ]
            if wrong:
                raise CommandError("\n".join(wrong))
            if set(states.values()) == {"Succeeded"}:
                return
            await asyncio.sleep(1)
        raise CommandError(f"not ended after {within:.0f} s: {states}")

    # --- many machines, while pods are replaced -----------------------------------------------------------------------

    async def _many(self, stack: AsyncExitStack) -> None:
        ran = self._directory / "ran"
        ran.mkdir()
        machines = Machines(self._directory / "machines", self._network.bridge, f"{VIP}:42113", MACHINES)
        self._machines = machines
        stack.push_async_callback(machines.down)
        objects = [template(ran, ACTIONS, SECONDS), *(machine.hardware() for machine in machines.all)]
        await self._node.kubectl("apply", "-f", "-", stdin=listed(objects))
        await machines.up()
        upgrade = [
            "upgrade",
            "tinkedge",
            str(CHART),
            "--values",
            str(self._values),
            "--set",
            "settings.log-level=debug",
        ]
        await self._during("upgrade", machines, ran, *upgrade, "--wait")
        await self._during("rollback", machines, ran, "rollback", "tinkedge", "--wait")

    async def _during(self, series: str, machines: Machines, ran: Path, *command: str) -> None:
        """Run a Workflow on every machine, and `command` meanwhile."""
        before = await self._pods()
        workflows = [machine.workflow(series) for machine in machines.all]
        await self._node.kubectl("apply", "-f", "-", stdin=listed(workflows))
        began = time.monotonic()
        await self._helm(*command)
        replaced = time.monotonic() - began
        await self._succeeded([each["metadata"]["name"] for each in workflows], 300)
        runs = machines.ran(series, ran)
        expected = [[f"a{number}" for number in range(ACTIONS)]] * len(machines.all)
        if runs != expected:
            raise CommandError(f"helm {series}: not each action once and in order: {runs}")
        if await self._pods() == before:
            raise CommandError(f"helm {series}: no pod was replaced")
        self._log(
            f"helm {series} ({replaced:.0f} s) while {len(runs)} Workflows ran: all Succeeded, "
            f"{sum(map(len, runs))} actions, none twice"
        )

    # --- operations ---------------------------------------------------------------------------------------------------

    async def _keys(self) -> None:
        """Check that the release creates the keys of agents' tokens, and that an upgrade keeps them."""
        upgrade = [
            "upgrade",
            "tinkedge",
            str(CHART),
            "--values",
            str(self._values),
            "--set",
            "settings.agent-auth=token",
        ]
        await self._helm(*upgrade, "--wait")
        first = await self._secret()
        await self._helm(*upgrade, "--set", "server.replicas=3", "--wait")
        if await self._secret() != first or first.keys() != KEYS:
            raise CommandError("the keys did not survive an upgrade")
        await self._helm("upgrade", "tinkedge", str(CHART), "--values", str(self._values), "--wait")
        if await self._secret() != first:
            raise CommandError("the keys did not stay when nothing needed them")
        self._log("keys: made by the first upgrade that needed them, the same after two more")

    async def _secret(self) -> dict[str, str]:
        text = await self._node.kubectl("get", "secret", "-n", NAMESPACE, "tinkedge-keys", "-o", "json")
        data: dict[str, str] = json.loads(text)["data"]
        return data

    async def _rights(self) -> None:
        """Check that each role does its work, and that its token allows nothing else."""
        upgrade = ["upgrade", "tinkedge", str(CHART), "--values", str(self._values)]
        await self._helm(*upgrade, "--set", "edge.peers=true", "--set", "server.agentAttributes=true", "--wait")
        selector = ["-l", "app.kubernetes.io/component=edge", "-o", "jsonpath={.items[0].metadata.name}"]
        pod = await self._node.kubectl("get", "pods", "-n", NAMESPACE, *selector)
        await self._node.until("the Lease of the edge", lambda: self._leases_are({"tinkedge-controller", pod}))
        thief = Thief(self._node, NAMESPACE, pod)
        await thief.works("lab-machine")
        tried = await thief.attack("lab-machine")
        await self._helm(*upgrade, "--wait")
        await self._node.until("the end of the edge's Lease", lambda: self._leases_are({"tinkedge-controller"}))
        self._log(
            f"{tried} attacks with the tokens of controller, server and edge are refused; "
            "the Lease of an edge goes with its pod"
        )

    async def _leases_are(self, names: set[str]) -> bool:
        names_of_leases = await self._node.kubectl("get", "leases", "-n", NAMESPACE, "-o", "name")
        return {each.partition("/")[2] for each in names_of_leases.split()} == names

    async def _bmcs(self) -> None:
        """Power a machine by its BMC with the chart's roles, also after the controller that leads has gone."""
        upgrade = ["upgrade", "tinkedge", str(CHART), "--values", str(self._values)]
        await self._helm(*upgrade, "--set", "bmc.enabled=true", "--wait")
        async with AsyncExitStack() as stack:
            bmc = await stack.enter_async_context(serve(FakeBmc()))
            # Pods reach the address of the node, not its loopback.
            relay = await asyncio.start_server(partial(_relay, bmc.port), self._network.address, 0)
            stack.push_async_callback(relay.wait_closed)
            stack.callback(relay.close)
            port = relay.sockets[0].getsockname()[1]
            objects = machine_with_bmc(self._network.address, port, bmc.certificate.fingerprint)
            await self._node.kubectl("apply", "-f", "-", stdin=listed(objects))
            await self._node.kubectl("wait", "--for=condition=Contactable", "--timeout=60s", f"{MACHINES_OF_BMC}/bmc")
            await self._bmc_job("off", "on")
            leader = await self._node.kubectl("get", "lease", "-n", NAMESPACE, RUFIO_LEASE, "-o", f"jsonpath={HOLDER}")
            pod = leader.removeprefix("tinkedge_").rpartition("_")[0]
            await self._node.kubectl("delete", "pod", "-n", NAMESPACE, pod, "--wait=false")
            await self._bmc_job("on", "off")
            if bmc.bmc.resets != ["On", "ForceOff"] or bmc.bmc.failed_logins:
                raise CommandError(f"the BMC got {bmc.bmc.resets}, and {bmc.bmc.failed_logins} failed logins")
            await self._node.kubectl("delete", "-f", "-", stdin=listed(objects))
        await self._helm(*upgrade, "--wait")
        await self._node.kubectl("delete", "lease", "-n", NAMESPACE, RUFIO_LEASE)
        self._log(f"the controllers powered a machine on and off by its BMC; {pod}, which led, was deleted in between")

    async def _bmc_job(self, before: str, after: str) -> None:
        """Change the power state of the machine by a Job. Raises CommandError."""
        await self._node.until(f"the power state {before}", lambda: self._power_is(before))
        await self._node.kubectl("apply", "-f", "-", stdin=listed([power_job(after)]))
        job = f"jobs.bmc.tinkerbell.org/{after}"
        await self._node.kubectl("wait", "--for=condition=Completed", "--timeout=90s", job, timeout=100)

    async def _power_is(self, state: str) -> bool:
        path = "jsonpath={.status.powerState}"
        return await self._node.kubectl("get", f"{MACHINES_OF_BMC}/bmc", "-o", path) == state

    async def _discovery(self) -> None:
        """Boot a machine that no Hardware describes: it is admitted, approved by a list and runs a Workflow."""
        machine = Simulated(99)
        discovered, hardware = f"hardware/{discovered_name(machine.mac)}", f"hardware/{machine.name}"
        rule = "name=trial,range=172.31.77.230-172.31.77.239/24,osie=default/lab,only=listed"
        values = ["--values", str(self._values), "--set", "discovery.enabled=true"]
        values += ["--set-json", f"discovery.rules={json.dumps([rule])}"]
        await self._helm("upgrade", "tinkedge", str(CHART), *values, "--wait")
        await self._node.kubectl("apply", "-f", "-", stdin=listed([machine.expected()]))
        await self._machines.boot_unknown(machine)
        await self._node.until(f"the approval as {hardware}", partial(self._exists, hardware))
        await self._node.until(f"the end of {discovered}", partial(self._is_absent, discovered))
        await self._node.kubectl("wait", "--for=condition=AsExpected", "--timeout=60s", hardware)
        await self._node.kubectl("apply", "-f", "-", stdin=listed([machine.workflow("discovered")]))
        await self._succeeded([f"discovered-{machine.number}"], 120)
        selector = ["-l", "app.kubernetes.io/component=edge", "-o", "jsonpath={.items[0].metadata.name}"]
        pod = await self._node.kubectl("get", "pods", "-n", NAMESPACE, *selector)
        tried = await Thief(self._node, NAMESPACE, pod).attack_discovery("lab-machine")
        await self._helm("upgrade", "tinkedge", str(CHART), "--values", str(self._values), "--wait")
        await self._node.kubectl("delete", "lease", "-n", NAMESPACE, DISCOVERY_LEASE)
        self._log(
            f"a machine without a Hardware was admitted, approved by a list as {machine.name} and ran a Workflow; "
            f"{tried} attacks with the tokens of controller and edge are refused"
        )

    async def _v1alpha1(self) -> None:
        """Serve the stored objects as v1alpha1, too, attack the conversion, and end and begin it again."""
        upgrade = ["upgrade", "tinkedge", str(CHART), "--values", str(self._values)]
        on, off = [*upgrade, "--set", "v1alpha1.enabled=true", "--wait"], [*upgrade, "--wait"]
        machine, kinds = self._machines.all[0], "hardware,templates,workflows"
        old_kinds = ",".join(f"{kind}.v1alpha1.tinkerbell.org" for kind in kinds.split(","))
        before = await self._specs(kinds)
        await self._helm(*on)
        await self._node.until("v1alpha1", partial(self._has, old_kinds, before))
        manifests = listed(v1alpha1_objects(machine))
        await self._node.kubectl("apply", "-f", "-", stdin=manifests)
        await self._node.kubectl("diff", "-f", "-", stdin=manifests)
        await self._succeeded(["old"], 120)
        state = await self._node.kubectl(
            "get", "workflows.v1alpha1.tinkerbell.org", "old", "-o", "jsonpath={.status.state}"
        )
        if state != "SUCCESS":
            raise CommandError(f"the Workflow of v1alpha1 has the state {state}, not SUCCESS")
        stored, old = await self._specs(kinds), await self._specs(old_kinds)
        if {name: stored[name] for name in before} != before:
            raise CommandError("the upgrade to v1alpha1 has changed objects")
        tried = await Thief(self._node, NAMESPACE, "").attack_v1alpha1()
        reviews = 0
        for address in await self._restarts():
            reviews += await attack_conversion(address, 9443, 3)
        if any((await self._restarts()).values()):
            raise CommandError(f"a controller has restarted: {await self._last_words()}")
        if await self._specs(old_kinds) != old:
            raise CommandError("objects of v1alpha1 are read differently after the attack")
        await self._helm(*off)
        await self._node.until("the end of v1alpha1", partial(self._is_not_served, old_kinds))
        if await self._specs(kinds) != stored:
            raise CommandError("the end of v1alpha1 has changed objects")
        await self._node.kubectl("label", "hardware", "old", "still=writable")
        await self._helm(*on)
        await self._node.until("v1alpha1", partial(self._has, old_kinds, old))
        await self._node.kubectl("diff", "-f", "-", stdin=manifests)
        await self._node.kubectl("delete", "-f", "-", stdin=manifests)
        await self._helm(*off)
        self._log(
            f"v1alpha1: {len(before)} objects are read in it, others are written and run a Workflow; {tried} attacks "
            f"with the token of the controller and {reviews} hostile reviews have no effect; it ends and comes back"
        )

    async def _specs(self, kinds: str) -> dict[str, Any]:
        """Return the specs of all objects of some kinds, by kind and name."""
        found = json.loads(await self._node.kubectl("get", kinds, "-A", "-o", "json"))["items"]
        return {f"{each['kind']} {each['metadata']['name']}": each["spec"] for each in found}

    async def _has(self, kinds: str, wanted: dict[str, Any]) -> bool:
        """Return True if the API serves these kinds with objects of these names."""
        return (await self._specs(kinds)).keys() == wanted.keys()

    async def _is_not_served(self, kinds: str) -> bool:
        try:
            await self._specs(kinds)
        except CommandError:
            return True
        return False

    async def _restarts(self) -> dict[str, int]:
        """Return the number of restarts of each controller by its address."""
        selector = "app.kubernetes.io/component=controller"
        text = await self._node.kubectl("get", "pods", "-n", NAMESPACE, "-l", selector, "-o", "json")
        pods = [each["status"] for each in json.loads(text)["items"] if "deletionTimestamp" not in each["metadata"]]
        return {each["podIP"]: each["containerStatuses"][0]["restartCount"] for each in pods}

    async def _exists(self, name: str) -> bool:
        return bool(await self._node.kubectl("get", name, "-o", "name", "--ignore-not-found"))

    async def _is_absent(self, name: str) -> bool:
        return not await self._exists(name)

    async def _drain(self) -> None:
        """Drain the only node. Evicted pods have no other node, so the last pod of each role must stay."""
        drain = ["drain", NODE, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=20s"]
        try:
            await self._node.kubectl(*drain)
        except CommandError as error:
            if "disruption budget" not in str(error):
                raise
        else:
            raise CommandError("kubectl drain took the last server and controller")
        left = {role: await self._ready(role) for role in ("edge", "server", "controller")}
        if left != {"edge": 1, "server": 1, "controller": 1}:
            raise CommandError(f"kubectl drain left {left}")
        await self._node.kubectl("uncordon", NODE)
        for role in ("server", "controller"):
            rollout = ["rollout", "status", "-n", NAMESPACE, f"deployment/tinkedge-{role}", "--timeout=180s"]
            await self._node.kubectl(*rollout, timeout=200)
        self._log(
            "kubectl drain of the only node: one server, one controller and the edge stay ready; uncordon: all are back"
        )

    async def _ready(self, role: str) -> int:
        selector = f"app.kubernetes.io/component={role}"
        text = await self._node.kubectl("get", "pods", "-n", NAMESPACE, "-l", selector, "-o", "json")
        conditions = [each for pod in json.loads(text)["items"] for each in pod["status"].get("conditions", [])]
        return sum(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    async def _beside(self) -> None:
        """Run servers beside the edges, the default: without a Service and a VIP."""
        upgrade = ["upgrade", "tinkedge", str(CHART), "--values", str(self._values)]
        await self._helm(*upgrade, "--set", "server.mode=edges", "--set", "server.address=", "--wait")
        await self._helm("test", "tinkedge")
        with socket.create_connection((self._network.address, 42113), timeout=5):
            self._log(
                f"helm upgrade to server.mode edges: a server at {self._network.address}:42113, helm test succeeds"
            )

    async def _uninstall(self) -> None:
        kinds = "hardware,osies,templates,workflows"
        before = (await self._node.kubectl("get", kinds, "-o", "name")).split()
        await self._helm("uninstall", "tinkedge", "--wait")
        await self._node.until("the end of all pods", self._no_pods)
        if (await self._node.kubectl("get", kinds, "-o", "name")).split() != before:
            raise CommandError("helm uninstall took objects along")
        kinds = "validatingwebhookconfigurations,validatingadmissionpolicies,validatingadmissionpolicybindings"
        webhooks = await self._node.kubectl("get", kinds, "-o", "name")
        if webhooks:
            raise CommandError(f"helm uninstall left {webhooks}: the API server would go on asking")
        await self._node.kubectl("label", "hardware", "lab-machine", "still=writable")
        left = await self._node.kubectl(
            "get", "secrets,leases,configmaps,services,serviceaccounts", "-n", NAMESPACE, "-o", "name"
        )
        ours = sorted(name for name in left.split() if "tinkedge" in name)
        expected = ["lease.coordination.k8s.io/tinkedge-controller", "secret/tinkedge-keys"]
        if ours != expected:
            raise CommandError(f"helm uninstall left {ours}")
        self._log(
            f"helm uninstall: {len(before)} objects and their definitions stay, and {', '.join(ours)}; "
            "no webhook is asked any more"
        )

    async def _no_pods(self) -> bool:
        return not await self._node.kubectl("get", "pods", "-n", NAMESPACE, "-o", "name")


async def _relay(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass the bytes of a connection to a port of loopback, and back."""
    other_reader, other_writer = await asyncio.open_connection("127.0.0.1", port)

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
        target.close()

    await asyncio.gather(copy(reader, other_writer), copy(other_reader, writer))


def _namespace(name: str, labels: dict[str, str]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def main() -> int:
    """Run the whole trial and return the exit status."""
    parser = argparse.ArgumentParser(
        "python -m tests.cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "image",
        nargs="?",
        type=Path,
        metavar="IMAGE",
        help="a file dist/tinkedge_*.oci.tar; built without one",
    )
    image = parser.parse_args().image
    story = Story()
    default_cache().mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="tinkedge-cluster-"))
    with (default_cache() / "lock").open("w") as lock:
        # The lab uses the same registry and recipes.
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            asyncio.run(Trial(story, directory, image).run())
        except CommandError as error:
            story.log(f"FAILED: {error}")
            print(f"logs: {directory}", file=sys.stderr)
            return 1
    shutil.rmtree(directory)
    story.log("all is as docs/cluster.md says")
    return 0


if __name__ == "__main__":
    sys.exit(main())
