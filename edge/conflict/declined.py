"""Judges the DHCPDECLINE or DHCPv6 Decline of a machine: the machine reports that another host uses its address.

Pure; the clock is an argument. Any host can send such a message in a machine's name. So the message alone has no effect
if ARP (RFC 5227) or neighbour discovery (RFC 4861) can find the host:

    DHCPDECLINE -> on our link: which host answers a probe for the address?
                     another host             -> quarantine
                     the machine itself, none -> no effect; the machine is served as before
                -> through a relay, or on an interface that is no Ethernet, where no probe can be sent:
                     the relay is trusted (`edge.conflict.relays`), this server has just assigned the address, and the
                     machine had no such quarantine in the last ten minutes -> a short quarantine
                     otherwise                                             -> no effect

`edge.conflict.prober` sends the probes and passes on the answers. `wake` requests a call of `step`, and `wait` returns
the time until the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from edge.conflict.family import text
from edge.conflict.quarantine import Quarantine
from edge.journey.events import Outcome, Value
from edge.machines import Inventory, Machine
from tink.limits.newest import Newest
from tink.limits.once_per import Tally, times
from tink.mac import octets

log = logging.getLogger(__name__)

PROBES: Final = 3  # RFC 5227 section 1.1, PROBE_NUM
PROBE_SECONDS: Final = 0.4
"""Between probes. Shorter than the RFC's second or two: who declined asks anew after ten (RFC 2131 section 3.1)."""
ANSWER_SECONDS: Final = 0.8
"""How long an answer to the last probe is waited for."""
MAX_PROBED: Final = 64
"""Addresses that are probed at a time: some 100 probes a second."""
UNSEEN_SECONDS: Final = 60.0
"""The longest quarantine where nobody can probe."""
UNSEEN_AGAIN_SECONDS: Final = 600.0
"""Minimum time between the starts of two such quarantines of a machine: at most a tenth of the time is lost."""
MAX_UNSEEN: Final = 4096
"""Maximum number of machines for which the start of such a quarantine is stored."""
ACKNOWLEDGED_SECONDS: Final = 60.0
"""So long ago, or up to twice as long, an address was given whose DHCPDECLINE counts where nobody can probe."""


class Claim(NamedTuple):
    """Somebody says that an IP address (four or sixteen bytes) is at a hardware address (six)."""

    address: bytes
    hardware: bytes


class Told(Protocol):
    """Who tells operators, each once a minute."""

    def once(self, mac: str, outcome: Outcome, line: str, **detail: Value) -> None:
        """`line` about the machine with this MAC."""

    def tallied(self, mac: str, key: str, line: str, **detail: Value) -> None:
        """`line` of those with this key, and how many there were besides."""


class Acknowledged:
    """Machines whose address was acknowledged (DHCPACK) not long ago, by the six bytes of their MAC."""

    def __init__(self) -> None:
        self.lately: set[bytes] = set()
        """To be added to, with each DHCPACK of a new lease."""
        self._before: set[bytes] = set()
        self._since = float("-inf")

    def __contains__(self, chaddr: bytes) -> bool:
        return chaddr in self.lately or chaddr in self._before

    def pass_time(self, now: float) -> None:
        """To be called every few seconds, so that what is old is forgotten."""
        if not 0 <= now - self._since < ACKNOWLEDGED_SECONDS:
            self.lately, self._before = set(), self.lately
            self._since = now


@dataclass(slots=True)
class _Probing:
    """An address that is being probed."""

    machine: Machine
    source: str
    doubt: str = ""
    """The reason why the machine's relay is not trusted; empty if it is trusted or there is no relay."""
    probes_left: int = PROBES
    due: float = 0.0
    own: bool = False
    """Whether the machine itself was heard there."""


