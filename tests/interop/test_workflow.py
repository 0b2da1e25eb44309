"""Workflows from creation to their end, with all real parts except the machine: the embedded API over HTTP,
informers, controller and gRPC server in one process, and a scripted agent on a gRPC connection of its own."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from proto import workflow_pb2 as pb
from proto import workflow_pb2_grpc as pb_grpc
from tests.api import serving
from tests.interop.conftest import Kubectl
from tests.waiting import PATIENCE_SECONDS, until
from tink.agent.agent import Agent as RealAgent
from tink.agent.connection import Transport, connect
from tink.agent.journal import Journal
from tink.agent.runtimes.process import ProcessRuntime
from tink.agent.settings import AgentSettings
from tink.api.crds import generate
from tink.api.v1alpha2 import API_VERSION, FINALIZER, Raw
from tink.controller import ControllerSettings, WorkflowController
from tink.kube.cache import Informer
from tink.kube.client import KubeClient, NotFoundError
from tink.kube.resources import HARDWARE, TEMPLATE, WORKFLOW, ResourceType
from tink.server import WorkflowServer
from tink.server.settings import ServerSettings

MAC = "52:54:00:00:00:01"
NAMESPACE = "default"


class Agent:
    """A scripted agent. The test triggers each step of the protocol."""

    def __init__(self, port: int) -> None:
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        self.stub: Any = pb_grpc.WorkflowServiceStub(self.channel)
        self.call: Any = None

    async def connect(self) -> None:
        self.call = self.stub.GetWorkflows(pb.GetWorkflowsRequest(agent_id=MAC))
        await asyncio.wait_for(self.call.initial_metadata(), PATIENCE_SECONDS)

    async def start_command(self) -> pb.Workflow:
        message = await asyncio.wait_for(self.call.read(), PATIENCE_SECONDS)
        assert message.WhichOneof("cmd") == "start_workflow", message
        workflow: pb.Workflow = message.start_workflow.workflow
        return workflow

    async def stop_command(self) -> str:
        message = await asyncio.wait_for(self.call.read(), PATIENCE_SECONDS)
        assert message.WhichOneof("cmd") == "stop_workflow", message
        uid: str = message.stop_workflow.workflow_id
        return uid

    async def reaches(self, *names: str) -> pb.Workflow:
        """Receive the next Workflow and publish `started` and `succeeded` for its actions in turn; return it."""
        workflow = await self.start_command()
        for index, name in enumerate(names):
            await getattr(self, name)(workflow, index)
        return workflow

    async def started(self, workflow: pb.Workflow, index: int) -> None:
        await self._publish(workflow, action_started=pb.Event.ActionStarted(action_id=workflow.actions[index].id))

    async def succeeded(self, workflow: pb.Workflow, index: int) -> None:
        await self._publish(workflow, action_succeeded=pb.Event.ActionSucceeded(action_id=workflow.actions[index].id))

    async def rejects(self, workflow: pb.Workflow, reason: str) -> None:
        rejected = pb.Event.WorkflowRejected(failure_reason=reason, failure_message="no")
        await self._publish(workflow, workflow_rejected=rejected)

    async def failed(self, workflow: pb.Workflow, reason: str, message: str) -> None:
        """Report the failure of the first action."""
        failure = {"failure_reason": reason, "failure_message": message}
        failed = pb.Event.ActionFailed(action_id=workflow.actions[0].id, **failure)
        await self._publish(workflow, action_failed=failed)

    async def _publish(self, workflow: pb.Workflow, **event: Any) -> None:
        message = pb.Event(workflow_id=workflow.workflow_id, **event)
        await self.stub.PublishEvent(pb.PublishEventRequest(event=message), timeout=PATIENCE_SECONDS)


class Stack:
    """The engine on one machine: controller and server over the embedded API."""

    def __init__(self, client: KubeClient, settings: ControllerSettings) -> None:
        self.client = client
        informers = {resource: Informer(client, resource) for resource in (WORKFLOW, HARDWARE, TEMPLATE)}
        self.workflows = informers[WORKFLOW]
        both: dict[str, Any] = {"workflows": self.workflows, "hardware": informers[HARDWARE]}
        self.controller = WorkflowController(client, **both, templates=informers[TEMPLATE], settings=settings)
        # A rejected Workflow is not offered again after a time.
        self.server = WorkflowServer(
            client, **both, addresses=["127.0.0.1:0"], settings=ServerSettings(rejection_first=120.0)
        )
        self._running = [informer.run() for informer in informers.values()]
        self._tasks: list[asyncio.Task[None]] = []
        self._agents: list[Agent] = []

    async def start(self) -> None:
        self._tasks = [asyncio.create_task(work) for work in (*self._running, self.controller.run())]
        await asyncio.wait_for(self.server.start(), PATIENCE_SECONDS)

    async def stop(self) -> None:
        await self.server.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for agent in self._agents:
            await agent.channel.close()

    async def agent(self) -> Agent:
        agent = Agent(self.server.port)
        self._agents.append(agent)
        await agent.connect()
        return agent

    async def create(self, resource: ResourceType, name: str, spec: Raw) -> Raw:
        metadata = {"name": name, "namespace": NAMESPACE}
        obj = {"apiVersion": API_VERSION, "kind": resource.kind, "metadata": metadata, "spec": spec}
        return await self.client.create(resource, obj)

    async def furnish(self) -> None:
        """Create the machine and the template."""
        interface = {"dhcp": {"ip": "127.0.0.1", "netmask": "255.0.0.0"}}
        await self.create(HARDWARE, "machine", {"networkInterfaces": {MAC: interface}, "storageDevices": ["/dev/vda"]})
        disk = "{{ index .Hardware.StorageDevices 0 }}"
        write = {"name": "write", "image": "registry.example/write:{{ .Params.tag }}", "args": [disk]}
        check = {"name": "check", "image": "registry.example/check", "env": {"A": "own"}}
        await self.create(TEMPLATE, "install", {"actions": [write, check], "env": {"A": "shared", "B": "both"}})

    async def workflow(self, name: str = "w", **spec: Any) -> Raw:
        references = {"hardwareRef": {"name": "machine"}, "templateRef": {"name": "install"}}
        return await self.create(WORKFLOW, name, {**references, "templateParams": {"tag": "v1"}, **spec})

    async def get(self, name: str = "w") -> Raw:
        return await self.client.get(WORKFLOW, name, NAMESPACE)

    async def until(self, state: str, name: str = "w") -> Raw:
        async def in_state() -> Raw | None:
            workflow = await self.get(name)
            status = workflow["status"]
            # A Workflow without actions is Pending, but not yet prepared.
            return workflow if status["state"] == state and (state != "Pending" or "actions" in status) else None

        return await until(in_state)

    async def wait_until_gone(self, name: str = "w") -> None:
        async def is_gone() -> bool:
            with suppress(NotFoundError):
                return not await self.get(name)
            return True

        assert await until(is_gone)


def condition(workflow: Raw, kind: str) -> Raw:
    fields = next(c for c in workflow["status"]["conditions"] if c["type"] == kind)
    return {field: value for field, value in fields.items() if field != "lastTransitionTime"}


@pytest.fixture
async def make_stack(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """`make_stack(**settings)` starts another engine on the same API."""
    stacks: list[Stack] = []
    async with serving(tmp_path, generate()) as (_, client):

        async def make(**settings: Any) -> Stack:
            stacks.append(Stack(client, ControllerSettings(**settings)))
            await stacks[-1].start()
            return stacks[-1]

        yield make
        for stack in stacks:
            await stack.stop()


@pytest.fixture
async def stack(make_stack: Callable[..., Any]) -> Stack:
    """An engine with the machine and the template."""
    new_stack: Stack = await make_stack()
    await new_stack.furnish()
    return new_stack


async def test_a_workflow_goes_from_creation_to_success(stack: Stack) -> None:
    states: list[str] = []
    stack.workflows.add_event_handler(lambda new, _: states.append(new.get("status", {}).get("state")))
    agent = await stack.agent()
    created = await stack.workflow()
    command = await agent.start_command()
    assert command.workflow_id == created["metadata"]["uid"]
    write, check = command.actions
    assert (write.name, write.image) == ("write", "registry.example/write:v1")
    assert list(write.args) == ["/dev/vda"]
    assert dict(check.env) == {"A": "own", "B": "both"}
    assert FINALIZER in (await stack.until("Scheduled"))["metadata"]["finalizers"]
    for index in (0, 1):
        await agent.started(command, index)
        running = await stack.until("Running")
        assert running["status"]["currentAction"] == ("write", "check")[index]
        await agent.succeeded(command, index)
    done = await stack.until("Succeeded")
    assert [action["state"] for action in done["status"]["actions"]] == ["Succeeded", "Succeeded"]
    assert condition(done, "Started")["status"] == condition(done, "Succeeded")["status"] == "True"

    async def is_released() -> bool:
        return not (await stack.get())["metadata"].get("finalizers")

    assert await until(is_released)
    seen = [state for i, state in enumerate(states) if i == 0 or states[i - 1] != state]
    assert seen == ["Pending", "Scheduled", "Running", "Succeeded"]
    await stack.client.delete(WORKFLOW, "w", NAMESPACE)
    await stack.wait_until_gone()


async def test_workflows_run_one_after_the_other_in_the_order_of_their_creation(stack: Stack) -> None:
    uids = [(await stack.workflow(name))["metadata"]["uid"] for name in ("z-first", "a-second", "m-third")]
    for name in ("z-first", "a-second", "m-third"):
        await stack.until("Pending", name)
    agent = await stack.agent()
    order = []
    for _ in uids:
        command = await agent.start_command()
        order.append(command.workflow_id)
        states = [(await stack.get(name))["status"]["state"] for name in ("z-first", "a-second", "m-third")]
        assert states.count("Scheduled") == 1
        for index in (0, 1):
            await agent.succeeded(command, index)
    assert order == uids


async def test_order_within_a_second_holds_if_all_were_down_at_the_creation_and_restart_later(
    make_stack: Callable[..., Any],
) -> None:
    first = await make_stack()
    await first.furnish()
    await first.stop()
    names = ("z-wipe", "m-check", "a-install")
    uids = [(await first.workflow(name))["metadata"]["uid"] for name in names]
    second = await make_stack()
    for name in names:
        await second.until("Pending", name)
    await second.stop()
    agent = await (await make_stack()).agent()
    assert [(await agent.reaches("succeeded", "succeeded")).workflow_id for _ in names] == uids


async def test_objects_may_be_applied_in_any_order_and_a_template_error_shows_on_the_workflow(
    make_stack: Callable[..., Any],
) -> None:
    stack = await make_stack()
    await stack.workflow()

    async def waiting() -> Raw | None:  # not at once: the other objects of a `kubectl apply` may follow
        workflow: Raw = await stack.get()
        return condition(workflow, "Prepared") if "conditions" in workflow["status"] else None

    prepared = await until(waiting, every=0.05)
    assert prepared["reason"] == "HardwareNotFound"
    assert "there is no Hardware default/machine" in prepared["message"]
    await stack.furnish()
    await stack.until("Pending")

    await stack.workflow("wrong", templateParams={})
    failed = await stack.until("Failed", "wrong")
    assert condition(failed, "Succeeded")["reason"] == "TemplateError"
    assert "spec.actions[0].image" in condition(failed, "Succeeded")["message"]
    assert not failed["metadata"].get("finalizers")


async def test_a_workflow_that_exceeds_its_timeout_fails_and_is_stopped(stack: Stack) -> None:
    agent = await stack.agent()
    await stack.workflow(timeout=1)
    command = await agent.reaches("started")
    assert await agent.stop_command() == command.workflow_id
    failed = await stack.until("Failed")
    assert condition(failed, "Succeeded")["reason"] == "WorkflowTimeout"
    await agent.failed(command, "Canceled", "stopped on request")
    assert (await stack.get())["status"] == failed["status"], "terminal states never change"


async def test_a_new_server_and_controller_take_over_and_two_do_not_disturb_each_other(
    make_stack: Callable[..., Any],
) -> None:
    first = await make_stack()
    await first.furnish()
    await first.workflow()
    agent = await first.agent()
    command = await agent.reaches("started")
    await first.stop()
    second = await make_stack(retry_longest=0.1)
    again = await second.agent()
    await again.succeeded(command, 0)
    await again.succeeded(command, 1)
    await second.until("Succeeded")
    await make_stack(retry_longest=0.1)
    for i in range(5):
        await second.workflow(f"w{i}")
    for i in range(5):
        await again.reaches("succeeded", "succeeded")
        await second.until("Succeeded", f"w{i}")


async def test_the_agent_of_this_project_runs_fails_and_stops_workflows(stack: Stack, tmp_path: Path) -> None:
    """The agent's actions are processes of this host."""
    settings = AgentSettings(MAC, f"127.0.0.1:{stack.server.port}")
    channel = await connect(settings, asyncio.Event())
    assert channel is not None
    runtime = ProcessRuntime(tmp_path / "agent", grace_seconds=0.5)
    await runtime.prepare()
    running = RealAgent(runtime, Journal(tmp_path / "agent", "boot"))
    transport = Transport(channel, settings, running.spool, running.held_workflows)
    calls = [asyncio.create_task(transport.commands(running.handle)), asyncio.create_task(transport.publish())]
    scripts = {
        "good": "echo fine",
        "bad": 'printf NoDisk > "$TINKERBELL_FAILURE_REASON"; printf gone > "$TINKERBELL_FAILURE_MESSAGE"; exit 3',
        "long": "sleep 60",
    }
    for name, script in scripts.items():
        action = {"name": name, "image": "none", "cmd": "/bin/sh", "args": ["-c", script]}
        await stack.create(TEMPLATE, name, {"actions": [action]})
        await stack.workflow(name, templateRef={"name": name})
    await stack.until("Succeeded", "good")
    failed = condition(await stack.until("Failed", "bad"), "Succeeded")
    assert (failed["reason"], failed["message"].startswith("gone")) == ("NoDisk", True)
    await stack.until("Running", "long")
    await stack.client.delete(WORKFLOW, "long", NAMESPACE)
    await stack.wait_until_gone("long")
    for call in calls:
        call.cancel()
    await running.close()
    await channel.close()


