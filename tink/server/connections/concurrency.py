"""Between the network and every service: how many calls are served at once, and messages that are none.

One address may fill its own share, and no more: the others go on. Loopback has no share, for who is on this host is the
operator. What comes before a call is bounded by gRPC itself (handshakes in time, streams of a connection, calls that
wait, bytes of a message; `options`), and by the guard of its connections, who is told of each call here.

Every method is served as one that takes a stream, whatever it is: so a call is here as soon as it begins, and not when
its message has come, which may be never. A method that nobody serves is a call like any other.

What a stranger sends as a message is parsed here, so that garbage is answered, and is no error of ours in the log.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio

from tink.limits.log import LimitedLog
from tink.net.addresses import is_loopback
from tink.server.connections.calls import UNKNOWN, CallCounts, Method, method_of
from tink.server.connections.guard import Guard
from tink.server.peer import peer_address

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]

_FIRST_MESSAGE_SECONDS: Final = 10.0
"""Seconds that the first message of a call may take to come."""


class _FullError(Exception):
    """No room for one more call; the message is for the caller."""


class ConcurrencyLimiter(grpc.aio.ServerInterceptor):
    """Lets `in_all` calls in at once, `per_address` of them from one address. `clock` gives monotonic seconds.

    `busy` are the services whose calls only agents can have open for long, `held` the methods (/SERVICE/METHOD) of one
    answer that may be long in coming. `unknown(address, method)` is called for
    each call of a method that nobody serves.
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
        """The handler of a call, behind the bounds."""
        method = str(handler_call_details.method)
        known = self._handlers.get(method)
        if known is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return self._unserved(method)  # not kept by its name: their number has no bound
            known = self._handlers[method] = self._bounded(
                handler, method_of(method, handler), busy=method.startswith(self._busy)
            )
        return known

    @contextmanager
    def _place(self, context: Context, *, busy: bool = False) -> Iterator[None]:
        """A place for one call. Raises _FullError."""
        peer = context.peer()
        try:
            why = self._guard.begun(peer, busy=busy)
            if why:
                raise _FullError(f"this connection is ended: {why}")
            with self._share(peer_address(peer)):
                yield
        except asyncio.CancelledError:
            self._guard.aborted(peer)
            raise
        finally:
            self._guard.ended(peer, busy=busy)

    @contextmanager
    def _share(self, address: str) -> Iterator[None]:
        if self._calls >= self._in_all:
            text = "gRPC server: %d calls, which is all that this server serves at once: others must wait"
            self._log.warning(text, self._calls, key="all")
            raise _FullError("the server serves as many calls as it can: try again later")
        if self._by_address[address] >= self._per_address and not is_loopback(address):
            text = "gRPC server: %s has %d calls open: no more of them are served"
            self._log.warning(text, address, self._per_address, key=address)
            raise _FullError(f"{address} has {self._per_address} calls open already, which is all that one address may")
        self._calls += 1
        self._by_address[address] += 1
        try:
            yield
        finally:
            self._calls -= 1
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]

    def _unserved(self, method: str) -> Handler:
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
        """The same method, but it takes a stream of bytes."""
        name = ("stream" if handler.request_streaming else "unary") + (
            "_stream" if handler.response_streaming else "_unary"
        )
        behaviour: Any = getattr(handler, name)
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
        make: Any = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        made: Handler = make(wrapped, request_deserializer=None, response_serializer=handler.response_serializer)
        return made

    async def _messages(
        self, raw: AsyncIterator[bytes], read: Callable[[bytes], Any], context: Context
    ) -> AsyncIterator[Any]:
        """What comes in, parsed; ends the call where that can't be, where nothing comes, and where it is too much."""
        message = await self._first(raw, context)
        if message is None:
            return
        yield await _message(message, read, context)
        peer = context.peer()
        async for message in raw:
            await self._heard(peer, message, context, first=False)
            yield await _message(message, read, context)

    async def _first(self, raw: AsyncIterator[bytes], context: Context) -> bytes | None:
        """The first message of a call as it came, None of one that has none; ends the call as `_messages` does."""
        try:
            async with asyncio.timeout(_FIRST_MESSAGE_SECONDS):
                message = await anext(raw)
        except StopAsyncIteration:
            return None
        except TimeoutError:
            why = f"no message came within {_FIRST_MESSAGE_SECONDS:g} s"
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, why)
        await self._heard(context.peer(), message, context, first=True)
        return message

    async def _heard(self, peer: str, message: bytes, context: Context, *, first: bool) -> None:
        why = self._guard.heard(peer, len(message), first=first)
        if why:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"this connection is ended: {why}")


async def _message(raw: bytes, read: Callable[[bytes], Any], context: Context) -> Any:
    try:
        return read(raw)
    except Exception as error:  # protobuf's own, and what its implementations raise beside it
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the message can't be read: {str(error)[:200]}")
