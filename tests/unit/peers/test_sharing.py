"""Files from the caches of other edges, over real connections: what is asked of the upstream, and what if one lies."""

import asyncio
import hashlib

import aiohttp
import pytest
from aiohttp import web

from edge.artifacts import ArtifactError, Source
from edge.artifacts.storage.store import key_of
from edge.http import peers as handler
from edge.peers import HEADER, Request
from edge.peers.calls import Calls
from edge.peers.signatures import Signatures
from tests.unit.peers.conftest import KEY, whole
from tests.waiting import until
from tink.files.key_file import KeyFile

NEW = "n" * 64


async def test_file_is_fetched_once_by_three_edges_that_want_it_at_the_same_moment(make_site, upstream):
    edges = await make_site(3)
    upstream.headers_gate.clear()
    reading = [asyncio.create_task(edge.read(upstream.url)) for edge in edges for _ in range(5)]
    await until(lambda: upstream.whole == 1)
    upstream.headers_gate.set()
    contents = await asyncio.gather(*reading)
    assert set(contents) == {upstream.content}
    assert upstream.whole == 1
    assert sum(edge.cache.counts.from_peers for edge in edges) == 2


async def test_edge_that_began_between_two_questions_is_waited_for(make_site, upstream, monkeypatch):
    """One says that it does not fetch the file, begins, and the third says then that it may."""
    edges = await make_site(3)
    key = key_of(upstream.url, "")
    arbiter = edges[0].peers._membership.arbiter(key)
    one, two = (edge for edge in edges if edge.peers._membership.own != arbiter)
    upstream.headers_gate.clear()
    first = []
    real = Calls.ask

    async def ask(self, authority, question):
        if self is two.peers.caches._calls and question.claim and not first:
            await until(lambda: answered)
            first.append(asyncio.create_task(one.read(upstream.url)))
            await until(lambda: upstream.whole == 1)
        reply = await real(self, authority, question)
        if self is two.peers.caches._calls and authority == one.authority:
            answered.append(reply)
        return reply

    answered = []
    monkeypatch.setattr(Calls, "ask", ask)
    second = asyncio.create_task(two.read(upstream.url))
    await until(lambda: len(answered) > 1)
    upstream.headers_gate.set()
    assert await second == await first[0] == upstream.content
    assert upstream.whole == 1
    assert not answered[0].fetching, "or it was not the race"


async def test_machine_starts_to_receive_while_the_file_still_comes_to_another_edge(pair, upstream):
    one, two = pair
    upstream.gate.clear()
    with await one.cache.open(upstream.url) as first, await two.cache.open(upstream.url) as second:
        assert first.source is Source.UPSTREAM
        assert second.source in (Source.PEER, Source.UPSTREAM_EDGE)
        assert await second.filled(0) > 0
        upstream.gate.set()
        assert await whole(second) == await whole(first) == upstream.content
    assert upstream.whole == 1


async def test_file_that_another_edge_has_comes_from_there_and_is_kept(make_site, upstream):
    one, two = await make_site(2)
    await one.read(upstream.url)
    assert await two.read(upstream.url) == upstream.content
    assert await two.read(upstream.url) == upstream.content
    assert (upstream.whole, upstream.unchanged) == (1, 0)
    assert (one.peers.counts.served, two.cache.counts.from_peers) == (1, 1)
    assert two.cache.stored_files == 1


async def test_copy_that_nobody_has_looked_after_is_checked_with_the_upstream_first(make_site, upstream):
    one, two = await make_site(2)
    await one.read(upstream.url)
    one.times[0] += 3600
    for _ in range(2):
        assert await two.read(upstream.url) == upstream.content
    assert (upstream.whole, upstream.unchanged, two.cache.counts.from_peers) == (1, 1, 1)


async def test_file_that_has_changed_is_not_taken_from_an_edge_that_has_the_old_one(make_site, upstream):
    one, two = await make_site(2)
    await one.read(upstream.url)
    one.times[0] += 3600
    upstream.content, upstream.etag = b"new" * 100_000, '"v2"'
    assert await two.read(upstream.url) == upstream.content
    assert await one.read(upstream.url) == upstream.content
    assert upstream.whole == 2


async def test_what_is_fresh_does_not_stay_so_by_going_round(make_site, upstream):
    one, two, three = await make_site(3)
    await one.read(upstream.url)
    one.times[0] += 50  # of 60
    await two.read(upstream.url)
    for edge in (one, two):
        edge.times[0] += 11
    await three.read(upstream.url)
    assert (upstream.whole, upstream.unchanged) == (1, 1)


