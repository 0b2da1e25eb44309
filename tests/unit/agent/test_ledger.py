"""The ledger survives crashes: it has whole records or none, and a damaged file is never used as a whole one."""

import errno
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tink.agent.journal import BLIND, GROWN_BYTES, MAX_BYTES, WHOLE, Disk, Ledger, file_of, line_of, parse


class ScriptedDisk(Disk):
    """A real disk on which the calls in `fail` (by their number, counted over all kinds) fail.

    It is full from `full_at` bytes a file on, and writes at most `piece` bytes at once. `calls` lists the calls.
    """

    def __init__(self, *, fail=(), full_at=None, piece=None):
        self.fail, self.full_at, self.piece = set(fail), full_at, piece
        self.calls = []

    def _call(self, name):
        self.calls.append(name)
        if len(self.calls) - 1 in self.fail:
            raise OSError(errno.EIO, "Input/output error")

    def read(self, path, limit):
        self.limit = limit
        return super().read(path, limit)

    def open(self, path, *, new):
        self._call("open")
        return super().open(path, new=new)

    def write(self, descriptor, content, offset):
        self._call("write")
        if self.full_at is not None and offset + len(content) > self.full_at:
            content = content[: max(0, self.full_at - offset)]
            if not content:
                raise OSError(errno.ENOSPC, "No space left on device")
        content = content[: self.piece]
        return super().write(descriptor, content, offset) if content else 0

    def sync(self, descriptor):
        self._call("sync")
        super().sync(descriptor)

    def replace(self, new, path):
        self._call("replace")
        super().replace(new, path)


class Rig:
    """A ledger whose snapshot is all records so far, joined."""

    def __init__(self, directory, **disk):
        self.path = directory / "journal"
        self.logged = []
        self.disk = ScriptedDisk(**disk)
        self.ledger = Ledger(self.path, lambda: b"+".join(self.logged) or b"none", self.disk)

    def append(self, *texts, **more):
        """Append the texts; return True if the last one is kept."""
        for text in texts:
            self.logged.append(text)
            kept = self.ledger.append(text, **more)
        return kept

    def read(self):
        """Return the records, and whether they are all, as the next agent finds them."""
        content = Ledger(self.path, lambda: b"", self.disk).read()
        return content.records, content.whole


@pytest.fixture
def make(tmp_path):
    """Make rigs with disks of this kind; their files are closed after the test."""
    rigs = []

    def make(directory=tmp_path, **disk):
        directory.mkdir(exist_ok=True)
        rigs.append(Rig(directory, **disk))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.ledger.close()


@pytest.fixture
def rig(make):
    return make()


@pytest.mark.parametrize("piece", [None, 3])
def test_records_are_read_back_in_order_by_their_owner_alone_however_few_bytes_a_write_takes(make, caplog, piece):
    rig = make(piece=piece)
    assert (rig.read(), caplog.messages) == (((), True), []), "an agent that starts the first time reports no fault"
    texts = (b"a", b'{"x": "\\n"}', b"c")
    assert rig.append(*texts)
    assert rig.read() == (texts, True)
    assert rig.path.stat().st_mode & 0o777 == 0o600


def test_a_record_counts_only_when_it_is_synced(rig):
    rig.ledger.rewrite()
    rig.append(b"a")
    assert rig.disk.calls[-2:] == ["write", "sync"]
    rig.append(b"b", sync=False)
    assert rig.disk.calls[-1] == "write"


