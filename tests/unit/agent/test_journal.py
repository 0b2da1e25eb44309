"""An agent that dies and is started again, anywhere, any number of times: nothing runs twice, nothing is left open."""

import asyncio
import weakref
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tink.agent.agent as agent_module
from tests.support.virtual_time import turns
from tests.unit.agent.world import STATE, MemoryDisk, World, check, life, lives, workflow
from tink.agent.executor import REMEMBERED_WORKFLOWS, ExecutionProgress
from tink.agent.journal import REJECTION_LIMIT, Journal, Spool, file_of
from tink.agent.model import ActionFailed, ActionStarted, ActionSucceeded, WorkflowOutcome, WorkflowRejected

STEPS = 60
"""More than a workflow of three actions takes."""


@pytest.mark.parametrize("engine", [False, True])
def test_one_death_anywhere_runs_nothing_twice_and_ends_the_workflow(engine):
    lost = []
    for kill in range(STEPS):  # at 0 there is no death
        world = World([kill], engine=engine)
        assert lives(world) == 1 or kill
        check(world)
        assert world.state in ("Succeeded", "Failed AgentRestarted"), kill
        if world.state != "Succeeded":
            lost.append(kill)
    # For each action the steps between keeping that it begins and keeping how it ended, and no others.
    assert len(lost) <= 3 * (3 if engine else 6), lost
    assert 0 not in lost


@pytest.mark.parametrize(("call", "engine"), [("pull img", False), ("run one", True)])
def test_death_while_pulling_or_in_an_action_whose_end_the_engine_knows_costs_nothing(call, engine):
    world = World(engine=engine)

    def die_once():
        del world.ends[call]
        world.die()

    world.ends[call] = die_once
    assert lives(world) == 2
    assert (world.state, len(world.runs)) == ("Succeeded", 3)
    check(world)


def stretches(most):
    """Some steps or turns in a row."""
    return st.builds(lambda begin, length: range(begin, begin + length), st.integers(0, 60), st.integers(0, most))


@settings(max_examples=200)
@given(
    kills=st.sets(st.integers(1, 150), max_size=8),
    full=st.sets(st.integers(1, 150), max_size=6) | stretches(60),
    away=stretches(300),
    patience=st.sampled_from([0.0, 10.0]),
    engine=st.booleans(),
    stop_at=st.none() | st.integers(1, 60),
)
def test_any_deaths_any_failing_disk_and_an_absent_server_run_nothing_twice_and_end_the_workflow(
    kills, full, away, patience, engine, stop_at
):
    world = World(kills, full=full, away=away, engine=engine, stop_at=stop_at)
    with patch.object(agent_module, "ACKNOWLEDGED_WITHIN_SECONDS", patience):
        lives(world)
    check(world)
    assert world.state.split()[0] in ("Succeeded", "Failed", "Canceled")


def a_wrong_byte(file, draw):
    position = draw(st.integers(0, len(file) - 1))
    return file[:position] + bytes([file[position] ^ draw(st.integers(1, 255))]) + file[position + 1 :]


def doubled(file, draw):
    return file * 2


def cut_off(file, draw):
    return file[: draw(st.integers(0, len(file)))]


def of_random_bytes(file, draw):
    return draw(st.binary(max_size=200))


def with_a_hole(file, draw):
    start = draw(st.integers(0, len(file)))
    length = draw(st.integers(1, 600))
    return (file[:start] + bytes(length) + file[start + length :])[: len(file)]


def lines_of(file, draw):
    header, *lines = file.splitlines(keepends=True)
    return header, lines, draw(st.integers(0, len(lines) - 1))


def with_a_record_twice(file, draw):
    header, lines, at = lines_of(file, draw)
    return header + b"".join(lines[: at + 1] + lines[at:])


def without_a_record(file, draw):
    header, lines, at = lines_of(file, draw)
    return header + b"".join(lines[:at] + lines[at + 1 :])


def with_records_in_another_order(file, draw):
    header, lines, at = lines_of(file, draw)
    return header + b"".join([*lines[:at], *lines[at + 1 :], lines[at]])


def of_another_version(file, draw):
    return file.replace(b"tinkedge-ledger 2", b"tinkedge-ledger 9")


def of_the_version_before(file, draw):
    return file.replace(b"tinkedge-ledger 2 whole", b"tinkedge-ledger 1 whole")