async def test_upstream_that_is_down_does_not_matter_where_another_edge_has_the_file(pair, upstream):
    one, two = pair
    await one.read(upstream.url)
    one.times[0] += 3600
    upstream.mode = "500"
    assert await two.read(upstream.url) == upstream.content


@pytest.mark.parametrize("demanded_before", [True, False])
async def test_file_with_a_checksum_that_its_url_has_brought_to_another_edge_needs_no_upstream(
    make_site, upstream, demanded_before
):
    one, two = await make_site(2)
    pin = hashlib.sha256(upstream.content).hexdigest()
    await one.read(upstream.url, pin if demanded_before else "")
    one.times[0] += 3600
    upstream.mode = "500"
    assert await two.read(upstream.url, pin) == upstream.content
    assert (upstream.whole, upstream.unchanged) == (1, 0)


async def test_knowing_a_checksum_gives_no_file_that_only_another_url_has_brought_to_another_edge(pair, upstream):
    one, two = pair
    pin = hashlib.sha256(upstream.content).hexdigest()
    await one.read(f"{upstream.url}?token=b", pin)
    upstream.mode = "403"
    for url in (upstream.url, f"{upstream.url}?token=a", "http://127.0.0.1:9/other/name"):
        with pytest.raises(ArtifactError):
            await two.read(url, pin)
    assert one.peers.counts.served == 0


@pytest.mark.parametrize("pinned", [True, False])
async def test_edge_that_dies_in_the_middle_costs_no_file(pair, upstream, *, pinned):
    one, two = pair
    pin = hashlib.sha256(upstream.content).hexdigest() if pinned else ""
    upstream.gate.clear()
    first = await one.cache.open(upstream.url, sha256=pin)
    with await two.cache.open(upstream.url, sha256=pin) as second:
        assert second.source is not Source.UPSTREAM
        await second.filled(0)
        await one.die()
        await until(lambda: upstream.whole == 2)
        upstream.gate.set()
        assert await whole(second) == upstream.content
    first.close()
    # What nobody has vouched for is compared with what the upstream sends; where a checksum tells, the rest will do.
    assert ["Range" in asked.headers for asked in upstream.requests] == [False, pinned]


@pytest.mark.parametrize("pinned", [False, True])
async def test_damaged_copy_is_found_out_and_not_asked_for_again(pair, upstream, pinned):
    one, two = pair
    pin = hashlib.sha256(upstream.content).hexdigest() if pinned else ""
    await one.read(upstream.url, pin)
    (blob,) = one.directory.glob("*.blob")
    blob.write_bytes(bytes(len(upstream.content)))
    with pytest.raises(
        ArtifactError, match=f"wrong SHA-256: the {'OSIE' if pinned else 'edge that it came from'} says"
    ):
        await two.read(upstream.url, pin)
    assert await two.read(upstream.url, pin) == upstream.content
    assert two.peers.counts.damaged == 1


async def test_upstream_that_has_no_such_file_is_heard_by_each_edge_without_waiting_for_others(make_site, upstream):
    edges = await make_site(3)
    upstream.mode = "404"
    errors = await asyncio.gather(*(edge.read(upstream.url) for edge in edges), return_exceptions=True)
    assert all(isinstance(error, ArtifactError) for error in errors)


async def test_edges_with_different_keys_share_nothing_and_say_so(make_site, upstream, caplog):
    one, two = await make_site(2, keys=[KEY, "x" * 64])
    await one.read(upstream.url)
    await two.read(upstream.url)
    assert upstream.whole == 2
    assert (one.peers.living, two.peers.living) == ([], [])
    assert "not one of this site: it answers 403: not signed with a key of this edge" in caplog.text
    assert one.peers.counts.refused["forged"] > 0


@pytest.mark.parametrize(
    ("first", "second"),
    [(KEY, f"{KEY}\n{NEW}"), (f"{KEY}\n{NEW}", f"{NEW}\n{KEY}"), (f"{NEW}\n{KEY}", NEW)],
    ids=["new key last", "new key first", "old key out"],
)
async def test_keys_can_be_changed_one_edge_at_a_time(make_site, first, second):
    assert [len(edge.peers.living) for edge in await make_site(2, keys=[first, second])] == [1, 1]


