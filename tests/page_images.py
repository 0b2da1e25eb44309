"""The screenshots in docs/images, taken of a made-up rack: `python -m tests.page_images docs/images`.

Needs Debian's chromium-headless-shell: `deploy/setup.sh packages test`.
"""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from tests.interop.test_page import PROGRAM, Page, becomes, tab
from tests.page_site import PageSite, populate
from tests.waiting import PATIENCE_SECONDS, wait_until

DESK: Final = {"width": 1280, "height": 860, "deviceScaleFactor": 1, "mobile": False}
TALL: Final = DESK | {"height": 1720}
PHONE: Final = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
IMAGES: Final[dict[str, tuple[str, dict[str, Any], bool]]] = {
    "page-rack": ("/?q=node-3", DESK, False),
    "page-machine": ("/machine/{node-38}", DESK, False),
    "page-workflow": ("/machine/{node-36}", TALL, False),
    "page-phone": ("/", PHONE, True),
}
"""The content of each file: the path ({NAME}: the MAC of a machine), the screen, and whether it is dark."""


_READY: Final = (
    "document.readyState === 'complete' && document.fonts.status === 'loaded'"
    " && document.getElementById('live').className === 'live'"
)
"""The page is whole and follows the edge."""


async def take(page: Page, path: str, screen: dict[str, Any], file: Path, *, dark: bool, whole: bool = False) -> None:
    """Write one screenshot."""
    media = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    await page.send("Emulation.setEmulatedMedia", features=media)
    await page.send("Emulation.setDeviceMetricsOverride", **screen)
    await page.go(path)
    await becomes(page, _READY)
    shot = await page.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
    file.write_bytes(base64.b64decode(shot["data"]))


async def take_all(devtools: str, directory: Path, images: dict[str, tuple[str, dict[str, Any], bool]]) -> None:
    """Write every screenshot into a directory."""
    site = PageSite()
    macs = populate(site, time.time())
    site.follows_time = True
    async with site.served() as operator:
        async with operator.get("/api/v1/page-code") as response:
            code = (await response.json())["code"]
        async with tab(devtools, str(operator._base_url).rstrip("/")) as page:
            await page.go(f"/enter?code={code}")
            for name, (path, screen, dark) in images.items():
                await take(page, path.format_map(macs), screen, directory / f"{name}.png", dark=dark)


def main(directory: Path, images: dict[str, tuple[str, dict[str, Any], bool]]) -> None:
    """Start a browser, take the screenshots, end the browser."""
    program = shutil.which(PROGRAM)
    if program is None:
        sys.exit(f"there is no {PROGRAM}: deploy/setup.sh packages test")
    with tempfile.TemporaryDirectory() as profile:
        process = subprocess.Popen(
            [program, "--no-sandbox", "--remote-debugging-port=0", f"--user-data-dir={profile}", "--disable-gpu",
             "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            port = Path(profile) / "DevToolsActivePort"
            wait_until(lambda: port.exists() and port.read_text().count("\n") >= 1, "chromium does not start")
            asyncio.run(take_all("http://127.0.0.1:" + port.read_text().partition("\n")[0], directory, images))
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE_SECONDS)


if __name__ == "__main__":
    main(Path(sys.argv[1]), IMAGES)
