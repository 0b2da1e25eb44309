"""What is in the ledger survives: whole records, or none; and a broken file is never taken for a whole one."""

import errno
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tink.agent.durable.ledger import BLIND, GROWN_BYTES, MAX_BYTES, WHOLE, Disk, Ledger, file_of, line_of, parse


class ScriptedDisk(Disk):
    """A real disk on which the calls in `fail` (by their number, counted over all kinds) fail; it is full from
    `full_at` bytes a file on, and writes at most `piece` bytes at once. `calls` lists what was asked."""

    def __init__(self, *, fail=(), full_at=None, piece=None):
        self.fail, self.full_at, self.piece = set(fail), full_at, piece
        self.calls = []

    def _call(self, name):
        self.calls.append(name)
        if len(self.calls) - 1 in self.fail:
            raise OSError(errno.EIO, "Input/output error")

    def open(self, path, *, new):
        self._call("open")
        return super().open(path, new=new)

    def write(self, descriptor, content, offset):
        self._call("write")
        if self.full_at is not None and offset + len(content) > self.full_at:
            content = content[: max(0, self.full_at - offset)]
            if not content:
                raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(descriptor, content[: self.piece], offset)

    def sync(self, descriptor):
        self._call("sync")
        super().sync(descriptor)

    def replace(self, new, path):
        self._call("replace")
        super().replace(new, path)


class Rig:
    """A ledger whose snapshot is all records so far, joined."""

    def __init__(self, directory, disk=None):
        self.path = directory / "journal"
        self.said = []
        self.disk = disk or Disk()
        self.ledger = Ledger(self.path, lambda: b"+".join(self.said) or b"none", self.disk)

    def append(self, text, **more):
        self.said.append(text)
        return self.ledger.append(text, **more)

    def read(self):
        return Ledger(self.path, lambda: b"", Disk()).read()


@pytest.fixture
def rig(tmp_path):
    made = Rig(tmp_path)
    yield made
    made.ledger.close()


def test_agent_that_starts_the_first_time_finds_nothing_and_complains_of_nothing(rig, caplog):
    content = rig.read()
    assert (content.records, content.whole, caplog.messages) == ((), True, [])


def test_records_are_read_back_in_order(rig):
    for text in (b"a", b'{"x": "\\n"}', b"c"):
        assert rig.append(text)
    assert rig.read().records == (b"a", b'{"x": "\\n"}', b"c")
    assert rig.read().whole


def test_a_record_counts_only_when_it_is_synced(tmp_path):
    rig = Rig(tmp_path, ScriptedDisk())
    rig.ledger.rewrite()
    rig.append(b"a")
    assert rig.disk.calls[-2:] == ["write", "sync"]
    rig.append(b"b", sync=False)
    assert rig.disk.calls[-1] == "write"
    rig.ledger.close()


def test_writes_of_a_few_bytes_at_a_time_make_the_same_file(tmp_path):
    rig = Rig(tmp_path, ScriptedDisk(piece=3))
    rig.append(b"first")
    rig.append(b"second")
    assert rig.read().records == (b"first", b"second")
    rig.ledger.close()


