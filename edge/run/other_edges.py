"""The other edges of a site: known to an edge that is one of them, told by a server that is apart from them."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

from edge.journey.recorder import Journey
from edge.journey.records import Happened
from edge.machines import DhcpMode
from edge.peers import EdgeLeases, Peers, ServerReports
from edge.run.tasks import Tasks
from edge.settings.model import Service, StackSettings
from tink.files.key_file import KeyFile
from tink.kube.client import KubeClient
from tink.kube.runtime import own_pod, pod_namespace

Changed = Callable[[frozenset[str], frozenset[str]], None]


def peers_of(
    settings: StackSettings, keys: KeyFile, journey: Journey, changed: Changed, kept: Callable[[Happened], None]
) -> Peers | None:
    """The other edges that one with these settings may have; None: it is to be alone.

    `changed(living, gone)` hears their names; `kept` what they have told. Raises KeyFileError.
    """
    edge = settings.edge
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
        kept=kept,
        upstream=edge.upstream_edge,
        downstream=edge.downstream_edges,
        reports=KeyFile(edge.reports_key, "reports key") if edge.reports_key is not None else None,
    )


def say_hello(settings: StackSettings, peers: Peers, client: KubeClient, tasks: Tasks) -> None:
    """Say hello to the other edges, and find those that keep Leases."""
    tasks.spawn(peers.run(), "other edges")
    if group := settings.edge.peer_group:
        leases = EdgeLeases(
            client,
            namespace=settings.lease_namespace or pod_namespace(),
            group=group,
            identity=peers.own.id,
            own=lambda: list(peers.own.authorities),
            found=peers.found,
            # With a kubeconfig, this process has other credentials at the API than the pod's.
            pod=own_pod() if settings.kubeconfig is None else None,
        )
        tasks.spawn(leases.run(), "Leases of edges")


async def start_reports(
    settings: StackSettings, client: KubeClient, journey: Journey, exit_stack: AsyncExitStack, tasks: Tasks
) -> ServerReports | None:
    """Have a server that is apart from the edges tell them what agents do; None: it is not to. Raises KeyFileError."""
    edge = settings.edge
    if edge.reports_key is None or not (edge.peers or edge.peer_group):
        return None
    exit_stack.callback(journey.flush)
    keys = KeyFile(edge.reports_key, "reports key")
    reports = ServerReports(keys, journey, edge.peers, socket.gethostname(), time.time)
    await reports.start()
    exit_stack.push_async_callback(reports.stop)
    tasks.spawn(reports.run(), "reports to edges")
    if edge.peer_group:
        leases = EdgeLeases(
            client,
            namespace=settings.lease_namespace or pod_namespace(),
            group=edge.peer_group,
            identity="",
            own=list,
            found=reports.found,
            reads_only=True,
        )
        tasks.spawn(leases.run(), "Leases of edges")
    return reports
