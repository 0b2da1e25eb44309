"""The index of Hardware by MAC and by IP address, with which every server at the edge identifies a machine.

An informer of Hardware objects (`tink.kube`) feeds it, one event at a time. DHCP, TFTP, HTTP and the metadata service
read it synchronously. A look-up is a dictionary access, whatever the number of machines.

If two Hardware claim one address, neither is served. Exception: if one of them is being deleted, the other is served.
Several interfaces of one Hardware may have one IP address (the members of a bond, a card that stands in for another):
each of them is served.

A site may have 100,000 of them. The values that every packet needs are kept ready. The rest of a Hardware is kept
packed, and read only to compile an answer. Soon after a restart a Hardware may still be in the checkpoint only; it is
restored before it is looked up (`recall`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from ipaddress import AddressValueError, IPv6Address
from textwrap import indent

import orjson
from pydantic import ValidationError

from ipxe.binaries import BootPath
from tink.api.annotations import AUTO_DISCOVERED_LABEL, BOOT_PATH_ANNOTATION
from tink.api.v1alpha2 import API_VERSION, Hardware, NetworkInterface, Raw, as_mapping
from tink.discovery.model import condition_of, is_discovered
from tink.kube.cache import ObjectCompressor
from tink.kube.objects import NamespacedName
from tink.limits import Newest
from tink.mac import is_mac

log = logging.getLogger(__name__)

_AT_HAND = 64
"""Number of parsed Hardware that are stored: a booting machine needs several answers that are compiled from it."""

_SERVED_METADATA = ("name", "namespace", "labels", "annotations", "deletionTimestamp")


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """One network interface of one Hardware, as it was when the machine was looked up.

    `mac` is lower case with colons; `ip` is the reserved IPv4 address in dotted form and `ipv6` the IPv6 address in its
    canonical form (RFC 5952), each None if there is none; `boot_path` is the value of the Hardware or None.
    `terminating`: the Hardware is being deleted, and yields to any other one with the same address.
    `is_discovered`: the machine was discovered, and is not approved.
    """

    mac: str
    ip: str | None
    namespace: str
    name: str
    disable_dhcp: bool
    disable_netboot: bool
    boot_path: BootPath | None
    ipv6: str | None
    terminating: bool
    is_discovered: bool
    _packed: bytes = field(repr=False)
    _read: Callable[[bytes], Hardware] = field(repr=False)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The reserved addresses."""
        return tuple(address for address in (self.ip, self.ipv6) if address is not None)

    def is_of_hardware_of(self, other: Machine) -> bool:
        """Return True if both are interfaces of the same Hardware."""
        return (self.name, self.namespace) == (other.name, other.namespace)

    @property
    def hardware(self) -> Hardware:
        """The whole Hardware. It may have to be read first (50 us): for compiling answers, not for each packet."""
        return self._read(self._packed)

    @property
    def interface(self) -> NetworkInterface:
        """The interface in the Hardware; like `hardware`, not for each packet."""
        return self.hardware.spec.network_interfaces[self.mac]


ChangeHandler = Callable[[str], None]
"""Called with the MAC of a machine that appeared, changed or went."""
PowerHandler = Callable[[NamespacedName, str, str], None]
"""Called with a Hardware, the new state of its power and the former one."""

_Index = dict[str, Machine | tuple[Machine, ...]]
"""By MAC or address: one machine, or all that claim it."""


