"""`tinkedge doctor`: see `edge.composition.doctor`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Final

import click

from edge.building.builder import default_cache, in_checkout
from edge.commands import options
from edge.composition import doctor as examine
from edge.composition.checks import (
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
from edge.configuration import SERVICES, TOOLS, FilePath, schema_of, unknown_variables

EXIT_STATUS: Final = {Severity.OK: 0, Severity.NOTE: 0, Severity.WARNING: 3, Severity.ERROR: 1}
"""2 is what a wrong option ends with."""
_SIGNS: Final = {
    Severity.OK: ("ok", "green"),
    Severity.NOTE: ("note", None),
    Severity.WARNING: ("warning", "yellow"),
    Severity.ERROR: ("PROBLEM", "red"),
}
_PATH = FilePath()
_PORT = click.IntRange(1, 65535)
_DEFAULTS: Final = Path("/etc/default/tinkedge")
"""The variables of the systemd units (EnvironmentFile=)."""
_API_SECONDS: Final = 10.0
_CERTIFICATES: Final = ("tls-cert", "tls-ca", "client-ca")
_WITHOUT_A_PORT: Final = ("controller", "webhooks")
"""What `tinkedge up` can leave out, too."""


@click.command()
@click.option(
    "--interface",
    "interfaces",
    type=options.interface,
    multiple=True,
    metavar="NAME[=IP]",
    help="The machines' interface; several may be given. Default: the one with the default route.",
)
@click.option("--ipv6/--no-ipv6", default=False, help="As for `tinkedge up`.")
@click.option("--ipv6-router", multiple=True, metavar="NAME", help="As for `tinkedge up`.")
@click.option("--link-metadata", is_flag=True, help="As for `tinkedge up`.")
@click.option("--ipxe-dir", type=_PATH, default=Path("/usr/lib/ipxe"), help="The iPXE binaries' directory.")
@click.option(
    "--data-dir",
    type=FilePath(readable=False),
    default=Path("/var/lib/tinkedge"),
    help="That of `tinkedge up`: database, keys and cache.",
)
@click.option("--manifests", type=_PATH, default=None, help="Those of `tinkedge up`, whose OSIEs are looked at.")
@click.option(
    "--kubeconfig",
    type=_PATH,
    default=None,
    help="The cluster's, whose OSIEs are looked at, and none is served here then. Default: DATA_DIR/kubeconfig.",
)
@click.option("--http-port", type=_PORT, default=7080, help="As for `tinkedge up`.")
@click.option("--grpc-port", type=_PORT, default=42113, help="As for `tinkedge up`.")
@click.option("--grpc-tls-cert", type=_PATH, default=None, help="As for `tinkedge up`: until when it is good.")
@click.option("--grpc-tls-ca", type=_PATH, default=None, help="As for `tinkedge up`: until when it is good.")
@click.option("--grpc-client-ca", type=_PATH, default=None, help="As for `tinkedge up`: until when it is good.")
@click.option("--api-port", type=_PORT, default=6443, help="As for `tinkedge up`.")
@click.option("--api-address", multiple=True, help="As for `tinkedge up`.")
@click.option("--admin-port", type=_PORT, default=7081, help="As for `tinkedge up`.")
@click.option("--admin-address", default="127.0.0.1", help="As for `tinkedge up`.")
@click.option(
    "--dhcp-mode",
    type=click.Choice(["reservation", "proxy", "auto-proxy", "off"]),
    default="reservation",
    help="As for `tinkedge up`.",
)
@click.option("--upstream-edge", default="", help="As for `tinkedge up`: whether it answers this one.")
@click.option("--metadata-token-key", type=_PATH, default=None, help="As for `tinkedge up`: what that is signed with.")
@click.option(
    "--disable",
    type=click.Choice([*dict.fromkeys(port.name for port in examine.PORTS), *_WITHOUT_A_PORT]),
    multiple=True,
    help="Services that do not run here. Repeatable.",
)
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
def doctor(
    interfaces: tuple[tuple[str, str], ...],
    ipxe_dir: Path,
    data_dir: Path,
    with_lab: bool | None,
    probe: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """What would keep this host from serving, and how to mend it. Changes nothing.

    Exits with 0 if nothing would, 1 if something would, 3 if there are only warnings: what may be meant so. What was
    not looked at is a note.
    """
    services = {"http": "http_port", "server": "grpc_port", "apiserver": "api_port", "admin": "admin_port"}
    numbers = {service: given[option] for service, option in services.items()}
    off = {*given["disable"], *(("dhcp",) if given["dhcp_mode"] == "off" else ())}
    off |= {"apiserver"} if given["kubeconfig"] else set()
    ports = examine.ports(numbers, given["admin_address"], off)
    networks = ["=".join(filter(None, each)) for each in interfaces]
    groups: dict[str, Iterator[Finding]] = {
        "tinkedge up": chain(
            examine.serving(
                networks,
                ipxe_dir,
                ports,
                ipv6=given["ipv6"],
                routers=given["ipv6_router"],
                link_metadata=given["link_metadata"],
            ),
            _unknown_variables(),
            api_addresses(given["api_address"]),
            agents_certificates({f"--grpc-{of}": given[f"grpc_{of.replace('-', '_')}"] for of in _CERTIFICATES}),
            examine.data_directory(data_dir),
            api_users(data_dir, datetime.now(UTC)),
            check_backups(),
            running_edge(data_dir, given["admin_address"], given["admin_port"]),
            upstream_edge(_authority(given), given["metadata_token_key"]),
            _osies(given["manifests"], given["kubeconfig"] or data_dir / "kubeconfig"),
        ),
        "the network": examine.probe(networks, ipxe_dir, ports, link_metadata=given["link_metadata"])
        if probe
        else iter([_NOT_PROBED]),
    }
    if in_checkout() if with_lab is None else with_lab:
        groups["tinkedge lab"] = examine.lab(given["cache_dir"] or default_cache())
    worst = _as_json(groups) if as_json else _as_text(groups)
    sys.exit(EXIT_STATUS[worst])


def _unknown_variables() -> Iterator[Finding]:
    """Yield a warning for each TINKEDGE_ variable of this shell, or of the services, that no command reads."""
    ctx = click.get_current_context()
    try:
        services = _DEFAULTS.read_text(errors="replace")
    except OSError:
        services = ""
    places = dict.fromkeys(re.findall(r"^\s*(?:export\s+)?(\w+)=", services, re.MULTILINE), str(_DEFAULTS))
    places |= dict.fromkeys(os.environ, "the environment")
    for name, sentence in unknown_variables(places, ctx.command, (*SERVICES, *TOOLS), schema_of(ctx)).items():
        yield warning(f"variable {name}", f"{sentence} ({places[name]})", "correct its name, or remove it")


def _authority(given: dict[str, Any]) -> str:
    if not given["upstream_edge"]:
        return ""
    from edge.commands.serve import upstream_address  # loads what serves

    try:
        address, port = upstream_address.read(given["upstream_edge"])
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--upstream-edge") from None
    return f"{address}:{port or given['http_port']}"


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
