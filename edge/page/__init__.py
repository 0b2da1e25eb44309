"""The operators' web page: the rack at a glance, one machine's boot drawn to scale, the edge itself. docs/page.md.

    journey, expectations, inventory -> rows, query, rack      all machines, those that are asked for
                                     -> timeline, machine      one of them
    readiness, networks, artifacts   -> status                 the edge
    all of it -> render (templates), pages -> live (what changes), site (paths, headers), access (who)

Server-rendered: without JavaScript one reloads. What is pure of it is rows, query, timeline and words.
"""

from edge.page.access import Access, Keys
from edge.page.live import Live
from edge.page.machine import Machines, WorkflowLookup
from edge.page.pages import Pages
from edge.page.rack import Rack
from edge.page.render import Templates
from edge.page.site import Site
from edge.page.status import EdgeStatus, Health

__all__ = [
    "Access",
    "EdgeStatus",
    "Health",
    "Keys",
    "Live",
    "Machines",
    "Pages",
    "Rack",
    "Site",
    "Templates",
    "WorkflowLookup",
]