class Inventory:
    """The machines this edge knows."""

    def __init__(self, compressor: ObjectCompressor | None = None) -> None:
        """`compressor` is that of the informer that feeds this, so that there is one copy of each Hardware."""
        self._by_object: dict[NamespacedName, tuple[Machine, ...]] = {}
        self._digests: dict[NamespacedName, int] = {}
        self._by_mac: _Index = {}
        self._by_ip: _Index = {}
        self._handlers: list[ChangeHandler] = []
        self._powers: dict[NamespacedName, str] = {}
        self._power_handlers: list[PowerHandler] = []
        self._differences: dict[NamespacedName, str] = {}
        self._silent: set[NamespacedName] = set()
        """The discovered Hardware whose machines have reported no inventory."""
        self._compressor = compressor or ObjectCompressor()
        self._at_hand: Newest[bytes, Hardware] = Newest(_AT_HAND)
        self._recall: Callable[..., object] | None = None
        self._recalled: frozenset[str] = frozenset()
        """The MACs and addresses of the Hardware that is changing: its handlers need not recall them again."""

    def recall_with(self, recall: Callable[..., object] | None) -> None:
        """Call `recall(*values)` before each look-up by a MAC, an address or NAMESPACE/NAME; None ends that.

        A change calls it once with all MACs and addresses of the Hardware, and not for each look-up of its handlers.
        """
        self._recall = recall

    def __len__(self) -> int:
        """Return the number of MACs."""
        return len(self._by_mac)

    def on_change(self, handler: ChangeHandler) -> None:
        """Call `handler(mac)` after every change of what `by_mac(mac)` answers, or `by_ip` for its address."""
        self._handlers.append(handler)

    def on_power_change(self, handler: PowerHandler) -> None:
        """Call `handler(hardware, power, before)` when the power of a Hardware has changed; see `power`."""
        self._power_handlers.append(handler)

    def power(self, machine: Machine) -> str:
        """Return the state of a machine's power as its BMC reported it last: on, off, unknown; empty without a BMC."""
        return self._powers.get(NamespacedName(machine.namespace, machine.name), "")

    def difference(self, machine: Machine) -> str:
        """Return how a machine differs from the expected one (the condition AsExpected); empty if it does not."""
        return self._differences.get(NamespacedName(machine.namespace, machine.name), "")

    def is_introduced(self, machine: Machine) -> bool:
        """Return False for a discovered machine that has reported no inventory yet."""
        return NamespacedName(machine.namespace, machine.name) not in self._silent

    def by_mac(self, mac: str) -> Machine | None:
        """Return the machine with this MAC (lower case, colons); None if no Hardware has it, or several claim it."""
        if self._recall is not None and mac not in self._recalled:
            self._recall(mac)
        found = self._by_mac.get(mac)
        return found if isinstance(found, Machine) else _sole(found)

    def claimants(self, mac: str) -> tuple[Machine, ...]:
        """Return all machines whose Hardware claims this MAC. More than one is an operator's mistake.

        Hardware that are being deleted are left out if another one claims the MAC.
        """
        if self._recall is not None and mac not in self._recalled:
            self._recall(mac)
        return _rivals(_all(self._by_mac, mac))

    def by_ip(self, ip: str) -> Machine | None:
        """Return the machine with this reserved address, dotted or as RFC 5952 spells it.

        None if no Hardware has the address, or several claim it. Of several interfaces of one Hardware it is the first.
        """
        if self._recall is not None and ip not in self._recalled:
            self._recall(ip)
        found = self._by_ip.get(ip)
        return found if isinstance(found, Machine) else _sole(found)

    def claimants_of_ip(self, ip: str) -> tuple[Machine, ...]:
        """Return all machines whose Hardware reserves this address, with the rules of `claimants`."""
        if self._recall is not None and ip not in self._recalled:
            self._recall(ip)
        return _rivals(_all(self._by_ip, ip))

    def is_served(self, machine: Machine, ip: str) -> bool:
        """Return True if `machine` may have its reserved address `ip`: no other Hardware claims the address."""
        found = self.by_ip(ip)
        return found is not None and found.is_of_hardware_of(machine)

    def sharing(self, machine: Machine, ip: str) -> tuple[Machine, ...]:
        """Return the interfaces of the machine's Hardware that reserve this address."""
        return tuple(each for each in self.claimants_of_ip(ip) if each.is_of_hardware_of(machine))

    def interface_at(self, machine: Machine, ip: str, mac: str | None) -> Machine:
        """Return the interface with this MAC if it shares the address with `machine`, or else `machine`."""
        if mac is None or mac == machine.mac:
            return machine
        return next((each for each in self.sharing(machine, ip) if each.mac == mac), machine)

    def by_name(self, name: str, namespace: str = "default") -> tuple[Machine, ...]:
        """Return the interfaces of a Hardware in the order of the object; empty if the Hardware does not exist."""
        key = NamespacedName(namespace, name)
        if self._recall is not None:
            self._recall(str(key))
        machines = self._by_object.get(key, ())
        if not any(machine.terminating for machine in machines):
            return machines
        # Of a Hardware that is being deleted, without those whose MAC another Hardware has.
        return tuple(machine for machine in machines if machine in self.claimants(machine.mac))

    def machines(self) -> list[Machine]:
        """Return every machine, interface by interface; soon after a restart without those that were not restored."""
        return [machine for machines in self._by_object.values() for machine in machines]

    def apply(self, obj: Raw) -> None:
        """Take in a Hardware that was added or changed. One that can't be read is logged, and its machines go."""
        key = NamespacedName.of(obj)
        self._take_power(key, str(as_mapping(obj.get("status")).get("power") or ""))
        if difference := _difference(obj):
            self._differences[key] = difference
        else:
            self._differences.pop(key, None)
        is_silent = is_discovered(obj) and not as_mapping(obj.get("status")).get("inventory")
        (self._silent.add if is_silent else self._silent.discard)(key)
        served = _served(obj)
        digest = hash(orjson.dumps(served))
        # No answer depends on the change (of the status, say).
        if self._digests.get(key) == digest:
            return
        self._digests[key] = digest
        try:
            hardware = Hardware.model_validate(served)
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            log.error("Hardware %s/%s is ignored: %s", *key, problems)
            self._replace(key, ())
            return
        packed = self._compressor.compress(obj)
        self._at_hand[packed] = hardware
        self._replace(key, tuple(self._machines(key, hardware, packed)))

    def preview(self, obj: Raw) -> Machine:
        """Return the first machine of a Hardware that is not stored: as `by_mac` would return it.

        Raises ValidationError.
        """
        hardware = Hardware.model_validate(_served(obj))
        (machine, *_) = self._machines(NamespacedName.of(obj), hardware, b"")
        return replace(machine, _read=lambda _packed: hardware)

    def remove(self, obj: Raw) -> None:
        """Forget a Hardware that was deleted."""
        key = NamespacedName.of(obj)
        self._digests.pop(key, None)
        self._powers.pop(key, None)
        self._differences.pop(key, None)
        self._silent.discard(key)
        self._replace(key, ())

    def _take_power(self, key: NamespacedName, power: str) -> None:
        before = self._powers.get(key, "")
        if power == before:
            return
        if power:
            self._powers[key] = sys.intern(power)
        else:
            del self._powers[key]
        for handler in self._power_handlers:
            handler(key, power, before)

    # --- the indexes --------------------------------------------------------------------------------------------

    def _replace(self, key: NamespacedName, new: tuple[Machine, ...]) -> None:
        old = self._by_object.pop(key, ())
        if new:
            self._by_object[key] = new
        addresses = {address for machine in (*old, *new) for address in machine.addresses}
        # A machine whose address is claimed by another Hardware is affected without a change of its own.
        rivals = [machine for ip in addresses for machine in _all(self._by_ip, ip)]
        for machine in old:
            _discard(self._by_mac, machine.mac, machine)
            for address in machine.addresses:
                _discard(self._by_ip, address, machine)
        for machine in new:
            _add(self._by_mac, "MAC", machine.mac, machine)
            for address in machine.addresses:
                _add(self._by_ip, "IP", address, machine)
        before = self._recalled
        if self._recall is not None:
            values = addresses.union(machine.mac for machine in (*old, *new))
            self._recall(*values)
            self._recalled = frozenset(values)
        for mac in dict.fromkeys(machine.mac for machine in (*old, *new, *rivals)):
            for handler in self._handlers:
                try:
                    handler(mac)
                except Exception:
                    # An error for one machine must not affect the others.
                    log.exception("a handler failed for the machine %s", mac)
        self._recalled = before

    # --- reading Hardware ---------------------------------------------------------------------------------------

    def _machines(self, key: NamespacedName, hardware: Hardware, packed: bytes) -> Iterable[Machine]:
        path = _boot_path(key, hardware)
        marks = hardware.metadata.deletion_timestamp is not None, AUTO_DISCOVERED_LABEL in hardware.metadata.labels
        for mac, interface in hardware.spec.network_interfaces.items():
            if not is_mac(mac):
                text = "not a MAC address in lower case with colons, such as 52:54:00:12:34:56"
                log.error("Hardware %s: spec.networkInterfaces[%s] is ignored: %s", key, mac, text)
                continue
            dhcp = interface.dhcp
            ip = dhcp.ip if dhcp is not None else None
            ipv6 = str(IPv6Address(dhcp.ipv6.address)) if dhcp is not None and dhcp.ipv6 is not None else None
            disabled = interface.disable_dhcp, interface.disable_netboot
            yield Machine(mac, ip, key.namespace, key.name, *disabled, path, ipv6, *marks, packed, self._read)

    def _read(self, packed: bytes) -> Hardware:
        hardware = self._at_hand.get(packed)
        if hardware is None:
            hardware = Hardware.model_validate(_served(self._compressor.decompress(packed)))
            self._at_hand[packed] = hardware
        return hardware