# --- an operator with kubectl ----------------------------------------------------------------------------------------


@pytest.fixture
async def operated(kubectl: Kubectl, tmp_path: Path) -> AsyncIterator[Stack]:
    """An engine with the machine and the template, on the API of `kubectl`."""
    connected = await KubeClient.connect(tmp_path / "state" / "kubeconfig")
    new_stack = Stack(connected, ControllerSettings())
    try:
        await new_stack.start()
        await new_stack.furnish()
        yield new_stack
    finally:
        await new_stack.stop()
        await connected.close()


async def test_kubectl_wait_ends_when_a_workflow_has_started_and_when_it_has_succeeded(
    operated: Stack, kubectl: Kubectl
) -> None:
    agent = await operated.agent()
    await operated.workflow()
    command = await agent.start_command()
    waiting = ("wait", "--timeout=20s", "workflow/w")
    started, succeeded = (
        asyncio.create_task(kubectl(*waiting, f"--for=condition={kind}")) for kind in ("Started", "Succeeded")
    )
    await agent.started(command, 0)
    assert "condition met" in await started
    await agent.succeeded(command, 0)
    assert not succeeded.done()
    await agent.succeeded(command, 1)
    assert "condition met" in await succeeded


async def test_kubectl_shows_why_a_workflow_failed_and_wait_need_not_time_out(
    operated: Stack, kubectl: Kubectl
) -> None:
    agent = await operated.agent()
    await operated.workflow()
    command = await agent.reaches("started")
    waiting = asyncio.create_task(kubectl("wait", "--timeout=20s", "workflow/w", "--for=condition=Succeeded=false"))
    await agent.failed(command, "DiskMissing", "no /dev/vda")
    assert "condition met" in await waiting
    failed = await operated.until("Failed")
    why = {"reason": "DiskMissing", "message": "no /dev/vda"}
    assert condition(failed, "Succeeded") == {"type": "Succeeded", "status": "False", **why}
    first, second = failed["status"]["actions"]
    assert (first["failureReason"], first["failureMessage"]) == ("DiskMissing", "no /dev/vda")
    assert second["state"] == "Pending"
    described = await kubectl("describe", "workflow", "w")
    for line in ("DiskMissing", "no /dev/vda", "State:.*Failed", "State:.*Pending", "Name:.*check", "Type:.*Succeeded"):
        assert re.search(line, described), f"{line} is not in\n{described}"
    listed = await kubectl("get", "workflows")
    assert re.search(r"^w +.*Failed", listed, re.MULTILINE), listed


