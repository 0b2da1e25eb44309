"""Who gets which script, whatever it asks over, and what the journey says of it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from edge.journey.events import Outcome, Step
from edge.journey.recorder import Journey
from edge.machines import DhcpMode, Inventory, MachineScripts, NetbootPolicy, scripts
from ipxe.scripts import BootSettings, LogsTo, Origin, Scripts

MAC = "52:54:00:00:00:01"
HERE = Origin("10.0.0.1")


class Rack:
    def __init__(self, mode: DhcpMode, default_osie: tuple[str, str] | None) -> None:
        self.inventory, self.journey = Inventory(), Journey(time.time)
        self.osies = {("default", "lab"): {}, ("rescue", "any"): {}}
        self.scripts = MachineScripts(
            self.inventory,
            NetbootPolicy(mode),
            lambda namespace, name: self.osies.get((namespace, name)),
            Scripts(BootSettings()),
            self.journey.record,
            default_osie,
        )
        self.inventory.on_change(self.scripts.machine_changed)

    def register(self, mac: str = MAC, **spec: Any) -> None:
        name = "m" + mac[-2:]
        spec = {
            "networkInterfaces": {mac: {"dhcp": {"ip": f"10.0.0.{int(mac[-2:], 16)}"}}},
            "osie": {"name": "lab"},
        } | spec
        self.inventory.apply({"metadata": {"name": name, "namespace": "default"}, "spec": spec})

    def script(self, mac: str = MAC, origin: Origin = HERE) -> str:
        return self.scripts.script(mac, origin, client="iPXE/1.0")

    def lines(self, mac: str = MAC) -> list[tuple[Step, Outcome, str]]:
        return [(event.step, event.outcome, event.message) for event in self.journey.events(mac)]


def rack(mode: DhcpMode = DhcpMode.RESERVATION, default_osie: tuple[str, str] | None = None) -> Rack:
    return Rack(mode, default_osie)


def test_two_networks_of_ours_get_scripts_with_their_own_addresses() -> None:
    edge = rack()
    edge.register()
    for address in ("10.0.0.1", "10.1.0.1", "10.0.0.1"):
        assert f"kernel http://{address}:7080/osie/lab/kernel " in edge.script(origin=Origin(address))
    assert f"kernel tftp://10.0.0.1/{MAC}/osie/lab/kernel " in edge.script(origin=Origin("10.0.0.1", tftp=True))


def test_changed_hardware_has_a_new_script_on_every_network() -> None:
    edge = rack()
    edge.register()
    origins = (HERE, Origin("10.1.0.1"))
    assert all(" quiet " not in edge.script(origin=origin) for origin in origins)
    edge.register(kernelParams=["quiet"])
    assert all(" quiet " in edge.script(origin=origin) for origin in origins)


def test_changed_words_of_an_osie_are_on_the_next_script() -> None:
    edge = rack()
    edge.register()
    assert " quiet " not in edge.script()
    edge.osies["default", "lab"] = {"metadata": {"annotations": {"tinkerbell.org/kernel-parameters": "quiet"}}}
    assert " quiet " in edge.script()
    edge.osies["default", "lab"] = {"metadata": {"annotations": {"tinkerbell.org/kernel-parameters": "a && b"}}}
    assert "echo OSIE default/lab: metadata.annotations[tinkerbell.org/kernel-parameters]" in edge.script()
    edge.osies["default", "lab"] = {}
    assert " quiet " not in edge.script()


def test_lines_are_wanted_once_a_machine_was_told_to_send_them() -> None:
    edge = rack()
    edge.scripts._scripts = Scripts(BootSettings(logs=LogsTo.HOOKOS))
    edge.register()
    assert " syslog_host=" not in edge.script()
    assert not edge.scripts.logs_wanted
    words = {"tinkerbell.org/kernel-parameters": "tink_worker_image=10.0.0.1:5000/tink-agent"}
    edge.osies["default", "lab"] = {"metadata": {"annotations": words}}
    assert " syslog_host=10.0.0.1 " in edge.script()
    assert edge.scripts.logs_wanted


def test_stranger_boots_the_default_osie_under_its_mac() -> None:
    edge = rack(DhcpMode.AUTO_PROXY, ("rescue", "any"))
    text = edge.script()
    assert "kernel http://10.0.0.1:7080/osie/any/kernel " in text
    assert f" worker_id={MAC} hw_addr={MAC} " in text
    assert edge.lines() == [(Step.SCRIPT, Outcome.OK, "script sent: OSIE rescue/any")]


def test_stranger_without_a_default_osie_reads_how_to_register_it() -> None:
    edge = rack(DhcpMode.AUTO_PROXY)
    text = edge.script()
    assert f"\necho {MAC} is seen, not registered, and there is no '--default-osie' for such machines.\n" in text
    assert f"\necho Apply a Hardware with {MAC} under spec.networkInterfaces:\n" in text
    assert text.endswith("\nexit 1\n")
    ((step, outcome, message),) = edge.lines()
    assert (step, outcome) == (Step.SCRIPT, Outcome.REFUSED)
    assert message.startswith(f"no boot: {MAC} is seen, not registered")


def test_stranger_whose_default_osie_is_missing_names_the_flag() -> None:
    edge = rack(DhcpMode.AUTO_PROXY, ("rescue", "gone"))
    assert "\necho OSIE rescue/gone, which '--default-osie' names, does not exist\n" in edge.script()
    assert edge.lines()[0][1] is Outcome.FAILED


def test_registered_machine_boots_its_own_osie_in_auto_proxy_too() -> None:
    edge = rack(DhcpMode.AUTO_PROXY, ("rescue", "any"))
    edge.register()
    assert "osie/lab/kernel" in edge.script()
    edge.register(osie=None)
    assert "spec.osie.name is not set" in edge.script()


@pytest.mark.parametrize("mode", [DhcpMode.RESERVATION, DhcpMode.PROXY, DhcpMode.OFF])
def test_stranger_is_refused_in_the_other_modes(mode: DhcpMode) -> None:
    edge = rack(mode, ("rescue", "any"))
    assert "\necho no Hardware has this MAC address\n" in edge.script()


def test_scripts_of_a_large_rack_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "MAX_KEPT", 4)
    edge = rack()
    macs = [f"52:54:00:00:00:{number:02x}" for number in range(1, 11)]
    for mac in macs:
        edge.register(mac)
    for _ in range(2):
        for mac in macs:
            assert f"worker_id={mac} " in edge.script(mac)
    assert len(edge.scripts._compiled) == 4


def test_each_sending_has_a_token_of_its_own_and_only_of_registered_machines() -> None:
    edge = rack(DhcpMode.AUTO_PROXY, default_osie=("rescue", "any"))
    made: list[str] = []

    def token(mac: str) -> str:
        made.append(f"t{len(made)}-{mac}")
        return made[-1]

    edge.scripts._scripts = Scripts(BootSettings(token=token))
    assert "osie/any/kernel" in edge.script()
    assert not made
    edge.register()
    for number in range(3):
        assert f"\nset tinkerbell-token t{number}-{MAC}\n" in edge.script()
    edge.osies.clear()
    assert "tinkerbell-token" not in edge.script(), "a script that shows a reason has no secret in it"
    assert len(made) == 3
    assert not [line for line in edge.lines() if "t0-" in str(line)]


def test_journey_says_that_a_script_leads_into_a_vlan() -> None:
    edge = rack()
    edge.register()
    edge.script()
    edge.register(networkInterfaces={MAC: {"dhcp": {"ip": "10.0.0.1", "vlanId": "50"}}})
    edge.script()
    assert [event.detail.get("vlan") for event in edge.journey.events(MAC)] == [None, "50"]
