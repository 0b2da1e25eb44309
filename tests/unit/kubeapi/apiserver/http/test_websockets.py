"""Watches over WebSocket, as browsers and other Kubernetes clients use them."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.unit.kubeapi.apiserver.conftest import MERGE, Client, Start
from tests.unit.kubeapi.apiserver.http.conftest import SECRETS, WORKFLOWS, User
from tests.waiting import PATIENCE_SECONDS
from tink.kubeapi import revoke_token

BEARER = "base64url.bearer.authorization.k8s.io."


def shown(token: str) -> str:
    return BEARER + base64.urlsafe_b64encode(token.encode()).rstrip(b"=").decode()


def header(client: Client) -> dict[str, str]:
    return {"Authorization": f"Bearer {client.token}"}


async def events(socket: aiohttp.ClientWebSocketResponse, count: int) -> list[tuple[str, str]]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        found = [json.loads(await socket.receive_str()) for _ in range(count)]
    return [(event["type"], event["object"]["metadata"]["name"]) for event in found]


async def test_watch_over_websocket_sends_each_event_as_a_text_frame(some: Client) -> None:
    async with some.session.ws_connect(
        f"{WORKFLOWS}?watch=true", headers=header(some), origin="https://console.example.org"
    ) as socket:
        assert await events(socket, 1) == [("ADDED", "x")]
        await socket.send_str("clients have nothing to say")
        await socket.ping()
        await some("PATCH", f"{WORKFLOWS}/x", {"metadata": {"labels": {"a": "b"}}}, content=MERGE)
        await some("DELETE", f"{WORKFLOWS}/x")
        assert await events(socket, 2) == [("MODIFIED", "x"), ("DELETED", "x")]
    async with some.session.ws_connect(f"{WORKFLOWS}?watch=true&timeoutSeconds=1", headers=header(some)) as ended:
        assert (await ended.receive(PATIENCE_SECONDS)).type is aiohttp.WSMsgType.CLOSE
        assert ended.close_code == 1000
    async with some.session.ws_connect(
        f"{WORKFLOWS}?watch=true&resourceVersion=999999999", headers=header(some)
    ) as odd:
        assert json.loads((await odd.receive(PATIENCE_SECONDS)).data)["type"] == "ERROR"


async def test_browser_shows_its_token_in_a_subprotocol_and_may_watch_what_its_role_allows(
    some: Client, user: User, tmp_path: Path
) -> None:
    token = user("alice", "view")
    connect = some.session.ws_connect
    async with connect(f"{WORKFLOWS}?watch=1", protocols=[shown(token), "v1.example.org"]) as socket:
        assert socket.protocol == "v1.example.org"
        assert await events(socket, 1) == [("ADDED", "x")]
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await connect(f"{SECRETS}?watch=1", protocols=[shown(token), "v1.example.org"])
    assert refused.value.status == 403
    async with connect(f"{WORKFLOWS}?watch=1", protocols=[shown(token), "a"]) as socket:
        assert await events(socket, 1) == [("ADDED", "x")]
        revoke_token(tmp_path / "state", "alice")
        assert (await socket.receive(PATIENCE_SECONDS)).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)


async def test_watch_over_websocket_ends_with_the_server_and_with_its_client(start: Start) -> None:
    server, client = await start()
    maps = "/api/v1/configmaps?watch=1"
    async with client.session.ws_connect(maps, headers=header(client)) as left:
        await left.close()
    async with client.session.ws_connect(maps, headers=header(client)) as rude:
        await rude.send_bytes(bytes(100_000))
        assert (await rude.receive(PATIENCE_SECONDS)).data == aiohttp.WSCloseCode.MESSAGE_TOO_BIG
    async with client.session.ws_connect(maps, headers=header(client)) as open_still:
        stopping = asyncio.create_task(server.stop())
        assert (await open_still.receive(PATIENCE_SECONDS)).data == aiohttp.WSCloseCode.OK
        await open_still.close()
        await stopping


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-WebSocket-Protocol": "{token}"}, 401),
        ({"Sec-WebSocket-Protocol": "{token}, {token}, a"}, 401),
        ({"Sec-WebSocket-Protocol": f"{BEARER}é?, a"}, 401),
        ({"Sec-WebSocket-Protocol": f"{BEARER}_w, a"}, 401),
        ({"Sec-WebSocket-Protocol": f"{BEARER}d3Jvbmc, a"}, 401),
        ({"Sec-WebSocket-Protocol": "a"}, 401),
        ({"Sec-WebSocket-Protocol": "{token}, a, b"}, 400),
        ({"Sec-WebSocket-Protocol": "{token}, a", "Origin": "null"}, 403),
        ({"Sec-WebSocket-Protocol": "{token}, a", "Origin": "example.org"}, 403),
        ({"Sec-WebSocket-Protocol": "{token}, a", "Sec-WebSocket-Version": "8"}, 400),
        ({"Sec-WebSocket-Protocol": "{token}, a", "Sec-WebSocket-Key": "é"}, 400),
        ({"Sec-WebSocket-Protocol": "{token}, a", "Connection": "keep-alive"}, 401),
        ({"Sec-WebSocket-Protocol": "{token}, a"}, 101),
    ],
)
async def test_handshake_is_refused_as_kubernetes_refuses_it(
    some: Client, headers: dict[str, str], status: int
) -> None:
    asked: dict[str, Any] = {
        "Connection": "keep-alive, Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode(),
        **{name: value.replace("{token}", shown(some.token)) for name, value in headers.items()},
    }
    async with some.session.get(f"{WORKFLOWS}?watch=1", headers=asked) as answer:
        assert answer.status == status


async def test_list_is_a_list_whatever_the_client_would_upgrade_to(some: Client) -> None:
    headers = header(some) | {"Connection": "Upgrade", "Upgrade": "websocket"}
    async with some.session.get(WORKFLOWS, headers=headers) as answer:
        assert (answer.status, (await answer.json())["kind"]) == (200, "WorkflowList")
