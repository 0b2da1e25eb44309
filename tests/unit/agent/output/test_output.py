"""What actions print reaches the server, seldom enough, and never at the cost of the action."""

import asyncio
import contextlib
import logging

import grpc
import grpc.aio

from proto import output_pb2 as pb
from proto.output_pb2_grpc import OutputServiceServicer, add_OutputServiceServicer_to_server
from tests.waiting import until
from tink.agent.agent import Agent
from tink.agent.durable.spool import Spool
from tink.agent.model import Action, ActionSucceeded, StartWorkflow, Workflow
from tink.agent.output.lines import Output
from tink.agent.output.sender import (
    ACTIONS_WAITING,
    LINE_CHARACTERS,
    PIECE_CHARACTERS,
    PIECE_LINES,
    PIECES_PER_ACTION,
    OutputBuffer,
    OutputSchedule,
    OutputSender,
)
from tink.agent.runtimes.process import ProcessRuntime

FAST = OutputSchedule(min_interval=0.02, max_interval=0.05, interval_share=0.1, call_timeout=1.0, retry_delay=0.02)


class Server(OutputServiceServicer):
    def __init__(self):
        self.pieces = []
        self.calls = 0
        self.refuse = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def WriteOutput(self, request_iterator, context):  # noqa: N802 - the service's name
        self.calls += 1
        if self.refuse:
            await context.abort(self.refuse.pop(0), "refused by the test")
        taken = [piece async for piece in request_iterator]
        await self.gate.wait()
        self.pieces += taken
        return pb.WriteOutputResponse()

    def lines(self, action="a"):
        return [line for piece in self.pieces if piece.action_id == action for line in piece.lines]

    def count(self, action="a"):
        """Lines and dropped lines: nothing goes uncounted."""
        return len(self.lines(action)) + sum(piece.dropped for piece in self.pieces if piece.action_id == action)


@contextlib.asynccontextmanager
async def sending(servicer, schedule=FAST):
    server = grpc.aio.server()
    if servicer is not None:
        add_OutputServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    sender = OutputSender(channel, schedule=schedule)
    running = asyncio.create_task(sender.run())
    try:
        yield sender
        assert not running.done(), "the sender gave up"
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await channel.close()
        await server.stop(None)


def say(*lines, name="act"):
    output = Output(name)
    for line in lines:
        output.feed(line.encode() + b"\n")
    output.finish()


async def test_lines_of_an_action_arrive_in_order_under_its_ids():
    server = Server()
    async with sending(server) as sender:
        with sender.action("w", "a"):
            say("one", "two")
        await until(lambda: len(server.lines()) == 2)
    assert server.lines() == ["one", "two"]
    assert (server.pieces[0].workflow_id, server.pieces[0].action_id) == ("w", "a")


async def test_output_of_the_process_runtime_is_sent(tmp_path):
    server, runtime = Server(), ProcessRuntime(tmp_path)
    async with sending(server) as sender:
        with sender.action("w", "a"):
            action = Action("a", "act", "", cmd="/bin/sh", args=("-c", "echo out; echo err >&2"))
            await runtime.run(action, asyncio.Event())
        await until(lambda: len(server.lines()) == 2)
    assert sorted(server.lines()) == ["err", "out"]


async def test_output_of_anything_else_is_nobodys():
    server = Server()
    async with sending(server) as sender:
        with sender.action("w", "a"):
            pass
        say("after-workflow command")
        await asyncio.sleep(0.1)
    assert server.calls == 0


async def test_first_lines_are_seen_while_the_action_still_runs():
    server = Server()
    async with sending(server) as sender:
        with sender.action("w", "a"):
            say("hello")
            await until(lambda: server.lines() == ["hello"])


