"""The boot watch: findings about a machine that depend on the journeys of other machines."""

from __future__ import annotations

from ipaddress import IPv6Network
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edge.journey.discovery import DiscoveryJourney
from edge.journey.events import Outcome, Step
from edge.journey.recorder import Journey
from edge.machines import (
    BootProblem,
    BootProblemWriter,
    Inventory,
    Machine,
    MachineState,
    PendingWorkflows,
    StateWriter,
)
from edge.neighbour.host import NetworkState
from edge.run.boot_watch import BootWatch, rest_after
from edge.run.networks.follow import HostNetworks
from tests.support import objects
from tests.support.objects import MAC
from tink.api.v1alpha2 import BootClient, Raw

STRANGER = "52:54:00:ff:ff:01"
UUID = "4c4c4544-0042-3510-8052-b4c04f4a3232"


def hardware(name: str = "a", mac: str = MAC, ip: str = "10.0.0.5", **dhcp: Any) -> Raw:
    return objects.hardware(name, mac, ip, namespace="d", dhcp={"netmask": "255.255.255.0", **dhcp})


class Site:
    """An edge with one Hardware; `now` is its clock."""

    def __init__(self, *states: NetworkState) -> None:
        self.now = 1000.0
        self.journey = Journey(lambda: self.now)
        self.shown: dict[str, tuple[str, str]] = {}
        """By Hardware: the MAC and the reason of its last problem; an empty reason if the problem has ended."""
        self.away = ""
        self.workflows = PendingWorkflows()
        self.inventory = inventory = Inventory()
        inventory.apply(hardware())
        writer = SimpleNamespace(found=self._found, found_of_another=self._found_of_another)
        problems = cast(BootProblemWriter, writer)
        networks = cast(HostNetworks, SimpleNamespace(states=states))
        ports, clock, away = (7080, 42113), lambda: self.now, lambda: self.away
        self.states: list[str] = []
        """The states of the machine that the writer of states got."""
        self.of: list[str] = []
        """The name of the Hardware of each state."""
        self.boots: list[tuple[float, str, str]] = []
        """The boots that the writer of states got: time, client and MAC."""
        states = cast(
            StateWriter,
            SimpleNamespace(seen=self._seen, booted=self._booted),
        )
        self.watch = BootWatch(
            self.journey, inventory, self.workflows, networks, tuple, problems, ports, clock, away, states
        )

    def _found(self, machine: Any, problem: BootProblem | None) -> None:
        self._found_of_another(f"{machine.namespace}/{machine.name}", machine.mac, problem)

    def _found_of_another(self, hardware: object, mac: str, problem: BootProblem | None) -> None:
        self.shown[str(hardware)] = (mac, problem.reason if problem is not None else "")

    def _seen(self, machine: Machine, state: MachineState) -> None:
        self.states.append(state.value)
        self.of.append(machine.name)

    def _booted(self, machine: Machine, at: float, client: BootClient) -> None:
        if (at, client.value, machine.mac) not in self.boots:  # as the writer does
            self.boots.append((at, client.value, machine.mac))

    def sweep(self) -> None:
        self.now += 1
        list(self.watch.find_boots())
        list(self.watch.expectations.sweep())
        list(self.watch.place())

    def starts_kernel(self, mac: str) -> None:
        self.journey.record(mac, Step.BOOT, Outcome.INFO, "iPXE starts the kernel", phase="starting", uuid=UUID)

    def has_a_workflow(self, mac: str) -> None:
        """Record the Workflow on the journey of a machine that has sent nothing yet."""
        self.journey.record(mac, Step.WORKFLOW, Outcome.INFO, "workflow d/w: Pending", state="Pending")

    def is_seen(self, mac: str) -> None:
        self.journey.record(mac, Step.SEEN, Outcome.INFO, "seen, not registered", uuid=UUID)

    def warnings(self, mac: str) -> list[str]:
        return [event.message for event in self.journey.newest(mac, 50) if event.outcome is Outcome.WARNING]


