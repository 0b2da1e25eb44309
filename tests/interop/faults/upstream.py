"""An upstream of kernels, and a registry of images, that fail in the ways of upstreams: `upstream.py ADDRESS PORT`.

`upstream.py ADDRESS PORT CERTIFICATE` speaks TLS, with a file that has its key, too.
"""

from __future__ import annotations

import asyncio
import ssl
import sys

SIZE = 200_000


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        path = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split(" ", 2)[1]
        head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n" % SIZE
        match path:
            case "/good" | "/another":
                writer.write(head + b"\r\n" + b"MZ" + bytes(SIZE - 2))
            case "/huge":
                writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3000000\r\n\r\nMZ")
                await writer.drain()
                await asyncio.sleep(60)
            case "/stalls":
                writer.write(head + b"\r\n" + b"MZ" + bytes(SIZE // 2))
                await writer.drain()
                await asyncio.sleep(3600)
            case "/silent":
                await asyncio.sleep(3600)
            case "/page":
                page = b"<!DOCTYPE html><html><title>Log in</title></html>"
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n")
                writer.write(b"Content-Length: %d\r\n\r\n" % len(page) + page)
            case "/truncated":
                writer.write(head + b"\r\n" + b"MZ" + bytes(SIZE // 2))
            case "/v2/" | "/v2/private/manifests/1":
                writer.write(b"HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nContent-Length: 0\r\n")
                writer.write(b'WWW-Authenticate: Basic realm="faults"\r\n\r\n')
            case "/v2/slow/manifests/1":
                await asyncio.sleep(3600)
            case _:
                writer.write(b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
    except (OSError, asyncio.IncompleteReadError):
        pass  # who asked has gone
    finally:
        writer.close()


async def main(address: str, port: int, certificate: str = "") -> None:
    context = None
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
    server = await asyncio.start_server(serve, address, port, ssl=context)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:]))