def test_the_file_is_written_anew_when_it_has_grown(rig):
    rig.ledger.rewrite()
    record = b"x" * 1000
    for _ in range(2 * GROWN_BYTES // len(record)):
        rig.ledger.append(record)
        assert rig.path.stat().st_size <= GROWN_BYTES + 2 * len(record)
    assert rig.read().records[0] == b"none"


def test_nobody_but_the_owner_reads_what_a_workflow_was_given(rig):
    rig.append(b"a")
    assert rig.path.stat().st_mode & 0o777 == 0o600


@given(st.lists(st.binary(max_size=12).filter(lambda raw: b"\n" not in raw), max_size=5), st.data())
def test_a_file_cut_anywhere_gives_the_records_before_and_is_not_taken_for_whole(records, data):
    raw, _ = file_of(records)
    cut = data.draw(st.integers(0, len(raw)))
    content = parse(raw[:cut])
    assert content.records == tuple(records[: len(content.records)])
    assert content.whole == (cut == len(raw))


@given(st.lists(st.binary(max_size=12).filter(lambda raw: b"\n" not in raw), max_size=5), st.data())
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


@pytest.mark.parametrize(
    "order",
    [
        (0, 1, 3, 4),
        (1, 2, 3, 4),
        (0, 1, 2, 3),
        (0, 0, 1, 2, 3, 4),
        (0, 1, 2, 3, 4, 4),
        (0, 1, 3, 2, 4),
        (0, 2, 1, 3, 4),
    ],
)
def test_records_that_are_missing_or_twice_or_in_another_order_are_noticed(order):
    header, *lines = file_of(RECORDS)[0].splitlines(keepends=True)
    content = parse(header + b"".join(lines[at] for at in order))
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


def test_torn_tail_is_told_and_the_rest_is_used(rig, caplog):
    rig.append(b"a")
    with rig.path.open("ab") as file:
        file.write(b"0123abcd {")
    assert rig.read().records == (b"a",)
    assert rig.read().whole
    assert "the last record was cut off" in caplog.text


def test_record_that_counted_and_is_gone_is_no_torn_tail(rig, caplog):
    """Whoever took it for one would run its action again."""
    rig.append(b"a")
    rig.append(b"b")
    raw = rig.path.read_bytes()
    for left in (raw[:-4], raw[: raw.rindex(b"\n", 0, -1) + 1], raw[:-4] + bytes(4)):
        rig.path.write_bytes(left)
        assert (rig.read().records, rig.read().whole) == ((b"a",), False)
        assert "is damaged" in caplog.text
        caplog.clear()


def test_damage_in_the_middle_is_told_with_its_place(rig, caplog):
    for text in (b"a", b"b", b"c"):
        rig.append(text)
    raw = rig.path.read_bytes()
    rig.path.write_bytes(raw.replace(b" b\n", b" X\n"))
    content = rig.read()
    assert (content.records, content.whole) == ((b"a",), False)
    assert f"1 records up to byte {content.length} of {len(raw)} are used" in caplog.text


def test_a_file_that_no_agent_wrote_does_not_fill_memory(tmp_path, monkeypatch):
    asked = []
    rig = Rig(tmp_path)
    rig.append(b"a")
    monkeypatch.setattr("tink.agent.durable.ledger.MAX_BYTES", len(rig.path.read_bytes()) + 5)
    rig.append(b"b")
    rig.ledger.close()
    real = Disk.read
    monkeypatch.setattr(Disk, "read", lambda self, path, limit: asked.append(limit) or real(self, path, limit))
    content = rig.read()
    assert (content.records, content.whole) == ((b"a",), False)
    assert asked[0] < MAX_BYTES


def test_unreadable_file_is_told_and_counts_as_damaged(tmp_path, caplog):
    (tmp_path / "journal").mkdir()
    assert not Rig(tmp_path).read().whole
    assert "cannot be read" in caplog.text


def test_full_disk_is_said_once_and_the_agent_goes_on_and_it_heals(tmp_path, caplog):
    disk = ScriptedDisk(full_at=len(WHOLE) + 41)
    rig = Rig(tmp_path, disk)
    assert rig.append(b"a")
    assert rig.ledger.durable
    for number in range(5):
        assert not rig.append(b"longer than there is room for %d" % number)
    assert not rig.ledger.durable
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
    assert "No space left on device" in caplog.text
    assert (rig.read().records, rig.read().whole) == ((b"a",), False), "what is there is true, but not all"
    disk.full_at = None
    assert rig.append(b"z")
    assert rig.ledger.durable
    assert rig.read().whole
    assert rig.read().records == (b"+".join(rig.said),)
    assert "can be written again" in caplog.text
    rig.ledger.close()


@pytest.mark.parametrize("number", range(12))
def test_a_call_that_fails_leaves_the_whole_file_or_one_marked_incomplete(tmp_path, number):
    disk = ScriptedDisk(fail=[number])
    rig = Rig(tmp_path, disk)
    for text in (b"a", b"b", b"c"):
        kept = rig.append(text)
        content = rig.read()
        told = b"+".join(content.records).split(b"+") if content.records else []
        assert told == rig.said[: len(told)]
        assert kept == (told == rig.said and content.whole)
        assert rig.ledger.durable == kept
    rig.ledger.close()


def test_disk_that_cannot_even_be_marked_is_told(tmp_path, caplog):
    disk = ScriptedDisk()
    rig = Rig(tmp_path, disk)
    rig.append(b"a")
    disk.fail = set(range(len(disk.calls), 100))
    assert not rig.append(b"b")
    disk.fail -= {len(disk.calls) + 1}  # the next one can open the file, and no more
    assert not rig.append(b"c")
    assert "cannot even be marked" in caplog.text


def test_state_directory_that_vanished_is_no_crash(tmp_path):
    directory = tmp_path / "state"
    directory.mkdir()
    rig = Rig(directory)
    rig.append(b"a")
    rig.ledger.close()
    for name in directory.iterdir():
        name.unlink()
    directory.rmdir()
    assert not rig.append(b"b")
    directory.mkdir()
    assert rig.append(b"c")
    rig.ledger.close()


def test_no_descriptor_is_left_open(tmp_path):
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(12):
        directory = tmp_path / str(number)
        directory.mkdir()
        rig = Rig(directory, ScriptedDisk(fail=[number]))
        for text in (b"a", b"b", b"c"):
            rig.append(text)
        rig.ledger.rewrite()
        rig.ledger.close()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before  # what other tests left may be collected meanwhile


def test_headers_are_alike_so_that_marking_needs_no_room():
    assert len(WHOLE) == len(BLIND)
    assert Path("journal").with_suffix(".new") == Path("journal.new")


class Odd(Disk):
    """With `stuck`, a write takes nothing and says so; with `lossy`, nothing that was written is known to stay."""

    stuck = lossy = False

    def write(self, descriptor, content, offset):
        return 0 if self.stuck else super().write(descriptor, content, offset)

    def sync(self, descriptor):
        if self.lossy:
            raise OSError(errno.EIO, "Input/output error")


def test_disk_that_takes_nothing_and_calls_it_no_error_does_not_hang_the_agent(tmp_path):
    disk = Odd()
    ledger = Ledger(tmp_path / "l", lambda: b"{}", disk)
    assert ledger.rewrite()
    disk.stuck = True
    assert not ledger.append(b"{}")
    assert ledger.stale


def test_mark_that_may_be_lost_with_the_power_is_none(tmp_path):
    disk = Odd()
    ledger = Ledger(tmp_path / "l", lambda: b"{}", disk)
    assert ledger.rewrite()
    disk.lossy = True
    assert not ledger.append(b"{}")
    assert ledger.stale
    disk.lossy = False
    assert ledger.append(b"{}")
    assert (ledger.durable, ledger.stale) == (True, False)


def test_file_that_is_gone_misleads_nobody(tmp_path):
    directory = tmp_path / "state"
    directory.mkdir()
    ledger = Ledger(directory / "l", lambda: b"{}")
    assert ledger.rewrite()
    ledger.close()
    (directory / "l").unlink()
    directory.rmdir()
    assert not ledger.append(b"{}")
    assert (ledger.durable, ledger.stale) == (False, False)
