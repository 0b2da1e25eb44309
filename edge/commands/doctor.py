"""`tinkedge doctor`: see `edge.doctor.doctor`."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

import click

from edge.building.builder import default_cache, in_checkout
from edge.commands.serve import command_up, disagreements, listeners, obstacles, services_of, settings
from edge.doctor import doctor as examine
from edge.doctor.checks import (
    Finding,
    Severity,
    agents_certificates,
    api_addresses,
    api_users,
    check_backups,
    note,
    osie_names,
    running_edge,
    upstream_edge,
    warning,
)
from edge.neighbour.host import HostError
from edge.run.settings import Service, Syslog
from edge.settings import (
    VARIABLES_FILE,
    FilePath,
    GroupedCommand,
    group_of,
    place,
    place_in_group,
    schema_of,
    settable,
    variable_problems,
)
from edge.syslog import SYSLOG_PORT
from tink.net.addresses import join_host_port

EXIT_STATUS: Final = {Severity.OK: 0, Severity.NOTE: 0, Severity.WARNING: 3, Severity.ERROR: 1}
"""2 is what a wrong option ends with."""
_SIGNS: Final = {
    Severity.OK: ("ok", "green"),
    Severity.NOTE: ("note", None),
    Severity.WARNING: ("warning", "yellow"),
    Severity.ERROR: ("PROBLEM", "red"),
}
_PATH = FilePath()
_API_SECONDS: Final = 10.0
_CERTIFICATES: Final = ("tls-cert", "tls-ca", "client-ca")
_OWN: Final = ("cache_dir", "with_lab", "probe", "as_json", "config", "help")
_FIRST: Final = "First of all"
_PORT_OPTIONS: Final = {"http": "http_port", "server": "grpc_port", "apiserver": "api_port", "admin": "admin_port"}
_MORE_PORTS: Final = {
    "legacy-ports": "HTTP, --legacy-ports",
    "webhook-port": "webhooks",
    "health-address": "--health-address",
    "metrics-address": "--metrics-address",
}
_LOOKED_AT_ELSEWHERE: Final = ("interface", "data-dir", "registry-ca", *(f"grpc-{of}" for of in _CERTIFICATES))


class _DoctorCommand(GroupedCommand):
    """Takes the options of `tinkedge up` beside its own. `--help` lists its own and the most used of the others."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of doctor, then the first group of those of up."""
        records: dict[bool, list[tuple[str, str]]] = {True: [], False: []}
        for param in sorted(self.get_params(ctx), key=lambda each: _place(str(each.name))):
            record = param.get_help_record(ctx)
            own = str(param.name) in _OWN
            if record is not None and (own or group_of(str(param.name).replace("_", "-")) == _FIRST):
                records[own].append(record)
        for own, title in ((True, "Options"), (False, "Options of `tinkedge up`")):
            with formatter.section(title):
                formatter.write_dl(records[own])
        formatter.write_paragraph()
        formatter.write_text("All other options of `tinkedge up` are taken, too: see `tinkedge up --help`.")


def _place(name: str) -> int:
    return _OWN.index(name) if name in _OWN else place_in_group(name.replace("_", "-"))


def _of_up(command: click.Command) -> click.Command:
    """Give a command the options of `tinkedge up`. The data directory may be another user's: a finding reports that."""
    for option in settable(command_up):
        added = copy(option)
        if added.name == "data_dir":
            added.type = FilePath(readable=False)
        elif added.name == "kubeconfig":
            added.help = "The cluster's, whose OSIEs are looked at. Default: DATA_DIR/kubeconfig."
        command.params.append(added)
    return command


@_of_up
@click.command(cls=_DoctorCommand)
@click.option("--cache-dir", type=_PATH, default=None, help="The lab's cache.")
@click.option(
    "--lab/--no-lab",
    "with_lab",
    default=None,
    help="Look at what `tinkedge lab` needs too. Default: in a checkout, not where tinkedge is installed.",
)
@click.option(
    "--probe",
    is_flag=True,
    help="Ask the network too, for some seconds: which other DHCP servers answer a machine that there is not, whether "
    "the TFTP server that runs here serves, and whether TFTP, HTTP and gRPC answer what arrives on the interface, past "
    "no rule of this host's packet filter. Needs root and the extra `diagnose`.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document, for programs.")
