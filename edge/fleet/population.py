"""The machines of a fleet: the profile (a YAML file) that describes them, and what a seed draws from it. Pure.

    firmware: {bios: 3, uefi: 6, uefi-http: 1}     shares
    power-on: [0, 60]                              seconds, see `Distribution`
    actions:
      write-image: {seconds: {median: 60, p99: 180}, disk: true, output: ["{percent} %"]}
      "*": {seconds: [1, 5]}
    faults: {lost-packets: 0.01, power-cuts: 0.02}

Every field of a profile has a default. The command line gives the file, and may add faults.

The same seed gives the same fleet, whatever happens during the run. All random traits of a machine come from a
generator seeded with the fleet's seed and the machine's number, in a fixed order: machine 17 is the same in a fleet of
100 and of 10,000. Random values needed during the run (an action's duration, a lost datagram) depend on the same two
numbers and on their purpose, and not on the order of the calls.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Network
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from tink.api.yaml import YamlError, documents

MAX_SECONDS: Final = 86_400.0
_NORMAL: Final = NormalDist()


class Distribution(BaseModel):
    """Seconds between `least` and `most`, evenly; or with a median and a p99, log-normal, as disks and people are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    least: float = 0.0
    most: float = 0.0
    median: float = 0.0
    p99: float = 0.0

    def draw(self, rng: random.Random) -> float:
        """One value, in seconds. Takes one number from `rng`, whatever the kind."""
        if not self.median:
            return self.least + (self.most - self.least) * rng.random()
        sigma = math.log(self.p99 / self.median) / _NORMAL.inv_cdf(0.99)
        return min(
            math.exp(math.log(self.median) + sigma * _NORMAL.inv_cdf(min(max(rng.random(), 1e-9), 1 - 1e-9))),
            MAX_SECONDS,
        )


def _read(value: Any) -> Any:
    if isinstance(value, bool | str):
        raise ValueError("a number of seconds, [least, most], or {median: M, p99: P}")  # noqa: TRY004 - pydantic's
    if isinstance(value, int | float):
        return {"least": float(value), "most": float(value)}
    if isinstance(value, list | tuple):
        if len(value) != 2:
            raise ValueError("a list must be [least, most]")
        return {"least": value[0], "most": value[1]}
    return value


def _check(found: Distribution) -> Distribution:
    if found.median or found.p99:
        if not 0 < found.median <= found.p99 <= MAX_SECONDS or found.least or found.most:
            raise ValueError(f"median and p99 must be above 0, in this order, and at most {MAX_SECONDS:.0f}")
    elif not 0 <= found.least <= found.most <= MAX_SECONDS:
        raise ValueError(f"must be from 0 to {MAX_SECONDS:.0f} seconds, the least first")
    return found


Seconds = Annotated[Distribution, BeforeValidator(_read), AfterValidator(_check)]
"""A field of a profile."""


def even(least: float, most: float) -> Distribution:
    """Between two bounds."""
    return Distribution(least=least, most=most)


def around(median: float, p99: float) -> Distribution:
    """Log-normal."""
    return Distribution(median=median, p99=p99)


ANY_ACTION: Final = "*"
MAX_OUTPUT_LINES: Final = 1000


class ProfileError(Exception):
    """A profile that can't be used; names the file and the field."""


class Firmware(StrEnum):
    """What loads the boot program."""

    BIOS = "bios"
    """A PXE ROM of a BIOS: PXE 2.1."""
    UEFI = "uefi"
    """EDK2's PXE: UEFI 2.10 section 24.3."""
    UEFI_HTTP = "uefi-http"
    """EDK2's HTTP Boot: UEFI 2.10 section 24.7."""


class CloudInit(StrEnum):
    """What the installed system's cloud-init reads."""

    EC2 = "ec2"
    NOCLOUD = "nocloud"
    NONE = "none"


class BootOrder(StrEnum):
    """What firmware tries first when there is an installed system."""

    DISK = "disk"
    NETWORK = "network"
    """The edge has to tell it that there is nothing to boot: `--netboot-when workflow`."""


Rate = Annotated[float, Field(ge=0.0, le=1.0)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=lambda name: name.replace("_", "-"))


class ActionProfile(_Part):
    """How an action goes. `disk`: a slow disk makes it longer. `output`: what it prints, `{percent}` filled in."""

    seconds: Seconds = even(1, 5)
    disk: bool = False
    output: Annotated[tuple[str, ...], Field(max_length=MAX_OUTPUT_LINES)] = ()
    reason: str = "NonZeroExit"
    message: str = "the fleet's profile has it fail"


