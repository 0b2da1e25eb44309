"""The gRPC service with real connections on loopback, over an API in memory."""

from __future__ import annotations

import asyncio
import errno
import gc
import re
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from proto import workflow_pb2 as pb
from tests.support.objects import MAC, OTHER_MAC, hardware
from tests.support.virtual_time import turns
from tests.unit.server.conftest import Rig, failed, rejected, started, succeeded
from tests.waiting import until
from tink.api.annotations import DISCOVERY_ADDRESS_ANNOTATION
from tink.discovery.model import DISCOVERY_FINALIZER, discovered_name
from tink.kube.client import ConflictError, UnreachableError
from tink.kube.resources import HARDWARE, WORKFLOW
from tink.server import WorkflowServer


async def test_a_workflow_runs_to_success_with_one_write_for_its_dispatch(rig: Rig) -> None:
    await rig.serve()
    rig.machine("g", OTHER_MAC)
    agent = await rig.connected()
    rig.workflow("theirs", hardware="g")
    rig.workflow(created=1)
    assert await agent.command() == ("start", "uid-w")
    assert (rig.state(), rig.patches, rig.api.count("get")) == ("Scheduled", 1, 0)
    for action in ("a0", "a1"):
        await agent.publish(started(action))
        assert rig.state() == "Running"
        await agent.publish(succeeded(action))
    assert rig.state() == "Succeeded"
    conditions = rig.read("w")["status"]["conditions"]
    assert ("Succeeded", "True") in [(each["type"], each["status"]) for each in conditions]
    assert rig.kinds() == ["connected", "started", "event", "event", "event", "event"]
    assert {(o.agent_id, o.hardware) for o in rig.seen} == {(MAC, "d/h")}
    assert (rig.seen[-1].message, rig.seen[-1].workflow) == ("action 'second' succeeded", "d/w")
    assert await agent.silent()
    assert rig.state("theirs") == "Pending", "that of another machine"


async def test_workflows_that_wait_are_sent_one_after_the_other_and_a_rejected_one_again_after_its_delay(
    rig: Rig,
) -> None:
    await rig.serve(rejection_first=0.2, rejection_longest=1)
    rig.workflow("young", created=2)
    rig.workflow("old", created=1)
    agent = await rig.connected("h")
    assert await agent.command() == ("start", "uid-old")
    await agent.publish(rejected(workflow="old"))
    await rig.agent().refused(pb.Event())
    assert (rig.state("old"), rig.state("young")) == ("Pending", "Pending"), "it is not overtaken"
    rig.now += 0.2
    assert await agent.command() == ("start", "uid-old")
    await agent.publish(started("a0", "old"))
    assert rig.state("young") == "Pending"
    await agent.publish(failed("a0", "DiskMissing", "no disk", "old"))
    assert await agent.command() == ("start", "uid-young")
    assert rig.state("old") == "Failed"
    action = rig.read("old")["status"]["actions"][0]
    assert (action["failureReason"], action["failureMessage"]) == ("DiskMissing", "no disk")


async def test_a_workflow_that_is_given_to_another_machine_makes_room_for_the_next(rig: Rig) -> None:
    await rig.serve("Running")
    rig.machine("g", OTHER_MAC)
    rig.workflow("next", created=1)
    agent = await rig.connected()
    await until(lambda: rig.kinds() == ["connected"])
    rig.api.change(WORKFLOW, "w", "d", spec={"hardwareRef": {"name": "g"}})
    assert await agent.command() == ("start", "uid-next")


# --- cancelling ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "report"), [("Running", failed("a0", "Canceled")), ("Cancelling", rejected("UnknownWorkflow"))]
)
async def test_cancelling_sends_stop_and_the_agents_report_ends_it(rig: Rig, state: str, report: pb.Event) -> None:
    await rig.serve(state)
    agent = await rig.connected()
    rig.set_state("w", "Cancelling")
    assert await agent.command() == ("stop", "uid-w")
    await agent.publish(report)
    assert rig.state() == "Canceled"
    assert rig.kinds() == ["connected", "stopped", "event"]


@pytest.mark.parametrize("seen", [True, False], ids=["seen before", "not seen"])
async def test_a_workflow_that_vanished_is_stopped_and_its_last_events_are_taken(rig: Rig, seen: bool) -> None:
    class Watching(list[Any]):
        def append(self, activity: Any) -> None:
            super().append(activity)
            if activity.kind == "connected" and not seen:  # the stream has not looked at it yet
                rig.remove("w")

    rig.seen = Watching()
    await rig.serve("Running")
    agent = await rig.connected()
    await until(rig.kinds)
    if seen:
        rig.remove("w")
    assert await agent.command() == ("stop", "uid-w")
    await agent.publish(failed("a0", "Canceled"))


