"""Journey events between edges and servers: each is on the journey of every edge once; and their signatures."""

from __future__ import annotations

import time
from dataclasses import replace

import aiohttp
import orjson
import pytest

from edge.journey.events import Outcome, Step
from edge.journey.recorder import Journey
from edge.peers.calls import NotListeningError
from edge.peers.messages import (
    HAPPENED,
    HEADER,
    MAX_BATCH_BYTES,
    MAX_BATCH_EVENTS,
    SKEW_SECONDS,
    EventBatch,
    MessageError,
    Signatures,
    SignedRequest,
    StrangerError,
    StrangerReason,
)
from edge.peers.publisher import EVENTS_OF_A_MACHINE, EventReceiver, server_publisher
from tests.support.objects import MAC
from tests.support.objects import OTHER_MAC as OTHER
from tests.unit.artifacts.conftest import Clock
from tests.unit.peers.conftest import REPORTS_KEY, key_file
from tink.files.key_file import KeyFile


def received(edge, mac=MAC):
    """Return the events of a machine on an edge's journey: the message and the sender (empty for its own)."""
    return [(event.message, str(event.detail.get("seen_by", ""))) for event in edge.journey.events(mac)]


async def tell(*edges):
    for edge in edges:
        await edge.peers.publisher.turn()


@pytest.fixture
async def server(tmp_path):
    journey, keys = Journey(time.time), key_file(tmp_path / "reports", REPORTS_KEY)
    edges: list[str] = []
    publisher = server_publisher(journey, keys, "server-0 of/rack", lambda: edges, time.time)
    await publisher.calls.start()
    yield publisher, journey, edges
    await publisher.calls.stop()


async def test_every_edge_has_all_events_once_and_in_one_order(make_site):
    one, two, three = await make_site(3)
    one.journey.record(MAC, Step.DHCP, Outcome.OK, "offer", stage="iPXE", dhcp="offer")
    two.journey.record(MAC, Step.SCRIPT, Outcome.OK, "script")
    for _ in range(3):
        await tell(one, two, three)
    three.journey.record(MAC, Step.KERNEL, Outcome.OK, "kernel", size_bytes=7)
    for _ in range(2):
        await tell(one, two, three)
    for edge in (one, two, three):
        seen = [("offer", one), ("script", two), ("kernel", three)]
        assert received(edge) == [(message, "" if by is edge else by.address) for message, by in seen]
        assert sum(edge.journey.counts().values()) == 1
        assert edge.journey.sent_bytes()[Step.KERNEL] == (7 if edge is three else 0)
    assert [(each.kind, each.name) for each in one.peers.publishers] == [("edge", "127.0.7.2"), ("edge", "127.0.7.3")]


async def test_agents_of_a_server_that_runs_apart_are_on_the_journeys_of_all_edges(make_site, server):
    one, two = await make_site(2)
    publisher, journey, edges = server
    edges += [one.authority, two.authority]
    journey.record(MAC, Step.AGENT, Outcome.OK, "agent connected", peer="10.0.0.5")
    journey.record(MAC, Step.ACTION, Outcome.INFO, "line", action="disk", output="line 1\nline 2")
    await publisher.turn()
    for edge in (one, two):
        assert received(edge) == [("agent connected", "server-0-of-rack"), ("line", "server-0-of-rack")]
        assert edge.journey.events(MAC)[1].detail["output"] == "line 1\nline 2"
        assert [(each.kind, each.name) for each in edge.peers.publishers] == [("server", "server-0-of-rack")]
    await tell(one, two)
    assert len(received(one)) == len(received(two)) == 2, "a server's word is received by nobody else"


async def test_events_from_the_api_are_not_published(make_site):
    one, two = await make_site(2)
    one.journey.record(MAC, Step.WORKFLOW, Outcome.INFO, "workflow: Running", state="Running")
    one.journey.record(MAC, Step.ACTION, Outcome.INFO, "action started", state="Running", action="disk")
    one.journey.record(MAC, Step.POWER, Outcome.INFO, "switching the machine off", reason="PoweringOff")
    one.journey.record(MAC, Step.DISCOVERY, Outcome.OK, "has introduced itself", discovery="introduced")
    one.journey.record(MAC, Step.LOG, Outcome.INFO, "a line")
    await tell(one)
    assert received(two) == [("a line", "127.0.7.1")]


