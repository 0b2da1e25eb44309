"""What an operator can set: which services run, and how. `tinkedge up --help` explains each setting."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal

from edge.callers import Networks
from edge.machines import DhcpMode, NetbootWhen
from edge.neighbour.host import Network
from ipxe.binaries import BootPath
from tink.controller import ControllerSettings
from tink.server import ServerSettings
from tink.webhooks import WebhookSettings


class Service(StrEnum):
    """What a process of the stack can serve."""

    APISERVER = "apiserver"
    CONTROLLER = "controller"
    WEBHOOKS = "webhooks"
    CONVERSION = "conversion"
    SERVER = "server"
    DHCP = "dhcp"
    TFTP = "tftp"
    HTTP = "http"
    ADMIN = "admin"


class Syslog(StrEnum):
    """Whether log lines of machines are received."""

    AUTO = "auto"  # where an OSIE is HookOS
    ON = "on"
    OFF = "off"


ON_REQUEST = frozenset({Service.CONVERSION})
"""For those who have Metal3's hosts: `tinkedge up` serves it only with --metal3."""

EDGE = frozenset({Service.DHCP, Service.TFTP, Service.HTTP, Service.ADMIN})

LOOPBACK = Network("lo")
DEFAULT_HTTP_PORT = 7080


@dataclass(frozen=True, slots=True)
class EdgeSettings:
    """How machines are served.

    `default_osie` is a namespace and a name; `cache_bytes` None: what the disk has room for; `allowed_upstreams` are
    networks that OSIEs may name though they are special or this host's; `decline_quarantine` is in seconds; `peers` are
    `address:port` of other edges of the site, and those with Leases of `peer_group` are found (empty: no others are);
    `upstream_edge` is `address:port` of another site's, through which files are fetched (empty: from their origins),
    and with `downstream_edges` others may fetch through this one;
    `grpc_authority` empty: the address of ours that the machine reached, and `grpc_port`; `metadata_token_lifetime` in
    seconds, 0: for ever. Without `fast_path`, DHCP and metadata are answered in full.
    """

    dhcp_mode: DhcpMode = DhcpMode.RESERVATION
    netboot_when: NetbootWhen = NetbootWhen.ALLOWED
    decline_quarantine: float = 600.0
    relays: Networks = ()
    """Addresses of relays. If empty, a relay that brings leases to several machines of its own network is trusted."""
    default_osie: tuple[str, str] | None = None
    ipxe_dir: Path = Path("/usr/lib/ipxe")
    shim_dir: Path | None = None
    boot_path: BootPath = BootPath.IPXE
    boot_files: tuple[tuple[str, str], ...] = ()
    """A kind of machine (`ipxe.binaries.KINDS`) and the name of the file that it gets."""
    osie_dir: Path | None = None
    tftp_dir: Path | None = None
    rpi_dir: Path | None = None
    tftp_single_port: bool = False
    cache_bytes: int | None = None
    allowed_upstreams: Networks = ()
    http_port: int = DEFAULT_HTTP_PORT
    admin_address: str = "127.0.0.1"
    admin_port: int = 7081
    admin_token_file: Path | None = None
    grpc_authority: str = ""
    insecure_registries: tuple[str, ...] = ()
    registry_cas: tuple[tuple[str, Path], ...] = ()
    """A registry, host[:port], and the file (PEM) with the certificates that agents trust it by."""
    kernel_parameters: tuple[str, ...] = ()
    legacy_ports: tuple[int, ...] = ()
    syslog: Syslog = Syslog.AUTO
    link_metadata: bool = False
    """Whether metadata is served at fe80::a9fe:a9fe, too."""
    router_advertisements: bool | None = None
    """True: every router solicitation is answered. None: only those of iPXE, if no router is heard."""
    ipv6_router: tuple[str, ...] = ()
    """The interfaces on which this host says that it is a router."""
    trusted_proxies: Networks = ()
    metadata_nat: Networks = ()
    known_by_address: Networks = ()
    metadata_tokens: bool = False
    metadata_token_key: Path | None = None
    metadata_token_lifetime: float = 0.0
    imds_required: bool = False
    peers: tuple[str, ...] = ()
    peer_group: str = ""
    upstream_edge: str = ""
    downstream_edges: bool = False
    reports_key: Path | None = None
    """What servers that run apart sign with; None: none is heard, and one tells nobody."""
    fast_path: bool = True
    otlp_endpoint: str = ""
    """The OpenTelemetry collector that gets a trace of each boot; empty: none."""
    checkpoint: bool = True
    """Whether what is known is kept for a start while a cluster's API is away."""
    checkpoint_secrets: bool = False
    """Whether the Secrets that Hardware name are, too, encrypted with `checkpoint_key` (None: one that is made)."""
    checkpoint_key: Path | None = None


@dataclass(frozen=True, slots=True)
class StackSettings:
    """Everything. `networks` are those that face machines; what machines talk to listens there and nowhere else.

    `kubeconfig` None: the embedded API if it is one of `services`, else the service account of this pod.
    """

    services: frozenset[Service]
    networks: tuple[Network, ...] = (LOOPBACK,)
    data_dir: Path = Path("/var/lib/tinkedge")
    kubeconfig: Path | None = None
    manifests: Path | None = None
    grpc_port: int = 42113
    grpc_addresses: tuple[str, ...] = ()
    """Where the gRPC server listens (dotted, 0.0.0.0: everywhere), here or not yet; none: on the networks."""
    api_port: int = 6443
    api_addresses: tuple[str, ...] = ()
    """Where the embedded API is there for other hosts; it always is on loopback."""
    api_names: tuple[str, ...] = ()
    """By which they reach it, besides these addresses."""
    edge: EdgeSettings = field(default_factory=EdgeSettings)
    controller: ControllerSettings = field(default_factory=ControllerSettings)
    webhooks: WebhookSettings = field(default_factory=WebhookSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    server_apart: bool = False
    """True if the gRPC server runs in a child process, which `server.memory` limits."""
    leader_elect: bool = False
    """Whether of several replicas of the controller one works, agreed by a Lease."""
    lease_namespace: str = ""
    """Where the Lease is; empty: this pod's namespace."""
    namespaces: tuple[str, ...] = ()
    """Whose objects it is about; none: those of all."""
    hardware_selector: str = ""
    """Labels of the Hardware that it is about, such as `site=berlin`; empty: all."""
    empty_checksum_type: Literal["md5", "auto"] = "md5"
    """Of the conversion of Metal3's hosts: see its ConversionSettings, which few processes load."""

    @property
    def scope(self) -> str:
        """Which Hardware it is about, for messages; empty: all."""
        parts = [f"of {', '.join(self.namespaces)}"] if self.namespaces else []
        parts += [f"with {self.hardware_selector}"] if self.hardware_selector else []
        return " ".join(parts)