class Declined:
    """Judges DHCPDECLINEs of one network."""

    def __init__(self, inventory: Inventory, quarantine: Quarantine, reports: Told, clock: Callable[[], float]) -> None:
        """`clock` gives seconds of any epoch."""
        self.acknowledged = Acknowledged()
        self.wake: Callable[[], None] | None = None
        """Set by who can probe; called when there is something to probe."""
        self.is_on_link: Callable[[bytes], bool] = lambda _address: False
        """Set by who can probe: whether the address is of its link, whoever passed the packet on."""
        self._inventory = inventory
        self._quarantine = quarantine
        self.family: Final = quarantine.family
        self._reports = reports
        self._clock = clock
        self._probing: dict[bytes, _Probing] = {}  # by address
        self._full = Tally(60.0, 1)
        self._unseen_at: Newest[str, float] = Newest(MAX_UNSEEN)
        """The start of the last quarantine of a machine without a probe, by MAC."""

    def heard(self, machine: Machine, address: bytes, source: str, *, relayed: bool, doubt: str = "") -> None:
        """Check a machine's decline of its address, which came from `source` by a plausible way.

        `doubt` is the reason why the relay that passed it on is not trusted (`Relays.doubt`); empty if it is trusted or
        there is no relay.
        """
        if self.wake is None or (relayed and not self.is_on_link(address)):
            self._unseen(machine, source, doubt)
        elif address in self._probing:
            return
        elif len(self._probing) >= MAX_PROBED:
            held_back = self._full.due("", self._clock())
            if held_back is not None:
                log.warning(
                    "%ss of more than %d addresses at once: that of %s by %s is not looked into%s",
                    self.family.message, MAX_PROBED, text(address), machine.mac, times(held_back),
                )  # fmt: skip
        else:
            self._probing[address] = _Probing(machine, source, doubt, due=self._clock())
            self.wake()

    def disbelieved(self, machine: Machine, source: str, why: str) -> None:
        """A DHCPDECLINE in the machine's name came by a way that the machine can't take."""
        what = self.family.message
        self._reports.tallied(machine.mac, f"{what} {why}", f"a {what} from {source} is not believed: {why}")

    def pass_time(self) -> None:
        """To be called every few seconds."""
        self.acknowledged.pass_time(self._clock())

    # --- for who probes ---------------------------------------------------------------------------------------------

    @property
    def wait(self) -> float | None:
        """Seconds after which `step` is to be called; None: there is nothing to probe."""
        due = min((probing.due for probing in self._probing.values()), default=None)
        return None if due is None else max(due - self._clock(), 0.0)

    def step(self) -> list[bytes]:
        """The addresses to send a probe for now. Ends what has been probed for long enough."""
        now = self._clock()
        due = [(address, probing) for address, probing in self._probing.items() if probing.due <= now]
        probes = []
        for address, probing in due:
            if probing.probes_left:
                probing.probes_left -= 1
                probing.due = now + (PROBE_SECONDS if probing.probes_left else ANSWER_SECONDS)
                probes.append(address)
            else:
                del self._probing[address]
                self._nobody(probing)
        return probes

    def claimed(self, claim: Claim) -> None:
        """Somebody on the link said that an address is theirs."""
        probing = self._probing.get(claim.address)
        if probing is None:
            return
        if self._is_of(probing.machine, claim.hardware):
            probing.own = True  # another host may have it, too
            return
        del self._probing[claim.address]
        self._conflict(probing.machine, f"another host, {claim.hardware.hex(':')}, already uses {self._ip(probing)}")

    def is_ours(self, address: bytes) -> None:
        """The address turns out to be one of this host's own, for which no probe is answered."""
        probing = self._probing.pop(address, None)
        if probing is not None:
            self._conflict(probing.machine, f"this host itself uses {self._ip(probing)}")

    def probe_failed(self, address: bytes) -> None:
        """The probe could not be sent."""
        probing = self._probing.pop(address, None)
        if probing is not None:
            self._unseen(probing.machine, probing.source, probing.doubt)

    # --- verdicts ---------------------------------------------------------------------------------------------------

    def _is_of(self, machine: Machine, hardware: bytes) -> bool:
        """Whether that is the machine, by this interface or, as Linux answers ARP, by another of its own."""
        mac = hardware.hex(":")
        other = self._inventory.by_mac(mac)
        return mac == machine.mac or (
            other is not None and (other.namespace, other.name) == (machine.namespace, machine.name)
        )

    def _ip(self, probing: _Probing) -> str:
        return self.family.address(probing.machine) or ""

    def _nobody(self, probing: _Probing) -> None:
        machine, ip = probing.machine, self._ip(probing)
        who = "only the machine itself answers" if probing.own else "nobody answers"
        line = f"{self.family.message} of {ip}, but {who} {self.family.protocol} there: it is offered as before"
        self._reports.tallied(machine.mac, line, line, address=ip)

    def _unseen(self, machine: Machine, source: str, doubt: str) -> None:
        now = self._clock()
        if not doubt and octets(machine.mac) not in self.acknowledged:
            doubt = "this server has given the machine no address in the last minute"
        if not doubt and 0 <= now - self._unseen_at.get(machine.mac, float("-inf")) < UNSEEN_AGAIN_SECONDS:
            doubt = f"one counts in {UNSEEN_AGAIN_SECONDS / 60:.0f} minutes where no probe is possible"
        if doubt:
            self.disbelieved(machine, source, doubt)
            return
        self._unseen_at[machine.mac] = now
        ip, protocol = self.family.address(machine), self.family.protocol
        what = f"another host already uses {ip}, says a packet from {source}, where no {protocol} probe is possible"
        self._conflict(machine, what, UNSEEN_SECONDS)

    def _conflict(self, machine: Machine, what: str, most_seconds: float = float("inf")) -> None:
        family, seconds = self.family, min(self._quarantine.seconds, most_seconds)
        self._quarantine.begin(machine, seconds)
        for other in self._inventory.sharing(machine, family.address(machine) or ""):
            if other.mac != machine.mac:  # another interface of the Hardware would find the same host there
                self._quarantine.begin(other, seconds)
        pause = f"; it is not offered for {seconds:.0f} s" if seconds > 0 else ""
        line = f"{family.message}: {what}{pause}. Find that host and stop it, or change the Hardware's {family.field}"
        self._reports.once(machine.mac, Outcome.FAILED, line, address=family.address(machine) or "")