def test_second_card_is_named_whichever_card_was_heard_first() -> None:
    for order in (Site.starts_kernel, Site.is_seen), (Site.is_seen, Site.starts_kernel):
        site = Site()
        for hear in order:
            hear(site, MAC if hear is Site.starts_kernel else STRANGER)
            site.sweep()
        site.sweep()
        (warning,) = site.warnings(STRANGER)
        assert "has the UUID of Hardware d/a" in warning


def test_wrong_mac_is_shown_on_the_hardware_that_have_it_until_it_is_corrected() -> None:
    site = Site()
    near = MAC[:-1] + "f"
    site.has_a_workflow(MAC)
    site.is_seen(near)
    site.sweep()
    assert site.shown == {"d/a": (near, "AlmostRegistered")}
    site.inventory.apply(hardware(mac=near))
    site.sweep()
    assert site.shown == {"d/a": (near, "")}
    site, other = Site(), hardware("b", ip="10.0.0.6")
    site.inventory.apply(other)
    site.is_seen(MAC)
    site.sweep()
    assert site.shown == dict.fromkeys(("d/a", "d/b"), (MAC, "DuplicateMAC"))
    site.inventory.remove(other)
    site.sweep()
    assert site.shown == dict.fromkeys(("d/a", "d/b"), (MAC, ""))
    # An unknown machine may have been registered while the API was away.
    site = Site()
    site.away = "the Kubernetes API has not answered since 14:02:11 UTC"
    site.is_seen(STRANGER)
    site.sweep()
    (warning,) = site.warnings(STRANGER)
    assert warning.startswith(f"is not among the Hardware objects known here, which may be out of date: {site.away}")


def test_machine_whose_hardware_is_deleted_has_no_problem_and_its_mac_can_be_reused() -> None:
    site = Site()
    site.journey.record(MAC, Step.KERNEL, Outcome.FAILED, "OSIE d/o: kernelUrl http://mirror/k: 404 Not Found")
    site.sweep()
    assert site.watch.shown(MAC)["finding"]["reason"] == "KernelFailed"
    site.inventory.remove(hardware())
    for _ in range(30):
        site.sweep()
    assert site.watch.shown(MAC)["finding"] is None
    site.inventory.apply(hardware("b"))
    for _ in range(30):
        site.sweep()
    assert site.watch.shown(MAC)["finding"] is None, "what was before is not the new Hardware's"


@pytest.mark.parametrize("goes_first", [False, True], ids=["new-name-first", "old-name-first"])
def test_journey_goes_on_under_the_name_that_a_discovered_machine_gets(goes_first: bool) -> None:
    site = Site()
    site.inventory.remove(hardware())
    discoveries = DiscoveryJourney(site.journey, is_live=lambda: True, on_approved=site.watch.approved)
    site.watch.is_moving = discoveries.is_moving
    label = {"labels": {"tinkerbell.org/auto-discovered": "true"}}
    known: dict[str, Raw] = {}

    def put(obj: Raw) -> None:
        site.inventory.apply(obj)
        discoveries.on_change(obj, known.get(obj["metadata"]["name"]))
        known[obj["metadata"]["name"]] = obj

    def gone(obj: Raw) -> None:
        site.inventory.remove(obj)
        site.watch.hardware_gone(obj)
        discoveries.on_delete(obj)

    first = hardware("discovery-x") | {"status": {}}
    first["metadata"] |= label
    put(first)
    site.journey.record(MAC, Step.AGENT, Outcome.OK, "agent connected")
    site.sweep()
    put(first | {"status": {"inventory": {"inBand": {"product": {"vendor": "Dell"}}}}})
    for _ in range(10):
        site.sweep()
    assert site.shown["d/discovery-x"] == (MAC, "NotApproved")
    approving = {"annotations": {"tinkerbell.org/approved-as": "d/m7"}, "deletionTimestamp": objects.CREATED}
    leaving = first | {"metadata": first["metadata"] | approving}
    final = objects.hardware("m7", MAC, "10.0.0.5", namespace="d")
    final["metadata"]["annotations"] = {"tinkerbell.org/discovered-as": "discovery-x"}
    put(leaving)
    for step in [gone, put] if goes_first else [put, gone]:
        step(leaving if step is gone else final)
        site.sweep()
    for _ in range(10):
        site.sweep()
    assert site.watch.shown(MAC)["finding"]["reason"] == "NoWorkflow"
    assert site.shown["d/m7"] == (MAC, "NoWorkflow")
    assert site.states[-1] == "Waiting"
    assert site.of[-1] == "m7", "the new Hardware has the state of the machine"
    texts = [event.message.split(":")[0] for event in site.journey.events(MAC) if event.step is not Step.WORKFLOW]
    assert [each for each in texts if not each.startswith("has introduced itself and")] == [
        "agent connected",
        "has introduced itself",
        "approved by a list of expected machines",
    ]


