"""The embedded API from another host: users with real kubectls, and unauthenticated clients."""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.interop.conftest import Kubectl, Network, Program
from tests.interop.rack import tinkedge
from tests.waiting import PATIENCE_SECONDS, wait_until

URL = f"https://{Network.server_ip}:6443"
TEMPLATE = """
apiVersion: tinkerbell.org/v1alpha2
kind: Template
metadata: {name: debian}
spec: {actions: [{name: stream, image: "image2disk:1"}]}
"""
OLD = "apiVersion: tinkerbell.org/v1alpha1\nkind: Hardware\nmetadata: {name: old}\nspec: {}\n"


class Site:
    """`tinkedge apiserver` on one host, and users of it on another."""

    def __init__(self, network: Network, directory: Path) -> None:
        self.network = network
        self.data = directory / "data"
        words = ("apiserver", "--config=/dev/null", "--data-dir", self.data, "--api-address", network.server_ip)
        self.process = tinkedge(directory, *words, namespace=network.server)

    def run_tinkedge(self, *words: str) -> None:
        """Run `tinkedge WORDS` and check that it succeeds."""
        ran = tinkedge(self.data.parent, *words, "--data-dir", self.data, namespace=self.network.server)
        assert ran.status() == 0, ran.err

    def kubeconfig(self, user: str, *words: str) -> Path:
        path = self.data.parent / f"{user}.kubeconfig"
        self.run_tinkedge("kubeconfig", "--config=/dev/null", "--user", user, f"--out={path}", "--server", URL, *words)
        return path

    def requests(self) -> list[str]:
        """Return the log lines about requests."""
        return [line for line in self.process.err.splitlines() if "tink.kubeapi.apiserver.http" in line]


@pytest.fixture
def site(network: Network, tmp_path: Path) -> Iterator[Site]:
    network.give_client_its_address()
    site = Site(network, tmp_path)
    try:
        wait_until(lambda: "ready: apiserver" in site.process.err, lambda: site.process.err)
        yield site
    finally:
        site.process.end()


@pytest.fixture
def connect(site: Site, program: Program, tmp_path: Path) -> Callable[[Path], Kubectl]:
    """Return a function that makes a kubectl on the other host for a kubeconfig."""

    def make(kubeconfig: Path) -> Kubectl:
        home = tmp_path / f"home-{kubeconfig.stem}"
        home.mkdir()
        found = Kubectl(program, kubeconfig, home)
        found._command = ["ip", "netns", "exec", site.network.client, *found._command]
        return found

    return make


async def test_users_on_another_host_have_the_rights_of_their_roles(
    site: Site, connect: Callable[[Path], Kubectl]
) -> None:
    kubeconfig = site.kubeconfig("alice", "--role=edit")
    alice = connect(kubeconfig)
    bob = connect(site.kubeconfig("bob", "--role=view", "--namespace=default"))
    assert (await alice("apply", "-f", "-", stdin=TEMPLATE)).strip() == "template.tinkerbell.org/debian created"
    assert "debian" in await bob("get", "templates")
    assert (await bob("auth", "can-i", "get", "workflows")).strip() == "yes"
    assert (await bob.run("auth", "can-i", "create", "workflows")).out.strip() == "no"
    if bob.minor >= 28:
        assert re.search(r"Username\s+bob", await bob("auth", "whoami"))
    for words, expected in (
        (
            ("delete", "template", "debian"),
            'Error from server (Forbidden): templates.tinkerbell.org "debian" is forbidden: User "bob" cannot delete '
            'resource "templates" in API group "tinkerbell.org" in the namespace "default"',
        ),
        (("label", "template", "debian", "a=b"), 'User "bob" cannot patch resource "templates"'),
        (("get", "secrets"), 'secrets is forbidden: User "bob" cannot list resource "secrets" in API group ""'),
        (("get", "templates", "-A"), 'User "bob" cannot list resource "templates" in API group "tinkerbell.org" at'),
        (("--as=admin", "get", "templates"), 'User "bob" cannot impersonate resource "users"'),
    ):
        ran = await bob.run(*words)
        assert (ran.code, expected in ran.err) == (1, True), ran.err
    # The rights are those of the resource, in either version.
    assert (await alice("apply", "-f", "-", stdin=OLD)).startswith("hardware.tinkerbell.org/old ")
    assert "old" in await bob("get", "hardware.v1alpha1.tinkerbell.org")
    ran = await bob.run("delete", "hardware.v1alpha1.tinkerbell.org", "old")
    assert (ran.code, 'User "bob" cannot delete resource "hardware"' in ran.err) == (1, True), ran.err
    assert any("alice from 10.77.6.50: create templates.tinkerbell.org default/debian: created" in line for line in
               site.requests())  # fmt: skip
    # Revocation also closes the user's open connections at once.
    watch = await alice.start("get", "templates", "--watch", "--request-timeout=0")
    assert watch.stdout is not None
    for _ in range(2):
        await asyncio.wait_for(watch.stdout.readline(), PATIENCE_SECONDS)
    site.run_tinkedge("users", "revoke", "alice")
    await asyncio.wait_for(watch.wait(), PATIENCE_SECONDS)
    ran = await alice.run("get", "templates")
    assert (ran.code, "You must be logged in to the server" in ran.err) == (1, True), ran.err
    token = yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"]
    assert token.rpartition(".")[2] not in site.process.err


