"""Fake BMCs as a process: `python -m tests.interop.fake_bmc STATE...`, one BMC for each argument.

STATE is the power state at the start, and after commas the faults of the BMC (names of `Fault`), such as
`On,BOOT_IGNORED`. `POST=600`: the machine needs 600 s from its start to its boot. `PORT=443`, `USER=admin` and
`PASSWORD=secret` set the port and the account.

Each BMC listens on 127.0.0.1, by default on a free port. The first lines are JSON with the `port` and `fingerprint` of
each BMC. Then each change of a BMC is a line with its `port`, `power`, `resets`, `boots`, `failed_logins`,
`open_sessions`, `writes` and `image`. `writes` are the bodies of the boot overrides; `image` is the medium in the CD
drive.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from typing import Any

from tests.support.bmc import PASSWORD, USER, FakeBmc, Fault, serve

_SHOWN = ("power", "resets", "boots", "failed_logins", "open_sessions")
_FAULT_SECONDS = 2.0
"""Duration of the faults that last a while."""


def _bmc(state: str) -> tuple[FakeBmc, int]:
    """Return a BMC and its port."""
    power, *words = state.split(",")
    settings = dict(word.split("=", 1) for word in words if "=" in word)
    faults = [Fault[word] for word in words if "=" not in word]
    bmc = FakeBmc(
        power=power,
        power_seconds=0.5,
        post_seconds=float(settings.get("POST", 0)),
        accounts={settings.get("USER", USER): settings.get("PASSWORD", PASSWORD)},
        faults=faults,
        fault_seconds=_FAULT_SECONDS,
    )
    return bmc, int(settings.get("PORT", 0))


def _shown(bmc: FakeBmc) -> dict[str, Any]:
    overrides = [body["Boot"] for _, _, body in bmc.writes() if "Boot" in body]
    return {name: getattr(bmc, name) for name in _SHOWN} | {"writes": overrides, "image": bmc.slots[0].image}


async def main(states: list[str]) -> None:
    """Serve until the process is ended."""
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as exits:
        bmcs = {}
        for bmc, port in map(_bmc, states):
            served = await exits.enter_async_context(serve(bmc, port=port))
            print(json.dumps({"port": served.port, "fingerprint": served.certificate.fingerprint}), flush=True)
            bmcs[served.port] = bmc
        before: dict[int, str] = {}
        while True:
            for port, bmc in bmcs.items():
                bmc.run_until(loop.time())
                state = json.dumps({"port": port} | _shown(bmc))
                if state != before.get(port):
                    print(state, flush=True)
                before[port] = state
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