async def test_kubectl_delete_cancels_a_running_workflow_and_returns_when_the_agent_has_stopped(
    operated: Stack, kubectl: Kubectl
) -> None:
    agent = await operated.agent()
    await operated.workflow()
    command = await agent.reaches("started")
    await operated.until("Running")
    states: list[str] = []
    operated.workflows.add_event_handler(lambda new, _: states.append(new["status"]["state"]))
    deleting = asyncio.create_task(kubectl("delete", "workflow", "w", "--timeout=20s"))
    assert await agent.stop_command() == command.workflow_id
    assert "Cancelling" in await kubectl("get", "workflow", "w")
    assert not deleting.done(), "deleted before the agent has stopped"
    await agent.failed(command, "Canceled", "stopped on request")
    assert "deleted" in await deleting
    assert states[-1] == "Canceled", states
    assert "NotFound" in (await kubectl.run("get", "workflow", "w")).err


async def test_hardware_that_is_deleted_and_applied_again_lets_its_running_workflow_go_on(
    operated: Stack, kubectl: Kubectl
) -> None:
    agent = await operated.agent()
    await operated.workflow()
    command = await agent.reaches("started")
    await operated.until("Running")
    machine = await operated.client.get(HARDWARE, "machine", NAMESPACE)
    await kubectl("delete", "hardware", "machine")
    await kubectl("wait", "workflow/w", "--for=condition=HardwareGone", "--timeout=20s")
    assert f"Hardware {NAMESPACE}/machine is gone: apply it again before" in await kubectl("get", "workflow", "w")
    with pytest.raises(grpc.aio.AioRpcError):
        await agent.succeeded(command, 0)
    await operated.create(HARDWARE, "machine", machine["spec"])
    await kubectl("wait", "workflow/w", "--for=condition=HardwareGone=false", "--timeout=20s")
    again = await operated.agent()
    for index in range(2):
        await again.succeeded(command, index)
    ended = await operated.until("Succeeded")
    assert condition(ended, "HardwareGone") == {"type": "HardwareGone", "status": "False", "reason": "HardwareBack"}


