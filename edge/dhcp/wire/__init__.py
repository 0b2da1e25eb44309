"""Packets as they are on the wire: DHCP messages (`codec`), their options, Ethernet frames and ARP (`frames`). Pure."""

from edge.dhcp.wire import codec, frames, options
from edge.dhcp.wire.codec import Message, MessageType

__all__ = ["Message", "MessageType", "codec", "frames", "options"]
