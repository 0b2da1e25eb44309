"""Who is asking: one question, asked once for each request, with one answer, the `Caller`.

    the connection's address --- of a trusted proxy? ---> the address that X-Forwarded-For says
                                                       -> the machine at that address (`by_address`), and not
                                                          whoever else has that address there
    the path: /machine/<who>/..., /nocloud/<who>/..., /phone-home/<who>
        a token     -> the machine that it was signed for, wherever it asks from
        a MAC       -> that machine, if the address is in a network whose NAT hides addresses (--metadata-nat)
        its own MAC or name -> the machine at the address

Scripts, OSIE files, metadata and phone-home take what stands here and look at no header themselves. Each way to be
somebody else's machine is closed by default: no proxy is trusted and no MAC believed unless the operator names the
networks, and an address that is known to be one machine's never speaks for another one, whatever network it is in.
"""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from edge.callers.addresses import FORWARDED, Networks, forwarded_for, inside
from edge.callers.by_address import Callers
from edge.callers.ends import other_end
from edge.callers.metadata_tokens import PREFIX, MetadataTokenError, MetadataTokens
from edge.machines import Inventory, Machine
from tink.mac import from_any, is_mac


@dataclass(frozen=True, slots=True)
class TrustedNetworks:
    """Whom to believe: the networks of `proxies` when they say whose request they bring, those of `nat` when a path
    there has a MAC in it. None by default."""

    proxies: Networks = ()
    nat: Networks = ()


TRUST_NOBODY = TrustedNetworks()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request: `machine`; where that is None, why nobody: `status`, `reason` for them, `why` for the log.

    `address` is where it came from, as far as it can be told. `mac` is the machine's, or of whoever is known to be
    there without a Hardware. `signed`: the path has a token. `proxied`: a trusted proxy brought it. `rivals`: there are
    several to whom the address may belong, so that nobody is at it; `owner` is the machine that it is for, if whoever
    has it is another one, by its MAC.
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


