"""The other edges of a site: the peers of an edge, and the receivers of a server's reports."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

from edge.journey.history import Happened
from edge.machines import DhcpMode
from edge.peers.leases import EdgeLeases
from edge.peers.publisher import EventPublisher, server_publisher
from edge.peers.site import Peers
from edge.run.context import Context
from edge.settings.model import Service
from tink.files.key_file import KeyFile
from tink.kube.runtime import own_pod, pod_namespace

Changed = Callable[[frozenset[str], frozenset[str]], None]


def peers_of(context: Context, keys: KeyFile, changed: Changed, keep: Callable[[Happened], None]) -> Peers | None:
    """Return the peers of this edge, or None if its settings name none. `keep` receives their events. Raises
    KeyFileError.
    """
    settings, edge, journey = context.settings, context.settings.edge, context.journey
    if not (edge.peers or edge.peer_group or edge.reports_key or edge.upstream_edge or edge.downstream_edges):
        return None
    return Peers(
        keys,
        http_port=edge.http_port,
        server_port=0 if edge.grpc_authority else settings.grpc_port,
        dhcp=Service.DHCP in settings.services and edge.dhcp_mode is DhcpMode.RESERVATION,
        named=edge.peers,
        changed=changed,
        announce=journey.announce,
        journey=journey,
        kept=keep,
        upstream=edge.upstream_edge,
        downstream=edge.downstream_edges,
        reports=KeyFile(edge.reports_key, "reports key") if edge.reports_key is not None else None,
    )


def say_hello(context: Context, peers: Peers) -> None:
    """Send hello messages to the other edges, and find edges by their Leases."""
    context.tasks.spawn(peers.run(), "other edges")
    # With a kubeconfig, this process has other credentials at the API than the pod's.
    pod = own_pod() if context.settings.kubeconfig is None else None
    _follow_leases(context, identity=peers.own.id, own=lambda: list(peers.own.authorities), found=peers.found, pod=pod)


async def start_reports(context: Context) -> EventPublisher | None:
    """Start to report the agents' activity to the edges, for a server apart from them. Raises KeyFileError."""
    edge, journey = context.settings.edge, context.journey
    if edge.reports_key is None or not (edge.peers or edge.peer_group):
        return None
    context.exit_stack.callback(journey.flush)
    keys, found = KeyFile(edge.reports_key, "reports key"), set[str]()

    def set_found(authorities: Iterable[str]) -> None:
        found.clear()
        found.update(authorities)

    publisher = server_publisher(journey, keys, socket.gethostname(), lambda: found.union(edge.peers), time.time)
    await publisher.calls.start()
    context.exit_stack.push_async_callback(publisher.calls.stop)
    context.tasks.spawn(publisher.run(), "reports to edges")
    _follow_leases(context, identity="", own=list, found=set_found, reads_only=True)
    return publisher


def _follow_leases(context: Context, **options: Any) -> None:
    """Follow the Leases of the edges of the site, if the settings name a group. `options` are those of EdgeLeases."""
    settings = context.settings
    if group := settings.edge.peer_group:
        namespace = settings.lease_namespace or pod_namespace()
        leases = EdgeLeases(context.client, namespace=namespace, group=group, **options)
        context.tasks.spawn(leases.run(), "Leases of edges")
