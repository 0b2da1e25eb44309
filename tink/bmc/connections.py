"""Connections to BMCs: one at a time to each BMC, a limited number together, and no second login after a refused one.

    async with connections.open(machine, connection, credentials) as bmc:
        seen = await bmc.observe()

A BMC is identified by its address and ports (`bmc_of`). `open` waits until no other task is connected to the same BMC
and a connection is free; waiting namespaces take turns. The protocols of the Machine are tried in their order. The
next one is tried if the BMC can't be reached by the first or does not support it, never after a refused password or an
untrusted certificate: the password would go over a weaker connection.

Some operations work by IPMI alone, although Redfish works (`quirks.needs_ipmi`): `BmcSession.perform` uses IPMI for
them, if it is a protocol of the Machine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeVar

from tink.api.v1alpha2 import Raw, as_mapping
from tink.bmc.credentials import CredentialsReader, LoginMemory, LoginNote
from tink.bmc.inventory import inventory, next_paths
from tink.bmc.ipmi import IpmiClient
from tink.bmc.model import (
    BmcClient,
    BmcConnection,
    BmcCredentials,
    BmcError,
    Cause,
    Identity,
    Observation,
    Request,
    Reset,
    ResetType,
    Wanted,
)
from tink.bmc.operation import perform
from tink.bmc.quirks import Quirks, needs_ipmi, quirks_for
from tink.bmc.redfish import RedfishClient, RedfishLayout
from tink.bmc.settings import BmcSettings
from tink.kube.client import KubeClient, NotFoundError
from tink.kube.objects import NamespacedName
from tink.kube.resources import ResourceType
from tink.kube.runtime import EventRecorder, LeaderElector, steady, while_leading
from tink.limits import FairSemaphore, LimitedLog, Newest
from tink.waiting import cancel_once

log = logging.getLogger(__name__)

T = TypeVar("T")

_PROTOCOLS = {
    **dict.fromkeys(("gofish", "dell", "supermicro", "openbmc", "asrockrack", "redfish"), "redfish"),
    "ipmitool": "ipmi",
}
"""The protocol for each of Rufio's providers, in lower case. IntelAMT has none here."""
_UNSUPPORTED_OPTIONS = ("intelAMT", "rpc", "homeassistant")
_FALLS_BACK = (Cause.UNREACHABLE, Cause.UNSUPPORTED)
_CLOSE_SECONDS = 10.0
_MAX_CHILDREN = 32
"""Maximum number of calls by IPMI at once: each is a child process of 10 MB."""
_MAX_REMEMBERED = 65_536
_LAYOUT_SECONDS = 86_400.0
"""Maximum age of a layout: the version of the firmware in it is at most so old."""

ClientFactory = Callable[[BmcConnection, BmcCredentials, Quirks], Any]
"""Returns a client as an async context manager (`BmcClient`)."""
CLIENTS: Mapping[str, ClientFactory] = {
    "redfish": lambda connection, credentials, quirks: RedfishClient(
        connection, credentials, close_each=quirks.connection_close
    ),
    "ipmi": lambda connection, credentials, quirks: IpmiClient(
        connection, credentials, has_raw_boot=quirks.ipmi_raw_boot
    ),
}


def bmc_of(connection: BmcConnection) -> str:
    """Return what identifies a BMC: its address and ports. Several machines of a chassis may share one."""
    return f"{connection.host.lower()}:{connection.redfish_port}:{connection.ipmi_port}"


