"""Idle connections of a local user without the token must not keep the operator, and the controllers, from the API."""

from __future__ import annotations

import asyncio
import base64
import resource
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.ports import free_port, listens

DESCRIPTORS = 512


@pytest.fixture
def api(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """`tinkedge apiserver` with few descriptors: its kubeconfig."""

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))

    port = free_port()
    command = [
        sys.executable,
        "-m",
        "edge.cli",
        "apiserver",
        "--data-dir",
        str(tmp_path / "data"),
        "--api-port",
        str(port),
    ]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=few)
    try:
        kubeconfig = tmp_path / "data" / "kubeconfig"
        deadline = time.monotonic() + 60
        while not (kubeconfig.exists() and listens(port)):
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline, f"no API within a minute: {(tmp_path / 'log').read_text()}"
            time.sleep(0.05)
        yield yaml.safe_load(kubeconfig.read_text())
        assert process.poll() is None, (tmp_path / "log").read_text()
    finally:
        process.terminate()
        process.wait(20)


async def test_operator_is_served_beside_more_idle_connections_than_there_are_descriptors(api: dict[str, Any]) -> None:
    cluster, token = api["clusters"][0]["cluster"], api["users"][0]["user"]["token"]
    trust = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    host, _, port = cluster["server"].removeprefix("https://").rpartition(":")
    writers: list[asyncio.StreamWriter] = []
    try:
        for _ in range(DESCRIPTORS + 200):
            async with asyncio.timeout(20):
                _, writer = await asyncio.open_connection(host, int(port))
            writers.append(writer)
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session,
            session.get(
                f"{cluster['server']}/api/v1/namespaces", ssl=trust, headers={"Authorization": f"Bearer {token}"}
            ) as answer,
        ):
            assert answer.status == 200
    finally:
        for writer in writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
