"""What the gRPC server observes of agents, on the journey of the machine that it is about."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from edge.journey.agents import AgentJourney
from edge.journey.events import MAX_DETAIL, MAX_MESSAGE, Outcome, Step
from edge.journey.recorder import Journey
from tink.server import ActivityKind, AgentActivity
from tink.server.output import LINE_CHARACTERS, fitting

MAC = "52:54:00:00:00:01"
MACHINE = SimpleNamespace(mac=MAC, name="h", namespace="d")
THIEF = SimpleNamespace(mac="52:54:00:00:00:66", name="thief", namespace="e")


class Inventory:
    def by_mac(self, mac):
        return MACHINE if mac == MAC else None

    def by_ip(self, ip):
        return MACHINE if ip == "192.0.2.1" else None

    def by_name(self, name, namespace):
        return {("h", "d"): [MACHINE], ("thief", "e"): [THIEF]}.get((name, namespace), [])


@pytest.fixture
def journey():
    return Journey(lambda: 1000.0)


@pytest.fixture
def observe(journey):
    return AgentJourney(journey.record, Inventory()).observe


def output(*lines, dropped=0, agent_id=MAC):
    return AgentActivity(
        *(agent_id, "192.0.2.9", ActivityKind.OUTPUT, f"action first: {lines[-1]}", "d/h", "d/w"),
        action="first",
        lines=lines,
        dropped=dropped,
    )


def test_output_is_an_entry_with_the_newest_line_and_all_of_them_behind_it(journey, observe):
    observe(output("one", "two", dropped=7))
    [event] = journey.events(MAC)
    assert (event.step, event.outcome, event.message) == (Step.ACTION, Outcome.INFO, "action first: two")
    assert event.detail == {"workflow": "d/w", "action": "first", "output": "one\ntwo", "dropped_lines": 7}


def test_output_that_the_server_tells_is_not_cut_again(journey, observe):
    lines = fitting(["x" * LINE_CHARACTERS] * 100)
    observe(output(*lines))
    [event] = journey.events(MAC)
    assert event.detail["output"] == "\n".join(lines)
    assert len(event.detail["output"]) < MAX_DETAIL


@pytest.mark.parametrize("line", ["forged", "x" * 5000])
def test_output_from_elsewhere_says_from_where(journey, observe, line):
    observe(replace(output(line), elsewhere=True))
    [event] = journey.events(MAC)
    assert event.message.startswith("action first: " + line[:100])
    assert event.message.endswith(" (so says 192.0.2.9)")
    assert len(event.message) <= MAX_MESSAGE
    assert event.detail["from"] == "192.0.2.9"


def test_agent_of_another_hardware_that_calls_itself_by_the_mac_writes_nothing_on_the_machines_journey(
    journey, observe
):
    observe(replace(output("forged"), hardware="e/thief"))
    assert journey.events(MAC) == []
    assert len(journey.events(THIEF.mac)) == 1


def test_machine_is_found_by_its_hardware_when_the_agent_has_a_name(journey, observe):
    observe(output("one", agent_id="h"))
    assert len(journey.events(MAC)) == 1


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        (ActivityKind.CONNECTED, Outcome.OK),
        (ActivityKind.DISCONNECTED, Outcome.INFO),
    ],
)
def test_coming_and_going_of_an_agent(journey, observe, kind, outcome):
    observe(AgentActivity(MAC, "192.0.2.1", kind, "what happened"))
    [event] = journey.events(MAC)
    assert (event.step, event.outcome, event.message) == (Step.AGENT, outcome, "what happened")


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("too many calls", "too many calls (asked by 192.0.2.66)"),
        ("192.0.2.66 can't speak for Hardware d/h", "192.0.2.66 can't speak for Hardware d/h"),
    ],
)
def test_who_is_refused_in_a_machines_name_is_named_on_its_journey(journey, observe, message, shown):
    observe(AgentActivity(MAC, "192.0.2.66", ActivityKind.REFUSED, message))
    [event] = journey.events(MAC)
    assert (event.step, event.outcome, event.message) == (Step.AGENT, Outcome.REFUSED, shown)
    assert event.detail == {"from": "192.0.2.66"}


@pytest.mark.parametrize("long", [5, 5000])
def test_event_from_elsewhere_is_an_entry_that_says_from_where(journey, observe, long):
    """The status tells what has changed, and not who said so."""
    message = "action first failed: " + "x" * long
    said = f"{message} (so says 192.0.2.66)"
    observe(AgentActivity("h", "192.0.2.66", ActivityKind.EVENT, said, "d/h", "d/w", elsewhere=True))
    [event] = journey.events(MAC)
    assert (event.step, event.outcome) == (Step.AGENT, Outcome.INFO)
    assert event.message.startswith(message[:100])
    assert event.message.endswith(" (so says 192.0.2.66)")
    assert len(event.message) <= MAX_MESSAGE
    assert event.detail == {"workflow": "d/w", "from": "192.0.2.66"}


def test_what_the_status_tells_is_not_told_twice(journey, observe):
    for kind in (ActivityKind.STARTED, ActivityKind.STOPPED, ActivityKind.EVENT):
        observe(AgentActivity(MAC, "192.0.2.1", kind, "m"))
    assert journey.events(MAC) == []
