"""The parts that the responder, its fast path and the proxy modes share. Pure.

Datagrams (`edge.dhcp.server` makes `Received` and sends `Reply`), settings, limits, and how a reply is put together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Network
from typing import Final, NamedTuple
from urllib.parse import urlsplit
from uuid import UUID

from edge.dhcp.boot import BootChoice
from edge.dhcp.reservation import Reservation, Subnet
from edge.dhcp.wire import Message, MessageType, codec, options
from edge.dhcp.wire.codec import RelayAgent, relay_agent_of
from edge.dhcp_common import FREE_ADDRESS, IPV4, BootAnswer, Client, DhcpReports, DhcpSite, Reply, Stage
from edge.journey.events import Outcome, Value
from edge.machines import Machine
from tink.discovery.admission import AdmissionReason, Admitted, Decision, Offered, Refused, Waiting
from tink.limits import Allowance

SERVER_PORT: Final = 67
CLIENT_PORT: Final = 68
PXE_PORT: Final = 4011
"""The port of PXE boot servers (PXE 2.1 section 2.2.1, "Boot Server discovery")."""

BROADCAST: Final = "255.255.255.255"

NO_SOURCE: Final = "0.0.0.0"  # noqa: S104 - nothing is bound to it
"""The source of a client without an address (RFC 2131 section 4.1).

A packet from it is from our own link. Linux accepts it only if it was sent to BROADCAST (ip_route_input_slow), and no
router forwards it (RFC 1812 section 5.3.7).
"""

# RFC 2132 section 9.10: every client takes 576 bytes. The RFC does not say whether the size includes the IP and UDP
# headers; including them is safe. A reply is at most one Ethernet frame, whatever the client says (EDK2 says 65280).
_MIN_LIMIT_BYTES: Final = 576
_MAX_LIMIT_BYTES: Final = 1500
_IP_AND_UDP_BYTES: Final = 28

MAX_RELAY_REPLIES: Final = 1000
"""Replies a second to one relay that is of no machine's network, or that receives replies at a port of its own."""
MAX_CLIENT_REPLIES: Final = 20
"""Replies a second to one client that names its own address: DHCPINFORM, and requests on port 4011."""
MAX_REPLIES: Final = 5000
"""Replies a second to all such relays together, and to all such clients."""
_MAX_RELAYS: Final = 1024
_MAX_URL_LENGTH: Final = 150
_LASTING_REASONS: Final = frozenset(
    {
        AdmissionReason.API_AWAY,
        AdmissionReason.RATE,
        AdmissionReason.RANGE_EXHAUSTED,
        AdmissionReason.SHARE_EXHAUSTED,
    }
)
"""Reasons to wait that may last longer than until the machine's next packet."""


class Received(NamedTuple):
    """The sender of a packet, and the port of ours (67 or 4011) that received it."""

    source: str
    source_port: int
    port: int = SERVER_PORT


class Query(NamedTuple):
    """A message of a machine with a reservation, and the way by which it came."""

    type: MessageType
    message: Message
    reservation: Reservation
    agent: RelayAgent
    received: Received


class DhcpSettingsError(options.DhcpError, ValueError):
    """A setting of the DHCP server that can't work."""


@dataclass(frozen=True, slots=True)
class DhcpSettings:
    """The addresses that the DHCP server states in its replies, checked on construction (DhcpSettingsError).

    server_ip: this host's address on the machines' network (option 54).
    tftp_ip: the address of the TFTP server.
    http_base_url: the edge's HTTP server as machines reach it, e.g. `http://172.31.0.1:7080`.
    networks: the networks of the interface that is served; empty if they are not known.
    ipv6: machines are served over IPv6, too. A machine with only an IPv6 address is not reported as refused then.
    """

    server_ip: str
    tftp_ip: str
    http_base_url: str
    networks: tuple[IPv4Network, ...] = ()
    ipv6: bool = False

    def __post_init__(self) -> None:
        for name, value in (("server_ip", self.server_ip), ("tftp_ip", self.tftp_ip)):
            if not options.is_host(value):
                raise DhcpSettingsError(
                    f"DHCP: {name} is {value!r}, and machines reach no host there: give --interface the one that "
                    "faces machines, or leave DHCP out with --disable dhcp"
                )
        url = urlsplit(self.http_base_url)
        if url.scheme not in ("http", "https") or not url.hostname or self.http_base_url.endswith("/"):
            raise DhcpSettingsError(
                f"DHCP: http_base_url is {self.http_base_url!r}; it must be like http://172.31.0.1:7080"
            )
        # With path, MAC and file name it has to fit into option 67.
        if len(self.http_base_url) > _MAX_URL_LENGTH:
            raise DhcpSettingsError(f"DHCP: http_base_url is longer than {_MAX_URL_LENGTH} characters")


