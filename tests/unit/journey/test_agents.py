"""What the gRPC server observes of agents, on the journey of the machine that it is about."""

from types import SimpleNamespace

import pytest

from edge.journey.agents import AgentJourney
from edge.journey.events import MAX_DETAIL, Outcome, Step
from edge.journey.recorder import Journey
from tink.server.observation import AgentObservation, ObservationKind
from tink.server.output import LINE_CHARACTERS, told

MAC = "52:54:00:00:00:01"


class Inventory:
    def by_mac(self, mac):
        return SimpleNamespace(mac=MAC) if mac == MAC else None

    def by_ip(self, ip):
        return SimpleNamespace(mac=MAC) if ip == "192.0.2.1" else None

    def by_name(self, name, namespace):
        return [SimpleNamespace(mac=MAC)] if (name, namespace) == ("h", "d") else []


@pytest.fixture
def journey():
    return Journey(lambda: 1000.0)


@pytest.fixture
def observe(journey):
    return AgentJourney(journey.record, Inventory()).observe


def output(*lines, dropped=0, agent_id=MAC):
    return AgentObservation(
        *(agent_id, "192.0.2.9", ObservationKind.OUTPUT, f"action first: {lines[-1]}", "d/h", "d/w"),
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
    lines = told(["x" * LINE_CHARACTERS] * 100)
    observe(output(*lines))
    [event] = journey.events(MAC)
    assert event.detail["output"] == "\n".join(lines)
    assert len(event.detail["output"]) < MAX_DETAIL


def test_machine_is_found_by_its_hardware_when_the_agent_has_a_name(journey, observe):
    observe(output("one", agent_id="h"))
    assert len(journey.events(MAC)) == 1


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        (ObservationKind.CONNECTED, Outcome.OK),
        (ObservationKind.DISCONNECTED, Outcome.INFO),
        (ObservationKind.REFUSED, Outcome.REFUSED),
    ],
)
def test_coming_and_going_of_an_agent(journey, observe, kind, outcome):
    observe(AgentObservation(MAC, "192.0.2.1", kind, "what happened"))
    [event] = journey.events(MAC)
    assert (event.step, event.outcome, event.message) == (Step.AGENT, outcome, "what happened")


def test_what_the_status_tells_is_not_told_twice(journey, observe):
    for kind in (ObservationKind.STARTED, ObservationKind.STOPPED, ObservationKind.EVENT):
        observe(AgentObservation(MAC, "192.0.2.1", kind, "m"))
    assert journey.events(MAC) == []
