"""What is applied at the start: the definitions of the embedded API, and what the operator gives by --manifests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from tink.api.v1alpha2 import Raw
from tink.kube.cache import Informer
from tink.kube.client import KubeClient
from tink.kube.manifests import DEFAULT_NAMESPACE, ManifestError, apply, resource_type
from tink.kube.resources import CRD, ResourceType

log = logging.getLogger(__name__)

Manifests = list[tuple[Path, Raw]]
"""Objects, each with the file that it came from."""

_APPLIED_SECONDS: Final = 30.0
"""How long the informers may take to hear of what was applied."""


class ManifestApplier:
    """`refusal` says why the embedded API can't store anything now, because of its disk; empty: it can."""

    def __init__(self, client: KubeClient, refusal: Callable[[], str]) -> None:
        self._client = client
        self._refusal = refusal

    async def apply(self, manifests: Manifests) -> Manifests:
        """Apply them and give those that were. What the embedded API can't store because of its disk is said.

        Raises ManifestError.
        """
        applied = []
        for file, obj in manifests:
            try:
                await apply(self._client, [(file, obj)])
            except ManifestError as error:
                if not self._refusal():
                    raise
                log.error("not applied, and not tried again before the next start: %s", error)
            else:
                applied.append((file, obj))
        return applied

    async def apply_and_wait(self, manifests: Manifests, informers: Mapping[ResourceType, Informer]) -> None:
        """Apply them, and wait until the informers know what was applied. Raises ManifestError."""
        applied = await self.apply(manifests)
        with suppress(TimeoutError):
            async with asyncio.timeout(_APPLIED_SECONDS):
                for _, obj in applied:
                    place = obj["metadata"].get("namespace") or DEFAULT_NAMESPACE, obj["metadata"]["name"]
                    informer = informers.get(resource_type(obj) or CRD)
                    if informer is not None and not informer.covers({"metadata": {"namespace": place[0]}}):
                        text = "%s %s/%s is applied, but not followed: --namespaces or --hardware-selector leave it out"
                        log.warning(text, obj["kind"], *place)
                        continue
                    while informer is not None and informer.get(*place) is None:  # noqa: ASYNC110 - for milliseconds
                        await asyncio.sleep(0.01)