class DhcpContext:
    """The objects that all handlers of messages use, and the limits of replies.

    Any host can write another host's address into `giaddr`, `ciaddr` or the source, so that our reply goes there.
    Within a machine's own network that gains nothing, since a reply is little larger than its request. A relay there
    may serve a whole site, so it has no limit. Other addresses receive a limited number of replies a second: enough for
    a relay that sends from a loopback address of its own (RFC 3527), too few for an attack.
    """

    def __init__(self, site: DhcpSite, settings: DhcpSettings) -> None:
        self.inventory = site.inventory
        self.settings = settings
        self.server_id = options.ipv4(settings.server_ip)
        self.choice = BootChoice(site, settings.tftp_ip, settings.http_base_url)
        # The lines of a Hardware manifest that the operator completes with an address of this server's network.
        network = settings.server_ip.rpartition(".")[0]
        lines = f"ip: {network}.50  # {FREE_ADDRESS}", "netmask: 255.255.255.0", f"gateway: {network}.1"
        self.reports = DhcpReports(IPV4, site, *lines)
        self.relays = site.relays
        self.peers: frozenset[bytes] = frozenset()
        """The server identifiers (option 54) of the other edges that serve the same machines, living and gone."""
        self.gone_peers: frozenset[bytes] = frozenset()
        self.near_relays: dict[bytes, str] = {}
        """Relays in the network of a machine that they passed a packet on for: `giaddr` to its dotted form."""
        self._clock = site.clock
        self._to_relays = Allowance(MAX_RELAY_REPLIES, MAX_REPLIES)
        self._to_clients = Allowance(MAX_CLIENT_REPLIES, MAX_REPLIES)

    def may_reach_relay(self, agent: RelayAgent, network: Subnet | None) -> bool:
        """Return True if a reply to a machine of `network` (None: not known) may go to its relay now."""
        giaddr, port = agent.giaddr, agent.port
        # With RFC 8357 the relay names the port, which may be any service of any host: such replies are limited.
        if not port and giaddr in self.near_relays:
            return True
        if not port and network is not None and network.holds(giaddr):
            if len(self.near_relays) >= _MAX_RELAYS:
                self.near_relays.clear()  # the fast path has a reference to this dictionary
            self.near_relays[giaddr] = options.dotted(giaddr)
            return True
        where = f"at port {port} (RFC 8357)" if port else "which is not of its machine's network"
        relay = f"the relay {options.dotted(giaddr)}, {where}"
        return self._to_relays.take(giaddr, self._clock()) or self._withhold(relay, MAX_RELAY_REPLIES)

    def may_reach_client(self, address: str) -> bool:
        """Return True if a reply may go to the client at this address now."""
        may = self._to_clients.take(address, self._clock())
        return may or self._withhold(f"the client {address}", MAX_CLIENT_REPLIES)

    def _withhold(self, destination: str, limit: int) -> bool:
        line = f"DHCP replies to {destination} ({limit} a second) or to all such addresses exceed their limit: the rest"
        self.reports.dropped(destination, f"{line} is dropped")
        return False

    def report_unknown(
        self,
        message_type: MessageType,
        message: Message,
        client: Client,
        answer: str = "",
        admission: Decision | None = None,
    ) -> None:
        """Report a machine without a Hardware. `answer` says what it boots, `admission` what --discover has decided."""
        detail: dict[str, Value] = {}
        if relay := options.dotted(message.giaddr) if any(message.giaddr) else "":
            detail["relay"] = relay
        # RFC 4578 section 2.3: a type, which is 0, and 16 bytes. Some ROMs send other shapes.
        uuid = message.options.get(options.CLIENT_UUID, b"")
        if len(uuid) == 17 and not uuid[0]:
            detail["uuid"] = str(UUID(bytes=uuid[1:]))
        mac, name = message.mac.hex(":"), f"DHCP{message_type.name}"
        note = ""
        if isinstance(admission, Offered):
            note = f"rule {admission.rule.name} offers it the address {admission.address}"
        elif isinstance(admission, Admitted):
            note = f"rule {admission.rule.name} admits it with address {admission.address}"
        elif isinstance(admission, Waiting):
            note = f"not admitted yet: {admission.text}"
        needs_manifest = not isinstance(
            admission, Offered | Admitted | Waiting
        )  # else its Hardware is created by the rule
        self.reports.unregistered(mac, name, client.description, relay, answer, note, needs_manifest, **detail)
        if isinstance(admission, Refused):
            self.reports.once(mac, Outcome.REFUSED, f"not admitted: {admission.text}", reason=admission.reason)
        elif isinstance(admission, Waiting) and admission.reason in _LASTING_REASONS:
            self.reports.once(mac, Outcome.INFO, note, reason=admission.reason)

    def report_other_server(self, mac: str, server_id: bytes) -> None:
        """Report that a client accepted the offer of a server that is neither this edge nor one of its peers."""
        server = options.dotted(server_id)
        line = (
            f"accepted the offer of another DHCP server, {server}, so it may not boot from this edge. Stop that "
            "server's answers to this machine, or run the edge beside it (--dhcp-mode proxy)"
        )
        self.reports.once(mac, Outcome.FAILED, line, server=server)

    def nak(self, message: Message, agent: RelayAgent, text: str) -> Reply:
        """Return a NAK with a text for people (RFC 2131 section 4.3.2)."""
        # The client may have no working address: the NAK is a broadcast, and the flag tells a relay to broadcast it.
        flags = message.flags | codec.BROADCAST_FLAG if agent.giaddr else message.flags
        start = first_options(MessageType.NAK, agent.server_id or self.server_id)
        reason = options.option(options.MESSAGE, options.text(text))
        head = codec.header(message, flags=flags)
        payload = codec.finish([head, start, reason, echo_client_identifier(message), agent.echo])
        return to_relay(payload, agent) if agent.giaddr else Reply(payload, BROADCAST, CLIENT_PORT)

    def is_us(self, server_id: bytes, agent: RelayAgent) -> bool:
        """Return True if `server_id` is ours, or the one that the relay asked us to use instead (RFC 5107)."""
        return server_id == self.server_id or (server_id == agent.server_id and server_id != b"")

    def is_for_us(self, message: Message, *, if_missing: bool = False) -> bool:
        """Return True if option 54 names us; `if_missing` is the result if the message has no option 54."""
        server_id = message.options.get(options.SERVER_IDENTIFIER)
        return if_missing if server_id is None else self.is_us(server_id, relay_agent_of(message))

    def is_for_a_peer(self, message: Message) -> bool:
        """Return True if option 54 names another edge."""
        return message.options.get(options.SERVER_IDENTIFIER) in self.peers

    def is_served(self, reservation: Reservation) -> bool:
        """Return True if the machine gets replies. Otherwise report why it gets none."""
        if not reservation.unserved:
            return True
        machine = reservation.machine
        is_ipv6_only = machine.ip is None and machine.ipv6 is not None
        if not (self.settings.ipv6 and is_ipv6_only):
            self.reports.refused(machine.mac, reservation.unserved)
        return False

    def assemble_for(
        self, message_type: MessageType, query: Query, client: Client, boot: BootAnswer, *, has_lease: bool = True
    ) -> bytes | None:
        """Return the reply with the machine's network and, if `has_lease`, its address; None if it is too large."""
        _, message, reservation, agent, _ = query
        network, hostname = reservation.network, reservation.hostname
        plan = network.plan(message.options.get(options.PARAMETER_REQUEST_LIST))
        return self.assemble(
            reservation.mac,
            message,
            message_type,
            boot,
            server_id=agent.server_id,
            lease=network.lease if has_lease else b"",
            yiaddr=reservation.yiaddr if has_lease else codec.NO_ADDRESS,
            ciaddr=codec.NO_ADDRESS if message_type is MessageType.OFFER else message.ciaddr,
            network=plan.before + (hostname if plan.names_host else b"") + plan.behind,
            fewer=partial(network.fewer, plan, hostname),
            vlan=reservation.vlan if client.stage is Stage.IPXE else b"",
            relay=agent.echo,
        )

    def assemble(
        self,
        mac: str,
        request: Message,
        message_type: MessageType,
        boot: BootAnswer,
        *,
        what: str = "",
        server_id: bytes = b"",
        lease: bytes = b"",
        yiaddr: bytes = codec.NO_ADDRESS,
        ciaddr: bytes = codec.NO_ADDRESS,
        flags: int | None = None,
        network: bytes = b"",
        fewer: Callable[[], Iterable[bytes]] = tuple,
        vlan: bytes = b"",
        relay: bytes = b"",
    ) -> bytes | None:
        """Return the reply of this type to `request`.

        `server_id` is the value of option 54 that the relay wants, if any. `lease`, `network`, `vlan` and `relay`
        (option 82) are encoded options, in this order; `fewer()` returns shorter and shorter versions of `network`.
        `flags` are those of the request by default. If even the smallest reply is larger than what the client takes,
        report that `what` is missing, and return None.
        """
        # Everything is sent if there is room. Otherwise the options that repeat the header go first, then those of the
        # network that the client requested last, then the echoes. What a machine needs to boot always stays.
        head = codec.header(
            request, yiaddr=yiaddr, ciaddr=ciaddr, siaddr=boot.siaddr, sname=boot.sname, file=boot.file, flags=flags
        )
        # RFC 5107: a relay may want to be named as the server, so that renewals go through it.
        start = head + first_options(message_type, server_id or self.server_id) + lease
        # RFC 3046 section 2.1: option 82 is the last option.
        end = relay + codec.END
        echoes = echo_client_identifier(request)
        # RFC 4578 section 2.3. Some ROMs send none, or one of another shape; that is no reason to refuse a boot.
        uuid = request.options.get(options.CLIENT_UUID, b"")
        if len(uuid) == 17 and uuid[0] == 0:
            echoes += bytes((options.CLIENT_UUID, 17)) + uuid
        limit = size_limit(request)
        payload = start + network + vlan + echoes + boot.spare_options + boot.options + end
        if len(payload) > limit:
            shorter = [network, *fewer()]
            middles = [each + vlan + echoes for each in shorter]
            for middle in (*middles, shorter[-1] + vlan):
                payload = start + middle + boot.options + end
                if len(payload) <= limit:
                    break
            else:
                reason = f"the smallest DHCP reply is {len(payload)} bytes, the client takes {limit}"
                self.reports.refused(mac, reason, what)
                return None
        return payload.ljust(codec.padded_size(len(payload), limit), b"\0")


