"""Shows on a Hardware that its machine declined its address: the condition `AddressConflict` of the status.

DHCP's quarantine (`edge.dhcp_common`) says what has begun and ended; `ConditionWriter` compares that with what the
API has, and patches the status where they differ. DHCP never waits for it: what is to be looked at waits in a queue, at
most once for each Hardware, and what is written is what is true when its turn comes.

Several edges may serve the same machines, and a process may die in the middle of a quarantine. So the end of the
quarantine stands in the condition's message, and each edge treats the others' by it: one that is not over is left
alone, one that should have been ended a while ago is ended by whoever notices.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from edge.machines.inventory import Machine
from edge.machines.status import Condition, StatusWriter, condition, condition_of, differs, write
from tink.api.v1alpha2 import ConditionStatus, Raw
from tink.kube.client import KubeClient, NotFoundError
from tink.kube.objects import NamespacedName
from tink.kube.resources import HARDWARE
from tink.limits.once_per import OncePer
from tink.timestamps import rfc3339
from tink.workflow.status import parse_timestamp

log = logging.getLogger(__name__)

ADDRESS_CONFLICT = "AddressConflict"
DECLINED = "DeclinedByClient"
ENDED = "QuarantineEnded"

MAX_CONFLICTS = 4096
"""Hardware whose conflicts are known at a time; of more there is a log line only."""
GRACE_SECONDS = 60.0
"""How long after its end a condition that another process has set may stay, before it is ended from here."""

_made = partial(condition, ADDRESS_CONFLICT)
_UNTIL = re.compile(r"not offered until (\S+Z)")
_ADDRESS = re.compile(r"(\S+) is used by another host")


@dataclass(frozen=True, slots=True)
class _Declined:
    mac: str
    address: str
    until: float

    def __str__(self) -> str:
        until = rfc3339(self.until)
        return f"{self.address} is used by another host: {self.mac} declined it; it is not offered until {until}"


class ConditionWriter(StatusWriter):
    """Writes that condition."""

    def __init__(
        self,
        client: KubeClient,
        clock: Callable[[], float] = time.time,
        *,
        retry_first: float = 0.5,
        retry_longest: float = 60.0,
    ) -> None:
        """`clock` gives seconds since the epoch."""
        super().__init__(
            client, f"its condition {ADDRESS_CONFLICT}", retry_first=retry_first, retry_longest=retry_longest
        )
        self._clock = clock
        self._declined: dict[NamespacedName, dict[tuple[str, str], _Declined]] = {}
        """What this process knows of, by Hardware, MAC and address: a machine may have one of IPv4 and one of IPv6."""
        self._written: dict[NamespacedName, str] = {}
        """The messages of the conditions that this process has set and not ended."""
        self._dropped_once = OncePer(60.0, 1)

    # --- what DHCP says: never waits ------------------------------------------------------------------------------

    def changed(self, machine: Machine, address: str, until: float | None) -> None:
        """Take note of a quarantine that has begun, and ends at `until` (epoch), or, with None, that has ended."""
        if until is not None:
            self.conflict(machine, address, until)
        else:
            self.cleared(machine, address)

    def conflict(self, machine: Machine, address: str, until: float) -> None:
        """The machine has declined `address`, which is not offered until `until` (epoch)."""
        key = NamespacedName(machine.namespace, machine.name)
        if key not in self._declined and len(self._declined) >= MAX_CONFLICTS:
            if self._dropped_once.due("", self._clock()):
                log.warning("more than %d Hardware have address conflicts: not all show it", MAX_CONFLICTS)
            return
        self._declined.setdefault(key, {})[machine.mac, address] = _Declined(machine.mac, address, until)
        self._queue.add(key)

    def cleared(self, machine: Machine, address: str) -> None:
        """The quarantine of the machine's `address` has ended."""
        key = NamespacedName(machine.namespace, machine.name)
        declined = self._declined.get(key)
        if declined is None or declined.pop((machine.mac, address), None) is None:
            return
        if not declined:
            del self._declined[key]
        self._queue.add(key)

    # --- what the informer of Hardware says ---------------------------------------------------------------------

    def apply(self, new: Raw, _old: Raw | None = None) -> None:
        """Take in a Hardware that was added or changed: its condition may be one that somebody must end."""
        key, current = NamespacedName.of(new), condition_of(new, ADDRESS_CONFLICT)
        until = _until(current) if current.get("status") == ConditionStatus.TRUE else None
        if until is not None and key not in self._declined:
            self._queue.add_after(key, until + GRACE_SECONDS - self._clock())

    def remove(self, old: Raw) -> None:
        """Forget a Hardware that is gone."""
        self._forget(NamespacedName.of(old))

    # --- writing ------------------------------------------------------------------------------------------------

    async def _write(self, key: NamespacedName) -> None:
        try:
            hardware = await self._client.get(HARDWARE, key.name, key.namespace)
        except NotFoundError:
            self._forget(key)
            return
        wanted = self._wanted(key, condition_of(hardware, ADDRESS_CONFLICT))
        if wanted is not None:
            await write(self._client, hardware, wanted, self._clock())
        if wanted is not None and wanted["status"] == ConditionStatus.TRUE:
            self._written[key] = wanted["message"]
        elif key not in self._declined:
            self._written.pop(key, None)

    def _wanted(self, key: NamespacedName, current: Condition) -> Condition | None:
        """The condition to write; None if the one that is there may stay."""
        now, is_true = self._clock(), current.get("status") == ConditionStatus.TRUE
        message, until = str(current.get("message", "")), _until(current)
        if declined := self._still_declined(key, now):
            end = max(one.until for one in declined)
            self._queue.add_after(key, end + GRACE_SECONDS - now)
            # Interfaces that share an address share its quarantine: the first one declined it.
            shown = {one.address: one for one in reversed(declined)}
            wanted = _made(ConditionStatus.TRUE, DECLINED, "; ".join(map(str, reversed(shown.values()))))
            if is_true and message != self._written.get(key) and until is not None and until >= int(end):
                known = set(_ADDRESS.findall(message)) >= {one.address for one in declined}
                return None if known else wanted  # another edge may say the same, for as long or longer
            return wanted if differs(current, wanted) else None
        if not is_true or until is None:
            return None  # by hand, if it is true: no edge leaves the time out
        if until > now and message != self._written.get(key):
            self._queue.add_after(key, until + GRACE_SECONDS - now)
            return None
        addresses = ", ".join(dict.fromkeys(_ADDRESS.findall(message)))
        return _made(ConditionStatus.FALSE, ENDED, f"the quarantine of {addresses} is over")

    def _still_declined(self, key: NamespacedName, now: float) -> list[_Declined]:
        """What this process knows of, without what is long over and was not said to have ended."""
        declined = {m: one for m, one in self._declined.get(key, {}).items() if one.until + GRACE_SECONDS > now}
        if declined:
            self._declined[key] = declined
        else:
            self._declined.pop(key, None)
        return list(declined.values())

    def _forget(self, key: NamespacedName) -> None:
        self._declined.pop(key, None)
        self._written.pop(key, None)


def _until(condition: Mapping[str, Any]) -> float | None:
    """When the last of its quarantines ends, as the message says."""
    ends = [parse_timestamp(end) for end in _UNTIL.findall(str(condition.get("message", "")))]
    return max((end for end in ends if end is not None), default=None)
