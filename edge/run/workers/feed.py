"""What one worker is told of the objects of the API: all that there are when it begins, then every change, in order.

Of an object that changes faster than the worker listens, it is told the newest; so what waits is never more than the
objects there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Final

from edge.run.workers.channel import Channel
from edge.run.workers.messages import Object
from tink.api.v1alpha2 import Raw, as_mapping
from tink.kube.cache import Informer
from tink.kube.objects import NamespacedName

_WAITING_BYTES: Final = 4 << 20
"""So much is sent ahead of a worker that does not listen."""


class Feed:
    """For one worker; `run` until it has ended."""

    def __init__(self, channel: Channel, informers: Mapping[str, Informer]) -> None:
        """`informers` by the plural of their objects."""
        self._channel = channel
        self._informers = informers
        self._changed: dict[tuple[str, NamespacedName], tuple[Raw, bool]] = {}
        self._news = asyncio.Event()
        self.complete = asyncio.Event()
        """The worker was told of everything that there was at its beginning."""

    def change(self, kind: str, content: Raw, *, removed: bool = False) -> None:
        """An object is so now, or is gone."""
        key = kind, NamespacedName.of(content)
        self._changed.pop(key, None)
        self._changed[key] = content, removed
        self._news.set()

    async def run(self) -> None:
        """Tell, until cancelled."""
        for kind, content in self._all():
            await self._send(kind, content, removed=False)
        while True:
            while self._changed:
                (kind, name), (content, removed) = next(iter(self._changed.items()))
                del self._changed[kind, name]
                await self._send(kind, content, removed=removed)
            self.complete.set()
            self._news.clear()
            await self._news.wait()

    def _all(self) -> Iterator[tuple[str, Raw]]:
        for kind, informer in self._informers.items():
            for content in informer.list():
                yield kind, content

    async def _send(self, kind: str, content: Raw, *, removed: bool) -> None:
        self._channel.send(Object(kind, _workflow(content) if kind == "workflows" else content, removed))
        if self._channel.waiting_bytes > _WAITING_BYTES:
            await self._channel.drained()


def _workflow(content: Raw) -> dict[str, Any]:
    """What says whether a machine should boot for it: not its actions, which are most of it."""
    spec, status = as_mapping(content.get("spec")), as_mapping(content.get("status"))
    plain = {name: value for name, value in status.items() if not isinstance(value, (list, dict))}
    return {
        "metadata": content["metadata"],
        "spec": {name: value for name, value in spec.items() if name == "hardwareRef"},
        "status": plain,
    }
