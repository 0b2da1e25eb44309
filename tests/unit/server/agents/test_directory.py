"""Which machine an agent means."""

from __future__ import annotations

import pytest

from tests.support.objects import hardware
from tink.api.v1alpha2 import Raw
from tink.server.agents.directory import AgentDirectory, UnknownAgentError
from tink.server.peer import peer_address

MAC, OTHER = "52:54:00:00:00:01", "52:54:00:00:00:02"


def machine(name: str, *macs: str, namespace: str = "d", ip: str | None = "192.0.2.1") -> Raw:
    interface: Raw = {"dhcp": {"ip": ip}} if ip else {}
    return hardware(name, namespace=namespace, interfaces=dict.fromkeys(macs, interface))


@pytest.fixture
def directory() -> AgentDirectory:
    agents = AgentDirectory()
    agents.apply(machine("h", MAC, OTHER))
    return agents


@pytest.mark.parametrize("agent_id", [MAC, OTHER, MAC.upper(), "h", "d/h"])
def test_an_agent_is_known_by_any_mac_and_by_name(directory: AgentDirectory, agent_id: str) -> None:
    assert directory.find(agent_id) == ("d", "h")


@pytest.mark.parametrize("agent_id", ["", "x", "52:54:00:00:00:03", "x/h", "h\n"])
def test_anybody_else_is_unknown_by_name(directory: AgentDirectory, agent_id: str) -> None:
    with pytest.raises(UnknownAgentError, match="no Hardware has the MAC address or name"):
        directory.find(agent_id)


def test_an_id_of_several_machines_is_of_none_until_that_is_mended(directory: AgentDirectory) -> None:
    other = machine("h", MAC, namespace="e")
    directory.apply(other)
    with pytest.raises(UnknownAgentError, match="fits several Hardware, so it is none: d/h, e/h"):
        directory.find(MAC)
    assert directory.find("e/h") == ("e", "h")
    directory.remove(other)
    assert directory.find(MAC) == ("d", "h")


def test_an_agent_is_known_as_its_hardware_says_but_never_by_what_is_anothers(directory: AgentDirectory) -> None:
    own = machine("i", "52:54:00:00:00:0a", namespace="e")
    thief = machine("j", "52:54:00:00:00:0b", namespace="f")
    own["metadata"]["annotations"] = {"tinkerbell.org/agent-id": "Rack1-U7"}
    thief["metadata"]["annotations"] = {"tinkerbell.org/agent-id": MAC}
    directory.apply(own)
    directory.apply(thief)
    assert directory.find("rack1-u7") == ("e", "i")
    assert directory.id_of(directory.find("e/i")) == "Rack1-U7"
    assert directory.find(MAC) == ("d", "h")  # and not "fits several"
    directory.remove(own)
    with pytest.raises(UnknownAgentError):
        directory.find("rack1-u7")


def annotated(name: str, mac: str, agent_id: str, namespace: str = "e") -> Raw:
    made = machine(name, mac, namespace=namespace)
    made["metadata"]["annotations"] = {"tinkerbell.org/agent-id": agent_id}
    return made


def test_several_hardware_may_have_an_id_but_a_mac_and_a_full_name_are_never_ambiguous(
    directory: AgentDirectory,
) -> None:
    directory.apply(annotated("i", "52:54:00:00:00:0a", "rack1-u7"))
    directory.apply(machine("rack1-u7", "52:54:00:00:00:0b", namespace="f"))
    directory.apply(annotated("j", "52:54:00:00:00:0c", MAC, "f"))
    directory.apply(annotated("k", "52:54:00:00:00:0d", "d/h", "f"))
    assert directory.named("rack1-u7") == {("e", "i"), ("f", "rack1-u7")}
    assert directory.named("rack1-u7", names_first=True) == {("f", "rack1-u7")}
    assert directory.named(MAC) == directory.named("d/h") == {("d", "h")}


def test_a_hardware_that_is_being_deleted_yields_its_mac_and_its_address(directory: AgentDirectory) -> None:
    thief = machine("thief", MAC, namespace="e")
    thief["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    directory.apply(thief)
    assert directory.find(MAC) == ("d", "h")
    assert directory.at("192.0.2.1") == ("d", "h")
    directory.remove(machine("h", namespace="d"))
    assert directory.find(MAC) == ("e", "thief")


def test_a_changed_machine_loses_its_old_mac(directory: AgentDirectory) -> None:
    directory.apply(machine("h", OTHER))
    with pytest.raises(UnknownAgentError):
        directory.find(MAC)
    directory.apply({"metadata": {"name": "h", "namespace": "d"}, "spec": {"networkInterfaces": 5}})
    with pytest.raises(UnknownAgentError):
        directory.find("h")


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.1:4711", "192.0.2.1"),
        ("ipv6:%5B2001:db8::1%5D:4711", "2001:db8::1"),
        ("ipv6:[2001:db8::1]:4711", "2001:db8::1"),
        ("ipv6:%5B::ffff:192.0.2.1%5D:4711", "192.0.2.1"),
        ("ipv6:%5Bfe80::1%25eth0%5D:4711", "fe80::1"),
        ("unix:/run/x", "unix:/run/x"),
        ("ipv4:what:1", "ipv4:what:1"),
    ],
)
def test_the_address_in_a_peer(peer: str, address: str) -> None:
    assert peer_address(peer) == address
