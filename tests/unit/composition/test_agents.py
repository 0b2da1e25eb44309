"""Where the gRPC server listens, when an address may be another host's for now."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from ipaddress import IPv4Address
from typing import Any

import pytest

from edge.composition.networks import agents
from edge.composition.networks.agents import AgentsAddresses
from tests.waiting import until

VIP = "192.0.2.250"


class Host:
    """Addresses that come and go, and who is told of it."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = set(addresses)
        self.listened: list[list[str]] = []
        self.refuses = 0
        self.changed: Any = None

    def owned(self, address: IPv4Address) -> bool:
        return str(address) in self.addresses

    async def listen_at(self, addresses: Collection[str]) -> None:
        if self.refuses:
            self.refuses -= 1
            raise OSError(98, "Address already in use")
        self.listened.append(list(addresses))

    def tells(self, changed: Any) -> Host:
        self.changed = changed
        return self

    def close(self) -> None:
        self.changed = None


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    host = Host("10.0.0.1")
    monkeypatch.setattr(agents, "LinkChanges", host.tells)
    monkeypatch.setattr(agents, "_RETRY_SECONDS", 0.01)
    return host


async def test_address_is_listened_at_when_it_comes_and_kept_when_it_goes(host: Host) -> None:
    follow = AgentsAddresses(["10.0.0.1", VIP], 42113, host.owned)
    assert follow.listening == ["10.0.0.1:42113"]
    assert follow.note == f"{VIP} is not here: agents find it on another host"
    running = asyncio.create_task(follow.run(host))  # type: ignore[arg-type] # stands in for the server
    await until(lambda: host.changed)
    host.addresses.add(VIP)
    host.changed()
    await until(lambda: host.listened == [["10.0.0.1:42113", f"{VIP}:42113"]])
    assert follow.note == ""
    host.addresses.discard(VIP)
    host.changed()
    await until(lambda: follow.note)
    host.addresses.add(VIP)
    host.changed()
    await until(lambda: not follow.note)
    assert len(host.listened) == 1, "who listened at an address hears again when it is back"
    running.cancel()


async def test_port_that_somebody_has_is_tried_again(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    follow = AgentsAddresses([VIP], 42113, host.owned)
    running = asyncio.create_task(follow.run(host))  # type: ignore[arg-type] # stands in for the server
    await until(lambda: host.changed)
    host.addresses.add(VIP)
    host.refuses = 3
    host.changed()
    await until(lambda: host.listened == [[f"{VIP}:42113"]])
    assert "agents can't be served at all addresses: Address already in use" in caplog.text
    running.cancel()


def test_all_addresses_are_always_here() -> None:
    six = AgentsAddresses(["::", "fd00::1", "fd00::2"], 42113, Host("fd00::1").owned)
    assert six.listening == ["[::]:42113", "[fd00::1]:42113"]
    follow = AgentsAddresses(["0.0.0.0"], 42113, Host().owned)
    assert (follow.listening, follow.note) == (["0.0.0.0:42113"], "")
