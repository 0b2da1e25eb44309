"""The one netboot policy: whether a machine may netboot, and if not, why.

DHCP, TFTP, HTTP and the journey all ask `netboot`; none decides on its own. The reason is shown on the machine's
screen, in the log and in the journey.
"""

from __future__ import annotations

from dataclasses import dataclass

from edge.inventory import Machine


@dataclass(frozen=True, slots=True)
class Decision:
    """`allowed`, or a `reason` in one line that an operator can act on."""

    allowed: bool
    reason: str = ""


ALLOWED = Decision(allowed=True)


def netboot(machine: Machine | None) -> Decision:
    """Decide whether `machine` (None: not registered) may netboot now."""
    if machine is None:
        return Decision(allowed=False, reason="no Hardware has this MAC address")
    where = f"Hardware {machine.namespace}/{machine.name}: spec.networkInterfaces[{machine.mac}]"
    if machine.interface.disable_dhcp:
        return Decision(allowed=False, reason=f"{where}.disableDhcp is true")
    if machine.interface.disable_netboot:
        return Decision(allowed=False, reason=f"{where}.disableNetboot is true")
    return ALLOWED
