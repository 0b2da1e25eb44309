"""The settings of the stack: one frozen model for each service, and the option of each field.

A field that `Group.setting` declares is an option of every command that runs one of its services. To add an option,
add a field here: `edge.run` reads the field, and flag, variable, key, help and chart follow from it. The options of
models that belong to `tink`, such as the controller's, are declared below by the names of the fields.
"""

# `Group.setting` returns a dataclass field, which the rule can't know.
# ruff: noqa: RUF009

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import SplitResult, urlsplit

import click

from edge.callers import Networks
from edge.machines import DhcpMode, NetbootWhen
from edge.neighbour.host import HostError, Network, default_interface
from edge.settings import types
from edge.settings.options import Group, Holds, Setting, SettingsField
from edge.settings.types import DataDirectory, FilePath
from ipxe.binaries import BootPath
from tink.bmc.settings import BmcSettings
from tink.controller import ControllerSettings
from tink.discovery.model import AdmissionRule
from tink.net.addresses import join_host_port
from tink.net.urls import shown
from tink.server import DEFAULT_LIFETIME_SECONDS, AgentAuth, ServerSettings, TlsFiles, TokenSettings
from tink.webhooks.server import WebhookSettings


class Service(StrEnum):
    """The services that a process of the stack can run."""

    APISERVER = "apiserver"
    CONTROLLER = "controller"
    BMC = "bmc"
    DISCOVERY = "discovery"
    WEBHOOKS = "webhooks"
    CONVERSION = "conversion"
    V1ALPHA1 = "v1alpha1"
    SERVER = "server"
    DHCP = "dhcp"
    TFTP = "tftp"
    HTTP = "http"
    ADMIN = "admin"


class Syslog(StrEnum):
    """Modes of the receiver for log lines of machines."""

    AUTO = "auto"  # receive log lines while an OSIE is HookOS
    ON = "on"
    OFF = "off"


EDGE: Final = frozenset({Service.DHCP, Service.TFTP, Service.HTTP, Service.ADMIN})
ON_REQUEST: Final = frozenset({Service.BMC, Service.DISCOVERY, Service.CONVERSION, Service.V1ALPHA1})
"""Services that have an option of their own."""
ALWAYS: Final = frozenset(Service) - ON_REQUEST  # services that `tinkedge up` runs without further options
LOOPBACK: Final = Network("lo")
DEFAULT_HTTP_PORT: Final = 7080

_ROLES: Final[Mapping[str, frozenset[Service]]] = {
    "up": ALWAYS,
    "edge": EDGE,
    "controller": frozenset({Service.CONTROLLER, Service.WEBHOOKS}),
    "server": frozenset({Service.SERVER}),
    "apiserver": frozenset({Service.APISERVER}),
    "metal3-webhook": frozenset({Service.CONVERSION}),
    "metal3": frozenset(),
}
_CONTROLLERS: Final = ("up", "controller")  # roles that can control BMCs and approve discovered machines
ROLES: Final = tuple(_ROLES)  # commands whose settings are checked together


def services_of(command: str, options: Mapping[str, Any]) -> frozenset[Service]:
    """Return the services that a command runs. `options` are by click's names. Raises KeyError for other commands."""
    services = _ROLES[command] - {Service(name) for name in options.get("disable") or ()}
    if command == "up" and options.get("metal3"):
        services |= {Service.CONVERSION}
    if options.get("kubeconfig") is not None:
        services -= {Service.APISERVER}
    has_api = Service.APISERVER in services
    if command in _CONTROLLERS and options.get("serve_v1alpha1") and not has_api:
        services |= {Service.V1ALPHA1}
    defaults = {Service.BMC: has_api, Service.DISCOVERY: has_api or bool(options.get("discover"))}
    for service, default in defaults.items() if command in _CONTROLLERS else ():
        wanted = options.get(service.value)
        if default if wanted is None else wanted:
            services |= {service}
    return services


# --- checks of single values ------------------------------------------------------------------------------------------

_HOST_AND_PORT: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")


def _check_host_and_port(value: str) -> Iterator[tuple[str, str]]:
    """Refuse a URL, a common mistake. Such values are written to kernel command lines."""
    if "://" in value or "/" in value:
        host = urlsplit(value if "://" in value else f"//{value}").netloc
        yield f"{value!r} must be HOST or HOST:PORT, not a URL", f"write {host or 'HOST:PORT'}"
    elif not _HOST_AND_PORT.fullmatch(value):
        yield f"{value!r} is not HOST or HOST:PORT", "write it like tinkedge.example.org:42113"


def _http_url(value: str) -> SplitResult | None:
    """Return the parts of an http or https URL; None if the value is none."""
    try:
        url = urlsplit(value)
        is_url = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # brackets of an IPv6 address, or a port above 65535
        return None
    return url if is_url else None


