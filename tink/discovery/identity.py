"""The facts by which a machine is known, read from its Hardware, and the index of all facts. Pure.

Two Hardware that share a fact are a conflict, which is shown and never resolved: nothing tells which of the two is
right. So a machine that is registered can't be displaced by another one that reports the same serial number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tink.api.inventory import clean_text, mac_address, serial_number
from tink.api.v1alpha2 import Raw, as_mapping
from tink.discovery.model import (
    ExpectedLink,
    MachineFacts,
    identifies_machine,
    is_discovered,
    list_namespaces,
    same_uuid,
    serial_key,
)
from tink.kube.cache import Index
from tink.kube.objects import NamespacedName
from tink.mac import from_any

Fact = tuple[str, str]
"""A kind of fact, in the words of messages, and its value in the form in which two are compared."""

SERIAL, UUID_KIND, MAC, BMC_MAC = "serial number", "UUID", "MAC address", "MAC address of a BMC"


def facts_of(hardware: Raw) -> MachineFacts:
    """Return the facts of a Hardware. A field that can't be read is left out."""
    metadata, spec = as_mapping(hardware.get("metadata")), as_mapping(hardware.get("spec"))
    inventory = as_mapping(as_mapping(hardware.get("status")).get("inventory"))
    in_band, out_of_band = as_mapping(inventory.get("inBand")), as_mapping(inventory.get("outOfBand"))
    source = in_band or out_of_band
    product = as_mapping(source.get("product"))
    product_serial = serial_number(product.get("serialNumber"))
    parts = [product, as_mapping(source.get("baseboard"))]
    if not product_serial:  # the nodes of one chassis share its serial number
        parts.append(as_mapping(source.get("chassis")))
    uuid = _uuid(product.get("uuid"))
    interfaces = [mac for each in as_mapping(spec.get("networkInterfaces")) if (mac := mac_address(each))]
    bmc = as_mapping(source.get("bmc"))
    return MachineFacts(
        NamespacedName(str(metadata.get("namespace") or ""), str(metadata.get("name") or "")),
        serials=frozenset(serial for part in parts if (serial := serial_number(part.get("serialNumber")))),
        uuids=frozenset({uuid} if uuid else ()),
        macs=frozenset([*interfaces, *(mac for port in ports_of(source) if (mac := mac_address(port.get("mac"))))]),
        bmc_macs=frozenset(_bmc_macs(bmc)),
        product_serial=product_serial,
        boot_macs=tuple(interfaces),
        last_boot_mac=mac_address(as_mapping(as_mapping(hardware.get("status")).get("lastBoot")).get("mac")),
        storage_devices=tuple(each for each in _items(spec.get("storageDevices")) if isinstance(each, str)),
        in_band=in_band,
        out_of_band=out_of_band,
        is_discovered=is_discovered(hardware),
        is_terminating="deletionTimestamp" in metadata,
        lists=list_namespaces(hardware),
    )


def ports_of(attributes: Raw) -> Iterator[Raw]:
    """Yield the network ports of an inventory."""
    for adapter in _items(attributes.get("networkInterfaces")):
        for port in _items(as_mapping(adapter).get("ports")):
            yield as_mapping(port)


def known_macs(attributes: Raw) -> frozenset[str]:
    """Return the MAC addresses of the ports of an inventory; empty if one is unknown, or if there is no port."""
    macs = [mac_address(port.get("mac")) for port in ports_of(attributes)]
    return frozenset(macs) if all(macs) else frozenset()


# --- switch ports -----------------------------------------------------------------------------------------------------

_PORT_NAME: Final = re.compile(r"([a-z-]*)[ _-]*([0-9]+(?:[/.:][0-9]+)*)")


def switch_key(name: str) -> str:
    """Return the key of a switch: its MAC address, or its name without the domain.

    A switch sends the name that it is configured with, with or without its domain (IEEE 802.1AB section 8.5.7).
    """
    text = clean_text(name).casefold()
    return from_any(text) or (text if re.fullmatch("[0-9.]+", text) else text.partition(".")[0])


def port_key(port: str) -> str:
    """Return the key of a switch port: its MAC address or its number. Ethernet1/7, Eth1/7 and 1/7 have one key."""
    text = clean_text(port).casefold()
    found = _PORT_NAME.fullmatch(text)
    return from_any(text) or (found[2] if found else text)


def link_is_at(link: ExpectedLink, port: Raw) -> bool | None:
    """Return True if a network port is at the switch port of an expected cable, False if not, and None if unknown.

    A switch may send its MAC address alone, and its port a MAC address or a plain index: then its name is unknown.
    """
    lldp = as_mapping(port.get("lldp"))
    switches, ports = (
        [text for name in names if (text := clean_text(lldp.get(name)).casefold())]
        for names in (("systemName", "chassisID"), _PORT_FIELDS)
    )
    answers = _is_switch(link.switch.casefold(), switches), _is_port(link.port.casefold(), ports)
    return False if False in answers else None if None in answers else True


def _is_switch(wanted: str, found: list[str]) -> bool | None:
    if any(_is_same_switch(wanted, each) for each in found):
        return True
    is_mac = from_any(wanted) is not None
    return False if any((from_any(each) is not None) is is_mac for each in found) else None


