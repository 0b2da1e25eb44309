"""The client of QMP, against a server that answers as the test says."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from edge.lab.qmp import QmpClient, QmpError
from tests.waiting import until

GREETING = {"QMP": {"version": {"qemu": {"major": 7}}, "capabilities": ["oob"]}}


@asynccontextmanager
async def served(path, answer):
    """Serve QMP: `answer(command, send)` is called for each command after the negotiation."""

    async def serve(reader, writer):
        def send(message):
            writer.write(message if isinstance(message, bytes) else json.dumps(message).encode() + b"\r\n")

        send(GREETING)
        while line := await reader.readline():
            command = json.loads(line)
            if command["execute"] == "qmp_capabilities":
                send({"return": {}, "id": command["id"]})
            elif answer(command, send) == "close":
                break
        writer.close()

    server = await asyncio.start_unix_server(serve, path)
    async with server:
        yield


async def test_commands_are_answered_by_their_ids_and_events_go_to_the_listener(tmp_path):
    asked, events = [], []

    def answer(command, send):
        asked.append(command)
        if len(asked) == 2:  # in another order, with an event between
            for each in reversed(asked):
                send({"event": "RESET", "data": {"guest": True}, "timestamp": {}})
                send({"return": {"of": each["execute"]}, "id": each["id"]})

    async with served(tmp_path / "qmp", answer):
        client = await QmpClient.connect(tmp_path / "qmp", lambda name, data: events.append((name, data)))
        first, second = await asyncio.gather(
            client.execute("query-status"), client.execute("eject", id="cdrom0", read_only_mode="x")
        )
        await client.close()
    assert (first, second) == ({"of": "query-status"}, {"of": "eject"})
    assert "arguments" not in asked[0]
    assert asked[1]["arguments"] == {"id": "cdrom0", "read-only-mode": "x"}
    assert events == [("RESET", {"guest": True})] * 2


async def test_refused_command_is_named_with_the_reason(tmp_path):
    def answer(command, send):
        send({"error": {"class": "GenericError", "desc": "The bootindex 1 has already been used"}, "id": command["id"]})

    async with served(tmp_path / "qmp", answer):
        client = await QmpClient.connect(tmp_path / "qmp")
        with pytest.raises(QmpError, match=r"^QMP qom-set: The bootindex 1 has already been used$"):
            await client.execute("qom-set", path="/machine")
        await client.close()


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"", "the connection to QEMU is closed"),
        (b"{}}\n", "not JSON or longer than"),
        (b"[" * 100_000 + b"\n", "not JSON or longer than"),
        (b'"' + b"x" * (2 << 20) + b'"\n', "not JSON or longer than"),
    ],
    ids=["closed", "not-json", "deep", "long"],
)
async def test_connection_that_breaks_fails_this_command_and_all_later_ones(tmp_path, sent, why):
    def answer(_command, send):
        send(sent)
        return "close"

    async with served(tmp_path / "qmp", answer):
        client = await QmpClient.connect(tmp_path / "qmp")
        for command in ("query-status", "quit"):
            with pytest.raises(QmpError, match=f"QMP {command}: .*{why}"):
                await client.execute(command)
        await client.close()


async def test_messages_of_no_meaning_are_ignored(tmp_path):
    def answer(command, send):
        for message in ([], 7, {"event": 3}, {"return": {}, "id": 99}, {"return": {}, "id": "x"}, {"event": "STOP"}):
            send(message)
        send({"return": "right", "id": command["id"]})

    events = []
    async with served(tmp_path / "qmp", answer):
        client = await QmpClient.connect(tmp_path / "qmp", lambda name, data: events.append((name, data)))
        assert await client.execute("query-status") == "right"
        await client.close()
    assert events == [("STOP", {})]


async def test_command_without_an_answer_ends(tmp_path):
    async with served(tmp_path / "qmp", lambda _command, _send: None):
        client = await QmpClient.connect(tmp_path / "qmp", seconds=0.2)
        with pytest.raises(QmpError, match="QMP quit: QEMU does not answer within"):
            await client.execute("quit")
        await client.close()


async def test_connect_waits_for_the_socket_and_ends_with_qemu(tmp_path):
    connecting = asyncio.create_task(QmpClient.connect(tmp_path / "qmp"))
    polls = 0

    def is_alive():
        nonlocal polls
        polls += 1
        return polls < 3

    with pytest.raises(QmpError, match="ended before it listened"):
        await QmpClient.connect(tmp_path / "other", is_alive=is_alive)
    with pytest.raises(QmpError, match="does not listen on its QMP socket after 0 s"):
        await QmpClient.connect(tmp_path / "other", seconds=0.05)
    assert not connecting.done()
    async with served(tmp_path / "qmp", lambda _command, _send: None):
        await until(connecting.done)
        await (await connecting).close()