def test_file_is_rewritten_when_it_has_grown(rig):
    rig.ledger.rewrite()
    record = b"x" * 1000
    for _ in range(2 * GROWN_BYTES // len(record)):
        rig.ledger.append(record, sync=False)
        assert rig.path.stat().st_size <= GROWN_BYTES + 2 * len(record)
    assert rig.read()[0][0] == b"none"


# --- what is read of a file that something has happened to ------------------------------------------------------------

lines = st.lists(st.binary(max_size=12).filter(lambda raw: b"\n" not in raw), max_size=5)


@given(lines, st.data())
def test_a_file_cut_anywhere_gives_the_records_before_and_is_not_taken_for_whole(records, data):
    raw, _ = file_of(records)
    cut = data.draw(st.integers(0, len(raw)))
    content = parse(raw[:cut])
    assert content.records == tuple(records[: len(content.records)])
    assert content.whole == (cut == len(raw))


@given(lines, st.data())
def test_a_writer_that_died_in_the_middle_of_a_record_leaves_all_before_it(records, data):
    raw, chain = file_of(records)
    line, _ = line_of(b"one more", chain)
    written = data.draw(st.integers(0, len(line)))
    content = parse(raw + line[:written])
    assert content.whole
    whole = written == len(line)
    assert content.records == ((*records, b"one more") if whole else tuple(records))
    assert content.length == len(raw) + (len(line) if whole else 0)


RECORDS = (b"a", b"b", b"b", b"c", b"d")


@pytest.mark.parametrize("order", ["0134", "1234", "0123", "001234", "012344", "01324", "02134"])
def test_records_that_are_missing_or_twice_or_in_another_order_are_noticed(order):
    header, *lines = file_of(RECORDS)[0].splitlines(keepends=True)
    content = parse(header + b"".join(lines[int(at)] for at in order))
    assert not content.whole
    assert content.records == RECORDS[: len(content.records)]


@given(st.lists(st.binary(min_size=1, max_size=12).filter(lambda raw: b"\n" not in raw), min_size=1), st.data())
def test_one_wrong_byte_is_never_read_as_a_record(records, data):
    raw = bytearray(file_of(records)[0])
    position = data.draw(st.integers(0, len(raw) - 1))
    raw[position] ^= data.draw(st.integers(1, 255))
    content = parse(bytes(raw))
    assert content.records == tuple(records[: len(content.records)])
    # One less counts than there are: as when its writer dies between the two.
    assert not content.whole or content.records == tuple(records)


@given(st.binary(max_size=300))
def test_garbage_is_no_error(raw):
    assert not parse(raw).records


def test_a_file_that_no_agent_wrote_does_not_fill_memory(rig, monkeypatch):
    rig.append(b"a")
    monkeypatch.setattr("tink.agent.journal.MAX_BYTES", len(rig.path.read_bytes()) + 5)
    rig.append(b"b")
    assert rig.read() == ((b"a",), False)
    assert rig.disk.limit < MAX_BYTES


@pytest.mark.parametrize(
    ("records", "spoil", "found", "whole", "logged"),
    [
        ((b"a",), lambda raw: raw + b"0123abcd {", (b"a",), True, "the last record was cut off"),
        # One that counted is no torn tail: an agent that took it for one would run its action again.
        ((b"a", b"b"), lambda raw: raw[:-4], (b"a",), False, "is damaged"),
        ((b"a", b"b"), lambda raw: raw[: raw.rindex(b"\n", 0, -1) + 1], (b"a",), False, "is damaged"),
        ((b"a", b"b"), lambda raw: raw[:-4] + bytes(4), (b"a",), False, "is damaged"),
        ((b"a", b"b", b"c"), lambda raw: raw.replace(b" b\n", b" X\n"), (b"a",), False, "1 records up to byte {}"),
        ((), None, (), False, "cannot be read"),
    ],
    ids=["torn tail", "cut", "gone", "zeros", "in the middle", "a directory"],
)
def test_damage_is_logged_with_its_place_and_what_was_before_it_is_used(
    rig, caplog, records, spoil, found, whole, logged
):
    if spoil is None:
        rig.path.mkdir()
    else:
        rig.append(*records)
        raw = rig.path.read_bytes()
        rig.path.write_bytes(spoil(raw))
        logged = logged.format(f"{raw.index(b' a') + 3} of {len(raw)} are used")
    assert rig.read() == (found, whole)
    assert logged in caplog.text


# --- disks that fail --------------------------------------------------------------------------------------------------


def test_full_disk_is_logged_once_and_the_agent_goes_on_and_it_heals(make, caplog):
    rig = make(full_at=len(WHOLE) + 41)
    assert rig.append(b"a")
    assert rig.ledger.durable
    for number in range(5):
        assert not rig.append(b"longer than there is room for %d" % number)
    assert not rig.ledger.durable
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
    assert "No space left on device" in caplog.text
    assert rig.read() == ((b"a",), False), "what is there is true, but not all"
    rig.disk.full_at = None
    assert rig.append(b"z")
    assert rig.ledger.durable
    assert rig.read() == ((b"+".join(rig.logged),), True)
    assert "can be written again" in caplog.text


@pytest.mark.parametrize("number", range(12))
def test_a_call_that_fails_leaves_the_whole_file_or_one_marked_incomplete_and_no_open_file(make, number):
    before = len(list(Path("/proc/self/fd").iterdir()))
    rig = make(fail=[number])
    for text in (b"a", b"b", b"c"):
        kept = rig.append(text)
        records, whole = rig.read()
        reported = b"+".join(records).split(b"+") if records else []
        assert reported == rig.logged[: len(reported)]
        assert kept == (reported == rig.logged and whole)
        assert rig.ledger.durable == kept
    rig.ledger.rewrite()
    rig.ledger.close()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before  # what other tests left may be collected meanwhile


def test_disk_that_cannot_even_be_marked_is_logged(rig, caplog):
    rig.append(b"a")
    rig.disk.fail = set(range(len(rig.disk.calls), 100))
    assert not rig.append(b"b")
    rig.disk.fail -= {len(rig.disk.calls) + 1}  # the next one can open the file, and no more
    assert not rig.append(b"c")
    assert "cannot even be marked" in caplog.text


def test_vanished_state_directory_causes_no_crash_and_no_wrong_progress(make, tmp_path):
    rig = make(tmp_path / "state")
    rig.append(b"a")
    rig.ledger.close()
    rig.path.unlink()
    rig.path.parent.rmdir()
    assert not rig.append(b"b")
    assert (rig.ledger.durable, rig.ledger.stale) == (False, False)
    rig.path.parent.mkdir()
    assert rig.append(b"c")


def test_disk_that_takes_nothing_and_calls_it_no_error_does_not_hang_the_agent(rig):
    assert rig.ledger.rewrite()
    rig.disk.piece = 0
    assert not rig.append(b"a")
    assert rig.ledger.stale


def test_mark_that_may_be_lost_with_the_power_is_none(rig, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    assert rig.ledger.rewrite()
    with monkeypatch.context() as patches:
        patches.setattr(rig.disk, "sync", fail)
        assert not rig.append(b"a")
        assert rig.ledger.stale
    assert rig.append(b"b")
    assert (rig.ledger.durable, rig.ledger.stale) == (True, False)


def test_headers_are_alike_so_that_marking_needs_no_room():
    assert len(WHOLE) == len(BLIND)
