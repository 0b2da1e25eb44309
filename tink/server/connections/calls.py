"""Limits the number of calls at once, counts all calls, and rejects messages that can't be parsed.

One address can fill its own share of the calls and no more, so others are still served. Loopback has no share, because
the clients on this host belong to the operator. gRPC itself limits calls earlier (`options`), and the guard, which is
notified of each call here, limits connections.

Every method is registered as one that takes a stream of bytes. So this program sees a call as soon as it begins, and
not only when its message has arrived, which may be never. It also parses the messages itself, so that garbage gets an
answer and causes no error in the log. A call of an unknown method counts like any other.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio

from tink.limits import LimitedLog
from tink.metrics import Histograms
from tink.net.addresses import is_loopback
from tink.server.connections.guard import Guard
from tink.server.peer import peer_address

Method = tuple[str, str, str]
"""Kind, full name of the service, and name: `unary`, ..., `PublishEvent`."""

UNKNOWN: Final[Method] = ("unary", "unknown", "unknown")
"""Counts all unknown methods. Their names are not used, because callers choose them."""

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds in seconds, as in gRPC's interceptors for Prometheus."""
_CODES: Final = {
    code.value[0]: "".join(part.capitalize() for part in code.name.split("_"))
    for code in grpc.StatusCode
    if code not in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED)
} | {0: "OK", 1: "Canceled"}
"""The codes in Go's spelling, which the metrics use."""


