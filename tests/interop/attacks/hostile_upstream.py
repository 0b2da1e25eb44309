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
    """What `/good/SIZE` has."""
    return random.Random(size).randbytes(size)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        request = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        path = request.split(" ", 2)[1]
        if path.partition("?")[0].endswith(".sha256"):
            writer.write(b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        else:
            await answer(path, request, writer)
        await writer.drain()
    except (OSError, asyncio.IncompleteReadError):
        pass  # who asked has seen enough
    finally:
        writer.close()


async def send(writer: asyncio.StreamWriter, content: bytes, pause: float = 0.0) -> None:
    writer.write(content)
    await writer.drain()
    await asyncio.sleep(pause)


async def answer(path: str, request: str, writer: asyncio.StreamWriter) -> None:
    _, kind, *rest = path.split("/", 2)
    argument = unquote(rest[0]) if rest else ""
    match kind:
        case "good":
            content = honest(int(argument))
            await send(writer, OK + b"Content-Length: %d\r\n\r\n" % len(content) + content)
        case "private" if "\r\nauthorization: basic " not in request.lower():
            await send(writer, b"HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        case "private":
            content = honest(int(argument))
            await send(writer, OK + b"Content-Length: %d\r\n\r\n" % len(content) + content)
        case "to":
            await send(writer, f"HTTP/1.1 302 Found\r\nLocation: {argument}\r\nContent-Length: 0\r\n\r\n".encode())
        case "loop":
            await send(writer, b"HTTP/1.1 302 Found\r\nLocation: /loop/x%s\r\n\r\n" % argument[:50].encode())
        case "trickle":  # fast enough not to be called too slow
            await send(writer, OK + b"Content-Length: 1000000\r\n\r\n")
            while True:
                await send(writer, bytes(600), 0.5)
        case "silent":
            await asyncio.sleep(3600)
        case "endless":
            await send(writer, OK + b"Transfer-Encoding: chunked\r\n\r\n")
            while True:
                await send(writer, b"10000\r\n" + CHUNK + b"\r\n")
        case "unending":  # as servers of HTTP/1.0 do it
            await send(writer, OK + b"\r\n")
            while True:
                await send(writer, CHUNK)
        case "huge":
            await send(writer, OK + b"Content-Length: 1000000000000000\r\n\r\n" + CHUNK)
            await asyncio.sleep(3600)
        case "bomb":
            packed = gzip.compress(bytes(50_000_000))
            head = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
            await send(writer, OK + head + packed)
        case "headers":
            await send(writer, OK)
            while True:
                await send(writer, b"X-Header: some value\r\n" * 1000)
        case "header":
            await send(writer, OK + b"X-Header: ")
            while True:
                await send(writer, b"x" * 65536)
        case "continues":  # RFC 9110 section 15.2: any number of interim answers may come before the answer
            while True:
                await send(writer, b"HTTP/1.1 100 Continue\r\n\r\n" * 500)
        case "extensions":
            await send(writer, OK + b"Transfer-Encoding: chunked\r\n\r\n10;")
            while True:
                await send(writer, b"x" * 65536)
        case "trailers":
            await send(writer, OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nk\r\n0\r\n")
            while True:
                await send(writer, b"X-Trailer: some value\r\n" * 1000)
        case "short":
            await send(writer, OK + b"Content-Length: 100000\r\n\r\n" + bytes(50_000))
        case "crumbs":  # one byte in each chunk
            await send(writer, OK + b"Transfer-Encoding: chunked\r\n\r\n")
            while True:
                await send(writer, b"1\r\nx\r\n" * 5000)
        case "range":
            await ranged(argument, request, writer)
        case _:
            await send(writer, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")


async def ranged(how: str, request: str, writer: asyncio.StreamWriter) -> None:
    """Break off in the middle, and go on wrongly: `how` says in which way."""
    content, half = honest(300_000), 150_000
    lines = [line for line in request.split("\r\n") if line.lower().startswith("range: bytes=")]
    if not lines:
        tag = f'"{random.random()}"' if how == "etag" else '"one"'
        head = f"ETag: {tag}\r\nContent-Length: {len(content)}\r\n\r\n".encode()
        await send(writer, OK + head + content[:half], 0.3)
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
    await send(writer, f"{head}Content-Length: {len(rest)}\r\n\r\n".encode() + rest)


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
