"""Machines made of a profile and a seed: the same seed gives the same fleet, whatever happens while it runs. Pure.

Everything about a machine that is left to chance is drawn from a generator that is seeded with the fleet's seed and the
machine's number, in an order that never changes: so machine 17 is the same in a fleet of 100 and of 10,000. What is
asked while it runs (how long an action takes, whether a datagram is lost) is made of the same two and what it is about,
so it does not depend on who asks first.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Network
from typing import Final

from edge.fleet.population.profile import ActionProfile, Firmware, Profile

MAC_PREFIX: Final = b"\x02\xf1\xee"
"""Of machines that a fleet makes up: locally administered (IEEE 802, bit 1 of the first byte)."""
MAX_MACHINES: Final = 100_000
_PROTOCOL_SECONDS: Final = 6.0
"""What DHCP and downloads take about, for when power is cut: any time of a boot is as likely as any other."""
_64_BITS: Final = (1 << 64) - 1
_FIRST_HOST: Final = 256
"""The first machine's address, counted from the network's: those before are the relay's and the edge's."""
_PER_BLOCK: Final = 250
"""Machines in 256 addresses: none ends in 0 or 255, which careless networks treat as something else."""


class HangsAt(StrEnum):
    """Where a firmware hangs."""

    POST = "POST"
    LOADER = "the boot program"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a machine is: its Hardware's name, its MAC and its address."""

    name: str
    mac: bytes
    address: str

    @property
    def mac_text(self) -> str:
        """As Hardware name it."""
        return self.mac.hex(":")


@dataclass(frozen=True, slots=True)
class Traits:
    """All that is drawn for one machine. Times are seconds; those at which something happens count from power-on."""

    number: int
    firmware: Firmware
    uuid: bytes
    power_on: float
    post: float
    loader: float
    kernel: float
    osie: float
    reboot: float
    system: float
    round_pause: float
    disk_factor: float
    clock_error: float
    cut_at: float | None
    off: float
    hangs_at: HangsAt | None
    hang: float
    failing_action: float | None
    """Which action fails, as a share of the list from 0 to below 1."""


def draw(profile: Profile, seed: int, number: int) -> Traits:
    """The machine of this number, from 0."""
    rng = random.Random(f"{seed}:{number}")
    kinds = [kind for kind in Firmware if profile.firmware.get(kind)]
    firmware = rng.choices(kinds, [profile.firmware[kind] for kind in kinds])[0]
    uuid = rng.randbytes(16)
    power_on = profile.power_on.draw(rng)
    post, loader, kernel, osie, reboot, system = (
        each.draw(rng)
        for each in (profile.post, profile.loader, profile.kernel, profile.osie, profile.reboot, profile.system)
    )
    work = sum(profile.action(name).seconds.draw(rng) for name in profile.action_names)
    round_pause, off, hang = (each.draw(rng) for each in (profile.round_pause, profile.power_off, profile.hang))
    faults = profile.faults

    def happens(rate: float) -> float | None:
        """Where in its range it happens, from 0 to below 1; two numbers are taken whether it does or not."""
        chance, where = rng.random(), rng.random()
        return where if chance < rate else None

    cut, hangs, failing = map(happens, (faults.power_cuts, faults.hanging_firmware, faults.failing_actions))
    slow, lying = map(happens, (faults.slow_disks, faults.lying_clocks))
    return Traits(
        number=number,
        firmware=firmware,
        uuid=uuid,
        power_on=power_on,
        post=post,
        loader=loader,
        kernel=kernel,
        osie=osie,
        reboot=reboot,
        system=system,
        round_pause=round_pause,
        disk_factor=profile.slow_disk_factor if slow is not None else 1.0,
        clock_error=(2 * lying - 1) * profile.clock_error if lying is not None else 0.0,
        cut_at=cut * (post + loader + kernel + osie + work + _PROTOCOL_SECONDS) if cut is not None else None,
        off=off,
        hangs_at=list(HangsAt)[int(hangs * len(HangsAt))] if hangs is not None else None,
        hang=hang,
        failing_action=failing,
    )


def action_seconds(action: ActionProfile, traits: Traits, seed: int, name: str) -> float:
    """How long the machine's action of this name takes."""
    drawn = action.seconds.draw(random.Random(f"{seed}:{traits.number}:{name}"))
    return drawn * traits.disk_factor if action.disk else drawn


def chance(seed: int, number: int, count: int) -> float:
    """The machine's random number of this count, from 0 to below 1: Steele, Lea and Flood's SplitMix64 of the three."""
    mixed = (seed * 0xD1342543DE82EF95 + number * 0xAF251AF3B0F025B5 + count * 0x9E3779B97F4A7C15) & _64_BITS
    mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) & _64_BITS
    mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & _64_BITS
    return ((mixed ^ mixed >> 31) >> 11) / 2**53


def is_lost(rate: float, seed: int, number: int, packet: int) -> bool:
    """Whether the machine's datagram of this number, counted by the machine, is lost."""
    return chance(seed, number, packet) < rate


def capacity(network: IPv4Network) -> int:
    """How many generated machines a network has room for."""
    return max((network.num_addresses - _FIRST_HOST) // 256 * _PER_BLOCK, 0)


def identity(prefix: str, network: IPv4Network, number: int) -> Identity:
    """Who a generated machine is: `prefix` and its number are its name."""
    offset = _FIRST_HOST + number // _PER_BLOCK * 256 + 1 + number % _PER_BLOCK
    address = network.network_address + offset
    return Identity(f"{prefix}-{number:05d}", MAC_PREFIX + number.to_bytes(3, "big"), str(address))
