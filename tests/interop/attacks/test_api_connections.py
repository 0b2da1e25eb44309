"""Idle connections of a local user without the token must not keep the operator, and the controllers, from the API."""

from __future__ import annotations

import asyncio
import base64
import resource
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.ports import free_port, listens
from tests.waiting import PATIENCE_SECONDS, wait_until

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
    with (tmp_path / "log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, preexec_fn=few)
    try:
        kubeconfig = tmp_path / "data" / "kubeconfig"
        log = tmp_path / "log"
        wait_until(lambda: process.poll() is not None or (kubeconfig.exists() and listens(port)), log.read_text)
        assert process.poll() is None, log.read_text()
        yield yaml.safe_load(kubeconfig.read_text())
        assert process.poll() is None, (tmp_path / "log").read_text()
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


async def test_operator_is_served_beside_more_idle_connections_than_there_are_descriptors(api: dict[str, Any]) -> None:
    cluster, token = api["clusters"][0]["cluster"], api["users"][0]["user"]["token"]
    trust = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    host, _, port = cluster["server"].removeprefix("https://").rpartition(":")
    writers: list[asyncio.StreamWriter] = []
    try:
        for _ in range(DESCRIPTORS + 200):
            async with asyncio.timeout(PATIENCE_SECONDS):
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
