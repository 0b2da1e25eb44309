"""A fleet: its machines, which the profile, the seed and a number make; its results; and what it is let loose on."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from contextlib import nullcontext
from ipaddress import IPv4Address, IPv4Network
from itertools import pairwise
from pathlib import Path

import pytest

from edge.building.shell import family
from edge.fleet.network import FleetError, MachineLink, check, is_hosts_namespace
from edge.fleet.objects import Boots
from edge.fleet.population import (
    Firmware,
    Profile,
    ProfileError,
    action_seconds,
    capacity,
    chance,
    draw,
    identity,
    load,
    read,
    with_faults,
)
from edge.fleet.results import (
    BarError,
    Failure,
    FleetReport,
    FleetStep,
    Question,
    Recorder,
    Whole,
    judged,
    lines,
    numbers,
    parse,
    percentile,
)
from edge.fleet.settings import FleetSettings, FleetSettingsError, HardwareSource
from edge.neighbour.route import Route, RouteKind
from tests.waiting import wait_until
from tink.api.yaml import documents

# --- the machines: all of them comes from the profile, the seed and a number ------------------------------------------


EVERYTHING = dict.fromkeys(
    ("lost-packets", "power-cuts", "hanging-firmware", "failing-actions", "slow-disks", "lying-clocks"), 0.2
)
MANY = 2000


def test_same_seed_gives_the_same_fleet():
    profile = with_faults(Profile(), EVERYTHING)
    first = [draw(profile, 7, number) for number in range(200)]
    assert first == [draw(profile, 7, number) for number in range(200)]
    assert all(traits != draw(profile, 2, number) for number, traits in enumerate(first)), "another seed, others"
    assert [(chance(7, 3, packet) < 0.2) for packet in range(500)] == [
        (chance(7, 3, packet) < 0.2) for packet in range(500)
    ]
    action = profile.action("write-image")
    assert action_seconds(action, first[3], 7, "write-image") == action_seconds(action, first[3], 7, "write-image")


def test_fleet_of_this_seed_is_the_one_that_others_have_run():
    """Reports of two releases can be compared: what is drawn stays as it is."""
    traits = draw(with_faults(Profile(), EVERYTHING), 1, 17)
    assert (traits.firmware, round(traits.post, 3), round(traits.power_on, 3), traits.uuid.hex()[:8]) == (
        Firmware.UEFI, 72.147, 42.0, "e8159311",
    )  # fmt: skip
    assert [packet for packet in range(1, 40) if (chance(1, 17, packet) < 0.1)] == [20, 29, 35]


def test_what_is_drawn_comes_as_often_as_the_profile_says_and_a_fault_changes_nothing_else():
    profile = with_faults(Profile(), EVERYTHING)
    faulty = [draw(profile, 3, number) for number in range(MANY)]
    for fault in ("cut_at", "hangs_at", "failing_action"):
        assert 0.17 * MANY < sum(getattr(each, fault) is not None for each in faulty) < 0.23 * MANY, fault
    lost = [(chance(1, number, packet) < 0.05) for number in range(40) for packet in range(500)]
    assert 0.04 * len(lost) < sum(lost) < 0.06 * len(lost)
    both = sum(one and other for one, other in pairwise(lost))
    assert both < 0.006 * len(lost), "one loss after the other is as rare as chance has it"
    plain = [draw(Profile(), 1, number) for number in range(MANY)]
    found = Counter(each.firmware for each in plain)
    assert 0.25 * MANY < found[Firmware.BIOS] < 0.35 * MANY
    assert 0.55 * MANY < found[Firmware.UEFI] < 0.65 * MANY
    posts = sorted(each.post for each in plain)
    assert 37 < posts[MANY // 2] < 43, "log-normal: its median"
    assert 100 < posts[int(MANY * 0.99)] < 150, "and its 99th percentile"
    cut = draw(with_faults(Profile(), {"power-cuts": 1.0}), 1, 5)
    assert (plain[5].cut_at, cut.cut_at is not None) == (None, True)
    for name in ("firmware", "post", "kernel", "uuid"):
        assert getattr(plain[5], name) == getattr(cut, name)


def test_machines_have_addresses_of_the_network_and_none_twice():
    network = IPv4Network("10.9.0.0/20")
    found = [identity("m", network, number) for number in range(capacity(network))]
    assert len({each.address for each in found}) == len({each.mac for each in found}) == len(found) == 15 * 250
    assert all(IPv4Address(each.address) in network for each in found)
    assert not any(each.address.endswith((".0", ".255")) for each in found)
    assert found[17].mac_text == "02:f1:ee:00:00:11"
    assert network[1] not in {IPv4Address(each.address) for each in found}, "the relay's"
    assert capacity(IPv4Network("10.9.0.0/24")) == 0


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"post": [5, 1]}, "post"),
        ({"post": "soon"}, "post"),
        ({"post": {"median": 3}}, "post"),
        ({"firmware": {"uefi": 0}}, "firmware"),
        ({"firmware": {"coreboot": 1}}, "firmware"),
        ({"faults": {"lost-packets": 2}}, "lost-packets"),
        ({"actions": {"*": {}}}, "actions"),
        ({"actoins": {}}, "actoins"),
    ],
)
def test_profile_that_can_not_be_used_names_the_field(value, says):
    with pytest.raises(ProfileError, match=says):
        read(value, "profile.yaml")
    with pytest.raises(ProfileError, match="meteorites; there are lost-packets"):
        with_faults(Profile(), {"meteorites": 0.1})


def test_profile_says_only_what_is_other(tmp_path):
    file = tmp_path / "profile.yaml"
    file.write_text('power-on: 5\nactions:\n  a: {seconds: [1, 2], output: ["{percent} %"]}\n  "*": {seconds: 3}\n')
    profile = load(file)
    assert profile.action_names == ("a",)
    assert profile.action("b").seconds.most == 3
    assert (profile.power_on.least, profile.post) == (5, Profile().post)
    text = (Path(__file__).resolve().parents[3] / "docs/fleet.md").read_text()
    block = text.partition("```yaml\n")[2].partition("```")[0]
    assert read(next(documents(block)), "docs/fleet.md") == Profile(), "the paper has the profile as it is"


# --- settings, and what a fleet is let loose on -----------------------------------------------------------------------


TARGET = IPv4Address("10.0.0.1")
GENERATED = {"target": TARGET, "kubeconfig": Path("k"), "boots": Boots("lab")}


def networks(*texts: str) -> tuple[IPv4Network, ...]:
    return tuple(map(IPv4Network, texts))


@pytest.mark.parametrize(
    ("kind", "allow", "by_uplink", "says"),
    [
        (RouteKind.LINK, (), True, "interface of the host: add --allow 10.0.0.1"),
        (RouteKind.ROUTER, (), False, "behind a router"),
        (RouteKind.NONE, (), False, "--allow 10.0.0.1"),
        (RouteKind.ROUTER, ("10.1.0.0/24",), False, "behind a router"),
        (RouteKind.LINK, (), False, None),
        (RouteKind.OWN, (), False, None),
        (RouteKind.ROUTER, ("10.0.0.1/32",), False, None),
        (RouteKind.LINK, ("10.0.0.0/24",), True, None),
    ],
)
def test_address_is_taken_only_in_the_own_namespace_or_if_it_is_named(kind, allow, by_uplink, says):
    with pytest.raises(FleetError, match=says) if says else nullcontext():
        check(TARGET, networks(*allow), is_hosts=False, by_uplink=by_uplink, route=lambda _: Route(kind))
    with pytest.raises(FleetError, match="where no machine may run"):
        check(TARGET, networks(*allow), is_hosts=True, route=lambda _: Route(RouteKind.LINK))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"machines": 0}, "--machines"),
        ({"machines": 300, "network": IPv4Network("10.9.0.0/23")}, "room for 250"),
        ({"machines": 1001, "link": MachineLink.DIRECT}, "direct is for 1000"),
        ({"relay": IPv4Address("10.200.0.1")}, "--relay-address"),
        ({"hardware": HardwareSource.CLUSTER}, "needs --target"),
        ({"hardware": HardwareSource.CLUSTER, "bmc": True}, "needs --hardware generate"),
        ({"interface": "eth1"}, "need --target"),
        ({"bars": [parse("failled=0")]}, "there is no failled"),
        ({"target": TARGET}, "needs --kubeconfig"),
        ({"target": TARGET, "kubeconfig": Path("k")}, "need something to boot"),
        (GENERATED | {"link": MachineLink.DIRECT}, "needs --interface"),
        (GENERATED | {"roles": True}, "without --target"),
        (GENERATED | {"link": MachineLink.DIRECT, "interface": "eth1", "uplink": "10.0.0.9/24"}, "one MAC only"),
    ],
)
def test_contradictory_settings_are_rejected(settings, says):
    with pytest.raises(FleetSettingsError, match=says):
        FleetSettings(**{"machines": 10, "profile": Profile(), **settings})


def test_hosts_namespace_is_that_of_process_one(tmp_path):
    for name in ("host", "named/other"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    host, other, nowhere = tmp_path / "host", tmp_path / "named/other", tmp_path / "nowhere"
    assert is_hosts_namespace(host, host, tmp_path / "named")
    assert not is_hosts_namespace(host, other, tmp_path / "named")
    assert not is_hosts_namespace(nowhere, other, tmp_path / "named"), "it can't be seen, but this one has a name"
    assert is_hosts_namespace(nowhere, host, tmp_path / "named")
    assert is_hosts_namespace(nowhere, host, nowhere)


# --- results: numbers, bars, and why machines failed ------------------------------------------------------------------


def recorder() -> Recorder:
    made = Recorder(100)
    for number in range(1, 100):
        made.took(Whole.PROVISIONED, float(number))
        made.took(Question.DHCP_OFFER, number / 1000)
    made.failures.append(Failure("m-7", FleetStep.KERNEL, "kernel: 404", injected=False))
    return made


@pytest.mark.parametrize(
    ("bar", "holds"),
    [
        ("failed=1", True),
        ("failed=0", False),
        ("failed-without-fault=0", False),
        ("succeeded>=99%", True),
        ("succeeded>99%", False),
        ("dhcp-offer.p99<1s", True),
        ("dhcp-offer.p99<50ms", False),
        ("provisioned.max<=1.65m", True),
        ("twice=0", True),
    ],
)
def test_bar_holds_or_is_told_with_its_number(bar, holds):
    broken = judged([parse(bar)], numbers(recorder(), 10.0))
    assert bool(broken) is not holds
    assert all(text.startswith(f"{bar}: it is ") for text in broken)


@pytest.mark.parametrize("text", ["", "failed", "failed==0", "failed<", "p99<1s<2s", "failed<one", "failled=0"])
def test_bar_that_can_not_be_read_or_measured_is_refused(text):
    with pytest.raises(BarError, match="there is no failled" if text == "failled=0" else "is not a bar"):
        judged([parse(text)], numbers(recorder(), 10.0))


def test_recorder_times_steps_that_were_done_sees_actions_that_run_again_and_stays_small():
    assert [percentile(range(1, 101), share) for share in (0.5, 0.99, 1.0)] == [50, 99, 100], "the nearest rank"
    assert percentile([], 0.5) == 0
    made = Recorder(2)
    made.moved(FleetStep.OFF, FleetStep.KERNEL, 1.0, completed=True)
    made.moved(FleetStep.KERNEL, FleetStep.FIRMWARE, 2.0, completed=False)
    made.moved(FleetStep.FIRMWARE, FleetStep.KERNEL, 3.0, completed=True)
    made.moved(FleetStep.KERNEL, FleetStep.DONE, 4.0, completed=True)
    assert list(made.seconds[FleetStep.KERNEL]) == [4.0]
    assert (made.at[FleetStep.OFF], made.at[FleetStep.DONE]) == (1, 1)
    for action in ("a", "b", "a"):
        made.action_begins("m-1", "workflow", action)
    made.action_begins("m-1", "another workflow", "a")
    assert made.twice == ["m-1: action a of workflow workflow"]
    assert made.actions == 4
    for number in range(5000):
        made.error(FleetStep.AGENT, str(number))
    assert (len(made.errors) <= 1001, made.errors.total()) == (True, 5000), "ever new texts do not fill memory"


def test_report_names_the_first_cause_and_a_machine():
    made = recorder()
    report = FleetReport({"machines": "100"}, numbers(made, 10.0), made.failures, {}, {}, [])
    text = "\n".join(lines(report, {key: len(values) for key, values in made.seconds.items()}))
    assert "1  kernel: kernel: 404, e.g. m-7" in text
    assert report.as_json()["failures"] == [
        {"machine": "m-7", "step": "kernel", "cause": "kernel: 404", "injected": False}
    ]


# --- measurements of the programs that it starts ----------------------------------------------------------------------


def test_processes_of_a_role_are_counted_with_their_children():
    command = ["sh", "-c", "sleep 3600 & sleep 3600 & wait"]
    with subprocess.Popen(command) as parent:
        try:
            wait_until(lambda: len({*family(parent.pid)}) == 3)
            assert next(family(parent.pid)) == parent.pid
        finally:
            for pid in reversed([*family(parent.pid)]):
                os.kill(pid, signal.SIGTERM)
    assert [*family(parent.pid)] == [parent.pid], "it has ended"
