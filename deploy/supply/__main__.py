"""Checks the packages of the project and their licences, and lists them (SBOM).

python -m deploy.supply check        requirements, pyproject.toml and this environment agree; licences are allowed
python -m deploy.supply sbom FILE    a CycloneDX list of the packages that the project needs to run
"""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path

import click

from deploy.supply.licences import refusals
from deploy.supply.packages import Project, disagreements, installed, read_requirements
from deploy.supply.sbom import sbom

ROOT = Path(__file__).resolve().parents[2]


def project() -> Project:
    """Read pyproject.toml."""
    return Project.of(tomllib.loads((ROOT / "pyproject.toml").read_text()))


@click.group()
def main() -> None:
    """The packages that the project needs."""


@main.command()
def check() -> None:
    """Report disagreements and licences that are not allowed; end with 1 if there are any."""
    ours, locked, here = project(), read_requirements((ROOT / "deploy/requirements.txt").read_text()), installed()
    problems = disagreements(ours, locked, here) + refusals(ours, here)
    for line in problems:
        click.echo(f"supply: {line}", err=True)
    sys.exit(bool(problems))


@main.command("sbom")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def write_sbom(file: Path) -> None:
    """Write the list. Its time is SOURCE_DATE_EPOCH (seconds since 1970), by default 0."""
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or 0)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(sbom(project(), installed(), epoch))


if __name__ == "__main__":
    main(prog_name="python -m deploy.supply")
