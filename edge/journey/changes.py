"""To which machines something happened since somebody asked last: for those who look at all of them now and then.

Who records puts a MAC into one set, and only if somebody asks; that is all it costs, however many ask.
"""

from __future__ import annotations


class Changes:
    """All who ask. `mark` for each change."""

    def __init__(self) -> None:
        self.askers: list[Asker] = []
        """Always the same list: empty, there is nothing to be marked."""
        self.marked: set[str] = set()
        """Always the same set: the machines since one of the askers took them."""

    def mark(self, mac: str) -> None:
        """Something happened to this machine."""
        if self.askers:
            self.marked.add(mac)

    def asker(self) -> Asker:
        """One who asks from now on; to be closed."""
        self.hand_out()
        asker = Asker(self)
        self.askers.append(asker)
        return asker

    def hand_out(self) -> None:
        """Give what is marked to all who ask."""
        for asker in self.askers:
            asker.waiting |= self.marked
        self.marked.clear()


class Asker:
    """What one of them has not taken yet: a machine is in it once, whatever happened."""

    def __init__(self, changes: Changes) -> None:
        self.waiting: set[str] = set()
        self._changes = changes

    def take(self) -> set[str]:
        """The machines that changed since the last time."""
        self._changes.hand_out()
        taken, self.waiting = self.waiting, set()
        return taken

    def close(self) -> None:
        """Ask no more."""
        if self in self._changes.askers:
            self._changes.askers.remove(self)
        if not self._changes.askers:
            self._changes.marked.clear()
