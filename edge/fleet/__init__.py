"""Simulated machines by the thousand: `tinkedge fleet`. They boot as real ones do, as far as a server can tell.

population   who the machines are: a profile and a seed, and nothing else
protocols    what they speak: DHCP, TFTP, HTTP, iPXE's scripts, gRPC
network      how that gets onto the wire, and whether it may
machines     the life of one, a coroutine
site         the objects of machines in the API, and a stack of the fleet's own
results      what is counted, shown, and asked of a run
run          all of it together
"""

from edge.fleet.network import Link
from edge.fleet.objects import Boots
from edge.fleet.population import Profile, ProfileError, load, with_faults
from edge.fleet.results import DEFAULT_BARS, BarError, Report, lines, parse
from edge.fleet.run import Fleet, FleetError
from edge.fleet.settings import DEFAULT_NETWORK, FleetSettings, HardwareSource, SettingsError

__all__ = [
    "DEFAULT_BARS",
    "DEFAULT_NETWORK",
    "BarError",
    "Boots",
    "Fleet",
    "FleetError",
    "FleetSettings",
    "HardwareSource",
    "Link",
    "Profile",
    "ProfileError",
    "Report",
    "SettingsError",
    "lines",
    "load",
    "parse",
    "with_faults",
]
