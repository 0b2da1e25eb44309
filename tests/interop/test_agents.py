"""Agents as processes, against a real `tinkedge up` on loopback: killed, stopped, started twice, on a full disk.

One agent is not ours: it makes exactly the calls of tinkerbell/tink's v2 agent (at 8748328), which sends no metadata.
They were recorded from that agent, built from its source and run against this server. It never reports what it holds,
sends an event five times at most and then forgets it, and drops every event of a Workflow after a stop command.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import grpc
import pytest

from proto import workflow_pb2 as pb
from proto.workflow_pb2_grpc import WorkflowServiceStub
from tests.bench import older_agents
from tests.interop.rack import Kubectl, Process, clean_environment, tinkedge
from tests.ports import free_ports
from tests.waiting import wait_until


class Here:
    """The host as a place for `Kubectl`, without a network namespace."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def start(self, _: str, *command: str | Path) -> Process:
        return Process([*map(str, command)], self.directory, clean_environment())


class Stack:
    """`tinkedge up` on loopback, without authentication of agents."""

    def __init__(self, directory: Path) -> None:
        api, self.port, self.http_port, self.admin_port = map(str, free_ports(4))
        options = ["--interface", "lo=127.0.0.1", "--agent-auth", "none", "--disable", "dhcp", "--disable", "tftp"]
        options += [
            "--api-port",
            api,
            "--grpc-port",
            self.port,
            "--http-port",
            self.http_port,
            "--admin-port",
            self.admin_port,
        ]
        self.data_dir = directory / "data"
        options += ["--data-dir", str(self.data_dir), "--cancelling-timeout", "2"]
        self.process = tinkedge(directory, "up", *options)
        wait_until(lambda: "ready: " in self.process.err, lambda: self.process.err)
        self.kubectl = Kubectl(Here(directory), self.data_dir / "kubeconfig")  # type: ignore[arg-type]
        self.numbers = count(1)

    def apply(self, kind: str, name: str, spec: dict[str, Any]) -> None:
        about = {"apiVersion": "tinkerbell.org/v1alpha2", "kind": kind, "metadata": {"name": name}}
        self.kubectl.apply(json.dumps(about | {"spec": spec}))

    def journey(self, mac: str) -> str:
        """Return the events of a machine from the operators' port, as JSON."""
        token = (self.data_dir / "admin-token").read_text().strip()
        url = f"http://127.0.0.1:{self.admin_port}/api/v1/machines/{mac}/events"
        with urlopen(Request(url, headers={"Authorization": f"Bearer {token}"})) as answer:
            return str(answer.read().decode())

    def ended(self, workflow: str, agent_process: Process) -> str:
        """Wait for the end of a Workflow, and return its state, or why it has failed."""

        def status() -> dict[str, Any] | None:
            found: dict[str, Any] = json.loads(self.kubectl("get", "workflow", workflow, "-o", "json"))["status"]
            return found if found["state"] in ("Succeeded", "Failed") else None

        found = wait_until(status, lambda: agent_process.err + self.process.err[-3000:], every=0.2)
        return str(next(each.get("reason", "Succeeded") for each in found["conditions"] if each["type"] == "Succeeded"))


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    made = Stack(tmp_path_factory.mktemp("agents"))
    yield made
    made.process.end()


