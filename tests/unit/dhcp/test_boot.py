"""What a client is, and what it is named to boot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edge.dhcp.boot import BootChoice
from edge.dhcp.boot.client import Client, ClientKind, identify, user_classes
from edge.dhcp.wire import MessageType, codec, options
from edge.machines import Inventory, Machine, NetbootPolicy
from ipxe.binaries import BootBinaries, BootPath, NoBinaryError
from tests.support import objects
from tests.unit.dhcp.harness import (
    CAPTURED,
    IPXE_BIOS,
    IPXE_EFI,
    MAC,
    PXE_DISCOVER,
    PXE_REQUEST,
    MakeEdge,
    altered,
    message_type,
    read,
)
from tink.convert.documents import read as read_documents
from tink.convert.run import convert_documents


def client(packet: bytes, **changes: Any) -> Client:
    return identify(codec.parse(altered(packet, **changes)))


@pytest.mark.parametrize(
    ("name", "kind", "architectures", "description"),
    [
        ("ipxe_bios_discover", ClientKind.IPXE, (0,), "iPXE (x86 BIOS)"),
        ("ipxe_efi_request_4011", ClientKind.IPXE, (7,), "iPXE (UEFI x86-64)"),
        ("edk2_pxe_discover", ClientKind.PXE_ROM, (7,), "UEFI x86-64 PXE ROM"),
        ("edk2_http_request", ClientKind.HTTP_ROM, (16,), "UEFI x86-64 HTTP Boot ROM"),
        ("dhclient_discover", ClientKind.OPERATING_SYSTEM, (), "operating system"),
        ("dhcpcd_discover", ClientKind.OPERATING_SYSTEM, (), "operating system"),
    ],
)
def test_each_stage_of_a_boot_is_told_from_the_others(name: str, kind: ClientKind, architectures, description) -> None:
    found = identify(codec.parse(CAPTURED[name]))
    assert (found.kind, found.architectures, found.description) == (kind, architectures, description)


@pytest.mark.parametrize(
    ("user_class", "classes"),
    [
        (b"iPXE", (b"iPXE",)),
        (b"\x04iPXE", (b"\x04iPXE", b"iPXE")),
        (b"\x03foo\x04iPXE", (b"\x03foo\x04iPXE", b"foo", b"iPXE")),
        (b"\x0aTinkerbell", (b"\x0aTinkerbell", b"Tinkerbell")),
        (b"Tinkerbell", (b"Tinkerbell",)),
    ],
    ids=["raw, as iPXE sends it", "RFC 3004", "RFC 3004, second class", "Smee's iPXE", "Smee's iPXE, raw"],
)
def test_ipxe_is_known_by_its_user_class_alone(user_class: bytes, classes: tuple[bytes, ...]) -> None:
    found = client(IPXE_BIOS, drop=(175,), options={77: user_class})
    assert found.kind is ClientKind.IPXE
    assert user_classes(user_class) == classes


@pytest.mark.parametrize("user_class", [b"", b"\x05iPXE", b"\0", b"\x04iPXE\x09x", b"gPXE", b"\x04foo\0iPXE"])
def test_user_classes_that_are_no_list_name_nobody_else(user_class: bytes) -> None:
    found = client(IPXE_BIOS, drop=(175,), options={77: user_class})
    assert found.kind is ClientKind.PXE_ROM
    assert user_classes(user_class) == ((user_class,) if user_class else ())


def test_ipxe_with_an_overridden_user_class_is_known_by_option_175_and_does_not_loop() -> None:
    assert client(IPXE_BIOS, options={77: b"PXEROM"}).kind is ClientKind.IPXE


def test_features_are_those_that_ipxe_lists() -> None:
    bios = identify(codec.parse(IPXE_BIOS))
    # dns, pxe ext(33), http, iscsi, menu, multiboot, nfs, ... as in that build of 2019
    assert {options.IPXE_HTTP, options.IPXE_TFTP, options.IPXE_BZIMAGE, options.IPXE_MENU} <= bios.features
    assert not {options.IPXE_HTTPS, options.IPXE_EFI, 177, 235} & bios.features
    assert bios.lacks(options.IPXE_EFI)
    assert not bios.lacks(options.IPXE_HTTP)
    efi = identify(codec.parse(IPXE_EFI))
    assert options.IPXE_EFI in efi.features
    without = client(IPXE_EFI, options={175: b"\x13\1\0\x15\1\1"})
    assert without.features == {options.IPXE_TFTP}  # version 0 is as good as none


def test_ipxe_that_lists_no_features_lacks_none() -> None:
    for listed in (b"\xb0\1\1", b"\x13\x09\1", b"\x13"):
        found = client(IPXE_EFI, options={175: listed})
        assert found.kind is ClientKind.IPXE
        assert not found.lacks(options.IPXE_HTTP)


def test_architectures_of_odd_length_and_of_old_roms_are_understood() -> None:
    packet = PXE_DISCOVER
    assert client(packet, options={93: b"\0\x0b\0\x07\0"}).architectures == (11, 7)
    assert client(packet, drop=(93,)).architectures == (7,)
    for vendor_class in (b"PXEClient", b"PXEClient:Arch:7:UNDI", b"PXEClient:Arch:0000x:", b"PXEClient:Prch:00007:"):
        assert client(packet, drop=(93,), options={60: vendor_class}).architectures == ()


def test_machines_of_one_kind_are_one_client() -> None:
    one = client(PXE_DISCOVER)
    assert client(PXE_REQUEST, chaddr=b"\2\0\0\0\0\1", options={97: b"\0" * 17}) is one


# --- boot path uki: the OSIE as one program, for firmware that is UEFI, and iPXE for any other ------------------------

HTTP_ROM = Client(ClientKind.HTTP_ROM, (16,), "UEFI")
PXE_ROM = Client(ClientKind.PXE_ROM, (7,), "UEFI")
BIOS = Client(ClientKind.PXE_ROM, (0,), "BIOS")


@pytest.fixture
def choice(tmp_path: Path) -> BootChoice:
    for name in ("undionly.kpxe", "snponly.efi"):
        (tmp_path / name).write_bytes(b"MZ")
    return BootChoice(NetbootPolicy(), BootBinaries(tmp_path), "10.0.0.1", "http://10.0.0.1:7080")


def machine(**spec: Any) -> Machine:
    inventory = Inventory()
    inventory.apply(objects.hardware(mac=MAC, annotations={"tinkerbell.org/boot-path": "uki"}, **spec))
    (found,) = inventory.machines()
    return found


def test_uefi_is_named_the_osie_itself_by_the_way_that_it_asks_for(choice: BootChoice) -> None:
    lab = machine(osie={"name": "lab"})
    by_http = choice.verdict(lab, MAC, HTTP_ROM).boot
    assert by_http.text == "boot file http://10.0.0.1:7080/osie/lab/uki.efi"
    assert options.option(options.VENDOR_CLASS, b"HTTPClient") in by_http.options
    by_tftp = choice.verdict(lab, MAC, PXE_ROM).boot
    assert (by_tftp.file, by_tftp.siaddr) == (b"osie/lab/uki.efi", bytes((10, 0, 0, 1)))
    assert not by_tftp.shared, "or another machine of that maker would get this one's OSIE"
    assert choice.verdict(lab, MAC, BIOS).boot.file == b"undionly.kpxe"


def test_machine_without_an_osie_is_told_what_is_missing(choice: BootChoice) -> None:
    assert "spec.osie.name is not set" in choice.verdict(machine(), MAC, HTTP_ROM).refusal


def test_fast_path_which_knows_no_osie_leaves_it_to_the_full_one(choice: BootChoice) -> None:
    with pytest.raises(NoBinaryError):
        choice.choose(PXE_ROM, MAC, BootPath.UKI)
    assert choice.choose(BIOS, MAC, BootPath.UKI).file == b"undionly.kpxe"


# --- a host of Metal3's, converted, is offered the address of its networkData -----------------------------------------

METAL3 = """
apiVersion: v1
kind: Secret
metadata: {name: net, namespace: m}
stringData:
  networkData: |
    links: [{id: eno1, type: phy, ethernet_mac_address: "52:54:00:12:34:56"}]
    networks:
    - {id: n, link: eno1, type: ipv4, ip_address: 10.77.0.58, netmask: 255.255.255.0,
       routes: [{network: 0.0.0.0, netmask: 0.0.0.0, gateway: 10.77.0.254}]}
    services: [{type: dns, address: 10.77.0.2}]
