"""What a fault is: how it is played, and what has to be said of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tests.interop.faults.machine import Scripted


@dataclass(frozen=True)
class Fault:
    """`play` gives back when the fault could be known, in seconds since the epoch; None: when it ended. `since` is the
    line of the journey from which on it can be known, where that is not for the machine to say, and `plus` how many
    seconds later; `moment` says that in words. `by_the_clock`: when that is, is learned of boots before.

    `interface` is what its network interface says more, `dhcp` what that says otherwise than the network is; `osie`
    what it boots, empty for none. `actions` are those of a Template of its own, for its Workflow, as YAML; `workflow`
    are more fields of the latter. `drop` is what a firewall drops, and where; `routed`: the edge has a way to its
    network; `second`: the machine is on the second network, with another card of the edge. `after` is a fault that has
    to have got to the OSIE before. `rules` are those that may name it, which depends on what comes first.
    """

    name: str
    play: Callable[[Scripted], float | None]
    rules: str
    sentence: str
    osie: str = "good"
    dhcp: str = ""
    interface: str = ""
    ip: str = ""
    since: str = ""
    plus: float = 0.0
    by_the_clock: bool = False
    moment: str = ""
    registered: bool = True
    drop: str = ""
    userdata: str = ""
    routed: bool = False
    second: bool = False
    actions: str = ""
    workflow: str = ""
    after: str = ""

    @property
    def slug(self) -> str:
        """Its name, as that of an object."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")