class Machine:
    """A machine with a Hardware, and the agents that were started on it."""

    def __init__(self, stack: Stack, directory: Path) -> None:
        number = next(stack.numbers)
        self.stack, self.directory, self.name = stack, directory, f"m{number}"
        self.mac = f"52:54:00:00:00:{number:02x}"
        self.state_dir = directory / "state"
        self.agents: list[Process] = []
        stack.apply("Hardware", self.name, {"networkInterfaces": {self.mac: {}}})

    def agent(self) -> Process:
        words = ["--agent-id", self.mac, "--server", f"127.0.0.1:{self.stack.port}", "--runtime", "process"]
        self.agents.append(tinkedge(self.directory, "agent", *words, "--state-dir", self.state_dir))
        return self.agents[-1]

    def order(self, *scripts: str) -> None:
        """Create the Workflow of the machine's name; its actions run these."""
        actions = [
            {"name": f"act{index}", "image": "none", "cmd": "/bin/sh", "args": ["-c", script]}
            for index, script in enumerate(scripts)
        ]
        self.stack.apply("Template", self.name, {"actions": actions})
        self.stack.apply(
            "Workflow", self.name, {"hardwareRef": {"name": self.name}, "templateRef": {"name": self.name}}
        )

    def note(self, word: str) -> str:
        """A script by which an action notes that it runs."""
        return f"echo {word} >>{self.directory}/runs"

    def runs(self) -> Counter[str]:
        file = self.directory / "runs"
        return Counter(file.read_text().split()) if file.exists() else Counter()

    def ended(self) -> str:
        return self.stack.ended(self.name, self.agents[-1])


@pytest.fixture
def machine(stack: Stack, tmp_path: Path) -> Iterator[Machine]:
    made = Machine(stack, tmp_path)
    yield made
    for agent in made.agents:
        agent.end()


def killed(agent: Process) -> None:
    agent.popen.kill()
    agent.status()


def test_second_agent_on_one_state_directory_is_refused_and_the_first_goes_on(machine: Machine) -> None:
    first = machine.agent()
    wait_until(lambda: "connected" in first.err, lambda: first.err)
    second = machine.agent()
    assert second.status() == 1
    assert f"is used by another agent, process {first.popen.pid}" in second.err
    machine.order("echo hello from the action", machine.note("begun"))
    assert machine.stack.ended(machine.name, first) == "Succeeded"
    assert machine.runs() == {"begun": 1}
    wait_until(lambda: "hello from the action" in machine.stack.journey(machine.mac), "its output")
    assert first.terminate() == 0


def test_killed_agent_reports_the_action_that_still_runs_and_releases_its_lock(machine: Machine) -> None:
    machine.order(f"{machine.note('$$')}; exec sleep 60")
    agent = machine.agent()
    (action,) = wait_until(machine.runs, lambda: agent.err)
    killed(agent)
    try:
        machine.agent()
        assert machine.ended() == "AgentRestarted", "the server would report it lost if the agent did not hold it"
        assert machine.runs() == {action: 1}
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(action), signal.SIGKILL)


def test_sigterm_stops_the_action_and_a_new_agent_reports_it(machine: Machine) -> None:
    machine.order(f"trap '{machine.note('ended')}; exit 0' TERM; {machine.note('begun')}; sleep 60 & wait")
    agent = machine.agent()
    wait_until(machine.runs, lambda: agent.err)
    assert agent.terminate() == 0
    assert machine.runs() == {"begun": 1, "ended": 1}
    state = machine.stack.kubectl.state(machine.name)
    assert state == "Running", "the server may not hear that it failed: the machine may be going down"
    machine.agent()
    assert machine.ended() == "AgentRestarted"
    assert machine.runs() == {"begun": 1, "ended": 1}


@pytest.fixture
def small_disk(machine: Machine) -> Iterator[Path]:
    """The state directory is a file system of 64 kB."""
    machine.state_dir.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", machine.state_dir], check=True)
    yield machine.state_dir
    subprocess.run(["umount", "--lazy", machine.state_dir], check=True)


def test_full_disk_an_absent_server_and_a_kill_9_run_no_action_twice(machine: Machine, small_disk: Path) -> None:
    """The agent can record its next action neither on disk nor at the server, so it must wait."""
    up, go = machine.stack.process.popen, machine.directory / "go"
    longer_than_a_block = "true " + "x" * 5000  # a short one would fit into the existing file
    held_up = f"until test -e {go}; do sleep 0.02; done; {longer_than_a_block}"
    agent = machine.agent()
    wait_until(lambda: "connected" in agent.err, lambda: agent.err)
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "filler").write_bytes(b"x" * 65536)
    machine.order(*(f"{machine.note(f'begun-{index}')}; {held_up}" for index in range(3)))
    wait_until(machine.runs, lambda: agent.err)
    wait_until(lambda: machine.stack.kubectl.state(machine.name) == "Running")
    up.send_signal(signal.SIGSTOP)
    try:
        go.touch()
        wait_until(lambda: "cannot be written: No space left on device" in agent.err, lambda: agent.err)
        assert machine.runs() == {"begun-0": 1}
        killed(agent)
        machine.agent()
    finally:
        up.send_signal(signal.SIGCONT)
    assert machine.ended() == "AgentLost"
    assert machine.runs() == {"begun-0": 1}


