"""Files and images of actions cross the link to a branch as kernels do: once, checked, anew when they have changed."""

import asyncio
import hashlib
import json
import os

import pytest

from edge.artifacts import (
    MAX_MANIFEST_BYTES,
    ArtifactError,
    NotFoundError,
    SharedFiles,
    UpstreamError,
    blob_url,
    file_url,
    manifest_url,
)

CONTENT = os.urandom(700_001)


def digest_of(content):
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


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


async def test_edges_that_fetch_through_each_other_end_with_an_error(make_sites):
    edges = await make_sites({1: 2, 2: 1})
    for edge in edges:
        edge.peers.upstream._trouble = None
        edge.peers.upstream._beyond = ()
    with pytest.raises(ArtifactError):
        await edges[0].read(file_url("none"))


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
