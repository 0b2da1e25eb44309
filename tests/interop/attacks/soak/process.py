"""Run `tinkedge` unchanged, with code inside that counts its objects by kind, its allocated blocks and its tasks.

    python -m tests.interop.attacks.soak.process SOCKET up --interface ...

The words after the socket are tinkedge's. SOAK_LEAK=1 makes it leak, to check that the soak test notices. A client of
the UNIX socket receives one line of JSON; if it sends `kinds\\n`, the line has the objects by kind, too. A separate
thread answers, so that counting does not change the counts.

Events live ten minutes here instead of an hour: until the first ones expire, they would look like a leak.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import socket
import sys
import threading
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

from edge.journey.recorder import Journey
from tink.kubeapi.apiserver import controllers

EVENT_LIFE = timedelta(minutes=10)
_KINDS = 400
_LEAK_EVERY = 0.01


class Leak:
    """One of what is never given back."""

    kept: ClassVar[list[Leak]] = []

    def __init__(self) -> None:
        self.memory = bytes(10_000)
        self.kept.append(self)


def leak() -> None:
    """Leak memory and descriptors until the process ends."""
    while True:
        for _ in range(20):
            Leak()
        os.open("/dev/null", os.O_RDONLY)
        time.sleep(_LEAK_EVERY)


class Inside:
    """Counts of the process's objects. `journey` and `loop` are None until the stack has created them."""

    def __init__(self) -> None:
        self.journey: Journey | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    def begin(self, path: Path) -> None:
        """Answer on a UNIX socket until the process ends."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        threading.Thread(target=self._answer, args=(listener,), daemon=True).start()

    def _answer(self, listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                wanted = connection.recv(16)
                connection.sendall(json.dumps(self._look(kinds=wanted == b"kinds\n")).encode() + b"\n")

    def _look(self, *, kinds: bool) -> dict[str, Any]:
        return {
            "kinds": _kinds() if kinds else {},
            "blocks": sys.getallocatedblocks(),
            "tasks": len(asyncio.all_tasks(self.loop)) if self.loop is not None else 0,
            "journey_bytes": self.journey.kept_bytes if self.journey is not None else 0,
        }


def _kinds() -> dict[str, int]:
    counts = Counter(map(type, gc.get_objects()))
    return {f"{kind.__module__}.{kind.__qualname__}": count for kind, count in counts.most_common(_KINDS)}


def main(path: Path, words: list[str]) -> None:
    inside = Inside()
    make = Journey.__init__

    def noted(journey: Journey, *arguments: Any, **options: Any) -> None:
        make(journey, *arguments, **options)
        inside.journey, inside.loop = journey, asyncio.get_running_loop()

    Journey.__init__ = noted  # type: ignore[method-assign]
    controllers.EVENT_LIFE = EVENT_LIFE
    inside.begin(path)
    if os.environ.get("SOAK_LEAK"):
        threading.Thread(target=leak, daemon=True).start()
    sys.argv = ["tinkedge", *words]
    from edge.cli import main as tinkedge

    tinkedge()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
