"""The pure parts of the HTTP server: paths, ranges and conditions (`routes.yaml`), and addresses as text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from edge.callers import dotted, other_end
from edge.http.answers import size_text
from edge.http.files import Span, select_span, span
from edge.http.routes import Place, Route, route
from tests.support.objects import MAC

GUIDE = Path(__file__).parents[3] / "docs" / "engineering" / "migrating.md"
TABLES = yaml.safe_load(Path(__file__).with_name("routes.yaml").read_text())


@pytest.mark.parametrize(("path", "leads"), [*TABLES["routes"].items(), ("/latest/" + "a" * 2000, None)])
def test_path_leads_to_the_resource_in_the_table(path, leads):
    assert route(path) == (Route(**{**leads, "place": Place[leads["place"]]}) if leads else None)


def test_paths_of_smee_and_tootles_in_the_guide_are_served():
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
    # A client that finds a newer version expects documents that only Amazon has. cloud-init probes for three of them.
    served = {version for version in _OF_EC2 if route(f"/{version}/meta-data/instance-id") is not None}
    assert served == {"2009-04-04", "2019-10-01", "2021-01-03", "latest"}


@given(st.text())
def test_no_path_crashes_the_router(path):
    found = route(path)
    assert found is None or isinstance(found, Route)


@pytest.mark.parametrize(("header", "selected"), TABLES["ranges"].items())
def test_range_selects_these_bytes(header, selected):
    if selected is None:
        assert span(header, 10) is None
    else:
        start, end, partial = selected
        assert span(header, 10) == Span(start, end, 10, partial)


@given(st.text(alphabet="bytes=-0123456789,", max_size=40), st.integers(min_value=1, max_value=10**12))
def test_range_never_leaves_the_file(header, size):
    selected = span(header, size)
    assert selected is None or 0 <= selected.start < selected.end <= size


@pytest.mark.parametrize("case", TABLES["conditions"])
def test_conditions_select_the_whole_a_part_or_nothing(case):
    expected, method = case["select"], case.get("method", "GET")
    given = {name: values if isinstance(values, list) else [values] for name, values in case.items()}
    lines = [(name, value) for name, values in given.items() if name[0].isupper() for value in values]
    headers = CIMultiDictProxy(CIMultiDict(lines))
    if expected in ("whole", "part"):
        found = Span(4, 10, 10, True) if expected == "part" else Span(0, 10, 10, False)
        assert select_span(method, headers, '"v1"', 10) == found
    else:
        assert select_span(method, headers, '"v1"', 10) == expected


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
