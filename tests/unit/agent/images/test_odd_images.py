"""What an image, its manifest or its registry may say seldom, and what is made of it."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from tink.agent.images import reference
from tink.agent.images.registry import (
    AbortedError,
    Registries,
    RegistryError,
    Session,
    json_object,
    retry_backoff,
)
from tink.agent.images.store import _blob
from tink.agent.images.unpack import Budget, UnpackError, apply_layer
from tink.agent.model import AgentError


def layer(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, target, 0o644
    info.uid, info.gid = 0, 0
    return info


def test_hard_link_to_a_symbolic_link_is_that_link_and_not_what_it_points_to(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "secret"
    root.mkdir()
    outside.write_text("the machine's own")
    archive = layer(
        tmp_path / "layer",
        (member("link", tarfile.SYMTYPE, str(outside)), b""),
        (member("hard", tarfile.LNKTYPE, "link"), b""),
    )
    apply_layer(root, archive, Budget(10**6), lambda: None)
    assert (root / "hard").is_symlink()
    assert outside.stat().st_nlink == 1


def test_hard_link_to_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    archive = layer(tmp_path / "layer", (member("hard", tarfile.LNKTYPE, "./"), b""))
    with pytest.raises(UnpackError, match="hard link to nothing"):
        apply_layer(tmp_path / "root", archive, Budget(10**6), lambda: None)


@pytest.mark.parametrize("value", [b"[]", b"{}", b"0", b'""'])
def test_document_of_very_many_values_is_not_read(value: bytes) -> None:
    """4 MiB of empty lists are 100 MB in memory."""
    content = b'{"layers":[' + value + (b"," + value) * 1_000_000 + b"]}"
    with pytest.raises(RegistryError, match="its manifest has more than 100000 values"):
        json_object(content, "manifest")


@pytest.mark.parametrize(
    "descriptor",
    [
        {"digest": "sha256:" + "0" * 64, "size": -1},
        {"digest": "sha256:" + "0" * 64, "size": "1"},
        {"digest": "sha256:" + "0" * 64},
        {"digest": "sha256:../../../etc", "size": 1},
        {"digest": "md5:" + "0" * 32, "size": 1},
        {"digest": 7, "size": 1},
        [],
        None,
    ],
)
def test_what_a_manifest_names_without_digest_and_size_is_not_fetched(descriptor: object) -> None:
    with pytest.raises(RegistryError, match="without a sha256 or sha512 digest and a size"):
        _blob(descriptor)


def session(pauses: list[float]) -> Session:
    return Session(reference.parse("127.0.0.1:1/x:1"), Registries(), pauses.append)


def test_registry_in_trouble_is_left_alone_for_longer_each_time() -> None:
    pauses: list[float] = []
    asking, backoff = session(pauses), retry_backoff()
    for _ in range(4):
        asking.retry_pause(backoff)
    assert pauses == [0.5, 1.0, 2.0, 4.0]
    asking.retry_pause(backoff, 30.0)
    asking.retry_pause(backoff, 1.0)
    assert pauses[4:] == [30.0, 8.0], "longer if the registry says so, never shorter"
    asking.abort()
    with pytest.raises(AbortedError):
        asking.retry_pause(backoff)


@pytest.mark.parametrize("realm", ["http://127.0.0.1:1/token", "http://127.0.0.1:1/token?account=me"])
def test_token_service_is_asked_at_its_own_address_whatever_stands_in_it(
    realm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def get(url: str, _: object) -> None:
        asked.append(url)
        raise AgentError("asked")

    asking = session([])
    monkeypatch.setattr(asking, "_get", get)
    with pytest.raises(AgentError, match="asked"):
        asking._authorize(f'Bearer realm="{realm}"')
    assert asked[0].startswith(realm)
    assert asked[0].count("?") == 1
    assert asked[0][len(realm)] == ("&" if "?" in realm else "?")
