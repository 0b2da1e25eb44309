"""The output of actions: lines in the log and pieces for the server, at a limited rate, without slowing the action."""

import asyncio
import contextlib
import logging

import grpc
import grpc.aio
import pytest

from proto import output_pb2 as pb
from proto.output_pb2_grpc import OutputServiceServicer, add_OutputServiceServicer_to_server
from tests.support.virtual_time import elapse, turns
from tests.waiting import until
from tink.agent.agent import Agent
from tink.agent.journal import Journal
from tink.agent.model import ActionSucceeded, RenderedAction, StartWorkflow, Workflow
from tink.agent.output import (
    LINES_PER_SECOND,
    MAX_ACTIONS_WAITING,
    MAX_LINE_CHARACTERS,
    MAX_NOTES_PER_PULL,
    MAX_PIECE_CHARACTERS,
    MAX_PIECE_LINES,
    MAX_PIECES_PER_ACTION,
    MAX_TAIL_BYTES,
    Output,
    OutputBuffer,
    OutputSchedule,
    OutputSender,
    PullProgress,
    line_sink,
    thread_safe_sink,
)
from tink.agent.runtimes.process import ProcessRuntime

pytestmark = pytest.mark.looptime
real_time = pytest.mark.looptime(False)  # for tests with child processes or sockets

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


class Server(OutputServiceServicer):
    """The service behind a channel of gRPC whose deadlines are in the time of the event loop."""

    def __init__(self):
        self.pieces, self.calls, self.refuse = [], 0, []
        self.gate = asyncio.Event()
        self.gate.set()

    def stream_unary(self, *_, **__):
        return self._call

    async def _call(self, pieces, timeout):
        self.calls += 1
        try:
            async with asyncio.timeout(timeout):
                await self.gate.wait()
        except TimeoutError:
            self.refuse.insert(0, grpc.StatusCode.DEADLINE_EXCEEDED)
        if self.refuse:
            raise grpc.aio.AioRpcError(self.refuse.pop(0), grpc.aio.Metadata(), grpc.aio.Metadata())
        self.pieces += pieces

    async def WriteOutput(self, request_iterator, context):  # noqa: N802 - the service's name
        self.pieces += [piece async for piece in request_iterator]
        return pb.WriteOutputResponse()

    def lines(self, action="a"):
        return [line for piece in self.pieces if piece.action_id == action for line in piece.lines]

    def count(self, action="a"):
        """Return the number of lines and dropped lines: nothing goes uncounted."""
        return len(self.lines(action)) + sum(piece.dropped for piece in self.pieces if piece.action_id == action)


@contextlib.asynccontextmanager
async def sending(channel, schedule=None):
    sender = OutputSender(channel, schedule=schedule)
    running = asyncio.create_task(sender.run())
    try:
        yield sender
        assert not running.done(), "the sender gave up"
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
async def server():
    return Server()


@pytest.fixture
async def sender(server):
    async with sending(server) as sender:
        yield sender


def say(*lines, name="act"):
    output = Output(name)
    for line in lines:
        output.feed(line.encode() + b"\n")
    output.finish()


# --- to the server ----------------------------------------------------------------------------------------------------


@real_time
@pytest.mark.parametrize("known", [True, False])
async def test_lines_arrive_by_grpc_under_their_ids_unless_the_server_does_not_know_the_service(server, known, caplog):
    caplog.set_level(logging.INFO, "tink.agent.output")
    serving = grpc.aio.server()
    if known:
        add_OutputServiceServicer_to_server(server, serving)
    port = serving.add_insecure_port("127.0.0.1:0")
    await serving.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel, sending(channel) as sender:
        with sender.action("w", "a"):
            say("one", "two")
        await until(lambda: server.pieces or "does not take the output" in caplog.text)
    await serving.stop(None)
    assert server.lines() == (["one", "two"] if known else [])
    assert [(piece.workflow_id, piece.action_id) for piece in server.pieces] == ([("w", "a")] if known else [])


async def test_first_lines_are_sent_while_the_action_still_runs_and_nothing_that_is_not_its_own(server, sender):
    with sender.action("w", "silent"):
        pass
    say("after-workflow command")
    await elapse(60)
    assert server.calls == 0
    with sender.action("w", "a"):
        say("hello")
        await elapse(1.1)
        assert server.lines() == ["hello"]


async def test_chatty_action_is_sent_in_few_pieces_and_every_line_is_counted(server, sender):
    with sender.action("w", "a"):
        output = Output("act")
        for number in range(100):
            output.feed(b"".join(b"line %d of %d\n" % (index, number) for index in range(100)))
            await elapse(0.1)
    await elapse(1)
    assert server.count() == 100 * 100
    assert len(server.pieces) <= 2 + 100 * 0.1 / OutputSchedule().min_interval
    assert server.lines()[-1] == "line 99 of 99"
    for piece in server.pieces:
        assert len(piece.lines) <= MAX_PIECE_LINES
        assert sum(map(len, piece.lines)) <= MAX_PIECE_CHARACTERS


