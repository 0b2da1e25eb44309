"""The embedded API as tests of what speaks to it want it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tink.api.v1alpha2 import Raw
from tink.kube.client import KubeClient
from tink.kube.manifests import apply_object
from tink.kube.resources import CRD
from tink.kubeapi import AdmissionPlugin, ApiServer


@contextlib.asynccontextmanager
async def serving(
    directory: Path,
    definitions: Iterable[Raw] = (),
    plugin: AdmissionPlugin | None = None,
    converters: Mapping[str, Any] = MappingProxyType({}),
) -> AsyncIterator[tuple[ApiServer, KubeClient]]:
    """A server with its state in a directory, and a client, once it has these CustomResourceDefinitions."""
    async with contextlib.AsyncExitStack() as exits:
        api = ApiServer(directory, port=0, plugin=plugin, converters=converters)
        await api.start()
        exits.push_async_callback(api.stop)
        client = await KubeClient.connect(api.kubeconfig)
        exits.push_async_callback(client.close)
        for definition in definitions:
            await apply_object(client, CRD, definition, "test")
        yield api, client
