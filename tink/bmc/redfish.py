"""The Redfish client: power, boot override and virtual media of one BMC over HTTPS (DSP0266, DSP0268).

    async with RedfishClient(connection, credentials) as client:   # one login
        seen = await client.observe(boot=True)
        await client.send(SetBoot("Pxe", "Once", "UEFI"))
                                                                   # the session is deleted, the connection closed

The layers, from the bottom:

    HttpsTransport   one request, one bounded answer; TLS verified by fingerprint or authority
    documents        bytes -> a bounded JSON object; values of a wrong type are absent
    failures         status and MessageIds -> BmcError with a cause
    RedfishLayout    where a BMC has its sessions and its System, and its versions
    RedfishClient    session, redirects, ETags, tasks; discovery of System, Manager and media; observe, send

A BMC is not trusted. Each answer has a limit of size, depth, number of values and time. Each path that a BMC names is
data: the client requests only paths that begin with /redfish/, and only from the BMC itself.

Paths and versions that change rarely may come from an earlier session (`RedfishLayout`). Then reading the power state
takes a login, one GET and a logout.

Logins are counted by BMCs, which lock accounts. The client logs in once. After a refusal it sends nothing more. A 401
that comes after a good login means that the BMC has ended the session, which is no reason to doubt the password.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_network
from types import TracebackType
from typing import Any, Final, Protocol, Self
from urllib.parse import quote, urlsplit

import aiohttp
import orjson
from aiohttp.http import HttpProcessingError
from yarl import URL

from tink.bmc.model import (
    BmcClient,
    BmcConnection,
    BmcCredentials,
    BmcError,
    Boot,
    Cause,
    EjectMedium,
    Identity,
    InsertMedium,
    Observation,
    PowerState,
    Request,
    Reset,
    SetBoot,
    Slot,
)
from tink.net import outbound
from tink.net.addresses import join_host_port
from tink.net.urls import as_written, redacted
from tink.printable import printable

log = logging.getLogger(__name__)

Document = dict[str, Any]

SERVICE_ROOT: Final = "/redfish/v1/"
_SESSIONS: Final = "/redfish/v1/SessionService/Sessions"
"""The place of sessions if the service root does not name it (DSP0266, "Session login")."""

ANYWHERE: Final = outbound.Reach(allowed=(ip_network("0.0.0.0/0"), ip_network("::/0")))
MAX_REDIRECTS: Final = 3
MAX_SLOTS: Final = 16
"""Maximum number of slots of virtual media that are read, each of the System and of its Manager."""
MAX_SYSTEMS: Final = 16
MAX_TEXT: Final = 256
MAX_URL: Final = 2048
MAX_LIST: Final = 64
MAX_MESSAGES: Final = 16
MAX_RETRY_AFTER_SECONDS: Final = 3600.0
MIN_SECRET: Final = 4
"""Minimum length of a query's value that errors leave out; a shorter one is no signature."""
MIN_SIGNATURE: Final = 20
"""Minimum length of a part of a path that errors leave out; shorter ones are file names and MAC addresses."""
CONNECT_SECONDS: Final = 10.0
TRIES_OF_MISSING_TASK: Final = 3


@dataclass(frozen=True, slots=True)
class RedfishLimits:
    """Bounds of the dialogue with a BMC.

    answer_bytes: size of a body after decompression. depth, values: nesting and number of the values in a document.
    answer_seconds: time for a request and its whole answer. logout_seconds: time for the end of the session.
    task_seconds: time for a task. task_poll_seconds: interval of its reads; it grows to the fourfold.
    missing_task_seconds: pause before a task that is not there yet is read again.
    """

    answer_bytes: int = 1024 * 1024
    depth: int = 32
    values: int = 50_000
    answer_seconds: float = 30.0
    logout_seconds: float = 5.0
    task_seconds: float = 45.0
    task_poll_seconds: float = 1.0
    missing_task_seconds: float = 5.0


# --- HTTPS -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response. `headers` ignores the case of names."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