async def test_pieces_come_more_seldom_the_longer_the_action_runs_and_its_last_words_arrive(server, sender):
    pieces = {}
    steps = [1] * 600 + [20] * 300
    with sender.action("w", "a"):
        output = Output("act")
        for number, seconds in enumerate(steps, 1):
            output.feed(b"line\n")
            await elapse(seconds)
            pieces[number] = len(server.pieces)
        output.feed(b"last words\n")
    await elapse(1)
    assert (server.count(), server.lines()[-1]) == (901, "last words")
    assert pieces[10] >= 9
    assert pieces[60] <= 29
    assert pieces[600] <= 53
    assert pieces[660] - pieces[630] == 10, "one a minute"
    assert len(server.pieces) == MAX_PIECES_PER_ACTION, "it leaves room in the machine's journey"


async def test_long_lines_and_long_output_do_not_fill_memory(server, sender):
    server.gate.clear()
    with sender.action("w", "a"):
        say("x" * 100_000)
        for _ in range(50):
            say("y" * 10_000)
        await elapse(1.1)
        say(*["z" * 10_000] * 50)
    server.gate.set()
    await elapse(1)
    assert len(server.pieces) == 2
    assert server.count() == 101
    assert all(sum(map(len, piece.lines)) <= MAX_PIECE_CHARACTERS for piece in server.pieces)
    assert all(len(line) <= MAX_LINE_CHARACTERS for line in server.lines())


async def test_server_that_does_not_know_the_service_is_asked_once(server, sender, caplog):
    caplog.set_level(logging.INFO, "tink.agent.output")
    server.refuse = [grpc.StatusCode.UNIMPLEMENTED]
    for number in range(3):
        with sender.action("w", f"a{number}") as printed:
            say("hello")
        await turns(10)
        assert printed.sent.done()
    await elapse(60)
    assert (server.calls, caplog.text.count("does not take the output")) == (1, 1)


async def test_lines_are_sent_again_after_a_break_and_the_action_did_not_wait(server, sender):
    server.refuse = [UNAVAILABLE] * 3
    with sender.action("w", "a"):
        say("one", "two")
    await elapse(15)
    with sender.action("w", "b"):
        say("three")
    await elapse(30)
    assert (server.calls, server.lines(), server.lines("b")) == (4, ["one", "two"], ["three"])


async def test_lines_that_find_no_room_while_the_server_is_away_are_counted(server, sender):
    server.refuse = [UNAVAILABLE] * 3
    with sender.action("w", "a"):
        for number in range(500):
            say(f"line {number}")
            await elapse(0.05)
    await elapse(60)
    assert server.count() == 500
    assert server.lines()[-1] == "line 499"


async def test_output_of_a_workflow_that_is_gone_does_not_hold_up_the_next(server, sender):
    server.refuse = [grpc.StatusCode.NOT_FOUND]
    with sender.action("gone", "a"):
        say("one")
    await elapse(0.1)
    with sender.action("w", "b"):
        say("two")
    await elapse(0.1)
    assert (server.lines(), server.lines("b")) == ([], ["two"])


async def test_many_actions_while_the_server_is_away_do_not_fill_memory(server, sender, caplog):
    server.refuse = [UNAVAILABLE]
    names = [f"a{number}" for number in range(3 * MAX_ACTIONS_WAITING)]
    for name in names:
        with sender.action("w", name):
            say("hello")
        await elapse(0.1)
    await elapse(60)
    assert [piece.action_id for piece in server.pieces] == names[-MAX_ACTIONS_WAITING:]
    assert "the output of action a0 of workflow w is dropped" in caplog.text


async def test_server_that_does_not_answer_is_given_up_after_a_while(server, sender):
    server.gate.clear()
    with sender.action("w", "a"):
        say("one")
    await elapse(26)  # the deadline, and a pause
    assert server.calls == 2
    server.gate.set()
    await elapse(0.1)
    assert server.lines() == ["one"]


@pytest.mark.parametrize("answered", [True, False])
async def test_end_of_an_action_waits_two_seconds_at_most_for_its_last_piece(server, sender, answered):
    with sender.action("w", "silent") as printed:
        pass
    assert printed.sent.done(), "there is no output to wait for"
    with sender.action("w", "a") as printed:
        say("one")
        await elapse(1.1)
        say("two")
        server.gate.clear()
    await elapse(1.9)
    assert not printed.sent.done()
    if answered:
        server.gate.set()
        await turns(10)
    else:
        await elapse(0.2)
    assert printed.sent.done()
    assert server.lines() == ["one", "two"][: 1 + answered]


