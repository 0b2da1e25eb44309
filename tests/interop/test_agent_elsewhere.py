"""An agent that is not ours: exactly the calls of tinkerbell/tink's v2 agent (at 8748328), which sends no metadata.

Recorded from that agent, built from its source and run against this server. It says nothing of what it holds, sends an
event five times at most and then forgets it, and drops every event of a Workflow that it was told to stop.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from proto import workflow_pb2 as pb
from proto.workflow_pb2_grpc import WorkflowServiceStub
from tests.interop.rack import Kubectl, Process, clean_environment, tinkedge
from tests.ports import free_ports
from tests.waiting import wait_until

MAC = "52:54:00:00:00:01"


class Here:
    """What `Kubectl` takes for the place where it runs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def start(self, _: str, *command: str | Path) -> Process:
        return Process([*map(str, command)], self.directory, clean_environment())


class Peer:
    """The agent, driven by the test."""

    def __init__(self, server: str) -> None:
        self._channel = grpc.insecure_channel(server)
        grpc.channel_ready_future(self._channel).result(20)
        self._stub = WorkflowServiceStub(self._channel)
        self._stream: Iterator[pb.GetWorkflowsResponse] = self._stub.GetWorkflows(
            pb.GetWorkflowsRequest(agent_id=MAC), timeout=300
        )

    def command(self) -> pb.GetWorkflowsResponse:
        return next(self._stream)

    def started(self) -> pb.Workflow:
        return self.command().start_workflow.workflow

    def publish(self, workflow: pb.Workflow, **event: Any) -> None:
        told = pb.Event(workflow_id=workflow.workflow_id, **event)
        self._stub.PublishEvent(pb.PublishEventRequest(event=told), timeout=10)

    def run(self, workflow: pb.Workflow, fails_at: int = -1) -> None:
        for index, action in enumerate(workflow.actions):
            self.publish(workflow, action_started=pb.Event.ActionStarted(action_id=action.id))
            if index == fails_at:
                told = {"failure_reason": "Broken", "failure_message": "exit status 3\\nno\\n"}
                self.publish(workflow, action_failed=pb.Event.ActionFailed(action_id=action.id, **told))
                return
            self.publish(workflow, action_succeeded=pb.Event.ActionSucceeded(action_id=action.id))

    def close(self) -> None:
        self._channel.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Kubectl, Peer]]:
    """`tinkedge up` with a machine and Templates, and the peer's agent on that machine."""
    api, server, http, admin = map(str, free_ports(4))
    options = ["--interface", "lo=127.0.0.1", "--agent-auth", "none", "--disable", "dhcp", "--disable", "tftp"]
    options += ["--api-port", api, "--grpc-port", server, "--http-port", http, "--admin-port", admin]
    options += ["--data-dir", str(tmp_path / "data"), "--cancelling-timeout", "2"]
    process = tinkedge(tmp_path, "up", *options)
    try:
        wait_until(lambda: "ready: " in process.err, lambda: process.err)
        kubectl = Kubectl(Here(tmp_path), tmp_path / "data" / "kubeconfig")  # type: ignore[arg-type]
        actions = [{"name": name, "image": "i"} for name in ("a", "b", "c")]
        kubectl.apply(of("Hardware", "h", {"networkInterfaces": {MAC: {}}}))
        kubectl.apply(of("Template", "t", {"actions": actions}))
        peer = Peer(f"127.0.0.1:{server}")
        yield kubectl, peer
        peer.close()
    finally:
        process.end()


def of(kind: str, name: str, spec: dict[str, Any]) -> str:
    head = {"apiVersion": "tinkerbell.org/v1alpha2", "kind": kind}
    return yaml.safe_dump({**head, "metadata": {"name": name, "namespace": "default"}, "spec": spec})


def workflow(name: str) -> str:
    return of("Workflow", name, {"hardwareRef": {"name": "h"}, "templateRef": {"name": "t"}})


def test_agent_of_tinkerbell_tink_runs_fails_rejects_and_is_stopped(site: tuple[Kubectl, Peer]) -> None:
    kubectl, peer = site
    kubectl.apply(workflow("good"))
    peer.run(peer.started())
    wait_until(lambda: kubectl.state("good") == "Succeeded")

    kubectl.apply(workflow("bad"))
    peer.run(peer.started(), fails_at=1)
    wait_until(lambda: kubectl.state("bad") == "Failed")
    why = 'jsonpath={.status.conditions[?(@.type=="Succeeded")].reason}'
    assert kubectl("get", "workflow", "bad", "-o", why) == "Broken"

    kubectl.apply(workflow("stopped"))
    held = peer.started()
    peer.publish(held, action_started=pb.Event.ActionStarted(action_id=held.actions[0].id))
    kubectl("delete", "workflow", "stopped", "--wait=false")
    assert peer.command().stop_workflow.workflow_id == held.workflow_id
    # It stops, and what it would say of that goes nowhere: the controller ends the wait.
    wait_until(lambda: "NotFound" in kubectl.run("get", "workflow", "stopped").err)

    # It may still be stopping, and takes no other then.
    kubectl.apply(workflow("next"))
    refused = peer.started()
    peer.publish(refused, workflow_rejected=pb.Event.WorkflowRejected(failure_message="workflow already in progress"))
    wait_until(lambda: kubectl.state("next") == "Pending")
    again = peer.started()
    assert again.workflow_id == refused.workflow_id
    peer.run(again)
    wait_until(lambda: kubectl.state("next") == "Succeeded")
