"""Options that several commands have. Nothing of the stack is imported, for commands that need none of it."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Command = Callable[..., None]


class HealthAddress(click.ParamType[tuple[str, int]]):
    """Where probes are answered: `7082`, which is on loopback, or `10.0.0.1:7082`; `0.0.0.0:7082`: everywhere."""

    name = "[ipv4:]port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        """Address and port."""
        if isinstance(value, tuple):
            return value
        host, _, port = value.rpartition(":")
        try:
            address = ipaddress.IPv4Address(host or "127.0.0.1")
        except ValueError:
            self.fail(f"{value!r} must be like 7082 or 127.0.0.1:7082", param, ctx)
        if not port.isdecimal() or not 0 < int(port) < 65536:
            self.fail(f"{value!r} must end with a port, like 127.0.0.1:7082", param, ctx)
        return str(address), int(port)


health_address = click.option(
    "--health-address",
    type=HealthAddress(),
    default=None,
    help="Answer /healthz and /readyz here, too: 7082 (on loopback), 10.0.0.1:7082. For services without HTTP of their "
    "own, and tinkedge health. Default: nowhere.",
)
log_level = click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", help="Verbosity."
)
log_format = click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", help="Lines for people or programs."
)
context = click.option("--context", default=None, help="A context of the kubeconfig.  [default: its current one]")
empty_checksum_type = click.option(
    "--empty-checksum-type",
    type=click.Choice(["md5", "auto"]),
    default="md5",
    help="What an image of a BareMetalHost v1alpha1 without a checksumType means: md5, or auto where the "
    "baremetal-operator detects it.",
)
"""All commands about Metal3's hosts must agree on it."""


def data_dir(what: str) -> Callable[[Command], Command]:
    """The option of a command that works in a data directory."""
    return click.option(
        "--data-dir", type=click.Path(path_type=Path, file_okay=False), default=Path("/var/lib/tinkedge"), help=what
    )


def kubeconfig(whose: str) -> Callable[[Command], Command]:
    """The option of a command that is used as kubectl is, and finds the cluster where kubectl does."""

    def found(_ctx: click.Context, _option: click.Parameter, given: Path | None) -> Path | None:
        own = Path.home() / ".kube" / "config"
        return given or (own if own.is_file() else None)

    return click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar=["TINKEDGE_KUBECONFIG", "KUBECONFIG"],
        default=None,
        callback=found,
        help=f"{whose}  [default: $KUBECONFIG, ~/.kube/config, or the service account of the pod]",
    )
