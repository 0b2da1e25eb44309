"""Actions as host processes: output, results, stopping."""

import asyncio
import logging
from pathlib import Path

import pytest

from tests.waiting import until
from tink.agent.model import Action, ActionError, RunResult
from tink.agent.output.lines import LINES_PER_SECOND, TAIL_LIMIT_BYTES, Output
from tink.agent.runtimes.process import ProcessRuntime


def shell(script, **more):
    return Action("a", "act", "", cmd="/bin/sh", args=("-c", script), **more)


@pytest.fixture
async def runtime(tmp_path):
    runtime = ProcessRuntime(tmp_path / "state", grace_seconds=0.3)
    await runtime.prepare()
    return runtime


async def test_action_that_works(runtime, caplog):
    caplog.set_level(logging.INFO)
    result = await runtime.run(shell("echo $GREETING; echo oops >&2", env={"GREETING": "hello"}), asyncio.Event())
    assert result == RunResult(0)
    assert "act: hello" in caplog.messages
    assert "act: oops" in caplog.messages


async def test_action_gets_its_own_environment_and_not_the_agents(runtime, monkeypatch):
    monkeypatch.setenv("REGISTRY_PASSWORD", "s3cret")
    result = await runtime.run(shell("test -z $REGISTRY_PASSWORD"), asyncio.Event())
    assert result.succeeded


async def test_failure_files_are_found_through_the_environment(runtime):
    script = "echo Broken >$TINKERBELL_FAILURE_REASON; echo why >$TINKERBELL_FAILURE_MESSAGE; exit 4"
    assert await runtime.run(shell(script), asyncio.Event()) == RunResult(4, "Broken", "why")


async def test_silent_failure_shows_the_last_output(runtime):
    result = await runtime.run(shell("echo last words; exit 4"), asyncio.Event())
    assert result == RunResult(4, "NonZeroExit", "exit code 4 | last words")


async def test_stopped_action_gets_a_term_and_time_to_tidy_up(runtime, tmp_path):
    runtime._grace_seconds = 20
    stop = asyncio.Event()
    script = f"trap 'echo tidy >{tmp_path}/tidy; exit 0' TERM; touch {tmp_path}/up; while :; do sleep 0.05; done"
    running = asyncio.create_task(runtime.run(shell(script), stop))
    await until((tmp_path / "up").exists)
    stop.set()
    await running
    assert (tmp_path / "tidy").exists()


async def test_action_that_ignores_term_is_killed_with_its_children(runtime, tmp_path):
    stop = asyncio.Event()
    script = f"trap '' TERM; sleep 600 & echo $! >{tmp_path}/child; wait; sleep 600"
    running = asyncio.create_task(runtime.run(shell(script), stop))
    await until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text().strip())
    stop.set()
    result = await asyncio.wait_for(running, 20)
    assert result.exit_code == 137
    child = int((tmp_path / "child").read_text())
    for _ in range(100):
        try:
            state = Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            break
        if state == "Z":
            break
        await asyncio.sleep(0.01)
    else:
        pytest.fail("the action's child still runs")


async def test_stop_before_the_start_is_not_lost(runtime):
    stop = asyncio.Event()
    stop.set()
    await asyncio.wait_for(runtime.run(shell("sleep 60"), stop), 20)


async def test_daemon_that_the_action_leaves_behind_does_not_hold_the_workflow_up(runtime):
    result = await asyncio.wait_for(runtime.run(shell("sleep 30 & exit 0"), asyncio.Event()), 20)
    assert result.succeeded


async def test_nothing_is_left_in_the_state_dir(runtime, tmp_path):
    await runtime.run(shell("exit 1"), asyncio.Event())
    assert list((tmp_path / "state").iterdir()) == []


@pytest.mark.parametrize(
    "action",
    [
        Action("a", "act", "img"),
        Action("a", "act", "", cmd="x", volumes=("/a:/b",)),
        Action("a", "act", "", cmd="x", network_namespace="none"),
    ],
)
async def test_what_a_process_cannot_have_fails_the_action(runtime, action):
    with pytest.raises(ActionError) as caught:
        await runtime.run(action, asyncio.Event())
    assert caught.value.reason == "InvalidAction"


async def test_program_that_does_not_exist_is_named(runtime):
    with pytest.raises(ActionError, match="/no/such/program") as caught:
        await runtime.run(Action("a", "act", "", cmd="/no/such/program"), asyncio.Event())
    assert caught.value.reason == "RuntimeError"


def test_progress_bar_is_logged_by_line(caplog):
    caplog.set_level(logging.INFO)
    output = Output("act", clock=lambda: 1.0)
    output.feed(b"10%\r20")
    output.feed(b"%\r\nlast")
    output.finish()
    assert caplog.messages == ["act: 10%", "act: 20%", "act: last"]
    assert output.tail == "10%\n20%\nlast"


def test_endless_output_without_a_newline_does_not_fill_memory(caplog):
    caplog.set_level(logging.INFO)
    output = Output("act", clock=lambda: 1.0)
    for _ in range(64):
        output.feed(b"x" * 100_000)
    output.finish()
    assert len(output.tail) <= TAIL_LIMIT_BYTES
    assert max(len(message) for message in caplog.messages) < 5000


def test_flood_of_lines_does_not_drown_the_console(caplog):
    caplog.set_level(logging.INFO)
    now = 1.0
    output = Output("act", clock=lambda: now)
    output.feed(b"line\n" * 5000)
    assert len(caplog.messages) == LINES_PER_SECOND
    now = 2.5
    output.feed(b"after\n")
    assert caplog.messages[-2:] == [f"act: ({5000 - LINES_PER_SECOND} more lines in that second)", "act: after"]
    assert output.tail.endswith("after")


def test_output_cannot_move_the_cursor_of_who_reads_the_log(caplog):
    caplog.set_level(logging.INFO)
    output = Output("act", clock=lambda: 1.0)
    output.feed(b"\x1b[2J\xffboo\n")
    assert "\x1b" not in caplog.text
