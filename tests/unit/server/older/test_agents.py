"""tink-agent and tink-worker as they were seen to call, against the server on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from proto import older_pb2 as pb
from proto import oldest_pb2 as pb_oldest
from tests.support.objects import MAC
from tests.unit.server.conftest import Rig
from tests.waiting import PATIENCE_SECONDS, until
from tink.server.auth import AgentAuth, OlderAgentAuth, TokenSettings
from tink.server.older.service import SERVICES

AGENT = pb.ActionStatusRequest
OWN, OLDEST = (f"/{service}" for service in SERVICES)


def unary(channel: grpc.aio.Channel, method: str, request: Any, answer: Any) -> Any:
    return channel.unary_unary(
        method, request_serializer=request.SerializeToString, response_deserializer=answer.FromString
    )


class TinkAgent:
    """One call after the other: GetAction, the report that it begins, the report of the end."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._get = unary(channel, f"{OWN}/GetAction", pb.ActionRequest, pb.ActionResponse)
        self._report = unary(channel, f"{OWN}/ReportActionStatus", pb.ActionStatusRequest, pb.ActionStatusResponse)

    def poll(self, agent_id: str = MAC, attributes: pb.AgentAttributes | None = None) -> Any:
        request = pb.ActionRequest(agent_id=agent_id, agent_attributes=attributes or pb.AgentAttributes())
        return self._get(request, timeout=PATIENCE_SECONDS)

    async def report(self, action: pb.ActionResponse, state: int, message: str = "action completed") -> None:
        await self._report(
            pb.ActionStatusRequest(
                workflow_id=action.workflow_id,
                agent_id=action.agent_id,
                task_id=action.task_id,
                action_id=action.action_id,
                action_name=action.name,
                action_state=state,  # type: ignore[arg-type] # a number on the wire
                message=pb.ActionStatusRequest.Message(message=message),
            ),
            timeout=PATIENCE_SECONDS,
        )

    async def run(self, state: int = AGENT.SUCCESS) -> pb.ActionResponse:
        action: pb.ActionResponse = await self.poll()
        await self.report(action, AGENT.RUNNING, "running action")
        await self.report(action, state)
        return action


class TinkWorker:
    """Reads the stream of contexts to its end, then asks for the actions of each Workflow."""

    def __init__(self, channel: grpc.aio.Channel, *, oldest: bool = False) -> None:
        service = OLDEST if oldest else OWN
        self._contexts: Any = channel.unary_stream(
            f"{service}/GetWorkflowContexts",
            request_serializer=pb.WorkflowContextRequest.SerializeToString,
            response_deserializer=pb.WorkflowContext.FromString,
        )
        self._actions = unary(
            channel, f"{service}/GetWorkflowActions", pb.WorkflowActionsRequest, pb.WorkflowActionList
        )
        self._report = unary(channel, f"{service}/ReportActionStatus", pb.WorkflowActionStatus, pb_oldest.Empty)
        self.update_data = unary(
            channel, f"{OLDEST}/UpdateWorkflowData", pb_oldest.UpdateWorkflowDataRequest, pb_oldest.Empty
        )

    async def contexts(self) -> list[pb.WorkflowContext]:
        return [each async for each in self._contexts(pb.WorkflowContextRequest(worker_id=MAC))]

    async def actions(self, workflow_id: str) -> list[pb.WorkflowAction]:
        found = await self._actions(pb.WorkflowActionsRequest(workflow_id=workflow_id), timeout=PATIENCE_SECONDS)
        return list(found.action_list)

    async def report(self, workflow_id: str, action: pb.WorkflowAction, state: Any) -> None:
        await self._report(
            pb.WorkflowActionStatus(
                workflow_id=workflow_id,
                task_name=action.task_name,
                action_name=action.name,
                action_status=state,
                worker_id=action.worker_id,
            ),
            timeout=PATIENCE_SECONDS,
        )


@pytest.fixture
async def agent(rig: Rig) -> TinkAgent:
    await rig.serve()
    return TinkAgent(rig.agent(apart=True).channel)


@pytest.fixture
async def worker(rig: Rig) -> TinkWorker:
    await rig.serve()
    return TinkWorker(rig.agent(apart=True).channel)


def hold(rig: Rig, seconds: float) -> None:
    rig.server._older._polls._hold = seconds


def condition(rig: Rig, kind: str, name: str = "w") -> dict[str, str]:
    conditions = rig.read(name)["status"].get("conditions", [])
    return next((each for each in conditions if each["type"] == kind), {})


