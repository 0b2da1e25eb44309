"""The commands that serve: `tinkedge up | edge | controller | server | apiserver | metal3-webhook`.

Each has the options of its services (`edge.settings.model`) and runs them in one process, from the options to the exit
status.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial, update_wrapper
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from edge.commands import options as common
from edge.run.graph import Stack
from edge.run.logs import set_up
from edge.run.process.health import HealthServer, OperatorAddresses
from edge.run.process.memory import default_server_memory, settle
from edge.run.process.reload import Reload, Step
from edge.run.process.service_manager import Notifier, Watchdog, extend_start, report, status_line
from edge.settings import (
    SERVICES,
    TOOLS,
    Group,
    GroupedCommand,
    file_of,
    key,
    origins,
    place,
    schema_of,
    settable,
    unknown_variables,
    unreadable,
)
from edge.settings.checks import Place, contradictions, obstacles
from edge.settings.model import ALWAYS, EDGE, Service, StackSettings, options_for, services_of, stack_settings
from tink.errors import TinkedgeError
from tink.files.data_directory import DataDirectoryError
from tink.files.privileges import KEPT, become_owner
from tink.offload import TURN_SECONDS
from tink.waiting import done_before

log = logging.getLogger(__name__)

Decorator = Callable[[Any], Any]


# --- the commands -----------------------------------------------------------------------------------------------------


def serving(*own: Decorator) -> Callable[[Callable[[], None]], click.Command]:
    """Return a decorator that makes the command of a role from a function, which gives it name and help only.

    The command has the options of the role's services, its own, and those of every process. It runs the services.
    """
    process = (common.health_address, common.metrics_address, common.log_level, common.log_format)

    def decorate(described: Callable[[], None]) -> click.Command:
        role = described.__name__.replace("_", "-")

        def command(**options: Any) -> None:
            run(services_of(role, options), options)

        made: Any = update_wrapper(command, described)
        for each in reversed((*options_for(services_of(role, {"metal3": True, "bmc": True})), *own, *process)):
            made = each(made)
        return click.command(role, cls=GroupedCommand)(made)

    return decorate


def _disable(services: Collection[Service], text: str = "Leave out. Repeatable.") -> Decorator:
    choices = click.Choice([service.value for service in services])
    return Group.FIRST.option("--disable", type=choices, multiple=True, help=text)


@serving(
    _disable([each for each in Service if each in ALWAYS]),
    Group.METAL3.option(
        "--metal3",
        is_flag=True,
        help="Serve Metal3's BareMetalHost in both of its versions: definitions and conversion.",
    ),
)
def up() -> None:
    """The whole stack: API, controller, gRPC server, DHCP, TFTP, HTTP with metadata, admin HTTP.

    The gRPC server is a process of its own, with the memory of --grpc-memory; everything else is one process.

    Without --kubeconfig it runs its own Kubernetes API on loopback, and writes DATA_DIR/kubeconfig for kubectl. With
    --kubeconfig everything runs against that cluster, whose CRDs must be installed (tinkedge crds).

    If started as root, it changes to the user that owns the data directory, and keeps the capabilities that serving
    needs. A missing /var/lib/tinkedge is made for the user tinkedge of the package.
    """


@serving(_disable(sorted(EDGE)))
def edge() -> None:
    """DHCP, TFTP, HTTP and metadata. Without --kubeconfig: as the service account of this pod.

    If started as root, it changes to the user that owns the data directory, as `tinkedge up` does.
    """


@serving(_disable([Service.WEBHOOKS], "Leave the admission webhooks out."))
def controller() -> None:
    """The workflow controller. --webhook-service or --webhook-url adds the admission webhooks.

    --serve-v1alpha1 adds the conversion webhook for Tinkerbell's v1alpha1.

    Without --kubeconfig: as the service account of this pod.
    """


@serving()
def metal3_webhook() -> None:
    """The conversion webhook of Metal3's BareMetalHost, at --webhook-service or --webhook-url.

    It registers itself in the definition of BareMetalHost (tinkedge crds --metal3). Without --kubeconfig: as the
    service account of this pod.
    """


@serving()
def server() -> None:
    """The gRPC server of the agents. Without --kubeconfig: as the service account of this pod."""


@serving()
def apiserver() -> None:
    """The embedded Kubernetes API alone, with the CRDs of tinkerbell.org."""


# --- the process ------------------------------------------------------------------------------------------------------


def settings(
    services: frozenset[Service], options: Mapping[str, Any], where: Place = lambda _: "here"
) -> StackSettings:
    """Return the settings that the options give. Raises click.UsageError with all contradictions."""
    if wrong := [each.text(where) for each in contradictions(services, options) if each.is_error]:
        raise click.UsageError("\n".join(wrong))
    given = dict(options)
    if given.get("grpc_memory") is None and Service.SERVER in services:
        given["grpc_memory"] = default_server_memory(alone=services == {Service.SERVER})
    return stack_settings(services, given)


def run(services: frozenset[Service], options: dict[str, Any]) -> None:
    """Run these services until SIGTERM or SIGINT, and exit the process: with 0 then, with 1 if they fail.

    SIGHUP makes the process read its files again (`edge.run.process.reload`).
    """
    import uvloop

    faulthandler.enable()  # The watchdog's signal ends the process; its journal then has the stacks of all threads.
    set_up(options["log_level"], options["log_format"])
    try:
        _become_owner(options.get("data_dir"))
    except DataDirectoryError as error:
        log.error("%s", error)
        sys.exit(1)
    os.umask(0o077)  # Only the owner may read the files of this process.
    # Every transfer and connection is a file; the usual soft limit, 1,024, is less than a rack needs.
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    gc.set_threshold(50_000, 20, 100)  # Reading 100,000 machines makes many objects and no garbage.
    sys.setswitchinterval(TURN_SECONDS)  # DHCP waits for one turn of a thread at most.
    context = click.get_current_context()
    where = partial(place, context)
    stack = settings(services, options, where)
    steps = begin(context)
    if not _log_findings(services, options, where):
        sys.exit(1)
    sys.exit(uvloop.run(_run(stack, common.operator_addresses(context), steps)))


def _become_owner(data_dir: Path | None) -> None:
    """Change to the user that owns the data directory if this is root, and log that. Raises DataDirectoryError."""
    owner = become_owner(data_dir) if data_dir is not None else None
    if owner is not None:
        log.info(
            "the data directory %s belongs to %s: this process runs as that user, with the capabilities of root that "
            "it needs to serve (%s)",
            *(data_dir, owner, ", ".join(KEPT)),
        )


def _log_findings(services: frozenset[Service], options: dict[str, Any], where: Place) -> bool:
    """Log all findings about the settings and this host. Return True if none of them is an error."""
    can_start = True
    for each in (*contradictions(services, options), *obstacles(services, options)):
        if each.is_error:
            log.error("%s", each.text(where))
            can_start = False
        elif each.keys != ("interface",):  # `edge.run.networks` logs a missing interface, and its appearance.
            log.warning("%s", each.text(where))
    return can_start


async def _run(stack_settings: StackSettings, addresses: OperatorAddresses, steps: Sequence[Step]) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    stack, notifier = Stack(stack_settings), Notifier.from_environment()
    try:
        async with HealthServer(lambda: stack.readiness, stack.metrics).listening(addresses):
            await _until(stop, stack, notifier, stack_settings, steps)
    except (TinkedgeError, OSError) as error:
        # The message names the cause and the remedy; a trace would hide them.
        log.error("%s", error)
        log.debug("where", exc_info=True)
        notifier.status(str(error))
        return error.exit_status if isinstance(error, TinkedgeError) else 1
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
    waiting = asyncio.ensure_future(extend_start(notifier))
    started = await done_before(begin, stop)
    waiting.cancel()
    if not started:
        begin.cancel()
        await asyncio.wait([begin])
        return
    begin.result()
    settle(huge_pages=bool(stack_settings.services & EDGE))  # Only machines of an edge wait for packets.
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


# --- the settings file and its reload ---------------------------------------------------------------------------------


def begin(ctx: click.Context) -> tuple[Step, ...]:
    """Log which file the settings are from, and variables that no command reads. Return the steps for SIGHUP."""
    if (file := file_of(ctx)) is not None:
        log.info("settings from %s", file.path)
    if reason := unreadable(ctx):
        log.warning("the file with settings %s", reason)
    root, command = ctx.find_root(), ctx.command
    if not isinstance(root.command, click.Group) or not ctx.info_name:
        return ()
    schema = schema_of(ctx)
    for sentence in unknown_variables(os.environ, command, (*SERVICES, *TOOLS), schema).values():
        log.warning("%s", sentence)
    return (partial(_reload, ctx, dict(ctx.params)),)


def _reload(ctx: click.Context, values: dict[str, Any]) -> None:
    """Read the file again, if there was one or is one now. Flags are stronger than the file, and stay.

    `values` are those in use. All but the log level are built into the running services, so they need a restart.
    """
    file = file_of(ctx)
    args = ["--config", str(file.path)] if file is not None else []
    try:
        with ctx.command.make_context(ctx.info_name, args, parent=ctx.parent) as made:
            found = {each.key: each for each in origins(made, args)}
    except click.ClickException as error:
        log.error("SIGHUP: the settings stay as they are: %s", error.format_message())
        return
    for param in settable(ctx.command):
        name, each = str(param.name), found[key(param)]
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE or values[name] == made.params[name]:
            continue
        if each.key == "log-level":
            logging.getLogger().setLevel(str(each.value).upper())
            log.info("SIGHUP: log-level is %s now (%s)", each.value, each.text)
            values[name] = made.params[name]
        else:
            log.warning("SIGHUP: %s has changed (%s) and takes a restart", each.key, each.text)
