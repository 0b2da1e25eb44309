"""Several edges answer for the same machines: who is silent, and who stands in for one that is gone."""

from __future__ import annotations

import pytest

from edge.dhcp.wire import MessageType, options
from edge.journey.events import Outcome
from tests.unit.dhcp.harness import Edge, MakeEdge, MakeHardware, Wire

MAC = "52:54:00:12:34:56"
PEER = options.ipv4("10.77.0.2")
NAMED = {54: PEER}


@pytest.fixture
def lab(make_edge: MakeEdge, make_hardware: MakeHardware) -> Edge:
    return make_edge(make_hardware("lab-1", MAC, "10.77.0.58"))


@pytest.mark.parametrize("name", ["edk2_pxe_request", "ipxe_bios_request"])
def test_client_that_waits_for_an_edge_that_is_gone_is_answered_in_its_name_with_what_is_here(
    lab: Edge, wire: Wire, captured: dict[str, bytes], name: str
) -> None:
    lab.responder.peers_changed(frozenset(), frozenset({"10.77.0.2"}))
    answer = wire.read(lab.send(wire.altered(captured[name], options=NAMED)))
    own = wire.read(lab.send(captured[name]))
    assert answer.options[options.MESSAGE_TYPE] == bytes((MessageType.ACK,))
    assert answer.options[options.SERVER_IDENTIFIER] == PEER
    assert (answer.yiaddr, answer.siaddr, answer.file) == (own.yiaddr, own.siaddr, own.file)
    assert answer.options[options.BOOTFILE_NAME] == own.options[options.BOOTFILE_NAME]
    assert own.options[options.SERVER_IDENTIFIER] == options.ipv4("10.77.0.1")
    told = [event for event in lab.events if "in the place of the edge 10.77.0.2" in event.message]
    assert [event.outcome for event in told] == [Outcome.INFO]


def test_edge_that_is_back_answers_for_itself_again(lab: Edge, wire: Wire, captured: dict[str, bytes]) -> None:
    """What was answered in its place must not have been learnt by the fast path."""
    request = wire.altered(captured["edk2_pxe_request"], options=NAMED)
    lab.responder.peers_changed(frozenset(), frozenset({"10.77.0.2"}))
    for _ in range(3):
        assert lab.send(request) is not None
    lab.responder.peers_changed(frozenset({"10.77.0.2"}))
    assert lab.send(request) is None


def test_nobody_stands_in_for_an_edge_that_lives_or_for_a_stranger(
    lab: Edge, wire: Wire, captured: dict[str, bytes]
) -> None:
    request = wire.altered(captured["edk2_pxe_request"], options=NAMED)
    assert lab.send(request) is None
    lab.responder.peers_changed(frozenset({"10.77.0.2"}), frozenset({"10.77.0.3"}))
    assert lab.send(request) is None


def test_no_address_is_refused_in_the_name_of_another(lab: Edge, wire: Wire, captured: dict[str, bytes]) -> None:
    lab.responder.peers_changed(frozenset(), frozenset({"10.77.0.2"}))
    other = {50: options.ipv4("10.77.0.99")}
    assert lab.send(wire.altered(captured["edk2_pxe_request"], options=NAMED | other)) is None


def test_address_in_quarantine_is_given_in_nobodys_name(lab: Edge, wire: Wire, captured: dict[str, bytes]) -> None:
    lab.responder.peers_changed(frozenset(), frozenset({"10.77.0.2"}))
    machine = lab.inventory.by_mac(MAC)
    assert machine is not None
    lab.quarantine.begin(machine)
    assert lab.send(wire.altered(captured["edk2_pxe_request"], options=NAMED)) is None


def test_address_that_is_declined_to_another_edge_is_looked_into_here_too(
    lab: Edge, wire: Wire, captured: dict[str, bytes]
) -> None:
    """It is offered here as well: the machine would go from one edge to the next."""
    lab.responder.declined.wake = lambda: None  # type: ignore[union-attr]
    decline = wire.altered(
        captured["edk2_pxe_request"],
        options={53: bytes((MessageType.DECLINE,)), 50: options.ipv4("10.77.0.58")} | NAMED,
    )
    lab.send(decline)
    assert lab.look("52:54:00:00:00:99") == 0  # of a stranger's
    lab.responder.peers_changed(frozenset({"10.77.0.2"}))
    lab.send(decline)
    assert lab.look("52:54:00:00:00:99") == 1
    assert lab.quarantine.holds(MAC)


def test_lease_of_an_edge_that_is_gone_is_renewed_by_any_other(
    lab: Edge, wire: Wire, captured: dict[str, bytes]
) -> None:
    """REBINDING: broadcast, and names no server (RFC 2131 section 4.3.2)."""
    renewed = {"options": {53: bytes((MessageType.REQUEST,))}, "ciaddr": options.ipv4("10.77.0.58")}
    rebinding = wire.altered(captured["plain_discover"], drop=(50, 54), **renewed)
    assert wire.kind(lab.send(rebinding)) is MessageType.ACK
