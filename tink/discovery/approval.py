"""Approve a discovered machine: the name it gets, the obstacles, and the objects that it becomes. Pure.

A machine is approved by the annotation `tinkerbell.org/approve` on its discovered Hardware, by a line of a list of
expected machines that fits its facts, or by the rule that admitted it, in this order. A line and a rule need an
inventory: a MAC address alone is not enough, because its facts could not be compared with those of other machines.

The name selects the line: the annotation `tinkerbell.org/approve: m7` applies the line of m7, too, if there is one.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from tink.api.annotations import (
    APPROVE_ANNOTATION,
    APPROVED_AS_ANNOTATION,
    AUTO_DISCOVERED_LABEL,
    DISCOVERED_AS_ANNOTATION,
    DISCOVERY_ADDRESS_ANNOTATION,
    DISCOVERY_BOOT_ANNOTATION,
    DISCOVERY_RULE_ANNOTATION,
)
from tink.api.patterns import OBJECT_NAME, compiled
from tink.api.v1alpha2 import Raw, as_mapping
from tink.discovery.model import (
    APPROVES_ALL,
    DISCOVERY_FINALIZER,
    LISTED_ONLY,
    NAME_PREFIX,
    ExpectedMachine,
    MachineFacts,
)
from tink.errors import TinkedgeError
from tink.kube.objects import NamespacedName
from tink.kube.resources import HARDWARE, MACHINE

_MAX_NAME: Final = 253
"""Maximum length of a name (Kubernetes, "Object Names and IDs", DNS subdomain names)."""
_MAX_LABEL: Final = 63
_NAME: Final = compiled(OBJECT_NAME)
KEEPS_NAME: Final = "true"
"""The value of the annotation that approves a machine under its present name."""
_OF_DISCOVERY: Final = (
    APPROVE_ANNOTATION,
    APPROVED_AS_ANNOTATION,
    DISCOVERED_AS_ANNOTATION,
    DISCOVERY_ADDRESS_ANNOTATION,
    DISCOVERY_BOOT_ANNOTATION,
    DISCOVERY_RULE_ANNOTATION,
)


class ApprovalError(TinkedgeError):
    """A machine can't be approved now. The message names the obstacle and the remedy."""


@dataclass(frozen=True, slots=True)
class Approval:
    """The approval of one discovered machine.

    key: the Hardware that the machine becomes. It is the discovered one if the machine keeps its name.
    source: the annotation, the line or the rule that approves the machine, for messages. by: which of them.
    """

    key: NamespacedName
    source: str
    by: str = "annotation"


def requested_approval(hardware: Raw) -> Approval | None:
    """Return the approval that an operator has requested by the annotation; None without one.

    Raises ApprovalError if its value is no name.
    """
    key = NamespacedName.of(hardware)
    name = str(annotations_of(hardware).get(APPROVE_ANNOTATION, "")).strip()
    if not name:
        return None
    source = f"annotation {APPROVE_ANNOTATION}"
    if name in (KEEPS_NAME, key.name):
        return Approval(key, source)
    if len(name) > _MAX_NAME or _NAME.fullmatch(name) is None:
        raise ApprovalError(
            f"{source}: {name[:64]!r} is no name of an object: use lower-case letters, digits, '-' and '.', or 'true'"
        )
    if name.startswith(NAME_PREFIX):
        raise ApprovalError(f"{source}: {name} is a name for discovered machines: choose another one, or 'true'")
    return Approval(NamespacedName(key.namespace, name), source)


def listed_approval(machine: ExpectedMachine) -> Approval:
    """Return the approval by a line of a list. Raises ApprovalError if the line's name is for discovered machines."""
    if machine.key.name.startswith(NAME_PREFIX):
        raise ApprovalError(f"{machine.source}: {machine.key.name} is a name for discovered machines: choose another")
    return Approval(machine.key, machine.source, by="list")


def ruled_approval(hardware: Raw) -> Approval | None:
    """Return the approval by the rule that admitted the machine; None if that rule approves none."""
    name, *parts = _rule_of(hardware)
    return (
        Approval(NamespacedName.of(hardware), f"rule {name} of --discover", by="rule")
        if APPROVES_ALL in parts
        else None
    )


# --- the objects of an approved machine -------------------------------------------------------------------------------


