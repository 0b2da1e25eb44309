"""`tinkedge up`, and the same services one by one, as an operator runs them: real processes on a rack's network.

    edge's namespace: rack0 172.31.77.1 --- bridge --- eth0 172.31.77.50, the MAC of deploy/examples/hardware.yaml
                                                   \\-- eth1, a machine without a Hardware

kubectl, the agent, DHCP clients and `tinkedge watch` are real, and each runs in the namespace where it belongs.
"""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.rack import ADDRESS, IN_EDGE, TINKEDGE, Kubectl, Namespaces, Process, clean_environment
from tests.waiting import wait_until

EXAMPLES = Path(__file__).resolve().parents[2] / "deploy" / "examples"
MACHINE = "52:54:00:12:34:56"
STRANGER = "52:54:00:aa:bb:cc"
IN_MACHINE = "machine"

COMMANDS = """
apiVersion: tinkerbell.org/v1alpha2
kind: Template
metadata: {name: commands}
spec:
  actions:
    - {name: look, image: none, cmd: /bin/sh, args: [-c, "test {{ index .Hardware.StorageDevices 0 }} = /dev/vda"]}
    - {name: write, image: none, cmd: /bin/sh, args: [-c, "echo {{ .Params.word }} > {{ .Params.file }}"]}
---
apiVersion: tinkerbell.org/v1alpha2
kind: Workflow
metadata: {name: run}
spec:
  hardwareRef: {name: lab-machine}
  templateRef: {name: commands}
  templateParams: {word: done, file: FILE}
"""


class Rack(Namespaces):
    """The two namespaces and everything that was started in them."""

    def build(self) -> None:
        self.network("rack0", {IN_MACHINE: MACHINE})
        self.card(IN_MACHINE, "eth1", STRANGER, "rack0")
        self.address(IN_MACHINE, "172.31.77.50/24")

    def up(self, data_dir: Path, *options: str | Path, command: str = "up") -> Process:
        network = ["--interface", "rack0", "--public-ip", ADDRESS]
        return self.tinkedge(IN_EDGE, command, *network, "--data-dir", data_dir, *options)

    def agent(self, where: str = IN_MACHINE) -> Process:
        options = ["--agent-id", MACHINE, "--server", f"{ADDRESS}:42113", "--runtime", "process"]
        state = self.directory / f"agent-{secrets.token_hex(3)}"
        return self.tinkedge(where, "agent", *options, "--state-dir", state)


@pytest.fixture
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rack]:
    with Rack(tmp_path_factory.mktemp("rack")) as rack:
        yield rack


class Serving:
    """A rack with a ready `tinkedge up` and the objects of deploy/examples."""

    def __init__(self, rack: Rack) -> None:
        self.rack = rack
        self.data_dir = rack.directory / "data"
        self.process = rack.up(self.data_dir)
        rack.ready(self.process)
        self.kubectl = Kubectl(rack, self.data_dir / "kubeconfig")
        self.applied = self.kubectl("apply", "-f", EXAMPLES)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Rack(tmp_path_factory.mktemp("serving")) as rack:
        yield Serving(rack)


# --- the whole stack in one process -----------------------------------------------------------------------------------


@pytest.mark.smoke
def test_workflow_applied_with_kubectl_is_run_by_the_agent_and_each_state_is_seen(serving: Serving) -> None:
    kubectl, rack = serving.kubectl, serving.rack
    assert serving.applied.count("created") == 4
    assert (serving.data_dir / "kubeconfig").stat().st_mode & 0o777 == 0o600
    watch = kubectl.start("get", "workflow", "-w", "--no-headers")
    wait_until(lambda: watch.out.startswith("install"))  # the list is complete; further lines come from the watch
    agent = rack.agent()
    written = rack.directory / "written"
    kubectl.apply(COMMANDS.replace("FILE", str(written)))
    wait_until(lambda: "Succeeded" in watch.out, lambda: watch.out + agent.err + serving.process.err)
    seen = [line.split()[1] for line in watch.out.splitlines() if line.startswith("run ")]
    states = [state for state in dict.fromkeys(seen) if state in ("Pending", "Scheduled", "Running", "Succeeded")]
    assert states == ["Pending", "Scheduled", "Running", "Succeeded"]
    assert written.read_text() == "done\n"
    # The example's actions have no cmd, which the process runtime needs: the Workflow fails early, with the reason.
    failed = json.loads(kubectl("get", "workflow", "install", "-o", "json"))["status"]
    assert failed["state"] == "Failed"
    assert failed["actions"][0]["failureReason"] == "InvalidAction"
    watch.end()
    agent.end()


