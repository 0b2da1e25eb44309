"""The operators' web page: the rack at a glance, one machine's boot drawn to scale, the edge itself. docs/page.md.

    journey, expectations, inventory -> rows, query, rack      all machines, those that are asked for
                                     -> timeline, machine      one of them
    readiness, networks, artifacts   -> status                 the edge
    all of it -> render (templates), pages -> live (what changes), site (paths, headers), access (who)

Server-rendered: without JavaScript one reloads. What is pure of it is rows, query, timeline and words.
"""

from edge.page.live import Live
from edge.page.machine import Machines, WorkflowLookup
from edge.page.pages import Pages
from edge.page.rack import Rack
from edge.page.render import Templates
from edge.page.rows import due_at
from edge.page.site import Access, Keys, Site
from edge.page.status import About, Api, EdgeStatus, Health, Osie, Other
from edge.page.timeline import Bar, Chain, chains
from edge.page.timeline import timeline as timeline_of

__all__ = [
    "About",
    "Access",
    "Api",
    "Bar",
    "Chain",
    "EdgeStatus",
    "Health",
    "Keys",
    "Live",
    "Machines",
    "Osie",
    "Other",
    "Pages",
    "Rack",
    "Site",
    "Templates",
    "WorkflowLookup",
    "chains",
    "due_at",
    "timeline_of",
]