def boot_mac(discovered: Raw) -> str:
    """Return the MAC address from which a discovered machine has booted; empty if its Hardware has no interface."""
    return next(iter(_interfaces(discovered)), "")


def approved_hardware(
    discovered: Raw, key: NamespacedName, machine: ExpectedMachine | None, labels: Mapping[str, str]
) -> Raw:
    """Return the Hardware `key` that replaces a discovered one.

    It has the labels and annotations of the discovered one, `labels`, and the facts of the list's line (`machine`).
    Without a line it keeps the address of the discovery. Storage devices are not guessed.
    """
    metadata = as_mapping(discovered["metadata"])
    spec, former = copy.deepcopy(as_mapping(discovered.get("spec"))), _address(discovered)
    for mac in disabled_interfaces(discovered):
        del spec["networkInterfaces"][mac]["disableNetboot"]
    if key.namespace != metadata.get("namespace"):
        spec.pop("osie", None)  # that OSIE is in the namespace of the discovery
    if machine is not None:
        spec |= _listed_spec(boot_mac(discovered), machine)
        if machine.bmc_secret and bmc_address(discovered, machine)[0]:
            spec["bmcRef"] = {"name": key.name}
    own_labels = {name: value for name, value in labels_of(discovered).items() if name != AUTO_DISCOVERED_LABEL}
    own_labels |= {**labels, **(machine.labels if machine is not None else {})}
    annotations = {name: value for name, value in annotations_of(discovered).items() if name not in _OF_DISCOVERY}
    annotations[DISCOVERED_AS_ANNOTATION] = metadata["name"]
    made = {"apiVersion": HARDWARE.api_version, "kind": HARDWARE.kind, "spec": spec}
    made["metadata"] = {"name": key.name, "namespace": key.namespace, "annotations": annotations, "labels": own_labels}
    if former and former not in {_dhcp(each).get("ip") for each in _interfaces(made).values()}:
        annotations[DISCOVERY_ADDRESS_ANNOTATION] = former
        if boot := _last_boot(discovered):
            annotations[DISCOVERY_BOOT_ANNOTATION] = boot
    return made


def _last_boot(hardware: Raw) -> str:
    return str(as_mapping(as_mapping(hardware.get("status")).get("lastBoot")).get("at") or "")


def _listed_spec(mac: str, machine: ExpectedMachine) -> Raw:
    """Return the fields of the spec that a line gives; `mac` is the interface from which the machine has booted."""
    dhcp: Raw = {}
    if machine.address is not None:
        dhcp = {"ip": str(machine.address.ip), "netmask": str(machine.address.netmask)}
        if machine.gateway is not None:
            dhcp["gateway"] = str(machine.gateway)
    if machine.nameservers:
        dhcp["nameservers"] = list(machine.nameservers)
    if hostname := machine.hostname or _host_name(machine.key.name):
        dhcp["hostname"] = hostname
    if machine.vlan:
        dhcp["vlanId"] = machine.vlan
    # The agent names its machine by the MAC that has booted, so that one is in the Hardware, too.
    spec: Raw = {"networkInterfaces": {mac: {}, machine.boot_mac or mac: {"dhcp": dhcp} if dhcp else {}}}
    if machine.osie:
        spec["osie"] = {"name": machine.osie}
    if machine.kernel_params:
        spec["kernelParams"] = list(machine.kernel_params)
    return spec


def _host_name(name: str) -> str:
    """Return the name of an object as a host name; empty if a label of it is too long (RFC 1123 section 2.1)."""
    return name if all(len(label) <= _MAX_LABEL for label in name.split(".")) else ""


def bmc_address(discovered: Raw, machine: ExpectedMachine) -> tuple[str, bool]:
    """Return the address of a machine's BMC, and True if the list gives it; it is empty if it is not known.

    Without an address on the list, it is the one that the machine itself reports.
    """
    if machine.bmc_address:
        return machine.bmc_address, True
    inventory = as_mapping(as_mapping(as_mapping(discovered.get("status")).get("inventory")).get("inBand"))
    try:
        found = ip_address(str(as_mapping(inventory.get("bmc")).get("address") or ""))
    except ValueError:
        return "", False
    # The machine chooses this text. A password must not go to this host or to a group of hosts, or leave the site:
    # for a public address, anybody can get a certificate that is valid.
    is_host = not (found.is_loopback or found.is_link_local or found.is_multicast or found.is_unspecified)
    return (str(found) if is_host and found.is_private and not found.is_reserved else ""), False


