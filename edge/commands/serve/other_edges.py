"""Options about other edges: those of the site, those of other sites, and what servers tell them."""

from __future__ import annotations

import click

from edge.commands.serve import parameter_types as types
from edge.settings import FilePath

PEERS = (
    click.option(
        "--peer",
        type=types.edge_address,
        multiple=True,
        help="Another edge of this site, ADDRESS[:PORT]: they share their caches and what they see of machines, and "
        "machines that boot from one go on with another when it dies. All need the same --metadata-token-key. "
        "Repeatable.",
    ),
    click.option(
        "--peer-group",
        type=types.peer_group,
        default="",
        help="Find the other edges of this site by the Leases that edges with the same name here keep in "
        "--lease-namespace. Default: none are looked for.",
    ),
)
UPSTREAM_EDGE = (
    click.option(
        "--upstream-edge",
        type=types.upstream_edge,
        default=None,
        help="http://ADDRESS[:PORT] of an edge at another site: kernels, initrds, and what actions need at /files and "
        "/v2 are fetched through it, once for both sites; kernels and initrds from their origins while it is away. It "
        "needs --downstream-edges, and both the same --metadata-token-key.",
    ),
    click.option(
        "--downstream-edges",
        is_flag=True,
        help="Fetch kernels and initrds for edges of other sites that name this one as --upstream-edge, and give them "
        "what is in DATA_DIR/files and DATA_DIR/images.",
    ),
)
REPORTS_KEY = click.option(
    "--reports-key",
    type=FilePath(),
    default=None,
    help="File with the keys, the newest first, by which servers that run apart from the edges sign what they tell "
    "them of agents: the same for edges and servers. Default: an edge hears of no such server.",
)
REPORTS = (
    REPORTS_KEY,
    click.option(
        "--peer",
        type=types.edge_address,
        multiple=True,
        help="An edge of this site, ADDRESS[:PORT]: it is told what agents do and what actions print, for the journeys "
        "of its machines. All need the same --reports-key. Repeatable.",
    ),
    click.option(
        "--peer-group",
        type=types.peer_group,
        default="",
        help="Find these edges by the Leases that edges with the same name here keep in --lease-namespace. Default: "
        "none are looked for.",
    ),
)