def _check_collector(value: str) -> Iterator[tuple[str, str]]:
    if _http_url(value) is None:
        yield f"{shown(value)!r} is not the URL of a collector", "write http://HOST:4318"


def _check_edge_url(value: str) -> Iterator[tuple[str, str]]:
    """Refuse more than scheme, host and port. BMCs and firmware would get a user name and a password in it."""
    url = _http_url(value)
    if url is None or url.username is not None or url.path.strip("/") or url.query or url.fragment:
        yield f"{shown(value)!r} is not the URL of an edge", "write http://HOST:7080"


def _check_listening_address(value: str) -> Iterator[tuple[str, str]]:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        remedy = "give one of this host, 127.0.0.1 to be reached from here alone, or 0.0.0.0 for all"
        yield f"{value!r} is not an IP address", remedy


# --- the models -------------------------------------------------------------------------------------------------------

_PATH: Final = FilePath()
_AWAITED: Final = FilePath(readable=False)  # the type of a file that may appear after the start
_DIRECTORY: Final = FilePath(exists=True, file_okay=False)
_PORT: Final = click.IntRange(1, 65535)
_SECONDS: Final = click.FloatRange(min=0, min_open=True)
_MAX_LIFETIME: Final = 10 * 365 * 86_400

_APISERVER: Final = frozenset({Service.APISERVER})
_CONTROLLER: Final = frozenset({Service.CONTROLLER})
_BMC: Final = frozenset({Service.BMC})
_SERVER: Final = frozenset({Service.SERVER})
_WEBHOOKS: Final = frozenset({Service.WEBHOOKS})
_CONVERSION: Final = frozenset({Service.CONVERSION})
_WITH_MACHINES: Final = EDGE | _SERVER
_WITH_AGENTS: Final = frozenset({Service.HTTP, Service.SERVER})
_WITH_OBJECTS: Final = _WITH_AGENTS | _CONTROLLER | _BMC | frozenset({Service.DISCOVERY})
_CLIENTS: Final = frozenset(Service) - _APISERVER


def _flat(values: Collection[tuple[Any, ...]]) -> tuple[Any, ...]:
    return tuple(chain(*values))


