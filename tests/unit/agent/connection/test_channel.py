"""The agent's channel: its token with every call, the new one that the server gives, and the authority it trusts."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import http.server
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import grpc.aio
import pytest

from proto import metadata
from proto import workflow_pb2 as pb
from proto import workflow_pb2_grpc as pb_grpc
from tests.ports import free_port
from tests.waiting import until
from tink.agent.connection.channel import connect, fetch_pinned
from tink.agent.model import SettingsError
from tink.agent.settings import AgentSettings

MAC = "52:54:00:00:00:01"


class Recording(pb_grpc.WorkflowServiceServicer):
    """Notes the metadata of each call, and gives `renewed` with each stream."""

    def __init__(self) -> None:
        self.shown: list[list[str]] = []
        self.renewed = ""

    def _note(self, context: Any) -> None:
        self.shown.append([value for key, value in context.invocation_metadata() if key == metadata.AUTHORIZATION])

    async def GetWorkflows(self, request: Any, context: Any) -> None:  # noqa: N802
        self._note(context)
        await context.send_initial_metadata(((metadata.TOKEN, self.renewed),) if self.renewed else ())
        await context.write(pb.GetWorkflowsResponse())

    async def PublishEvent(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._note(context)
        return pb.PublishEventResponse()


@pytest.fixture
async def recording() -> AsyncIterator[tuple[Recording, str]]:
    server, servicer = grpc.aio.server(), Recording()
    pb_grpc.add_WorkflowServiceServicer_to_server(servicer, server)

    async def upload(requests: Any, context: Any) -> bytes:
        servicer._note(context)
        return b"".join([each async for each in requests])

    handler = grpc.method_handlers_generic_handler("test", {"Upload": grpc.stream_unary_rpc_method_handler(upload)})
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield servicer, f"127.0.0.1:{port}"
    await server.stop(None)


async def session(settings: AgentSettings) -> None:
    """A stream, an event and an upload, each with what the agent itself would put on it."""
    channel = await connect(settings, asyncio.Event())
    assert channel is not None
    async with channel:
        stub: Any = pb_grpc.WorkflowServiceStub(channel)
        own = ((metadata.AUTHORIZATION, f"Bearer {settings.token}"), (metadata.WORKFLOW, ""))
        async for _ in stub.GetWorkflows(pb.GetWorkflowsRequest(agent_id=MAC), metadata=own):
            pass
        await asyncio.sleep(0.05)
        await stub.PublishEvent(pb.PublishEventRequest(), metadata=own)
        call: Any = channel.stream_unary("/test/Upload")(metadata=own)
        await call.write(b"one")
        await call.write(b"two")
        await call.done_writing()
        assert await call == b"onetwo"


async def test_every_call_shows_the_newest_token_once(recording: tuple[Recording, str], tmp_path: Path) -> None:
    servicer, server = recording
    servicer.renewed = "second"
    settings = AgentSettings(MAC, server, state_dir=tmp_path, token="first")
    await session(settings)
    assert servicer.shown == [["Bearer first"], ["Bearer second"], ["Bearer second"]]
    kept = tmp_path / "token"
    await until(lambda: [path.name for path in tmp_path.iterdir()] == ["token"])
    assert kept.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["token"]

    servicer.shown.clear()
    servicer.renewed = ""
    await session(settings)
    assert servicer.shown == [["Bearer second"]] * 3, "an agent that is started again has what it was given"

    servicer.shown.clear()
    await session(AgentSettings(MAC, server, state_dir=tmp_path, token="of the next boot".replace(" ", "-")))
    assert servicer.shown == [["Bearer of-the-next-boot"]] * 3, "what was kept belongs to another boot"


async def test_without_a_token_nothing_is_added(recording: tuple[Recording, str], tmp_path: Path) -> None:
    servicer, server = recording
    channel = await connect(AgentSettings(MAC, server, state_dir=tmp_path), asyncio.Event())
    assert channel is not None
    async with channel:
        stub: Any = pb_grpc.WorkflowServiceStub(channel)
        await stub.PublishEvent(pb.PublishEventRequest())
    assert servicer.shown == [[]]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kept", [b"", b"\xff\xfe", b"one", b"a b c", b"0" * 64 + b" other"])
async def test_a_kept_token_that_is_spoilt_is_ignored(
    recording: tuple[Recording, str], tmp_path: Path, kept: bytes
) -> None:
    servicer, server = recording
    (tmp_path / "token").write_bytes(kept)
    await session(AgentSettings(MAC, server, state_dir=tmp_path, token="first"))
    assert servicer.shown == [["Bearer first"]] * 3


async def test_a_disk_that_is_full_does_not_keep_the_agent_from_its_token(
    recording: tuple[Recording, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    servicer, server = recording
    servicer.renewed = "second"
    (tmp_path / "token.new").mkdir()
    await session(AgentSettings(MAC, server, state_dir=tmp_path, token="first"))
    assert servicer.shown[-1] == ["Bearer second"]
    await until(lambda: "can't be kept" in caplog.text)
    assert "second" not in caplog.text


# --- whom the agent trusts ---


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A directory, and the URL of a file in it."""
    root = tmp_path / "www"
    root.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(root))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield root, f"http://127.0.0.1:{server.server_address[1]}/ca.pem"
        server.shutdown()
        thread.join()