---
apiVersion: metal3.io/VERSION
kind: BareMetalHost
metadata: {name: n0, namespace: m, uid: 0f0f}
spec: {POWER: true, bootMACAddress: "52:54:00:12:34:56", networkData: {name: net}}
status: {provisioning: {state: STATE}}
"""


@pytest.mark.parametrize(("version", "power"), [("v1alpha1", "online"), ("v1beta1", "poweredOn")])
@pytest.mark.parametrize("state", ["available", "provisioned"])
@pytest.mark.parametrize("fast_path", [True, False])
def test_host_is_offered_its_address_and_a_boot_program_only_while_it_is_free(
    make_edge: MakeEdge, version: str, power: str, state: str, fast_path: bool
) -> None:
    text = METAL3.replace("VERSION", version).replace("POWER", power).replace("STATE", state)
    (hardware,) = convert_documents(read_documents("in.yaml", text.encode()), to="hardware").objects
    reply = make_edge(hardware, fast_path=fast_path).send(PXE_DISCOVER)
    message, found = read(reply), read(reply).options
    assert message_type(reply) is MessageType.OFFER
    assert (message.yiaddr, found[options.SUBNET_MASK]) == (bytes((10, 77, 0, 58)), bytes((255, 255, 255, 0)))
    assert found[options.ROUTER] == bytes((10, 77, 0, 254))
    assert found[options.DOMAIN_NAME_SERVER] == bytes((10, 77, 0, 2))
    assert found[options.HOST_NAME] == b"n0"
    boots = bool(message.file.strip(b"\0")) or options.BOOTFILE_NAME in found
    assert boots is (state == "available")
