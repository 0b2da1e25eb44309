"""What settings must be to each other: whatever no option can say of its own value alone. Pure.

Asked by `tinkedge config check`, and by every service before it starts (`stack_settings`); what there must be on this
host is `surroundings`'. A finding names the options, so that whoever shows it can say where each value is from
(`edge.settings.place`).
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from edge.run.settings import Service
from tink.net.urls import shown
from tink.server import AgentAuth
from tink.webhooks import SERVICE_PORT, WebhookSettings

Services = frozenset[Service]
Options = Mapping[str, Any]
"""By the names that click gives them: `grpc_tls_cert`. One that the command has not is missing."""
Place = Callable[[str], str]
"""Where the value of an option is from, by its key: `FILE:LINE`, `env TINKEDGE_...`, `flag` or `default`."""

_EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 - compared, not listened on
_HOST_AND_PORT: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
_LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Finding:
    """`keys` of the options that it is about, the first of which is to be changed; `message` and what to do."""

    keys: tuple[str, ...]
    message: str
    remedy: str
    is_error: bool = True

    def text(self, place: Place) -> str:
        """In one line, with the places of the values."""
        about = ", ".join(f"--{key} ({place(key)})" for key in self.keys)
        return f"{about}: {self.message}: {self.remedy}"


def disagreements(services: Services, options: Options) -> Iterator[Finding]:
    """What does not fit together for a process with these services; errors keep it from starting."""
    yield from _interfaces(options)
    yield from _ports(services, options)
    yield from _tls(options)
    yield from _agent_auth(services, options)
    yield from _webhooks(options)
    yield from _modes(services, options)
    yield from _scope(options)
    yield from _peers(options)
    yield from _words(options)
    yield from _data_dir(services, options)


# --- other edges ------------------------------------------------------------------------------------------------------


def _peers(options: Options) -> Iterator[Finding]:
    names = ("peer", "peer-group", "upstream-edge", "downstream-edges")
    given = [key for key in names if options.get(key.replace("-", "_"))]
    if given and "metadata_token_key" not in options:
        if options.get("reports_key") is None:
            yield Finding(
                (*given, "reports-key"),
                "edges hear only of servers that have a key for that",
                "give edges and servers the same file by --reports-key ('openssl rand -hex 32' makes a key)",
            )
    elif given and options.get("metadata_token_key") is None:
        yield Finding(
            (*given, "metadata-token-key"),
            "edges know each other by a key that they share, and this one would make its own",
            "give all of them the same file by --metadata-token-key ('openssl rand -hex 32' makes a key)",
        )


# --- the network ------------------------------------------------------------------------------------------------------


def _interfaces(options: Options) -> Iterator[Finding]:
    given: tuple[tuple[str, str], ...] = options.get("interface") or ()
    if options.get("public_ip") and len(given) > 1:
        yield Finding(
            ("public-ip", "interface"),
            f"--public-ip is for a single interface, and there are {len(given)}",
            "write --interface NAME=IP for each",
        )
    for what, values in (("interface", [name for name, _ in given]), ("address", [ip for _, ip in given if ip])):
        if len(set(values)) < len(values):
            yield Finding(("interface",), f"an {what} is given twice: {', '.join(values)}", "take one of them out")
    if options.get("public_ipv6") and not options.get("ipv6"):
        yield Finding(("public-ipv6", "ipv6"), "IPv6 is not served", "give --ipv6 as well, or leave it out")
    if options.get("public_ipv6") and len(given) > 1:
        yield Finding(
            ("public-ipv6", "interface"),
            f"--public-ipv6 is for a single interface, and there are {len(given)}",
            "leave it out: each has its own first address",
        )
    for name in options.get("ipv6_router") or ():
        if not options.get("ipv6"):
            yield Finding(("ipv6-router", "ipv6"), "IPv6 is not served", "give --ipv6 as well, or leave it out")
        elif name not in [name for name, _ in given]:
            yield Finding(("ipv6-router",), f"{name} is no interface that faces machines", f"give --interface {name}")
    agents: tuple[str, ...] = options.get("grpc_address") or ()
    for everywhere in set(_EVERYWHERE) & set(agents):
        if len(set(agents)) > 1:
            yield Finding(("grpc-address",), f"{everywhere} is all addresses", "leave the others out")
    try:
        ipaddress.ip_address(options.get("admin_address") or _LOOPBACK)
    except ValueError:
        yield Finding(
            ("admin-address",),
            f"{options['admin_address']!r} is no IP address",
            "give one of this host, 127.0.0.1 to be reached from here alone, or 0.0.0.0 for all",
        )


@dataclass(frozen=True, slots=True)
class Listener:
    """A TCP port that a service listens on; `key` is the option that says which."""

    key: str
    port: int
    at: frozenset[str]
    """Addresses; of an interface whose address is not known yet, its name."""

    def meets(self, other: Listener) -> bool:
        """Return whether the two can't listen at the same time."""
        everywhere = any(address in _EVERYWHERE for address in self.at | other.at)
        return self.port == other.port and (everywhere or bool(self.at & other.at))


