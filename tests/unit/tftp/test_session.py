"""How transfers share the event loop, who may join them, who gives way, and how one ends."""

import asyncio
from collections import Counter
from types import SimpleNamespace

import pytest

from edge.tftp.admission import ActiveTransfers
from edge.tftp.blocks import OctetBlocks
from edge.tftp.packets import Agreed, ReadRequest
from edge.tftp.session import TURN_SECONDS, Session, TransferScheduler
from edge.tftp.source import TftpFile
from edge.tftp.transfer import ReadTransfer
from edge.tftp.transport import UdpTransport
from tests.support.virtual_time import turns
from tests.unit.tftp.loopback import udp

# --- turns -----------------------------------------------------------------------------------------------------------


class Crowd:
    """Sessions that always have something to do, until there were `most` turns; each takes `seconds` of the clock."""

    def __init__(self, names, seconds=0.0, most=200):
        self.now = 0.0
        self.turns = []
        self.scheduler = TransferScheduler(lambda: self.now)
        for name in names:
            session = SimpleNamespace(scheduled=False)
            session.step = lambda session=session, name=name: self.step(session, name, seconds, most)
            self.scheduler.schedule(session)
            self.scheduler.schedule(session)  # is in line already

    def step(self, session, name, seconds, most):
        self.turns.append(name)
        self.now += seconds
        if len(self.turns) < most:
            self.scheduler.schedule(session)


async def test_all_transfers_have_the_same_number_of_turns():
    crowd = Crowd("abcdefgh", TURN_SECONDS)
    await turns(210)
    assert crowd.turns[:16] == list("abcdefgh") * 2
    assert set(Counter(crowd.turns).values()) == {25, 26}


@pytest.mark.parametrize(("share", "at_once"), [(0.18, 6), (1.1, 1), (0, 299)])
async def test_others_wait_for_the_time_of_a_turn_and_not_for_all_transfers(share, at_once):
    crowd = Crowd(map(str, range(100)), TURN_SECONDS * share)
    await turns()
    assert len(crowd.turns) == at_once
    await turns()
    assert len(crowd.turns) == min(2 * at_once, 299)


async def test_line_that_came_to_its_end_begins_anew():
    crowd = Crowd("a", most=1)
    for count in (1, 2, 3):
        await turns(2)
        assert crowd.turns == ["a"] * count
        session = SimpleNamespace(scheduled=False, step=lambda: crowd.turns.append("a"))
        crowd.scheduler.schedule(session)


async def test_file_is_closed_once_however_often_its_transfer_is_ended():
    closed, ended, scheduler = [], [], TransferScheduler()
    request, agreed = ReadRequest("file", False, {}), Agreed()
    now = asyncio.get_running_loop().time()
    transfer = ReadTransfer(OctetBlocks(bytes(6000), 512), agreed, now, request_bytes=20)
    file = TftpFile(bytes(6000), "file", None, close=lambda: closed.append(True))
    with udp() as client:
        own = udp()
        transport = UdpTransport(own, client.getsockname(), agreed.block_bytes, None)
        session = Session(request, file, transfer, transport, scheduler, ended.append, sock=own)
        session.start()
        assert scheduler.active == 1
        for end in (session.drop, session.drop, session.step):
            end()
            assert (closed, ended, scheduler.active, own.fileno()) == ([True], [session], 0, -1)


# --- admission -------------------------------------------------------------------------------------------------------


class Stub:
    """Stands for a session of a crowd."""

    def __init__(self, sessions, client, answered, is_machine):
        self.sessions, self.client, self.is_machine = sessions, client, is_machine
        self.transfer = SimpleNamespace(answered=answered)

    def abandon(self, _reason):
        self.drop()

    def drop(self):
        self.sessions.dropped.append(self.client[1])
        self.sessions.active.remove(self)


class Sessions:
    """A crowd, and which ports were dropped from it."""

    def __init__(self, most=100, half_open=100, of_client=100):
        self.active = ActiveTransfers(most, half_open, of_client)
        self.dropped = []

    def add(self, port, ip="10.0.0.1", *, answered=False, is_machine=True):
        """Whether there was room."""
        has_room = self.active.make_room(ip, is_machine=is_machine)
        if has_room:
            self.active.add(Stub(self, (ip, port), answered, is_machine))
        return has_room


def test_oldest_half_open_transfer_goes_first_and_one_that_is_being_taken_is_not_half_open():
    sessions = Sessions(half_open=3)
    assert all(sessions.add(port, answered=True) for port in range(10))
    assert all(sessions.add(port) for port in range(10, 15))
    assert (sessions.dropped, len(sessions.active)) == ([10, 11], 13)
    for session in sessions.active:
        session.transfer.answered = True  # those that went on make room for others of their kind
    assert all(sessions.add(port) for port in range(20, 23))
    assert sessions.dropped == [10, 11]


def test_full_house_gives_a_half_open_place_and_never_one_that_is_taken():
    sessions = Sessions(most=3)
    for port in range(3):
        assert sessions.add(port, answered=port != 1)
    assert sessions.add(3, answered=True)
    assert sessions.dropped == [1]
    assert not sessions.add(4)
    assert len(sessions.active) == 3


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
    assert all(sessions.add(port, f"10.0.0.{port}") for port in range(3))
    assert all(sessions.add(port, f"10.9.0.{port}", is_machine=False) for port in range(100, 200))
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