def bmc_machine(discovered: Raw, hardware: Raw, machine: ExpectedMachine) -> Raw | None:
    """Return the Machine (bmc.tinkerbell.org) of an approved machine; None without an address or a Secret.

    Its Hardware owns it, so both are deleted together. The BMC's certificate must be valid, because the address has not
    been verified and the password is sent to it. An operator with self-signed BMCs sets `certificateFingerprint`,
    `caSecretRef` or `insecureTLS`. An address that the machine has reported is contacted by
    Redfish alone, because IPMI (RMCP+, IPMI 2.0 section 13.31) gives a forged BMC a hash of the password.
    """
    address, is_listed = bmc_address(discovered, machine)
    if not address or not machine.bmc_secret:
        return None
    key = NamespacedName.of(hardware)
    connection: Raw = {
        "host": address,
        "port": 623,
        "insecureTLS": False,
        "authSecretRef": {"name": machine.bmc_secret, "namespace": key.namespace},
    }
    if not is_listed:
        connection["providerOptions"] = {"preferredOrder": ["gofish"]}
    owner = {"apiVersion": HARDWARE.api_version, "kind": HARDWARE.kind}
    owner |= {field: hardware["metadata"][field] for field in ("name", "uid")}
    metadata = {"name": key.name, "namespace": key.namespace, "ownerReferences": [owner]}
    made: Raw = {"apiVersion": MACHINE.api_version, "kind": MACHINE.kind, "metadata": metadata}
    return made | {"spec": {"connection": connection}}


def is_successor(hardware: Raw, discovered: Raw) -> bool:
    """Return True if a Hardware was made by the approval of this discovered one.

    No other Hardware can have the MAC address before the discovered one is being deleted.
    """
    name = annotations_of(hardware).get(DISCOVERED_AS_ANNOTATION)
    return name == discovered["metadata"]["name"] and boot_mac(discovered) in _interfaces(hardware)


def approved_as(hardware: Raw) -> NamespacedName | None:
    """Return the Hardware that replaces a discovered one which the controller has approved; else None."""
    namespace, slash, name = str(annotations_of(hardware).get(APPROVED_AS_ANNOTATION, "")).partition("/")
    return NamespacedName(namespace, name) if slash and namespace and name else None


def is_listed_only(hardware: Raw) -> bool:
    """Return True if the rule that admitted the machine has `only=listed`."""
    return LISTED_ONLY in _rule_of(hardware)


def _rule_of(hardware: Raw) -> list[str]:
    """Return the name of the rule that admitted the machine, and the parts on which the controller acts."""
    return str(annotations_of(hardware).get(DISCOVERY_RULE_ANNOTATION, "")).split(",")


def disabled_interfaces(hardware: Raw) -> list[str]:
    """Return the interfaces (MAC addresses) whose netboot the controller has disabled, because no line names them."""
    interfaces = _interfaces(hardware).items() if is_listed_only(hardware) else ()
    return [mac for mac, each in interfaces if as_mapping(each).get("disableNetboot") is True]


def has_finalizer(hardware: Raw) -> bool:
    """Return True if a Hardware has the finalizer of discovery."""
    return DISCOVERY_FINALIZER in (as_mapping(hardware["metadata"]).get("finalizers") or ())


def has_inventory(facts: MachineFacts) -> bool:
    """Return True if the machine or its BMC has reported an inventory."""
    return bool(facts.in_band or facts.out_of_band)


def annotations_of(hardware: Raw) -> Raw:
    """Return the annotations of an object."""
    return as_mapping(as_mapping(hardware.get("metadata")).get("annotations"))


def labels_of(hardware: Raw) -> Raw:
    """Return the labels of an object."""
    return as_mapping(as_mapping(hardware.get("metadata")).get("labels"))


def _interfaces(hardware: Raw) -> Raw:
    return as_mapping(as_mapping(hardware.get("spec")).get("networkInterfaces"))


def _dhcp(interface: object) -> Raw:
    return as_mapping(as_mapping(interface).get("dhcp"))


def _address(hardware: Raw) -> str:
    """Return the first reserved address of a Hardware; empty if it has none."""
    found = (_dhcp(each).get("ip") for each in _interfaces(hardware).values())
    return next((each for each in found if isinstance(each, str)), "")
