"""--manifests: one bad file or object keeps nothing else from being applied, is named, and is tried again."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from edge.run.manifests import MAX_PAUSE_SECONDS, YOUNG_SECONDS, ManifestApplier
from tests.support import objects
from tests.support.api import InProcessApi
from tests.support.virtual_time import elapse
from tests.waiting import until as wait_until_true
from tink.api.crds import generate, generate_bmc
from tink.kube.client import ApiError, UnreachableError
from tink.kube.resources import CRD, HARDWARE, OSIE

pytestmark = pytest.mark.looptime

NOW = 1_800_000_000.0


@pytest.fixture
def api() -> InProcessApi:
    return InProcessApi()


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a manifest that is an hour old; `text` instead of an OSIE of that name."""

    def write(name: str, text: str = "", age: float = 3600.0) -> Path:
        path = tmp_path / f"{name}.yaml"
        path.write_text(text or json.dumps(objects.osie(name)))
        os.utime(path, (NOW - age, NOW - age))
        return path

    return write


@asynccontextmanager
async def applying(api: InProcessApi, path: Path) -> AsyncIterator[ManifestApplier]:
    """Apply the manifests of a start, then run the applier."""
    applier = ManifestApplier(api, str, path, clock=lambda: NOW)  # type: ignore[arg-type]
    await applier.apply_definitions()
    await applier.apply_and_wait({})
    task = asyncio.create_task(applier.run())
    try:
        yield applier
        assert not task.done()
    finally:
        task.cancel()


async def until(holds: Callable[[], bool]) -> None:
    await wait_until_true(holds, every=1.0)


def osies(api: InProcessApi) -> list[str]:
    return [each["metadata"]["name"] for each in api.objects(OSIE)]


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (json.dumps(objects.hardware() | {"metadata": {"name": "my_node"}}), "Hardware my_node: .*RFC 1123"),
        ("apiVersion: tinkerbell.org/v1alpha1\nkind: Hardware\nmetadata: {name: m}", "tinkedge convert"),
        ("apiVersion: tinkerbell.org/v1alpha2\nkind: Hardware\nmetadata: {na", "not YAML"),
        ("apiVersion: tinkerbell.org/v1alpha2\nkind: OSIE\nmetadata: {name: half}\n", "OSIE half: .*spec"),
        ("\0", "control characters"),
    ],
)  # fmt: skip
async def test_bad_object_is_named_and_all_others_are_applied(api, write, tmp_path, caplog, text, reported) -> None:
    for name in ("a", "z"):
        write(name)
    write("m", json.dumps(objects.osie("before")) + "\n---\n" + text)
    async with applying(api, tmp_path) as applier:
        assert {"a", "z"} <= set(osies(api))
        assert applier.note == f"1 of --manifests not applied, and tried again: {tmp_path}/m.yaml, see the log"
        assert re.search(f"^{tmp_path}/m.yaml: .*{reported}", applier.problems[0])
        assert [next(iter(applier.metrics())).samples[0].value] == [1.0]
        await elapse(10 * MAX_PAUSE_SECONDS)
        assert caplog.text.count("m.yaml: ") == 1, "said once"


async def test_refused_object_is_tried_again_with_growing_pauses_and_applied_when_its_reason_is_gone(
    api, write, tmp_path, caplog
) -> None:
    caplog.set_level(logging.INFO)
    write("a"), write("b")
    api.fail("create", *[ApiError(500, "InternalError", "webhook is away")] * 4, of=OSIE)
    async with applying(api, tmp_path) as applier:
        tries = api.count("create")
        assert osies(api) == []
        await until(lambda: not applier.problems)
        assert osies(api) == ["a", "b"]
        assert api.count("create") - tries <= 4
        assert "nothing is refused any more" in caplog.text
        api.remove(OSIE, "a")
        await elapse(3 * MAX_PAUSE_SECONDS)
        assert osies(api) == ["b"], "what somebody has deleted does not come again"


async def test_api_that_does_not_answer_is_not_asked_for_every_object(api, write, tmp_path) -> None:
    for number in range(50):
        write(f"osie-{number}")
    api.fail("patch", *[UnreachableError("away")] * 3)
    async with applying(api, tmp_path) as applier:
        assert api.count("patch") == 3
        await until(lambda: not applier.problems)
        assert len(osies(api)) == 50


async def test_object_that_needs_one_of_a_later_file_is_applied_after_it_and_definitions_come_first(
    write, tmp_path
) -> None:
    definitions = {each["spec"]["names"]["kind"]: each for each in generate()}
    api = InProcessApi(definitions=[definitions["Hardware"]])
    write("a")
    write("z", json.dumps(definitions["OSIE"]))
    async with applying(api, tmp_path) as applier:
        assert (osies(api), applier.problems) == (["a"], [])
    api.fail("create", ApiError(404, "NotFound", "needs b"), of=OSIE)
    write("b"), write("c")
    (tmp_path / "a.yaml").unlink()
    async with applying(api, tmp_path) as applier:
        assert (osies(api), applier.problems) == (["a", "b", "c"], [])


