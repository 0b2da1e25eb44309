"""The options of the commands that serve, by the services that each of them runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from edge.commands.options import (
    DataDirectory,
    empty_checksum_type,
    health_address,
    ipv4,
    ipv6_address,
    log_format,
    log_level,
    metrics_address,
    registry_ca,
)
from edge.commands.options import interface as interface_type
from edge.commands.serve import parameter_types as types
from edge.commands.serve.other_edges import PEERS, REPORTS, REPORTS_KEY, UPSTREAM_EDGE
from edge.machines import DhcpMode, NetbootWhen
from edge.run.settings import DEFAULT_HTTP_PORT, Service, Syslog
from edge.settings import FilePath
from ipxe.binaries import BootPath
from tink.server import DEFAULT_LIFETIME_SECONDS, AgentAuth, OlderAgentAuth

Command = Callable[..., None]

_PATH = FilePath()
_AWAITED = FilePath(readable=False)
"""A file that the start does not insist on (`surroundings`)."""
_DIRECTORY = FilePath(exists=True, file_okay=False)
_PORT = click.IntRange(1, 65535)
_SECONDS = click.FloatRange(min=0, min_open=True)

_DATA_DIR = click.option(
    "--data-dir",
    type=DataDirectory(checked_later=True),
    default=Path("/var/lib/tinkedge"),
    help="Database, keys and cache of kernels and initrds.",
)

_NETWORK = (
    click.option(
        "--interface",
        type=interface_type,
        multiple=True,
        help="An interface that faces machines, and its address if not the first: eth1, eth1=10.0.0.1, eth1.100. "
        "Repeatable. Default: of the default route.",
    ),
    click.option(
        "--ipv6/--no-ipv6",
        default=False,
        help="Serve machines over IPv6, too: at the interfaces' IPv6 addresses, and with DHCPv6 for Hardware that has "
        "dhcp.ipv6.",
    ),
    click.option(
        "--public-ip", type=ipv4, default=None, help="The address of the only interface, as machines reach it."
    ),
    click.option(
        "--public-ipv6",
        type=ipv6_address,
        default=None,
        help="The same of IPv6, with --ipv6. Default: the first that no router's advertisement has made.",
    ),
)
_KNOWN_BY_ADDRESS = click.option(
    "--known-by-address",
    type=types.networks,
    default="",
    help="Networks where an address alone says which machine has it, though others could take it: where a router "
    "answers ARP for machines, or bridges have MACs that no Hardware names.",
)

namespaces = click.option(
    "--namespaces",
    type=types.namespaces,
    default="",
    help="Objects of these namespaces only, such as berlin,ulm: for rights that are those of namespaces. Default: all.",
)
_HARDWARE_SELECTOR = click.option(
    "--hardware-selector",
    type=types.label_selector,
    default="",
    help="Hardware with these labels only, such as site=berlin: the machines of a site. Default: all.",
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
        type=_AWAITED,
        default=None,
        help="Certificates (PEM) that agents are to trust the gRPC server by. Default: the last of --grpc-tls-cert.",
    ),
)
_LEASE_NAMESPACE = click.option(
    "--lease-namespace",
    type=types.namespace,
    default="",
    help="Where Leases are. Default: this pod's namespace, or default.",
)
_WEBHOOK_ADDRESS = (
    click.option("--webhook-url", default="", help="https://HOST:PORT where a cluster's API reaches the webhooks."),
    click.option(
        "--webhook-service",
        default="",
        help="NAMESPACE/NAME[:PORT] of the Service in front of the webhooks. All replicas share the certificate "
        "authority in the Secret NAME-ca of that namespace.",
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
        click.option("--api-port", type=_PORT, default=6443, help="Port of the embedded API."),
        click.option(
            "--api-address",
            type=types.api_address,
            multiple=True,
            help="An address of this host where the embedded API is there for other hosts, too, each user with a token "
            "(tinkedge kubeconfig). Repeatable; 0.0.0.0: all, with --api-name. Default: on loopback alone.",
        ),
        click.option(
            "--api-name",
            type=types.host_name,
            multiple=True,
            help="A name or address by which other hosts reach the API, for its certificate. Repeatable.",
        ),
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
            "--relays",
            type=types.networks,
            default="",
            help="Addresses and networks that DHCP relays send from. What comes through a relay from elsewhere does "
            "not count when a machine declines or releases its address, or says in the proxy modes where it is. Leases "
            "are given through any relay.",
        ),
        click.option(
            "--default-osie",
            type=types.osie,
            default=None,
            help="What machines without a Hardware netboot in auto-proxy mode. Default: they are told how to register.",
        ),
        click.option("--tftp-dir", type=_DIRECTORY, default=None, help="More files to serve over TFTP; they go first."),
        click.option("--rpi-dir", type=_DIRECTORY, default=None, help="Firmware that Raspberry Pi 4 and 5 boot by."),
        click.option(
            "--tftp-single-port", is_flag=True, help="Send TFTP files from port 69, for firewalls and NAT in between."
        ),
    ),
    Service.HTTP: (
        click.option("--ipxe-dir", type=_PATH, default=Path("/usr/lib/ipxe"), help="Directory of the iPXE binaries."),
        click.option(
            "--boot-path",
            type=click.Choice([path.value for path in BootPath]),
            default=BootPath.IPXE.value,
            show_default=True,
            help="How UEFI machines get to their kernel whose Hardware does not say: by iPXE, or by a distribution's "
            "shim and GRUB, which Secure Boot lets run. auto: by iPXE, and by the other one where the firmware did not "
            "run it. uki: by their OSIE's unified kernel image.",
        ),
        click.option(
            "--boot-file",
            type=types.boot_file,
            multiple=True,
            help="The file of --ipxe-dir that machines of a kind get, such as x86_64=ipxe-signed.efi. Kinds are bios, "
            "x86_64 and arm64. Repeatable. Default: by the names that Debian, iPXE and Tinkerbell give.",
        ),
        click.option(
            "--shim-dir",
            type=_DIRECTORY,
            default=None,
            help="Directory of shimx64.efi and grubx64.efi (shimaa64.efi, grubaa64.efi) for the boot path grub. "
            "Default: those of Debian's and Ubuntu's packages.",
        ),
        click.option(
            "--osie-dir",
            type=_DIRECTORY,
            default=None,
            help="OSIEs of any namespace may name any file below it as file://. Default: DATA_DIR/osie.",
        ),
        click.option(
            "--cache-size",
            type=types.size,
            default=None,
            help="Disk for kernels and initrds, such as 20GB. Default: what the disk has room for.",
        ),
        click.option(
            "--allow-upstream",
            type=types.networks,
            multiple=True,
            help="Networks that OSIEs may name though they are this host's own, loopback or link-local, such as "
            "10.0.0.1/32. Repeatable.",
        ),
        click.option(
            "--checkpoint/--no-checkpoint",
            default=True,
            help="Keep what is known of a cluster's Hardware, OSIEs and Workflows in DATA_DIR/checkpoint: the edge can "
            "start and serve machines while the API is away.",
        ),
        click.option(
            "--checkpoint-secrets",
            is_flag=True,
            help="Keep the Secrets that Hardware name (user-data) there, too, encrypted: read ahead, and served while "
            "the API is away.",
        ),
        click.option(
            "--checkpoint-key",
            type=_PATH,
            default=None,
            help="File with the keys that encrypt them, the newest first. Default: DATA_DIR/checkpoint.key, which is "
            "made.",
        ),
        click.option(
            "--http-port", type=_PORT, default=DEFAULT_HTTP_PORT, help="Port of scripts, kernels and metadata."
        ),
        *PEERS,
        *UPSTREAM_EDGE,
        REPORTS_KEY,
        click.option(
            "--insecure-registry",
            multiple=True,
            help="Registry whose certificate agents do not check, and that may speak plain HTTP. Repeatable.",
        ),
        click.option(
            "--registry-ca",
            type=registry_ca,
            multiple=True,
            help="HOST[:PORT]=FILE: certificates (PEM) that sign that of a registry, for agents. Repeatable.",
        ),
        click.option(
            "--kernel-parameters",
            type=types.kernel_words,
            multiple=True,
            help="Words for the kernel of every machine that netboots, before those of its OSIE and Hardware; {{.MAC}} "
            "and the like are filled in, ${...} are settings of iPXE. Repeatable.",
        ),
        click.option(
            "--legacy-ports",
            type=types.ports,
            default="",
            help="Further ports where machines are served as on --http-port, for what looks there: 50061 (Hegel's, "
            "where actions like rootio look), 8080 (Smee's).",
        ),
        click.option(
            "--syslog",
            type=click.Choice([syslog.value for syslog in Syslog]),
            default=Syslog.AUTO.value,
            help="Whether log lines of machines are received on UDP port 514, and machines told to send them. auto: of "
            "those that boot HookOS, known by tink_worker_image= or docker_registry= on its command line.",
        ),
        click.option("--grpc-authority", default="", help="Where agents find the gRPC server. Default: this host."),
        click.option(
            "--router-advertisements/--no-router-advertisements",
            default=None,
            help="Answer each IPv6 router solicitation: there is no router here (with --ipv6: use DHCPv6). "
            "Default: answer only iPXE, if no router is heard and --ipv6 is not given; it boots 16 s sooner. "
            "Off: answer no host.",
        ),
        click.option(
            "--ipv6-router",
            multiple=True,
            metavar="NAME",
            help="An interface on which this host says that it is the IPv6 router: where there is no other one, and it "
            "forwards. Repeatable.",
        ),
        click.option(
            "--trusted-proxies",
            type=types.networks,
            default="",
            help="HTTP proxies in front of the edge: where a request comes from is what their X-Forwarded-For says.",
        ),
        click.option(
            "--link-metadata",
            is_flag=True,
            help="Serve metadata at [fe80::a9fe:a9fe]:80 of each network's link, too: an address that images know "
            "without being told. Needs CAP_NET_ADMIN.",
        ),
        click.option(
            "--metadata-nat",
            type=types.networks,
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
    "fast path": (
        click.option(
            "--fast-path/--no-fast-path",
            default=True,
            help="Answer plain DHCP packets and metadata requests from prepared answers, and plain requests for "
            "scripts without a detour. Without it each is answered in full: the same bytes, in more time.",
        ),
    ),
    Service.ADMIN: (
        click.option("--admin-address", default="127.0.0.1", help="Where operators' HTTP listens."),
        click.option(
            "--otlp-endpoint",
            default="",
            metavar="URL",
            help="An OpenTelemetry collector (OTLP over HTTP), http://HOST:4318, that gets a trace of each boot. Needs "
            "the extra `otlp`. Default: none.",
        ),
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
        click.option("--scheduled-timeout", type=_SECONDS, default=300.0, help="Seconds a Workflow may be Scheduled."),
        click.option(
            "--cancelling-timeout", type=_SECONDS, default=300.0, help="Seconds a Workflow may be Cancelling."
        ),
        click.option(
            "--action-timeout",
            type=click.FloatRange(min=0),
            default=0.0,
            help="Seconds an action may take that gives no timeout; 0: any.",
        ),
        click.option(
            "--reference-timeout",
            type=click.FloatRange(min=0),
            default=60.0,
            help="Seconds a Workflow waits for its Hardware and Template.",
        ),
        click.option(
            "--hardware-gone-timeout",
            default=300.0,
            help="Seconds an agent may have a Workflow whose Hardware was deleted; then the Workflow fails.",
        ),
        click.option(
            "--workflow-history-limit",
            type=click.IntRange(min=1),
            default=None,
            help="Workflows that have ended are kept, so many of each Hardware; older ones are deleted. Default: all, "
            "but those with spec.ttlSecondsAfterFinished.",
        ),
        click.option(
            "--leader-elect/--no-leader-elect",
            default=None,
            help="Of several replicas one works, agreed by a Lease. Default: not with the embedded API.",
        ),
    ),
    Service.WEBHOOKS: (
        click.option(
            "--webhook-failure-policy",
            type=click.Choice(["Ignore", "Fail"]),
            default="Fail",
            help="On a cluster, what becomes of a Hardware that claims addresses while no webhook answers: Fail "
            "refuses it, Ignore lets it in unreviewed. The embedded API reviews writes itself.",
        ),
        click.option(
            "--webhook-configuration",
            default="tinkedge",
            help="Name of the ValidatingWebhookConfiguration: of several installations in a cluster each has its own. "
            "tinkedge makes one that is missing; in one that the chart or an operator made it writes caBundle alone.",
        ),
    ),
    Service.CONVERSION: (empty_checksum_type,),
    Service.SERVER: (
        click.option("--grpc-port", type=_PORT, default=42113, help="Port of the gRPC server for agents."),
        click.option(
            "--grpc-address",
            type=types.ip_or_all,
            multiple=True,
            help="Where the gRPC server listens: 0.0.0.0 or :: for all addresses of this host, or one that may be "
            "another host's for now. Repeatable. Default: those of --interface. Machines are told --grpc-authority.",
        ),
        click.option(
            "--older-agents",
            type=click.Choice([auth.value for auth in OlderAgentAuth]),
            default=OlderAgentAuth.AUTO.value,
            help="Whether Tinkerbell's tink-agent and tink-worker, which know no tokens, may speak for their machines. "
            "auto: where --agent-auth asks for no more than an address. address: by their address, whatever "
            "--agent-auth says. off: never.",
        ),
        click.option(
            "--reboot-grace",
            type=click.FloatRange(min=0, min_open=True),
            default=30.0,
            help="Seconds an agent is gone before a last action that reboots its machine has succeeded.",
        ),
        click.option(
            "--grpc-tls-cert",
            type=_AWAITED,
            default=None,
            help="The gRPC server's certificate (PEM), and those that lead to its authority. Default: no TLS.",
        ),
        click.option("--grpc-tls-key", type=_AWAITED, default=None, help="Its private key (PEM)."),
        click.option(
            "--grpc-client-ca",
            type=_AWAITED,
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
        click.option(
            "--grpc-memory",
            type=types.memory,
            default=None,
            help="Memory that the gRPC server may have, such as 1GB. Strangers can make gRPC want more: then it ends. "
            "In tinkedge up it is a process of its own, which is started again. Default there: a quarter of this "
            "host's, between 400 MB and 4 GB; of tinkedge server: all that its container may have.",
        ),
    ),
    "client": (
        click.option("--kubeconfig", type=_PATH, default=None, help="The cluster's. Default: see above."),
        click.option(
            "--manifests",
            type=_PATH,
            default=None,
            help="Directory of manifests to apply at the start; bad ones are logged and tried again.",
        ),
    ),
    "process": (health_address, metrics_address, log_level, log_format),
}


def serving(*groups: Service | str) -> Callable[[Command], Command]:
    """A decorator that gives a command the options of these services."""

    def decorate(command: Command) -> Command:
        options = [option for group in groups for option in _OPTIONS.get(group, ())]
        if {Service.APISERVER, Service.HTTP} & set(groups):
            options = [_DATA_DIR, *options]
        if {Service.DHCP, Service.TFTP, Service.HTTP, Service.SERVER} & set(groups):
            options = [*_NETWORK, *options]
        if {Service.DHCP, Service.HTTP} & set(groups):
            options = [*options, *_OPTIONS["fast path"]]
        if {Service.HTTP, Service.SERVER, Service.CONTROLLER} & set(groups):
            options = [*options, namespaces]
        if ({Service.HTTP, Service.SERVER} & set(groups)) and Service.CONTROLLER not in groups:
            # A controller that does not see a Hardware would give up the Workflows that name it.
            options = [*options, _HARDWARE_SELECTOR]
        if {Service.HTTP, Service.CONTROLLER, Service.SERVER} & set(groups):
            options = [*options, _LEASE_NAMESPACE]
        if Service.SERVER in groups and Service.HTTP not in groups:
            options = [*options, *REPORTS]
        if {Service.HTTP, Service.SERVER} & set(groups):
            options = [*options, _KNOWN_BY_ADDRESS, *_AGENTS]
        if {Service.WEBHOOKS, Service.CONVERSION} & set(groups):
            options = [*options, *_WEBHOOK_ADDRESS]
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
