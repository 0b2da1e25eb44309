"""A file of another edge that is passed through to one reader: checked as it passes, and at its reader's pace."""

import hashlib
import os
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest

from edge.artifacts.artifact import ArtifactError, ChangedError, ChecksumError, StorageError, UpstreamError
from edge.artifacts.download import TAIL_BYTES
from edge.artifacts.passing import AHEAD_BYTES, Passing
from edge.artifacts.upstream import Copy, Offer
from tests.support.virtual_time import elapse

pytestmark = pytest.mark.looptime

URL, KEY = "edge:/files/disk.raw", "key"
CONTENT = random.Random("disk").randbytes(3 * AHEAD_BYTES + 1)
CHUNK = 1 << 18
BROKEN = UpstreamError(URL, "connection broke")


class Center:
    """The other edge: its copy, its signature, and where it breaks off (`trouble` by offset, each raised once)."""

    def __init__(self):
        self.offer = Offer("center", "10.0.0.1:7080", Copy("v1", len(CONTENT)), is_parent=True)
        self.sha256 = hashlib.sha256(CONTENT).hexdigest()
        self.trouble = {}
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
async def passing(center):
    """Makes the passing file of a reader; `pin` is the checksum that it wants."""
    with ThreadPoolExecutor(1) as writers:
        timeouts, counts = SimpleNamespace(retries=2, pause=0.001), SimpleNamespace(peer_bytes=0)
        services = SimpleNamespace(peers=center, timeouts=timeouts, writers=writers, clock=lambda: 0.0, counts=counts)
        yield lambda pin="": Passing(URL, KEY, pin, center.offer, services, lambda _: None)


@pytest.fixture
def reader(passing):
    made = []

    def make(pin=""):
        made.append(passing(pin).reader())
        return made[-1]

    yield make
    for artifact in made:
        artifact.close()


async def taken(artifact, start=0):
    """Return the bytes that a reader gets from `start` to the end. Raises ArtifactError."""
    received = bytearray()
    while (at := start + len(received)) < artifact.size:
        end = await artifact.filled(at)
        received += os.pread(artifact.fd, end - at, at)
    return bytes(received)


async def test_reader_gets_the_whole_or_a_part_also_of_a_transfer_that_breaks_off(center, reader):
    assert await taken(reader(), 5_000_000) == CONTENT[5_000_000:]
    center.trouble = {AHEAD_BYTES + 1: BROKEN}
    assert await taken(reader()) == CONTENT


async def test_no_more_is_fetched_than_the_reader_is_about_to_want(center, reader):
    artifact = reader()
    for offset in (0, CHUNK):
        await artifact.filled(offset)
        await elapse(60)
        assert center.sent <= AHEAD_BYTES + CHUNK + offset


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
    center.trouble = {AHEAD_BYTES + 1: BROKEN}
    center.offer = replace(center.offer, copy=Copy("v2", len(CONTENT)))
    with pytest.raises(ChangedError, match="became another file"):
        await taken(artifact)


@pytest.mark.parametrize(
    ("trouble", "kind", "message"),
    [
        ({AHEAD_BYTES + more: BROKEN for more in range(10)}, UpstreamError, "connection broke"),
        ({AHEAD_BYTES + 1: RuntimeError("a mistake of ours")}, StorageError, "internal error"),
    ],
    ids=["center that never comes back", "mistake of ours"],
)
async def test_reader_gets_the_error_that_ends_the_transfer(center, reader, trouble, kind, message):
    center.trouble = dict(trouble)
    with pytest.raises(kind, match=message):
        await taken(reader())


async def test_reader_gets_an_error_when_its_edge_stops(passing):
    stopped = passing()
    with stopped.reader() as artifact:
        await artifact.filled(0)
        await stopped.stop()
        with pytest.raises(ArtifactError, match="stopping"):
            await taken(artifact)