@pytest.mark.parametrize(
    "damage",
    [
        *(a_wrong_byte, doubled, cut_off, of_random_bytes, with_a_hole, with_a_record_twice, without_a_record),
        *(with_records_in_another_order, of_another_version, of_the_version_before),
    ],
)
@settings(max_examples=60)
@given(kill=st.integers(1, STEPS), data=st.data())
def test_damaged_journal_runs_nothing_twice(damage, kill, data):
    world = World([kill])

    async def story():
        if not await life(world) and (file := world.files.get(STATE / "journal")) and b"\n" in file[:-1]:
            world.files[STATE / "journal"] = bytearray(damage(bytes(file), data.draw))
        while not await life(world):
            pass

    asyncio.run(story())
    check(world)


def test_machine_that_booted_since_does_not_hold_the_workflow():
    """The server then knows better: an action that reboots the machine has succeeded."""
    world = World(actions=1)

    def reboot():
        world.boot = "boot-2"
        world.die()

    world.ends["run one"] = reboot
    assert lives(world) == 2
    assert world.state == "Failed AgentLost"
    assert [type(event) for event in world.events] == [ActionStarted]
    check(world)


def test_rebooted_machine_reports_what_it_had_still_to_report_before_it_shows_that_it_lost_the_workflow():
    world = World(actions=2)

    def go_offline():
        world.reachable = False

    def reboot():
        world.boot, world.reachable = "boot-2", True
        world.die()

    world.ends |= {"run one": go_offline, "run two": reboot}
    with patch.object(agent_module, "ACKNOWLEDGED_WITHIN_SECONDS", 0.0):
        lives(world)
    assert world.state == "Failed AgentLost"
    assert world.action_states == {"id-one": "Succeeded", "id-two": "Running"}


# --- what is written, and read again ----------------------------------------------------------------------------------


def journal(world, boot="boot"):
    return Journal(STATE, boot, MemoryDisk(world))


def test_restored_state_is_there_for_the_next_reader_too_and_is_lost_with_another_boot():
    """Before the server has all, neither may report that it does not hold the Workflow: it would judge by less."""
    world, progress = World(), ExecutionProgress(workflow("one"))
    journal(world).write(progress, [(1, ActionStarted("w", "id-one"))])
    first, second = (journal(world).restore() for _ in range(2))
    assert first == second
    assert (first.progress, len(first.pending), first.lost) == (progress, 1, "")
    for _ in range(2):
        restored = journal(world, "the next boot").restore()
        assert (restored.lost, restored.progress.workflow, len(restored.pending)) == ("w", None, 1)


def test_disk_is_left_alone_while_nothing_changes():
    written = journal(world := World())
    progress = ExecutionProgress(workflow("one"))
    written.write(progress, ())
    steps = world.steps
    written.write(progress, ())
    assert world.steps == steps


def test_as_many_workflows_are_known_to_have_ended_after_a_restart_as_before():
    written, progress = journal(world := World()), ExecutionProgress()
    for number in range(2 * REMEMBERED_WORKFLOWS):
        progress = progress.with_ended(f"w{number}", WorkflowOutcome.SUCCEEDED)
        written.write(progress, ())
    assert journal(world).restore().progress.ended == progress.ended
    assert len(progress.ended) == REMEMBERED_WORKFLOWS


STARTED, FAILED = (ActionStarted("w", "a0"), ActionFailed("w", "a0", "R", "m"))
OTHER, ANSWER = (ActionStarted("w2", "a0"), WorkflowRejected("w", "AlreadyFinished", "m"))


@pytest.mark.parametrize(
    ("events", "lost"),
    [
        ([STARTED], "w"),
        ([STARTED, FAILED], ""),
        ([STARTED, FAILED, ANSWER], ""),
        ([STARTED, FAILED, OTHER], "w2"),
        ([ANSWER], ""),
        ([ActionStarted("unknown", "a0")], ""),
    ],
)
def test_lost_workflow_is_the_one_that_has_ended_without_a_report(events, lost):
    ended = ExecutionProgress().with_ended("w", WorkflowOutcome.FAILED).with_ended("w2", WorkflowOutcome.FAILED)
    journal(world := World()).write(ended, list(enumerate(events, 1)))
    assert journal(world).restore().lost == lost


