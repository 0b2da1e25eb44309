"""Which DHCP client of a machine asks, and what it is told to boot. Pure."""

from edge.dhcp.boot.choice import NO_BOOT, Boot, BootChoice, Verdict
from edge.dhcp.boot.client import Client, ClientKind, identify

__all__ = ["NO_BOOT", "Boot", "BootChoice", "Client", "ClientKind", "Verdict", "identify"]
