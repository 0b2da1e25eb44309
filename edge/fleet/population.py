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
from tink.errors import TinkedgeError

MAX_SECONDS: Final = 86_400.0
_NORMAL: Final = NormalDist()


class Distribution(BaseModel):
    """A duration in seconds: even between `least` and `most`, or log-normal with `median` and `p99`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    least: float = 0.0
    most: float = 0.0
    median: float = 0.0
    p99: float = 0.0

    def draw(self, rng: random.Random) -> float:
        """Return one value, in seconds. Takes exactly one number from `rng`, whatever the kind."""
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
"""The type of a profile's duration: a number, `[least, most]`, or `{median: M, p99: P}`."""


def even(least: float, most: float) -> Distribution:
    """Return an even distribution between two bounds."""
    return Distribution(least=least, most=most)


def around(median: float, p99: float) -> Distribution:
    """Return a log-normal distribution."""
    return Distribution(median=median, p99=p99)


ANY_ACTION: Final = "*"
MAX_OUTPUT_LINES: Final = 1000


class ProfileError(TinkedgeError):
    """A profile is invalid; the message names the file and the field."""


class Firmware(StrEnum):
    """The firmware that loads the boot program."""

    BIOS = "bios"
    """A PXE ROM of a BIOS: PXE 2.1."""
    UEFI = "uefi"
    """EDK2's PXE: UEFI 2.10 section 24.3."""
    UEFI_HTTP = "uefi-http"
    """EDK2's HTTP Boot: UEFI 2.10 section 24.7."""


class CloudInit(StrEnum):
    """The data source that the installed system's cloud-init reads."""

    EC2 = "ec2"
    NOCLOUD = "nocloud"
    NONE = "none"


class BootOrder(StrEnum):
    """The device that firmware tries first after the installation."""

    DISK = "disk"
    NETWORK = "network"
    """The edge must refuse the network boot: `--netboot-when workflow`."""


Rate = Annotated[float, Field(ge=0.0, le=1.0)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=lambda name: name.replace("_", "-"))


class ActionProfile(_Part):
    """An action. `disk`: a slow disk makes it longer. `output`: its lines, with `{percent}` filled in."""

    seconds: Seconds = even(1, 5)
    disk: bool = False
    output: Annotated[tuple[str, ...], Field(max_length=MAX_OUTPUT_LINES)] = ()
    reason: str = "NonZeroExit"
    message: str = "the fleet's profile has it fail"


class Faults(_Part):
    """Rates of injected faults: a share of datagrams for `lost_packets`, else a share of machines."""

    lost_packets: Rate = 0.0
    """Datagrams of DHCP and TFTP, in both directions. The kernel handles TCP."""
    power_cuts: Rate = 0.0
    """Power is cut once, at any time of the boot, and comes back after `power_off` seconds."""
    hanging_firmware: Rate = 0.0
    """The firmware hangs once, before DHCP or after the boot program, until a power cycle after `hang` seconds."""
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
    """A fleet's profile. Times are seconds."""

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
    """Number of boots before the machine counts as failed."""
    patience: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    """Seconds that an agent waits for its Workflow, or for an acknowledgement, before the machine counts as failed."""
    actions: Mapping[str, ActionProfile] = Field(default_factory=_default_actions)
    """Actions by name; `*` is the default. Generated Templates have them in this order, without `*`."""
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
        """Return the profile of an action."""
        return self.actions.get(name) or self.actions.get(ANY_ACTION) or _ANY

    @property
    def action_names(self) -> tuple[str, ...]:
        """Return the names of the actions in a generated Template."""
        return tuple(name for name in self.actions if name != ANY_ACTION)


_ANY: Final = ActionProfile()


