"""A boot path that is to be found out: what a machine is offered whose firmware did not run the first program."""

from __future__ import annotations

from typing import Any

from edge.journey.events import Outcome, Step
from edge.machines import BootPaths, Inventory, Machine
from ipxe.binaries import BootPath

MAC, OTHER = "52:54:00:00:00:01", "52:54:00:00:00:02"


class Site:
    def __init__(self, usual: BootPath = BootPath.IPXE, *, has_grub: bool = True) -> None:
        self.inventory, self.said, self.changed = Inventory(), [], []
        self.paths = BootPaths(self.inventory, self._record, usual, has_grub=has_grub, changed=self.changed.append)

    said: list[tuple[str, Step, Outcome, str]]
    changed: list[str]

    def _record(self, mac: str, step: Step, outcome: Outcome, message: str, **_: Any) -> None:
        self.said.append((mac, step, outcome, message))

    def machine(self, path: str | None, mac: str = MAC) -> Machine:
        annotations = {} if path is None else {"tinkerbell.org/boot-path": path}
        metadata = {"name": f"m{mac[-1]}", "namespace": "default", "annotations": annotations}
        self.inventory.apply({"metadata": metadata, "spec": {"networkInterfaces": {mac: {"dhcp": {}}}}})
        found = self.inventory.by_mac(mac)
        assert found is not None
        return found


def test_machine_whose_firmware_refuses_ipxe_is_offered_shim_and_grub_and_the_other_way_round() -> None:
    site = Site()
    machine = site.machine("auto")
    assert site.paths.of(machine) is BootPath.AUTO, "which is iPXE for those who choose the file"
    site.paths.not_started(MAC)
    assert site.paths.of(machine) is BootPath.GRUB
    message = "boot path auto: iPXE was not started, so it is offered shim and GRUB from now on"
    assert site.said == [(MAC, Step.DHCP, Outcome.INFO, message)]
    site.paths.not_started(MAC)
    assert site.paths.of(machine) is BootPath.IPXE
    assert site.changed == [MAC, MAC]


def test_of_an_edge_that_finds_out_by_itself_only_the_machines_that_need_it_leave_the_usual_way() -> None:
    site = Site(BootPath.AUTO)
    one, other = site.machine(None), site.machine(None, OTHER)
    assert (site.paths.of(one), site.paths.of(other)) == (None, None)
    site.paths.not_started(MAC)
    assert (site.paths.of(one), site.paths.of(other)) == (BootPath.GRUB, None)
    assert site.paths.of(site.machine("ipxe")) is BootPath.IPXE, "what its Hardware says comes first"


def test_nothing_is_found_out_where_the_path_is_given_or_the_machine_unknown() -> None:
    site = Site()
    for path in (None, "ipxe", "grub"):
        machine = site.machine(path)
        site.paths.not_started(MAC)
        assert site.paths.of(machine) is (BootPath(path) if path is not None else None)
    site.paths.not_started(OTHER)
    assert (site.said, site.changed) == ([], [])


def test_edge_without_shim_and_grub_says_what_to_install_and_stays_with_ipxe() -> None:
    site = Site(has_grub=False)
    machine = site.machine("auto")
    site.paths.not_started(MAC)
    assert site.paths.of(machine) is BootPath.AUTO
    assert "there is no shim and GRUB here to offer instead (packages shim-signed" in site.said[0][3]
    assert site.changed == []
