"""What the informers know of hosts and their Hardware, and which machines may netboot that must not. Reads only."""

from __future__ import annotations

from tink.api.v1alpha2 import Raw
from tink.convert.metal3 import Refusal, refusals
from tink.kube.cache import Informer
from tink.kube.objects import NamespacedName
from tink.kube.resources import HARDWARE, ResourceType
from tink.metal3.ownership import is_ours, netboots


class Hosts:
    """A host, its HardwareData and its Hardware have one key. `hardware_data` is None where the API has none."""

    def __init__(self, hosts: Informer, hardware_data: Informer | None, hardware: Informer, *, unmanaged: bool) -> None:
        """`unmanaged`: whether hosts may netboot that Metal3 does not manage."""
        self._hosts = hosts
        self._hardware_data = hardware_data
        self._hardware = hardware
        self._unmanaged = unmanaged

    def __len__(self) -> int:
        return len(self._hosts)

    @property
    def resource(self) -> ResourceType:
        """BareMetalHost in the version that is served."""
        return self._hosts.resource

    def host(self, key: NamespacedName) -> Raw | None:
        """The host."""
        return self._hosts.get(*key)

    def hardware_data(self, key: NamespacedName) -> Raw | None:
        """Its HardwareData."""
        return self._hardware_data.get(*key) if self._hardware_data is not None else None

    def hardware(self, key: NamespacedName) -> Raw | None:
        """Its Hardware, or that of this name which somebody else has made."""
        return self._hardware.get(*key)

    def subject(self, key: NamespacedName) -> tuple[Raw, ResourceType] | None:
        """What an Event about a host is of: the host or, if it is gone, its Hardware."""
        if (host := self.host(key)) is not None:
            return host, self.resource
        hardware = self.hardware(key)
        return (hardware, HARDWARE) if hardware is not None else None

    def all_keys(self) -> list[NamespacedName]:
        """All hosts, and all Hardware that may have had one; those first that must not netboot, and do."""
        informers = (self._hosts, self._hardware)
        keys = dict.fromkeys(NamespacedName.of(obj) for informer in informers for obj in informer.list())
        return sorted(keys, key=lambda key: not self.is_unsafe(key))

    def is_unsafe(self, key: NamespacedName) -> bool:
        """Whether a machine may netboot at this moment that must not."""
        hardware = self.hardware(key)
        if hardware is None or not is_ours(hardware) or not netboots(hardware):
            return False
        host = self.host(key)
        return host is None or bool(self.refusals(host))

    def refusals(self, host: Raw) -> list[Refusal]:
        """Why a host must not netboot; empty: it may."""
        return refusals(host, unmanaged=self._unmanaged)
