"""Encryption with a passphrase: read back, never with a byte changed, and as other programs for age have it."""

from __future__ import annotations

import io
import random

import pytest

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


def test_wrong_passphrase_is_told_from_a_damaged_file() -> None:
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
