"""A branch fetches through the edge of another site: once, checked, from the origin when that fails, and never in a
circle."""

import asyncio
import hashlib
import json
import os
import time

import pytest
from aiohttp import web

from edge.artifacts import (
    MAX_MANIFEST_BYTES,
    ArtifactError,
    NotFoundError,
    SharedFiles,
    Source,
    UpstreamError,
    blob_url,
    file_url,
    manifest_url,
)
from edge.peers import CallError, probe, upstream_edge
from edge.peers.calls import Calls
from edge.peers.messages import Chain
from tests.unit.peers.conftest import key_file
from tink.files.key_file import KeyFile


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


async def test_checksum_of_the_osie_holds_to_the_last_edge(make_sites, upstream):
    _center, branch = await make_sites({1: 0, 2: 1})
    assert await branch.read(upstream.url, sha256(upstream.content)) == upstream.content
    with pytest.raises(ArtifactError, match="SHA-256"):
        await branch.read(upstream.url, "0" * 64)


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
async def test_circle_that_nobody_has_noticed_yet_ends_at_the_origin(make_sites, upstream, monkeypatch, machines):
    async def nobody_beyond(*_):
        return Chain(edges=())

    monkeypatch.setattr(upstream_edge, "PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(Calls, "chain", nobody_beyond)
    edges = await make_sites({1: 2, 2: 1})
    assert [edge.peers.upstream.is_used for edge in edges] == [True, True]
    reading = [edge.read(upstream.url) for edge in edges[:machines]]
    assert await asyncio.gather(*reading) == [upstream.content] * machines
    with pytest.raises(ArtifactError):
        await edges[0].read(file_url("none"))


async def test_three_tiers_are_no_circle(make_sites, upstream):
    edges = await make_sites({1: 0, 2: 1, 3: 2})
    assert await edges[2].read(upstream.url) == upstream.content
    assert upstream.whole == 1
    assert [edge.cache.counts.fetched_bytes for edge in edges] == [len(upstream.content), 0, 0]


async def test_nobody_fetches_for_others_who_was_not_told_to(make_sites, upstream):
    _center, branch = await make_sites({1: 0, 2: 1}, downstream=False)
    assert not branch.peers.upstream.is_used
    assert "no --downstream-edges" in branch.notices[-1]
    assert await branch.read(upstream.url) == upstream.content


async def test_edge_with_another_key_is_not_fetched_for(make_sites, upstream):
    _center, branch = await make_sites({1: 0, 2: 1}, keys={2: "x" * 64})
    assert not branch.peers.upstream.is_used
    assert "--metadata-token-key" in branch.notices[-1]


async def test_center_fetches_neither_its_own_files_nor_from_where_it_must_not(make_sites, upstream):
    _center, branch = await make_sites({1: 0, 2: 1})
    calls, where = Calls(branch.peers.signatures), branch.peers.upstream.authority
    await calls.start()
    with pytest.raises(upstream_edge.CallError, match="only http and https"):
        await calls.fetch(where, upstream_edge.FetchQuery(url="file:///etc/passwd"), 1.0)
    reply = await calls.fetch(where, upstream_edge.FetchQuery(url="http://169.254.169.254/x"), 1.0)
    await calls.stop()
    assert reply.held is None
    assert "from which nothing is fetched" in reply.trouble


async def test_doctor_hears_of_an_upstream_edge_that_fetches_for_it_and_of_one_that_does_not(make_sites, tmp_path):
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


async def test_file_crosses_the_link_once_for_all_machines_of_a_branch(make_sites, put):
    center, branch = await make_sites({1: 0, 2: 1})
    put(1, "a disk.raw")
    url = file_url("a disk.raw")
    assert set(await asyncio.gather(*[branch.read(url) for _ in range(5)])) == {CONTENT}
    assert branch.cache.counts.peer_bytes == len(CONTENT)
    assert center.peers.counts.served == 1
    assert await branch.read(url) == CONTENT
    assert center.peers.counts.served == 1


async def test_file_that_has_changed_comes_anew_and_one_that_is_gone_goes(make_sites, put):
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


async def test_center_that_is_away_costs_nothing_of_what_the_branch_has(make_sites, put):
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


async def test_blob_that_is_not_what_its_digest_says_is_not_taken(make_sites, put_image, tmp_path):
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


async def test_three_tiers_hand_it_down_and_say_what_none_has(make_sites, put):
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


def test_manifest_beyond_the_bound_is_not_read(tmp_path, put_image):
    digest = put_image(1, "x:1")
    (tmp_path / "images1" / "blobs" / "sha256" / digest[7:]).write_bytes(bytes(MAX_MANIFEST_BYTES + 1))
    with pytest.raises(ArtifactError, match="larger than"):
        SharedFiles(None, tmp_path / "images1").open(manifest_url("x", "1"))