def doctor(cache_dir: Path | None, with_lab: bool | None, probe: bool, as_json: bool, **given: Any) -> None:
    """Find what keeps this host from serving, and name the remedy. Changes nothing.

    Give it the options of `tinkedge up`, as flags, variables or in the file with settings, with the values
    under `up`. Exits with 0 if nothing is wrong, 1 if something is, 3 if there are only warnings: what may be meant so.
    A note is about what was not looked at.
    """
    services = services_of("up", given)
    networks = [_network(name, ip or given["public_ip"]) for name, ip in given["interface"] or [("", "")]]
    ports = _ports(services, given)
    groups: dict[str, Iterator[Finding]] = {
        "tinkedge up": _up(services, networks, ports, given),
        "the network": examine.probe(networks, given["ipxe_dir"], ports, link_metadata=given["link_metadata"])
        if probe
        else iter([_NOT_PROBED]),
    }
    if in_checkout() if with_lab is None else with_lab:
        groups["tinkedge lab"] = examine.lab(cache_dir or default_cache())
    worst = _as_json(groups) if as_json else _as_text(groups)
    sys.exit(EXIT_STATUS[worst])


def _network(interface: str, address: str | None) -> str:
    return f"{interface}={address}" if address else interface


def _up(
    services: frozenset[Service], networks: Sequence[str], ports: Sequence[examine.Port], given: dict[str, Any]
) -> Iterator[Finding]:
    """Yield what is found of everything that `tinkedge up` needs."""
    data_dir, admin = given["data_dir"], (given["admin_address"], given["admin_port"])
    certificates = {f"--grpc-{of}": given[f"grpc_{of.replace('-', '_')}"] for of in _CERTIFICATES}
    certificates |= {f"--registry-ca {registry}": file for registry, file in given["registry_ca"]}
    return chain(
        examine.serving(
            networks,
            given["ipxe_dir"],
            ports,
            ipv6=given["ipv6"],
            routers=given["ipv6_router"],
            link_metadata=given["link_metadata"],
        ),
        _settings(services, given),
        _variables(),
        api_addresses(given["api_address"]),
        agents_certificates(certificates),
        examine.data_directory(data_dir),
        api_users(data_dir, datetime.now(UTC)),
        check_backups(),
        running_edge(data_dir, *admin),
        upstream_edge(_authority(given), given["metadata_token_key"]),
        _osies(given["manifests"], given["kubeconfig"] or data_dir / "kubeconfig"),
    )


def _ports(services: frozenset[Service], given: dict[str, Any]) -> list[examine.Port]:
    """Return the ports that the services listen on with these options."""
    numbers = {port.name: given[_PORT_OPTIONS[port.name]] for port in examine.PORTS if port.name in _PORT_OPTIONS}
    off = {port.name for port in examine.PORTS} - {service.value for service in services}
    off |= {"dhcp"} if given["dhcp_mode"] == "off" else set()
    found = examine.ports(numbers, given["admin_address"], off)
    for each in listeners(services, given):
        if each.key in _MORE_PORTS:
            name, at = _MORE_PORTS[each.key], [""] if each.key == "legacy-ports" else sorted(each.at)
            instead = f"leave --{each.key} out, or give another"
            found += [examine.Port(name, socket.SOCK_STREAM, each.port, "http", one, instead) for one in at]
    if given["syslog"] == Syslog.ON and Service.HTTP in services:
        found.append(examine.Port("syslog", socket.SOCK_DGRAM, SYSLOG_PORT, "http", without="--syslog off"))
    return found


