"""What a relay agent says about where a client is: the header's `giaddr`, and option 82 (RFC 3046). Pure.

A relay takes a client's broadcasts to us and our replies back. Its address `giaddr` is where replies go, and names the
client's subnet too, unless the link selection does (RFC 3527: a relay whose own address is of another subnet). With the
server identifier override (RFC 5107) it asks to be named as the server in option 54, so that renewals come through it
as well. With the source port (RFC 8357) it asks for replies at the port that it has sent from. Option 82 itself goes
back as it came, as the last option (section 2.1), also where `giaddr` is zero: a switch that snoops adds it without
being a relay.
"""

from __future__ import annotations

from typing import NamedTuple

from edge.dhcp.wire import options
from edge.dhcp.wire.codec import Message


class RelayAgent(NamedTuple):
    """Addresses of four bytes, empty where there is none.

    `giaddr` is where the reply goes; `link` is an address of the client's subnet; `server_id` is what
    option 54 is to say. `echo` is option 82 for the reply, encoded, empty where none came.
    """

    giaddr: bytes
    link: bytes
    server_id: bytes
    echo: bytes
    port: int = 0
    """The port that the relay wants its replies at (RFC 8357); 0: the usual one, 67."""


NO_RELAY = RelayAgent(b"", b"", b"", b"")
"""The client is on our own link."""


def relay_agent_of(message: Message, source_port: int = 0) -> RelayAgent:
    """What `message`, which came from `source_port`, says of the relay that it came through.

    Sub-options that are no host's address are passed over.
    """
    information = message.options.get(options.RELAY_AGENT_INFORMATION)
    giaddr = message.giaddr if any(message.giaddr) else b""
    if information is None:
        return RelayAgent(giaddr, giaddr, b"", b"") if giaddr else NO_RELAY
    found = options.suboptions(information) or {}
    link = found.get(options.LINK_SELECTION, b"")
    server_id = found.get(options.SERVER_IDENTIFIER_OVERRIDE, b"")
    return RelayAgent(
        giaddr,
        link if _is_address(link) else giaddr,
        server_id if _is_address(server_id) else b"",
        options.instances(options.RELAY_AGENT_INFORMATION, information),
        source_port if options.RELAY_SOURCE_PORT in found else 0,
    )


def _is_address(value: bytes) -> bool:
    # A subnet may be named by its own number, e.g. 10.1.0.0, which passes for a host's here.
    return len(value) == 4 and options.is_host_address(value)