@real_time
async def test_agent_reports_the_end_of_an_action_after_what_it_printed(server, tmp_path):
    server.gate.clear()
    async with sending(server, OutputSchedule(final_wait=3600)) as sender:
        agent = Agent(ProcessRuntime(tmp_path), Journal(tmp_path, "boot"), output=sender)
        spool = agent.spool
        action = RenderedAction("a", "act", "", cmd="/bin/sh", args=("-c", "echo out"))
        agent.handle(StartWorkflow(Workflow("w", (action,))))
        spool.settle((await spool.head())[0], delivered=True)
        await until(lambda: len(spool.pending) == 1 and server.calls)
        assert spool.first(8) == []
        server.gate.set()
        assert (await spool.head())[1] == ActionSucceeded("w", "a")
        assert server.lines() == ["out"]


async def test_lines_that_were_not_taken_wait_again_all_of_them():
    waiting = OutputBuffer("w", "a", asyncio.get_running_loop().create_future())
    lines = [str(number) * MAX_LINE_CHARACTERS for number in range(MAX_PIECE_CHARACTERS // MAX_LINE_CHARACTERS)]
    for line in lines:
        waiting.add(line)
    waiting.put_back(waiting.take())
    assert (list(waiting.lines), waiting.dropped) == (lines, 0)
    waiting.put_back(waiting.take())
    waiting.add("more")
    assert (list(waiting.lines), waiting.dropped) == ([*lines[1:], "more"], 1)


# --- in the log -------------------------------------------------------------------------------------------------------


def test_progress_bar_is_logged_by_line_and_cannot_move_the_cursor_of_a_terminal(caplog):
    caplog.set_level(logging.INFO)
    output = Output("act", clock=lambda: 1.0)
    output.feed(b"10%\r20")
    output.feed(b"%\r\n\x1b[2J\xffboo\nlast")
    output.finish()
    assert [caplog.messages[at] for at in (0, 1, -1)] == ["act: 10%", "act: 20%", "act: last"]
    assert output.tail.startswith("10%\n20%\n")
    assert "boo" in caplog.text
    assert "\x1b" not in caplog.text


def test_endless_output_without_a_newline_does_not_fill_memory(caplog):
    caplog.set_level(logging.INFO)
    output = Output("act", clock=lambda: 1.0)
    for _ in range(64):
        output.feed(b"x" * 100_000)
    output.finish()
    assert len(output.tail) <= MAX_TAIL_BYTES
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


# --- lines about a pull: enough to see it move, never so many that they hide the action's own -------------------------


@pytest.fixture
def pull():
    """The progress of a pull, its lines, and its clock."""
    reported, now = [], [100.0]
    return PullProgress("x", reported.append, lambda: now[0]), reported, now


def test_progress_is_logged_every_two_seconds_and_at_the_end_once(pull):
    progress, reported, now = pull
    for done in range(0, 5_000_000, 10_000):
        now[0] += 0.01
        progress.bytes(done, 5_000_000)
    assert len(reported) == 3
    progress.bytes(5_000_000, 5_000_000)
    progress.bytes(5_000_000, 5_000_000)
    assert reported[3:] == ["image x: 5.0 of 5.0 MB"]


def test_pull_that_is_tried_again_for_ever_does_not_flood(pull):
    progress, reported, _ = pull
    for _ in range(1000):
        progress.note("trying again")
    assert reported == ["image x: trying again"] * MAX_NOTES_PER_PULL


def test_silence_of_a_registry_is_logged_and_none_while_bytes_come_or_are_unpacked(pull):
    progress, reported, now = pull

    def seconds(count):
        reported.clear()
        for _ in range(count):
            now[0] += 1
            progress.look()
        return list(reported)

    assert seconds(30) == [], "nothing is asked for yet"
    progress.waits_for("here:5000")
    assert seconds(4) == []
    assert seconds(116) == [f"image x: here:5000 has sent nothing for {silent} s" for silent in (5, 20, 60, 120)]
    progress.bytes(7, 9)
    assert seconds(4) == []
    assert seconds(1) == ["image x: here:5000 has sent nothing for 5 s"]
    progress.waits_for("")
    assert seconds(300) == []


async def test_lines_reach_the_actions_output_from_a_thread_and_the_log_as_they_are(caplog):
    caplog.set_level("INFO")
    reported = []
    line_sink.set(reported.append)
    await asyncio.to_thread(thread_safe_sink(), "100 %s")
    await turns()
    assert reported == caplog.messages == ["100 %s"]


def test_line_after_the_end_of_the_loop_is_lost_quietly():
    reported = []

    async def begin():
        line_sink.set(reported.append)
        return thread_safe_sink()

    asyncio.run(begin())("late")
    assert reported == []
