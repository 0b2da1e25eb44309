"""Images over HTTP, whole or compressed, from servers that break off or change their files: never a wrong byte."""

import base64
import bz2
import gzip
import hashlib
import http.client
import io
import itertools
import lzma
import os
import random
import struct
import time
import zlib
from email.utils import formatdate
from types import SimpleNamespace

import pytest
from image2disk.disk import HEAD_BYTES, TAIL_BYTES
from image2disk.download import Download
from image2disk.errors import ActionError
from image2disk.web import LimitedReader, Web

from tests.unit.image2disk.conftest import OLD, SIZE, header, zstd_frame

LENGTH = 5_000_003


def sha256(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def content(random_bytes, site):
    site.content = random_bytes(LENGTH)
    return site.content


def ranges(site):
    return [asked.get("Range") for asked in site.asked]


@pytest.fixture
def fails(site, target):
    """The error of a copy that fails."""

    def copy(message, path="/x.img", **env):
        with pytest.raises(ActionError, match=message) as caught:
            target.copy(site.url + path, **env)
        return caught.value

    return copy


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("is_chunked", [False, True])
def test_connections_cut_at_random_places_cost_nothing_but_the_rest(site, target, content, seed, is_chunked):
    dice = random.Random(seed)
    site.cuts, site.is_chunked = [dice.randrange(1, LENGTH // 4) for _ in range(6)], is_chunked
    expected = [None, *(f"bytes={at}-" for at in itertools.accumulate(site.cuts))]
    assert target.copy(f"{site.url}/x.img") == (LENGTH, sha256(content))
    assert target.content[:LENGTH] == content
    assert len(site.asked) == 7
    if not is_chunked:
        assert ranges(site) == expected
        assert {asked.get("If-Range") for asked in site.asked[1:]} == {'"one"'}


CUT = 3_000_000
REST = f"bytes={CUT}-"
NO_RANGES = {"has_ranges": False}
NEW_ETAG = 'its ETag is "two" now, not "one"; starts again from the first byte'


@pytest.mark.parametrize(
    ("before", "change", "etag", "asked", "said"),
    [
        (
            NO_RANGES | {"cuts": [1_000_000, 2_500_000, 1_700_000]},
            None,
            "",
            None,
            "the server sends the whole file again",
        ),
        ({}, lambda content: bytes(reversed(content)), '"two"', REST, NEW_ETAG),
        (NO_RANGES, lambda content: bytes(reversed(content)), '"two"', REST, NEW_ETAG),
        ({}, lambda content: content[:4_000_000], '"one"', REST, "it has 4000000 bytes now, not 5000003"),
        # Nothing says that a range would be of the same file.
        ({"etag": ""}, lambda content: b"\1" + content[1:], "", None, "its first 3000000 bytes are different now"),
        ({"etag": 'W/"one"'}, None, "", None, ""),
    ],
    ids=["no ranges", "other ETag", "other ETag, no ranges", "other length", "other bytes", "weak ETag"],
)
def test_file_that_the_server_can_not_go_on_with_is_compared_or_begun_anew(
    site, target, content, before, change, etag, asked, said
):
    site.cuts = [CUT]
    for name, value in before.items():
        setattr(site, name, value)
    expected = content if change is None else change(content)
    site.change = None if change is None else (2, expected, etag)
    assert target.copy(f"{site.url}/x.img") == (len(expected), sha256(expected))
    assert target.content[: len(expected)] == expected
    assert asked == ranges(site)[1] or not site.has_ranges
    assert any(said in line for line in [*target.said, ""])


def test_range_without_validator_is_asked_for_where_a_checksum_will_tell(site, target, content):
    site.etag, site.cuts = "", [CUT]
    target.copy(f"{site.url}/x.img", IMG_SHA256=sha256(content))
    assert ranges(site) == [None, REST]
    assert target.content[:LENGTH] == content


def test_file_that_changes_all_the_time_is_given_up(site, content, fails):
    site.has_ranges, site.etag = False, ""

    class Cuts(list):
        def pop(self, index):
            site.content = bytes([site.content[0] ^ 1]) + site.content[1:]
            return 2_000_000

    site.cuts = Cuts([0])
    assert fails("keeps changing").reason == "DownloadFailed"


def test_file_that_is_none_or_another_one_is_refused(site, content, fails):
    assert fails(r"not 0000.*do not boot from /dev/test", IMG_SHA256="0" * 64).reason == "ChecksumMismatch"
    site.content = b""
    fails("is empty")


def test_body_of_a_redirect_is_not_read(site, target, content):
    site.redirect = "/here"
    target.copy(f"{site.url}/x.img")
    assert target.content[:LENGTH] == content


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("/a%2Fb%40c+d?sig=%2B%2f+;x=[1]&y=%7e", "/a%2Fb%40c+d?sig=%2B%2f+;x=[1]&y=%7e"),
        ("/my disk/é?q=5%", "/my%20disk/%C3%A9?q=5%25"),
    ],
)
def test_url_and_redirect_are_requested_byte_for_byte_with_the_login(site, target, content, written, sent):
    for path, site.redirect in ((written, ""), ("/x.img", sent)):
        target.copy(site.url.replace("//", "//me%40%C3%BC:p%2Fw@") + path)
    assert site.paths == [sent, "/x.img", sent]
    login = "Basic " + base64.b64encode("me@ü:p/w".encode()).decode()
    assert [asked["Authorization"] for asked in site.asked] == [login] * 3


def test_login_is_for_its_own_server_and_neither_it_nor_a_signature_stands_in_messages(site, content, fails):
    site.redirect = site.url.replace("127.0.0.1", "localhost") + "/there"
    site.url = site.url.replace("//", "//me:secret@")
    error = fails("ChecksumMismatch|not 0000", path="/x.img?sig=secret", IMG_SHA256="0" * 64)
    assert "secret" not in str(error)
    assert ["Authorization" in asked for asked in site.asked] == [True, False]


# --- attempts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cuts", "retries", "there", "pauses"),
    [([1000] + [0] * 20, "6", 1000, [1, 2, 4, 8, 16, 30]), ([100] * 1000, "8", 900, [1, 2, 4, 8, 16, 30, 30, 30])],
    ids=["no new byte", "a few bytes each"],
)
def test_attempts_that_bring_too_little_are_bounded_and_their_pauses_grow(
    site, target, content, fails, cuts, retries, there, pauses
):
    site.cuts = cuts
    fails(rf"the connection ended .* early; {there} bytes were there", IMG_RETRIES=retries)
    assert target.pauses == pauses
    assert len(site.asked) == len(pauses) + 1


