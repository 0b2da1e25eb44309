"""Edges of one site that have IPv6 addresses, beside those of IPv4 or alone."""

from ipaddress import IPv4Network, IPv6Network

import pytest

from edge.composition.host import NetworkState
from edge.composition.serving import _places
from edge.peers.leases import addresses, is_authority, lease_name
from edge.peers.membership import Alternative, Membership
from edge.peers.messages import Edge, MessageError, Place, Place6

NETWORK, NETWORK6 = "10.0.0.0/24", "fd00:77::/64"


def edge(number, *, v4=NETWORK, v6=NETWORK6):
    """`v4` and `v6`: its networks; empty: none."""
    return Edge(
        id=f"{number:032x}",
        places=(Place(address=v4.replace("0/24", str(number)), network=v4),) if v4 else (),
        places6=(Place6(address=v6.replace("/64", str(number)), network=v6),) if v6 else (),
        http_port=7080,
        server_port=42113,
    )


def alternatives(own, at, *others):
    site = Membership(own.id, lambda: 100.0)
    for other in others:
        site.heard(other, other.authorities[0])
    return sorted(each.address for each in site.alternatives(own, at, "m"))


def test_machine_is_sent_to_other_edges_by_the_family_that_it_has_come_by():
    site = Membership(edge(1).id, lambda: 100.0)
    site.heard(edge(2), "10.0.0.2:7080")
    assert site.alternatives(edge(1), "10.0.0.1", "m") == (Alternative("10.0.0.2", 7080, 42113),)
    assert site.alternatives(edge(1), "fd00:77::1", "m") == (Alternative("fd00:77::2", 7080, 42113),)


def test_edge_without_the_machines_family_is_none_for_it_to_go_on_with():
    only4, only6 = edge(2, v6=""), edge(3, v4="")
    assert alternatives(edge(1), "fd00:77::1", only4, only6) == ["fd00:77::3"]
    assert alternatives(edge(1), "10.0.0.1", only4, only6) == ["10.0.0.2"]


def test_networks_of_ipv6_decide_by_themselves_who_is_behind_a_router():
    routed6 = edge(2, v6="fd00:78::/64")
    assert alternatives(edge(1), "fd00:77::1", routed6) == ["fd00:78::2"]
    assert alternatives(edge(1), "10.0.0.1", routed6) == ["10.0.0.2"]
    assert alternatives(edge(1), "fd00:99::1", routed6) == []


def test_message_of_an_edge_is_what_older_versions_read_and_theirs_is_read():
    sent = Edge.read(edge(1).encoded())
    assert sent == edge(1)
    assert sent.authorities == ("10.0.0.1:7080", "[fd00:77::1]:7080")
    older = edge(1, v6="").encoded().replace(b'"places6":[],', b"")
    assert b"places6" not in older
    assert Edge.read(older).places6 == ()
    assert b'"places":[{"address":"10.0.0.1","network":"10.0.0.0/24"}]' in edge(1).encoded()


@pytest.mark.parametrize(
    ("good", "bad"), [("fd00:77::1", "10.0.0.9"), ("fd00:77::1", "fe80::1%eth0"), (NETWORK6, "fd00:77::1/64")]
)
def test_what_is_no_ipv6_address_of_an_edge_is_refused(good, bad):
    with pytest.raises(MessageError, match="places6"):
        Edge.read(edge(1).encoded().replace(f'"{good}"'.encode(), f'"{bad}"'.encode()))


def test_lease_names_addresses_of_both_families():
    annotations = {"tinkerbell.org/edge-addresses": "10.0.0.2:7080,[fd00:77::2]:7080,fd00:77::2:7080,[10.0.0.3:80"}
    assert addresses({"metadata": {"annotations": annotations}}) == {"10.0.0.2:7080", "[fd00:77::2]:7080"}
    assert not is_authority("[fd00:::2]:7080")
    assert lease_name("10.0.0.2:7080") == "tinkedge-edge-10-0-0-2"
    assert lease_name("[fd00:77::]:7080") == "tinkedge-edge-fd00-0077-0000-0000-0000-0000-0000-0000"


def test_edge_says_the_addresses_that_it_tells_machines():
    networks, networks6 = (IPv4Network(NETWORK),), (IPv6Network(NETWORK6),)
    both = NetworkState("eth0", "10.0.0.1", networks=networks, address6="fd00:77::1", networks6=networks6)
    assert _places([both]) == [("10.0.0.1", NETWORK), ("fd00:77::1", NETWORK6)]
    alone = NetworkState("eth0", address6="fd00:77::1", networks6=networks6)
    assert _places([alone]) == [("fd00:77::1", NETWORK6)]


async def test_edges_without_ipv4_share_what_they_have(make_site, upstream):
    first, second = await make_site(2, ipv6=True)
    assert [peer.authority for peer in first.peers.living] == [second.authority]
    assert await first.read(upstream.url) == await second.read(upstream.url) == upstream.content
    assert upstream.whole == 1
    assert first.notices == ["the edge at ::1 is there: it shares its cache, and machines can go on with it"]
