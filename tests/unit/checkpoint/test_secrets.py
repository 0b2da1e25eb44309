"""Secrets of Hardware, kept for when the API is away: encrypted, read ahead, and gone with the last that names them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from edge.checkpoint import KeptSecrets
from tests.support.virtual_time import elapse
from tink.files.key_file import KeyFile
from tink.kube.client import ApiError, NotFoundError, UnreachableError

CLUSTER = frozenset({"ca:1"})
WORD = "aHVzaA=="
SECRET = {"type": "Opaque", "data": {"userData": WORD}, "metadata": {"name": "s"}}
AWAY = UnreachableError("no route")


def hardware(name: str, **annotations: str) -> dict[str, Any]:
    named = {f"tinkerbell.org/{kind}-secret": value for kind, value in annotations.items()}
    return {"metadata": {"name": name, "namespace": "ns", "annotations": named}}


class Edge:
    """One process: its copies, the API as it answers it, and its clock."""

    def __init__(self, directory: Path, cluster: frozenset[str] = CLUSTER, key: str = "key") -> None:
        self.now = 0.0
        self.asked: list[str] = []
        self.answers: dict[str, Any] = {"s": SECRET}
        self.directory = directory / "secrets"
        self.kept = KeptSecrets(
            self.directory,
            KeyFile(directory / key, "checkpoint key", create=True),
            self._read,
            cluster,
            synced=lambda: True,
            clock=lambda: 1000.0,
            monotonic=lambda: self.now,
        )

    async def _read(self, _namespace: str, name: str) -> Any:
        self.asked.append(name)
        found = self.answers.get(name, NotFoundError(404, "NotFound", name))
        if isinstance(found, Exception):
            raise found
        return found

    def files(self) -> list[Path]:
        return sorted(self.directory.iterdir()) if self.directory.exists() else []


@pytest.fixture
async def edge(tmp_path: Path) -> Edge:
    """One that has read ahead the Secret `s` of the machine `m`."""
    edge = Edge(tmp_path)
    edge.kept.apply(hardware("m", userdata="s"))
    await edge.kept.step()
    return edge


async def test_machine_gets_its_secret_while_the_api_is_away(edge: Edge, tmp_path: Path) -> None:
    again = Edge(tmp_path)
    again.answers["s"] = AWAY
    assert await again.kept.read("ns", "s") == {"type": "Opaque", "data": {"userData": WORD}}
    again.answers["s"] = ApiError(503, "ServiceUnavailable", "etcd")
    assert (await again.kept.read("ns", "s"))["data"] == {"userData": WORD}
    [path] = edge.files()
    assert path.stat().st_mode & 0o777 == 0o600
    for word in (WORD, "hush", "userData", "Opaque"):
        assert word.encode() not in path.read_bytes(), "nothing of it can be read on the disk"
    assert path.name != "s"
    key = tmp_path / "key"
    key.write_text("n" * 64 + "\n" + key.read_text())  # a new key reads copies of the old one
    again = Edge(tmp_path)
    again.answers["s"] = AWAY
    assert (await again.kept.read("ns", "s"))["data"] == {"userData": WORD}


async def test_answer_of_the_api_replaces_the_copy(edge: Edge) -> None:
    edge.answers["s"] = ApiError(403, "Forbidden", "no right")
    with pytest.raises(ApiError, match="no right"):
        await edge.kept.read("ns", "s")
    edge.answers["s"] = {"type": "Opaque", "data": {"userData": "bmV3"}}
    assert (await edge.kept.read("ns", "s"))["data"] == {"userData": "bmV3"}
    edge.answers["s"] = AWAY
    assert (await edge.kept.read("ns", "s"))["data"] == {"userData": "bmV3"}
    del edge.answers["s"]
    with pytest.raises(NotFoundError):
        await edge.kept.read("ns", "s")
    edge.answers["s"] = AWAY
    with pytest.raises(UnreachableError):
        await edge.kept.read("ns", "s")
    assert not edge.files()


async def test_secret_goes_with_the_last_hardware_that_names_it(edge: Edge) -> None:
    edge.kept.apply(hardware("other", vendordata="s/key"))
    edge.kept.remove(hardware("m"))
    assert len(edge.files()) == 1
    edge.kept.apply(hardware("other"))
    assert not edge.files()
    await edge.kept.read("ns", "s")
    assert not edge.files(), "no Hardware names it: it is none of ours to keep"


@pytest.mark.parametrize("kind", ["kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token"])
async def test_secrets_that_open_the_cluster_are_never_kept(tmp_path: Path, kind: str) -> None:
    edge = Edge(tmp_path)
    edge.answers["s"] = SECRET | {"type": kind}
    edge.kept.apply(hardware("m", userdata="s"))
    await edge.kept.step()
    assert edge.asked == ["s"]
    assert not edge.files()


async def test_reading_ahead_is_slow_and_goes_round(edge: Edge) -> None:
    for name in ("a", "b"):
        edge.answers[name] = SECRET
        edge.kept.apply(hardware(name, userdata=name))
    assert [await edge.kept.step() for _ in range(3)] == [0.1, 0.1, 1.0], "and then nothing is due"
    assert sorted(edge.asked) == ["a", "b", "s"]
    edge.now = 6 * 3600.0
    await edge.kept.step()
    assert edge.asked[-1] == "s", "the one that was read first"
    edge.answers |= dict.fromkeys(("s", "a", "b"), AWAY)
    edge.now *= 2
    asked = len(edge.asked)
    assert await edge.kept.step() == 30.0, "an API that is away is not asked for every Secret"
    assert len(edge.asked) == asked + 1
    assert len(edge.files()) == 3, "what is kept stays"


async def test_copy_of_another_key_cluster_or_secret_is_named_and_not_served(edge, tmp_path, caplog) -> None:
    [path] = edge.files()
    for other, said in (
        (Edge(tmp_path, key="key2"), "not encrypted with a key of this edge, or damaged"),
        (Edge(tmp_path, frozenset({"ca:2"})), "of another cluster"),
    ):
        other.answers["s"] = AWAY
        with pytest.raises(UnreachableError):
            await other.kept.read("ns", "s")
        assert f"Secret ns/s can't be used: it is {said}" in caplog.text
    edge.answers["other"] = SECRET
    edge.kept.apply(hardware("other", userdata="other"))
    await edge.kept.step()
    [other_path] = set(edge.files()) - {path}
    edge.answers["other"] = AWAY
    path.rename(other_path)
    with pytest.raises(UnreachableError):
        await edge.kept.read("ns", "other")
    other_path.write_bytes(other_path.read_bytes()[:-1])
    with pytest.raises(UnreachableError):
        await edge.kept.read("ns", "other")


@pytest.mark.looptime
async def test_copies_that_no_hardware_names_are_swept(edge: Edge, tmp_path: Path) -> None:
    again = Edge(tmp_path)
    running = asyncio.create_task(again.kept.run())
    await elapse(2)
    running.cancel()
    assert not again.files(), "the Hardware went while the edge was down"
