"""`tinkedge move`: move all objects to another Kubernetes API, without harm to machines with running Workflows."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edge.building.screen import ProgressLine
from edge.commands.options import data_dir as data_dir_option
from edge.settings import FilePath

if TYPE_CHECKING:
    from tink.move.mover import MoveReport

_MAX_PROBLEMS = 20


@click.command()
@click.option("--to", "target", type=FilePath(dir_okay=False), required=True, help="Kubeconfig of the target.")
@click.option("--to-context", help="Context of it.  [default: its current one]")
@click.option(
    "--from",
    "source",
    type=FilePath(dir_okay=False),
    help="Kubeconfig of the source.  [default: DATA_DIR/kubeconfig, the embedded API]",
)
@click.option("--from-context", help="Context of it.  [default: its current one]")
@data_dir_option("Data directory of the embedded API that is the source.")
@click.option("--dry-run", is_flag=True, help="MoveReport what would be moved and what prevents it; change nothing.")
@click.option("--install-crds", is_flag=True, help="Install or update the CustomResourceDefinitions at the target.")
@click.option("--delete-source", is_flag=True, help="Delete everything at the source after the move.")
@click.option("--abort", is_flag=True, help="Undo a move that has not been completed.")
def move(
    target: Path,
    to_context: str | None,
    source: Path | None,
    from_context: str | None,
    data_dir: Path,
    dry_run: bool,
    install_crds: bool,
    delete_source: bool,
    abort: bool,
) -> None:
    """Move all objects to another Kubernetes API: Hardware, OSIEs, Templates, Workflows, Machines, and their Secrets.

    Lists of expected machines and WorkflowRuleSets are moved, too.

    Both APIs must run. Workflows are paused at the source first, so that only one side ever gives them to an agent, and
    released at the target after everything was verified there. The command may be killed and run again. Then start the
    services on the target, at the address that the machines know; running actions continue meanwhile. Jobs and Tasks of
    BMCs are not moved: one that has not ended prevents the move.

    Exits with 2 if something prevents the move; nothing is changed then.
    """
    if abort and (dry_run or delete_source):
        raise click.UsageError("--abort goes without --dry-run and --delete-source")
    contexts = from_context, to_context
    how = None if abort else {"dry_run": dry_run, "install_crds": install_crds, "delete_source": delete_source}
    report = asyncio.run(_run(source or data_dir / "kubeconfig", target, contexts, how))
    if abort:
        click.echo("undone: the Workflows of the source continue")
        return
    for problem in report.problems[:_MAX_PROBLEMS]:
        click.echo(f"in the way: {problem}", err=True)
    if len(report.problems) > _MAX_PROBLEMS:
        click.echo(f"and {len(report.problems) - _MAX_PROBLEMS} more", err=True)
    for note in report.notes:
        click.echo(note, err=True)
    for kind, count in report.found.items():
        click.echo(f"{kind}: {count}, of which {report.created.get(kind, 0)} made at the target now")
    if report.problems:
        click.echo("nothing was changed")
        sys.exit(2)
    if dry_run:
        click.echo("nothing was changed; without --dry-run this would be moved")
        return
    click.echo("handed over: the source's Workflows stay paused; stop its services and start those of the target")
    if delete_source:
        click.echo(f"{report.deleted} objects deleted at the source")


async def _run(
    source: Path, target: Path, contexts: tuple[str | None, str | None], how: dict[str, bool] | None
) -> MoveReport:
    """Run the move with the arguments `how`, or undo it if `how` is None."""
    from tink.kube.client import ApiError, KubeClient
    from tink.move.mover import Mover

    progress = ProgressLine()
    try:
        async with (
            await KubeClient.connect(source, contexts[0]) as from_client,
            await KubeClient.connect(target, contexts[1]) as to_client,
        ):
            mover = Mover(from_client, to_client, progress)
            return await (mover.abort() if how is None else mover.run(**how))
    except ApiError as error:
        advice = "completed steps stay: run this again, or undo them with --abort"
        raise click.ClickException(f"{error}; {advice}") from error
    finally:
        progress.clear()