@pytest.mark.parametrize(
    "record",
    [
        b"[]",
        b"{",
        b'"x"',
        b'{"at": [0, false]}',
        b'{"workflow": {"id": "w", "actions": []}}',
        b'{"workflow": {"id": "w", "actions": [{"id": "a", "name": "n", "image": "i"}]}, "at": [-1, true, false]}',
        b'{"workflow": {"id": "w", "actions": [{"nonsense": 1}]}}',
        b'{"events": [[1, "NoSuchEvent", {}]]}',
        b'{"events": [[1, "ActionStarted", {"x": 1}]]}',
        b'{"ended": {"w": "Exploded"}}',
        b'{"ended": 3}',
    ],
)
def test_journal_of_another_version_is_logged_and_begins_empty(record, caplog):
    world = World()
    world.files[STATE / "journal"] = bytearray(file_of([record])[0])
    assert journal(world).restore().progress == ExecutionProgress()
    assert "not one of this version" in caplog.text


# --- the spool: events wait for the server in order, and do not fill the machine's memory -----------------------------


STARTED, SUCCEEDED, NEXT = ActionStarted("w", "1"), ActionSucceeded("w", "1"), ActionStarted("w", "2")


async def settle(spool, *, delivered=True):
    number, event = await spool.head()
    assert await spool.head() == (number, event), "the head stays until it is settled"
    spool.settle(number, delivered=delivered)
    return event


async def test_events_leave_in_the_order_they_came_those_that_an_earlier_agent_left_first():
    spool = Spool([(7, STARTED), (8, SUCCEEDED)])
    spool.append(NEXT)
    assert spool.pending == ((7, STARTED), (8, SUCCEEDED), (9, NEXT))
    assert [await settle(spool) for _ in range(3)] == [STARTED, SUCCEEDED, NEXT]
    assert len(spool) == 0
    waiting = asyncio.create_task(spool.head())
    await turns(3)
    assert not waiting.done()
    spool.append(STARTED)
    assert (await waiting)[1] == STARTED


async def test_last_event_of_a_workflow_is_the_one_that_is_waited_for():
    spool = Spool([(1, STARTED), (2, ActionStarted("other", "1"))])
    spool.append(SUCCEEDED)
    last = spool.last_of("w")
    for _ in range(3):
        assert not last.done()
        await settle(spool)
    assert last.result()
    assert spool.last_of("w").result(), "the server has them all"


@pytest.mark.parametrize("delivered", [True, False])
async def test_event_that_leaves_is_kept_as_such_before_its_future_shows_whether_the_server_has_it(delivered):
    spool, reported = Spool(), []
    future = spool.append(STARTED)
    spool.on_settle = lambda: reported.append((len(spool), future.done()))
    await settle(spool, delivered=delivered)
    assert reported == [(0, False)]
    assert await future is delivered


async def test_server_that_repeats_a_command_and_takes_no_answer_does_not_fill_memory():
    spool = Spool()
    for _ in range(10):
        spool.append(WorkflowRejected("w", "AlreadyRunning", "m"))
    assert len(spool) == 1
    for number in range(2 * REJECTION_LIMIT):
        spool.append(WorkflowRejected(f"w{number}", "AlreadyRunning", "m"))
    assert len(spool) == REJECTION_LIMIT
    spool.append(STARTED)
    assert len(spool) == REJECTION_LIMIT + 1, "what an action did is never dropped"


async def test_event_that_waits_for_something_is_not_sent_before_nor_are_those_behind_it():
    spool, news = Spool(), []
    spool.on_append = lambda: news.append(len(spool.first(8)))
    printed = asyncio.get_running_loop().create_future()
    spool.append(STARTED, after=printed)
    spool.append(SUCCEEDED)
    assert (spool.first(8), news, len(spool.pending)) == ([], [], 2)
    head = asyncio.create_task(spool.head())
    await turns(3)
    assert not head.done()
    printed.set_result(None)
    assert (await head)[1] == STARTED
    assert news == [2]
    spool.settle(1, delivered=True)
    assert spool.first(8) == [(2, SUCCEEDED)]
    left = weakref.ref(printed)
    del printed
    assert left() is None, "nothing is kept of an event that has been sent"


async def test_publisher_that_settles_another_than_the_oldest_is_a_fault_of_this_program():
    spool = Spool([(1, STARTED), (2, SUCCEEDED)])
    with pytest.raises(RuntimeError, match="event 2 is settled while 1 is the oldest"):
        spool.settle(2, delivered=True)
