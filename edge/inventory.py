"""Hardware indexed by MAC and by IPv4 address: how every server at the edge recognises a machine.

Fed by an informer of Hardware objects (`tink.kube`), one event at a time; read synchronously by DHCP, TFTP, HTTP and
the metadata service. A look-up is a dictionary access, whatever the number of machines.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import ValidationError

from tink.api.v1alpha2 import MAC_PATTERN, Hardware, NetworkInterface, Raw

log = logging.getLogger(__name__)

_MAC = re.compile(MAC_PATTERN)


@dataclass(frozen=True, slots=True)
class Machine:
    """One network interface of one Hardware.

    `mac` is lower case with colons; `ip` is the reserved IPv4 address in dotted form, or None where none is given.
    """

    mac: str
    ip: str | None
    interface: NetworkInterface
    hardware: Hardware

    @property
    def name(self) -> str:
        """The Hardware's name."""
        return self.hardware.metadata.name

    @property
    def namespace(self) -> str:
        """The Hardware's namespace."""
        return self.hardware.metadata.namespace


ChangeHandler = Callable[[str], None]
"""Called with the MAC of a machine that appeared, changed or went."""


class Inventory:
    """The machines this edge knows."""

    def __init__(self) -> None:
        self._by_object: dict[tuple[str, str], tuple[Machine, ...]] = {}
        self._by_mac: dict[str, tuple[Machine, ...]] = {}
        self._by_ip: dict[str, tuple[Machine, ...]] = {}
        self._handlers: list[ChangeHandler] = []

    def __len__(self) -> int:
        return len(self._by_mac)

    def on_change(self, handler: ChangeHandler) -> None:
        """Call `handler(mac)` after every change of what `by_mac(mac)` answers."""
        self._handlers.append(handler)

    def by_mac(self, mac: str) -> Machine | None:
        """The machine with this MAC (lower case, colons); None if none has it, or more than one claims it."""
        return self._only(self._by_mac.get(mac))

    def claimants(self, mac: str) -> tuple[Machine, ...]:
        """All machines whose Hardware claims this MAC: more than one is an operator's mistake."""
        return self._by_mac.get(mac, ())

    def by_ip(self, ip: str) -> Machine | None:
        """The machine with this reserved IPv4 address; None if none has it, or more than one claims it."""
        return self._only(self._by_ip.get(ip))

    def by_name(self, name: str, namespace: str = "default") -> tuple[Machine, ...]:
        """All network interfaces of a Hardware, in the order of the object; empty if there is none of that name."""
        return self._by_object.get((namespace, name), ())

    def machines(self) -> list[Machine]:
        """Every machine, interface by interface."""
        return [machine for machines in self._by_object.values() for machine in machines]

    def apply(self, obj: Raw) -> None:
        """Take in a Hardware that was added or changed. One that can't be read is logged, and its machines go."""
        key = _key(obj)
        try:
            hardware = Hardware.model_validate(obj)
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            log.error("Hardware %s/%s is ignored: %s", *key, problems)
            self._replace(key, ())
            return
        self._replace(key, tuple(_machines(hardware)))

    def remove(self, obj: Raw) -> None:
        """Forget a Hardware that was deleted."""
        self._replace(_key(obj), ())

    @staticmethod
    def _only(found: tuple[Machine, ...] | None) -> Machine | None:
        return found[0] if found is not None and len(found) == 1 else None

    def _replace(self, key: tuple[str, str], new: tuple[Machine, ...]) -> None:
        old = self._by_object.pop(key, ())
        if new:
            self._by_object[key] = new
        for machine in old:
            _discard(self._by_mac, machine.mac, machine)
            if machine.ip is not None:
                _discard(self._by_ip, machine.ip, machine)
        for machine in new:
            self._add(self._by_mac, "MAC", machine.mac, machine)
            if machine.ip is not None:
                self._add(self._by_ip, "IP", machine.ip, machine)
        for mac in {machine.mac: None for machine in (*old, *new)}:
            for handler in self._handlers:
                handler(mac)

    @staticmethod
    def _add(index: dict[str, tuple[Machine, ...]], what: str, value: str, machine: Machine) -> None:
        claimants = (*index.get(value, ()), machine)
        index[value] = claimants
        if len(claimants) > 1:
            names = ", ".join(sorted(f"{m.namespace}/{m.name}" for m in claimants))
            log.error("%s %s is claimed by several Hardware, so none is served: %s", what, value, names)


def _key(obj: Raw) -> tuple[str, str]:
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _discard(index: dict[str, tuple[Machine, ...]], value: str, machine: Machine) -> None:
    rest = tuple(m for m in index[value] if m is not machine)
    if rest:
        index[value] = rest
    else:
        del index[value]


def _machines(hardware: Hardware) -> list[Machine]:
    machines = []
    for mac, interface in hardware.spec.network_interfaces.items():
        if not _MAC.fullmatch(mac):
            log.error(
                "Hardware %s/%s: spec.networkInterfaces[%s] is ignored: not a MAC address in lower case with colons",
                hardware.metadata.namespace,
                hardware.metadata.name,
                mac,
            )
            continue
        ip = interface.dhcp.ip if interface.dhcp is not None else None
        machines.append(Machine(mac=mac, ip=ip, interface=interface, hardware=hardware))
    return machines
