"""The agent's channel: its token with every call, the new one that the server gives, the authority it trusts."""

import asyncio
import functools
import hashlib
import http.server
import os
import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import grpc.aio
import pytest

from proto import metadata
from proto import workflow_pb2 as pb
from proto import workflow_pb2_grpc as pb_grpc
from tests.ports import free_port
from tests.support.objects import MAC
from tests.support.virtual_time import turns
from tests.waiting import until
from tink.agent import connection as channel
from tink.agent.connection import connect, fetch_pinned, probe_often, registry_authorities
from tink.agent.model import AgentSettingsError
from tink.agent.settings import AgentSettings


class Recording(pb_grpc.WorkflowServiceServicer):
    """Notes the token of each call, and gives `renewed` with each stream."""

    def __init__(self):
        self.shown, self.renewed = [], ""

    def note(self, context):
        self.shown.append([value for key, value in context.invocation_metadata() if key == metadata.AUTHORIZATION])

    async def GetWorkflows(self, request, context):  # noqa: N802
        self.note(context)
        await context.send_initial_metadata(((metadata.TOKEN, self.renewed),) if self.renewed else ())
        await context.write(pb.GetWorkflowsResponse())

    async def PublishEvent(self, request, context):  # noqa: N802
        self.note(context)
        return pb.PublishEventResponse()

    async def upload(self, requests, context):
        self.note(context)
        return b"".join([each async for each in requests])


@pytest.fixture
async def recording():
    server, servicer = grpc.aio.server(), Recording()
    pb_grpc.add_WorkflowServiceServicer_to_server(servicer, server)
    methods = {"Upload": grpc.stream_unary_rpc_method_handler(servicer.upload)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield servicer, f"127.0.0.1:{port}"
    await server.stop(None)


async def session(servicer, settings):
    """Return the tokens of a stream, an event and an upload, each with what the agent itself would put on it."""
    servicer.shown.clear()
    async with await connect(settings, asyncio.Event()) as channel:
        stub = pb_grpc.WorkflowServiceStub(channel)
        own = ((metadata.AUTHORIZATION, f"Bearer {settings.token}"), (metadata.WORKFLOW, ""))
        async for _ in stub.GetWorkflows(pb.GetWorkflowsRequest(agent_id=MAC), metadata=own):
            pass
        await turns(20)
        await stub.PublishEvent(pb.PublishEventRequest(), metadata=own)
        call = channel.stream_unary("/test/Upload")(metadata=own)
        await call.write(b"one")
        await call.write(b"two")
        await call.done_writing()
        assert await call == b"onetwo"
    return servicer.shown


async def test_every_call_shows_the_newest_token_once(recording, tmp_path):
    servicer, server = recording
    servicer.renewed = "second"
    settings = AgentSettings(MAC, server, state_dir=tmp_path, token="first")
    assert await session(servicer, settings) == [["Bearer first"], ["Bearer second"], ["Bearer second"]]
    await until(lambda: [path.name for path in tmp_path.iterdir()] == ["token"])
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    servicer.renewed = ""
    assert await session(servicer, settings) == [["Bearer second"]] * 3, "an agent that is started again has it"
    another = AgentSettings(MAC, server, state_dir=tmp_path, token="of-the-next-boot")
    assert await session(servicer, another) == [["Bearer of-the-next-boot"]] * 3


async def test_without_a_token_nothing_is_added(recording, tmp_path):
    servicer, server = recording
    async with await connect(AgentSettings(MAC, server, state_dir=tmp_path), asyncio.Event()) as channel:
        await pb_grpc.WorkflowServiceStub(channel).PublishEvent(pb.PublishEventRequest())
    assert servicer.shown == [[]]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kept", [b"", b"\xff\xfe", b"one", b"a b c", b"0" * 64 + b" other"])
async def test_a_kept_token_that_is_spoilt_is_ignored(recording, tmp_path, kept):
    servicer, server = recording
    (tmp_path / "token").write_bytes(kept)
    settings = AgentSettings(MAC, server, state_dir=tmp_path, token="first")
    assert await session(servicer, settings) == [["Bearer first"]] * 3


async def test_a_disk_that_is_full_does_not_keep_the_agent_from_its_token(recording, tmp_path, caplog):
    servicer, server = recording
    servicer.renewed = "second"
    (tmp_path / "token.new").mkdir()
    shown = await session(servicer, AgentSettings(MAC, server, state_dir=tmp_path, token="first"))
    assert shown[-1] == ["Bearer second"]
    await until(lambda: "can't be kept" in caplog.text)
    assert "second" not in caplog.text


# --- whom the agent trusts --------------------------------------------------------------------------------------------


@pytest.fixture
def web(tmp_path):
    """A directory that is served, the URL of a file in it, and the requests so far."""
    root, requests = tmp_path / "www", []
    root.mkdir()

    class Counting(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            requests.append(self.path)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Counting, directory=str(root))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield root, f"http://127.0.0.1:{server.server_address[1]}/ca.pem", requests
        server.shutdown()
        thread.join()


async def test_the_authority_is_waited_for_and_only_the_right_one_is_taken(web, tmp_path, caplog):
    root, url, requests = web
    pinned = f"{url}#sha256={hashlib.sha256(b'right').hexdigest().upper()}"
    kept = tmp_path / "kept"
    kept.write_bytes(b"wrong")

    def offer(content):
        (root / "new").write_bytes(content)
        (root / "new").rename(root / "ca.pem")

    fetching = asyncio.create_task(fetch_pinned(pinned, kept, pause=0.02))
    offers = ((None, "404"), (b"wrong", "its SHA-256 is another"), (b"right" * 100_000, "is larger than"))
    for number, (offered, wrong) in enumerate(offers, 1):
        if offered is not None:
            offer(offered)
        await until(lambda number=number: len(caplog.records) == number)
        assert wrong in caplog.messages[-1]
        asked = len(requests)
        await until(lambda asked=asked: len(requests) > asked + 3)
    assert not fetching.done()
    assert len(caplog.records) == 3, "one line for each thing that is wrong, not for each attempt"
    offer(b"right")
    assert await fetching == b"right"
    (root / "ca.pem").unlink()
    assert await fetch_pinned(pinned, kept) == b"right", "the next start does not need the edge"


async def test_the_authority_is_taken_from_another_edge_when_that_of_the_boot_is_gone(web, tmp_path):
    root, url, _ = web
    (root / "ca.pem").write_bytes(b"right")
    gone = f"http://127.0.0.1:{free_port()}/ca.pem#sha256={hashlib.sha256(b'right').hexdigest()}"
    edges = (f"127.0.0.1:{free_port()}", urlsplit(url).netloc)
    assert await fetch_pinned(gone, tmp_path / "kept", 3600, edges=edges) == b"right"


async def test_an_agent_that_is_asked_to_end_does_not_wait_for_the_authority(tmp_path):
    url = f"http://127.0.0.1:1/ca.pem#sha256={'0' * 64}"
    end = asyncio.Event()
    settings = AgentSettings(MAC, "127.0.0.1:1", state_dir=tmp_path, tls=True, tls_ca_url=url)
    connecting = asyncio.create_task(connect(settings, end))
    await turns(5)
    end.set()
    assert await connecting is None


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"reg.example": "PEM", "x": 7}', {"reg.example": "PEM", "own.example": "own"}),
        (b"[]", {"own.example": "own"}),
        (b"[" * 100_000, {"own.example": "own"}),
    ],
)
async def test_authorities_of_registries_are_those_of_the_edge_and_of_files(web, tmp_path, content, expected):
    root, url, _ = web
    (root / "ca.pem").write_bytes(content)
    (tmp_path / "own").write_text("own")
    pinned = f"{url}#sha256={hashlib.sha256(content).hexdigest()}"
    more = {"registry_ca_url": pinned, "registry_cas": (("own.example", tmp_path / "own"),)}
    settings = AgentSettings(MAC, "127.0.0.1:1", state_dir=tmp_path, **more)
    assert await registry_authorities(settings, asyncio.Event()) == expected