@pytest.mark.parametrize(
    ("statuses", "retry_after", "pauses"),
    [
        ([503, 429], "", [1, 2]),
        ([503] * 30, "10", [10] * 30),
        ([429], "0", [1]),
        ([429], "100000", [300]),
        ([503], formatdate(2_000_000_060, usegmt=True), [60]),
    ],
    ids=["busy", "said when, however often", "too soon", "too late", "a date"],
)
def test_server_that_is_busy_is_asked_again_when_it_says(
    site, target, content, monkeypatch, statuses, retry_after, pauses
):
    monkeypatch.setattr(time, "time", lambda: 2_000_000_000.0)
    site.before, site.retry_after = list(statuses), retry_after
    target.copy(f"{site.url}/x.img", IMG_RETRIES="2")
    assert target.content[:LENGTH] == content
    assert target.pauses == pauses


@pytest.mark.parametrize(
    ("status", "retry_after", "pauses", "message"),
    [
        (403, "", [], "403"),
        (503, "300", [300] * 12 + [1, 2], "503 Service Unavailable; 0 bytes were there"),  # for an hour
        (503, "soon", [1, 2], "503"),
    ],
)
def test_server_that_refuses_or_is_busy_for_an_hour_is_given_up(
    site, target, fails, status, retry_after, pauses, message
):
    site.before, site.retry_after = [status] * 100, retry_after
    fails(message, IMG_RETRIES="2")
    assert target.pauses == pauses
    assert len(site.asked) == len(pauses) + 1


