"""`tinkedge doctor`: see `edge.composition.doctor`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import click

from edge.composition import doctor as examine
from edge.composition.doctor import Finding
from edge.lab.build import default_cache


@click.command()
@click.option(
    "--interface",
    "interfaces",
    multiple=True,
    metavar="NAME[=IP]",
    help="The machines' interface; several may be given. Default: the one with the default route.",
)
@click.option(
    "--ipxe-dir", type=click.Path(path_type=Path), default=Path("/usr/lib/ipxe"), help="The iPXE binaries' directory."
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    default=Path("/var/lib/tinkedge"),
    help="That of `tinkedge up`: database, keys and cache.",
)
@click.option("--cache-dir", type=click.Path(path_type=Path), default=None, help="The lab's cache.")
@click.option("--lab/--no-lab", "with_lab", default=True, help="Look at what `tinkedge lab` needs too.")
@click.option(
    "--probe",
    is_flag=True,
    help="Ask the network too, for some seconds: which other DHCP servers answer a machine that there is not, and "
    "whether the TFTP server that runs here serves. Needs root and the extra `diagnose`.",
)
def doctor(
    interfaces: tuple[str, ...], ipxe_dir: Path, data_dir: Path, cache_dir: Path | None, with_lab: bool, probe: bool
) -> None:
    """What would keep this host from serving, and how to mend it. Changes nothing; exits with 1 if something would."""
    groups: dict[str, Iterator[Finding]] = {
        "tinkedge up": chain(examine.serving(interfaces, ipxe_dir), examine.data_directory(data_dir))
    }
    if probe:
        groups["the network"] = examine.probe(interfaces, ipxe_dir)
    if with_lab:
        groups["tinkedge lab"] = examine.lab(cache_dir or default_cache())
    healthy = True
    for title, findings in groups.items():
        click.echo(click.style(title, bold=True))
        for finding in findings:
            healthy &= finding.ok
            sign = click.style("ok", fg="green") if finding.ok else click.style("PROBLEM", fg="red")
            click.echo(f"  {sign:<7} {finding.name}: {finding.seen}")
            if not finding.ok:
                click.echo(f"          -> {finding.remedy}")
    sys.exit(0 if healthy else 1)
