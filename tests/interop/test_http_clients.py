"""Programs that fetch from the machines' HTTP server as firmware, installers and operators do.

curl, wget, busybox and Python, as processes of their own; the server runs in this one, on loopback. iPXE and UEFI are
in tests/boot.
"""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import os
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from edge.artifacts.cache import ArtifactCache
from edge.artifacts.upstream import Timeouts
from edge.callers import Callers, token_keys
from edge.http.app import MachineApp, machine_runner
from edge.http.context import HttpServices, MetadataSettings
from edge.journey.recorder import Journey
from edge.machines import Inventory, MachineScripts, NetbootPolicy, OsieFiles
from ipxe.binaries import BootBinaries
from ipxe.scripts import BootSettings, Scripts
from tests.support import objects
from tests.waiting import PATIENCE_SECONDS

MAC = "52:54:00:00:00:01"
KERNEL, INITRD = os.urandom(3_000_000), os.urandom(20_000_001)


@dataclass
class Edge:
    url: str
    port: int
    home: Path

    async def run(self, *command: str, status: int = 0) -> str:
        """Run a client in `home`; gives what it printed on both channels."""
        process = await asyncio.create_subprocess_exec(
            *command, cwd=self.home, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode == status, output.decode(errors="replace")
        return output.decode(errors="replace")

    def got(self, name: str) -> bytes:
        return (self.home / name).read_bytes()


@pytest.fixture
async def edge(tmp_path: Path) -> AsyncIterator[Edge]:
    files, home = tmp_path / "osie", tmp_path / "home"
    for directory in (files, home, tmp_path / "boot"):
        directory.mkdir()
    (files / "vmlinuz").write_bytes(KERNEL)
    (files / "initrd").write_bytes(INITRD)
    (tmp_path / "boot" / "snponly.efi").write_bytes(b"MZ" + os.urandom(200_000))
    cache = ArtifactCache(tmp_path / "artifacts", file_root=files, timeouts=Timeouts(connect=1, silence=1))
    await cache.start()
    inventory = Inventory()
    instance = {"userdata": "#cloud-config\n"}
    dhcp = {"hostname": "m1"}
    inventory.apply(objects.hardware("m1", MAC, "127.0.0.1", dhcp=dhcp, osie={"name": "lab"}, instance=instance))
    urls = {"kernelUrl": (files / "vmlinuz").as_uri(), "initrdUrl": (files / "initrd").as_uri()}
    lab = objects.osie("lab", **urls)

    def osie(_namespace: str, name: str) -> dict[str, Any] | None:
        return lab if name == "lab" else None

    policy, record = NetbootPolicy(), Journey(time.time).record
    app = MachineApp(
        HttpServices(
            inventory=inventory,
            callers=Callers(inventory),
            policy=policy,
            scripts=MachineScripts(inventory, policy, osie, Scripts(BootSettings()), record),
            osie_files=OsieFiles(osie, cache),
            binaries=BootBinaries(tmp_path / "boot"),
            record=record,
            metadata=MetadataSettings(token_keys(tmp_path, None, create=True)),
        )
    )
    runner = machine_runner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    yield Edge(f"http://127.0.0.1:{port}", port, home)
    await runner.cleanup()
    await cache.stop()


@pytest.mark.smoke
async def test_curl_gets_every_file_over_one_connection(edge: Edge) -> None:
    urls = [edge.url + path for path in ("/osie/lab/kernel", "/osie/lab/initrd", "/latest/meta-data/instance-id")]
    output = await edge.run("curl", "-sSfv", *(word for n, url in enumerate(urls) for word in ("-o", f"f{n}", url)))
    assert (edge.got("f0"), edge.got("f1"), edge.got("f2")) == (KERNEL, INITRD, b"m1")
    again = re.findall(r"^\* (?:Re-using|Reusing) existing (?:http: )?connection", output, re.MULTILINE)
    assert len(again) == 2, output


async def test_head_has_the_headers_of_get(edge: Edge) -> None:
    head = await edge.run("curl", "-sSfI", f"{edge.url}/osie/lab/initrd")
    for line in (rf"content-length: {len(INITRD)}", "accept-ranges: bytes", 'etag: "[^"]+"'):
        assert re.search(rf"^{line}\r$", head, re.M | re.I)
    head = await edge.run("curl", "-sSfI", f"{edge.url}/ipxe/binary/snponly.efi")
    assert re.search(r"^content-type: application/efi\r$", head, re.M | re.I)  # EDK2 compares the whole of it


async def test_curl_gets_ranges_and_the_whole_for_several(edge: Edge) -> None:
    url = f"{edge.url}/osie/lab/kernel"
    for wanted, expected in (
        ("0-0", KERNEL[:1]),
        ("100-199", KERNEL[100:200]),
        ("-7", KERNEL[-7:]),
        ("2999999-", KERNEL[-1:]),
        ("0-1,5-6", KERNEL),
    ):
        await edge.run("curl", "-sSf", "-r", wanted, "-o", "part", url)
        assert edge.got("part") == expected, wanted
    output = await edge.run("curl", "-sS", "-D", "-", "-r", "3000000-", url)
    assert " 416 " in output
    assert "bytes */3000000" in output


async def test_curl_with_the_current_etag_receives_no_file(edge: Edge) -> None:
    url = f"{edge.url}/osie/lab/kernel"
    await edge.run("curl", "-sSf", "--etag-save", "tag", "-o", "kernel", url)
    await edge.run("curl", "-sSf", "--etag-compare", "tag", "-o", "again", url)
    assert edge.got("kernel") == KERNEL
    again = edge.home / "again"
    assert not again.exists() or again.read_bytes() == b""


async def test_curl_reports_as_cloud_init_with_a_form_and_shows_the_reason_of_a_refusal(edge: Edge) -> None:
    output = await edge.run("curl", "-sS", "-w", "%{http_code}", f"{edge.url}/osie/other/kernel")
    assert output == "OSIE default/other does not exist\n404"
    output = await edge.run("curl", "-sSf", "-d", "hostname=m1&pub_key_rsa=x", f"{edge.url}/phone-home/m1")
    assert output == "thank you\n"
    output = await edge.run("curl", "-sS", "-F", "x=y", "-H", "Expect: 100-continue", f"{edge.url}/phone-home/m1")
    assert "must be a form" in output


CURL, WGET, BUSYBOX = ("curl", "-sSf"), ("wget", "-q"), ("busybox", "wget", "-q")
SMOKE = [(*WGET, "-O"), (*BUSYBOX, "-O"), (*WGET, "--no-http-keep-alive", "-O")]
WHOLE = [(*CURL, version, "-o") for version in ("--http1.0", "--http1.1", "--http2")]
SLOWLY = (*CURL, "--limit-rate", "10M", "-o")


@pytest.mark.parametrize("command", [*(pytest.param(one, marks=pytest.mark.smoke) for one in SMOKE), *WHOLE, SLOWLY])
async def test_client_gets_the_whole_file(edge: Edge, command: tuple[str, ...]) -> None:
    await edge.run(*command, "initrd", f"{edge.url}/osie/lab/initrd")
    assert edge.got("initrd") == INITRD


@pytest.mark.parametrize("command", [(*CURL, "-C", "-", "-o"), (*WGET, "-c", "-O"), (*BUSYBOX, "-c", "-O")])
async def test_client_resumes_a_broken_download(edge: Edge, command: tuple[str, ...]) -> None:
    (edge.home / "initrd").write_bytes(INITRD[:12_345_678])
    await edge.run(*command, "initrd", f"{edge.url}/osie/lab/initrd")
    assert edge.got("initrd") == INITRD


async def test_python_sends_many_requests_on_one_connection(edge: Edge) -> None:
    def conversation() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", edge.port, timeout=PATIENCE_SECONDS)
        for path, size in (("/osie/lab/initrd", len(INITRD)), ("/osie/lab/kernel", len(KERNEL))) * 2:
            for method in ("HEAD", "GET"):
                connection.request(method, path)
                response = connection.getresponse()
                body = response.read()
                assert (response.status, int(response.headers["Content-Length"])) == (200, size)
                assert len(body) == (size if method == "GET" else 0)
        connection.close()

    await asyncio.to_thread(conversation)


async def test_twenty_curls_at_once_get_the_whole_file(edge: Edge) -> None:
    names = [f"initrd{number}" for number in range(20)]
    url = f"{edge.url}/osie/lab/initrd"
    await asyncio.gather(*(edge.run("curl", "-sSf", "-o", name, url) for name in names))
    wanted = hashlib.sha256(INITRD).digest()
    assert {hashlib.sha256(edge.got(name)).digest() for name in names} == {wanted}