def connection_of(spec: Raw, authority: str = "") -> BmcConnection:
    """Return the connection of a Machine's `spec.connection`. `authority` is a certificate authority (PEM).

    `providerOptions.preferredOrder` names the protocols that are used, in their order; without it Redfish, then IPMI.
    `port` has no effect, as in Rufio: the ports are in `providerOptions`. Raises BmcError (UNSUPPORTED).
    """
    options = as_mapping(spec.get("providerOptions"))
    redfish, ipmi = as_mapping(options.get("redfish")), as_mapping(options.get("ipmitool"))
    order = [str(each) for each in options.get("preferredOrder") or ()]
    protocols = tuple(dict.fromkeys(_PROTOCOLS[each.lower()] for each in order if each.lower() in _PROTOCOLS))
    others = [each for each in _UNSUPPORTED_OPTIONS if each in options and not redfish and not ipmi]
    if (order and not protocols) or (others and not order):
        named = ", ".join(order or others)
        raise BmcError(
            Cause.UNSUPPORTED, f"providerOptions names {named}: tinkedge supports Redfish (gofish) and ipmitool"
        )
    if not spec.get("host"):
        raise BmcError(Cause.UNSUPPORTED, "spec.connection.host is missing")
    return BmcConnection(
        host=str(spec["host"]),
        redfish_port=_number(redfish.get("port"), 443),
        ipmi_port=_number(ipmi.get("port"), 623),
        insecure_tls=spec.get("insecureTLS") is True,
        authority=authority,
        fingerprint=str(spec.get("certificateFingerprint") or "").replace(":", "").lower(),
        use_basic_auth=redfish.get("useBasicAuth") is True,
        system_name=str(redfish.get("systemName") or ""),
        cipher_suite=str(ipmi.get("cipherSuite") or "17"),
        protocols=protocols or ("redfish", "ipmi"),
    )