class TricklingWeb(Web):
    """A server whose answers bring `count` bytes every `seconds` of its own clock."""

    def __init__(self, count, seconds):
        super().__init__(check_certificates=True, clock=lambda: self.now)
        self.count, self.seconds, self.now, self.brought = count, seconds, 0.0, 0

    def get_as(self, url, headers, authorization):
        self._limit.begin()
        web = self

        class Trickle(io.RawIOBase):
            head = b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n"

            def readable(self):
                return True

            def readinto(self, buffer):
                part, self.head = self.head or b"x" * min(web.count, len(buffer)), b""
                if part[:1] == b"x":
                    web.now += web.seconds
                    web.brought += len(part)
                buffer[: len(part)] = part
                return len(part)

        limited = io.BufferedReader(LimitedReader(Trickle(), self._limit))
        response = http.client.HTTPResponse(SimpleNamespace(makefile=lambda _mode: limited))
        response.begin()
        return response


def test_trickling_server_is_given_up_like_a_silent_one():
    web, pauses = TricklingWeb(1, 10.0), []
    download = Download(web, "http://site/x.img", retries=3, is_proved=False, sleep=pauses.append)
    with pytest.raises(ActionError, match=r"too slow: \d+ bytes in 60 s"):
        list(download.chunks())
    assert (web.now, pauses) == (60.0 * 4, [1, 2, 4])


def test_server_at_the_least_rate_is_waited_for_and_a_disk_that_is_slow_is_not_its_fault():
    web = TricklingWeb(10_240, 10.0)
    chunks = Download(web, "http://site/x.img", retries=0, is_proved=False).chunks()
    for _ in range(100):
        assert next(chunks)
        web.now += 3600.0  # the disk takes its time
    assert web.brought >= 1_000_000


def test_time_that_the_head_of_an_answer_takes_counts(target, content, fails):
    hours = itertools.count(0, 3600)
    target.clock = lambda: next(hours)
    fails(r"the server is too slow: \d+ bytes in 3600 s", IMG_RETRIES="2")
    assert target.pauses == [1, 2]


# --- compressed images ------------------------------------------------------------------------------------------------

PACKERS = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress}


@pytest.mark.parametrize("ending", [*PACKERS, "zst"])
def test_streams_in_a_row_are_one_image_wherever_the_download_breaks_off(site, target, random_bytes, ending):
    site.cuts = [100, 600_000, 5]
    parts = [random_bytes(700_001), bytes(9_000_000), random_bytes(300)]
    pack = PACKERS.get(ending, lambda part: zstd_frame(part) + b"\x50\x2a\x4d\x18\3\0\0\0abc")  # a skippable frame
    site.content = pack(parts[0]) + pack(parts[1]) + pack(parts[2]) + bytes(8 if ending != "bz2" else 0)
    size, _ = target.copy(f"{site.url}/x.img.{ending}?y=.zst", COMPRESSED="true")
    whole = b"".join(parts)
    assert size == len(whole)
    assert target.content[:size] == whole


@pytest.mark.parametrize("ending", PACKERS)
def test_damaged_and_cut_off_streams_are_refused(site, fails, random_bytes, ending):
    good = PACKERS[ending](random_bytes(500_000))
    for bad in (good[:-20], good[:1000] + b"\0" * 40 + good[1040:], b"no such thing" * 100):
        site.content = bad
        assert fails(".", f"/x.img.{ending}", COMPRESSED="true").reason == "DecompressFailed"


