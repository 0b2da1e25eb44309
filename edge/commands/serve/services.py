"""`tinkedge edge | controller | server | apiserver`: one service a process, for clusters."""

from __future__ import annotations

from typing import Any

import click

from edge.commands.serve import run, services_of, serving
from edge.run.settings import EDGE, Service
from edge.settings import GroupedCommand


@click.command(cls=GroupedCommand)
@serving("client", Service.DHCP, Service.HTTP, Service.ADMIN, "process")
@click.option(
    "--grpc-port",
    type=click.IntRange(1, 65535),
    default=42113,
    help="Port of the gRPC server, where --grpc-authority does not say.",
)
@click.option(
    "--disable",
    type=click.Choice([service.value for service in sorted(EDGE)]),
    multiple=True,
    help="Leave out. Repeatable.",
)
def edge(**options: Any) -> None:
    """DHCP, TFTP, HTTP and metadata. Without --kubeconfig: as the service account of this pod.

    As root, it becomes the user that the data directory belongs to, as `tinkedge up` does.
    """
    run(services_of("edge", options), options)


@click.command(cls=GroupedCommand)
@serving("client", Service.CONTROLLER, Service.WEBHOOKS, "process")
@click.option(
    "--disable", type=click.Choice([Service.WEBHOOKS.value]), multiple=True, help="Leave the admission webhooks out."
)
def controller(**options: Any) -> None:
    """The workflow controller, with the admission webhooks if --webhook-service or --webhook-url says where they are.

    Without --kubeconfig: as the service account of this pod.
    """
    run(services_of("controller", options), options)


@click.command(cls=GroupedCommand)
@serving("client", Service.CONVERSION, "process")
def metal3_webhook(**options: Any) -> None:
    """The conversion webhook of Metal3's BareMetalHost, at --webhook-service or --webhook-url.

    It registers itself in the definition of BareMetalHost (tinkedge crds --metal3). Without --kubeconfig: as the
    service account of this pod.
    """
    run(services_of("metal3-webhook", options), options)


@click.command(cls=GroupedCommand)
@serving("client", Service.SERVER, "process")
def server(**options: Any) -> None:
    """The gRPC server of the agents. Without --kubeconfig: as the service account of this pod."""
    run(services_of("server", options), options)


@click.command(cls=GroupedCommand)
@serving(Service.APISERVER, "process")
def apiserver(**options: Any) -> None:
    """The embedded Kubernetes API alone, with the CRDs of tinkerbell.org."""
    run(services_of("apiserver", options), options)
