"""Tenants of one edge: attacks of a tenant, who may write Hardware in one namespace, on machines of another tenant.

    edge's namespace: rack0 172.31.77.1, fd77::1 --- bridge --- "victim" .50, "late" .51

`tinkedge up` runs with its default settings and `--ipv6`. The attacker writes by kubectl in the namespace `mallory`;
the other machines have their Hardware in `default`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.interop.cloud_init.rack import MetadataRack, Registered
from tests.interop.rack import ADDRESS, IN_EDGE, ip
from tests.waiting import wait_until

AGENT_ID = "rack1-u7"
VICTIM = Registered("victim", "52:54:00:00:0b:50", "172.31.77.50", {"agent-id": AGENT_ID}, userdata="of the victim")
LATE = Registered("late", "52:54:00:00:0b:51", "172.31.77.51", userdata="of the late one")
HELD = {"finalizers": ["example.org/held"]}
EDGE6 = "fd77::1"
_numbers = itertools.count(1)


class Tenants(MetadataRack):
    """A rack whose edge also has IPv6 on its network."""

    def bridge(self, name: str, address: str) -> None:
        super().bridge(name, address)
        ip("-n", self.namespaces[IN_EDGE], "address", "add", f"{EDGE6}/64", "dev", name, "nodad")


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenants]:
    with Tenants(tmp_path_factory.mktemp("tenants")) as rack:
        rack.up("--ipv6")
        rack.kubectl("create", "namespace", "mallory")
        rack.register(VICTIM)
        yield rack


def write(rack: Tenants, name: str, interfaces: dict[str, Any], **metadata: Any) -> str:
    """Create the attacker's Hardware; return kubectl's message of a rejection, "" if it was admitted."""
    about = {"name": name, "namespace": "mallory", **metadata}
    spec = {"networkInterfaces": interfaces, "instance": {"userdata": "of mallory"}}
    body = {"apiVersion": "tinkerbell.org/v1alpha2", "kind": "Hardware", "metadata": about, "spec": spec}
    file = rack.directory / f"{name}.json"
    file.write_text(json.dumps(body))
    done = rack.kubectl.run("create", "-f", file)
    return done.err if done.popen.returncode else ""


def patch(rack: Tenants, name: str, change: dict[str, Any]) -> str:
    """Patch the attacker's Hardware; return kubectl's message of a rejection, "" if it was admitted."""
    done = rack.kubectl.run("patch", "hardware", name, "-n", "mallory", "--type=merge", "-p", json.dumps(change))
    return done.err if done.popen.returncode else ""


def create_deleted(rack: Tenants, name: str, interfaces: dict[str, Any]) -> None:
    """Create a Hardware of the attacker and delete it; a finalizer keeps it in the API."""
    assert write(rack, name, interfaces, **HELD) == ""
    rack.kubectl("delete", "hardware", name, "-n", "mallory", "--wait=false")


def userdata(rack: Tenants, machine: Registered, base: str = f"http://{ADDRESS}:7080", source: str = "") -> str:
    sender = ["--interface", source] if source else []
    done = rack.run(machine.name, "curl", "-sg", "--max-time", "5", *sender, f"{base}/2009-04-04/user-data")
    return done.out


def own_mac() -> str:
    """Return a MAC that no Hardware has had."""
    return f"52:54:00:00:0c:{next(_numbers):02x}"


def reserved(address: str) -> dict[str, Any]:
    return {own_mac(): {"dhcp": {"ipv6": {"address": address}} if ":" in address else {"ip": address}}}


def test_hardware_that_is_being_deleted_takes_no_machine_of_another_tenant(rack: Tenants) -> None:
    create_deleted(rack, "taker", {(mac := own_mac()): {}})
    for interfaces in ({VICTIM.mac: {}}, {mac: {"dhcp": {"ip": VICTIM.address}}}):
        refusal = patch(rack, "taker", {"spec": {"networkInterfaces": interfaces}})
        assert "is that of Hardware default/victim already" in refusal
    assert userdata(rack, VICTIM) == "of the victim"
    assert patch(rack, "taker", {"metadata": {"labels": {"a": "b"}}}) == ""
    assert patch(rack, "taker", {"metadata": {"finalizers": None}}) == "", "it can still go"
    wait_until(lambda: "taker" not in rack.kubectl("get", "hardware", "-n", "mallory", "-o", "name"))


def test_claim_of_a_hardware_that_is_being_deleted_keeps_no_machine_from_its_operator(rack: Tenants) -> None:
    """The attacker had the machine's addresses first, and a finalizer keeps the attacker's Hardware in the API."""
    create_deleted(rack, "keeper", {LATE.mac: {"dhcp": {"ip": LATE.address}}})
    rack.register(LATE)
    wait_until(lambda: userdata(rack, LATE) == "of the late one", lambda: rack.process.err)
    assert patch(rack, "keeper", {"metadata": {"labels": {"a": "b"}}}) == ""
    assert userdata(rack, LATE) == "of the late one"


def test_agent_id_of_another_tenants_machine_is_refused(rack: Tenants) -> None:
    for agent_id in (AGENT_ID.upper(), VICTIM.mac):
        refusal = write(rack, "thief", {own_mac(): {}}, annotations={"tinkerbell.org/agent-id": agent_id})
        assert f"metadata.annotations[tinkerbell.org/agent-id]: agent id {agent_id.lower()} is " in refusal


def test_names_of_another_tenants_hardware_block_no_agent(rack: Tenants) -> None:
    """The attacker has Hardware with the names of the victim and of its agent: tenants may choose any name."""
    for name in (AGENT_ID, "victim"):
        assert write(rack, name, {own_mac(): {}}) == ""
    for number, agent_id in enumerate([AGENT_ID, "victim", VICTIM.mac, "default/victim"]):
        options = ["--server", f"{ADDRESS}:42113", "--runtime", "process"]
        before = len(connected(rack))
        state = rack.directory / f"agent-{number}"
        agent = rack.tinkedge("victim", "agent", "--agent-id", agent_id, *options, "--state-dir", state)
        wait_until(lambda: len(connected(rack)) > before, lambda: agent.err + rack.process.err[-2000:])  # noqa: B023
        assert agent.terminate() == 0


def connected(rack: Tenants) -> list[dict[str, Any]]:
    return [event for event in rack.journey(VICTIM) if event["step"] == "agent" and event["outcome"] == "ok"]


def test_address_that_a_machine_makes_of_its_mac_can_not_be_reserved_by_another_tenant(rack: Tenants) -> None:
    refusal = write(rack, "slaac", reserved("fd77::5054:ff:fe00:b50"))
    assert f"the address is made of the MAC address {VICTIM.mac} (SLAAC)" in refusal


def test_machine_is_identified_at_an_address_that_another_tenant_reserves(rack: Tenants) -> None:
    """A privacy address does not contain the MAC, so the review can't know its owner."""
    assert write(rack, "privacy", reserved("fd77::abcd")) == ""
    ip("-n", rack.namespaces["victim"], "address", "add", "fd77::abcd/64", "dev", "eth0", "nodad")
    assert userdata(rack, VICTIM, f"http://[{EDGE6}]:7080", "fd77::abcd") == "of the victim"


def test_address_that_machines_of_another_tenant_use_can_not_be_reserved(rack: Tenants) -> None:
    uses = {".1": "gateway", ".2": "name server", ".0": "network address", ".255": "broadcast address"}
    for host, use in uses.items():
        refusal = write(rack, "user", reserved(f"172.31.77{host}"))
        assert f".dhcp.ip: IP address 172.31.77{host} is the {use} of machines of another namespace" in refusal
        assert "victim" not in refusal
