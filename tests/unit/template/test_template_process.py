"""Templates in a child process: the same results as in this process, bounds for each, and turns for namespaces."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.support import objects
from tests.support.virtual_time import turns
from tests.waiting import until
from tink.api.v1alpha2 import Raw
from tink.template import TemplateError, parse_fields
from tink.template_process import SMALL_BYTES, BusyError, TemplateProcess, TemplateProcessError
from tink.versions import NEW, OLD, convert
from tink.versions.rendering import render_template

FILLING = "x" * SMALL_BYTES


def template(*args: str, image: str = "i") -> Raw:
    return {"spec": {"actions": [{"name": "a", "image": image, "args": [*args, FILLING]}]}}


@pytest.fixture
def process() -> Iterator[TemplateProcess]:
    made = TemplateProcess()
    yield made
    made.close()


async def test_child_finds_the_errors_that_are_found_here(process: TemplateProcess) -> None:
    wrong = template("{{ .A }}", "a\nb {{ nosuch }}", "{{ end }}", image="{{ .X")
    found = await process.parse("d", wrong)
    here = parse_fields(wrong)
    assert [(str(each), each.name, each.line, each.column) for each in found] == [
        (str(each), each.name, each.line, each.column) for each in here
    ]
    assert len(found) == 3


async def test_no_child_is_started_for_small_templates_and_those_without_actions(process: TemplateProcess) -> None:
    assert await process.parse("d", {"spec": {"actions": [{"image": "{{ .X }}"}]}}) == []
    assert await process.parse("d", template("x" * 100_000)) == []
    with pytest.raises(TemplateError, match="spec"):
        await process.parse("d", {"spec": ["x" * 1000]})
    assert process.pid is None


async def test_child_renders_the_same_as_this_process(process: TemplateProcess) -> None:
    given = template("{{ .greeting }} {{ .Hardware.metadata | default `none` }}", "\u00e9 \U0001f600")
    hardware: Raw = {"metadata": {"name": "h", "namespace": "d"}, "spec": {}}
    rendered: list[Any] = []
    for render in (render_template, process.render_template):
        try:
            rendered.append(render(given, hardware, {"greeting": "hello"}))
        except TemplateError as error:
            rendered.append((str(error), error.name, error.line, error.column))
    assert rendered[0] == rendered[1]


async def test_child_renders_the_text_of_a_v1alpha1_template(process: TemplateProcess) -> None:
    action = {
        "name": "a",
        "image": "i",
        "environment": {"DISK": "{{ index .Hardware.Disks 0 }}", "W": "{{ .device_1 }}"},
    }
    task = {"name": "t", "actions": [action]}
    text = yaml.safe_dump({"version": "0.1", "name": "t", "global_timeout": 9, "tasks": [task]})
    old = {"apiVersion": OLD, "kind": "Template", "metadata": {"name": "t"}, "spec": {"data": text}}
    hardware = objects.hardware("h", storageDevices=["/dev/sda"])
    rendered = process.render_template(convert(old, NEW), hardware, {"device_1": "mac"})
    assert rendered.actions == [{"name": "a", "image": "i", "env": {"DISK": "/dev/sda", "W": "mac"}}]
    assert rendered.timeout == 9


async def test_template_that_takes_too_long_is_refused_and_the_child_goes_on() -> None:
    process = TemplateProcess(cpu_seconds=0.05)
    try:
        with pytest.raises(TemplateError, match=r"takes more than 0\.05 s of CPU time: make it smaller"):
            await process.parse("d", template(*("{{ printf " + " 1" * 50_000 + " }}" for _ in range(20))))
        assert await process.parse("d", template("{{ .A }}")) == []
    finally:
        process.close()


async def test_child_that_was_killed_is_replaced(process: TemplateProcess) -> None:
    assert await process.parse("d", template("{{ .A }}")) == []
    first = process.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert await process.parse("d", template("{{ .A }}")) == []
    assert process.pid != first


async def test_idle_child_ends() -> None:
    process = TemplateProcess(idle_seconds=0.05)
    try:
        await process.parse("d", template("{{ .A }}"))
        await until(lambda: process.pid is None)
        assert await process.parse("d", template("{{ .A }}")) == []
    finally:
        process.close()


async def test_namespaces_take_turns_and_each_has_few_templates_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    process = TemplateProcess(busy_seconds=0)
    served: list[str] = []
    gate = asyncio.Event()

    async def parsed(_thread: Any, _call: Any, text: bytes) -> list[Any]:
        await gate.wait()
        served.append("b" if b"of b" in text else "a")
        return []

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "run_in_executor", parsed)
    many = [asyncio.create_task(process.parse("a", template("{{ .A }} of a"))) for _ in range(20)]
    await turns()
    other = asyncio.create_task(process.parse("b", template("{{ .A }} of b")))
    await turns()
    gate.set()
    results = await asyncio.gather(*many, return_exceptions=True)
    assert await other == []
    refused = [result for result in results if isinstance(result, BusyError)]
    assert len(refused) == 12
    assert str(refused[0]).startswith("8 Templates of namespace a wait to be parsed")
    assert served.index("b") <= 2, "another's Template waits for one of them"
    process.close()


async def test_close_aborts_the_work_of_the_child() -> None:
    process = TemplateProcess()
    long = template(*("{{ printf " + " 1" * 50_000 + " }}" for _ in range(60)))
    tasks = [asyncio.create_task(process.parse("d", long))]
    await until(lambda: process.pid is not None)
    process.close()
    with pytest.raises(TemplateProcessError, match=r"this program is stopping|pipe"):
        await tasks[0]
    assert process.pid is None
