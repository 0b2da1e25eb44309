"""The option that every service has for probes; apart, for those that need no more of the stack."""

from __future__ import annotations

import ipaddress
from typing import Any

import click


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
