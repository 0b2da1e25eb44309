"""Which edges live, who decides, where a machine can go on, and the leases by which edges find each other."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from ipaddress import IPv4Network, IPv6Network

import pytest

from edge.neighbour.host import NetworkState
from edge.peers.leases import ABANDONED_SECONDS, MAX_ADDRESSES, EdgeLeases, addresses, is_authority, lease_name
from edge.peers.membership import (
    CLAIM_SECONDS,
    LIVING_SECONDS,
    MAX_CLAIMS,
    MAX_EDGES,
    REMEMBERED_SECONDS,
    Alternative,
    Membership,
)
from edge.peers.messages import Edge, MessageError, Place, Place6
from edge.run.serving import places_of
from tests.support.api import InProcessApi
from tests.unit.artifacts.conftest import Clock
from tests.waiting import until
from tink.kube.client import UnreachableError
from tink.kube.resources import LEASE
from tink.kube.runtime import Pod, own_pod

NETWORK, NETWORK6 = "10.0.0.0/24", "fd00:77::/64"


def edge(number, *places, v4=NETWORK, v6="", server_port=42113):
    """At `places`, or in the networks `v4` and `v6` (empty: in none)."""
    places = places or (((v4.replace("0/24", str(number)), v4),) if v4 else ())
    return Edge(
        id=f"{number:032x}",
        places=tuple(Place(address=address, network=network) for address, network in places),
        places6=(Place6(address=v6.replace("/64", str(number)), network=v6),) if v6 else (),
        http_port=7080,
        server_port=server_port,
    )


def membership(clock, *numbers, own=1):
    """That of an edge which has heard those."""
    found = Membership(edge(own).id, clock)
    for number in numbers:
        found.heard(edge(number), f"10.0.0.{number}:7080")
    return found


def test_edge_is_gone_after_a_while_without_hello_and_at_once_if_its_port_refuses():
    clock = Clock()
    site = membership(clock, 2, 3)
    assert site.addresses == (frozenset({"10.0.0.2", "10.0.0.3"}), frozenset())
    site.lost("10.0.0.3:7080")
    assert site.addresses == (frozenset({"10.0.0.2"}), frozenset({"10.0.0.3"}))
    clock.now += LIVING_SECONDS
    assert site.living == []
    assert site.addresses == (frozenset(), frozenset({"10.0.0.2", "10.0.0.3"}))
    site.heard(edge(3), "10.0.0.3:7080")
    assert [peer.edge for peer in site.living] == [edge(3)]


def test_change_is_reported_once_and_an_edge_that_has_gone_is_forgotten_later():
    clock = Clock()
    site = membership(clock, 2)
    for seconds, living in ((0, True), (LIVING_SECONDS, False)):
        clock.now += seconds
        assert [(change.edge.id, change.living) for change in site.changes()] == [(edge(2).id, living)]
        assert site.changes() == []
    clock.now += REMEMBERED_SECONDS
    site.changes()
    assert site.addresses == (frozenset(), frozenset())


def test_restarted_edge_is_the_same_member():
    site = membership(Clock(), 2)
    again = edge(2).model_copy(update={"id": "f" * 32})
    site.heard(again, "10.0.0.2:7080")
    assert [peer.id for peer in site.living] == ["f" * 32]
    assert site.addresses == (frozenset({"10.0.0.2"}), frozenset())


def test_edge_that_called_gets_hello_at_its_addresses_and_no_query_before_it_was_reached():
    site = membership(Clock())
    site.heard(edge(2))
    assert site.authorities == {"10.0.0.2:7080"}
    site.heard(edge(1), "10.0.0.1:7080")  # nor is an edge another one for itself
    assert site.living == []


def test_number_of_known_edges_is_bounded():
    clock = Clock()
    site = membership(clock, *range(2, MAX_EDGES + 20))
    assert len(site.living) == MAX_EDGES
    clock.now += LIVING_SECONDS
    site.heard(edge(200), "10.0.0.200:7080")
    assert [peer.id for peer in site.living] == [edge(200).id]


def test_all_edges_agree_on_the_arbiter_and_only_the_files_of_a_gone_edge_move():
    clock = Clock()
    sites = [membership(clock, *{1, 2, 3} - {own}, own=own) for own in (1, 2, 3)]
    keys = [f"{number:032x}" for number in range(300)]
    before = {key: sites[0].arbiter(key) for key in keys}
    assert all(site.arbiter(key) == before[key] for site in sites for key in keys)
    assert min(Counter(before.values()).values()) > 50
    sites[0].lost("10.0.0.3:7080")
    moved = {key for key in keys if sites[0].arbiter(key) != before[key]}
    assert moved == {key for key in keys if before[key] == edge(3).id}


def test_machine_goes_on_at_the_address_of_its_own_network():
    site = Membership(edge(1).id, Clock())
    own = edge(1, ("10.0.0.1", "10.0.0.0/24"), ("10.9.0.1", "10.9.0.0/24"))
    both = edge(2, ("10.9.0.2", "10.9.0.0/24"), ("10.0.0.2", "10.0.0.0/24"), server_port=0)
    site.heard(both, "10.0.0.2:7080")
    assert site.alternatives(own, "10.0.0.1", "m") == (Alternative("10.0.0.2", 7080, 0),)
    assert site.alternatives(own, "10.9.0.1", "m") == (Alternative("10.9.0.2", 7080, 0),)


NET9 = ("10.9.0.1", "10.9.0.0/24")
BOTH = {"v6": NETWORK6}


@pytest.mark.parametrize(
    ("own", "other", "at", "expected"),
    [
        # Not to where it is: an address that two edges think they have, such as a VIP.
        (edge(1), edge(2, ("10.0.0.1", NETWORK)), "10.0.0.1", []),
        # Not to an edge that has no foot in its network.
        (edge(1, ("10.0.0.1", NETWORK), NET9), edge(2), "10.9.0.1", []),
        # Behind routers, to an edge of another network.
        (edge(1), edge(2, ("10.7.0.2", "10.7.0.0/24")), "10.0.0.1", ["10.7.0.2"]),
        (edge(1), edge(2, ("10.7.0.2", "10.7.0.0/24")), "10.200.0.1", []),
        # By the family that it has come by.
        (edge(1, **BOTH), edge(2, **BOTH), "10.0.0.1", ["10.0.0.2"]),
        (edge(1, **BOTH), edge(2, **BOTH), "fd00:77::1", ["fd00:77::2"]),
        (edge(1, **BOTH), edge(2), "fd00:77::1", []),
        (edge(1, **BOTH), edge(2), "10.0.0.1", ["10.0.0.2"]),
        (edge(1, **BOTH), edge(3, v4="", v6=NETWORK6), "fd00:77::1", ["fd00:77::3"]),
        (edge(1, **BOTH), edge(3, v4="", v6=NETWORK6), "10.0.0.1", []),
        # Networks of IPv6 decide by themselves which edge is behind a router.
        (edge(1, **BOTH), edge(2, v6="fd00:78::/64"), "fd00:77::1", ["fd00:78::2"]),
        (edge(1, **BOTH), edge(2, v6="fd00:78::/64"), "10.0.0.1", ["10.0.0.2"]),
        (edge(1, **BOTH), edge(2, v6="fd00:78::/64"), "fd00:99::1", []),
    ],
)
def test_machine_goes_on_with_an_edge_that_it_can_reach(own, other, at, expected):
    site = membership(Clock())
    site.heard(other, other.authorities[0])
    assert site.alternatives(own, at, "m") == tuple(Alternative(address, 7080, 42113) for address in expected)


def test_machines_go_on_with_different_edges():
    site = membership(Clock(), 2, 3, 4, 5, 6)
    first = Counter(site.alternatives(edge(1), "10.0.0.1", f"m{number}")[0].address for number in range(100))
    assert len(first) == 5
    assert len(site.alternatives(edge(1), "10.0.0.1", "m")) == 3


def test_claim_is_the_first_ones_until_its_time_or_its_edge_ends():
    clock = Clock()
    site, a, b = membership(clock, 2, 3), edge(2).id, edge(3).id
    assert [site.claim("k", a), site.claim("k", b), site.claim("other", b)] == [a, a, b]
    site.lost("10.0.0.2:7080")
    assert site.claim("k", b) == b
    site.heard(edge(2), "10.0.0.2:7080")
    assert site.claim("k", a) == b
    clock.now += CLAIM_SECONDS
    for number in (2, 3):
        site.heard(edge(number), f"10.0.0.{number}:7080")
    assert site.claim("k", a) == a


def test_number_of_claims_is_bounded():
    site, a, b = membership(Clock(), 2, 3), edge(2).id, edge(3).id
    for number in range(MAX_CLAIMS + 1):
        site.claim(str(number), a)
    assert site.claim("0", b) == b
    assert site.claim(str(MAX_CLAIMS), b) == a


# --- addresses of IPv6 ---


def test_messages_of_older_and_newer_versions_are_compatible():
    sent = Edge.read(edge(1, **BOTH).encoded())
    assert sent == edge(1, **BOTH)
    assert sent.authorities == ("10.0.0.1:7080", "[fd00:77::1]:7080")
    older = edge(1).encoded().replace(b'"places6":[],', b"")
    assert b"places6" not in older
    assert Edge.read(older).places6 == ()
    assert b'"places":[{"address":"10.0.0.1","network":"10.0.0.0/24"}]' in edge(1, **BOTH).encoded()


@pytest.mark.parametrize(
    ("good", "bad"), [("fd00:77::1", "10.0.0.9"), ("fd00:77::1", "fe80::1%eth0"), (NETWORK6, "fd00:77::1/64")]
)
def test_invalid_ipv6_address_of_an_edge_is_rejected(good, bad):
    with pytest.raises(MessageError, match="places6"):
        Edge.read(edge(1, **BOTH).encoded().replace(f'"{good}"'.encode(), f'"{bad}"'.encode()))


def test_edge_announces_the_addresses_that_machines_get():
    networks, networks6 = (IPv4Network(NETWORK),), (IPv6Network(NETWORK6),)
    both = NetworkState("eth0", "10.0.0.1", networks=networks, address6="fd00:77::1", networks6=networks6)
    assert places_of([both]) == [("10.0.0.1", NETWORK), ("fd00:77::1", NETWORK6)]
    alone = NetworkState("eth0", address6="fd00:77::1", networks6=networks6)
    assert places_of([alone]) == [("fd00:77::1", NETWORK6)]


# --- Leases by which edges find each other: what is written, and what is made of those that others wrote --------------


NOW = 1_800_000_000.0


class LeasingEdge:
    def __init__(self, api, *own, group="rack", pod=None):
        self.own = list(own)
        self.found = set()
        self.leases = EdgeLeases(
            api,
            namespace="default",
            group=group,
            identity="0" * 32,
            own=lambda: self.own,
            found=lambda found: setattr(self, "found", set(found)),
            pod=pod,
            now=lambda: NOW,
        )

    async def turn(self):
        await self.leases.renew()
        await self.leases.look()

    @asynccontextmanager
    async def running(self):
        running = asyncio.create_task(self.leases.run())
        yield
        running.cancel()
        await asyncio.wait([running])


def names(api):
    return [lease["metadata"]["name"] for lease in api.objects(LEASE)]


def stamp(seconds):
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


async def test_edges_of_a_group_find_each_other_and_no_others():
    api = InProcessApi()
    one, two = LeasingEdge(api, "10.0.0.1:7080", "10.9.0.1:7080"), LeasingEdge(api, "10.0.0.2:7080")
    other = LeasingEdge(api, "10.0.0.3:7080", group="elsewhere")
    for edge in (one, two, other, one):
        await edge.turn()
    assert (one.found, two.found) == ({"10.0.0.2:7080"}, {"10.0.0.1:7080", "10.9.0.1:7080"})
    assert other.found == set()
    assert names(api) == ["tinkedge-edge-10-0-0-1", "tinkedge-edge-10-0-0-2", "tinkedge-edge-10-0-0-3"]
    spec = api.read(LEASE, "tinkedge-edge-10-0-0-1")["spec"]
    assert spec == {"holderIdentity": "0" * 32, "leaseDurationSeconds": 40, "renewTime": "2027-01-15T08:00:00.000000Z"}


async def test_lease_moves_with_the_address_and_goes_at_a_clean_end():
    api = InProcessApi()
    edge = LeasingEdge(api, "10.0.0.1:7080")
    async with edge.running():
        await until(lambda: names(api) == ["tinkedge-edge-10-0-0-1"])
        edge.own = ["10.0.0.7:7080"]
        await edge.turn()
        assert names(api) == ["tinkedge-edge-10-0-0-7"]
    assert names(api) == []


async def test_lease_that_was_abandoned_a_day_ago_is_removed_and_a_late_one_is_not():
    api = InProcessApi()
    for number, age in ((2, ABANDONED_SECONDS + 1), (3, 3600.0)):
        await LeasingEdge(api, f"10.0.0.{number}:7080").leases.renew()
        api.change(LEASE, f"tinkedge-edge-10-0-0-{number}", spec={"renewTime": stamp(NOW - age)})
    edge = LeasingEdge(api, "10.0.0.1:7080")
    await edge.turn()
    assert names(api) == ["tinkedge-edge-10-0-0-1", "tinkedge-edge-10-0-0-3"]
    assert edge.found == {"10.0.0.3:7080"}


async def test_pod_writes_no_lease_but_its_own_and_deletes_none():
    """RBAC and the chart's admission policy grant nothing else."""
    api = InProcessApi()
    abandoned, other = LeasingEdge(api, "10.0.0.2:7080"), LeasingEdge(api, "10.0.0.3:7080")
    for each in (abandoned, other):
        await each.turn()
    edge = LeasingEdge(api, "10.0.0.1:7080", pod=Pod("tinkedge-edge-abcde", "u-1"))
    api.calls.clear()
    async with edge.running():
        await until(lambda: edge.found == {"10.0.0.2:7080", "10.0.0.3:7080"})
        api.change(LEASE, "tinkedge-edge-10-0-0-2", spec={"renewTime": stamp(NOW - ABANDONED_SECONDS - 1)})
        edge.own = ["10.0.0.7:7080"]
        await edge.turn()
        assert edge.found == {"10.0.0.3:7080"}
        assert "tinkedge-edge-10-0-0-2" in names(api)
        assert api.count("delete") == 0
        await other.leases.look()
        assert other.found == {"10.0.0.7:7080"}
    await other.leases.look()
    assert other.found == set(), "at a clean end the others know at once"
    assert {call.name for call in api.calls if call.verb == "apply"} == {"tinkedge-edge-abcde"}
    assert api.count("delete") == 1, "by the other one, which is no pod"
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "tinkedge-edge-abcde", "uid": "u-1"}
    assert api.read(LEASE, "tinkedge-edge-abcde")["metadata"]["ownerReferences"] == [owner]


