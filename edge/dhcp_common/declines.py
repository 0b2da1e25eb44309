"""Judges the DHCPDECLINE or DHCPv6 Decline of a machine: the machine reports that another host uses its address.

Pure; the clock is an argument. A client that finds another host at the address that it was given declines the address
(RFC 2131 section 4.3.3; RFC 8415 section 18.2.8) and starts again. Offering the address again would make the client go
round in a circle. So the address is in quarantine, and not offered, until the time is over or the operator gives the
machine another address. A machine that already uses the address can renew its lease.

Any host can send such a message in a machine's name. So the message alone has no effect if ARP (RFC 5227) or neighbour
discovery (RFC 4861) can find the host:

    on our link: which host answers a probe for the address?
        another host             -> quarantine
        the machine itself, none -> no effect; the machine is served as before
    through a relay, or on an interface that is no Ethernet, where no probe can be sent:
        the relay is trusted (`edge.dhcp_common.relays`), this server has just assigned the address, and the machine had
        no such quarantine in the last ten minutes -> a short quarantine
        otherwise                                  -> no effect

`edge.dhcp_common.prober` sends the probes and passes on the answers. `wake` requests a call of `step`, and `wait`
returns the time until the next one.
"""

from __future__ import annotations

from collections.abc import Callable, KeysView
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final, NamedTuple

from edge.dhcp_common.reports import DhcpReports
from edge.dhcp_common.site import IPV4, DhcpSite, Family
from edge.journey.events import Outcome
from edge.machines import Machine
from tink.limits import Newest
from tink.mac import octets

DEFAULT_SECONDS: Final = 600.0
"""Duration of a quarantine."""
MAX_ADDRESSES: Final = 4096
"""Maximum number of addresses in quarantine. Only registered machines can put one there, each its own."""

Changed = Callable[[Machine, str, float | None], None]
"""`changed(machine, address, until)`: a quarantine began that ends at `until` of the clock, or, if that is None, ended.
"""


class _Entry(NamedTuple):
    machine: Machine
    address: str
    until: float


@dataclass(eq=False)
class Quarantine:
    """The machines whose address of one family is not offered. Responders of several networks may share it.

    clock: returns seconds; if `until` is shown to people, of the Unix epoch.
    seconds: the duration; with 0 the quarantine stays empty.
    changed: called when the quarantine of an address begins or ends.
    """

    clock: Callable[[], float]
    seconds: float = DEFAULT_SECONDS
    changed: Changed = lambda _machine, _address, _until: None
    family: Family = IPV4

    def __post_init__(self) -> None:
        self._entries: dict[str, _Entry] = {}  # by MAC, the oldest first
        self.macs: KeysView[str] = self._entries.keys()
        """The MACs of machines in quarantine, including some whose time is over."""

    def begin(self, machine: Machine, seconds: float | None = None) -> None:
        """Put the machine's address into quarantine, for at most `seconds` if that is given."""
        seconds = self.seconds if seconds is None else min(seconds, self.seconds)
        ip = self.family.address(machine)
        if ip is None or seconds <= 0:
            return
        self.expire()
        old = self._entries.pop(machine.mac, None)
        if old is None and len(self._entries) >= MAX_ADDRESSES:
            self._end(next(iter(self._entries)))
        until = self.clock() + seconds
        if old is not None and old.address == ip:
            until = max(until, old.until)  # a short quarantine without a probe does not shorten one after a probe
        self._entries[machine.mac] = _Entry(machine, ip, until)
        self.changed(machine, ip, until)

    def refusal(self, machine: Machine) -> str:
        """Return the reason why the machine does not get its address now; empty if it does."""
        if not self.holds(machine.mac):
            return ""
        family = self.family
        return (
            f"{family.address(machine)} is in quarantine, because another host was found there ({family.decline}). "
            f"Find that host and stop it, or change the Hardware's {family.field}"
        )

    def holds(self, mac: str) -> bool:
        """Return True if the address of the machine with this MAC is in quarantine now."""
        entry = self._entries.get(mac)
        if entry is None:
            return False
        if self._is_over(entry, self.clock()):
            self._end(mac)
            return False
        return True

    def machine_changed(self, mac: str, machine: Machine | None) -> None:
        """End the quarantine if the machine with this MAC, None if there is none, has another address now."""
        entry = self._entries.get(mac)
        if entry is not None and (machine is None or self.family.address(machine) != entry.address):
            self._end(mac)

    def expire(self) -> None:
        """End each quarantine whose time is over. It is called from time to time, because packets may not arrive."""
        now = self.clock()
        for mac in [mac for mac, entry in self._entries.items() if self._is_over(entry, now)]:
            self._end(mac)

    def _is_over(self, entry: _Entry, now: float) -> bool:
        # If the clock was set back, an end looks far away; such a quarantine ends, too.
        return not now < entry.until <= now + self.seconds

    def _end(self, mac: str) -> None:
        entry = self._entries.pop(mac)
        self.changed(entry.machine, entry.address, None)