async def test_chatty_action_is_sent_in_few_pieces_and_every_line_is_counted():
    server, clock = Server(), asyncio.get_running_loop().time
    async with sending(server) as sender:
        begun = clock()
        with sender.action("w", "a"):
            output = Output("act")
            for number in range(100):
                output.feed(b"".join(b"line %d of %d\n" % (index, number) for index in range(100)))
                await asyncio.sleep(0.002)
        await until(lambda: server.count() == 100 * 100)
    assert len(server.pieces) <= 2 + (clock() - begun) / FAST.min_interval
    assert server.lines()[-1] == "line 99 of 99"
    for piece in server.pieces:
        assert len(piece.lines) <= PIECE_LINES
        assert sum(map(len, piece.lines)) <= PIECE_CHARACTERS


async def test_pieces_come_more_seldom_the_longer_the_action_runs():
    now, gaps = 0.0, []
    schedule = OutputSchedule()
    for _ in range(PIECES_PER_ACTION - 1):
        gap = min(max(now * schedule.interval_share, schedule.min_interval), schedule.max_interval)
        gaps.append(gap)
        now += gap
    assert gaps[0] == 1.0
    assert gaps[-1] == 60.0
    assert sum(1 for index in range(len(gaps)) if sum(gaps[:index]) < 60) <= 29
    assert sum(1 for index in range(len(gaps)) if sum(gaps[:index]) < 600) <= 53


async def test_action_that_talks_for_days_leaves_room_in_the_journey_and_its_last_words_arrive():
    server = Server()
    schedule = OutputSchedule(min_interval=0.0, max_interval=0.0, call_timeout=1.0)
    async with sending(server, schedule) as sender:
        with sender.action("w", "a"):
            output = Output("act")
            for number in range(3 * PIECES_PER_ACTION):
                output.feed(b"line %d\n" % number)
                await asyncio.sleep(0.004)
            output.feed(b"last words\n")
        await until(lambda: server.count() == 3 * PIECES_PER_ACTION + 1)
    assert len(server.pieces) <= PIECES_PER_ACTION
    assert server.lines()[-1] == "last words"


async def test_long_lines_and_long_output_do_not_fill_memory():
    server = Server()
    server.gate.clear()
    async with sending(server) as sender:
        with sender.action("w", "a"):
            say("x" * 100_000)
            for _ in range(50):
                say("y" * 10_000)
            waiting = sender._waiting
            assert sum(len(line) for each in waiting for line in each.lines) <= PIECE_CHARACTERS
            server.gate.set()
            await until(lambda: server.pieces)
    assert all(len(line) <= LINE_CHARACTERS for line in server.lines())


async def test_server_that_does_not_know_the_service_is_not_asked_again(caplog):
    caplog.set_level(logging.INFO, "tink.agent.output.sender")
    async with sending(None) as sender:
        for number in range(3):
            with sender.action("w", f"a{number}"):
                say("hello")
            await asyncio.sleep(0.05)
        await until(lambda: "does not take the output" in caplog.text and not sender._waiting)
        assert caplog.text.count("does not take the output") == 1


async def test_lines_are_sent_again_after_a_break_and_the_action_did_not_wait():
    server = Server()
    server.refuse = [grpc.StatusCode.UNAVAILABLE] * 3
    async with sending(server) as sender:
        with sender.action("w", "a"):
            say("one", "two")
        await until(lambda: server.calls >= 2)
        with sender.action("w", "b"):
            say("three")
        await until(lambda: server.lines("b"))
    assert server.lines() == ["one", "two"]
    assert server.lines("b") == ["three"]


async def test_lines_that_find_no_room_while_the_server_is_away_are_counted():
    server = Server()
    server.refuse = [grpc.StatusCode.UNAVAILABLE] * 3
    async with sending(server) as sender:
        with sender.action("w", "a"):
            for number in range(500):
                say(f"line {number}")
                if number % 50 == 0:
                    await asyncio.sleep(0.02)
        await until(lambda: server.count() == 500)
    assert server.lines()[-1] == "line 499"


