"""Large requests wait in turns: one namespace delays another one by at most one piece of work."""

import asyncio
import threading

from tests.support.virtual_time import turns
from tink.offload import LARGE, YAML_WEIGHT, flow, offload, weight


async def test_small_work_is_done_on_the_event_loop_and_large_work_in_one_thread():
    here = threading.current_thread().name
    assert await offload(LARGE, lambda: threading.current_thread().name) == here
    assert (await offload(LARGE + 1, lambda: threading.current_thread().name)).startswith("large")


async def test_namespaces_take_turns():
    begun = []
    gate = threading.Event()

    async def work(namespace):
        flow.set(namespace)

        def large():
            begun.append(namespace)
            gate.wait()

        await offload(LARGE + 1, large)

    tasks = [asyncio.create_task(work("a")) for _ in range(10)]
    await turns()
    tasks.append(asyncio.create_task(work("b")))
    await turns()
    gate.set()
    await asyncio.gather(*tasks)
    assert len(begun) == 11
    assert begun.index("b") <= 2


def test_yaml_weighs_more_than_json_and_aliases_are_always_large():
    assert weight(b'{"a": "*"}') == len(b'{"a": "*"}')
    assert weight(b"a: 1") == 4 * YAML_WEIGHT
    assert weight(b"a: &x 1\nb: *x") > LARGE