def test_failure_is_shown_with_its_parts_and_since_when() -> None:
    site = Site()
    site.journey.record(MAC, Step.KERNEL, Outcome.FAILED, "OSIE d/o: kernelUrl http://mirror/k: 404 Not Found")
    began = site.now
    site.sweep()
    finding = site.watch.shown(MAC)["finding"]
    assert finding["facts"] == "OSIE d/o: kernelUrl http://mirror/k: 404 Not Found"
    assert finding["causes"] == ["the URL has a typo", "the file was moved or was never uploaded"]
    assert finding["checks"] == ["correct that field of the OSIE, or put the file there"]
    assert finding["began"] == began


def ipxe(site: Site, what: str, mac: str = MAC) -> None:
    site.journey.record(mac, Step.DHCP, Outcome.OK, f"DHCP {what} to iPXE", stage="iPXE", dhcp=what)


def test_ipxe_that_configures_itself_over_ipv4_is_the_only_one_whose_solicitations_are_answered() -> None:
    site = Site()
    assert not site.watch.is_ipxe_waiting(MAC), "it was never heard"
    site.journey.record(MAC, Step.DHCP, Outcome.OK, "DHCPOFFER to PXE ROM", stage="PXE ROM", dhcp="offer")
    assert not site.watch.is_ipxe_waiting(MAC), "it is firmware"
    ipxe(site, "offer")
    assert site.watch.is_ipxe_waiting(MAC)
    site.journey.record(MAC, Step.TFTP, Outcome.OK, "TFTP sent snponly.efi")
    ipxe(site, "ack")
    site.journey.record(MAC, Step.TFTP, Outcome.OK, "TFTP sent snponly.efi, told late")
    assert site.watch.is_ipxe_waiting(MAC)
    site.now += 31
    assert not site.watch.is_ipxe_waiting(MAC), "it has given up IPv6 long ago"
    ipxe(site, "ack")
    site.journey.record(MAC, Step.SCRIPT, Outcome.OK, "script sent")
    assert not site.watch.is_ipxe_waiting(MAC), "it has gone on"
    ipxe(site, "reply")
    assert not site.watch.is_ipxe_waiting(MAC), "it boots over IPv6, and is to ask DHCPv6"
    site.is_seen(STRANGER)
    assert not site.watch.is_ipxe_waiting(STRANGER), "it was answered nothing"
    site.journey.record(STRANGER, Step.DHCP, Outcome.OK, "ProxyDHCP offer to iPXE", stage="iPXE")
    assert site.watch.is_ipxe_waiting(STRANGER), "beside another DHCP server it is waited for, too"
    site.journey.record(MAC, Step.DHCP, Outcome.REFUSED, "DHCPOFFER to iPXE, local boot", stage="iPXE", dhcp="offer")
    assert site.watch.is_ipxe_waiting(MAC), "it shows why it may not netboot, and boots its disk"
    site.now += 31
    assert not site.watch.is_ipxe_waiting(MAC)


