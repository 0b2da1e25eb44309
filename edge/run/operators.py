"""The operators' HTTP of an edge: /metrics, /api/v1/... and the page, on a port of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from edge import admin_token
from edge.http.admin import AdminApp, admin_runner
from edge.http.connections import has_ended
from edge.page import Access, Api, EdgeStatus, ExpectedStatus, Health, Other, Pages, Rack, Site
from edge.run.about import ThisEdge, osies_of
from edge.run.boot_watch import BootWatch
from edge.run.context import Context
from edge.run.networks.services import Sites, sites_of
from edge.run.readiness import Readiness
from edge.run.serving import MachineServers
from edge.settings.model import Service
from tink.api.v1alpha2 import Raw
from tink.discovery.expected import ExpectedMachines
from tink.kube.objects import NamespacedName
from tink.kube.resources import HARDWARE, OSIE, WORKFLOW


async def start_operators(
    context: Context,
    serving: MachineServers,
    boots: BootWatch,
    readiness: Callable[[], Readiness],
    api: Callable[[], Api],
    expected: ExpectedMachines | None = None,
) -> None:
    """Start the operators' HTTP, if it is one of the services. Raises AdminTokenError, ServingError.

    `expected` are the lists of expected machines; None if this process does not follow them.
    """
    settings, edge = context.settings, context.settings.edge
    if Service.ADMIN not in settings.services:
        return
    tokens = admin_token.accepted(settings.data_dir, edge.admin_token_file)
    journey, networks, contact = context.journey, context.networks, context.contact
    status = EdgeStatus(
        lambda: Health(readiness().problem, readiness().notes),
        networks.shown,
        lambda: [*contact.notices(), *networks.notices()],
        journey,
        serving.cache,
        time.monotonic,
        others=lambda: [
            Other(each.kind, each.name, each.events)
            for each in (serving.peers.publishers if serving.peers is not None else ())
        ],
        about=ThisEdge(settings.data_dir, api).about,
        osies=lambda: osies_of(context.informers[OSIE].list() if OSIE in context.informers else ()),
    )
    rack = Rack(journey, context.inventory, boots.expectations)
    missing = ExpectedStatus(expected, partial(_is_present, context))
    pages = Pages(rack, status, partial(_workflow_of, context), time.time, missing)
    app = AdminApp(
        journey,
        context.inventory,
        networks,
        tokens.holds,
        registry=context.metrics,
        ready=lambda: readiness().problem,
        note=lambda: "; ".join(readiness().notes),
        awaited=boots.shown,
        notices=contact.notices,
        pages=Site(pages, Access(tokens, time.time), has_ended=has_ended),
    )
    make_site = await sites_of(admin_runner(app), context.exit_stack)
    await Sites(make_site, edge.admin_port, "admin HTTP", "--admin-port").follow("", edge.admin_address)


def _is_present(context: Context, key: NamespacedName) -> bool:
    """Return True if there is a Hardware of this name whose machine does not wait for its approval."""
    if key not in context.informers[HARDWARE]:
        return False
    return not any(each.is_discovered for each in context.inventory.by_name(key.name, key.namespace))


def _workflow_of(context: Context, namespace: str, name: str) -> Raw | None:
    """Return the current Workflow of a Hardware, or its last one that still exists."""
    found = context.pending.newest(namespace, name)
    return context.informers[WORKFLOW].get(namespace, found) if found else None
