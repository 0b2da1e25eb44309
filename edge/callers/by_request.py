"""Identifies the machine that sends an HTTP request, once for each request: the `Caller`.

    the connection's address -> of a trusted proxy: the address in X-Forwarded-For
                             -> the machine at that address (`by_address`)
    the path: /machine/<claim>/..., /nocloud/<claim>/..., /phone-home/<claim>
        a token             -> the machine that it was signed for, from any address
        a MAC               -> that machine, if the address is in a network whose NAT hides addresses (--metadata-nat)
        its own MAC or name -> the machine at the address

Scripts, OSIE files, metadata and phone-home use the `Caller` and read no header themselves. By default a machine can't
pass for another one: a proxy is trusted and a MAC believed only in the networks that the operator names. An address
that is known as one machine's never stands for another machine, whatever network it is in.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web

from edge.callers.addresses import FORWARDED, Networks, dotted, forwarded_for, inside
from edge.callers.by_address import Callers
from edge.callers.metadata_tokens import PREFIX, MetadataTokenError, MetadataTokens
from edge.machines import Inventory, Machine
from tink.mac import from_any, is_mac


@dataclass(frozen=True, slots=True)
class TrustedNetworks:
    """The networks that the operator trusts; none by default.

    proxies: networks of proxies whose X-Forwarded-For is believed.
    nat: networks whose hosts are believed if a path has a MAC in it.
    """

    proxies: Networks = ()
    nat: Networks = ()


TRUST_NOBODY = TrustedNetworks()


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request.

    address: the source, as far as it is known.
    machine: None if it is not identified; then `status` and `reason` are for the sender, and `why` is for the log.
    mac: the machine's, or that of the host at the address if it has no Hardware.
    signed: the path has a token.
    proxied: a trusted proxy passed the request on.
    rivals: the address may belong to several machines, so none is identified.
    owner: the machine that the address is reserved for, if a host with another MAC has it.
    """

    address: str
    machine: Machine | None = None
    mac: str | None = None
    status: int = 404
    reason: str = ""
    why: str = ""
    signed: bool = False
    proxied: bool = False
    rivals: bool = False
    owner: Machine | None = None

    def is_from(self, machine: Machine) -> bool:
        """Return True if this machine asks, through this interface or one that shares its address."""
        own = self.machine
        if own is None or not own.is_of_hardware_of(machine):
            return False
        return own.mac == machine.mac or (self.address in machine.addresses and self.address in own.addresses)