async def test_new_or_returning_edge_gets_earlier_events(make_site):
    one, two = await make_site(2)
    one.journey.record(MAC, Step.DHCP, Outcome.OK, "before it came")
    await tell(one)
    await two.stop_serving()
    await one.peers.look()
    one.journey.record(OTHER, Step.DHCP, Outcome.OK, "while it was away")
    await tell(one)
    assert received(two, OTHER) == []
    await two.serve()
    await one.peers.look()
    await tell(one)
    assert received(two) == [("before it came", "127.0.7.1")]
    assert received(two, OTHER) == [("while it was away", "127.0.7.1")]


async def test_failed_batch_is_sent_later(make_site, monkeypatch):
    monkeypatch.setattr("edge.peers.publisher.REST_SECONDS", 1e6)
    one, two = await make_site(2)
    one.journey.record(MAC, Step.DHCP, Outcome.OK, "offer")
    with monkeypatch.context() as patched:
        patched.setattr(two.peers, "answer", None)
        await tell(one)
    assert (one.peers.counts.failed_batches, one.peers.counts.sent) == (1, 0)
    await tell(one)
    assert received(two) == [], "it is left alone for a while"
    one.times[1] += 1e6
    await one.peers.look()
    await tell(one)
    assert received(two) == [("offer", "127.0.7.1")]


async def test_edge_that_restarts_without_its_files_gets_all_events_again(make_site, server, monkeypatch):
    (edge,) = await make_site(1)
    publisher, journey, edges = server
    edges.append(edge.authority)
    journey.record(MAC, Step.AGENT, Outcome.OK, "agent connected")
    await publisher.turn()
    edge.peers._receiver.journey = edge.journey = Journey(time.time)

    async def refused(*_):
        raise NotListeningError("nothing listens there")

    with monkeypatch.context() as patched:
        patched.setattr(publisher.calls, "send", refused)
        journey.record(OTHER, Step.AGENT, Outcome.OK, "agent connected")
        await publisher.turn()
    next(iter(publisher._subscribers.values())).not_before = 0.0
    await publisher.turn()
    assert [len(received(edge, mac)) for mac in (MAC, OTHER)] == [1, 1]


async def test_storm_is_published_in_bounded_batches_with_the_newest_events_of_each_machine(make_site):
    one, two = await make_site(2)
    long = "x" * 3900
    for number in range(200):
        one.journey.record(MAC, Step.LOG, Outcome.INFO, f"line {number}", lines=long)
    macs = [f"52:54:00:01:{number // 256:02x}:{number % 256:02x}" for number in range(3000)]
    for mac in macs:
        one.journey.record(mac, Step.DHCP, Outcome.OK, "offer")
    turns = 0
    while not all(two.journey.last_seen(mac) for mac in macs):
        await tell(one)
        turns += 1
        assert turns < 20
    assert turns > 1
    assert len(received(two)) <= EVENTS_OF_A_MACHINE
    assert received(two)[-1][0] == "line 199"


async def test_sender_without_the_key_publishes_nothing(make_site, tmp_path):
    (edge,) = await make_site(1)
    body = b'{"kind":"edge","name":"x","now":1.0,"events":[]}'
    strangers = Signatures(key_file(tmp_path / "other", "o" * 64), time.time)
    forged, _ = strangers.request(SignedRequest("POST", edge.authority, HAPPENED, body))
    async with aiohttp.ClientSession() as session:
        long = b"x" * (MAX_BATCH_BYTES + 1)
        for headers, data, status in (({}, body, 403), ({HEADER: forged}, body, 403), ({HEADER: forged}, long, 413)):
            async with session.post(f"http://{edge.authority}{HAPPENED}", data=data, headers=headers) as answer:
                assert answer.status == status
    assert edge.peers.publishers == []


async def test_key_of_servers_is_valid_for_event_batches_only(make_site, tmp_path):
    (edge,) = await make_site(1)
    signatures = Signatures(KeyFile(tmp_path / "reports", "key"), time.time)
    as_edge = {"kind": "edge", "name": "10.0.0.2", "now": time.time(), "events": []}
    hello = edge.peers.own.encoded()
    async with aiohttp.ClientSession() as session:
        for path, body, status in ((HAPPENED, orjson.dumps(as_edge), 400), ("/peers/hello", hello, 403)):
            header, _ = signatures.request(SignedRequest("POST", edge.authority, path, body))
            async with session.post(f"http://{edge.authority}{path}", data=body, headers={HEADER: header}) as answer:
                assert answer.status == status
    assert edge.peers.publishers == []


