"""What users install, made from this checkout.

python -m deploy.package deb       the Debian package, into dist/
python -m deploy.package image     the container image and the list of what is in it, into dist/
python -m deploy.package wheels    the wheels that it brings, into a directory

SOURCE_DATE_EPOCH is the time of what is built, 0 if it is not set: the same sources give the same bytes.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import click

from deploy.package import deb as debian
from deploy.package import image as container
from deploy.package import wheels
from deploy.package.target import PackageError, Target
from deploy.supply.__main__ import ROOT, project
from deploy.supply.packages import Locked, installed, read_requirements
from edge.lab.build import default_cache

_SUITE = click.option("--suite", default="bookworm", show_default=True, help="Debian's name of the release.")
_OUT = click.option("--out", type=click.Path(path_type=Path), default=ROOT / "dist", help="Directory of the result.")


@click.group()
def main() -> None:
    """Packages for users."""


def _epoch() -> int:
    return int(os.environ.get("SOURCE_DATE_EPOCH") or 0)


def _packages(target: Target) -> list[Locked]:
    locked = read_requirements((ROOT / "deploy/requirements.txt").read_text())
    return wheels.needed(project(), locked, installed(), target)


def _fetched(target: Target) -> Path:
    return wheels.fetch(_packages(target), target, default_cache())


def _deb(target: Target, out: Path, version: str) -> Path:
    others = sorted(_fetched(target).glob("*.whl"))
    with tempfile.TemporaryDirectory() as work:
        own = wheels.build(ROOT, Path(work), _epoch())
        return debian.build(debian.Source([own, *others], version, _epoch()), target, out)


@main.command()
@_SUITE
@_OUT
@click.option("--version", default="", help="Instead of that of pyproject.toml: to try an upgrade.")
def deb(suite: str, out: Path, version: str) -> None:
    """Make the Debian package and print its path."""
    click.echo(_deb(Target.of(suite), out, version or project().version))


@main.command()
@_SUITE
@_OUT
def image(suite: str, out: Path) -> None:
    """Make the container image, with no container engine, and print its digest."""
    target, version = Target.of(suite), project().version
    with tempfile.TemporaryDirectory() as work:
        deb = _deb(target, Path(work), version)
        click.echo(container.build(deb, version, _packages(target), target, _epoch(), default_cache(), out))


@main.command("wheels")
@_SUITE
@_OUT
def collect(suite: str, out: Path) -> None:
    """Collect the wheels that a Debian needs to run tinkedge, the project's own with them."""
    out.mkdir(parents=True, exist_ok=True)
    for wheel in sorted(_fetched(Target.of(suite)).glob("*.whl")):
        shutil.copy(wheel, out)
    click.echo(wheels.build(ROOT, out, _epoch()))


if __name__ == "__main__":
    try:
        main(prog_name="python -m deploy.package")
    except PackageError as error:
        click.echo(f"package: {error}", err=True)
        sys.exit(1)
