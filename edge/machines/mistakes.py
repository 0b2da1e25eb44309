"""Writes the condition `Misconfigured` of a Hardware with a mistake (`tink.mistakes` detects them).

A Hardware is checked after a change of itself, of an OSIE or of this edge's networks. A condition that has to change is
written a moment later, after another check, so that objects that are applied together are checked together. Only a
Hardware with a mistake gets the condition. It becomes False when the mistake is corrected.

After the start, all Hardware are checked once, when the API has listed them: then the number of conditions and the
networks behind relays are known, and the checks do not delay the list.

Several edges check the same Hardware. An edge that is not on a machine's network sets the status Unknown, because
another edge or a relay may be. An edge that knows the network sets the status False and names the network in the
message. All edges then accept the network, even after a restart. A condition about another edge's own address is left
alone.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from ipaddress import IPv4Network
from typing import Any

from edge.machines.conditions import Condition, StatusWriter, condition, condition_of, differs, write
from edge.machines.inventory import Machine
from tink.api.mistakes import (
    Mistake,
    NetworkSet,
    Reason,
    Site,
    network_of,
    osie_mistakes,
)
from tink.api.v1alpha2 import ConditionStatus, Raw, as_mapping
from tink.kube.cache import Informer
from tink.kube.client import KubeClient, NotFoundError
from tink.kube.objects import NamespacedName
from tink.limits import Newest
from tink.mistakes import hardware_mistakes

log = logging.getLogger(__name__)

MISCONFIGURED = "Misconfigured"
CORRECTED = "Mended"
NETWORK_KNOWN = "NetworkKnown"

MAX_SHOWN = 4096
"""Maximum number of Hardware with the condition in the whole API; further mistakes are only logged."""
MAX_RELAYED = 1024
SETTLE_SECONDS = 1.0
LISTING_SECONDS = 120.0
"""Maximum time that the first checks wait for the lists of Hardware and OSIEs, because the API may be away."""
WRITES_PER_SECOND = 50.0
"""Maximum rate of one edge: MAX_SHOWN conditions after an import of Hardware are 80 s of writes."""
_TURN_SECONDS = 0.002
"""Seconds of checks between two turns of the event loop."""
_made = partial(condition, MISCONFIGURED)
_KNOWN = re.compile(r"(\d+\.\d+\.\d+\.\d+/\d+) is (?:reached through a relay|a network of )")


class MistakeWriter(StatusWriter):
    """Writes the condition Misconfigured."""

    def __init__(
        self,
        client: KubeClient,
        hardware: Informer,
        osies: Informer | None,
        site: Callable[[], Site],
        *,
        settle_seconds: float = SETTLE_SECONDS,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        """`site()` returns the known networks; its `relayed` come from this writer. `elapsed` is a monotonic clock."""
        super().__init__(client, f"its condition {MISCONFIGURED}", per_second=WRITES_PER_SECOND, elapsed=elapsed)
        self._hardware = hardware
        self._osies = osies
        self._site = site
        self._settle_seconds = settle_seconds
        self._shown: set[NamespacedName] = set()
        """The Hardware that have the condition, or will have it when it is written."""
        self._relayed: Newest[IPv4Network, None] = Newest(MAX_RELAYED)
        self._logged: Newest[IPv4Network, None] = Newest(MAX_RELAYED)
        self._seen_networks: tuple[object, ...] = ()
        self._behind: dict[NamespacedName, None] = {}
        """The Hardware to check."""
        self._is_behind = asyncio.Event()
        self._is_listed = False  # True from the first check on
        hardware.add_event_handler(self._changed, self._gone)
        if osies is not None:
            osies.add_event_handler(self._osie_changed, self._osie_changed)

    @property
    def relayed(self) -> tuple[IPv4Network, ...]:
        """The networks behind relays that this edge or another one has heard."""
        return tuple(self._relayed)

    # --- changes; never wait --------------------------------------------------------------------------------

    def _changed(self, new: Raw, old: Raw | None) -> None:
        current = condition_of(new, MISCONFIGURED)
        if current.get("status") in (ConditionStatus.TRUE, ConditionStatus.UNKNOWN):
            self._shown.add(NamespacedName.of(new))
        elif current.get("reason") == NETWORK_KNOWN and (match := _KNOWN.match(str(current.get("message", "")))):
            with suppress(ValueError):  # Other clients can write a status, too.
                self._relayed[IPv4Network(match[1])] = None
        # Nothing is compared before the first checks, because they are of all Hardware.
        if self._is_listed and (old is None or _checked_part(new) != _checked_part(old)):
            self._look_at_soon((NamespacedName.of(new),))

    def networks_changed(self) -> None:
        """Handle a change of this edge's networks: check the Hardware that it may concern."""
        site = self._site()
        seen = (site.networks, site.addresses)
        if seen != self._seen_networks:
            self._look_at_soon(self._hardware)
        self._seen_networks = seen

    def relay_heard(self, machine: Machine, relay: str) -> None:
        """Record a relay (dotted address) for the network of this machine, which is not one of this edge's."""
        dhcp = machine.interface.dhcp
        at = network_of({"ip": dhcp.ip, "netmask": dhcp.netmask}) if dhcp is not None else None
        if at is None or at.network in self._relayed:
            return
        self._relayed[at.network] = None
        log.info("%s is reached through a relay, %s", at.network, relay)
        self._look_at_soon(self._shown)  # A Hardware without a mistake gets none by this.

    def _look_at_soon(self, keys: Iterable[NamespacedName]) -> None:
        """Queue these Hardware for checks in short turns (`run`): there may be many, and DHCP is served meanwhile."""
        if self._is_listed:  # the first checks are of all Hardware anyway
            self._behind |= dict.fromkeys(keys)
            self._is_behind.set()

    async def run(self) -> None:
        """Check queued Hardware and write conditions until cancelled."""
        looking = asyncio.ensure_future(self._look_again())
        try:
            await super().run()
        finally:
            looking.cancel()

    async def _look_again(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LISTING_SECONDS):
                for informer in filter(None, (self._hardware, self._osies)):
                    await informer.wait_for_cache_sync()
        self._is_listed = True
        self._look_at_soon(self._hardware)
        while True:
            await self._is_behind.wait()
            self._is_behind.clear()
            while self._behind:
                site = self._site()
                until = time.perf_counter() + _TURN_SECONDS
                while self._behind and time.perf_counter() < until:
                    key, _ = self._behind.popitem()
                    self._check(key, site)
                await asyncio.sleep(0)

    def _check(self, key: NamespacedName, site: Site) -> None:
        """Queue a Hardware for writing if its condition has to change."""
        try:
            if (obj := self._hardware.get(*key)) is not None and self._wanted(key, obj, site) is not None:
                self._queue.add_after(key, self._settle_seconds)
        except Exception:
            # An error in this program for one Hardware must not affect the others.
            log.exception("Hardware %s: its mistakes are not checked", key)

    def _gone(self, old: Raw) -> None:
        self._shown.discard(NamespacedName.of(old))

    def _osie_changed(self, new: Raw, old: Raw | None = None) -> None:
        if old is not None and osie_mistakes(old) == osie_mistakes(new):
            return
        self._look_at_soon(self._hardware)

    # --- writing --------------------------------------------------------------------------------------------------

    async def _write(self, key: NamespacedName) -> None:
        await self._turn()
        obj = self._hardware.get(*key)
        wanted = self._wanted(key, obj, self._site()) if obj is not None else None
        if obj is not None and wanted is not None:
            self._count_write()
            with suppress(NotFoundError):
                await write(self._client, obj, wanted, time.time())

    def _wanted(self, key: NamespacedName, obj: Raw, site: Site) -> Condition | None:
        """Return the condition to write, or None if the current one stays."""
        current = condition_of(obj, MISCONFIGURED)
        found = hardware_mistakes(obj, site, self._osies.get if self._osies is not None else None)
        self._log_unknown_networks(key, obj, site, found)
        if self._is_anothers(obj, current, found, site):
            return None
        if not found:
            self._shown.discard(key)
            if not current or current.get("status") == ConditionStatus.FALSE:
                return None
            return self._cleared(obj, current, site)
        if key not in self._shown and len(self._shown) >= MAX_SHOWN:
            return None
        self._shown.add(key)
        certain = any(one.reason is not Reason.NETWORK_NOT_SERVED for one in found)
        status = ConditionStatus.TRUE if certain else ConditionStatus.UNKNOWN
        made = _made(status, found[0].reason, "; ".join(map(str, found)))
        return made if differs(current, made) else None

    def _cleared(self, obj: Raw, current: Condition, site: Site) -> Condition:
        """Return the condition without a mistake: the network is known, or the mistake is corrected."""
        if current.get("reason") == Reason.NETWORK_NOT_SERVED:
            relayed, here = NetworkSet(self._relayed), NetworkSet(site.networks)
            for network in _networks(obj):
                if relayed.overlaps(network):
                    return _made(ConditionStatus.FALSE, NETWORK_KNOWN, f"{network} is reached through a relay")
                if here.overlaps(network):
                    return _made(ConditionStatus.FALSE, NETWORK_KNOWN, f"{network} is a network of {site.name}")
        return _made(ConditionStatus.FALSE, CORRECTED, "the Hardware has no mistake")

    def _is_anothers(self, obj: Raw, current: Condition, found: list[Mistake], site: Site) -> bool:
        """Return True if the condition is another edge's about its own address, and still applies."""
        message = str(current.get("message", ""))
        if current.get("status") != ConditionStatus.TRUE or current.get("reason") != Reason.SERVER_ADDRESS:
            return False
        if any(one.reason is Reason.SERVER_ADDRESS for one in found) or f"address of {site.name} itself" in message:
            return False
        return any(f" {address} is the address of " in message for address in _addresses(obj))

    def _log_unknown_networks(self, key: NamespacedName, obj: Raw, site: Site, found: list[Mistake]) -> None:
        """Log each network once that no edge serves as far as this edge knows."""
        if all(one.reason is not Reason.NETWORK_NOT_SERVED for one in found):
            return
        for network in _networks(obj):
            if network in self._logged or site.reachable.overlaps(network):
                continue
            self._logged[network] = None
            log.info(
                "Hardware %s, and maybe others, has an address in %s, which is no network of this edge: only machines "
                "behind a relay can use it, and this edge has received no packet from such a relay yet",
                key, network,
            )  # fmt: skip


def _checked_part(obj: Raw) -> tuple[object, ...]:
    """Return what the condition of a Hardware depends on."""
    current = condition_of(obj, MISCONFIGURED)
    return (
        obj.get("spec"),
        obj["metadata"].get("annotations"),
        *(current.get(field) for field in ("status", "reason", "message")),
    )


def _interfaces(obj: Raw) -> list[dict[str, Any]]:
    interfaces = as_mapping(as_mapping(obj.get("spec")).get("networkInterfaces"))
    return [one for one in interfaces.values() if isinstance(one, dict)]


def _networks(obj: Raw) -> list[IPv4Network]:
    found = [network_of(interface.get("dhcp")) for interface in _interfaces(obj)]
    return list(dict.fromkeys(at.network for at in found if at is not None))


def _addresses(obj: Raw) -> list[str]:
    dhcp = [interface.get("dhcp") for interface in _interfaces(obj)]
    found = [str(one["ip"]) for one in dhcp if isinstance(one, dict) and one.get("ip")]
    ipv6 = [as_mapping(as_mapping(one).get("ipv6")).get("address") for one in dhcp]
    return found + [str(address) for address in ipv6 if address]
