"""`tinkedge doctor`: the checks of `edge.doctor`, with the options of `tinkedge up`."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

import click

from edge.building.builder import default_cache, in_checkout
from edge.commands.serve import settings
from edge.commands.serve import up as command_up
from edge.doctor import (
    PORTS,
    ExaminedServices,
    Finding,
    Port,
    Severity,
    check_api_addresses,
    check_api_users,
    check_backups,
    check_certificates,
    check_data_directory,
    check_discovery,
    check_lab,
    check_osies,
    check_running_edge,
    check_serving,
    check_tinkerbell,
    check_upstream_edge,
    note,
    passed,
    probe,
    problem,
    warning,
)
from edge.neighbour.host import HostError
from edge.settings import (
    VARIABLES_FILE,
    FilePath,
    Group,
    GroupedCommand,
    group_of,
    place,
    schema_of,
    settable,
    variable_problems,
)
from edge.settings.checks import contradictions, listeners, obstacles
from edge.settings.model import Service, Syslog, services_of
from edge.syslog import SYSLOG_PORT
from tink.net.addresses import join_host_port

EXIT_STATUS: Final = {Severity.OK: 0, Severity.NOTE: 0, Severity.WARNING: 3, Severity.ERROR: 1}
"""Not 2, the exit status after a wrong option."""
_SIGNS: Final = {
    Severity.OK: ("ok", "green"),
    Severity.NOTE: ("note", None),
    Severity.WARNING: ("warning", "yellow"),
    Severity.ERROR: ("PROBLEM", "red"),
}
_PATH = FilePath()
_CERTIFICATES: Final = ("tls-cert", "tls-ca", "client-ca")
_OWN_OPTIONS: Final = ("cache_dir", "with_lab", "is_probed", "as_json", "config", "help")
_PORT_OPTIONS: Final = {"http": "http_port", "server": "grpc_port", "apiserver": "api_port", "admin": "admin_port"}
_MORE_PORTS: Final = {
    "legacy-ports": "HTTP, --legacy-ports",
    "webhook-port": "webhooks",
    "health-address": "--health-address",
    "metrics-address": "--metrics-address",
}
_OWN_FINDINGS: Final = ("interface", "data-dir", "registry-ca", *(f"grpc-{of}" for of in _CERTIFICATES))


class _DoctorCommand(GroupedCommand):
    """Takes the options of `tinkedge up` beside its own. `--help` lists its own and the most used of the others."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of doctor, then the first group of those of up."""
        records: dict[bool, list[tuple[str, str]]] = {True: [], False: []}
        places = {name: at for at, name in enumerate(_OWN_OPTIONS)}  # the options of up follow in their own order
        for param in sorted(self.get_params(ctx), key=lambda each: places.get(str(each.name), len(places))):
            record = param.get_help_record(ctx)
            own = str(param.name) in _OWN_OPTIONS
            if record is not None and isinstance(param, click.Option) and (own or group_of(self, param) == Group.FIRST):
                records[own].append(record)
        for own, title in ((True, "Options"), (False, "Options of `tinkedge up`")):
            with formatter.section(title):
                formatter.write_dl(records[own])
        formatter.write_paragraph()
        formatter.write_text("All other options of `tinkedge up` are taken, too: see `tinkedge up --help`.")


def _of_up(command: click.Command) -> click.Command:
    """Give a command the options of `tinkedge up`. The data directory may be another user's: a finding reports that."""
    for option in settable(command_up):
        added = copy(option)
        if added.name == "data_dir":
            added.type = FilePath(readable=False)
        elif added.name == "kubeconfig":
            added.help = "The kubeconfig of the API whose OSIEs are examined. Default: DATA_DIR/kubeconfig."
        command.params.append(added)
    return command


@_of_up
@click.command(cls=_DoctorCommand)
@click.option("--cache-dir", type=_PATH, help="The lab's cache.")
@click.option(
    "--lab/--no-lab",
    "with_lab",
    default=None,
    help="Examine what `tinkedge lab` needs, too. Default: in a checkout, not where tinkedge is installed.",
)
@click.option(
    "--probe",
    "is_probed",
    is_flag=True,
    help="Ask the network, too, for some seconds: find other DHCP servers, fetch a file from the TFTP server that runs "
    "here, and check that TFTP, HTTP and gRPC answer requests that arrive on the interface, as those of machines do. "
    "Needs root and the extra `diagnose`.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document, for programs.")
def doctor(cache_dir: Path | None, with_lab: bool | None, is_probed: bool, as_json: bool, **given: Any) -> None:
    """Find what keeps this host from serving, and name the remedy. Changes nothing.

    Give it the options of `tinkedge up`, as flags, variables or in the file with settings, with the values
    under `up`. Exits with 0 if nothing is wrong, 1 if there is a problem, 3 if there are only warnings, which may be
    intended. A note names what was not examined.
    """
    services = services_of("up", given)
    serving = ExaminedServices(
        interfaces=[(name, ip or given["public_ip"] or "") for name, ip in given["interface"] or [("", "")]],
        ipxe_dir=given["ipxe_dir"],
        ports=_ports(services, given),
        ipv6=given["ipv6"],
        routers=given["ipv6_router"],
        link_metadata=given["link_metadata"],
    )
    groups: dict[str, Iterator[Finding]] = {
        "tinkedge up": _check_up(services, serving, given),
        "the network": probe(serving) if is_probed else iter([_NOT_PROBED]),
    }
    if in_checkout() if with_lab is None else with_lab:
        groups["tinkedge lab"] = check_lab(cache_dir or default_cache())
    worst = _as_json(groups) if as_json else _as_text(groups)
    sys.exit(EXIT_STATUS[worst])


