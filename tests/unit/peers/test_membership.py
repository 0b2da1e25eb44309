"""Which edges live, who decides, and where a machine can go on."""

from collections import Counter

from edge.peers.claims import CLAIM_SECONDS, MAX_CLAIMS, Claims
from edge.peers.membership import LIVING_SECONDS, MAX_EDGES, REMEMBERED_SECONDS, Alternative, Membership
from edge.peers.messages import Edge, Place


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def edge(number, *places, server_port=42113):
    found = places or ((f"10.0.0.{number}", "10.0.0.0/24"),)
    return Edge(
        id=f"{number:032x}",
        places=tuple(Place(address=address, network=network) for address, network in found),
        http_port=7080,
        server_port=server_port,
    )


def membership(clock, *numbers):
    """That of edge 1, which has heard those."""
    found = Membership(edge(1).id, clock)
    for number in numbers:
        found.heard(edge(number), f"10.0.0.{number}:7080")
    return found


def test_edge_is_gone_when_it_has_not_said_hello_for_a_while_and_at_once_when_nobody_listens():
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


def test_edge_that_is_gone_is_forgotten_in_the_end():
    clock = Clock()
    site = membership(clock, 2)
    site.changes()
    clock.now += REMEMBERED_SECONDS
    site.changes()
    assert site.addresses == (frozenset(), frozenset())


def test_edge_that_was_started_again_is_not_another_one():
    site = membership(Clock(), 2)
    again = edge(2).model_copy(update={"id": "f" * 32})
    site.heard(again, "10.0.0.2:7080")
    assert [peer.id for peer in site.living] == ["f" * 32]
    assert site.addresses == (frozenset({"10.0.0.2"}), frozenset())


def test_what_changes_is_told_once():
    clock = Clock()
    site = membership(clock, 2)
    assert [(change.edge.id, change.living) for change in site.changes()] == [(edge(2).id, True)]
    assert site.changes() == []
    clock.now += LIVING_SECONDS
    assert [(change.edge.id, change.living) for change in site.changes()] == [(edge(2).id, False)]
    assert site.changes() == []


def test_edge_that_called_is_looked_for_where_it_says_that_it_is_and_not_asked_before_it_was_reached():
    site = Membership(edge(1).id, Clock())
    site.heard(edge(2))
    assert site.authorities == {"10.0.0.2:7080"}
    assert site.living == []


def test_edge_does_not_take_itself_for_another():
    site = Membership(edge(1).id, Clock())
    site.heard(edge(1), "10.0.0.1:7080")
    assert site.living == []


def test_there_is_an_end_to_how_many_edges_are_known():
    clock = Clock()
    site = membership(clock, *range(2, MAX_EDGES + 20))
    assert len(site.living) == MAX_EDGES
    clock.now += LIVING_SECONDS
    site.heard(edge(200), "10.0.0.200:7080")
    assert [peer.id for peer in site.living] == [edge(200).id]


def test_all_edges_agree_who_decides_and_when_one_goes_only_what_was_its_own_moves():
    clock = Clock()
    sites = []
    for own in (1, 2, 3):
        site = Membership(edge(own).id, clock)
        for number in {1, 2, 3} - {own}:
            site.heard(edge(number), f"10.0.0.{number}:7080")
        sites.append(site)
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


def test_machine_is_not_sent_to_where_it_is():
    """An address that two edges think they have, such as a VIP."""
    site = Membership(edge(1).id, Clock())
    site.heard(edge(2, ("10.0.0.1", "10.0.0.0/24")), "10.0.0.2:7080")
    assert site.alternatives(edge(1), "10.0.0.1", "m") == ()


def test_machine_is_not_sent_to_an_edge_that_has_no_foot_in_its_network():
    site = Membership(edge(1).id, Clock())
    own = edge(1, ("10.0.0.1", "10.0.0.0/24"), ("10.9.0.1", "10.9.0.0/24"))
    site.heard(edge(2), "10.0.0.2:7080")
    assert site.alternatives(own, "10.9.0.1", "m") == ()


def test_machine_behind_routers_goes_on_with_an_edge_of_another_network():
    site = Membership(edge(1).id, Clock())
    site.heard(edge(2, ("10.7.0.2", "10.7.0.0/24")), "10.7.0.2:7080")
    assert site.alternatives(edge(1), "10.0.0.1", "m") == (Alternative("10.7.0.2", 7080, 42113),)
    assert site.alternatives(edge(1), "10.200.0.1", "m") == ()


def test_machines_go_on_with_different_edges():
    site = membership(Clock(), 2, 3, 4, 5, 6)
    first = Counter(site.alternatives(edge(1), "10.0.0.1", f"m{number}")[0].address for number in range(100))
    assert len(first) == 5
    assert len(site.alternatives(edge(1), "10.0.0.1", "m")) == 3


def test_claim_is_the_first_ones_until_its_time_or_its_edge_ends():
    clock, living = Clock(), {"a", "b"}
    claims = Claims(clock, living.__contains__)
    assert [claims.claim("k", "a"), claims.claim("k", "b"), claims.claim("other", "b")] == ["a", "a", "b"]
    living.remove("a")
    assert claims.claim("k", "b") == "b"
    living.add("a")
    assert claims.claim("k", "a") == "b"
    clock.now += CLAIM_SECONDS
    assert claims.claim("k", "a") == "a"


def test_there_is_an_end_to_what_is_claimed():
    claims = Claims(Clock(), lambda _: True)
    for number in range(MAX_CLAIMS + 1):
        claims.claim(str(number), "a")
    assert claims.claim("0", "b") == "b"
    assert claims.claim(str(MAX_CLAIMS), "b") == "a"