class RequestCallers:
    """Answers the question."""

    def __init__(
        self, inventory: Inventory, callers: Callers, tokens: MetadataTokens, trusted: TrustedNetworks
    ) -> None:
        self._inventory = inventory
        self._callers = callers
        self._tokens = tokens
        self._trusted = trusted

    def caller(self, request: web.Request, claim: str = "") -> Caller:
        """Who asks; `claim` is whom the path names: a token, a MAC or a name. Raises ForwardedError."""
        name = request.protocol.peername
        peer = other_end(name) if isinstance(name, tuple) else ""
        proxied = self.is_proxy(peer)
        address = forwarded_for(request.headers.getall(FORWARDED, ()), self._trusted.proxies) if proxied else peer
        found = self._at(address, proxied) if address is not None else _unsaid(peer)
        if claim.startswith(PREFIX):
            return self._bearer(found, claim)
        if not claim or claim == found.mac:
            return found
        if found.machine is not None:
            return found if self._is_own(found.machine, claim) else self._another(found, found.machine, claim)
        # One of the rivals is there: it is no third machine.
        if address is not None and inside(address, self._trusted.nat) and is_mac(claim) and not found.rivals:
            return self._behind_nat(found, claim)
        return found

    @property
    def proxies(self) -> Networks:
        """Whose X-Forwarded-For is believed."""
        return self._trusted.proxies

    def is_proxy(self, address: str) -> bool:
        """Whether what comes from this address comes from others, whom it names."""
        return inside(address, self._trusted.proxies)

    def machine_at(self, address: str) -> Machine | None:
        """The machine whose requests come from a connection of this address; None: none, or each request tells."""
        if self._trusted.proxies and self.is_proxy(address):
            return None
        return self._callers.machine(address, connected=True)

    def _at(self, address: str, proxied: bool) -> Caller:
        connected = not proxied
        machine = self._callers.machine(address, connected=connected)
        if machine is not None:
            return Caller(address, machine, machine.mac, proxied=proxied)
        mac = self._callers.mac(address, connected=connected)
        same_mac = self._inventory.claimants(mac) if mac is not None else ()
        same_ip = self._inventory.claimants_of_ip(address)
        contested = bool(same_ip) and self._inventory.by_ip(address) is None
        if connected and mac is None and self._callers.is_hidden(address):
            reason = f"it is not known at this moment who has the address {address}: ask again"
            why = "from an address of which the kernel does not know the MAC now (ip neigh)"
            return Caller(address, None, None, 503, reason, why, rivals=True)
        if len(same_mac) > 1:
            reason, why = _contested(same_mac, f"MAC {mac}, which is at {address}")
        elif contested:
            reason, why = _contested(same_ip, f"address {address}")
        elif same_ip and mac is not None and self._callers.gives_addresses:
            reason, why = _not_its_own(same_ip[0], address, mac)
            return Caller(address, None, mac, 403, reason, why, proxied=proxied, rivals=True, owner=same_ip[0])
        else:
            reason, why = f"no Hardware has the address {address}", "from an address that no Hardware has"
        rivals = len(same_mac) > 1 or contested
        return Caller(address, None, mac, reason=reason, why=why, proxied=proxied, rivals=rivals)

    def _bearer(self, found: Caller, token: str) -> Caller:
        """Whoever has the token is its machine."""
        try:
            mac = self._tokens.mac(token)
        except MetadataTokenError as error:
            return _nobody(found, 403, f"the token in this path is not good: {error}", f"with a bad token: {error}")
        machine = self._inventory.by_mac(mac)
        if machine is None:
            why = f"with a good token of {mac}, but no Hardware has this MAC, or more than one"
            return _nobody(found, 404, f"no Hardware has the MAC {mac} of this token", why)
        return Caller(found.address, machine, machine.mac, signed=True, proxied=found.proxied)

    def _behind_nat(self, found: Caller, mac: str) -> Caller:
        machine = self._inventory.by_mac(mac)
        if machine is None:
            why = f"as {mac} from behind a NAT, but no Hardware has this MAC, or more than one"
            return _nobody(found, 404, f"no Hardware has the MAC {mac}", why)
        return Caller(found.address, machine, machine.mac, proxied=found.proxied)

    def _another(self, found: Caller, machine: Machine, claim: str) -> Caller:
        # What is no MAC, and no name that there is, may be a part of a token: it is not logged.
        known = is_mac(claim) or self._inventory.by_name(claim, machine.namespace)
        whom = claim if known else "another machine"
        why = f"as {whom}, but this address is that of {machine.namespace}/{machine.name}"
        # The sender is told the same whether there is such a machine or not.
        return _nobody(found, 403, f"{found.address} is not an address of the machine asked for", why)

    def _is_own(self, machine: Machine, claim: str) -> bool:
        # A name like 525400123456 came here as the MAC that it may also be.
        if claim in (machine.name, from_any(machine.name)):
            return True
        return any(claim == one.mac for one in self._inventory.by_name(machine.name, machine.namespace))


def _nobody(found: Caller, status: int, reason: str, why: str) -> Caller:
    return Caller(found.address, None, None, status, reason, why, proxied=found.proxied)


def _contested(rivals: tuple[Machine, ...], what: str) -> tuple[str, str]:
    """Return why no machine is served at an address or MAC that several Hardware have, for the client and the log."""
    names = sorted({f"{rival.namespace}/{rival.name}" for rival in rivals})
    named = " and of ".join(names[:4])
    return (
        f"more than one Hardware has the {what}",
        f"with the {what} of {named}: none is served until one has it alone",
    )


def _not_its_own(owner: Machine, address: str, mac: str) -> tuple[str, str]:
    """Why whoever has an address is not the machine that it is for: for the sender, and the log."""
    name = f"{owner.namespace}/{owner.name}"
    return (
        f"the address {address} is for another machine: {mac}, which has it, is no MAC of its Hardware",
        f"from the address {address} of {name} by {mac}, which is no MAC of it: if it is that machine (a bridge, a "
        f"bond), add the MAC to spec.networkInterfaces, or name the network in --known-by-address",
    )


def _unsaid(peer: str) -> Caller:
    reason = f"the proxy {peer} does not say whom it asks for: it must send {FORWARDED}"
    return Caller(
        peer, reason=reason, why=f"through a trusted proxy that names no machine in {FORWARDED}", proxied=True
    )