def test_compressed_file_that_wants_a_larger_window_is_refused(site, fails):
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 192 << 20, "mode": lzma.MODE_FAST, "mf": lzma.MF_HC3}]
    site.content = lzma.compress(b"x", lzma.FORMAT_XZ, filters=filters)  # its header alone names the size
    assert fails("Memory usage limit", "/x.img.xz", COMPRESSED="true").reason == "DecompressFailed"


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (zstd_frame(b"x" * 300_000)[:-20], "ends in the middle"),
        (zstd_frame(b"x")[:6] + b"\7" * 40, "Data corruption"),
        (zstd_frame(b"x", window_log=28), "requires too much memory"),
        (b"no such thing" * 100, "Unknown frame"),
    ],
    ids=("cut off", "damaged", "larger window", "not zstd"),
)
def test_zstd_that_cannot_be_read_is_refused(site, fails, bad, words):
    site.content = bad
    assert fails(words, "/x.img.zst", COMPRESSED="true").reason == "DecompressFailed"


@pytest.mark.parametrize(("ending", "name"), [("gz", "gzip"), ("xz", "xz"), ("bz2", "bzip2"), ("zst", "zstd")])
def test_compressed_image_is_not_written_as_it_is_but_where_that_is_wanted(
    site, target, fails, random_bytes, ending, name
):
    zstd = b"\x28\xb5\x2f\xfd" + random_bytes(100_000)  # what is behind its first bytes does not matter
    site.content = PACKERS.get(ending, lambda _: zstd)(random_bytes(100_000))
    untouched = target.content
    remedy = rf"is compressed \({name}\): set COMPRESSED to true, or IMG_FORMAT to raw"
    assert fails(remedy, f"/x.img.{ending}").reason == "InvalidSetting"
    assert target.content == untouched
    size, _ = target.copy(f"{site.url}/x.img.{ending}", IMG_FORMAT="raw")
    assert target.content[:size] == site.content


def skippable(size):
    return struct.pack("<II", 0x184D2A5A, size) + b"x" * size


RAW = b"a disk" * 50_000
GZIP = gzip.compress(RAW, mtime=0)
ZSTD = zstd_frame(RAW)
PARTS = [RAW, b"", b"x" * 9_000, bytes(300_000), b"z"]


@pytest.mark.parametrize(
    "gap",
    [b"", bytes(1), bytes(3_000_001), bytes(3) + skippable(70_000), skippable(0) + bytes(9)],
    ids=["nothing", "a zero", "megabytes", "zeros, then a skippable frame", "a skippable frame, then zeros"],
)
def test_zstd_frames_are_read_without_the_zeros_between_and_behind_them(site, target, gap):
    site.content, site.cuts = b"".join(zstd_frame(part) + gap for part in PARTS), [3, 9, 100_001]
    size, _ = target.copy(f"{site.url}/x.img.zst", COMPRESSED="true")
    assert target.content[:size] == b"".join(PARTS)


def again(content):
    return gzip.compress(content, mtime=0)


DEFLATED = zlib.compress(RAW)


@pytest.mark.parametrize(
    ("coding", "name", "content", "image"),
    [
        ("x-gzip", "x.img.gz", GZIP, RAW),
        ("gzip", "x.img.GZ?y", GZIP, RAW),
        ("gzip", "x.img.gz", again(GZIP), RAW),
        ("gzip", "x.img.zst", again(ZSTD), RAW),
        ("gzip", "x.img.zst", ZSTD, RAW),
        ("zstd", "x.img.zst", ZSTD, RAW),
        ("X-GZIP", "x.img", GZIP, RAW),
        ("gzip", "x.img", RAW, RAW),
        ("deflate", "x.img", DEFLATED, RAW),
        ("deflate", "x.img", DEFLATED[2:-4], RAW),
        ("deflate", "x.img.gz", zlib.compress(GZIP), RAW),
        (" , identity", "x.img.gz", GZIP, RAW),
        ("none", "x.img", RAW, RAW),
    ],
    ids=itertools.count(),
)
def test_each_compression_of_file_and_transfer_is_undone_once(site, target, coding, name, content, image):
    site.content, site.headers, site.cuts = content, {"Content-Encoding": coding}, [1, 20]
    compressed = "false" if name == "x.img" else "true"
    size, _ = target.copy(f"{site.url}/{name}", COMPRESSED=compressed, IMG_SHA256=sha256(content))
    assert target.content[:size] == image


