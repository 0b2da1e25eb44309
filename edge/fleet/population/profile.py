"""What the machines of a fleet are like, and what goes wrong with them: the profile, a YAML file. Pure.

    firmware: {bios: 3, uefi: 6, uefi-http: 1}     shares
    power-on: [0, 60]                              seconds, see `edge.fleet.population.distribution`
    actions:
      write-image: {seconds: {median: 60, p99: 180}, disk: true, output: ["{percent} %"]}
      "*": {seconds: [1, 5]}
    faults: {lost-packets: 0.01, power-cuts: 0.02}

Every field has a default, so that a file says only what is other. The command line gives the file, and faults of its
own; `edge.fleet.population.drawing` makes machines of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from edge.fleet.population.distribution import Seconds, around, even
from tink.api.yaml import YamlError, documents

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
