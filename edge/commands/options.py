"""The options of the commands that serve, and the one way to run them."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import os
import re
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import click

from edge.artifacts.store import DirectoryInUseError
from edge.commands.metal3_options import empty_checksum_type
from edge.dhcp import DhcpServerError, SettingsError
from edge.heap import settle
from edge.host import HostError, Network, default_interface, interface_address
from edge.http.addresses import Networks
from edge.logs import set_up
from edge.neighbour.router_advertisement import RouterAdvertiserError
from edge.policy import DhcpMode, NetbootWhen
from edge.serving import ServingError
from edge.settings import EDGE, LOOPBACK, EdgeSettings, Service, StackSettings
from edge.stack import Stack, StackError
from edge.tftp.server import TftpServerError
from ipxe.binaries import BinariesError
from tink.apiserver import ApiServerError
from tink.controller.settings import ControllerSettings
from tink.convert.metal3 import ConversionSettings
from tink.files.data_directory import DataDirectoryError
from tink.files.key_file import KeyFileError
from tink.kube.client import ApiError, KubeConfigError
from tink.kube.manifests import DEFAULT_NAMESPACE, ManifestError
from tink.server import DEFAULT_LIFETIME_SECONDS, AgentAuth, ServerSettings, TlsError, TlsFiles, TokenSettings
from tink.webhooks.settings import WebhookSettings

log = logging.getLogger(__name__)

_EXPECTED = (
    StackError,
    ApiError,
    ApiServerError,
    BinariesError,
    DataDirectoryError,
    DhcpServerError,
    DirectoryInUseError,
    KeyFileError,
    KubeConfigError,
    ManifestError,
    RouterAdvertiserError,
    ServingError,
    SettingsError,
    TftpServerError,
    TlsError,
    OSError,
)
"""The parts' own errors: they say what is wrong and what to do, so a trace would only hide that."""

Command = Callable[..., None]

_PATH = click.Path(path_type=Path)
_LEAST_CACHE = 100_000
_DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)
_PORT = click.IntRange(1, 65535)


class _Ipv4(click.ParamType[str]):
    """An IPv4 address of this host, in dotted form."""

    name = "ipv4"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The address as it was given, or a usage error."""
        try:
            address = ipaddress.IPv4Address(value)
        except ValueError:
            self.fail(f"{value!r} is no IPv4 address", param, ctx)
        if address.is_unspecified or address.is_multicast:
            self.fail(f"{value} is not the address of one host: machines must be able to reach it", param, ctx)
        return str(address)


class _Interface(click.ParamType[tuple[str, str]]):
    """An interface that faces machines, and optionally this host's address there: `eth1` or `eth1=10.0.0.1`."""

    name = "name[=ipv4]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """The name, and the address or an empty string."""
        if isinstance(value, tuple):
            return value
        name, equals, address = value.partition("=")
        if not name or (equals and not address):
            self.fail(f"{value!r} must be like eth1 or eth1=10.0.0.1", param, ctx)
        return name, _Ipv4().convert(address, param, ctx) if address else ""


class _Size(click.ParamType[int]):
    """A number of bytes, with a unit or without: 500MB, 20GB, 1TiB."""

    name = "size"
    _units: ClassVar[dict[str, int]] = {"": 1} | {
        f"{prefix}{suffix}": base ** (power + 1)
        for suffix, base in (("b", 1000), ("ib", 1024))
        for power, prefix in enumerate("kmgt")
    }

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number of bytes."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d{1,15})\s*([a-z]*)", value.strip().lower())
        if match is None or match[2] not in self._units:
            self.fail(f"{value!r} is no size; 20GB and 512MiB are", param, ctx)
        size = int(match[1]) * self._units[match[2]]
        if size < _LEAST_CACHE:
            self.fail(f"{value!r} is less than {_LEAST_CACHE} bytes: no kernel fits", param, ctx)
        return size


class _Osie(click.ParamType[tuple[str, str]]):
    """The name of an OSIE, with its namespace or in `default`."""

    name = "[namespace/]name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Namespace and name."""
        if isinstance(value, tuple):
            return value
        namespace, slash, name = value.rpartition("/")
        if not name or (slash and not namespace) or "/" in namespace:
            self.fail(f"{value!r} must be like hook or provisioning/hook", param, ctx)
        return namespace or DEFAULT_NAMESPACE, name


