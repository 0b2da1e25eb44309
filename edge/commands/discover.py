"""`tinkedge discover`: who waits for an approval, who was expected and has not come, and the commands to approve."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from edge.commands import options
from edge.commands.progress import errors_shown, run_interruptible
from edge.settings import CommandGroup, FilePath, Group, GroupedCommand, types

if TYPE_CHECKING:
    from tink.discovery.operators import DiscoverySurvey, FoundMachine

_NAMESPACE = click.option("-n", "--namespace", type=types.namespace, default="default", help="Namespace of NAME.")
_KUBECONFIG = options.kubeconfig("Kubeconfig of the API.")


@click.group(cls=CommandGroup)
def discover() -> None:
    """Show and approve machines that no Hardware describes, and compare machines with lists."""


# --- list -------------------------------------------------------------------------------------------------------------


@discover.command(name="list", cls=GroupedCommand, group=Group.DISCOVERY)
@click.option("-n", "--namespace", type=types.namespace, default=None, help="Only this namespace. Default: all.")
@_KUBECONFIG
@options.context
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Format.")
def list_machines(namespace: str | None, kubeconfig: Path | None, context: str | None, output: str) -> None:
    """Show who waits for an approval, who was expected and has not come, and who differs from its list.

    Each machine that waits has the command to approve it. Exits with 1 if a line of a list can't be used.
    """
    with errors_shown():
        found = run_interruptible(_survey(namespace, kubeconfig, context))
    if output == "json":
        click.echo(json.dumps(asdict(found), default=str))
    else:
        for line in survey_lines(found, time.time()):
            click.echo(line)
    sys.exit(bool(found.problems))


async def _survey(namespace: str | None, kubeconfig: Path | None, context: str | None) -> DiscoverySurvey:
    from tink.discovery.operators import survey
    from tink.kube.client import KubeClient

    async with await KubeClient.connect(kubeconfig, context) as client:
        return await survey(client, namespace)


def survey_lines(found: DiscoverySurvey, now: float) -> Iterator[str]:
    """Yield the report of a survey at `now` (Unix seconds)."""
    from tink.printable import printable

    yield f"Waiting for approval: {len(found.waiting)}"
    for each in found.waiting:
        yield f"  {each.key}  {_age(now - each.since)}  {printable(_described(each))}"
        if each.reason and each.reason != "NoExpectations":
            yield f"    {each.reason}: {printable(each.message)}"
        if each.lists != (each.key.namespace,):
            yield f"    lists that count for it: those of namespace {printable(', '.join(each.lists))}"
        if each.has_inventory:
            yield f"    approve: tinkedge discover approve {each.key.name} NEW-NAME -n {each.key.namespace}"
    yield f"Expected and not here yet: {len(found.missing)} of {found.expected}"
    for line in found.missing:
        yield f"  {line.key}  {printable(', '.join(line.identifiers))}  ({printable(line.source)})"
    yield f"Not as expected: {len(found.different)}"
    for each in found.different:
        yield f"  {each.key}  {each.reason}: {printable(each.message)}"
    if found.problems:
        yield f"Lines of lists that can't be used: {len(found.problems)}"
        for problem in found.problems:
            yield f"  {printable(problem.source)}: {printable(problem.text)}"


def _described(machine: FoundMachine) -> str:
    """Return the facts of a machine in one line."""
    if not machine.has_inventory:
        return f"{', '.join(machine.macs)}  its agent has not reported yet"
    names = (machine.vendor, machine.model, f"serial {machine.serial}" if machine.serial else "no serial number")
    memory = f"{machine.memory_bytes / 2**30:.0f} GiB" if machine.memory_bytes else ""
    disks = ", ".join(machine.disks[:4]) + (f" and {len(machine.disks) - 4} more" if len(machine.disks) > 4 else "")
    at = f"at {', '.join(machine.ports)}" if machine.ports else ""
    return "  ".join(filter(None, (" ".join(filter(None, names)), memory, disks, at)))


def _age(seconds: float) -> str:
    from edge.commands.watching import ago

    return ago(max(seconds, 0.0))


# --- approve ----------------------------------------------------------------------------------------------------------


@discover.command(cls=GroupedCommand, group=Group.DISCOVERY)
@click.argument("name")
@click.argument("new_name", required=False, default="")
@_NAMESPACE
@_KUBECONFIG
@options.context
@click.option(
    "--timeout", "seconds", type=click.FloatRange(min=1), default=60.0, help="Seconds to wait for the controller."
)
def approve(
    name: str, new_name: str, namespace: str, kubeconfig: Path | None, context: str | None, seconds: float
) -> None:
    """Approve the discovered machine NAME as NEW_NAME; without NEW_NAME it keeps its name.

    The same as `kubectl annotate hardware NAME tinkerbell.org/approve=NEW_NAME`, and it waits for the Hardware. The
    machine gets no Workflow and keeps its disks as they are.
    """
    with errors_shown():
        click.echo(run_interruptible(_approve(name, new_name, namespace, kubeconfig, context, seconds)))


async def _approve(
    name: str, new_name: str, namespace: str, kubeconfig: Path | None, context: str | None, seconds: float
) -> str:
    from tink.discovery.operators import approve as approve_machine
    from tink.kube.client import KubeClient
    from tink.kube.objects import NamespacedName

    async with await KubeClient.connect(kubeconfig, context) as client:
        return await approve_machine(
            client,
            NamespacedName(namespace, name),
            new_name,
            seconds=seconds,
            progress=lambda line: click.echo(line, err=True),
        )


# --- lists ------------------------------------------------------------------------------------------------------------


@discover.command(name="import", cls=GroupedCommand, group=Group.DISCOVERY)
@click.argument("file", type=FilePath(dir_okay=False, exists=True))
@click.option("-n", "--namespace", type=types.namespace, default="default", help="Namespace of the list's machines.")
@click.option("--name", default="", help="Name of the ConfigMap.  [default: that of FILE]")
@_KUBECONFIG
@options.context
@click.option("--dry-run", is_flag=True, help="Check FILE, and store nothing. Needs no API.")
def import_list(
    file: Path, namespace: str, name: str, kubeconfig: Path | None, context: str | None, dry_run: bool
) -> None:
    """Check FILE, a list of expected machines (CSV), and store it as a ConfigMap.

    The columns are those of docs/discovery.md. Columns with a user and a password of BMCs (bmc_username, bmc_password)
    become one Secret for each machine, NAME-bmc, and are not stored in the ConfigMap. Lines that can't be used are
    shown and stored, and the others count. Exits with 1 if there are such lines.
    """
    with errors_shown(None, file):
        problems = run_interruptible(_import(file, file.read_bytes(), namespace, name, kubeconfig, context, dry_run))
    for problem in problems:
        click.echo(problem, err=True)
    sys.exit(bool(problems))


async def _import(
    file: Path, content: bytes, namespace: str, name: str, kubeconfig: Path | None, context: str | None, dry_run: bool
) -> list[str]:
    from tink.discovery.operators import prepare_list, store_list
    from tink.kube.client import KubeClient

    prepared = prepare_list(file.name, content, namespace, name)
    problems = [f"{each.source}: {each.text}" for each in prepared.problems]
    made = f"{len(prepared.machines)} machines, {len(prepared.secrets)} Secrets"
    if dry_run:
        click.echo(f"{file.name}: {made}; nothing is stored (--dry-run)")
        return problems
    async with await KubeClient.connect(kubeconfig, context) as client:
        await store_list(client, prepared)
    click.echo(f"ConfigMap {prepared.key}: {made}")
    return problems


# --- adopt ------------------------------------------------------------------------------------------------------------


@discover.command(cls=GroupedCommand, group=Group.DISCOVERY)
@click.argument("name")
@click.option(
    "-f",
    "--file",
    type=click.File("rb"),
    default=None,
    help="Inventory of the machine: the output of `tinkedge agent --print-inventory` there; - is standard input.",
)
@click.option("--bmc", default="", metavar="HOST", help="Record the machine by its BMC at this host.")
@click.option("--secret", default="", help="Secret with the BMC's username and password, in the namespace.")
@click.option("--insecure-tls", is_flag=True, help="Do not verify the certificate of the BMC.")
@_NAMESPACE
@_KUBECONFIG
@options.context
def adopt(
    name: str,
    file: IO[bytes] | None,
    bmc: str,
    secret: str,
    insecure_tls: bool,
    namespace: str,
    kubeconfig: Path | None,
    context: str | None,
) -> None:
    """Record a machine that is in use as Hardware NAME, by its BMC or by an inventory (-f).

    Nothing is written to the machine: the Hardware has no address and permits no netboot, and power is only read. It
    becomes an ordinary machine when you give it an address and create a Workflow.
    """
    if (file is None) == (not bmc):
        raise click.UsageError("give -f with an inventory, or --bmc with a host")
    if bmc and not secret:
        raise click.UsageError("--bmc needs --secret: the Secret with the BMC's username and password")
    with errors_shown():
        content = file.read() if file is not None else b""
        click.echo(run_interruptible(_adopt(name, content, bmc, secret, insecure_tls, namespace, kubeconfig, context)))


async def _adopt(
    name: str,
    content: bytes,
    bmc: str,
    secret: str,
    insecure_tls: bool,
    namespace: str,
    kubeconfig: Path | None,
    context: str | None,
) -> str:
    from tink.discovery.operators import adopt_by_bmc, adopt_by_inventory
    from tink.kube.client import KubeClient
    from tink.kube.objects import NamespacedName

    key = NamespacedName(namespace, name)
    async with await KubeClient.connect(kubeconfig, context) as client:
        if bmc:
            return await adopt_by_bmc(client, key, bmc, secret, insecure_tls=insecure_tls)
        return await adopt_by_inventory(client, key, content)