def test_agent_without_a_workflow_is_shown_the_workflow_that_waits_for_a_silent_machine() -> None:
    site = Site()
    site.inventory.apply(hardware("b", STRANGER, "10.0.0.6"))
    site.workflows.apply(objects.workflow(namespace="d", hardware="b"))
    site.has_a_workflow(STRANGER)
    site.journey.record(MAC, Step.AGENT, Outcome.OK, "connected")
    for _ in range(9):
        site.sweep()
    (logged,) = [event.message for event in site.journey.newest(MAC, 9) if event.step is Step.WORKFLOW]
    assert logged.endswith("waits for Hardware d/b, whose machine was never seen: is it meant for this machine?")


def is_refused(site: Site, reason: str) -> None:
    line = f"DHCPOFFER to UEFI x86-64 PXE ROM, local boot, because it may not netboot: {reason}"
    site.journey.record(MAC, Step.DHCP, Outcome.REFUSED, line, stage="PXE ROM", dhcp="offer")
    site.sweep()


def after_a_workflow(state: str, reason: str = "") -> Site:
    """The machine is refused after its Workflow ended, because of that or for another reason."""
    site = Site()
    ended = objects.workflow("w", state, namespace="d", hardware="a", lastTransitioned="2026-11-21T12:00:00Z")
    site.workflows.apply(ended)
    is_refused(site, reason or site.workflows.why_none("d", "a"))
    return site


def test_refused_machine_has_a_problem_unless_it_is_to_boot_the_disk_that_its_workflow_has_written() -> None:
    reason = "Hardware d/a: spec.networkInterfaces[x].disableNetboot is true"
    for site in (after_a_workflow("Failed"), after_a_workflow("Canceled"), after_a_workflow("Succeeded", reason)):
        assert site.shown == {"d/a": (MAC, "DhcpRefused")}
    site = after_a_workflow("Succeeded")
    assert site.shown.get("d/a", ("", ""))[1] == ""
    assert not site.watch.shown(MAC)["finding"]


def test_firmware_that_does_not_run_its_boot_program_is_reported_to_the_handler() -> None:
    site, reported = Site(), []
    site.watch.on_not_started = reported.append

    def dhcp(what: str) -> None:
        site.journey.record(MAC, Step.DHCP, Outcome.OK, f"DHCP{what}", stage="PXE ROM", dhcp=what, boot="x.efi")

    for _ in range(2):
        dhcp("offer")
        site.sweep()
        dhcp("ack")
        site.sweep()
        site.journey.record(MAC, Step.TFTP, Outcome.OK, "TFTP sent x.efi", name="x.efi")
        site.sweep()
    dhcp("offer")
    for _ in range(10):
        site.sweep()
    assert reported == [MAC, MAC], "once for each time"


def test_sweeps_use_a_fiftieth_of_a_processor_and_pauses_are_bounded() -> None:
    assert [rest_after(spent) for spent in (0.0, 0.02, 0.05, 1.0)] == pytest.approx([1.0, 1.0, 2.45, 4.0])


@pytest.mark.parametrize(
    ("dhcp", "networks6", "logged"),
    [
        ("reply", ("fd00:77::/64",), "GRUB, which solicits no IPv6 router, has no route to this edge"),
        ("reply", ("fd00:77::/64", "fd00:78::/64"), "Secure Boot refuses it"),
        ("reply", (), "Secure Boot refuses it"),
        ("ack", ("fd00:77::/64",), "Secure Boot refuses it"),
    ],
    ids=["behind-a-router", "on-a-link-of-the-edge", "nothing-known", "by-ipv4"],
)
def test_grub_that_is_silent_has_no_router_only_where_it_needs_one(
    dhcp: str, networks6: tuple[str, ...], logged: str
) -> None:
    state = NetworkState("eth1", networks6=tuple(map(IPv6Network, networks6)))
    site = Site(state)
    site.inventory.apply(hardware(ipv6={"address": "fd00:78::5"}))
    site.journey.record(MAC, Step.DHCP, Outcome.OK, "leased", stage="PXE ROM", dhcp=dhcp)
    site.journey.record(MAC, Step.TFTP, Outcome.OK, "TFTP sent", name="grubx64.efi")
    site.now += 60
    site.sweep()
    (warning,) = site.warnings(MAC)
    assert warning.partition("for 61 s: ")[2].startswith(logged), warning


