"""The operators' web page: the rack at a glance, one machine's boot drawn to scale, the edge itself. docs/page.md.

    journey, expectations, inventory -> rows, query, rack      all machines, those that are asked for
                                     -> timeline, machine      one of them
    readiness, networks, artifacts   -> status                 the edge
    all of it -> render (templates), pages -> live (changes), site (paths, headers, access)

The edge renders the pages: without JavaScript an operator reloads. Pure are rows, query, timeline and words.
"""

from edge.page.live import Live
from edge.page.pages import Pages
from edge.page.rack import Rack
from edge.page.rows import due_at
from edge.page.site import Access, Site
from edge.page.status import About, Api, EdgeStatus, ExpectedStatus, Health, Osie, Other
from edge.page.timeline import Bar, BootChain, chains
from edge.page.timeline import timeline as timeline_of
from edge.page.words import Phase

__all__ = [
    "About",
    "Access",
    "Api",
    "Bar",
    "BootChain",
    "EdgeStatus",
    "ExpectedStatus",
    "Health",
    "Live",
    "Osie",
    "Other",
    "Pages",
    "Phase",
    "Rack",
    "Site",
    "chains",
    "due_at",
    "timeline_of",
]
