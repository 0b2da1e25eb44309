"""Compressed images: whole, several in a row, damaged, cut off."""

import bz2
import gzip
import lzma

import pytest
from image2disk.errors import ActionError

PACKERS = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress}


@pytest.mark.parametrize("ending", PACKERS)
def test_streams_in_a_row_are_one_image(site, target, random_bytes, ending):
    parts = [random_bytes(700_001), bytes(9_000_000), random_bytes(300)]
    pack = PACKERS[ending]
    site.content = pack(parts[0]) + pack(parts[1]) + pack(parts[2]) + bytes(8 if ending != "bz2" else 0)
    size, _ = target.copy(f"{site.url}/x.img.{ending}?y=.zst", COMPRESSED="true")
    whole = b"".join(parts)
    assert size == len(whole)
    assert target.content[:size] == whole


@pytest.mark.parametrize("ending", PACKERS)
def test_damaged_and_cut_off_streams_are_refused(site, target, random_bytes, ending):
    good = PACKERS[ending](random_bytes(500_000))
    for bad in (good[:-20], good[:1000] + b"\0" * 40 + good[1040:], b"no such thing" * 100):
        site.content = bad
        with pytest.raises(ActionError) as caught:
            target.copy(f"{site.url}/x.img.{ending}", COMPRESSED="true")
        assert caught.value.reason == "DecompressFailed"


def test_download_goes_on_beneath_the_decompression(site, target, random_bytes):
    whole = random_bytes(3_000_000)
    site.content, site.cuts = gzip.compress(whole), [100, 1_000_000, 5]
    target.copy(f"{site.url}/x.img.gz", COMPRESSED="true")
    assert target.content[: len(whole)] == whole


@pytest.mark.parametrize(("ending", "name"), [("gz", "gzip"), ("xz", "xz"), ("bz2", "bzip2"), ("zst", "zstd")])
def test_compressed_image_is_not_written_as_it_is_but_where_that_is_wanted(site, target, random_bytes, ending, name):
    zstd = b"\x28\xb5\x2f\xfd" + random_bytes(100_000)  # what is behind its first bytes does not matter
    site.content = PACKERS.get(ending, lambda _: zstd)(random_bytes(100_000))
    untouched = target.content
    with pytest.raises(ActionError) as caught:
        target.copy(f"{site.url}/x.img.{ending}")
    assert caught.value.reason == "InvalidSetting"
    assert f"is compressed ({name}): set COMPRESSED to true, or IMG_FORMAT to raw" in caught.value.message
    assert target.content == untouched
    size, _ = target.copy(f"{site.url}/x.img.{ending}", IMG_FORMAT="raw")
    assert target.content[:size] == site.content
