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

    def __init__(self, active, client, number, *, answered, is_machine):
        self.active, self.client, self.number, self.is_machine = active, (client, number), number, is_machine
        self.transfer = SimpleNamespace(answered=answered)
        self.dropped = False

    def abandon(self, _reason):
        self.drop()

    def drop(self):
        self.dropped = True
        self.active.remove(self)


@pytest.mark.parametrize(
    ("limits", "course", "dropped"),
    [
        ((100, 3, 100), ["m1+"] * 10 + ["m1"] * 5, [10, 11]),
        # Those that went on make room for others of their kind.
        ((100, 3, 100), ["m1", "m1", "m1", "all answer", "m1", "m1", "m1"], []),
        # A full house gives a half open place, and never one that is taken.
        ((3, 100, 100), ["m1+", "m1", "m1+", "m1+", "m1!"], [1]),
        # One client pushes out its own, and nobody else's.
        ((100, 100, 2), ["m1", "m2", "m2+", "m2+", "m2!", "m1"], [1]),
        # Nothing is left of those who went.
        ((2, 1, 2), ["m1", "m1+", "all go", "m1+", "m1+", "m1!"], [0, 1]),
        # Strangers give way to machines, and machines to no stranger; among themselves the oldest goes.
        ((100, 3, 100), ["m1", "m2", "m3", *["s4"] * 100], [*range(3, 100)]),
        # A full house ends a stranger's transfer for a machine, and never the other way.
        ((3, 100, 100), ["m0+", "s1+", "s2+", "s3!", "m4+", "m5", "s3!", "m7+", "m8!"], [1, 2, 5]),
    ],
)
def test_machines_come_before_strangers_and_transfers_that_are_taken_before_half_open_ones(limits, course, dropped):
    """Each arrives as a machine or a stranger (m, s) at an address; `+`: it has answered, `!`: there is no room."""
    active, sessions = ActiveTransfers(*limits), []
    for step in course:
        if step == "all answer":
            for session in active:
                session.transfer.answered = True
        elif step == "all go":
            for session in list(active):
                session.drop()
            assert len(active) == 0
            assert active.get(sessions[0].client) is None
        else:
            client, is_machine = f"10.0.0.{step[1]}", step[0] == "m"
            has_room = active.make_room(client, is_machine=is_machine)
            assert has_room is ("!" not in step)
            session = Stub(active, client, len(sessions), answered="+" in step, is_machine=is_machine)
            sessions.append(session)
            if has_room:
                active.add(session)
    assert [session.number for session in sessions if session.dropped] == dropped
