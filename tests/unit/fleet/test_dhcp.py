"""The fleet's DHCP clients are what the server takes them for, and take what real ones take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edge.dhcp import DhcpSettings, Received, Responder
from edge.dhcp.wire import MessageType, codec, options
from edge.fleet.network.port import arp_answer
from edge.fleet.protocols.dhcp import Clients, Conversation, NakError
from edge.machines import DhcpMode, Inventory, NetbootPolicy, NetbootWhen
from ipxe.binaries import BootBinaries

MAC = bytes.fromhex("02f1ee000001")
UUID = bytes(range(16))
XID = b"\1\2\3\4"
RELAY = options.ipv4("10.9.0.2")
ADDRESS = "10.9.1.1"


def responder(tmp_path: Path, *, pending: bool = True) -> Responder:
    for name in ("undionly.kpxe", "snponly.efi"):
        (tmp_path / name).write_bytes(b"MZ" + bytes(1000))
    inventory = Inventory()
    policy = NetbootPolicy(DhcpMode.RESERVATION, NetbootWhen.WORKFLOW, lambda _namespace, _name: pending)

    def record(*_: Any, **__: Any) -> None:
        """Nobody looks."""

    settings = DhcpSettings("10.9.0.1", "10.9.0.1", "http://10.9.0.1:7080")
    made = Responder(inventory, settings, record, lambda: 0.0, BootBinaries(tmp_path), policy)
    inventory.on_change(made.machine_changed)
    dhcp = {"ip": ADDRESS, "netmask": "255.255.0.0", "gateway": "10.9.0.2"}
    spec = {"networkInterfaces": {MAC.hex(":"): {"dhcp": dhcp}}, "osie": {"name": "lab"}}
    inventory.apply({"metadata": {"name": "m", "namespace": "default"}, "spec": spec})
    return made


def carried_out(server: Responder, client: Clients, giaddr: bytes = bytes(4)) -> Conversation:
    source = options.dotted(giaddr)
    conversation = Conversation(client.value, MAC, UUID, XID, giaddr)
    for _ in range(2):
        reply = server.respond(conversation.packet(0), Received(source, 67 if any(giaddr) else 68, 67))
        if reply is not None and conversation.receive(reply.payload):
            conversation.take()
    return conversation


@pytest.mark.parametrize("giaddr", [bytes(4), RELAY], ids=["direct", "relay"])
@pytest.mark.parametrize(
    ("client", "file"),
    [
        (Clients.BIOS, "undionly.kpxe"),
        (Clients.UEFI, "snponly.efi"),
        (Clients.UEFI_HTTP, f"http://10.9.0.1:7080/ipxe/binary/{MAC.hex(':')}/snponly.efi"),
        (Clients.IPXE_BIOS, f"http://10.9.0.1:7080/ipxe/script/{MAC.hex(':')}/auto.ipxe"),
        (Clients.IPXE_UEFI, f"http://10.9.0.1:7080/ipxe/script/{MAC.hex(':')}/auto.ipxe"),
        (Clients.OSIE, ""),
        (Clients.SYSTEM, ""),
    ],
)
def test_each_client_gets_what_is_meant_for_it(tmp_path, client, file, giaddr):
    lease = carried_out(responder(tmp_path), client, giaddr).lease
    assert lease is not None
    assert (lease.address, lease.server, lease.file, lease.local_boot) == (ADDRESS, "10.9.0.1", file, False)


def test_ipxe_is_not_made_to_wait_for_a_proxy(tmp_path):
    assert carried_out(responder(tmp_path), Clients.IPXE_UEFI).waits_for_proxy == 0


@pytest.mark.parametrize("client", [Clients.BIOS, Clients.UEFI])
def test_rom_that_is_to_boot_its_disk_hears_so(tmp_path, client):
    lease = carried_out(responder(tmp_path, pending=False), client).lease
    assert lease is not None
    assert lease.local_boot


def reply_to(conversation: Conversation, kind: MessageType, **changed: Any) -> bytes:
    asked = codec.parse(conversation.packet(0))
    values = {options.MESSAGE_TYPE: bytes((kind,)), options.SERVER_IDENTIFIER: bytes((10, 9, 0, 1))}
    answer = asked._replace(op=codec.BOOTREPLY, yiaddr=options.ipv4(ADDRESS), options=values, **changed)
    return codec.build(answer)


@pytest.mark.parametrize("changed", [{"xid": b"\0\0\0\1"}, {"chaddr": bytes(6)}], ids=["xid", "chaddr"])
def test_answer_to_somebody_else_is_passed_over(changed):
    conversation = Conversation(Clients.OSIE.value, MAC, UUID, XID)
    assert not conversation.receive(reply_to(conversation, MessageType.OFFER, **changed))
    assert not conversation.receive(b"no DHCP")
    assert not conversation.offered


def test_http_boot_passes_over_an_offer_without_its_class():
    conversation = Conversation(Clients.UEFI_HTTP.value, MAC, UUID, XID)
    assert not conversation.receive(reply_to(conversation, MessageType.OFFER, file=b"http://10.9.0.1/x.efi"))


def test_refusal_is_an_error():
    conversation = Conversation(Clients.OSIE.value, MAC, UUID, XID)
    assert conversation.receive(reply_to(conversation, MessageType.OFFER))
    conversation.take()
    with pytest.raises(NakError):
        conversation.receive(reply_to(conversation, MessageType.NAK))


def test_arp_for_a_machine_is_answered_with_its_mac():
    asker, address = bytes.fromhex("525400000001"), options.ipv4(ADDRESS)
    head = b"\xff" * 6 + asker + b"\x08\x06" + bytes.fromhex("0001080006040001")
    request = head + asker + options.ipv4("10.9.0.1") + bytes(6) + address
    answer = arp_answer(request, {address: MAC})
    assert answer is not None
    assert (answer[:6], answer[6:12], answer[22:28], answer[28:32]) == (asker, MAC, MAC, address)
    assert arp_answer(request, {}) is None
    assert arp_answer(request[:20], {address: MAC}) is None
