"""The packages of the project: checked and listed; and the programs that tests build."""

from __future__ import annotations

import importlib.metadata
import io
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.utils import NormalizedName, canonicalize_name

from deploy.supply.licences import licence, permits, refusals
from deploy.supply.packages import Locked, Project, disagreements, installed, read_requirements
from deploy.supply.sbom import sbom
from tests.programs import build
from tests.programs.build import PACKAGES, kubernetes_version, version_of

ROOT = Path(__file__).parents[3]
PYPROJECT = (ROOT / "pyproject.toml").read_text()
REQUIREMENTS = (ROOT / "deploy" / "requirements.txt").read_text()
HASH = "a" * 64


class Package(importlib.metadata.Distribution):
    """A package that says this of itself."""

    def __init__(self, name: str, *lines: str, version: str = "1.0") -> None:
        self._text = "\n".join(("Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *lines, "", ""))

    def read_text(self, filename: str) -> str | None:
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        raise NotImplementedError


def here(*packages: Package) -> dict[NormalizedName, importlib.metadata.Distribution]:
    return {canonicalize_name(one.name): one for one in packages}


def project(*needs: str, **extras: list[str]) -> Project:
    text = {"name": "ours", "version": "1", "license": "Apache-2.0", "dependencies": list(needs)}
    return Project.of({"project": text | {"optional-dependencies": extras}, "build-system": {"requires": []}})


def locked(*lines: str) -> dict[NormalizedName, Locked]:
    return read_requirements("".join(f"{line} \\\n    --hash=sha256:{HASH}\n    # via ours\n" for line in lines))


# --- pyproject.toml, deploy/requirements.txt and the environment ------------------------------------------------------


def agree(pyproject: str = PYPROJECT, requirements: str = REQUIREMENTS) -> list[str]:
    return disagreements(Project.of(tomllib.loads(pyproject)), read_requirements(requirements), installed())


def test_this_environment_is_what_is_locked_and_what_is_locked_is_what_the_project_wants():
    assert agree() == []
    assert refusals(Project.of(tomllib.loads(PYPROJECT)), installed()) == []


def test_each_package_has_hashes_and_no_host_is_named():
    for name, package in read_requirements(REQUIREMENTS).items():
        assert package.hashes, name
        assert package.version is not None, name
    for file in (ROOT / "deploy" / "requirements.txt", *(ROOT / "deploy" / "supply").glob("*.txt")):
        assert "://" not in file.read_text()
        assert "index" not in file.read_text()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            '"aiohttp>=3.14.5,<3.15"',
            '"aiohttp>=4"',
            "has aiohttp==3.14.5, pyproject.toml wants aiohttp>=4; run `make lo",
        ),
        ('"pyyaml>=6,<7"', '"pyyaml>=6,<7", "newcomer>=1"', "newcomer of pyproject.toml is not in it; run `make lock`"),
        ('"tftpy>=0.8.7,<0.9"', '"six"', "nothing needs tftpy; run `make lock`"),
        ('requires = ["hatchling>=1.27,<2"]', 'requires = ["hatchling>=9"]', "pyproject.toml wants hatchling>=9"),
    ],
)
def test_range_that_was_changed_without_a_new_lock_is_reported(old, new, said):
    assert old in PYPROJECT
    assert any(said in line for line in agree(pyproject=PYPROJECT.replace(old, new)))


def test_locked_file_that_was_written_by_hand_is_reported():
    line = next(line for line in REQUIREMENTS.splitlines() if line.startswith("yarl=="))
    cut = REQUIREMENTS[: REQUIREMENTS.index(line)]
    for requirements, expected in (
        (cut, "yarl, which aiohttp"),
        (cut + line.strip(" \\") + "\n", "yarl needs one version and hashes"),
        (REQUIREMENTS.replace(line, "yarl==0.1 \\"), r"yarl is.*run `make venv`"),
    ):
        assert any(re.search(expected, disagreement) for disagreement in agree(requirements=requirements))
    with pytest.raises(ValueError, match="--extra-index"):
        read_requirements("--extra-index-url somewhere\n")


def test_unneeded_package_is_reported_and_one_for_other_systems_need_not_be_installed():
    found = disagreements(project(), {}, here(Package("pip"), Package("ours"), Package("stowaway")))
    assert found == ["stowaway is in this environment and nothing needs it: remove it with `pip uninstall stowaway`"]
    both = here(Package("pytest", "Requires-Dist: colorama; sys_platform == 'win32'"))
    lock = locked("pytest==1.0", "colorama==1 ; sys_platform == 'win32'")
    assert disagreements(project(dev=["pytest"]), lock, both) == []


@pytest.mark.parametrize("directory", ["tests/programs", "tests/interop/gotemplate/sprig"])
def test_modules_of_go_programs_have_hashes(directory):
    module = (ROOT / directory / "go.mod").read_text()
    sums = {tuple(line.split()[:2]) for line in (ROOT / directory / "go.sum").read_text().splitlines()}
    replaced = dict(re.findall(r"^\s*(\S+) => (\S+ v\S+)$", module, re.MULTILINE))
    needed = re.findall(r"^(?:require )?\s*(\S+\.\S+/\S+) (v\S+)(?: // indirect)?$", module, re.MULTILINE)
    assert needed
    for name, version in needed:
        path, at = replaced.get(name, f"{name} {version}").split()
        assert (path, at) in sums or (path, f"{at}/go.mod") in sums, path


def test_programs_that_tests_build_are_of_modules_with_a_version():
    assert {version_of(name) for name in PACKAGES if "k8s.io" in PACKAGES[name]} == {kubernetes_version()}
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version_of(name)) for name in PACKAGES)


