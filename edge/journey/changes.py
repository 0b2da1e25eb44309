"""To which machines something happened since somebody asked last: for those who look at all of them now and then.

Who records puts a MAC into one set, and only if somebody asks; that is all it costs, however many ask.
"""

from __future__ import annotations


class Changes:
    """All who ask. `mark` for each change."""

    def __init__(self) -> None:
        self.subscribers: list[PendingChanges] = []
        """Always the same list: empty, there is nothing to be marked."""
        self.marked: set[str] = set()
        """Always the same set: the machines since one of the subscribers took them."""

    def mark(self, mac: str) -> None:
        """Something happened to this machine."""
        if self.subscribers:
            self.marked.add(mac)

    def subscribe(self) -> PendingChanges:
        """One who asks from now on; to be closed."""
        self.hand_out()
        pending = PendingChanges(self)
        self.subscribers.append(pending)
        return pending

    def hand_out(self) -> None:
        """Give what is marked to all who ask."""
        for pending in self.subscribers:
            pending.waiting |= self.marked
        self.marked.clear()


class PendingChanges:
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
        if self in self._changes.subscribers:
            self._changes.subscribers.remove(self)
        if not self._changes.subscribers:
            self._changes.marked.clear()
