"""`tinkedge up`: the whole stack on one host."""

from __future__ import annotations

from typing import Any

import click

from edge.commands.serve import ALWAYS, run, services_of, serving
from edge.run.settings import Service
from edge.settings import GroupedCommand


@click.command(cls=GroupedCommand)
@serving("client", *Service, "process")
@click.option(
    "--disable",
    type=click.Choice([service.value for service in Service if service in ALWAYS]),
    multiple=True,
    help="Leave out. Repeatable.",
)
@click.option(
    "--metal3", is_flag=True, help="Serve Metal3's BareMetalHost in both of its versions: definitions and conversion."
)
def up(**options: Any) -> None:
    """The whole stack: API, controller, gRPC server, DHCP, TFTP, HTTP with metadata, admin HTTP.

    The gRPC server is a process of its own, with the memory of --grpc-memory; all else is one process.

    Without --kubeconfig it brings its own Kubernetes API on loopback, and writes DATA_DIR/kubeconfig for kubectl. With
    --kubeconfig everything runs against that cluster, whose CRDs must be installed (tinkedge crds).

    As root, it becomes the user that the data directory belongs to, if that is another one, and keeps the capabilities
    that serving needs. A missing /var/lib/tinkedge is made for the user tinkedge of the package.
    """
    run(services_of("up", options), options)
