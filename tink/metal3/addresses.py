"""Decides which addresses a host's Hardware may have: those that no other Hardware of any namespace has.

Otherwise a user who may write hosts in one namespace could take over or disable a machine of another namespace: if two
Hardware claim one MAC or IPv4 address, the edge serves neither (`edge.machines.inventory`). The admission webhook
rejects the second Hardware, if there is a webhook; this module works without one. A Hardware keeps the addresses that
it has until it is being deleted, even if another host claimed them first.

The informer of Hardware feeds it, so it knows the Hardware of the followed namespaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

from tink.api.annotations import AGENT_ID_ANNOTATION
from tink.api.v1alpha2 import Raw
from tink.kube.cache import Index
from tink.kube.objects import NamespacedName
from tink.webhooks import Claim, ClaimKind, Claims, Conflict, UsedAddress, canonical, claims_of, is_terminating


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

    def claim(self, key: NamespacedName, wanted: Raw, hardware: Raw | None) -> list[Conflict | UsedAddress]:
        """Claim the addresses of `wanted` and return the conflicts, in the order of the fields.

        A conflict is an address of another Hardware, or one that machines of other namespaces use as gateway and the
        like. If there are none, the Hardware has the addresses from now on. `hardware` is its present state.
        """
        had = claims_of(hardware)
        new = {claim: path for claim, path in claims_of(wanted).items() if claim not in had}
        terminating = is_terminating(hardware)
        conflicts: list[Conflict | UsedAddress] = [
            *self._claims.conflicts(key, new, self._elapsed(), terminating=terminating)
        ]
        taken = {conflict.claim for conflict in conflicts}
        conflicts += [each for each in self._claims.used(key, new) if each.is_foreign and each.claim not in taken]
        taken = {conflict.claim for conflict in conflicts}
        self._waiting.set(key, {each.held if isinstance(each, Conflict) else each.claim for each in conflicts})
        if not any(kind is ClaimKind.MAC for kind, _ in taken) and not terminating:
            free = {claim: path for claim, path in new.items() if claim not in taken}
            self._claims.admitted(key, free, self._elapsed())
        return conflicts

    def forget(self, key: NamespacedName) -> None:
        """The host is gone."""
        self._waiting.set(key, ())

    def _waiting_for(self, claims: Iterable[Claim]) -> set[NamespacedName]:
        return {key for claim in claims for key in self._waiting.keys(claim)}


def without(hardware: Raw, claims: Set[Claim]) -> None:
    """Remove these IP addresses and agent ids from a Hardware that is to be applied.

    An address is removed with all fields that need it; the interface's host name stays.
    """
    for mac, interface in hardware["spec"]["networkInterfaces"].items():
        dhcp = interface.get("dhcp", {})
        ipv6 = dhcp.get("ipv6")
        if ipv6 is not None and (ClaimKind.IP, canonical(ipv6["address"])) in claims:
            dhcp = {key: value for key, value in dhcp.items() if key != "ipv6"}
        if (ClaimKind.IP, dhcp.get("ip")) in claims:
            dhcp = {key: value for key, value in dhcp.items() if key in ("hostname", "ipv6")}
        if dhcp != interface.get("dhcp", {}):
            hardware["spec"]["networkInterfaces"][mac] = {**interface, "dhcp": dhcp}
    if any(kind is ClaimKind.AGENT_ID for kind, _ in claims):
        del hardware["metadata"]["annotations"][AGENT_ID_ANNOTATION]