def listeners(services: Services, options: Options) -> Iterator[Listener]:
    """Who listens on TCP, in the order of the way of a boot."""
    given = options.get("interface") or (("the default route's", ""),)
    machines = frozenset(ip or options.get("public_ip") or (_LOOPBACK if name == "lo" else name) for name, ip in given)
    listening = (
        (Service.HTTP, "http", machines),
        (Service.SERVER, "grpc", frozenset(options.get("grpc_address") or machines)),
        (Service.APISERVER, "api", frozenset({_LOOPBACK})),
        (Service.ADMIN, "admin", frozenset({options.get("admin_address") or _LOOPBACK})),
    )
    for service, name, addresses in listening:
        if service in services and (port := options.get(f"{name}_port")):
            yield Listener(f"{name}-port", port, addresses)
    if Service.HTTP in services:
        for port in options.get("legacy_ports") or ():
            yield Listener("legacy-ports", port, machines)
    # The embedded API reviews writes without a webhook.
    if Service.CONVERSION in services or services & {Service.WEBHOOKS, Service.APISERVER} == {Service.WEBHOOKS}:
        reached = bool(options.get("webhook_url") or options.get("webhook_service"))
        port = options.get("webhook_port") or (SERVICE_PORT if reached else 0)
        if port:
            yield Listener("webhook-port", port, frozenset({"0.0.0.0" if reached else _LOOPBACK}))  # noqa: S104
    for name in ("health_address", "metrics_address"):
        if (address := options.get(name)) and address[1]:
            yield Listener(name.replace("_", "-"), address[1], frozenset({address[0]}))


def _ports(services: Services, options: Options) -> Iterator[Finding]:
    seen: list[Listener] = []
    for each in listeners(services, options):
        for other in seen:
            probes = {each.key, other.key} == {"health-address", "metrics-address"} and each.at == other.at
            if each.meets(other) and not probes:  # these two are served by one listener then
                yield Finding(
                    (each.key, other.key), f"both would listen on port {each.port}", "give one of them another"
                )
        seen.append(each)


# --- who may speak for a machine --------------------------------------------------------------------------------------


def _tls(options: Options) -> Iterator[Finding]:
    certificate, key = options.get("grpc_tls_cert"), options.get("grpc_tls_key")
    if (certificate is None) != (key is None) and "grpc_tls_key" in options:
        missing, there = ("key", "cert") if key is None else ("cert", "key")
        yield Finding(
            (f"grpc-tls-{missing}", f"grpc-tls-{there}"),
            "--grpc-tls-cert and --grpc-tls-key go together",
            f"give --grpc-tls-{missing} as well, or neither for no TLS",
        )
    if options.get("grpc_client_ca") is not None and certificate is None:
        yield Finding(
            ("grpc-client-ca", "grpc-tls-cert"),
            "--grpc-tls-cert and --grpc-tls-key go together, and --grpc-client-ca needs both",
            "give them, or leave it out",
        )


def _agent_auth(services: Services, options: Options) -> Iterator[Finding]:
    auth = options.get("agent_auth")
    if auth is None:
        return
    together = {Service.HTTP, Service.SERVER} <= services
    if auth == AgentAuth.TOKEN and options.get("agent_token_key") is None and not together:
        yield Finding(
            ("agent-token-key", "agent-auth"),
            "edge and server run apart, and one signs what the other checks",
            "give both the same file as --agent-token-key",
        )
    if auth == AgentAuth.MTLS and Service.SERVER in services and options.get("grpc_client_ca") is None:
        yield Finding(
            ("grpc-client-ca", "agent-auth"),
            "agents are to show certificates, and it is not said whose are good",
            "give --grpc-client-ca, with --grpc-tls-cert and --grpc-tls-key",
        )
    if auth != AgentAuth.TOKEN and options.get("agent_token_key") is not None:
        yield Finding(
            ("agent-token-key", "agent-auth"),
            f"agents are known by {auth}, so no token is signed or asked for",
            "give --agent-auth token if they should be",
            is_error=False,
        )


# --- what machines and clusters are told ------------------------------------------------------------------------------