class _Networks(click.ParamType[Networks]):
    """Networks and single addresses, IPv4 or IPv6, with commas in between: `10.1.0.0/16,192.0.2.7`."""

    name = "cidr,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Networks:
        """The networks."""
        if isinstance(value, tuple):
            return value
        networks = []
        for part in filter(None, (part.strip() for part in value.split(","))):
            try:
                networks.append(ipaddress.ip_network(part))
            except ValueError as error:
                self.fail(f"{part!r} is no network such as 10.1.0.0/16: {error}", param, ctx)
        return tuple(networks)


_DATA_DIR = click.option(
    "--data-dir", type=_PATH, default=Path("/var/lib/tinkedge"), help="Database, keys and cache of kernels and initrds."
)

_NETWORK = (
    click.option(
        "--interface",
        type=_Interface(),
        multiple=True,
        help="An interface that faces machines, and its address if not the first: eth1, eth1=10.0.0.1, eth1.100. "
        "Repeatable. Default: of the default route.",
    ),
    click.option(
        "--public-ip", type=_Ipv4(), default=None, help="The address of the only interface, as machines reach it."
    ),
)
_KNOWN_BY_ADDRESS = click.option(
    "--known-by-address",
    type=_Networks(),
    default="",
    help="Networks where an address alone says which machine has it, though others could take it: where a router "
    "answers ARP for machines, or bridges have MACs that no Hardware names.",
)

