"""The one netboot policy: whether a machine may netboot now, and if not, why.

DHCP, TFTP, HTTP and the journey all ask `NetbootPolicy.decide`; none decides on its own. The reason is shown on the
machine's screen, in the log and in the journey.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from edge.machines.inventory import Machine


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
