"""Files from the caches of other edges: of one site, and of the site that a branch fetches through."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time

import aiohttp
import pytest
from aiohttp import web

from edge.artifacts.artifact import ArtifactError, NotFoundError, Source, UpstreamError
from edge.artifacts.shared import SharedFiles, blob_url, file_url, manifest_url
from edge.artifacts.store import key_of
from edge.http import peers as handler
from edge.peers import upstream_edge
from edge.peers.calls import CallError, Calls
from edge.peers.messages import ASK, CHAIN, FETCH, HEADER, FetchReply, Signatures, SignedRequest, UpstreamChain
from edge.peers.upstream_edge import probe
from tests.unit.peers.conftest import KEY, key_file, whole
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
    real = Calls.send

    async def send(self, authority, target, question, *more):
        is_query = self is two.peers.caches._calls and target == ASK
        if is_query and question.claim and not first:
            await until(lambda: answered)
            first.append(asyncio.create_task(one.read(upstream.url)))
            await until(lambda: upstream.whole == 1)
        reply = await real(self, authority, target, question, *more)
        if is_query and authority == one.authority:
            answered.append(reply)
        return reply

    answered = []
    monkeypatch.setattr(Calls, "send", send)
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
    assert len(two.cache.stored()) == 1


async def test_stale_copy_is_checked_with_the_upstream_first(make_site, upstream):
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


async def test_copies_between_edges_do_not_extend_freshness(make_site, upstream):
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
    # Without a checksum, the whole file is compared with the upstream; with one, only the rest is fetched.
    assert ["Range" in asked.headers for asked in upstream.requests] == [False, pinned]


@pytest.mark.parametrize("pinned", [False, True])
async def test_damaged_copy_is_detected_and_not_requested_again(pair, upstream, pinned):
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


async def test_missing_file_is_reported_to_each_edge_without_waiting_for_others(make_site, upstream):
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


async def test_edge_that_comes_and_goes_is_logged_once(make_site):
    one, two = await make_site(2)
    await one.peers.look()
    await two.die()
    for _ in range(3):
        await one.peers.look()
    assert one.notices == [
        "the edge at 127.0.7.2 is there: it shares its cache, and machines can go on with it",
        "the edge at 127.0.7.2 does not answer: machines that began with it go on here",
    ]


async def test_edges_without_ipv4_share_their_files(make_site, upstream):
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
async def test_client_without_the_key_gets_no_information(make_site, method, target, body):
    (edge,) = await make_site(1)
    for header in ("", "v1", "v1 " + "0" * 32 + " 1 " + "A" * 22 + " " + "A" * 43):
        status, reported = await answered(edge, SignedRequest(method, edge.authority, target, body), header)
        assert status == 403
        assert reported.startswith(("only edges of this site", "not signed with a key"))


async def test_copied_request_is_rejected(make_site):
    one, two = await make_site(2)
    request = SignedRequest("POST", one.authority, "/peers/ask", QUESTION)
    header, _ = one.peers.signatures.request(request)
    assert (await answered(one, request, header))[0] == 200
    assert await answered(one, request, header) == (403, "this request has been made before\n")
    assert (await answered(two, request, header))[0] == 403  # it was for another edge
    other = SignedRequest("POST", one.authority, "/peers/ask", QUESTION.replace(b"0", b"1"))
    header, _ = one.peers.signatures.request(request)
    assert (await answered(one, other, header))[0] == 403


async def test_edge_with_a_wrong_clock_gets_the_reason(make_site):
    (edge,) = await make_site(1)
    late = Signatures(KeyFile(edge.directory.parent / "key1", "key"), lambda: 1.0)
    request = SignedRequest("POST", edge.authority, "/peers/ask", QUESTION)
    status, reported = await answered(edge, request, late.request(request)[0])
    assert status == 403
    assert "clock is -" in reported
    assert "set both by NTP" in reported


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"key":"x"}', b'{"key":' + b"1" * 20_000, b'{"key":"' + b"0" * 32 + b'","pin":"1"}']
)
async def test_invalid_message_is_rejected(make_site, body):
    (edge,) = await make_site(1)
    request = SignedRequest("POST", edge.authority, "/peers/ask", body)
    assert (await answered(edge, request, edge.peers.signatures.request(request)[0]))[0] in (400, 413)


async def test_message_without_an_end_is_not_waited_for(make_site, monkeypatch):
    monkeypatch.setattr(handler, "BODY_SECONDS", 0.05)
    (site,) = await make_site(1)
    reader, writer = await asyncio.open_connection(site.address, site.port)
    writer.write(b"POST /peers/ask HTTP/1.1\r\nHost: x\r\nTinkedge-Peer: v1\r\nContent-Length: 9\r\n\r\n{")
    assert (await reader.readline()).startswith(b"HTTP/1.1 400")
    writer.close()


async def test_answer_of_another_host_at_the_address_is_rejected(make_site, upstream):
    """A host that took the address of an edge that has gone has no key."""
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


# --- A branch fetches through the edge of another site: once, checked, from the origin when that fails, a -------------


def sha256(content):
    return hashlib.sha256(content).hexdigest()


async def test_file_crosses_the_link_once_for_all_machines_of_both_sites(make_sites, upstream):
    center, branch = await make_sites({1: 0, 2: 1})
    contents = await asyncio.gather(*[edge.read(upstream.url) for edge in (branch, branch, center, branch, center)])
    assert set(contents) == {upstream.content}
    assert upstream.whole == 1
    assert branch.cache.counts.peer_bytes == len(upstream.content)
    assert branch.cache.counts.fetched_bytes == 0
    assert branch.cache.counts.opened[Source.UPSTREAM_EDGE] == 3
    assert center.peers.counts.served == 1


async def test_kept_file_is_asked_about_at_the_center_alone(make_sites, upstream):
    center, branch = await make_sites({1: 0, 2: 1})
    await branch.read(upstream.url)
    branch.times[0] = center.times[0] = 100.0
    assert await branch.read(upstream.url) == upstream.content
    assert (upstream.whole, upstream.unchanged) == (1, 1)
    assert branch.cache.counts.peer_bytes == len(upstream.content)


async def test_center_that_is_away_costs_nothing_but_the_origin(make_sites, upstream):
    center, branch = await make_sites({1: 0, 2: 1})
    await center.die()
    assert await branch.read(upstream.url) == upstream.content
    assert not branch.peers.upstream.is_used
    assert branch.cache.counts.fetched_bytes == len(upstream.content)
    assert any("is not used, files come from their origins" in line for line in branch.notices)


async def test_origin_that_the_center_can_not_reach_is_asked_by_the_branch(make_sites, upstream):
    _center, branch = await make_sites({1: 0, 2: 1})

    async def broken(_request):
        return web.Response(status=500)

    upstream.answers = [broken]
    assert await branch.read(upstream.url) == upstream.content
    assert branch.peers.counts.parent_misses == 1
    upstream.mode = "500"
    with pytest.raises(ArtifactError, match="500"):
        await branch.read(f"{upstream.url}-2")


@pytest.mark.parametrize("through", [{1: 2, 2: 1}, {1: 1}, {1: 2, 2: 3, 3: 1}])
async def test_edges_that_name_each_other_find_out_and_go_to_the_origin(make_sites, upstream, through):
    edges = await make_sites(through)
    assert [edge.peers.upstream.is_used for edge in edges] == [False] * len(edges)
    assert all(any("fetches through this edge itself" in line for line in edge.notices) for edge in edges)
    assert [await edge.read(upstream.url) for edge in edges] == [upstream.content] * len(edges)


@pytest.mark.parametrize("machines", [1, 2])
async def test_undetected_loop_ends_at_the_origin(make_sites, upstream, monkeypatch, machines):
    real = Calls.send

    async def nobody_beyond(self, authority, target, *more):
        return UpstreamChain(edges=()) if target == CHAIN else await real(self, authority, target, *more)

    monkeypatch.setattr(upstream_edge, "PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(Calls, "send", nobody_beyond)
    edges = await make_sites({1: 2, 2: 1})
    assert [edge.peers.upstream.is_used for edge in edges] == [True, True]
    reading = [edge.read(upstream.url) for edge in edges[:machines]]
    assert await asyncio.gather(*reading) == [upstream.content] * machines
    with pytest.raises(ArtifactError):
        await edges[0].read(file_url("none"))


@pytest.mark.parametrize(
    ("how", "reported"),
    [({"downstream": False}, "no --downstream-edges"), ({"keys": {2: "x" * 64}}, "--metadata-token-key")],
)
async def test_edge_fetches_for_others_only_if_configured_and_with_the_key(make_sites, upstream, how, reported):
    _center, branch = await make_sites({1: 0, 2: 1}, **how)
    assert not branch.peers.upstream.is_used
    assert reported in branch.notices[-1]
    assert await branch.read(upstream.url) == upstream.content


async def test_center_fetches_neither_its_own_files_nor_from_where_it_must_not(make_sites, upstream):
    _center, branch = await make_sites({1: 0, 2: 1})
    calls, where = Calls(branch.peers.signatures), branch.peers.upstream.authority
    await calls.start()
    with pytest.raises(upstream_edge.CallError, match="only http and https"):
        await calls.send(where, FETCH, upstream_edge.FetchQuery(url="file:///etc/passwd"), FetchReply, 1.0)
    reply = await calls.send(where, FETCH, upstream_edge.FetchQuery(url="http://169.254.169.254/x"), FetchReply, 1.0)
    await calls.stop()
    assert reply.held is None
    assert "from which nothing is fetched" in reply.trouble


async def test_doctor_reports_whether_the_upstream_edge_fetches(make_sites, tmp_path):
    center, _branch = await make_sites({1: 0, 2: 1})
    await probe(center.authority, KeyFile(tmp_path / "key2", "key"), time.time)
    with pytest.raises(CallError, match="not signed with a key of this edge"):
        await probe(center.authority, key_file(tmp_path / "other", "z" * 64), time.time)


# --- files and images of actions, which cross the link as kernels do -------------------------------------------------

CONTENT = os.urandom(700_001)


def digest_of(content):
    return f"sha256:{sha256(content)}"


@pytest.fixture
def put(tmp_path):
    """Puts a file into the directory of an edge, by its number."""

    def put(number, name, content=CONTENT):
        (tmp_path / f"files{number}").mkdir(exist_ok=True)
        file = tmp_path / f"files{number}" / name
        file.write_bytes(content)
        return file

    return put


@pytest.fixture
def put_image(tmp_path):
    """Puts an image of one blob into the layout of an edge; gives the digest of its manifest."""

    def put(number, name, content=CONTENT):
        blobs = tmp_path / f"images{number}" / "blobs" / "sha256"
        blobs.mkdir(parents=True, exist_ok=True)
        manifest = json.dumps({"layers": [{"digest": digest_of(content)}]}).encode()
        for each in (content, manifest):
            (blobs / digest_of(each).partition(":")[2]).write_bytes(each)
        about = {"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest_of(manifest)}
        about |= {"size": len(manifest), "annotations": {"org.opencontainers.image.ref.name": name}}
        (tmp_path / f"images{number}" / "index.json").write_text(json.dumps({"manifests": [about]}))
        return digest_of(manifest)

    return put


async def test_changed_file_is_fetched_again_and_a_deleted_one_is_dropped(make_sites, put):
    center, branch = await make_sites({1: 0, 2: 1})
    file = put(1, "disk")
    await branch.read(file_url("disk"))
    put(1, "disk", b"other bytes")
    assert await branch.read(file_url("disk")) == CONTENT, "for a moment what was there may do"
    branch.times[0] = 100.0
    assert await branch.read(file_url("disk")) == b"other bytes"
    file.unlink()
    branch.times[0] = 200.0
    with pytest.raises(NotFoundError, match=f"the edge at {center.authority} has no such file either"):
        await branch.read(file_url("disk"))


async def test_branch_serves_its_own_files_while_the_center_is_away(make_sites, put):
    center, branch = await make_sites({1: 0, 2: 1})
    put(1, "disk")
    put(1, "other")
    await branch.read(file_url("disk"))
    await center.die()
    branch.times[0] = 100.0
    assert await branch.read(file_url("disk")) == CONTENT
    with pytest.raises(UpstreamError, match="no other edge that can be asked has it"):
        await branch.read(file_url("other"))


async def test_image_comes_by_its_name_and_its_blobs_by_their_digests(make_sites, put_image):
    _center, branch = await make_sites({1: 0, 2: 1})
    digest = put_image(1, "actions/disk:1")
    manifest = await branch.read(manifest_url("actions/disk", "1"))
    assert digest_of(manifest) == digest
    assert await branch.read(manifest_url("actions/disk", digest), digest[7:]) == manifest
    assert await branch.read(blob_url(digest_of(CONTENT)), digest_of(CONTENT)[7:]) == CONTENT
    with pytest.raises(NotFoundError):
        await branch.read(manifest_url("actions/disk", "2"))


async def test_blob_with_a_wrong_digest_is_rejected(make_sites, put_image, tmp_path):
    _center, branch = await make_sites({1: 0, 2: 1})
    put_image(1, "actions/disk:1")
    blob = tmp_path / "images1" / "blobs" / "sha256" / digest_of(CONTENT)[7:]
    blob.write_bytes(b"x" + CONTENT[1:])
    with pytest.raises(ArtifactError, match="SHA-256"):
        await branch.read(blob_url(digest_of(CONTENT)), digest_of(CONTENT)[7:])


async def test_digest_of_a_kernel_gives_it_as_no_blob_of_an_image(make_sites, upstream):
    center, branch = await make_sites({1: 0, 2: 1})
    digest = digest_of(upstream.content)
    for edge in (center, branch):
        await edge.read(upstream.url, digest[7:])
    for url in (blob_url(digest), manifest_url("actions/disk", digest)):
        with pytest.raises(NotFoundError, match="has no such file either"):
            await branch.read(url, digest[7:])


async def test_three_tiers_pass_a_file_on_and_report_a_missing_one(make_sites, put):
    edges = await make_sites({1: 0, 2: 1, 3: 2})
    put(1, "disk")
    assert await edges[2].read(file_url("disk")) == CONTENT
    assert [edge.peers.counts.served for edge in edges] == [1, 1, 0]
    with pytest.raises(NotFoundError):
        await edges[2].read(file_url("none"))


@pytest.mark.parametrize(
    "url",
    [
        file_url("../key1"),
        file_url("/etc/passwd"),
        file_url(".hidden"),
        "edge:/files/",
        "edge:/blobs/sha256:..",
        "edge:/manifests/../../x:1",
        "edge:/manifests/x@sha256:abc",
        "edge:/etc/passwd",
        "edge:",
    ],
)
async def test_nothing_but_files_and_images_is_lent(tmp_path, put, put_image, url):
    put(1, ".hidden")
    put_image(1, "x:1")
    shared = SharedFiles(tmp_path / "files1", tmp_path / "images1")
    with pytest.raises(ArtifactError):
        shared.open(url)
