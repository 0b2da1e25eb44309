"""Layers that Debian's zstd has compressed."""

import os
import subprocess

import pytest

from tests.interop.images.fake_registry import tar
from tink.agent.images.unpack import Budget, UnpackError, apply_layer


def compressed(content):
    return subprocess.run(["zstd", "-c"], input=tar(file=content), capture_output=True, check=True).stdout


def unpack(place, layer):
    (place / "layer").write_bytes(layer)
    (place / "root").mkdir(exist_ok=True)
    apply_layer(place / "root", place / "layer", Budget(10**7))
    return place / "root"


def test_zstd_is_recognized(tmp_path):
    root = unpack(tmp_path, compressed(b"x" * 300_000))
    assert (root / "file").stat().st_size == 300_000


def test_damaged_zstd_is_noticed(tmp_path):
    packed = bytearray(compressed(os.urandom(500_000)))
    with pytest.raises(UnpackError):
        unpack(tmp_path, bytes(packed[: len(packed) // 2]))
    packed[len(packed) // 2 :] = bytes(len(packed) // 2)
    with pytest.raises(UnpackError):
        unpack(tmp_path, bytes(packed))