def test_deadline_of_an_action_moves_with_each_line_that_it_prints() -> None:
    site = Site()
    site.journey.record(MAC, Step.ACTION, Outcome.INFO, "started", action="disk", number=1, of=2, state="Running")
    site.sweep()
    for _ in range(150):
        site.journey.record(MAC, Step.ACTION, Outcome.INFO, "x", action="disk", output="x")
        printed = site.now
        site.sweep()
        assert site.watch.shown(MAC)["deadline"] == printed + 60
    for _ in range(90):
        site.sweep()
    assert site.watch.shown(MAC)["deadline"] == printed + 60, "it is overdue since then"
    assert site.watch.shown(MAC)["waiting_for"]


# --- where a machine is -----------------------------------------------------------------------------------------------


def happens(site: Site, step: Step, outcome: Outcome = Outcome.OK, **detail: Any) -> str:
    """Return the state of the machine after this event."""
    site.journey.record(MAC, step, outcome, "it happens", **detail)
    site.sweep()
    return site.states[-1] if site.states else ""


def test_state_follows_a_machine_from_its_first_packet_to_its_installed_system() -> None:
    site, workflow = Site(), objects.workflow("w", "Running", namespace="d", hardware="a")
    assert happens(site, Step.DHCP, stage="PXE ROM", dhcp="offer") == "Netbooting"
    assert happens(site, Step.SCRIPT) == "Netbooting"
    happens(site, Step.KERNEL)
    happens(site, Step.INITRD)
    assert happens(site, Step.DHCP, stage="operating system", dhcp="ack") == "InOSIE"
    site.workflows.apply(objects.workflow("w", "Pending", namespace="d", hardware="a"))
    assert happens(site, Step.AGENT) == "InOSIE", "it is about to get its Workflow"
    site.workflows.apply(workflow)
    assert happens(site, Step.WORKFLOW, Outcome.INFO, state="Running") == "Working"
    assert happens(site, Step.METADATA) == "Working", "an action reads it"
    assert happens(site, Step.ACTION, state="Succeeded") == "Working"
    assert happens(site, Step.WORKFLOW, state="Succeeded") == "Installed"
    assert happens(site, Step.DHCP, stage="operating system", dhcp="ack") == "Installed"
    assert happens(site, Step.METADATA) == "Installed"


@pytest.mark.parametrize(("state", "shown"), [("Failed", "Failed"), ("Canceled", "Waiting")])
def test_state_says_how_the_last_workflow_ended(state: str, shown: str) -> None:
    site = Site()
    assert happens(site, Step.AGENT) == "Waiting"
    happens(site, Step.WORKFLOW, Outcome.INFO, state="Running")
    outcome = Outcome.FAILED if state == "Failed" else Outcome.INFO
    assert happens(site, Step.WORKFLOW, outcome, state=state) == shown


def test_silent_machine_has_no_state_whatever_happens_to_its_workflow() -> None:
    site = Site()
    assert happens(site, Step.WORKFLOW, Outcome.FAILED, state="Failed") == ""


# --- the Hardware is gone ---------------------------------------------------------------------------------------------


def test_journey_says_that_the_hardware_was_deleted_while_a_workflow_needs_it() -> None:
    site = Site()
    site.watch.hardware_gone(hardware())
    assert site.journey.events(MAC) == [], "no Workflow needs it"
    site.workflows.apply(objects.workflow("w", "Running", namespace="d", hardware="a"))
    site.watch.hardware_gone(hardware())
    (event,) = site.journey.events(MAC)
    assert event.message.startswith("workflow d/w: its Hardware d/a was deleted: nothing is served to this machine")


