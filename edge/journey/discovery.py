"""Journey events of Hardware that discovery changes: introduced, approved, removed, and not as expected.

    status.inventory.inBand appears                               -> introduced
    annotation discovered-as on a Hardware without the label      -> approved, under this name
    a discovered Hardware is deleted without an approval          -> removed
    the condition AsExpected becomes False, or changes its reason -> not as expected; True again -> as expected

The edge's informer of Hardware calls `on_change(new, old)`, so the journey needs no watch of its own. An approved
machine moves to another Hardware, and its journey, which belongs to its MAC address, goes on.

What has happened while no edge ran is found in the objects of the first list. It is inserted at its own time, if the
journey of the machine goes back so far: otherwise nothing is known of the time before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from edge.journey.events import Note, Outcome, Step, Value
from edge.journey.history import detail_of, message_of, packed_bytes, step_of
from edge.journey.recorder import Journey
from tink.api.annotations import APPROVE_ANNOTATION, DISCOVERED_AS_ANNOTATION
from tink.api.inventory import disk_size
from tink.api.v1alpha2 import Raw, as_mapping
from tink.discovery.approval import annotations_of, approved_as
from tink.discovery.identity import ports_of
from tink.discovery.model import condition_of, is_discovered
from tink.kube.objects import NamespacedName
from tink.limits import Newest
from tink.workflow.status import parse_timestamp

MAX_MOVING: Final = 10_000
"""Maximum number of machines that are being approved."""
_MAX_LOOKED_AT: Final = 100
"""Number of a machine's last events that are searched for the same event."""
INTRODUCED: Final = "introduced"
APPROVED: Final = "approved"
REMOVED: Final = "removed"
VERDICT: Final = "verdict"
_STAGES: Final = frozenset({INTRODUCED, APPROVED, REMOVED})
"""Values of the detail `discovery` that follow each other. A verdict comes beside them."""


class _Entry(NamedTuple):
    """An event. `time` is in seconds since the epoch, or None if it is not known."""

    stage: str
    outcome: Outcome
    message: str
    time: float | None
    detail: dict[str, Value]


class DiscoveryJourney:
    """Turns changes of Hardware objects into journey events of `Step.DISCOVERY`. Belongs to one event loop."""

    def __init__(
        self,
        journey: Journey,
        *,
        is_live: Callable[[], bool],
        line_of: Callable[[NamespacedName], str] = lambda _: "",
        on_approved: Callable[[str], None] = lambda _mac: None,
    ) -> None:
        """`is_live()` is False until the informer has delivered its first list.

        `line_of(hardware)` returns where the line of an expected machine is, or "" if that is not known here.
        `on_approved(mac)` is called after the approval of a machine is recorded.
        """
        self._journey = journey
        self._is_live = is_live
        self._line_of = line_of
        self._on_approved = on_approved
        self._moving: Newest[str, None] = Newest(MAX_MOVING)
        """The MAC addresses of the machines that move to a Hardware of another name."""
        self._requested: Newest[NamespacedName, bool] = Newest(MAX_MOVING)
        """True if an annotation approved the machine, False if a list did, by the Hardware that it becomes."""

    def is_moving(self, mac: str) -> bool:
        """Return True from the approval of a machine until its new Hardware is here.

        Meanwhile the discovered Hardware may go first: several namespaces are followed by several watches.
        """
        return mac in self._moving

    def on_change(self, new: Raw, old: Raw | None) -> None:
        """Record the changes from `old` to `new`; `old` is None if the Hardware is new to the informer."""
        macs = _macs(new)
        if not macs:
            return
        target = approved_as(new) if is_discovered(new) else None
        if target is not None:
            self._requested[target] = bool(annotations_of(new).get(APPROVE_ANNOTATION))
            self._moving.update(dict.fromkeys(macs))
        elif is_discovered(new):
            for mac in macs:
                self._moving.pop(mac, None)  # the approval does not hold any more
        for entry in self._entries(new, old):
            mac = max(macs, key=self._last_heard)
            if old is None and not self._is_live():
                self._insert(mac, entry)
            elif not self._is_known(mac, entry):
                self._journey.record(mac, Step.DISCOVERY, entry.outcome, entry.message, **entry.detail)
            if entry.stage == APPROVED:
                for each in macs:
                    self._moving.pop(each, None)
                self._on_approved(mac)

    def on_delete(self, old: Raw) -> None:
        """Record that a discovered Hardware was deleted without an approval."""
        macs = _macs(old)
        if not macs or not is_discovered(old) or approved_as(old) is not None:
            return
        message = f"its discovered Hardware {NamespacedName.of(old)} was deleted without an approval"
        entry = _entry(REMOVED, Outcome.INFO, message, None, old)
        self._journey.record(macs[0], Step.DISCOVERY, entry.outcome, entry.message, **entry.detail)

    def _entries(self, new: Raw, old: Raw | None) -> Iterator[_Entry]:
        inventory = _inventory(new)
        # An older Hardware with an inventory that is new to this process has introduced itself at another time.
        if inventory and not (_inventory(old) if old is not None else not is_discovered(new)):
            at = parse_timestamp(inventory.get("lastUpdated"))
            yield _entry(INTRODUCED, Outcome.OK, f"has introduced itself: {described(inventory)}", at, new)
        if _is_approved(new) and not (old is not None and _is_approved(old)):
            yield self._approved(new, old)
        verdict = _verdict(new, old)
        if verdict is not None:
            yield verdict

    def _approved(self, new: Raw, old: Raw | None) -> _Entry:
        key = NamespacedName.of(new)
        former = str(annotations_of(new)[DISCOVERED_AS_ANNOTATION])
        keeps_name = former == key.name
        by_annotation = self._requested.pop(key, None)
        if keeps_name and old is not None:
            by_annotation = bool(annotations_of(old).get(APPROVE_ANNOTATION))
        source = ""
        if by_annotation:
            source = f" by annotation {APPROVE_ANNOTATION}"
        elif by_annotation is False:
            source = f" by {self._line_of(key) or 'a list of expected machines'}"
        name = f"it stays Hardware {key}" if keeps_name else f"it is Hardware {key} now (it was {former})"
        at = parse_timestamp(as_mapping(new["metadata"]).get("creationTimestamp")) if not keeps_name else None
        return _entry(APPROVED, Outcome.OK, f"approved{source}: {name}", at, new)

    # --- writing ------------------------------------------------------------------------------------------------------

    def _last_heard(self, mac: str) -> float:
        last = self._journey.last_sign(mac)
        return last.time if last is not None else 0.0

    def _insert(self, mac: str, entry: _Entry) -> None:
        """Insert an event of the time before this run at its own time, if the journey goes back so far."""
        earlier = self._journey.after(mac, 0.0, _MAX_LOOKED_AT)
        if entry.time is None or not earlier or entry.time < earlier[0][0] or self._is_known(mac, entry):
            return
        note = Note(
            Step.DISCOVERY,
            entry.outcome,
            entry.message,
            entry.detail,
            kept_bytes=packed_bytes(entry.message, entry.detail),
        )
        self._journey.take_in(mac, entry.time, note)

    def _is_known(self, mac: str, entry: _Entry) -> bool:
        """Return True if the machine's last event of this kind is the same: a relist, or an earlier run.

        The inventory of a machine that is approved moves to its new Hardware, which is no introduction.
        """
        kinds = _STAGES if entry.stage in _STAGES else {entry.stage}
        message = Note(Step.DISCOVERY, entry.outcome, entry.message).message
        for _, known in reversed(self._journey.after(mac, 0.0, _MAX_LOOKED_AT)):
            stage = dict(detail_of(known)).get("discovery") if step_of(known) is Step.DISCOVERY else None
            if entry.stage == INTRODUCED and stage == APPROVED:
                continue
            if stage in kinds:
                return message_of(known) == message
        return False


