"""Sets up the admission reviews and the conversions of Metal3's hosts and of v1alpha1 (`tink.webhooks`).

The embedded API asks a plugin in its own process. A cluster's API asks a webhook, if it can reach this process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry

from edge.run.errors import StackError
from edge.run.networks.services import tcp_advice
from edge.settings.model import Service, StackSettings
from tink.api.mistakes import Site
from tink.api.v1alpha2 import Raw
from tink.kube.cache import Informer
from tink.kube.client import ApiError, KubeClient
from tink.kube.resources import ResourceType
from tink.template_process import TemplateProcess
from tink.webhooks.admission import Admission, ReviewPlugin
from tink.webhooks.registration import unregister
from tink.webhooks.reviewer import Examine
from tink.webhooks.server import SERVICE_PORT, Hook, Webhooks

if TYPE_CHECKING:
    from tink.kubeapi import ApiServer

log = logging.getLogger(__name__)

HOOKS: Final = frozenset({Service.WEBHOOKS, Service.CONVERSION, Service.V1ALPHA1})


def are_reached(settings: StackSettings) -> bool:
    """Return True if this process reviews writes, of the embedded API or of a cluster that reaches the webhook."""
    wanted, webhooks = settings.services, settings.webhooks
    return bool(wanted & HOOKS and (Service.APISERVER in wanted or webhooks.url or webhooks.service))


UNREACHED: Final = "writes are not reviewed: the cluster can't reach this; see --webhook-service, --webhook-url"


class Reviews:
    """The reviews of this process: a plugin of the embedded API, webhooks, or nothing."""

    def __init__(
        self, settings: StackSettings, site: Callable[[], Site], exit_stack: AsyncExitStack, examine: Examine
    ) -> None:
        self._settings = settings
        self._examine = examine
        self._site = site
        self._templates = TemplateProcess()
        exit_stack.callback(self._templates.close)
        self._admission: Admission | None = None
        self._webhooks: Webhooks | None = None
        self.plugin: ReviewPlugin | None = None
        """The plugin of the embedded API, if the API runs here and reviews are on."""

    @property
    def notes(self) -> list[str]:
        """Return notes for operators about writes that are stored without a review."""
        services = self._settings.services
        if Service.WEBHOOKS in services and not are_reached(self._settings):
            return [UNREACHED]
        if Service.APISERVER in services and Service.WEBHOOKS not in services:
            return ["this API does not review writes: webhooks are disabled"]
        return list(self._webhooks.notes) if self._webhooks is not None else []

    def in_process(self, api: Callable[[], ApiServer | None]) -> ReviewPlugin | None:
        """Make the plugin of the embedded API. The plugin calls `api()` when it reads the API's store."""
        if Service.WEBHOOKS not in self._settings.services:
            return None

        async def find(key: str, namespace: str, name: str) -> Raw | None:
            server = api()
            return await server.find(key, namespace, name) if server is not None else None

        namespaces = self._settings.namespaces
        self.plugin = ReviewPlugin(
            find, site=self._site, namespaces=namespaces, parse=self._templates.parse, examine=self._examine
        )
        return self.plugin

    async def start(
        self, client: KubeClient, informers: Mapping[ResourceType, Informer], metrics: CollectorRegistry
    ) -> Webhooks | None:
        """Start the webhooks for API servers in other processes, if any; the caller runs and stops them. Raises
        StackError.
        """
        services = self._settings.services
        if Service.APISERVER in services and (self.plugin is not None or Service.CONTROLLER in services):
            try:  # An earlier version registered a webhook for its own embedded API.
                await unregister(client, self._settings.webhooks.configuration)
            except ApiError as error:
                log.warning("the registration of an earlier version's webhook can't be deleted: %s", error)
        webhooks = self._webhooks = self._made(client, informers)
        if self._admission is not None:
            metrics.register(self._admission.metrics)
        if webhooks is not None:
            metrics.register(webhooks.metrics)
            try:
                await webhooks.start()
            except OSError as error:
                port = self._settings.webhooks.port or SERVICE_PORT
                advice = tcp_advice(error, port, "--webhook-port")
                raise StackError(f"the webhooks can't listen on port {port}: {advice}") from error
        return webhooks

    def _made(self, client: KubeClient, informers: Mapping[ResourceType, Informer]) -> Webhooks | None:
        services, reached = self._settings.services, are_reached(self._settings)
        if services & {Service.CONVERSION, Service.V1ALPHA1} and not reached:
            raise StackError(
                "the cluster can't reach the conversion webhook: give --webhook-service or --webhook-url, where it does"
            )
        hooks: list[Hook] = []
        if Service.WEBHOOKS in services and reached and self.plugin is None:
            self._admission = Admission(
                client,
                informers,
                site=self._site,
                failure_policy=self._settings.webhooks.failure_policy,
                namespaces=self._settings.namespaces,
                name=self._settings.webhooks.configuration,
                parse=self._templates.parse,
                examine=self._examine,
            )
            hooks.append(self._admission)
        elif Service.WEBHOOKS in services and not reached:
            log.warning(UNREACHED)
        if Service.CONVERSION in services:
            # These imports take a tenth of a second, and few sites have Metal3's hosts.
            from tink.convert.metal3.versions import ConversionSettings
            from tink.metal3.webhook import HostConversion

            conversion = ConversionSettings(self._settings.empty_checksum_type)
            hooks.append(HostConversion(conversion, install=Service.APISERVER in self._settings.services))
        if Service.V1ALPHA1 in services:
            from tink.webhooks.conversion import served_v1alpha1  # the schemas take time, and few clusters need them

            hooks.append(served_v1alpha1())
        return Webhooks(client, hooks, self._settings.webhooks) if hooks else None
