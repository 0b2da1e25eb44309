"""deploy/examples/ansible with Debian's Ansible: its playbooks against `tinkedge up`, with real agents."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.rack import Process, clean_environment, tinkedge
from tests.interop.test_agents import Stack

pytestmark = pytest.mark.long

EXAMPLE = Path(__file__).parents[2] / "deploy" / "examples" / "ansible"
MODULES = Path(__file__).parent / "site_tools" / "modules.yaml"
MACS = ("00:00:5e:00:53:61", "00:00:5e:00:53:62")
RECAP = re.compile(r"^(\S+) +: ok=\d+ +changed=(\d+) +unreachable=(\d+) +failed=(\d+)", re.MULTILINE)
TEMPLATE = """
apiVersion: tinkerbell.org/v1alpha2
kind: Template
metadata: {name: debian}
spec:
  actions:
  - {name: write-disk, image: "{{ .Params.registry }}/actions/image2disk:1", cmd: /bin/sh, args: ["-c", "SCRIPT"]}
"""


class Ansible:
    """ansible-playbook in the example's directory, with a Template whose action is a script of the test."""

    def __init__(self, stack: Stack, directory: Path) -> None:
        self.stack, self.directory = stack, directory
        self.kubeconfig = stack.data_dir / "kubeconfig"
        self.agents: list[Process] = []
        self.action("true")

    def action(self, script: str) -> None:
        self.directory.joinpath("debian.yaml").write_text(TEMPLATE.replace("SCRIPT", script))

    def start_agents(self) -> None:
        for index, mac in enumerate(MACS):
            words = ["--agent-id", mac, "--server", f"127.0.0.1:{self.stack.port}", "--runtime", "process"]
            state = self.directory / f"state-{index}"
            self.agents.append(tinkedge(self.directory, "agent", *words, "--state-dir", state))

    def run(self, playbook: str | Path, *words: str) -> Process:
        found = shutil.which("ansible-playbook", path="/usr/bin:/usr/local/bin")
        assert found is not None, "Debian's package ansible is missing: deploy/setup.sh packages test-all"
        inventory = EXAMPLE / "inventory.yaml"
        command = [found, "-i", str(inventory), "-e", f"templates_dir={self.directory}", "-e", "poll_seconds=1"]
        environment = {
            **clean_environment(),
            "HOME": str(self.directory),
            "ANSIBLE_NOCOLOR": "1",
            "K8S_AUTH_KUBECONFIG": str(self.kubeconfig),
        }
        process = Process([*command, str(EXAMPLE / playbook), *words], self.directory, environment)
        process.status()
        return process

    def changes(self, playbook: str | Path, *words: str) -> dict[str, int]:
        """How much a playbook that succeeds has changed, by host."""
        process = self.run(playbook, *words)
        assert process.popen.returncode == 0, process.out + process.err
        return {host: int(changed) for host, changed, *_ in RECAP.findall(process.out)}

    def objects(self) -> list[str]:
        names = self.stack.kubectl("get", "hardware,osies,templates,workflows", "-o", "name").split()
        return sorted(name.replace(".tinkerbell.org", "") for name in names)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    made = Stack(tmp_path_factory.mktemp("ansible"))
    yield made
    made.process.end()


@pytest.fixture
def ansible(stack: Stack, tmp_path: Path) -> Iterator[Ansible]:
    made = Ansible(stack, tmp_path)
    yield made
    for agent in made.agents:
        agent.end()
    stack.kubectl("delete", "workflows,hardware,osies,templates", "--all")


def test_check_mode_shows_what_would_be_made_and_makes_nothing(ansible: Ansible) -> None:
    process = ansible.run("install.yaml", "--check", "--diff")
    assert process.popen.returncode == 0, process.out + process.err
    assert '+    "kind": "Hardware"' in process.out
    assert RECAP.findall(process.out) == [("rack1-1", "4", "0", "0"), ("rack1-2", "2", "0", "0")]
    assert ansible.objects() == []


def test_playbook_installs_all_machines_and_its_second_run_changes_nothing(ansible: Ansible) -> None:
    ansible.start_agents()
    assert ansible.changes("install.yaml") == {"rack1-1": 4, "rack1-2": 2}
    assert ansible.stack.kubectl.state("install-rack1-1") == "Succeeded"
    assert ansible.stack.kubectl.state("install-rack1-2") == "Succeeded"
    assert ansible.changes("install.yaml") == {"rack1-1": 0, "rack1-2": 0}
    # A parameter of the next installation.
    assert ansible.changes("install.yaml", "-e", "registry=other:5000") == {"rack1-1": 0, "rack1-2": 0}
    assert ansible.changes("install.yaml", "-e", "gateway=192.168.10.1") == {"rack1-1": 1, "rack1-2": 1}


def test_failed_workflow_fails_the_play_with_its_message_until_the_machine_is_installed_again(ansible: Ansible) -> None:
    ansible.start_agents()
    ansible.action("exit 3")
    failed = ansible.run("install.yaml", "--limit", "rack1-1")
    assert failed.popen.returncode != 0
    assert "Workflow install-rack1-1: Failed: NonZeroExit: exit code 3" in failed.out
    ansible.action("true")
    again = ansible.changes("install.yaml", "--limit", "rack1-1", "-e", "reinstall=true")
    assert again == {"rack1-1": 3}, "the Template, the old Workflow, the new one"


def test_colleague_with_the_role_edit_in_one_namespace_installs_and_removes_machines(ansible: Ansible) -> None:
    file = ansible.directory / "alice.kubeconfig"
    server = ansible.stack.kubectl("config", "view", "-o", "jsonpath={.clusters[0].cluster.server}")
    words = ["--config=/dev/null", "--data-dir", ansible.stack.data_dir, "--user", "alice", "--role", "edit"]
    made = tinkedge(ansible.directory, "kubeconfig", *words, "-n", "default", "--server", server, "--out", file)
    assert made.status() == 0, made.err
    ansible.kubeconfig = file
    ansible.start_agents()
    assert ansible.changes("install.yaml") == {"rack1-1": 4, "rack1-2": 2}
    assert ansible.changes("remove.yaml", "--limit", "rack1-2") == {"rack1-2": 2}
    assert ansible.objects() == ["hardware/rack1-1", "osie/tinkedge", "template/debian", "workflow/install-rack1-1"]
    assert ansible.changes("remove.yaml") == {"rack1-1": 2, "rack1-2": 0}


def test_modules_create_apply_patch_wait_select_and_delete(ansible: Ansible) -> None:
    process = ansible.run(MODULES)
    assert process.popen.returncode == 0, process.out + process.err