async def test_file_that_changes_comes_or_goes_is_seen_while_something_is_refused(api, write, tmp_path) -> None:
    write("a")
    bad = write("bad", "half: {")
    async with applying(api, tmp_path) as applier:
        write("new")
        write("bad", json.dumps(objects.osie("good")))
        await until(lambda: osies(api) == ["a", "good", "new"])
        assert not applier.problems
        write("later")
        await elapse(MAX_PAUSE_SECONDS)
        assert "later" not in osies(api), "nothing is refused: the directory is looked at on SIGHUP"
        assert applier.reread()
        await until(lambda: "later" in osies(api))
        write("bad", "half: {")
        applier.reread()
        await until(lambda: bool(applier.problems))
        bad.unlink()
        await until(lambda: not applier.problems)


async def test_file_that_may_be_half_written_is_read_again_when_it_is_whole(api, write, tmp_path) -> None:
    whole = json.dumps(objects.osie("b"))
    write("a", json.dumps(objects.osie("a")), age=YOUNG_SECONDS / 2)
    async with applying(api, tmp_path):
        write("a", json.dumps(objects.osie("a")) + "\n---\n" + whole)
        await until(lambda: osies(api) == ["a", "b"])


async def test_directory_or_file_that_can_not_be_read_is_read_later(api, write, tmp_path, monkeypatch) -> None:
    write("a"), write("b")
    original, broken = Path.read_text, {"a.yaml"}

    def read_text(path: Path, *args: Any, **kwargs: Any) -> str:
        if path.name in broken:
            raise PermissionError(13, "Permission denied")
        return original(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", read_text)
    async with applying(api, tmp_path) as applier:
        assert (osies(api), applier.problems) == (["b"], [f"{tmp_path}/a.yaml: Permission denied"])
        broken.clear()
        await until(lambda: osies(api) == ["a", "b"])
        assert not applier.problems
    async with applying(api, tmp_path / "absent") as applier:
        assert applier.problems == [f"{tmp_path}/absent: No such file or directory"]


async def test_definitions_that_a_full_disk_refuses_wait_and_are_applied_when_it_has_room(
    api, tmp_path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    refusal = "the disk is full"
    definitions = generate()
    for each in definitions:
        each["metadata"]["labels"] = {"release": "next"}
    api.fail("patch", *(ApiError(500, "InternalError", refusal) for _ in definitions))
    applier = ManifestApplier(api, lambda: refusal, None)
    await applier.apply_own(definitions, [])
    assert applier.own
    assert [record.levelname for record in caplog.records] == ["INFO"], "the store has logged why"
    task = asyncio.create_task(applier.apply_own_later())
    await elapse(60)
    assert not task.done()
    refusal = ""
    api.fail("patch", ApiError(500, "InternalError", "not now"))
    await until(lambda: len(applier.problems) == 1)
    await until(task.done)
    assert (applier.own, applier.problems) == ([], [])
    stored = [each for each in api.objects(CRD) if each["metadata"].get("labels") == {"release": "next"}]
    assert len(stored) == len(definitions)


async def test_start_goes_on_when_the_definition_of_another_program_is_in_the_way(
    api, caplog: pytest.LogCaptureFixture
) -> None:
    machines, *others = generate_bmc()
    rufio = api.read(CRD, machines["metadata"]["name"], "")
    api.put(rufio | {"status": rufio["status"] | {"storedVersions": ["v1alpha1", "v1alpha2"]}})
    applier = ManifestApplier(api, str, None)
    await applier.apply_own(generate(), [machines, *others])
    assert applier.own == [machines]
    (problem,) = applier.problems
    assert "machines.bmc.tinkerbell.org" in problem
    assert "status.storedVersions[1]" in problem
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    api.put(rufio)
    task = asyncio.create_task(applier.apply_own_later())
    await until(task.done)
    assert (applier.own, applier.problems) == ([], [])


@pytest.mark.parametrize("version", ["v1alpha1", "v1alpha2"])
async def test_start_waits_until_the_informer_has_the_object_in_whichever_version_it_was_written(
    write: Callable[..., Path], tmp_path: Path, version: str
) -> None:
    api = InProcessApi(serve_v1alpha1=True)
    informer = api.informer(HARDWARE)
    spec = {"interfaces": [{"dhcp": {"mac": objects.MAC}}]} if version == "v1alpha1" else objects.hardware()["spec"]
    metadata = {"name": "m", "namespace": "default"}
    obj = {"apiVersion": f"tinkerbell.org/{version}", "kind": "Hardware", "metadata": metadata, "spec": spec}
    write("m", json.dumps(obj))
    applier = ManifestApplier(api, str, tmp_path, clock=lambda: NOW)  # type: ignore[arg-type]
    await applier.apply_definitions()
    informer.hold()
    waiting = asyncio.create_task(applier.apply_and_wait({HARDWARE: informer}))
    await elapse(1)
    assert not waiting.done()
    informer.release()
    await waiting
    assert informer.get("default", "m") is not None
