"""From the options of a command to the settings of the stack (`edge.run.settings`)."""

from __future__ import annotations

from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edge.commands.serve.agreement import Place, disagreements
from edge.machines import DhcpMode, NetbootWhen
from edge.neighbour.host import HostError, Network, default_interface
from edge.run.processors import default_server_memory, default_workers
from edge.run.settings import (
    DEFAULT_HTTP_PORT,
    EDGE,
    LOOPBACK,
    EdgeSettings,
    Service,
    StackSettings,
    Syslog,
)
from ipxe.binaries import BootPath
from tink.controller import ControllerSettings
from tink.net.addresses import join_host_port
from tink.server import AgentAuth, OlderAgentAuth, ServerSettings, TlsFiles, TokenSettings
from tink.webhooks import WebhookSettings

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ANYWHERE = "0.0.0.0"  # noqa: S104 - the operator says so
_NOT_OF_THE_STACK = ("log_level", "log_format", "health_address", "metrics_address", "disable", "metal3")
_WORDS = {"dhcp_mode": DhcpMode, "netboot_when": NetbootWhen, "boot_path": BootPath, "syslog": Syslog}


def settings(services: frozenset[Service], options: dict[str, Any], place: Place = lambda _: "here") -> StackSettings:
    """From the options to what the stack takes. Raises click.UsageError with all that does not fit together.

    `place`: where the value of an option is from, by its key.
    """
    if wrong := [each.text(place) for each in disagreements(services, options) if each.is_error]:
        raise click.UsageError("\n".join(wrong))
    given = {name: value for name, value in options.items() if name not in _NOT_OF_THE_STACK}
    interfaces, public_ip = given.pop("interface", ()), given.pop("public_ip", None)
    ipv6 = given.pop("ipv6", False), given.pop("public_ipv6", None) or ""
    networks = _networks(interfaces, public_ip, *ipv6) if services & (EDGE | {Service.SERVER}) else (LOOPBACK,)
    if given.get("workers", 1) is None:
        given["workers"] = default_workers(services)
    edge = _edge(given)
    controller = _taken(ControllerSettings, given, history_limit="workflow_history_limit")
    controller["action_timeout"] = controller.get("action_timeout") or None
    webhooks = _taken(WebhookSettings, given, **{each.name: f"webhook_{each.name}" for each in fields(WebhookSettings)})
    given["grpc_addresses"] = given.pop("grpc_address", ())
    elect = given.pop("leader_elect", None)
    api = _api(services, given)
    try:
        return StackSettings(
            leader_elect=(Service.APISERVER not in services) if elect is None else elect,
            services=services,
            networks=networks,
            edge=EdgeSettings(**edge),
            controller=ControllerSettings(**controller),
            webhooks=WebhookSettings(**webhooks),
            server=_server(services, given),
            server_apart=Service.SERVER in services and services != {Service.SERVER},
            **api,
            **given,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _api(services: frozenset[Service], given: dict[str, Any]) -> dict[str, Any]:
    """Where the embedded API is there for others. Raises click.UsageError."""
    addresses, names = (tuple(dict.fromkeys(given.pop(f"api_{what}", ()))) for what in ("address", "name"))
    if (addresses or names) and Service.APISERVER not in services:
        raise click.UsageError("--api-address and --api-name are for the embedded API, which does not run here")
    if ANYWHERE in addresses and (len(addresses) > 1 or not names):
        raise click.UsageError(
            f"--api-address {ANYWHERE} stands alone, and needs --api-name: the certificate is for names, or for "
            "addresses that are given"
        )
    return {"api_addresses": addresses, "api_names": names}


def _networks(
    interfaces: tuple[tuple[str, str], ...], public_ip: str | None, ipv6: bool, address6: str
) -> tuple[Network, ...]:
    """The networks that face machines. Raises click.UsageError."""
    try:
        wanted = interfaces or ((default_interface(), ""),)
        return tuple(Network(name, address or public_ip or "", ipv6, address6) for name, address in wanted)
    except HostError as error:
        raise click.UsageError(str(error)) from error


def _taken(kind: type[DataclassInstance], given: dict[str, Any], **options: str) -> dict[str, Any]:
    """What `given` has for the fields of `kind`, taken out of it; `options`: by field, where the names differ."""
    names = {each.name: options.get(each.name, each.name) for each in fields(kind)}
    return {field: given.pop(option) for field, option in names.items() if option in given}


def _server(services: frozenset[Service], given: dict[str, Any]) -> ServerSettings:
    """What edge and server have to agree on about agents, and the server's own. Raises ValueError."""
    if "agent_auth" not in given:
        return ServerSettings()
    auth, tokens, tls = AgentAuth(given.pop("agent_auth")), None, None
    file, lifetime = given.pop("agent_token_key"), given.pop("agent_token_lifetime")
    if auth is AgentAuth.TOKEN:
        own = given["data_dir"] / "agent-token.key" if "data_dir" in given else Path()
        tokens = TokenSettings(file or own, lifetime, create=file is None)
    certificate, key, client_ca = (given.pop(f"grpc_{name}", None) for name in ("tls_cert", "tls_key", "client_ca"))
    if certificate is not None and key is not None:
        tls = TlsFiles(certificate, key, client_ca)
    if auth is AgentAuth.MTLS and Service.SERVER not in services:
        auth = AgentAuth.ADDRESS  # an edge has nothing to do with certificates of agents
    more: dict[str, Any] = {"reboot_grace": given.pop("reboot_grace")} if "reboot_grace" in given else {}
    if "older_agents" in given:
        more["older_agents"] = OlderAgentAuth(given.pop("older_agents"))
    if (memory := given.pop("grpc_memory", None)) is None and Service.SERVER in services:
        memory = default_server_memory(alone=services == {Service.SERVER})
    more["memory"] = memory
    share = given.pop("grpc_connections_per_address", None)
    if share is not None:
        more |= {"connections_per_address": share, "calls_per_address": share}
    return ServerSettings(agent_auth=auth, tokens=tokens, tls=tls, tls_ca=given.pop("grpc_tls_ca", None), **more)


def _edge(given: dict[str, Any]) -> dict[str, Any]:
    own_port = given.get("http_port", DEFAULT_HTTP_PORT)
    options = {"cache_bytes": "cache_size", "insecure_registries": "insecure_registry", "imds_required": "imds_tokens"}
    options["registry_cas"] = "registry_ca"
    edge = _taken(
        EdgeSettings, given, allowed_upstreams="allow_upstream", peers="peer", boot_files="boot_file", **options
    )
    edge |= {name: kind(edge[name]) for name, kind in _WORDS.items() if name in edge}
    edge |= {name: tuple(chain(*edge[name])) for name in ("allowed_upstreams", "kernel_parameters") if name in edge}
    if "imds_required" in edge:
        edge["imds_required"] = edge["imds_required"] == "required"
    if "peers" in edge:
        edge["peers"] = tuple(join_host_port(address, port or own_port) for address, port in edge["peers"])
    if (upstream := edge.pop("upstream_edge", None)) is not None:
        address, port = upstream
        edge["upstream_edge"] = join_host_port(address, port or own_port)
    return edge
