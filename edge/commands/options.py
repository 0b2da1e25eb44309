"""Options that several commands have. Nothing of the stack is imported: some of these commands need none of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from edge.settings import DataDirectory, FilePath, Group, types

if TYPE_CHECKING:
    from edge.run.process.health import OperatorAddresses

Command = Callable[..., None]


def gathered(name: str, make: Callable[..., object], *options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return a decorator that gives a command `options`, and passes their values as one argument `name`.

    `make` returns the argument. Its parameters have the names of the options.
    """

    def decorate(command: Command) -> Command:
        @wraps(command)
        def gathering(**given: Any) -> None:
            own = {each: given.pop(each) for each in signature(make).parameters}
            command(**given, **{name: make(**own)})

        decorated: Command = gathering
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate


METRICS_PORTS: Final = {"controller": 7091, "server": 7092, "apiserver": 7093, "metal3": 7094, "metal3-webhook": 7095}
"""The default metrics ports of the services that have no operators' HTTP."""
_METRICS_PORTS_TEXT: Final = ", ".join(f"{port} ({name})" for name, port in METRICS_PORTS.items())

health_address = Group.OPERATORS.option(
    "--health-address",
    type=types.health_address,
    default=None,
    help="Answer /healthz, /livez and /readyz here, too: 7082 (on loopback), 10.0.0.1:7082, [fd00::1]:7082; "
    "[::]:7082 is all addresses. Default: nowhere.",
)
log_level = Group.FIRST.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", help="Verbosity."
)
log_format = Group.LOGGING.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", help="Lines for people or programs."
)
context = click.option("--context", default=None, help="A context of the kubeconfig.  [default: its current one]")
empty_checksum_type = Group.METAL3.option(
    "--empty-checksum-type", type=types.empty_checksum_type, default="md5", help=types.EMPTY_CHECKSUM_TYPE_HELP
)


def metrics_address(command: Command) -> Command:
    """Give a command the option, with the default port of the command's name."""
    port = METRICS_PORTS.get(command.__name__.replace("_", "-"))
    decorate = Group.OPERATORS.option(
        "--metrics-address",
        type=types.metrics_address,
        default=f"127.0.0.1:{port}" if port else None,
        help="Answer /metrics here, for Prometheus, and the paths of --health-address: 7091 (on loopback), "
        "10.0.0.1:7091, [fd00::1]:7091; none: nowhere. Default: loopback, ports "
        f"{_METRICS_PORTS_TEXT}; up and edge have it at --admin-address.",
    )
    decorated: Command = decorate(command)
    return decorated


def operator_addresses(ctx: click.Context) -> OperatorAddresses:
    """Return the addresses that a command's options give for metrics and health."""
    from edge.run.process.health import OperatorAddresses

    metrics = ctx.params["metrics_address"]
    wanted = ctx.get_parameter_source("metrics_address") is not ParameterSource.DEFAULT
    return OperatorAddresses(ctx.params["health_address"], None if metrics == types.NOWHERE else metrics, wanted)


def data_dir(text: str) -> Callable[[Command], Command]:
    """Return the option of a command that works in a data directory. `text` is its help."""
    return click.option("--data-dir", type=DataDirectory(), default=Path("/var/lib/tinkedge"), help=text)


def kubeconfig(purpose: str) -> Callable[[Command], Command]:
    """Return the option of a command that finds the cluster as kubectl does. `purpose` begins its help."""

    def or_default(_ctx: click.Context, _option: click.Parameter, given: Path | None) -> Path | None:
        own = Path.home() / ".kube" / "config"
        return given or (own if own.is_file() else None)

    return click.option(
        "--kubeconfig",
        type=FilePath(dir_okay=False),
        envvar=["TINKEDGE_KUBECONFIG", "KUBECONFIG"],
        callback=or_default,
        help=f"{purpose}  [default: $KUBECONFIG, ~/.kube/config, or the service account of the pod]",
    )
