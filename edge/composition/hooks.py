"""Which webhooks run here: those that review writes, and the one that converts Metal3's hosts (`tink.webhooks`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from edge.composition.networks import tcp_advice
from edge.composition.settings import Service, StackSettings
from edge.composition.tasks import StackError
from tink.api.mistakes import Site
from tink.kube.cache import Informer
from tink.kube.client import ApiError, KubeClient
from tink.kube.resources import HARDWARE, OSIE, TEMPLATE, WORKFLOW, ResourceType
from tink.webhooks import SERVICE_PORT, Admission, Hook, Webhooks, unregister

log = logging.getLogger(__name__)

HOOKS: Final = frozenset({Service.WEBHOOKS, Service.CONVERSION})


def are_reached(settings: StackSettings) -> bool:
    """Whether the API can reach our webhooks: the embedded one can, a cluster's must be told where they are."""
    wanted, webhooks = settings.services, settings.webhooks
    return bool(wanted & HOOKS and (Service.APISERVER in wanted or webhooks.url or webhooks.service))


async def webhooks(
    settings: StackSettings, client: KubeClient, informers: Mapping[ResourceType, Informer], site: Callable[[], Site]
) -> Webhooks | None:
    """Those of the settings, not started; None: none are to run. Raises StackError where they could be of no use."""
    services, reached = settings.services, are_reached(settings)
    if Service.CONVERSION in services and not reached:
        raise StackError(
            "the cluster can't reach the conversion webhook: give --webhook-service or --webhook-url, where it does"
        )
    hooks: list[Hook] = []
    if Service.WEBHOOKS in services and reached:
        hooks.append(
            Admission(
                client,
                hardware=informers[HARDWARE],
                templates=informers[TEMPLATE],
                workflows=informers[WORKFLOW],
                osies=informers[OSIE],
                site=site,
                failure_policy=settings.webhooks.failure_policy,
                namespaces=settings.namespaces,
                name=settings.webhooks.configuration,
            )
        )
    elif Service.APISERVER in services:
        # Of an earlier run that did not end well: nobody answers there now.
        with suppress(ApiError):
            await unregister(client)
    elif Service.WEBHOOKS in services:
        log.info("writes are not reviewed: the cluster can't reach this; see --webhook-service, --webhook-url")
    if Service.CONVERSION in services:
        hooks.append(_conversion(settings))
    return Webhooks(client, hooks, settings.webhooks) if hooks else None


def _conversion(settings: StackSettings) -> Hook:
    # A tenth of a second of imports, for those alone who have Metal3's hosts.
    from tink.convert.metal3 import ConversionSettings
    from tink.metal3.webhook import HostConversion

    conversion = ConversionSettings(settings.empty_checksum_type)
    return HostConversion(conversion, install=Service.APISERVER in settings.services)


async def start(webhooks: Webhooks, settings: StackSettings) -> None:
    """Have them listen, and the API know of them. Raises StackError."""
    try:
        await webhooks.start()
    except OSError as error:
        port = settings.webhooks.port or SERVICE_PORT
        raise StackError(
            f"the webhooks can't listen on port {port}: {tcp_advice(error, port, '--webhook-port')}"
        ) from error
