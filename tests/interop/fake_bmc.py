"""A fake BMC as a process: `python -m tests.interop.fake_bmc POWER`.

It listens on a free port of 127.0.0.1. Its first line is JSON with `port` and `fingerprint`; then each second a line
with `power`, `resets`, `boots`, `failed_logins` and `open_sessions`, if one of them has changed.
"""

from __future__ import annotations

import asyncio
import json
import sys

from tests.support.bmc import FakeBmc, serve


async def main(power: str) -> None:
    """Serve until the process is ended."""
    bmc = FakeBmc(power=power, power_seconds=0.5)
    loop = asyncio.get_running_loop()
    async with serve(bmc) as served:
        print(json.dumps({"port": served.port, "fingerprint": served.certificate.fingerprint}), flush=True)
        before = ""
        while True:
            bmc.run_until(loop.time())
            names = ("power", "resets", "boots", "failed_logins", "open_sessions")
            state = json.dumps({name: getattr(bmc, name) for name in names})
            if state != before:
                print(state, flush=True)
            before = state
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