class Faults(_Part):
    """Shares of what goes wrong: of datagrams for `lost_packets`, else of machines."""

    lost_packets: Rate = 0.0
    """DHCP's and TFTP's datagrams, in both directions. TCP's are the kernel's."""
    power_cuts: Rate = 0.0
    """Once, at any time of the boot; after `power_off` seconds it is switched on again."""
    hanging_firmware: Rate = 0.0
    """Once, before DHCP or behind the boot program, until somebody switches it off and on after `hang` seconds."""
    failing_actions: Rate = 0.0
    """One of the machine's actions fails."""
    slow_disks: Rate = 0.0
    """Actions with `disk` take `slow_disk_factor` times as long."""
    lying_clocks: Rate = 0.0
    """The machine's clock is wrong by up to `clock_error` seconds, either way."""


def _default_actions() -> dict[str, ActionProfile]:
    return {
        "inspect": ActionProfile(seconds=even(1, 3), output=("disk 0: 960 GB",)),
        "write-image": ActionProfile(
            seconds=around(40, 120), disk=True, output=("{percent} % written", "{percent} % written", "synced")
        ),
        "write-files": ActionProfile(seconds=even(1, 4), disk=True),
        "verify": ActionProfile(seconds=even(2, 6), disk=True, output=("checksums match",)),
    }


class Profile(_Part):
    """All of it. Times are seconds."""

    firmware: Mapping[Firmware, Annotated[float, Field(ge=0)]] = {
        Firmware.BIOS: 3.0,
        Firmware.UEFI: 6.0,
        Firmware.UEFI_HTTP: 1.0,
    }
    power_on: Seconds = even(0, 60)
    """From the start of the run."""
    post: Seconds = around(40, 120)
    """From power-on to the firmware's first DISCOVER."""
    loader: Seconds = even(1, 3)
    """From the boot program's last byte to its own DISCOVER."""
    kernel: Seconds = even(6, 15)
    """From `boot` to the OSIE's DISCOVER."""
    osie: Seconds = even(3, 8)
    """From the OSIE's lease to the agent's first connection."""
    reboot: Seconds = even(5, 15)
    """From the Workflow's end to power being off and on again."""
    system: Seconds = even(10, 30)
    """From the disk's boot loader to the installed system's DISCOVER."""
    power_off: Seconds = even(5, 30)
    hang: Seconds = even(120, 300)
    round_pause: Seconds = even(3, 10)
    """From a boot that failed to the firmware's next."""
    rounds: Annotated[int, Field(ge=1, le=100)] = 8
    """How often the firmware comes round before the machine counts as failed."""
    patience: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    """How long an agent waits for its Workflow, and an event for being taken, before the machine counts as failed."""
    actions: Mapping[str, ActionProfile] = Field(default_factory=_default_actions)
    """By name; `*` are those that have none here. Generated Templates have them in this order, without `*`."""
    boot_order: BootOrder = BootOrder.DISK
    cloud_init: CloudInit = CloudInit.EC2
    slow_disk_factor: Annotated[float, Field(ge=1, le=1000)] = 5.0
    clock_error: Annotated[float, Field(ge=0)] = 315_360_000.0
    faults: Faults = Faults()

    @field_validator("firmware")
    @classmethod
    def _some_firmware(cls, value: Mapping[Firmware, float]) -> Mapping[Firmware, float]:
        if not any(value.values()):
            raise ValueError("at least one kind must have a share above 0")
        return value

    def action(self, name: str) -> ActionProfile:
        """How the action of this name goes."""
        return self.actions.get(name) or self.actions.get(ANY_ACTION) or _ANY

    @property
    def action_names(self) -> tuple[str, ...]:
        """Those that a generated Template has."""
        return tuple(name for name in self.actions if name != ANY_ACTION)


_ANY: Final = ActionProfile()


def load(path: Path) -> Profile:
    """The profile in a file. Raises ProfileError."""
    try:
        found = list(documents(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, YamlError) as error:
        raise ProfileError(f"{path}: {error}") from error
    if len(found) != 1 or not isinstance(found[0], dict):
        raise ProfileError(f"{path}: must be one mapping")
    return read(found[0], str(path))


def read(value: Mapping[str, Any], where: str) -> Profile:
    """The profile in a mapping, as YAML has it. Raises ProfileError."""
    try:
        profile = Profile.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise ProfileError(f"{where}: {field or 'profile'}: {first['msg']}") from error
    if not profile.action_names:
        raise ProfileError(f"{where}: actions: name at least one")
    return profile


def with_faults(profile: Profile, rates: Mapping[str, float]) -> Profile:
    """The profile with these faults instead of its own, by their names with hyphens. Raises ProfileError."""
    own = profile.faults.model_dump(by_alias=True)
    if unknown := set(rates) - set(own):
        raise ProfileError(f"no such fault: {', '.join(sorted(unknown))}; there are {', '.join(own)}")
    try:
        faults = Faults.model_validate(own | dict(rates))
    except ValidationError as error:
        raise ProfileError(f"a fault's rate is from 0 to 1: {error.errors()[0]['loc'][0]}") from error
    return profile.model_copy(update={"faults": faults})


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
