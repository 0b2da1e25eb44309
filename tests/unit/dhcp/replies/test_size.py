"""How large replies are: never smaller than 300 bytes, never larger than the client takes, and what goes first."""

from __future__ import annotations

import pytest

from edge.dhcp.boot.choice import Boot
from edge.dhcp.replies.assembly import TooSmallError, assemble, size_limit
from edge.dhcp.wire import MessageType, codec, options
from tests.unit.dhcp.harness import Edge, MakeEdge, MakeHardware, Wire

MAC = "52:54:00:12:34:56"


@pytest.mark.parametrize(
    ("says", "limit"),
    [
        (None, 548),
        (b"\x02\x40", 548),
        (b"\0\x80", 548),  # RFC 2132 section 9.10: 576 is the least that may be said
        (b"", 548),
        (b"\x04\x00", 996),
        (b"\x05\xdc", 1472),
        (b"\xff\x00", 1472),  # EDK2
    ],
)
def test_limit_is_what_the_client_says_within_what_the_network_carries(
    wire: Wire, captured: dict[str, bytes], says: bytes | None, limit: int
) -> None:
    changes = {"drop": (57,)} if says is None else {"options": {57: says}}
    assert size_limit(codec.parse(wire.altered(captured["plain_discover"], **changes))) == limit


def test_refusal_is_padded_to_the_least_that_every_client_takes(
    edge: Edge, wire: Wire, captured: dict[str, bytes]
) -> None:
    reply = edge.send(wire.altered(captured["edk2_pxe_request"], options={50: b"\1\2\3\4"}))
    assert wire.kind(reply) is MessageType.NAK
    assert len(reply.payload) == 300


def test_short_lease_is_padded_to_the_least_that_every_client_takes(
    make_edge: MakeEdge, wire: Wire, captured: dict[str, bytes]
) -> None:
    bare = {"metadata": {"name": "m", "namespace": "default"},
            "spec": {"networkInterfaces": {MAC: {"dhcp": {"ip": "10.77.0.58"}}}}}  # fmt: skip
    edge = make_edge(bare)
    for _ in range(2):
        assert len(edge.send(captured["plain_discover"]).payload) == 300


def test_client_that_takes_little_gets_what_it_can_not_do_without(
    make_edge: MakeEdge, make_hardware: MakeHardware, wire: Wire, captured: dict[str, bytes]
) -> None:
    obj = make_hardware("lab-2", MAC, "10.77.0.58")
    dhcp = obj["spec"]["networkInterfaces"][MAC]["dhcp"]
    dhcp["nameservers"] = [f"10.0.0.{n}" for n in range(1, 31)]
    dhcp["timeservers"] = [f"10.0.1.{n}" for n in range(1, 31)]
    edge = make_edge(obj)
    packet = wire.altered(captured["plain_discover"], options={55: bytes((1, 42, 3, 6, 12))})
    for _ in range(2):
        large = wire.read(edge.send(wire.altered(packet, options={57: b"\x05\xdc"}))).options
        assert (len(large[6]), len(large[42])) == (120, 120)
        small = edge.send(packet)
        found = wire.read(small).options
        assert len(small.payload) <= 548
        assert (found[1], found[3], len(found[6])) == (bytes((255, 255, 255, 0)), b"\x0a\x4d\0\1", 120)
        # The name was asked for last, and is the first to go; where that is enough, the rest stays.
        assert (12 in found, len(found.get(42, b""))) in ((False, 120), (False, 0), (True, 120))


def test_boot_file_survives_in_a_reply_to_a_client_that_takes_little(
    edge: Edge, wire: Wire, captured: dict[str, bytes]
) -> None:
    packet = wire.altered(
        captured["edk2_pxe_discover"], drop=(57,), options={61: b"\xff" * 255, 82: b"\1\x3c" + bytes(60)}
    )
    for _ in range(2):
        reply = edge.send(packet)
        assert len(reply.payload) <= 548
        found = wire.read(reply)
        assert found.file == b"snponly.efi"
        assert options.suboptions(found.options[43]) == {6: b"\x08"}
        assert len(found.options[82]) == 62


