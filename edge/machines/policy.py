"""The one netboot policy: whether a machine may netboot now, and if not, why.

DHCP, TFTP, HTTP and the journey all ask `NetbootPolicy.decide`; none decides on its own. The reason is shown on the
machine's screen, in the log and in the journey.

By which program each machine gets to its kernel, where that is to be found out (`BootPath.AUTO`).

No DHCP option says whether a machine has Secure Boot on. But firmware that refuses a program has fetched it whole, runs
nothing of it, and asks for an address again or is silent: the journey's expectations know that (their findings
`NOT_RUN`), and tell it here. The machine is then offered the other program. What was found out is kept in
memory: an edge that starts anew finds it out again, for one more attempt of the firmware.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from edge.journey.events import Outcome, Recorder, Step
from edge.machines.inventory import Inventory, Machine
from ipxe.binaries import BootPath
from tink.limits.newest import Newest


class DhcpMode(StrEnum):
    """How this edge takes part in DHCP; the names are those that Tinkerbell's operators know."""

    RESERVATION = "reservation"  # an address and what to boot, for machines that have a Hardware
    PROXY = "proxy"  # what to boot only, for machines that have a Hardware: beside another DHCP server
    AUTO_PROXY = "auto-proxy"  # the same, for machines without a Hardware, too
    OFF = "off"  # nothing: another DHCP server names our boot files


class NetbootWhen(StrEnum):
    """When a machine may netboot that its Hardware allows to."""

    ALLOWED = "allowed"  # always
    WORKFLOW = "workflow"  # while it has a Workflow that has not ended


@dataclass(frozen=True, slots=True)
class Decision:
    """`allowed`, or a `reason` in one line that an operator can act on."""

    allowed: bool
    reason: str = ""


ALLOWED = Decision(allowed=True)

HasPending = Callable[[str, str], bool]
"""`has_pending(namespace, name)`: whether the Hardware has a Workflow that has not ended (`pending_workflows`)."""
WhyNone = Callable[[str, str], str]
"""`why_none(namespace, name)`: why it has none, in one line that says what to do."""


def _why_none(namespace: str, name: str) -> str:
    return f"no Workflow for {namespace}/{name}: create one"


class NetbootPolicy:
    """Decides for every server of the edge alike."""

    def __init__(
        self,
        mode: DhcpMode = DhcpMode.RESERVATION,
        when: NetbootWhen = NetbootWhen.ALLOWED,
        has_pending: HasPending = lambda _namespace, _name: True,
        why_none: WhyNone = _why_none,
    ) -> None:
        """`has_pending` and `why_none` are those of `edge.machines.pending_workflows.PendingWorkflows`."""
        self.mode = mode
        self._when = when
        self._has_pending = has_pending
        self._why_none = why_none

    @property
    def follows_workflows(self) -> bool:
        """Whether an answer may change while the Hardware stays the same, because its Workflows do."""
        return self._when is NetbootWhen.WORKFLOW

    def decide(self, machine: Machine | None) -> Decision:
        """Whether `machine` (None: not registered) may netboot now."""
        if machine is None:
            if self.mode is DhcpMode.AUTO_PROXY:
                return ALLOWED
            return Decision(allowed=False, reason="no Hardware has this MAC address")
        if machine.disable_dhcp or machine.disable_netboot:
            field = "disableDhcp" if machine.disable_dhcp else "disableNetboot"
            where = f"Hardware {machine.namespace}/{machine.name}: spec.networkInterfaces[{machine.mac}].{field}"
            return Decision(allowed=False, reason=f"{where} is true")
        if self._when is NetbootWhen.WORKFLOW and not self._has_pending(machine.namespace, machine.name):
            return Decision(allowed=False, reason=self._why_none(machine.namespace, machine.name))
        return ALLOWED


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
