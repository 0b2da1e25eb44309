"""The lab's programs: how they are run, how they fail, and that none outlives the lab."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edge.lab.shell import CommandError, Daemon, bound_to, run
from tests.support.virtual_time import turns
from tests.waiting import until, wait_until


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def pid_in(file: Path) -> int:
    await until(lambda: file.exists() and file.read_text().endswith("\n"))
    return int(file.read_text())


async def test_output_and_input_go_through_and_the_environment_is_added_to():
    assert await run(["cat"], stdin=b"in\xff") == "in\ufffd"
    assert await run(["sh", "-c", 'printf "%s" "$WORD"; test -n "$PATH"'], env={"WORD": "a b"}) == "a b"
    assert await run(["cat"]) == ""  # never waits for the terminal


async def test_failure_is_told_with_status_and_the_end_of_what_was_said():
    script = "for i in $(seq 100); do echo line $i >&2; done; exit 3"
    with pytest.raises(CommandError, match=r"sh -c .*: ended with status 3: line 86\n(.*\n)*line 100$"):
        await run(["sh", "-c", script])
    with pytest.raises(CommandError, match="status 1: only this"):
        await run(["sh", "-c", "echo only this; exit 1"])
    heard = []  # each line, while the command runs
    out = await run(["sh", "-c", "echo one >&2; echo two >&2; echo result"], progress=heard.append)
    assert (heard, out) == (["one", "two"], "result\n")
    with pytest.raises(CommandError, match="the mirror is down"):
        await run(["sh", "-c", "echo the mirror is down >&2; exit 3"], progress=heard.append)


@pytest.mark.parametrize("command", ["no-such-program", "/nonexistent/no-such-program"])
async def test_missing_program_is_named_with_where_to_find_its_package(tmp_path, command):
    with pytest.raises(CommandError, match="no-such-program is not installed; `tinkedge doctor`"):
        await run([command, "--version"])
    with pytest.raises(CommandError, match="no-such-program is not installed"):
        await Daemon.start("it", [command], tmp_path / "log")


@pytest.mark.parametrize("then", ["wait; sleep 3600", "true"])
async def test_command_that_takes_too_long_or_holds_up_the_output_is_ended_with_all_that_it_started(
    tmp_path, monkeypatch, then
):
    command = ["sh", "-c", f"sleep 3600 & echo $! >{tmp_path}/child; {then}"]
    running = asyncio.create_task(run(command, timeout=1800))
    child = await pid_in(tmp_path / "child")
    loop = asyncio.get_running_loop()
    now = loop.time
    monkeypatch.setattr(loop, "time", lambda: now() + 1800)  # half an hour later
    with pytest.raises(CommandError, match="sh did not end within 1800 s"):
        await running
    await until(lambda: not alive(child))


IGNORES_SIGTERM = "trap '' TERM; echo $$ >{}; while :; do sleep 0.05; done"


async def test_command_and_daemon_that_ignore_sigterm_are_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("edge.lab.shell._GRACE_SECONDS", 0.2)
    task = asyncio.create_task(run(["sh", "-c", IGNORES_SIGTERM.format(tmp_path / "command")]))
    pid = await pid_in(tmp_path / "command")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not alive(pid)
    daemon = await Daemon.start("it", ["sh", "-c", IGNORES_SIGTERM.format(tmp_path / "daemon")], tmp_path / "log")
    assert await pid_in(tmp_path / "daemon") == daemon.pid
    assert await daemon.stop(grace=0.2) == -signal.SIGKILL
    assert not alive(daemon.pid)


@pytest.mark.parametrize("sees_the_start", [True, False])
async def test_interrupted_build_may_clear_up_and_leaves_no_process(tmp_path, sees_the_start):
    script = f"trap 'rm {tmp_path}/work' EXIT; touch {tmp_path}/work; sleep 60 & echo $! >{tmp_path}/child; wait"
    task = asyncio.create_task(run(["bash", "-c", script]))
    if sees_the_start:
        child = await pid_in(tmp_path / "child")
    else:
        await turns(2)
        wait_until((tmp_path / "child").exists)  # the event loop sees the start only after the program is far ahead
        child = int(wait_until((tmp_path / "child").read_text))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not (tmp_path / "work").exists()
    await until(lambda: not alive(child))  # it is killed; that it is dead, it says when it is its turn


# --- daemons ----------------------------------------------------------------------------------------------------------


async def test_daemon_stops_on_sigterm_and_what_it_said_is_kept(tmp_path):
    script = "trap 'echo bye >&2; exit 7' TERM; seq 30; while :; do sleep 0.05; done"
    daemon = await Daemon.start("it", ["sh", "-c", script], tmp_path / "log")
    await until(lambda: "30" in daemon.log_tail())
    assert daemon.returncode is None
    assert daemon.log_tail(2) == "29\n30"
    assert await daemon.stop() == 7
    assert daemon.log_tail(1) == "bye"
    assert await daemon.stop() == 7, "stopping twice does no harm"


async def test_processor_time_is_counted_until_the_end(tmp_path):
    daemon = await Daemon.start("a) name", ["sh", "-c", "while :; do :; done"], tmp_path / "log")
    await until(lambda: daemon.cpu_seconds() >= 0.1)
    await daemon.stop()
    assert daemon.cpu_seconds() == 0.0


PARENT = """
import asyncio, os, sys
from pathlib import Path
from edge.lab.shell import Daemon, run
async def main():
    directory = Path(sys.argv[1])
    daemon = await Daemon.start("it", ["sleep", "60"], directory / "log")
    (directory / "daemon").write_text(f"{daemon.pid}\\n")
    await run(["sh", "-c", f"echo $$ >{directory}/command; exec sleep 60"])
asyncio.run(main())
"""


async def test_killed_lab_leaves_no_program_behind(tmp_path):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)])
    try:
        children = [await pid_in(tmp_path / name) for name in ("daemon", "command")]
        assert all(map(alive, children))
    finally:
        parent.kill()
        parent.wait()
    await until(lambda: not any(map(alive, children)))


def test_program_whose_lab_was_killed_before_it_could_ask_for_the_signal_does_not_begin(tmp_path):
    """prctl(2), PR_SET_PDEATHSIG: a parent that is gone by then sends none, and a machine would run for ever."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    late = subprocess.run(bound_to(gone.pid, ["touch", tmp_path / "began"]), check=False)
    assert late.returncode == 1
    assert not (tmp_path / "began").exists()
    assert subprocess.run(bound_to(os.getpid(), ["sh", "-c", 'exit "$1"', "sh", "7"]), check=False).returncode == 7