# --- licences ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "expression"),
    [
        (["License-Expression: MIT"], "MIT"),
        (["License: Apache 2.0"], "Apache-2.0"),
        (["License: Apache-2.0", "Classifier: License :: OSI Approved :: MIT License"], "Apache-2.0"),
        (["License: Copyright (c) somebody, who wrote a novel"], ""),
        (["Classifier: License :: OSI Approved :: MIT License"], "MIT"),
        (["Classifier: License :: OSI Approved :: GNU Affero General Public License v3"], ""),
        (
            [f"Classifier: License :: OSI Approved :: {one} License" for one in ("MIT", "Apache Software")],
            "Apache-2.0 AND MIT",
        ),
        ([], ""),
    ],
)
def test_licence_is_read_from_what_a_package_says(lines, expression):
    assert licence(Package("one", *lines)) == expression


@pytest.mark.parametrize(
    ("expression", "permitted"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("GPL-3.0-only OR MIT", True),
        ("GPL-3.0-only AND MIT", False),
        ("MIT AND (GPL-3.0-only OR MIT)", True),
        ("", False),
    ],
)
def test_licence_expression_permits_what_one_can_choose(expression, permitted):
    assert permits(expression, {"MIT"}) is permitted


def test_indirect_dependency_with_a_forbidden_licence_is_reported_with_the_remedy():
    packages = here(
        Package("good", "License-Expression: MIT", "Requires-Dist: bad"),
        Package("bad", "License-Expression: AGPL-3.0-only"),
    )
    [problem] = refusals(project("good"), packages)
    assert problem == (
        "bad 1.0, for ours itself, is under AGPL-3.0-only, which is not allowed: "
        "do without it, or decide and say so in deploy/supply/licences.py"
    )
    [problem] = refusals(project(docker=["silent"]), here(Package("silent")))
    assert "silent 1.0, for the extra docker, does not say under which licence it is" in problem
    scapy = here(Package("scapy", "License-Expression: GPL-2.0-only"))
    assert refusals(project(diagnose=["scapy"]), scapy) == [], "it is for diagnosis and never for serving"
    assert len(refusals(project("scapy", diagnose=["scapy"]), scapy)) == 1
    assert len(refusals(project(docker=["scapy"]), scapy)) == 1


# --- the list of what is inside ---------------------------------------------------------------------------------------


def made(epoch: int = 1_700_000_000) -> str:
    return sbom(Project.of(tomllib.loads(PYPROJECT)), installed(), epoch)


def test_list_is_valid_cyclonedx_and_the_same_each_time():
    text = made()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text.replace('"library"', '"nonsense"')) is not None
    assert made() == text
    assert json.loads(text)["metadata"]["timestamp"].startswith("2023-11-14T22:13:20")


def test_list_has_what_runs_with_version_and_licence_and_nothing_of_developers():
    document = json.loads(made())
    components = {one["name"]: one for one in document["components"]}
    assert components["aiohttp"]["scope"] == "required"
    assert components["aiohttp"]["version"] == importlib.metadata.version("aiohttp")
    assert components["cffi"]["scope"] == "required"  # cryptography's
    assert components["scapy"]["scope"] == "optional"
    assert components["scapy"]["licenses"] == [{"expression": "GPL-2.0-only"}]
    assert not {"pytest", "mypy", "hatchling"} & components.keys()
    needs = {one["ref"]: one.get("dependsOn", []) for one in document["dependencies"]}
    assert components["aiohttp"]["bom-ref"] in needs["tinkedge"]
    assert components["yarl"]["bom-ref"] in needs[components["aiohttp"]["bom-ref"]]


# --- building programs of Go modules takes minutes, and shows how far it is -------------------------------------------


GO = """#!/bin/sh
echo golang.org/x/text/unicode >&2
echo helm.sh/helm/v4/pkg/chart >&2
while [ "$1" != -o ]; do shift; done
{end}
"""


@pytest.fixture
def go(tmp_path, monkeypatch):
    program = tmp_path / "go"
    monkeypatch.setattr(build, "installed", lambda _name: str(program))
    monkeypatch.setattr(build, "default_cache", lambda: tmp_path)
    monkeypatch.setattr(build, "SHOW_SECONDS", 0.1)
    program.touch(0o755)
    return program


def test_build_says_how_far_it_is(go, tmp_path, monkeypatch):
    shown = tmp_path / "shown"

    class Screen(io.StringIO):
        def write(self, text: str) -> int:
            if "helm.sh/helm" in text:
                shown.touch()
            return super().write(text)

    monkeypatch.setattr(build.sys, "stderr", screen := Screen())
    go.write_text(GO.format(end=f'until [ -e {shown} ]; do sleep 0.02; done; echo made >"$2"'))
    assert build.built("helm")["helm"].read_text() == "made\n"
    first, *rest = screen.getvalue().splitlines()
    assert first.startswith("programs: building helm 4.")
    assert rest[-1].endswith("s: 2, helm.sh/helm/v4/pkg/chart")


def test_build_that_fails_says_why(go):
    go.write_text(GO.format(end="echo cannot find module >&2; exit 1"))
    with pytest.raises(build.ProgramError, match="cannot find module"):
        build.built("helm")
    assert not build.place("helm").exists()


def test_build_without_an_end_is_ended(go, monkeypatch):
    monkeypatch.setattr(build, "BUILD_SECONDS", 0.2)
    go.write_text(GO.format(end="exec sleep 60"))
    with pytest.raises(build.ProgramError, match=r"not done within 0\.2 s"):
        build.built("helm")
