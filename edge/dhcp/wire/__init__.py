"""Packets as they are on the wire: DHCP messages and options, InfiniBand's addresses, Ethernet frames, ARP. Pure."""

from edge.dhcp.wire import arp, codec, frame, infiniband, options, relay_agent
from edge.dhcp.wire.codec import Message, MessageType

__all__ = ["Message", "MessageType", "arp", "codec", "frame", "infiniband", "options", "relay_agent"]
