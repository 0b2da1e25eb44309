"""`tinkedge metal3`: keep Hardware in step with Metal3's BareMetalHosts, on their cluster."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edge.commands import options
from edge.commands.host_options import host_options
from edge.commands.serve import begin
from edge.run.logs import set_up
from edge.run.process.health import HealthServer, OperatorAddresses
from edge.run.process.reload import Reload, Step
from edge.run.process.service_manager import Notifier, Watchdog
from edge.run.readiness import Readiness
from edge.settings import FilePath, Group, GroupedCommand, types

if TYPE_CHECKING:
    from tink.convert.metal3.to_hardware import HostOptions
    from tink.metal3.controller import Follower

log = logging.getLogger(__name__)

_STATUS = "keeping Hardware in step with BareMetalHosts"


@click.command(cls=GroupedCommand, group=Group.METAL3)
@Group.FIRST.option(
    "--kubeconfig",
    type=FilePath(dir_okay=False),
    default=None,
    help="Kubeconfig of the API with the hosts and the Hardware.  [default: the service account of this pod]",
)
@options.context
@Group.API.option(
    "-n",
    "--namespaces",
    "--namespace",
    type=types.namespaces,
    default="",
    help="Only hosts in these namespaces: a,b. Default: all.",
)
@click.option("--once", is_flag=True, help="Synchronise every host once, and exit; with 1 if one failed.")
@click.option(
    "--resync",
    type=click.FloatRange(1, 86_400),
    default=300.0,
    help="Seconds after which a host is examined again, because its Secrets may have changed.",
)
@host_options
@Group.API.option(
    "--leader-elect/--no-leader-elect", default=True, help="Elect one active replica of several with a Lease."
)
@Group.API.option(
    "--lease-namespace", default="", help="Namespace of the Lease.  [default: this pod's namespace, or default]"
)
@options.health_address
@options.metrics_address
@options.log_level
@options.log_format
def metal3(
    kubeconfig: Path | None,
    context: str | None,
    namespaces: tuple[str, ...],
    once: bool,
    resync: float,
    hosts: HostOptions,
    leader_elect: bool,
    lease_namespace: str,
    health_address: tuple[str, int] | None,  # noqa: ARG001 - with the next, read by `operator_addresses`
    metrics_address: tuple[str, int] | None,  # noqa: ARG001
    log_level: str,
    log_format: str,
) -> None:
    """Keep a Hardware in step with each BareMetalHost of Metal3.

    A host that is provisioned, paused, detached, powered off, in use or in an unknown state never netboots. Hardware
    that was not made from a host is never touched.
    """
    import uvloop

    from tink.kube.runtime import LeaderElectionConfig, pod_namespace
    from tink.metal3.controller import Follower
    from tink.metal3.settings import Metal3Settings

    faulthandler.enable()
    set_up(log_level, log_format)
    election = None
    if leader_elect and not once:
        election = LeaderElectionConfig("tinkedge-metal3", lease_namespace or pod_namespace())
    follower = Follower(kubeconfig, context, namespaces, Metal3Settings(hosts, resync), election)
    ctx = click.get_current_context()
    steps, addresses = begin(ctx), options.operator_addresses(ctx)
    sys.exit(uvloop.run(follower.once() if once else _until_stopped(follower, addresses, steps)))


async def _until_stopped(follower: Follower, addresses: OperatorAddresses, steps: Sequence[Step]) -> int:
    from tink.metrics.process import process_registry

    notifier = Notifier.from_environment()
    registry = process_registry(lambda: follower.not_ready)
    registry.register(follower)
    reload = Reload(notifier, lambda: _STATUS, steps)
    reload.listen()
    running = asyncio.create_task(follower.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    watching = asyncio.create_task(Watchdog(notifier, {}).run())
    # Ready at once: the service manager does not have to wait for the API, the Lease and the definitions. /readyz does.
    notifier.ready(_STATUS)
    reload.ready()
    try:
        async with HealthServer(lambda: Readiness(follower.not_ready), registry).listening(addresses):
            await running
    except asyncio.CancelledError:
        notifier.stopping()
        log.info("stopped")
    finally:
        watching.cancel()
    return 0
