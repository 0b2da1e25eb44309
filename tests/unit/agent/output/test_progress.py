"""Lines about a pull: enough to see it move, never so many that they hide the action's own."""

import asyncio

from tink.agent.output.lines import line_sink
from tink.agent.output.progress import NOTES_PER_PULL, PullProgress, thread_safe_sink


def test_progress_is_told_every_two_seconds_and_at_the_end_once():
    told, now = [], [100.0]
    progress = PullProgress("x", told.append, lambda: now[0])
    for done in range(0, 5_000_000, 10_000):
        now[0] += 0.01
        progress.bytes(done, 5_000_000)
    assert len(told) == 3
    progress.bytes(5_000_000, 5_000_000)
    progress.bytes(5_000_000, 5_000_000)
    assert told[3:] == ["image x: 5.0 of 5.0 MB"]


def test_pull_that_is_tried_again_for_ever_does_not_flood():
    told = []
    progress = PullProgress("x", told.append)
    for _ in range(1000):
        progress.note("trying again")
    assert told == ["image x: trying again"] * NOTES_PER_PULL


async def test_lines_reach_the_actions_output_from_a_thread_and_the_log_as_they_are(caplog):
    caplog.set_level("INFO")
    told = []
    line_sink.set(told.append)
    await asyncio.to_thread(thread_safe_sink(), "100 %s")
    await asyncio.sleep(0)
    assert told == caplog.messages == ["100 %s"]


def test_line_after_the_end_of_the_loop_is_lost_quietly():
    async def begin():
        line_sink.set(print)
        return thread_safe_sink()

    asyncio.run(begin())("late")


def test_silence_of_a_registry_is_told_and_none_while_bytes_come_or_are_unpacked():
    told, now = [], [100.0]
    progress = PullProgress("x", told.append, lambda: now[0])

    def seconds(count: int) -> list[str]:
        told.clear()
        for _ in range(count):
            now[0] += 1
            progress.look()
        return list(told)

    assert seconds(30) == [], "nothing is asked for yet"
    progress.waits_for("here:5000")
    assert seconds(4) == []
    assert seconds(116) == [f"image x: here:5000 has sent nothing for {silent} s" for silent in (5, 20, 60, 120)]
    progress.bytes(7, 9)
    assert seconds(4) == []
    assert seconds(1) == ["image x: here:5000 has sent nothing for 5 s"]
    progress.waits_for("")
    assert seconds(300) == []