def test_agent_from_a_wrong_address_is_refused_and_the_journey_reports_it(serving: Serving) -> None:
    agent = serving.rack.agent(IN_EDGE)
    wait_until(lambda: "PERMISSION_DENIED" in agent.err, lambda: agent.err)
    assert f"{ADDRESS} may not act for '{MACHINE}': no Hardware of that id has this address" in agent.err
    agent.end()
    journey = events(serving.rack, f"machines/{MACHINE}/events")
    assert ("agent", "refused") in {(event["step"], event["outcome"]) for event in journey}


def test_bad_hardware_is_refused_with_kubernetes_errors_and_manual_definitions_equal_the_installed_ones(
    serving: Serving,
) -> None:
    good = (EXAMPLES / "hardware.yaml").read_text()
    file = serving.rack.directory / "bad.yaml"
    file.write_text(good.replace("lab-machine", "bad").replace("172.31.77.50", "172.31.77.500"))
    refused = serving.kubectl.run("apply", "-f", file)
    assert refused.popen.returncode == 1
    for words in ('The Hardware "bad" is invalid: ', "spec.networkInterfaces", "172.31.77.500"):
        assert words in refused.err
    assert "NotFound" in serving.kubectl.run("get", "hardware", "bad").err

    definitions = serving.rack.run(IN_EDGE, *TINKEDGE, "crds")
    assert definitions.popen.returncode == 0
    file.write_text(definitions.out)
    applied = serving.kubectl.run("apply", "--dry-run=server", "-o", "json", "-f", file)
    assert applied.err == "", "nothing is warned of"
    given = {each["metadata"]["name"]: each["spec"]["versions"] for each in json.loads(applied.out)["items"]}
    installed = json.loads(serving.kubectl("get", "crd", *given, "-o", "json"))["items"]
    assert len(given) == 4
    # The embedded API adds v1alpha1, which `tinkedge crds` prints only on request.
    assert {each["metadata"]["name"]: each["spec"]["versions"] for each in installed} == given


def test_link_opens_the_page_of_the_whole_stack_in_a_client_without_the_token(serving: Serving) -> None:
    rack, jar = serving.rack, str(serving.rack.directory / "cookies")
    asked = rack.run(IN_EDGE, *TINKEDGE, "page", "--data-dir", serving.data_dir)
    assert asked.popen.returncode == 0, asked.err

    def get(url: str) -> str:
        return rack.curl(IN_EDGE, url, "-f", "-c", jar, "-b", jar)

    assert "You are in" in get(asked.out.strip())
    page = get(f"http://127.0.0.1:7081/machine/{MACHINE}")
    assert "lab-machine" in page
    assert "Workflow run" in page or "Workflow install" in page, page  # the machine's last Workflow
    assert "served</b>" in get("http://127.0.0.1:7081/edge")
    assert rack.curl(IN_EDGE, "http://127.0.0.1:7081/", "-w", "%{http_code}").endswith("401")


def test_watch_shows_each_step_of_machines_and_how_to_register_a_stranger(serving: Serving) -> None:
    rack = serving.rack
    watch = rack.tinkedge(IN_EDGE, "watch", "--events", "-o", "json", "--data-dir", rack.directory / "data")
    # Dashes and capitals: as the label on the machine has it.
    only = rack.tinkedge(IN_EDGE, "watch", "--data-dir", rack.directory / "data", STRANGER.upper().replace(":", "-"))
    ask = ["busybox", "udhcpc", "-f", "-n", "-q", "-T", "1", "-s", "/bin/true"]
    clients = [rack.start(IN_MACHINE, *ask, "-t", tries, "-i", card) for card, tries in (("eth0", "15"), ("eth1", "2"))]

    def steps() -> set[tuple[str, str, str]]:
        lines = [json.loads(line) for line in watch.out.splitlines(keepends=True) if line.endswith("\n")]
        return {(event["mac"], event["step"], event["outcome"]) for event in lines}

    expected = {(MACHINE, "dhcp", "ok"), (STRANGER, "seen", "info")}
    wait_until(lambda: expected <= steps(), lambda: (steps(), watch.err, serving.process.err))
    wait_until(lambda: "kind: Hardware" in only.out, lambda: only.err)
    assert MACHINE not in only.out
    assert clients[0].status() == 0
    assert clients[1].status() == 1  # silence
    machines = {machine["mac"]: machine for machine in events(rack, "machines")}
    assert machines[MACHINE]["registered"] is True
    assert machines[STRANGER]["registered"] is False
    assert f'"{STRANGER}"' in machines[STRANGER]["manifest"]
    # The API accepts the manifest that the output shows.
    manifest = rack.directory / "stranger.yaml"
    manifest.write_text(machines[STRANGER]["manifest"])
    assert "created (server dry run)" in serving.kubectl("apply", "--dry-run=server", "-f", manifest)
    for process in (watch, only):
        process.end()