class RedfishTransport(Protocol):
    """Sends one request to a BMC and returns the answer, without following redirects."""

    async def exchange(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        """Raise BmcError with UNREACHABLE, CERTIFICATE or BAD_ANSWER."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


async def _nothing() -> None:
    """Do nothing before a login."""


def new_session(reach: outbound.Reach = ANYWHERE) -> aiohttp.ClientSession:
    """Return an HTTP client for one BMC that connects to no address that `reach` refuses.

    The bytes beside the bodies are bounded, too (`tink.net.outbound`).
    """
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
    return outbound.session(reach, timeout=timeout)


class HttpsTransport:
    """HTTPS to one BMC. One connection is kept for the life of the transport.

    close_each: the connection ends after each answer, for BMCs whose kept connections break. It becomes true by itself
    when one breaks.
    """

    def __init__(
        self,
        connection: BmcConnection,
        session: Callable[[], aiohttp.ClientSession] = new_session,
        limits: RedfishLimits = RedfishLimits(),
        *,
        close_each: bool = False,
    ) -> None:
        self._connection = connection
        self._new_session = session
        self._limits = limits
        self._close_each = close_each
        self._session: aiohttp.ClientSession | None = None
        self._origin = ""
        self._verification: ssl.SSLContext | aiohttp.Fingerprint | bool = True

    async def exchange(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        """Send a request, and return its answer within `answer_seconds`. Raises BmcError."""
        session = self._open()
        # Gzip is named because some BMCs answer 406 to a client that accepts identity alone (HPE Gen10 Plus).
        headers = {"Accept": "application/json", "Accept-Encoding": "gzip", "OData-Version": "4.0", **headers}
        if self._close_each:
            headers["Connection"] = "close"
        is_answering = False
        try:
            async with (
                asyncio.timeout(self._limits.answer_seconds),
                session.request(
                    method,
                    URL(f"{self._origin}{path}", encoded=True),
                    data=body,
                    headers=headers,
                    ssl=self._verification,
                    allow_redirects=False,
                ) as response,
            ):
                is_answering = True
                return Answer(response.status, response.headers, await self._body(response))
        except (aiohttp.ClientError, HttpProcessingError, OSError, ValueError) as error:
            failure = self._failure(error, is_answering=is_answering)
        # Raised here, so that no trace shows the request: aiohttp's errors have its headers.
        raise failure

    async def close(self) -> None:
        """Close the connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            host, port = self._connection.host.strip("[]"), self._connection.redfish_port
            if not re.fullmatch(r"[A-Za-z0-9._:-]+", host):
                raise self._error(Cause.UNREACHABLE, "spec.connection.host is not an address or a host name")
            self._origin = f"https://{join_host_port(host, port)}"
            self._verification = self._verified_by()
            self._session = self._new_session()
        return self._session

    def _verified_by(self) -> ssl.SSLContext | aiohttp.Fingerprint | bool:
        connection = self._connection
        try:
            if connection.fingerprint:
                return aiohttp.Fingerprint(bytes.fromhex(connection.fingerprint))
            if connection.authority:
                return _trust(connection.authority)
        except (ssl.SSLError, ValueError):
            pass
        else:
            return not connection.insecure_tls
        if connection.fingerprint:
            raise self._error(Cause.CERTIFICATE, "the Machine's certificateFingerprint is not a SHA-256 in hex")
        raise self._error(Cause.CERTIFICATE, "ca.crt of the Machine's caSecretRef is not a certificate in PEM")

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        parts, size = [], 0
        async for part in response.content.iter_any():
            size += len(part)
            if size > self._limits.answer_bytes:
                response.close()
                raise self._error(Cause.BAD_ANSWER, f"the answer is larger than {self._limits.answer_bytes} bytes")
            parts.append(part)
        return b"".join(parts)

    def _failure(self, error: Exception, *, is_answering: bool) -> BmcError:
        match error:
            case TimeoutError() if is_answering:
                return self._error(Cause.BAD_ANSWER, f"the answer did not end within {self._limits.answer_seconds:g} s")
            case TimeoutError():
                return self._error(Cause.UNREACHABLE, f"no answer within {self._limits.answer_seconds:g} s")
            case aiohttp.ServerFingerprintMismatch():
                text = (
                    f"its certificate has the fingerprint {error.got.hex()}, not the Machine's certificateFingerprint"
                )
                return self._error(Cause.CERTIFICATE, text)
            case aiohttp.ClientConnectorCertificateError():
                why = getattr(error.certificate_error, "verify_message", "") or "verification failed"
                text = (
                    f"its certificate is not trusted ({why}); set certificateFingerprint or caSecretRef in the Machine"
                )
                return self._error(Cause.CERTIFICATE, text)
            case aiohttp.ClientConnectorSSLError():
                return self._error(Cause.UNREACHABLE, f"no TLS: {getattr(error.os_error, 'reason', '') or 'handshake'}")
            case aiohttp.ClientPayloadError() | aiohttp.ClientResponseError() | HttpProcessingError():
                return self._error(Cause.BAD_ANSWER, "the answer is cut off, or not HTTP")
            case aiohttp.ServerDisconnectedError():
                # aiohttp has repeated a GET by itself. A POST or PATCH may have had its effect, so the caller decides.
                self._close_each = True
                return self._error(Cause.UNREACHABLE, "the BMC closed the connection without an answer")
            case _ if is_answering:
                return self._error(Cause.BAD_ANSWER, "the connection ended within the answer")
        return self._error(Cause.UNREACHABLE, outbound.no_answer(error))

    def _error(self, cause: Cause, text: str) -> BmcError:
        host = printable(self._connection.host)[:MAX_TEXT]
        return BmcError(cause, f"BMC {host}: {printable(text)[:MAX_TEXT]}")


@lru_cache(64)
def _trust(authority: str) -> ssl.SSLContext:
    """Return a context that trusts the PEM certificates of an authority alone. Raises ssl.SSLError or ValueError."""
    context = ssl.create_default_context(cadata=authority)
    # The certificate of a BMC, or an intermediate one, may stand alone. Python 3.13 allows that by default, and refuses
    # certificates without key identifiers, which the tools of many BMCs make.
    context.verify_flags = (context.verify_flags | ssl.VERIFY_X509_PARTIAL_CHAIN) & ~ssl.VERIFY_X509_STRICT
    return context


# --- documents -------------------------------------------------------------------------------------------------------


def parse_document(body: bytes, limits: RedfishLimits = RedfishLimits()) -> Document:
    """Parse the body of an answer: a JSON object in UTF-8. Raises ValueError with the reason."""
    if len(body) > limits.answer_bytes:
        raise ValueError(f"larger than {limits.answer_bytes} bytes")
    # Each value has one of these before it. Marks in texts count as well; true documents stay far below the limit.
    if body.count(b",") + body.count(b"[") + body.count(b"{") > limits.values:
        raise ValueError(f"more than {limits.values} values")
    try:
        document = orjson.loads(body)  # it refuses invalid UTF-8, lone surrogates, and more than 1,024 levels
    except orjson.JSONDecodeError:
        raise ValueError("not JSON in UTF-8") from None
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - a wrong value, not a mistake in a program
    level: list[Any] = [document]
    for _ in range(limits.depth):
        level = [child for each in level for child in _children(each) if isinstance(child, (dict, list))]
        if not level:
            return document
    raise ValueError(f"deeper than {limits.depth} levels")


def _children(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def redfish_path(value: object) -> str | None:
    """Return a path that a BMC names, ready to be requested; None unless it is an absolute path below /redfish/.

    A fragment is cut off, because a BMC returns the whole resource.
    """
    if not isinstance(value, str) or len(value) > MAX_URL or not value.isascii() or not value.isprintable():
        return None
    path = value.partition("#")[0]
    segments = path.partition("?")[0].lower().replace("%2e", ".").split("/")
    if not path.startswith("/redfish/") or "\\" in path or ".." in segments or "" in segments[1:-1]:
        return None
    return as_written(path)


def _object(value: object) -> Document:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value[:MAX_LIST] if isinstance(value, list) else []


def _text(value: object, limit: int = MAX_TEXT) -> str:
    return printable(value[:limit]) if isinstance(value, str) else ""


def _texts(value: object) -> tuple[str, ...]:
    return tuple(text for each in _list(value) if (text := _text(each)))


def _link(value: object) -> str | None:
    """Return the path of a link, which is an object with `@odata.id`."""
    return redfish_path(_object(value).get("@odata.id"))


def _links(value: object) -> list[str]:
    return [path for each in _list(value) if (path := _link(each)) is not None]


def _optional(document: Document, name: str, limit: int = MAX_TEXT) -> str | None:
    return _text(document.get(name), limit) if isinstance(document.get(name), str) else None


def _power(system: Document) -> PowerState:
    # PoweringOn, PoweringOff and Paused are neither (DSP0268, Resource.PowerState).
    return {"on": PowerState.ON, "off": PowerState.OFF}.get(_text(system.get("PowerState")).lower(), PowerState.UNKNOWN)


def _boot(boot: Document) -> Boot:
    return Boot(
        target=_optional(boot, "BootSourceOverrideTarget"),
        enabled=_optional(boot, "BootSourceOverrideEnabled"),
        mode=_optional(boot, "BootSourceOverrideMode"),
        http_uri=_optional(boot, "HttpBootUri", MAX_URL),
        allowed_targets=_texts(boot.get("BootSourceOverrideTarget@Redfish.AllowableValues")),
        allowed_enabled=_texts(boot.get("BootSourceOverrideEnabled@Redfish.AllowableValues")),
    )


def _slot(path: str, document: Document) -> Slot:
    image = _text(document.get("Image"), MAX_URL)
    inserted = document.get("Inserted")
    # Some Supermicro keep the image's name after an ejection; then only ConnectedVia shows that the drive is empty.
    is_connected = document.get("ConnectedVia") != "NotConnected"
    return Slot(
        path=path,
        kinds=_texts(document.get("MediaTypes")),
        image=image,
        inserted=(inserted if isinstance(inserted, bool) else bool(image)) and is_connected,
        has_insert_action="#VirtualMedia.InsertMedia" in _object(document.get("Actions")),
    )


# --- failures --------------------------------------------------------------------------------------------------------


_NO_SESSION_LEFT: Final = frozenset(
    {"SessionLimitExceeded", "CreateLimitReachedForResource", "RAC0218", "ServiceTemporarilyUnavailable"}
)
_NOT_NOW: Final = frozenset(
    {
        "UnableToModifyDuringSystemPOST",  # HPE iLO
        "InvalidOperationForSystemState",  # HPE iLO
        "ActionParameterValueConflict",  # Dell iDRAC10: On, shortly after off
        "SYS518",  # Dell: the iDRAC is not ready
        "ResourceInUse",
        "ResourceInStandby",
        "ResourceNotReady",
        "NotReady",
    }
)
_PRECONDITION: Final = frozenset({"PreconditionFailed", "PreconditionRequired"})
_PASSWORD_CHANGE: Final = "PasswordChangeRequired"  # noqa: S105 - the name of a message


def _cause(status: int, names: Iterable[str]) -> Cause:
    """Return the cause of a refusal by the last parts of its MessageIds, else by its status."""
    for cause, known in (
        (Cause.BUSY, _NO_SESSION_LEFT),
        (Cause.CONFLICT, _NOT_NOW),
        (Cause.PRECONDITION, _PRECONDITION),
    ):
        if not known.isdisjoint(names):
            return cause
    match status:
        case 412 | 428:
            return Cause.PRECONDITION
        case 404 | 405 | 410 | 501:
            return Cause.UNSUPPORTED
        case 429 | 502 | 503 | 504:
            return Cause.BUSY
    # 500: an iDRAC answers it for minutes after an operation.
    return Cause.CONFLICT if status == 409 or status >= 500 else Cause.REFUSED


def _url_secrets(url: str) -> set[str]:
    """Return the parts of a URL that may be a signature or a login.

    BMCs repeat them in errors, also without the host, so that `redacted` does not see a URL.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return {url}
    values = [pair.partition("=")[2] or pair for pair in parts.query.split("&")]
    names = [each for each in parts.path.split("/") if len(each) >= MIN_SIGNATURE]
    login = parts.netloc.rpartition("@")[0]
    return {each for each in (parts.query, *values, login, *names) if len(each) >= MIN_SECRET}


@dataclass(frozen=True, slots=True)
class _Messages:
    """The messages of an error or a task: MessageIds, the properties that they name, and one text."""

    ids: tuple[str, ...] = ()
    properties: tuple[str, ...] = ()
    text: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The MessageIds without registry and version."""
        return tuple(each.rpartition(".")[2] for each in self.ids)


def _messages(found: object, fallback: str = "") -> _Messages:
    """Read a list of messages (DSP0266, "Error responses"), or the one message that some BMCs send without a list."""
    listed = [found] if isinstance(found, dict) else _list(found)
    messages = [each for each in listed[:MAX_MESSAGES] if isinstance(each, dict)]
    ids = (_text(each.get("MessageId")) for each in messages)
    texts = (_text(each.get("Message"), MAX_URL) for each in messages)
    return _Messages(
        tuple(each for each in ids if each),
        tuple(dict.fromkeys(name for each in messages for name in _properties(each)))[:MAX_MESSAGES],
        next((each for each in texts if each), fallback),
    )


def _properties(message: Document) -> Iterator[str]:
    # A JSON pointer, such as #/Boot/BootSourceOverrideMode.
    yield from (each.rpartition("/")[2] for each in _texts(message.get("RelatedProperties")))
    if "Propert" in _text(message.get("MessageId")) or "Parameter" in _text(message.get("MessageId")):
        yield from (each for each in _texts(message.get("MessageArgs")) if re.fullmatch(r"[A-Za-z][A-Za-z0-9]*", each))


# --- the client ------------------------------------------------------------------------------------------------------


MAX_LAYOUT_CHARACTERS: Final = 2048


@dataclass(frozen=True, slots=True)
class RedfishLayout:
    """The parts of a BMC's Redfish service that stay the same between sessions: paths and versions.

    `sessions` is the path of the sessions (empty if the connection demands Basic authentication), `system` that of the
    machine's System. `slash` is the end of each path: "" or "/". `vendor` and `product` are the service root's.
    `resets` are those of the System's ActionInfo; None if it was not read.
    """

    sessions: str
    system: str
    slash: str | None = None
    vendor: str = ""
    product: str = ""
    redfish: str = ""
    firmware: str = ""
    resets: tuple[str, ...] | None = None

    def is_small(self) -> bool:
        """Return True if this may be kept for each of thousands of BMCs, whatever the BMC sends."""
        texts = (self.sessions, self.system, self.vendor, self.product, self.redfish, self.firmware)
        return sum(map(len, (*texts, *(self.resets or ())))) <= MAX_LAYOUT_CHARACTERS


class RedfishClient(BmcClient):
    """A session with one BMC: an async context manager that logs in at entry and logs out at exit, also when cancelled.

    Requests go one after the other. All methods raise BmcError. After a refusal of the credentials each further call
    fails without a request. `session` returns the HTTP client for this BMC; `transport` replaces it and `close_each`.

    The layout of an earlier session saves the requests that found it (`resume`). A path in it that the BMC no longer
    serves is found again within the same session.
    """

    protocol = "redfish"

    def __init__(
        self,
        connection: BmcConnection,
        credentials: BmcCredentials,
        session: Callable[[], aiohttp.ClientSession] = new_session,
        *,
        transport: RedfishTransport | None = None,
        limits: RedfishLimits = RedfishLimits(),
        close_each: bool = False,
    ) -> None:
        self._connection = connection
        self._credentials = credentials
        self._limits = limits
        self._transport = transport or HttpsTransport(connection, session, limits, close_each=close_each)
        self._one_at_a_time = asyncio.Lock()
        self.before_login: Callable[[], Awaitable[None]] = _nothing
        """Awaited before the password is sent. Its exception ends the login."""
        self._is_refused = False
        self._token = self._session_path = ""
        self.layout: RedfishLayout | None = None
        """The layout in use; None until `observe` has read it, and after the BMC has disproved it."""
        self._slash: str | None = None
        """The end of each path: "" or "/"; None until an answer shows which."""
        self._etags: dict[str, str] = {}
        self._root: Document = {}
        self._sessions_path = ""
        self._system_path: str | None = None
        self._manager: Document | None = None
        self._system: Document = {}
        self._resets: tuple[str, ...] | None = None
        self._slot_paths: list[str] | None = None
        self._slot_documents: dict[str, Document] = {}
        self._has_boot_settings = True
        self._uses_basic = connection.use_basic_auth
        self._basic = base64.b64encode(f"{credentials.username}:{credentials.password}".encode()).decode()
        password = credentials.password
        # BMCs repeat requests as they came: in JSON, or in a URL.
        forms = (password, orjson.dumps(password).decode()[1:-1], quote(password, safe=""), self._basic)
        self._secrets = {each for each in forms if each}

    @property
    def has_session(self) -> bool:
        """True if the BMC has accepted the password for a session."""
        return self._token != ""

    def resume(self, layout: RedfishLayout) -> None:
        """Use the layout that an earlier session with this BMC has read. Call this before the login."""
        self.layout, self._slash, self._resets = layout, layout.slash, layout.resets

    async def __aenter__(self) -> Self:
        try:
            await self._log_in()
        except BaseException:
            await self._log_out()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._log_out()

    async def get(self, path: str) -> Document:
        """Return the document at a path that a BMC named, such as an `@odata.id`. Raises BmcError."""
        known = redfish_path(path)
        if known is None:
            raise self._error(Cause.BAD_ANSWER, f"it names the path {_text(path)!r}, which is not below /redfish/")
        return await self._document(known)

    async def observe(self, *, boot: bool = False, media: bool = False) -> Observation:
        """Read the power state and the identity; with `boot` and `media` these as well. Raises BmcError."""
        system = await self._read_system()
        resets = await self._allowed_resets(system)
        if self.layout is None or not self.layout.firmware:
            self.layout = await self._read_layout(system)
        override, pending = await self._read_boot(system) if boot else (None, None)
        return Observation(
            power=_power(system),
            boot=override,
            slots=await self._read_slots(system) if media else None,
            identity=_identity(self.layout, system),
            allowed_resets=resets,
            last_reset=_text(system.get("LastResetTime")),
            pending_boot=pending,
        )

    async def send(self, request: Request) -> None:
        """Send a request and return when the BMC has accepted it and its task has ended. Raises BmcError.

        A task that waits for the next restart (TaskState Pending) counts as accepted.
        """
        match request:
            case Reset():
                action = _object(_object((await self._known_system()).get("Actions")).get("#ComputerSystem.Reset"))
                target = redfish_path(action.get("target"))
                await self._post(
                    target or f"{self._system_path}/Actions/ComputerSystem.Reset", {"ResetType": str(request.type)}
                )
            case SetBoot():
                await self._set_boot(request)
            case InsertMedium():
                self._secrets |= _url_secrets(request.url)
                body = {"Image": request.url, **dict(request.properties)}
                if request.by_patch:
                    await self._patch(self._checked_slot(request.slot), body)
                else:
                    await self._post(await self._slot_action(request.slot, "InsertMedia"), body)
            case EjectMedium(by_patch=True):
                await self._patch(self._checked_slot(request.slot), {"Image": None, "Inserted": False})
            case EjectMedium():
                # HPE iLO answers 415 or 400 to an ejection without a body.
                await self._post(await self._slot_action(request.slot, "EjectMedia"), {})

    # --- session ---------------------------------------------------------------------------------------------------

    async def _log_in(self) -> None:
        if self.layout is None or not await self._log_in_again(self.layout):
            await self._find_and_log_in()

    async def _log_in_again(self, layout: RedfishLayout) -> bool:
        """Log in where an earlier session did. Return False if the BMC may have its sessions elsewhere by now."""
        if self._uses_basic:
            return True
        self._sessions_path = layout.sessions
        try:
            if layout.sessions:
                await self._create_session(layout.sessions)
                return True
        except BmcError as error:
            self._forget_layout()
            if error.cause is Cause.CREDENTIALS_REFUSED and await self._has_moved(layout):
                return False
            if error.status not in (404, 405, 410, 501):
                raise
        self._forget_layout()
        return False

    async def _has_moved(self, layout: RedfishLayout) -> bool:
        """Return True if the service root names another path for sessions: the refused request was not a login.

        Many BMCs answer 401 at a path that does not exist.
        """
        self._is_refused = False
        with suppress(BmcError):
            self._root = await self._document(SERVICE_ROOT)
        self._is_refused = not self._root or _sessions_of(self._root) == layout.sessions
        return not self._is_refused

    def _forget_layout(self) -> None:
        self.layout = self._slash = self._resets = self._system_path = None

    async def _find_and_log_in(self) -> None:
        try:
            await self._read_root()
        except BmcError as error:
            if error.status not in (401, 403):  # some BMCs protect the service root, against DSP0266
                raise
        sessions = _sessions_of(self._root) if self._root else _SESSIONS
        # A service without sessions, such as sushy-tools' emulator, names none. Its refusal of a login would look like
        # a wrong password.
        self._uses_basic = self._uses_basic or not sessions
        if not self._uses_basic:
            self._sessions_path = sessions
            await self._create_session(sessions)
        await self._read_root()

    async def _read_root(self) -> Document:
        if not self._root:
            self._root = await self._document(SERVICE_ROOT)
        return self._root

    async def _create_session(self, path: str) -> None:
        await self.before_login()
        body = {"UserName": self._credentials.username, "Password": self._credentials.password}
        login = asyncio.ensure_future(self._request("POST", path, body))
        try:
            answer = await asyncio.shield(login)
        except asyncio.CancelledError:
            # The BMC may have made the session already; the answer names it, so that it can be deleted.
            try:
                await asyncio.wait({login}, timeout=self._limits.logout_seconds)
                if login.done() and not login.cancelled() and login.exception() is None:
                    self._accept_session(login.result())
            finally:
                login.cancel()
            raise
        except BmcError as error:
            raise self._login_failure(error) from None
        document = self._accept_session(answer)
        if not self._token:
            raise self._error(Cause.BAD_ANSWER, "the login has no X-Auth-Token")
        if _PASSWORD_CHANGE in _messages(document.get("@Message.ExtendedInfo")).names:
            raise self._password_change()

    def _accept_session(self, answer: Answer) -> Document:
        """Keep the token and the path of a new session. Returns its document, or an empty one."""
        document: Document = {}
        with suppress(ValueError):
            document = parse_document(answer.body, self._limits)
        token = answer.headers.get("X-Auth-Token", "")
        if token.isascii() and token.isprintable() and len(token) <= MAX_URL:
            self._token = token
            self._secrets |= {token} if token else set()
        self._session_path = self._location(answer) or _link(document) or ""
        return document

    def _login_failure(self, error: BmcError) -> BmcError:
        if error.status in (404, 405, 501):
            text = "it has no sessions; set providerOptions.redfish.useBasicAuth"
            return self._error(Cause.UNSUPPORTED, text, status=error.status)
        if error.status not in (400, 401, 403) or error.cause is Cause.BUSY:
            return error
        # 400 and 403 count as well: BMCs lock accounts, so that a doubt must not lead to a second login.
        self._is_refused = True
        if any(_PASSWORD_CHANGE in each for each in error.message_ids):
            return self._password_change()
        return self._refused(error.status, error.message_ids)

    def _refused(self, status: int = 401, message_ids: tuple[str, ...] = ()) -> BmcError:
        # These words are ours, so they are not searched for secrets: the password may be "password".
        text = f"{self._name}: it refuses the user or the password, or the account is locked"
        return BmcError(Cause.CREDENTIALS_REFUSED, text, status=status, message_ids=message_ids)

    def _password_change(self) -> BmcError:
        self._is_refused = True
        text = "it demands a new password (PasswordChangeRequired): set one on the BMC, then in the Secret"
        ids = (_PASSWORD_CHANGE,)
        return BmcError(Cause.CREDENTIALS_REFUSED, f"{self._name}: {text}", status=403, message_ids=ids)

    async def _log_out(self) -> None:
        """Delete the session, as far as the BMC answers within `logout_seconds`, and close the connection."""
        path, self._session_path = self._session_path, ""
        try:
            if path and self._token:
                async with asyncio.timeout(self._limits.logout_seconds):
                    await self._exchange("DELETE", path)
        except (BmcError, TimeoutError) as error:
            log.info("the session stays until the BMC ends it: %s", error or "no answer to its deletion")
        finally:
            self._token = ""
            await self._transport.close()

    # --- requests --------------------------------------------------------------------------------------------------

    async def _request(
        self, method: str, path: str, document: Document | None = None, if_match: str | None = None
    ) -> Answer:
        """Send a request and return an answer of 2xx. Raises BmcError."""
        # Under the lock, a call that waits for its turn sees the refusal of the one before, and sends nothing.
        async with self._one_at_a_time:
            if self._is_refused:
                raise self._refused()
            answer = await self._exchange(method, path, document, if_match)
            if answer.status == 404 and self._slash is None and not path.endswith("/"):
                # Some BMCs know only the path with a slash at its end.
                with_slash = await self._exchange(method, f"{path}/", document, if_match)
                if with_slash.status != 404:
                    self._slash, answer = "/", with_slash
            elif self._slash is None and not path.endswith("/"):
                self._slash = ""
            if not 200 <= answer.status < 300:
                raise self._answered(answer, method, path)
            return answer

    async def _exchange(
        self, method: str, path: str, document: Document | None = None, if_match: str | None = None
    ) -> Answer:
        headers: dict[str, str] = {}
        if self._token:
            headers["X-Auth-Token"] = self._token
        elif self._uses_basic:
            await self.before_login()
            headers["Authorization"] = f"Basic {self._basic}"
        if if_match is not None:
            headers["If-Match"] = if_match
        body = None if document is None else orjson.dumps(document)
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._slash and "?" not in path and not path.endswith("/"):
            path += self._slash
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self._transport.exchange(method, path, headers, body)
            if answer.status not in (301, 302, 303, 307, 308):
                return answer
            # Also 301 and 302 keep the method: BMCs that add a slash mean the same request.
            if answer.status == 303:
                method, body = "GET", None
            target = self._redirect(answer)
            if self._slash is None and target == f"{path}/":
                self._slash = "/"
            path = target
        raise self._error(Cause.BAD_ANSWER, f"more than {MAX_REDIRECTS} redirects of {_text(path)}")

    def _redirect(self, answer: Answer) -> str:
        """Return the path of a redirect to the same origin. Raises BmcError."""
        location = answer.headers.get("Location", "")
        path = redfish_path(location)
        if path is None and self._is_own_url(location):
            path = self._location(answer)
        if path is None:
            raise self._error(Cause.BAD_ANSWER, f"it redirects to {redacted(_text(location))!r}, which is elsewhere")
        return path

    def _is_own_url(self, url: str) -> bool:
        try:
            parts = urlsplit(url)
            port = parts.port or 443
        except ValueError:
            return False
        own = (self._connection.host.lower().strip("[]"), self._connection.redfish_port)
        return parts.scheme == "https" and not parts.username and ((parts.hostname or ""), port) == own

    def _location(self, answer: Answer) -> str | None:
        """Return the path in a Location; it is requested from the BMC itself, whatever host the BMC thinks it has."""
        location = answer.headers.get("Location", "")
        if location.startswith(("http://", "https://")):
            location = "/" + location.partition("//")[2].partition("/")[2]
        return redfish_path(location)

    async def _document(self, path: str) -> Document:
        """Return the document at a path, and keep its ETag. Raises BmcError."""
        answer = await self._request("GET", path)
        try:
            document = parse_document(answer.body, self._limits)
        except ValueError as error:
            kind = _text(answer.headers.get("Content-Type"), 64) or "missing"
            text = f"the answer to GET {_text(path)} is {error} ({len(answer.body)} bytes, Content-Type {kind})"
            raise self._error(Cause.BAD_ANSWER, text, status=answer.status) from None
        etag = answer.headers.get("ETag") or document.get("@odata.etag")
        if isinstance(etag, str) and etag.isascii() and etag.isprintable() and len(etag) <= MAX_TEXT:
            self._etags[path] = etag
        else:
            self._etags.pop(path, None)
        return document

    async def _optional_document(self, path: str | None) -> Document:
        """Return the document at a path, or an empty one if the BMC has none that can be read there."""
        if path is None:
            return {}
        try:
            return await self._document(path)
        except BmcError as error:
            if error.cause not in (Cause.UNSUPPORTED, Cause.REFUSED, Cause.CONFLICT, Cause.BAD_ANSWER):
                raise
            log.debug("left out: %s", error)
            return {}

    async def _post(self, path: str, document: Document) -> None:
        await self._finish(await self._request("POST", path, document))

    async def _patch(self, path: str, document: Document) -> None:
        """Send a PATCH with the ETag in each form that BMCs accept: as sent, without `W/`, and without If-Match.

        Then the resource is read, and its present ETag tried, in case it has changed. Raises BmcError.
        """
        tried: list[str | None] = []
        for is_second in (False, True):
            if is_second:
                await self._document(path)
            for etag in _if_match_forms(self._etags.get(path)):
                if etag in tried:
                    continue
                tried.append(etag)
                try:
                    answer = await self._request("PATCH", path, document, etag)
                except BmcError as error:
                    if error.cause is not Cause.PRECONDITION:
                        raise
                    refusal = error
                else:
                    self._etags.pop(path, None)
                    await self._finish(answer)
                    return
        raise refusal

    def _answered(self, answer: Answer, method: str, path: str) -> BmcError:
        """Return the error for an answer that is not 2xx."""
        messages = _Messages()
        with suppress(ValueError):
            error = _object(parse_document(answer.body, self._limits).get("error"))
            messages = _messages(error.get("@Message.ExtendedInfo"), _text(error.get("message"), MAX_URL))
        if _PASSWORD_CHANGE in messages.names:
            return self._password_change()
        if answer.status == 401 and self._uses_basic:
            self._is_refused = True
            return self._refused(message_ids=tuple(map(self._scrubbed, messages.ids)))
        if answer.status == 401 and self._token:
            return self._error(Cause.BUSY, "it has ended the session; the next attempt logs in", status=401)
        text = f"it answers {answer.status} to {method} {_text(path)}"
        return self._refusal(_cause(answer.status, messages.names), text, messages, answer)

    def _refusal(self, cause: Cause, text: str, messages: _Messages, answer: Answer | None = None) -> BmcError:
        after = answer.headers.get("Retry-After", "") if answer is not None else ""
        is_seconds = after.isascii() and after.isdigit() and len(after) < 10
        # Secrets go before the text is cut, so that no half of one stays.
        words = self._scrubbed(messages.text)[:MAX_TEXT].strip(" :")
        detail = ": ".join(dict.fromkeys(each for each in (*messages.names[:1], words) if each))
        if not _NO_SESSION_LEFT.isdisjoint(messages.names):
            detail += "; all its sessions may be in use: log others out, or wait until they expire"
        return self._error(
            cause,
            f"{text}: {detail}" if detail else text,
            status=0 if answer is None else answer.status,
            message_ids=messages.ids,
            properties=messages.properties,
            retry_after=min(float(after), MAX_RETRY_AFTER_SECONDS) if is_seconds else 0.0,
        )

    def _error(
        self,
        cause: Cause,
        text: str,
        *,
        status: int = 0,
        message_ids: tuple[str, ...] = (),
        properties: tuple[str, ...] = (),
        retry_after: float = 0.0,
    ) -> BmcError:
        """Return an error without secrets, also if the BMC repeats them in its answer."""
        return BmcError(
            cause,
            f"{self._name}: {self._scrubbed(text)}",
            status=status,
            message_ids=tuple(map(self._scrubbed, message_ids)),
            properties=tuple(map(self._scrubbed, properties)),
            retry_after=retry_after,
        )

    @property
    def _name(self) -> str:
        return f"BMC {printable(self._connection.host)[:MAX_TEXT]}"

    def _scrubbed(self, text: str) -> str:
        for each in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(each, "…")
        return redacted(text)

    # --- tasks -----------------------------------------------------------------------------------------------------

    async def _finish(self, answer: Answer) -> None:
        """Wait for the end of the task that an answer names, if it names one (DSP0266, "Asynchronous operations").

        The Task is read, not the monitor, where both are known: Lenovo XCC deletes the Task of a monitor that is read.
        Raises BmcError if the task fails or does not end within `task_seconds`.
        """
        task, path = self._task(answer)
        if path is None:
            return
        clock = asyncio.get_running_loop().time
        started, pause, missing, is_known = clock(), self._limits.task_poll_seconds, 0, False
        while not self._has_ended(task):
            if clock() - started > self._limits.task_seconds:
                state = _text(task.get("TaskState")) or "unknown"
                text = f"the task {_text(path)} has not ended after {self._limits.task_seconds:g} s (TaskState {state})"
                raise self._error(Cause.CONFLICT, text)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 4 * self._limits.task_poll_seconds)
            try:
                answer = await self._request("GET", path)
            except BmcError as error:
                if error.status not in (404, 410):
                    raise
                # A Dell job is 404 just after it was made. A task that was there and is gone has ended.
                missing += 1
                if is_known or missing >= TRIES_OF_MISSING_TASK:
                    return
                pause = self._limits.missing_task_seconds
                continue
            is_known = True
            task, better = self._task(answer)
            if not task and answer.status != 202:
                return  # the monitor of a task that has ended has the answer of the operation
            path = better or path

    def _task(self, answer: Answer) -> tuple[Document, str | None]:
        """Return the Task in an answer, or an empty document, and the path to read next; None if there is no task."""
        document: Document = {}
        with suppress(ValueError):
            document = parse_document(answer.body, self._limits)
        if _text(document.get("@odata.type")).startswith("#Task."):
            return document, _link(document) or self._location(answer)
        return {}, self._location(answer) if answer.status == 202 else None

    def _has_ended(self, task: Document) -> bool:
        """Return True for a task that has succeeded or waits for the next restart. Raises BmcError if it has failed."""
        state, status = _text(task.get("TaskState")), _text(task.get("TaskStatus"))
        if state in ("Exception", "Killed", "Cancelled", "Interrupted") or (state, status) == ("Completed", "Critical"):
            messages = _messages(task.get("Messages"))
            text = f"its task ended with TaskState {state}"
            raise self._refusal(_cause(0, messages.names), text, messages)
        return state in ("Completed", "Pending")

    # --- resources -------------------------------------------------------------------------------------------------

    async def _read_system(self) -> Document:
        if self._system_path is None:
            if self.layout is not None and await self._read_known_system(self.layout.system):
                return self._system
            self._system_path = await self._find_system()
        self._system = await self._document(self._system_path)
        return self._system

    async def _read_known_system(self, path: str) -> bool:
        """Read the System where an earlier session found it. Return False if it is not there any more."""
        try:
            system = await self._document(path)
        except BmcError as error:
            if error.cause not in (Cause.UNSUPPORTED, Cause.REFUSED):
                raise
            log.debug("the System is no longer at %s: %s", path, error)
        else:
            if self._is_wanted(path, system):
                self._system_path, self._system = path, system
                return True
        self._forget_layout()
        return False

    def _is_wanted(self, path: str, system: Document) -> bool:
        """Return True if a System is that of the connection's `system_name`."""
        wanted, last = self._connection.system_name, path.rstrip("/").rpartition("/")[2]
        return not wanted or wanted in (last, system.get("Id"), system.get("Name"), system.get("HostName"))

    async def _known_system(self) -> Document:
        return self._system or await self._read_system()

    async def _find_system(self) -> str:
        systems = _link((await self._read_root()).get("Systems"))
        if systems is None:
            raise self._error(Cause.UNSUPPORTED, "the service root has no Systems")
        paths = _links((await self._document(systems)).get("Members"))
        wanted = self._connection.system_name
        if not wanted:
            if not paths:
                raise self._error(Cause.UNSUPPORTED, "it has no System")
            return paths[0]
        for path in paths:
            if path.rstrip("/").rpartition("/")[2] == wanted:
                return path
        for path in paths[:MAX_SYSTEMS]:
            if self._is_wanted(path, await self._optional_document(path)):
                return path
        names = ", ".join(path.rstrip("/").rpartition("/")[2] for path in paths[:MAX_SYSTEMS])
        raise self._error(Cause.UNSUPPORTED, f"it has no System {wanted!r}; it has {names or 'none'}")

    async def _read_manager(self, system: Document) -> Document:
        if self._manager is None:
            paths = _links(_object(system.get("Links")).get("ManagedBy"))
            if not paths:  # Huawei 1288H
                managers = await self._optional_document(_link((await self._read_root()).get("Managers")))
                paths = _links(managers.get("Members"))
            self._manager = await self._optional_document(paths[0] if paths else None)
        return self._manager

    async def _read_layout(self, system: Document) -> RedfishLayout:
        root, manager = await self._read_root(), await self._read_manager(system)
        return RedfishLayout(
            sessions=self._sessions_path,
            system=self._system_path or "",
            slash=self._slash,
            vendor=_text(root.get("Vendor")),
            product=_text(root.get("Product")),
            redfish=_text(root.get("RedfishVersion")),
            firmware=_text(manager.get("FirmwareVersion")),
            resets=self._resets,
        )

    async def _allowed_resets(self, system: Document) -> tuple[str, ...]:
        action = _object(_object(system.get("Actions")).get("#ComputerSystem.Reset"))
        allowed = _texts(action.get("ResetType@Redfish.AllowableValues"))
        if allowed:
            return allowed
        if self._resets is None:
            info = await self._optional_document(redfish_path(action.get("@Redfish.ActionInfo")))
            parameters = [_object(each) for each in _list(info.get("Parameters"))]
            listed = [each.get("AllowableValues") for each in parameters if each.get("Name") == "ResetType"]
            self._resets = _texts(listed[0] if listed else None)
        return self._resets

    def _settings_path(self, system: Document) -> str | None:
        return _link(_object(system.get("@Redfish.Settings")).get("SettingsObject"))

    async def _read_boot(self, system: Document) -> tuple[Boot | None, Boot | None]:
        """Return the boot override, and the one that waits in the settings resource."""
        boot = system.get("Boot")
        if not isinstance(boot, dict):
            return None, None
        settings: object = None
        path = self._settings_path(system)
        if path is not None and self._has_boot_settings:
            settings = (await self._optional_document(path)).get("Boot")
            self._has_boot_settings = isinstance(settings, dict)
        if not isinstance(settings, dict):
            return _boot(boot), None
        # Dell iDRAC10 lists the allowable values in the settings resource alone.
        allowed = {name: value for name, value in settings.items() if name.endswith("@Redfish.AllowableValues")}
        pending = _boot(settings)
        is_pending = any(each is not None for each in (pending.target, pending.enabled, pending.mode, pending.http_uri))
        return _boot({**allowed, **boot}), pending if is_pending else None

    async def _set_boot(self, request: SetBoot) -> None:
        named = {
            "BootSourceOverrideTarget": request.target,
            "BootSourceOverrideEnabled": request.enabled,
            "BootSourceOverrideMode": request.mode,
            "HttpBootUri": request.http_uri,
        }
        self._secrets |= _url_secrets(request.http_uri or "")
        system = await self._known_system()
        path = self._settings_path(system) if request.at_settings else self._system_path
        if path is None:
            raise self._error(Cause.UNSUPPORTED, "the System has no @Redfish.Settings")
        await self._patch(path, {"Boot": {name: value for name, value in named.items() if value is not None}})

    async def _read_slots(self, system: Document) -> tuple[Slot, ...]:
        if self._slot_paths is None:
            # Dell iDRAC from 6.00.02 has them below the System, older ones and most others below the Manager.
            paths: list[str] = []
            for owner in (system, await self._read_manager(system)):
                media = await self._optional_document(_link(owner.get("VirtualMedia")))
                paths += _links(media.get("Members"))[:MAX_SLOTS]
            self._slot_paths = list(dict.fromkeys(paths))
        found = {path: await self._optional_document(path) for path in self._slot_paths}
        self._slot_documents = {path: document for path, document in found.items() if document}
        return tuple(_slot(path, document) for path, document in self._slot_documents.items())

    def _checked_slot(self, slot: str) -> str:
        path = redfish_path(slot)
        if path is None:
            raise self._error(Cause.UNSUPPORTED, f"{_text(slot)!r} is not the path of a slot")
        return path

    async def _slot_action(self, slot: str, name: str) -> str:
        """Return the path of an action of a slot. Raises BmcError if the slot has no such action."""
        path = self._checked_slot(slot)
        document = self._slot_documents.get(path) or await self._document(path)
        action = _object(document.get("Actions")).get(f"#VirtualMedia.{name}")
        if not isinstance(action, dict):
            raise self._error(Cause.UNSUPPORTED, f"the slot {path} has no action {name}")
        return redfish_path(action.get("target")) or f"{path.rstrip('/')}/Actions/VirtualMedia.{name}"


def _sessions_of(root: Document) -> str:
    """Return the path of the sessions that a service root names; empty if it names none."""
    service = _link(root.get("SessionService"))
    return _link(_object(root.get("Links")).get("Sessions")) or (f"{service.rstrip('/')}/Sessions" if service else "")


def _identity(layout: RedfishLayout, system: Document) -> Identity:
    return Identity(
        vendor=_text(system.get("Manufacturer")) or layout.vendor,
        model=_text(system.get("Model")) or layout.product,
        firmware=layout.firmware,
        bios=_text(system.get("BiosVersion")),
        serial=_text(system.get("SerialNumber")),
        redfish=layout.redfish,
    )


def _if_match_forms(etag: str | None) -> list[str | None]:
    """Return the values of If-Match to try in this order; None stands for a request without it (RFC 9110 13.1.1)."""
    return list(dict.fromkeys([etag or None, (etag or "").removeprefix("W/") or None, None]))
