"""A real Kubernetes of one node, in the network namespace of this process: etcd to kube-proxy, containerd and runc.

It writes below one directory only; pods have a network of their own (CNI's ptp). It needs no systemd, and works with
cgroups of both versions.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from deploy.package import oci
from edge.building.shell import CommandError, Daemon, run
from tests.cluster.pki import NODE, Pki

SERVICES: Final = "10.96.0.0/24"
API_SERVICE: Final = "10.96.0.1"
PODS: Final = "10.244.0.0/24"
CNI: Final = Path("/usr/lib/cni")
PAUSE: Final = "localhost/pause:1"
NEEDED: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")


class Node:
    """A Kubernetes node. `up` starts it, `down` removes it."""

    def __init__(self, directory: Path, address: str, interface: str, programs: dict[str, Path], registry: str) -> None:
        """`address` is the node's, on `interface`. `registry` uses plain HTTP."""
        self.directory = directory
        self._interface = interface
        self._address = address
        self._programs = programs
        self._registry = registry
        self._pki = directory / "pki"
        self.kubeconfig = self._pki / "admin.kubeconfig"
        self._socket = directory / "containerd.sock"
        self._stack = AsyncExitStack()
        self._own: dict[str, Daemon] = {}

    async def up(self) -> None:
        """Start all programs and wait until the node is ready for pods. Raises CommandError."""
        Pki(self._pki, self._address, API_SERVICE)
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        # Nodes usually have a default route: packets to a Service need it to reach the rules of kube-proxy.
        await run(["ip", "route", "add", SERVICES, "dev", self._interface])
        await self._start("etcd", *self._etcd())
        await self._start("kube-apiserver", *self._apiserver())
        await self.until("the API server", self._healthy)
        await asyncio.gather(self._controllers(), self._containers())
        await self._start("kubelet", *self._kubelet())
        await self._start("kube-proxy", *self._proxy())
        await self.until("the node", self._node_ready)

    async def down(self) -> None:
        """End all processes, pods first."""
        for name in ("kube-proxy", "kubelet"):
            if name in self._own:
                await self._own.pop(name).stop()
        with contextlib.suppress(CommandError):
            await self._end_containers()
        await self._stack.aclose()
        _unmount(self.directory)
        for group in Path("/sys/fs/cgroup").glob("*/k8s.io"):
            with contextlib.suppress(OSError):  # it has pods of another cluster
                group.rmdir()

    async def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        """Run the real kubectl as the cluster's administrator; return its output. Raises CommandError."""
        command = ["kubectl", "--kubeconfig", str(self.kubeconfig), "--cache-dir", str(self.directory / "kubectl")]
        output = await run([*command, *arguments], stdin=stdin.encode() if stdin is not None else None, timeout=timeout)
        return output.rstrip()

    async def until(self, condition: str, true: Callable[[], object], within: float = 180) -> None:
        """Wait for `true()`, an awaitable. Raises CommandError with the end of each log."""
        last = ""
        for _ in range(int(within * 2)):
            try:
                if await true():  # type: ignore[misc]
                    return
                last = ""
            except CommandError as error:
                last = str(error)
            ended = [name for name, daemon in self._own.items() if daemon.returncode is not None]
            if ended:
                raise CommandError(f"{', '.join(ended)} ended:\n{self._own[ended[0]].log_tail()}")
            await asyncio.sleep(0.5)
        raise CommandError(f"{condition}: not after {within:.0f} s. {last}")

    async def _start(self, name: str, *command: str | Path, env: dict[str, str] | None = None) -> None:
        daemon = await Daemon.start(name, [self._programs.get(name, Path(name)), *command], self._log(name), env=env)
        self._own[name] = daemon
        self._stack.push_async_callback(daemon.stop)

    def _log(self, name: str) -> Path:
        logs = self.directory / "logs"
        logs.mkdir(exist_ok=True)
        return logs / f"{name}.log"

    async def _healthy(self) -> bool:
        return await self.kubectl("get", "--raw", "/readyz", timeout=10) == "ok"

    async def _node_ready(self) -> bool:
        path = '{.status.conditions[?(@.type=="Ready")].status}'
        ready = await self.kubectl("get", "node", NODE, "-o", f"jsonpath={path}", timeout=10) == "True"
        # Pods need their namespace's service account, which a controller creates.
        return ready and bool(await self.kubectl("get", "serviceaccount", "default", "-o", "name", timeout=10))

    # --- programs -----------------------------------------------------------------------------------------------------

    def _etcd(self) -> list[str]:
        client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
        urls = [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
        # The test does not need to survive a power failure.
        return [
            "--name=c",
            f"--data-dir={self.directory}/etcd",
            *urls,
            f"--listen-peer-urls={peer}",
            "--unsafe-no-fsync",
        ]

    def _apiserver(self) -> list[str]:
        pki = self._pki
        return [
            "--etcd-servers=http://127.0.0.1:2379",
            f"--advertise-address={self._address}",
            f"--tls-cert-file={pki}/apiserver.crt",
            f"--tls-private-key-file={pki}/apiserver.key",
            f"--client-ca-file={pki}/ca.crt",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki}/service-accounts.key",
            f"--service-account-signing-key-file={pki}/service-accounts.key",
            f"--service-cluster-ip-range={SERVICES}",
            f"--kubelet-client-certificate={pki}/kubelet-client.crt",
            f"--kubelet-client-key={pki}/kubelet-client.key",
            "--kubelet-preferred-address-types=InternalIP",
        ]

    async def _controllers(self) -> None:
        for name in ("controller-manager", "scheduler"):
            kubeconfig = self._pki / f"{name}.kubeconfig"
            flags = [f"--{use}kubeconfig={kubeconfig}" for use in ("", "authentication-", "authorization-")]
            if name == "controller-manager":
                key = f"--service-account-private-key-file={self._pki}/service-accounts.key"
                flags += [key, f"--root-ca-file={self._pki}/ca.crt", "--use-service-account-credentials=true"]
            await self._start(f"kube-{name}", *flags, "--leader-elect=false")

    async def _containers(self) -> None:
        """Start containerd and import the pause image, which holds a pod's namespaces."""
        directory = self.directory
        config = directory / "containerd.toml"
        hosts = directory / "registries" / self._registry
        hosts.mkdir(parents=True)
        plain = f'[host."http://{self._registry}"]\n  capabilities = ["pull", "resolve"]\n'
        (hosts / "hosts.toml").write_text(plain)
        networks = directory / "cni"
        networks.mkdir()
        address = {
            "type": "host-local",
            "subnet": PODS,
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": f"{networks}/state",
        }
        plugins = [{"type": "ptp", "ipam": address}]
        text = json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": plugins})
        (networks / "10-pods.conflist").write_text(text)
        config.write_text(_CONTAINERD.format(directory=directory, socket=self._socket, pause=PAUSE, cni=CNI))
        await self._start("containerd", "--config", config, env={"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"})
        root = directory / "pause"
        root.mkdir()
        shutil.copy("/bin/busybox", root / "busybox")
        pause_config = oci.Config("amd64", "0:0", ("/busybox", "sleep", "1000000000"), ())
        oci.write(root, pause_config, PAUSE, 0, directory / "pause.tar")
        await self.until("containerd", self._answering)
        await self.ctr("images", "import", str(directory / "pause.tar"))

    async def _answering(self) -> bool:
        return bool(await self.ctr("version"))

    async def ctr(self, *arguments: str) -> str:
        """Run containerd's own client; return its output. Raises CommandError."""
        return await run(["ctr", "--address", self._socket, "--namespace", "k8s.io", *arguments], timeout=60)

    def _kubelet(self) -> list[str]:
        config = self.directory / "kubelet.yaml"
        config.write_text(_KUBELET.format(directory=self.directory, pki=self._pki, socket=self._socket))
        return [
            f"--config={config}",
            f"--kubeconfig={self._pki}/kubelet.kubeconfig",
            f"--root-dir={self.directory}/kubelet",
            f"--cert-dir={self.directory}/kubelet-certificates",
            f"--hostname-override={NODE}",
            f"--node-ip={self._address}",
            "--node-labels=tinkedge=edge",
        ]

    def _proxy(self) -> list[str]:
        timeouts = ("tcp-timeout-established", "tcp-timeout-close-wait", "udp-timeout", "udp-timeout-stream")
        return [
            f"--kubeconfig={self.kubeconfig}",
            "--proxy-mode=iptables",
            f"--hostname-override={NODE}",
            f"--cluster-cidr={PODS}",
            # These settings belong to the whole host.
            "--conntrack-max-per-core=0",
            *(f"--conntrack-{name}=0s" for name in timeouts),
        ]

    # --- stop ---------------------------------------------------------------------------------------------------------

    async def _end_containers(self) -> None:
        spaces = set()
        for container in (await self.ctr("containers", "list", "--quiet")).split():
            spec = json.loads(await self.ctr("containers", "info", container))["Spec"]["linux"]
            spaces |= {Path(each.get("path", "")).name for each in spec["namespaces"] if each["type"] == "network"}
            with contextlib.suppress(CommandError):
                await self.ctr("tasks", "delete", "--force", container)
        # CNI's names of pods' interfaces.
        for space in sorted(each for each in spaces if each.startswith("cni-")):
            with contextlib.suppress(CommandError):
                await run(["ip", "netns", "delete", space])
        for shim in _commands_with(str(self._socket), "containerd-shim"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(shim, signal.SIGKILL)


def _commands_with(argument: str, program: str) -> list[int]:
    """Return the ids of a program's processes with this argument."""
    pids = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit():
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if Path(words[0]).name.startswith(program) and argument in words:
                    pids.append(int(entry.name))
    return pids


def _unmount(directory: Path) -> None:
    """Unmount the leftovers of pods and containers below a directory, the innermost first."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split()[4] for line in lines]
    for point in sorted((each for each in points if each.startswith(f"{directory}/")), reverse=True):
        subprocess.run(["umount", "--lazy", point], check=False)


_CONTAINERD: Final = """\
version = 2
root = "{directory}/containerd/root"
state = "{directory}/containerd/state"
oom_score = 0
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{directory}/registries"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni}"
    conf_dir = "{directory}/cni"
"""
# cgroupsPerQOS and what follows: no systemd, and a root that may not lower its OOM score.
_KUBELET: Final = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {{x509: {{clientCAFile: {pki}/ca.crt}}, webhook: {{enabled: true}}, anonymous: {{enabled: false}}}}
authorization: {{mode: Webhook}}
tlsCertFile: {pki}/kubelet.crt
tlsPrivateKeyFile: {pki}/kubelet.key
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
cgroupsPerQOS: false
enforceNodeAllocatable: []
oomScoreAdj: 0
containerRuntimeEndpoint: unix://{socket}
podLogsDir: {directory}/pods
volumePluginDir: {directory}/volume-plugins
imageGCHighThresholdPercent: 99
imageGCLowThresholdPercent: 98
evictionHard: {{nodefs.available: "1%", imagefs.available: "1%", memory.available: "50Mi"}}
makeIPTablesUtilChains: false
resolvConf: ""
clusterDNS: []
"""
