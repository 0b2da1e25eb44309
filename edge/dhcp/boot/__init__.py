"""Which DHCP client of a machine asks, and what it is told to boot. Pure."""

from edge.dhcp.boot.choice import NO_BOOT, Boot, BootChoice, Verdict
from edge.dhcp.boot.client import PI_NAME, PI_NAME_AT, Client, ClientKind, identify

__all__ = ["NO_BOOT", "PI_NAME", "PI_NAME_AT", "Boot", "BootChoice", "Client", "ClientKind", "Verdict", "identify"]
