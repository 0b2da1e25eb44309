"""Which address a machine gets, by each kind of message (RFC 8415 section 18.3)."""

from __future__ import annotations

from ipaddress import IPv6Network

import pytest

from edge.dhcp6.wire import MessageType6 as M
from edge.dhcp6.wire import Option, Status, option
from tests.unit.dhcp6.harness import (
    ADDRESS,
    DUID,
    EDK2_DUID,
    EDK2_HTTP_SOLICIT,
    EDK2_STACK_SOLICIT,
    LINK_LOCAL,
    SERVER_ID,
    Edge6,
    MakeEdge6,
    addresses,
    ask,
    hardware,
    ia,
    status,
)

LEASE = [(ADDRESS, 1000, 1000)]


def test_all_clients_of_one_boot_get_the_one_address_whatever_their_duids_and_iaids(edge: Edge6) -> None:
    ipxe = ask(M.SOLICIT, ia(iaid=b"ipxe"), client=b"\0\4" + bytes(range(16)))
    both = ask(M.SOLICIT, ia(iaid=b"one."), ia(iaid=b"two."))
    for packet, count in ((EDK2_STACK_SOLICIT, 1), (EDK2_HTTP_SOLICIT, 1), (ipxe, 1), (both, 2)):
        answer = edge.answer(packet)
        assert answer.type is M.ADVERTISE
        assert answer.transaction == packet[1:4]
        assert addresses(answer) == LEASE * count
        assert [each[:4] for each in answer.all(Option.IA_NA)] == [value[:4] for value in edge_ias(packet)], (
            "each under its own IAID"
        )
        assert answer.get(Option.SERVERID) == DUID


def edge_ias(packet: bytes) -> list[bytes]:
    from edge.dhcp6 import wire

    return wire.parse(packet)[0].all(Option.IA_NA)


def test_times_to_renew_stand_in_the_identity_association(edge: Edge6) -> None:
    (association,) = edge.answer(EDK2_HTTP_SOLICIT).all(Option.IA_NA)
    assert (int.from_bytes(association[4:8], "big"), int.from_bytes(association[8:12], "big")) == (500, 800)


def test_lease_for_ever_is_never_renewed(make_edge: MakeEdge6) -> None:
    (association,) = make_edge(hardware(dhcp={"leaseTimeSeconds": 0xFFFFFFFF})).answer(EDK2_HTTP_SOLICIT).all(3)
    assert association[4:12] == b"\xff" * 8


@pytest.mark.parametrize("kind", [M.REQUEST, M.RENEW])
def test_request_and_renewal_are_answered_by_the_server_that_they_name_alone(edge: Edge6, kind: M) -> None:
    answer = edge.answer(ask(kind, SERVER_ID, ia(ADDRESS)))
    assert (answer.type, addresses(answer)) == (M.REPLY, LEASE)
    assert edge.send(ask(kind, option(Option.SERVERID, b"another"), ia(ADDRESS))) is None
    assert edge.send(ask(kind, ia(ADDRESS))) is None


def test_any_edge_rebinds_what_another_one_gave(edge: Edge6) -> None:
    answer = edge.answer(ask(M.REBIND, ia(ADDRESS)))
    assert (answer.type, addresses(answer)) == (M.REPLY, LEASE)


def test_renewal_of_another_address_ends_that_and_gives_the_reserved_one(edge: Edge6) -> None:
    answer = edge.answer(ask(M.RENEW, SERVER_ID, ia("fd00:77::99")))
    assert addresses(answer) == [*LEASE, ("fd00:77::99", 0, 0)]


@pytest.mark.parametrize(
    ("has", "said"), [((ADDRESS,), Status.SUCCESS), (("fd00:77::99",), Status.NOT_ON_LINK), ((), None)]
)
def test_confirm_says_whether_the_address_is_right_here(edge: Edge6, has: tuple[str, ...], said: Status | None) -> None:
    packet = ask(M.CONFIRM, ia(*has))
    if said is None:
        assert edge.send(packet) is None
    else:
        assert status(edge.answer(packet).get(Option.STATUS_CODE)) == said


def test_no_other_server_is_waited_for(edge: Edge6) -> None:
    assert edge.answer(EDK2_HTTP_SOLICIT).get(Option.PREFERENCE) == b"\xff"
    assert edge.answer(ask(M.REQUEST, SERVER_ID, ia())).get(Option.PREFERENCE) is None


def test_rapid_commit_only_if_asked(edge: Edge6) -> None:
    at_once = edge.answer(ask(M.SOLICIT, ia(), option(Option.RAPID_COMMIT, b"")))
    assert (at_once.type, at_once.get(Option.RAPID_COMMIT), addresses(at_once)) == (M.REPLY, b"", LEASE)
    asked = edge.answer(ask(M.REQUEST, SERVER_ID, ia(), option(Option.RAPID_COMMIT, b"")))
    assert asked.get(Option.RAPID_COMMIT) is None


def test_release_changes_nothing_and_is_confirmed(edge: Edge6) -> None:
    assert status(edge.answer(ask(M.RELEASE, SERVER_ID, ia(ADDRESS))).get(Option.STATUS_CODE)) == Status.SUCCESS
    assert addresses(edge.answer(EDK2_HTTP_SOLICIT)) == LEASE