PROBES: Final = 3  # RFC 5227 section 1.1, PROBE_NUM
# The RFC has a second or two between probes. A client that declined starts again after ten seconds (RFC 2131 section
# 3.1), and the result has to be known by then.
PROBE_SECONDS: Final = 0.4
ANSWER_SECONDS: Final = 0.8
"""Time to wait for an answer to the last probe."""
MAX_PROBED: Final = 64
"""Maximum number of addresses that are probed at the same time: some 100 probes a second."""
UNPROBED_SECONDS: Final = 60.0
"""Maximum duration of a quarantine without a probe."""
UNPROBED_PAUSE_SECONDS: Final = 600.0
"""Minimum time between the starts of two such quarantines of a machine: at most a tenth of the time is lost."""
MAX_UNPROBED: Final = 4096
"""Maximum number of machines for which the start of such a quarantine is stored."""
RECENT_SECONDS: Final = 60.0
"""A lease is recent for this time, or up to twice as long."""


class AddressClaim(NamedTuple):
    """A host's statement that an IP address (four or sixteen bytes) is at its hardware address (six)."""

    address: bytes
    hardware: bytes


class RecentLeases:
    """The machines whose address was acknowledged recently, by the six bytes of their MAC."""

    def __init__(self) -> None:
        self.newest: set[bytes] = set()
        """The responder adds the MAC of each new lease that it acknowledges."""
        self._older: set[bytes] = set()
        self._since = float("-inf")

    def __contains__(self, chaddr: bytes) -> bool:
        return chaddr in self.newest or chaddr in self._older

    def pass_time(self, now: float) -> None:
        """Forget old leases. It is called every few seconds."""
        if not 0 <= now - self._since < RECENT_SECONDS:
            self.newest, self._older = set(), self.newest
            self._since = now


@dataclass(slots=True)
class _Probing:
    """The search for the host of a declined address.

    doubt: the reason why the machine's relay is not trusted; empty if it is trusted or there is no relay.
    is_own: the machine itself answered a probe.
    """

    machine: Machine
    source: str
    doubt: str = ""
    probes_left: int = PROBES
    due: float = 0.0
    is_own: bool = False