def test_encoding_that_can_not_be_undone_and_formats_that_can_not_be_unpacked_are_refused(site, fails):
    for coding in ("br", "gzip, gzip"):
        site.content, site.headers = GZIP, {"Content-Encoding": coding}
        assert fails(f"Content-Encoding {coding}, which can't be decoded").reason == "DownloadFailed"
    site.headers = {}
    site.content = skippable(0)
    assert fails(r"is compressed \(zstd\): set COMPRESSED").reason == "InvalidSetting"


# --- the disk --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [None, 70_001])
def test_small_pieces_become_large_aligned_writes_and_short_writes_are_gone_on_with(target, monkeypatch, most):
    written = []
    real = os.pwrite

    def pwrite(fd, part, at):
        written.append((at, len(part)))
        return real(target.fd, part[:most], at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    piece = os.urandom(100_000)
    for number in range(100):
        target.disk.write(number * len(piece), piece)
    target.disk.flush()
    end = 10_000_000 - 10_000_000 % 4096  # what follows is no whole sector of every disk
    blocks = [(0, 4 << 20), (4 << 20, 4 << 20), (8 << 20, end - (8 << 20)), (end, 10_000_000 - end)]
    assert most or written == blocks or written == [*blocks[:2], (8 << 20, 10_000_000 - (8 << 20))]
    assert target.content[:10_000_000] == piece * 100


@pytest.mark.parametrize("seed", range(6))
def test_image_with_runs_of_zeros_of_any_length_is_on_the_disk_to_the_byte(target, seed):
    """`pieces` begin and end at any byte, as what a server sends; some of what is written is skipped."""
    dice = random.Random(seed)
    image, lengths = b"", (1, 511, 4096, 65_536, 100_001, 1 << 20, (1 << 20) + 4097, 3 << 20)
    while len(image) < 12 << 20:
        image += dice.choice((bytes, dice.randbytes))(dice.choice(lengths))
    image = image[: 12 << 20] if seed % 2 else image
    at, end = dice.choice((0, 1, 512, 4096, 70_000)), 0
    first = at
    while end < len(image):
        piece = image[end : (end := end + dice.choice((1, 1448, 65_536, 200_000, 1 << 20)))]
        target.disk.write(at, memoryview(piece) if dice.random() < 0.3 else piece)
        at += len(piece)
    target.disk.flush()
    assert target.content[:first] == OLD * first
    assert target.content[first : first + len(image)] == image
    assert set(target.content[first + len(image) :]) == {0xA5}


def test_zeros_are_exactly_where_they_belong(target):
    target.disk.zero(1000, (5 << 20) + 7)
    content = target.content
    assert content[:1000] == b"\xa5" * 1000
    assert content[1000 : (5 << 20) + 7] == bytes((5 << 20) + 7 - 1000)
    assert set(content[(5 << 20) + 7 :]) == {0xA5}


@pytest.mark.parametrize("clears", ["true", "false"])
def test_ends_of_the_disk_are_cleared_unless_the_rest_of_it_is_to_be_kept(site, target, content, clears):
    target.copy(f"{site.url}/x.img", CLEAR_DISK=clears)
    beyond = target.content[LENGTH:]
    assert target.content[:LENGTH] == content
    kept = {"true": slice(HEAD_BYTES - LENGTH, SIZE - TAIL_BYTES - LENGTH), "false": slice(0, len(beyond))}[clears]
    assert set(beyond[kept]) == {0xA5}
    assert set(beyond[: kept.start] + beyond[kept.stop :]) <= {0}


@pytest.mark.parametrize("image", [b"", header(backing=1), gzip.compress(b"x")], ids=("empty", "qcow2", "gzip"))
def test_disk_is_not_cleared_for_an_image_that_is_refused(site, target, fails, image):
    site.content = image
    fails("is empty|a backing file|is compressed")
    assert set(target.content) == {0xA5}