class CallCounts:
    """Counts calls by method and result. `clock` gives monotonic seconds.

    `held` are methods (/SERVICE/METHOD) that keep their caller waiting, so they have no duration.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, held: Collection[str] = ()) -> None:
        self._clock = clock
        self._held = frozenset(held)
        self.started: Counter[Method] = Counter()
        self.handled: Counter[tuple[str, str, str, str]] = Counter()
        """The number of calls by method and code."""
        self.seconds = Histograms(_BUCKETS)

    @contextmanager
    def counted(self, method: Method, context: grpc.aio.ServicerContext[Any, Any]) -> Iterator[None]:
        """Count a call, which is the body of this context. Streams and held calls have no duration: they last as long
        as their agent is connected."""
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
            if not code:
                given: Any = context.code()  # a number if the handler has set no code, otherwise an enum member
                number = given.value[0] if isinstance(given, grpc.StatusCode) else int(given or 0)
                code = _CODES.get(number, "Unknown")
            self.handled[(*method, code)] += 1
            if method[0] == "unary" and f"/{method[1]}/{method[2]}" not in self._held:
                self.seconds[method].observe(self._clock() - begun)


def method_of(name: str, handler: grpc.RpcMethodHandler[Any, Any]) -> Method:
    """Return the method of a path (/SERVICE/METHOD)."""
    service, _, method = name.lstrip("/").partition("/")
    kind = {(False, False): "unary", (True, False): "client_stream", (False, True): "server_stream"}
    return kind.get((handler.request_streaming, handler.response_streaming), "bidi_stream"), service, method


log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]

_FIRST_MESSAGE_SECONDS: Final = 10.0
"""Time until the first message of a call."""


class _FullError(Exception):
    """There is no room for one more call. The message is for the caller."""


class ConcurrencyLimiter(grpc.aio.ServerInterceptor):
    """Admits `in_all` calls at once, `per_address` of them from one address. `clock` gives monotonic seconds.

    busy: services whose calls only agents can keep open for long.
    held: unary methods (/SERVICE/METHOD) whose answer may take long.
    unknown: called with address and method for each call of an unknown method.
    """

    def __init__(
        self,
        in_all: int,
        per_address: int,
        guard: Guard,
        clock: Callable[[], float],
        *,
        busy: Sequence[str] = (),
        held: Sequence[str] = (),
        unknown: Callable[[str, str], None] = lambda _address, _method: None,
    ) -> None:
        self._in_all = in_all
        self._per_address = per_address
        self._guard = guard
        self._busy = tuple(f"/{service}/" for service in busy)
        self._calls = 0
        self._by_address: Counter[str] = Counter()
        self._handlers: dict[str, Handler] = {}
        self._unknown = unknown
        self._log = LimitedLog(log, clock, capacity=100)
        self.counts = CallCounts(clock, held)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Return the handler of a call, with the limits around it."""
        method = str(handler_call_details.method)
        known = self._handlers.get(method)
        if known is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return self._unserved(method)  # not cached: callers can invent any number of names
            known = self._handlers[method] = self._bounded(
                handler, method_of(method, handler), busy=method.startswith(self._busy)
            )
        return known

    @contextmanager
    def _place(self, context: Context, *, busy: bool = False) -> Iterator[None]:
        """Take a place for one call. Raises _FullError."""
        peer = context.peer()
        address, has_place = peer_address(peer), False
        try:
            why = self._guard.begun(peer, busy=busy)
            if why:
                raise _FullError(f"this connection is ended: {why}")
            self._check_limits(address)
            has_place = True
            self._calls += 1
            self._by_address[address] += 1
            yield
        except asyncio.CancelledError:
            self._guard.aborted(peer)
            raise
        finally:
            if has_place:
                self._calls -= 1
                self._by_address[address] -= 1
                if not self._by_address[address]:
                    del self._by_address[address]
            self._guard.ended(peer, busy=busy)

    def _check_limits(self, address: str) -> None:
        """Raise _FullError if no place is left for one more call from this address."""
        if self._calls >= self._in_all:
            text = "gRPC server: %d calls, which is all that this server serves at once: others must wait"
            self._log.warning(text, self._calls, key="all")
            raise _FullError("the server serves as many calls as it can: try again later")
        if self._by_address[address] >= self._per_address and not is_loopback(address):
            text = "gRPC server: %s has %d calls open: no more of them are served"
            self._log.warning(text, address, self._per_address, key=address)
            raise _FullError(f"{address} has {self._per_address} calls open already, which is all that one address may")

    def _unserved(self, method: str) -> Handler:
        """Return a handler that rejects calls of an unknown method."""

        async def refuse(_: AsyncIterator[bytes], context: Context) -> Any:
            with self.counts.counted(UNKNOWN, context):
                try:
                    with self._place(context):
                        self._unknown(peer_address(context.peer()), method)
                        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such method")
                except _FullError as full:
                    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(full))

        handler: Handler = grpc.stream_unary_rpc_method_handler(refuse)
        return handler

    def _bounded(self, handler: Handler, method: Method, *, busy: bool) -> Handler:
        """Return the same method, but it takes a stream of bytes and respects the limits."""
        kinds = [
            "stream" if streaming else "unary" for streaming in (handler.request_streaming, handler.response_streaming)
        ]
        behaviour: Any = getattr(handler, "_".join(kinds))
        read = handler.request_deserializer or (lambda raw: raw)

        async def argument(raw: AsyncIterator[bytes], context: Context) -> Any:
            if handler.request_streaming:
                return self._messages(raw, read, context)
            message = await self._first(raw, context)
            if message is None:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a call without a message")
            return await _message(message, read, context)

        async def answer(raw: AsyncIterator[bytes], context: Context) -> Any:
            with self.counts.counted(method, context):
                try:
                    with self._place(context, busy=busy):
                        return await behaviour(await argument(raw, context), context)
                except _FullError as full:
                    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(full))

        async def answers(raw: AsyncIterator[bytes], context: Context) -> AsyncIterator[Any]:
            with self.counts.counted(method, context):
                try:
                    with self._place(context, busy=busy):
                        async for each in behaviour(await argument(raw, context), context):
                            yield each
                except _FullError as full:
                    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(full))

        wrapped = answers if inspect.isasyncgenfunction(behaviour) else answer
        streams = handler.response_streaming
        make: Any = grpc.stream_stream_rpc_method_handler if streams else grpc.stream_unary_rpc_method_handler
        made: Handler = make(wrapped, request_deserializer=None, response_serializer=handler.response_serializer)
        return made

    async def _messages(
        self, raw: AsyncIterator[bytes], read: Callable[[bytes], Any], context: Context
    ) -> AsyncIterator[Any]:
        """Yield the parsed messages. Abort the call if one can't be parsed, none arrives, or there are too many."""
        message = await self._first(raw, context)
        if message is None:
            return
        yield await _message(message, read, context)
        peer = context.peer()
        async for message in raw:
            await self._count(peer, message, context, first=False)
            yield await _message(message, read, context)

    async def _first(self, raw: AsyncIterator[bytes], context: Context) -> bytes | None:
        """Return the bytes of the first message; None if the call has none. Abort the call as `_messages` does."""
        try:
            async with asyncio.timeout(_FIRST_MESSAGE_SECONDS):
                message = await anext(raw)
        except StopAsyncIteration:
            return None
        except TimeoutError:
            why = f"no message came within {_FIRST_MESSAGE_SECONDS:g} s"
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, why)
        await self._count(context.peer(), message, context, first=True)
        return message

    async def _count(self, peer: str, message: bytes, context: Context, *, first: bool) -> None:
        why = self._guard.message(peer, len(message), first=first)
        if why:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"this connection is ended: {why}")


async def _message(raw: bytes, read: Callable[[bytes], Any], context: Context) -> Any:
    try:
        return read(raw)
    except Exception as error:  # protobuf's implementations raise different exceptions
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the message can't be read: {str(error)[:200]}")
