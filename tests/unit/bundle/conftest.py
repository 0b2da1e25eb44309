"""A small bundle. Its signature is of the tests' own making: who signs is an argument, and gpg is in tests/interop."""

from __future__ import annotations

import hashlib
import io
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from edge.bundle.archive import BundleError, BundleReader
from edge.bundle.creation import Contents, Osie, Surroundings, create

ROOT = Path(__file__).parents[3]
NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


def sign(text: bytes) -> bytes:
    return hashlib.sha256(b"secret" + text).digest()


def verify(text: bytes, signature: bytes) -> str:
    if signature != sign(text):
        raise BundleError("the signature is not ours")
    return "tests"


def quiet(_what: str, _done: int, _total: int) -> None:
    """Ignore progress."""


class Site:
    """The parts of a bundle, in a directory; `members` of the bundle can be changed one by one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = directory / "site.bundle"
        (directory / "osie").mkdir()
        (directory / "osie/kernel").write_bytes(b"kernel" * 1000)
        (directory / "osie/initrd").write_bytes(b"initrd" * 1000)
        (directory / "disk.raw").write_bytes(bytes(range(256)) * 10)
        self.contents = Contents(osies=(Osie.of(f"lab={directory}/osie"),), files=(str(directory / "disk.raw"),))
        self.reported: list[str] = []

    def around(self, now: datetime = NOW) -> Surroundings:
        return Surroundings(ROOT / "deploy", self.directory / "cache", "0.1.0", now, quiet, self.reported.append)

    def create(self, contents: Contents | None = None, now: datetime = NOW) -> None:
        create(contents or self.contents, self.file, sign, self.around(now))

    def reader(self, content: bytes | None = None) -> BundleReader:
        return BundleReader(io.BytesIO(self.file.read_bytes() if content is None else content), verify)

    def members(self) -> dict[str, bytes]:
        with tarfile.open(self.file) as archive:
            found = {}
            for one in archive:
                file = archive.extractfile(one)
                found[one.name] = file.read() if file is not None else b""
            return found


def packed(members: dict[str, bytes] | list[tuple[str, bytes]], *, signed: bool = False) -> bytes:
    """A bundle of these members; `signed`: with hashes and signature that fit, as only who has the key can."""
    pairs = list(members.items()) if isinstance(members, dict) else members
    if signed:
        rest = [(name, content) for name, content in pairs if not name.startswith("SHA256SUMS")]
        sums = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in rest).encode()
        pairs = [("SHA256SUMS", sums), ("SHA256SUMS.sig", sign(sums)), *rest]
    out = io.BytesIO()
    for name, content in pairs:
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.mtime = len(content), 0o644, int(NOW.timestamp())
        out.write(info.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % 512))
    out.write(bytes(1024))
    return out.getvalue()


@pytest.fixture
def site(tmp_path):
    made = Site(tmp_path)
    made.create()
    return made
