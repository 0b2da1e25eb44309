"""Look up hosts and their Hardware in the informers, and find the machines that netboot but must not.

Two field managers write Hardware, so that one can't undo the other. `MANAGER` applies the result of a conversion, and
never forces a field: a field that another manager wants differently is a conflict, and stays. `SAFETY_MANAGER` applies
one thing, that no interface netboots, and forces it. While its fields are there, nothing that `MANAGER` applies can
make a machine netboot. It removes them when the host is free again.
"""

from __future__ import annotations

from typing import Any

from tink.api.v1alpha2 import API_VERSION, Raw
from tink.convert.metal3.safety import HOST_LABEL, SECURED_ANNOTATION, NetbootRefusal, label_of, refusals
from tink.kube.cache import Informer
from tink.kube.objects import NamespacedName
from tink.kube.resources import HARDWARE, ResourceType

MANAGER = "tinkedge-metal3"
SAFETY_MANAGER = "tinkedge-metal3-safety"


def is_ours(hardware: Raw) -> bool:
    """Return True if a Hardware was made from the host of its name."""
    metadata = hardware["metadata"]
    labels = metadata.get("labels") or {}
    return bool(labels.get(HOST_LABEL) == label_of(metadata.get("namespace", ""), metadata["name"]))


def is_secured(hardware: Raw) -> bool:
    """Return True if SAFETY_MANAGER's fields are set."""
    return SECURED_ANNOTATION in (hardware["metadata"].get("annotations") or {})


def netboots(hardware: Raw) -> bool:
    """Return True if any interface of a Hardware may netboot."""
    return any(
        not (isinstance(each, dict) and each.get("disableNetboot") is True) for each in _interfaces(hardware).values()
    )


def secured(hardware: Raw) -> Raw:
    """Return the object with which SAFETY_MANAGER stops all interfaces of `hardware` from netbooting."""
    body = released(hardware)
    body["metadata"]["annotations"] = {SECURED_ANNOTATION: "true"}
    body["spec"] = {"networkInterfaces": {mac: {"disableNetboot": True} for mac in _interfaces(hardware)}}
    return body


def released(hardware: Raw) -> Raw:
    """Return the object with which SAFETY_MANAGER removes its fields."""
    metadata = {key: hardware["metadata"][key] for key in ("name", "namespace", "uid")}
    return {"apiVersion": API_VERSION, "kind": "Hardware", "metadata": metadata}


def _interfaces(hardware: Raw) -> dict[str, Any]:
    spec = hardware.get("spec") or {}
    return spec.get("networkInterfaces") or {}


class Hosts:
    """The hosts, HardwareData and Hardware in the informers. All three have the host's key.

    `hardware_data` is None if the API does not serve it.
    """

    def __init__(self, hosts: Informer, hardware_data: Informer | None, hardware: Informer, *, unmanaged: bool) -> None:
        """`unmanaged`: hosts that Metal3 does not manage may netboot."""
        self._hosts = hosts
        self._hardware_data = hardware_data
        self._hardware = hardware
        self._unmanaged = unmanaged

    def __len__(self) -> int:
        return len(self._hosts)

    @property
    def resource(self) -> ResourceType:
        """BareMetalHost in the served version."""
        return self._hosts.resource

    def host(self, key: NamespacedName) -> Raw | None:
        """Return the host."""
        return self._hosts.get(*key)

    def hardware_data(self, key: NamespacedName) -> Raw | None:
        """Return the HardwareData of a host."""
        return self._hardware_data.get(*key) if self._hardware_data is not None else None

    def hardware(self, key: NamespacedName) -> Raw | None:
        """Return the Hardware of a host's name. It may be made by another client."""
        return self._hardware.get(*key)

    def subject(self, key: NamespacedName) -> tuple[Raw, ResourceType] | None:
        """Return the subject of an Event about a host: the host or, if it is gone, its Hardware."""
        if (host := self.host(key)) is not None:
            return host, self.resource
        hardware = self.hardware(key)
        return (hardware, HARDWARE) if hardware is not None else None

    def all_keys(self) -> list[NamespacedName]:
        """Return the keys of all hosts and all Hardware. Machines that netboot and must not come first."""
        informers = (self._hosts, self._hardware)
        keys = dict.fromkeys(NamespacedName.of(obj) for informer in informers for obj in informer.list())
        return sorted(keys, key=lambda key: not self.is_unsafe(key))

    def is_unsafe(self, key: NamespacedName) -> bool:
        """Return True if a machine may netboot now and must not."""
        hardware = self.hardware(key)
        if hardware is None or not is_ours(hardware) or not netboots(hardware):
            return False
        host = self.host(key)
        return host is None or bool(self.refusals(host))

    def refusals(self, host: Raw) -> list[NetbootRefusal]:
        """Return the reasons why a host must not netboot; empty if it may."""
        return refusals(host, unmanaged=self._unmanaged)