_AGENTS = (
    click.option(
        "--agent-auth",
        type=click.Choice([auth.value for auth in AgentAuth]),
        default=AgentAuth.ADDRESS.value,
        help="Who may speak for a machine. address: connections from an IP of its Hardware. token: agents with the "
        "token of their iPXE script. mtls: agents with a certificate in the machine's name. none: anybody.",
    ),
    click.option(
        "--agent-token-key",
        type=_PATH,
        default=None,
        help="File with the keys that sign tokens, the newest first. Default: DATA_DIR/agent-token.key, which is made.",
    ),
    click.option(
        "--agent-token-lifetime",
        type=click.FloatRange(60, 10 * 365 * 86_400),
        default=DEFAULT_LIFETIME_SECONDS,
        help="Seconds that a token is good for. A connected agent gets a new one in time.",
    ),
    click.option(
        "--grpc-tls-ca",
        type=_PATH,
        default=None,
        help="Certificates (PEM) that agents are to trust the gRPC server by. Default: the last of --grpc-tls-cert.",
    ),
)
_WEBHOOK_ADDRESS = (
    click.option("--webhook-url", default="", help="https://HOST:PORT where a cluster's API reaches the webhooks."),
    click.option(
        "--webhook-service", default="", help="NAMESPACE/NAME[:PORT] of the Service in front of the webhooks."
    ),
    click.option(
        "--webhook-port",
        type=click.IntRange(0, 65535),
        default=0,
        help="Where the webhooks listen. 0: any free port on loopback, 9443 with a URL or a Service.",
    ),
)
_OPTIONS: dict[Service | str, tuple[Callable[[Command], Command], ...]] = {
    Service.APISERVER: (
        click.option("--api-port", type=_PORT, default=6443, help="Port of the embedded API, on loopback."),
    ),
    Service.DHCP: (
        click.option(
            "--dhcp-mode",
            type=click.Choice([mode.value for mode in DhcpMode]),
            default=DhcpMode.RESERVATION.value,
            help="reservation: addresses and boot files for machines with a Hardware. proxy: boot files only, beside "
            "another DHCP server. auto-proxy: for machines without a Hardware, too. off: no DHCP.",
        ),
        click.option(
            "--netboot-when",
            type=click.Choice([when.value for when in NetbootWhen]),
            default=NetbootWhen.ALLOWED.value,
            help="allowed: whenever the Hardware allows it. workflow: only while the machine has a Workflow that has "
            "not ended.",
        ),
        click.option(
            "--decline-quarantine",
            type=click.FloatRange(0, 86400),
            default=600.0,
            help="Seconds for which an address is not offered after its machine found somebody else there.",
        ),
        click.option(
            "--default-osie",
            type=_Osie(),
            default=None,
            help="What machines without a Hardware netboot in auto-proxy mode. Default: they are told how to register.",
        ),
        click.option(
            "--tftp-dir",
            type=_DIRECTORY,
            default=None,
            help="More files to serve over TFTP, such as the firmware of Raspberry Pis.",
        ),
        click.option(
            "--tftp-single-port", is_flag=True, help="Send TFTP files from port 69, for firewalls and NAT in between."
        ),
    ),
    Service.HTTP: (
        click.option("--ipxe-dir", type=_PATH, default=Path("/usr/lib/ipxe"), help="Directory of the iPXE binaries."),
        click.option(
            "--osie-dir",
            type=_DIRECTORY,
            default=None,
            help="OSIEs may name files below it as file://. Default: DATA_DIR/osie.",
        ),
        click.option(
            "--cache-size",
            type=_Size(),
            default=None,
            help="Disk for kernels and initrds, such as 20GB. Default: what the disk has room for.",
        ),
        click.option(
            "--allow-upstream",
            type=_Networks(),
            multiple=True,
            help="Networks that OSIEs may name though they are this host's own, loopback or link-local, such as "
            "10.0.0.1/32. Repeatable.",
        ),
        click.option("--http-port", type=_PORT, default=7080, help="Port of scripts, kernels and metadata."),
        click.option(
            "--insecure-registry", multiple=True, help="Registry that agents speak to over plain HTTP. Repeatable."
        ),
        click.option("--grpc-authority", default="", help="Where agents find the gRPC server. Default: this host."),
        click.option(
            "--router-advertisements",
            is_flag=True,
            help="Tell IPv6 router solicitations that there is no router: iPXE boots 13 s sooner where none answers.",
        ),
        click.option(
            "--trusted-proxies",
            type=_Networks(),
            default="",
            help="HTTP proxies in front of the edge: where a request comes from is what their X-Forwarded-For says.",
        ),
        click.option(
            "--metadata-nat",
            type=_Networks(),
            default="",
            help="Addresses that NAT gives to machines: whoever comes from there gets the metadata of the MAC in the "
            "path, /machine/MAC/... or /nocloud/MAC/...",
        ),
        click.option(
            "--metadata-tokens",
            is_flag=True,
            help="Give each machine's OSIE a signed URL of its metadata on the kernel command line: "
            "tinkerbell_metadata=URL.",
        ),
        click.option(
            "--metadata-token-key",
            type=_PATH,
            default=None,
            help="File with the keys that sign such URLs, the newest first, the same for all edges. Default: "
            "DATA_DIR/metadata-token.key, which is made.",
        ),
        click.option(
            "--metadata-token-lifetime",
            type=click.FloatRange(0, 10 * 365 * 86_400),
            default=0.0,
            help="Seconds that such a URL is good for; 0: for ever.",
        ),
        click.option(
            "--imds-tokens",
            type=click.Choice(["optional", "required"]),
            default="optional",
            help="Whether metadata is for requests with a session token only (IMDSv2: PUT /latest/api/token). Signed "
            "URLs need none.",
        ),
    ),
    Service.ADMIN: (
        click.option("--admin-address", default="127.0.0.1", help="Where operators' HTTP listens."),
        click.option("--admin-port", type=_PORT, default=7081, help="Port of operators' HTTP: journeys and metrics."),
        click.option(
            "--admin-token-file",
            type=_PATH,
            default=None,
            help="File with the tokens that operators' HTTP accepts, one a line, the newest first. Default: "
            "DATA_DIR/admin-token, which is made. Metrics need none.",
        ),
    ),
    Service.CONTROLLER: (
        click.option("--scheduled-timeout", default=300.0, help="Seconds a Workflow may be Scheduled."),
        click.option("--cancelling-timeout", default=300.0, help="Seconds a Workflow may be Cancelling."),
        click.option("--action-timeout", default=0.0, help="Seconds an action may take that gives no timeout; 0: any."),
        click.option(
            "--reference-timeout", default=60.0, help="Seconds a Workflow waits for its Hardware and Template."
        ),
        click.option(
            "--leader-elect/--no-leader-elect",
            default=None,
            help="Of several replicas one works, agreed by a Lease. Default: not with the embedded API.",
        ),
        click.option(
            "--lease-namespace", default="", help="Where the Lease is. Default: this pod's namespace, or default."
        ),
    ),
    Service.WEBHOOKS: (
        click.option(
            "--webhook-failure-policy",
            type=click.Choice(["Ignore", "Fail"]),
            default="Ignore",
            help="What becomes of writes while no webhook answers: Ignore lets them in.",
        ),
    ),
    Service.CONVERSION: (empty_checksum_type,),
    Service.SERVER: (
        click.option("--grpc-port", type=_PORT, default=42113, help="Port of the gRPC server for agents."),
        click.option(
            "--reboot-grace",
            type=click.FloatRange(min=0, min_open=True),
            default=30.0,
            help="Seconds an agent is gone before a last action that reboots its machine has succeeded.",
        ),
        click.option(
            "--grpc-tls-cert",
            type=_PATH,
            default=None,
            help="The gRPC server's certificate (PEM), and those that lead to its authority. Default: no TLS.",
        ),
        click.option("--grpc-tls-key", type=_PATH, default=None, help="Its private key (PEM)."),
        click.option(
            "--grpc-client-ca",
            type=_PATH,
            default=None,
            help="The authority (PEM) of the certificates that all clients of the gRPC server must show then.",
        ),
        click.option(
            "--grpc-connections-per-address",
            type=click.IntRange(min=1),
            default=None,
            help="Connections, and calls at once, that one address may have: more for many agents behind one (NAT, a "
            "Service). Default: 512, or fewer where there are few files.",
        ),
    ),
    "client": (
        click.option("--kubeconfig", type=_PATH, default=None, help="The cluster's. Default: see above."),
        click.option("--manifests", type=_PATH, default=None, help="Directory of manifests to apply at the start."),
    ),
    "process": (
        click.option(
            "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", help="Verbosity."
        ),
        click.option(
            "--log-format", type=click.Choice(["text", "json"]), default="text", help="Lines for people or programs."
        ),
    ),
}