async def test_received_events_are_bounded_checked_and_marked_with_their_sender():
    now = 1_000_000.0
    journey, kept = Journey(lambda: now), []
    receiver = EventReceiver(journey, kept.append, lambda: 5.0, lambda: now)
    events = [
        [now - 3, MAC, "dhcp", "ok", "one\x1b[31m\n", {"seen_by": "somebody else", "seen_by_kind": "server", "n": 1}],
        [now + 900, MAC, "dhcp", "ok", "of the future", {}],
        [now - 2, "no mac", "dhcp", "ok", "m", {}],
        "nothing",
    ]
    taken = await receiver.take(EventBatch(kind="edge", name="10.0.0.2", now=now, events=events))
    assert taken == len(kept) == 2
    one, two = journey.events(MAC)
    assert (one.message, one.detail) == ("one [31m ", {"seen_by": "10.0.0.2", "seen_by_kind": "edge", "n": 1})
    assert two.time == now
    assert await receiver.take(EventBatch(kind="edge", name="10.0.0.2", now=now, events=events)) == 0
    assert [each.events for each in receiver.publishers] == [2]


@pytest.mark.parametrize(("after", "news"), [(0.2, 0), (60.0, 1)])
async def test_offer_of_an_edge_that_was_late_is_no_new_boot(after, news):
    now = 1000.0
    journey = Journey(lambda: now)
    receiver = EventReceiver(journey, now=lambda: now)
    journey.record(MAC, Step.DHCP, Outcome.OK, "offer", stage="PXE ROM", dhcp="offer")
    journey.record(MAC, Step.TFTP, Outcome.INFO, "requested", phase="begun")
    now += after
    offer = [now, MAC, "dhcp", "ok", "another's offer", {"stage": "PXE ROM", "dhcp": "offer"}]
    assert await receiver.take(EventBatch(kind="edge", name="10.0.0.2", now=now, events=[offer])) == news


async def test_server_can_publish_only_steps_of_agents():
    journey = Journey(lambda: 100.0)
    receiver = EventReceiver(journey, now=lambda: 100.0)
    steps = [[99.0, MAC, step.value, "ok", step.value, {}] for step in Step]
    await receiver.take(EventBatch(kind="server", name="server-0", now=100.0, events=steps))
    assert {event.message for event in journey.events(MAC)} == {"agent", "action"}


async def test_a_clock_that_is_off_by_half_a_minute_moves_no_event():
    now = 1_000_000.0
    journey = Journey(lambda: now)
    receiver = EventReceiver(journey, clock=lambda: 0.0, now=lambda: now)
    event = [now + 28, MAC, "dhcp", "ok", "two seconds ago", {}]
    await receiver.take(EventBatch(kind="edge", name="10.0.0.2", now=now + 30, events=[event]))
    assert journey.events(MAC)[0].time == now - 2


@pytest.mark.parametrize(
    "changed",
    [
        {"kind": "king"},
        {"name": "a b"},
        {"name": ""},
        {"now": "then"},
        {"events": {}},
        {"events": [0] * (MAX_BATCH_EVENTS + 1)},
    ],
)
def test_invalid_batch_is_rejected(changed):
    fine = {"kind": "edge", "name": "10.0.0.2", "now": 1.0, "events": []}
    assert EventBatch.read(orjson.dumps(fine)).name == "10.0.0.2"
    with pytest.raises(MessageError):
        EventBatch.read(orjson.dumps(fine | changed))


# --- Whose word counts: forged, altered, old and repeated requests, and answers to something else ---------------------


REQUEST = SignedRequest("GET", "10.0.0.2:7080", "/peers/artifacts/0/1", b"", "bytes=5-")


@pytest.fixture
def clock():
    return Clock(1_800_000_000.0)


@pytest.fixture
def pair(tmp_path, clock):
    keys = key_file(tmp_path / "key", "k" * 64)
    return Signatures(keys, clock), Signatures(keys, clock)


