"""Who the machines of a fleet are: the profile that they are drawn from, and what is drawn with a seed. Pure."""

from edge.fleet.population.drawing import (
    MAX_MACHINES,
    HangsAt,
    Identity,
    Traits,
    action_seconds,
    capacity,
    chance,
    draw,
    identity,
    is_lost,
)
from edge.fleet.population.profile import (
    ActionProfile,
    BootOrder,
    CloudInit,
    Firmware,
    Profile,
    ProfileError,
    load,
    read,
    with_faults,
)

__all__ = [
    "MAX_MACHINES",
    "ActionProfile",
    "BootOrder",
    "CloudInit",
    "Firmware",
    "HangsAt",
    "Identity",
    "Profile",
    "ProfileError",
    "Traits",
    "action_seconds",
    "capacity",
    "chance",
    "draw",
    "identity",
    "is_lost",
    "load",
    "read",
    "with_faults",
]
