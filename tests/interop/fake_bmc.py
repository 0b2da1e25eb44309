"""A fake BMC as a process: `python -m tests.interop.fake_bmc POWER`.

It listens on a free port of 127.0.0.1. Its first line is JSON with `port` and `fingerprint`; then each second a line
with `power`, `resets`, `boots`, `failed_logins`, `open_sessions`, `writes` and `image`, if one of them has changed.
`writes` are the bodies of the boot overrides; `image` is the medium in the CD drive.
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
            overrides = [body["Boot"] for _, _, body in bmc.writes() if "Boot" in body]
            more = {"writes": overrides, "image": bmc.slots[0].image}
            state = json.dumps({name: getattr(bmc, name) for name in names} | more)
            if state != before:
                print(state, flush=True)
            before = state
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