def _settings(services: frozenset[Service], given: dict[str, Any]) -> Iterator[Finding]:
    """Yield what does not fit together, and what the options name that is not on this host.

    Every service looks at the same before it starts. What has a finding of its own here is left out.
    """
    where = partial(place, click.get_current_context())
    fits = True
    if "lo" in dict(given["interface"]) and Service.DHCP in services and given["dhcp_mode"] != "off":
        remedy = "name the interface that faces machines, or leave DHCP out with --disable dhcp"
        yield warning("DHCP on lo", "no machine is on the loopback interface, and DHCP does not start there", remedy)
    apart = [each for each in obstacles(services, given) if each.keys[0] not in _LOOKED_AT_ELSEWHERE]
    for each in (*disagreements(services, given), *apart):
        name = ", ".join(f"--{key} ({where(key)})" for key in each.keys)
        severity = Severity.ERROR if each.is_error else Severity.WARNING
        yield Finding(name, ok=False, seen=each.message, remedy=each.remedy, severity=severity)
        fits = fits and not each.is_error
    if not fits:
        return
    try:
        settings(services, dict(given))
    except click.UsageError as error:
        if not isinstance(error.__cause__, HostError):  # an interface, which has its own finding
            yield Finding("options", ok=False, seen=error.message, remedy="see tinkedge up --help")
    else:
        yield Finding("options", ok=True, seen="fit together; the files that they name are there")


def _variables() -> Iterator[Finding]:
    """Yield a warning for each TINKEDGE_ variable of this shell, or of the services, that is not right."""
    ctx = click.get_current_context()
    for each in variable_problems(os.environ, ctx.command, schema_of(ctx), VARIABLES_FILE):
        yield warning(
            f"variable {each.name}" if each.name else "variables", f"{each.message} ({each.where})", each.remedy
        )


def _authority(given: dict[str, Any]) -> str:
    if given["upstream_edge"] is None:
        return ""
    address, port = given["upstream_edge"]
    return join_host_port(address, port or given["http_port"])


_NOT_PROBED = note("other DHCP servers", "not looked for", "--probe asks the network (root, and the extra `diagnose`)")


def _as_text(groups: dict[str, Iterator[Finding]]) -> Severity:
    worst = Severity.OK
    for title, findings in groups.items():
        click.echo(click.style(title, bold=True))
        for finding in findings:
            worst = max(worst, finding.how_bad)
            text, colour = _SIGNS[finding.how_bad]
            click.echo(f"  {click.style(text, fg=colour):<7} {finding.name}: {finding.seen}")
            if finding.how_bad > Severity.OK and finding.remedy:
                click.echo(f"          -> {finding.remedy}")
    return worst


def _as_json(groups: dict[str, Iterator[Finding]]) -> Severity:
    found = [(title, finding) for title, findings in groups.items() for finding in findings]
    worst = max((finding.how_bad for _, finding in found), default=Severity.OK)
    document = {
        "severity": worst.name.lower(),
        "findings": [
            {
                "group": title,
                "name": finding.name,
                "severity": finding.how_bad.name.lower(),
                "seen": finding.seen,
                "remedy": finding.remedy if finding.how_bad > Severity.OK else "",
            }
            for title, finding in found
        ],
    }
    click.echo(json.dumps(document, indent=2))
    return worst


def _osies(manifests: Path | None, kubeconfig: Path) -> Iterator[Finding]:
    """Whether the hosts of the OSIEs' URLs are known here: those among the manifests, and those of the API."""
    from tink.kube.manifests import ManifestError, manifest_files, read

    found: list[dict[str, Any]] = []
    try:
        for file in manifest_files(manifests) if manifests is not None else ():
            usable, problems = read(file)
            found += [obj for obj in usable if obj["kind"] == "OSIE"]
            for problem in problems:
                yield Finding("manifests", False, str(problem), "correct the file; the others are applied")
    except ManifestError as error:
        yield Finding("manifests", False, str(error), "see --manifests")
    try:
        if kubeconfig.exists():
            found += asyncio.run(_listed(kubeconfig))
    except Exception as error:  # whatever keeps an API from answering; the others are looked at all the same
        yield note("OSIEs of the API", f"not asked for, by {kubeconfig}: {error or type(error).__name__}")
    yield from osie_names(found)


async def _listed(kubeconfig: Path) -> Iterable[dict[str, Any]]:
    from tink.kube.client import KubeClient
    from tink.kube.resources import OSIE

    async with await KubeClient.connect(kubeconfig) as client, asyncio.timeout(_API_SECONDS):
        return [*(await client.list(OSIE))["items"]]
