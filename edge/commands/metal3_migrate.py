"""`tinkedge metal3-migrate`: move the storage of Metal3's BareMetalHosts from v1alpha1 to v1beta1.

The plan goes to standard output, actions and progress to standard error.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from pathlib import Path

import click

from edge.building.screen import ProgressLine
from edge.commands import options
from tink.convert.metal3.versions import ConversionSettings
from tink.kube.client import ApiError, KubeClient, KubeConfigError
from tink.metal3 import migration
from tink.metal3.migration import (
    EXIT_CODES,
    Done,
    MigrationPlan,
    MigrationResult,
    MigrationSettings,
    Phase,
    Survey,
    carry_out,
    survey,
)

_PHASES = tuple(phase.value for phase in Phase if phase is not Phase.SERVED)


@click.command("metal3-migrate")
@options.kubeconfig("Kubeconfig of the cluster.")
@options.context
@click.option("--apply", is_flag=True, help="Carry out the plan. Default: print the plan and change nothing.")
@click.option(
    "--through",
    type=click.Choice(_PHASES),
    default=Phase.STORED_VERSIONS.value,
    help="The last phase to carry out, in this order.",
)
@click.option(
    "--stop-serving-v1alpha1", is_flag=True, help="Finally, stop serving v1alpha1, also to clients that still use it."
)
@click.option("--accept-differences", is_flag=True, help="Continue even if the conversion changes fields.")
@options.empty_checksum_type
@click.option(
    "--settle",
    type=click.FloatRange(0, 3600),
    default=5.0,
    help="Seconds to wait before hosts are rewritten, until all API servers use the new storage version.",
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Format of the report.")
def metal3_migrate(
    kubeconfig: Path | None,
    context: str | None,
    apply: bool,
    through: str,
    stop_serving_v1alpha1: bool,
    accept_differences: bool,
    empty_checksum_type: str,
    settle: float,
    output: str,
) -> None:
    """Move the storage of Metal3's BareMetalHosts to v1beta1.

    Prints the plan with every field that the conversion would change; --apply carries it out. It can be stopped at any
    time and started again. The conversion webhook must run, with the same --empty-checksum-type.

    Exits with 0 if the migration is finished or possible, with 2 if something prevents it, with 1 if it failed.
    """
    last = Phase(through)
    if stop_serving_v1alpha1:
        if last is not Phase.STORED_VERSIONS:
            raise click.UsageError("--stop-serving-v1alpha1 comes after all phases: leave --through out")
        last = Phase.SERVED
    settings = MigrationSettings(
        ConversionSettings("auto" if empty_checksum_type == "auto" else "md5"), last, accept_differences, settle
    )
    run = _Run(settings, apply, text=output == "text")
    run.outcome = asyncio.run(run.all(kubeconfig, context))
    if output == "json":
        click.echo(migration.as_json(run.survey, run.plan, run.done, run.outcome, run.error, applied=apply), nl=False)
    else:
        click.echo(migration.closing_line(run.outcome, run.error), err=run.outcome is MigrationResult.FAILED)
    sys.exit(EXIT_CODES[run.outcome])


@dataclass(slots=True)
class _Run:
    """One run and its results so far."""

    settings: MigrationSettings
    apply: bool
    text: bool
    survey: Survey | None = None
    plan: MigrationPlan | None = None
    done: list[Done] = field(default_factory=list)
    outcome: MigrationResult = MigrationResult.FAILED
    error: str = ""

    async def all(self, kubeconfig: Path | None, context: str | None) -> MigrationResult:
        """Survey the cluster, make the plan, and carry it out if that is requested and nothing prevents it."""
        progress = ProgressLine()
        try:
            async with await KubeClient.connect(kubeconfig, context) as client:
                return await self._all(client, progress)
        except (ApiError, KubeConfigError) as error:
            self.error = str(error)
            return MigrationResult.FAILED
        finally:
            progress.clear()

    async def _all(self, client: KubeClient, progress: ProgressLine) -> MigrationResult:
        self.survey = await survey(client, self.settings.conversion, progress)
        progress.clear()
        self.plan = migration.make_plan(self.survey, self.settings)
        if self.text:
            for line in migration.plan_lines(self.survey, self.plan):
                click.echo(line)
        if self.plan.problems:
            return MigrationResult.REFUSED
        if self.plan.finished:
            return MigrationResult.FINISHED
        if not self.apply:
            return MigrationResult.PLANNED
        async for done in carry_out(client, self.plan, self.survey, self.settings, progress):
            progress.clear()
            self.done.append(done)
            for line in migration.done_lines(done):
                click.echo(line, err=True)
        return MigrationResult.FAILED if any(done.failures for done in self.done) else MigrationResult.FINISHED
