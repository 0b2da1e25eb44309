"""What a Hardware's `dhcp` becomes on the wire, in which order, and what of it is left out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from scapy.layers.dhcp import BOOTP, DHCP

from edge.dhcp.replies.reservation import Compiler
from edge.dhcp.wire import codec, options
from edge.machines import Inventory, NetbootPolicy
from tests.unit.dhcp.harness import Edge, MakeEdge, MakeHardware, Wire

MAC = "52:54:00:12:34:56"


@pytest.fixture
def with_dhcp(make_edge: MakeEdge, make_hardware: MakeHardware) -> Callable[..., Edge]:
    """An edge whose machine has other fields in its `dhcp`; None removes one."""

    def make(**fields: Any) -> Edge:
        obj = make_hardware("lab-1", MAC, "10.77.0.58")
        dhcp = obj["spec"]["networkInterfaces"][MAC]["dhcp"]
        dhcp.update({name: value for name, value in fields.items() if value is not None})
        for name in (name for name, value in fields.items() if value is None):
            del dhcp[name]
        return make_edge(obj)

    return make


def test_every_field_of_the_hardware_reaches_the_client(edge: Edge, wire: Wire, captured: dict[str, bytes]) -> None:
    for _ in range(2):
        reply = edge.send(captured["plain_discover"])
        found = dict(option[:2] for option in BOOTP(reply.payload)[DHCP].options if isinstance(option, tuple))
        assert BOOTP(reply.payload).yiaddr == "10.77.0.58"
        assert found["subnet_mask"] == "255.255.255.0"
        assert found["broadcast_address"] == "10.77.0.255"
        assert found["router"] == "10.77.0.1"
        assert found["hostname"] == b"lab-1"
        assert found["lease_time"] == 3600
        assert (found["renewal_time"], found["rebinding_time"]) == (1800, 3150)
        assert found["server_id"] == "10.77.0.1"
        raw = wire.read(reply).options
        # Names can't be carried, addresses next to them can.
        assert raw[options.DOMAIN_NAME_SERVER] == bytes((10, 77, 0, 1, 10, 77, 0, 2))
        assert raw[options.NTP_SERVERS] == bytes((10, 77, 0, 3))


def test_name_with_a_domain_goes_out_whole_and_the_domain_again_for_resolvers(
    with_dhcp: Callable[..., Edge], wire: Wire, captured: dict[str, bytes]
) -> None:
    found = wire.read(with_dhcp(hostname="node1.rack2.example.org").send(captured["plain_discover"])).options
    assert found[options.HOST_NAME] == b"node1.rack2.example.org"
    assert found[options.DOMAIN_NAME] == b"rack2.example.org"
    plain = wire.read(with_dhcp(hostname="node1").send(captured["plain_discover"])).options
    assert plain[options.HOST_NAME] == b"node1"
    assert options.DOMAIN_NAME not in plain


def test_fields_that_are_not_set_are_not_made_up(
    with_dhcp: Callable[..., Edge], wire: Wire, captured: dict[str, bytes]
) -> None:
    edge = with_dhcp(netmask=None, gateway=None, hostname=None, nameservers=None, timeservers=None)
    reply = edge.send(captured["plain_discover"])
    assert wire.order(reply.payload) == [53, 54, 51, 58, 59, 255]


@pytest.mark.parametrize(
    ("asked", "order"),
    [
        (None, [1, 3, 6, 12, 15, 28, 42]),
        (b"", [1, 3, 6]),
        (bytes((42, 6, 12, 3, 1)), [1, 42, 6, 12, 3]),  # the mask before the router, RFC 2132 section 3.3
        (bytes((12, 15)), [1, 12, 15, 3, 6]),
        (bytes((28, 28, 200, 51, 53, 54, 255, 0)), [1, 28, 3, 6]),
        (bytes((3, 6, 12, 15, 17, 42, 43, 60)), [1, 3, 6, 12, 15, 42]),
    ],
    ids=["no list", "empty list", "mask last", "names only", "odd codes", "no mask, like a Raspberry Pi"],
)
def test_client_gets_what_it_asks_for_in_its_order_and_what_it_can_not_do_without(
    with_dhcp: Callable[..., Edge],
    wire: Wire,
    captured: dict[str, bytes],
    asked: bytes | None,
    order: list[int],
) -> None:
    edge = with_dhcp(hostname="node1.example.org")
    for name, first in (("plain_discover", [53, 54, 51, 58, 59]), ("edk2_pxe_discover", [53, 54, 51, 58, 59])):
        packet = wire.altered(captured[name], drop=(55,), options={} if asked is None else {55: asked})
        for _ in range(2):
            codes = wire.order(edge.send(packet).payload)
            assert codes[: len(first) + len(order)] == first + order
            if name == "plain_discover":
                assert codes[-1:] == [255]
                assert len(codes) == len(first) + len(order) + 1
            else:
                assert {60, 43, 66, 67} <= set(codes)  # to boot it needs no permission


def test_vlan_reaches_ipxe_as_text_in_option_43_and_nobody_else(
    with_dhcp: Callable[..., Edge], wire: Wire, captured: dict[str, bytes]
) -> None:
    edge = with_dhcp(vlanId="100")
    for _ in range(2):
        for name in ("ipxe_bios_discover", "ipxe_efi_discover"):
            vendor = wire.read(edge.send(captured[name])).options[43]
            assert vendor == b"\x74\x03100\xff"
        assert options.VLAN_ID not in options.suboptions(
            wire.read(edge.send(captured["edk2_pxe_discover"])).options[43]
        )
        assert 43 not in wire.read(edge.send(captured["plain_discover"])).options


def test_zero_lease_time_does_not_make_clients_ask_without_end(
    with_dhcp: Callable[..., Edge], wire: Wire, captured: dict[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    edge = with_dhcp(leaseTimeSeconds=0)
    assert wire.read(edge.send(captured["edk2_pxe_discover"])).options[51] == (86400).to_bytes(4, "big")
    assert "leaseTimeSeconds is 0" in caplog.text


def test_infinite_lease_has_nothing_to_renew(
    with_dhcp: Callable[..., Edge], wire: Wire, captured: dict[str, bytes]
) -> None:
    found = wire.read(with_dhcp(leaseTimeSeconds=0xFFFFFFFF).send(captured["edk2_pxe_discover"])).options
    assert found[51] == b"\xff\xff\xff\xff"
    assert not {58, 59} & found.keys()


def test_times_to_renew_never_exceed_the_lease(
    with_dhcp: Callable[..., Edge], wire: Wire, captured: dict[str, bytes]
) -> None:
    for seconds in (1, 2, 7, 0xFFFFFFFE):
        found = wire.read(with_dhcp(leaseTimeSeconds=seconds).send(captured["plain_discover"])).options
        lease, renew, rebind = (int.from_bytes(found[code], "big") for code in (51, 58, 59))
        assert renew <= rebind <= lease == seconds


@pytest.mark.parametrize(
    ("ip", "interface", "reason"),
    [
        ("10.77.0.58", {"disableDhcp": True}, "disableDhcp is true"),
        (None, {}, "dhcp.ip is not set"),
        ("10.77.0.1", {}, "10.77.0.1 is this server's own address"),
        ("224.0.0.1", {}, "224.0.0.1 is no address of a host"),
    ],
)
def test_machine_that_is_not_to_be_served_hears_nothing_and_the_journey_says_why(
    make_edge: MakeEdge,
    make_hardware: MakeHardware,
    captured: dict[str, bytes],
    ip: str | None,
    interface: dict[str, Any],
    reason: str,
) -> None:
    edge = make_edge(make_hardware("lab-1", MAC, ip, **interface))
    for name in ("edk2_pxe_discover", "edk2_pxe_request", "ipxe_bios_discover"):
        assert edge.send(captured[name]) is None
    assert len(edge.events) == 1
    assert edge.events[0].outcome.value == "refused"
    assert edge.events[0].message.startswith("no DHCP answer: Hardware default/lab-1: spec.networkInterfaces[")
    assert reason in edge.events[0].message


def test_machine_is_served_as_soon_as_it_is_registered_and_no_longer_when_it_is_not(
    make_edge: MakeEdge, make_hardware: MakeHardware, wire: Wire, captured: dict[str, bytes]
) -> None:
    edge = make_edge()
    assert edge.send(captured["edk2_pxe_discover"]) is None
    for ip in ("10.77.0.58", "10.77.0.59"):
        edge.inventory.apply(make_hardware("lab-1", MAC, ip))
        for _ in range(2):
            assert options.dotted(wire.read(edge.send(captured["edk2_pxe_discover"])).yiaddr) == ip
    edge.inventory.remove(make_hardware("lab-1", MAC, "10.77.0.59"))
    assert edge.send(captured["edk2_pxe_discover"]) is None


def test_change_of_any_field_is_served_at_once(
    make_edge: MakeEdge, make_hardware: MakeHardware, wire: Wire, captured: dict[str, bytes]
) -> None:
    obj = make_hardware("lab-1", MAC, "10.77.0.58")
    edge = make_edge(obj)
    before = wire.read(edge.send(captured["plain_discover"])).options
    for field, value, code in (
        ("netmask", "255.255.0.0", 1), ("gateway", "10.77.0.2", 3), ("nameservers", ["10.77.0.9"], 6),
        ("hostname", "other", 12), ("timeservers", ["10.77.0.9"], 42), ("leaseTimeSeconds", 60, 51),
    ):  # fmt: skip
        changed = copy.deepcopy(obj)
        changed["spec"]["networkInterfaces"][MAC]["dhcp"][field] = value
        edge.inventory.apply(changed)
        after = wire.read(edge.send(captured["plain_discover"])).options
        assert after[code] != before[code], field


def test_address_that_two_hardware_claim_is_given_to_neither_until_one_gives_it_up(
    make_edge: MakeEdge, make_hardware: MakeHardware, captured: dict[str, bytes]
) -> None:
    edge = make_edge(make_hardware("lab-1", MAC, "10.77.0.58"))
    assert edge.send(captured["edk2_pxe_discover"]) is not None
    edge.inventory.apply(make_hardware("lab-9", "52:54:00:00:00:09", "10.77.0.58"))
    assert edge.send(captured["edk2_pxe_discover"]) is None
    assert edge.messages()[1:] == ["no DHCP answer: IP 10.77.0.58 is claimed by several Hardware, so none is served"]
    edge.inventory.apply(make_hardware("lab-9", "52:54:00:00:00:09", "10.77.0.59"))
    assert edge.send(captured["edk2_pxe_discover"]) is not None


@pytest.mark.parametrize("terminating_first", [True, False])
def test_address_of_a_hardware_that_is_being_deleted_is_given_to_the_other_one_alone(
    make_edge: MakeEdge, make_hardware: MakeHardware, captured: dict[str, bytes], terminating_first: bool
) -> None:
    leaving = make_hardware("thief", "52:54:00:00:00:09", "10.77.0.58")
    leaving["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    objects = [leaving, make_hardware("lab-1", MAC, "10.77.0.58")]
    edge = make_edge(*(objects if terminating_first else reversed(objects)))
    assert edge.send(captured["edk2_pxe_discover"]) is not None
    of_thief = bytearray(captured["edk2_pxe_discover"])
    of_thief[28:34] = bytes.fromhex("525400000009")
    assert edge.send(bytes(of_thief)) is None
    edge.inventory.remove(objects[1])
    assert edge.send(bytes(of_thief)) is not None


def test_mac_that_two_hardware_claim_gets_no_answer_and_both_are_named(
    make_edge: MakeEdge, make_hardware: MakeHardware, captured: dict[str, bytes]
) -> None:
    edge = make_edge(make_hardware("lab-1", MAC, "10.77.0.58"), make_hardware("lab-2", MAC, "10.77.0.59"))
    for _ in range(2):
        assert edge.send(captured["edk2_pxe_discover"]) is None
    (event,) = edge.events
    assert event.outcome.value == "refused"
    assert "default/lab-1, default/lab-2" in event.message


def test_machines_of_one_network_share_what_is_equal(make_hardware: MakeHardware) -> None:
    inventory, compiler = Inventory(), Compiler("10.77.0.1", NetbootPolicy())
    for number in range(2, 200):
        inventory.apply(make_hardware(f"m{number}", f"52:54:00:00:00:{number:02x}", f"10.77.{number // 100}.{number}"))
    reservations = [compiler.compile(machine, is_sole=True) for machine in inventory.machines()]
    assert len({id(reservation.network) for reservation in reservations}) == 2
    del reservations
    assert len(compiler._networks) == 0


@pytest.mark.parametrize(
    "difference",
    [
        {"netmask": "255.255.255.128"}, {"gateway": "10.77.0.9"}, {"nameservers": ["10.77.0.9"]},
        {"timeservers": ["10.77.0.9"]}, {"hostname": "lab.other.org"}, {"leaseTimeSeconds": 7},
    ],
)  # fmt: skip
def test_machine_that_differs_in_one_field_gets_its_own(
    make_edge: MakeEdge, make_hardware: MakeHardware, wire: Wire, captured: dict[str, bytes], difference: dict[str, Any]
) -> None:
    one, other = make_hardware("a", MAC, "10.77.0.58"), make_hardware("b", "52:54:00:12:34:57", "10.77.0.59")
    for obj in (one, other):
        for interface in obj["spec"]["networkInterfaces"].values():
            interface["dhcp"]["hostname"] = "lab.example.org"
    other["spec"]["networkInterfaces"]["52:54:00:12:34:57"]["dhcp"].update(difference)
    packets = captured["plain_discover"], wire.altered(captured["plain_discover"], chaddr=bytes.fromhex("525400123457"))
    alone = wire.read(make_edge(other).send(packets[1])).options
    edge = make_edge(one, other)
    for _ in range(2):
        first, second = (wire.read(edge.send(packet)).options for packet in packets)
        assert second == alone != first


def test_relays_that_are_remembered_are_few(make_hardware: MakeHardware) -> None:
    inventory = Inventory()
    inventory.apply(make_hardware("lab", MAC, "10.77.0.58"))
    network = Compiler("10.77.0.1", NetbootPolicy()).compile(inventory.machines()[0], is_sole=True).network
    assert all(network.has_link(bytes((10, 77, 0, number))) for number in range(1, 200))
    assert len(network.links) <= 64


def test_too_many_servers_and_too_long_a_name_cost_no_boot(
    with_dhcp: Callable[..., Edge], wire: Wire, captured: dict[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    edge = with_dhcp(nameservers=[f"10.0.0.{n}" for n in range(1, 71)], hostname=".".join(["label"] * 43))
    found = wire.read(edge.send(captured["edk2_pxe_request"])).options
    assert len(found[6]) == 4 * 63
    assert options.HOST_NAME not in found
    assert options.DOMAIN_NAME not in found
    assert "only the first 63 of 70 are served" in caplog.text
    assert "hostname is left out" in caplog.text
    assert codec.parse(captured["edk2_pxe_request"]).options[55]
