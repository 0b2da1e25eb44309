"""How long ago something was that a Workflow's timestamps tell of, whatever the clocks do.

Every deadline counts from a timestamp in the Workflow, so that it survives a restart of the controller. But timestamps
come from the clocks of several hosts, or from somebody's hands, and clocks are set: one that jumps ahead by a day must
not end every Workflow that runs, one that is set back must not keep them for ever.

So the wall clock is asked once for each timestamp, when it is first seen; from then on its age grows with a clock that
nobody sets. A timestamp of the future is as old as its first observation. And one that came with a change that we saw
happen is not older than the version before it, however far the clock that wrote it lags behind ours.

After a restart nothing has been seen, and the wall clock decides again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tink.kube.objects import NamespacedName

Stamp = tuple[str, float]
"""The path of a field and the time that it tells, in seconds since the epoch."""


class _Observation(NamedTuple):
    """A timestamp, how old it was when it was first seen, and when that was on the steady clock."""

    stamp: float
    age: float
    observed_at: float


@dataclass(slots=True)
class _Workflow:
    uid: str
    observed_at: float
    observed: dict[str, _Observation] = field(default_factory=dict)


class TimestampAges:
    """Of the Workflows that have not ended. `wall` is the time in seconds since the epoch, `steady` any that does not
    jump."""

    def __init__(self, wall: Callable[[], float], steady: Callable[[], float]) -> None:
        self._wall = wall
        self._steady = steady
        self._workflows: dict[NamespacedName, _Workflow] = {}

    def __len__(self) -> int:
        return len(self._workflows)

    def observe(self, key: NamespacedName, uid: str, stamps: Iterable[Stamp], *, live: bool) -> None:
        """Take note of the timestamps of one version of a Workflow. `live`: it came when it was made, not with a list
        of what there is already."""
        now = self._steady()
        known = self._workflows.get(key)
        if known is None or known.uid != uid:
            known, longest = _Workflow(uid, now), 0.0
        else:
            longest = now - known.observed_at
        observed = {}
        for name, stamp in stamps:
            observation = known.observed.get(name)
            if observation is None or observation.stamp != stamp:
                age = self._by_the_wall_clock(stamp)
                observation = _Observation(stamp, min(age, longest) if live else age, now)
            observed[name] = observation
        known.observed, known.observed_at = observed, now
        self._workflows[key] = known

    def age(self, key: NamespacedName, name: str, stamp: float) -> float:
        """Seconds since `stamp`, which stands in the field `name`; never less than 0."""
        known = self._workflows.get(key)
        observation = known.observed.get(name) if known is not None else None
        if observation is None or observation.stamp != stamp:
            return self._by_the_wall_clock(stamp)
        return observation.age + self._steady() - observation.observed_at

    def forget(self, key: NamespacedName) -> None:
        """The Workflow has ended or is gone."""
        self._workflows.pop(key, None)

    def _by_the_wall_clock(self, stamp: float) -> float:
        return max(0.0, self._wall() - stamp)
