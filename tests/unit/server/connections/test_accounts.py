"""Which connections may stay: accounts, paces and places, with a clock that is moved by hand."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from tink.server.connections.accounts import (
    MAX_BLOCKS,
    Accepted,
    Alarm,
    Connections,
    Eviction,
    Peer,
    PortLimits,
)

KB = 1000
LIMITS = PortLimits(connections=100, per_address=16)


class Site:
    """Connections, whose sockets the test makes and fills."""

    def __init__(self, limits: PortLimits = LIMITS) -> None:
        self.connections = Connections(limits)
        self.now = 1_000_000.0
        self.sockets: dict[Accepted, int] = {}
        self._made = 0

    def connect(self, address: str = "192.0.2.1", count: int = 1) -> list[Accepted]:
        made = []
        for _ in range(count):
            self._made += 1
            number = self._made
            made.append(Accepted(number, (9, number), Peer(address, 10_000 + number)))
        self.sockets |= dict.fromkeys(made, 0)
        self.look()
        return made

    def call(self, accepted: Accepted, *, busy: bool = False, size: int = 10) -> str:
        why = self.connections.begun(accepted.peer, self.now, busy=busy)
        return why or self.connections.message(accepted.peer, size, self.now, first=True)

    def agents(self, address: str = "192.0.2.1", count: int = 1, sent: int = 0) -> list[Accepted]:
        """Connections with an open command stream."""
        made = self.connect(address, count)
        for each in made:
            self.call(each, busy=True)
        self.sockets |= dict.fromkeys(made, sent)
        return made

    def attack(self, address: str = "192.0.2.1", seconds: float = 0.0) -> list[Eviction]:
        self.sockets[self.connect(address)[0]] = 10_000 * KB
        return self.measure(seconds)

    def look(self) -> None:
        for accepted in self.sockets:
            self.connections.listed(accepted, self.now)
        self.connections.rest_is_gone(self.now)

    def measure(self, seconds: float = 0.0) -> list[Eviction]:
        self.now += seconds
        found = [self.connections.measured(each, count, self.now) for each, count in [*self.sockets.items()]]
        return self.end([each for each in found if each is not None])

    def excess(self, seconds: float = 0.0) -> list[Eviction]:
        self.now += seconds
        return self.end([*self.connections.excess(self.now)])

    def end(self, endings: list[Eviction]) -> list[Eviction]:
        for eviction in endings:
            del self.sockets[eviction.accepted]
        self.look()
        return endings

    def away(self) -> set[str]:
        return {str(block) for block in self.connections.away(self.now)}


@pytest.fixture
def site() -> Site:
    return Site()


# --- bytes ---


def test_requests_that_are_taken_back_at_once_end_their_connection(site: Site) -> None:
    (attacker,) = site.connect()
    site.call(attacker)
    site.sockets[attacker] = 400 * KB
    (eviction,) = site.measure(0.1)
    assert (eviction.accepted, eviction.unless) == (attacker, 400 * KB)
    assert "that belong to no call" in eviction.why
    assert len(site.connections) == 0


def test_agent_whose_bytes_belong_to_calls_may_send_any_number_of_them(site: Site) -> None:
    (agent,) = site.agents()
    for _ in range(1000):
        site.call(agent, size=2000)
        site.connections.ended(agent.peer, site.now, busy=False)
        site.sockets[agent] += 2300
        assert site.measure(0.01) == []


def test_connection_with_a_call_may_be_in_the_middle_of_the_largest_message(site: Site) -> None:
    agent, stranger = site.connect(count=2)
    site.call(agent)
    site.sockets |= {agent: 270 * KB, stranger: 270 * KB}
    assert [eviction.accepted for eviction in site.measure(1.0)] == [stranger]


def test_pings_of_a_year_are_forgiven(site: Site) -> None:
    (agent,) = site.agents()
    for _ in range(2000):
        site.sockets[agent] += 60 * 17
        assert site.measure(300.0) == []
    site.sockets[agent] += 600 * KB
    assert len(site.measure(1.0)) == 1, "and save up for no attack"


def test_bytes_are_counted_for_all_connections_of_an_address_too(site: Site) -> None:
    crowd = site.agents(count=15, sent=90 * KB)
    site.agents(sent=1 * KB)
    site.agents("192.0.2.2", sent=90 * KB)
    ended = [eviction.accepted for eviction in site.measure(0.1)]
    assert ended
    assert set(ended) <= set(crowd), "neither who sent little, nor another address"


@pytest.mark.parametrize(
    ("address", "away"),
    [("192.0.2.1", {"192.0.2.1/32"}), ("2001:db8::{}", {"2001:db8::/64"}), ("127.0.0.1", set())],
    ids=["IPv4", "neighbours of 64 bits are one", "never loopback"],
)
def test_an_address_whose_connections_are_ended_again_and_again_is_kept_away_for_a_while(
    site: Site, address: str, away: set[str]
) -> None:
    for count in range(1, 7):
        assert len(site.attack(address.format(count), 0.1)) == 1
        assert site.away() == (away if count > 5 else set())
    site.now += 29
    assert site.away() == away
    site.now += 2
    assert site.away() == set()


def test_as_many_addresses_are_kept_away_as_the_filter_has_room_for(site: Site) -> None:
    for number in range(MAX_BLOCKS + 9):
        for _ in range(6):
            site.attack(f"198.51.{number >> 8}.{number & 255}")
    assert len(site.away()) == MAX_BLOCKS
    assert str(ip_network("198.51.0.0/32")) not in site.away()


# --- calls ---


@pytest.mark.parametrize("what", ["calls", "messages", "calls that are taken back"])
def test_calls_messages_and_calls_that_are_taken_back_have_a_pace_and_the_connection_ends_with_it(
    site: Site, what: str
) -> None:
    (attacker,) = site.connect()
    site.call(attacker)
    once = {
        "calls": lambda: site.call(attacker),
        "messages": lambda: site.connections.message(attacker.peer, 1, site.now, first=False),
        "calls that are taken back": lambda: site.connections.aborted(attacker.peer, site.now),
    }[what]
    most = LIMITS.aborts_at_once if what == "calls that are taken back" else LIMITS.calls_at_once
    whys = [once() for _ in range(most + 1)]
    assert not any(whys[:-3])
    assert whys[-1]
    assert ("took back" in whys[-1]) is (what == "calls that are taken back")
    assert [eviction.accepted for eviction in site.excess()] == [attacker]


def test_calls_of_a_connection_that_is_not_found_yet_end_it_when_it_is(site: Site) -> None:
    peer = Peer("192.0.2.1", 10_001)
    for _ in range(LIMITS.calls_at_once + 1):
        why = site.connections.begun(peer, site.now, busy=False)
    assert why
    assert site.excess() == []
    (attacker,) = site.connect()
    assert attacker.peer == peer
    assert [eviction.accepted for eviction in site.excess()] == [attacker]


# --- places ---


def test_connection_without_a_call_is_closed_and_one_with_a_call_stays(site: Site) -> None:
    silent, caller = site.connect(count=2)
    site.call(caller)
    site.connections.ended(caller.peer, site.now, busy=False)
    assert site.excess(59.0) == []
    assert [eviction.accepted for eviction in site.excess(2.0)] == [silent]
    assert site.excess(100.0) == []
    assert caller in site.sockets


def test_strangers_of_an_address_make_room_for_its_agents(site: Site) -> None:
    agents = site.agents(count=10)
    site.connect(count=5)
    assert site.excess(2.0) == []
    site.connect(count=3)
    assert {eviction.why for eviction in site.excess(2.0)} == {"16 connections of one address are the most"}
    assert set(agents) <= set(site.sockets)
    assert len(site.sockets) < 16, "there is room for the next one"
    assert site.away() == {"192.0.2.1/32"}, "who comes meanwhile waits a moment"
    site.now += LIMITS.full
    assert site.away() == set()


def test_agents_behind_one_address_that_fill_their_share_are_left_alone(site: Site) -> None:
    site.agents(count=16)
    assert site.excess(2.0) == []
    assert len(site.sockets) == 16


def test_of_all_too_many_those_go_that_rest_where_there_are_most(site: Site) -> None:
    for number in range(40):
        site.agents(f"198.51.100.{number}")
    (modest,) = site.connect("203.0.113.1")
    crowds = {f"192.0.2.{number}": site.connect(f"192.0.2.{number}", 15) for number in range(4)}
    assert len(site.sockets) == 101
    (eviction,) = site.excess(1.0)
    assert eviction.accepted.peer.address in crowds
    assert modest in site.sockets


def test_address_that_connects_too_often_is_rejected(site: Site) -> None:
    for _ in range(200):
        site.connect()
        site.sockets.clear()
        site.now += 0.001
    assert site.away() == {"192.0.2.1/32"}


def test_closed_connections_leave_no_state(site: Site) -> None:
    for number in range(50):
        (caller,) = site.connect(f"192.0.2.{number}")
        site.call(caller)
        site.sockets[caller] = 30 * KB
        site.measure()
    site.sockets.clear()
    site.now += 100
    site.look()
    connections = site.connections
    left = [connections._all, connections._silent, connections._blocks, connections._ended]
    assert not any(left)


# --- memory -----------------------------------------------------------------------------------------------------------

GREW = Alarm(40 << 20, pressed=False)


def expanded(site: Site, alarm: Alarm = GREW) -> list[Eviction]:
    site.measure()
    return site.end([*site.connections.expanded(alarm, site.now)])


def bomb(site: Site, address: str, count: int = 1, size: int = 30 * KB) -> list[Accepted]:
    """Return connections that have sent header blocks which became no call."""
    made = site.connect(address, count)
    site.sockets |= dict.fromkeys(made, size)
    return made


def test_senders_of_the_bytes_that_grew_memory_are_ended_and_kept_away_for_minutes(site: Site) -> None:
    site.agents("192.0.2.7", sent=700)
    bombs = bomb(site, "192.0.2.66", 3)
    assert [each.accepted for each in expanded(site)] == bombs
    assert site.away() == {"192.0.2.66/32"}
    site.now += 290
    assert site.away() == {"192.0.2.66/32"}
    assert site.connections.barred() == [(ip_network("192.0.2.66/32"), pytest.approx(1_000_300))]
    site.now += 20
    assert not site.away()


@pytest.mark.parametrize("pressed", [False, True])
@pytest.mark.parametrize(("addresses", "count", "sent"), [(200, 1, 1300), (1, 400, 1500)], ids=["many", "behind one"])
def test_memory_that_grows_while_agents_ping_and_connect_ends_no_connection(
    addresses: int, count: int, sent: int, pressed: bool
) -> None:
    """Lists of the Kubernetes API take memory, too."""
    site = Site(PortLimits(connections=10_000, per_address=512))
    for number in range(addresses):
        site.agents(f"10.0.0.{number}", count, sent)
    assert expanded(site, Alarm(40 << 20, pressed=pressed)) == []
    assert not site.away()


def test_connection_that_was_ended_for_its_bytes_is_to_blame_for_memory_that_grows_after(site: Site) -> None:
    """gRPC has read the bytes, and expands them after the connection has ended."""
    bomb(site, "192.0.2.66", size=80 * KB)
    assert [each.why for each in site.measure()] == ["sent 72 kB that belong to no call"]
    assert not site.away(), "that alone keeps nobody away"
    site.now += 1
    assert expanded(site) == []
    assert site.away() == {"192.0.2.66/32"}


def test_loopback_is_ended_and_not_kept_away(site: Site) -> None:
    (own,) = bomb(site, "127.0.0.1")
    assert [each.accepted for each in expanded(site)] == [own]
    assert not site.away()


def test_largest_senders_are_ended_first_and_others_if_memory_grows_further(site: Site) -> None:
    bomb(site, "192.0.2.66", size=31 * KB)
    bomb(site, "192.0.2.67", size=8 * KB)
    expanded(site)
    assert site.away() == {"192.0.2.66/32"}
    bomb(site, "192.0.2.68", size=31 * KB)
    expanded(site)
    assert site.away() == {"192.0.2.66/32", "192.0.2.68/32"}


def test_bytes_of_long_ago_raise_no_suspicion(site: Site) -> None:
    site.agents("192.0.2.7", sent=20 * KB)
    for _ in range(4):
        site.measure(6)
    assert expanded(site) == []


def test_near_the_limit_bytes_count_that_calls_account_for(site: Site) -> None:
    """Cheap calls account for more bytes than they have."""
    (stranger,) = site.connect("192.0.2.66")
    for _ in range(200):
        site.call(stranger)
    site.sockets[stranger] = 80 * KB
    assert expanded(site) == []
    assert [each.accepted for each in expanded(site, Alarm(40 << 20, pressed=True))] == [stranger]
    site.now += 4
    assert not site.away(), "not for long: it may be an agent that sends much"


def test_restarted_server_keeps_away_the_blocks_that_crashed_it(site: Site) -> None:
    site.connections.bar(ip_network("192.0.2.66/32"), site.now + 60)
    assert site.away() == {"192.0.2.66/32"}
    (stranger,) = site.connect("192.0.2.66")
    assert [each.accepted for each in site.excess()] == [stranger]
    site.now += 61
    assert not site.away()
