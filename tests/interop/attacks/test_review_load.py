"""A tenant floods the embedded API with Templates that take long to parse, and claims another tenant's MAC."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.dhcp import BOOTP, DHCP

from tests.interop.conftest import in_namespace
from tests.interop.rack import IN_EDGE, Process
from tests.interop.test_edge_modes import ADDRESSES, MACS, Edge, running
from tests.waiting import wait_until

CONNECTIONS = 40
EXCHANGES = 20


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[Edge]:
    with running(tmp_path) as edge:
        edge.register("near", ADDRESSES["near"])
        edge.machine("near")
        edge.kubectl("create", "namespace", "attacker")
        edge.kubectl("create", "namespace", "other")
        yield edge


@pytest.fixture
def flood(edge: Edge) -> Process:
    module = "tests.interop.attacks.template_flood"
    kubeconfig = edge.data_dir / "kubeconfig"
    return edge.start(IN_EDGE, sys.executable, "-m", module, kubeconfig, str(CONNECTIONS), MACS["near"])


def answered_discovers(edge: Edge, count: int) -> int:
    """Send `count` DISCOVERs of "near" at once, and count those that an offer answers."""
    sent = {random.getrandbits(32) for _ in range(count)}
    offered: set[int] = set()
    with contextlib.closing(in_namespace(edge.namespaces["near"], _socket)) as client:
        for xid in sent:
            message = BOOTP(op=1, xid=xid, flags=0x8000, chaddr=bytes.fromhex(MACS["near"].replace(":", "")))
            options: list[Any] = [("message-type", "discover"), "end"]
            client.sendto(bytes(message / DHCP(options=options)), ("255.255.255.255", 67))
            time.sleep(0.05)  # at the rate of booting machines, not in one burst

        def all_answered() -> bool:
            with contextlib.suppress(TimeoutError):
                while not sent <= offered:
                    offered.add(BOOTP(client.recv(4096)).xid)
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


def test_flood_of_templates_stores_no_foreign_mac_and_delays_no_machine(edge: Edge, flood: Process) -> None:
    def claims() -> Any:
        assert flood.popen.poll() is None, flood.err
        return json.loads(flood.out)["claims"] if flood.out.endswith("\n") else None

    answered = answered_discovers(edge, EXCHANGES)
    said = wait_until(claims, lambda: flood.err + edge.process.err)
    assert answered == EXCHANGES
    refused = f"MAC address {MACS['near']} is that of Hardware default/near already"
    assert [status for status, _ in said] == [422] * 4, said
    assert all(refused in message for _, message in said), said
    assert edge.kubectl("get", "hardware", "-n", "attacker", "-o", "name") == ""
    flood.end()
    assert edge.process.popen.poll() is None


def test_flood_of_one_namespace_lets_others_write_templates(edge: Edge, flood: Process) -> None:
    wait_until(lambda: flood.out or None, lambda: flood.err + edge.process.err)
    for number in range(2):
        spec = {"actions": [{"name": "a", "image": "i", "args": ["{{ .Hardware }}" * 30]}]}
        kind = {"apiVersion": "tinkerbell.org/v1alpha2", "kind": "Template"}
        metadata = {"name": f"mine-{number}", "namespace": "other"}
        edge.kubectl.apply(json.dumps({**kind, "metadata": metadata, "spec": spec}))
    assert edge.kubectl("get", "templates", "-n", "other", "-o", "name").count("mine-") == 2


def test_configuration_of_an_earlier_version_is_removed_at_the_start(tmp_path: Path) -> None:
    webhook = {
        "name": "hardware.admission.tinkerbell.org",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": "https://127.0.0.1:1/admission"},
        "failurePolicy": "Fail",
        "rules": [
            {
                "apiGroups": ["tinkerbell.org"],
                "apiVersions": ["v1alpha2"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["hardware"],
            }
        ],
        "sideEffects": "None",
    }
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    with running(tmp_path) as edge:
        edge.kubectl.apply(json.dumps({**kind, "metadata": {"name": "tinkedge"}, "webhooks": [webhook]}))
        assert edge.process.terminate() == 0
        edge.process = edge.tinkedge(IN_EDGE, "up", "--interface", "rack0", "--data-dir", edge.data_dir)
        edge.ready(edge.process)
        assert edge.kubectl("get", "validatingwebhookconfigurations", "-o", "name") == ""
        edge.register("near", ADDRESSES["near"])