async def test_output_of_a_workflow_that_is_gone_does_not_hold_up_the_next():
    server = Server()
    server.refuse = [grpc.StatusCode.NOT_FOUND]
    async with sending(server) as sender:
        with sender.action("gone", "a"):
            say("one")
        await until(lambda: server.calls == 1)
        with sender.action("w", "b"):
            say("two")
        await until(lambda: server.lines("b") == ["two"])
    assert server.lines() == []


async def test_many_actions_while_the_server_is_away_do_not_fill_memory(caplog):
    server = Server()
    server.refuse = [grpc.StatusCode.UNAVAILABLE] * 1000
    async with sending(server) as sender:
        for number in range(3 * ACTIONS_WAITING):
            with sender.action("w", f"a{number}"):
                say("hello")
            assert len(sender._waiting) <= ACTIONS_WAITING
    assert "the output of action a0 of workflow w is dropped" in caplog.text


async def test_server_that_does_not_answer_is_given_up_after_a_while():
    server = Server()
    server.gate.clear()
    async with sending(server, OutputSchedule(min_interval=0.01, call_timeout=1.0, retry_delay=0.01)) as sender:
        with sender.action("w", "a"):
            say("one")
        await until(lambda: server.calls >= 2)
        server.gate.set()
        await until(lambda: "one" in server.lines())


async def test_end_of_an_action_waits_for_its_last_piece():
    server = Server()
    async with sending(server) as sender:
        server.gate.clear()
        with sender.action("w", "a") as printed:
            say("one")
            await asyncio.sleep(0.05)
            say("two")
        await asyncio.sleep(0.05)
        assert not printed.sent.done()
        server.gate.set()
        await asyncio.wait_for(printed.sent, 20)
        assert server.lines() == ["one", "two"]


async def test_end_of_an_action_waits_only_a_while():
    server = Server()
    async with sending(server, OutputSchedule(min_interval=0.02, final_wait=0.1)) as sender:
        server.gate.clear()
        with sender.action("w", "a") as printed:
            say("one")
        await asyncio.wait_for(printed.sent, 20)
        assert server.lines() == []
        server.gate.set()


async def test_end_of_an_action_waits_for_no_output_that_there_is_not_or_that_nobody_takes():
    server = Server()
    async with sending(server) as sender:
        with sender.action("w", "silent") as printed:
            pass
        assert printed.sent.done()
        server.refuse = [grpc.StatusCode.UNIMPLEMENTED]
        with sender.action("w", "a") as printed:
            say("one")
        await asyncio.wait_for(printed.sent, 20)


async def test_agent_tells_the_end_of_an_action_after_what_it_printed(tmp_path):
    server = Server()
    async with sending(server) as sender:
        server.gate.clear()
        spool = Spool()
        agent = Agent(ProcessRuntime(tmp_path), spool, output=sender)
        action = Action("a", "act", "", cmd="/bin/sh", args=("-c", "echo out"))
        agent.handle(StartWorkflow(Workflow("w", (action,))))
        spool.settle((await spool.head())[0], delivered=True)
        await until(lambda: len(spool.pending) == 1)
        await asyncio.sleep(0.05)
        assert spool.first(8) == []
        server.gate.set()
        assert (await asyncio.wait_for(spool.head(), 20))[1] == ActionSucceeded("w", "a")
        assert server.lines() == ["out"]
        await agent.close()


async def test_lines_that_were_not_taken_wait_again_all_of_them():
    waiting = OutputBuffer("w", "a", asyncio.get_running_loop().create_future())
    lines = [str(number) * LINE_CHARACTERS for number in range(PIECE_CHARACTERS // LINE_CHARACTERS)]
    for line in lines:
        waiting.add(line)
    waiting.put_back(waiting.take())
    assert (list(waiting.lines), waiting.dropped) == (lines, 0)
    waiting.put_back(waiting.take())
    waiting.add("more")
    assert (list(waiting.lines), waiting.dropped) == ([*lines[1:], "more"], 1)
