"""How many calls there were, of which method, how each ended, and how long those took that are one question."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final

import grpc
import grpc.aio

from tink.metrics import Histograms

Method = tuple[str, str, str]
"""Kind, full name of the service, and name: `unary`, ..., `PublishEvent`."""

UNKNOWN: Final[Method] = ("unary", "unknown", "unknown")
"""All methods that nobody serves: their names are the callers'."""

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds in seconds, those of gRPC's interceptors for Prometheus."""
_CODES: Final = {
    code.value[0]: "".join(part.capitalize() for part in code.name.split("_"))
    for code in grpc.StatusCode
    if code not in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED)
} | {0: "OK", 1: "Canceled"}
"""As Go spells them, whose names the metrics have."""


class CallCounts:
    """`clock` gives monotonic seconds. `held` are methods (/SERVICE/METHOD) that keep their caller waiting."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, held: Collection[str] = ()) -> None:
        self._clock = clock
        self._held = frozenset(held)
        self.started: Counter[Method] = Counter()
        self.handled: Counter[tuple[str, str, str, str]] = Counter()
        """By method and code."""
        self.seconds = Histograms(_BUCKETS)

    @contextmanager
    def counted(self, method: Method, context: grpc.aio.ServicerContext[Any, Any]) -> Iterator[None]:
        """Around all that is done for a call. A stream has no duration: it is as long as its agent is there, as is a
        call that is held."""
        self.started[method] += 1
        begun, code = self._clock(), ""
        try:
            yield
        except asyncio.CancelledError:
            code = "Canceled"
            raise
        except grpc.aio.AbortError:
            raise
        except Exception:
            code = "Unknown"
            raise
        finally:
            self.handled[(*method, code or _spelled(context.code()))] += 1
            if method[0] == "unary" and f"/{method[1]}/{method[2]}" not in self._held:
                self.seconds[method].observe(self._clock() - begun)


def method_of(name: str, handler: grpc.RpcMethodHandler[Any, Any]) -> Method:
    """Of a method by its path, /SERVICE/METHOD."""
    service, _, method = name.lstrip("/").partition("/")
    kind = {(False, False): "unary", (True, False): "client_stream", (False, True): "server_stream"}
    return kind.get((handler.request_streaming, handler.response_streaming), "bidi_stream"), service, method


def _spelled(code: Any) -> str:
    """gRPC's own has a number where a handler has set nothing, else its enumeration."""
    return _CODES.get(code.value[0] if isinstance(code, grpc.StatusCode) else int(code or 0), "Unknown")