def to_relay(payload: bytes, agent: RelayAgent) -> Reply:
    """Return the reply to a relay: to port 67, unless it asked for replies at its own port (RFC 8357)."""
    return Reply(payload, options.dotted(agent.giaddr), agent.port or SERVER_PORT)


def to_client(payload: bytes, query: Query) -> Reply:
    """Return the reply to a client without an address, or to its relay (RFC 2131 section 4.1)."""
    _, message, reservation, agent, _ = query
    if agent.giaddr:
        return to_relay(payload, agent)
    if message.flags & codec.BROADCAST_FLAG:
        return Reply(payload, BROADCAST, CLIENT_PORT)
    return Reply(payload, reservation.machine.ip or "", CLIENT_PORT, message.mac)


def several_hardware(mac: str, claimants: tuple[Machine, ...]) -> str:
    """Return the reason why a MAC that more than one Hardware has is not served."""
    names = ", ".join(sorted(f"{machine.namespace}/{machine.name}" for machine in claimants))
    return f"MAC {mac} is claimed by several Hardware, so none is served: {names}"


def first_options(message_type: MessageType, server_id: bytes) -> bytes:
    """Return options 53 and 54, with which our replies begin."""
    return bytes((options.MESSAGE_TYPE, 1, message_type, options.SERVER_IDENTIFIER, 4)) + server_id


def size_limit(request: Message) -> int:
    """Return the size in bytes of the largest UDP payload that the client takes."""
    size = int.from_bytes(request.options.get(options.MAX_MESSAGE_SIZE, b""), "big")
    return min(max(size, _MIN_LIMIT_BYTES), _MAX_LIMIT_BYTES) - _IP_AND_UDP_BYTES


def echo_client_identifier(request: Message) -> bytes:
    """Return option 61 of the request for the reply (RFC 6842 section 3), or nothing."""
    identifier = request.options.get(options.CLIENT_IDENTIFIER, b"")
    length = len(identifier)
    return bytes((options.CLIENT_IDENTIFIER, length)) + identifier if 0 < length <= 255 else b""
