"""`tinkedge power`: switch a machine on or off by its BMC, or show its power state."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from edge.commands import options
from edge.commands.progress import errors_shown, run_interruptible
from edge.settings import Group, GroupedCommand, types

_ACTIONS = ("on", "off", "cycle", "reset", "soft", "status")


@click.command(cls=GroupedCommand, group=Group.BMC)
@click.argument("name")
@click.argument("action", type=click.Choice(_ACTIONS))
@click.option("-n", "--namespace", type=types.namespace, default="default", help="Namespace of NAME.")
@options.kubeconfig("Kubeconfig of the API.")
@options.context
@click.option(
    "--timeout", "seconds", type=click.FloatRange(min=1), default=900.0, help="Seconds to wait for the end of the Job."
)
def power(name: str, action: str, namespace: str, kubeconfig: Path | None, context: str | None, seconds: float) -> None:
    """Change the power of a machine by its BMC. NAME is a Hardware with a bmcRef, or a Machine.

    It creates a Job, waits until the BMC reports the effect, and prints that; the Job is deleted after an hour. soft
    shuts the operating system down, cycle is off and on, reset restarts at once. status prints the state that was last
    read, and asks no BMC. Exits with 1 if the BMC did not do it.
    """
    try:
        with errors_shown():
            click.echo(run_interruptible(_power(name, action, namespace, kubeconfig, context, seconds)))
    except asyncio.CancelledError:
        raise click.ClickException("interrupted: the Job goes on; kubectl delete job.bmc ends it") from None


async def _power(
    name: str, action: str, namespace: str, kubeconfig: Path | None, context: str | None, seconds: float
) -> str:
    from tink.bmc.model import PowerAction
    from tink.bmc.operators import change_power, find_machine, power_status
    from tink.kube.client import KubeClient

    async with await KubeClient.connect(kubeconfig, context) as client:
        machine = await find_machine(client, name, namespace)
        if action == "status":
            return power_status(machine)
        return await change_power(
            client,
            machine,
            name,
            PowerAction(action),
            seconds=seconds,
            progress=lambda line: click.echo(line, err=True),
        )