def _is_same_switch(one: str, other: str) -> bool:
    has_domains = "." in one and "." in other and not from_any(one)
    return one == other if has_domains else switch_key(one) == switch_key(other)


def _is_port(wanted: str, found: list[str]) -> bool | None:
    if any(_is_same_port(wanted, each) for each in found):
        return True
    # A description that is a sentence is no name of the port.
    kinds = {_port_kind(each) for each in found if from_any(each) or _PORT_NAME.fullmatch(each)}
    return False if _port_kind(wanted) in kinds else None


def _port_kind(port: str) -> str:
    return "MAC" if from_any(port) else "index" if port.isdigit() else "name"


def _is_same_port(one: str, other: str) -> bool:
    """Return True if one name may be an abbreviation of the other: Eth1/7 of Ethernet1/7, and 1/7 of both."""
    if port_key(one) != port_key(other):
        return False
    kinds = [found[1].rstrip("-") if (found := _PORT_NAME.fullmatch(each)) else "" for each in (one, other)]
    return kinds[0].startswith(kinds[1]) or kinds[1].startswith(kinds[0])


def neighbour_ports(port: Raw) -> tuple[tuple[str, str], ...]:
    """Return the switch port at the other end of a network port, in each way in which a list may spell it; casefolded.

    A switch is known by its name, with or without its domain, or by its chassis ID; its port by its ID or description.
    """
    lldp = as_mapping(port.get("lldp"))
    name, chassis = (clean_text(lldp.get(field)).casefold() for field in ("systemName", "chassisID"))
    switches = dict.fromkeys(filter(None, (name, name.partition(".")[0], chassis)))
    ports = dict.fromkeys(filter(None, (clean_text(lldp.get(field)).casefold() for field in _PORT_FIELDS)))
    return tuple((switch, port_name) for switch in switches for port_name in ports)


_PORT_FIELDS: Final = ("portID", "portDescription")


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _uuid(value: object) -> str:
    text = clean_text(value).lower()
    spellings = same_uuid(text) if re.fullmatch(r"[0-9a-f-]{32,36}", text) else ()
    return spellings[0] if spellings and identifies_machine(text) else ""


def _bmc_macs(bmc: Raw) -> Iterator[str]:
    for port in _items(as_mapping(bmc.get("nic")).get("ports")):
        if mac := mac_address(as_mapping(port).get("mac")):
            yield mac


class FactsIndex:
    """The facts of all Hardware. A look-up is a dictionary access, whatever the number of machines."""

    def __init__(self) -> None:
        self._facts: dict[NamespacedName, MachineFacts] = {}
        self._by_fact: Index[NamespacedName, Fact] = Index()

    def apply(self, hardware: Raw) -> frozenset[NamespacedName]:
        """Add or update a Hardware. Return the other Hardware whose verdict may change."""
        key = NamespacedName.of(hardware)
        facts = facts_of(hardware)
        before = self._facts.get(key)
        if before == facts:
            return frozenset()
        affected = self._neighbours(key)
        self._facts[key] = facts
        self._by_fact.set(key, _unique_facts(facts))
        return frozenset(affected | self._neighbours(key))

    def remove(self, hardware: Raw) -> frozenset[NamespacedName]:
        """Remove a deleted Hardware. Return the other Hardware whose verdict may change."""
        key = NamespacedName.of(hardware)
        affected = self._neighbours(key)
        self._facts.pop(key, None)
        self._by_fact.set(key, ())
        return frozenset(affected)

    def facts(self, key: NamespacedName) -> MachineFacts | None:
        """Return the facts of a Hardware, or None."""
        return self._facts.get(key)

    def sharing(self, facts: MachineFacts) -> Mapping[Fact, tuple[NamespacedName, ...]]:
        """Return the facts that must be of one machine only and that other Hardware have, too, with these Hardware.

        Hardware that are being deleted do not count. For a registered machine, machines that are not approved do not
        count either: what a stranger claims to be is no statement about the registered machine.
        """
        found = {}
        for fact in _unique_facts(facts):
            others = [key for key in self._by_fact.keys(fact) if key != facts.key and self._counts(key, facts)]
            if others:
                found[fact] = tuple(sorted(others))
        return found

    def _counts(self, key: NamespacedName, than: MachineFacts) -> bool:
        """Return True if a Hardware counts as another machine than that of `than`."""
        facts = self._facts.get(key)
        return facts is not None and not facts.is_terminating and (than.is_discovered or not facts.is_discovered)

    def _neighbours(self, key: NamespacedName) -> set[NamespacedName]:
        facts = self._facts.get(key)
        if facts is None:
            return set()
        return {other for fact in _unique_facts(facts) for other in self._by_fact.keys(fact)} - {key}


def _unique_facts(facts: MachineFacts) -> tuple[Fact, ...]:
    """Return the facts that no two machines share."""
    found: list[Fact] = []
    if facts.product_serial:
        found.append((SERIAL, serial_key(facts.product_serial)))
    found += [(UUID_KIND, uuid) for uuid in facts.uuids]
    found += [(MAC, mac) for mac in facts.macs]
    found += [(BMC_MAC, mac) for mac in facts.bmc_macs]
    return tuple(dict.fromkeys(found))
