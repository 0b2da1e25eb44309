"""Whether a client may boot from the network now, and what: the policy's answer and the boot file in one verdict.

`edge.machines.policy` decides, `edge.dhcp.boot` chooses; a lease (`edge.dhcp.leases`) and a ProxyDHCP offer
(`edge.dhcp.proxy`) carry what comes out here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from edge.dhcp.boot import NO_BOOT, Boot, BootChoice
from edge.dhcp.client import Client
from edge.machines import Machine, NetbootPolicy
from ipxe.binaries import NoBinaryError


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a client is told to boot; why not, if it is refused; and both in words for the journey.

    `words` are empty or begin with a comma: they follow the name of the message that was sent.
    """

    boot: Boot
    refusal: str
    words: str


NOT_ASKED: Final = Verdict(NO_BOOT, "", "")
"""On a client that asks for no boot file, an operating system."""


def allowed(boot: Boot) -> Verdict:
    """On a client that may boot, and boots `boot`."""
    return Verdict(boot, "", f", {boot.text}")


class Netboot:
    """Judges clients."""

    def __init__(self, policy: NetbootPolicy, choice: BootChoice) -> None:
        self._policy = policy
        self._choice = choice

    def verdict(self, machine: Machine | None, mac: str, client: Client, *, proxy: bool = False) -> Verdict:
        """What `client` boots on the machine with this MAC; `machine` is None where it has no Hardware.

        With `proxy`, as it is said beside another server's lease.
        """
        if not client.netboots:
            return NOT_ASKED
        reason = self._policy.decide(machine).reason
        if not reason:
            try:
                boot = self._choice.proxy(client, mac) if proxy else self._choice.choose(client, mac)
            except NoBinaryError as error:
                reason = str(error)
            else:
                return allowed(boot)
        boot = self._choice.refuse(client, mac, reason, proxy=proxy)
        what = f", {boot.text}, because it may not netboot: " if boot.text else ", nothing to boot: "
        return Verdict(boot, reason, f"{what}{reason}")