def _check_up(services: frozenset[Service], serving: ExaminedServices, given: dict[str, Any]) -> Iterator[Finding]:
    """Run all checks for `tinkedge up`, in their order."""
    data_dir, ctx = given["data_dir"], click.get_current_context()
    kubeconfig = given["kubeconfig"] or data_dir / "kubeconfig"
    certificates = {f"--grpc-{option}": given[f"grpc_{option.replace('-', '_')}"] for option in _CERTIFICATES}
    upstream = ""
    if given["upstream_edge"] is not None:
        address, port = given["upstream_edge"]
        upstream = join_host_port(address, port or given["http_port"])
    certificates |= {f"--registry-ca {registry}": file for registry, file in given["registry_ca"]}
    return chain(
        check_serving(serving),
        _check_settings(services, given),
        # each TINKEDGE_ variable of this shell, or of the services, that is wrong
        (
            warning(
                f"variable {each.name}" if each.name else "variables", f"{each.message} ({each.where})", each.remedy
            )
            for each in variable_problems(os.environ, ctx.command, schema_of(ctx), VARIABLES_FILE)
        ),
        check_api_addresses(given["api_address"]),
        check_certificates(certificates),
        check_data_directory(data_dir),
        check_api_users(data_dir, datetime.now(UTC)),
        check_backups(),
        check_running_edge(data_dir, given["admin_address"], given["admin_port"]),
        check_upstream_edge(upstream, given["metadata_token_key"]),
        check_osies(given["manifests"], kubeconfig),
        check_tinkerbell(
            kubeconfig,
            is_embedded=Service.APISERVER in services,
            serves_v1alpha1=bool(services & {Service.APISERVER, Service.V1ALPHA1}),
            has_bmc=Service.BMC in services,
        ),
        check_discovery(given["discover"], serving, kubeconfig, given["manifests"], has_relays=bool(given["relays"])),
    )


def _ports(services: frozenset[Service], given: dict[str, Any]) -> list[Port]:
    """Return the ports that the services listen on with these options."""
    enabled = {service.value for service in services} - ({"dhcp"} if given["dhcp_mode"] == "off" else set())
    found = []
    for port in PORTS:
        if port.name in enabled:
            number = given[_PORT_OPTIONS[port.name]] if port.name in _PORT_OPTIONS else port.number
            address = given["admin_address"] if port.name == "admin" else port.address
            found.append(replace(port, number=number, address=address))
    for each in listeners(services, given):
        if each.key in _MORE_PORTS:
            name, addresses = _MORE_PORTS[each.key], [""] if each.key == "legacy-ports" else sorted(each.at)
            without = f"leave --{each.key} out, or give another"
            found += [Port(name, socket.SOCK_STREAM, each.port, "http", address, without) for address in addresses]
    if given["syslog"] == Syslog.ON and Service.HTTP in services:
        found.append(Port("syslog", socket.SOCK_DGRAM, SYSLOG_PORT, "http", without="--syslog off"))
    return found


def _check_settings(services: frozenset[Service], given: dict[str, Any]) -> Iterator[Finding]:
    """Find options that contradict each other, or that name things this host does not have, as services do."""
    where = partial(place, click.get_current_context())
    is_any_wrong = False
    if "lo" in dict(given["interface"]) and Service.DHCP in services and given["dhcp_mode"] != "off":
        remedy = "name the interface that faces machines, or leave DHCP out with --disable dhcp"
        yield warning("DHCP on lo", "no machine is on the loopback interface, and DHCP does not start there", remedy)
    missing = [each for each in obstacles(services, given) if each.keys[0] not in _OWN_FINDINGS]
    for each in (*contradictions(services, given), *missing):
        name = ", ".join(f"--{key} ({where(key)})" for key in each.keys)
        severity = Severity.ERROR if each.is_error else Severity.WARNING
        yield Finding(name, severity, each.message, each.remedy)
        is_any_wrong |= each.is_error
    if is_any_wrong:
        return
    try:
        settings(services, dict(given))
    except click.UsageError as error:
        if not isinstance(error.__cause__, HostError):  # an interface, which has its own finding
            yield problem("options", error.message, "see tinkedge up --help")
    else:
        yield passed("options", "fit together; the files that they name are there")


_NOT_PROBED = note("other DHCP servers", "not looked for", "--probe asks the network (root, and the extra `diagnose`)")


def _as_text(groups: dict[str, Iterator[Finding]]) -> Severity:
    worst = Severity.OK
    for title, findings in groups.items():
        click.secho(title, bold=True)
        for finding in findings:
            worst = max(worst, finding.severity)
            text, colour = _SIGNS[finding.severity]
            click.echo(f"  {click.style(text, fg=colour):<7} {finding.name}: {finding.seen}")
            if finding.severity > Severity.OK and finding.remedy:
                click.echo(f"          -> {finding.remedy}")
    return worst


def _as_json(groups: dict[str, Iterator[Finding]]) -> Severity:
    found = [(title, finding) for title, findings in groups.items() for finding in findings]
    worst = max((finding.severity for _, finding in found), default=Severity.OK)
    document = {
        "severity": worst.name.lower(),
        "findings": [
            {
                "group": title,
                "name": finding.name,
                "severity": finding.severity.name.lower(),
                "seen": finding.seen,
                "remedy": finding.remedy if finding.severity > Severity.OK else "",
            }
            for title, finding in found
        ],
    }
    click.echo(json.dumps(document, indent=2))
    return worst
