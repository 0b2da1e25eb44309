"""Stages that work at the same time: each runs ahead of the next in a thread, by a bounded number of chunks."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Final

CHUNKS: Final = 8
"""That wait between two stages: some MiB each at most."""


class _End:
    """The marker for the end of the chunks, with the error that ended them, if any."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def ahead(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the same chunks, read ahead by a thread. Raises their errors. The thread ends with the reader."""
    waiting: queue.Queue[bytes | _End] = queue.Queue(CHUNKS)
    stopped = threading.Event()

    def put(one: bytes | _End) -> None:
        while not stopped.is_set():
            try:
                waiting.put(one, timeout=0.5)
            except queue.Full:
                continue
            return

    def run() -> None:
        error: BaseException | None = None
        try:
            for chunk in chunks:
                put(chunk)
                if stopped.is_set():
                    return
        except BaseException as caught:  # raised where the chunks are read
            error = caught
        put(_End(error))

    threading.Thread(target=run, daemon=True).start()
    try:
        while not isinstance(one := waiting.get(), _End):
            yield one
        if one.error is not None:
            raise one.error
    finally:
        stopped.set()