def lookup_values(obj: Raw) -> list[str]:
    """Return the MACs and addresses by which the machines of a Hardware are looked up."""
    values: list[str] = []
    interfaces = as_mapping(as_mapping(obj.get("spec")).get("networkInterfaces"))
    for mac, interface in interfaces.items():
        values.append(mac)
        dhcp = as_mapping(interface).get("dhcp")
        if isinstance(dhcp, dict):
            values.append(str(dhcp.get("ip", "")))
            if ipv6 := as_mapping(dhcp.get("ipv6")).get("address"):
                with suppress(AddressValueError):  # `Inventory.apply` logs it
                    values.append(str(IPv6Address(str(ipv6))))
    return values


def _difference(obj: Raw) -> str:
    """Return reason and message of the condition AsExpected if it is False; else empty."""
    found = condition_of(obj)
    return f"{found.get('reason') or ''}: {found.get('message') or ''}" if found.get("status") == "False" else ""


def _served(obj: Raw) -> Raw:
    """Return the part of a Hardware that answers depend on."""
    metadata = obj["metadata"]
    served = {"metadata": {name: metadata[name] for name in _SERVED_METADATA if name in metadata}}
    return served | {"spec": obj["spec"]} if "spec" in obj else served


def _boot_path(key: NamespacedName, hardware: Hardware) -> BootPath | None:
    given = hardware.metadata.annotations.get(BOOT_PATH_ANNOTATION)
    if given is None:
        return None
    try:
        return BootPath(given.strip())
    except ValueError:
        ways = " or ".join(BootPath)
        log.error("Hardware %s/%s: metadata.annotations[%s] is not %s", *key, BOOT_PATH_ANNOTATION, ways)
        return None