class Peer:
    """The agent of tinkerbell/tink, driven by the test."""

    def __init__(self, machine: Machine) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{machine.stack.port}")
        self._stub = WorkflowServiceStub(self._channel)
        asked = pb.GetWorkflowsRequest(agent_id=machine.mac)
        self._stream: Iterator[pb.GetWorkflowsResponse] = self._stub.GetWorkflows(asked, wait_for_ready=True)

    def command(self) -> pb.GetWorkflowsResponse:
        return next(self._stream)

    def started(self) -> pb.Workflow:
        return self.command().start_workflow.workflow

    def publish(self, workflow: pb.Workflow, **event: Any) -> None:
        published = pb.Event(workflow_id=workflow.workflow_id, **event)
        self._stub.PublishEvent(pb.PublishEventRequest(event=published))

    def run(self, workflow: pb.Workflow, fails_at: int = -1) -> None:
        for index, action in enumerate(workflow.actions):
            self.publish(workflow, action_started=pb.Event.ActionStarted(action_id=action.id))
            if index == fails_at:
                failure = {"failure_reason": "Broken", "failure_message": "exit status 3\\nno\\n"}
                self.publish(workflow, action_failed=pb.Event.ActionFailed(action_id=action.id, **failure))
                return
            self.publish(workflow, action_succeeded=pb.Event.ActionSucceeded(action_id=action.id))

    def close(self) -> None:
        self._channel.close()


def test_agent_of_tinkerbell_tink_runs_fails_rejects_and_is_stopped(machine: Machine) -> None:
    kubectl, up = machine.stack.kubectl, machine.stack.process
    machine.stack.apply("Template", "three", {"actions": [{"name": name, "image": "i"} for name in ("a", "b", "c")]})

    def order(name: str) -> None:
        machine.stack.apply("Workflow", name, {"hardwareRef": {"name": machine.name}, "templateRef": {"name": "three"}})

    with contextlib.closing(Peer(machine)) as peer:
        order("good")
        peer.run(peer.started())
        assert machine.stack.ended("good", up) == "Succeeded"

        order("bad")
        peer.run(peer.started(), fails_at=1)
        assert machine.stack.ended("bad", up) == "Broken"

        order("stopped")
        held = peer.started()
        peer.publish(held, action_started=pb.Event.ActionStarted(action_id=held.actions[0].id))
        kubectl("delete", "workflow", "stopped", "--wait=false")
        assert peer.command().stop_workflow.workflow_id == held.workflow_id
        # The agent stops and drops its events, so the controller ends the wait.
        wait_until(lambda: "NotFound" in kubectl.run("get", "workflow", "stopped").err)

        # While it stops, it accepts no other Workflow.
        order("next")
        refused = peer.started()
        rejected = pb.Event.WorkflowRejected(failure_message="workflow already in progress")
        peer.publish(refused, workflow_rejected=rejected)
        wait_until(lambda: kubectl.state("next") == "Pending")
        again = peer.started()
        assert again.workflow_id == refused.workflow_id
        peer.run(again)
        assert machine.stack.ended("next", up) == "Succeeded"


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_thousand_idle_older_agents_cost_no_more_than_a_thousand_of_todays(tmp_path: Path) -> None:
    found = older_agents.idle(tmp_path)
    print(f"{older_agents.AGENTS} idle agents: {found}")
    older, todays = found["older"], found["todays"]
    # The tolerance covers two equal measurements on a busy machine.
    assert older["cpu"] <= todays["cpu"] * 1.15
    assert older["kb"] <= todays["kb"] * 1.05
