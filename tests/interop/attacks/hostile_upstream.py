"""An upstream that means harm, as a program: `hostile_upstream.py ADDRESS PORT [DNS-ADDRESS]`.

Each path is one way to misbehave. Whatever name its DNS server is asked for is the upstream's own address the first
time, and 127.0.0.1 from then on; `both.` and something is always both.
"""

from __future__ import annotations

import asyncio
import gzip
import random
import socket
import sys
from typing import cast
from urllib.parse import unquote

OK = b"HTTP/1.1 200 OK\r\nConnection: close\r\n"
CHUNK = bytes(65536)


def honest(size: int) -> bytes:
    """Return the content of `/good/SIZE`."""
    return random.Random(size).randbytes(size)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        request = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        path = request.split(" ", 2)[1]
        if path.partition("?")[0].endswith(".sha256"):
            writer.write(whole(b"", b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n"))
        else:
            await answer(path, request, writer)
        await writer.drain()
    except (OSError, asyncio.IncompleteReadError):
        pass  # who asked has seen enough
    finally:
        writer.close()


CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "trickle": (OK + b"Content-Length: 1000000\r\n\r\n", bytes(600)),  # fast enough not to be called too slow
    "endless": (OK + CHUNKED, b"10000\r\n" + CHUNK + b"\r\n"),
    "unending": (OK + b"\r\n", CHUNK),  # as servers of HTTP/1.0 do it
    "headers": (OK, b"X-Header: some value\r\n" * 1000),
    "header": (OK + b"X-Header: ", b"x" * 65536),
    # RFC 9110 section 15.2: any number of interim answers may come before the answer
    "continues": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 500),
    "extensions": (OK + CHUNKED + b"10;", b"x" * 65536),
    "trailers": (OK + CHUNKED + b"1\r\nk\r\n0\r\n", b"X-Trailer: some value\r\n" * 1000),
    "crumbs": (OK + CHUNKED, b"1\r\nx\r\n" * 5000),  # one byte in each chunk
}
"""The begin of an answer, and the bytes that are then sent without an end."""


def whole(content: bytes, head: bytes = OK) -> bytes:
    return head + b"Content-Length: %d\r\n\r\n" % len(content) + content


async def send(writer: asyncio.StreamWriter, content: bytes, pause: float = 0.0) -> None:
    writer.write(content)
    await writer.drain()
    await asyncio.sleep(pause)


async def answer(path: str, request: str, writer: asyncio.StreamWriter) -> None:
    _, kind, *rest = path.split("/", 2)
    argument = unquote(rest[0]) if rest else ""
    match kind:
        case "private" if "\r\nauthorization: basic " not in request.lower():
            await send(writer, whole(b"", b"HTTP/1.1 401 Unauthorized\r\nConnection: close\r\n"))
        case "good" | "private":
            await send(writer, whole(honest(int(argument))))
        case "to":
            await send(writer, whole(b"", f"HTTP/1.1 302 Found\r\nLocation: {argument}\r\n".encode()))
        case "loop":
            await send(writer, b"HTTP/1.1 302 Found\r\nLocation: /loop/x%s\r\n\r\n" % argument[:50].encode())
        case "silent":
            await asyncio.sleep(3600)
        case "huge":
            await send(writer, OK + b"Content-Length: 1000000000000000\r\n\r\n" + CHUNK, 3600)
        case "bomb":
            await send(writer, whole(gzip.compress(bytes(50_000_000)), OK + b"Content-Encoding: gzip\r\n"))
        case "short":
            await send(writer, OK + b"Content-Length: 100000\r\n\r\n" + bytes(50_000))
        case "range":
            await ranged(argument, request, writer)
        case _ if kind in ENDLESS:
            head, piece = ENDLESS[kind]
            await send(writer, head)
            while True:
                await send(writer, piece, 0.5 if kind == "trickle" else 0)
        case _:
            await send(writer, whole(b"", b"HTTP/1.1 404 Not Found\r\n"))


async def ranged(how: str, request: str, writer: asyncio.StreamWriter) -> None:
    """Break off in the middle, and go on wrongly: `how` says in which way."""
    content, half = honest(300_000), 150_000
    lines = [line for line in request.split("\r\n") if line.lower().startswith("range: bytes=")]
    if not lines:
        tag = f'"{random.random()}"' if how == "etag" else '"one"'
        await send(writer, whole(content, OK + f"ETag: {tag}\r\n".encode())[: half - len(content)], 0.3)
        return
    start = int(lines[0].partition("=")[2].rstrip("-"))
    span = {
        "shifted": f"bytes {start + 1}-{len(content) - 1}/{len(content)}",
        "longer": f"bytes {start}-{len(content)}/{len(content) + 1}",
        "zero": f"bytes 0-{len(content) - 1}/{len(content)}",
        "nonsense": "bytes soon",
        "backwards": f"bytes {start}-{start - 1}/{len(content)}",
        "unsatisfied": f"bytes */{len(content)}",
    }.get(how, f"bytes {start}-{len(content) - 1}/{len(content)}")
    tag = '"two"' if how in ("etag", "changed") else '"one"'
    rest = bytes(len(content) - start) if how in ("changed", "zeros") else content[start:]
    status = "200 OK" if how == "whole" else "206 Partial Content"
    head = f"HTTP/1.1 {status}\r\nConnection: close\r\nETag: {tag}\r\nContent-Range: {span}\r\n"
    await send(writer, whole(rest, head.encode()))


class Names(asyncio.DatagramProtocol):
    """A DNS server (RFC 1035) that rebinds."""

    def __init__(self, address: str) -> None:
        self._first = socket.inet_aton(address)
        self._asked: set[bytes] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        end = data.index(b"\0", 12) + 5
        question, kind = data[12:end], data[end - 4 : end - 2]
        addresses = []
        if kind == b"\0\1":
            if question not in self._asked or question.startswith(b"\4both"):
                addresses.append(self._first)
            if question in self._asked or question.startswith(b"\4both"):
                addresses.append(socket.inet_aton("127.0.0.1"))
            self._asked.add(question)
        found = b"".join(b"\xc0\x0c\0\1\0\1" + bytes(4) + b"\0\4" + address for address in addresses)
        head = data[:2] + b"\x81\x80\0\1\0" + bytes([len(addresses)]) + bytes(4)
        self._transport.sendto(head + question + found, addr)


async def main(address: str, port: str, *dns: str) -> None:
    loop = asyncio.get_running_loop()
    for each in dns:
        await loop.create_datagram_endpoint(lambda: Names(address), local_addr=(each, 53))
    server = await asyncio.start_server(serve, address, int(port), limit=1 << 20, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