@dataclass(eq=False)
class RequestCallers:
    """Identifies the senders of requests."""

    inventory: Inventory
    callers: Callers
    tokens: MetadataTokens
    trusted: TrustedNetworks

    def caller(self, request: web.Request, claim: str = "") -> Caller:
        """Return the sender; `claim` is the token, MAC or name in the path, if there is one. Raises ForwardedError."""
        name = request.protocol.peername
        peer = other_end(name) if isinstance(name, tuple) else ""
        proxied = self.is_proxy(peer)
        address = forwarded_for(request.headers.getall(FORWARDED, ()), self.trusted.proxies) if proxied else peer
        if address is not None:
            found = self._at(address, proxied)
        else:
            reason = f"the proxy {peer} does not name the machine: it must send {FORWARDED}"
            why = f"through a trusted proxy that names no machine in {FORWARDED}"
            found = Caller(peer, reason=reason, why=why, proxied=True)
        if claim.startswith(PREFIX):
            return self._bearer(found, claim)
        if not claim or claim == found.mac:
            return found
        if found.machine is not None:
            return self._checked(found, found.machine, claim)
        # With rivals the sender is one of them, not the machine with the claimed MAC.
        if address is not None and inside(address, self.trusted.nat) and is_mac(claim) and not found.rivals:
            why = f"as {claim} from behind a NAT"
            return self._machine(found, claim, f"no Hardware has the MAC {claim}", why)
        return found

    def is_proxy(self, address: str) -> bool:
        """Return True if this is the address of a trusted proxy."""
        return inside(address, self.trusted.proxies)

    def machine_at(self, address: str) -> Machine | None:
        """Return the machine of all requests of a connection; None if there is none, and for a proxy."""
        if self.trusted.proxies and self.is_proxy(address):
            return None
        return self.callers.machine(address, connected=True)

    def _at(self, address: str, proxied: bool) -> Caller:
        connected = not proxied
        machine = self.callers.machine(address, connected=connected)
        if machine is not None:
            return Caller(address, machine, machine.mac, proxied=proxied)
        mac = self.callers.mac(address, connected=connected)
        same_mac = self.inventory.claimants(mac) if mac is not None else ()
        same_ip = self.inventory.claimants_of_ip(address)
        contested = bool(same_ip) and self.inventory.by_ip(address) is None
        if connected and mac is None and self.callers.is_hidden(address):
            reason = f"it is not known at this moment who has the address {address}: ask again"
            why = "from an address of which the kernel does not know the MAC now (ip neigh)"
            return Caller(address, None, None, 503, reason, why, rivals=True)
        if len(same_mac) > 1:
            reason, why = _contested(same_mac, f"MAC {mac}, which is at {address}")
        elif contested:
            reason, why = _contested(same_ip, f"address {address}")
        elif same_ip and mac is not None and self.callers.gives_addresses:
            owner = same_ip[0]
            reason = f"the address {address} is for another machine: {mac}, which has it, is no MAC of its Hardware"
            why = (
                f"from the address {address} of {owner.namespace}/{owner.name} by {mac}, which is no MAC of it: if it "
                f"is that machine (a bridge, a bond), add the MAC to spec.networkInterfaces, or name the network in "
                f"--known-by-address"
            )
            return Caller(address, None, mac, 403, reason, why, proxied=proxied, rivals=True, owner=owner)
        else:
            reason, why = f"no Hardware has the address {address}", "from an address that no Hardware has"
        rivals = len(same_mac) > 1 or contested
        return Caller(address, None, mac, reason=reason, why=why, proxied=proxied, rivals=rivals)

    def _bearer(self, found: Caller, token: str) -> Caller:
        """Return the machine of a token as the sender."""
        try:
            mac = self.tokens.mac(token)
        except MetadataTokenError as error:
            return _unidentified(
                found, 403, f"the token in this path is not valid: {error}", f"with an invalid token: {error}"
            )
        why = f"with a valid token of {mac}"
        return self._machine(found, mac, f"no Hardware has the MAC {mac} of this token", why, signed=True)

    def _machine(self, found: Caller, mac: str, reason: str, why: str, *, signed: bool = False) -> Caller:
        """Return the machine with this MAC as the sender."""
        machine = self.inventory.by_mac(mac)
        if machine is None:
            return _unidentified(found, 404, reason, f"{why}, but no Hardware has this MAC, or more than one")
        return Caller(found.address, machine, machine.mac, signed=signed, proxied=found.proxied)

    def _checked(self, found: Caller, machine: Machine, claim: str) -> Caller:
        """Return the machine at the address as the sender, unless it claims to be another one."""
        # The router spells a name like 525400123456 as the MAC that it may also be.
        macs = [one.mac for one in self.inventory.by_name(machine.name, machine.namespace)]
        if claim in (machine.name, from_any(machine.name), *macs):
            return found
        # A claim that is no MAC and no existing name may be a part of a token, so it is not logged.
        known = is_mac(claim) or self.inventory.by_name(claim, machine.namespace)
        whom = claim if known else "another machine"
        why = f"as {whom}, but this address is that of {machine.namespace}/{machine.name}"
        # The answer to the sender does not reveal if there is such a machine.
        return _unidentified(found, 403, f"{found.address} is not an address of the requested machine", why)


def _unidentified(found: Caller, status: int, reason: str, why: str) -> Caller:
    return Caller(found.address, None, None, status, reason, why, proxied=found.proxied)


def _contested(rivals: tuple[Machine, ...], what: str) -> tuple[str, str]:
    """Return why no machine is served at an address or MAC that several Hardware have, for the client and the log."""
    names = sorted({f"{rival.namespace}/{rival.name}" for rival in rivals})
    named = " and of ".join(names[:4])
    return (
        f"more than one Hardware has the {what}",
        f"with the {what} of {named}: none is served until one has it alone",
    )


def other_end(name: Sequence[object]) -> str:
    """Return the address in a socket's peer name, spelled as in the inventory and the neighbour table."""
    address = dotted(str(name[0]))
    scope = name[3] if len(name) > 3 and ":" in address else 0
    if not isinstance(scope, int) or not scope:
        return address
    # RFC 4007 section 11: a link-local address is unique on its link only, so the interface is its zone (fe80::1%eth1).
    try:
        return f"{address}%{socket.if_indextoname(scope)}"
    except OSError:
        return f"{address}%{scope}"  # the interface was just removed, so no machine is known there
