"""What the gRPC server observes of agents, on the journey of the right machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge.journey.agents import AgentJourney
from edge.journey.events import MAX_DETAIL, MAX_MESSAGE, Outcome, Step
from edge.journey.recorder import Journey
from edge.machines import Inventory
from tests.support.objects import hardware
from tink.server import ActivityKind, AgentActivity
from tink.server.output import LINE_CHARACTERS, fitting

A, B, SECOND = "52:54:00:00:00:0a", "52:54:00:00:00:0b", "52:54:00:00:00:1a"
ELSEWHERE = "192.0.2.66"


@pytest.fixture
def journey():
    return Journey(lambda: 1000.0)


@pytest.fixture
def observe(journey):
    """Two interfaces of default/a at 10.0.0.1 and 10.0.0.2, and other/b at 10.0.0.9."""
    inventory = Inventory()
    inventory.apply(hardware("a", interfaces={A: {"dhcp": {"ip": "10.0.0.1"}}, SECOND: {"dhcp": {"ip": "10.0.0.2"}}}))
    inventory.apply(hardware("b", B, "10.0.0.9", namespace="other"))
    return AgentJourney(journey.record, inventory).observe


def output(*lines, dropped=0, agent_id=A):
    message = f"action first: {lines[-1]}"
    seen = AgentActivity(agent_id, "192.0.2.9", ActivityKind.OUTPUT, message, "default/a", "default/w")
    return replace(seen, action="first", lines=lines, dropped=dropped)


def test_output_is_an_entry_with_the_newest_line_and_all_of_them_behind_it(journey, observe):
    observe(output("one", "two", dropped=7))
    whole = fitting(["x" * LINE_CHARACTERS] * 100)
    observe(output(*whole))
    event, large = journey.events(A)
    assert (event.step, event.outcome, event.message) == (Step.ACTION, Outcome.INFO, "action first: two")
    assert event.detail == {"workflow": "default/w", "action": "first", "output": "one\ntwo", "dropped_lines": 7}
    assert large.detail["output"] == "\n".join(whole), "what the server tells is not cut again"
    assert len(large.detail["output"]) < MAX_DETAIL


@pytest.mark.parametrize("line", ["forged", "x" * 5000])
def test_output_from_elsewhere_says_from_where(journey, observe, line):
    observe(replace(output(line), elsewhere=True))
    [event] = journey.events(A)
    assert event.message.startswith("action first: " + line[:100])
    assert event.message.endswith(" (so says 192.0.2.9)")
    assert len(event.message) <= MAX_MESSAGE
    assert event.detail["from"] == "192.0.2.9"


@pytest.mark.parametrize("long", [5, 5000])
def test_event_from_elsewhere_is_an_entry_that_says_from_where(journey, observe, long):
    """The status tells what has changed, and not from where."""
    message = "action first failed: " + "x" * long
    said = f"{message} (so says {ELSEWHERE})"
    observe(AgentActivity("a", ELSEWHERE, ActivityKind.EVENT, said, "default/a", "default/w", elsewhere=True))
    [event] = journey.events(A)
    assert (event.step, event.outcome) == (Step.AGENT, Outcome.INFO)
    assert event.message.startswith(message[:100])
    assert event.message.endswith(f" (so says {ELSEWHERE})")
    assert len(event.message) <= MAX_MESSAGE
    assert event.detail == {"workflow": "default/w", "from": ELSEWHERE}


FOREIGN = f"{ELSEWHERE} can't speak for Hardware d/h"


@pytest.mark.parametrize(
    ("kind", "peer", "outcome", "said", "shown"),
    [
        (ActivityKind.CONNECTED, "10.0.0.1", Outcome.OK, "what happened", "what happened"),
        (ActivityKind.DISCONNECTED, "10.0.0.1", Outcome.INFO, "what happened", "what happened"),
        (ActivityKind.REFUSED, ELSEWHERE, Outcome.REFUSED, "too many calls", f"too many calls (asked by {ELSEWHERE})"),
        (ActivityKind.REFUSED, ELSEWHERE, Outcome.REFUSED, FOREIGN, FOREIGN),
        # The status tells of these.
        *(
            (kind, "10.0.0.1", None, "m", "")
            for kind in (ActivityKind.STARTED, ActivityKind.STOPPED, ActivityKind.EVENT)
        ),
    ],
)
def test_coming_going_and_refusal_of_an_agent_are_entries_on_its_machines_journey(
    journey, observe, kind, peer, outcome, said, shown
):
    observe(AgentActivity(A.upper(), peer, kind, said, "" if peer == ELSEWHERE else "default/a"))
    found = [(event.step, event.outcome, event.message, event.detail) for event in journey.events(A)]
    where = {"from" if outcome is Outcome.REFUSED else "peer": peer}
    assert found == ([(Step.AGENT, outcome, shown, where)] if outcome else [])


@pytest.mark.parametrize(
    ("seen", "mac"),
    [
        # An agent known by the name of its Hardware: by the interface that it calls from, or the first.
        (AgentActivity("a", "10.0.0.2", ActivityKind.CONNECTED, "m", "default/a"), SECOND),
        (AgentActivity("other/b", "192.0.2.1", ActivityKind.CONNECTED, "m", "other/b"), B),
        (output("one", agent_id="a"), A),
        # One that calls itself by the MAC of another Hardware than its own writes on the journey of its own.
        (replace(output("forged"), hardware="other/b"), B),
        # A refused one: the machine that it names, not its own; or the machine whose address it has.
        *((AgentActivity(name, "10.0.0.1", ActivityKind.REFUSED, "m", "other/b"), B) for name in ("b", "other/b", B)),
        (AgentActivity("nobody", "10.0.0.9", ActivityKind.REFUSED, "m"), B),
        (AgentActivity("nobody", "192.0.2.1", ActivityKind.REFUSED, "m"), None),
        (AgentActivity("nobody", "unix:/x", ActivityKind.REFUSED, "m", "default/gone"), None),
    ],
)
def test_machine_of_an_agent_is_the_one_that_it_is_about(journey, observe, seen, mac):
    observe(seen)
    assert [machine.mac for machine in journey.machines()] == ([mac] if mac else [])
