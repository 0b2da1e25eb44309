"""Who may join the transfers under way, and who gives way."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

from edge.tftp.admission import ActiveTransfers
from edge.tftp.session import Session


@dataclass(eq=False)
class Stub:
    """Stands for a session."""

    client: tuple[str, int]
    transfer: SimpleNamespace
    sessions: Sessions
    is_machine: bool = True

    def abandon(self, _reason):
        self.drop()

    def drop(self):
        self.sessions.dropped.append(self.client[1])
        self.sessions.active.remove(cast(Session, self))


class Sessions:
    """A crowd, and which ports were dropped from it."""

    def __init__(self, most=100, half_open=100, of_client=100):
        self.active = ActiveTransfers(most, half_open, of_client)
        self.dropped = []

    def add(self, port, ip="10.0.0.1", *, answered=False, is_machine=True):
        """Whether there was room."""
        if not self.active.make_room(ip, is_machine=is_machine):
            return False

        session = cast(Session, Stub((ip, port), SimpleNamespace(answered=answered), self, is_machine))
        self.active.add(session)
        return True


def test_oldest_half_open_transfer_goes_first():
    sessions = Sessions(half_open=3)
    assert all(sessions.add(port) for port in range(5))
    assert sessions.dropped == [0, 1]
    assert len(sessions.active) == 3


def test_transfers_that_are_being_taken_are_not_half_open():
    sessions = Sessions(half_open=3)
    assert all(sessions.add(port, answered=True) for port in range(10))
    assert sessions.dropped == []
    assert sessions.add(10)
    assert sessions.add(11)
    assert sessions.add(12)
    assert sessions.add(13)
    assert sessions.dropped == [10]


def test_full_house_gives_a_half_open_place_and_never_one_that_is_taken():
    sessions = Sessions(most=3)
    assert sessions.add(0, answered=True)
    assert sessions.add(1)
    assert sessions.add(2, answered=True)
    assert sessions.add(3, answered=True)
    assert sessions.dropped == [1]
    assert not sessions.add(4)
    assert len(sessions.active) == 3


def test_half_open_transfers_that_went_on_make_room_for_others_of_their_kind():
    sessions = Sessions(most=100, half_open=2)
    sessions.add(0)
    sessions.add(1)
    for session in sessions.active:
        session.transfer.answered = True
    assert sessions.add(2)
    assert sessions.dropped == []


def test_one_client_pushes_out_its_own_and_nobody_elses():
    sessions = Sessions(of_client=2)
    sessions.add(1, "10.0.0.1")
    sessions.add(2, "10.0.0.2")
    sessions.add(3, "10.0.0.2", answered=True)
    assert sessions.add(4, "10.0.0.2", answered=True)
    assert sessions.dropped == [2]
    assert not sessions.add(5, "10.0.0.2")
    assert sessions.add(6, "10.0.0.1")


def test_nothing_is_left_of_those_who_went():
    sessions = Sessions()
    for port in range(5):
        sessions.add(port, f"10.0.0.{port}", answered=port % 2 == 0)
    for session in list(sessions.active):
        session.drop()
    assert len(sessions.active) == 0
    assert not sessions.active._of_client
    assert not any(sessions.active._half_open.values())
    assert sessions.active.get(("10.0.0.1", 1)) is None


def test_strangers_give_way_to_machines_and_machines_to_no_stranger():
    sessions = Sessions(half_open=3)
    for port in range(3):
        assert sessions.add(port, f"10.0.0.{port}")
    for port in range(100, 200):
        assert sessions.add(port, f"10.9.0.{port}", is_machine=False)
    assert sessions.dropped == list(range(100, 197)), "among themselves the oldest goes"
    assert len(sessions.active) == 6


def test_full_house_ends_a_strangers_transfer_for_a_machine_and_never_the_other_way():
    sessions = Sessions(most=3)
    assert sessions.add(0, answered=True)
    assert sessions.add(1, "10.9.0.1", answered=True, is_machine=False)
    assert sessions.add(2, "10.9.0.2", answered=True, is_machine=False)
    assert not sessions.add(3, "10.9.0.3", is_machine=False)
    assert sessions.add(4, "10.0.0.4", answered=True)
    assert sessions.add(5, "10.0.0.5")
    assert sessions.dropped == [1, 2]
    assert not sessions.add(6, "10.9.0.3", is_machine=False)
    assert sessions.add(7, "10.0.0.7", answered=True)
    assert not sessions.add(8, "10.0.0.8")
    assert sessions.dropped == [1, 2, 5]
