"""An agent that dies and is started again, anywhere, any number of times: nothing runs twice, nothing is left open."""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tink.agent.agent as agent_module
from tests.unit.agent.durable.lives import STATE, Died, World, check, life, lives
from tink.agent.model import ActionStarted


@pytest.fixture(scope="module", autouse=True)
def impatience():
    """The publisher of these tests sleeps never; a second is long."""
    before, agent_module.ACKNOWLEDGED_WITHIN_SECONDS = agent_module.ACKNOWLEDGED_WITHIN_SECONDS, 1.0
    yield
    agent_module.ACKNOWLEDGED_WITHIN_SECONDS = before


def test_without_any_trouble_the_workflow_succeeds():
    world = World()
    assert lives(world) == 1
    assert world.state == "Succeeded"
    check(world)


STEPS = 60
"""More than a workflow of three actions takes."""


@pytest.mark.parametrize("engine", [False, True])
def test_one_death_anywhere_runs_nothing_twice_and_ends_the_workflow(engine):
    lost = []
    for kill in range(1, STEPS):
        world = World([kill], engine=engine)
        lives(world)
        check(world)
        assert world.state in ("Succeeded", "Failed AgentRestarted"), kill
        if world.state != "Succeeded":
            lost.append(kill)
    # For each action the steps between keeping that it begins and keeping how it ended, and no others.
    assert len(lost) <= 3 * (3 if engine else 6), lost


def test_death_between_actions_or_while_pulling_costs_nothing():
    """The journal says that the action has not begun: then it is run, once."""
    world = World()
    real = world.pull

    async def die_while_pulling(image, stop):
        world.pull = real
        world.dead = True
        raise Died

    world.pull = die_while_pulling
    assert lives(world) == 2
    assert world.state == "Succeeded"
    check(world)


def test_engine_that_knows_the_end_lets_the_workflow_go_on():
    world = World(engine=True)
    real = world.run

    async def die_while_running(action, stop):
        world.run = real
        world.runs[action.id] += 1
        world.dead = True
        raise Died

    world.run = die_while_running
    assert lives(world) == 2
    assert world.state == "Succeeded"
    assert len(world.runs) == 3
    check(world)


def stretches(most):
    """Some time in a row."""
    return st.builds(lambda begin, length: range(begin, begin + length), st.integers(0, 60), st.integers(0, most))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    kills=st.sets(st.integers(1, 150), max_size=8),
    full=st.sets(st.integers(1, 150), max_size=6) | stretches(60),
    away=stretches(300),
    patience=st.sampled_from([0.0, 1.0]),
    engine=st.booleans(),
    stop_at=st.none() | st.integers(1, 60),
)
def test_any_deaths_any_failing_disk_and_an_absent_server_run_nothing_twice_and_end_the_workflow(
    kills, full, away, patience, engine, stop_at
):
    agent_module.ACKNOWLEDGED_WITHIN_SECONDS = patience
    world = World(kills, full=full, away=away, engine=engine, stop_at=stop_at)
    lives(world)
    check(world)
    assert world.state.split()[0] in ("Succeeded", "Failed", "Canceled")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(kill=st.integers(1, STEPS), damage=st.data())
def test_damaged_journal_runs_nothing_twice(kill, damage):
    world = World([kill])

    async def story():
        if not await life(world) and (file := world.files.get(STATE / "journal")):
            position = damage.draw(st.integers(0, len(file) - 1))
            file[position] ^= damage.draw(st.integers(1, 255))
        while not await life(world):
            pass

    asyncio.run(story())
    check(world)


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
        *(doubled, cut_off, of_random_bytes, with_a_hole, with_a_record_twice, without_a_record),
        *(with_records_in_another_order, of_another_version, of_the_version_before),
    ],
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(kill=st.integers(1, STEPS), data=st.data())
def test_journal_with_more_than_a_wrong_byte_runs_nothing_twice(damage, kill, data):
    world = World([kill])

    async def story():
        if not await life(world) and (file := world.files.get(STATE / "journal")) and b"\n" in file[:-1]:
            world.files[STATE / "journal"] = bytearray(damage(bytes(file), data.draw))
        while not await life(world):
            pass

    asyncio.run(story())
    check(world)


def test_machine_that_booted_since_does_not_say_that_it_holds_the_workflow():
    """The server then knows better: an action that reboots the machine has succeeded."""
    world = World(actions=1)

    async def reboot(action, stop):
        world.runs[action.id] += 1
        world.boot = "boot-2"
        world.dead = True
        raise Died

    world.run = reboot
    assert lives(world) == 2
    assert world.state == "Failed AgentLost"
    assert [type(event) for event in world.events] == [ActionStarted]
    check(world)


def test_what_a_rebooted_machine_had_still_to_tell_is_told_before_it_says_that_it_lost_the_workflow(monkeypatch):
    world = World(actions=2)
    real = world.run

    async def reboot_in_the_second(action, stop):
        if action.id == "a0":
            world.reachable = False
            return await real(action, stop)
        world.boot, world.reachable, world.dead = "boot-2", True, True
        raise Died

    world.run = reboot_in_the_second
    monkeypatch.setattr(agent_module, "ACKNOWLEDGED_WITHIN_SECONDS", 0.0)
    lives(world)
    assert world.state == "Failed AgentLost"
    assert world.action_states == {"a0": "Succeeded", "a1": "Running"}
