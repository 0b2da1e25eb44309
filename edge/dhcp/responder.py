"""The DHCP server's decisions: a packet in, a reply or silence out. Pure: no sockets, no waiting, the clock is given.

    bytes -> codec.parse -> whose is it (a dictionary: MAC -> Reservation) -> what it asks (RFC 2131 section 4.3)
          -> who asks (client) -> may it netboot (edge.policy) -> what it boots (boot) -> assemble -> Reply

Reservation mode: an address is given to machines that have a Hardware, by the MAC in `chaddr` and nothing else, for
ROM, iPXE and operating system each send another client identifier. Leases are not stored: the reservation is the
lease, so a restart forgets nothing and several edges may answer alike.

Reservations are compiled when the inventory changes. Every answer, and every refusal with its reason, goes to the
journey; `edge.dhcp.server` owns the sockets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from edge.dhcp import codec, options
from edge.dhcp.boot import NO_BOOT, NO_PROXY_DHCP, Boot, BootChoice
from edge.dhcp.client import Client, Kind, identify
from edge.dhcp.codec import Message, MessageType
from edge.dhcp.reservation import Reservation, compile_reservation, is_host_address
from edge.dhcp.unregistered import Unregistered
from edge.inventory import Inventory
from edge.journey.events import Outcome, Recorder, Step
from edge.once_per import OncePer
from edge.policy import NetbootPolicy
from ipxe.binaries import BootBinaries, NoBinaryError

log = logging.getLogger(__name__)

SERVER_PORT: Final = 67
CLIENT_PORT: Final = 68
PXE_PORT: Final = 4011
"""PXE boot servers (PXE 2.1 section 2.2.1, "Boot Server discovery")."""

BROADCAST: Final = "255.255.255.255"

# RFC 2132 section 9.10: 576 is the least that every client takes. Whether the size counts the IP and UDP headers is
# read both ways; counting them is safe. Never more than one Ethernet frame, whatever the client says (EDK2: 65280).
_LEAST_MESSAGE = 576
_LARGEST_MESSAGE = 1500
_IP_AND_UDP = 28

_REFUSALS_PER_MINUTE = 600
_MALFORMED_PER_MINUTE = 20


class SettingsError(ValueError):
    """A setting of the DHCP server that can't work."""


@dataclass(frozen=True, slots=True)
class DhcpSettings:
    """What the DHCP server says of itself and of its neighbours.

    `server_ip` is this host's address on the machines' network (option 54); `tftp_ip` that of the TFTP server;
    `http_base_url` where machines reach the edge's HTTP server, e.g. `http://172.31.0.1:7080`.

    Raises SettingsError on construction.
    """

    server_ip: str
    tftp_ip: str
    http_base_url: str

    def __post_init__(self) -> None:
        for field, value in (("server_ip", self.server_ip), ("tftp_ip", self.tftp_ip)):
            if not options.is_ipv4(value) or not is_host_address(options.ipv4(value)):
                raise SettingsError(f"DHCP: {field} is {value!r}; it must be the IPv4 address of a host")
        url = urlsplit(self.http_base_url)
        if url.scheme not in ("http", "https") or not url.hostname or self.http_base_url.endswith("/"):
            raise SettingsError(
                f"DHCP: http_base_url is {self.http_base_url!r}; it must be like http://172.31.0.1:7080"
            )
        if len(self.http_base_url) > 150:  # with path, MAC and file name it has to fit into option 67
            raise SettingsError("DHCP: http_base_url is longer than 150 characters")


class Received(NamedTuple):
    """Where a packet came from, and on which of our ports (67 or 4011) it arrived."""

    source: str
    source_port: int
    port: int = SERVER_PORT


class Reply(NamedTuple):
    """A packet to send from the port that the question arrived on; `address` may be BROADCAST.

    `ethernet` is set where the client does not answer ARP yet: the packet goes as a frame made by hand to this
    hardware address, or, where that is not possible, to everybody.
    """

    payload: bytes
    address: str
    port: int
    ethernet: bytes = b""