def refusal(signatures, header, request=REQUEST):
    with pytest.raises(StrangerError) as refused:
        signatures.check(header, request)
    return refused.value.refusal


def test_request_of_an_edge_is_accepted_once(pair):
    one, two = pair
    header, nonce = one.request(REQUEST)
    asked = two.check(header, REQUEST)
    assert (asked.edge, asked.nonce) == (one.edge, nonce)
    assert refusal(two, header) is StrangerReason.REPLAYED


@pytest.mark.parametrize(
    "change",
    [
        {"method": "POST"},
        {"authority": "10.0.0.3:7080"},
        {"target": "/peers/artifacts/0/2"},
        {"body": b"x"},
        {"range": "bytes=6-"},
    ],
)
def test_altered_request_is_rejected(pair, change):
    one, two = pair
    header, _ = one.request(REQUEST)
    assert refusal(two, header, replace(REQUEST, **change)) is StrangerReason.FORGED


@pytest.mark.parametrize("word", [1, 2, 3, 4])
def test_each_field_of_the_header_is_signed(pair, word):
    one, two = pair
    words = one.request(REQUEST)[0].split(" ")
    first = words[word][0]
    words[word] = ("1" if first != "1" else "2") + words[word][1:]
    assert refusal(two, " ".join(words)) is StrangerReason.FORGED


@pytest.mark.parametrize(
    "header", ["", "v1", "v2 a b c d", "v1 " + "é" * 32 + " 1 " + "A" * 22 + " " + "A" * 43, "x" * 4096]
)
def test_header_without_a_signature_is_rejected_as_unsigned(pair, header):
    assert refusal(pair[1], header) is StrangerReason.UNSIGNED


@pytest.mark.parametrize("seconds", [SKEW_SECONDS + 0.1, -SKEW_SECONDS - 0.1])
def test_request_with_another_time_is_rejected(pair, clock, seconds):
    one, two = pair
    header, _ = one.request(REQUEST)
    clock.now += seconds
    assert refusal(two, header) is StrangerReason.STALE


def test_request_can_not_be_repeated_while_it_is_valid(pair, clock):
    """By a clock that is as far ahead as may be, it is good for twice as long."""
    one, two = pair
    clock.now += SKEW_SECONDS - 1
    header, _ = one.request(REQUEST)
    clock.now -= SKEW_SECONDS - 1
    two.check(header, REQUEST)
    for _ in range(4):
        assert refusal(two, header) is StrangerReason.REPLAYED
        two.check(one.request(REQUEST)[0], REQUEST)
        clock.now += SKEW_SECONDS / 2 - 1
    clock.now += SKEW_SECONDS
    assert refusal(two, header) is StrangerReason.STALE


def test_requests_that_are_remembered_have_an_end_and_old_ones_go_and_strangers_fill_nothing(pair, clock, monkeypatch):
    monkeypatch.setattr("edge.peers.messages.MAX_NONCES", 3)
    one, two = pair
    for _ in range(2):
        for _ in range(3):
            assert refusal(two, "v1 " + "0" * 32 + " 1 " + "A" * 22 + " " + "A" * 43) is StrangerReason.FORGED
        for _ in range(3):
            two.check(one.request(REQUEST)[0], REQUEST)
        assert refusal(two, one.request(REQUEST)[0]) is StrangerReason.FULL
        clock.now += 2 * SKEW_SECONDS + 1


def test_answer_is_to_this_request_and_as_it_was_given(pair):
    one, two = pair
    header, nonce = one.request(REQUEST)
    asked = two.check(header, REQUEST)
    reported = asked.sign_response(200, b"yes")
    assert one.is_response(nonce, 200, b"yes", reported)
    assert not one.is_response(nonce, 206, b"yes", reported)
    assert not one.is_response(nonce, 200, b"no", reported)
    assert not one.is_response("another", 200, b"yes", reported)
    assert not one.is_response(nonce, 200, b"yes", "é")
    digest = asked.sign_digest("0" * 64).decode()
    assert one.is_digest(nonce, digest[:64], digest[64:])
    assert not one.is_digest(nonce, "1" * 64, digest[64:])
    assert not one.is_response(nonce, 200, b"0" * 64, digest[64:])  # for one purpose each
