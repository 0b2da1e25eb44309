"""`tinkedge up`: the whole stack in one process."""

from __future__ import annotations

from typing import Any

import click

from edge.commands.serve import run, serving
from edge.composition.settings import ON_REQUEST, Service
from edge.configuration import GroupedCommand

_ALWAYS = frozenset(Service) - ON_REQUEST


@click.command(cls=GroupedCommand)
@serving("client", *Service, "process")
@click.option(
    "--disable",
    type=click.Choice([service.value for service in Service if service in _ALWAYS]),
    multiple=True,
    help="Leave out. Repeatable.",
)
@click.option(
    "--metal3", is_flag=True, help="Serve Metal3's BareMetalHost in both of its versions: definitions and conversion."
)
def up(disable: tuple[str, ...], metal3: bool, **options: Any) -> None:
    """The whole stack in one process: API, controller, gRPC server, DHCP, TFTP, HTTP with metadata, admin HTTP.

    Without --kubeconfig it brings its own Kubernetes API on loopback, and writes DATA_DIR/kubeconfig for kubectl. With
    --kubeconfig everything runs against that cluster, whose CRDs must be installed (tinkedge crds).
    """
    services = (_ALWAYS | (ON_REQUEST if metal3 else frozenset())) - {Service(name) for name in disable}
    if options["kubeconfig"] is not None:
        services -= {Service.APISERVER}
    run(services, options)