def test_temporary_addresses_and_prefixes_are_not_had(edge: Edge6) -> None:
    answer = edge.answer(ask(M.SOLICIT, ia(), option(Option.IA_TA, b"temp"), option(Option.IA_PD, b"pref" + bytes(8))))
    temporary, prefix = answer.get(Option.IA_TA), answer.get(Option.IA_PD)
    assert temporary is not None
    assert prefix is not None
    assert (temporary[:4], status(temporary[8:])) == (b"temp", Status.NO_ADDRS_AVAIL)
    assert (prefix[:4], status(prefix[16:])) == (b"pref", Status.NO_PREFIX_AVAIL)


def test_information_without_an_address(edge: Edge6) -> None:
    answer = edge.answer(ask(M.INFORMATION_REQUEST, option(Option.ORO, bytes.fromhex("00170018"))))
    assert (answer.type, answer.get(Option.IA_NA)) == (M.REPLY, None)
    assert answer.get(Option.DNS_SERVERS) == bytes.fromhex("fd00007700000000") + bytes(7) + b"\1"
    assert answer.get(Option.DOMAIN_LIST) == b"\7example\3org\0"
    assert edge.answer(ask(M.INFORMATION_REQUEST)).get(Option.DNS_SERVERS) is None, "only what is asked for"


def test_machine_on_another_network_is_told_so_and_the_operator_too(make_edge: MakeEdge6) -> None:
    edge = make_edge(hardware(), networks=(IPv6Network("fd00:88::/64"),))
    assert edge.send(EDK2_HTTP_SOLICIT) is None
    (association,) = edge.answer(ask(M.REQUEST, SERVER_ID, ia())).all(Option.IA_NA)
    assert status(association[16:]) == Status.NOT_ON_LINK
    assert "fd00:77::50 is in fd00:77::/64" in edge.lines()[0]
    here = make_edge(hardware(), networks=(IPv6Network("fd00:77::/64"),))
    assert addresses(here.answer(EDK2_HTTP_SOLICIT)) == LEASE


def test_machine_with_ipv4_alone_gets_silence_and_no_word_on_its_journey(make_edge: MakeEdge6) -> None:
    edge = make_edge(hardware(ipv6=None, dhcp={"ip": "10.0.0.1"}))
    assert edge.send(EDK2_HTTP_SOLICIT) is None
    assert edge.lines() == []
    edge.inventory.apply(hardware(ipv6=None))
    assert edge.send(EDK2_HTTP_SOLICIT) is None
    assert "dhcp.ipv6 is not set" in edge.lines()[0]


def test_changed_hardware_is_another_answer(edge: Edge6) -> None:
    edge.answer(EDK2_HTTP_SOLICIT)
    edge.inventory.apply(hardware(ipv6="fd00:77::51"))
    assert addresses(edge.answer(EDK2_HTTP_SOLICIT))[0][0] == "fd00:77::51"
    edge.inventory.remove(hardware())
    assert edge.send(EDK2_HTTP_SOLICIT) is None


def test_address_that_two_hardware_claim_is_given_to_neither(make_edge: MakeEdge6) -> None:
    edge = make_edge(hardware(), hardware("m2", "52:54:00:00:00:02", "fd00:77:0:0:0:0:0:50"))
    assert edge.send(EDK2_HTTP_SOLICIT) is None
    assert "is claimed by several Hardware" in edge.lines()[0]
    edge.inventory.remove(hardware("m2"))
    assert addresses(edge.answer(EDK2_HTTP_SOLICIT)) == LEASE


def test_address_of_a_hardware_that_is_being_deleted_is_given_to_the_other_one(make_edge: MakeEdge6) -> None:
    leaving = hardware("m2", "52:54:00:00:00:02", "fd00:77:0:0:0:0:0:50")
    leaving["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    edge = make_edge(leaving, hardware())
    assert addresses(edge.answer(EDK2_HTTP_SOLICIT)) == LEASE
    own = hardware()
    own["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    edge.inventory.apply(own)
    edge.inventory.apply(hardware("m2", "52:54:00:00:00:02", "fd00:77:0:0:0:0:0:50"))
    assert edge.send(EDK2_HTTP_SOLICIT) is None


def test_disabled_interface_gets_nothing(make_edge: MakeEdge6) -> None:
    edge = make_edge(hardware(disableDhcp=True))
    assert edge.send(EDK2_HTTP_SOLICIT) is None
    assert "disableDhcp is true" in edge.lines()[0]


def test_what_is_sent_to_us_alone_is_told_to_be_sent_to_all(edge: Edge6) -> None:
    answer = edge.answer(ask(M.RENEW, SERVER_ID, ia(ADDRESS)), alone=True)
    assert status(answer.get(Option.STATUS_CODE)) == Status.USE_MULTICAST
    assert edge.send(EDK2_HTTP_SOLICIT, alone=True) is None


def test_stranger_is_met_with_silence_and_shown_with_a_manifest(make_edge: MakeEdge6) -> None:
    edge = make_edge(networks=(IPv6Network("fd00:77::/64"),))
    for _ in range(3):
        assert edge.send(EDK2_HTTP_SOLICIT) is None
    (event,) = edge.events
    assert event.message == "seen, not registered: DHCPv6 SOLICIT from UEFI x86-64 HTTP Boot ROM"
    assert "address: fd00:77::50" in str(event.detail["manifest"])
    assert event.detail["uuid"] == "12345678-9abc-def0-1234-56789abcdef0"


def test_reply_goes_to_the_client_on_its_own_port(edge: Edge6) -> None:
    reply = edge.send(EDK2_HTTP_SOLICIT)
    assert reply is not None
    assert (reply.address, reply.port) == (str(LINK_LOCAL), 546)
    assert EDK2_DUID in reply.payload
