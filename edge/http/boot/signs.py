"""Signs of life from where a machine is on its own: `/sign/starting`, from iPXE, and `/sign/up`, from the OSIE.

iPXE asks for the first right before it starts the kernel, and says which model it runs on; the OSIE asks for the second
when it has its address. What lies between tells a kernel that never ran from one that found no network card. If
the kernel does not start, and iPXE goes on, it asks for `/sign/failed`: under Secure Boot, mostly. Nothing
depends on the answer, and neither waits for it for long.

iPXE also says how much memory SMBIOS knows of: of the first two Memory Array Mapped Addresses (type 19) the eight bytes
from offset 4 on, which are where each begins and ends, in KiB (DMTF DSP0134, section 7.20). And what time it is by the
machine's clock, in seconds since the epoch, which iPXE writes with 0x: its OSIE will believe that clock when it is
shown a certificate.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Callable

from aiohttp import web

from edge.callers import Caller
from edge.http.context import Context, text
from edge.http.routes import Route
from edge.journey.events import Outcome, Step, Value
from edge.journey.steps import NOT_STARTED, STARTING, UP
from tink.printable import printable

_MOST = 80
"""Characters of what a machine says of itself."""
_TOLD = {"model": "model", "uuid": "uuid"}
_RANGE = re.compile(r"[0-9a-f]{16}")
_SECONDS = re.compile(r"0x[0-9a-f]{1,16}|[0-9]{1,10}")
_ELSEWHERE = 0xFFFFFFFF
"""An end that is too far for these fields."""
_MESSAGES = {
    STARTING: "iPXE starts the kernel",
    NOT_STARTED: "iPXE could not start the kernel: its screen says why. Where Secure Boot is on, the kernel of the "
    "OSIE must be signed by a key that the firmware trusts",
    UP: "the OSIE is up",
}


class Signs:
    """The handler of both."""

    def __init__(self, context: Context, clock: Callable[[], float] = time.time) -> None:
        """`clock` gives seconds since the epoch."""
        self._context = context
        self._clock = clock

    async def sign(self, request: web.Request, route: Route, caller: Caller) -> web.StreamResponse:
        """GET, HEAD."""
        decision = self._context.policy.decide(caller.machine)
        if caller.mac is None or not decision.allowed:
            return self._context.refuse_caller(caller, f"sign {route.name}", status=403, step=Step.BOOT)
        if request.method == "GET":
            detail: dict[str, Value] = {"phase": route.name}
            for name, key in _TOLD.items():
                if given := _words(request.query.get(name, "")):
                    detail[key] = given
            if memory := _memory(request.query.get("memory", ""), request.query.get("above", "")):
                detail["memory_bytes"] = memory
            if _SECONDS.fullmatch(told := request.query.get("clock", "")):
                detail["clock_ahead_seconds"] = round(int(told, 0 if told.startswith("0x") else 10) - self._clock())
            outcome = Outcome.FAILED if route.name == NOT_STARTED else Outcome.INFO
            self._context.record(caller.mac, Step.BOOT, outcome, _MESSAGES[route.name], **detail)
        return text("ok")


def _words(text: str) -> str:
    return " ".join(printable(text[: 2 * _MOST], " ").split())[:_MOST]


def _memory(*ranges: str) -> int:
    """The bytes in these ranges, each as iPXE spells it; 0: it can't be given."""
    total = 0
    for each in filter(None, ranges):
        if _RANGE.fullmatch(each) is None:
            return 0
        begin, end = struct.unpack("<II", bytes.fromhex(each))
        if end == _ELSEWHERE or end < begin:
            return 0
        total += end - begin + 1
    return total << 10
