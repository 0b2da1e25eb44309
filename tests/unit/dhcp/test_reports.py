"""Reports for the operator: refusals with their reasons, unregistered machines, offers of other servers."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import yaml

from edge.dhcp import DhcpSettings, DhcpSettingsError
from edge.dhcp.unknown import MAX_PACKETS_AT_ONCE, PACKETS_A_SECOND
from edge.dhcp.wire import codec
from edge.journey.events import Outcome, Step
from edge.machines import DhcpMode
from tests.unit.dhcp.harness import (
    CAPTURED,
    IPXE_EFI,
    MAC,
    PLAIN,
    PXE_DISCOVER,
    PXE_REQUEST,
    Edge,
    MakeEdge,
    altered,
    hardware,
    invented,
    lab,
    sent_by,
)
from tink.api.v1alpha2 import Hardware

OTHER = {54: b"\x0a\x4d\0\2"}


def test_report_of_a_lease_has_the_client_and_what_it_boots(edge: Edge) -> None:
    for packet in (PXE_DISCOVER, PXE_REQUEST, PLAIN, IPXE_EFI):
        edge.send(packet)
    url = f"script http://10.77.0.1:7080/ipxe/script/{MAC}/auto.ipxe"
    assert edge.messages() == [
        "DHCPOFFER to UEFI x86-64 PXE ROM, boot file snponly.efi",
        "DHCPACK to UEFI x86-64 PXE ROM, boot file snponly.efi",
        "DHCPOFFER to operating system",
        f"DHCPOFFER to iPXE (UEFI x86-64), {url}",
    ]
    assert [dict(event.detail) for event in edge.events[::3]] == [
        {"client": "UEFI x86-64 PXE ROM", "stage": "PXE ROM", "boot": "boot file snponly.efi", "dhcp": "offer"},
        {"client": "iPXE (UEFI x86-64)", "stage": "iPXE", "boot": url, "dhcp": "offer"},
    ]
    assert {(event.step, event.outcome, event.mac) for event in edge.events} == {(Step.DHCP, Outcome.OK, MAC)}


@pytest.mark.parametrize("name", ["edk2_pxe_request", "ipxe_bios_request"])
def test_machine_that_takes_another_servers_offer_is_reported_once_a_minute(edge: Edge, name: str) -> None:
    edge.send(CAPTURED[name])
    edge.events.clear()
    for second in (0, 1, 59):
        edge.now = 1000.0 + second
        assert edge.send(altered(CAPTURED[name], options=OTHER)) is None
    (event,) = edge.events
    assert (event.outcome, event.detail["server"]) == (Outcome.FAILED, "10.77.0.2")
    assert "accepted the offer of another DHCP server, 10.77.0.2" in event.message
    edge.now = 1060.0
    edge.send(altered(CAPTURED[name], options=OTHER))
    assert len(edge.events) == 2


def test_request_to_a_peer_or_of_an_unserved_machine_is_not_reported(edge: Edge) -> None:
    edge.responder.peers_changed(frozenset({"10.77.0.2"}))
    assert edge.send(altered(PXE_REQUEST, options=OTHER)) is None
    assert edge.send(altered(PXE_REQUEST, options={54: b"\x0a\x4d"})) is None
    edge.responder.peers_changed(frozenset())
    edge.inventory.apply(lab(disableDhcp=True))
    assert edge.send(altered(PXE_REQUEST, options=OTHER)) is None
    assert edge.events == []


def test_unregistered_machine_gets_no_answer_and_is_reported_with_a_manifest_once_a_minute(make_edge: MakeEdge) -> None:
    edge = make_edge()
    for second in range(0, 59, 4):
        edge.now = 1000.0 + second
        assert edge.send(PXE_DISCOVER) is None
    (event,) = edge.events
    assert (event.step, event.outcome, event.mac) == (Step.SEEN, Outcome.INFO, MAC)
    assert event.message == "seen, not registered: DHCPDISCOVER from UEFI x86-64 PXE ROM"
    assert f'"{MAC}":' in str(event.detail["manifest"])
    assert event.detail["uuid"] == "44332211-6655-8877-99aa-bbccddeeff00"
    edge.now = 1060.0
    edge.send(PXE_DISCOVER)
    assert len(edge.events) == 2


def test_a_flood_of_invented_machines_fills_neither_log_nor_memory(make_edge: MakeEdge) -> None:
    edge = make_edge()
    for number in range(2000):
        edge.send(invented(number))
    assert len(edge.events) == 600


def test_flood_of_invented_machines_is_dropped_unparsed_and_a_registered_machine_is_answered(
    edge: Edge, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []
    parse = codec.parse
    monkeypatch.setattr(codec, "parse", lambda packet: (parsed.append(packet), parse(packet))[1])
    assert {edge.send(invented(number)) for number in range(3000)} == {None}
    assert len(parsed) == MAX_PACKETS_AT_ONCE
    assert edge.send(PXE_DISCOVER) is not None, "it was not yet heard of in this flood"
    edge.now += 1
    assert {edge.send(invented(number)) for number in range(3000, 6000)} == {None}
    assert len(parsed) == MAX_PACKETS_AT_ONCE + 1 + PACKETS_A_SECOND
    assert caplog.text.count("machines without a Hardware come too fast: most are dropped") == 1


def test_flood_of_infiniband_has_a_limit_of_its_own(edge: Edge) -> None:
    """The MAC of an InfiniBand port is known only after its packet was parsed."""
    flood = altered(PXE_DISCOVER, htype=32, chaddr=b"", drop=(61,))
    assert edge.responder.is_surplus(flood) is False
    assert {edge.send(flood) for _ in range(3000)} == {None}
    assert edge.responder.is_surplus(flood) is True
    assert edge.responder.is_surplus(invented(1)) is False
    assert edge.send(PXE_DISCOVER) is not None


def test_replies_of_servers_including_ours_are_ignored_silently(edge: Edge, caplog: pytest.LogCaptureFixture) -> None:
    own = edge.send(PXE_DISCOVER)
    edge.events.clear()
    caplog.clear()
    assert edge.send(own.payload, source="10.77.0.1", source_port=67) is None
    assert edge.send(altered(PXE_DISCOVER, op=2)) is None
    for kind in (2, 5, 6):
        assert edge.send(altered(PXE_DISCOVER, options={53: bytes((kind,))})) is None
    assert edge.events == []
    assert caplog.records == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"htype": 32, "chaddr": b"", "drop": (61,)}, "InfiniBand port (hlen 0)"),
        ({"htype": 6}, "neither Ethernet nor InfiniBand (hardware type 6, 6 bytes of address)"),
        ({"chaddr": b"12345678"}, "8 bytes of address"),
        ({"drop": (53,)}, "it has no message type (option 53)"),
        ({"options": {53: b"\1\1"}}, "it has no message type (option 53)"),
    ],
)
def test_invalid_packets_are_logged_once_a_minute_and_sender(
    edge: Edge, caplog: pytest.LogCaptureFixture, change: dict[str, Any], words: str
) -> None:
    packet = altered(PXE_DISCOVER, **change)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert edge.send(packet, source="10.77.0.9") is None
    (record,) = caplog.records
    assert words in record.getMessage()
    assert "10.77.0.9 port 68" in record.getMessage()
    for number in range(100):
        edge.send(packet, source=f"10.77.1.{number}")
    assert len(caplog.records) == 20


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("server_ip", "edge.example.org"),
        ("tftp_ip", "0.0.0.0"),
        ("http_base_url", "172.31.0.1:7080"),
        ("http_base_url", "http://172.31.0.1:7080/"),
        ("http_base_url", "http://" + "x" * 150),
    ],
)
def test_settings_that_can_not_work_are_refused_at_start(field: str, value: Any) -> None:
    good = {"server_ip": "172.31.0.1", "tftp_ip": "172.31.0.1", "http_base_url": "http://172.31.0.1:7080"}
    with pytest.raises(DhcpSettingsError, match=field):
        DhcpSettings(**{**good, field: value})


def test_nothing_answers_where_dhcp_is_off(make_edge: MakeEdge) -> None:
    with pytest.raises(DhcpSettingsError, match="the mode is off"):
        make_edge(mode=DhcpMode.OFF)


def test_reports_forged_in_one_machines_name_do_not_suppress_those_of_others(make_edge: MakeEdge) -> None:
    """A sender that forges a machine's packets chooses the server that the line names."""
    edge = make_edge(lab(), hardware("lab-2", "52:54:00:00:00:02", "10.77.0.59"))
    for number in range(700):
        edge.send(altered(PXE_REQUEST, options={54: bytes((10, 78, number // 250, number % 250))}))
    edge.send(sent_by(bytes.fromhex("525400000002"), altered(PXE_REQUEST, options=OTHER)))
    assert edge.events[-1].mac == "52:54:00:00:00:02"
    assert len(edge.events) == 31


def test_manifest_assigns_no_address_until_it_is_completed(make_edge: MakeEdge) -> None:
    edge = make_edge(server_ip="172.31.0.1")
    edge.send(PXE_DISCOVER)
    text = str(edge.events[-1].detail["manifest"])  # MAC: digits only; unquoted, YAML 1.1 would read it as a number

    def registered(manifest: str) -> Any:
        made = Hardware.model_validate(yaml.safe_load(manifest))
        assert made.metadata.name == "machine-52-54-00-12-34-56"
        return made.spec.network_interfaces[MAC].dhcp

    assert registered(text).ip is None
    completed = registered(text.replace("# ip:", "ip:").replace("# netmask", "netmask"))
    assert (completed.ip, completed.netmask) == ("172.31.0.50", "255.255.255.0")