@pytest.mark.parametrize(
    ("claims", "pod"),
    [
        ({"kubernetes.io": {"pod": {"name": "p", "uid": "u"}}}, Pod("p", "u")),
        ({"kubernetes.io": {"serviceaccount": {"name": "a"}}}, None),
        ({"kubernetes.io": {"pod": {"name": 1, "uid": "u"}}}, None),
        ({"sub": "x"}, None),
        ([], None),
    ],
)
def test_pod_is_the_one_that_the_mounted_token_is_bound_to(claims, pod, tmp_path):
    token = tmp_path / "token"
    assert own_pod(token) is None
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    token.write_text(f"e30.{body}.c2ln\n")
    assert own_pod(token) == pod
    for garbled in ("", "x", "a.b.c", "a.!.c"):
        token.write_text(garbled)
        assert own_pod(token) is None


async def test_found_addresses_stay_while_the_api_is_away(caplog):
    api = InProcessApi()
    await LeasingEdge(api, "10.0.0.2:7080").turn()
    edge = LeasingEdge(api, "10.0.0.1:7080")
    await edge.turn()
    for verb in ("apply", "list", "delete"):
        api.fail(verb, *[UnreachableError("away")] * 5)
    async with edge.running():
        await until(lambda: "can't be kept or read" in caplog.text)
    assert edge.found == {"10.0.0.2:7080"}


