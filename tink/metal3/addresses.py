"""Which addresses a host's Hardware may have: those that no other Hardware has, of whatever namespace.

Whoever may write hosts in one namespace could take over a machine of another, or switch it off: of two Hardware that
claim one MAC or IPv4 address the edge serves neither (`edge.machines.inventory`). The admission webhook refuses the
second, where there is one; this does so by itself. What a Hardware has already stays, whoever wanted it first. Fed by
the informer of Hardware, so it knows of those of the namespaces that are followed.
"""

from __future__ import annotations

from collections.abc import Callable, Set

from tink.api.v1alpha2 import Raw
from tink.controller.webhooks.claims import Claim, Claims, Conflict, Key, Kind, claims_of


class Addresses:
    """Belongs to one event loop. `elapsed` gives the seconds of a clock that nobody sets."""

    def __init__(self, elapsed: Callable[[], float]) -> None:
        self._elapsed = elapsed
        self._claims = Claims()
        self._of: dict[Key, set[Claim]] = {}
        self._waiting: dict[Claim, set[Key]] = {}
        """Hosts that want an address which another has."""
        self._wanted: dict[Key, set[Claim]] = {}
        """The same, the other way."""

    def apply(self, hardware: Raw) -> set[Key]:
        """Take in a Hardware that was added or changed; the hosts that waited for what it has given up."""
        key = _key(hardware)
        self._claims.apply(hardware)
        now = set(claims_of(hardware))
        before = self._of.get(key, set())
        self._of[key] = now
        return self._waiting_for(before - now)

    def remove(self, hardware: Raw) -> set[Key]:
        """Forget a Hardware that is gone; the hosts that waited for what it had."""
        self._claims.remove(hardware)
        return self._waiting_for(self._of.pop(_key(hardware), set()))

    def claim(self, key: Key, wanted: Raw, hardware: Raw | None) -> list[Conflict]:
        """What of the addresses of `wanted` others have, in the order of the fields; if nothing, they are its own from
        now on. `hardware` is what it is now."""
        had = claims_of(hardware)
        new = {claim: path for claim, path in claims_of(wanted).items() if claim not in had}
        conflicts = self._claims.conflicts(key, new, self._elapsed())
        self._wait(key, {conflict.claim for conflict in conflicts})
        left = {claim: path for claim, path in new.items() if claim not in self._wanted.get(key, ())}
        if not any(conflict.claim[0] is Kind.MAC for conflict in conflicts):
            self._claims.admitted(key, left, self._elapsed())
        return conflicts

    def _wait(self, key: Key, claims: set[Claim]) -> None:
        for claim in self._wanted.pop(key, set()):
            waiting = self._waiting[claim]
            waiting.discard(key)
            if not waiting:
                del self._waiting[claim]
        if claims:
            self._wanted[key] = claims
        for claim in claims:
            self._waiting.setdefault(claim, set()).add(key)

    def _waiting_for(self, claims: set[Claim]) -> set[Key]:
        return {key for claim in claims for key in self._waiting.get(claim, ())}

    def forget(self, key: Key) -> None:
        """The host is gone."""
        self._wait(key, set())


def without_ip(hardware: Raw, addresses: Set[str]) -> None:
    """Take these addresses out of a Hardware that is to be applied, with what goes with each; its name stays."""
    for mac, interface in hardware["spec"]["networkInterfaces"].items():
        dhcp = interface.get("dhcp", {})
        if dhcp.get("ip") in addresses:
            kept = {key: value for key, value in dhcp.items() if key == "hostname"}
            hardware["spec"]["networkInterfaces"][mac] = {**interface, "dhcp": kept}


def _key(hardware: Raw) -> Key:
    return hardware["metadata"].get("namespace", ""), hardware["metadata"]["name"]
