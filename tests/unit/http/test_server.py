"""What the whole server does, whatever the path: methods, limits, health, and garbage."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.http.conftest import Rack

MAC, IP = "52:54:00:00:00:01", "127.0.0.5"


async def exchange(rack: Rack, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", rack.port, local_addr=(IP, 0))
    writer.write(request)
    async with asyncio.timeout(20):
        answer = await reader.read(4096)
    writer.close()
    return answer


async def test_health_is_of_the_process_and_readiness_of_the_service(rack: Rack) -> None:
    assert (await rack.ask("/healthz")).text == "ok\n"
    assert (await rack.ask("/readyz")).text == "ok\n"
    rack.problem = "Hardware not synced"
    reply = await rack.ask("/readyz")
    assert (reply.status, reply.text) == (503, "not ready: Hardware not synced\n")
    assert (await rack.ask("/healthz")).status == 200


@pytest.mark.parametrize("path", ["/", "/osie", "/osie/lab/", "/ipxe/binary/", "/api/v1/machines", "/metrics", "/x"])
async def test_no_listing_and_nothing_of_the_operators_port(rack: Rack, path: str) -> None:
    rack.register()
    reply = await rack.ask(path)
    assert (reply.status, reply.text) == (404, "not found\n")


async def test_wrong_method_names_the_right_one(rack: Rack) -> None:
    rack.register()
    reply = await rack.ask("/osie/lab/kernel", method="DELETE")
    assert (reply.status, reply.headers["Allow"]) == (405, "GET, HEAD")
    assert (await rack.ask(f"/phone-home/{MAC}")).headers["Allow"] == "POST"


async def test_absolute_form_and_http_1_0_are_understood(rack: Rack) -> None:
    rack.register()
    absolute = b"GET http://elsewhere:80/2009-04-04/meta-data/instance-id HTTP/1.1\r\nHost: x\r\n\r\n"
    assert (await exchange(rack, absolute)).endswith(b"\r\n\r\nm1")
    assert (await exchange(rack, b"GET /healthz HTTP/1.0\r\n\r\n")).endswith(b"ok\n")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"X%d: y\r\n" % number for number in range(1000)) + b"\r\n",
        b"\x00\x01\x02 garbage\r\n\r\n",
    ],
)
async def test_oversized_and_broken_requests_are_refused_and_others_served(rack: Rack, request_bytes: bytes) -> None:
    answer = await exchange(rack, request_bytes)
    assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), answer[:100]
    assert (await rack.ask("/healthz")).status == 200