def events(rack: Rack, path: str, data_dir: str = "data") -> Any:
    return json.loads(rack.operators(rack.directory / data_dir, f"/api/v1/{path}"))


def test_second_up_on_this_host_names_the_port_in_use_and_the_remedy(serving: Serving) -> None:
    rack = serving.rack
    words = ["--api-port=16410", "--grpc-port=42210", "--http-port=7110"]  # taken ones of TCP: tests/unit/run
    for port, remedy in (("UDP port 69 on rack0", "--disable tftp"), ("UDP port 67 on rack0", "--disable dhcp")):
        second = rack.up(rack.directory / f"second-{len(words)}", *words)
        assert second.status() == 1, second.err
        last = second.err.splitlines()[-1]
        assert port in last
        assert remedy in last
        assert "Traceback" not in second.err
        words += remedy.split()
    same = rack.up(serving.data_dir, "--api-port", "16500")
    assert same.status() == 1
    assert "state.db: another API server is using it; stop that one first" in same.err
    rack.ready(serving.process)  # and the first one has not noticed


# --- start and stop ---------------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_sigterm_ends_up_with_nothing_left_and_the_next_start_has_all_objects(rack: Rack) -> None:
    data_dir = rack.directory / "data"
    first = rack.up(data_dir)
    rack.ready(first)
    assert {"udp:67", "udp:4011", "udp:69", "tcp:7080", "tcp:42113", "tcp:6443", "tcp:7081"} <= rack.listening()
    kubectl = Kubectl(rack, data_dir / "kubeconfig")
    kubectl("apply", "-f", EXAMPLES)
    uid = kubectl("get", "hardware", "lab-machine", "-o", "jsonpath={.metadata.uid}")
    # Streams are open everywhere: of kubectl, of an agent and of an operator who has stopped reading.
    watch = kubectl.start("get", "workflow", "-w", "--no-headers")
    agent = rack.agent()
    journey = rack.tinkedge(IN_EDGE, "watch", "--events", "-o", "json", "--data-dir", rack.directory / "data")
    wait_until(
        lambda: "connected" in agent.err and '"agent"' in journey.out and "install" in watch.out, lambda: agent.err
    )
    assert first.terminate() == 0, first.err
    assert "Traceback" not in first.err
    assert rack.listening() == set()
    for client in (watch, journey):
        client.end()
    assert rack.inside(IN_EDGE) == set()
    second = rack.up(data_dir)
    rack.ready(second)
    assert kubectl("get", "hardware", "lab-machine", "-o", "jsonpath={.metadata.uid}") == uid
    # The agent has waited, and continues.
    wait_until(lambda: kubectl.state("install") == "Failed", lambda: agent.err, every=0.3)
    agent.end()
    assert second.terminate() == 0, second.err