def _unique(values: Collection[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


@dataclass(frozen=True, slots=True)
class EdgeSettings:
    """The settings of the services that machines boot from: DHCP, TFTP, HTTP and the operators' HTTP."""

    dhcp_mode: DhcpMode = Group.FIRST.setting(
        DhcpMode.RESERVATION,
        "reservation: addresses and boot files for machines with a Hardware. proxy: boot files only, beside "
        "another DHCP server. auto-proxy: the same, for machines without a Hardware, too. off: no DHCP.",
    )
    osie_dir: Path | None = Group.FIRST.setting(
        None,
        "OSIEs of any namespace may name any file below this directory as file://. Default: DATA_DIR/osie.",
        type=_DIRECTORY,
    )
    http_port: int = Group.NETWORK.setting(DEFAULT_HTTP_PORT, "Port of scripts, kernels and metadata.", type=_PORT)
    peers: tuple[str, ...] = Group.NETWORK.repeatable(
        "Another edge of this site, ADDRESS[:PORT]. Edges share their caches and what they see of machines, and "
        "machines that boot from one continue with another if it fails; all need the same --metadata-token-key. "
        "A server reports to the edge what agents do and what actions print; both need the same --reports-key. "
        "Repeatable.",
        services=_WITH_AGENTS,
        flag="--peer",
        type=types.edge_address,
    )
    """Other edges of the site as `address:port`."""
    peer_group: str = Group.NETWORK.setting(
        "",
        "Find the other edges of this site by the Leases that edges with the same name here keep in "
        "--lease-namespace. Default: do not look for any.",
        services=_WITH_AGENTS,
        type=types.peer_group,
    )
    reports_key: Path | None = Group.NETWORK.key_file(
        "File with the keys, the newest first, with which servers that run apart from the edges sign their "
        "reports about agents. Edges and servers need the same keys. Default: an edge accepts no such reports.",
        services=_WITH_AGENTS,
    )
    upstream_edge: str = Group.NETWORK.setting(
        "",
        "http://ADDRESS[:PORT] of an edge at another site. Kernels, initrds, and what actions need at /files and "
        "/v2 are fetched through it, once for both sites; kernels and initrds are fetched from their origins "
        "while it is away. It needs --downstream-edges, and both need the same --metadata-token-key.",
        type=types.upstream_edge,
        option_default=None,
    )
    """The edge of another site as `address:port`; empty: fetch files from their origins."""
    downstream_edges: bool = Group.NETWORK.setting(
        False,
        "Fetch kernels and initrds for edges of other sites that name this one as --upstream-edge, and serve "
        "them the files in DATA_DIR/files and DATA_DIR/images.",
    )
    legacy_ports: tuple[int, ...] = Group.NETWORK.setting(
        (),
        "More ports that serve machines like --http-port, for software that expects them: 50061 (Hegel's, which "
        "actions like rootio use), 8080 (Smee's).",
        type=types.ports,
    )
    known_by_address: Networks = Group.NETWORK.setting(
        (),
        "Networks where an address alone identifies its machine, though others could take it: where a router "
        "answers ARP for machines, or bridges have MACs that no Hardware names.",
        services=_WITH_AGENTS,
        type=types.networks,
    )
    trusted_proxies: Networks = Group.NETWORK.setting(
        (),
        "HTTP proxies in front of the edge. Their X-Forwarded-For names the sender of a request.",
        type=types.networks,
    )
    router_advertisements: bool | None = Group.NETWORK.setting(
        None,
        "Answer each IPv6 router solicitation: there is no router here (with --ipv6: use DHCPv6). Default: "
        "answer only iPXE, if no router is heard and --ipv6 is not given; it boots 16 s sooner. Off: answer no "
        "host.",
    )
    ipv6_router: tuple[str, ...] = Group.NETWORK.repeatable(
        "An interface on which this host announces itself as the IPv6 router. Use it where there is no other "
        "router and this host forwards. Repeatable.",
        metavar="NAME",
    )
    decline_quarantine: float = Group.NETWORK.setting(
        600.0,
        "Seconds for which an address is not offered after its machine found another host there.",
        type=click.FloatRange(0, 86400),
    )
    relays: Networks = Group.NETWORK.setting(
        (),
        "Addresses and networks that DHCP relays send from. Messages through other relays do not count when a "
        "machine declines or releases its address, or reports its address in the proxy modes. Leases are given "
        "through any relay.",
        type=types.networks,
    )
    """If empty, a relay that brings leases to several machines of its own network is trusted."""
    netboot_when: NetbootWhen = Group.NETBOOT.setting(
        NetbootWhen.ALLOWED,
        "allowed: whenever the Hardware allows it. workflow: only while the machine has a Workflow that has not ended.",
    )
    default_osie: tuple[str, str] | None = Group.NETBOOT.setting(
        None,
        "The OSIE that machines without a Hardware netboot in auto-proxy mode. Default: their screen shows how "
        "to register them.",
        type=types.osie,
    )
    """Namespace and name."""
    discover: tuple[AdmissionRule, ...] = Group.DISCOVERY.repeatable(
        "Admit machines that no Hardware names, by a rule such as range=172.31.8.10-172.31.8.250/24,gateway=172.31.8.1,"
        "osie=hook: the edge creates a Hardware with an address of the range, and the machine boots the OSIE. Further "
        "keys: nameserver, mac (the first bytes of MAC addresses), relay, only=listed (machines on a list of expected "
        "machines), approve=all (approve each machine once it has introduced itself), lists (a namespace whose lists "
        "count; default: that of the OSIE), name. Repeatable.",
        type=types.admission_rule,
    )
    boot_path: BootPath = Group.NETBOOT.setting(
        BootPath.IPXE,
        "How UEFI machines load their kernel if their Hardware does not choose: by iPXE, or by a distribution's "
        "shim and GRUB, which Secure Boot accepts. auto: by iPXE, then by GRUB if the firmware did not run iPXE. "
        "uki: by their OSIE's unified kernel image.",
    )
    boot_files: tuple[tuple[str, str], ...] = Group.NETBOOT.repeatable(
        "The file of --ipxe-dir for machines of a kind, such as x86_64=ipxe-signed.efi. Kinds are bios, x86_64 "
        "and arm64. Repeatable. Default: the names that Debian, iPXE and Tinkerbell use.",
        flag="--boot-file",
        type=types.boot_file,
    )
    """Kinds of machines (`ipxe.binaries.KINDS`) and the names of their boot files."""
    ipxe_dir: Path = Group.NETBOOT.setting(Path("/usr/lib/ipxe"), "Directory of the iPXE binaries.", type=_PATH)
    shim_dir: Path | None = Group.NETBOOT.setting(
        None,
        "Directory of shimx64.efi and grubx64.efi (shimaa64.efi, grubaa64.efi) for the boot path grub. Default: "
        "those of Debian's and Ubuntu's packages.",
        type=_DIRECTORY,
    )
    tftp_dir: Path | None = Group.NETBOOT.setting(
        None, "More files to serve over TFTP. They take precedence.", type=_DIRECTORY
    )
    rpi_dir: Path | None = Group.NETBOOT.setting(
        None, "Firmware with which Raspberry Pi 4 and 5 boot.", type=_DIRECTORY
    )
    tftp_single_port: bool = Group.NETBOOT.setting(
        False, "Send TFTP files from port 69, for firewalls and NAT in between."
    )
    insecure_registries: tuple[str, ...] = Group.NETBOOT.repeatable(
        "Registry whose certificate agents do not check, and that may speak plain HTTP. Repeatable.",
        flag="--insecure-registry",
        check=_check_host_and_port,
    )
    registry_cas: tuple[tuple[str, Path], ...] = Group.NETBOOT.repeatable(
        "HOST[:PORT]=FILE: the certificates (PEM) by which agents trust a registry. Repeatable.",
        flag="--registry-ca",
        type=types.registry_ca,
    )
    kernel_parameters: tuple[str, ...] = Group.NETBOOT.repeatable(
        "Words for the kernel command line of every machine that netboots, before those of its OSIE and "
        "Hardware. {{.MAC}} and the like are filled in; ${...} are settings of iPXE. Repeatable.",
        type=types.kernel_words,
        convert=_flat,
    )
    syslog: Syslog = Group.NETBOOT.setting(
        Syslog.AUTO,
        "Receive log lines of machines on UDP port 514, and configure machines to send them. auto: for machines "
        "that boot HookOS, which tink_worker_image= or docker_registry= on its command line reveals.",
    )
    imds_required: bool = Group.METADATA.setting(
        False,
        "required: serve metadata only to requests with a session token (IMDSv2: PUT /latest/api/token). Signed "
        "URLs need none.",
        flag="--imds-tokens",
        type=click.Choice(["optional", "required"]),
        option_default="optional",
        convert=lambda word: word == "required",
    )
    link_metadata: bool = Group.METADATA.setting(
        False,
        "Serve metadata at [fe80::a9fe:a9fe]:80 of each network's link, too: an address that images know without "
        "configuration. Needs CAP_NET_ADMIN.",
    )
    metadata_nat: Networks = Group.METADATA.setting(
        (),
        "Addresses that NAT gives to machines. A request from such an address gets the metadata of the MAC in "
        "the path, /machine/MAC/... or /nocloud/MAC/...",
        type=types.networks,
    )
    metadata_tokens: bool = Group.METADATA.setting(
        False,
        "Give each machine's OSIE a signed URL of its metadata on the kernel command line: tinkerbell_metadata=URL.",
    )
    metadata_token_key: Path | None = Group.METADATA.key_file(
        "File with the keys that sign such URLs of metadata, the newest first, the same for all edges. Default: "
        "DATA_DIR/metadata-token.key, which the edge makes. BMC control signs the URLs of boot media with it.",
        services=EDGE | _BMC,
    )
    metadata_token_lifetime: float = Group.METADATA.setting(
        0.0, "Seconds for which such a URL is valid; 0: without limit.", type=click.FloatRange(0, _MAX_LIFETIME)
    )
    grpc_authority: str = Group.WORKFLOWS.setting(
        "",
        "HOST[:PORT] where agents find the gRPC server. Default: the address of this host that the machine "
        "reached, and --grpc-port.",
        check=_check_host_and_port,
    )
    cache_bytes: int | None = Group.STORAGE.setting(
        None,
        "Disk space for kernels and initrds, such as 20GB. Default: as much as the disk has room for.",
        flag="--cache-size",
        type=types.size,
    )
    allowed_upstreams: Networks = Group.STORAGE.repeatable(
        "Networks that OSIEs may name though they are this host's own, loopback or link-local, such as "
        "10.0.0.1/32. Repeatable.",
        flag="--allow-upstream",
        type=types.networks,
        convert=_flat,
    )
    checkpoint: bool = Group.STORAGE.setting(
        True,
        "Keep a copy of the cluster's Hardware, OSIEs and Workflows in DATA_DIR/checkpoint. With it, the edge "
        "can start and serve machines while the API is away.",
    )
    checkpoint_secrets: bool = Group.STORAGE.setting(
        False,
        "Keep the Secrets that Hardware name (user-data) there, too, encrypted: read in advance, and served "
        "while the API is away.",
    )
    checkpoint_key: Path | None = Group.STORAGE.key_file(
        "File with the keys that encrypt them, the newest first. Default: DATA_DIR/checkpoint.key, which the "
        "edge makes.",
    )
    admin_address: str = Group.OPERATORS.setting(
        "127.0.0.1", "Address on which operators' HTTP listens.", check=_check_listening_address
    )
    admin_port: int = Group.OPERATORS.setting(7081, "Port of operators' HTTP: journeys and metrics.", type=_PORT)
    admin_token_file: Path | None = Group.OPERATORS.key_file(
        "File with the tokens that operators' HTTP accepts, one a line, the newest first. Default: "
        "DATA_DIR/admin-token, which the edge makes. Metrics need none.",
    )
    otlp_endpoint: str = Group.OPERATORS.setting(
        "",
        "An OpenTelemetry collector (OTLP over HTTP), http://HOST:4318, that gets a trace of each boot. Needs "
        "the extra `otlp`. Default: none.",
        metavar="URL",
        check=_check_collector,
    )
    fast_path: bool = Group.ADVANCED.setting(
        True,
        "Answer plain DHCP packets and metadata requests from prepared answers, and plain requests for scripts "
        "without a detour. Without it each is answered in full: the same bytes, in more time.",
    )


@dataclass(frozen=True, slots=True)
class StackSettings:
    """The settings of a process of the stack."""

    services: frozenset[Service]
    networks: tuple[Network, ...] = (LOOPBACK,)
    """The networks that face machines. Services for machines listen there and nowhere else."""
    data_dir: Path = Group.FIRST.setting(
        Path("/var/lib/tinkedge"),
        "Database, keys and cache of kernels and initrds.",
        services=frozenset({Service.APISERVER, Service.HTTP}),
        type=DataDirectory(checked_later=True),
    )
    kubeconfig: Path | None = Group.FIRST.setting(
        None, "The kubeconfig of the cluster. Default: see above.", services=_CLIENTS, type=_PATH, holds=Holds.OTHER
    )
    """Without it, the process uses the embedded API if it runs that, else the service account of this pod."""
    manifests: Path | None = Group.FIRST.setting(
        None,
        "Directory of manifests to apply at the start; bad ones are logged and tried again.",
        services=_CLIENTS,
        type=_PATH,
    )
    grpc_port: int = Group.WORKFLOWS.setting(
        42113,
        "Port of the gRPC server for agents. An edge without --grpc-authority sends machines to this port.",
        services=_WITH_AGENTS,
        type=_PORT,
    )
    grpc_addresses: tuple[str, ...] = Group.WORKFLOWS.repeatable(
        "Address on which the gRPC server listens: 0.0.0.0 or :: for all addresses of this host, or one that may "
        "be another host's for now. Repeatable. Default: those of --interface. Machines learn --grpc-authority.",
        services=_SERVER,
        flag="--grpc-address",
        type=types.ip_or_all,
    )
    namespaces: tuple[str, ...] = Group.API.setting(
        (),
        "Use only objects of these namespaces, such as berlin,ulm: for rights that are limited to namespaces. "
        "Default: all.",
        services=_WITH_OBJECTS,
        type=types.namespaces,
    )
    # A controller would give up the Workflows whose Hardware it does not see.
    hardware_selector: str = Group.API.setting(
        "",
        "Use only Hardware with these labels, such as site=berlin: the machines of a site. Default: all.",
        services=_WITH_AGENTS,
        unless=_CONTROLLER,
        type=types.label_selector,
    )
    api_addresses: tuple[str, ...] = Group.API.repeatable(
        "An address of this host on which the embedded API listens for other hosts, too, each user with a token "
        "(tinkedge kubeconfig). Repeatable; 0.0.0.0: all, with --api-name. Default: loopback only.",
        services=_APISERVER,
        flag="--api-address",
        type=types.api_address,
        convert=_unique,
    )
    """The API always listens on loopback, too."""
    api_names: tuple[str, ...] = Group.API.repeatable(
        "A name or address by which other hosts reach the API, for its certificate. Repeatable.",
        services=_APISERVER,
        flag="--api-name",
        type=types.host_name,
        convert=_unique,
    )
    api_port: int = Group.API.setting(6443, "Port of the embedded API.", services=_APISERVER, type=_PORT)
    leader_elect: bool = Group.API.setting(
        False,
        "Let only one of several replicas work, the holder of a Lease. Default: not with the embedded API.",
        services=_CONTROLLER,
        flag="--leader-elect/--no-leader-elect",
        option_default=None,
    )
    lease_namespace: str = Group.API.setting(
        "",
        "Namespace of the Leases. Default: this pod's namespace, or default.",
        services=_WITH_OBJECTS,
        type=types.namespace,
    )
    empty_checksum_type: Literal["md5", "auto"] = Group.METAL3.setting(
        "md5", types.EMPTY_CHECKSUM_TYPE_HELP, services=_CONVERSION, type=types.empty_checksum_type
    )
    bmc: bool | None = Group.BMC.setting(
        None,
        "Control machines by their BMCs: the resources Machine, Job and Task of bmc.tinkerbell.org, and bootOptions of "
        "Workflows. It waits while a Rufio works for the same API. Default: with the embedded API only. metal3 makes a "
        "Machine for each host.",
        services=_CONTROLLER,
    )
    discovery: bool | None = Group.DISCOVERY.setting(
        None,
        "Compare machines with the lists of expected machines, and approve discovered ones: the condition AsExpected "
        "of Hardware. Lists are ConfigMaps with the label tinkerbell.org/expected-machines=true. Default: with the "
        "embedded API, or with rules of --discover.",
        services=_CONTROLLER,
    )
    serve_v1alpha1: bool = Group.API.setting(
        False,
        "Serve a cluster's Hardware, Templates and Workflows as Tinkerbell's v1alpha1, too: add that version and a "
        "conversion webhook to their definitions. Needs --webhook-service or --webhook-url. The embedded API always "
        "serves v1alpha1.",
        services=_CONTROLLER,
    )
    edge: EdgeSettings = field(default_factory=EdgeSettings)
    controller: ControllerSettings = field(default_factory=ControllerSettings)
    bmcs: BmcSettings = field(default_factory=BmcSettings)
    webhooks: WebhookSettings = field(default_factory=WebhookSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    server_apart: bool = False  # True if the gRPC server runs in a child process, whose memory `server.memory` limits

    @property
    def scope(self) -> str:
        """A description for messages of the Hardware that this process uses; empty if it uses all."""
        parts = [f"of {', '.join(self.namespaces)}"] if self.namespaces else []
        parts += [f"with {self.hardware_selector}"] if self.hardware_selector else []
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class _NetworkOptions:
    """The options from which `StackSettings.networks` is made."""

    interface: tuple[tuple[str, str], ...] = Group.FIRST.repeatable(
        "An interface that faces machines, and this host's address there if it is not the first: eth1, "
        "eth1=10.0.0.1, eth1.100. Repeatable. Default: the interface of the default route.",
        type=types.interface,
    )
    public_ip: str = Group.FIRST.setting(
        "", "The address of the only interface, as machines reach it.", type=types.ipv4, option_default=None
    )
    ipv6: bool = Group.NETWORK.setting(
        False,
        "Serve machines over IPv6, too: at the interfaces' IPv6 addresses, and with DHCPv6 for Hardware that has "
        "dhcp.ipv6.",
        flag="--ipv6/--no-ipv6",
    )
    public_ipv6: str = Group.NETWORK.setting(
        "",
        "The IPv6 address of the only interface, with --ipv6. Default: the first that was not made from a router's "
        "advertisement.",
        type=types.ipv6_address,
        option_default=None,
    )

    def networks(self) -> tuple[Network, ...]:
        """Return the networks that face machines. Raises HostError if no default route chooses one."""
        interfaces = self.interface or ((default_interface(), ""),)
        return tuple(
            Network(name, address or self.public_ip, self.ipv6, self.public_ipv6) for name, address in interfaces
        )


# --- options of models that belong to tink ----------------------------------------------------------------------------


def _fields_of(model: type[Any], services: frozenset[Service] = frozenset()) -> tuple[SettingsField, ...]:
    """Return the fields of a model that declare an option. `services` are those of options that name none."""
    return tuple(
        SettingsField(each.name, each.default, each.metadata[Setting], each.metadata[Setting].services or services)
        for each in fields(model)
        if Setting in each.metadata
    )


def _fields_for(model: type[Any], services: frozenset[Service], **options: Setting) -> tuple[SettingsField, ...]:
    """Return fields of a model that belongs to another package, with their options by the names of the fields."""
    defaults = {each.name: None if each.default is MISSING else each.default for each in fields(model)}
    return tuple(
        SettingsField(name, defaults[name], setting, setting.services or services) for name, setting in options.items()
    )


_CONTROLLER_FIELDS: Final = _fields_for(
    ControllerSettings,
    _CONTROLLER,
    scheduled_timeout=Group.WORKFLOWS.declare("Seconds a Workflow may be Scheduled.", type=_SECONDS),
    cancelling_timeout=Group.WORKFLOWS.declare("Seconds a Workflow may be Cancelling.", type=_SECONDS),
    action_timeout=Group.WORKFLOWS.declare(
        "Seconds an action without a timeout of its own may take; 0: without limit.",
        type=click.FloatRange(min=0),
        option_default=0.0,
        convert=lambda seconds: seconds or None,
    ),
    reference_timeout=Group.WORKFLOWS.declare(
        "Seconds a Workflow waits for its Hardware and Template.", type=click.FloatRange(min=0)
    ),
    hardware_gone_timeout=Group.WORKFLOWS.declare(
        "Seconds an agent may keep a Workflow whose Hardware was deleted; then the Workflow fails."
    ),
    history_limit=Group.WORKFLOWS.declare(
        "Number of ended Workflows to keep for each Hardware; older ones are deleted. Default: keep all but those with "
        "spec.ttlSecondsAfterFinished.",
        flag="--workflow-history-limit",
        type=click.IntRange(min=1),
    ),
)


_BMC_FIELDS: Final = _fields_for(
    BmcSettings,
    _BMC,
    poll_interval=Group.BMC.declare(
        "Seconds between two reads of a machine's power state from its BMC.",
        flag="--bmc-poll-interval",
        type=click.FloatRange(10, 86_400),
    ),
    max_connections=Group.BMC.declare(
        "BMCs that are connected at once.", flag="--bmc-connections", type=click.IntRange(1, 2000)
    ),
    boot_named_after=Group.BMC.declare(
        "Seconds after power-on after which the cause is named if no DISCOVER of the machine has arrived; also the "
        "time after which a step of the BMC that goes on is a warning.",
        flag="--bmc-boot-named-after",
        # An edge writes the time of a boot to the Hardware up to 5 s after the DISCOVER.
        type=click.FloatRange(10, 3600),
    ),
    boot_next_after=Group.BMC.declare(
        "Seconds after power-on after which the next way of booting is tried if no DISCOVER of the machine has "
        "arrived. Servers take minutes for their self-test.",
        flag="--bmc-boot-next-after",
        type=click.FloatRange(10, 7200),
    ),
    edge_url=Group.BMC.declare(
        "URL of the edge from which firmware and BMCs fetch boot programs and boot media, such as "
        "http://192.0.2.1:7080. Default: the edge of this process. A controller also needs --metadata-token-key.",
        flag="--bmc-edge-url",
        check=_check_edge_url,
    ),
)


_TLS_FIELDS: Final = _fields_for(
    TlsFiles,
    _SERVER,
    certificate=Group.WORKFLOWS.declare(
        "The gRPC server's certificate (PEM), and those that lead to its authority. Default: no TLS.",
        flag="--grpc-tls-cert",
        type=_AWAITED,
        holds=Holds.CERTIFICATES,
    ),
    key=Group.WORKFLOWS.declare(
        "The private key (PEM) of the gRPC server's certificate.",
        flag="--grpc-tls-key",
        type=_AWAITED,
        holds=Holds.OTHER,
    ),
    client_ca=Group.WORKFLOWS.declare(
        "The authority (PEM) of the certificates that all clients of the gRPC server must then show.",
        flag="--grpc-client-ca",
        type=_AWAITED,
        holds=Holds.CERTIFICATES,
    ),
)


_SERVER_FIELDS: Final = _fields_for(
    ServerSettings,
    _SERVER,
    tls_ca=Group.WORKFLOWS.declare(
        "Certificates (PEM) by which agents trust the gRPC server. Default: the last of --grpc-tls-cert.",
        services=_WITH_AGENTS,
        flag="--grpc-tls-ca",
        type=_AWAITED,
        holds=Holds.CERTIFICATES,
    ),
    reboot_grace=Group.WORKFLOWS.declare(
        "Seconds an agent must be gone before a last action that reboots its machine has succeeded.", type=_SECONDS
    ),
    connections_per_address=Group.WORKFLOWS.declare(
        "Connections, and calls at once, that one address may have. Raise it for many agents behind one address (NAT, "
        "a Service). Default: 512, or fewer if the limit of open files is low.",
        flag="--grpc-connections-per-address",
        type=click.IntRange(min=1),
    ),
    memory=Group.WORKFLOWS.declare(
        "Memory that the gRPC server may use, such as 1GB. Unknown clients can make gRPC use more; the server process "
        "then ends. In tinkedge up it is a process of its own, which is started again. Default there: a quarter of "
        "this host's, between 400 MB and 4 GB; of tinkedge server: all that its container may have.",
        flag="--grpc-memory",
        type=types.memory,
    ),
    older_agents=Group.WORKFLOWS.declare(
        "Accept Tinkerbell's tink-agent and tink-worker, which have no tokens. auto: where --agent-auth requires no "
        "more than an address. address: by their address, whatever --agent-auth requires. off: never."
    ),
    agent_auth=Group.WORKFLOWS.declare(
        "How an agent proves which machine it is. address: by a connection from an IP of its Hardware. token: by the "
        "token of its iPXE script. mtls: by a certificate in the machine's name. none: every agent is accepted.",
        services=_WITH_AGENTS,
    ),
)


_TOKEN_FIELDS: Final = _fields_for(
    TokenSettings,
    _WITH_AGENTS,
    key=Group.WORKFLOWS.declare(
        "File with the keys that sign tokens, the newest first. Default: DATA_DIR/agent-token.key, which is made at "
        "the start.",
        flag="--agent-token-key",
        type=_PATH,
        holds=Holds.KEYS,
    ),
    lifetime=Group.WORKFLOWS.declare(
        "Seconds for which a token is valid. A connected agent gets a new one in time.",
        flag="--agent-token-lifetime",
        type=click.FloatRange(60, _MAX_LIFETIME),
        option_default=DEFAULT_LIFETIME_SECONDS,
    ),
)


_WEBHOOK_FIELDS: Final = _fields_for(
    WebhookSettings,
    _WEBHOOKS | _CONVERSION | frozenset({Service.V1ALPHA1}),
    url=Group.API.declare("https://HOST:PORT where a cluster's API reaches the webhooks.", flag="--webhook-url"),
    service=Group.API.declare(
        "NAMESPACE/NAME[:PORT] of the Service in front of the webhooks. All replicas share the certificate authority "
        "in the Secret NAME-ca of that namespace.",
        flag="--webhook-service",
    ),
    port=Group.API.declare(
        "Port on which the webhooks listen. 0: any free port on loopback, 9443 with a URL or a Service.",
        flag="--webhook-port",
        type=click.IntRange(0, 65535),
    ),
    failure_policy=Group.API.declare(
        "How a cluster treats a Hardware that claims addresses while no webhook answers: Fail refuses it, Ignore "
        "accepts it without a review. The embedded API reviews writes itself.",
        services=_WEBHOOKS,
        flag="--webhook-failure-policy",
        type=click.Choice(["Ignore", "Fail"]),
    ),
    configuration=Group.API.declare(
        "Name of the ValidatingWebhookConfiguration. Several installations in a cluster need different names. tinkedge "
        "makes one that is missing; in one that the chart or an operator made it writes caBundle only.",
        services=_WEBHOOKS,
        flag="--webhook-configuration",
    ),
)

_NETWORK_FIELDS: Final = _fields_of(_NetworkOptions, _WITH_MACHINES)
_STACK_FIELDS: Final = _fields_of(StackSettings)
_EDGE_FIELDS: Final = _fields_of(EdgeSettings, EDGE)
FIELDS: Final[tuple[SettingsField, ...]] = (
    *_NETWORK_FIELDS,
    *_STACK_FIELDS,
    *_EDGE_FIELDS,
    *_CONTROLLER_FIELDS,
    *_BMC_FIELDS,
    *_TLS_FIELDS,
    *_SERVER_FIELDS,
    *_TOKEN_FIELDS,
    *_WEBHOOK_FIELDS,
)
"""All fields with an option, in the order of `--help`."""


def options_for(services: Collection[Service]) -> Iterator[Callable[[Any], Any]]:
    """Yield decorators that give a command the options of these services."""
    for each in FIELDS:
        if each.services.intersection(services) and not each.setting.unless.intersection(services):
            yield each.option()


# --- from the options of a command to its settings --------------------------------------------------------------------


def _values(declared: tuple[SettingsField, ...], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of those fields whose options the command has."""
    return {each.name: each.value(options[each.parameter]) for each in declared if each.parameter in options}


def stack_settings(services: frozenset[Service], options: Mapping[str, Any]) -> StackSettings:
    """Return the settings of a process. `options` are by click's names. Raises click.UsageError."""
    stack = _values(_STACK_FIELDS, options)
    if options.get("leader_elect") is None:
        stack["leader_elect"] = Service.APISERVER not in services
    try:
        if services & _WITH_MACHINES:
            stack["networks"] = _NetworkOptions(**_values(_NETWORK_FIELDS, options)).networks()
        # Other edges have the port of this one if the options give none.
        values = _values(_EDGE_FIELDS, options)
        own_port = values.get("http_port", DEFAULT_HTTP_PORT)
        values["peers"] = tuple(join_host_port(address, port or own_port) for address, port in values.get("peers", ()))
        if values.get("upstream_edge"):
            address, port = values["upstream_edge"]
            values["upstream_edge"] = join_host_port(address, port or own_port)
        return StackSettings(
            services=services,
            edge=EdgeSettings(**values),
            controller=ControllerSettings(**_values(_CONTROLLER_FIELDS, options)),
            bmcs=BmcSettings(**_values(_BMC_FIELDS, options)),
            webhooks=WebhookSettings(**_values(_WEBHOOK_FIELDS, options)),
            server=_server(services, options),
            server_apart=Service.SERVER in services and services != _SERVER,
            **stack,
        )
    except (HostError, ValueError) as error:
        raise click.UsageError(str(error)) from error


def _server(services: frozenset[Service], options: Mapping[str, Any]) -> ServerSettings:
    """Return the server's settings, with those that an edge needs to know, too. Raises ValueError."""
    if "agent_auth" not in options:
        return ServerSettings()
    values = _values(_SERVER_FIELDS, options)
    if values["agent_auth"] is AgentAuth.TOKEN:
        file, own = options["agent_token_key"], options.get("data_dir", Path()) / "agent-token.key"
        values["tokens"] = TokenSettings(file or own, options["agent_token_lifetime"], create=file is None)
    if values["agent_auth"] is AgentAuth.MTLS and Service.SERVER not in services:
        values["agent_auth"] = AgentAuth.ADDRESS  # The edge never sees the certificates of agents.
    tls = _values(_TLS_FIELDS, options)
    if tls.get("certificate") is not None and tls.get("key") is not None:
        values["tls"] = TlsFiles(**tls)
    if values.get("connections_per_address") is not None:
        values["calls_per_address"] = values["connections_per_address"]
    return ServerSettings(**values)
