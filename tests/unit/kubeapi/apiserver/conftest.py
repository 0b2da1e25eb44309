"""An API server on a free loopback port, and a client that sends plain HTTP requests to it."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import shutil
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tink.api.crds import generate
from tink.kubeapi import ApiServer

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP = "/apis/tinkerbell.org/v1alpha2"
MERGE = "application/merge-patch+json"


KINDS = {"hardware": "Hardware", "osies": "OSIE", "templates": "Template", "workflows": "Workflow"}


def completed(method: str, path: str, body: Any) -> Any:
    """Add apiVersion and kind, which Kubernetes requires of custom resources, to an object without them."""
    plural = re.sub(r"^/namespaces/[^/]+", "", path.removeprefix(GROUP)).strip("/").partition("/")[0]
    if method not in ("POST", "PUT") or not isinstance(body, dict) or plural not in KINDS or "kind" in body:
        return body
    return {"apiVersion": "tinkerbell.org/v1alpha2", "kind": KINDS[plural], **body}


class Answer:
    """An answer: status, headers, and the body as JSON."""

    def __init__(self, status: int, headers: dict[str, list[str]], text: bytes) -> None:
        self.status = status
        self.headers = headers
        self.text = text

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Watch:
    """An open watch."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def next(self) -> Any:
        """Return the next event; None if the watch has ended."""
        line = await self._response.content.readline()
        return json.loads(line) if line else None

    async def kinds(self, count: int) -> list[tuple[str, str]]:
        """Return type and name of the next events."""
        events = [await self.next() for _ in range(count)]
        return [(event["type"], event["object"]["metadata"]["name"]) for event in events]


class Client:
    """Requests with the token of a kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        content = yaml.load(kubeconfig.read_text(), Loader=yaml.CSafeLoader)
        cluster = content["clusters"][0]["cluster"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self.token = content["users"][0]["user"]["token"]
        self.session = aiohttp.ClientSession(
            cluster["server"],
            connector=aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=authority)),
            timeout=aiohttp.ClientTimeout(total=30),
        )

    async def close(self) -> None:
        await self.session.close()

    async def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content: str = "application/json",
        accept: str = "application/json",
        token: str | None = None,
        **query: str,
    ) -> Answer:
        body = completed(method, path, body)
        raw = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        headers = {"Accept": accept}
        token = self.token if token is None else token
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if raw is not None:
            headers["Content-Type"] = content
        content_body = None if raw is None else io.BytesIO(raw)
        async with self.session.request(method, path, data=content_body, headers=headers, params=query) as response:
            named = {name: response.headers.getall(name) for name in response.headers}
            return Answer(response.status, named, await response.read())

    async def merge(self, path: str, patch: Any, **query: str) -> Answer:
        return await self("PATCH", path, patch, content=MERGE, **query)

    @asynccontextmanager
    async def watch(self, path: str, accept: str = "application/json", **query: str) -> AsyncIterator[Watch]:
        headers = {"Accept": accept, "Authorization": f"Bearer {self.token}"}
        async with self.session.get(path, params={"watch": "true"} | query, headers=headers) as response:
            assert response.status == 200
            yield Watch(response)


Start = Callable[..., Awaitable[tuple[ApiServer, Client]]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Start servers over the same data directory; stop them at the end."""
    running: list[tuple[ApiServer, Client]] = []

    async def begin(**options: Any) -> tuple[ApiServer, Client]:
        server = ApiServer(tmp_path / "state", **{"port": 0, **options})
        await server.start()
        running.append((server, Client(server.kubeconfig)))
        return running[-1]

    yield begin
    for server, client in running:
        await client.close()
        await server.stop()


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[Path], Client]]:
    """Make clients for servers that run elsewhere."""
    made: list[Client] = []

    def client(kubeconfig: Path) -> Client:
        made.append(Client(kubeconfig))
        return made[-1]

    yield client
    for each in made:
        await each.close()


@pytest.fixture
async def bare(start: Start) -> Client:
    """A client of a server with only the built-in resources."""
    _, client = await start()
    return client


async def _install(client: Client) -> None:
    for definition in generate():
        assert (await client("POST", CRDS, definition)).status == 201


@pytest.fixture
def crds() -> Callable[[Client], Awaitable[None]]:
    """Install our resources."""
    return _install


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with our resources installed, to be copied: the installation takes half a second."""
    directory = tmp_path_factory.mktemp("installed") / "state"

    async def install() -> None:
        server = ApiServer(directory, port=0)
        await server.start()
        client = Client(server.kubeconfig)
        await _install(client)
        await client.close()
        await server.stop()

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(install())
    return directory


@pytest.fixture
async def api(start: Start, installed: Path, tmp_path: Path) -> Client:
    """A client of a server with our resources."""
    shutil.copytree(installed, tmp_path / "state")
    _, client = await start()
    return client
