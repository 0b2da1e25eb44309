"""Debian's chromium without a screen, driven over the DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.waiting import PATIENCE_SECONDS, until

PROGRAM = "chromium-headless-shell"
_MESSAGE_BYTES = 64 << 20


class BrowserError(Exception):
    """What the page's script threw, or the browser does not do."""


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, base: str) -> None:
        self._socket = socket
        self._base = base
        self._number = 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded = asyncio.Event()
        self.troubles: list[str] = []
        """What the browser complains of: errors of scripts, and what the policy has refused."""
        self.received: dict[str, int] = {}
        """Bytes of each response, as they came."""

    async def read(self) -> None:
        """What the browser says, until it ends."""
        async for message in self._socket:
            told = json.loads(message.data)
            waiting = self._waiting.pop(told.get("id", 0), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(told)
            match told.get("method"):
                case "Page.loadEventFired":
                    self._loaded.set()
                case "Runtime.exceptionThrown":
                    self.troubles.append(str(told["params"]["exceptionDetails"].get("exception", {})))
                case "Log.entryAdded":
                    self.troubles.append(told["params"]["entry"]["text"])
                case "Network.loadingFinished":
                    self.received[told["params"]["requestId"]] = told["params"]["encodedDataLength"]

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        """One command, and its answer."""
        self._number += 1
        waiting = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_str(json.dumps({"id": self._number, "method": method, "params": params}))
        async with asyncio.timeout(PATIENCE_SECONDS):
            told = await waiting
        if "error" in told:
            raise BrowserError(f"{method}: {told['error']}")
        result: dict[str, Any] = told["result"]
        return result

    async def go(self, path: str) -> None:
        """Open a page, as one who types it."""
        self._loaded.clear()
        self.received.clear()
        await self.send("Page.navigate", url=self._base + path)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._loaded.wait()

    async def run(self, script: str) -> Any:
        """The value of a script."""
        told = await self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in told:
            raise BrowserError(told["exceptionDetails"]["exception"].get("description", script))
        return told["result"].get("value")

    async def press(self, key: str) -> None:
        """One key."""
        code = {"Tab": 9, "Enter": 13}[key]
        text = {"Enter": "\r"}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            await self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                            **({"text": text} if text and kind == "keyDown" else {}))  # fmt: skip

    async def look(self, *, dark: bool = False, width: int = 1280, height: int = 800, mobile: bool = False) -> None:
        """How it is looked at."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.send("Emulation.setEmulatedMedia", features=features)
        await self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile
        )

    async def picture(self, file: Path, *, whole: bool = False) -> None:
        """As PNG."""
        told = await self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(told["data"]))


@asynccontextmanager
async def browser(directory: Path, base: str) -> AsyncIterator[Page]:
    """A browser with nothing in it. `base` is the site, as http://ADDRESS:PORT."""
    program = shutil.which(PROGRAM)
    assert program is not None, f"there is no {PROGRAM}: deploy/setup.sh packages test"
    process = subprocess.Popen(
        [program, "--no-sandbox", "--remote-debugging-port=0", f"--user-data-dir={directory}",
         "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars", "about:blank"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        port_file = directory / "DevToolsActivePort"
        await until(lambda: port_file.exists() and port_file.read_text().count("\n") >= 1, "chromium does not start")
        port = port_file.read_text().split("\n")[0]
        async with aiohttp.ClientSession() as session:
            async with session.put(f"http://127.0.0.1:{port}/json/new?about:blank") as response:
                url = (await response.json())["webSocketDebuggerUrl"]
            async with session.ws_connect(url, max_msg_size=_MESSAGE_BYTES) as socket:
                page = Page(socket, base)
                reading = asyncio.create_task(page.read())
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await page.send(f"{domain}.enable")
                await page.look()
                try:
                    yield page
                finally:
                    reading.cancel()
    finally:
        # Debian's program is a shell script, and chromium another process with children of its own.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_SECONDS)
