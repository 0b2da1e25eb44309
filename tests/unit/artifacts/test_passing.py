"""A file of another edge that is passed through to one reader: checked as it passes, and at its reader's pace."""

import asyncio
import hashlib
import os
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest

from edge.artifacts import ArtifactError, ChecksumError, StorageError, UpstreamError
from edge.artifacts.errors import ChangedError
from edge.artifacts.fetch.download import TAIL_BYTES
from edge.artifacts.fetch.passing import AHEAD_BYTES, Passing
from edge.artifacts.fetch.peers import Copy, Offer

URL, KEY = "edge:/files/disk.raw", "key"
CONTENT = random.Random("disk").randbytes(3 * AHEAD_BYTES + 1)
CHUNK = 1 << 18


class Center:
    """The other edge: what it has, how it signs it, and where it breaks off."""

    def __init__(self):
        self.offer = Offer("center", "10.0.0.1:7080", Copy("v1", len(CONTENT)), is_parent=True)
        self.sha256 = hashlib.sha256(CONTENT).hexdigest()
        self.trouble = {}
        """Raised once, before the byte at that offset."""
        self.sent = 0
        self.distrusted = []

    async def find(self, _key, _url, _pin, _without):
        return self.offer

    def distrust(self, offer, _key):
        self.distrusted.append(offer)

    @asynccontextmanager
    async def get(self, _offer, _url, _key, _pin, offset):
        async def body(_clock):
            for at in range(offset, len(CONTENT), CHUNK):
                for where in [where for where in self.trouble if at <= where < at + CHUNK]:
                    raise self.trouble.pop(where)
                chunk = CONTENT[at : at + CHUNK]
                self.sent = at + len(chunk)
                yield chunk

        yield SimpleNamespace(body=body, sha256=self.sha256)


@pytest.fixture
def center():
    return Center()


@pytest.fixture
async def reader(center):
    """Makes the file of a reader; `pin` is the checksum that it wants."""
    with ThreadPoolExecutor(1) as writers:
        services = SimpleNamespace(
            peers=center,
            timeouts=SimpleNamespace(retries=2, pause=0.001),
            writers=writers,
            clock=lambda: 0.0,
            counts=SimpleNamespace(peer_bytes=0),
        )
        made = []

        def make(pin=""):
            made.append(Passing(URL, KEY, pin, center.offer, services, lambda _: None).reader())
            return made[-1]

        yield make
        for artifact in made:
            artifact.close()


async def taken(artifact, start=0):
    """What a reader gets from there to the end. Raises ArtifactError."""
    received = bytearray()
    while (at := start + len(received)) < artifact.size:
        end = await asyncio.wait_for(artifact.filled(at), 20)
        received += os.pread(artifact.fd, end - at, at)
    return bytes(received)


async def test_reader_gets_the_whole_also_of_a_transfer_that_breaks_off(center, reader):
    center.trouble = {AHEAD_BYTES + 1: UpstreamError(URL, "connection broke")}
    assert await taken(reader()) == CONTENT


async def test_reader_of_a_part_gets_that(reader):
    assert await taken(reader(), 5_000_000) == CONTENT[5_000_000:]


async def test_no_more_is_fetched_than_the_reader_is_about_to_want(center, reader):
    artifact = reader()
    await artifact.filled(0)
    await asyncio.sleep(0.05)
    assert center.sent <= AHEAD_BYTES + CHUNK
    await artifact.filled(CHUNK)
    await asyncio.sleep(0.05)
    assert center.sent <= AHEAD_BYTES + 2 * CHUNK


@pytest.mark.parametrize("wanted", ["signed", "pinned"])
async def test_wrong_bytes_are_never_given_to_their_end_and_their_edge_is_not_trusted(center, reader, wanted):
    wrong = hashlib.sha256(b"other").hexdigest()
    if wanted == "signed":
        center.sha256 = wrong
    artifact = reader(wrong if wanted == "pinned" else "")
    with pytest.raises(ChecksumError, match=wrong):
        await taken(artifact)
    assert center.distrusted == [center.offer]
    with pytest.raises(ChecksumError):
        await artifact.filled(len(CONTENT) - TAIL_BYTES)


async def test_file_that_becomes_another_one_midway_is_not_gone_on_with(center, reader):
    artifact = reader()
    center.trouble = {AHEAD_BYTES + 1: UpstreamError(URL, "connection broke")}
    center.offer = replace(center.offer, copy=Copy("v2", len(CONTENT)))
    with pytest.raises(ChangedError, match="became another file"):
        await taken(artifact)


async def test_center_that_never_comes_back_ends_it(center, reader):
    center.trouble = {AHEAD_BYTES + more: UpstreamError(URL, "connection broke") for more in range(10)}
    with pytest.raises(UpstreamError, match="connection broke"):
        await taken(reader())


async def test_reader_does_not_wait_for_ever_for_what_nobody_has_foreseen(center, reader):
    center.trouble = {AHEAD_BYTES + 1: RuntimeError("a mistake of ours")}
    with pytest.raises(StorageError, match="internal error"):
        await taken(reader())


async def test_reader_whose_edge_stops_is_told(reader):
    artifact = reader()
    await artifact.filled(0)
    passing = artifact._download
    await passing.stop()
    with pytest.raises(ArtifactError, match="stopping"):
        await taken(artifact)
