"""The netboot policy: which machines may netboot (`NetbootPolicy`), and with which boot program (`BootPaths`).

DHCP, TFTP, HTTP and the journey all call `NetbootPolicy.decide`; none decides on its own. The reason of a refusal is
shown on the machine's screen, in the log and in the journey.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Final

from edge.journey.events import Outcome, Recorder, Step
from edge.machines.inventory import Inventory, Machine
from ipxe.binaries import BootPath
from tink.limits import Newest


class DhcpMode(StrEnum):
    """How this edge takes part in DHCP; the names are Tinkerbell's."""

    RESERVATION = "reservation"  # an address and what to boot, for machines that have a Hardware
    PROXY = "proxy"  # what to boot only, for machines that have a Hardware: beside another DHCP server
    AUTO_PROXY = "auto-proxy"  # the same, for machines without a Hardware, too
    OFF = "off"  # nothing: another DHCP server names our boot files


class NetbootWhen(StrEnum):
    """When a machine may netboot if its Hardware allows that."""

    ALLOWED = "allowed"  # always
    WORKFLOW = "workflow"  # while it has a Workflow that has not ended


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision of the policy; if not `allowed`, with a `reason` in one line that an operator can act on."""

    allowed: bool
    reason: str = ""


ALLOWED = Decision(allowed=True)


@dataclass(frozen=True, slots=True)
class NetbootPolicy:
    """The netboot policy of all servers of the edge.

    has_pending: returns True if a Hardware (namespace, name) has a Workflow that has not ended.
    why_none: returns why it has none, in one line that says what to do.
    Both are methods of `edge.machines.pending_workflows.PendingWorkflows`.
    """

    mode: DhcpMode = DhcpMode.RESERVATION
    when: NetbootWhen = NetbootWhen.ALLOWED
    has_pending: Callable[[str, str], bool] = lambda _namespace, _name: True
    why_none: Callable[[str, str], str] = lambda namespace, name: f"no Workflow for {namespace}/{name}: create one"

    @property
    def follows_workflows(self) -> bool:
        """True if a decision depends on Workflows, so that it may change without a change of the Hardware."""
        return self.when is NetbootWhen.WORKFLOW

    def decide(self, machine: Machine | None) -> Decision:
        """Decide whether `machine` (None: not registered) may netboot now."""
        if machine is None:
            if self.mode is DhcpMode.AUTO_PROXY:
                return ALLOWED
            return Decision(allowed=False, reason="no Hardware has this MAC address")
        if machine.disable_dhcp or machine.disable_netboot:
            field = "disableDhcp" if machine.disable_dhcp else "disableNetboot"
            where = f"Hardware {machine.namespace}/{machine.name}: spec.networkInterfaces[{machine.mac}].{field}"
            return Decision(allowed=False, reason=f"{where} is true")
        if (
            self.when is NetbootWhen.ALLOWED or machine.is_discovered
        ):  # it boots to introduce itself, without a Workflow
            return ALLOWED
        if not self.has_pending(machine.namespace, machine.name):
            return Decision(allowed=False, reason=self.why_none(machine.namespace, machine.name))
        return ALLOWED


MAX_KEPT: Final = 65_536
"""Maximum number of machines whose boot path is stored."""

_WORDS: Final = {BootPath.IPXE: "iPXE", BootPath.GRUB: "shim and GRUB"}


@dataclass(eq=False)
class BootPaths:
    """The boot program of each machine, which is detected where `BootPath.AUTO` is set.

    No DHCP option tells whether Secure Boot is on. Firmware that rejects a program has fetched it completely, does not
    run it, and sends another DISCOVER or nothing. The journey's rules (`NOT_RUN`) detect that and call `not_started`.
    Then the machine is offered the other program. The results are in memory only: after a restart of the edge, they
    cost one more attempt of the firmware.

    usual: the path of machines whose Hardware has none.
    has_grub: a shim and its GRUB are among the boot programs.
    changed: `changed(mac)` is called when the result of `of` changes.
    """

    inventory: Inventory
    record: Recorder
    usual: BootPath = BootPath.IPXE
    _: KW_ONLY
    has_grub: bool = True
    changed: Callable[[str], None] = lambda _mac: None
    _found: Newest[str, BootPath] = field(default_factory=lambda: Newest(MAX_KEPT), init=False)

    def of(self, machine: Machine) -> BootPath | None:
        """Return the path of a machine, or None for the usual one (iPXE, if that is to be detected)."""
        path = machine.boot_path or self.usual
        if path is BootPath.UKI:
            return path  # the file differs from machine to machine
        if path is not BootPath.AUTO:
            return machine.boot_path
        return self._found.get(machine.mac, machine.boot_path)

    def not_started(self, mac: str) -> None:
        """Offer the other program: the firmware of this machine has fetched its boot program, and did not run it."""
        machine = self.inventory.by_mac(mac)
        if machine is None or (machine.boot_path or self.usual) is not BootPath.AUTO:
            return
        before = self._found.get(mac, BootPath.IPXE)
        if before is BootPath.IPXE and not self.has_grub:
            message = "there is no shim and GRUB here to offer instead (packages shim-signed, grub-efi-amd64-signed)"
            self.record(
                mac, Step.DHCP, Outcome.INFO, f"boot path auto: {_WORDS[before]} was not started, and {message}"
            )
            return
        found = BootPath.IPXE if before is BootPath.GRUB else BootPath.GRUB
        self._found[mac] = found
        message = f"boot path auto: {_WORDS[before]} was not started, so it is offered {_WORDS[found]} from now on"
        self.record(mac, Step.DHCP, Outcome.INFO, message, boot_path=found.value)
        self.changed(mac)