async def test_edge_that_comes_and_goes_is_said_once(make_site):
    one, two = await make_site(2)
    await one.peers.look()
    await two.die()
    for _ in range(3):
        await one.peers.look()
    assert one.notices == [
        "the edge at 127.0.7.2 is there: it shares its cache, and machines can go on with it",
        "the edge at 127.0.7.2 does not answer: machines that began with it go on here",
    ]


async def test_edges_without_ipv4_share_what_they_have(make_site, upstream):
    first, second = await make_site(2, ipv6=True)
    assert [peer.authority for peer in first.peers.living] == [second.authority]
    assert await first.read(upstream.url) == await second.read(upstream.url) == upstream.content
    assert upstream.whole == 1
    assert first.notices == ["the edge at ::1 is there: it shares its cache, and machines can go on with it"]


# --- strangers --------------------------------------------------------------------------------------------------------


async def answered(edge, request, header):
    headers = {HEADER: header} if header else {}
    if request.range:
        headers["Range"] = request.range
    url = f"http://{edge.authority}{request.target}"
    async with (
        aiohttp.ClientSession() as session,
        session.request(request.method, url, data=request.body or None, headers=headers) as response,
    ):
        return response.status, await response.text()


QUESTION = b'{"key":"%s"}' % (b"0" * 32)
REQUESTS = [
    ("POST", "/peers/hello", b"{}"),
    ("POST", "/peers/ask", QUESTION),
    ("GET", f"/peers/artifacts/{'0' * 32}/1", b""),
]


@pytest.mark.parametrize(("method", "target", "body"), REQUESTS)
async def test_stranger_learns_nothing(make_site, method, target, body):
    (edge,) = await make_site(1)
    for header in ("", "v1", "v1 " + "0" * 32 + " 1 " + "A" * 22 + " " + "A" * 43):
        status, said = await answered(edge, Request(method, edge.authority, target, body), header)
        assert status == 403
        assert said.startswith(("only edges of this site", "not signed with a key"))


async def test_request_that_was_overheard_is_worth_nothing(make_site):
    one, two = await make_site(2)
    request = Request("POST", one.authority, "/peers/ask", QUESTION)
    header, _ = one.peers.signatures.request(request)
    assert (await answered(one, request, header))[0] == 200
    assert await answered(one, request, header) == (403, "this request has been made before\n")
    assert (await answered(two, request, header))[0] == 403  # it was for another edge
    other = Request("POST", one.authority, "/peers/ask", QUESTION.replace(b"0", b"1"))
    header, _ = one.peers.signatures.request(request)
    assert (await answered(one, other, header))[0] == 403


async def test_edge_with_a_clock_of_its_own_is_told_so(make_site):
    (edge,) = await make_site(1)
    late = Signatures(KeyFile(edge.directory.parent / "key1", "key"), lambda: 1.0)
    request = Request("POST", edge.authority, "/peers/ask", QUESTION)
    status, said = await answered(edge, request, late.request(request)[0])
    assert status == 403
    assert "clock is -" in said
    assert "set both by NTP" in said


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"key":"x"}', b'{"key":' + b"1" * 20_000, b'{"key":"' + b"0" * 32 + b'","pin":"1"}']
)
async def test_message_that_no_edge_sends_is_refused(make_site, body):
    (edge,) = await make_site(1)
    request = Request("POST", edge.authority, "/peers/ask", body)
    assert (await answered(edge, request, edge.peers.signatures.request(request)[0]))[0] in (400, 413)


async def test_stranger_whose_message_does_not_end_is_not_waited_for(make_site, monkeypatch):
    monkeypatch.setattr(handler, "BODY_SECONDS", 0.05)
    (site,) = await make_site(1)
    reader, writer = await asyncio.open_connection(site.address, site.port)
    writer.write(b"POST /peers/ask HTTP/1.1\r\nHost: x\r\nTinkedge-Peer: v1\r\nContent-Length: 9\r\n\r\n{")
    assert (await reader.readline()).startswith(b"HTTP/1.1 400")
    writer.close()


async def test_answer_of_somebody_else_at_the_address_is_not_believed(make_site, upstream):
    """Who took the address of an edge that has gone has no key."""
    one, two = await make_site(2)
    await two.die()

    async def lie(request):
        return web.json_response({"id": "1" * 32, "places": [], "http_port": 1}, headers={HEADER: "A" * 43})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", lie)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, two.address, two.port, reuse_address=True).start()
    try:
        for _ in range(2):
            await one.peers.look()
        assert "1" * 32 not in {peer.id for peer in one.peers.living}
        assert await one.read(upstream.url) == upstream.content
    finally:
        await runner.cleanup()
