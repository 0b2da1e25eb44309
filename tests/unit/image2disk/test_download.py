"""Servers that cut connections, know no ranges, or have another file after a while: never a wrong byte on the disk."""

import hashlib
import http.client
import io
import itertools
import random
import time
from email.utils import formatdate
from types import SimpleNamespace

import pytest
from image2disk.download import Download
from image2disk.errors import ActionError
from image2disk.web import LimitedReader, Web

LENGTH = 5_000_003


@pytest.fixture
def content(random_bytes, site):
    site.content = random_bytes(LENGTH)
    return site.content


def ranges(site):
    return [asked.get("Range") for asked in site.asked]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("is_chunked", [False, True])
def test_connections_cut_at_random_places_cost_nothing_but_the_rest(site, target, content, seed, is_chunked):
    dice = random.Random(seed)
    site.cuts, site.is_chunked = [dice.randrange(1, LENGTH // 4) for _ in range(6)], is_chunked
    at, expected = 0, [None]
    for cut in site.cuts:
        at += cut
        if not is_chunked:
            expected.append(f"bytes={at}-")
    size, sha256 = target.copy(f"{site.url}/x.img")
    assert (size, sha256) == (LENGTH, hashlib.sha256(content).hexdigest())
    assert target.content[:LENGTH] == content
    assert len(site.asked) == 7
    if not is_chunked:
        assert ranges(site) == expected
        assert {asked.get("If-Range") for asked in site.asked[1:]} == {'"one"'}


def test_server_without_ranges_sends_all_again_and_what_was_there_is_compared(site, target, content):
    site.has_ranges, site.cuts = False, [1_000_000, 2_500_000, 1_700_000]
    target.copy(f"{site.url}/x.img")
    assert target.content[:LENGTH] == content
    assert any("the server sends all again" in line for line in target.said)


@pytest.mark.parametrize("has_ranges", [True, False])
def test_changed_file_is_begun_anew_from_its_first_byte(site, target, content, has_ranges, random_bytes):
    other = bytes(reversed(content))
    site.has_ranges, site.cuts, site.change = has_ranges, [3_000_000], (2, other, '"two"')
    _, sha256 = target.copy(f"{site.url}/x.img")
    assert target.content[:LENGTH] == other
    assert sha256 == hashlib.sha256(other).hexdigest()
    assert any('its ETag is "two" now, not "one"; begins anew, from its first byte' in line for line in target.said)


def test_changed_length_is_begun_anew(site, target, content):
    site.cuts, site.change = [3_000_000], (2, content[:4_000_000], '"one"')
    size, _ = target.copy(f"{site.url}/x.img")
    assert size == 4_000_000
    assert any("it has 4000000 bytes now, not 5000003" in line for line in target.said)


def test_changed_file_that_nothing_tells_apart_is_noticed_by_its_bytes(site, target, content):
    other = b"\1" + content[1:]
    site.etag, site.cuts, site.change = "", [3_000_000], (2, other, "")
    target.copy(f"{site.url}/x.img")
    assert ranges(site)[1] is None  # nothing says that a range would be of the same file
    assert target.content[:LENGTH] == other
    assert any("its first 3000000 bytes are others now" in line for line in target.said)


def test_weak_etag_is_no_proof_for_a_range(site, target, content):
    site.etag, site.cuts = 'W/"one"', [3_000_000]
    target.copy(f"{site.url}/x.img")
    assert ranges(site) == [None, None]
    assert target.content[:LENGTH] == content


def test_range_without_validator_is_asked_for_where_a_checksum_will_tell(site, target, content):
    site.etag, site.cuts = "", [3_000_000]
    target.copy(f"{site.url}/x.img", IMG_SHA256=hashlib.sha256(content).hexdigest())
    assert ranges(site) == [None, "bytes=3000000-"]
    assert target.content[:LENGTH] == content


def test_file_that_changes_all_the_time_is_given_up(site, target, content):
    site.has_ranges, site.etag = False, ""

    class Cuts(list):
        def pop(self, index):
            site.content = bytes([site.content[0] ^ 1]) + site.content[1:]
            return 2_000_000

        def __bool__(self):
            return True

    site.cuts = Cuts()
    with pytest.raises(ActionError, match="changes all the time") as caught:
        target.copy(f"{site.url}/x.img")
    assert caught.value.reason == "DownloadFailed"


def test_wrong_checksum_says_not_to_boot(site, target, content):
    with pytest.raises(ActionError, match=r"not 0000.*do not boot from /dev/test") as caught:
        target.copy(f"{site.url}/x.img", IMG_SHA256="0" * 64)
    assert caught.value.reason == "ChecksumMismatch"


def test_attempts_without_a_new_byte_are_bounded_and_their_pauses_grow(site, target, content):
    site.cuts = [1000] + [0] * 20
    with pytest.raises(ActionError, match=r"the connection ended .* early; 1000 bytes were there"):
        target.copy(f"{site.url}/x.img", IMG_RETRIES="6")
    assert target.pauses == [1, 2, 4, 8, 16, 30]
    assert len(site.asked) == 7


def test_server_that_is_busy_is_asked_again_and_one_that_refuses_is_not(site, target, content):
    site.before = [503, 429]
    target.copy(f"{site.url}/x.img")
    assert target.content[:LENGTH] == content
    site.before, site.asked = [403], []
    with pytest.raises(ActionError, match="403"):
        target.copy(f"{site.url}/x.img")
    assert len(site.asked) == 1


def test_server_that_says_when_to_come_again_is_asked_then_however_often(site, target, content):
    site.before, site.retry_after = [503] * 30, "10"
    target.copy(f"{site.url}/x.img", IMG_RETRIES="2")
    assert target.content[:LENGTH] == content
    assert target.pauses == [10] * 30


@pytest.mark.parametrize(("retry_after", "pause"), [("0", 1), ("100000", 300)])
def test_times_to_come_again_are_bounded(site, target, content, retry_after, pause):
    site.before, site.retry_after = [429], retry_after
    target.copy(f"{site.url}/x.img")
    assert target.pauses == [pause]


def test_time_to_come_again_may_be_a_date(site, target, content):
    site.before, site.retry_after = [503], formatdate(time.time() + 60, usegmt=True)
    target.copy(f"{site.url}/x.img")
    assert 50 <= target.pauses[0] <= 60


def test_server_that_is_busy_for_an_hour_is_given_up(site, target):
    site.before, site.retry_after = [503] * 100, "300"
    with pytest.raises(ActionError, match="503 Service Unavailable; 0 bytes were there"):
        target.copy(f"{site.url}/x.img", IMG_RETRIES="2")
    assert target.pauses == [300] * 12 + [1, 2]


def test_time_to_come_again_that_is_none_counts_as_an_attempt(site, target):
    site.before, site.retry_after = [503] * 100, "soon"
    with pytest.raises(ActionError, match="503"):
        target.copy(f"{site.url}/x.img", IMG_RETRIES="2")
    assert target.pauses == [1, 2]


def test_empty_file_is_no_image(site, target):
    site.content = b""
    with pytest.raises(ActionError, match="is empty"):
        target.copy(f"{site.url}/x.img")


class Trickle(io.RawIOBase):
    """A connection that delivers the head of an answer, and then `count` bytes every `seconds` of its own clock."""

    def __init__(self, count, seconds):
        self.head = b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n"
        self.count, self.seconds = count, seconds
        self.now = 0.0
        self.brought = 0

    def clock(self):
        return self.now

    def readable(self):
        return True

    def readinto(self, buffer):
        if self.head:
            buffer[: len(self.head)] = self.head
            count, self.head = len(self.head), b""
            return count
        self.now += self.seconds
        count = min(self.count, len(buffer))
        buffer[:count] = b"x" * count
        self.brought += count
        return count


class TricklingWeb(Web):
    """A server whose answers come from `trickle`, which continues where it was."""

    def __init__(self, trickle):
        super().__init__(check_certificates=True, clock=trickle.clock)
        self.trickle = trickle
        self.asked = 0

    def get_as(self, url, headers, authorization):
        self.asked += 1
        if self.asked > 50:
            raise AssertionError("asks again and again")
        self._limit.begin()
        trickle = self.trickle
        trickle.head = Trickle(0, 0).head
        limited = io.BufferedReader(LimitedReader(trickle, self._limit))
        response = http.client.HTTPResponse(SimpleNamespace(makefile=lambda _mode: limited))
        response.begin()
        return response


def test_trickling_server_is_given_up_like_a_silent_one():
    trickle, pauses, said = Trickle(1, 10.0), [], []
    web = TricklingWeb(trickle)
    download = Download(web, "http://site/x.img", retries=3, is_proved=False, say=said.append, sleep=pauses.append)
    with pytest.raises(ActionError, match=r"too slow: \d+ bytes in 60 s"):
        list(download.chunks())
    assert trickle.now == 60.0 * 4
    assert pauses == [1, 2, 4]


def test_server_at_the_least_rate_is_waited_for_and_a_disk_that_is_slow_is_not_its_fault():
    trickle = Trickle(10_240, 10.0)
    download = Download(TricklingWeb(trickle), "http://site/x.img", retries=0, is_proved=False)
    chunks = download.chunks()
    for _ in range(100):
        assert next(chunks)
        trickle.now += 3600.0  # the disk takes its time
    assert trickle.brought >= 1_000_000


def test_time_that_the_head_of_an_answer_takes_counts(site, target, content):
    hours = itertools.count(0, 3600)
    target.clock = lambda: next(hours)
    with pytest.raises(ActionError, match=r"the server is too slow: \d+ bytes in 3600 s"):
        target.copy(f"{site.url}/x.img", IMG_RETRIES="2")
    assert target.pauses == [1, 2]


def test_connections_that_bring_a_few_bytes_each_are_given_up(site, target, content):
    site.cuts = [100] * 1000
    with pytest.raises(ActionError, match="900 bytes were there"):
        target.copy(f"{site.url}/x.img")
    assert len(site.asked) == 9


def test_body_of_a_redirect_is_not_read(site, target, content):
    site.redirect = "/here"
    target.copy(f"{site.url}/x.img")
    assert target.content[:LENGTH] == content