async def test_forced_kubectl_delete_of_a_workflow_with_an_absent_agent_returns(
    kubectl: Kubectl, operated: Stack
) -> None:
    agent = await operated.agent()
    await operated.workflow()
    await agent.reaches("started")
    await operated.until("Running")
    agent.call.cancel()
    impatient = Stack(operated.client, ControllerSettings(cancelling_timeout=1))
    try:
        await impatient.start()
        await kubectl("delete", "workflow", "w", "--timeout=20s")
    finally:
        await impatient.stop()


CANCEL = ("--subresource=status", "--type=merge", "-p", '{"status":{"state":"Cancelling"}}')
CANCELED = ("--for=jsonpath={.status.state}=Canceled", "--timeout=20s")


@pytest.mark.since(24)
async def test_workflow_without_an_agent_is_cancelled_and_deleted_at_once(operated: Stack, kubectl: Kubectl) -> None:
    """The Workflows are not prepared, not dispatched (the machine is off), or rejected by the agent."""
    await operated.workflow("homeless", hardwareRef={"name": "nobody"})
    await operated.workflow("deleted")
    await operated.workflow("cancelled")
    for name in ("deleted", "cancelled"):
        await operated.until("Pending", name)
    for name in ("homeless", "cancelled"):
        await kubectl("patch", "workflow", name, *CANCEL)
        await kubectl("wait", f"workflow/{name}", *CANCELED)
    assert "status.state was set to Cancelling" in await kubectl("get", "workflow", "cancelled", "-o", "wide")
    assert "deleted" in await kubectl("delete", "workflow", "homeless", "deleted", "cancelled", "--timeout=20s")

    agent = await operated.agent()
    await operated.workflow("rejected")
    await operated.workflow("next")
    await agent.rejects(await agent.start_command(), "AlreadyRunning")
    await operated.until("Pending", "rejected")
    await kubectl("patch", "workflow", "rejected", *CANCEL)
    await kubectl("wait", "workflow/rejected", *CANCELED)
    # The server sends the stop command, since an agent that does not report its Workflows may still run it.
    assert await agent.stop_command() == (await operated.get("rejected"))["metadata"]["uid"]
    command = await agent.start_command()
    assert command.workflow_id == (await operated.get("next"))["metadata"]["uid"]
    await agent.started(command, 0)
    await operated.until("Running", "next")


@pytest.mark.since(24)
async def test_sent_workflow_that_is_cancelled_waits_for_its_agent(operated: Stack, kubectl: Kubectl) -> None:
    agent = await operated.agent()
    await operated.workflow()
    command = await agent.start_command()
    await kubectl("patch", "workflow", "w", *CANCEL)
    assert await agent.stop_command() == command.workflow_id
    assert (await operated.get())["status"]["state"] == "Cancelling"
    await agent.rejects(command, "UnknownWorkflow")
    await kubectl("wait", "workflow/w", *CANCELED)