class Responder:
    """Answers DHCP for the machines of an inventory."""

    def __init__(
        self,
        inventory: Inventory,
        settings: DhcpSettings,
        record: Recorder,
        clock: Callable[[], float],
        binaries: BootBinaries,
        policy: NetbootPolicy,
    ) -> None:
        """`clock` gives seconds, of any epoch; it only spaces repeated log lines."""
        self.settings = settings
        self._inventory = inventory
        self._record = record
        self._clock = clock
        self._policy = policy
        self._boot = BootChoice(binaries, settings.tftp_ip, settings.http_base_url)
        self._server_id = options.ipv4(settings.server_ip)
        self._server_id_option = options.option(options.SERVER_IDENTIFIER, self._server_id)
        self._reservations: dict[bytes, Reservation] = {}
        self._unregistered = Unregistered(record, clock, settings.server_ip)
        self._refusal_once = OncePer(60.0, _REFUSALS_PER_MINUTE)
        self._malformed_once = OncePer(60.0, _MALFORMED_PER_MINUTE)
        self._answers: dict[MessageType, Callable[[Reservation, Message, Received, Client], Reply | None]] = {
            MessageType.DISCOVER: self._discover,
            MessageType.REQUEST: self._request,
            MessageType.DECLINE: self._decline,
            MessageType.RELEASE: self._release,
            MessageType.INFORM: self._inform,
        }
        for machine in inventory.machines():
            self._compile(machine.mac)
        inventory.on_change(self._compile)

    def _compile(self, mac: str) -> None:
        chaddr = bytes.fromhex(mac.replace(":", ""))
        machine = self._inventory.by_mac(mac)
        if machine is None:
            self._reservations.pop(chaddr, None)
        else:
            self._reservations[chaddr] = compile_reservation(machine, self.settings.server_ip)

    def respond(self, packet: bytes, received: Received) -> Reply | None:
        """The answer to one UDP payload, or None for silence. Never raises on what a packet holds."""
        try:
            message = codec.parse(packet)
        except codec.ParseError as error:
            self._ignored(received, str(error))
            return None
        if message.op != codec.BOOTREQUEST or message.htype != codec.ETHERNET or len(message.chaddr) != 6:
            return None  # another server's reply, or a link that no Hardware can describe
        if any(message.giaddr) and not is_host_address(message.giaddr):
            self._ignored(received, f"its relay address (giaddr) {options.dotted(message.giaddr)} is no host's")
            return None
        try:
            kind = MessageType(int.from_bytes(message.options.get(options.MESSAGE_TYPE, b""), "big"))
        except ValueError:
            self._ignored(received, "it has no message type (option 53) that a client sends")
            return None
        answer = self._answers.get(kind)
        if answer is None:
            return None
        reservation = self._reservations.get(message.chaddr)
        if reservation is None:
            self._unknown(kind, message)
            return None
        if received.port == PXE_PORT:
            return (
                self._boot_server(reservation, message, received, identify(message))
                if kind is MessageType.REQUEST
                else None
            )
        return answer(reservation, message, received, identify(message))

    # --- what a client may ask, RFC 2131 section 4.3 -------------------------------------------------------------

    def _discover(
        self, reservation: Reservation, message: Message, _received: Received, client: Client
    ) -> Reply | None:
        """Section 4.3.1."""
        if not self._is_served(reservation):
            return None
        return self._lease(MessageType.OFFER, reservation, message, client, Outcome.OK)

    def _request(self, reservation: Reservation, message: Message, _received: Received, client: Client) -> Reply | None:
        """Section 4.3.2. A client that selected another server is that server's affair."""
        server_id = message.options.get(options.SERVER_IDENTIFIER)
        if server_id is not None and server_id != self._server_id:
            log.debug("%s has chosen another DHCP server", reservation.machine.mac)
            return None
        if not self._is_served(reservation):
            return None
        requested = message.options.get(options.REQUESTED_ADDRESS)
        renewing = requested is None and any(message.ciaddr)
        asked = message.ciaddr if renewing else requested
        if asked is None or len(asked) != 4:
            log.debug("%s asks for no address (option 50, ciaddr); not answered", reservation.machine.mac)
            return None
        if asked != reservation.yiaddr:
            return self._nak(reservation, message, options.dotted(asked), client)
        return self._lease(
            MessageType.ACK, reservation, message, client, Outcome.INFO if renewing else Outcome.OK, renewing
        )

    def _inform(self, reservation: Reservation, message: Message, received: Received, client: Client) -> Reply | None:
        """Section 4.3.5: the client has an address from elsewhere; it gets the rest, and no lease."""
        if not self._is_served(reservation):
            return None
        address = message.ciaddr if is_host_address(message.ciaddr) else None
        destination = options.dotted(address) if address is not None else received.source
        if not options.is_ipv4(destination) or not is_host_address(options.ipv4(destination)):
            destination = BROADCAST
        boot, text, outcome = self._boot_for(reservation, client)
        payload = self._assemble(MessageType.ACK, reservation, message, client, boot, leased=False)
        if payload is None:
            return None
        self._journey(
            reservation, outcome or Outcome.INFO, f"DHCPACK (inform) to {client.description}{text}", client, boot
        )
        if any(message.giaddr):
            return Reply(payload, options.dotted(message.giaddr), SERVER_PORT)
        return Reply(payload, destination, CLIENT_PORT)

    def _release(self, reservation: Reservation, _message: Message, _received: Received, _client: Client) -> None:
        """Section 4.3.4. The reservation stays; there is nothing to take back."""
        machine = reservation.machine
        if self._refusal_once.due((machine.mac, MessageType.RELEASE), self._clock()):
            log.info("%s (%s) has released its address %s", machine.mac, machine.name, machine.ip)
            self._record(machine.mac, Step.DHCP, Outcome.INFO, f"DHCPRELEASE of {machine.ip}", address=machine.ip or "")

    def _decline(self, reservation: Reservation, message: Message, _received: Received, _client: Client) -> None:
        """Section 4.3.3: the client found somebody else at the address. The operator has to find out who."""
        machine = reservation.machine
        if self._refusal_once.due((machine.mac, MessageType.DECLINE), self._clock()):
            requested = message.options.get(options.REQUESTED_ADDRESS, b"")
            address = options.dotted(requested) if len(requested) == 4 else "its address"
            text = f"DHCPDECLINE: another host already uses {address}; free it, or change the Hardware's dhcp.ip"
            log.warning("%s (%s/%s): %s", machine.mac, machine.namespace, machine.name, text)
            self._record(machine.mac, Step.DHCP, Outcome.FAILED, text, address=address)

    def _boot_server(
        self, reservation: Reservation, message: Message, received: Received, client: Client
    ) -> Reply | None:
        """A request on port 4011: a client that has its address asks only for its boot file (PXE 2.1 section 2.2.3).

        EDK2 asks from port 4011, iPXE from 68, and both expect the answer where they asked from.
        """
        server_id = message.options.get(options.SERVER_IDENTIFIER)
        if client.kind is Kind.OPERATING_SYSTEM or (server_id is not None and server_id != self._server_id):
            return None
        if not options.is_ipv4(received.source) or not is_host_address(options.ipv4(received.source)):
            return None
        if not self._is_served(reservation):
            return None
        boot, text, outcome = self._boot_for(reservation, client)
        if boot is NO_BOOT:
            self._journey(
                reservation, Outcome.REFUSED, f"PXE boot server request of {client.description}{text}", client, boot
            )
            return None
        payload = self._assemble(MessageType.ACK, reservation, message, client, boot, leased=False, configured=False)
        if payload is None:
            return None
        self._journey(
            reservation, outcome or Outcome.OK, f"PXE boot server ACK to {client.description}{text}", client, boot
        )
        return Reply(payload, received.source, received.source_port)

    # --- answers ---------------------------------------------------------------------------------------------------

    def _lease(
        self,
        kind: MessageType,
        reservation: Reservation,
        message: Message,
        client: Client,
        outcome: Outcome,
        renewing: bool = False,
    ) -> Reply | None:
        boot, text, refused = self._boot_for(reservation, client)
        payload = self._assemble(kind, reservation, message, client, boot, leased=True)
        if payload is None:
            return None
        verb = f"DHCP{kind.name} (renewal)" if renewing else f"DHCP{kind.name}"
        line = f"{verb} {reservation.machine.ip} to {client.description}{text}"
        self._journey(reservation, refused or outcome, line, client, boot)
        # RFC 2131 section 4.1. Unicast to an address that the client does not have yet needs a frame made by hand;
        # broadcast reaches every client on the link, whatever its flag says.
        if any(message.giaddr):
            return Reply(payload, options.dotted(message.giaddr), SERVER_PORT)
        if renewing:
            return Reply(payload, options.dotted(message.ciaddr), CLIENT_PORT)
        return Reply(payload, BROADCAST, CLIENT_PORT)

    def _nak(self, reservation: Reservation, message: Message, asked: str, client: Client) -> Reply:
        """Section 4.3.2: so that a client with an old address asks anew at once instead of using it."""
        machine = reservation.machine
        reason = f"{asked} is not reserved for this machine"
        relayed = any(message.giaddr)
        # The client may have no working address: a relay is told to broadcast (section 4.3.2).
        flags = message.flags | codec.BROADCAST_FLAG if relayed else message.flags
        payload = codec.finish(
            [
                codec.header(message, flags=flags),
                options.option(options.MESSAGE_TYPE, bytes((MessageType.NAK,))),
                self._server_id_option,
                options.option(options.MESSAGE, options.text(reason)),
                _echo_client_identifier(message),
                _echo_relay_information(message),
            ]
        )
        line = f"DHCPNAK to {client.description}: it asked for {asked}, reserved for it is {machine.ip}"
        self._journey(reservation, Outcome.INFO, line, client, NO_BOOT)
        return Reply(payload, *((options.dotted(message.giaddr), SERVER_PORT) if relayed else (BROADCAST, CLIENT_PORT)))

    def _boot_for(self, reservation: Reservation, client: Client) -> tuple[Boot, str, Outcome | None]:
        """What the client boots, the words for the journey, and the outcome where it is refused."""
        if client.kind is Kind.OPERATING_SYSTEM:
            return NO_BOOT, "", None
        decision = self._policy.decide(reservation.machine)
        if not decision.allowed:
            return NO_BOOT, f", nothing to boot: {decision.reason}", Outcome.REFUSED
        try:
            boot = self._boot.choose(client, reservation.machine.mac)
        except NoBinaryError as error:
            return NO_BOOT, f", nothing to boot: {error}", Outcome.REFUSED
        return boot, f", {boot.text}", None

    def _assemble(
        self,
        kind: MessageType,
        reservation: Reservation,
        message: Message,
        client: Client,
        boot: Boot,
        *,
        leased: bool,
        configured: bool = True,
    ) -> bytes | None:
        """The reply, within the size that the client takes (option 57); None where even the least is too large."""
        head = codec.header(
            message,
            yiaddr=reservation.yiaddr if leased else codec.NO_ADDRESS,
            ciaddr=codec.NO_ADDRESS if kind is MessageType.OFFER else message.ciaddr,
            siaddr=boot.siaddr,
            sname=boot.sname,
            file=boot.file,
        )
        start = options.option(options.MESSAGE_TYPE, bytes((kind,))) + self._server_id_option
        lease = reservation.lease if leased else b""
        # RFC 4578 section 2.3; some ROMs send none, or one of another shape, which is not worth losing a boot for.
        uuid = message.options.get(options.CLIENT_UUID, b"")
        echo = options.option(options.CLIENT_UUID, uuid) if len(uuid) == 17 and uuid[0] == 0 else b""
        identifier = _echo_client_identifier(message)
        no_proxy = NO_PROXY_DHCP if client.kind is Kind.IPXE and boot is NO_BOOT else b""
        relay = _echo_relay_information(message)  # last, RFC 3046 section 2.1
        network = reservation.network if configured else b""
        small = reservation.small_network if configured else b""
        limit = _size_limit(message)
        for parts in (
            [head, start, lease, network, identifier, echo, no_proxy, boot.spare_options, boot.options, relay],
            [head, start, lease, small, identifier, echo, no_proxy, boot.options, relay],
            [head, start, lease, small, boot.options, relay],
        ):
            payload = codec.finish(parts)
            if len(payload) <= limit:
                return payload
        self._refused(reservation, f"the smallest DHCP reply is {len(payload)} bytes, the client takes {limit}")
        return None

    # --- what the operator hears --------------------------------------------------------------------------------

    def _unknown(self, kind: MessageType, message: Message) -> None:
        mac = message.chaddr.hex(":")
        claimants = self._inventory.claimants(mac)
        if not claimants:
            self._unregistered.heard(mac, kind, message, identify(message))
            return
        names = ", ".join(sorted(f"{machine.namespace}/{machine.name}" for machine in claimants))
        reason = f"MAC {mac} is claimed by several Hardware, so none is served: {names}"
        if self._refusal_once.due((mac, reason), self._clock()):
            self._record(mac, Step.DHCP, Outcome.REFUSED, f"no DHCP answer: {reason}", reason=reason)

    def _is_served(self, reservation: Reservation) -> bool:
        machine = reservation.machine
        if reservation.unserved:
            self._refused(reservation, reservation.unserved)
            return False
        if machine.ip is None or self._inventory.by_ip(machine.ip) is None:
            self._refused(reservation, f"IP {machine.ip} is claimed by several Hardware, so none is served")
            return False
        return True

    def _refused(self, reservation: Reservation, reason: str) -> None:
        mac = reservation.machine.mac
        if self._refusal_once.due((mac, reason), self._clock()):
            self._record(mac, Step.DHCP, Outcome.REFUSED, f"no DHCP answer: {reason}", reason=reason)

    def _journey(self, reservation: Reservation, outcome: Outcome, line: str, client: Client, boot: Boot) -> None:
        machine = reservation.machine
        self._record(
            machine.mac,
            Step.DHCP,
            outcome,
            line,
            address=machine.ip or "",
            client=client.description,
            boot=boot.text,
        )

    def _ignored(self, received: Received, why: str) -> None:
        if self._malformed_once.due(received.source, self._clock()):
            log.warning("a packet from %s port %d is ignored: %s", received.source, received.source_port, why)


def _size_limit(message: Message) -> int:
    """Bytes of the largest UDP payload the client takes."""
    size = int.from_bytes(message.options.get(options.MAX_MESSAGE_SIZE, b""), "big")
    return min(max(size, _LEAST_MESSAGE), _LARGEST_MESSAGE) - _IP_AND_UDP


def _echo_client_identifier(message: Message) -> bytes:
    """RFC 6842 section 3."""
    identifier = message.options.get(options.CLIENT_IDENTIFIER, b"")
    return options.option(options.CLIENT_IDENTIFIER, identifier) if 0 < len(identifier) <= 255 else b""


def _echo_relay_information(message: Message) -> bytes:
    """RFC 3046 section 2.2: returned as it came, also without giaddr, for a switch that snoops adds it without."""
    information = message.options.get(options.RELAY_AGENT_INFORMATION)
    if information is None:
        return b""
    return options.instances(options.RELAY_AGENT_INFORMATION, information)
