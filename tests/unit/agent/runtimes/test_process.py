"""Actions as host processes: output, results, stopping; and what is reported of an action that failed."""

import asyncio
import logging
import os
import signal
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_SECONDS, until
from tink.agent.model import ActionError, RenderedAction, RunResult
from tink.agent.runtimes.process import ProcessRuntime
from tink.agent.runtimes.runtime import MESSAGE_LIMIT_BYTES, FailureFiles, judge, one_line


def shell(script, **more):
    return RenderedAction("a", "act", "", cmd="/bin/sh", args=("-c", script), **more)


@pytest.fixture
async def make(tmp_path):
    async def make(grace_seconds):
        runtime = ProcessRuntime(tmp_path / "state", grace_seconds=grace_seconds)
        await runtime.prepare()
        return runtime

    return make


@pytest.fixture
async def runtime(make):
    return await make(0.3)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_action_that_works_has_its_own_environment_and_not_the_agents(runtime, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("REGISTRY_PASSWORD", "s3cret")
    script = "test -z $REGISTRY_PASSWORD && echo $GREETING; echo oops >&2"
    assert await runtime.run(shell(script, env={"GREETING": "hello"}), asyncio.Event()) == RunResult(0)
    assert {"act: hello", "act: oops"} <= set(caplog.messages)


@pytest.mark.parametrize(
    ("script", "reason", "message"),
    [
        ("echo Broken >$TINKERBELL_FAILURE_REASON; echo why >$TINKERBELL_FAILURE_MESSAGE; exit 4", "Broken", "why"),
        ("echo last words; exit 4", "NonZeroExit", "exit code 4 | last words"),
    ],
)
async def test_failure_is_that_of_its_files_or_the_last_output_and_leaves_no_file(
    runtime, tmp_path, script, reason, message
):
    assert await runtime.run(shell(script), asyncio.Event()) == RunResult(4, reason, message)
    assert list((tmp_path / "state").iterdir()) == []


async def test_stopped_action_gets_a_term_and_time_to_tidy_up(make, tmp_path):
    runtime = await make(PATIENCE_SECONDS)
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
    assert (await running).exit_code == 137
    child = int((tmp_path / "child").read_text())
    await until(lambda: not is_alive(child), "the action's child still runs")


async def test_stop_before_the_start_is_not_lost(runtime):
    stop = asyncio.Event()
    stop.set()
    assert (await runtime.run(shell("sleep 3600"), stop)).exit_code == 143


async def test_daemon_that_the_action_leaves_behind_does_not_hold_the_workflow_up(runtime, tmp_path):
    assert (
        await runtime.run(shell("sleep 3600 & echo $! >$PID; exit 0", env={"PID": f"{tmp_path}/pid"}), asyncio.Event())
    ).succeeded
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (RenderedAction("a", "act", "img"), "InvalidAction"),
        (RenderedAction("a", "act", "", cmd="x", volumes=("/a:/b",)), "InvalidAction"),
        (RenderedAction("a", "act", "", cmd="x", network_namespace="none"), "InvalidAction"),
        (RenderedAction("a", "act", "", cmd="/no/such/program"), "RuntimeError"),
    ],
)
async def test_what_a_process_cannot_have_fails_the_action(runtime, action, reason):
    with pytest.raises(ActionError) as caught:
        await runtime.run(action, asyncio.Event())
    assert caught.value.reason == reason
    assert reason == "InvalidAction" or action.cmd in str(caught.value)


# --- what is reported of an action that failed ------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    files = FailureFiles(tmp_path)
    files.create()
    return files


def test_reason_and_message_are_those_that_the_action_wrote_if_it_failed(files):
    """Any user of the container may write them."""
    assert [path.stat().st_mode & 0o777 for path in (files.reason, files.message)] == [0o666, 0o666]
    files.reason.write_text("DiskNotFound\n")
    files.message.write_text("no /dev/sda\nin this machine\n")
    assert files.judge(1, "noise") == RunResult(1, "DiskNotFound", "no /dev/sda | in this machine")
    assert files.judge(0, "noise") == RunResult(0)


def test_silent_action_is_explained_by_exit_code_and_last_output():
    result = judge(137, "", "", "copying\ncannot write: no space\n")
    assert result == RunResult(137, "NonZeroExit", "exit code 137 (SIGKILL) | copying | cannot write: no space")
    assert judge(255, "", "", "").message == "exit code 255"
    url = "https://me:secret@host/x.img?X-Amz-Signature=secret"
    for message, output in ((f"no {url}", ""), ("", f"GET {url}: 403")):
        assert "https://host/x.img?…" in (logged := judge(1, "", message, output).message)
        assert "secret" not in logged


@pytest.mark.parametrize("reason", ["disk not found", "Disk404", "a" * 129, "Über"])
def test_reason_that_is_not_a_word_is_shown_but_not_used(reason):
    result = judge(1, reason, "told", "")
    assert result.reason == "InvalidReason"
    assert reason[:80] in result.message
    assert "told" in result.message


def test_failure_files_that_the_action_removed_or_made_links_are_ignored(files, tmp_path):
    files.reason.unlink()
    files.message.unlink()
    (tmp_path / "secret").write_text("secret")
    files.message.symlink_to(tmp_path / "secret")
    assert files.judge(2, "") == RunResult(2, "NonZeroExit", "exit code 2")


def test_failure_files_of_another_type_delay_nothing(tmp_path):
    files = FailureFiles(tmp_path)
    files.reason.mkdir()
    os.mkfifo(files.message)
    with os.fdopen(os.open(files.message, os.O_RDWR), "wb"):  # a writer that says nothing
        assert files.judge(2, "") == RunResult(2, "NonZeroExit", "exit code 2")


def test_message_is_bounded_and_stays_valid_text_and_output_keeps_its_end_where_the_error_is(files):
    files.message.write_bytes(b"\xff\x00\x1b[31m" + "é".encode() * 5000)
    message = files.judge(1, "").message
    assert len(message.encode()) <= MESSAGE_LIMIT_BYTES
    assert not {"\x1b", "\x00"} & set(message)
    text = one_line("x" * 5000 + " the error", keep_end=True)
    assert (text[:3], text[-9:]) == ("...", "the error")
