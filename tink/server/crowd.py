"""Between the network and every service: how many calls are served at once, and messages that are none.

One address may fill its own share, and no more: the others go on. Loopback has no share, for who is on this host is the
operator. gRPC itself bounds what comes before a call: handshakes in time, connections in all, streams of a connection,
bytes of a message (`tink.server.server`).

What a stranger sends as a message is parsed here, so that garbage is answered, and is no error of ours in the log.
"""

from __future__ import annotations

import inspect
import ipaddress
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from tink.once_per import OncePer
from tink.server.agents import peer_address

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]

_SAY_AGAIN = 60.0


class _FullError(Exception):
    """No room for one more call; the message is for the caller."""


class Pace:
    """Lets each key pass `burst` times at once and `per_second` times from then on; remembers those that did lately."""

    def __init__(self, burst: int, per_second: float) -> None:
        self._burst = burst
        self._per_second = per_second
        # When all of the burst will be there again, by key; the order is that of the last pass.
        self._full_at: dict[Hashable, float] = {}

    def __len__(self) -> int:
        return len(self._full_at)

    def allows(self, key: Hashable, now: float) -> bool:
        """Whether `key` may pass at `now` (monotonic seconds)."""
        while self._full_at and self._full_at[first := next(iter(self._full_at))] <= now:
            del self._full_at[first]
        full_at = max(self._full_at.get(key, now), now) + 1 / self._per_second
        if full_at - now > self._burst / self._per_second:
            return False
        self._full_at.pop(key, None)
        self._full_at[key] = full_at
        return True


class Crowd(grpc.aio.ServerInterceptor):
    """Lets `in_all` calls in at once, `per_address` of them from one address. `clock` gives monotonic seconds."""

    def __init__(self, in_all: int, per_address: int, clock: Callable[[], float]) -> None:
        self._in_all = in_all
        self._per_address = per_address
        self._clock = clock
        self._calls = 0
        self._by_address: Counter[str] = Counter()
        self._handlers: dict[str, Handler] = {}
        self._said = OncePer(_SAY_AGAIN, 100)

    @property
    def calls(self) -> int:
        """How many there are now."""
        return self._calls

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The handler of a call, behind the bounds."""
        method = str(handler_call_details.method)
        known = self._handlers.get(method)
        if known is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return handler  # a method that nobody serves; their number has no bound
            known = self._handlers[method] = self._bounded(handler)
        return known

    @contextmanager
    def _place(self, context: Context) -> Iterator[None]:
        """A place for one call. Raises _FullError."""
        address = peer_address(context.peer())
        if self._calls >= self._in_all:
            self._say("all", f"{self._calls} calls, which is all that this server serves at once: others must wait")
            raise _FullError("the server serves as many calls as it can: try again later")
        if self._by_address[address] >= self._per_address and not _is_loopback(address):
            self._say(address, f"{address} has {self._per_address} calls open: no more of them are served")
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

    def _say(self, key: str, message: str) -> None:
        if self._said.due(key, self._clock()):
            log.warning("gRPC server: %s", message)

    def _bounded(self, handler: Handler) -> Handler:
        """The same method, but it takes bytes."""
        name = ("stream" if handler.request_streaming else "unary") + (
            "_stream" if handler.response_streaming else "_unary"
        )
        behaviour: Any = getattr(handler, name)
        read = handler.request_deserializer or (lambda raw: raw)
        take = _messages if handler.request_streaming else _message

        async def answer(raw: Any, context: Context) -> Any:
            try:
                with self._place(context):
                    return await behaviour(await take(raw, read, context), context)
            except _FullError as full:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(full))

        async def answers(raw: Any, context: Context) -> AsyncIterator[Any]:
            try:
                with self._place(context):
                    async for each in behaviour(await take(raw, read, context), context):
                        yield each
            except _FullError as full:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(full))

        wrapped = answers if inspect.isasyncgenfunction(behaviour) else answer
        make: Any = getattr(grpc, f"{name}_rpc_method_handler")
        made: Handler = make(wrapped, request_deserializer=None, response_serializer=handler.response_serializer)
        return made


async def _message(raw: bytes, read: Callable[[bytes], Any], context: Context) -> Any:
    try:
        return read(raw)
    except Exception as error:  # protobuf's own, and what its implementations raise beside it
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the message can't be read: {str(error)[:200]}")


async def _messages(raw: AsyncIterator[bytes], read: Callable[[bytes], Any], context: Context) -> AsyncIterator[Any]:
    async def parsed() -> AsyncIterator[Any]:
        async for each in raw:
            yield await _message(each, read, context)

    return parsed()


@lru_cache(256)
def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
