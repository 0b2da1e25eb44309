"""deploy/examples/ansible and terraform: their files fit together, and say the same as the examples for kubectl."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tink.api import crds
from tink.kubeapi.schema.checker import compile_definition

EXAMPLES = Path(__file__).resolve().parents[3] / "deploy" / "examples"
ANSIBLE, TERRAFORM = EXAMPLES / "ansible", EXAMPLES / "terraform"


def kinds(directory: Path, kind: str) -> list[dict[str, Any]]:
    documents = [each for file in sorted(directory.glob("*.yaml")) for each in yaml.safe_load_all(file.read_text())]
    return [each for each in documents if each["kind"] == kind]


def variables(text: str) -> dict[str, bool]:
    """The variables that a file declares, and which of them have a default."""
    blocks = re.findall(r'^variable "(\w+)" \{\n(.*?)^\}', text, re.MULTILINE | re.DOTALL)
    return {name: "  default " in block for name, block in blocks}


@pytest.mark.parametrize("directory", [ANSIBLE / "files", TERRAFORM / "templates"], ids=["ansible", "terraform"])
def test_templates_are_those_of_the_example_for_kubectl(directory: Path) -> None:
    (ours,), (example,) = kinds(directory, "Template"), kinds(EXAMPLES / "debian", "Template")
    assert ours["spec"] == example["spec"], f"copy the Template of deploy/examples/debian into {directory}"
    assert ours["metadata"] == {"name": "debian"}


def test_api_takes_the_osie_that_ansible_applies_and_terraform_has_the_same() -> None:
    (osie,) = kinds(ANSIBLE / "files", "OSIE")
    checkers = [each for definition in crds.generate() for each in compile_definition(definition).values()]
    (checker,) = [each for each in checkers if each.kind == "OSIE" and each.api_version == osie["apiVersion"]]
    checked = checker.check(osie | {"metadata": osie["metadata"] | {"namespace": "default"}})
    assert list(checked.problems) == []
    text = (TERRAFORM / "main.tf").read_text()
    assert all(f'{key} = "{value}"' in text for key, value in osie["spec"].items())


def test_inventory_and_terraform_name_the_same_machines_and_parameters() -> None:
    inventory = yaml.safe_load((ANSIBLE / "inventory.yaml").read_text())["machines"]
    values = (TERRAFORM / "terraform.tfvars").read_text()
    for name, machine in inventory["hosts"].items():
        fields = ", ".join(f'{key} = "{value}"' for key, value in machine.items())
        assert f"{name} = {{ {fields} }}" in values
    parameters = dict(re.findall(r'^    (\w+) += "([^"]*)"', values, re.MULTILINE))
    assert parameters == inventory["vars"]["systems"]["debian"]
    (template,) = kinds(ANSIBLE / "files", "Template")
    used = set(re.findall(r"\.Params\.(\w+)", yaml.safe_dump(template)))
    assert used == {*parameters, "registry", "edge"}


def test_terraform_sets_every_variable_that_has_no_default_and_declares_every_one_that_it_sets() -> None:
    declared = variables((TERRAFORM / "variables.tf").read_text())
    given = set(re.findall(r"^(\w+) +=", (TERRAFORM / "terraform.tfvars").read_text(), re.MULTILINE))
    assert given <= declared.keys()
    assert {name for name, has_default in declared.items() if not has_default} <= given
    main = (TERRAFORM / "main.tf").read_text()
    assert {name for name in declared if f"var.{name}" not in main} == set()
    module = variables((TERRAFORM / "machine" / "variables.tf").read_text())
    (call,) = re.findall(r'^module "machine" \{\n(.*?)^\}', main, re.MULTILINE | re.DOTALL)
    passed = set(re.findall(r"^  (\w+) +=", call, re.MULTILINE)) - {"source", "for_each", "depends_on"}
    assert passed == module.keys()


def test_every_address_of_both_is_one_of_the_documentation() -> None:
    for file in (ANSIBLE / "inventory.yaml", TERRAFORM / "terraform.tfvars"):
        addresses = re.findall(r"\b\d+\.\d+\.\d+\.\d+\b", file.read_text())
        assert {each for each in addresses if not each.startswith(("192.168.10.", "255."))} == set()
        assert set(re.findall(r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}", file.read_text())) == {
            "00:00:5e:00:53:61",
            "00:00:5e:00:53:62",
        }