def _number(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 65_536 else default


@lru_cache(1024)
def _quirks_of(vendor: str, model: str, firmware: str) -> Quirks:
    """Return the quirks of a kind of BMC. A search of the table takes a tenth of the processor time of a poll."""
    return quirks_for(Identity(vendor, model, firmware))


_ENDS_INVENTORY = (Cause.UNREACHABLE, Cause.CREDENTIALS_REFUSED, Cause.CERTIFICATE, Cause.BUSY)
"""Errors of one document after which no further one is read."""


class BmcMemory:
    """The quirks of BMCs and the layouts of their Redfish services, as earlier sessions have read them.

    A layout is dropped after an error and after a day. `clock` returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._quirks: Newest[str, Quirks] = Newest(_MAX_REMEMBERED)
        self._layouts: Newest[tuple[str, str], tuple[float, RedfishLayout]] = Newest(_MAX_REMEMBERED)
        """The time of the reading and the layout, by BMC and `system_name`."""

    def quirks(self, bmc: str) -> Quirks:
        """Return the quirks of a BMC (`bmc_of`); the default ones before its first observation."""
        return self._quirks.get(bmc, Quirks())

    def layout(self, bmc: str, system_name: str) -> RedfishLayout | None:
        """Return the layout of a BMC's Redfish service; None if it is not known or too old."""
        read_at, layout = self._layouts.get((bmc, system_name), (0.0, None))
        return layout if self._clock() - read_at < _LAYOUT_SECONDS else None

    def observed(self, bmc: str, system_name: str, identity: Identity, layout: RedfishLayout | None) -> None:
        """Remember what a session has read. A layout of None drops the one from before."""
        self._quirks[bmc] = _quirks_of(identity.vendor, identity.model, identity.firmware)
        key = bmc, system_name
        if layout is None or not layout.is_small():
            self._layouts.pop(key, None)
        elif key not in self._layouts or self._layouts[key][1] is not layout:
            self._layouts[key] = self._clock(), layout

    def drop_layout(self, bmc: str, system_name: str) -> None:
        """Drop the layout of a BMC after an error: it may have another one by now."""
        self._layouts.pop((bmc, system_name), None)


@dataclass(frozen=True, slots=True, eq=False)
class LoginKeeper:
    """A Machine or Task whose status keeps the results of logins. `read` and `write` raise ApiError."""

    kind: str
    holder: Raw
    read: Callable[[], Awaitable[Raw]]
    """Return the object as the API has it now."""
    write: Callable[[LoginNote], Awaitable[object]]


class LoginTrial:
    """The logins of one session. The first one with a version of a Secret is noted before the password is sent.

    It is noted again when its result is known. After an accepted login, no further one with this version costs a write.
    """

    def __init__(
        self, logins: LoginMemory, bmc: str, credentials: BmcCredentials, keeper: LoginKeeper | None = None
    ) -> None:
        """Create it for a BMC (`bmc_of`). `keeper` None: only the memory of this process keeps the results."""
        self._logins, self._keeper = logins, keeper
        self._login = bmc, credentials
        self._begun: set[str] = set()
        """Protocols whose login has begun, and has no result yet."""

    def check(self, protocol: str = "") -> None:
        """Raise BmcError if no login is permitted (`LoginMemory.check`)."""
        self._logins.check(*self._login, protocol)

    async def begin(self, protocol: str) -> None:
        """Note that a login begins, unless the BMC has accepted it before. Call this before the password is sent.

        Raises BmcError if another replica has noted that the BMC refused it, ApiError.
        """
        if self._keeper is None or protocol in self._begun or self._logins.is_accepted(*self._login, protocol):
            return
        with suppress(NotFoundError):  # it was deleted meanwhile
            # An informer may be late by a note of another replica.
            note = self._logins.begin(self._keeper.kind, await self._keeper.read(), *self._login, protocol)
            if note is not None:
                self._begun.add(protocol)
                await self._keeper.write(note)

    async def end(self, protocol: str, *, is_accepted: bool) -> None:
        """Note the result of a login: accepted, or not judged by the BMC. Raises ApiError."""
        if is_accepted and not self._logins.is_accepted(*self._login, protocol):
            self._logins.accept(*self._login, protocol)
        if self._keeper is not None and protocol in self._begun:
            self._begun.discard(protocol)
            with suppress(NotFoundError):
                await self._keeper.write(self._logins.note(self._keeper.kind, self._keeper.holder, *self._login))

    async def run(self, protocol: str, call: Callable[[], Coroutine[Any, Any, T]], *, is_alone: bool = False) -> T:
        """Return the result of `call`, which may log in, and note the result of a first login.

        `is_alone`: a refusal does not concern the protocol of the session, which the BMC has accepted. Raises BmcError,
        ApiError.
        """
        if self._logins.is_accepted(*self._login, protocol):
            return await self._judged(protocol, call, is_alone=is_alone)
        return await self._finished(self._judged(protocol, call, is_alone=is_alone))

    async def _judged(self, protocol: str, call: Callable[[], Coroutine[Any, Any, T]], *, is_alone: bool) -> T:
        try:
            answer = await call()
        except BmcError as error:
            if error.cause is Cause.CREDENTIALS_REFUSED:
                # The caller notes it, because it writes the reason as well (`BmcContext.record_login`).
                raise self._logins.refuse(*self._login, str(error), protocol, is_alone=is_alone) from error
            await self.end(protocol, is_accepted=False)
            raise
        await self.end(protocol, is_accepted=True)
        return answer

    async def _finished(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`. If the caller is cancelled during a first login, this waits 10 s for its result.

        Raises the exception of `work`.
        """
        task = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if self._begun:
                await asyncio.wait([task], timeout=_CLOSE_SECONDS)
            cancel_once(task)
            await asyncio.wait([task])
            if not task.cancelled() and (error := task.exception()) is not None:
                log.debug("a login that was cancelled has failed: %s", error)
            raise


class BmcSession:
    """The client of one BMC while it is open: tries the protocols in order, and never logs in after a refused login.

    All methods raise BmcError.
    """

    def __init__(
        self,
        connection: BmcConnection,
        credentials: BmcCredentials,
        clients: Mapping[str, ClientFactory],
        trial: LoginTrial,
        memory: BmcMemory,
        children: asyncio.Semaphore,
        *,
        reuse_layout: bool = False,
    ) -> None:
        self._children = children
        """Limits the children `ipmitool` of all sessions."""
        self._connection, self._credentials, self._clients, self._trial = connection, credentials, clients, trial
        self._memory = memory
        self._reuse_layout = reuse_layout
        self._bmc = bmc_of(connection)
        self._protocols = list(connection.protocols)
        self._client: BmcClient | None = None
        self._exit = AsyncExitStack()
        self._is_settled = False
        """True after the first answer: no other protocol is tried any more."""

    @property
    def system_name(self) -> str:
        """The name of the machine, for a BMC of several machines; empty for the only one."""
        return self._connection.system_name

    @property
    def protocol(self) -> str:
        """`redfish` or `ipmi`: the protocol in use, or the first one before any is."""
        return self._client.protocol if self._client is not None else self._connection.protocols[0]

    async def observe(self, *, boot: bool = False, media: bool = False) -> Observation:
        """Read the state of the BMC (`BmcClient.observe`)."""
        try:
            seen: Observation = await self._call(lambda client: client.observe(boot=boot, media=media))
        except BmcError:
            self._memory.drop_layout(self._bmc, self.system_name)
            raise
        layout = self._client.layout if isinstance(self._client, RedfishClient) else None
        self._memory.observed(self._bmc, self.system_name, seen.identity, layout)
        return seen

    async def send(self, request: Request) -> None:
        """Send a request (`BmcClient.send`)."""
        await self._call(lambda client: client.send(request))

    async def perform(
        self,
        wanted: Wanted,
        *,
        protocol: str = "",
        on_restart: Callable[[], Awaitable[None]] | None = None,
        progress: Callable[[str], None] = lambda _: None,
    ) -> str:
        """Make the BMC do what is wanted (`operation.perform`), and return a clause that says what it reports.

        What Redfish can't do on this BMC is done by IPMI (`quirks.needs_ipmi`), if that can be used. `protocol`: `ipmi`
        for IPMI alone. `on_restart` is called after the BMC has accepted a restart. Raises BmcError.
        """
        client = _OperationClient(self, wanted, on_restart)
        try:
            message = await perform(
                self.by_ipmi() if protocol == "ipmi" else client,
                wanted,
                clock=asyncio.get_running_loop().time,
                sleep=asyncio.sleep,
                progress=progress,
            )
        except BmcError as error:
            if client.ipmi_error is None:
                raise
            raise BmcError(error.cause, f"{error}; by IPMI: {client.ipmi_error}") from error
        if client.ipmi_error is not None:
            return f"{message}; by Redfish, because IPMI can't be used: {client.ipmi_error}"
        return f"by IPMI: {message}" if client.is_by_ipmi else message

    async def get(self, path: str) -> dict[str, Any]:
        """Return a Redfish document. Raises BmcError (UNSUPPORTED) for IPMI."""

        async def get(client: Any) -> dict[str, Any]:
            if client.protocol != "redfish":
                raise BmcError(Cause.UNSUPPORTED, "IPMI has no documents")
            document: dict[str, Any] = await client.get(path)
            return document

        return await self._call(get)

    async def read_inventory(self) -> Raw:
        """Read the documents of the BMC, and return the inventory without its time; empty if it lacks the System.

        Raises BmcError. A document that the BMC does not serve is left out.
        """
        documents: dict[str, Raw | None] = {}
        while paths := [path for path in next_paths(documents, self.system_name) if path not in documents]:
            for path in paths:
                try:
                    documents[path] = await self.get(path)
                except BmcError as error:
                    # BMCs answer some documents with an error now and then: the others are an inventory, too.
                    if error.cause in _ENDS_INVENTORY:
                        raise
                    documents[path] = None
        return inventory(documents, self.system_name)

    @property
    def has_ipmi(self) -> bool:
        """True if IPMI is a protocol of the Machine."""
        return "ipmi" in self._connection.protocols

    def by_ipmi(self) -> BmcClient:
        """Return a client of this BMC by IPMI, with the same credentials, beside the one in use.

        It is usable while this session is open. Raises BmcError (UNSUPPORTED) if IPMI is no protocol of the Machine. A
        login that the BMC refuses is not repeated, and ends neither this session nor later ones by Redfish.
        """
        if not self.has_ipmi:
            text = "this needs IPMI, and providerOptions.preferredOrder of the Machine excludes ipmitool"
            raise BmcError(Cause.UNSUPPORTED, text)
        client = self._clients["ipmi"](self._connection, self._credentials, self._memory.quirks(self._bmc))
        return _SecondaryIpmi(client, self._trial, self._children)

    async def close(self) -> None:
        """End the session with the BMC, within 10 s."""
        self._client = None
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._exit.aclose()
        except (BmcError, TimeoutError) as error:
            # The session ends by itself after the BMC's timeout.
            log.debug("BMC %s: the session was not closed: %s", self._bmc, error)

    async def _call(self, call: Callable[[Any], Awaitable[T]]) -> T:
        failures: list[BmcError] = []
        while True:
            try:
                self._trial.check(self._protocols[0])
            except BmcError as error:
                raise _joined([*failures, error]) from error
            try:
                answer = await self._trial.run(self._protocols[0], partial(self._attempt, call))
            except BmcError as error:
                if error.cause is Cause.CREDENTIALS_REFUSED:
                    raise
                failures.append(error)
                if self._is_settled or error.cause not in _FALLS_BACK:
                    raise _joined(failures) from error
                await self.close()
                self._protocols.append(self._protocols.pop(0))
                if len(failures) == len(self._protocols):
                    raise _joined(failures) from error
            else:
                self._is_settled = True
                return answer

    async def _attempt(self, call: Callable[[Any], Awaitable[T]]) -> T:
        """Call the client of the first protocol. Make it and log in before if there is none."""
        protocol = self._protocols[0]
        if self._client is None:
            client = self._new_client()
            if isinstance(client, RedfishClient):
                client.before_login = partial(self._trial.begin, protocol)
            self._client = await self._exit.enter_async_context(client)
            if isinstance(client, RedfishClient) and client.has_session:
                await self._trial.end(protocol, is_accepted=True)
        if protocol == "ipmi":  # each call is a login
            await self._trial.begin(protocol)
        async with self._children if protocol == "ipmi" else nullcontext():
            return await call(self._client)

    def _new_client(self) -> Any:
        quirks = self._memory.quirks(self._bmc)
        client = self._clients[self._protocols[0]](self._connection, self._credentials, quirks)
        layout = self._memory.layout(self._bmc, self.system_name) if self._reuse_layout else None
        if layout is not None and isinstance(client, RedfishClient):
            client.resume(layout)
        return client


class _SecondaryIpmi(BmcClient):
    """IPMI beside a session by Redfish. Each call is a child process with a login of its own, which is closed then."""

    protocol = "ipmi"

    def __init__(self, client: Any, trial: LoginTrial, children: asyncio.Semaphore) -> None:
        self._client, self._trial, self._children = client, trial, children

    async def observe(self, *, boot: bool = False, media: bool = False) -> Observation:
        seen: Observation = await self._call(lambda client: client.observe(boot=boot, media=media))
        return seen

    async def send(self, request: Request) -> None:
        await self._call(lambda client: client.send(request))

    async def _call(self, call: Callable[[Any], Awaitable[T]]) -> T:
        self._trial.check("ipmi")
        return await self._trial.run("ipmi", partial(self._attempt, call), is_alone=True)

    async def _attempt(self, call: Callable[[Any], Awaitable[T]]) -> T:
        await self._trial.begin("ipmi")
        async with self._children, self._client as client:
            return await call(client)


class _OperationClient(BmcClient):
    """The client of one operation: by the session's protocol, or by IPMI if Redfish can't do it (`needs_ipmi`).

    The first observation decides. If the BMC can't be read by IPMI then, Redfish is used: nothing was sent until then.
    """

    def __init__(
        self, session: BmcSession, wanted: Wanted, on_restart: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._session, self._wanted, self._on_restart = session, wanted, on_restart
        self._client: BmcClient | BmcSession | None = None
        """The client in use; None before the first observation."""
        self.is_by_ipmi = False
        """True if IPMI is used, although Redfish works."""
        self.ipmi_error: BmcError | None = None
        """Why IPMI can't be used, although the operation needs it."""

    @property
    def protocol(self) -> str:
        return (self._client or self._session).protocol

    async def observe(self, *, boot: bool = False, media: bool = False) -> Observation:
        if self._client is not None:
            return await self._client.observe(boot=boot, media=media)
        seen = await self._session.observe(boot=boot, media=media)
        if needs_ipmi(self._wanted, seen):
            try:
                client = self._session.by_ipmi()
                seen = await client.observe(boot=boot, media=media)
            except BmcError as error:
                if error.cause is Cause.BUSY:
                    raise  # the operation waits, and observes again
                self.ipmi_error = error
            else:
                self._client, self.is_by_ipmi = client, True
        self._client = self._client or self._session
        return seen

    async def send(self, request: Request) -> None:
        await (self._client or self._session).send(request)
        is_restart = isinstance(request, Reset) and request.type in (ResetType.FORCE_RESTART, ResetType.POWER_CYCLE)
        if is_restart and self._on_restart is not None:
            await self._on_restart()


class BmcConnections:
    """Opens connections to BMCs. For one event loop."""

    def __init__(
        self,
        logins: LoginMemory,
        *,
        limit: int = 200,
        clients: Mapping[str, ClientFactory] = CLIENTS,
        clock: Callable[[], float] = steady,
    ) -> None:
        """Create it with `limit` connections at most, and a client for each protocol.

        `clock` returns monotonic seconds.
        """
        self.logins = logins
        """The logins that BMCs have accepted or refused."""
        self._clients = clients
        self._slots = FairSemaphore(limit)
        self._children = asyncio.Semaphore(_MAX_CHILDREN)
        self._memory = BmcMemory(clock)
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: Counter[str] = Counter()
        """Number of tasks that use or wait for a BMC."""
        self.open_count = 0
        """Number of open connections."""

    def is_busy(self, bmc: str) -> bool:
        """Return True if a task is connected to a BMC (`bmc_of`), or waits for it."""
        return bmc in self._users

    @asynccontextmanager
    async def open(
        self,
        key: NamespacedName,
        connection: BmcConnection,
        credentials: BmcCredentials,
        *,
        keeper: LoginKeeper | None = None,
        reuse_layout: bool = False,
    ) -> AsyncIterator[BmcSession]:
        """Connect to a BMC until the end of the block, for the object `key`, whose namespace takes turns with others.

        `keeper` keeps the result of the first login over a restart.

        With `reuse_layout`, the session uses the paths and the firmware's version that an earlier session read, at most
        a day before. That saves half of the requests of a poll. Without, all are read.

        Nothing is sent before the first call of the session. Raises BmcError (CREDENTIALS_REFUSED, LOGIN_UNCLEAR)
        without a login if the BMC has refused these credentials before, or may have.
        """
        bmc = bmc_of(connection)
        trial = LoginTrial(self.logins, bmc, credentials, keeper)
        trial.check()
        async with self._exclusive(bmc), self._slots.held(key.namespace):
            trial.check()  # a task that was before this one may have tried them
            session = BmcSession(
                connection,
                credentials,
                self._clients,
                trial,
                self._memory,
                self._children,
                reuse_layout=reuse_layout,
            )
            self.open_count += 1
            try:
                yield session
            finally:
                self.open_count -= 1
                await session.close()

    @asynccontextmanager
    async def _exclusive(self, bmc: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(bmc, asyncio.Lock())
        self._users[bmc] += 1
        try:
            async with lock:
                yield
        finally:
            self._users[bmc] -= 1
            if not self._users[bmc]:
                del self._users[bmc], self._locks[bmc]


def _joined(failures: list[BmcError]) -> BmcError:
    """Return one error for the protocols that failed, with the cause of the first."""
    first, *others = failures
    if not others:
        return first
    return BmcError(
        first.cause,
        "; ".join(map(str, failures)),
        status=first.status,
        message_ids=first.message_ids,
        properties=first.properties,
        retry_after=first.retry_after,
    )


@dataclass(frozen=True, slots=True, eq=False)
class BmcContext:
    """The parts that the controllers of Machines, Jobs, Tasks and boots share. `now` returns Unix seconds."""

    client: KubeClient
    settings: BmcSettings
    connections: BmcConnections
    reader: CredentialsReader
    elector: LeaderElector | None
    recorder: EventRecorder
    limited_log: LimitedLog
    now: Callable[[], float] = time.time

    async def patch(
        self, resource: ResourceType, key: NamespacedName, body: Raw, *, subresource: str | None = None
    ) -> Raw:
        """Merge `body` into an object while this replica leads, and return the result.

        Raises LeadershipLostError, NotFoundError, ConflictError, ApiError.
        """
        patch = partial(self.client.patch, resource, key.name, key.namespace, body, subresource=subresource)
        return await while_leading(self.elector, patch)

    def keeper(self, resource: ResourceType, holder: Raw) -> LoginKeeper:
        """Return the keeper of logins in the status of a Machine or Task."""
        key = NamespacedName.of(holder)

        async def write(note: LoginNote) -> None:
            await self.patch(resource, key, {"status": note.patch()}, subresource="status")

        return LoginKeeper(resource.kind, holder, partial(self.client.get, resource, key.name, key.namespace), write)

    async def record_login(self, keeper: LoginKeeper, bmc: str, credentials: BmcCredentials) -> None:
        """Write the known results of a login to the status of its keeper, if they are not there. Raises ApiError."""
        logins = self.connections.logins
        note = logins.note(keeper.kind, keeper.holder, bmc, credentials)
        if note.results and not note.is_in(keeper.holder):
            with suppress(NotFoundError):  # it was deleted meanwhile
                await keeper.write(note)
        logins.written(bmc, credentials)