# --- unauthenticated clients ---

STRANGERS = "10.77.6.66"
"""The addresses of the unauthenticated clients; the user has another address."""
SECONDS = 3.0


def test_unauthenticated_clients_neither_block_a_user_nor_fill_memory_or_the_log(site: Site) -> None:
    """Wrong tokens on many connections, as fast as possible; silent connections, and incomplete handshakes."""
    kubeconfig = yaml.safe_load(site.kubeconfig("alice", "--role=view").read_text())
    site.network.add_address(site.network.client, "eth0", f"{STRANGERS}/24")
    before = _memory(site.process.popen.pid)
    served, refused = site.network.inside(site.network.client, lambda: asyncio.run(_storm(kubeconfig)))
    assert refused > 100
    assert served >= 2, "each was answered, or it had raised"
    grown = _memory(site.process.popen.pid) - before
    assert grown < 64 << 20, f"{grown >> 20} MiB"
    assert len([line for line in site.requests() if "401" in line]) <= 25


def _memory(pid: int) -> int:
    match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match[1]) << 10


async def _storm(kubeconfig: Any) -> tuple[int, int]:
    """Return how many of the user's requests were served, and how many of the other clients' were rejected."""
    cluster, token = kubeconfig["clusters"][0]["cluster"], kubeconfig["users"][0]["user"]["token"]
    trust = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    patience = aiohttp.ClientTimeout(total=20)
    end = time.monotonic() + SECONDS
    served = refused = 0

    async def guess(session: aiohttp.ClientSession, number: int) -> None:
        nonlocal refused
        wrong = {"Authorization": f"Bearer {token[:17]}.{number:043}"}
        while time.monotonic() < end:
            try:
                async with session.get(f"{URL}/api/v1/namespaces/{number}", headers=wrong) as answer:
                    refused += answer.status == 401
            except aiohttp.ClientError:
                await asyncio.sleep(0.05)

    async def connect_and_wait(start: bytes) -> None:
        while time.monotonic() < end:
            try:
                _, writer = await asyncio.open_connection(Network.server_ip, 6443, local_addr=(STRANGERS, 0))
                writer.write(start)
                await asyncio.sleep(0.5)
                writer.close()
            except OSError:
                await asyncio.sleep(0.05)

    connector = aiohttp.TCPConnector(ssl=trust, limit=0, local_addr=(STRANGERS, 0))
    async with aiohttp.ClientSession(connector=connector, timeout=patience) as strangers:
        attacks = [asyncio.create_task(guess(strangers, number)) for number in range(60)]
        attacks += [asyncio.create_task(connect_and_wait(b"")) for _ in range(150)]
        attacks += [asyncio.create_task(connect_and_wait(b"\x16\x03\x01\x02\x00\x01")) for _ in range(50)]
        right = {"Authorization": f"Bearer {token}"}
        while time.monotonic() < end:
            async with (
                aiohttp.ClientSession(timeout=patience, headers=right) as session,
                session.get(f"{URL}/api/v1/namespaces", ssl=trust) as answer,
            ):
                assert answer.status == 200
            served += 1
            await asyncio.sleep(0.1)
        await asyncio.gather(*attacks)
    return served, refused
