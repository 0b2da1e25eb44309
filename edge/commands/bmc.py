"""`tinkedge bmc check`: what works on the BMC of a machine, and what is known of it."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edge.commands import options
from edge.commands.progress import errors_shown, run_interruptible
from edge.settings import CommandGroup, Group, GroupedCommand, types

if TYPE_CHECKING:
    from tink.bmc.operators import BmcFinding

_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red", "unknown": "cyan"}


@click.group(cls=CommandGroup)
def bmc() -> None:
    """Examine the BMCs of machines."""


@bmc.command(cls=GroupedCommand, group=Group.BMC)
@click.argument("name")
@click.option("-n", "--namespace", type=types.namespace, default="default", help="Namespace of NAME.")
@options.kubeconfig("Kubeconfig of the API.")
@options.context
@click.option("--again", is_flag=True, help="Log in even if the BMC has refused this version of the Secret before.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Format of the table.")
def check(name: str, namespace: str, kubeconfig: Path | None, context: str | None, again: bool, output: str) -> None:
    """Show what works on a machine's BMC. NAME is a Hardware with a bmcRef, or a Machine.

    This host connects to the BMC with the Machine's credentials, and only reads: login, power, boot devices, virtual
    media, firmware, and the known faults of this model. Exits with 1 if a part failed.
    """
    with errors_shown():
        findings = run_interruptible(_check(name, namespace, kubeconfig, context, again))
    if output == "json":
        click.echo(json.dumps([asdict(each) for each in findings]))
    else:
        for line in _table(findings):
            click.echo(line)
    sys.exit(any(each.verdict == "failed" for each in findings))


async def _check(
    name: str, namespace: str, kubeconfig: Path | None, context: str | None, again: bool
) -> list[BmcFinding]:
    from tink.bmc.operators import check, find_machine
    from tink.kube.client import KubeClient

    async with await KubeClient.connect(kubeconfig, context) as client:
        return await check(client, await find_machine(client, name, namespace), again=again)


def _table(findings: list[BmcFinding]) -> list[str]:
    width = shutil.get_terminal_size((120, 24)).columns if sys.stdout.isatty() else 10_000
    lines = []
    for each in findings:
        head = f"{each.subject:<14}{each.verdict.value:<9}"
        text = click.wrap_text(each.text, max(width - 1, 60), head, " " * len(head))
        lines.append(text.replace(each.verdict.value, click.style(each.verdict.value, fg=_COLOURS[each.verdict]), 1))
    return lines
