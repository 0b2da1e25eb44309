"""Diagnoses of a machine that is off, or that BMC control switches: no sentence about its last boot is false then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from edge.journey.events import Outcome, Step
from tests.unit.journey.expectations.play import FACTS, Play

NO_DISCOVER = "BMC says On, boot target Pxe, no DISCOVER from 52:54:00:00:00:01: cable, VLAN, or wrong MAC"
WAYS: dict[str, Callable[[Play], Play]] = {
    "offered": lambda play: play.dhcp("offer", "PXE ROM", "boot file snponly.efi"),
    "leased": lambda play: play.rom(),
    "program": lambda play: play.rom().program(),
    "script": lambda play: play.to_ipxe().script(),
    "kernel": lambda play: play.to_kernel(),
    "agent": lambda play: play.to_agent(),
    "action": lambda play: play.to_agent().workflow("Running").action(),
}


def power(play: Play, reason: str, outcome: Outcome = Outcome.INFO, message: str = "") -> Play:
    message = message or f"pxe (attempt 1): {reason}"
    return play.record(Step.POWER, outcome, message, reason=reason, way="pxe", attempt=1, workflow="default/install")


def is_switched(play: Play) -> Play:
    for reason in ("PoweringOff", "OverrideSet", "PoweringOn", "RunningActions", "WaitingForDiscover"):
        power(play, reason).wait(4)
    return play


@pytest.mark.parametrize("far", WAYS)
def test_machine_that_bmc_control_switches_is_missing_no_step(far: str) -> None:
    play = is_switched(WAYS[far](Play())).wait(200)
    assert play.warnings == []
    # It boots: it was switched off and on, and nothing has restarted it.
    play.to_agent()
    assert play.warnings == []


def test_cause_that_bmc_control_has_named_is_the_problem_until_the_machine_boots() -> None:
    play = power(is_switched(WAYS["kernel"](Play())).wait(60), "NoDiscover", Outcome.WARNING, NO_DISCOVER)
    found = play.found
    assert found is not None
    assert (found.rule, found.facts, found.step) == ("NoDiscover", NO_DISCOVER, Step.POWER)
    assert "tinkedge bmc check" in found.message
    play.wait(300)
    assert len([each for each in play.journey.events("52:54:00:00:00:01") if each.message == NO_DISCOVER]) == 1
    settled = play.settled
    play.to_agent().wait(1)
    assert play.settled > settled
    assert play.warnings == ["NoDiscover"]


def test_cause_is_the_problem_of_a_machine_that_has_sent_nothing() -> None:
    play = power(Play(), "CredentialsRefused", Outcome.WARNING, "password refused; Secret bmc/m1 is unchanged")
    assert play.wait(1).warnings == ["CredentialsRefused"]
    power(play, "PoweringOff").wait(1)
    assert play.settled


@pytest.mark.parametrize(
    ("reason", "message", "remedy"),
    [
        ("BmcUnreachable", "can't connect to 10.9.9.9", "can't connect to 10.9.9.9. look at spec.connection of the"),
        ("CertificateNotTrusted", "another fingerprint", "certificateFingerprint of the Machine"),
        ("CredentialsRefused", "it refuses the password", "correct the Secret"),
        ("NoBmc", "set spec.bmcRef.name", "set spec.bmcRef.name"),
    ],
)
def test_cause_that_the_bmc_has_named_comes_with_its_remedy(reason: str, message: str, remedy: str) -> None:
    found = power(Play(), reason, Outcome.WARNING, message).wait(1).found
    assert found is not None
    assert remedy in found.message
    assert "tinkedge bmc check" not in found.message


def test_cause_is_no_problem_any_more_when_its_workflow_is_cancelled_but_is_when_that_has_failed() -> None:
    for state, outcome in (("Canceled", Outcome.INFO), ("Failed", Outcome.FAILED)):
        play = power(is_switched(WAYS["leased"](Play())), "NoDiscover", Outcome.WARNING, NO_DISCOVER).wait(10)
        assert play.warnings == ["NoDiscover"]
        if state == "Failed":
            power(play, "NoDiscover", Outcome.FAILED, f"BMC control has given up: {NO_DISCOVER}")
        play.facts, settled = replace(FACTS, workflow=""), play.settled
        play.workflow(state, outcome).wait(60)
        assert set(play.warnings) == {"NoDiscover"}
        if state == "Failed":
            assert "given up" in play.reported[-1][1].message
            assert play.settled == settled
        else:
            assert play.settled > settled


def test_other_workflow_that_bmc_control_waits_for_hides_no_problem() -> None:
    play = power(WAYS["leased"](Play()), "OtherWorkflow", Outcome.INFO, "waits for Workflow default/other")
    assert play.wait(20).warnings == ["NoTFTPRequest"]


@pytest.mark.parametrize("far", WAYS)
def test_machine_that_is_off_is_reported_as_off_and_nothing_else(far: str) -> None:
    play = WAYS[far](Play())
    play.facts = replace(FACTS, is_off=True)
    play.wait(200)
    assert play.warnings == []
    found = play.found
    assert found is not None
    assert (found.rule, found.facts, found.outcome) == ("PoweredOff", "its power is off (BMC)", Outcome.INFO)
    assert found.checks == ("'tinkedge power m1 on' switches it on",)


def test_installed_machine_may_be_off() -> None:
    play = Play().installed()
    play.facts = replace(FACTS, workflow="", is_off=True)
    assert play.wait(200).found is None


def test_failure_of_a_machine_that_was_switched_off_is_still_shown() -> None:
    play = WAYS["script"](Play()).record(
        Step.KERNEL, Outcome.FAILED, "OSIE default/lab: kernelUrl http://mirror/k: 404"
    )
    play.facts = replace(FACTS, is_off=True)
    assert play.wait(20).warnings == ["KernelFailed"]