# --- its boots and its power ------------------------------------------------------------------------------------------


def is_offered(site: Site, mac: str = MAC, stage: str = "PXE ROM", what: str = "offer") -> None:
    site.journey.record(mac, Step.DHCP, Outcome.OK, f"DHCP{what.upper()}", stage=stage, dhcp=what)


def pause(site: Site, seconds: int) -> None:
    for _ in range(seconds):
        site.sweep()


def test_each_boot_is_passed_to_the_writer_in_the_sweep_after_its_first_packet() -> None:
    site, began = Site(), []
    for _ in range(3):
        site.now += 0.5
        began.append(site.now)
        is_offered(site)
        site.sweep()
        assert [at for at, _, _ in site.boots] == began
        site.now += 0.5
        is_offered(site, what="ack")
        pause(site, 20)
    assert [(client, mac) for _, client, mac in site.boots] == [("Netboot", MAC)] * 3


def test_boot_of_an_installed_system_is_passed_to_the_writer_although_the_state_stays() -> None:
    site = Site()
    for _ in range(2):
        site.now += 0.5
        is_offered(site, stage="operating system")
        pause(site, 120)
    assert set(site.states) == {"Installed"}
    assert [client for _, client, _ in site.boots] == ["OperatingSystem"] * 2


def test_cards_of_one_hardware_have_the_same_boot_and_unregistered_machines_have_none() -> None:
    site = Site()
    second = objects.hardware("a", interfaces={MAC: {"dhcp": {"ip": "10.0.0.5"}}, STRANGER: {}}, namespace="d")
    site.inventory.apply(second)
    site.now += 0.5
    is_offered(site)
    pause(site, 30)
    site.now += 0.5
    is_offered(site, STRANGER)
    pause(site, 2)
    assert {mac for _, _, mac in site.boots} == {MAC}
    site = Site()
    site.now += 0.5
    is_offered(site, STRANGER)
    pause(site, 2)
    assert site.boots == []


def test_machine_is_off_from_the_report_of_its_bmc_to_its_next_packet() -> None:
    site = Site()
    site.now += 0.5
    is_offered(site)
    site.inventory.apply(hardware() | {"status": {"power": "on"}})
    pause(site, 1)
    site.inventory.apply(hardware() | {"status": {"power": "off"}})
    pause(site, 40)
    assert (
        site.watch.shown(MAC)["finding"]["message"]
        == "its power is off (BMC). 'tinkedge power a on -n d' switches it on"
    )
    assert site.shown["d/a"] == (MAC, "PoweredOff")
    site.journey.record(MAC, Step.AGENT, Outcome.INFO, "agent disconnected")
    pause(site, 1)
    assert site.watch.shown(MAC)["finding"]["reason"] == "PoweredOff", "the end of the connection is noticed late"
    # A person has switched the machine on since the last poll of its BMC.
    site.now += 0.5
    first = site.now
    is_offered(site)
    pause(site, 4)
    assert site.watch.shown(MAC)["finding"] is None
    assert site.boots[-1][0] == first
    pause(site, 20)
    assert "was offered 10.0.0.5 once" in site.watch.shown(MAC)["finding"]["message"], "not before it was off"
    logged = [event.message for event in site.journey.newest(MAC, 50) if event.step is Step.POWER]
    assert logged == ["the BMC reports that the machine is off"]


def test_machine_that_was_switched_off_boots_with_its_next_packet_even_if_it_looks_like_a_repetition() -> None:
    site = Site()
    site.now += 0.5
    is_offered(site)
    site.sweep()
    for power in ("on", "off", "on"):
        site.inventory.apply(hardware() | {"status": {"power": power}})
    site.now += 4
    is_offered(site)
    site.sweep()
    assert len(site.boots) == 2
