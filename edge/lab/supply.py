"""What the rack's operator already has: a registry with the action images, and a web server with OSIE and disk images.

The registry is Debian's `docker-registry`, filled with skopeo; the web server (the "depot") is what the OSIE's URLs
and the image URL of the Template point at. Both listen on the rack's own address only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
from aiohttp import web

from edge.building.builder import Artifacts, recipes
from edge.building.shell import CommandError, Daemon, run
from tink.net.addresses import join_host_port

REGISTRY_PORT = 5000
DEPOT_PORT = 8080


class Registry:
    """A private container registry at `address`:5000; its images stay in `storage` for the next lab."""

    def __init__(self, address: str, storage: Path, directory: Path) -> None:
        self._listening = join_host_port(address, REGISTRY_PORT)
        self._storage = storage
        self._config = directory / "registry.yml"
        self._log = directory / "registry.log"
        self._daemon: Daemon | None = None
        # skopeo of Debian 12 knows no IPv6 address as a registry, so that one is filled by way of loopback.
        self.authority = f"localhost:{REGISTRY_PORT}" if ":" in address else self._listening

    async def start(self, artifacts: Artifacts) -> None:
        """Start it and make sure that it holds the action images. Raises CommandError."""
        self._storage.mkdir(parents=True, exist_ok=True)
        listening = self._listening if self.authority == self._listening else f":{REGISTRY_PORT}"
        self._config.write_text(
            "version: 0.1\n"
            "log: {level: info, accesslog: {disabled: true}}\n"
            f"storage: {{filesystem: {{rootdirectory: {self._storage}}}, delete: {{enabled: true}}}}\n"
            f"http: {{addr: '{listening}'}}\n"
        )
        self._daemon = await Daemon.start("registry", ["docker-registry", "serve", self._config], self._log)
        await self._answering()
        filled = self._storage / "made-from"
        if not filled.is_file() or filled.read_text() != artifacts.actions_digest:
            push = recipes() / "actions" / "push.sh"
            await run(["bash", push, artifacts.actions, self.authority], timeout=120)
            filled.write_text(artifacts.actions_digest)

    async def stop(self) -> None:
        """End it."""
        if self._daemon is not None:
            await self._daemon.stop()
            self._daemon = None

    async def _answering(self) -> None:
        assert self._daemon is not None  # noqa: S101 - for the type checker; start() has set it
        async with aiohttp.ClientSession() as session:
            for _ in range(200):
                if self._daemon.returncode is not None:
                    raise CommandError(f"docker-registry ended: {self._daemon.log_tail(5)}")
                try:
                    async with session.get(f"http://{self.authority}/v2/") as response:
                        if response.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.05)
        raise CommandError(f"docker-registry does not answer on {self.authority}: {self._daemon.log_tail(5)}")


class Depot:
    """A web server at `address`:8080 with `/osie/kernel`, `/osie/initrd` and `/images/<name>`."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._runner: web.AppRunner | None = None

    async def start(self, artifacts: Artifacts) -> None:
        """Start serving. Raises OSError if the port is taken."""
        app = web.Application()
        app.router.add_get("/osie/kernel", _file(artifacts.kernel))
        app.router.add_get("/osie/initrd", _file(artifacts.initrd))
        app.router.add_static("/images", artifacts.image.parent)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._address, DEPOT_PORT).start()

    async def stop(self) -> None:
        """Stop serving."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None


def _file(path: Path) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def serve(_: web.Request) -> web.StreamResponse:
        return web.FileResponse(path)

    return serve
