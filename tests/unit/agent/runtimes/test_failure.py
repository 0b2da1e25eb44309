"""What the server is told about an action that failed."""

import os

import pytest

from tink.agent.model import RunResult
from tink.agent.runtimes.failure import MESSAGE_LIMIT_BYTES, FailureFiles, judge, one_line


def test_action_says_its_own_reason_and_message(tmp_path):
    files = FailureFiles(tmp_path)
    files.create()
    files.reason.write_text("DiskNotFound\n")
    files.message.write_text("no /dev/sda\nin this machine\n")
    assert files.judge(1, "noise") == RunResult(1, "DiskNotFound", "no /dev/sda | in this machine")


def test_what_was_written_does_not_matter_when_the_action_succeeds(tmp_path):
    files = FailureFiles(tmp_path)
    files.create()
    files.reason.write_text("DiskNotFound")
    assert files.judge(0, "noise") == RunResult(0)


def test_any_user_of_the_container_may_say_why_it_failed(tmp_path):
    files = FailureFiles(tmp_path)
    files.create()
    assert [path.stat().st_mode & 0o777 for path in (files.reason, files.message)] == [0o666, 0o666]


def test_silent_action_is_explained_by_exit_code_and_last_output():
    result = judge(137, "", "", "copying\ncannot write: no space\n")
    assert result == RunResult(137, "NonZeroExit", "exit code 137 (SIGKILL) | copying | cannot write: no space")


def test_exit_code_that_is_no_signal_is_only_a_number():
    assert judge(255, "", "", "").message == "exit code 255"


@pytest.mark.parametrize("reason", ["disk not found", "Disk404", "a" * 129, "Über"])
def test_reason_that_is_not_a_word_is_shown_but_not_used(reason):
    result = judge(1, reason, "told", "")
    assert result.reason == "InvalidReason"
    assert reason[:80] in result.message
    assert "told" in result.message


def test_failure_files_that_the_action_removed_or_made_links_are_ignored(tmp_path):
    files = FailureFiles(tmp_path)
    files.create()
    files.reason.unlink()
    files.message.unlink()
    (tmp_path / "secret").write_text("secret")
    files.message.symlink_to(tmp_path / "secret")
    assert files.judge(2, "") == RunResult(2, "NonZeroExit", "exit code 2")


def test_failure_files_that_are_something_else_hold_nobody_up(tmp_path):
    files = FailureFiles(tmp_path)
    files.reason.mkdir()
    os.mkfifo(files.message)
    with os.fdopen(os.open(files.message, os.O_RDWR), "wb"):  # a writer that says nothing
        assert files.judge(2, "") == RunResult(2, "NonZeroExit", "exit code 2")


def test_message_is_bounded_and_stays_valid_text(tmp_path):
    files = FailureFiles(tmp_path)
    files.create()
    files.message.write_bytes(b"\xff\x00\x1b[31m" + "é".encode() * 5000)
    message = files.judge(1, "").message
    assert len(message.encode()) <= MESSAGE_LIMIT_BYTES
    assert "\x1b" not in message
    assert "\x00" not in message


def test_long_output_keeps_its_end_where_the_error_is():
    text = one_line("x" * 5000 + " the error", keep_end=True)
    assert text.startswith("...")
    assert text.endswith("the error")