def actions(*rendered: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"id": f"a{index}", "state": "Pending", "rendered": {"name": f"action {index}", "image": "i", **each}}
        for index, each in enumerate(rendered)
    ]


# --- tink-agent ---


async def refused(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


async def test_tink_agent_waits_for_a_workflow_and_runs_it(rig: Rig, agent: TinkAgent) -> None:
    poll = asyncio.ensure_future(agent.poll())
    await until(lambda: rig.seen)
    rig.workflow()
    first = await poll
    assert first == await agent.poll(), "an answer that was lost is given again"
    assert rig.state() == "Scheduled"
    await agent.report(first, AGENT.RUNNING, "running action")
    assert rig.state() == "Running"
    await agent.report(first, AGENT.SUCCESS)
    second = await agent.run()
    assert [first.action_id, second.action_id] == ["a0", "a1"]
    assert rig.state() == "Succeeded"
    assert rig.kinds()[:2] == ["connected", "started"]
    assert rig.seen[0].message.startswith("tink-agent connected from 127.0.0.1 (grpc-python")
    registry = CollectorRegistry()
    registry.register(rig.server)

    def timed(method: str) -> float | None:
        labels = {"grpc_type": "unary", "grpc_service": SERVICES[0], "grpc_method": method}
        return registry.get_sample_value("grpc_server_handling_seconds_count", labels)

    assert (timed("GetAction"), timed("ReportActionStatus")) == (None, 4), "how long a poll waits is its own affair"


async def test_an_action_in_tink_agents_words(rig: Rig, agent: TinkAgent) -> None:
    described = {
        "args": ["a", "b c"],
        "env": {"A": "1=2"},
        "volumes": ["/dev:/dev"],
        "timeout": 90,
    }
    rig.workflow(actions=actions(described, {"networkNamespace": "none", "pidNamespace": "host"}))
    first = await agent.run()
    assert (first.workflow_id, first.agent_id, first.image, first.timeout) == ("uid-w", MAC, "i", 90)
    assert [*first.command, *first.environment, *first.volumes] == ["a", "b c", "A=1=2", "/dev:/dev"]
    assert (first.namespaces.network, first.namespaces.pid, first.pid) == ("host", "", "")
    second = await agent.poll()
    assert (second.namespaces.network, second.namespaces.pid, second.pid) == ("none", "host", "host")
    assert second.timeout > 365 * 24 * 3600, "none of ours is none at all there"


async def test_tink_agent_without_work_is_kept_waiting_and_then_sent_away_softly(rig: Rig, agent: TinkAgent) -> None:
    hold(rig, 0.05)
    for _ in range(3):
        assert await refused(agent.poll()) is grpc.StatusCode.FAILED_PRECONDITION
    assert rig.kinds() == ["connected"], "no line for every poll"


@pytest.mark.parametrize(
    ("state", "reason"), [(AGENT.FAILED, "ActionFailed"), (AGENT.TIMEOUT, "ActionTimeout")], ids=["failed", "timeout"]
)
async def test_an_action_of_tink_agent_that_fails(rig: Rig, agent: TinkAgent, state: int, reason: str) -> None:
    rig.workflow()
    await agent.run(state)
    assert rig.state() == "Failed"
    assert condition(rig, "Succeeded")["reason"] == reason
    rig.workflow("next", created=1)
    assert (await agent.poll()).workflow_id == "uid-next"


async def test_tink_agent_that_was_restarted_in_an_action_runs_nothing_twice(rig: Rig, agent: TinkAgent) -> None:
    rig.workflow()
    rig.workflow("next", created=1)
    action = await agent.poll()
    await agent.report(action, AGENT.RUNNING)
    assert (await agent.poll()).workflow_id == "uid-next"
    assert rig.state() == "Failed"
    assert condition(rig, "Succeeded")["reason"] == "AgentLost"
    await agent.report(action, AGENT.SUCCESS)  # of the process that was killed, after all
    assert rig.state() == "Failed"


async def test_a_restart_in_an_action_that_reboots_is_its_success(rig: Rig, agent: TinkAgent) -> None:
    hold(rig, 0.05)
    rig.workflow(actions=actions({"reboots": True}))
    await agent.report(await agent.poll(), AGENT.RUNNING)
    assert await refused(agent.poll()) is grpc.StatusCode.FAILED_PRECONDITION
    assert rig.state() == "Succeeded"


async def test_the_end_of_an_action_that_the_informer_has_not_seen(rig: Rig, agent: TinkAgent) -> None:
    """Another server took the report: here the action still seems to run."""
    rig.workflow()
    action = await agent.poll()
    await agent.report(action, AGENT.RUNNING)
    rig.workflows.hold()
    first, second = rig.read()["status"]["actions"]
    rig.set_state("w", "Running", actions=[{**first, "state": "Succeeded"}, second])
    assert (await agent.poll()).action_id == "a1"
    assert rig.state() == "Running"


async def test_a_report_that_is_taken_back_has_begun_nothing(rig: Rig, agent: TinkAgent) -> None:
    rig.workflow()
    action = await agent.poll()
    rig.hold()
    report = asyncio.ensure_future(agent.report(action, AGENT.RUNNING))
    await until(lambda: rig.state() == "Running")
    report.cancel()
    await until(lambda: rig.server._older._polls._unanswered)
    rig.gate.open()
    assert await agent.poll() == action
    await agent.report(action, AGENT.RUNNING)
    await agent.report(action, AGENT.SUCCESS)
    assert (await agent.poll()).action_id == "a1"


async def test_a_cancelled_workflow_ends_at_the_next_poll(rig: Rig, agent: TinkAgent) -> None:
    rig.workflow()
    action = await agent.poll()
    await agent.report(action, AGENT.RUNNING)
    rig.set_state("w", "Cancelling")
    await agent.report(action, AGENT.SUCCESS)
    assert rig.state() == "Cancelling"
    rig.workflow("next", created=1)
    assert (await agent.poll()).workflow_id == "uid-next"
    assert rig.state() == "Canceled"


async def test_what_is_to_be_stopped_while_tink_agent_waits_has_stopped(rig: Rig, agent: TinkAgent) -> None:
    poll = asyncio.ensure_future(agent.poll())
    await until(lambda: rig.seen)
    rig.workflow(state="Cancelling")
    await until(lambda: rig.state() == "Canceled")
    rig.workflow("next", created=1)
    assert (await poll).workflow_id == "uid-next"


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [("cmd", "/bin/sh", "has a cmd"), ("pidNamespace", "/run/ns", "has the pidNamespace '/run/ns'")],
)
async def test_inexpressible_action_fails_before_it_is_sent(
    rig: Rig, agent: TinkAgent, field: str, value: str, why: str
) -> None:
    rig.workflow(actions=actions({}, {field: value}))
    rig.workflow("next", created=1)
    assert (await agent.poll()).workflow_id == "uid-next"
    assert rig.state() == "Failed"
    assert condition(rig, "Succeeded")["reason"] == "NotExpressible"
    assert f"'action 1' {why}" in condition(rig, "Succeeded")["message"]
    states = [each["state"] for each in rig.read("w")["status"]["actions"]]
    assert states == ["Pending", "Failed"]


