"""A fake BMC with the faults of real ones: `FakeBmc` is a pure state machine, `serve` puts it on loopback with TLS.

    bmc = FakeBmc(faults={Fault.MODE_REFUSED})
    answer = bmc.handle("GET", "/redfish/v1/", {}, b"", now=0.0)

    async with serve(bmc) as served:  # real sockets, real time
        client = RedfishClient(served.connection(), CREDENTIALS)

    client = RedfishClient(CONNECTION, CREDENTIALS, transport=MemoryTransport(bmc))  # no sockets: virtual time

A test sets `bmc.power`, `bmc.faults`, `bmc.accounts` and the other public attributes at any time. It reads back
`requests`, `writes`, `resets`, `boots`, `logins`, `failed_logins` and `open_sessions`. Times are in seconds of the
caller's clock.

"row N" in this file is a known fault of real BMCs: the row of that number in `tink.bmc.quirks`.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import heapq
import itertools
import json
import ssl
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache
from ipaddress import ip_address
from typing import Any

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from multidict import CIMultiDict

from tink.bmc.model import BmcConnection, BmcCredentials, BmcError, Cause
from tink.bmc.redfish import Answer
from tink.kube.certificates import builder, common_name, new_key, private_pem, show
from tink.net.aiohttp_requests import received_requests

Document = dict[str, Any]

USER = "root"
PASSWORD = "c4lvin-and-h0bbes"  # unlike any word of a message, so that a test can search for it
CREDENTIALS = BmcCredentials(USER, PASSWORD, version="1")
CONNECTION = BmcConnection("192.0.2.10")

ROOT = "/redfish/v1"
SYSTEM = f"{ROOT}/Systems/1"
SETTINGS = f"{SYSTEM}/SD"
MANAGER = f"{ROOT}/Managers/1"
CHASSIS = f"{ROOT}/Chassis/1"
SESSIONS = f"{ROOT}/SessionService/Sessions"
RESET = f"{SYSTEM}/Actions/ComputerSystem.Reset"
TASK_SECONDS = 2.5
RESETS = ("On", "ForceOff", "GracefulShutdown", "ForceRestart", "PowerCycle")
_PARTS = ("EthernetInterfaces", "Memory", "Processors", "Storage")

TARGET, ENABLED, MODE = "BootSourceOverrideTarget", "BootSourceOverrideEnabled", "BootSourceOverrideMode"


class Fault(StrEnum):
    """The faults that a test switches on. "For a while" means for `fault_seconds`."""

    # Lies about power
    RESET_IGNORED = "accepts resets and ignores them"
    FIRST_ON_IGNORED = "ignores the first On (row 19)"
    POWER_LATE = "changes the power state only after a while"
    ON_CONFLICT = "refuses On with 409 for a while after Off (row 20)"
    NOT_READY = "InvalidOperationForSystemState for a while after a change of power (row 10)"
    NO_LAST_RESET = "reports no LastResetTime"

    # Lies about the boot override
    BOOT_IGNORED = "accepts boot overrides and ignores them"
    BOOT_LOST = "loses the boot override at the next start (row 18)"
    WRONG_ENABLED = "turns Once into Continuous"
    ONLY_TARGET_KEPT = "keeps the target; the mode becomes Legacy, enabled becomes Disabled (row 1)"
    MODE_FALLS_BACK = "a change without the mode resets the mode to Legacy (row 2)"
    ENABLED_FALLS_BACK = "a target without enabled becomes Once (row 3)"
    ENABLED_SAME_REFUSED = "refuses an enabled that is so already (row 4)"
    ENABLED_REQUIRED = "refuses a target without enabled"
    MODE_ALONE = "refuses the mode beside other properties (row 5)"
    FULL_REQUEST_REQUIRED = "demands target, enabled and mode (row 6)"
    MODE_REFUSED = "the mode is not writable (row 7)"
    TARGET_NONE_REFUSED = "refuses the target None (row 8)"
    POST_LOCK = "UnableToModifyDuringSystemPOST while the machine starts (row 9)"
    NO_MODE = "has no mode (row 11)"
    CD_IS_USB_CD = "knows the target UsbCd, not Cd (row 12)"
    READS_UEFI_TARGET = "reports UefiTarget after Pxe (row 16)"
    ERROR_THOUGH_DONE = "answers 400 to a boot change that it makes (row 17)"
    ALLOWED_AT_SETTINGS = "lists allowable values only in the settings resource (row 21)"
    SETTINGS_RESOURCE = "the boot override is writable only in the settings resource (row 22)"
    HTTP_URI = "has HttpBootUri and the target UefiHttp; without this fault it has not (row 23)"
    NO_CONTINUOUS = "allows Once and Disabled only (row 24)"
    NO_BOOT_OVERRIDE = "has no boot override (row 43)"

    # Virtual media
    MEDIA_IGNORED = "accepts media and ignores them"
    MEDIA_AT_SYSTEM = "virtual media are below the System (row 34)"
    EJECT_LATE = "reports the medium for a while after its ejection, and 500 to an insertion meanwhile (row 35)"
    INSERTED_REFUSED = "refuses everything beside Image (row 37)"
    IMAGE_STAYS = "keeps Image after an ejection; ConnectedVia is NotConnected (row 37)"
    MEDIA_BY_PATCH = "has no InsertMedia; PATCH with Inserted (row 38)"
    EJECT_BODY_REQUIRED = "an ejection without a body: 415 (row 39)"
    TRANSFER_REQUIRED = "demands TransferProtocolType and TransferMethod (row 40)"
    FIRST_SLOT_BROKEN = "the first slot has no InsertMedia: 405 (row 41)"

    # The service
    NO_MANAGED_BY = "has no ManagedBy (row 42)"
    LIMIT_REACHED = "has no session left: 503 (row 29)"
    STORM_503 = "answers 503 to everything for a while (row 31)"
    SYS518 = "answers 400 SYS518 to writes for a while (row 31)"
    LOCK_OUT = "locks the account after the first failed login (row 33)"
    PASSWORD_CHANGE_REQUIRED = "demands a new password"
    ECHO = "repeats the request in its error messages"
    LOCATION_ABSOLUTE = "Location is an absolute URL"
    LOCATION_ELSEWHERE = "Location names another origin"
    NO_SESSION_SERVICE = "has no sessions, and the service root names none; Basic authentication"
    NO_TOKEN = "the login has no X-Auth-Token"
    ETAG_REQUIRED = "428 to a PATCH without If-Match (row 26)"
    ETAG_REFUSED = "412 to a PATCH with If-Match (row 27)"
    ETAG_WEAK = "sends weak ETags and accepts them only without W/ (row 28)"
    ETAG_EMPTY = "sends an empty ETag and refuses it (row 28)"
    GZIP_REQUIRED = "406 to a request that does not accept gzip (row 48)"
    TRAILING_SLASH = "404 to a path without a slash at its end (row 49)"
    REDIRECT_SAME = "redirects each path to the one with a slash at its end (row 49)"
    REDIRECT_OTHER = "redirects `broken_path` to another origin"
    REDIRECT_PLAIN = "redirects `broken_path` to HTTP without TLS"
    REDIRECT_LOOP = "redirects `broken_path` to itself"
    ETHERNET_404 = "EthernetInterfaces are 404 (row 53)"

    # Tasks
    TASKS = "answers resets, boot changes and media with 202 and a task"
    TASK_NEVER_ENDS = "the same, and the task never ends"
    TASK_FAILS = "the same, and the task ends with Exception"
    TASK_PENDING = "the same, and the task waits for the next start"
    TASK_404_FIRST = "the task is 404 at the first two reads (row 32)"
    TASK_MONITOR_ONLY = "the answer names only the monitor"
    TASK_MONITOR_DELETES = "a read of the monitor of an ended task deletes the task (row 30)"

    KEPT_CONNECTION_BREAKS = "closes a connection at its second request (row 50)"

    # The answers of 2xx to requests of `broken_path`
    CUT_JSON = "JSON that ends early (row 49)"
    CUT_CONNECTION = "a body that is shorter than its Content-Length"
    HUGE = "a body of 2 MiB"
    MANY_VALUES = "a list of 200,000 numbers"
    DEEP = "an object in an object, 400 times"
    DEEPER = "a list in a list, 100,000 times"
    DRIP = "a byte from time to time"
    ENDLESS = "a chunked body without an end"
    HANG = "no answer at all"
    XML = "XML"
    HTML_LOGIN = "a page with a login form"
    BAD_ENCODING = "Latin-1 instead of UTF-8"
    NOT_AN_OBJECT = "a JSON list"
    NO_BODY = "200 without a body"
    WRONG_TYPES = "numbers where the schema has objects and text"
    GZIP = "an answer in gzip"
    GZIP_BOMB = "64 MiB of blanks in gzip"
    BAD_GZIP = "no gzip where the header promises it"
    UNKNOWN_CODING = "a content coding that was not asked for"
    MANY_HEADERS = "a thousand headers"
    LONG_HEADER = "a header of 64 KiB"
    LATE_401 = "401 although the session is good: the BMC ended it"


_TASK_FAULTS = {Fault.TASKS, Fault.TASK_NEVER_ENDS, Fault.TASK_FAILS, Fault.TASK_PENDING}


class Delivery(StrEnum):
    """How the server sends an answer."""

    WHOLE = "whole"
    CUT = "half of the body, then the connection ends"
    DRIP = "byte by byte"
    ENDLESS = "more and more chunks"
    HANG = "not at all"


@dataclass(frozen=True)
class FakeAnswer:
    """An HTTP response. The server alone can do what `delivery` says."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    delivery: Delivery = Delivery.WHOLE

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)


