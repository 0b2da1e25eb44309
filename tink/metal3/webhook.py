"""The conversion webhook of hosts: `tink.webhooks.server` serves it, `tink.metal3.review` answers.

The registration is `spec.conversion` of the definition of BareMetalHost. It is never removed. Without it the API server
would only change the apiVersion, and a host that is then written in v1beta1 would lose its power state and its root
device. While no webhook answers, hosts can be read and written in their stored version only.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import nullcontext

from aiohttp import web

from tink.api.metal3 import crds
from tink.api.v1alpha2 import Raw
from tink.convert.metal3.versions import ConversionSettings
from tink.kube.client import ApiError, ConflictError, KubeClient, NotFoundError
from tink.kube.resources import CRD
from tink.metal3 import definition, review
from tink.webhooks.registration import Address, holds

log = logging.getLogger(__name__)

MAX_REVIEW_BYTES = 128 << 20
"""Maximum bytes of a review. A list is sent in one review, and a host with hardware details has about 10,000 bytes."""
_LARGE = 1 << 20
_MAX_LARGE = 2
_READ_SECONDS = 30.0
"""The API server waits this long for its answer."""
_THREAD_BYTES = 8 << 10
"""Longer reviews are converted in a thread."""


class HostConversion:
    """The webhook. With `install`, it also writes the definitions, if the API's differ."""

    path = "/convert"
    missed = "BareMetalHosts can be read and written in one version only"
    notes = ()

    def __init__(self, settings: ConversionSettings, *, install: bool = False) -> None:
        self._settings = settings
        self._install = install
        self._absent = False
        self._large = asyncio.Semaphore(_MAX_LARGE)

    async def ready(self) -> None:
        """Return at once: a conversion needs no other data."""

    # --- asked ----------------------------------------------------------------------------------------------------

    async def answer(self, request: web.Request) -> web.Response:
        """Convert. Status 200: a review, 400: any other body, 413: a too large one, 408: a too slow one."""
        length = request.content_length
        async with self._large if length is None or length > _LARGE else nullcontext():
            try:
                async with asyncio.timeout(_READ_SECONDS):
                    body = await request.clone(client_max_size=MAX_REVIEW_BYTES).read()
            except TimeoutError:
                return web.Response(status=408, text=f"no ConversionReview within {_READ_SECONDS:.0f} s\n")
            try:
                if len(body) > _THREAD_BYTES:
                    made = await asyncio.to_thread(review.answer, body, self._settings)
                else:
                    made = review.answer(body, self._settings)
            except review.ReviewError as error:
                return web.Response(status=400, text=f"no ConversionReview: {error}\n")
            return web.Response(body=made, content_type="application/json")

    # --- registered -----------------------------------------------------------------------------------------------

    async def register(self, client: KubeClient, address: Address, bundle: bytes) -> bool:
        """Write `spec.conversion`, and with `install` the definitions. Raises ApiError."""
        wanted = definition.conversion(address, bundle)
        installed = await self._installed(client, wanted)
        try:
            found = await client.get(CRD, definition.NAME, None)
        except NotFoundError:
            if not self._absent:
                log.warning(
                    "%s: there is no CustomResourceDefinition %s; see tinkedge crds --metal3",
                    self.missed,
                    definition.NAME,
                )
            self._absent = True
            return False
        self._absent = False
        if holds(found["spec"].get("conversion"), wanted):
            return installed
        await client.patch(CRD, definition.NAME, None, definition.conversion_patch(wanted))
        return True

    async def unregister(self, client: KubeClient) -> None:
        """Keep the registration (see the module's docstring)."""

    async def _installed(self, client: KubeClient, conversion: Raw) -> bool:
        """Install the definitions, once. Return True if any was written. Raises ApiError."""
        if not self._install:
            return False
        written = False
        for wanted in crds.generate(conversion):
            written |= await _install(client, wanted)
        self._install = False
        return written


async def _install(client: KubeClient, wanted: Raw) -> bool:
    name = wanted["metadata"]["name"]
    try:
        found = await client.get(CRD, name, None)
    except NotFoundError:
        try:
            await client.create(CRD, wanted)
        except ConflictError as error:
            raise ApiError(error.status, error.reason, f"{name} was created by another client just now") from error
        return True
    updated = definition.updated(found, wanted)
    if holds(found["spec"], updated["spec"]):
        return False
    await client.patch(CRD, name, None, updated)
    return True
