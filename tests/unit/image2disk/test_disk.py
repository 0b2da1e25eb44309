"""What reaches the disk."""

import os


def test_small_pieces_become_large_aligned_writes(target, monkeypatch):
    written = []
    real = os.pwritev

    def pwritev(fd, parts, at):
        written.append((at, sum(map(len, parts))))
        return real(fd, parts, at)

    monkeypatch.setattr(os, "pwritev", pwritev)
    piece = os.urandom(100_000)
    for number in range(100):
        target.disk.write(number * len(piece), piece)
    target.disk.flush()
    assert written == [(0, 4 << 20), (4 << 20, 4 << 20), (8 << 20, 10_000_000 - (8 << 20))]
    assert target.content[:10_000_000] == piece * 100


def test_short_writes_are_gone_on_with(target, monkeypatch):
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: real(fd, [parts[0][:70_001]], at))
    piece = os.urandom(100_000)
    for number in range(50):
        target.disk.write(number * len(piece), piece)
    target.disk.flush()
    assert target.content[:5_000_000] == piece * 50


def test_zeros_are_exactly_where_they_belong(target):
    target.disk.zero(1000, (5 << 20) + 7)
    content = target.content
    assert content[:1000] == b"\xa5" * 1000
    assert content[1000 : (5 << 20) + 7] == bytes((5 << 20) + 7 - 1000)
    assert set(content[(5 << 20) + 7 :]) == {0xA5}
