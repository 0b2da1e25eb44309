"""A rack for tests of the whole edge: `tinkedge` as a process in a network namespace, its machines in others, kubectl.

edge's namespace: a bridge for each network of the edge, with its address --- a card in a machine's namespace
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import IO, Self

from tests.interop.conftest import in_namespace
from tests.interop.loaded import Child, nursery
from tests.waiting import PATIENCE_SECONDS, wait_until

ADDRESS = "172.31.77.1"
"""The edge's address in the first of its networks."""
TINKEDGE = [sys.executable, "-m", "edge.cli"]
IN_EDGE = "edge"

Begin = Callable[[list[str], IO[bytes], IO[bytes], dict[str, str]], "subprocess.Popen[bytes] | Child"]
"""Starts a command with these output files and this environment."""


def _start(command: list[str], out: IO[bytes], err: IO[bytes], env: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env)


class Process:
    """A program in a namespace; its output goes to files."""

    def __init__(self, command: list[str], directory: Path, env: dict[str, str], begin: Begin = _start) -> None:
        name = secrets.token_hex(4)
        self._out, self._err = directory / f"{name}.out", directory / f"{name}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.popen = begin(command, out, err, env)

    @property
    def out(self) -> str:
        return self._out.read_text()

    def out_since(self, position: int) -> bytes:
        """Return the output from the byte `position` on."""
        with self._out.open("rb") as file:
            file.seek(position)
            return file.read()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def status(self, timeout: float = PATIENCE_SECONDS) -> int:
        return self.popen.wait(timeout)

    def terminate(self) -> int:
        self.popen.send_signal(signal.SIGTERM)
        return self.status(60)

    def end(self) -> None:
        if self.popen.poll() is None:
            self.popen.terminate()
            try:
                self.popen.wait(5)
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait()


class Namespaces:
    """The namespaces of the edge and of the machines, with the processes in them."""

    def __init__(self, directory: Path) -> None:
        self._unique = f"{os.getpid()}-{secrets.token_hex(3)}"
        self.directory = directory
        self.namespaces: dict[str, str] = {}
        self._processes: list[Process] = []
        self._cards = 0

    def __enter__(self) -> Self:
        try:
            self.build()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def build(self) -> None:
        """Create the networks and machines that the rack has from the start."""

    def network(self, bridge: str, machines: Mapping[str, str], prefix: int = 24) -> None:
        """Add the edge's bridge for one network, and machines, each with a card of its MAC address there."""
        self.add(IN_EDGE)
        self.bridge(bridge, f"{ADDRESS}/{prefix}")
        for where, mac in machines.items():
            self.add(where)
            self.card(where, "eth0", mac, bridge)

    def add(self, where: str) -> None:
        namespace = self.namespaces[where] = f"{where}-{self._unique}"
        ip("netns", "add", namespace)
        ip("-n", namespace, "link", "set", "lo", "up")

    def bridge(self, name: str, address: str) -> None:
        """Add a network of the edge. `address` is the edge's address there, with its prefix."""
        edge = self.namespaces[IN_EDGE]
        ip("-n", edge, "link", "add", name, "type", "bridge", "forward_delay", "0")
        ip("-n", edge, "address", "add", address, "dev", name)
        ip("-n", edge, "link", "set", name, "up")

    def card(self, where: str, card: str, mac: str, bridge: str) -> None:
        """Add a network card to a machine and connect it to a bridge."""
        self._cards += 1
        edge, machine, port = self.namespaces[IN_EDGE], self.namespaces[where], f"port-{self._cards}"
        ip("-n", machine, "link", "add", card, "address", mac, "type", "veth", "peer", "name", port, "netns", edge)
        ip("-n", edge, "link", "set", port, "master", bridge, "up")
        ip("-n", machine, "link", "set", card, "up")

    def address(self, where: str, *addresses: str, card: str = "eth0") -> None:
        """Give a machine these addresses, with their prefixes, and no others."""
        ip("-4", "-n", self.namespaces[where], "address", "flush", "dev", card)
        for address in addresses:
            ip("-n", self.namespaces[where], "address", "add", address, "dev", card)

    def start(self, where: str, *command: str | Path, **env: str) -> Process:
        prefix = ["ip", "netns", "exec", self.namespaces[where]]
        process = Process([*prefix, *map(str, command)], self.directory, {**clean_environment(), **env})
        self._processes.append(process)
        return process

    def tinkedge(self, where: str, *words: str | Path, **env: str) -> Process:
        """Start `tinkedge WORDS` in a process that has imported all modules (`loaded`)."""
        process = tinkedge(self.directory, *words, namespace=self.namespaces[where], **env)
        self._processes.append(process)
        return process

    def started(self, service: Process) -> Process:
        """Wait until a service has logged its start; it may not be ready yet."""
        wait_until(lambda: re.search(r"(ready|started): ", service.err), lambda: service.err)
        return service

    def udhcpc(self, where: str, *options: str, tries: int = 3, seconds: int = 1) -> dict[str, str]:
        """Request a lease and configure it; return the lease as the variables of udhcpc, empty if there is none."""
        learned, script = self.directory / secrets.token_hex(4), self.directory / "udhcpc"
        take = '[ "$1" != bound ] || ip -4 addr replace "$ip/$mask" dev "$interface"'
        script.write_text(f'#!/bin/sh\nenv > "$LEARNED.$1"\n{take}\n')
        script.chmod(0o755)
        client = ["busybox", "udhcpc", "-i", "eth0", "-f", "-n", "-q", "-t", str(tries), "-T", str(seconds)]
        if self.start(where, *client, "-s", script, *options, LEARNED=str(learned)).status() != 0:
            return {}
        lines = Path(f"{learned}.bound").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("LEARNED="))

    def curl(self, where: str, url: str, *options: str) -> str:
        """Fetch a URL with curl and return the body; empty after 15 seconds without an answer."""
        return self.run(where, "curl", "-sg", "--max-time", "15", *options, url).out

    def run(self, where: str, *command: str | Path, timeout: float = PATIENCE_SECONDS) -> Process:
        """Run a command to its end. If it begins with `TINKEDGE`, its modules are already imported."""
        loaded = list(command[: len(TINKEDGE)]) == TINKEDGE
        process = self.tinkedge(where, *command[len(TINKEDGE) :]) if loaded else self.start(where, *command)
        process.status(timeout)
        return process

    def ready(self, *services: Process, within: float = PATIENCE_SECONDS) -> None:
        """Wait until the edge answers /readyz with success, and each service has logged that it is ready."""

        def is_ready() -> bool:
            for service in services:
                assert service.popen.poll() is None, service.err
            if self._fetch(ADDRESS, 7080, "/readyz") is None:
                return False
            return all(re.search(r"(ready|started): ", service.err) for service in services)

        wait_until(is_ready, lambda: "".join(service.err for service in services), within=within, every=0.15)

    def operators(self, data_dir: Path, path: str) -> str:
        """Fetch a path from the operators' port with the edge's token."""
        token = (data_dir / "admin-token").read_text().strip()
        return self._fetch("127.0.0.1", 7081, path, Authorization=f"Bearer {token}") or ""

    def _fetch(self, address: str, port: int, path: str, **headers: str) -> str | None:
        """Fetch a URL in the edge's namespace; return None if the edge does not answer with success.

        This does not start curl, which would be most of the work of a test that polls.
        """

        def ask() -> str | None:
            connection = HTTPConnection(address, port, timeout=5)
            try:
                connection.request("GET", path, headers=headers)
                answer = connection.getresponse()
                return answer.read().decode() if answer.status < 400 else None
            except (OSError, HTTPException):
                return None
            finally:
                connection.close()

        return in_namespace(self.namespaces[IN_EDGE], ask)

    def listening(self) -> set[str]:
        """Sockets of servers, as `udp:67`."""
        lines = self.run(IN_EDGE, "ss", "-Hlntu").out.splitlines()
        return {f"{line.split()[0]}:{line.split()[4].rpartition(':')[2]}" for line in lines}

    def inside(self, where: str) -> set[int]:
        inode = Path(f"/run/netns/{self.namespaces[where]}").stat().st_ino
        pids = set()
        for entry in Path("/proc").glob("[0-9]*/ns/net"):
            with contextlib.suppress(OSError):
                if entry.stat().st_ino == inode:
                    pids.add(int(entry.parts[2]))
        return pids

    def kill_all(self, where: str) -> None:
        """Kill all processes of a namespace, as a power cut does: none of them sees the end of another one."""
        processes = self.inside(where)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, number)

    def remove(self) -> None:
        for process in reversed(self._processes):
            process.end()
        for namespace in self.namespaces.values():
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)


