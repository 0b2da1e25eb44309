"""From the options of a command to the settings of the stack (`edge.composition.settings`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edge.commands.serve.agreement import Place, disagreements
from edge.composition.host import HostError, Network, default_interface
from edge.composition.settings import (
    DEFAULT_HTTP_PORT,
    EDGE,
    LOOPBACK,
    EdgeSettings,
    Service,
    StackSettings,
    Syslog,
)
from edge.machines import DhcpMode, NetbootWhen
from tink.controller import ControllerSettings
from tink.server import AgentAuth, OlderAgentAuth, ServerSettings, TlsFiles, TokenSettings
from tink.webhooks import WebhookSettings

_EDGE = (
    *("dhcp_mode", "netboot_when", "decline_quarantine", "default_osie", "tftp_dir", "tftp_single_port"),
    *("ipxe_dir", "osie_dir", "cache_size", "allow_upstream", "http_port", "insecure_registry", "grpc_authority"),
    *("kernel_parameters", "legacy_ports", "syslog"),
    *("router_advertisements", "admin_address", "admin_port", "admin_token_file", "trusted_proxies", "metadata_nat"),
    *("imds_tokens", "known_by_address", "metadata_tokens", "metadata_token_key", "metadata_token_lifetime"),
    *("fast_path", "checkpoint", "checkpoint_secrets", "checkpoint_key", "peer", "peer_group"),
)
_AGENT_OPTIONS = (
    *("agent_auth", "agent_token_key", "agent_token_lifetime"),
    *("grpc_tls_ca", "grpc_tls_cert", "grpc_tls_key", "grpc_client_ca", "grpc_connections_per_address", "reboot_grace"),
    "older_agents",
)
ANYWHERE = "0.0.0.0"  # noqa: S104 - the operator says so
_WEBHOOKS = ("url", "service", "port", "failure_policy", "configuration")
_CONTROLLER_TIMES = ("scheduled_timeout", "cancelling_timeout", "action_timeout", "reference_timeout")


def settings(services: frozenset[Service], options: dict[str, Any], place: Place = lambda _: "here") -> StackSettings:
    """From the options to what the stack takes. Raises click.UsageError with all that does not fit together.

    `place`: where the value of an option is from, by its key.
    """
    if wrong := [each.text(place) for each in disagreements(services, options) if each.is_error]:
        raise click.UsageError("\n".join(wrong))
    given = dict(options)
    for name in ("log_level", "log_format", "health_address", "metrics_address", "disable", "metal3"):
        given.pop(name, None)
    interfaces, public_ip = given.pop("interface", ()), given.pop("public_ip", None)
    networks = _networks(interfaces, public_ip) if services & (EDGE | {Service.SERVER}) else (LOOPBACK,)
    edge = {name: given.pop(name) for name in _EDGE if name in given}
    controller = {name: given.pop(name) for name in _CONTROLLER_TIMES if name in given}
    if not controller.get("action_timeout"):
        controller["action_timeout"] = None
    controller["history_limit"] = given.pop("workflow_history_limit", None)
    webhooks = {name: given.pop(f"webhook_{name}") for name in _WEBHOOKS if f"webhook_{name}" in given}
    agents = {name: given.pop(name) for name in _AGENT_OPTIONS if name in given}
    given["grpc_addresses"] = given.pop("grpc_address", ())
    elect = given.pop("leader_elect", None)
    api = _api(services, given)
    try:
        return StackSettings(
            leader_elect=(Service.APISERVER not in services) if elect is None else elect,
            services=services,
            networks=networks,
            edge=_edge(edge),
            controller=ControllerSettings(**controller),
            webhooks=WebhookSettings(**webhooks),
            server=_server(services, given.get("data_dir"), agents),
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


def _networks(interfaces: tuple[tuple[str, str], ...], public_ip: str | None) -> tuple[Network, ...]:
    """The networks that face machines. Raises click.UsageError."""
    try:
        wanted = interfaces or ((default_interface(), ""),)
        return tuple(Network(name, address or public_ip or "") for name, address in wanted)
    except HostError as error:
        raise click.UsageError(str(error)) from error


def _server(services: frozenset[Service], data_dir: Path | None, given: dict[str, Any]) -> ServerSettings:
    """What edge and server have to agree on about agents, and the server's own. Raises ValueError."""
    if not given:
        return ServerSettings()
    auth, tokens, tls = AgentAuth(given["agent_auth"]), None, None
    if auth is AgentAuth.TOKEN:
        file = given["agent_token_key"]
        own = data_dir / "agent-token.key" if data_dir is not None else Path()
        tokens = TokenSettings(file or own, given["agent_token_lifetime"], create=file is None)
    certificate, key, client_ca = (given.get(f"grpc_{name}") for name in ("tls_cert", "tls_key", "client_ca"))
    if certificate is not None and key is not None:
        tls = TlsFiles(certificate, key, client_ca)
    if auth is AgentAuth.MTLS and Service.SERVER not in services:
        auth = AgentAuth.ADDRESS  # an edge has nothing to do with certificates of agents
    more = {"reboot_grace": given["reboot_grace"]} if "reboot_grace" in given else {}
    if "older_agents" in given:
        more["older_agents"] = OlderAgentAuth(given["older_agents"])
    share = given.get("grpc_connections_per_address")
    if share is not None:
        more |= {"connections_per_address": share, "calls_per_address": share}
    return ServerSettings(agent_auth=auth, tokens=tokens, tls=tls, tls_ca=given.get("grpc_tls_ca"), **more)


def _edge(given: dict[str, Any]) -> EdgeSettings:
    if "dhcp_mode" in given:
        given["dhcp_mode"] = DhcpMode(given["dhcp_mode"])
        given["netboot_when"] = NetbootWhen(given["netboot_when"])
    if "imds_tokens" in given:
        given["imds_required"] = given.pop("imds_tokens") == "required"
        given["syslog"] = Syslog(given["syslog"])
    if "allow_upstream" in given:
        given["allowed_upstreams"] = tuple(network for each in given.pop("allow_upstream") for network in each)
    if "kernel_parameters" in given:
        given["kernel_parameters"] = tuple(word for words in given.pop("kernel_parameters") for word in words)
    if "peer" in given:
        own_port = given.get("http_port", DEFAULT_HTTP_PORT)
        given["peers"] = tuple(f"{address}:{port or own_port}" for address, port in given.pop("peer"))
    renamed = {"cache_size": "cache_bytes", "insecure_registry": "insecure_registries"}
    return EdgeSettings(**{renamed.get(name, name): value for name, value in given.items()})