@dataclass
class FakeSlot:
    """A virtual drive."""

    path: str
    kinds: tuple[str, ...]
    image: str | None = None
    inserted: bool = False
    leaving_until: float = 0.0
    properties: dict[str, Any] = field(default_factory=dict)
    """The properties that the last insertion sent beside Image."""


@dataclass
class FakeTask:
    """A task: its state, and the number of reads so far."""

    path: str
    monitor: str
    state: str = "Running"
    reads: int = 0


class _RefusalError(Exception):
    def __init__(
        self, status: int, message_id: str, *args: str, properties: tuple[str, ...] = (), registry: str = "Base.1.8"
    ) -> None:
        super().__init__(message_id)
        self.status, self.message_id, self.message_args = status, f"{registry}.{message_id}", args
        self.properties = properties


class FakeBmc:
    """The state of a BMC and its machine.

    power: "On" or "Off". power_seconds: time from a reset to the new power state. post_seconds: time from power on to
    the boot. shutdown_seconds: time that the operating system takes to shut down; None: it does not listen.
    session_limit: sessions at once. fault_seconds: duration of the faults that last a while. broken_path: the path
    with the broken answers.
    """

    def __init__(
        self,
        *,
        vendor: str = "Contoso",
        model: str = "3500",
        firmware: str = "1.45.455b66-rev4",
        faults: Iterable[Fault] = (),
        power: str = "Off",
        power_seconds: float = 0.0,
        post_seconds: float = 0.0,
        shutdown_seconds: float | None = 0.0,
        session_limit: int = 8,
        fault_seconds: float = 30.0,
        broken_path: str = SYSTEM,
        slots: tuple[tuple[str, tuple[str, ...]], ...] = (("CD", ("CD", "DVD")), ("USB", ("USBStick", "Floppy"))),
        accounts: Mapping[str, str] | None = None,
        mac: str = "52:54:00:00:00:01",
        serial: str = "437XR1138R2",
    ) -> None:
        self.vendor, self.model, self.firmware, self.bios, self.serial = vendor, model, firmware, "P79 v1.45", serial
        self.faults = set(faults)
        self.power, self.power_seconds, self.post_seconds = power, power_seconds, post_seconds
        self.shutdown_seconds = shutdown_seconds
        self.session_limit, self.fault_seconds, self.broken_path = session_limit, fault_seconds, broken_path
        self.accounts = dict(accounts or {USER: PASSWORD})
        self.mac = mac
        self.boot: Document = {TARGET: "None", ENABLED: "Disabled", MODE: "UEFI", "HttpBootUri": None}
        self.pending_boot: Document = {}
        at = SYSTEM if Fault.MEDIA_AT_SYSTEM in self.faults else MANAGER
        self.slots = [FakeSlot(f"{at}/VirtualMedia/{name}", kinds) for name, kinds in slots]
        self.tasks: dict[str, FakeTask] = {}
        self.sessions: dict[str, str] = {}
        self.locked: set[str] = set()
        self.overlay: dict[str, Document | None] = {}
        """Documents that replace or extend the fake's own, by their paths; None: 404."""

        self.requests: list[tuple[str, str, int]] = []
        """Method, path and status of each request."""
        self.bodies: list[tuple[str, str, Any]] = []
        """Method, path and parsed body of each request with a body, without logins."""
        self.resets: list[str] = []
        """ResetType of each reset that was accepted."""
        self.boots: list[str] = []
        """Target of each boot of the machine; Hdd without an override."""
        self.logins = self.failed_logins = 0
        self.basic_requests = 0
        self.last_headers: dict[str, str] = {}

        self._now = 0.0
        self._start: float | None = None
        self._power_changed = self._switched_off = self._post_ends = float("-inf")
        self._reset_at = 0.0
        self._on_count = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count(1)

    # --- the door -----------------------------------------------------------------------------------------------------

    @property
    def open_sessions(self) -> int:
        """The number of sessions that nothing has deleted."""
        return len(self.sessions)

    def handle(self, method: str, path: str, headers: Mapping[str, str], body: bytes, now: float) -> FakeAnswer:
        """Answer a request at the time `now`, after all that has happened until then."""
        self.run_until(now)
        self.last_headers = lower = {name.lower(): value for name, value in headers.items()}
        try:
            answer = self._checked(method, path, lower, body)
        except _RefusalError as refusal:
            answer = self._error(refusal, lower, body)
        answer = self._broken(method, path, answer)
        self.requests.append((method, path, answer.status))
        return answer

    def run_until(self, now: float) -> None:
        """Let everything happen that is due at `now`: changes of power, boots, ends of tasks."""
        self._start = now if self._start is None else self._start
        while self._events and self._events[0][0] <= now:
            due, _, happen = heapq.heappop(self._events)
            self._now = max(self._now, due)
            happen()
        self._now = max(self._now, now)

    def writes(self) -> list[tuple[str, str, Any]]:
        """Return method, path and body of each request that changes something, without sessions."""
        return [each for each in self.bodies if SESSIONS not in each[1]]

    # --- requests -----------------------------------------------------------------------------------------------------

    def _checked(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> FakeAnswer:
        if self._has(Fault.STORM_503) and self._now < (self._start or 0.0) + self.fault_seconds:
            raise _RefusalError(503, "ServiceTemporarilyUnavailable", "2")
        if self._has(Fault.GZIP_REQUIRED) and "gzip" not in headers.get("accept-encoding", ""):
            raise _RefusalError(406, "HeaderInvalid", "Accept-Encoding")
        bare = path.partition("?")[0]
        if not bare.endswith("/"):
            if self._has(Fault.TRAILING_SLASH):
                raise _RefusalError(404, "ResourceMissingAtURI", path)
            if self._has(Fault.REDIRECT_SAME):
                return FakeAnswer(308, headers={"Location": f"{bare}/"})
        bare = bare.rstrip("/")
        elsewhere = {
            Fault.REDIRECT_OTHER: f"https://other.invalid{bare}",
            Fault.REDIRECT_PLAIN: f"http://127.0.0.1{bare}",
            Fault.REDIRECT_LOOP: bare,
        }
        if bare == self.broken_path:
            for fault, location in elsewhere.items():
                if self._has(fault):
                    return FakeAnswer(302, headers={"Location": location})
        document = self._parsed(method, body)
        if document is not None and bare != SESSIONS:
            self.bodies.append((method, bare, document))
        if (method, bare) == ("POST", SESSIONS):
            return self._login(document)
        if bare not in ("/redfish", ROOT):
            self._authenticate(bare, headers)
        return self._routed(method, bare, headers, document)

    def _parsed(self, method: str, body: bytes) -> Document | None:
        if method in ("GET", "DELETE") or not body:
            return None
        try:
            document = json.loads(body)
        except ValueError:
            raise _RefusalError(400, "MalformedJSON") from None
        if not isinstance(document, dict):
            raise _RefusalError(400, "UnrecognizedRequestBody")
        return document

    def _login(self, document: Document | None) -> FakeAnswer:
        if self.overlay.get(SESSIONS, {}) is None or self._has(Fault.NO_SESSION_SERVICE):
            raise _RefusalError(404, "ResourceMissingAtURI", SESSIONS)
        self.logins += 1
        user, password = str((document or {}).get("UserName")), str((document or {}).get("Password"))
        self._check_account(user, password)
        if self._has(Fault.LIMIT_REACHED) or len(self.sessions) >= self.session_limit:
            raise _RefusalError(503, "RAC0218", registry="IDRAC.2.8")
        number = str(next(self._count))
        path, token = f"{SESSIONS}/{number}", hashlib.sha256(f"{id(self)}/{number}".encode()).hexdigest()
        self.sessions[path] = token
        location = f"https://other.invalid{path}" if self._has(Fault.LOCATION_ELSEWHERE) else path
        if self._has(Fault.LOCATION_ABSOLUTE):
            location = f"https://{{origin}}{path}"
        session: Document = _resource(path, "Session", "v1_3_0", UserName=user)
        if self._has(Fault.PASSWORD_CHANGE_REQUIRED):
            session["@Message.ExtendedInfo"] = [{"MessageId": "Base.1.8.PasswordChangeRequired", "MessageArgs": [path]}]
        headers = {"Location": location} | ({} if self._has(Fault.NO_TOKEN) else {"X-Auth-Token": token})
        return FakeAnswer(201, _encoded(session), headers)

    def _check_account(self, user: str, password: str) -> None:
        if self.accounts.get(user) == password and user not in self.locked:
            return
        self.failed_logins += 1
        if self._has(Fault.LOCK_OUT):
            self.locked.add(user)
        raise _RefusalError(401, "ResourceAtUriUnauthorized", SESSIONS, "the user or the password is wrong")

    def _authenticate(self, path: str, headers: Mapping[str, str]) -> None:
        token, basic = headers.get("x-auth-token"), headers.get("authorization", "")
        if basic.startswith("Basic "):
            self.basic_requests += 1
            user, _, password = base64.b64decode(basic.removeprefix("Basic ")).decode().partition(":")
            self._check_account(user, password)
        elif token not in self.sessions.values() or (path == self.broken_path and self._has(Fault.LATE_401)):
            raise _RefusalError(401, "NoValidSession")
        if self._has(Fault.PASSWORD_CHANGE_REQUIRED) and not path.startswith(SESSIONS):
            raise _RefusalError(403, "PasswordChangeRequired", f"{ROOT}/AccountService/Accounts/1")

    def _routed(self, method: str, path: str, headers: Mapping[str, str], document: Document | None) -> FakeAnswer:
        if method == "DELETE" and path in self.sessions:
            del self.sessions[path]
            return FakeAnswer(204)
        if method == "GET":
            return self._get(path)
        if method not in ("PATCH", "POST"):
            raise _RefusalError(405, "OperationNotAllowed")
        self._check_time_for_writes()
        if method == "PATCH":
            return self._patch(path, headers, document or {})
        if path == RESET:
            return self._reset(str((document or {}).get("ResetType")))
        for slot in self.slots:
            if path.startswith(f"{slot.path}/Actions/"):
                return self._media_action(slot, path.rpartition(".")[2], document)
        raise _RefusalError(404, "ResourceMissingAtURI", path)

    def _check_time_for_writes(self) -> None:
        if self._has(Fault.SYS518) and self._now < (self._start or 0.0) + self.fault_seconds:
            raise _RefusalError(400, "SYS518", registry="IDRAC.2.8")
        if self._has(Fault.NOT_READY) and self._now < self._power_changed + self.fault_seconds:
            raise _RefusalError(400, "InvalidOperationForSystemState", registry="iLO.2.14")

    def _get(self, path: str) -> FakeAnswer:
        for task in self.tasks.values():
            if path in (task.path, task.monitor):
                return self._task_read(task, path)
        document = self.documents().get(path)
        if document is None:
            raise _RefusalError(404, "ResourceMissingAtURI", path)
        return FakeAnswer(200, _encoded(document), {"ETag": self._etag(path)})

    def _etag(self, path: str) -> str:
        if self._has(Fault.ETAG_EMPTY):
            return ""
        tag = f'"{hashlib.sha256(_encoded(self.documents()[path])).hexdigest()[:8]}"'
        return f"W/{tag}" if self._has(Fault.ETAG_WEAK) else tag

    def _error(self, refusal: _RefusalError, headers: Mapping[str, str], body: bytes) -> FakeAnswer:
        text = f"{refusal.message_id.rpartition('.')[2]}: {', '.join(refusal.message_args)}"
        if self._has(Fault.ECHO):
            text += f" for {headers.get('authorization', '')} in {body.decode(errors='replace')}"
        info: Document = {"MessageId": refusal.message_id, "Message": text, "MessageArgs": list(refusal.message_args)}
        if refusal.properties:
            info["RelatedProperties"] = [f"#/Boot/{each}" for each in refusal.properties]
        error = {
            "code": "Base.1.8.GeneralError",
            "message": "A general error has occurred.",
            "@Message.ExtendedInfo": [info],
        }
        return FakeAnswer(
            refusal.status, _encoded({"error": error}), {"Retry-After": "2"} if refusal.status == 503 else {}
        )

    def _has(self, fault: Fault) -> bool:
        return fault in self.faults

    def _later(self, seconds: float, happen: Callable[[], None]) -> None:
        if seconds <= 0:
            happen()
        else:
            heapq.heappush(self._events, (self._now + seconds, next(self._count), happen))

    # --- documents ----------------------------------------------------------------------------------------------------

    def documents(self) -> dict[str, Document]:
        """Return all documents by their paths; for tests of readers of documents, too."""
        found = {ROOT: self._root(), SYSTEM: self._system(), "/redfish": {"v1": f"{ROOT}/"}}
        if self._has(Fault.SETTINGS_RESOURCE) or self._has(Fault.ALLOWED_AT_SETTINGS):
            boot = self._boot_document() if self._has(Fault.ALLOWED_AT_SETTINGS) else {}
            found[SETTINGS] = _resource(
                SETTINGS, "ComputerSystem", "v1_14_0", Boot={**boot, **self._allowed(), **self.pending_boot}
            )
        found |= {each["@odata.id"]: each for each in self._hardware()}
        found |= {slot.path: self._slot_document(slot) for slot in self.slots}
        found |= {path: _resource(path, "Session", "v1_3_0", UserName=USER) for path in self.sessions}
        found[SESSIONS] = _collection(SESSIONS, "Session", list(self.sessions))
        media = (SYSTEM if self._has(Fault.MEDIA_AT_SYSTEM) else MANAGER) + "/VirtualMedia"
        found[media] = _collection(media, "VirtualMedia", [slot.path for slot in self.slots])
        if self._has(Fault.ETHERNET_404):
            found = {path: each for path, each in found.items() if "/EthernetInterfaces" not in path}
        return {path: each for path, each in (found | self.overlay).items() if each is not None}

    def _root(self) -> Document:
        sessions = () if self._has(Fault.NO_SESSION_SERVICE) else ("SessionService",)
        links = {name: {"@odata.id": f"{ROOT}/{name}"} for name in ("Systems", "Managers", "Chassis", *sessions)}
        return _resource(
            ROOT, "ServiceRoot", "v1_15_0",
            RedfishVersion="1.15.0", UUID="92384634-2938-2342-8820-489239905423",
            Vendor=self.vendor, Product=self.model,
            Links={"Sessions": {"@odata.id": SESSIONS}} if sessions else {}, **links,
        ) | {"@odata.id": f"{ROOT}/"}  # fmt: skip

    def _system(self) -> Document:
        system = _resource(
            SYSTEM, "ComputerSystem", "v1_20_0",
            Manufacturer=self.vendor, Model=self.model, SerialNumber=self.serial, SKU="8675309", BiosVersion=self.bios,
            UUID="38947555-7742-3448-3784-823347823834", SystemType="Physical", PowerState=self.power, HostName="",
            Status={"State": "Enabled", "Health": "OK"},
            MemorySummary={"TotalSystemMemoryGiB": 64}, ProcessorSummary={"Count": 2, "Model": "Contoso 7000"},
            Actions={"#ComputerSystem.Reset": {"target": RESET, "ResetType@Redfish.AllowableValues": list(RESETS)}},
            Links={"Chassis": [{"@odata.id": CHASSIS}], "ManagedBy": [{"@odata.id": MANAGER}]},
            **{each: {"@odata.id": f"{SYSTEM}/{each}"} for each in _PARTS},
        )  # fmt: skip
        if self._has(Fault.NO_MANAGED_BY):
            del system["Links"]["ManagedBy"]
        if self._has(Fault.MEDIA_AT_SYSTEM):
            system["VirtualMedia"] = {"@odata.id": f"{SYSTEM}/VirtualMedia"}
        if not self._has(Fault.NO_LAST_RESET):
            system["LastResetTime"] = f"{datetime.fromtimestamp(self._reset_at, UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
        if self._has(Fault.SETTINGS_RESOURCE) or self._has(Fault.ALLOWED_AT_SETTINGS):
            system["@Redfish.Settings"] = {"SettingsObject": {"@odata.id": SETTINGS}}
        if not self._has(Fault.NO_BOOT_OVERRIDE):
            system["Boot"] = self._boot_document()
            if not self._has(Fault.ALLOWED_AT_SETTINGS):
                system["Boot"] |= self._allowed()
        return system

    def _boot_document(self) -> Document:
        boot = dict(self.boot)
        if self._has(Fault.NO_MODE):
            del boot[MODE]
        if not self._has(Fault.HTTP_URI):
            del boot["HttpBootUri"]
        if self._has(Fault.READS_UEFI_TARGET) and boot[TARGET] == "Pxe":
            boot[TARGET] = "UefiTarget"
        return boot

    def _allowed(self) -> Document:
        targets = [
            "None",
            "Pxe",
            "UsbCd" if self._has(Fault.CD_IS_USB_CD) else "Cd",
            "Hdd",
            "BiosSetup",
            "Diags",
            "Utilities",
        ]
        enabled = ["Disabled", "Once"] + ([] if self._has(Fault.NO_CONTINUOUS) else ["Continuous"])
        return {
            f"{TARGET}@Redfish.AllowableValues": targets + (["UefiHttp"] if self._has(Fault.HTTP_URI) else []),
            f"{ENABLED}@Redfish.AllowableValues": enabled,
        }

    def _slot_document(self, slot: FakeSlot) -> Document:
        document = _resource(
            slot.path, "VirtualMedia", "v1_6_0", MediaTypes=list(slot.kinds), Image=slot.image, Inserted=slot.inserted,
            ImageName=(slot.image or "").rpartition("/")[2], ConnectedVia="URI" if slot.inserted else "NotConnected",
            WriteProtected=True,
        )  # fmt: skip
        broken = self._has(Fault.FIRST_SLOT_BROKEN) and slot is self.slots[0]
        if self._has(Fault.IMAGE_STAYS):
            del document["Inserted"]
        if not broken and not self._has(Fault.MEDIA_BY_PATCH):
            document["Actions"] = {
                f"#VirtualMedia.{name}": {"target": f"{slot.path}/Actions/VirtualMedia.{name}"}
                for name in ("InsertMedia", "EjectMedia")
            }
        return document

    def _hardware(self) -> Iterable[Document]:
        """Yield what an inventory reads: managers, chassis, network, memory, processors, storage."""
        yield _collection(f"{ROOT}/Systems", "ComputerSystem", [SYSTEM])
        yield _collection(f"{ROOT}/Managers", "Manager", [MANAGER])
        yield _resource(
            MANAGER, "Manager", "v1_17_0", ManagerType="BMC", FirmwareVersion=self.firmware, Model="Contoso BMC",
            EthernetInterfaces={"@odata.id": f"{MANAGER}/EthernetInterfaces"},
            **({} if self._has(Fault.MEDIA_AT_SYSTEM) else {"VirtualMedia": {"@odata.id": f"{MANAGER}/VirtualMedia"}}),
        )  # fmt: skip
        yield from _members(
            f"{MANAGER}/EthernetInterfaces", "EthernetInterface", {"eth0": {"MACAddress": "52:54:00:ff:00:01"}}
        )
        yield _resource(
            f"{ROOT}/SessionService", "SessionService", "v1_1_8", Sessions={"@odata.id": SESSIONS}, SessionTimeout=1800
        )
        yield _collection(f"{ROOT}/Chassis", "Chassis", [CHASSIS])
        adapters = f"{CHASSIS}/NetworkAdapters"
        yield _resource(
            CHASSIS, "Chassis", "v1_21_0", ChassisType="RackMount", Manufacturer=self.vendor, Model=self.model,
            SerialNumber=self.serial, PartNumber="224071-J23", NetworkAdapters={"@odata.id": adapters},
            PowerSubsystem={"@odata.id": f"{CHASSIS}/PowerSubsystem"},
        )  # fmt: skip
        supplies = f"{CHASSIS}/PowerSubsystem/PowerSupplies"
        yield _resource(f"{CHASSIS}/PowerSubsystem", "PowerSubsystem", "v1_1_0", PowerSupplies={"@odata.id": supplies})
        yield from _members(supplies, "PowerSupply", {"Bay1": {"SerialNumber": "3488247", "PowerCapacityWatts": 800}})
        yield from _members(
            adapters,
            "NetworkAdapter",
            {"1": {"Manufacturer": self.vendor, "Ports": {"@odata.id": f"{adapters}/1/Ports"}}},
        )
        yield from _members(
            f"{adapters}/1/Ports",
            "Port",
            {"1": {"Ethernet": {"AssociatedMACAddresses": [self.mac.upper()]}, "LinkStatus": "LinkUp"}},
        )
        nic = {
            "MACAddress": self.mac.upper(),
            "PermanentMACAddress": self.mac.upper(),
            "SpeedMbps": 25000,
            "LinkStatus": "LinkUp",
        }
        yield from _members(f"{SYSTEM}/EthernetInterfaces", "EthernetInterface", {"NIC1": nic})
        dimm = {
            "CapacityMiB": 32768,
            "MemoryDeviceType": "DDR5",
            "Manufacturer": "Contoso",
            "SerialNumber": "1234",
            "OperatingSpeedMhz": 4800,
        }
        yield from _members(f"{SYSTEM}/Memory", "Memory", {"DIMM1": dimm, "DIMM2": dimm | {"SerialNumber": "1235"}})
        cpu = {
            "Socket": "CPU 1",
            "Manufacturer": "Contoso",
            "Model": "Contoso 7000",
            "TotalCores": 32,
            "TotalThreads": 64,
        }
        yield from _members(f"{SYSTEM}/Processors", "Processor", {"CPU1": cpu, "CPU2": cpu | {"Socket": "CPU 2"}})
        drive = f"{SYSTEM}/Storage/1/Drives/0"
        yield from _members(f"{SYSTEM}/Storage", "Storage", {"1": {"Drives": [{"@odata.id": drive}]}})
        yield _resource(
            drive, "Drive", "v1_15_0", Manufacturer="Contoso", Model="NVMe 7", SerialNumber="S5XANX0R", MediaType="SSD",
            Protocol="NVMe", CapacityBytes=960197124096, Revision="1.0",
        )  # fmt: skip

    # --- power --------------------------------------------------------------------------------------------------------

    def _reset(self, kind: str) -> FakeAnswer:
        if kind not in RESETS:
            raise _RefusalError(400, "ActionParameterNotSupported", kind, "ResetType")
        if kind == "On" and self._has(Fault.ON_CONFLICT) and self._now < self._switched_off + self.fault_seconds:
            raise _RefusalError(409, "ActionParameterValueConflict", "ResetType", kind)
        if kind in ("ForceRestart", "PowerCycle", "GracefulShutdown") and self.power == "Off":
            raise _RefusalError(409, "ResourceCannotBeReset" if "Re" in kind else "ActionNotSupported", kind)
        self.resets.append(kind)
        self._on_count += kind == "On"
        if self._has(Fault.RESET_IGNORED) or (
            self._has(Fault.FIRST_ON_IGNORED) and kind == "On" and self._on_count == 1
        ):
            return FakeAnswer(204)
        return self._started(lambda: self._later(self._reset_seconds(), lambda: self._apply_reset(kind)))

    def _reset_seconds(self) -> float:
        return self.power_seconds + (self.fault_seconds if self._has(Fault.POWER_LATE) else 0.0)

    def _apply_reset(self, kind: str) -> None:
        if kind == "On":
            if self.power == "Off":
                self._switch("On")
        elif kind == "ForceOff":
            self._switch("Off")
        elif kind == "GracefulShutdown":
            if self.shutdown_seconds is not None:
                self._later(self.shutdown_seconds, lambda: self._switch("Off"))
        elif kind == "ForceRestart":
            self._start_machine()
        elif kind == "PowerCycle":
            self._switch("Off")
            self._later(self.power_seconds, lambda: self._switch("On"))

    def _switch(self, power: str) -> None:
        if power == self.power:
            return
        self.power, self._power_changed = power, self._now
        if power == "Off":
            self._switched_off, self._post_ends = self._now, float("-inf")
        else:
            self._start_machine()

    def _start_machine(self) -> None:
        # Each restart has a time of its own, also in tests in which no time passes.
        self._reset_at, self._post_ends = self._now + next(self._count) * 1e-3, self._now + self.post_seconds
        self.boot |= self.pending_boot
        self.pending_boot = {}
        if self._has(Fault.BOOT_LOST):
            self.boot |= {TARGET: "None", ENABLED: "Disabled"}
        self._later(self.post_seconds, self._boot_machine)

    def _boot_machine(self) -> None:
        if self.power == "Off" or self._now < self._post_ends:
            return
        self.boots.append(self.boot[TARGET] if self.boot[ENABLED] != "Disabled" else "Hdd")
        if self.boot[ENABLED] == "Once":
            self.boot |= {TARGET: "None", ENABLED: "Disabled"}

    # --- boot override ------------------------------------------------------------------------------------------------

    def _patch(self, path: str, headers: Mapping[str, str], document: Document) -> FakeAnswer:
        documents = self.documents()
        if path not in documents:
            raise _RefusalError(404, "ResourceMissingAtURI", path)
        self._check_precondition(path, headers.get("if-match"))
        for slot in self.slots:
            if path == slot.path:
                return self._patch_slot(slot, document)
        if path not in (SYSTEM, SETTINGS) or set(document) != {"Boot"} or not isinstance(document["Boot"], dict):
            raise _RefusalError(400, "PropertyUnknown", ", ".join(document))
        return self._set_boot(document["Boot"], at_settings=path == SETTINGS)

    def _check_precondition(self, path: str, if_match: str | None) -> None:
        if if_match is None:
            if self._has(Fault.ETAG_REQUIRED):
                raise _RefusalError(428, "PreconditionRequired")
            return
        tag = self._etag(path).removeprefix("W/") or None  # an empty ETag never matches
        if self._has(Fault.ETAG_REFUSED) or if_match not in (tag, "*"):
            raise _RefusalError(412, "PreconditionFailed")

    def _set_boot(self, changes: Document, *, at_settings: bool) -> FakeAnswer:
        if self._has(Fault.SETTINGS_RESOURCE) and not at_settings:
            raise _RefusalError(400, "PropertyNotWritable", *list(changes)[:1], properties=tuple(changes))
        if self._has(Fault.POST_LOCK) and self._now < self._post_ends:
            raise _RefusalError(400, "UnableToModifyDuringSystemPOST", registry="iLO.2.14")
        self._check_boot(changes)
        if self._has(Fault.BOOT_IGNORED):
            return self._started(lambda: None)
        target = self.pending_boot if at_settings and self._has(Fault.SETTINGS_RESOURCE) else self.boot
        return self._started(lambda: target.update(self._as_kept(changes)), failed=self._has(Fault.ERROR_THOUGH_DONE))

    def _check_boot(self, changes: Document) -> None:
        allowed, now = self._allowed(), self.boot
        for name, value in changes.items():
            if name not in self._boot_document():
                raise _RefusalError(400, "PropertyUnknown", name, properties=(name,))
            if value not in allowed.get(f"{name}@Redfish.AllowableValues", [value]):
                raise _RefusalError(400, "PropertyValueNotInList", str(value), name, properties=(name,))
        if self._has(Fault.MODE_REFUSED) and MODE in changes:
            raise _RefusalError(400, "PropertyNotWritable", MODE, properties=(MODE,))
        if self._has(Fault.MODE_ALONE) and MODE in changes and len(changes) > 1:
            raise _RefusalError(400, "PropertyValueConflict", MODE, TARGET, properties=(MODE,))
        if self._has(Fault.ENABLED_SAME_REFUSED) and changes.get(ENABLED) == now[ENABLED]:
            raise _RefusalError(400, "PropertyValueConflict", ENABLED, properties=(ENABLED,))
        if self._has(Fault.TARGET_NONE_REFUSED) and changes.get(TARGET) == "None":
            raise _RefusalError(400, "PropertyValueNotInList", "None", TARGET, properties=(TARGET,))
        required = {TARGET, ENABLED, MODE} if self._has(Fault.FULL_REQUEST_REQUIRED) else set()
        if self._has(Fault.ENABLED_REQUIRED) and TARGET in changes:
            required |= {ENABLED}
        for name in sorted(required - set(changes)):
            raise _RefusalError(400, "PropertyMissing", name, properties=(name,))

    def _as_kept(self, changes: Document) -> Document:
        kept = dict(changes)
        if self._has(Fault.WRONG_ENABLED) and kept.get(ENABLED) == "Once":
            kept[ENABLED] = "Continuous"
        if self._has(Fault.MODE_FALLS_BACK) and MODE not in kept:
            kept[MODE] = "Legacy"
        if self._has(Fault.ENABLED_FALLS_BACK) and TARGET in kept and ENABLED not in kept:
            kept[ENABLED] = "Once"
        if self._has(Fault.ONLY_TARGET_KEPT):
            kept |= {MODE: "Legacy", ENABLED: "Disabled"}
        return kept

    # --- virtual media ------------------------------------------------------------------------------------------------

    def _media_action(self, slot: FakeSlot, action: str, document: Document | None) -> FakeAnswer:
        if f"#VirtualMedia.{action}" not in self._slot_document(slot).get("Actions", {}):
            raise _RefusalError(405, "OperationNotAllowed")
        if action == "EjectMedia":
            if document is None and self._has(Fault.EJECT_BODY_REQUIRED):
                raise _RefusalError(415, "UnsupportedMediaType")
            return self._started(lambda: self._eject(slot))
        return self._insert(slot, dict(document or {}))

    def _insert(self, slot: FakeSlot, document: Document) -> FakeAnswer:
        image = document.pop("Image", None)
        if not isinstance(image, str):
            raise _RefusalError(400, "ActionParameterMissing", "InsertMedia", "Image")
        if self._now < slot.leaving_until:
            raise _RefusalError(500, "InternalError")
        if slot.inserted:
            raise _RefusalError(400, "ResourceInUse")
        if self._has(Fault.INSERTED_REFUSED) and document:
            raise _RefusalError(400, "ActionParameterUnknown", "InsertMedia", min(document))
        for name in ("TransferProtocolType", "TransferMethod"):
            if self._has(Fault.TRANSFER_REQUIRED) and name not in document:
                raise _RefusalError(400, "ActionParameterMissing", "InsertMedia", name)

        def insert() -> None:
            if not self._has(Fault.MEDIA_IGNORED):
                slot.image, slot.inserted, slot.properties = image, True, document

        return self._started(insert)

    def _eject(self, slot: FakeSlot) -> None:
        if self._has(Fault.MEDIA_IGNORED):
            return
        if self._has(Fault.EJECT_LATE):
            slot.leaving_until = self._now + self.fault_seconds
            self._later(self.fault_seconds, lambda: self._emptied(slot))
        else:
            self._emptied(slot)

    def _emptied(self, slot: FakeSlot) -> None:
        slot.inserted = False
        if not self._has(Fault.IMAGE_STAYS):
            slot.image = None

    def _patch_slot(self, slot: FakeSlot, document: Document) -> FakeAnswer:
        if not self._has(Fault.MEDIA_BY_PATCH):
            raise _RefusalError(400, "PropertyNotWritable", *list(document)[:1])
        if not isinstance(document.get("Inserted"), bool):
            raise _RefusalError(400, "PropertyMissing", "Inserted", properties=("Inserted",))
        if not document["Inserted"]:
            return self._started(lambda: self._eject(slot))
        return self._insert(slot, document)

    # --- tasks --------------------------------------------------------------------------------------------------------

    def _started(self, effect: Callable[[], None], *, failed: bool = False) -> FakeAnswer:
        """Cause an effect at once, or by a task."""
        if not self.faults & _TASK_FAULTS:
            effect()
            if failed:
                raise _RefusalError(400, "GeneralError")
            return FakeAnswer(204)
        number = next(self._count)
        task = FakeTask(f"{ROOT}/TaskService/Tasks/{number}", f"{ROOT}/TaskService/TaskMonitors/{number}")
        self.tasks[task.path] = task
        if self._has(Fault.TASK_FAILS):
            self._later(TASK_SECONDS, lambda: setattr(task, "state", "Exception"))
        elif self._has(Fault.TASK_PENDING):
            task.state = "Pending"
            effect()
        elif self._has(Fault.TASKS):

            def end() -> None:
                effect()
                task.state = "Completed"

            self._later(TASK_SECONDS, end)
        body = b"" if self._has(Fault.TASK_MONITOR_ONLY) else _encoded(self._task_document(task))
        return FakeAnswer(202, body, {"Location": task.monitor})

    def _task_document(self, task: FakeTask) -> Document:
        failed = task.state == "Exception"
        messages = [{"MessageId": "Base.1.8.InternalError", "Message": "The task failed."}] if failed else []
        return _resource(
            task.path, "Task", "v1_7_1", TaskState=task.state, TaskStatus="Critical" if failed else "OK",
            TaskMonitor=task.monitor, Messages=messages,
        )  # fmt: skip

    def _task_read(self, task: FakeTask, path: str) -> FakeAnswer:
        task.reads += 1
        if self._has(Fault.TASK_404_FIRST) and task.reads <= 2:
            raise _RefusalError(404, "ResourceMissingAtURI", path)
        document = _encoded(self._task_document(task))
        if path == task.path:
            return FakeAnswer(200, document)
        if task.state in ("Running", "Pending"):
            return FakeAnswer(202, document, {"Location": task.monitor})
        if self._has(Fault.TASK_MONITOR_DELETES):
            del self.tasks[task.path]
        if task.state == "Exception":
            raise _RefusalError(500, "InternalError")
        return FakeAnswer(204)

    # --- broken answers -----------------------------------------------------------------------------------------------

    def _broken(self, method: str, path: str, answer: FakeAnswer) -> FakeAnswer:
        if path.rstrip("/") != self.broken_path or not 200 <= answer.status < 300:
            return answer
        return next((_BROKEN[fault](answer) for fault in sorted(self.faults & set(_BROKEN))), answer)


@cache
def _bomb() -> bytes:
    return gzip.compress(b" " * 2**26, 1)


_BROKEN: dict[Fault, Callable[[FakeAnswer], FakeAnswer]] = {
    Fault.CUT_JSON: lambda answer: FakeAnswer(200, answer.body[: len(answer.body) // 2]),
    Fault.CUT_CONNECTION: lambda answer: FakeAnswer(200, answer.body, delivery=Delivery.CUT),
    Fault.HUGE: lambda _: FakeAnswer(200, b'{"Oem": "' + b"x" * 2**21 + b'"}'),
    Fault.MANY_VALUES: lambda _: FakeAnswer(200, b'{"Oem": [' + b"1," * 200_000 + b"1]}"),
    Fault.DEEP: lambda _: FakeAnswer(200, b'{"a":' * 400 + b"1" + b"}" * 400),
    Fault.DEEPER: lambda _: FakeAnswer(200, b"[" * 100_000 + b"]" * 100_000),
    Fault.DRIP: lambda answer: FakeAnswer(200, answer.body, delivery=Delivery.DRIP),
    Fault.ENDLESS: lambda answer: FakeAnswer(200, answer.body, delivery=Delivery.ENDLESS),
    Fault.HANG: lambda answer: FakeAnswer(200, answer.body, delivery=Delivery.HANG),
    Fault.XML: lambda _: FakeAnswer(200, b"<?xml version='1.0'?><System/>", {"Content-Type": "application/xml"}),
    Fault.HTML_LOGIN: lambda _: FakeAnswer(200, b"<!doctype html><form>", {"Content-Type": "text/html"}),
    Fault.BAD_ENCODING: lambda _: FakeAnswer(200, '{"Model": "Größe"}'.encode("latin-1")),
    Fault.NOT_AN_OBJECT: lambda answer: FakeAnswer(200, b"[" + answer.body + b"]"),
    Fault.NO_BODY: lambda _: FakeAnswer(200),
    Fault.WRONG_TYPES: lambda answer: FakeAnswer(200, _encoded(dict.fromkeys(json.loads(answer.body or b"{}"), 7))),
    Fault.GZIP: lambda answer: FakeAnswer(200, gzip.compress(answer.body), {"Content-Encoding": "gzip"}),
    Fault.GZIP_BOMB: lambda _: FakeAnswer(200, _bomb(), {"Content-Encoding": "gzip"}),
    Fault.BAD_GZIP: lambda answer: FakeAnswer(200, answer.body, {"Content-Encoding": "gzip"}),
    Fault.UNKNOWN_CODING: lambda answer: FakeAnswer(200, answer.body, {"Content-Encoding": "br"}),
    Fault.MANY_HEADERS: lambda answer: FakeAnswer(200, answer.body, {f"X-{number}": "x" for number in range(1000)}),
    Fault.LONG_HEADER: lambda answer: FakeAnswer(200, answer.body, {"X-Long": "x" * 65536}),
}


def _encoded(document: Document) -> bytes:
    return json.dumps(document).encode()


def _resource(path: str, kind: str, version: str, **properties: Any) -> Document:
    name = path.rpartition("/")[2]
    return {
        "@odata.id": path,
        "@odata.type": f"#{kind}.{version}.{kind}",
        "Id": name,
        "Name": f"{kind} {name}",
    } | properties


def _collection(path: str, kind: str, members: list[str]) -> Document:
    return {
        "@odata.id": path,
        "@odata.type": f"#{kind}Collection.{kind}Collection",
        "Name": f"{kind} collection",
        "Members@odata.count": len(members),
        "Members": [{"@odata.id": each} for each in members],
    }


def _members(path: str, kind: str, documents: Mapping[str, Document]) -> Iterable[Document]:
    yield _collection(path, kind, [f"{path}/{name}" for name in documents])
    for name, properties in documents.items():
        yield _resource(f"{path}/{name}", kind, "v1_0_0", **properties)


# --- without sockets --------------------------------------------------------------------------------------------------


class MemoryTransport:
    """A connection to a fake BMC inside this process, by the clock of the event loop, which may be virtual.

    seconds: the time that each answer takes. answer_seconds: the time after which an answer that never ends fails.
    """

    def __init__(self, bmc: FakeBmc, *, seconds: float = 0.0, answer_seconds: float = 30.0) -> None:
        self._bmc, self._seconds, self._answer_seconds = bmc, seconds, answer_seconds
        self.closed = 0

    async def exchange(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        """Return the answer of the fake BMC; raise BmcError where HTTPS would fail."""
        await asyncio.sleep(self._seconds)
        headers = {"Accept-Encoding": "gzip", **headers}
        answer = self._bmc.handle(method, path, headers, body or b"", asyncio.get_running_loop().time())
        coding = answer.headers.get("Content-Encoding", "gzip")
        if answer.delivery is Delivery.CUT or coding != "gzip":
            raise BmcError(Cause.BAD_ANSWER, "the answer is cut off, or not HTTP")
        if answer.delivery is not Delivery.WHOLE:
            await asyncio.sleep(self._answer_seconds)
            cause = Cause.UNREACHABLE if answer.delivery is Delivery.HANG else Cause.BAD_ANSWER
            raise BmcError(cause, f"no answer within {self._answer_seconds:g} s")
        text = answer.body
        if "Content-Encoding" in answer.headers:
            try:
                text = zlib.decompressobj(wbits=31).decompress(answer.body, 2**21)
            except zlib.error:
                raise BmcError(Cause.BAD_ANSWER, "the answer is cut off, or not HTTP") from None
        return Answer(answer.status, CIMultiDict(answer.headers), text)

    async def close(self) -> None:
        """Count the call."""
        self.closed += 1


# --- on loopback ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Certificate:
    """A certificate with its key, both PEM; alone; the PEM of its authority; its SHA-256 in hex."""

    chain: bytes
    alone: str
    authority: str
    fingerprint: str


@cache
def certificate(address: str) -> Certificate:
    """Return a certificate for `address`, made once a process."""
    now, life = datetime.now(UTC), timedelta(days=1)
    authority_key, key, issuer = new_key(), new_key(), common_name("BMC authority")
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    authority = builder(issuer, issuer, authority_key, now, life).add_extension(
        x509.BasicConstraints(True, None), critical=True
    )
    root = authority.sign(authority_key, hashes.SHA256())
    leaf = (
        builder(common_name("bmc"), issuer, key, now, life)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), critical=False)
        .add_extension(identifier, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = leaf.public_bytes(serialization.Encoding.PEM)
    der = leaf.public_bytes(serialization.Encoding.DER)
    root_pem = root.public_bytes(serialization.Encoding.PEM).decode()
    return Certificate(private_pem(key) + pem, pem.decode(), root_pem, hashlib.sha256(der).hexdigest())


@dataclass(frozen=True)
class Served:
    """A fake BMC that listens on 127.0.0.1."""

    bmc: FakeBmc
    port: int
    certificate: Certificate
    connections: Callable[[], int]
    """Returns the number of open connections."""
    accepted: set[object]
    """The connections on which a request has come."""

    def connection(self, **changes: Any) -> BmcConnection:
        """Return a connection that trusts the certificate by its fingerprint, with `changes`."""
        fields: dict[str, Any] = {"redfish_port": self.port, "fingerprint": self.certificate.fingerprint} | changes
        return BmcConnection("127.0.0.1", **fields)


@asynccontextmanager
async def serve(
    bmc: FakeBmc, *, address: str = "127.0.0.1", clock: Callable[[], float] | None = None
) -> AsyncIterator[Served]:
    """Serve `bmc` on a free port of loopback until the context ends. `address`: the one in its certificate."""
    now = clock or asyncio.get_running_loop().time
    ended = asyncio.Event()
    accepted: set[object] = set()

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        accepted.add(request.protocol)
        if Fault.KEPT_CONNECTION_BREAKS in bmc.faults and received_requests(request.protocol) > 1:
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        answer = bmc.handle(request.method, request.path_qs, request.headers, await request.read(), now())
        return await _deliver(request, answer, ended)

    # A client that has gone cancels the handler, so that no handler of a hanging answer stays.
    server = web.Server(handler, handler_cancellation=True)
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    made = certificate(address)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    show(context, made.chain)
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    try:
        yield Served(bmc, runner.addresses[0][1], made, lambda: len(server.connections), accepted)
    finally:
        ended.set()
        await runner.cleanup()


async def _deliver(request: web.BaseRequest, answer: FakeAnswer, ended: asyncio.Event) -> web.StreamResponse:
    headers = {name: value.replace("{origin}", request.host) for name, value in answer.headers.items()}
    headers.setdefault("Content-Type", "application/json")
    if answer.delivery is Delivery.WHOLE:
        return web.Response(status=answer.status, body=answer.body, headers=headers)
    if answer.delivery is Delivery.HANG:
        await ended.wait()
        return web.Response(status=503)
    response = web.StreamResponse(status=answer.status, headers=headers)
    if answer.delivery is Delivery.CUT:
        response.content_length = len(answer.body)
    await response.prepare(request)
    with suppress(ConnectionError):
        if answer.delivery is Delivery.CUT:
            await response.write(answer.body[: len(answer.body) // 2])
            if request.transport is not None:
                request.transport.close()
        part = b" " if answer.delivery is Delivery.DRIP else b" " * 65536
        while answer.delivery is not Delivery.CUT and not ended.is_set():
            await response.write(part)
            await asyncio.sleep(0.005 if answer.delivery is Delivery.DRIP else 0)
    return response