_EDGE = (
    *("dhcp_mode", "netboot_when", "decline_quarantine", "default_osie", "tftp_dir", "tftp_single_port"),
    *("ipxe_dir", "osie_dir", "cache_size", "allow_upstream", "http_port", "insecure_registry", "grpc_authority"),
    *("router_advertisements", "admin_address", "admin_port", "admin_token_file", "trusted_proxies", "metadata_nat"),
    *("imds_tokens", "known_by_address", "metadata_tokens", "metadata_token_key", "metadata_token_lifetime"),
)
_AGENT_OPTIONS = (
    *("agent_auth", "agent_token_key", "agent_token_lifetime"),
    *("grpc_tls_ca", "grpc_tls_cert", "grpc_tls_key", "grpc_client_ca", "grpc_connections_per_address", "reboot_grace"),
)
_WEBHOOKS = ("url", "service", "port", "failure_policy")
_CONTROLLER_TIMES = ("scheduled_timeout", "cancelling_timeout", "action_timeout", "reference_timeout")


def serving(*groups: Service | str) -> Callable[[Command], Command]:
    """A decorator that gives a command the options of these services."""

    def decorate(command: Command) -> Command:
        options = [option for group in groups for option in _OPTIONS.get(group, ())]
        if {Service.APISERVER, Service.HTTP} & set(groups):
            options = [_DATA_DIR, *options]
        if {Service.DHCP, Service.TFTP, Service.HTTP, Service.SERVER} & set(groups):
            options = [*_NETWORK, *options]
        if {Service.HTTP, Service.SERVER} & set(groups):
            options = [*options, _KNOWN_BY_ADDRESS, *_AGENTS]
        if {Service.WEBHOOKS, Service.CONVERSION} & set(groups):
            options = [*options, *_WEBHOOK_ADDRESS]
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def settings(services: frozenset[Service], options: dict[str, Any]) -> StackSettings:
    """From the options to what the stack takes. Raises click.UsageError."""
    given = dict(options)
    for name in ("log_level", "log_format"):
        given.pop(name, None)
    interfaces, public_ip = given.pop("interface", ()), given.pop("public_ip", None)
    networks = _networks(interfaces, public_ip) if services & (EDGE | {Service.SERVER}) else (LOOPBACK,)
    edge = {name: given.pop(name) for name in _EDGE if name in given}
    controller = {name: given.pop(name) for name in _CONTROLLER_TIMES if name in given}
    if not controller.get("action_timeout"):
        controller["action_timeout"] = None
    webhooks = {name: given.pop(f"webhook_{name}") for name in _WEBHOOKS if f"webhook_{name}" in given}
    conversion = {name: given.pop(name) for name in ("empty_checksum_type",) if name in given}
    agents = {name: given.pop(name) for name in _AGENT_OPTIONS if name in given}
    elect = given.pop("leader_elect", None)
    try:
        return StackSettings(
            leader_elect=(Service.APISERVER not in services) if elect is None else elect,
            services=services,
            networks=networks,
            edge=_edge(edge),
            controller=ControllerSettings(**controller),
            webhooks=WebhookSettings(**webhooks),
            conversion=ConversionSettings(**conversion),
            server=_server(services, given.get("data_dir"), agents),
            **given,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _networks(interfaces: tuple[tuple[str, str], ...], public_ip: str | None) -> tuple[Network, ...]:
    """The networks that face machines. Raises click.UsageError."""
    if public_ip is not None and len(interfaces) > 1:
        raise click.UsageError("--public-ip is for a single interface: write --interface NAME=IP for each")
    try:
        wanted = interfaces or ((default_interface(), ""),)
        found = tuple(Network(name, address or public_ip or interface_address(name)) for name, address in wanted)
    except HostError as error:
        raise click.UsageError(str(error)) from error
    for field in ("interface", "address"):
        values = [getattr(network, field) for network in found]
        if len(set(values)) < len(values):
            raise click.UsageError(f"--interface: an {field} is given twice: {', '.join(values)}")
    return found


def _server(services: frozenset[Service], data_dir: Path | None, given: dict[str, Any]) -> ServerSettings:
    """What edge and server have to agree on about agents, and the server's own. Raises click.UsageError, ValueError."""
    if not given:
        return ServerSettings()
    auth, tokens, tls = AgentAuth(given["agent_auth"]), None, None
    if auth is AgentAuth.TOKEN:
        file, together = given["agent_token_key"], {Service.HTTP, Service.SERVER} <= services
        create = file is None
        if file is None:
            if data_dir is None or not together:
                raise click.UsageError("--agent-token-key: edge and server run apart; give both the same file")
            file = data_dir / "agent-token.key"
        tokens = TokenSettings(file, given["agent_token_lifetime"], create=create)
    certificate, key, client_ca = (given.get(f"grpc_{name}") for name in ("tls_cert", "tls_key", "client_ca"))
    if (certificate is None) != (key is None) or (client_ca is not None and certificate is None):
        raise click.UsageError("--grpc-tls-cert and --grpc-tls-key go together, and --grpc-client-ca needs both")
    if certificate is not None and key is not None:
        tls = TlsFiles(certificate, key, client_ca)
    if auth is AgentAuth.MTLS and Service.SERVER not in services:
        auth = AgentAuth.ADDRESS  # an edge has nothing to do with certificates of agents
    more = {"reboot_grace": given["reboot_grace"]} if "reboot_grace" in given else {}
    share = given.get("grpc_connections_per_address")
    if share is not None:
        more |= {"connections_per_address": share, "calls_per_address": share}
    return ServerSettings(agent_auth=auth, tokens=tokens, tls=tls, tls_ca=given.get("grpc_tls_ca"), **more)


def _edge(given: dict[str, Any]) -> EdgeSettings:
    if "dhcp_mode" in given:
        given["dhcp_mode"] = DhcpMode(given["dhcp_mode"])
        given["netboot_when"] = NetbootWhen(given["netboot_when"])
    if given.get("default_osie") is not None and given["dhcp_mode"] is not DhcpMode.AUTO_PROXY:
        raise click.UsageError("--default-osie is for --dhcp-mode auto-proxy: in other modes a Hardware names the OSIE")
    if "imds_tokens" in given:
        given["imds_required"] = given.pop("imds_tokens") == "required"
    if "allow_upstream" in given:
        given["allowed_upstreams"] = tuple(network for each in given.pop("allow_upstream") for network in each)
    renamed = {"cache_size": "cache_bytes", "insecure_registry": "insecure_registries"}
    return EdgeSettings(**{renamed.get(name, name): value for name, value in given.items()})


def run(services: frozenset[Service], options: dict[str, Any]) -> None:
    """Run these services until SIGTERM or SIGINT, and exit the process: 0 then, 1 if they can't start or end."""
    import uvloop

    set_up(options["log_level"], options["log_format"])
    os.umask(0o077)  # what is kept is for its owner alone; nothing that runs here writes for others
    # Every transfer and connection is a file; the usual soft limit, 1,024, is less than a rack needs.
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    gc.set_threshold(50_000, 20, 100)  # taking in 100,000 machines makes many objects and no garbage
    sys.exit(uvloop.run(_run(settings(services, options))))


async def _run(stack_settings: StackSettings) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    stack = Stack(stack_settings)
    try:
        await _until(stop, stack)
    except _EXPECTED as error:
        log.error("%s", error)
        log.debug("where", exc_info=True)
        return 1
    except Exception:
        log.exception("this should not have happened; please report it")
        return 1
    return 0


async def _until(stop: asyncio.Event, stack: Stack) -> None:
    starting = asyncio.ensure_future(stack.start())
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
        return
    starting.result()
    settle()
    try:
        await stack.run(stop)
    finally:
        await stack.stop()
        log.info("stopped")
