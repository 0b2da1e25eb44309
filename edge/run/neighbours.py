"""Who is on our links, as the kernel knows it, for those who have to know who calls."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack

from edge.callers import UNSEEN, Callers, Neighbours
from edge.machines import DhcpMode, Inventory
from edge.neighbour.table import NeighbourTable, neighbour_changes
from edge.settings.model import EDGE, Service, StackSettings

log = logging.getLogger(__name__)


def callers_of(settings: StackSettings, inventory: Inventory, exit_stack: AsyncExitStack) -> Callers:
    """Who calls, until `exit_stack` ends. Raises OSError where only the kernel can tell, and does not."""
    edge = settings.edge
    neighbours: Neighbours = UNSEEN
    if settings.services & (EDGE | {Service.SERVER}):
        try:
            neighbours = table = NeighbourTable([network.interface for network in settings.networks])
            exit_stack.callback(table.close)
        except OSError as error:
            if edge.dhcp_mode is not DhcpMode.RESERVATION:
                raise
            log.warning("the kernel does not tell of its neighbours: machines are known by address alone: %s", error)
    callers = Callers(inventory, edge.dhcp_mode, neighbours, by_address=edge.known_by_address)
    if neighbours is not UNSEEN:
        exit_stack.callback(neighbour_changes(callers.changed).close)
    return callers
