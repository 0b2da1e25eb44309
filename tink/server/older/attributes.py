"""Stores the machine attributes that tink-agent reports where Tinkerbell's own server stores them: in an annotation.

    tinkerbell.org/agent-attributes: {"cpu": {"totalCores": 8}, "blockDevices": [{"name": "sda", "size": "480GB"}], ...}

The agent sends them with every poll; a change is written. An agent can report anything, so texts, lists and the whole
are bounded, and one machine has one write in an interval. If this server has no right to write them (RBAC), it logs
that once and tries again an hour later. The journey and the log contain the attributes in one line in any case.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

import orjson
from google.protobuf.json_format import MessageToDict

from proto import older_pb2 as pb
from tink.api.annotations import AGENT_ATTRIBUTES_ANNOTATION
from tink.api.v1alpha2 import Raw, as_mapping
from tink.kube.client import ApiError
from tink.kube.objects import NamespacedName
from tink.kube.resources import HARDWARE, ResourceType
from tink.limits.log import LimitedLog
from tink.limits.once_per import OncePer
from tink.printable import printable

log = logging.getLogger(__name__)

MAX_BYTES: Final = 16 << 10
"""Of the annotation. An object has 256 KiB for all of them."""
_MAX_TEXT, _MAX_ITEMS = 128, 64
_WRITE_SECONDS, _WRITES = 60.0, 10_000
"""One write of a machine in so many seconds, and so many of all in that time."""
_REFUSED_SECONDS = 3600.0
"""Pause after the API has rejected a write with 403."""
_NAMES: Final = {"block": "blockDevices", "network": "networkInterfaces"}
"""Of lists, in Tinkerbell's JSON; its other names are those of protobuf's JSON."""


class Patches(Protocol):
    """What is needed of the API's client."""

    async def patch(self, resource: ResourceType, name: str, namespace: str | None, patch: Raw, /) -> Raw:
        """Merge into an object. Raises ApiError."""


def as_json(attributes: pb.AgentAttributes) -> str:
    """The attributes as they are kept; empty if the agent says nothing."""
    given = MessageToDict(attributes)
    found = {_NAMES.get(name, name): _bounded(value) for name, value in sorted(given.items())}
    found = {name: value for name, value in found.items() if value}
    text = orjson.dumps(found) if found else b""
    left_out: list[str] = []
    while len(text) > MAX_BYTES:  # what takes most room is what there are many of
        left_out.append(max(found, key=lambda name: len(orjson.dumps(found[name]))))
        del found[left_out[-1]]
        text = orjson.dumps(found | {"leftOut": ", ".join(left_out)})
    return text.decode()


def _bounded(value: Any) -> Any:
    match value:
        case dict():
            return {name: _bounded(each) for name, each in value.items()}
        case list():
            return [_bounded(each) for each in value[:_MAX_ITEMS]]
        case str():
            return printable(value[:_MAX_TEXT], " ").strip()
    return value


class AttributesKeeper:
    """Writes them. `hardware` looks one up by namespace and name, `spawn` runs the writes, `clock` gives seconds."""

    def __init__(
        self,
        client: Patches,
        hardware: Callable[[str, str], Raw | None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._hardware = hardware
        self._spawn = spawn
        self._clock = clock
        self._kept: dict[NamespacedName, int] = {}
        """What each machine has said last, as a hash of its bytes."""
        self._waiting: dict[NamespacedName, str] = {}
        """What is to be written, one after the other: a rack that was powered on says all of it at once."""
        self._due = OncePer(_WRITE_SECONDS, _WRITES)
        self._refused_until = -math.inf
        self._was_refused = False
        self._log = LimitedLog(log, clock, capacity=10, interval=600.0)

    def said(self, key: NamespacedName, attributes: pb.AgentAttributes) -> None:
        """Store the attributes that the machine's agent reports."""
        if self._clock() < self._refused_until:
            return
        said = hash(attributes.SerializeToString(deterministic=True))
        if self._kept.get(key) == said:
            return
        obj = self._hardware(*key)
        text = as_json(attributes)
        if obj is None or not text:
            return
        annotations = as_mapping(as_mapping(obj.get("metadata")).get("annotations"))
        if annotations.get(AGENT_ATTRIBUTES_ANNOTATION) == text:
            self._kept[key] = said
        elif self._due.due(key, self._clock()):
            self._kept[key] = said
            if not self._waiting:
                self._spawn(self._write_all())
            self._waiting[key] = text

    def forget(self, key: NamespacedName) -> None:
        """The Hardware is gone."""
        self._kept.pop(key, None)

    async def _write_all(self) -> None:
        while self._waiting:
            key = next(iter(self._waiting))
            await self._write(key, self._waiting[key])
            self._waiting.pop(key, None)  # Checked last: as long as an entry waits, this continues.

    async def _write(self, key: NamespacedName, text: str) -> None:
        patch: Raw = {"metadata": {"annotations": {AGENT_ATTRIBUTES_ANNOTATION: text}}}
        try:
            await self._client.patch(HARDWARE, key.name, key.namespace, patch)
        except ApiError as error:
            self._kept.pop(key, None)  # once more with one of the next polls
            if error.status == 403:
                self._refused()
            else:
                self._log.warning("attributes of Hardware %s are not stored: %s", key, error, key=error.status)

    def _refused(self) -> None:
        for key in self._waiting:
            self._kept.pop(key, None)
        self._waiting.clear()
        self._refused_until = self._clock() + _REFUSED_SECONDS
        if not self._was_refused:
            log.info(
                "attributes that agents send are not stored in Hardware: the server's role has no patch on hardware "
                "(on a cluster: server.agentAttributes of the chart, or deploy/rbac-attributes.yaml)"
            )
        self._was_refused = True