class Kubectl:
    """kubectl in the edge's namespace, with a cache of its own."""

    def __init__(self, rack: Namespaces, kubeconfig: Path) -> None:
        self._rack = rack
        self._command = ["kubectl", f"--kubeconfig={kubeconfig}", f"--cache-dir={rack.directory / 'kubectl'}"]

    def start(self, *words: str | Path) -> Process:
        return self._rack.start(IN_EDGE, *self._command, *words)

    def run(self, *words: str | Path) -> Process:
        process = self.start(*words)
        process.status()
        return process

    def __call__(self, *words: str | Path) -> str:
        process = self.run(*words)
        assert process.popen.returncode == 0, process.err
        return process.out

    def apply(self, text: str) -> None:
        file = self._rack.directory / f"{secrets.token_hex(4)}.yaml"
        file.write_text(text)
        self("apply", "-f", file)

    def state(self, workflow: str) -> str:
        return self("get", "workflow", workflow, "-o", "jsonpath={.status.state}")


def manifest(kind: str, name: str, spec: Mapping[str, object], **annotations: str) -> str:
    """Return an object of tinkerbell.org as JSON, with annotations of tinkerbell.org."""
    about = {"name": name, "annotations": {f"tinkerbell.org/{key}": value for key, value in annotations.items()}}
    return json.dumps({"apiVersion": "tinkerbell.org/v1alpha2", "kind": kind, "metadata": about, "spec": spec})


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def tinkedge(directory: Path, *words: str | Path, namespace: str = "", **env: str) -> Process:
    """Start `tinkedge WORDS` with all modules imported (`loaded`); its output goes to files in `directory`."""
    begin = partial(nursery().begin, namespace)
    return Process([*map(str, words)], directory, {**clean_environment(), **env}, begin)


def clean_environment() -> dict[str, str]:
    """Return the environment without variables that set options of tinkedge."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("TINKEDGE_", "KUBE"))}
