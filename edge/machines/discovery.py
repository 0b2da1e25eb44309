"""Creates the Hardware of admitted machines (`tink.discovery.admission` decides which).

DHCP asks `offer` about each DISCOVER of an unknown netboot client, and `request` about its REQUEST, and never waits:
admitted machines are queued, and workers create their Hardware by the API. The informer brings the object, and the
machine is served as any other. If a range is full, the workers first delete the Hardware of a machine that makes no
progress, as the admission chooses.

Of several edges that see one machine, the one whose offer it accepts creates the Hardware. Edges may offer one address
to two machines: if the API rejects an address because another Hardware has it, another address is tried.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Final

from prometheus_client.core import Metric

from edge.journey.events import Outcome, Recorder, Step
from edge.journey.history import Entry, detail_of, step_of
from tink.api.v1alpha2 import Raw, as_mapping
from tink.discovery.admission import (
    Admission,
    AdmissionReason,
    Admitted,
    Candidate,
    Decision,
    Progress,
    Refused,
    Waiting,
    discovered_hardware,
)
from tink.discovery.model import AdmissionRule, discovered_name
from tink.kube.cache import Informer
from tink.kube.client import ApiError, ConflictError, KubeClient, NotFoundError
from tink.kube.objects import NamespacedName
from tink.kube.resources import HARDWARE
from tink.kube.runtime import DONE, Controller, Result, controller_log
from tink.limits import Newest, OncePer
from tink.metrics.families import counter, gauge
from tink.printable import printable

log = logging.getLogger(__name__)

WORKERS: Final = 4
ATTEMPTS: Final = 10
"""Maximum number of attempts to create a Hardware, with delays that grow to 30 s. The next packet starts again."""
MAX_ADDRESSES: Final = 5
"""Maximum number of addresses that are tried for one machine before its next packet."""
ARRIVAL_SECONDS: Final = 10.0
"""Time for the informer to deliver a created Hardware."""
RETRY_DELETION_SECONDS: Final = 60.0
"""Time for which no Hardware has to give way after the API has refused a deletion."""
REJECTION_SECONDS: Final = 60.0
"""Time for which a machine is not admitted again after the API has rejected its Hardware."""
MAX_REJECTIONS: Final = 4096
_REPORT_SECONDS: Final = 60.0
_MAX_REPORTS: Final = 600
_MAX_TEXT: Final = 600

_REMEDIES: Final = {
    401: "give the edge a kubeconfig with a valid token",
    403: "allow the edge to create and delete hardware: apply deploy/rbac-edge-discovery.yaml, use the chart's "
    "discovery.rules, or, with the embedded API, 'tinkedge kubeconfig --role tinkedge-edge-discovery'",
    404: "create the namespace of the rule's OSIE, or install the definitions: 'tinkedge crds | kubectl apply "
    "--server-side -f -'",
    422: "the API refuses the object: correct the rule, or the Hardware that the message names",
}
_OTHER_REMEDY: Final = "check that the API and its webhooks answer"


@dataclass(slots=True)
class _Creation:
    """A Hardware to create: the MAC address of its machine, and the number of addresses that were tried."""

    mac: str
    addresses: int = 1
    is_created: bool = False


_FETCHES: Final = frozenset(
    {Step.TFTP, Step.BINARY, Step.SCRIPT, Step.KERNEL, Step.INITRD, Step.BOOT, Step.AGENT, Step.METADATA}
)


def progress_of(entries: Iterable[Entry]) -> Progress:
    """Return the progress of a machine that has not introduced itself, by the events of its journey.

    They include those of other edges.
    """
    progress = Progress.UNKNOWN
    for entry in entries:
        step = step_of(entry)
        if step in _FETCHES:
            return Progress.BOOTING
        if step is Step.DHCP and dict(detail_of(entry)).get("dhcp") == "ack":
            progress = Progress.NONE
    return progress


class DiscoveryWriter:
    """Creates the Hardware of admitted machines, and deletes that of machines that give way to others.

    Belongs to one event loop; without `run`, nothing is created or deleted.
    """

    def __init__(
        self,
        client: KubeClient,
        hardware: Informer,
        admission: Admission,
        rules: Sequence[AdmissionRule],
        record: Recorder,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`admission` decides by `rules`; `clock` returns monotonic seconds.

        The event handlers of the inventory must be added to `hardware` before this object is made.
        """
        self._client = client
        self._hardware = hardware
        self._admission = admission
        self._rules = rules
        self._record = record
        self._clock = clock
        self._creations: dict[NamespacedName, _Creation] = {}
        self._rejected: Newest[str, tuple[float, str]] = Newest(MAX_REJECTIONS)
        """The time and the text of the last rejection of a machine's Hardware, by MAC address."""
        self._report_once = OncePer(_REPORT_SECONDS, _MAX_REPORTS)
        self._limited_log = controller_log(log, clock)
        self._created = self._errors = self._displaced = 0
        self._deletions_from = 0.0
        """The time before which nothing is deleted, because the API has refused it."""
        self._not_admitted: Counter[tuple[str]] = Counter()
        self.runtime = Controller(
            "Hardware of a discovered machine",
            self._reconcile,
            retry_first=0.5,
            retry_longest=30.0,
            workers=WORKERS,
            on_error=lambda *_: True,  # `_failed` reports it
        )
        hardware.add_event_handler(lambda new, _old: admission.apply(new, clock()), self._gone)

    # --- called by DHCP; never waits ------------------------------------------------------------------------------

    def is_returning(self, mac: bytes) -> bool:
        """Return True if the MAC address (six bytes) was seen at least a second ago, and note that it was seen."""
        return self._admission.is_returning(mac, self._clock())

    def is_listed(self, mac: bytes) -> bool:
        """Return True if a list of expected machines that counts here has the MAC address (six bytes)."""
        return self._admission.is_listed(mac.hex(":"))

    def has_offer(self, mac: bytes) -> bool:
        """Return True if a REQUEST of the MAC address (six bytes) may admit it, or has admitted it."""
        return self._admission.has_offer(mac.hex(":"))

    def offer(self, candidate: Candidate) -> Decision:
        """Decide about a machine that has sent a DISCOVER. Nothing is created."""
        decision = self._unavailable(candidate) or self._admission.offer(candidate, self._clock())
        return self._counted(decision)

    def request(self, candidate: Candidate, address: IPv4Address) -> Decision:
        """Decide about a machine that has sent a REQUEST for an address, and queue its Hardware if it is admitted."""
        decision = self._unavailable(candidate) or self._admission.request(candidate, address, self._clock())
        if isinstance(decision, Admitted):
            self._queue_creation(candidate.mac)
        for key in self._admission.take_displaced():
            self.runtime.queue.add(key)
        return self._counted(decision)

    def _counted(self, decision: Decision) -> Decision:
        if isinstance(decision, Refused | Waiting):
            self._not_admitted[(decision.reason,)] += 1
        return decision

    def _queue_creation(self, mac: str) -> None:
        admitted = self._admission.pending(mac)
        if admitted is None:
            return
        key = NamespacedName(admitted.rule.osie.namespace, discovered_name(mac))
        self._creations[key] = _Creation(mac)
        self.runtime.queue.forget(key)
        self.runtime.queue.add(key)

    def _unavailable(self, candidate: Candidate) -> Decision | None:
        """Return the decision if the API does not answer, or has rejected the machine; None if it can be admitted."""
        # Before the first list, each machine seems to be unknown. While the API is away, its Hardware may have changed.
        if not self._hardware.has_synced or self._hardware.failing_for:
            return Waiting(
                AdmissionReason.API_AWAY, "the Kubernetes API does not answer; the machine is admitted when it does"
            )
        at, text = self._rejected.get(candidate.mac, (0.0, ""))
        return Refused(AdmissionReason.REJECTED, text) if text and self._clock() - at < REJECTION_SECONDS else None

    def _gone(self, old: Raw) -> None:
        self._admission.remove(old, self._clock())
        for mac in self._admission.take_successors():
            self._queue_creation(mac)

    # --- creation -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Create Hardware until cancelled."""
        try:
            await self.runtime.run()
        finally:
            self.runtime.queue.shut_down()

    async def _reconcile(self, key: NamespacedName) -> Result:
        return await (self._delete(key) if self._admission.is_leaving(key) else self._create(key))

    async def _create(self, key: NamespacedName) -> Result:
        creation = self._creations.get(key)
        admitted = self._admission.pending(creation.mac) if creation is not None else None
        if creation is None or admitted is None:
            self._creations.pop(key, None)  # the Hardware has arrived, or another one has the MAC address
            return DONE
        mac, rule, address = creation.mac, admitted.rule, admitted.address
        if creation.is_created:
            # The informer has not delivered it: it was deleted at once, or this edge does not follow its namespace.
            self._drop(key, creation)
            return DONE
        try:
            await self._client.create(HARDWARE, discovered_hardware(mac, rule, address), key.namespace)
        except ConflictError:
            log.debug("Hardware %s exists: another edge has admitted the machine", key)
        except ApiError as error:
            return self._failed(key, creation, admitted, error)
        else:
            self._created += 1
            line = f"admitted by rule {rule.name}: Hardware {key} created with address {address}, OSIE {rule.osie}"
            self._record(mac, Step.SEEN, Outcome.OK, line, address=str(address), rule=rule.name)
        creation.is_created = True
        return Result(ARRIVAL_SECONDS)

    def _failed(self, key: NamespacedName, creation: _Creation, admitted: Admitted, error: ApiError) -> Result:
        """Try another address, or raise `error` for another attempt, or give up until the next packet."""
        mac, now = creation.mac, self._clock()
        self._errors += 1
        if error.status == 422 and str(admitted.address) in error.message and creation.addresses < MAX_ADDRESSES:
            creation.addresses += 1
            if self._admission.reject_address(mac, now) is not None:
                return Result(0.0)
        text = f"the API has not created its Hardware {key}: {printable(str(error))[:_MAX_TEXT]}"
        text = f"{text}; {_REMEDIES.get(error.status, _OTHER_REMEDY)}"
        if self._report_once.due(mac, now):
            self._record(mac, Step.SEEN, Outcome.FAILED, text, reason="NotCreated")
        self._limited_log.warning("a discovered machine is not registered: %s", text, key=error.status)
        is_final = error.status == 422
        if not is_final and self.runtime.queue.num_requeues(key) + 1 < ATTEMPTS:
            raise error
        self._rejected[mac] = now, text
        self._drop(key, creation)
        return DONE

    # --- deletion -------------------------------------------------------------------------------------------------

    async def _delete(self, key: NamespacedName) -> Result:
        """Delete a Hardware that gives way to another machine, unless it has changed since it was chosen."""
        hardware, now = self._hardware.get(*key), self._clock()
        if hardware is None or "deletionTimestamp" in hardware["metadata"]:
            return DONE
        if now < self._deletions_from:
            self._admission.keep(key)
            return DONE
        version = {name: hardware["metadata"][name] for name in ("uid", "resourceVersion")}
        try:
            await self._client.delete(HARDWARE, key.name, key.namespace, preconditions=version)
        except NotFoundError:
            return DONE
        except ConflictError:
            self._admission.keep(key)  # the machine goes on, or an operator has changed it
            return DONE
        except ApiError as error:
            self._admission.keep(key)
            self._errors += 1
            self._deletions_from = now + RETRY_DELETION_SECONDS
            text = f"Hardware {key} can't give way to another machine: {printable(str(error))[:_MAX_TEXT]}"
            self._limited_log.warning("%s; %s", text, _REMEDIES.get(error.status, _OTHER_REMEDY), key=error.status)
            return DONE
        self._displaced += 1
        text = f"its Hardware {key} is deleted, because it makes no progress and others wait for an address"
        for mac in as_mapping(as_mapping(hardware.get("spec")).get("networkInterfaces")):
            self._record(mac, Step.SEEN, Outcome.WARNING, text, reason="Displaced")
        return DONE

    def _drop(self, key: NamespacedName, creation: _Creation) -> None:
        del self._creations[key]
        self._admission.give_back(creation.mac)

    # --- metrics --------------------------------------------------------------------------------------------------

    def metrics(self) -> Iterator[Metric]:
        """Yield the counts of admissions for one scrape."""
        yield counter("tinkedge_discovery_admitted", "Hardware created for unknown machines.", [], {(): self._created})
        text = "DISCOVERs and REQUESTs of unknown machines that got no address, or not yet, by reason."
        yield counter("tinkedge_discovery_not_admitted", text, ["reason"], self._not_admitted)
        text = "Failed attempts to create the Hardware of an admitted machine, or to delete that of a silent one."
        yield counter("tinkedge_discovery_errors", text, [], {(): self._errors})
        text = "Discovered Hardware that was deleted because its machine made no progress and others waited."
        yield counter("tinkedge_discovery_displaced", text, [], {(): self._displaced})
        text = "Discovered Hardware whose machines have not sent an inventory."
        yield gauge("tinkedge_discovery_waiting", text, [], {(): self._admission.silent})
        now, text = self._clock(), "Free addresses of a rule's range."
        free = {(rule.name,): float(self._admission.free(rule, now)) for rule in self._rules}
        yield gauge("tinkedge_discovery_free_addresses", text, ["rule"], free)
