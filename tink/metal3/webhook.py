"""The hook that converts hosts: served by `tink.webhooks.server`, answered by `tink.metal3.review`.

The registration is `spec.conversion` of the definition of BareMetalHost. It is never taken back: without it the API
server would do with changing the apiVersion, and a host that is then written in v1beta1 loses its power state and its
root device. While nobody answers, hosts can be read and written in the version that they are stored in, and in no
other.
"""

from __future__ import annotations

import asyncio
import logging

from aiohttp import web

from tink.api.metal3 import crds
from tink.api.v1alpha2 import Raw
from tink.convert.metal3 import ConversionSettings
from tink.kube.client import ApiError, ConflictError, KubeClient, NotFoundError
from tink.kube.resources import CRD
from tink.metal3 import definition, review
from tink.webhooks import Address, holds

log = logging.getLogger(__name__)

LARGEST = 128 << 20
"""Bytes of a review: a list is sent in one, and a host with its hardware has some ten thousand."""
_LARGE = 1 << 20
_LARGE_AT_ONCE = 2
_READ_SECONDS = 30.0
"""As long as the API server waits for its answer."""
_THREAD_BYTES = 8 << 10
"""What is longer than this is converted beside the event loop."""


class HostConversion:
    """With `install`, the definitions are written as well, if the API does not have them as they are here."""

    path = "/convert"
    missed = "BareMetalHosts can be read and written in one version only"
    notes = ()

    def __init__(self, settings: ConversionSettings, *, install: bool = False) -> None:
        self._settings = settings
        self._install = install
        self._absent = False
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)

    async def ready(self) -> None:
        """Nothing is needed to convert."""

    # --- asked ----------------------------------------------------------------------------------------------------

    async def answer(self, request: web.Request) -> web.Response:
        """Convert: 200 for a review, 400 for anything else, 413 for too large a one, 408 for too slow a one."""
        length = request.content_length
        if length is None or length > _LARGE:
            async with self._large:
                return await self._answer(request)
        return await self._answer(request)

    async def _answer(self, request: web.Request) -> web.Response:
        try:
            async with asyncio.timeout(_READ_SECONDS):
                body = await request.clone(client_max_size=LARGEST).read()
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
        """Write `spec.conversion`; with `install` the definitions as well. Raises ApiError."""
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
        """The registration stays: see above."""

    async def _installed(self, client: KubeClient, conversion: Raw) -> bool:
        """Install the definitions, once; whether something had to be written. Raises ApiError."""
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
