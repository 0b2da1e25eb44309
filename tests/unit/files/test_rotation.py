"""Rotation of keys in the volume of a Secret: the kubelet moves the link `..data`, at a different time on each node.

No process refuses a valid token meanwhile.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from weakref import WeakSet

import pytest

from tink.errors import TinkedgeError
from tink.files import rereading
from tink.files.key_file import SPREAD_SECONDS
from tink.files.rereading import ChangingFile
from tink.server import TokenKeys, TokenSettings
from tink.server.auth import TokenError

MAC, NOW = "52:54:00:00:00:01", 1_800_000_000.0
OLD, NEW = "a" * 64, "b" * 64


class Volume:
    """The volume of a Secret: names are links into `..data`, which is a link to the directory of the version."""

    _versions = itertools.count()

    def __init__(self, directory: Path, **files: str) -> None:
        self._directory = directory
        directory.mkdir()
        self.bring(**files)
        for name in files:
            self.path(name).symlink_to(f"..data/{name}")

    def path(self, name: str) -> Path:
        return self._directory / name

    def bring(self, **files: str) -> None:
        version = self._directory / f"..{next(self._versions)}"
        version.mkdir()
        for name, content in files.items():
            (version / name).write_text(content)
            (version / name).chmod(0o600)
            os.utime(version / name, (1, 1))  # the same moment, for all a clock can tell
        link = self._directory / "..data_tmp"
        link.symlink_to(version.name)
        link.replace(self._directory / "..data")


class Node:
    """A process with its own copy of the keys."""

    def __init__(self, directory: Path) -> None:
        self.now = 0.0
        self.volume = Volume(directory, key=OLD + "\n")
        self.keys = TokenKeys(TokenSettings(self.volume.path("key")), lambda: self.now)


@pytest.fixture(autouse=True)
def nothing_of_other_tests_is_reread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the objects of other tests, which stay registered until they are garbage collected."""
    monkeypatch.setattr(rereading, "_all", WeakSet())


@pytest.fixture
def nodes(tmp_path: Path) -> list[Node]:
    return [Node(tmp_path / name) for name in ("edge", "server-1", "server-2")]


def brought(nodes: list[Node], content: str, *arrivals: float, seconds: int) -> tuple[int, set[str]]:
    """Check the tokens of all nodes on all nodes each second, while each node gets the change at its time."""
    checked, minted = 0, set()
    begin = nodes[0].now
    for second in range(seconds):
        for node, arrival in zip(nodes, arrivals, strict=True):
            node.now = begin + second
            if second == arrival:
                node.volume.bring(key=content)
        for giver in nodes:
            token = giver.keys.mint(MAC, NOW)
            minted.add(token)
            for one in nodes:
                one.keys.verify(token, NOW)
                checked += 1
    return checked, minted


def test_new_first_key_is_accepted_by_all_in_any_order_of_arrival(nodes: list[Node]) -> None:
    # The first of two steps for operators who copy files to hosts one by one: a key at the end does not sign.
    assert len(brought(nodes, f"{OLD}\n{NEW}\n", 0, 40, 90, seconds=200)[1]) == 1
    for arrivals in itertools.permutations((0, 40, 90)):
        checked, minted = brought(nodes, f"{NEW}\n{OLD}\n", *arrivals, seconds=300)
        assert (checked, len(minted)) == (2700, 2), "with the old key, then with the new one"
        checked, minted = brought(nodes, f"{OLD}\n{NEW}\n", *arrivals, seconds=300)
        assert (checked, len(minted)) == (2700, 2), "and back"


def test_key_that_is_removed_is_worth_nothing_within_a_second(nodes: list[Node]) -> None:
    edge = nodes[0]
    old = edge.keys.mint(MAC, NOW)
    edge.volume.bring(key=f"{NEW}\n{OLD}\n")
    edge.now = 1.0
    edge.keys.verify(old, NOW)
    edge.volume.bring(key=NEW + "\n")
    edge.now = 2.0
    with pytest.raises(TokenError):
        edge.keys.verify(old, NOW)
    assert edge.keys.mint(MAC, NOW) != old, "there is no other key to sign with"


def test_sighup_rereads_all_keys_at_once(nodes: list[Node]) -> None:
    edge = nodes[0]
    other = TokenKeys(TokenSettings(nodes[1].volume.path("key")), lambda: 0.0)
    nodes[1].volume.bring(key=NEW + "\n")
    edge.volume.bring(key=f"{NEW}\n{OLD}\n")
    before = other.mint(MAC, NOW)
    assert before == edge.keys.mint(MAC, NOW), "nobody has looked: their clocks stand still"
    files, bad = rereading.reread_all()
    assert files >= 2
    assert bad == 0
    assert other.mint(MAC, NOW) != before
    edge.keys.verify(other.mint(MAC, NOW), NOW)
    edge.now = SPREAD_SECONDS
    assert edge.keys.mint(MAC, NOW) == other.mint(MAC, NOW)


class Content(ChangingFile):
    """The text of a file. While it reads the text "half", another program replaces the file."""

    _KEPT = "the text stays"

    def __init__(self, path: Path) -> None:
        super().__init__(path, lambda: 0.0)
        self._read_first("")

    def _read(self) -> None:
        text = self._path.read_text()
        if text == "half":
            self._path.write_text("the whole text")
        if text in ("half", "bad"):
            raise TinkedgeError(f"{self._path}: {text}")
        self.text = text

    def _after_change(self) -> None:
        pass


def test_file_that_is_replaced_while_it_is_read_is_read_once_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    content = Content(path)
    path.write_text("half")
    assert content.reread()
    assert (content.text, caplog.text) == ("the whole text", "")
    path.write_text("bad")
    assert not content.reread()
    assert content.text == "the whole text"
    assert f"the text stays: {path}: bad" in caplog.text
