"""The fleet's HTTP: bodies are counted to their last byte, and what is no whole answer is an error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from edge.fleet.protocols import http

SIZE = 9_000_000
Serve = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(serve: Serve) -> AsyncIterator[str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await reader.readuntil(b"\r\n\r\n"):
                await serve(request, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    made = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{made.sockets[0].getsockname()[1]}/file"
    finally:
        made.close()


def head(size: int, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\n\r\n".encode()


async def whole(request: bytes, writer: asyncio.StreamWriter) -> None:
    ranged = b"Range: bytes=8999999-" in request
    writer.write(head(1, "206 Partial Content") if ranged else head(SIZE))
    if not request.startswith(b"HEAD"):
        writer.write(bytes(1 if ranged else SIZE))


async def test_large_body_is_counted_and_not_kept():
    async with server(whole) as url:
        found = await http.get("127.0.0.2", url, keep=False)
    assert (found.status, found.length, found.body) == (200, SIZE, b"")


async def test_by_reference_gives_the_length_and_fetches_one_byte():
    async with server(whole) as url:
        found = await http.length("127.0.0.2", url)
    assert (found.status, found.length, len(found.body)) == (200, SIZE, 1)


async def test_machine_calls_from_its_own_address():
    peers = []

    async def serve(_request, writer):
        peers.append(writer.get_extra_info("peername")[0])
        writer.write(head(0))

    async with server(serve) as url:
        for address in ("127.0.0.2", "127.0.0.3"):
            await http.get(address, url)
    assert peers == ["127.0.0.2", "127.0.0.3"]


async def test_text_of_an_error_is_kept():
    async def serve(_request, writer):
        writer.write(head(7, "404 Not Found") + b"no such")

    async with server(serve) as url:
        found = await http.get("127.0.0.2", url, keep=False)
    assert (found.status, found.body) == (404, b"no such")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (head(100) + b"half", "broken off, 96 bytes before the end"),
        (b"", "without an answer"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "no Content-Length"),
        (b"SSH-2.0-x\r\n\r\n", "file"),
        (head(http.MAX_KEPT_BYTES + 1), "where a script or a document was expected"),
    ],
)
async def test_answer_that_is_not_whole_is_an_error(answer, says):
    async def serve(_request, writer):
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with server(serve) as url:
        with pytest.raises(http.HttpError, match=says):
            await http.get("127.0.0.2", url)


async def test_nobody_there_is_an_error():
    async with server(whole) as url:
        pass
    with pytest.raises(http.HttpError, match="Connection refused"):
        await http.get("127.0.0.2", url)


@pytest.mark.parametrize("url", ["https://h/x", "tftp://h/x", "http:///x", "http://h:port/x"])
def test_url_that_is_no_http_is_refused(url):
    with pytest.raises(http.HttpError):
        http.Url.of(url)
