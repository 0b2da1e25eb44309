"""What a thousand agents cost that have nothing to do: older ones about as much as those of today (2.7 s of processor
time a minute to 2.2 s, when each poll was held for 240 s; 5.0 s with 50 s). A busy machine hardly changes it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.unit.server.conftest import Rig
from tink.server.agents.auth import AgentAuth
from tink.server.older.polls import HOLD_SECONDS

AGENTS = 1000
WINDOW_SECONDS = HOLD_SECONDS + 5
SETTLE_SECONDS = 5.0


@asynccontextmanager
async def idle(kind: str, port: int) -> AsyncIterator[None]:
    command = (sys.executable, "-m", "tests.unit.server.older.idle_agents", kind, str(port), str(AGENTS))
    pipe = asyncio.subprocess.PIPE
    agents = await asyncio.create_subprocess_exec(*command, stdout=pipe)
    assert agents.stdout is not None
    try:
        assert await asyncio.wait_for(agents.stdout.readline(), 120) == b"connected\n"
        yield
        assert agents.returncode is None, "agents have ended"
    finally:
        with contextlib.suppress(ProcessLookupError):
            agents.kill()
        await agents.wait()


async def cost(kind: str) -> float:
    """Of the server, in seconds of processor time a minute."""
    rig = Rig()
    await rig.start(agent_auth=AgentAuth.NONE)
    for number in range(AGENTS):
        rig.machine(f"m{number}", f"52:54:00:{number.to_bytes(3, 'big').hex(':')}")
    try:
        async with idle(kind, rig.server.port):
            await asyncio.sleep(SETTLE_SECONDS)
            begun, since = time.process_time(), time.monotonic()
            await asyncio.sleep(WINDOW_SECONDS)
            return 60 * (time.process_time() - begun) / (time.monotonic() - since)
    finally:
        await rig.close()


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_a_thousand_idle_older_agents_cost_about_what_a_thousand_of_todays_do() -> None:
    todays, older = await cost("todays"), await cost("older")
    print(f"{AGENTS} idle agents: today's {todays:.2f} s of processor time a minute, older ones {older:.2f} s")
    assert older <= todays * 1.5
