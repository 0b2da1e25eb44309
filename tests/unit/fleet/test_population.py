"""Who the machines of a fleet are: all of it comes from the profile, the seed and a machine's number."""

from collections import Counter
from ipaddress import IPv4Address, IPv4Network
from itertools import pairwise
from pathlib import Path

import pytest

from edge.fleet.population import (
    Firmware,
    Profile,
    ProfileError,
    action_seconds,
    capacity,
    draw,
    identity,
    is_lost,
    load,
    read,
    with_faults,
)
from tink.api.yaml import documents

EVERYTHING = dict.fromkeys(
    ("lost-packets", "power-cuts", "hanging-firmware", "failing-actions", "slow-disks", "lying-clocks"), 0.2
)
MANY = 2000


def test_same_seed_gives_the_same_fleet():
    profile = with_faults(Profile(), EVERYTHING)
    first = [draw(profile, 7, number) for number in range(200)]
    assert first == [draw(profile, 7, number) for number in range(200)]
    assert [is_lost(0.2, 7, 3, packet) for packet in range(500)] == [
        is_lost(0.2, 7, 3, packet) for packet in range(500)
    ]
    action = profile.action("write-image")
    assert action_seconds(action, first[3], 7, "write-image") == action_seconds(action, first[3], 7, "write-image")


def test_fleet_of_this_seed_is_the_one_that_others_have_run():
    """Reports of two releases can be compared: what is drawn stays as it is."""
    traits = draw(with_faults(Profile(), EVERYTHING), 1, 17)
    assert (traits.firmware, round(traits.post, 3), round(traits.power_on, 3), traits.uuid.hex()[:8]) == (
        Firmware.UEFI, 72.147, 42.0, "e8159311",
    )  # fmt: skip
    assert [packet for packet in range(1, 40) if is_lost(0.1, 1, 17, packet)] == [20, 29, 35]


def test_another_seed_gives_other_machines():
    profile = Profile()
    assert all(draw(profile, 1, number) != draw(profile, 2, number) for number in range(50))


def test_fault_of_one_kind_leaves_the_rest_of_a_machine_as_it_is():
    plain, cut = draw(Profile(), 1, 5), draw(with_faults(Profile(), {"power-cuts": 1.0}), 1, 5)
    assert plain.cut_at is None
    assert cut.cut_at is not None
    assert (plain.firmware, plain.post, plain.kernel, plain.uuid) == (cut.firmware, cut.post, cut.kernel, cut.uuid)


@pytest.mark.parametrize("fault", ["cut_at", "hangs_at", "failing_action"])
def test_faults_come_as_often_as_the_rate_says(fault):
    profile = with_faults(Profile(), EVERYTHING)
    hit = sum(getattr(draw(profile, 3, number), fault) is not None for number in range(MANY))
    assert 0.17 * MANY < hit < 0.23 * MANY


def test_datagrams_are_lost_as_often_as_the_rate_says_and_not_in_step():
    lost = [is_lost(0.05, 1, number, packet) for number in range(40) for packet in range(500)]
    assert 0.04 * len(lost) < sum(lost) < 0.06 * len(lost)
    both = sum(one and other for one, other in pairwise(lost))
    assert both < 0.006 * len(lost), "one loss after the other is as rare as chance has it"


def test_firmware_has_the_shares_of_the_profile():
    found = Counter(draw(Profile(), 1, number).firmware for number in range(MANY))
    assert 0.25 * MANY < found[Firmware.BIOS] < 0.35 * MANY
    assert 0.55 * MANY < found[Firmware.UEFI] < 0.65 * MANY


def test_machines_have_addresses_of_the_network_and_none_twice():
    network = IPv4Network("10.9.0.0/20")
    found = [identity("m", network, number) for number in range(capacity(network))]
    assert len({each.address for each in found}) == len({each.mac for each in found}) == len(found) == 15 * 250
    assert all(IPv4Address(each.address) in network for each in found)
    assert not any(each.address.endswith((".0", ".255")) for each in found)
    assert found[17].mac_text == "02:f1:ee:00:00:11"
    assert network[1] not in {IPv4Address(each.address) for each in found}, "the relay's"


def test_network_that_is_too_small_has_no_room():
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


def test_profile_says_only_what_is_other(tmp_path):
    file = tmp_path / "profile.yaml"
    file.write_text('power-on: 5\nactions:\n  a: {seconds: [1, 2], output: ["{percent} %"]}\n  "*": {seconds: 3}\n')
    profile = load(file)
    assert profile.action_names == ("a",)
    assert profile.action("b").seconds.most == 3
    assert (profile.power_on.least, profile.post) == (5, Profile().post)


def test_fault_that_there_is_not_is_told():
    with pytest.raises(ProfileError, match="meteorites; there are lost-packets"):
        with_faults(Profile(), {"meteorites": 0.1})


def test_log_normal_has_its_median_and_p99():
    profile = Profile()
    drawn = sorted(draw(profile, 1, number).post for number in range(MANY))
    assert 37 < drawn[MANY // 2] < 43
    assert 100 < drawn[int(MANY * 0.99)] < 150


def test_documentation_has_the_profile_as_it_is():
    text = (Path(__file__).resolve().parents[3] / "docs/fleet.md").read_text()
    block = text.partition("```yaml\n")[2].partition("```")[0]
    assert read(next(documents(block)), "docs/fleet.md") == Profile()
