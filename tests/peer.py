"""A real kube-apiserver of one's own, to ask what is right; and requests to it.

It is the peer of the benchmarks (tests/bench/kubernetes.py), here on loopback, empty, and gone afterwards.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from tests.bench.bed import BenchError
from tests.bench.kubernetes import VERSION, Ports, build, etcd_command, kubeconfig, server_command, write_keys
from tests.ports import free_ports
from tests.waiting import wait_until

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@contextlib.contextmanager
def running(authorization: str = "AlwaysAllow") -> Iterator[Path]:
    """A fresh etcd and a kube-apiserver that is ready: the administrator's kubeconfig. Raises BenchError."""
    build()
    with contextlib.ExitStack() as exits:
        directory = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="peer-")))
        write_keys(directory)
        log = exits.enter_context((directory / "log").open("wb"))
        ports = Ports(*free_ports(3))
        for command in (etcd_command(directory, ports), server_command(directory, authorization, ports)):
            process = exits.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
            exits.callback(process.terminate)
        wait_until((directory / "apiserver.crt").exists, (directory / "log").read_text, within=60)
        file = directory / "kubeconfig"
        file.write_text(kubeconfig(directory, ports))
        wait_until(lambda: _ready(file), (directory / "log").read_text, within=60)
        version = Peer(file).ask("GET", "/version").must()["gitVersion"]
        if version != f"v{VERSION}":
            raise BenchError(f"the peer says that it is Kubernetes {version}, not v{VERSION}")
        yield file


def _ready(file: Path) -> bool:
    try:
        # A server that is about to start may take a connection and never answer.
        return Peer(file, patience=2).ask("GET", "/readyz").code == 200
    except OSError:
        return False


async def settle(moments: int = 1) -> None:
    """Wait until the server has taken note of what was written; nothing shows when."""
    await asyncio.sleep(0.4 * moments)


@dataclass(frozen=True)
class Answer:
    """A response of the server."""

    code: int
    headers: Mapping[str, str]
    body: bytes
    warnings: list[str]

    @cached_property
    def json(self) -> Any:
        return json.loads(self.body) if self.body.startswith(b"{") else {}

    def must(self) -> Any:
        """The object; the recording ends where there is none."""
        if self.code >= 300:
            raise SystemExit(self.body.decode())
        return self.json


class Peer:
    """The server of a kubeconfig."""

    def __init__(self, kubeconfig: Path, patience: float = 60.0) -> None:
        """`patience`: how many seconds an answer may take."""
        config = yaml.safe_load(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._context = ssl.create_default_context(cadata=authority)
        self._url = cluster["server"]
        self._patience = patience
        self.token: str = config["users"][0]["user"]["token"]

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        media: str = "application/json",
        accept: str = "application/json",
    ) -> Answer:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": media, "User-Agent": "recorder/1.0"}
        request = urllib.request.Request(self._url + path, data, headers | {"Accept": accept} if accept else headers)
        request.method = method
        try:
            answer = urllib.request.urlopen(request, context=self._context, timeout=self._patience)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            warnings = answer.headers.get_all("Warning") or []
            return Answer(answer.status, answer.headers, answer.read(), warnings)