def test_manifests_are_applied_at_start_but_bad_ones_and_a_disabled_service_leaves_its_port_free(rack: Rack) -> None:
    directory = rack.directory / "objects"
    shutil.copytree(EXAMPLES, directory)
    wrong = (EXAMPLES / "hardware.yaml").read_text().replace("255.255.255.0", "255.255.255.1")
    (directory / "a-schema.yaml").write_text(wrong)
    (directory / "a-syntax.yaml").write_text("kind: Hardware\n\tx")
    data_dir = rack.directory / "data"
    up = rack.up(data_dir, "--manifests", directory, "--disable", "dhcp")
    rack.ready(up)
    for expected in ("a-schema.yaml: Hardware lab-machine: ", "].dhcp.netmask: ", "a-syntax.yaml: not YAML"):
        assert expected in up.err[up.err.index("ERROR") :]
    (directory / "a-syntax.yaml").unlink()
    (directory / "a-schema.yaml").write_text("")
    wait_until(lambda: "nothing is refused any more" in up.err, lambda: up.err)
    assert not {"udp:67", "udp:4011"} & rack.listening()
    assert {"udp:69", "tcp:7080"} <= rack.listening()
    listed = Kubectl(rack, data_dir / "kubeconfig")("get", "hardware,osie,template,workflow", "-o", "name").split()
    names = ["hardware.{}/lab-machine", "osie.{}/lab", "template.{}/write-disk", "workflow.{}/install"]
    assert listed == [name.format("tinkerbell.org") for name in names]
    assert up.terminate() == 0


# --- one service a process --------------------------------------------------------------------------------------------


def test_services_in_processes_of_their_own_run_a_workflow_together(rack: Rack) -> None:
    data_dir = rack.directory / "data"
    kubeconfig = data_dir / "kubeconfig"
    api = rack.started(rack.tinkedge(IN_EDGE, "apiserver", "--data-dir", data_dir))
    network = {"interface": "rack0", "public-ip": ADDRESS, "kubeconfig": str(kubeconfig)}
    edge = network | {"data-dir": str(rack.directory / "edge"), "disable": "dhcp tftp"}
    # Every flag can come from the environment.
    environment = {f"TINKEDGE_{name.upper().replace('-', '_')}": value for name, value in edge.items()}
    others = [
        rack.tinkedge(IN_EDGE, "controller", "--kubeconfig", kubeconfig),
        rack.tinkedge(IN_EDGE, "server", *(f"--{name}={value}" for name, value in network.items())),
        rack.tinkedge(IN_EDGE, "edge", **environment),
    ]
    kubectl = Kubectl(rack, kubeconfig)
    kubectl("apply", "-f", EXAMPLES / "hardware.yaml")
    written = rack.directory / "written"
    kubectl.apply(COMMANDS.replace("FILE", str(written)))
    # A Workflow that ended before the edge's first look is no step of the journey.
    rack.ready(api, *others)
    agent = rack.agent()
    wait_until(lambda: kubectl.state("run") == "Succeeded", lambda: agent.err, every=0.2)
    assert written.read_text() == "done\n"
    assert not {"udp:67", "udp:69"} & rack.listening()
    # The edge has received it from the API.
    wait_until(lambda: "Succeeded" in str(events(rack, f"machines/{MACHINE}/events", "edge")), every=0.2)
    agent.end()
    for process in (*others, api):
        assert process.terminate() == 0, process.err
    assert rack.listening() == set()


def test_doctor_finds_the_ports_of_a_running_up_and_tries_only_the_machines_interface(serving: Serving) -> None:
    def ports(interface: str, protocol: str) -> set[str]:
        output = serving.rack.run(IN_EDGE, *TINKEDGE, "doctor", "--no-lab", "--interface", interface).out
        lines = [line.split() for line in output.splitlines() if protocol in line and " port " in line]
        return {words[2].rstrip(":") for words in lines}

    everything = {"67/udp", "4011/udp", "69/udp", "7080/tcp", "42113/tcp", "6443/tcp", "7081/tcp"}
    assert ports("rack0", "tinkedge serves here") == everything
    # As with libvirt's own DHCP server, which serves another interface of the same host and does not conflict.
    assert ports("lo", "tinkedge serves here") == {"6443/tcp", "7081/tcp"}
    assert ports("lo", "free") == everything - {"6443/tcp", "7081/tcp"}


def test_doctor_without_privileges_names_the_missing_one_and_the_remedy(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    drop = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"]
    command = [*drop, *TINKEDGE, "doctor", "--interface", "lo", "--cache-dir", str(closed / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), check=False)
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert "disk space" in lines[-1]  # it got through
    for capability in ("CAP_NET_BIND_SERVICE", "CAP_SYS_ADMIN"):
        at = next(
            number for number, line in enumerate(lines) if line.lstrip().startswith("PROBLEM") and capability in line
        )
        assert "run it as root" in lines[at + 1]
    assert any(line.lstrip().startswith("PROBLEM port 67/udp (DHCP) on lo: Permission denied") for line in lines)
