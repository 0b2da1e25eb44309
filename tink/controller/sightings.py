"""How long ago something was that a Workflow's timestamps tell of, whatever the clocks do.

Every deadline counts from a timestamp in the Workflow, so that it survives a restart of the controller. But timestamps
come from the clocks of several hosts, or from somebody's hands, and clocks are set: one that jumps ahead by a day must
not end every Workflow that runs, one that is set back must not keep them for ever.

So the wall clock is asked once for each timestamp, when it is first seen; from then on its age grows with a clock that
nobody sets. A timestamp of the future is as old as its first sight. And one that came with a change that we saw happen
is not older than the version before it, however far the clock that wrote it lags behind ours.

After a restart nothing has been seen, and the wall clock decides again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

Key = tuple[str, str]
"""Namespace and name of a Workflow."""

Stamp = tuple[str, float]
"""The path of a field and the time that it tells, in seconds since the epoch."""


class _Sight(NamedTuple):
    """A timestamp, how old it was when it was first seen, and when that was on the steady clock."""

    stamp: float
    age: float
    seen_at: float


@dataclass(slots=True)
class _Workflow:
    uid: str
    seen_at: float
    sights: dict[str, _Sight] = field(default_factory=dict)


class Sightings:
    """Of the Workflows that have not ended. `wall` is the time in seconds since the epoch, `steady` any that does not
    jump."""

    def __init__(self, wall: Callable[[], float], steady: Callable[[], float]) -> None:
        self._wall = wall
        self._steady = steady
        self._workflows: dict[Key, _Workflow] = {}

    def __len__(self) -> int:
        return len(self._workflows)

    def see(self, key: Key, uid: str, stamps: Iterable[Stamp], *, live: bool) -> None:
        """Take note of the timestamps of one version of a Workflow. `live`: it came when it was made, not with a list
        of what there is already."""
        now = self._steady()
        known = self._workflows.get(key)
        if known is None or known.uid != uid:
            known, longest = _Workflow(uid, now), 0.0
        else:
            longest = now - known.seen_at
        sights = {}
        for name, stamp in stamps:
            sight = known.sights.get(name)
            if sight is None or sight.stamp != stamp:
                told = self._told(stamp)
                sight = _Sight(stamp, min(told, longest) if live else told, now)
            sights[name] = sight
        known.sights, known.seen_at = sights, now
        self._workflows[key] = known

    def age(self, key: Key, name: str, stamp: float) -> float:
        """Seconds since `stamp`, which stands in the field `name`; never less than 0."""
        known = self._workflows.get(key)
        sight = known.sights.get(name) if known is not None else None
        if sight is None or sight.stamp != stamp:
            return self._told(stamp)
        return sight.age + self._steady() - sight.seen_at

    def forget(self, key: Key) -> None:
        """The Workflow has ended or is gone."""
        self._workflows.pop(key, None)

    def _told(self, stamp: float) -> float:
        return max(0.0, self._wall() - stamp)
