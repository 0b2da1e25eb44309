"""Debian's dockerd and podman for tests. Each has a socket and a root of its own, so that nothing of one on this
machine is touched. Needs root."""

import asyncio
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.waiting import wait_until

CONTAINERD = """
version = 2
root = "{0}/containerd-root"
state = "{0}/containerd-state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = "{0}/containerd.sock"
"""

# The limits that podman sets by itself are more than a machine without CAP_SYS_RESOURCE may have.
PODMAN = """
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
[network]
network_backend = "netavark"
"""


def run(*argv, **more):
    done = subprocess.run([str(item) for item in argv], capture_output=True, text=True, **more)
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout


@dataclass
class Engine:
    """A running engine."""

    name: str
    socket: Path
    processes: list
    restart: object

    async def get(self, path):
        """The engine's answer, past the code under test."""
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(self.socket))) as session,
            session.get(f"http://engine/v1.41/{path}") as response,
        ):
            return await response.json(content_type=None)

    async def containers(self):
        return [found["Id"] for found in await self.get("containers/json?all=1")]

    async def clear(self):
        """Remove what a failed test has left: containers outlive this dockerd."""
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(self.socket))) as session:
            for found in await self.containers():
                async with session.delete(f"http://engine/v1.41/containers/{found}?force=1&v=1"):
                    pass

    async def volumes(self):
        return {found["Name"] for found in (await self.get("volumes"))["Volumes"] or []}

    def end(self):
        """Remove its containers, end its processes, and unmount what they leave."""
        asyncio.run(self.clear())
        for process in self.processes:
            process.terminate()
            process.wait()
        for mount in run("findmnt", "-rno", "TARGET").splitlines():
            if mount.startswith(f"{self.socket.parent}/"):
                subprocess.run(["umount", "-l", mount], check=False)


def start_docker(directory):
    (directory / "containerd.toml").write_text(CONTAINERD.format(directory))
    containerd = start(directory / "containerd.sock", ["containerd", "--config", directory / "containerd.toml"])
    socket = directory / "docker.sock"

    def dockerd():
        return start(
            socket,
            [
                "dockerd", "--data-root", directory / "data", "--exec-root", directory / "exec",
                "--pidfile", directory / "docker.pid", "-H", f"unix://{socket}",
                "--containerd", directory / "containerd.sock", "--bridge=none", "--iptables=false",
                "--ip6tables=false", "--default-ulimit", "nofile=20000:20000", "--live-restore",
                "--exec-opt", "native.cgroupdriver=cgroupfs",
            ],
        )  # fmt: skip

    return Engine("docker", socket, [dockerd(), containerd], dockerd)


def start_podman(directory):
    (directory / "containers.conf").write_text(PODMAN)
    socket = directory / "podman.sock"

    def podman():
        return start(
            socket,
            [
                "podman", "--root", directory / "data", "--runroot", directory / "run",
                "system", "service", "--time=0", f"unix://{socket}",
            ],
            env={**os.environ, "CONTAINERS_CONF": str(directory / "containers.conf")},
        )  # fmt: skip

    return Engine("podman", socket, [podman()], podman)


def start(socket, argv, **more):
    """The process of `argv`, once it listens at `socket`; what it says is in a file beside that."""
    with (socket.parent / "log").open("ab") as log:
        process = subprocess.Popen([str(item) for item in argv], stdout=log, stderr=log, **more)
    wait_until(lambda: socket.is_socket() or process.poll() is not None, f"{argv[0]} does not listen")
    assert process.poll() is None, f"{argv[0]} has ended: {(socket.parent / 'log').read_text()[-2000:]}"
    return process
