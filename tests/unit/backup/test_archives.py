"""Backups: encrypted with a passphrase, as other programs for age have it; named by their time, and not too many."""

from __future__ import annotations

import io
import random
import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from click.testing import CliRunner

from edge.cli import main
from edge.commands.backup import name_at, too_many
from tests.unit.backup.conftest import Site
from tink.backup.encryption import EncryptionError, decrypted, encrypted, is_encrypted

PASSPHRASE = b"correct horse battery staple"
CHUNK = 64 << 10


def sealed(plain: bytes, log_n: int = 4) -> bytes:
    out = io.BytesIO()
    writer = encrypted(out, PASSPHRASE, log_n)
    for start in range(0, len(plain), 50_000):
        writer.write(plain[start : start + 50_000])
    writer.close()
    return out.getvalue()


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 200_000])
def test_content_comes_back(size: int) -> None:
    plain = random.Random(size).randbytes(size)
    content = sealed(plain)
    assert is_encrypted(content[:32])
    assert decrypted(io.BytesIO(content), PASSPHRASE).read() == plain


def test_wrong_passphrase_and_damaged_file_give_different_errors() -> None:
    with pytest.raises(EncryptionError, match="passphrase"):
        decrypted(io.BytesIO(sealed(b"x")), b"another passphrase")


def test_no_changed_or_missing_byte_goes_unseen() -> None:
    content = sealed(b"y" * (2 * CHUNK))
    for position in [*range(230), *range(230, len(content), 5003), len(content) - 1]:
        broken = bytearray(content)
        broken[position] ^= 1
        with pytest.raises(EncryptionError):
            decrypted(io.BytesIO(bytes(broken)), PASSPHRASE).read()
    for length in (0, 30, 150, 215, len(content) - 1, len(content) - CHUNK - 16):
        with pytest.raises(EncryptionError):
            decrypted(io.BytesIO(content[:length]), PASSPHRASE).read()


def test_file_that_asks_for_endless_work_is_refused() -> None:
    content = sealed(b"x").replace(b" 4\n", b" 30\n", 1)
    with pytest.raises(EncryptionError, match="scrypt"):
        decrypted(io.BytesIO(content), PASSPHRASE)


NOW = datetime(2026, 11, 25, 2, 30, tzinfo=timezone(timedelta(hours=3)))
MADE = name_at(NOW, encrypted=False)


def day(number: int) -> str:
    return name_at(datetime(2026, 11, number, tzinfo=UTC), encrypted=number % 2 == 0)


@pytest.mark.parametrize(("keep", "gone"), [(1, [20, 21, 22, 23]), (3, [20, 21]), (5, []), (99, [])])
def test_oldest_ones_go(keep: int, gone: list[int]) -> None:
    assert MADE == "tinkedge-20261124T233000Z.tgz", "whatever the zone of the host"
    assert name_at(NOW, encrypted=True) == f"{MADE}.age"
    names = [MADE, *map(day, (23, 20, 22, 21))]
    assert too_many(names, MADE, keep) == [day(number) for number in gone]
    others = ["notes", "tinkedge-2020-01-01.tgz", "tinkedge-20200101T000000Z.tgz.part", f".{day(20)}"]
    assert too_many([*names, *others], MADE, keep) == [day(number) for number in gone], "other files stay"
    future = ["tinkedge-20990101T000000Z.tgz", "tinkedge-20990102T000000Z.tgz"]
    assert too_many([MADE, day(23), *future], MADE, 2) == future, "those with a future time go first"
    assert too_many([MADE, *future], MADE, 2) == future[:1]


async def test_directory_gets_a_backup_of_its_own_name_and_the_newest_stay(site: Site, tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    backups.mkdir()
    (backups / day(20)).write_bytes(b"")
    (backups / "notes").write_bytes(b"")
    words = ["backup", str(backups), "--data-dir", str(site.directory)]
    assert CliRunner().invoke(main, words).exit_code == 0
    assert (backups / day(20)).exists(), "nobody has reported how many stay"
    done = CliRunner().invoke(main, [*words, "--keep", "1"])
    assert (done.exit_code, day(20) in done.stderr) == (0, True), done.output
    (made,) = {each.name for each in backups.iterdir()} - {"notes"}
    assert re.fullmatch(r"tinkedge-\d{8}T\d{6}Z\.tgz", made)
    refused = CliRunner().invoke(main, ["backup", str(tmp_path / "file"), "--keep", "1"])
    assert (refused.exit_code, "is no directory" in refused.output) == (2, True)


def test_backup_into_a_directory_that_is_missing_is_refused_with_the_command_that_makes_it(tmp_path):
    (tmp_path / "data").mkdir()
    file = tmp_path / "missing" / "backup.tgz"
    refused = CliRunner().invoke(main, ["backup", "--config=/dev/null", f"--data-dir={tmp_path / 'data'}", str(file)])
    words = f"there is no directory {file.parent}; make it ('install -d -m 700 {file.parent}')"
    assert (refused.exit_code, words in " ".join(refused.output.split())) == (1, True), refused.output