async def test_no_report_is_answered_with_what_ends_tink_agent(rig: Rig, agent: TinkAgent) -> None:
    rig.workflow()
    action = await agent.poll()
    for changed in (
        pb.ActionResponse(workflow_id="gone", action_id="a0", agent_id=MAC),
        pb.ActionResponse(workflow_id=action.workflow_id, action_id="no such action", agent_id=MAC),
        pb.ActionResponse(),
    ):
        for state in AGENT.State.values():
            await agent.report(changed, state)
    assert rig.state() == "Scheduled"


# --- tink-worker ---


@pytest.mark.parametrize("oldest", [False, True], ids=["v0.12", "v0.8"])
async def test_tink_worker_runs_a_workflow(rig: Rig, oldest: bool) -> None:
    await rig.serve()
    worker = TinkWorker(rig.agent(apart=True).channel, oldest=oldest)
    hold(rig, 0.05)
    assert await worker.contexts() == [], "without work"
    rig.workflow(actions=actions({"args": ["x"], "timeout": 5}, {}))
    (context,) = await worker.contexts()
    assert (context.workflow_id, context.current_action, context.total_number_of_actions) == ("uid-w", "", 2)
    found = await worker.actions("uid-w")
    assert [(each.name, each.worker_id, list(each.command)) for each in found] == [
        ("action-0", MAC, ["x"]),
        ("action-1", MAC, []),
    ], "names that containers can have"
    assert found[0].timeout == 5
    assert found[1].timeout > 3600
    for action in found:
        await worker.report("uid-w", action, pb.WORKER_RUNNING)
        await worker.report("uid-w", action, pb.WORKER_SUCCESS)
        if oldest:
            await worker.update_data(pb_oldest.UpdateWorkflowDataRequest(workflow_id="uid-w", data=b"{}"))
    assert rig.state() == "Succeeded"
    version = "tink-worker (v0.8 or older)" if oldest else "tink-worker"
    assert rig.seen[0].message.startswith(f"{version} connected from 127.0.0.1 (grpc-python")


