"""A host of Metal3's, converted, at our DHCP server: its firmware is offered the address of its networkData."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edge.dhcp.wire import MessageType, options
from tests.unit.dhcp.harness import MakeEdge, Wire
from tink.convert.documents import read
from tink.convert.run import convert_documents

MAC = "52:54:00:12:34:56"
NETWORK = {
    "links": [{"id": "eno1", "type": "phy", "ethernet_mac_address": MAC}],
    "networks": [
        {
            "id": "n", "link": "eno1", "type": "ipv4", "ip_address": "10.77.0.58", "netmask": "255.255.255.0",
            "routes": [{"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "10.77.0.254"}],
        }
    ],
    "services": [{"type": "dns", "address": "10.77.0.2"}],
}  # fmt: skip


def hardware(version: str, state: str) -> dict[str, Any]:
    power = "online" if version == "v1alpha1" else "poweredOn"
    secret = {
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "net", "namespace": "m"},
        "stringData": {"networkData": json.dumps(NETWORK)},
    }  # fmt: skip
    host = {
        "apiVersion": f"metal3.io/{version}",
        "kind": "BareMetalHost",
        "metadata": {"name": "n0", "namespace": "m", "uid": "0f0f"},
        "spec": {power: True, "bootMACAddress": MAC.upper(), "networkData": {"name": "net"}},
        "status": {"provisioning": {"state": state}},
    }
    text = f"{json.dumps(secret)}\n---\n{json.dumps(host)}\n"
    (found,) = convert_documents(read("in.yaml", text.encode()), to="hardware").objects
    return found


@pytest.mark.parametrize("version", ["v1alpha1", "v1beta1"])
@pytest.mark.parametrize("state", ["available", "provisioned"])
@pytest.mark.parametrize("fast_path", [True, False])
def test_host_is_offered_its_address_and_a_boot_program_only_while_it_is_free(
    make_edge: MakeEdge, captured: dict[str, bytes], wire: Wire, version: str, state: str, fast_path: bool
) -> None:
    edge = make_edge(hardware(version, state), fast_path=fast_path)
    reply = edge.send(captured["edk2_pxe_discover"])
    message = wire.read(reply)
    assert wire.kind(reply) is MessageType.OFFER
    assert message.yiaddr == bytes((10, 77, 0, 58))
    assert message.options[options.SUBNET_MASK] == bytes((255, 255, 255, 0))
    assert message.options[options.ROUTER] == bytes((10, 77, 0, 254))
    assert message.options[options.DOMAIN_NAME_SERVER] == bytes((10, 77, 0, 2))
    assert message.options[options.HOST_NAME] == b"n0"
    boots = bool(message.file.strip(b"\0")) or options.BOOTFILE_NAME in message.options
    assert boots is (state == "available")
