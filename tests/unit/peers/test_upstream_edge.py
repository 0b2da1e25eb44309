"""A branch fetches through the edge of another site: once, checked, from the origin when that fails, and never in a
circle."""

import asyncio
import hashlib
import time

import pytest

from edge.artifacts import ArtifactError, Source
from edge.peers import CallError, probe, upstream_edge
from tests.unit.peers.conftest import whole
from tests.waiting import until
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


async def test_bytes_reach_the_branch_while_the_center_still_receives(make_sites, upstream):
    _center, branch = await make_sites({1: 0, 2: 1})
    upstream.gate.clear()
    with await branch.cache.open(upstream.url) as artifact:
        assert await artifact.filled(0) > 0
        upstream.gate.set()
        assert await whole(artifact) == upstream.content


async def test_checksum_of_the_osie_holds_to_the_last_edge(make_sites, upstream):
    _center, branch = await make_sites({1: 0, 2: 1})
    assert await branch.read(upstream.url, sha256(upstream.content)) == upstream.content
    with pytest.raises(ArtifactError, match="SHA-256"):
        await branch.read(upstream.url, "0" * 64)


async def test_knowing_a_checksum_gives_the_branch_no_file_that_only_another_url_has_brought(make_sites, upstream):
    center, branch = await make_sites({1: 0, 2: 1})
    pin = sha256(upstream.content)
    await center.read(f"{upstream.url}?token=b", pin)
    upstream.mode = "403"
    with pytest.raises(ArtifactError, match="403"):
        await branch.read(f"{upstream.url}?token=a", pin)
    assert (center.peers.counts.served, branch.cache.counts.peer_bytes) == (0, 0)


async def test_damage_at_the_center_is_noticed_and_the_origin_asked(make_sites, upstream):
    center, branch = await make_sites({1: 0, 2: 1})
    await center.read(upstream.url)
    (file,) = [each for each in center.directory.iterdir() if each.suffix == ".blob"]
    damaged = bytearray(file.read_bytes())
    damaged[1000] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(ArtifactError, match="the edge that it came from says"):
        await branch.read(upstream.url)
    assert await branch.read(upstream.url) == upstream.content
    assert branch.peers.counts.damaged == 1
    assert branch.cache.counts.fetched_bytes == len(upstream.content)


async def test_kept_file_is_asked_about_at_the_center_alone(make_sites, upstream):
    center, branch = await make_sites({1: 0, 2: 1})
    await branch.read(upstream.url)
    branch.times[0] = center.times[0] = 100.0
    assert await branch.read(upstream.url) == upstream.content
    assert (upstream.whole, upstream.checks) == (1, 1)
    assert branch.cache.counts.peer_bytes == len(upstream.content)


async def test_center_that_is_away_costs_nothing_but_the_origin(make_sites, upstream):
    center, branch = await make_sites({1: 0, 2: 1})
    await center.die()
    assert await branch.read(upstream.url) == upstream.content
    assert not branch.peers.upstream.is_used
    assert branch.cache.counts.fetched_bytes == len(upstream.content)
    assert any("is not used, files come from their origins" in line for line in branch.notices)


async def test_center_that_dies_in_the_middle_is_gone_on_without(make_sites, upstream):
    center, branch = await make_sites({1: 0, 2: 1})
    upstream.gate.clear()
    with await branch.cache.open(upstream.url) as artifact:
        assert await artifact.filled(0) > 0
        await center.die()
        upstream.gate.set()
        assert await whole(artifact) == upstream.content
    await until(lambda: not branch.cache._flights)


async def test_origin_that_the_center_can_not_reach_is_asked_by_the_branch(make_sites, upstream):
    _center, branch = await make_sites({1: 0, 2: 1})
    upstream.mode = "500"
    with pytest.raises(ArtifactError, match="500"):
        await branch.read(upstream.url)
    assert branch.peers.counts.parent_misses == 1
    upstream.mode = ""
    branch.peers.upstream._trouble = "away"
    assert await branch.read(upstream.url) == upstream.content


async def test_origin_that_is_down_costs_the_branch_nothing_that_the_center_has(make_sites, upstream):
    center, branch = await make_sites({1: 0, 2: 1})
    await center.read(upstream.url)
    center.times[0], upstream.mode = 100.0, "500"
    assert await branch.read(upstream.url) == upstream.content


@pytest.mark.parametrize("through", [{1: 2, 2: 1}, {1: 1}, {1: 2, 2: 3, 3: 1}])
async def test_edges_that_name_each_other_find_out_and_go_to_the_origin(make_sites, upstream, through):
    edges = await make_sites(through)
    assert [edge.peers.upstream.is_used for edge in edges] == [False] * len(edges)
    assert all(any("fetches through this edge itself" in line for line in edge.notices) for edge in edges)
    assert [await edge.read(upstream.url) for edge in edges] == [upstream.content] * len(edges)


async def test_circle_that_nobody_has_noticed_yet_ends_at_the_origin(make_sites, upstream, monkeypatch):
    monkeypatch.setattr(upstream_edge, "PATIENCE_SECONDS", 0.5)
    edges = await make_sites({1: 2, 2: 1})
    for edge in edges:
        edge.peers.upstream._trouble = None
        edge.peers.upstream._beyond = ()
    assert await edges[0].read(upstream.url) == upstream.content
    assert upstream.whole >= 1
    for edge in edges:
        edge.peers.upstream._trouble = None
    other = upstream.url + "2"
    assert await asyncio.gather(*[edge.read(other) for edge in edges]) == [upstream.content] * 2


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
    calls, where = branch.peers._calls, branch.peers.upstream.authority
    with pytest.raises(upstream_edge.CallError, match="only http and https"):
        await calls.fetch(where, upstream_edge.FetchQuery(url="file:///etc/passwd"), 1.0)
    reply = await calls.fetch(where, upstream_edge.FetchQuery(url="http://169.254.169.254/x"), 1.0)
    assert reply.held is None
    assert "from which nothing is fetched" in reply.trouble


async def test_doctor_hears_of_an_upstream_edge_that_fetches_for_it_and_of_one_that_does_not(make_sites, tmp_path):
    center, _branch = await make_sites({1: 0, 2: 1})
    await probe(center.authority, KeyFile(tmp_path / "key2", "key"), time.time)
    other = tmp_path / "other"
    other.write_text("z" * 64)
    other.chmod(0o600)
    with pytest.raises(CallError, match="not signed with a key of this edge"):
        await probe(center.authority, KeyFile(other, "key"), time.time)
