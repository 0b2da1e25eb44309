"""The servers for machines: all of them follow changes of Hardware, and the fast path can be disabled."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from edge.callers import Callers
from edge.journey.recorder import Journey
from edge.machines import Inventory, PendingWorkflows, no_api
from edge.neighbour.host import Network, NetworkState
from edge.neighbour.links import HostLink
from edge.peers.messages import Edge
from edge.run.boot_settings import Authorities
from edge.run.boot_watch import BootWatch
from edge.run.context import Context, Tasks
from edge.run.networks.follow import HostNetworks
from edge.run.readiness import ApiContact, Readiness
from edge.run.serving import MachineServers
from edge.settings.model import EDGE, EdgeSettings, StackSettings
from ipxe.scripts import EdgeOrigin
from tests.interop.authority import Authority
from tests.support import objects
from tests.support.informer import InMemoryInformer
from tests.support.objects import MAC
from tink.api.v1alpha2 import Raw
from tink.files.rereading import reread_all
from tink.kube.resources import OSIE
from tink.server import ServerSettings

IP = "127.0.0.5"
LINK = HostLink("eth1", 7, up=True, carrier=True, mtu=1500, addresses=(IPv4Interface("10.0.0.1/24"),))

Make = Callable[..., MachineServers]


def hardware(word: str) -> Raw:
    rest = {"osie": {"name": "lab"}, "kernelParams": [word], "instance": {"userdata": word}}
    return objects.hardware("m1", MAC, IP, dhcp={"netmask": "255.0.0.0"}, **rest)


@pytest.fixture
def inventory() -> Inventory:
    return Inventory()


@pytest.fixture
async def make(tmp_path: Path, inventory: Inventory) -> AsyncIterator[Make]:
    """Everything at the edge, made and not started."""
    (tmp_path / "ipxe").mkdir()
    (tmp_path / "ipxe" / "snponly.efi").write_bytes(b"MZ")
    async with AsyncExitStack() as exit_stack:

        def serving(*, ipv6: bool = False, **edge: Any) -> MachineServers:
            served = (Network("eth1", ipv6=ipv6),)
            networks = HostNetworks(served, look=lambda _: LINK)
            exit_stack.callback(networks.close)
            journey, workflows = Journey(time.time), PendingWorkflows()
            problems: Any = None  # nothing is swept here
            boots = BootWatch(journey, inventory, workflows, networks, lambda: (), problems, (7080, 42113))
            client: Any = None  # nothing is read from the API here
            informers = {OSIE: InMemoryInformer(OSIE, [objects.osie("lab")])}
            context = Context(
                settings=StackSettings(
                    EDGE, served, data_dir=tmp_path, edge=EdgeSettings(ipxe_dir=tmp_path / "ipxe", **edge)
                ),
                exit_stack=exit_stack,
                tasks=Tasks(exit_stack),
                metrics=CollectorRegistry(),
                journey=journey,
                inventory=inventory,
                pending=workflows,
                networks=networks,
                callers=Callers(inventory),
                client=client,
                informers=informers,
                contact=ApiContact(informers.values),
            )
            return MachineServers(
                context,
                boots,
                declined=lambda _machine, _address, _until: None,
                readiness=Readiness,
                read_secret=no_api,
            )

        yield serving


async def test_all_servers_follow_a_changed_hardware(make: Make, inventory: Inventory) -> None:
    serving = make()
    app = serving.app
    assert app
    for word in ("before", "after"):
        inventory.apply(hardware(word))
        responses = app.responses(IP)
        assert responses
        assert responses.get(b"/latest/user-data").body == word.encode()  # type: ignore[union-attr]
        assert word in serving.scripts.script(MAC, EdgeOrigin("127.0.0.1"), client="iPXE")
    inventory.remove(hardware("after"))
    assert app.responses(IP) is None


async def test_scripts_name_the_other_edges_that_live(make: Make, inventory: Inventory) -> None:
    """DHCP gets their addresses too: their offers are not those of a stranger."""
    serving = make(peers=("127.0.0.99:7080",))
    assert serving.peers is not None
    inventory.apply(hardware("w"))
    serving.peers.place([("127.0.0.1", "127.0.0.0/8")])
    reported: list[tuple[frozenset[str], frozenset[str]]] = []
    (services,) = serving._services.values()
    assert services.responder is not None
    services.responder.peers_changed = lambda *peers: reported.append(peers)  # type: ignore[method-assign]

    def script() -> str:
        return serving.scripts.script(MAC, EdgeOrigin("127.0.0.1"), client="iPXE")

    assert "127.0.0.99" not in script()
    other = {"id": "f" * 32, "places": [{"address": "127.0.0.99", "network": "127.0.0.0/8"}], "http_port": 7080}
    serving.peers._membership.heard(Edge.read(json.dumps(other).encode()), "127.0.0.99:7080")
    serving.peers._changed(*serving.peers._membership.addresses)
    assert "http://127.0.0.99:7080/osie/" in script()
    serving.peers._membership.lost("127.0.0.99:7080")
    serving.peers._changed(*serving.peers._membership.addresses)
    assert "127.0.0.99" not in script()
    gone = frozenset({"127.0.0.99"})
    assert reported == [(gone, frozenset()), (frozenset(), gone)]


@pytest.mark.parametrize(
    ("given", "ipv6", "answers"),
    [(None, False, "iPXE"), (None, True, ""), (True, False, "all"), (True, True, "all"), (False, False, "")],
)
async def test_router_solicitations_of_ipxe_are_answered_by_default_where_no_dhcpv6_is_served(
    make: Make, monkeypatch: pytest.MonkeyPatch, given: bool | None, ipv6: bool, answers: str
) -> None:
    made: list[str] = []

    class Advertiser:
        def __init__(self, _interface: str, *_says: Any, only: Any = None, on_solicitation: Any = None) -> None:
            assert on_solicitation is not None, "what solicits is known in either case"
            made.append("all" if only is None else "iPXE")

        async def start(self) -> None: ...
        async def stop(self) -> None: ...

    monkeypatch.setattr("edge.run.serving.RouterAdvertiser", Advertiser)
    (services,) = make(ipv6=ipv6, router_advertisements=given)._services.values()
    await services.follow(NetworkState("eth1", index=7))
    assert made == ([answers] if answers else [])


async def test_edge_alone_has_no_peers_and_prepares_no_response_without_the_fast_path(
    make: Make, inventory: Inventory
) -> None:
    serving = make(fast_path=False)
    assert serving.peers is None
    assert serving.cache
    assert serving.cache.peers is None
    inventory.apply(hardware("w"))
    assert serving.app
    assert serving.app.responses(IP) is None


async def test_authorities_that_are_bad_are_read_again_and_what_was_good_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good, ca, other = Authority(tmp_path).file.read_bytes(), tmp_path / "ca.pem", tmp_path / "other.pem"
    ca.write_bytes(good)
    server = ServerSettings(tls_ca=tmp_path / "agents.pem")
    edge = EdgeSettings(registry_cas=(("one:5000", ca), ("two:5000", other)))
    changes: list[str] = []
    made = Authorities(StackSettings(EDGE, server=server, edge=edge), lambda: changes.append("changed"))
    try:
        assert made.is_encrypted
        assert (made.tls_ca, [*json.loads(made.registries)]) == (b"", ["one:5000"])
        assert f"{tmp_path}/agents.pem: No such file or directory; machines boot without it" in caplog.text
        assert not made.reread()
        assert changes == []
        (tmp_path / "agents.pem").write_bytes(good)
        other.write_bytes(good)
        ca.write_bytes(b"half")
        assert not made.reread()
        assert (made.tls_ca, [*json.loads(made.registries)]) == (good, ["one:5000", "two:5000"])
        ca.write_bytes(good)
        assert made.reread()
        assert changes == ["changed"]
    finally:
        made.close()


async def test_boot_programs_that_come_later_are_read_and_machines_get_them(make: Make, tmp_path: Path) -> None:
    program = tmp_path / "ipxe" / "snponly.efi"
    program.unlink()
    serving = make()
    assert "has no boot file" in serving.binaries.problem
    program.write_bytes(b"MZ")
    reread_all()
    assert serving.binaries.problem == ""