async def test_the_authority_is_waited_for_and_only_the_right_one_is_taken(
    web: tuple[Path, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root, url = web
    pinned = f"{url}#sha256={hashlib.sha256(b'right').hexdigest().upper()}"
    kept = tmp_path / "kept"
    kept.write_bytes(b"wrong")
    fetching = asyncio.ensure_future(fetch_pinned(pinned, kept, pause=0.02))
    offers = ((None, "404"), (b"wrong", "its SHA-256 is another"), (b"right" * 100_000, "is larger than"))
    for number, (offered, wrong) in enumerate(offers, 1):
        if offered is not None:
            (root / "new").write_bytes(offered)
            (root / "new").rename(root / "ca.pem")
        async with asyncio.timeout(10):
            while len(words := [record.message for record in caplog.records]) < number:
                await asyncio.sleep(0.01)
        assert wrong in words[-1]
        await asyncio.sleep(0.1)  # some attempts more
    assert not fetching.done()
    assert len(caplog.records) == 3, "one line for each thing that is wrong, not for each attempt"
    (root / "new").write_bytes(b"right")
    (root / "new").rename(root / "ca.pem")
    assert await asyncio.wait_for(fetching, 20) == b"right"

    (root / "ca.pem").unlink()
    assert await asyncio.wait_for(fetch_pinned(pinned, kept), 20) == b"right", "the next start does not need the edge"


async def test_the_authority_is_taken_from_another_edge_when_that_of_the_boot_is_gone(
    web: tuple[Path, str], tmp_path: Path
) -> None:
    root, url = web
    (root / "ca.pem").write_bytes(b"right")
    gone = f"http://127.0.0.1:{free_port()}/ca.pem#sha256={hashlib.sha256(b'right').hexdigest()}"
    edges = (f"127.0.0.1:{free_port()}", urlsplit(url).netloc)
    assert await asyncio.wait_for(fetch_pinned(gone, tmp_path / "kept", 3600, edges=edges), 20) == b"right"


async def test_an_agent_that_is_asked_to_end_does_not_wait_for_the_authority(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:1/ca.pem#sha256={'0' * 64}"
    settings = AgentSettings(MAC, "127.0.0.1:1", state_dir=tmp_path, tls=True, tls_ca_url=url)
    end = asyncio.Event()
    connecting = asyncio.ensure_future(connect(settings, end))
    await asyncio.sleep(0.05)
    end.set()
    assert await asyncio.wait_for(connecting, 20) is None


async def test_a_client_certificate_that_is_missing_is_named(tmp_path: Path) -> None:
    settings = AgentSettings(
        MAC, "s:1", state_dir=tmp_path, tls=True, tls_cert=tmp_path / "no.crt", tls_key=tmp_path / "no.key"
    )
    with pytest.raises(SettingsError, match=r"no\.key: No such file"):
        await connect(settings, asyncio.Event())