# --- who may ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent_id", "code"),
    [
        ("52:54:00:00:00:99", grpc.StatusCode.NOT_FOUND),
        ("", grpc.StatusCode.INVALID_ARGUMENT),
        ("x" * 400, grpc.StatusCode.INVALID_ARGUMENT),
    ],
    ids=["unknown", "none", "long"],
)
async def test_unknown_agent_receives_its_id_and_is_reported_unless_its_id_is_senseless(
    rig: Rig, agent_id: str, code: grpc.StatusCode
) -> None:
    await rig.start(agent_auth="none")
    agent = rig.agent()
    agent.connect(agent_id)
    status, text = await agent.ending()
    assert status is code
    known = code is grpc.StatusCode.NOT_FOUND
    assert (agent_id in text) is known or not agent_id
    assert [(o.kind, o.agent_id, o.peer) for o in rig.seen] == [("refused", agent_id, "127.0.0.1")] * known


async def test_foreign_address_gets_no_commands_may_not_report_and_learns_of_no_machine(
    rig: Rig,
) -> None:
    await rig.start()
    rig.machine(ip="192.0.2.1")
    rig.workflow(state="Scheduled")
    rig.machine("bare", "52:54:00:00:00:02", ip=None)
    for name in ("one", "two"):
        rig.machine(name, "52:54:00:00:00:03", ip="192.0.2.3")
    received = set()
    for agent_id in (MAC, "h", "52:54:00:00:00:02", "52:54:00:00:00:03", "52:54:00:00:00:99"):
        agent = rig.agent()
        agent.connect(agent_id)
        code, text = await agent.ending()
        received.add((code, text.replace(repr(agent_id), "ID")))
    why = "no Hardware of that id has this address; the server's log says more"
    assert received == {(grpc.StatusCode.PERMISSION_DENIED, f"127.0.0.1 may not act for ID: {why}")}
    assert "127.0.0.1 may not act for Hardware d/h, which has the addresses 192.0.2.1" in rig.seen[0].message
    assert (await rig.agent().refused(started("a0")))[0] is grpc.StatusCode.PERMISSION_DENIED
    assert rig.state() == "Scheduled"
    assert [o.message for o in rig.seen if "127.0.0.1" not in o.message] == [], "each journey says who asked"
    assert sorted(o.hardware for o in rig.seen) == ["", "d/bare", "d/h"], "once a while, not each time"
    assert set(rig.kinds()) == {"refused"}


async def test_reports_of_a_machine_from_another_address_name_that_address(rig: Rig) -> None:
    await rig.start(agent_auth="none")
    rig.machine(ip="192.0.2.1")
    rig.workflow(state="Running")
    await rig.agent().publish(failed("a0", "Forged"))
    assert rig.seen[-1].message.endswith("(so says 127.0.0.1)")
    assert (rig.seen[-1].elsewhere, rig.seen[-1].peer) == (True, "127.0.0.1")
    rig.machine(ip="127.0.0.1")
    rig.workflow("v", state="Running")
    await rig.agent().publish(failed("a0", "Real", workflow="v"))
    assert "127.0.0.1" not in rig.seen[-1].message


async def test_agent_is_known_by_its_address_where_the_server_listens_everywhere(rig: Rig) -> None:
    """gRPC has one socket for both families then, and IPv4 addresses in IPv6 ones."""
    await rig.start(address="0.0.0.0:0")
    rig.machine(ip="127.0.0.1")
    rig.workflow()
    agent = await rig.connected()
    assert await agent.command() == ("start", "uid-w")


@pytest.mark.parametrize(
    "change",
    [
        lambda rig: rig.remove("h", HARDWARE),
        lambda rig: rig.machine(mac="52:54:00:00:00:77"),
        lambda rig: rig.machine(ip="192.0.2.1"),
    ],
    ids=["gone", "another MAC", "another address"],
)
async def test_an_agent_whose_machine_is_taken_away_loses_its_stream(rig: Rig, change: Callable[[Rig], None]) -> None:
    await rig.serve()
    agent = await rig.connected()
    change(rig)
    assert (await agent.ending())[0] is grpc.StatusCode.PERMISSION_DENIED