class Declines:
    """Judges the declines of one network."""

    def __init__(self, site: DhcpSite, quarantine: Quarantine, reports: DhcpReports) -> None:
        self.recent_leases = RecentLeases()
        self.wake: Callable[[], None] | None = None
        """Set by the prober, and called when there is an address to probe. None if no probe can be sent."""
        self.is_on_link: Callable[[bytes], bool] = lambda _address: False
        """Set by the prober: returns True if an address is on its link, even if a relay passed the packet on."""
        self._inventory = site.inventory
        self._quarantine = quarantine
        self.family: Final = quarantine.family
        self._reports = reports
        self._clock = site.clock
        self._probing: dict[bytes, _Probing] = {}  # by address
        self._unprobed_at: Newest[str, float] = Newest(MAX_UNPROBED)
        """The start of the last quarantine of a machine without a probe, by MAC."""

    def check(self, machine: Machine, address: bytes, source: str, *, relayed: bool, doubt: str = "") -> None:
        """Check a plausible decline; `doubt` is the reason why its relay is not trusted (`Relays.doubt`), or empty."""
        if self.wake is None or (relayed and not self.is_on_link(address)):
            self._judge_unprobed(machine, source, doubt)
        elif address in self._probing:
            return
        elif len(self._probing) >= MAX_PROBED:
            line = f"{self.family.decline}s of more than {MAX_PROBED} addresses at once"
            self._reports.dropped("probes", f"{line}: that of {ip_address(address)} by {machine.mac} is not probed")
        else:
            self._probing[address] = _Probing(machine, source, doubt, due=self._clock())
            self.wake()

    def reject(self, machine: Machine, source: str, why: str) -> None:
        """Report a decline in the machine's name that came by a way that the machine can't use."""
        what = self.family.decline
        self._reports.tallied(machine.mac, f"{what} {why}", f"a {what} from {source} is not believed: {why}")

    def pass_time(self) -> None:
        """Forget old leases. It is called every few seconds."""
        self.recent_leases.pass_time(self._clock())

    # --- for the prober -----------------------------------------------------------------------------------------------

    @property
    def wait(self) -> float | None:
        """The time in seconds until the next call of `step`; None if there is nothing to probe."""
        due = min((probing.due for probing in self._probing.values()), default=None)
        return None if due is None else max(due - self._clock(), 0.0)

    def step(self) -> list[bytes]:
        """Return the addresses to send a probe for now, and end each search that took long enough."""
        now = self._clock()
        probes = []
        for address, probing in list(self._probing.items()):
            if probing.due > now:
                continue
            if probing.probes_left:
                probing.probes_left -= 1
                probing.due = now + (PROBE_SECONDS if probing.probes_left else ANSWER_SECONDS)
                probes.append(address)
            else:
                del self._probing[address]
                who = "only the machine itself answers" if probing.is_own else "no host answers"
                ip = self._ip(probing)
                line = f"{self.family.decline} of {ip}, but {who} {self.family.probe} there: it is offered as before"
                self._reports.tallied(probing.machine.mac, line, line, address=ip)
        return probes

    def claimed(self, claim: AddressClaim) -> None:
        """Handle a claim that the prober received."""
        probing = self._probing.get(claim.address)
        if probing is None:
            return
        machine, mac = probing.machine, claim.hardware.hex(":")
        # Linux answers ARP for an address on each of its interfaces.
        card = self._inventory.by_mac(mac)
        if mac == machine.mac or (card is not None and card.is_of_hardware_of(machine)):
            probing.is_own = True  # another host may use the address, too
            return
        del self._probing[claim.address]
        self._conflict(machine, f"another host, {mac}, already uses {self._ip(probing)}")

    def is_ours(self, address: bytes) -> None:
        """Handle an address that is one of this host's own: a host does not answer its own probe."""
        probing = self._probing.pop(address, None)
        if probing is not None:
            self._conflict(probing.machine, f"this host itself uses {self._ip(probing)}")

    def probe_failed(self, address: bytes) -> None:
        """Handle a probe that could not be sent."""
        probing = self._probing.pop(address, None)
        if probing is not None:
            self._judge_unprobed(probing.machine, probing.source, probing.doubt)

    # --- verdicts -----------------------------------------------------------------------------------------------------

    def _ip(self, probing: _Probing) -> str:
        return self.family.address(probing.machine) or ""

    def _judge_unprobed(self, machine: Machine, source: str, doubt: str) -> None:
        """Judge a decline for which no probe can be sent."""
        now = self._clock()
        if not doubt and octets(machine.mac) not in self.recent_leases:
            doubt = "this server has given the machine no address in the last minute"
        if not doubt and 0 <= now - self._unprobed_at.get(machine.mac, float("-inf")) < UNPROBED_PAUSE_SECONDS:
            doubt = f"one counts in {UNPROBED_PAUSE_SECONDS / 60:.0f} minutes where no probe is possible"
        if doubt:
            self.reject(machine, source, doubt)
            return
        self._unprobed_at[machine.mac] = now
        ip, probe = self.family.address(machine), self.family.probe
        what = f"another host already uses {ip}, as a packet from {source} reports, where no {probe} probe is possible"
        self._conflict(machine, what, UNPROBED_SECONDS)

    def _conflict(self, machine: Machine, what: str, max_seconds: float = float("inf")) -> None:
        family, seconds = self.family, min(self._quarantine.seconds, max_seconds)
        self._quarantine.begin(machine, seconds)
        # Another interface of the Hardware with the same address would find the same host there.
        for other in self._inventory.sharing(machine, family.address(machine) or ""):
            if other.mac != machine.mac:
                self._quarantine.begin(other, seconds)
        pause = f"; it is not offered for {seconds:.0f} s" if seconds > 0 else ""
        line = f"{family.decline}: {what}{pause}. Find that host and stop it, or change the Hardware's {family.field}"
        self._reports.once(machine.mac, Outcome.FAILED, line, address=family.address(machine) or "")