async def test_host_without_an_address_keeps_no_lease():
    api = InProcessApi()
    await LeasingEdge(api).turn()
    assert names(api) == []


@pytest.mark.parametrize(
    "word", ["10.0.0.1", "10.0.0.1:0", "10.0.0.1:65536", "10.0.0.256:1", "name:1", "10.0.0.1:7080/x", ""]
)
def test_invalid_address_of_an_edge_is_ignored(word):
    assert not is_authority(word)
    annotations = {"tinkerbell.org/edge-addresses": f"{word},10.0.0.2:7080"}
    assert addresses({"metadata": {"annotations": annotations}}) == {"10.0.0.2:7080"}


@pytest.mark.parametrize(
    "metadata", [None, {}, {"annotations": []}, {"annotations": {"tinkerbell.org/edge-addresses": 5}}]
)
def test_lease_without_addresses_is_ignored(metadata):
    assert addresses({"metadata": metadata}) == set()


def test_number_of_addresses_of_a_lease_is_bounded():
    many = ",".join(f"10.0.{number}.1:7080" for number in range(200))
    found = addresses({"metadata": {"annotations": {"tinkerbell.org/edge-addresses": many}}})
    assert len(found) == MAX_ADDRESSES


def test_lease_names_addresses_of_both_families():
    annotations = {"tinkerbell.org/edge-addresses": "10.0.0.2:7080,[fd00:77::2]:7080,fd00:77::2:7080,[10.0.0.3:80"}
    assert addresses({"metadata": {"annotations": annotations}}) == {"10.0.0.2:7080", "[fd00:77::2]:7080"}
    assert not is_authority("[fd00:::2]:7080")
    assert lease_name("10.0.0.2:7080") == "tinkedge-edge-10-0-0-2"
    assert lease_name("[fd00:77::]:7080") == "tinkedge-edge-fd00-0077-0000-0000-0000-0000-0000-0000"