def load(path: Path) -> Profile:
    """Load a profile from a file. Raises ProfileError."""
    try:
        found = list(documents(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, YamlError) as error:
        raise ProfileError(f"{path}: {error}") from error
    if len(found) != 1 or not isinstance(found[0], dict):
        raise ProfileError(f"{path}: must be one mapping")
    return read(found[0], str(path))


def read(value: Mapping[str, Any], where: str) -> Profile:
    """Parse a profile from a mapping, as YAML has it. Raises ProfileError."""
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
    """Return the profile with some rates of faults replaced, by their names with hyphens. Raises ProfileError."""
    own = profile.faults.model_dump(by_alias=True)
    if unknown := set(rates) - set(own):
        raise ProfileError(f"no such fault: {', '.join(sorted(unknown))}; there are {', '.join(own)}")
    try:
        faults = Faults.model_validate(own | dict(rates))
    except ValidationError as error:
        raise ProfileError(f"a fault's rate is from 0 to 1: {error.errors()[0]['loc'][0]}") from error
    return profile.model_copy(update={"faults": faults})


MAC_PREFIX: Final = b"\x02\xf1\xee"
"""Prefix of generated MACs: locally administered (IEEE 802, bit 1 of the first byte)."""
MAX_MACHINES: Final = 100_000
_PROTOCOL_SECONDS: Final = 6.0
"""Approximate seconds for DHCP and downloads, so that power cuts are spread evenly over the whole boot."""
_64_BITS: Final = (1 << 64) - 1
_FIRST_HOST: Final = 256
"""Offset of the first machine's address in the network; lower ones are for the relay and the edge."""
_PER_BLOCK: Final = 250
"""Machines per 256 addresses: no address ends in 0 or 255, which some network devices refuse."""


class HangsAt(StrEnum):
    """The place where firmware hangs."""

    POST = "POST"
    LOADER = "the boot program"


@dataclass(frozen=True, slots=True)
class Identity:
    """A machine's identity: its Hardware's name, its MAC and its address."""

    name: str
    mac: bytes
    address: str

    @property
    def mac_text(self) -> str:
        """Return the MAC in the notation of Hardware objects."""
        return self.mac.hex(":")


@dataclass(frozen=True, slots=True)
class Traits:
    """The random traits of one machine. Times are seconds; times of events count from power-on."""

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
    """Position of the failing action in the list, from 0 to below 1."""


def draw(profile: Profile, seed: int, number: int) -> Traits:
    """Draw the traits of a machine; numbers start at 0."""
    rng = random.Random(f"{seed}:{number}")
    kinds = [kind for kind in Firmware if profile.firmware.get(kind)]
    firmware = rng.choices(kinds, [profile.firmware[kind] for kind in kinds])[0]
    uuid = rng.randbytes(16)
    power_on, post, loader, kernel, osie, reboot, system = (
        getattr(profile, name).draw(rng)
        for name in ("power_on", "post", "loader", "kernel", "osie", "reboot", "system")
    )
    work = sum(profile.action(name).seconds.draw(rng) for name in profile.action_names)
    round_pause, off, hang = (each.draw(rng) for each in (profile.round_pause, profile.power_off, profile.hang))
    faults = profile.faults

    def happens(rate: float) -> float | None:
        """Return the time of a fault as a share from 0 to below 1, or None.

        Takes two numbers from `rng` in any case.
        """
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
    """Return the seconds that an action takes on a machine."""
    drawn = action.seconds.draw(random.Random(f"{seed}:{traits.number}:{name}"))
    return drawn * traits.disk_factor if action.disk else drawn


def chance(seed: int, number: int, count: int) -> float:
    """Return a random number from 0 to below 1, from the three arguments (SplitMix64 of Steele, Lea and Flood)."""
    mixed = (seed * 0xD1342543DE82EF95 + number * 0xAF251AF3B0F025B5 + count * 0x9E3779B97F4A7C15) & _64_BITS
    mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) & _64_BITS
    mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & _64_BITS
    return ((mixed ^ mixed >> 31) >> 11) / 2**53


def capacity(network: IPv4Network) -> int:
    """Return the number of generated machines that fit into a network."""
    return max((network.num_addresses - _FIRST_HOST) // 256 * _PER_BLOCK, 0)


def identity(prefix: str, network: IPv4Network, number: int) -> Identity:
    """Return a generated machine's identity; its name is `prefix` and the number."""
    offset = _FIRST_HOST + number // _PER_BLOCK * 256 + 1 + number % _PER_BLOCK
    address = network.network_address + offset
    return Identity(f"{prefix}-{number:05d}", MAC_PREFIX + number.to_bytes(3, "big"), str(address))