def test_name_servers_are_cut_to_two_before_a_boot_is_lost(
    make_edge: MakeEdge, make_hardware: MakeHardware, wire: Wire, captured: dict[str, bytes]
) -> None:
    obj = make_hardware("lab-2", MAC, "10.77.0.58")
    obj["spec"]["networkInterfaces"][MAC]["dhcp"]["nameservers"] = [f"10.0.0.{n}" for n in range(1, 64)]
    edge = make_edge(obj)
    for _ in range(2):
        reply = edge.send(wire.altered(captured["edk2_pxe_discover"], drop=(57,)))
        found = wire.read(reply)
        assert len(reply.payload) <= 548
        assert found.options[6] == bytes((10, 0, 0, 1, 10, 0, 0, 2))
        assert found.options[67] == b"snponly.efi\0"


def test_reply_that_can_not_be_made_small_enough_is_refused_with_the_reason(
    edge: Edge, wire: Wire, captured: dict[str, bytes]
) -> None:
    packet = wire.altered(captured["edk2_pxe_discover"], drop=(57,), options={82: bytes(400)})
    for _ in range(2):
        assert edge.send(packet) is None
    assert len(edge.events) == 1
    assert "the client takes 548" in edge.messages()[0]


def test_what_only_repeats_something_goes_first_and_what_boots_never(wire: Wire, captured: dict[str, bytes]) -> None:
    def numbered(code: int, size: int = 30) -> bytes:
        return options.option(code, bytes(size))

    boot = Boot(bytes(4), b"", b"", options=numbered(67), spare_options=numbered(66), text="")
    message = wire.altered(captured["plain_discover"], drop=(12, 55), options={61: bytes(30), 97: bytes(17)})
    request = codec.parse(message)

    def assembled(limit: int) -> bytes:
        return assemble(
            request._replace(options={**request.options, 57: (limit + 28).to_bytes(2, "big")}),
            MessageType.OFFER,
            bytes(4),
            boot,
            network=numbered(1) + numbered(12) + numbered(6) + numbered(42),
            fewer=lambda: [
                numbered(1) + numbered(12) + numbered(6),
                numbered(1) + numbered(6),
                numbered(1) + numbered(6, 8),
            ],
            vlan=numbered(43, 150),
            relay=numbered(82, 150),
        )

    seen: list[list[int]] = []
    limit = 900
    while len(seen) < 6:
        payload = assembled(limit)
        assert len(payload) <= limit
        at, codes = 240, []
        while payload[at] != 255:
            codes.append(payload[at])
            at += 2 + payload[at + 1]
        seen.append(codes)
        limit = at  # one byte less than the reply needs, with its END and without padding
    with pytest.raises(TooSmallError, match=f"the smallest DHCP reply is {limit + 1} bytes, the client takes {limit}"):
        assembled(limit)
    assert seen == [
        [53, 54, 1, 12, 6, 42, 43, 61, 97, 66, 67, 82],
        [53, 54, 1, 12, 6, 42, 43, 61, 97, 67, 82],
        [53, 54, 1, 12, 6, 43, 61, 97, 67, 82],
        [53, 54, 1, 6, 43, 61, 97, 67, 82],
        [53, 54, 1, 6, 43, 61, 97, 67, 82],  # with fewer name servers
        [53, 54, 1, 6, 43, 67, 82],
    ]


@pytest.mark.parametrize(
    ("size", "limit", "padded"),
    [
        (250, 548, 300),
        (300, 548, 300),
        (301, 548, 332),
        (332, 548, 332),
        (333, 548, 364),
        (530, 548, 548),
        (548, 548, 548),
    ],
)
def test_replies_have_few_sizes_and_never_more_than_the_client_takes(size: int, limit: int, padded: int) -> None:
    assert codec.padded_size(size, limit) == padded