def described(inventory: Raw) -> str:
    """Return a machine in a few words: `Dell Inc. PowerEdge R650, serial number 5CG2, 32 cores, 256.0 GiB, ...`."""
    product = as_mapping(inventory.get("product"))
    words = [" ".join(str(product[name]) for name in ("vendor", "model") if product.get(name))]
    words.append(f"serial number {product['serialNumber']}" if product.get("serialNumber") else "")
    cores = _number(as_mapping(inventory.get("cpu")).get("totalCores"))
    words.append(f"{cores} cores" if cores else "")
    memory = _number(as_mapping(inventory.get("memory")).get("totalBytes"))
    words.append(f"{memory / (1 << 30):.0f} GiB of memory" if memory else "")
    found = inventory.get("blockDevices")
    disks = [_number(as_mapping(each).get("sizeBytes")) for each in found] if isinstance(found, list) else []
    sizes = dict.fromkeys(disk_size(each) for each in disks if each)
    words.append(f"{len(disks)} disks ({', '.join(list(sizes)[:4])})" if sizes else f"{len(disks)} disks")
    words.append(f"{sum(1 for _ in ports_of(inventory))} network ports")
    return ", ".join(filter(None, words))


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _entry(stage: str, outcome: Outcome, message: str, time: float | None, hardware: Raw, **detail: Value) -> _Entry:
    # Details such as `model` and `uuid` are those of the firmware, by which limits are learned.
    facts: dict[str, Value] = {"discovery": stage, "hardware": str(NamespacedName.of(hardware)), **detail}
    return _Entry(stage, outcome, message, time, facts)


def _verdict(new: Raw, old: Raw | None) -> _Entry | None:
    """Return the change of the condition AsExpected; None if it says the same, or is True from the start."""
    now, before = condition_of(new), condition_of(old) if old is not None else {}
    status, reason, message = (str(now.get(name) or "") for name in ("status", "reason", "message"))
    at = parse_timestamp(now.get("lastTransitionTime"))
    if status == "False" and (before.get("status"), before.get("reason")) != (status, reason):
        return _entry(VERDICT, Outcome.WARNING, f"not as expected: {message}", at, new, reason=reason)
    if status == "True" and before.get("status") == "False":
        return _entry(VERDICT, Outcome.OK, f"as expected now: {message}", at, new, reason=reason)
    return None


def _is_approved(hardware: Raw) -> bool:
    """Return True for the Hardware of an approved machine."""
    return bool(annotations_of(hardware).get(DISCOVERED_AS_ANNOTATION)) and not is_discovered(hardware)


def _inventory(hardware: Raw) -> Raw:
    return as_mapping(as_mapping(as_mapping(hardware.get("status")).get("inventory")).get("inBand"))


def _macs(hardware: Raw) -> list[str]:
    return list(as_mapping(as_mapping(hardware.get("spec")).get("networkInterfaces")))
