"""Attacks on the embedded API: idle connections, writes hidden from the audit log, and a flood of Templates."""

from __future__ import annotations

import base64
import contextlib
import json
import random
import resource
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.interop.attacks.soak.boot import DISCOVER, packet
from tests.interop.conftest import in_namespace
from tests.interop.rack import IN_EDGE, Process
from tests.interop.test_edge_modes import ADDRESSES, MACS, Edge, running
from tests.ports import free_port, listens
from tests.waiting import PATIENCE_SECONDS, wait_until

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
HANG_UPS, DRY_RUNS = 40, 560
DESCRIPTORS = 512
CONNECTIONS = 40
EXCHANGES = 20


class Api:
    """`tinkedge apiserver` on a free port of loopback, with few descriptors, and its log."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        log, kubeconfig = directory / "log", directory / "data" / "kubeconfig"
        self._read_log = log.read_text
        where = ("--data-dir", str(directory / "data"), "--api-port", str(self.port))
        few = (DESCRIPTORS, DESCRIPTORS)
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "edge.cli", "apiserver", *where], stdout=output, stderr=output,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, few),
            )  # fmt: skip
        wait_until(lambda: kubeconfig.exists() and listens(self.port), log.read_text)
        config = yaml.safe_load(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        self.trust = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        self.token = config["users"][0]["user"]["token"]
        self.connection = HTTPSConnection("127.0.0.1", self.port, context=self.trust, timeout=60)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        self.connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self.connection.getresponse()
        return answer.status, json.loads(answer.read())

    def post_and_hang_up(self, name: str) -> None:
        """Send a whole request and reset the connection."""
        body = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
        head = f"POST {CONFIG_MAPS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.token}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        with (
            socket.create_connection(("127.0.0.1", self.port), 60) as plain,
            self.trust.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
        ):
            secured.sendall((head + body).encode())
            secured.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def lines(self) -> list[str]:
        """Return the lines of the audit log, from the verb on."""
        mark = "tink.kubeapi.apiserver.http.audit: admin from 127.0.0.1: "
        return [line.partition(mark)[2] for line in self._read_log().splitlines() if mark in line]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    made = Api(tmp_path_factory.mktemp("api"))
    yield made
    made.connection.close()
    assert made.process.poll() is None
    made.process.terminate()
    made.process.wait(PATIENCE_SECONDS)


def test_operator_is_served_beside_more_idle_connections_than_there_are_descriptors(api: Api) -> None:
    with contextlib.ExitStack() as idle:
        for _ in range(DESCRIPTORS + 200):
            idle.enter_context(socket.create_connection(("127.0.0.1", api.port), PATIENCE_SECONDS))
        assert api.ask("GET", "/api/v1/namespaces")[0] == 200
    api.connection.close()


def test_each_write_has_its_line_even_if_the_client_disconnects_or_floods_the_log(api: Api) -> None:
    for number in range(HANG_UPS):
        api.post_and_hang_up(f"hit-{number}")
    assert api.ask("POST", CONFIG_MAPS, {"metadata": {"name": "last"}})[0] == 201

    def stored_names() -> set[str]:
        return {each["metadata"]["name"] for each in api.ask("GET", CONFIG_MAPS)[1]["items"]}

    def logged() -> set[str]:
        return {line.split("/")[1].removesuffix(": created") for line in api.lines() if " configmaps " in line}

    wait_until(lambda: stored_names() == logged(), "a line for each ConfigMap that is there")
    assert "last" in logged()
    for number in range(DRY_RUNS):
        assert api.ask("POST", f"{CONFIG_MAPS}?dryRun=All", {"metadata": {"name": f"dry-{number}"}})[0] == 201
    assert api.ask("DELETE", f"{CONFIG_MAPS}/last?dryRun=All", {})[0] == 400
    assert api.ask("POST", f"{CONFIG_MAPS}/other", {"metadata": {"name": "evil"}})[0] in (400, 405)
    assert api.ask("DELETE", f"{CONFIG_MAPS}/last")[0] == 200
    wait_until(lambda: api.lines()[-1] == "delete configmaps default/last: deleted", "the line of the delete")
    assert sum("(dry run)" in line for line in api.lines()) <= 100


# --- a tenant's Templates that take long to parse, beside machines that boot ------------------------------------------


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    with running(tmp_path_factory.mktemp("templates")) as edge:
        edge.register("near", ADDRESSES["near"])
        edge.machine("near")
        for namespace in ("attacker", "other"):
            edge.kubectl("create", "namespace", namespace)
        yield edge


@pytest.fixture
def flood(edge: Edge) -> Iterator[Process]:
    words = ("-m", "tests.interop.attacks.template_flood", edge.data_dir / "kubeconfig", str(CONNECTIONS), MACS["near"])
    process = edge.start(IN_EDGE, sys.executable, *words)
    yield process
    process.end()


def answered_discovers(edge: Edge, count: int) -> int:
    """Send `count` DISCOVERs of "near" at once, and count those that an offer answers."""
    sent = {random.getrandbits(32) for _ in range(count)}
    offered: set[int] = set()
    with contextlib.closing(in_namespace(edge.namespaces["near"], _socket)) as client:
        for xid in sent:
            client.sendto(packet(DISCOVER, MACS["near"], xid), ("255.255.255.255", 67))
            time.sleep(0.05)  # at the rate of booting machines, not in one burst

        def all_answered() -> bool:
            with contextlib.suppress(TimeoutError):
                while not sent <= offered:
                    offered.add(int.from_bytes(client.recv(4096)[4:8]))
            return sent <= offered

        with contextlib.suppress(AssertionError):
            wait_until(all_answered)
    return len(sent & offered)


def _socket() -> socket.socket:
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0")
    client.bind(("", 68))
    client.settimeout(1)
    return client


def test_flood_of_templates_delays_no_machine_stores_no_foreign_mac_and_lets_others_write(
    edge: Edge, flood: Process
) -> None:
    def claims() -> Any:
        assert flood.popen.poll() is None, flood.err
        return json.loads(flood.out)["claims"] if flood.out.endswith("\n") else None

    answered = answered_discovers(edge, EXCHANGES)
    output = wait_until(claims, lambda: flood.err + edge.process.err)
    assert answered == EXCHANGES
    refused = f"MAC address {MACS['near']} is that of Hardware default/near already"
    assert [status for status, _ in output] == [422] * 4, output
    assert all(refused in message for _, message in output), output
    assert edge.kubectl("get", "hardware", "-n", "attacker", "-o", "name") == ""
    for number in range(2):
        spec = {"actions": [{"name": "a", "image": "i", "args": ["{{ .Hardware }}" * 30]}]}
        kind = {"apiVersion": "tinkerbell.org/v1alpha2", "kind": "Template"}
        metadata = {"name": f"mine-{number}", "namespace": "other"}
        edge.kubectl.apply(json.dumps({**kind, "metadata": metadata, "spec": spec}))
    assert edge.kubectl("get", "templates", "-n", "other", "-o", "name").count("mine-") == 2
    assert flood.popen.poll() is None, flood.err
    assert edge.process.popen.poll() is None


def test_configuration_of_an_earlier_version_is_removed_at_the_start(edge: Edge) -> None:
    rule = {"apiGroups": ["tinkerbell.org"], "apiVersions": ["v1alpha2"], "operations": ["CREATE"]}
    webhook = {"name": "hardware.admission.tinkerbell.org", "rules": [{**rule, "resources": ["hardware"]}]}
    webhook |= {"clientConfig": {"url": "https://127.0.0.1:1/admission"}, "failurePolicy": "Fail"}
    webhook |= {"admissionReviewVersions": ["v1"], "sideEffects": "None"}
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    edge.kubectl.apply(json.dumps({**kind, "metadata": {"name": "tinkedge"}, "webhooks": [webhook]}))
    assert edge.process.terminate() == 0
    edge.process = edge.tinkedge(IN_EDGE, "up", "--interface", "rack0", "--data-dir", edge.data_dir)
    edge.ready(edge.process)
    assert edge.kubectl("get", "validatingwebhookconfigurations", "-o", "name") == ""
    edge.register("stranger", ADDRESSES["stranger"])
