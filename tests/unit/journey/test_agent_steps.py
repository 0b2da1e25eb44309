"""What the gRPC server observes of agents becomes steps of the right machine's journey."""

from __future__ import annotations

from typing import Any

import pytest

from edge.journey.agents import AgentJourney
from edge.journey.events import Outcome, Step
from edge.machines import Inventory
from tink.server import ActivityKind, AgentActivity

A, B, SECOND = "52:54:00:00:00:0a", "52:54:00:00:00:0b", "52:54:00:00:00:1a"

Recorded = list[tuple[str, Step, Outcome, str, dict[str, Any]]]


def hardware(name: str, interfaces: dict[str, str], namespace: str = "default") -> dict[str, Any]:
    return {
        "apiVersion": "tinkerbell.org/v1alpha2",
        "kind": "Hardware",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "networkInterfaces": {
                mac: {"dhcp": {"ip": ip, "netmask": "255.255.255.0"}} for mac, ip in interfaces.items()
            }
        },
    }


@pytest.fixture
def recorded() -> Recorded:
    return []


@pytest.fixture
def journey(recorded: Recorded) -> AgentJourney:
    inventory = Inventory()
    inventory.apply(hardware("a", {A: "10.0.0.1", SECOND: "10.0.0.2"}))
    inventory.apply(hardware("b", {B: "10.0.0.9"}, "other"))

    def record(mac: str, step: Step, outcome: Outcome, message: str, **detail: Any) -> None:
        recorded.append((mac, step, outcome, message, detail))

    return AgentJourney(record, inventory)


def seen(kind: ActivityKind, agent_id: str, peer: str, hardware: str = "") -> AgentActivity:
    return AgentActivity(agent_id, peer, kind, "what happened", hardware)


def test_agent_that_connects_is_a_step_of_the_machine_that_it_names(journey: AgentJourney, recorded: Recorded) -> None:
    journey.observe(seen(ActivityKind.CONNECTED, A.upper(), "10.0.0.1", "default/a"))
    assert recorded == [(A, Step.AGENT, Outcome.OK, "what happened", {"peer": "10.0.0.1"})]


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [(ActivityKind.DISCONNECTED, Outcome.INFO), (ActivityKind.REFUSED, Outcome.REFUSED)],
)
def test_each_kind_has_its_outcome(
    journey: AgentJourney, recorded: Recorded, kind: ActivityKind, outcome: Outcome
) -> None:
    journey.observe(seen(kind, A, "10.0.0.1", "default/a"))
    assert [event[2] for event in recorded] == [outcome]


@pytest.mark.parametrize("kind", [ActivityKind.STARTED, ActivityKind.STOPPED, ActivityKind.EVENT])
def test_workflows_are_told_by_their_status_and_not_twice(
    journey: AgentJourney, recorded: Recorded, kind: ActivityKind
) -> None:
    journey.observe(seen(kind, A, "10.0.0.1", "default/a"))
    assert recorded == []


def test_agent_known_by_its_hardwares_name_is_found_by_the_interface_that_it_calls_from(
    journey: AgentJourney, recorded: Recorded
) -> None:
    journey.observe(seen(ActivityKind.CONNECTED, "a", "10.0.0.2", "default/a"))
    assert recorded[0][0] == SECOND


def test_agent_behind_an_unknown_address_is_found_by_its_hardware(journey: AgentJourney, recorded: Recorded) -> None:
    journey.observe(seen(ActivityKind.CONNECTED, "other/b", "192.0.2.1", "other/b"))
    assert recorded[0][0] == B


def test_refused_agent_is_heard_of_by_the_machine_that_it_names_and_not_by_its_own(
    journey: AgentJourney, recorded: Recorded
) -> None:
    for agent_id in ("b", "other/b", B):
        journey.observe(seen(ActivityKind.REFUSED, agent_id, "10.0.0.1", "other/b"))
    assert [event[0] for event in recorded] == [B, B, B]


def test_refused_stranger_is_the_machine_whose_address_it_has(journey: AgentJourney, recorded: Recorded) -> None:
    journey.observe(seen(ActivityKind.REFUSED, "nobody", "10.0.0.9"))
    assert recorded[0][0] == B


def test_agent_of_no_machine_at_all_is_no_step(journey: AgentJourney, recorded: Recorded) -> None:
    journey.observe(seen(ActivityKind.REFUSED, "nobody", "192.0.2.1"))
    journey.observe(seen(ActivityKind.REFUSED, "nobody", "unix:/x", "default/gone"))
    assert recorded == []
