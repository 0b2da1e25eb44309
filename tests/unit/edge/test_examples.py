"""Papers and what they show: the operating systems of deploy/examples, and docs/operating.md with its alerts."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from edge.artifacts.errors import KINDS
from edge.cli import main
from edge.journey.events import Outcome, Step
from tink.api import crds
from tink.api.v1alpha2 import WorkflowState
from tink.schema import Checker, compile_definition

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
EXAMPLES = DEPLOY / "examples"
OF_THE_LAB = ("dual-stack", "full", "ipv6")
OF_TOOLS = ("ansible", "terraform")  # tests/unit/edge/test_example_tools.py
DIRECTORIES = sorted(path for path in EXAMPLES.iterdir() if path.is_dir() and path.name not in OF_THE_LAB + OF_TOOLS)
WITH_WORKFLOW = {"debian", "flatcar", "rocky", "ubuntu"}
INSTALLERS = {
    "autoinstall": "ds=nocloud;s=http://192.168.10.1:7080/nocloud/autoinstall-1/",
    "kickstart": "inst.ks=http://192.168.10.1:7080/latest/user-data",
    "preseed": "url=http://192.168.10.1:7080/latest/user-data",
    "talos": "talos.config=http://192.168.10.1:7080/latest/user-data",
}
ADDRESS = re.compile(r"\b\d+\.\d+\.\d+\.\d+\b")

each_directory = pytest.mark.parametrize("directory", DIRECTORIES, ids=lambda path: path.name)


@cache
def checkers() -> dict[str, Checker]:
    found = [each for definition in crds.generate() for each in compile_definition(definition).values()]
    return {each.kind: each for each in found if each.api_version == "tinkerbell.org/v1alpha2"}


def render(path: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["render", "-f", str(path), *words])


def objects(directory: Path) -> list[dict[str, Any]]:
    return [each for file in sorted(directory.glob("*.yaml")) for each in yaml.safe_load_all(file.read_text())]


def only(directory: Path, kind: str) -> dict[str, Any]:
    (found,) = [each for each in objects(directory) if each["kind"] == kind]
    return found


def test_every_directory_is_one_of_those_tested_here() -> None:
    assert {path.name for path in DIRECTORIES} == WITH_WORKFLOW | INSTALLERS.keys()


@each_directory
def test_api_takes_every_object_without_a_warning_and_objects_refer_to_each_other(directory: Path) -> None:
    for each in objects(directory):
        checked = checkers()[each["kind"]].check(each | {"metadata": {**each["metadata"], "namespace": "default"}})
        assert list(checked.problems) == [], f"{each['kind']} {each['metadata']['name']}"
    hardware = only(directory, "Hardware")
    assert hardware["spec"]["osie"]["name"] == only(directory, "OSIE")["metadata"]["name"]


@each_directory
def test_only_one_file_has_anything_to_edit(directory: Path) -> None:
    assert (directory / "machine.yaml").read_text().startswith("# The one file to edit")
    others = [file for file in directory.glob("*.yaml") if file.name != "machine.yaml"]
    assert [file.name for file in others if ADDRESS.search(file.read_text())] == []
    found = {text for each in directory.iterdir() for text in ADDRESS.findall(each.read_text())}
    assert {text for text in found if not text.startswith(("192.168.10.", "255."))} == set()


@pytest.mark.parametrize("name", sorted(WITH_WORKFLOW))
def test_a_workflow_renders_with_actions_that_there_are(name: str) -> None:
    result = render(EXAMPLES / name)
    assert result.exit_code == 0, result.output
    actions = yaml.safe_load(result.output)
    assert [action["image"].rsplit("/", 1)[1] for action in actions] == ["image2disk:1", "writefile:1", "reboot:1"]
    for action in actions:
        script = action["image"].rsplit("/", 1)[1].removesuffix(":1")
        sources = (DEPLOY / "actions" / script).glob("*.*")
        text = "".join(source.read_text() for source in sources if source.suffix in (".sh", ".py"))
        # Busybox' sh says nothing of a setting that is misspelt: it has no effect.
        assert [variable for variable in action.get("env", {}) if not re.search(rf"\b{variable}\b", text)] == []
    disk = only(EXAMPLES / name, "Hardware")["spec"]["storageDevices"][0]
    partition = only(EXAMPLES / name, "Workflow")["spec"]["templateParams"]["partition"]
    assert actions[0]["env"]["DEST_DISK"] == disk
    assert actions[1]["env"]["DEST_DISK"] == f"{disk}{partition}"
    assert "http://192.168.10.1:7080/" in actions[1]["env"]["CONTENTS"]

    if name == "flatcar":
        return
    # cloud-init is sent to its own metadata.
    seed = yaml.safe_load(actions[1]["env"]["CONTENTS"])
    seedfrom = f"http://192.168.10.1:7080/nocloud/{name}-1/"
    assert seed == {"datasource_list": ["NoCloud"], "datasource": {"NoCloud": {"seedfrom": seedfrom}}}


@pytest.mark.parametrize(("name", "parameter"), INSTALLERS.items())
def test_an_installer_is_told_where_its_answers_are_and_no_workflow_waits_for_an_agent(
    name: str, parameter: str
) -> None:
    assert {each["kind"] for each in objects(EXAMPLES / name)} == {"Hardware", "OSIE"}
    assert parameter in only(EXAMPLES / name, "Hardware")["spec"]["kernelParams"]


@each_directory
def test_what_the_machine_netboots_is_shown(directory: Path) -> None:
    result = render(directory, "--netboot", "192.168.10.1")
    assert result.exit_code == 0, result.output
    hardware = only(directory, "Hardware")
    (mac,) = hardware["spec"]["networkInterfaces"]
    assert result.output.startswith(f"# {hardware['metadata']['name']}, {mac}: ")
    assert "#!ipxe" in result.output
    assert INSTALLERS.get(directory.name, "grpc_authority=192.168.10.1:42113") in result.output


def test_directory_without_a_workflow_leads_to_what_is_netbooted() -> None:
    result = render(EXAMPLES / "kickstart")
    assert (result.exit_code, "with --netboot IP" in result.output) == (1, True)


@pytest.mark.parametrize("name", sorted(WITH_WORKFLOW | {"autoinstall"}))
def test_user_data_is_yaml_that_cloud_init_knows_and_flatcars_json_of_ignition(name: str) -> None:
    text = only(EXAMPLES / name, "Hardware")["spec"]["instance"]["userdata"]
    read = yaml.safe_load(text)
    if name == "flatcar":
        assert read["ignition"] == {"version": "3.3.0"}
    else:
        assert (text.startswith("#cloud-config\n"), isinstance(read, dict)) == (True, True)


@each_directory
def test_papers_list_it_and_it_says_what_is_untested(directory: Path) -> None:
    assert f"[{directory.name}]({directory.name}/README.md)" in (EXAMPLES / "README.md").read_text()
    paper = (directory / "README.md").read_text()
    assert "## Untested" in paper
    assert [file.name for file in directory.glob("*.yaml") if f"`{file.name}`" not in paper] == []


@pytest.mark.parametrize("name", ["ipv6/machine", "ipv6/full", "dual-stack/hardware", "dual-stack/workflow"])
def test_machine_with_ipv6_alone_or_with_both_families_passes_the_checks_of_the_api(name: str) -> None:
    text = (EXAMPLES / f"{name}.yaml").read_text()
    for each in yaml.safe_load_all(text):
        assert checkers()[each["kind"]].check(each | {"metadata": each["metadata"] | {"namespace": "d"}}).errors == []
        if name == "dual-stack/hardware":
            (interface,) = each["spec"]["networkInterfaces"].values()
            assert {"ip", "ipv6"} <= set(interface["dhcp"])
    assert name.startswith("dual-stack") or not ADDRESS.search(text)


def test_what_a_machine_netboots_over_ipv6_is_shown() -> None:
    result = render(EXAMPLES / "ipv6" / "machine.yaml", "--netboot", "fd31:77::1")
    assert result.exit_code == 0, result.output
    assert "grpc_authority=[fd31:77::1]:42113" in result.output
    refused = render(EXAMPLES, "--netboot", "fe80::1")
    assert "fe80::1 is not the address of one host" in refused.output


# --- docs/operating.md and the alerts go together, and with the names and values that there are -----------------------


ROOT = Path(__file__).resolve().parents[3]
PAPER = (ROOT / "docs" / "operating.md").read_text()
_PREFIXES = ("tinkedge_", "apiserver_", "controller_runtime_", "grpc_", "leader_", "rest_client_", "workqueue_")


def metrics() -> dict[str, tuple[str, set[str]]]:
    """Type and labels by name, from the tables; that these are true, `tests/unit/composition/test_stack.py` sees."""
    rows = re.findall(r"^\| `([a-z_]+)` \| (gauge|counter|histogram) \| (.*?) \|", PAPER, re.MULTILINE)
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_the_alerts_ask_for_metrics_and_labels_that_there_are() -> None:
    known = metrics()
    for rule in rules():
        expression = re.sub(r"\b(without|by) \([^)]*\)", "", rule["expr"])
        asked = re.findall(r"\b([a-z]+_[a-z_]+)\b(?:\{([^}]*)\})?", expression)
        found = {
            re.sub("_(bucket|sum|count)$", "", name): matchers for name, matchers in asked if name.startswith(_PREFIXES)
        }
        assert found or "up{" in rule["expr"], rule["alert"]
        for name, matchers in found.items():
            assert name in known, f"{rule['alert']}: there is no {name}"
            assert set(re.findall(r"(\w+)!?=", matchers)) <= known[name][1] | {"job"}, rule["alert"]
    asked = " ".join(rule["expr"] for rule in rules())
    kinds = {kind for found in re.findall(r'kind=~"([\w|]+)"', asked) for kind in found.split("|")}
    assert kinds <= {kind.replace(" ", "_") for kind in KINDS}
    assert set(re.findall(r'step="(\w+)"', asked)) <= {step.value for step in Step}
    states = set(map(str, WorkflowState))
    assert set(re.findall(r'outcome="(\w+)"', asked)) <= {outcome.value for outcome in Outcome} | states
    assert set(re.findall(r'to="(\w+)"', asked)) <= states


def test_the_paper_says_what_to_do_about_every_alert() -> None:
    (table,) = re.findall(r"^\| alert \| look at \|\n(.*?)\n\n", PAPER, re.MULTILINE | re.DOTALL)
    said = [name for row in table.splitlines()[1:] for name in re.findall(r"\bTinkedge\w+", row.split("|")[1])]
    assert said == [rule["alert"] for rule in rules() if rule["alert"] in said]
    assert set(said) == {rule["alert"] for rule in rules()}


def test_labels_are_all_listed() -> None:
    (kinds,) = re.findall(r"^\| `tinkedge_artifact_failures_total` .*: (.*) \|$", PAPER, re.MULTILINE)
    assert kinds.replace("`", "").split(", ") == [kind.replace(" ", "_") for kind in KINDS]
    (steps,) = re.findall(r"`step`: ([\w, ]+);", PAPER)
    assert set(steps.split(", ")) == {step.value for step in Step}
