"""Writes a machine's `state`, `mac`, `ip` and `lastBoot` into the status of its Hardware; `kubectl get hw` prints most.

`state` is one of a few words (`MachineState`), `stateSince` the time of its last change. `mac` and `ip` are those of
the last heard interface, or before that of the first one with an address. They are in the status because printer
columns use JSONPath, which can't read the keys of a map such as `spec.networkInterfaces`.

`lastBoot` is the first DHCP packet of the machine's last boot (`edge.journey.boots`). BMC control waits for it: a later
time there is the proof that the machine has booted.

The rate of writes is limited: an edge writes at most `WRITES_PER_SECOND` in all, and the state of each Hardware once in
`REST_SECONDS`. The current state is written; states that last for a shorter time are skipped. A boot is written without
that pause.

Several edges may see one machine. Each writes a state when its own view of the machine changes, and never because of
what another edge has written, so two edges that differ do not overwrite each other in turn. Edges that have seen the
same boot report slightly different times, because of their clocks and the packets' delays. So an edge does not write a
boot if the status has a later one, or one that began less than `SAME_BOOT_SECONDS` earlier.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final, NamedTuple

from edge.machines.conditions import StatusWriter
from edge.machines.inventory import Machine
from tink.api.v1alpha2 import BootClient, Raw, as_mapping
from tink.kube.cache import Informer
from tink.kube.client import KubeClient, NotFoundError
from tink.kube.objects import NamespacedName
from tink.kube.resources import HARDWARE
from tink.limits import Newest
from tink.timestamps import rfc3339
from tink.workflow.status import parse_timestamp

WRITES_PER_SECOND: Final = 20.0
"""Maximum rate of one edge, for all Hardware together."""
REST_SECONDS: Final = 5.0
"""Minimum interval between two writes of the state of one Hardware."""
SAME_BOOT_SECONDS: Final = 5.0
"""Boots that edges have seen within this time are the same boot."""
_SOON_SECONDS: Final = 0.01
"""A shorter remaining interval counts as passed, because timers are inexact."""
MAX_KNOWN: Final = 100_000
"""Maximum number of machines whose last state is stored."""


class MachineState(StrEnum):
    """The state of a machine. A Hardware whose machine was never heard has none."""

    NETBOOTING = "Netbooting"  # from its first DHCP packet to the start of the kernel
    IN_OSIE = "InOSIE"  # the OSIE is up; its agent has not begun a Workflow
    WAITING = "Waiting"  # the agent is connected, and there is no Workflow for it
    WORKING = "Working"  # the agent runs a Workflow
    FAILED = "Failed"  # its last Workflow failed
    INSTALLED = "Installed"  # its last Workflow succeeded, or its installed system was heard


class _Boot(NamedTuple):
    """A boot: the time of its first packet in Unix seconds, and the DHCP client and the MAC that sent it."""

    at: float
    client: BootClient
    mac: str


class StateWriter(StatusWriter):
    """Writes the fields of the states of all Hardware."""

    def __init__(
        self,
        client: KubeClient,
        hardware: Informer,
        clock: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` returns seconds since the epoch, `elapsed` monotonic seconds."""
        super().__init__(client, "its state", per_second=WRITES_PER_SECOND, elapsed=elapsed)
        self._hardware = hardware
        self._clock = clock
        self._shown: Newest[str, tuple[NamespacedName, MachineState]] = Newest(MAX_KNOWN)
        """The last reported state of each machine, by MAC, with its Hardware: an approved machine gets another one."""
        self._news: dict[NamespacedName, tuple[str, MachineState]] = {}
        """The MAC and the state to write, by Hardware."""
        self._boots: dict[NamespacedName, _Boot] = {}
        """The boot to write, by Hardware."""
        self._last_boots: Newest[NamespacedName, float] = Newest(MAX_KNOWN)
        """The time of the last reported boot, by Hardware."""
        self._written: Newest[NamespacedName, float] = Newest(MAX_KNOWN)
        hardware.add_event_handler(lambda new, _: self._look_at(new), self._gone)

    def seen(self, machine: Machine, state: MachineState) -> None:
        """Queue the state of a machine for writing. Never waits."""
        key = NamespacedName(machine.namespace, machine.name)
        if self._shown.get(machine.mac) == (key, state):
            return
        self._shown[machine.mac] = key, state
        self._news[key] = (machine.mac, state)
        self._queue.add(key)

    def booted(self, machine: Machine, at: float, client: BootClient) -> None:
        """Queue a boot of a machine for writing, which began at Unix time `at`. Never waits."""
        key = NamespacedName(machine.namespace, machine.name)
        if self._last_boots.get(key, 0.0) >= at:
            return
        self._last_boots[key] = at
        self._boots[key] = _Boot(at, client, machine.mac)
        self._queue.add(key)

    def _look_at(self, obj: Raw) -> None:
        status = as_mapping(obj.get("status"))
        if _identity(obj) != (status.get("mac"), status.get("ip")) or NamespacedName.of(obj) in self._news:
            self._queue.add(NamespacedName.of(obj), low_priority=True)

    def _gone(self, old: Raw) -> None:
        key = NamespacedName.of(old)
        for pending in (self._news, self._boots, self._last_boots, self._written):
            pending.pop(key, None)
        for mac in _interfaces(old):
            if self._shown.get(mac, (key,))[0] == key:
                self._shown.pop(mac, None)

    async def _write(self, key: NamespacedName) -> None:
        await self._turn()
        obj, news, boot, now = self._hardware.get(*key), self._news.get(key), self._boots.get(key), self._elapsed()
        if obj is None:
            self._news.pop(key, None)
            self._boots.pop(key, None)
            return
        rest = self._written.get(key, now - REST_SECONDS) + REST_SECONDS - now
        if news is not None and boot is None and rest > _SOON_SECONDS:
            self._queue.add_after(key, rest)
            return
        status = as_mapping(obj.get("status"))
        mac, ip = _identity(obj, news[0] if news is not None else "")
        wanted: dict[str, Any] = {"mac": mac, "ip": ip}
        if news is not None and status.get("state") != news[1]:
            wanted |= {"state": news[1].value, "stateSince": rfc3339(self._clock())}
        if boot is not None and self._is_new(boot, as_mapping(status.get("lastBoot"))):
            wanted["lastBoot"] = {"at": rfc3339(boot.at, "milliseconds"), "client": boot.client.value, "mac": boot.mac}
        # None as a value removes a field.
        if changes := {field: value for field, value in wanted.items() if status.get(field) != value}:
            self._written[key] = now
            self._count_write()
            metadata = {"resourceVersion": obj["metadata"]["resourceVersion"]}
            with suppress(NotFoundError):
                patch = {"metadata": metadata, "status": changes}
                await self._client.patch(HARDWARE, key.name, key.namespace, patch, subresource="status")
        if self._news.get(key) == news:
            self._news.pop(key, None)
        if self._boots.get(key) == boot:
            self._boots.pop(key, None)

    def _is_new(self, boot: _Boot, written: Raw) -> bool:
        """Return True if a boot is later than the one in the status, and not the same."""
        at = parse_timestamp(written.get("at"))
        # A time in the future is from a clock that was wrong: it must not hide the boots until then.
        return at is None or boot.at >= at + SAME_BOOT_SECONDS or at > self._clock() + SAME_BOOT_SECONDS


def _interfaces(obj: Raw) -> dict[str, Any]:
    return as_mapping(as_mapping(obj.get("spec")).get("networkInterfaces"))


def _identity(obj: Raw, heard: str = "") -> tuple[str | None, str | None]:
    """Return the MAC and the address to show: of the interface `heard`, the one that is shown, or the first."""
    interfaces = _interfaces(obj)
    first = [mac for mac in interfaces if _address(interfaces[mac])] or list(interfaces)
    candidates = (heard, str(as_mapping(obj.get("status")).get("mac") or ""), *first[:1])
    mac = next((each for each in candidates if each in interfaces), None)
    return mac, _address(interfaces[mac]) if mac is not None else None


def _address(interface: Any) -> str | None:
    dhcp = as_mapping(as_mapping(interface).get("dhcp"))
    address = dhcp.get("ip") or as_mapping(dhcp.get("ipv6")).get("address")
    return str(address) if address else None
