"""The peer of the embedded API: a real kube-apiserver over a real etcd, which flushes every write as ours does.

Neither comes in a package that could be had: they are built from their published modules
(`tests.programs`), which takes some minutes, once and only when it is asked for (`python -m tests.bench --build-peer`).
"""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.bench.bed import BenchError, Cable, Server
from tests.programs.build import ProgramError, built, kubernetes_version, place

VERSION = kubernetes_version()
TOKEN = "bench"


@dataclass(frozen=True)
class Ports:
    """Ports on loopback: kube-apiserver's, and etcd's for clients and for peers (it has no peers)."""

    server: int = 6444
    etcd: int = 2379
    etcd_peers: int = 2380


OWN = Ports()
"""In a namespace of its own."""


def available() -> bool:
    """Return True if kube-apiserver and etcd are installed on this machine."""
    return place("kube-apiserver").exists() and place("etcd").exists()


def build() -> None:
    """Build kube-apiserver and etcd where they are not yet. Raises BenchError.

    Debian 12's etcd (3.4.23) can't report progress, so an API server over it answers some watches with an error.
    """
    try:
        built("kube-apiserver")
        built("etcd")
    except ProgramError as error:
        raise BenchError(str(error)) from error


class Kubernetes:
    """etcd and kube-apiserver on loopback of the server's namespace. `kubeconfig` is that of its administrator."""

    def __init__(self, cable: Cable, directory: Path) -> None:
        self._cable = cable
        self._directory = directory
        self.kubeconfig = directory / "kubeconfig"
        directory.mkdir()
        write_keys(directory)
        self.etcd = cable.serve(etcd_command(directory), directory / "etcd.log", port=OWN.etcd)
        self.server = self.start()

    def start(self, ready: Callable[[], bool] | None = None) -> Server:
        """Start kube-apiserver; once more when it was stopped."""
        self.server = self._cable.serve(
            server_command(self._directory), self._directory / "kube-apiserver.log", port=OWN.server, ready=ready
        )
        self.kubeconfig.write_text(kubeconfig(self._directory))
        return self.server


def write_keys(directory: Path) -> None:
    """Write the files that kube-apiserver reads: the key of service accounts, and the administrator's token."""
    key = rsa.generate_private_key(65537, 2048)
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (directory / "sa.key").write_bytes(key.private_bytes(*pem))
    (directory / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")


def etcd_command(directory: Path, ports: Ports = OWN) -> list[str]:
    clients, peers = (f"http://127.0.0.1:{port}" for port in (ports.etcd, ports.etcd_peers))
    return [
        *(str(place("etcd")), "--name=peer", f"--data-dir={directory}/etcd", "--quota-backend-bytes=8000000000"),
        *(f"--listen-client-urls={clients}", f"--advertise-client-urls={clients}", f"--listen-peer-urls={peers}"),
        *(f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=peer={peers}"),
    ]


def server_command(directory: Path, authorization: str = "AlwaysAllow", ports: Ports = OWN) -> list[str]:
    return [
        str(place("kube-apiserver")),
        f"--etcd-servers=http://127.0.0.1:{ports.etcd}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={ports.server}",
        f"--cert-dir={directory}",
        f"--token-auth-file={directory}/tokens.csv",
        f"--authorization-mode={authorization}",
        "--disable-admission-plugins=ServiceAccount",
        "--service-account-issuer=https://x",
        f"--service-account-key-file={directory}/sa.key",
        f"--service-account-signing-key-file={directory}/sa.key",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--endpoint-reconciler-type=none",
    ]


def kubeconfig(directory: Path, ports: Ports = OWN) -> str:
    """The administrator's, once the server has made its certificate."""
    authority = base64.b64encode((directory / "apiserver.crt").read_bytes()).decode()
    cluster = {"server": f"https://127.0.0.1:{ports.server}", "certificate-authority-data": authority}
    return json.dumps(
        {
            "clusters": [{"name": "peer", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": TOKEN}}],
            "contexts": [{"name": "peer", "context": {"cluster": "peer", "user": "admin"}}],
            "current-context": "peer",
        }
    )


def fill(first: str, count: int) -> dict[str, float]:
    """Clone the Hardware `first` in etcd, beside kube-apiserver: 100,000 requests would take minutes.

    Run in the server's namespace (see `api_client`).
    """
    prefix = b"/registry/tinkerbell.org/hardware/default/"
    key = base64.b64encode(prefix + first.encode()).decode()
    found = _etcd("range", {"key": key})
    body = base64.b64decode(found["kvs"][0]["value"]).decode()
    stem = first.rpartition("-")[0]
    for start in range(1, count, 100):
        puts = []
        for number in range(start, min(start + 100, count)):
            name = f"{stem}-{number}"
            text = body.replace(f'"{first}"', f'"{name}"').replace(f" {first}\\n", f" {name}\\n")
            value = base64.b64encode(text.encode()).decode()
            puts.append({"requestPut": {"key": base64.b64encode(prefix + name.encode()).decode(), "value": value}})
        _etcd("txn", {"success": puts})
    return {}


def _etcd(call: str, body: object) -> dict[str, list[dict[str, str]]]:
    request = urllib.request.Request(f"http://127.0.0.1:{OWN.etcd}/v3/kv/{call}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: dict[str, list[dict[str, str]]] = json.load(answer)
        return found
