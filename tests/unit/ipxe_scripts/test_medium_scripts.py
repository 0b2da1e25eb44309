"""The script on a boot medium, and what the machine's own script says after it."""

from __future__ import annotations

from typing import Any

import pytest

from ipxe.medium import AREA_BYTES
from ipxe.medium_scripts import MediumKind, MediumScripts
from ipxe.scripts import BootSettings, Origin, ScriptError, Scripts
from tink.api.v1alpha2 import Hardware

MAC = "52:54:00:00:00:01"
HERE = Origin("10.0.0.1")
DHCP = {
    "ip": "10.0.0.5",
    "netmask": "255.255.255.0",
    "gateway": "10.0.0.254",
    "hostname": "m1",
    "nameservers": ["10.0.0.53", "10.0.0.54"],
    "timeservers": ["10.0.0.123"],
}


def hardware(**dhcp: Any) -> Hardware:
    interfaces = {MAC: {"dhcp": {name: value for name, value in (DHCP | dhcp).items() if value}}}
    metadata = {"name": "m1", "namespace": "default"}
    return Hardware.model_validate(
        {"metadata": metadata, "spec": {"networkInterfaces": interfaces, "osie": {"name": "lab"}}}
    )


def script(kind: MediumKind, machine: Hardware | None, origin: Origin = HERE) -> list[str]:
    return MediumScripts(Scripts(BootSettings())).compile(MAC, machine, origin, kind).splitlines()


def test_medium_asks_dhcp_on_the_card_of_the_machine_and_goes_to_its_script() -> None:
    lines = script(MediumKind.BOOT, hardware())
    assert lines[0] == "#!ipxe"
    assert f"iseq ${{net${{number}}/mac}} {MAC} && goto card ||" in lines
    assert "ifopen ${medium-port} && ifconf --configurator dhcp ${medium-port} || goto again" in lines
    assert f"chain --replace http://10.0.0.1:7080/ipxe/script/{MAC}/auto.ipxe?medium=boot ||" in lines
    assert not any("10.0.0.5" in line for line in lines)
    assert lines[-1] == "exit 1"
    assert any("52:54:00:00:00:01 (no Hardware)" in line for line in script(MediumKind.BOOT, None))


def test_static_medium_has_the_address_and_asks_nobody() -> None:
    lines = script(MediumKind.STATIC, hardware())
    assert [line for line in lines if line.startswith("set ${medium-port}/")] == [
        "set ${medium-port}/ip 10.0.0.5",
        "set ${medium-port}/netmask 255.255.255.0",
        "set ${medium-port}/gateway 10.0.0.254",
        "set ${medium-port}/dns 10.0.0.53",
    ]
    assert not any("dhcp" in line for line in lines)
    assert "set tinkedge-anew yes" in lines, "nor does the machine's script, where the edge is gone"
    assert any(line.endswith("?medium=static ||") for line in lines)


def test_nameserver_is_the_first_that_has_an_ipv4_address() -> None:
    assert "set ${medium-port}/dns 10.0.0.54" in script(
        MediumKind.STATIC, hardware(nameservers=["ns1.example.org", "10.0.0.54"])
    )
    assert not any("/dns" in line for line in script(MediumKind.STATIC, hardware(nameservers=[])))


@pytest.mark.parametrize("kind", MediumKind)
def test_medium_goes_into_the_vlan_first_and_the_script_knows_so(kind: MediumKind) -> None:
    lines = script(kind, hardware(vlanId="50"))
    assert "isset ${${medium-port}/mac} || vcreate --tag 50 ${medium-card} || goto no_vlan" in lines
    assert lines.index("set vlan-ready 50") < next(at for at, line in enumerate(lines) if line.startswith("chain "))


def test_machine_without_an_address_has_no_static_medium() -> None:
    with pytest.raises(ScriptError, match=r"default/m1: spec.networkInterfaces\[52:.*\].dhcp needs ip and netmask"):
        script(MediumKind.STATIC, hardware(ip=None))
    with pytest.raises(ScriptError, match="has no Hardware"):
        script(MediumKind.STATIC, None)


def test_other_edges_come_after_this_one_and_all_fits_the_area() -> None:
    others = tuple(Origin(f"10.0.{n}.1", http_port=7080) for n in range(1, 5))
    lines = script(MediumKind.STATIC, hardware(vlanId="4094"), Origin("10.0.0.1", others=others))
    chains = [line.split("/")[2] for line in lines if line.startswith("chain ")]
    assert chains == ["10.0.0.1:7080", "10.0.1.1:7080", "10.0.2.1:7080", "10.0.3.1:7080", "10.0.4.1:7080"]
    assert len("\n".join(lines).encode()) < AREA_BYTES


def test_osie_of_a_machine_without_dhcp_gets_the_address_on_its_command_line_and_no_other_does() -> None:
    def words(origin: Origin, machine: Hardware) -> list[str]:
        text = Scripts(BootSettings()).compile(MAC, machine, origin).text
        return next(line for line in text.splitlines() if line.startswith("kernel ")).split()

    static = Origin("10.0.0.1", static=True)
    ipam = "ipam=52-54-00-00-00-01::10.0.0.5:255.255.255.0:10.0.0.254:m1:10.0.0.53,10.0.0.54::10.0.0.123"
    assert ipam in words(static, hardware())
    assert not any(word.startswith("ipam=") for word in words(HERE, hardware()))
    own = hardware().model_copy(update={"spec": hardware().spec.model_copy(update={"kernel_params": ["ipam=mine"]})})
    assert [word for word in words(static, own) if word.startswith("ipam=")] == ["ipam=mine"]
    with pytest.raises(ScriptError, match="has no address to do without DHCP"):
        words(static, hardware(ip=None))
    at_another = Origin("10.0.0.1", static=True, others=(Origin("10.9.0.1", http_port=7080, grpc_port=42113),))
    text = Scripts(BootSettings()).compile(MAC, hardware(), at_another).text
    assert text.count(ipam) == 2
