"""The pure parts of the HTTP server: paths and ranges."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from edge.callers import dotted, other_end
from edge.http.context import size_text
from edge.http.files.ranges import ChangedError, NotModifiedError, Span, UnsatisfiableError, select, span
from edge.http.routes import Place, Route, route
from tests.unit.http.conftest import MAC

GUIDE = Path(__file__).parents[3] / "docs" / "migrating.md"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (f"/ipxe/script/{MAC}/auto.ipxe", Route(Place.SCRIPT, who=MAC)),
        ("/ipxe/script/52-54-00-00-00-0A/auto.ipxe", Route(Place.SCRIPT, who="52:54:00:00:00:0a")),
        ("/ipxe/binary/a.efi", Route(Place.BINARY, name="a.efi")),
        (f"/ipxe/binary/{MAC}/a.efi", Route(Place.BINARY, name="a.efi", who=MAC)),
        ("/osie/lab/kernel", Route(Place.OSIE, name="kernel", who="lab")),
        ("//osie//lab//initrd", Route(Place.OSIE, name="initrd", who="lab")),
        ("/2009-04-04", Route(Place.EC2)),
        ("/latest/meta-data/", Route(Place.EC2, name="meta-data")),
        ("/nocloud/m1/user-data", Route(Place.NOCLOUD, name="user-data", who="m1")),
        ("/phone-home/m1", Route(Place.PHONE_HOME, who="m1")),
        ("/healthz", Route(Place.HEALTH)),
        ("/healthcheck", Route(Place.HEALTH_OF_SMEE)),
        ("/auto.ipxe", Route(Place.SCRIPT)),
        ("/ipxe/script/auto.ipxe", Route(Place.SCRIPT)),
        ("/52-54-00-00-00-0A/auto.ipxe", Route(Place.SCRIPT, who="52:54:00:00:00:0a")),
        ("/someone/auto.ipxe", None),
        ("/tootles/instanceID/i-1/2009-04-04/user-data", Route(Place.EC2, name="user-data", instance="i-1")),
        ("/tootles/instanceID/i-1/metadata", None),
        ("/readyz", Route(Place.READY)),
        ("/", None),
        ("/osie/lab", None),
        ("/osie/lab/other", None),
        ("/osie/lab/kernel/x", None),
        ("/osie/../osie/lab/kernel", None),
        ("/osie/%2e%2e/lab/kernel", None),
        ("/osie%2flab/kernel", None),
        ("/osie/la%2Fb/kernel", None),
        ("/nocloud/m1/other", None),
        ("/2021-03-23/meta-data/instance-id", None),
        ("/latest/%0ameta-data", None),
        ("/latest/" + "a" * 2000, None),
    ],
)
def test_path_means_what_the_table_says(path, expected):
    assert route(path) == expected


def test_each_path_of_smee_and_tootles_that_the_guide_names_is_as_it_says():
    section = GUIDE.read_text().partition("\n## What Smee and Tootles answer\n")[2].partition("\n## ")[0]
    rows = [row.split(" | ") for row in section.splitlines() if row.startswith("| `/")]
    found = {}
    for request, _, ours, *_ in rows:
        for path in re.findall(r"`(/[^`]*)`", request):
            path = re.sub(r"\[MAC/\]", f"{MAC}/", path).replace("MAC", MAC).removesuffix("/...")
            found[path] = ours
    assert len(found) >= 8
    for path, ours in found.items():
        assert (route(path) is None) == (ours == "404"), path


_OF_EC2 = (
    *("1.0", "2007-01-19", "2007-03-01", "2007-08-29", "2007-10-10", "2007-12-15", "2008-02-01", "2008-09-01"),
    *("2009-04-04", "2011-01-01", "2011-05-01", "2012-01-12", "2014-02-25", "2014-11-05", "2015-10-20", "2016-04-19"),
    *("2016-06-30", "2016-09-02", "2018-03-28", "2018-08-17", "2018-09-24", "2019-10-01", "2020-10-27", "2021-01-03"),
    *("2021-03-23", "2021-07-15", "2022-09-24", "2024-04-11", "latest"),
)


def test_only_those_versions_of_ec2_are_there_whose_readers_are_known():
    # Whoever finds a newer one expects what only Amazon has there, and cloud-init probes for three of them.
    served = {version for version in _OF_EC2 if route(f"/{version}/meta-data/instance-id") is not None}
    assert served == {"2009-04-04", "2019-10-01", "2021-01-03", "latest"}


@given(st.text())
def test_no_path_crashes_the_router(path):
    route(path)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-", Span(0, 10, 10, True)),
        ("bytes=4-6", Span(4, 7, 10, True)),
        ("bytes=4-999", Span(4, 10, 10, True)),
        ("bytes=-3", Span(7, 10, 10, True)),
        ("bytes=-30", Span(0, 10, 10, True)),
        ("Bytes=9-", Span(9, 10, 10, True)),
        ("bytes=6-4", Span(0, 10, 10, False)),
        ("bytes=0-1,4-5", Span(0, 10, 10, False)),
        ("bytes=x", Span(0, 10, 10, False)),
        ("lines=1-2", Span(0, 10, 10, False)),
    ],
)
def test_range_selects_these_bytes(header, expected):
    assert span(header, 10) == expected


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=-0", "bytes=10-20"])
def test_range_beyond_the_end_is_unsatisfiable(header):
    with pytest.raises(UnsatisfiableError):
        span(header, 10)


@given(st.text(alphabet="bytes=-0123456789,", max_size=40), st.integers(min_value=1, max_value=10**12))
def test_range_never_leaves_the_file(header, size):
    try:
        selected = span(header, size)
    except UnsatisfiableError:
        return
    assert 0 <= selected.start < selected.end <= size


ETAG = '"v1"'
WHOLE = Span(0, 10, 10, False)


@pytest.mark.parametrize(
    ("method", "lines", "expected"),
    [
        ("GET", [], WHOLE),
        ("GET", [("Range", "bytes=4-")], Span(4, 10, 10, True)),
        ("HEAD", [("Range", "bytes=4-")], WHOLE),
        ("GET", [("Range", "bytes=4-"), ("Range", "bytes=5-")], WHOLE),
        ("GET", [("Range", "bytes=4-"), ("If-Range", ETAG)], Span(4, 10, 10, True)),
        ("GET", [("Range", "bytes=4-"), ("If-Range", f"W/{ETAG}")], WHOLE),
        ("GET", [("Range", "bytes=4-"), ("If-Range", "Mon, 01 Jan 2024 00:00:00 GMT")], WHOLE),
        ("GET", [("Range", "bytes=99-"), ("If-Range", '"other"')], WHOLE),
        ("GET", [("If-Match", ETAG)], WHOLE),
        ("GET", [("If-Match", "*")], WHOLE),
        ("GET", [("If-Match", '"x"'), ("If-Match", f'"y", {ETAG}')], WHOLE),
        ("GET", [("If-Match", '"x"')], ChangedError),
        ("GET", [("If-Match", f"W/{ETAG}")], ChangedError),
        ("GET", [("If-Match", '"x"'), ("If-None-Match", ETAG)], ChangedError),
        ("GET", [("If-Match", '"x"'), ("Range", "bytes=99-")], ChangedError),
        ("GET", [("If-None-Match", f'"x", W/{ETAG}')], NotModifiedError),
        ("HEAD", [("If-None-Match", "*")], NotModifiedError),
        ("GET", [("If-None-Match", '"x"')], WHOLE),
        ("GET", [("If-Unmodified-Since", "Mon, 01 Jan 1990 00:00:00 GMT")], WHOLE),
        ("GET", [("Range", "bytes=10-")], UnsatisfiableError),
    ],
)
def test_conditions_select_the_whole_a_part_or_nothing(method, lines, expected):
    headers = CIMultiDictProxy(CIMultiDict(lines))
    if isinstance(expected, Span):
        assert select(method, headers, ETAG, 10) == expected
    else:
        with pytest.raises(expected):
            select(method, headers, ETAG, 10)


@pytest.mark.parametrize(("size", "shown"), [(850, "850 B"), (14_200, "14.2 kB"), (14_249_999, "14.2 MB")])
def test_sizes_for_people(size, shown):
    assert size_text(size) == shown


@pytest.mark.parametrize(
    ("seen", "address"),
    [("10.0.0.5", "10.0.0.5"), ("::ffff:10.0.0.5", "10.0.0.5"), ("fe80::1%eth0", "fe80::1"), ("x", "x")],
)
def test_address_is_spelled_as_in_the_inventory_whatever_socket_it_came_through(seen, address):
    assert dotted(seen) == address


@pytest.mark.parametrize(
    ("name", "address"),
    [
        (("10.0.0.5", 80), "10.0.0.5"),
        (("::ffff:10.0.0.5", 80, 0, 0), "10.0.0.5"),
        (("fd00::5", 80, 0, 0), "fd00::5"),
        (("fe80::5", 80, 0, 1), "fe80::5%lo"),
        (("fe80::5%lo", 80, 0, 1), "fe80::5%lo"),
        (("fe80::5", 80, 0, 9999), "fe80::5%9999"),
    ],
)
def test_other_end_of_a_socket_keeps_the_link_of_an_address_that_is_the_link_s_own(name, address):
    assert other_end(name) == address