def _webhooks(options: Options) -> Iterator[Finding]:
    try:
        WebhookSettings(url=options.get("webhook_url", ""), service=options.get("webhook_service", ""))
    except ValueError as error:
        both = bool(options.get("webhook_url") and options.get("webhook_service"))
        keys = ("webhook-url", "webhook-service") if both else ("webhook-url",)
        if not options.get("webhook_url"):
            keys = ("webhook-service",)
        yield Finding(keys, str(error), "write where the cluster's API reaches this, or leave it out")


def _modes(services: Services, options: Options) -> Iterator[Finding]:
    if options.get("default_osie") is not None and options.get("dhcp_mode") != "auto-proxy":
        yield Finding(
            ("default-osie", "dhcp-mode"),
            "--default-osie is for --dhcp-mode auto-proxy: in other modes a Hardware names the OSIE",
            "leave it out, or change the mode",
        )
    if options.get("ipv6") and options.get("dhcp_mode") in ("proxy", "auto-proxy"):
        yield Finding(
            ("ipv6", "dhcp-mode"),
            "DHCPv6 is not served in this mode: nothing like ProxyDHCP is known there",
            "have your DHCPv6 server name the boot files, or take --dhcp-mode reservation",
            is_error=False,
        )
    if options.get("tftp_single_port") and Service.TFTP not in services:
        yield Finding(("tftp-single-port",), "TFTP is disabled here", "leave it out", is_error=False)
    if options.get("checkpoint_secrets") and not options.get("checkpoint", True):
        yield Finding(
            ("checkpoint-secrets", "checkpoint"),
            "Secrets are kept with what is known of Hardware, and that is not kept",
            "leave one of them out",
        )
    if options.get("checkpoint_key") is not None and not options.get("checkpoint_secrets"):
        yield Finding(
            ("checkpoint-key", "checkpoint-secrets"),
            "nothing is encrypted with it: no Secrets are kept",
            "give --checkpoint-secrets if they should be",
            is_error=False,
        )
    if options.get("checkpoint_secrets") and Service.APISERVER in services:
        yield Finding(
            ("checkpoint-secrets",),
            "the embedded API and its Secrets are on this disk already",
            "leave it out: it is for edges of a cluster",
            is_error=False,
        )
    if options.get("kubeconfig") is not None and options.get("manifests") is not None:
        yield Finding(
            ("manifests", "kubeconfig"),
            "these manifests go into a cluster, again at each start, over what others have changed there",
            "leave it out if kubectl or a GitOps tool applies them",
            is_error=False,
        )


def _scope(options: Options) -> Iterator[Finding]:
    """What is named has to be seen."""
    namespaces, osie = options.get("namespaces") or (), options.get("default_osie")
    if namespaces and osie and osie[0] not in namespaces:
        yield Finding(
            ("default-osie", "namespaces"),
            f"OSIE {osie[0]}/{osie[1]} is in a namespace that is not looked at",
            f"name one of {', '.join(namespaces)}, or add {osie[0]} to --namespaces",
        )


def _words(options: Options) -> Iterator[Finding]:
    """Names of hosts, where a URL is a common mistake; they stand on kernels' command lines."""
    given = [("grpc-authority", options.get("grpc_authority") or "")]
    given += [("insecure-registry", each) for each in options.get("insecure_registry") or ()]
    for key, value in given:
        if "://" in value or "/" in value:
            host = urlsplit(value if "://" in value else f"//{value}").netloc
            yield Finding((key,), f"{value!r} must be HOST or HOST:PORT, not a URL", f"write {host or 'HOST:PORT'}")
        elif value and not _HOST_AND_PORT.fullmatch(value):
            yield Finding((key,), f"{value!r} is no HOST or HOST:PORT", "write it like tinkedge.example.org:42113")
    collector = options.get("otlp_endpoint") or ""
    if collector and (urlsplit(collector).scheme not in ("http", "https") or not urlsplit(collector).hostname):
        yield Finding(("otlp-endpoint",), f"{shown(collector)!r} is no URL of a collector", "write http://HOST:4318")


def _data_dir(services: Services, options: Options) -> Iterator[Finding]:
    directory: Path | None = options.get("data_dir")
    if directory is not None and ":" in str(directory) and Service.APISERVER in services:
        kubeconfig = directory / "kubeconfig"
        yield Finding(
            ("data-dir",),
            f"KUBECONFIG={kubeconfig} does not work, because ':' divides paths there",
            f"use 'kubectl --kubeconfig {shlex.quote(str(kubeconfig))}', or a directory without ':'",
            is_error=False,
        )
