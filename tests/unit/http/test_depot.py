"""Images and files of the data directory, for machines at sites without another server."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from edge.artifacts.artifact import Artifact, ArtifactError, UpstreamError
from edge.artifacts.shared import SharedFiles
from edge.http.depot import MAX_ASKED
from edge.journey.events import Outcome, Step
from tests.unit.bundle import layouts
from tests.unit.http.conftest import IP, OTHER_IP, Rack, serving
from tests.waiting import until
from tink.agent.images import ImageStore, Registries
from tink.registry.manifests import MANIFEST_LIMIT_BYTES

FILE, CONTENT = "/files/debian.raw.zst", bytes(range(256)) * 4096
MANIFEST = "/v2/actions/inspect/manifests/1"


@pytest.fixture
def depot(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    (made / "files").mkdir(parents=True)
    (made / "files/debian.raw.zst").write_bytes(CONTENT)
    (made / "secret").write_bytes(b"secret")
    return made


@pytest.fixture
def image(depot: Path) -> dict[str, Any]:
    made = layouts.image(depot / "images", b"layer" * 1000)
    layouts.index(depot / "images", actions_inspect=made)
    return made


@pytest.fixture
async def rack(tmp_path: Path, depot: Path, image: dict[str, Any]) -> AsyncIterator[Rack]:
    async with serving(tmp_path, depot=depot) as rack:
        rack.register()
        yield rack


async def test_image_is_pulled_as_from_any_registry(rack, image):
    assert (await rack.ask("/v2/")).headers["Docker-Distribution-API-Version"] == "registry/2.0"
    manifest = await rack.ask(MANIFEST)
    assert (manifest.status, manifest.headers["Content-Type"]) == (200, layouts.MANIFEST_TYPE)
    assert manifest.headers["Docker-Content-Digest"] == image["digest"]
    blob = f"/v2/actions/inspect/blobs/{json.loads(manifest.body)['layers'][0]['digest']}"
    assert (await rack.ask(blob)).body == b"layer" * 1000
    rest = await rack.ask(blob, Range="bytes=4990-")
    assert (rest.status, rest.body) == (206, b"layerlayer")
    head = await rack.ask(MANIFEST, method="HEAD")
    assert (head.status, head.body, head.headers["Content-Length"]) == (200, b"", str(image["size"]))
    assert (await rack.ask(f"/v2/actions/inspect/manifests/{image['digest']}")).body == manifest.body


async def test_agent_pulls_from_it_and_asks_for_each_blob_once(rack, depot, tmp_path, caplog):
    caplog.set_level(logging.INFO, "edge.http.depot")
    rack.register("m2", "52:54:00:00:00:09", "127.0.0.1")  # where the agent is
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("there"))
    layouts.index(depot / "images", tool=layouts.image(depot / "images", layer.getvalue()))
    store = ImageStore(tmp_path / "agent", Registries(plain=(f"127.0.0.1:{rack.port}",)), architecture="amd64")
    store.prepare()
    await store.pull(f"127.0.0.1:{rack.port}/tool:1", asyncio.Event())
    assert (store.get(f"127.0.0.1:{rack.port}/tool:1").rootfs / "there").exists()
    sent = [record.getMessage() for record in caplog.records]
    assert len(sent) == 2, sent  # the configuration and the layer


async def test_images_that_come_while_it_runs_are_served(rack, depot):
    assert (await rack.ask("/v2/late/manifests/1")).status == 404
    layouts.index(depot / "images", late=layouts.image(depot / "images", b"late"))
    assert (await rack.ask("/v2/late/manifests/1")).status == 200


async def test_missing_image_is_a_registry_error_and_recorded_on_the_journey(rack):
    for path, code in (("manifests/2", "MANIFEST_UNKNOWN"), (f"blobs/sha256:{'0' * 64}", "BLOB_UNKNOWN")):
        answer = await rack.ask(f"/v2/actions/inspect/{path}")
        assert (answer.status, json.loads(answer.body)["errors"][0]["code"]) == (404, code)
    step, outcome, message = rack.lines()[0]
    assert (step, outcome) == (Step.ACTION, Outcome.FAILED)
    assert "there is no image actions/inspect:2" in message


async def test_broken_index_is_logged_for_the_operator_and_not_shown_to_the_machine(rack, depot):
    (depot / "images/index.json").write_text("{")
    answer = await rack.ask(MANIFEST)
    assert (answer.status, str(depot) in answer.text) == (500, False)
    message = rack.lines()[0][2]
    assert f"{depot}/images: " in message
    assert "can't be read: index.json is not JSON" in message


async def test_manifest_beyond_the_bound_is_not_read(rack, depot):
    digest = json.loads((depot / "images/index.json").read_text())["manifests"][0]["digest"]
    (depot / "images/blobs/sha256" / digest[7:]).write_bytes(bytes(MANIFEST_LIMIT_BYTES + 1))
    assert (await rack.ask(MANIFEST)).status == 500
    assert f"is larger than the {MANIFEST_LIMIT_BYTES} bytes that a manifest may have" in rack.lines()[0][2]


async def test_file_is_sent_whole_and_in_parts(rack):
    whole = await rack.ask(FILE)
    assert whole.body == CONTENT
    part = await rack.ask(FILE, Range="bytes=256-511", If_Range=whole.headers["ETag"])
    assert (part.status, part.body) == (206, bytes(range(256)))
    head = await rack.ask(FILE, method="HEAD")
    assert (head.status, head.headers["Content-Length"]) == (200, str(len(CONTENT)))


async def test_other_files_of_the_host_are_unreachable_and_writes_are_rejected(rack, depot):
    (depot / "files/.hidden").write_bytes(b"secret")
    (depot / "files/link").symlink_to(depot / "secret")
    (depot / "files/directory").mkdir()
    files = ("", "missing", "..%2fsecret", "../secret", "%2e%2e/secret", ".hidden", "link", "directory")
    images = ("x/blobs/..%2f..%2f..%2fsecret", "x/blobs/secret", "x/tags/list", "_catalog", "x/manifests/..")
    for path in (*(f"/files/{name}" for name in files), *(f"/v2/{name}" for name in images), "/v2/manifests/1"):
        answer = await rack.ask(path)
        assert answer.status in (404, 500), path
        assert b"secret" not in answer.body
    for method in ("PUT", "POST", "DELETE", "PATCH"):
        for path in (MANIFEST, FILE):
            assert (await rack.ask(path, method=method, data=b"{}")).status == 405


async def test_unregistered_machine_gets_no_file_and_an_edge_without_a_directory_has_none(rack, tmp_path):
    for path in ("/v2/", MANIFEST, FILE):
        assert (await rack.ask(path, ip=IP)).status == 200
        assert (await rack.ask(path, ip=OTHER_IP)).status == 403
    (tmp_path / "other").mkdir()
    async with serving(tmp_path / "other") as without:
        without.register()
        for path in (MANIFEST, FILE):
            assert (await without.ask(path)).status == 404


class Beyond:
    """Another edge, with the files of `directory`; `trouble` is raised in their place."""

    def __init__(self, directory: Path) -> None:
        self.shared = SharedFiles(directory / "files", directory / "images")
        self.trouble: ArtifactError | None = None
        self.asked: list[tuple[str, str]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def open(self, url: str, *, sha256: str = "") -> Artifact:
        self.asked.append((url, sha256))
        await self.gate.wait()
        if self.trouble is not None:
            raise self.trouble
        return self.shared.open(url)


@pytest.fixture
def beyond(depot: Path) -> Beyond:
    return Beyond(depot)


@pytest.fixture
async def branch(tmp_path: Path, beyond: Beyond) -> AsyncIterator[Rack]:
    """An edge with one file of its own, that asks another one."""
    (tmp_path / "branch/files").mkdir(parents=True)
    (tmp_path / "branch/files/own").write_bytes(b"own")
    async with serving(tmp_path / "branch", depot=tmp_path / "branch", beyond=beyond) as rack:
        rack.register()
        yield rack


async def test_missing_files_come_from_another_edge_and_local_files_do_not(branch, beyond, image):
    assert (await branch.ask("/files/own")).body == b"own"
    assert beyond.asked == []
    assert (await branch.ask(FILE)).body == CONTENT
    by_tag = await branch.ask(MANIFEST)
    by_digest = await branch.ask(f"/v2/actions/inspect/manifests/{image['digest']}")
    assert by_tag.body == by_digest.body
    assert by_tag.headers["Docker-Content-Digest"] == image["digest"]
    assert by_tag.headers["Content-Type"] == layouts.MANIFEST_TYPE
    layer = json.loads(by_tag.body)["layers"][0]["digest"]
    assert (await branch.ask(f"/v2/actions/inspect/blobs/{layer}")).body == b"layer" * 1000
    assert [pin for _, pin in beyond.asked] == ["", "", image["digest"][7:], layer[7:]]
    for path in ("/files/.hidden", "/v2/x/blobs/sha256:..", "/v2/UPPER/manifests/1", "/v2/x/manifests/sha256:12"):
        assert (await branch.ask(path)).status == 404
    assert len(beyond.asked) == 4, "nobody is asked for what can't be"


async def test_why_another_edge_gives_nothing_is_on_the_journey(branch, beyond):
    assert (await branch.ask("/files/none")).status == 404
    beyond.trouble = UpstreamError("edge:/files/x", "no other edge that can be asked has it")
    file, image = await branch.ask("/files/x"), await branch.ask("/v2/x/manifests/1")
    for answer in (file, image):
        assert (answer.status, answer.headers["retry-after"]) == (503, "10"), "it may be there in a moment"
    assert json.loads(image.body)["errors"][0]["code"] == "UNAVAILABLE"
    reported = [message for _, _, message in branch.lines()]
    assert "and no such file on the edge's machine" in reported[0]
    assert all("no other edge that can be asked has it" in message for message in reported[1:])


async def test_manifest_with_another_digest_than_was_asked_for_is_refused(branch, depot):
    other = layouts.image(depot / "images", b"other")
    blobs = depot / "images/blobs/sha256"
    (blobs / ("0" * 64)).write_bytes((blobs / other["digest"][7:]).read_bytes())
    assert (await branch.ask(f"/v2/x/manifests/sha256:{'0' * 64}")).status == 500


async def test_machine_has_another_edge_asked_for_a_few_files_at_a_time(branch, beyond):
    beyond.gate.clear()
    waiting = [asyncio.create_task(branch.ask(FILE)) for _ in range(MAX_ASKED)]
    await until(lambda: len(beyond.asked) == MAX_ASKED)
    assert (await branch.ask(FILE)).status == 503
    beyond.gate.set()
    assert [answer.status for answer in await asyncio.gather(*waiting)] == [200] * MAX_ASKED
    assert (await branch.ask(FILE)).status == 200
