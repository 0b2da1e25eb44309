"""The time that each step of a boot may take before the machine is diagnosed: defaults, and durations learned here.

After each milestone the next one is expected. The table has the default limit and its bounds. Within the bounds the
limit is three times the longest duration in the last boots of the same OSIE on the same model. So an odd boot can't
set a useless limit, and a step that is always slow is not reported again and again.

Measured with EDK2: 4.7 to 6.1 s from an offer to the request (10.7 and 12.2 s on an emulated processor), and 40 to 50 s
from the initrd to the agent on slow hosts. A switch port without portfast is silent for 30 s after each change of the
link, which happens when iPXE or Linux starts.

iPXE configures IPv4 and IPv6 together, and goes on when both are done. Where no router answers it gives up IPv6 some
16 s after the first of six solicitations, whose intervals double up to 8 s. Measured with QEMU's ROM (iPXE of 2019):
16.2 to 17.1 s after its DHCPv4 lease, the last solicitation 8 s before that.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from edge.journey.events import Milestone
from tink.limits import Newest

BOOTS: Final = 8
"""Number of boots whose durations are stored."""
KEPT: Final = 512
"""Maximum number of pairs of a kind of machine (OSIE and model) and a step."""
_SAFETY_FACTOR: Final = 3.0


class Limit(NamedTuple):
    """Default and bounds in seconds. `awaited` is a noun for the next step: "waiting for: kernel download"."""

    usual: float
    least: float
    most: float
    awaited: str


LIMITS: Final = {
    Milestone.OFFERED: Limit(15, 13, 20, "DHCP request"),
    Milestone.LEASED: Limit(8, 6, 10, "boot program request"),
    Milestone.PROGRAM_BEGUN: Limit(20, 20, 120, "boot program download"),
    Milestone.PROGRAM_SENT: Limit(35, 10, 60, "start of the boot program"),
    Milestone.IPXE_OFFERED: Limit(10, 8, 10, "iPXE's DHCP request"),
    Milestone.IPXE_LEASED: Limit(24, 22, 30, "iPXE script request"),
    Milestone.SCRIPT_SENT: Limit(10, 6, 20, "kernel request"),
    Milestone.KERNEL_BEGUN: Limit(20, 20, 300, "kernel download"),
    Milestone.KERNEL_SENT: Limit(10, 8, 30, "initrd request"),
    Milestone.INITRD_BEGUN: Limit(60, 20, 600, "initrd download"),
    Milestone.INITRD_SENT: Limit(90, 15, 300, "start of the OSIE"),
    Milestone.KERNEL_STARTED: Limit(90, 15, 300, "start of the OSIE"),
    Milestone.OS_OFFERED: Limit(10, 8, 10, "DHCP request of its system"),
    Milestone.OS_LEASED: Limit(60, 20, 180, "agent connection"),
    Milestone.OSIE_UP: Limit(30, 20, 180, "agent connection"),
    Milestone.AGENT_CONNECTED: Limit(8, 8, 8, "Workflow for the agent"),
    Milestone.WORKFLOW_RUNNING: Limit(20, 10, 60, "start of the first action"),
    Milestone.ACTION_BEGUN: Limit(60, 60, 60, "end of the action, or output of it"),
    Milestone.ACTION_ENDED: Limit(20, 10, 60, "next action, or end of the Workflow"),
}
"""The next step after each milestone. No step is expected after the others."""

OVER_IPV6: Final = {Milestone.LEASED: 12.0, Milestone.IPXE_LEASED: 20.0}
"""Seconds added to the limit if the address is IPv6. EDK2 waits 10 s for a default router before it uses its address
(PxeBcDhcp6.c, PXEBC_IP6_ROUTE_TABLE_TIMEOUT). iPXE sends four DISCOVERs, which no server answers, for 15 s."""

SOLICITING_SECONDS: Final = 12.0
"""iPXE gives up 8 s after its last solicitation, its longest interval. After this silence it no longer waits."""

SOONER: Final = {Milestone.IPXE_LEASED: 8.0}
"""Seconds after which a machine is checked before its limit, because more than the clock can show that it is late: iPXE
needs no longer than this when it has finished with IPv6."""
SOONER_AGAIN_SECONDS: Final = 3.0

NOT_LEARNT: Final = frozenset({Milestone.AGENT_CONNECTED, Milestone.ACTION_BEGUN})
"""Milestones whose following step does not depend on the machine."""


class StepLimits:
    """The limits of the table, adjusted by the durations of earlier boots."""

    def __init__(self) -> None:
        self._seen: Newest[tuple[str, Milestone], deque[float]] = Newest(KEPT)

    def learn(self, kind: str, reached: Milestone, seconds: float) -> None:
        """Record how long a machine of this kind took from the milestone `reached` to the next."""
        if not kind or reached not in LIMITS or reached in NOT_LEARNT or seconds < 0:
            return
        seen = self._seen.get((kind, reached), ())
        self._seen[kind, reached] = deque((*seen, seconds), maxlen=BOOTS)

    def after(self, reached: Milestone, kind: str = "") -> float | None:
        """Return how many seconds the next milestone may take, or None if no milestone is expected."""
        limit = LIMITS.get(reached)
        if limit is None:
            return None
        seen = self._seen.get((kind, reached))
        if not seen:
            return limit.usual
        return min(max(_SAFETY_FACTOR * max(seen), limit.least), limit.most)

    def usual(self, reached: Milestone, kind: str = "") -> float | None:
        """Return the longest duration of this step in the last boots of this kind, in seconds; None without boots."""
        seen = self._seen.get((kind, reached))
        return max(seen) if seen else None
