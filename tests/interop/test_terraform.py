"""deploy/examples/terraform with Terraform itself, against `tinkedge up`, with agents that run the actions.

No Debian package has Terraform: this runs where `terraform` is on PATH and TERRAFORM_MIRROR names a directory with the
provider hashicorp/kubernetes, as `terraform providers mirror` makes it. Everywhere else the provider's requests are
replayed, by `tests/unit/kubeapi/apiserver/http/test_terraform.py`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.rack import Process, clean_environment, tinkedge
from tests.interop.test_agents import Stack
from tests.interop.test_ansible import MACS, TEMPLATE

EXAMPLE = Path(__file__).parents[2] / "deploy" / "examples" / "terraform"
MIRROR = os.environ.get("TERRAFORM_MIRROR", "")
WORKFLOW = 'module.machine["rack1-1"].kubernetes_manifest.workflow'

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not MIRROR or shutil.which("terraform") is None,
        reason="needs terraform, and the provider hashicorp/kubernetes in the directory TERRAFORM_MIRROR",
    ),
]


class Terraform:
    """terraform in a copy of the example, with a Template whose action is a script of the test."""

    def __init__(self, stack: Stack, directory: Path) -> None:
        self.stack, self.directory = stack, directory
        self.work = directory / "example"
        shutil.copytree(EXAMPLE, self.work, ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*"))
        self.action("true")
        (directory / "cli.tfrc").write_text(
            f'provider_installation {{\n  filesystem_mirror {{ path = "{MIRROR}" }}\n}}\n'
        )
        self.done("init", plain=True)

    def action(self, script: str) -> None:
        (self.work / "templates" / "debian.yaml").write_text(TEMPLATE.replace("SCRIPT", script))

    def run(self, *words: str, plain: bool = False) -> Process:
        variables = [] if plain else ["-var", f"kubeconfig={self.stack.data_dir / 'kubeconfig'}"]
        environment = {
            **clean_environment(),
            "CHECKPOINT_DISABLE": "1",
            "HOME": str(self.directory),
            "TF_CLI_CONFIG_FILE": str(self.directory / "cli.tfrc"),
        }
        verb, *rest = words
        command = ["terraform", f"-chdir={self.work}", verb, "-no-color", *variables, *rest]
        process = Process(command, self.directory, environment)
        process.status()
        return process

    def done(self, *words: str, plain: bool = False) -> str:
        process = self.run(*words, plain=plain)
        assert process.popen.returncode == 0, process.out + process.err
        return process.out


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    made = Stack(tmp_path_factory.mktemp("terraform"))
    yield made
    made.process.end()


@pytest.fixture
def agents(stack: Stack, tmp_path: Path) -> Iterator[None]:
    words = ["agent", "--server", f"127.0.0.1:{stack.port}", "--runtime", "process"]
    begun = [tinkedge(tmp_path, *words, "--agent-id", mac, "--state-dir", tmp_path / mac[-2:]) for mac in MACS]
    yield
    for agent in begun:
        agent.end()


@pytest.mark.usefixtures("agents")
def test_machines_are_installed_once_fail_visibly_are_installed_again_and_removed(stack: Stack, tmp_path: Path) -> None:
    terraform = Terraform(stack, tmp_path)
    terraform.done("fmt", "-check", "-recursive", plain=True)
    terraform.done("validate", plain=True)
    assert "Apply complete! Resources: 6 added, 0 changed, 0 destroyed." in terraform.done("apply", "-auto-approve")
    assert terraform.run("plan", "-detailed-exitcode").popen.returncode == 0, "nothing to change"
    # A parameter of the next installation.
    assert terraform.run("plan", "-detailed-exitcode", "-var", "registry=other:5000").popen.returncode == 0

    terraform.action("exit 3")
    failed = terraform.run("apply", "-auto-approve", f"-replace={WORKFLOW}")
    assert failed.popen.returncode == 1
    assert "Workflow install-rack1-1: NonZeroExit: exit code 3." in " ".join(failed.err.split())
    terraform.action("true")
    assert '"rack1-1" = "Succeeded"' in terraform.done("apply", "-auto-approve", f"-replace={WORKFLOW}")

    assert "Destroy complete! Resources: 6 destroyed." in terraform.done("destroy", "-auto-approve")
    assert stack.kubectl("get", "hardware,osies,templates,workflows", "-o", "name") == ""
