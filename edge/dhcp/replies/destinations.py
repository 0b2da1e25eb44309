"""Where answers may go that a packet names itself: relays (`giaddr`) and clients that have an address. Pure.

A packet's `giaddr`, `ciaddr` and source can be anybody's, and whoever sends one in another's name has our answer sent
there. Inside a machine's own network that is no gain, for an answer is little larger than its question; a relay there
may carry a whole site. To every other address goes a bounded number of answers a second: enough for a relay that asks
from a loopback address of its own (RFC 3527), too little to be of use against anybody. The same holds for a relay that
is to be answered at another port than 67 (RFC 8357), wherever it is: that port may be any service of any host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from edge.dhcp.replies.reservation import Network
from edge.dhcp.reports import Reports
from edge.dhcp.wire import options
from edge.dhcp.wire.relay_agent import RelayAgent
from tink.limits.allowance import Allowance

RELAY_ANSWERS: Final = 1000
"""Answers a second to one relay that is of no machine's network, or is answered at a port of its own."""
CLIENT_ANSWERS: Final = 20
"""Answers a second to one client that names its own address: DHCPINFORM, and requests on port 4011."""
ANSWERS_IN_ALL: Final = 5000
"""The same to all such relays together, and to all such clients."""
_RELAYS: Final = 1024


class Destinations:
    """Says which addresses may be answered now."""

    def __init__(self, reports: Reports, clock: Callable[[], float]) -> None:
        """`clock` gives seconds of any epoch."""
        self._reports = reports
        self._clock = clock
        self._to_relays = Allowance(RELAY_ANSWERS, ANSWERS_IN_ALL)
        self._to_clients = Allowance(CLIENT_ANSWERS, ANSWERS_IN_ALL)
        self.relays: dict[bytes, str] = {}
        """By `giaddr`, in dotted form: relays that were found to be of the network of a machine they spoke for."""

    def relay(self, agent: RelayAgent, network: Network | None) -> bool:
        """Return True if the relay may be answered now.

        `network` is that of the machine that the relay speaks for, or None if it is not known.
        """
        giaddr, port = agent.giaddr, agent.port
        if not port and giaddr in self.relays:
            return True
        if not port and network is not None and network.holds(giaddr):
            if len(self.relays) >= _RELAYS:
                self.relays.clear()
            self.relays[giaddr] = options.dotted(giaddr)
            return True
        if self._to_relays.take(giaddr, self._clock()):
            return True
        where = f"at port {port} (RFC 8357)" if port else "which is not of its machine's network"
        self._reports.withheld(f"the relay {options.dotted(giaddr)}, {where}", RELAY_ANSWERS)
        return False

    def client(self, address: str) -> bool:
        """Whether the client at this address may be answered there."""
        if self._to_clients.take(address, self._clock()):
            return True
        self._reports.withheld(f"the client {address}", CLIENT_ANSWERS)
        return False
