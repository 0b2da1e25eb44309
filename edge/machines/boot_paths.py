"""By which program each machine gets to its kernel, where that is to be found out (`BootPath.AUTO`).

No DHCP option says whether a machine has Secure Boot on. But firmware that refuses a program has fetched it whole, runs
nothing of it, and asks for an address again or is silent: the journey's expectations know that (their findings
`NOT_RUN`), and tell it here. The machine is then offered the other program. What was found out is kept in
memory: an edge that starts anew finds it out again, for one more attempt of the firmware.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from edge.journey.events import Outcome, Recorder, Step
from edge.machines.inventory import Inventory, Machine
from ipxe.binaries import BootPath
from tink.limits.newest import Newest

MAX_KEPT: Final = 65_536
"""Machines of which something was found out."""

_WORDS: Final = {BootPath.IPXE: "iPXE", BootPath.GRUB: "shim and GRUB"}


class BootPaths:
    """Answers DHCP's question; hears of what was not started."""

    def __init__(
        self,
        inventory: Inventory,
        record: Recorder,
        usual: BootPath = BootPath.IPXE,
        *,
        has_grub: bool = True,
        changed: Callable[[str], None] = lambda _mac: None,
    ) -> None:
        """`usual` is that of machines whose Hardware names none; `has_grub`: whether there is a shim and its GRUB here.
        `changed(mac)` is called when `of` answers something else than before.
        """
        self._inventory = inventory
        self._record = record
        self._usual = usual
        self._has_grub = has_grub
        self._changed = changed
        self._found: Newest[str, BootPath] = Newest(MAX_KEPT)

    def programs_changed(self, *, has_grub: bool) -> None:
        """Take note of other boot programs. `has_grub`: a shim and its GRUB are among them."""
        self._has_grub = has_grub

    def of(self, machine: Machine) -> BootPath | None:
        """The path of a machine; None: the usual one, with iPXE where that is to be found out."""
        path = machine.boot_path or self._usual
        if path is BootPath.UKI:
            return path  # which file that is differs from machine to machine
        if path is not BootPath.AUTO:
            return machine.boot_path
        return self._found.get(machine.mac, machine.boot_path)

    def not_started(self, mac: str) -> None:
        """The firmware of this machine has fetched its boot program, and did not run it."""
        machine = self._inventory.by_mac(mac)
        if machine is None or (machine.boot_path or self._usual) is not BootPath.AUTO:
            return
        before = self._found.get(mac, BootPath.IPXE)
        if before is BootPath.IPXE and not self._has_grub:
            message = "there is no shim and GRUB here to offer instead (packages shim-signed, grub-efi-amd64-signed)"
            self._record(
                mac, Step.DHCP, Outcome.INFO, f"boot path auto: {_WORDS[before]} was not started, and {message}"
            )
            return
        found = BootPath.IPXE if before is BootPath.GRUB else BootPath.GRUB
        self._found[mac] = found
        message = f"boot path auto: {_WORDS[before]} was not started, so it is offered {_WORDS[found]} from now on"
        self._record(mac, Step.DHCP, Outcome.INFO, message, boot_path=found.value)
        self._changed(mac)
