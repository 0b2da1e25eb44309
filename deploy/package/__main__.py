"""Build what users install from this checkout.

python -m deploy.package deb       the Debian package, into dist/
python -m deploy.package image     the container image and the list of its contents, into dist/
python -m deploy.package wheels    the wheels that deploy/install.sh installs, into dist/wheels
python -m deploy.package chart     files rendered from the Helm chart, below deploy/, and the packed chart, into dist/

SOURCE_DATE_EPOCH is the time stamp of every built file, 0 if it is not set: the same sources give the same bytes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

import click

from deploy.package import chart as helm_chart
from deploy.package import deb as debian
from deploy.package import image as container
from deploy.package import oci, papers, wheels
from deploy.package.target import PackageError, Target
from deploy.supply.__main__ import ROOT, project
from deploy.supply.packages import Locked, installed, read_requirements
from edge.building.builder import default_cache
from edge.cli import main as commands

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


def _deb(target: Target, out: Path, version: str, compression: str = "zstd") -> Path:
    others = sorted(_fetched(target).glob("*.whl"))
    with tempfile.TemporaryDirectory() as work:
        own = wheels.build(ROOT, Path(work), _epoch())
        return debian.build(debian.Source([own, *others], version, _epoch()), target, out, compression)


@main.command()
@_SUITE
@_OUT
@click.option("--version", default="", help="Instead of that of pyproject.toml: to try an upgrade.")
@click.option(
    "--compression", type=click.Choice(["zstd", "xz", "gzip", "none"]), default="zstd", show_default=True,
    help="dpkg-deb's; the level of xz and gzip is DPKG_DEB_COMPRESSOR_LEVEL. xz takes ten times as long as zstd, for a "
    "sixth less.",
)  # fmt: skip
def deb(suite: str, out: Path, version: str, compression: str) -> None:
    """Make the Debian package and print its path."""
    click.echo(_deb(Target.of(suite), out, version or project().version, compression))


@main.command()
@_SUITE
@_OUT
@click.option(
    "--deb", type=click.Path(exists=True, path_type=Path), help="This package, of this version, not a new one."
)
@click.option(
    "--base", type=click.Path(path_type=Path),
    help="Debian's part, as a tar archive: taken if it is there, without Debian's updates since; else made and kept.",
)  # fmt: skip
@click.option("--level", type=click.IntRange(1, 9), default=oci.LEVEL, show_default=True, help="Of the layer's gzip.")
def image(suite: str, out: Path, deb: Path | None, base: Path | None, level: int) -> None:
    """Make the container image, with no container engine, and print its digest."""
    target, version = Target.of(suite), project().version
    with tempfile.TemporaryDirectory() as work:
        # It is unpacked at once: to compress it takes most of a minute.
        package = deb or _deb(target, Path(work), version, "none")
        source = container.Source(package, version, _packages(target), _epoch(), base, level)
        click.echo(container.build(source, target, default_cache(), out))


@main.command("wheels")
@_SUITE
@click.option("--out", type=click.Path(path_type=Path), default=ROOT / "dist/wheels", help="Directory; made anew.")
def collect(suite: str, out: Path) -> None:
    """Collect what deploy/install.sh installs: wheels with their hashes, units, manual pages, completions."""
    target = Target.of(suite)
    if out.exists():
        if not (out / "requirements.txt").is_file():
            raise PackageError(f"--out {out}: there is something else in it")
        shutil.rmtree(out)
    out.mkdir(parents=True)
    for wheel in sorted(_fetched(target).glob("*.whl")):
        shutil.copy(wheel, out)
    own = wheels.build(ROOT, out, _epoch())
    lines = wheels.requirements(_packages(target))
    digest = hashlib.sha256(own.read_bytes()).hexdigest()
    (out / "requirements.txt").write_text(f"{lines}tinkedge=={project().version} --hash=sha256:{digest}\n")
    (out / "python").write_text(f"python{target.python}\n")
    shutil.copytree(ROOT / "deploy/systemd", out / "systemd")
    papers.write(out / "papers", papers.manual(commands, _epoch(), project().version))
    papers.write(out / "papers", papers.completions(commands))
    click.echo(out)


@main.command()
@_OUT
@click.option("--helm", type=click.Path(path_type=Path), default="helm", show_default=True, help="Helm's program.")
def chart(out: Path, helm: Path) -> None:
    """Generate the files that are derived from the chart: deploy/rbac*.yaml, deploy/webhooks.yaml and the like.

    First generate the chart's files that are derived from the program: values.schema.json, files/webhooks.yaml.

    The packaged chart is written to --out.
    """
    program = helm_chart.Helm(helm)
    (helm_chart.CHART / "values.schema.json").write_text(helm_chart.values_schema())
    (helm_chart.CHART / "files" / "webhooks.yaml").write_text(helm_chart.webhooks())
    for path, text in helm_chart.rendered(program).items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    out.mkdir(parents=True, exist_ok=True)
    click.echo(program.run("package", str(helm_chart.CHART), "--destination", str(out)).strip())


if __name__ == "__main__":
    try:
        main(prog_name="python -m deploy.package")
    except PackageError as error:
        click.echo(f"package: {error}", err=True)
        sys.exit(1)
