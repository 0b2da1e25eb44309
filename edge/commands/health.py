"""`tinkedge health`: ask the services on this host whether they are alive and ready; for HEALTHCHECK and exec probes.

It imports nothing of the servers, nor their libraries: a probe starts every few seconds, on small hosts too.
"""

from __future__ import annotations

import json
import socket
import sys

import click

from edge.commands.options import METRICS_PORTS
from edge.settings import types
from tink.net.addresses import join_host_port, reachable_host

_PORT = click.IntRange(1, 65535)
_MAX_BYTES = 4096


@click.command()
@click.option(
    "--interface",
    type=types.interface,
    metavar="NAME[=IP]",
    multiple=True,
    help="Interface that the edge serves. Repeatable. Default: that of the default route.",
)
@click.option("--public-ip", type=types.ipv4, help="Address of the edge on the interface.")
@click.option("--http-port", type=_PORT, default=7080, help="HTTP port of the edge for machines.")
@click.option(
    "--health-address",
    default="",
    metavar="[IP:]PORT",
    help="The --health-address of the service; only this is asked then.",
)
@click.option(
    "--metrics-address",
    default="",
    metavar="[IP:]PORT",
    help="The --metrics-address of the service, if it has no --health-address.",
)
@click.option(
    "--role",
    type=click.Choice(list(METRICS_PORTS)),
    help="A service without an HTTP port for machines: ask it at its default --metrics-address.",
)
@click.option("--live", is_flag=True, help="Ask whether it is alive (/healthz), not whether it is ready (/readyz).")
@click.option("--timeout", type=click.FloatRange(0.1, 300), default=3.0, help="Timeout of each request in seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def health(
    interface: tuple[tuple[str, str], ...],
    public_ip: str | None,
    http_port: int,
    health_address: str,
    metrics_address: str,
    role: str | None,
    live: bool,
    timeout: float,
    as_json: bool,
) -> None:
    """Exit with 0 if the services on this host are ready, else with 1 and the reason.

    Sends an HTTP request to each address of the edge, or to the port for operators that every service can have.
    """
    path = "/healthz" if live else "/readyz"
    given = health_address or metrics_address.removeprefix("none") or (str(METRICS_PORTS[role]) if role else "")
    places = [_place(given)] if given else [(each, http_port) for each in _addresses(interface, public_ip)]
    found = [(f"http://{join_host_port(*place)}{path}", *_ask(*place, path, timeout)) for place in places]
    good = all(ok for _, ok, _ in found)
    if as_json:
        checks = [{"url": url, "ok": ok, "answer": answer} for url, ok, answer in found]
        click.echo(json.dumps({"ok": good, "checks": checks}))
    else:
        for url, ok, answer in found:
            click.echo(f"{'ok' if ok else 'FAILED'}  {url}: {answer}")
    sys.exit(0 if good else 1)


def _place(address: str) -> tuple[str, int]:
    try:
        host, port = types.address_and_port(address)
    except ValueError as error:
        raise click.UsageError(f"{error}: it must be a port to ask, like 7082, 127.0.0.1:7082 or [::1]:7082") from error
    return reachable_host(host), port


def _addresses(interfaces: tuple[tuple[str, str], ...], public_ip: str | None) -> list[str]:
    from edge.neighbour.host import HostError, addresses_of

    try:
        return addresses_of(interfaces, public_ip)
    except (HostError, OSError) as error:
        raise click.ClickException(f"the address to ask is not known: {error}; or give --health-address") from error


def _ask(host: str, port: int, path: str, seconds: float) -> tuple[bool, str]:
    """Send a request. Return whether the status is 200, and the first line of the answer."""
    try:
        with socket.create_connection((host, port), seconds) as connection:
            connection.settimeout(seconds)
            request = f"GET {path} HTTP/1.1\r\nHost: {join_host_port(host, port)}\r\nConnection: close\r\n\r\n"
            connection.sendall(request.encode())
            answer = b""
            while len(answer) < _MAX_BYTES and (piece := connection.recv(_MAX_BYTES)):
                answer += piece
    except ConnectionRefusedError:
        return False, "Connection refused: nothing listens there. Does the service run, and with these options?"
    except OSError as error:
        return False, error.strerror or str(error) or "no answer in time"
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].decode(errors="replace").split(" ", 2)
    text = (body.decode(errors="replace").strip().splitlines() or [""])[0]
    code = status[1] if len(status) > 1 else "?"
    return code == "200", text if code == "200" and text else f"{code} {text}".strip()
