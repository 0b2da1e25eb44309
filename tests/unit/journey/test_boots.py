"""Which DHCP packets begin a boot: retransmissions, iPXE, the OSIE, renewals and other cards do not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from edge.journey.boots import Boot, is_boot_packet, last_boot
from edge.journey.events import Note, Outcome, Step
from edge.journey.history import EDGE, PLACE, SEEN_BY, Happened
from tests.unit.journey.expectations import play as plays
from tests.unit.journey.expectations.play import MAC, Play
from tink.api.v1alpha2 import BootClient

OTHER = "52:54:00:00:00:02"
HEALTHY = yaml.safe_load(Path(plays.__file__).with_name("boots.yaml").read_text())["healthy"]
SYSTEM = "operating system"


def events(play: Play) -> Iterator[Happened]:
    for mac in (MAC, OTHER):
        for time, entry in play.journey.after(mac, 0.0, 500):
            yield Happened(time, mac, entry)


def boot_of(play: Play) -> Boot:
    boot = last_boot(events(play))
    assert boot is not None
    return boot


def boots(play: Play) -> list[tuple[float, str]]:
    """Return all boots: seconds after the beginning, and the client."""
    found: dict[float, str] = {}
    known = sorted(events(play), key=lambda each: each.time)
    for number in range(1, len(known) + 1):
        boot = last_boot(known[:number])
        if boot is not None:
            found[boot.time - play.began] = boot.client.value
    return [*found.items()]


def test_events_from_the_first_packet_of_a_boot_on_give_the_same_boot_as_the_whole_journey() -> None:
    play = Play()
    for run in (play.to_kernel, play.installed, play.to_agent):
        run().wait(40)
        system(play).wait(15)
        dhcp(play, "offer", "PXE ROM", mac=OTHER).wait(90)
    known = sorted(events(play), key=lambda each: each.time)
    boot = None
    for number in range(1, len(known) + 1):
        whole = last_boot(known[:number])
        assert last_boot(each for each in known[:number] if boot is None or each.time >= boot.time) == whole
        boot = whole
    assert len(boots(play)) > 5


def dhcp(play: Play, what: str, stage: str, client: str = "", mac: str = MAC) -> Play:
    detail = {"stage": stage, "dhcp": what} | ({"client": client} if client else {})
    play.journey.record(mac, Step.DHCP, Outcome.OK, f"DHCP{what.upper()}", **detail)
    return play


def discovers(play: Play, *seconds: float, stage: str = "PXE ROM") -> Play:
    """Send DISCOVERs this many seconds after the beginning."""
    for second in seconds:
        dhcp(play.wait(play.began + second - play.now), "offer", stage)
    return play


def system(play: Play) -> Play:
    return dhcp(dhcp(play, "offer", SYSTEM), "ack", SYSTEM)


@pytest.mark.parametrize("name", sorted(HEALTHY))
def test_healthy_boot_is_one_boot_up_to_the_osie(name: str) -> None:
    play = Play().act(HEALTHY[name])
    expected = {
        "reboots_twice": ["Netboot", "OperatingSystem"],
        "last_action_reboots": ["Netboot", "Netboot"],
        "boots_from_disk": ["Netboot", "OperatingSystem"],
    }
    assert [client for _, client in boots(play)] == expected.get(name, ["Netboot"])


def test_boot_begins_with_the_first_packet_of_the_firmware() -> None:
    play = Play().wait(3).to_agent()
    assert boot_of(play) == (play.began + 3, BootClient.NETBOOT, MAC, True)


@pytest.mark.parametrize(
    "seconds",
    [(0, 4, 12, 28), (0, 4, 12, 28, 60), (0, 4, 8, 12, 16, 20, 24), (0, 0.01, 0.02), (0, 1, 3, 7, 15)],
    ids=["rom", "whole-rom", "raspberry-pi", "by-several-relays", "ipxe"],
)
def test_retransmissions_of_a_discover_are_no_boots(seconds: tuple[float, ...]) -> None:
    assert boots(discovers(Play(), *seconds)) == [(0.0, "Netboot")]


@pytest.mark.parametrize("far", ["discover", "lease", "program", "ipxe", "script", "kernel"])
def test_machine_that_boots_every_20_seconds_has_a_boot_each_time(far: str) -> None:
    play = Play()
    for number in range(5):
        play.wait(play.began + 20 * number - play.now)
        discovers(play, 20 * number)
        if far != "discover":
            dhcp(play, "ack", "PXE ROM")
        if far not in ("discover", "lease"):
            play.program()
        if far in ("ipxe", "script", "kernel"):
            play.ipxe()
        if far in ("script", "kernel"):
            play.script()
        if far == "kernel":
            play.file(Step.KERNEL)
    assert boots(play) == [(20.0 * number, "Netboot") for number in range(5)]


def test_machine_with_ipxe_in_its_rom_that_boots_every_20_seconds_has_a_boot_each_time() -> None:
    play = Play()
    for number in range(4):
        play.wait(play.began + 20 * number - play.now)
        dhcp(dhcp(play, "offer", "iPXE"), "ack", "iPXE").script()
    assert [time for time, _ in boots(play)] == [0, 20, 40, 60]


def test_pauses_between_discovers_that_begin_to_grow_again_are_a_boot() -> None:
    play = discovers(Play(), 0, 4, 12, 28, 50, 54)
    assert boots(play) == [(0.0, "Netboot"), (50.0, "Netboot")], "the reset is known by the second packet"


def test_installed_system_has_a_boot_each_time_that_it_starts_and_none_for_a_renewal() -> None:
    play = system(Play().installed().wait(30))
    first = play.now - play.began
    for _ in range(3):
        play.wait(900)
        play.journey.record(MAC, Step.DHCP, Outcome.INFO, "DHCPACK 10.0.0.5 (renewal)", stage=SYSTEM)
    system(play.wait(20))
    second = play.now - play.began
    dhcp(play.wait(20), "ack", SYSTEM)  # INIT-REBOOT
    third = play.now - play.began
    names = [(at, "OperatingSystem") for at in (first, second, third)]
    assert boots(play) == [(0.0, "Netboot"), *names]


def test_dhcpv6_only_machine_boots_by_its_advertises_and_rapid_commits() -> None:
    play = Play().rom6().program()
    dhcp(dhcp(play, "advertise", "iPXE"), "reply", "iPXE").wait(1).script().files().starts()
    dhcp(play.wait(20), "reply", SYSTEM)  # the OSIE, with Rapid Commit
    play.agent().workflow("Running").workflow("Succeeded", Outcome.OK)
    dhcp(play.wait(40), "reply", SYSTEM)
    installed = play.now - play.began
    dhcp(play.wait(25), "reply", SYSTEM)
    assert boots(play) == [(0.0, "Netboot"), (installed, "OperatingSystem"), (installed + 25, "OperatingSystem")]


def test_boot_from_the_disk_is_recognised_in_every_phase_except_while_an_osie_may_start() -> None:
    far: dict[str, Any] = {
        "firmware": lambda play: play.rom(),
        "iPXE": lambda play: play.to_ipxe(),
        "script": lambda play: play.to_ipxe().script(),
        "agent": lambda play: play.to_agent(),
        "Workflow": lambda play: play.to_agent().workflow("Running"),
        "action": lambda play: play.to_agent().workflow("Running").action(),
        "installed": lambda play: play.installed(),
    }
    for name, run in far.items():
        play = system(run(Play()).wait(30))
        assert boots(play) == [(0.0, "Netboot"), (play.now - play.began, "OperatingSystem")], name
    assert boots(system(Play().to_kernel().wait(30))) == [(0.0, "Netboot")]


def test_second_dhcp_client_of_an_osie_or_of_an_installed_system_is_no_boot() -> None:
    assert boots(system(Play().to_kernel().osie().wait(12))) == [(0.0, "Netboot")]
    play = system(system(Play()).wait(6))
    assert boots(play) == [(0.0, "OperatingSystem")]


def test_other_cards_of_the_machine_are_of_the_same_boot() -> None:
    play = discovers(Play(), 0, 4, 12, 28).wait(33)
    dhcp(play, "offer", "PXE ROM", mac=OTHER).wait(4)
    dhcp(play, "ack", "PXE ROM", mac=OTHER)
    assert boots(play) == [(0.0, "Netboot")]
    play = system(Play())
    dhcp(play.wait(30), "offer", SYSTEM, mac=OTHER)
    assert len(boots(play)) == 1
    play = system(Play())
    dhcp(play.wait(600), "ack", SYSTEM, mac=OTHER)
    assert len(boots(play)) == 2, "long after the first card"
    play = Play().to_kernel().osie()
    dhcp(play.wait(3), "offer", SYSTEM, mac=OTHER)
    assert boots(play) == [(0.0, "Netboot")], "the OSIE configures all cards"
    dhcp(play.workflow("Running").workflow("Succeeded", Outcome.OK).wait(30), "ack", SYSTEM, mac=OTHER)
    assert boot_of(play)[1:3] == (BootClient.OPERATING_SYSTEM, OTHER)


def test_programs_that_the_firmware_loads_one_after_the_other_are_of_one_boot() -> None:
    play = Play()
    for client in ("Raspberry Pi (boot ROM)", "UEFI ARM64 PXE ROM"):
        dhcp(dhcp(play, "offer", "PXE ROM", client), "ack", "PXE ROM", client).program().wait(20)
    assert boots(play) == [(0.0, "Netboot")]
    dhcp(play.wait(10), "offer", "PXE ROM", "Raspberry Pi (boot ROM)")
    assert len(boots(play)) == 2


def test_proxy_offers_and_refused_offers_are_packets_of_boots() -> None:
    play = Play()
    for _ in range(3):
        detail = {"stage": "PXE ROM", "client": "UEFI x86-64 PXE ROM"}
        play.journey.record(MAC, Step.DHCP, Outcome.OK, "ProxyDHCP offer to UEFI x86-64 PXE ROM", **detail)
        play.wait(4)
        play.journey.record(MAC, Step.DHCP, Outcome.OK, "PXE boot server ACK to UEFI x86-64 PXE ROM", **detail)
        play.wait(60)
    assert [time for time, _ in boots(play)] == [0, 64, 128]
    play = Play().record(
        Step.DHCP, Outcome.REFUSED, "DHCPOFFER, because it may not netboot", stage="PXE ROM", dhcp="offer"
    )
    assert boots(play) == [(0.0, "Netboot")]


def test_script_of_a_boot_medium_begins_a_boot_if_another_server_gave_the_address() -> None:
    play = Play().script(medium="iso").files().starts().wait(40).script(medium="iso")
    assert boots(play) == [(0.0, "Netboot"), (play.now - play.began, "Netboot")]


@pytest.mark.parametrize("client", ["PXE ROM", SYSTEM])
def test_packet_after_the_bmc_has_switched_the_machine_off_always_begins_a_boot(client: str) -> None:
    play = Play().to_kernel()
    dhcp(play.wait(3), "offer", client)
    assert boot_of(play).time == (play.began if client == SYSTEM else play.now)
    for detail in ({"power": "off"}, {"reason": "PoweringOn"}):
        play = Play().to_kernel().wait(2).record(Step.POWER, Outcome.INFO, "it is off", **detail)
        dhcp(play.wait(3), "offer", client)
        first = play.now
        dhcp(play.wait(4), "offer", client)
        assert boot_of(play).time == first
    play = Play().to_kernel().wait(2).record(Step.POWER, Outcome.INFO, "it is on", power="on")
    dhcp(play.wait(3), "offer", SYSTEM)
    assert boot_of(play).time == play.began, "that says nothing about the time before"


def test_boot_that_only_another_edge_has_seen_is_not_this_edges() -> None:
    play = Play()
    foreign = {SEEN_BY: "10.0.0.2", PLACE: EDGE, "stage": "PXE ROM", "dhcp": "offer", "client": "PXE ROM"}
    play.journey.take_in(MAC, play.now, Note(Step.DHCP, Outcome.OK, "DHCPOFFER", foreign))
    assert boot_of(play) == (play.began, BootClient.NETBOOT, MAC, False)
    discovers(play, 0.5)
    assert boot_of(play) == (play.began, BootClient.NETBOOT, MAC, True), "the same boot, with the first time"
    (own,) = [entry for _, _, entry in events(play) if is_boot_packet(entry)]
    assert own