async def test_tink_worker_that_was_restarted_between_two_actions_goes_on(rig: Rig, worker: TinkWorker) -> None:
    rig.workflow()
    await worker.contexts()
    first, _ = await worker.actions("uid-w")
    await worker.report("uid-w", first, pb.WORKER_RUNNING)
    await worker.report("uid-w", first, pb.WORKER_SUCCESS)
    (context,) = await worker.contexts()
    assert (context.current_action, context.current_action_index) == ("first", 0)
    assert context.current_action_state == pb.WORKER_SUCCESS


async def test_tink_worker_runs_on_through_a_cancellation_and_is_free_then(rig: Rig, worker: TinkWorker) -> None:
    rig.workflow()
    await worker.contexts()
    first, second = await worker.actions("uid-w")
    await worker.report("uid-w", first, pb.WORKER_RUNNING)
    rig.set_state("w", "Cancelling")
    await worker.report("uid-w", first, pb.WORKER_SUCCESS)
    await worker.report("uid-w", second, pb.WORKER_RUNNING)
    await worker.report("uid-w", second, pb.WORKER_FAILED)
    assert rig.state() == "Canceled"
    rig.workflow("next", created=1)
    (context,) = await worker.contexts()
    assert context.workflow_id == "uid-next"


# --- who may ---


@pytest.fixture
async def asks_for_tokens(rig: Rig, tmp_path: Any) -> Callable[..., Any]:
    async def start(older: OlderAgentAuth) -> TinkAgent:
        tokens = TokenSettings(tmp_path / "key", 3600, create=True)
        await rig.start(agent_auth=AgentAuth.TOKEN, tokens=tokens, older_agents=older)
        rig.machine()
        rig.workflow()
        return TinkAgent(rig.agent(apart=True).channel)

    return start


async def test_where_tokens_are_asked_for_they_are_refused_in_sight(rig: Rig, asks_for_tokens: Any) -> None:
    agent = await asks_for_tokens(OlderAgentAuth.AUTO)
    for _ in range(3):
        assert await refused(agent.poll()) is grpc.StatusCode.UNAUTHENTICATED
    (activity,) = rig.seen
    assert (activity.hardware, str(activity.kind)) == ("d/h", "refused")
    assert "--older-agents address" in activity.message
    started = condition(rig, "Started")
    assert (started["status"], started["reason"]) == ("False", "AgentRefused")
    assert "--older-agents address" in started["message"]
    report = agent.report(pb.ActionResponse(workflow_id="uid-w", action_id="a0"), AGENT.RUNNING)
    assert await refused(report) is grpc.StatusCode.UNAUTHENTICATED
    assert rig.state() == "Pending"


async def test_let_in_by_address_a_foreign_one_is_refused_all_the_same(rig: Rig, asks_for_tokens: Any) -> None:
    agent = await asks_for_tokens(OlderAgentAuth.ADDRESS)
    assert (await agent.poll()).action_id == "a0"
    rig.machine("other", "52:54:00:00:00:09", ip="192.0.2.9")
    assert await refused(agent.poll("52:54:00:00:00:09")) is grpc.StatusCode.PERMISSION_DENIED


async def test_an_operator_may_rule_them_out(rig: Rig) -> None:
    await rig.serve(older_agents=OlderAgentAuth.OFF)
    worker = TinkWorker(rig.agent(apart=True).channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await worker.contexts()
    assert "--older-agents off" in (caught.value.details() or "")


async def test_call_of_an_unknown_method_is_reported_on_the_journey_of_the_caller(rig: Rig) -> None:
    await rig.serve()
    call: Any = rig.agent(apart=True).channel.unary_unary("/proto.HardwareService/Push")
    for _ in range(3):
        assert await refused(call(b"")) is grpc.StatusCode.UNIMPLEMENTED
    (activity,) = rig.seen
    assert activity.message == "127.0.0.1 calls /proto.HardwareService/Push, which this server does not have"
    assert activity.hardware == "d/h"


async def test_who_is_gone_is_forgotten(rig: Rig, agent: TinkAgent) -> None:
    rig.workflow(actions=actions({}))
    await agent.run()
    sessions = rig.server._older._sessions
    assert len(sessions) == 1
    sessions._is_open = lambda _: False
    sessions.sweep()
    assert len(sessions) == 0
    assert rig.seen[-1].message == "tink-agent at 127.0.0.1 disconnected"