async def test_agent_starts_without_authorities_of_registries_that_do_not_come(tmp_path, monkeypatch, caplog):
    pinned = f"http://127.0.0.1:1/registries.json#sha256={'0' * 64}"
    settings = AgentSettings(MAC, "127.0.0.1:1", state_dir=tmp_path, registry_ca_url=pinned)
    monkeypatch.setattr(channel, "_REGISTRY_CA_SECONDS", 0.0)
    assert await registry_authorities(settings, asyncio.Event()) == {}
    assert "only those of this system are trusted" in caplog.text


async def test_a_client_certificate_that_is_missing_is_named(tmp_path):
    files = {"tls_cert": tmp_path / "no.crt", "tls_key": tmp_path / "no.key"}
    with pytest.raises(AgentSettingsError, match=r"no\.key: No such file"):
        await connect(AgentSettings(MAC, "s:1", state_dir=tmp_path, tls=True, **files), asyncio.Event())


def test_kernel_probes_connections_to_the_server_and_no_others():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        ours, another = (socket.create_connection(each.getsockname()) for each in (server, other))
        reading, writing = os.pipe()
        with ours, another, open(reading), open(writing, "w"):  # noqa: PTH123 - descriptors
            before = len([*Path("/proc/self/fd").iterdir()])
            assert probe_often(server.getsockname()[1]) == 1
            assert len([*Path("/proc/self/fd").iterdir()]) <= before
            assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 5
            assert another.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
            ours.sendall(b"it is as it was")
    assert probe_often(1) == 0
