"""Which addresses a host's Hardware may have: those that no other Hardware has, of whatever namespace.

Whoever may write hosts in one namespace could take over a machine of another, or switch it off: of two Hardware that
claim one MAC or IPv4 address the edge serves neither (`edge.machines.inventory`). The admission webhook refuses the
second, where there is one; this does so by itself. What a Hardware has already stays, whoever wanted it first. Fed by
the informer of Hardware, so it knows of those of the namespaces that are followed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

from tink.api.v1alpha2 import Raw
from tink.kube.cache import Index
from tink.kube.objects import NamespacedName
from tink.webhooks import Claim, ClaimKind, Claims, Conflict, claims_of


class Addresses:
    """Belongs to one event loop. `elapsed` gives the seconds of a clock that nobody sets."""

    def __init__(self, elapsed: Callable[[], float]) -> None:
        self._elapsed = elapsed
        self._claims = Claims()
        self._waiting: Index[NamespacedName, Claim] = Index()
        """Hosts, by the addresses that they want and another has."""

    def apply(self, hardware: Raw) -> set[NamespacedName]:
        """Take in a Hardware that was added or changed; the hosts that waited for what it has given up."""
        return self._waiting_for(self._claims.apply(hardware))

    def remove(self, hardware: Raw) -> set[NamespacedName]:
        """Forget a Hardware that is gone; the hosts that waited for what it had."""
        return self._waiting_for(self._claims.remove(hardware))

    def claim(self, key: NamespacedName, wanted: Raw, hardware: Raw | None) -> list[Conflict]:
        """What of the addresses of `wanted` others have, in the order of the fields; if nothing, they are its own from
        now on. `hardware` is what it is now."""
        had = claims_of(hardware)
        new = {claim: path for claim, path in claims_of(wanted).items() if claim not in had}
        conflicts = self._claims.conflicts(key, new, self._elapsed())
        taken = {conflict.claim for conflict in conflicts}
        self._waiting.set(key, taken)
        if not any(kind is ClaimKind.MAC for kind, _ in taken):
            free = {claim: path for claim, path in new.items() if claim not in taken}
            self._claims.admitted(key, free, self._elapsed())
        return conflicts

    def forget(self, key: NamespacedName) -> None:
        """The host is gone."""
        self._waiting.set(key, ())

    def _waiting_for(self, claims: Iterable[Claim]) -> set[NamespacedName]:
        return {key for claim in claims for key in self._waiting.keys(claim)}


def without_ip(hardware: Raw, addresses: Set[str]) -> None:
    """Take these addresses out of a Hardware that is to be applied, with what goes with each; its name stays."""
    for mac, interface in hardware["spec"]["networkInterfaces"].items():
        dhcp = interface.get("dhcp", {})
        if dhcp.get("ip") in addresses:
            kept = {key: value for key, value in dhcp.items() if key == "hostname"}
            hardware["spec"]["networkInterfaces"][mac] = {**interface, "dhcp": kept}
