"""The skeleton of controllers: each key comes again when it is due, and no mistake about one stops the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from tests.support.virtual_time import elapse
from tink.kube.client import ApiError, ConflictError
from tink.kube.metrics import ControllerMetrics
from tink.kube.objects import NamespacedName
from tink.kube.runtime import DONE, Controller, LeadershipLostError, Result
from tink.kube.runtime.controller import Reconcile

pytestmark = pytest.mark.looptime
A, B = NamespacedName("d", "a"), NamespacedName("d", "b")


@asynccontextmanager
async def running(reconcile: Reconcile, **options: object) -> AsyncIterator[Controller]:
    controller = Controller("Thing", reconcile, retry_first=0.001, retry_longest=0.002, **options)  # type: ignore[arg-type]
    task = asyncio.create_task(controller.run())
    try:
        yield controller
    finally:
        assert not task.done(), task.exception()
        task.cancel()
        await asyncio.wait([task])
        controller.queue.shut_down()


async def test_a_key_comes_again_when_its_time_has_come_and_not_after_that() -> None:
    looks: list[NamespacedName] = []

    async def reconcile(key: NamespacedName) -> Result:
        looks.append(key)
        return Result(requeue_after=0.001) if looks.count(key) < 3 else DONE

    async with running(reconcile) as controller:
        controller.queue.add(A)
        await elapse(10)
    assert looks == [A, A, A]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError("a mistake of ours"), "Thing d/a: trying again in"),
        (ApiError(500, "InternalError", "oh"), "Thing d/a: oh (InternalError, 500); trying again in"),
        (ConflictError(409, "Conflict", "changed"), None),
        (LeadershipLostError(), None),
    ],
)
async def test_failed_key_is_retried_and_others_go_on(error, line, caplog) -> None:
    looks: list[NamespacedName] = []

    async def reconcile(key: NamespacedName) -> Result:
        looks.append(key)
        if key == A and looks.count(A) < 3:
            raise error
        return DONE

    async with running(reconcile) as controller:
        controller.queue.add(A)
        controller.queue.add(B)
        await elapse(1)
        assert looks.count(A) == 3
        assert B in looks
        assert controller.queue.num_requeues(A) == 0, "it went well in the end"
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [line is not None and warning.startswith(line) for warning in warnings] == [True] * (2 if line else 0)


async def test_error_handled_by_on_error_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    said: list[tuple[NamespacedName, str]] = []

    async def reconcile(key: NamespacedName) -> Result:
        if not said:
            raise RuntimeError("no")
        return DONE

    def on_error(key: NamespacedName, error: Exception, delay: float) -> bool:
        assert delay > 0
        said.append((key, str(error)))
        return True

    async with running(reconcile, on_error=on_error) as controller:
        controller.queue.add(A)
        await elapse(1)
        assert controller.queue.num_requeues(A) == 0
    assert said == [(A, "no")]
    assert caplog.records == []


async def test_interrupted_key_is_reconciled_again_by_the_next_run() -> None:
    begun, finished = asyncio.Event(), asyncio.Event()

    async def reconcile(_: NamespacedName) -> Result:
        if begun.is_set():
            finished.set()
            return DONE
        begun.set()
        return await asyncio.Future()

    controller = Controller("Thing", reconcile, retry_first=1, retry_longest=1)
    controller.queue.add(A)
    for event in (begun, finished):
        task = asyncio.create_task(controller.run())
        await event.wait()
        task.cancel()
        await asyncio.wait([task])


async def test_low_priority_keys_leave_workers_free_for_new_ones() -> None:
    looks: list[NamespacedName] = []

    async def reconcile(key: NamespacedName) -> Result:
        looks.append(key)
        return DONE if key == B else await asyncio.Future()

    async with running(reconcile, workers=3, low_priority_workers=1) as controller:
        for number in range(5):
            controller.queue.add(NamespacedName("d", f"troubled{number}"), low_priority=True)
        await elapse(1)
        controller.queue.add(B)
        await elapse(1)
    assert len(looks) == 2
    assert B in looks


async def test_reconciles_are_counted_by_result() -> None:
    ended: list[NamespacedName] = []

    async def reconcile(key: NamespacedName) -> Result:
        ended.append(key)
        if ended.count(key) == 1:
            raise ApiError(500, "InternalError", "out of order")
        return Result(requeue_after=60.0) if key == A else DONE

    registry = CollectorRegistry()
    async with running(reconcile, workers=3) as controller:
        registry.register(ControllerMetrics({"thing": controller}))
        controller.queue.add(A)
        controller.queue.add(B)
        await elapse(1)
        assert len(ended) == 4

        def value(name: str, **labels: str) -> float | None:
            return registry.get_sample_value(f"controller_runtime_{name}", {"controller": "thing", **labels})

        found = {result: value("reconcile_total", result=result) for result in ("success", "error", "requeue_after")}
        assert found == {"success": 1, "error": 2, "requeue_after": 1}
        assert value("reconcile_errors_total") == 2
        assert value("reconcile_time_seconds_count") == 4
        assert (value("max_concurrent_reconciles"), value("active_workers")) == (3, 0)
    assert registry.get_sample_value("workqueue_retries_total", {"name": "thing"}) == 2
