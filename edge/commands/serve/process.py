"""The process of a command that serves: from its options to its exit status."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from edge.artifacts import DirectoryInUseError
from edge.commands.options import operator_addresses
from edge.commands.serve.agreement import Place, disagreements
from edge.commands.serve.settings_in_use import begin
from edge.commands.serve.stack_settings import settings
from edge.commands.serve.surroundings import obstacles
from edge.dhcp import DhcpServerError, SettingsError
from edge.neighbour.router_advertisement import RouterAdvertiserError
from edge.run.logs import set_up
from edge.run.networks import ServingError
from edge.run.process import (
    HealthError,
    HealthServer,
    Notifier,
    OperatorAddresses,
    Reload,
    Step,
    Watchdog,
    report,
    settle,
    starting,
    status_line,
)
from edge.run.settings import EDGE, Service, StackSettings
from edge.run.stack import Stack
from edge.run.tasks import StackError
from edge.run.workers import WorkersError
from edge.settings import place
from edge.telemetry import TracesError
from edge.tftp import TftpServerError
from ipxe.binaries import BinariesError
from tink.files.data_directory import DataDirectoryError
from tink.files.key_file import KeyFileError
from tink.files.privileges import KEPT, become_owner
from tink.kube.client import ApiError, KubeConfigError
from tink.kube.manifests import ManifestError
from tink.offload import TURN_SECONDS
from tink.server import TlsError
from tink.waiting import done_before

log = logging.getLogger(__name__)

_EXPECTED = (
    StackError,
    ApiError,
    BinariesError,
    DataDirectoryError,
    DhcpServerError,
    DirectoryInUseError,
    HealthError,
    KeyFileError,
    KubeConfigError,
    ManifestError,
    RouterAdvertiserError,
    ServingError,
    SettingsError,
    TftpServerError,
    TlsError,
    TracesError,
    WorkersError,
    OSError,
)
"""The parts' own errors: they say what is wrong and what to do, so a trace would only hide that."""


def run(services: frozenset[Service], options: dict[str, Any]) -> None:
    """Run these services until SIGTERM or SIGINT, and exit the process: 0 then, 1 if they can't start or end.

    SIGHUP has files read again (`edge.run.process.reload`).
    """
    import uvloop

    faulthandler.enable()  # a watchdog that ends us leaves the stacks of all threads
    set_up(options["log_level"], options["log_format"])
    if not _is_owner(options.get("data_dir")):
        sys.exit(1)
    os.umask(0o077)  # what is kept is for its owner alone; nothing that runs here writes for others
    # Every transfer and connection is a file; the usual soft limit, 1,024, is less than a rack needs.
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    gc.set_threshold(50_000, 20, 100)  # taking in 100,000 machines makes many objects and no garbage
    sys.setswitchinterval(TURN_SECONDS)  # DHCP waits for one turn of a thread at most
    context = click.get_current_context()
    where = partial(place, context)
    stack_settings = settings(services, options, where)
    steps = begin(context)
    if not _fits(services, options, where):
        sys.exit(1)
    sys.exit(uvloop.run(_run(stack_settings, operator_addresses(context), steps)))


def _is_owner(data_dir: Path | None) -> bool:
    """Become the user that the data directory belongs to, if this is root; log it, or why that can't be."""
    try:
        owner = become_owner(data_dir) if data_dir is not None else None
    except DataDirectoryError as error:
        log.error("%s", error)
        return False
    if owner is not None:
        log.info(
            "the data directory %s belongs to %s: this process runs as that user, with what else of root it needs to "
            "serve (%s)",
            *(data_dir, owner, ", ".join(KEPT)),
        )
    return True


def _fits(services: frozenset[Service], options: dict[str, Any], where: Place) -> bool:
    """Say what is strange in the settings, and what this host lacks for them; whether it can be tried."""
    fits = True
    for each in (*disagreements(services, options), *obstacles(services, options)):
        if each.is_error:
            log.error("%s", each.text(where))
            fits = False
        elif each.keys != ("interface",):  # who follows the networks says that, and when it is over
            log.warning("%s", each.text(where))
    return fits


async def _run(stack_settings: StackSettings, addresses: OperatorAddresses, steps: Sequence[Step]) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    stack, notifier = Stack(stack_settings), Notifier.from_environment()
    try:
        async with HealthServer(lambda: stack.readiness, stack.metrics).listening(addresses):
            await _until(stop, stack, notifier, stack_settings, steps)
    except _EXPECTED as error:
        log.error("%s", error)
        log.debug("where", exc_info=True)
        notifier.status(str(error))
        return 1
    except Exception:
        log.exception("this should not have happened; please report it")
        return 1
    return 0


async def _until(
    stop: asyncio.Event, stack: Stack, notifier: Notifier, stack_settings: StackSettings, steps: Sequence[Step]
) -> None:
    def status() -> str:
        return status_line(stack_settings, stack.networks, stack.readiness, len(stack.inventory))

    reload = Reload(notifier, status, steps)
    reload.listen()
    begin = asyncio.ensure_future(stack.start())
    waiting = asyncio.ensure_future(starting(notifier))
    started = await done_before(begin, stop)
    waiting.cancel()
    if not started:
        begin.cancel()
        await asyncio.wait([begin])
        return
    begin.result()
    settle(huge_pages=bool(stack_settings.services & EDGE))  # others have no packet that waits for it
    reporting = asyncio.ensure_future(report(notifier, lambda: stack.starting, status))
    watching = asyncio.ensure_future(Watchdog(notifier, {"the embedded API": stack.alive}).run())
    reload.ready()
    try:
        await stack.run(stop)
    finally:
        notifier.stopping()
        reporting.cancel()
        watching.cancel()
        await stack.stop()
        log.info("stopped")