async def test_agent_of_an_approved_machine_connects_again_and_gets_the_workflow_of_its_new_hardware(rig: Rig) -> None:
    await rig.start()
    deleting = {"finalizers": [DISCOVERY_FINALIZER], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    name = discovered_name(MAC)
    rig.machine(name)
    agent = await rig.connected()

    rig.api.put(hardware(name, MAC, "127.0.0.1", namespace="d", metadata=deleting))
    former = {DISCOVERY_ADDRESS_ANNOTATION: "127.0.0.1"}
    rig.api.put(hardware("m7", MAC, "192.0.2.7", namespace="d", annotations=former))
    rig.api.remove(HARDWARE, name, "d")

    code, text = await agent.ending()
    assert (code, text) == (grpc.StatusCode.UNAVAILABLE, "connect again: this machine has another Hardware now")
    again = await rig.connected(holds=())
    rig.workflow(hardware="m7")
    assert await again.command() == ("start", "uid-w")


async def test_of_two_agents_for_one_machine_the_newest_wins(rig: Rig) -> None:
    await rig.serve()
    old, new = rig.agent(), rig.agent()
    await old.accepted(MAC)
    await new.accepted("h")
    code, text = await old.ending()
    assert code is grpc.StatusCode.ABORTED
    assert "another agent connected as 'h' from 127.0.0.1" in text
    rig.workflow()
    assert await new.command() == ("start", "uid-w")
    # The machine did not disconnect. (The agent may have its command before the server has said so.)
    await until(lambda: rig.kinds() == ["connected", "connected", "started"])


# --- events -------------------------------------------------------------------------------------------------------


async def test_a_repeated_event_is_answered_and_changes_nothing(rig: Rig) -> None:
    await rig.serve("Scheduled")
    agent = rig.agent()
    for event in (started("a0"), succeeded("a0")):
        await agent.publish(event)
        before = rig.patches
        await agent.publish(event)
        assert rig.patches == before
    assert rig.kinds() == ["event", "event"]
    assert rig.seen[0].agent_id == MAC, "known by its Hardware although it has no stream"


@pytest.mark.parametrize(
    ("faults", "code"),
    [
        ([UnreachableError("away")], grpc.StatusCode.UNAVAILABLE),
        ([ConflictError(409, "Conflict", "c")] * 8, grpc.StatusCode.ABORTED),
    ],
)
async def test_a_passing_fault_makes_the_agent_repeat_the_event(
    rig: Rig, faults: list[Exception], code: grpc.StatusCode
) -> None:
    await rig.serve("Scheduled")
    rig.api.fail("patch", *faults)
    agent = rig.agent()
    assert (await agent.refused(started("a0")))[0] is code
    await agent.publish(started("a0"))
    assert rig.state() == "Running"


async def test_invalid_events_are_rejected_for_good_with_the_reason(rig: Rig) -> None:
    await rig.serve("Scheduled")
    rig.workflow("odd", "Odd")
    for event, code, why in (
        (pb.Event(), grpc.StatusCode.INVALID_ARGUMENT, "missing"),
        (started("zz"), grpc.StatusCode.INVALID_ARGUMENT, "no action with the id 'zz'"),
        (started("a0", "never-was"), grpc.StatusCode.NOT_FOUND, "'uid-never-was'"),
        (started("a0", "odd"), grpc.StatusCode.FAILED_PRECONDITION, "status.state is 'Odd'"),
        (pb.Event(workflow_id="x" * 300_000), grpc.StatusCode.RESOURCE_EXHAUSTED, ""),
    ):
        status, text = await rig.agent().refused(event)
        assert status is code
        assert why in text


async def test_events_of_a_deleted_workflow_do_not_change_its_successor(rig: Rig) -> None:
    await rig.serve("Running")
    rig.workflows.hold()  # the server has not heard of it yet
    rig.api.put(rig.read() | {"metadata": {**rig.read()["metadata"], "uid": "uid-second"}})
    rig.set_state("w", "Scheduled")
    await rig.agent().publish(started("a1"))
    assert rig.state() == "Scheduled"


# --- starting and stopping ------------------------------------------------------------------------------------------


async def test_an_agent_that_comes_before_the_first_list_waits_and_is_not_refused(rig: Rig) -> None:
    rig.hardware.listed(done=False)
    await rig.start()
    agent = rig.agent()
    agent.connect()
    assert (await agent.refused(pb.Event()))[0] is grpc.StatusCode.INVALID_ARGUMENT
    rig.machine()
    rig.workflow()
    rig.hardware.listed()
    assert await agent.command() == ("start", "uid-w")


async def test_without_the_api_agents_receive_unavailable(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tink.server.callers._SYNC_SECONDS", 0.05)
    rig.workflows.listed(done=False)
    await rig.start()
    agent = rig.agent()
    agent.connect()
    assert await agent.ending() == (grpc.StatusCode.UNAVAILABLE, "the server can't reach the Kubernetes API yet")
    assert (await agent.refused(started("a0")))[0] is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(("address", "why"), [("", errno.EADDRINUSE), ("192.0.2.1:42113", errno.EADDRNOTAVAIL)])
async def test_a_port_that_is_taken_or_an_address_of_another_host_is_an_error(rig: Rig, address: str, why: int) -> None:
    await rig.start()
    address = address or f"127.0.0.1:{rig.server.port}"
    second = WorkflowServer(rig.api, workflows=rig.workflows, hardware=rig.hardware, addresses=[address])
    with pytest.raises(OSError, match=re.escape(f"can't listen on {address}")) as refused:
        await second.start()
    assert refused.value.errno == why


async def test_failing_observer_has_no_effect(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: Any) -> None:
        raise RuntimeError("oh")

    rig.seen = type("Failing", (), {"append": staticmethod(fail)})()
    await rig.serve("Pending")
    agent = await rig.connected()
    assert await agent.command() == ("start", "uid-w")
    assert any("an observer failed" in record.getMessage() for record in caplog.records)


async def test_a_rack_of_agents_that_connects_at_once_is_served_completely(rig: Rig) -> None:
    await rig.start()
    for i in range(300):
        rig.machine(f"m{i}", f"52:54:00:00:{i // 256:02x}:{i % 256:02x}")
        rig.workflow(f"w{i}", hardware=f"m{i}")
    agents = [rig.agent(apart=True) for _ in range(6)]
    calls = [agents[i % 6].stub.GetWorkflows(pb.GetWorkflowsRequest(agent_id=f"m{i}")) for i in range(300)]
    messages = await asyncio.gather(*(call.read() for call in calls))
    assert [m.start_workflow.workflow.workflow_id for m in messages] == [f"uid-w{i}" for i in range(300)]


async def test_server_that_is_stopped_before_the_api_has_answered_leaves_no_trace(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """It printed a stack trace about a future whose exception was never retrieved."""
    rig.workflows.listed(done=False)
    await rig.start()
    await turns(10)
    await rig.server.stop()
    rig.server = None
    gc.collect()
    await turns()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


# --- what agents hold, and machines that reboot -------------------------------------------------------------------


async def test_the_server_reads_what_an_agent_holds_from_its_call(rig: Rig) -> None:
    await rig.serve("Running")
    faithful = await rig.connected(holds=("uid-w",))
    rig.set_state("w", "Cancelling")
    assert await faithful.command() == ("stop", "uid-w")
    assert rig.patches == 0, "it did not count as lost"
    await faithful.channel.close()
    await rig.connected(holds=())
    await until(lambda: rig.state() == "Canceled")
    await until(lambda: rig.seen[-1].message == "agent came back without workflow d/w, which is Canceled")


async def test_agent_that_publishes_for_an_ended_workflow_gets_a_stop_command(rig: Rig) -> None:
    await rig.serve()
    rig.workflow(state="Failed", conditions=[{"type": "Succeeded", "status": "False", "reason": "WorkflowTimeout"}])
    agent = await rig.connected()
    await agent.publish(started("a1"))
    assert await agent.command() == ("stop", "uid-w")
    assert rig.state() == "Failed"


async def test_agent_that_publishes_everything_at_once_receives_resource_exhausted(rig: Rig) -> None:
    await rig.serve("Scheduled")
    rig.hold()
    agent = rig.agent()
    calls = [asyncio.ensure_future(agent.publish(started("a0"))) for _ in range(40)]
    await until(lambda: sum(call.done() for call in calls) == 24)
    rig.gate.open()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    refusals = [answer.code() for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
    assert refusals == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 24
    assert rig.patches == 1


async def test_server_detects_a_reboot_and_reports_it(rig: Rig) -> None:
    await rig.serve("Running", reboot_grace=0.05)
    rig.reboots()
    agent = await rig.connected(holds=("uid-w",))
    before = rig.patches

    def reported() -> bool:
        rig.now += 0.01
        return rig.patches >= before + 5

    await until(reported)  # for longer than the grace
    assert rig.state() == "Running"
    await agent.channel.close()
    await until(lambda: rig.state() == "Succeeded")
    await until(lambda: "reboots the machine" in rig.seen[-1].message)
    assert (rig.seen[-1].hardware, rig.seen[-1].workflow, rig.seen[-1].agent_id) == ("d/h", "d/w", MAC)
    await rig.server.stop()
    rig.reboots()
    await rig.start(reboot_grace=0.01)
    await until(lambda: rig.state() == "Succeeded", "the server that was restarted does not find it")
