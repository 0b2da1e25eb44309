"""The programs of others, and the recorders between them and the API."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web
from cryptography import x509

from tests.interop.authority import Authority
from tests.interop.privileges import Upstream
from tests.waiting import until
from tink.api.v1alpha2 import GROUP, RUFIO_GROUP, Raw

# --- recording --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exchange:
    """A request through a recorder, in the order of the answers.

    `by` is the client: `capt`, `clusterctl` or `tinkedge`. `api` is `target` for the API that clusters are moved to.
    """

    by: str
    method: str
    path: str
    query: dict[str, str]
    content_type: str
    body: Any
    status: int
    message: str
    api: str = ""


@dataclass
class Recorder:
    """A proxy between one client and an API that records requests.

    `in_turn` makes writes wait for each other, so that the records of all clients have the order of the store.
    """

    by: str
    upstream: Upstream
    records: list[Exchange]
    in_turn: asyncio.Lock | None = None
    api: str = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Recorder]:
        """Serve on all addresses of this network namespace."""
        connector = aiohttp.TCPConnector(ssl=self.upstream.trust, limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
            self._session = session
            app = web.Application(client_max_size=2**23)
            app.router.add_route("*", "/{path:.*}", self._forward)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
            await runner.setup()
            try:
                site = web.TCPSite(runner, "0.0.0.0", 0)
                await site.start()
                self._port = runner.addresses[0][1]
                yield self
            finally:
                await runner.cleanup()

    def kubeconfig(self, file: Path, host: str = "127.0.0.1") -> Path:
        """Write the client's kubeconfig."""
        content = {
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "c", "cluster": {"server": f"http://{host}:{self._port}"}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        }  # fmt: skip
        file.write_text(yaml.safe_dump(content))
        return file

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        content = await request.read()
        waits = self.in_turn is not None and request.method != "GET"
        async with self.in_turn if waits and self.in_turn is not None else contextlib.nullcontext():
            headers = {name: request.headers[name] for name in ("Accept", "Content-Type") if name in request.headers}
            headers["Authorization"] = f"Bearer {self.upstream.token}"
            url = self.upstream.url + request.path_qs
            async with self._session.request(request.method, url, data=content or None, headers=headers) as answer:
                if request.query.get("watch") == "true":
                    self._record(request, content, answer.status, b"")
                    return await _stream(request, answer)
                body = await answer.read()
                self._record(request, content, answer.status, body)
                return web.Response(status=answer.status, body=body, headers=_content_type(answer))

    def _record(self, request: web.Request, content: bytes, status: int, answer: bytes) -> None:
        kind = request.headers.get("Content-Type", "")
        body = json.loads(content) if content.startswith((b"{", b"[")) else None
        message = str(json.loads(answer).get("message", "")) if status >= 400 and answer.startswith(b"{") else ""
        self.records.append(
            Exchange(self.by, request.method, request.path, dict(request.query), kind, body, status, message, self.api)
        )


def _content_type(answer: aiohttp.ClientResponse) -> dict[str, str]:
    """Return the header with its parameters: by them, client-go tells the two forms of discovery apart."""
    return {name: answer.headers[name] for name in ("Content-Type", "Warning") if name in answer.headers}


async def _stream(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, headers=_content_type(answer))
    await response.prepare(request)
    with contextlib.suppress(ConnectionError, aiohttp.ClientError):
        async for piece in answer.content.iter_any():
            await response.write(piece)
    return response


def is_ours(exchange: Exchange) -> bool:
    """Return True for a request to one of the groups that this project serves."""
    return exchange.path.startswith((f"/apis/{GROUP}/", f"/apis/{RUFIO_GROUP}/"))


def recorded(exchange: Exchange) -> Raw:
    """Return a write as the recording has it: without empty fields, and without the version it was decided from."""
    body = exchange.body
    if exchange.method == "PATCH" and isinstance(body, dict):
        metadata = {key: value for key, value in body.get("metadata", {}).items() if key != "resourceVersion"}
        body = {key: value for key, value in {**body, "metadata": metadata}.items() if key != "metadata" or value}
    return {key: value for key, value in {**asdict(exchange), "body": body}.items() if value}


# --- programs ---------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def running_manager(
    program: Path, flags: Sequence[str], recorder: Recorder, directory: Path, number: int
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a manager against the API of a recorder. Its log is the file `manager.log` of the new directory.

    Each manager listens on port 9443 of all addresses, so it gets a network namespace of its own, with loopback and
    one link to ours. `number` is that of the link.
    """
    certificates = directory / "k8s-webhook-server" / "serving-certs"
    certificates.mkdir(parents=True)
    chain, key = Authority(directory).sign("webhook", x509.DNSName("localhost"))
    shutil.copy(chain, certificates / "tls.crt")
    shutil.copy(key, certificates / "tls.key")
    kubeconfig = recorder.kubeconfig(directory / "kubeconfig", f"10.99.{number}.1")
    # Each flag of the manager is also a variable of the environment, so it gets no other variables than these.
    variables = {"KUBECONFIG": kubeconfig, "TMPDIR": directory, "HOME": directory}
    script = 'ip link set lo up; read _; exec env -i "$@"'
    command = [
        "unshare",
        "--net",
        "sh",
        "-c",
        script,
        "sh",
        *(f"{key}={value}" for key, value in variables.items()),
    ]
    with (directory / "manager.log").open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, str(program), *flags, stdin=subprocess.PIPE, stdout=output, stderr=output, cwd=directory
        )
        try:
            ours = Path("/proc/self/ns/net").readlink()
            await until(lambda: Path(f"/proc/{process.pid}/ns/net").readlink() != ours)
            _link(process.pid, number)
            assert process.stdin is not None
            process.stdin.write(b"\n")
            await process.stdin.drain()
            yield process
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


def _link(pid: int, number: int) -> None:
    """Connect the network namespace of a process with ours: 10.99.N.1 is here, 10.99.N.2 there."""
    inside = ["nsenter", "-t", str(pid), "-n"]
    for command in (
        ["ip", "link", "add", f"capt{number}", "type", "veth", "peer", "name", "capt", "netns", str(pid)],
        ["ip", "address", "add", f"10.99.{number}.1/24", "dev", f"capt{number}"],
        ["ip", "link", "set", f"capt{number}", "up"],
        [*inside, "ip", "address", "add", f"10.99.{number}.2/24", "dev", "capt"],
        [*inside, "ip", "link", "set", "capt", "up"],
    ):
        subprocess.run(command, check=True)


async def clusterctl_move(program: Path, source: Recorder, target: Recorder, directory: Path) -> str:
    """Move all clusters of the namespace `default`. Returns the output. Raises AssertionError if the command fails."""
    command = [
        str(program), "move", "--namespace", "default", "-v", "5",
        "--kubeconfig", str(source.kubeconfig(directory / "source.kubeconfig")),
        "--to-kubeconfig", str(target.kubeconfig(directory / "target.kubeconfig")),
    ]  # fmt: skip
    environment = {"HOME": str(directory), "CLUSTERCTL_DISABLE_VERSIONCHECK": "true", "PATH": os.environ["PATH"]}
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=directory
    )
    output, _ = await process.communicate()
    text = output.decode(errors="replace")
    assert process.returncode == 0, f"clusterctl move: exit status {process.returncode}: {text[-3000:]}"
    return text
