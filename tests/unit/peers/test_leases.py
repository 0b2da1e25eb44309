"""Leases by which edges find each other: what is written, and what is made of those that others wrote."""

import asyncio
import base64
import json
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from edge.peers.leases import ABANDONED_SECONDS, MAX_ADDRESSES, EdgeLeases, addresses, is_authority, lease_name
from tests.support.api import InProcessApi
from tests.waiting import until
from tink.kube.client import UnreachableError
from tink.kube.resources import LEASE
from tink.kube.runtime import Pod, own_pod

NOW = 1_800_000_000.0


class Edge:
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
    one, two = Edge(api, "10.0.0.1:7080", "10.9.0.1:7080"), Edge(api, "10.0.0.2:7080")
    other = Edge(api, "10.0.0.3:7080", group="elsewhere")
    for edge in (one, two, other, one):
        await edge.turn()
    assert (one.found, two.found) == ({"10.0.0.2:7080"}, {"10.0.0.1:7080", "10.9.0.1:7080"})
    assert other.found == set()
    assert names(api) == ["tinkedge-edge-10-0-0-1", "tinkedge-edge-10-0-0-2", "tinkedge-edge-10-0-0-3"]
    spec = api.read(LEASE, "tinkedge-edge-10-0-0-1")["spec"]
    assert spec == {"holderIdentity": "0" * 32, "leaseDurationSeconds": 40, "renewTime": "2027-01-15T08:00:00.000000Z"}


async def test_lease_moves_with_the_address_and_goes_at_a_clean_end():
    api = InProcessApi()
    edge = Edge(api, "10.0.0.1:7080")
    async with edge.running():
        await until(lambda: names(api) == ["tinkedge-edge-10-0-0-1"])
        edge.own = ["10.0.0.7:7080"]
        await edge.turn()
        assert names(api) == ["tinkedge-edge-10-0-0-7"]
    assert names(api) == []


async def test_lease_that_was_abandoned_a_day_ago_is_removed_and_a_late_one_is_not():
    api = InProcessApi()
    for number, age in ((2, ABANDONED_SECONDS + 1), (3, 3600.0)):
        await Edge(api, f"10.0.0.{number}:7080").leases.renew()
        api.change(LEASE, f"tinkedge-edge-10-0-0-{number}", spec={"renewTime": stamp(NOW - age)})
    edge = Edge(api, "10.0.0.1:7080")
    await edge.turn()
    assert names(api) == ["tinkedge-edge-10-0-0-1", "tinkedge-edge-10-0-0-3"]
    assert edge.found == {"10.0.0.3:7080"}


async def test_pod_writes_no_lease_but_its_own_and_deletes_none():
    """RBAC and the chart's admission policy grant nothing else."""
    api = InProcessApi()
    abandoned, other = Edge(api, "10.0.0.2:7080"), Edge(api, "10.0.0.3:7080")
    for each in (abandoned, other):
        await each.turn()
    edge = Edge(api, "10.0.0.1:7080", pod=Pod("tinkedge-edge-abcde", "u-1"))
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


async def test_api_that_is_away_leaves_what_was_found(caplog):
    api = InProcessApi()
    await Edge(api, "10.0.0.2:7080").turn()
    edge = Edge(api, "10.0.0.1:7080")
    await edge.turn()
    for verb in ("apply", "list", "delete"):
        api.fail(verb, *[UnreachableError("away")] * 5)
    async with edge.running():
        await until(lambda: "can't be kept or read" in caplog.text)
    assert edge.found == {"10.0.0.2:7080"}


async def test_host_without_an_address_keeps_no_lease():
    api = InProcessApi()
    await Edge(api).turn()
    assert names(api) == []


@pytest.mark.parametrize(
    "word", ["10.0.0.1", "10.0.0.1:0", "10.0.0.1:65536", "10.0.0.256:1", "name:1", "10.0.0.1:7080/x", ""]
)
def test_what_is_no_address_of_an_edge_is_left_out(word):
    assert not is_authority(word)
    annotations = {"tinkerbell.org/edge-addresses": f"{word},10.0.0.2:7080"}
    assert addresses({"metadata": {"annotations": annotations}}) == {"10.0.0.2:7080"}


@pytest.mark.parametrize(
    "metadata", [None, {}, {"annotations": []}, {"annotations": {"tinkerbell.org/edge-addresses": 5}}]
)
def test_lease_that_says_nothing_of_use_is_no_trouble(metadata):
    assert addresses({"metadata": metadata}) == set()


def test_there_is_an_end_to_the_addresses_of_one_lease():
    many = ",".join(f"10.0.{number}.1:7080" for number in range(200))
    found = addresses({"metadata": {"annotations": {"tinkerbell.org/edge-addresses": many}}})
    assert len(found) == MAX_ADDRESSES


def test_lease_names_addresses_of_both_families():
    annotations = {"tinkerbell.org/edge-addresses": "10.0.0.2:7080,[fd00:77::2]:7080,fd00:77::2:7080,[10.0.0.3:80"}
    assert addresses({"metadata": {"annotations": annotations}}) == {"10.0.0.2:7080", "[fd00:77::2]:7080"}
    assert not is_authority("[fd00:::2]:7080")
    assert lease_name("10.0.0.2:7080") == "tinkedge-edge-10-0-0-2"
    assert lease_name("[fd00:77::]:7080") == "tinkedge-edge-fd00-0077-0000-0000-0000-0000-0000-0000"
