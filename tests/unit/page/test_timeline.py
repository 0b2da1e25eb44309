"""A boot drawn to scale."""

from __future__ import annotations

import pytest

from edge.journey.events import Outcome, Step
from edge.journey.expectations import read
from edge.journey.steps import Milestone
from edge.page.machine import MachineShown
from edge.page.timeline import Timeline, chains
from edge.page.words import Phase
from tests.page_site import INSTALLATION, PageSite, Played, cut

T0 = 1_700_000_000.0


def shown(site: PageSite, mac: str, number: int = 0) -> MachineShown:
    found = site.pages.machines.shown(mac, number)
    assert found is not None
    return found


def drawn(site: PageSite, mac: str, number: int = 0) -> Timeline:
    found = shown(site, mac, number).timeline
    assert found is not None
    return found


def installed(began: float = T0) -> tuple[PageSite, str]:
    site = PageSite(began)
    mac = site.hardware("m1", 1)
    site.play(mac, INSTALLATION, began, "m1")
    return site, mac


def test_installation_is_one_line_from_dhcp_to_cloud_init() -> None:
    site, mac = installed()
    line = drawn(site, mac)
    assert (line.began, line.reached) == (T0, "installed system is up")
    assert line.seconds == pytest.approx(131.5)
    labels = [bar.label for bar in line.bars]
    assert labels[0] == "takes the address"
    assert labels[-1] == "system comes up"
    assert [label for label in labels if label.startswith("action")] == [
        "action stream-image", "action grow-partition", "action reboot",
    ]  # fmt: skip
    assert len(chains(read(mac, site.journey.events(mac)))) == 1


def test_bars_are_to_scale_and_without_gaps() -> None:
    site, mac = installed()
    line = drawn(site, mac)
    assert sum(bar.seconds for bar in line.bars) == pytest.approx(line.seconds)
    assert sum(bar.width for bar in line.bars) == pytest.approx(100, abs=0.1)
    for bar, after in zip(line.bars, line.bars[1:], strict=False):
        assert bar.x + bar.width == pytest.approx(after.x, abs=0.01)
    image = next(bar for bar in line.bars if bar.label == "action stream-image")
    assert image.width == pytest.approx(100 * 43.5 / 131.5, abs=0.01)
    assert image.phase is Phase.INSTALLING
    assert all(0 <= tick.x <= 100 for tick in line.ticks)


def test_step_that_lasts_grows_and_is_late_after_its_limit() -> None:
    site = PageSite(T0)
    mac = site.hardware("m1", 1)
    site.play(mac, cut(Milestone.LEASED), T0, "m1")
    site.at = T0 + 4.9 + 5
    bar = drawn(site, mac).bars[-1]
    assert (bar.label, bar.open, bar.late) == ("asks for its boot program", True, False)
    assert bar.seconds == pytest.approx(5)
    site.at = T0 + 4.9 + 30
    bar = drawn(site, mac).bars[-1]
    assert (bar.open, bar.late, bar.limit) == (True, True, 8)


def test_failed_action_is_drawn_as_one() -> None:
    site = PageSite(T0)
    mac = site.hardware("m1", 1)
    failed: Played = (60.0, Step.ACTION, Outcome.FAILED, "failed", {"action": "stream-image", "state": "Failed"})
    site.play(mac, [*cut(Milestone.ACTION_BEGUN), failed], T0, "m1")
    assert [bar.failed for bar in drawn(site, mac).bars if bar.label == "action stream-image"] == [True]


def test_earlier_boots_are_listed_and_say_what_is_usual_for_this_machine() -> None:
    site, mac = installed()
    site.play(mac, INSTALLATION, T0 + 5000, "m1")
    found = shown(site, mac)
    assert [at for at, _ in found.earlier] == [0, 1]
    first = next(bar for bar in drawn(site, mac).bars if bar.label == "takes the address")
    assert first.usual == pytest.approx(4.9)
    before = drawn(site, mac, 1)
    assert before.began == T0
    assert before.bars[0].usual is None


def test_boot_number_that_there_is_not_shows_the_oldest() -> None:
    site, mac = installed()
    assert shown(site, mac, 999).number == 0


def test_machine_that_boots_for_ever_has_bounded_bars() -> None:
    site = PageSite(T0)
    mac = site.hardware("m1", 1)
    many: list[Played] = [
        (100.0 + number, Step.ACTION, Outcome.INFO, "begun", {"action": f"a{number}", "state": "Running"})
        for number in range(200)
    ]
    site.play(mac, [*cut(Milestone.ACTION_BEGUN), *many], T0, "m1")
    line = drawn(site, mac)
    assert len(line.bars) <= 80
    assert len(line.ticks) <= 10


def test_machine_that_was_never_heard_has_no_line() -> None:
    site = PageSite(T0)
    assert shown(site, site.hardware("m1", 1)).timeline is None
    assert site.pages.machines.shown("02:00:00:00:00:01") is None
