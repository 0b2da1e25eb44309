"""Writing: what was written is read as it was meant, by every reader, with its comments; and files are whole."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tink.api import yaml as kubernetes_yaml
from tink.api.v1alpha2 import Raw
from tink.convert.documents import (
    Converted,
    Document,
    collect,
    file_name,
    json_text,
    read,
    to_json,
    to_yaml,
    write_whole,
    yaml_document,
)
from tink.convert.findings import Source
from tink.convert.run import convert_documents


def written(obj: Raw) -> str:
    return yaml_document(Converted(obj))


_TEXTS = st.one_of(
    st.text(max_size=12),
    st.text(st.sampled_from("ab01:-#'\"\\ \n\t\r{}[],&*!|>%@`?=~yn.+_\x85\u2028\ufeff\U0001f600\x7f\x00"), max_size=10),
    st.sampled_from(["yes", "No", "null", "~", "", "1e3", "0x1F", "0o17", "1_000", "12:30:45", "2001-01-01", ".inf",
                     "=", "<<", "a: b", "a #b", "- a", "---", "...", "a\n", "a\n\n", "\na", " a\nb", "a\n b\n", "  \na",
                     "a \nb", "y", "52:54:00:12:34:56"]),
)  # fmt: skip
_VALUES = st.recursive(
    st.one_of(
        _TEXTS, st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False, allow_infinity=False)
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=250, deadline=None)
@given(st.dictionaries(_TEXTS, _VALUES, max_size=3))
def test_what_was_written_is_what_is_read_by_kubernetes_rules_and_by_yaml_1_1(obj: Raw) -> None:
    text = written(obj)
    assert list(kubernetes_yaml.documents(text)) == [obj]
    assert list(yaml.load_all(text, Loader=yaml.CSafeLoader)) == [obj]
    assert json.loads(json_text(obj)) == obj


def test_user_data_stays_readable_and_macs_are_quoted() -> None:
    obj = {
        "userdata": "#cloud-config\na: b\n",
        "mac": "52:54:00:12:34:56",
        "ip": "10.0.0.1",
        "url": "http://a/b?c",
        "n": "1",
    }
    assert written(obj) == (
        "---\nuserdata: |\n  #cloud-config\n  a: b\n"
        'mac: "52:54:00:12:34:56"\nip: 10.0.0.1\nurl: "http://a/b?c"\n"n": "1"\n'
    )


def test_json_is_one_list_whatever_there_is() -> None:
    assert json.loads(to_json([]))["items"] == []
    assert json.loads(to_json([{"a": 1}])) == {"apiVersion": "v1", "kind": "List", "items": [{"a": 1}]}


# --- comments

MACHINE = """\
# the rack
# of the lab
apiVersion: tinkerbell.org/v1alpha1
kind: Hardware # ours
metadata:
  # its name
  name: sw-1   # and why
  labels: {model: "sw # 1"}
spec:
  disks:
  # first
  - device: /dev/sda
  - device: /dev/sdb # second
  # none here
  interfaces:
  # port 1
  - dhcp:
      # sticker
      mac: 52:54:00:AA:BB:CC # on the lid
      hostname: >- # folded
        a
      lease_time: 60 # short
    netboot: {allowPXE: true}
  # gone
  tinkVersion: 3 # too
  userData: |
    #cloud-config
    a: b # stays
  vendorData: "x #y
    # z"
# the end
"""


def converted(text: str) -> str:
    return "".join(to_yaml(convert_documents(read("in.yaml", text.encode())).converted))


def test_comments_follow_their_fields() -> None:
    assert (
        converted(MACHINE)
        == """\
---
# the rack
# of the lab
apiVersion: tinkerbell.org/v1alpha2
kind: Hardware # ours
metadata:
  # its name
  name: sw-1 # and why
  labels:
    model: "sw # 1"
# gone
# too
spec:
  # none here
  networkInterfaces:
    # port 1
    # sticker
    "52:54:00:aa:bb:cc": # on the lid
      dhcp:
        hostname: a # folded
        leaseTimeSeconds: 60 # short
  instance:
    userdata: |
      #cloud-config
      a: b # stays
    vendordata: "x #y # z"
  storageDevices:
    # first
    - /dev/sda
    - /dev/sdb # second
# the end
"""
    )


def test_comments_of_one_document_stay_out_of_the_others() -> None:
    secret = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: %s}\n"
    text = "# a\n" + secret % "a" + secret % "b" + "# b\n"
    first, second = (yaml_document(each) for each in convert_documents(read("in.yaml", text.encode())).converted)
    assert first.startswith("---\n# a\napiVersion")
    assert "# b" not in first
    assert second.endswith("name: b\n# b\n")


_LINES = st.lists(
    st.sampled_from(
        ["# c1", "a: b", "a: b # c2", "l:", "- x", "- x: y # c3", "  k: v", "  # c4", "  t: |", "    text # no",
         "    # no", "q: 'x # no", "  # no'", "f: {a: b} # c5", "g: [1, # c6", "  2] # c7", "", "? k # c8", ": v",
         "e: *x", "n: &x {y: 1}"]
    ),
    max_size=12,
)  # fmt: skip


@settings(max_examples=250, deadline=None)
@given(_LINES)
def test_comments_change_no_value_and_stay_when_written_again(lines: list[str]) -> None:
    text = "\n".join(lines) + "\n"
    try:
        (obj,) = kubernetes_yaml.documents(text)
    except ValueError:
        return
    if not isinstance(obj, dict):
        return
    source = Source("in.yaml", 1, "", "", "")
    once = yaml_document(Converted(obj, Document(source, obj, text=text)))
    assert list(kubernetes_yaml.documents(once)) == [obj]
    kept = sorted(comment.text for comment in collect(text))
    assert sorted(comment.text for comment in collect(once)) == kept
    twice = yaml_document(Converted(obj, Document(source, obj, text=once)))
    assert twice == once


# --- files


def test_file_that_cannot_be_written_whole_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "out.yaml"
    path.write_text("before")
    path.chmod(0o640)

    def texts() -> Any:
        yield "half"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_whole(path, texts())
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
    write_whole(path, ["after", "wards"])
    assert path.read_text() == "afterwards"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "new", ["x"])
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "..", "x" * 1000, "\0", "é"])
def test_object_of_any_name_is_written_into_the_directory_and_nowhere_else(name: str) -> None:
    file = file_name({"kind": "Hardware", "metadata": {"name": name, "namespace": "../x"}}, ".yaml")
    assert "/" not in file
    assert "\0" not in file
    assert file.startswith("hardware-")
    assert len(file.encode()) < 255


def test_no_two_objects_share_a_file() -> None:
    objects = [
        ("K", "a-b", "c"),
        ("K", "a", "b-c"),
        ("K-a", "b", "c"),
        ("K", None, "a_b"),
        ("K", None, "a/b"),
        ("K", None, "A_b"),
    ]
    metadata = [(kind, {"namespace": namespace, "name": name}) for kind, namespace, name in objects]
    files = {file_name({"kind": kind, "metadata": each}, ".yaml") for kind, each in metadata}
    assert len(files) == len(objects)
    assert file_name({"kind": "OSIE", "metadata": {"name": "x"}}, ".json") == "osie-default-x.json"