def _all(index: _Index, value: str) -> tuple[Machine, ...]:
    found = index.get(value, ())
    return (found,) if isinstance(found, Machine) else found


def _rivals(machines: tuple[Machine, ...]) -> tuple[Machine, ...]:
    """Return the machines whose Hardware is not being deleted, or all of them if there are none."""
    if len(machines) < 2:
        return machines
    return tuple(machine for machine in machines if not machine.terminating) or machines


def _sole(machines: tuple[Machine, ...] | None) -> Machine | None:
    """Return the one machine to serve of all that claim an address, or None if they are of several Hardware."""
    rivals = _rivals(machines) if machines is not None else ()
    return rivals[0] if rivals and all(each.is_of_hardware_of(rivals[0]) for each in rivals[1:]) else None


def _add(index: _Index, what: str, value: str, machine: Machine) -> None:
    claimants = (*_all(index, value), machine)
    if len(claimants) == 1:
        index[value] = machine
        return
    index[value] = claimants
    rivals = _rivals(claimants)
    if _sole(rivals) is None:
        names = ", ".join(sorted(f"{m.namespace}/{m.name}" for m in rivals))
        log.error("%s %s is claimed by several Hardware, so none is served: %s", what, value, names)


def _discard(index: _Index, value: str, machine: Machine) -> None:
    rest = tuple(m for m in _all(index, value) if m is not machine)
    if len(rest) > 1:
        index[value] = rest
    elif rest:
        index[value] = rest[0]
    else:
        del index[value]


def hardware_manifest(mac: str, address: Sequence[str]) -> str:
    """Return a Hardware manifest for the unregistered `mac`, to complete and to give to `kubectl apply -f -`.

    The lines of `address` are comments in its `dhcp`: the operator enters the address, so that a manifest that is
    applied unread gives no machine a wrong one. The MAC is quoted, because YAML 1.1 parses unquoted digits with colons
    as a number in base 60.
    """
    name = "machine-" + mac.replace(":", "-")
    lines = indent("".join(f"# {line}\n" for line in address), 8 * " ")
    return f"""\
apiVersion: {API_VERSION}
kind: Hardware
metadata:
  name: {name}
spec:
  networkInterfaces:
    "{mac}":
      dhcp:
        hostname: {name}
{lines}  # osie:
  #   name: the OSIE to netboot
  # storageDevices:
  #   - /dev/sda
"""
