"""Finds the Hardware of an agent by the agent's id: the MAC of an interface, the Hardware's name, or its annotation.

The id proves nothing; `auth` decides which of the Hardware with an id the agent may act for. The MAC of an interface
comes first, then NAMESPACE/NAME: no other Hardware's name or annotation makes these ambiguous. A Hardware that is being
deleted yields its MACs to others.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pydantic import ValidationError

from tink.api.annotations import AGENT_ID_ANNOTATION
from tink.api.v1alpha2 import Hardware, Raw
from tink.kube.objects import NamespacedName
from tink.server.peer import spelled

MAX_AGENT_ID = 320
"""Characters: a namespace, a slash and a name, and no more."""


class UnknownAgentError(LookupError):
    """No Hardware has this id, or more than one; the message says which and what to do."""


@dataclass(frozen=True, slots=True)
class _Identity:
    key: NamespacedName
    macs: tuple[str, ...]
    addresses: frozenset[str]
    given: str = ""
    """By the annotation."""
    terminating: bool = False


class AgentDirectory:
    """All ids that agents may use. Fed by an informer of Hardware; a look-up is a dictionary access."""

    def __init__(self, scope: str = "") -> None:
        """`scope`: which Hardware it has, for messages; empty: all."""
        self._scope = f" (only Hardware {scope} counts here)" if scope else ""
        self._machines: dict[NamespacedName, _Identity] = {}
        self._by_mac: dict[str, set[NamespacedName]] = {}
        self._by_name: dict[str, set[NamespacedName]] = {}
        self._by_annotation: dict[str, set[NamespacedName]] = {}

    def apply(self, obj: Raw) -> None:
        """Take in a Hardware that was added or changed; one that can't be read has no agents."""
        self.remove(obj)
        try:
            hardware = Hardware.model_validate(obj)
        except ValidationError:
            return  # the API's schema refuses these; whoever stored one nevertheless hears of it from the edge
        key = NamespacedName(hardware.metadata.namespace, hardware.metadata.name)
        interfaces = hardware.spec.network_interfaces
        reserved = [interface.dhcp for interface in interfaces.values() if interface.dhcp is not None]
        addresses = frozenset(dhcp.ip for dhcp in reserved if dhcp.ip is not None)
        addresses |= {spelled(dhcp.ipv6.address) for dhcp in reserved if dhcp.ipv6 is not None}
        given = hardware.metadata.annotations.get(AGENT_ID_ANNOTATION, "").strip()
        given = given if given.isascii() and len(given) <= MAX_AGENT_ID else ""
        terminating = hardware.metadata.deletion_timestamp is not None
        identity = _Identity(key, tuple(mac.lower() for mac in interfaces), addresses, given, terminating)
        self._machines[key] = identity
        for index, ids in self._indexes(identity):
            for agent_id in ids:
                index.setdefault(agent_id, set()).add(key)

    def remove(self, obj: Raw) -> None:
        """Forget a Hardware."""
        identity = self._machines.pop(NamespacedName.of(obj), None)
        if identity is None:
            return
        for index, ids in self._indexes(identity):
            for agent_id in ids:
                index[agent_id].discard(identity.key)
                if not index[agent_id]:
                    del index[agent_id]

    def _indexes(self, identity: _Identity) -> tuple[tuple[dict[str, set[NamespacedName]], set[str]], ...]:
        names = {identity.key.name.lower(), str(identity.key).lower()}
        given = {identity.given.lower()} if identity.given else set()
        return (self._by_mac, set(identity.macs)), (self._by_name, names), (self._by_annotation, given)

    def find(self, agent_id: str) -> NamespacedName:
        """The Hardware of an agent: by MAC, name, namespace/name, or annotation. Raises UnknownAgentError."""
        return self.only(agent_id, self.named(agent_id))

    def only(self, agent_id: str, keys: Collection[NamespacedName]) -> NamespacedName:
        """Return the one Hardware of `keys`, which all have this id. Raises UnknownAgentError.

        Of several, return the only one that is not being deleted, or the only one of these with that name.
        """
        keys = {key for key in keys if not self._machines[key].terminating} or keys
        by_name = self._by_name.get(agent_id.lower(), set()).intersection(keys)
        keys = by_name if len(by_name) == 1 else keys
        if len(keys) == 1:
            return next(iter(keys))
        if not keys:
            raise UnknownAgentError(
                f"no Hardware has the MAC address or name {agent_id!r}{self._scope}: "
                "create one, or correct the agent's id"
            )
        names = ", ".join(sorted(map(str, keys)))
        raise UnknownAgentError(f"the agent id {agent_id!r} fits several Hardware, so it is none: {names}")

    def named(self, agent_id: str, *, names_first: bool = False) -> frozenset[NamespacedName]:
        """Return all Hardware with that id, ignoring the case of ASCII letters.

        The case of other letters counts: some of them have an ASCII letter as their lower case.

        If some have the id as MAC, only these count; next, the one of that namespace and name; else those with that
        name or annotation. `names_first`: an annotation counts only if no Hardware has the name.
        """
        if not agent_id.isascii():
            return frozenset()
        spelled = agent_id.lower()
        if keys := self._by_mac.get(spelled):
            return frozenset(key for key in keys if not self._machines[key].terminating) or frozenset(keys)
        keys = self._by_name.get(spelled, set())
        if keys and (names_first or "/" in spelled):
            return frozenset(keys)
        return frozenset(keys | self._by_annotation.get(spelled, set()))

    def at(self, address: str) -> NamespacedName | None:
        """The one Hardware that gives its machine this IP address. It looks at all of them: ask seldom."""
        found = [identity for identity in self._machines.values() if address in identity.addresses]
        found = [identity for identity in found if not identity.terminating] or found
        return found[0].key if len(found) == 1 else None

    def is_known(self, key: NamespacedName) -> bool:
        """Whether there is such a Hardware."""
        return key in self._machines

    def macs(self, key: NamespacedName) -> tuple[str, ...]:
        """The MACs of a Hardware's interfaces, in lower case with colons; none of an unknown one."""
        identity = self._machines.get(key)
        return identity.macs if identity is not None else ()

    def addresses(self, key: NamespacedName) -> frozenset[str]:
        """The IP addresses that the Hardware gives to its machine; none of an unknown one."""
        identity = self._machines.get(key)
        return identity.addresses if identity is not None else frozenset()

    def id_of(self, key: NamespacedName) -> str:
        """What its agent calls itself, as far as is known without it: as the annotation says, by its first MAC, or by
        name."""
        identity = self._machines.get(key)
        if identity is not None and identity.given:
            return identity.given
        return identity.macs[0] if identity is not None and identity.macs else key.name
