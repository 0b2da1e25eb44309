"""A machine that has gone on with another edge: that one sees it and says what is wrong, this one shows it."""

from __future__ import annotations

from edge.journey.events import Note, Outcome, Step, Value
from tests.unit.journey.expectations.play import MAC, Play


def heard(play: Play, step: Step, outcome: Outcome, message: str, kind: str = "edge", **detail: Value) -> None:
    """Another process has seen this, now."""
    told = {**detail, "seen_by": "10.0.0.2", "seen_by_kind": kind}
    assert play.journey.take_in(MAC, play.now, Note(step, outcome, message, told))


def test_machine_that_goes_on_with_another_edge_is_not_said_to_be_silent() -> None:
    play = Play()
    play.rom()
    heard(play, Step.TFTP, Outcome.INFO, "TFTP asked for", phase="begun")
    heard(play, Step.TFTP, Outcome.OK, "TFTP sent")
    play.wait(300)
    assert play.warnings == []


def test_machine_that_stays_here_is_said_to_be_silent_although_others_are_there() -> None:
    play = Play()
    heard(play, Step.DHCP, Outcome.OK, "offer", stage="PXE ROM", dhcp="offer")
    play.wait(1).rom()
    play.wait(12)
    assert play.warnings == ["NoTFTPRequest"]


def test_what_the_other_edge_has_found_is_shown_here_and_said_by_it_alone() -> None:
    play = Play()
    heard(play, Step.DHCP, Outcome.OK, "ack", stage="PXE ROM", dhcp="ack")
    play.wait(9)
    heard(play, Step.TFTP, Outcome.WARNING, "asked no TFTP", rule="NoTFTPRequest")
    play.wait(20)
    awaited = play.expectations.of(MAC)
    assert awaited is not None
    assert awaited.finding is not None
    assert (awaited.finding.rule, awaited.finding.message) == ("NoTFTPRequest", "asked no TFTP")
    assert (play.said, play.settled) == ([], 0)
    heard(play, Step.TFTP, Outcome.INFO, "TFTP asked for", phase="begun")
    play.wait(3)
    assert awaited.finding is None
    assert (play.said, play.settled) == ([], 0)


def test_what_was_said_here_is_taken_back_once_when_the_machine_gets_on_elsewhere() -> None:
    play = Play()
    play.rom()
    play.wait(12)
    assert play.warnings == ["NoTFTPRequest"]
    before = play.settled
    heard(play, Step.TFTP, Outcome.INFO, "TFTP asked for", phase="begun")
    play.wait(30)
    assert play.settled == before + 1


def test_agent_of_a_server_that_runs_apart_is_known_to_be_there() -> None:
    play = Play()
    play.to_kernel().osie()
    heard(play, Step.AGENT, Outcome.OK, "agent connected", kind="server")
    play.wait(5).workflow("Running").action()
    heard(play, Step.ACTION, Outcome.INFO, "a line", kind="server", output="a line", action="disk")
    play.wait(40)
    assert play.warnings == []
