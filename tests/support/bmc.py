"""A BMC with the faults of real ones: `FakeBmc` is the simulated BMC of the lab that lies; `serve` puts it on loopback.

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
import gzip
import hashlib
import json
import ssl
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache
from ipaddress import ip_address
from typing import Any

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from multidict import CIMultiDict

from edge.lab.bmc import (
    ENABLED,
    MANAGER,
    MODE,
    RESET,
    ROOT,
    SESSIONS,
    SYSTEM,
    TARGET,
    BmcAnswer,
    BmcServer,
    BmcTask,
    Document,
    InstantMachine,
    MachineDescription,
    PoweredMachine,
    RefusalError,
    SimulatedBmc,
    VirtualSlot,
    http_response,
)
from tink.bmc.model import BmcConnection, BmcCredentials, BmcError, Cause
from tink.bmc.redfish import Answer
from tink.kube.certificates import builder, common_name, new_key, private_pem, show
from tink.net.aiohttp_requests import received_requests

__all__ = [
    "CONNECTION", "CREDENTIALS", "ENABLED", "MANAGER", "MODE", "PASSWORD", "RESET", "ROOT", "SESSIONS", "SETTINGS",
    "SYSTEM", "TARGET", "TASK_SECONDS", "USER", "Certificate", "Delivery", "FakeAnswer", "FakeBmc", "Fault",
    "MemoryTransport", "Served", "certificate", "serve",
]  # fmt: skip

USER = "root"
PASSWORD = "c4lvin-and-h0bbes"  # unlike any word of a message, so that a test can search for it
CREDENTIALS = BmcCredentials(USER, PASSWORD, version="1")
CONNECTION = BmcConnection("192.0.2.10")

SETTINGS = f"{SYSTEM}/SD"
TASK_SECONDS = 2.5


class Fault(StrEnum):
    """The faults that a test switches on. "For a while" means for `fault_seconds`."""

    # Lies about power
    RESET_IGNORED = "accepts resets and ignores them"
    FIRST_ON_IGNORED = "ignores the first On (row 19)"
    POWER_LOST = "the machine switches itself off a while after each start"
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
class FakeAnswer(BmcAnswer):
    """An HTTP response. The server alone can do what `delivery` says."""

    delivery: Delivery = Delivery.WHOLE


class FakeBmc(SimulatedBmc):
    """A simulated BMC with faults. Without `machine`, its machine does at once what the BMC asks for.

    fault_seconds: duration of the faults that last a while. broken_path: the path with the broken answers.
    shutdown_seconds: time that the operating system takes to shut down; None: it does not listen. vendor, model,
    firmware, mac, serial: the description of the machine. All else: `SimulatedBmc`.
    """

    def __init__(
        self,
        *,
        faults: Iterable[Fault] = (),
        vendor: str = "Contoso",
        model: str = "3500",
        firmware: str = "1.45.455b66-rev4",
        mac: str = "52:54:00:00:00:01",
        serial: str = "437XR1138R2",
        power: str = "Off",
        power_seconds: float = 0.0,
        post_seconds: float = 0.0,
        shutdown_seconds: float | None = 0.0,
        session_limit: int = 8,
        fault_seconds: float = 30.0,
        broken_path: str = SYSTEM,
        slots: tuple[tuple[str, tuple[str, ...]], ...] = (("CD", ("CD", "DVD")), ("USB", ("USBStick", "Floppy"))),
        accounts: Mapping[str, str] | None = None,
        machine: PoweredMachine | None = None,
    ) -> None:
        self.faults = set(faults)
        super().__init__(
            accounts=accounts or {USER: PASSWORD},
            machine=machine or InstantMachine(self, shutdown_seconds),
            description=MachineDescription(vendor, model, serial, firmware=firmware, macs=(mac,)),
            power=power,
            power_seconds=power_seconds,
            post_seconds=post_seconds,
            session_limit=session_limit,
            slots=slots,
            media_parent=SYSTEM if Fault.MEDIA_AT_SYSTEM in self.faults else MANAGER,
        )
        self.fault_seconds, self.broken_path = fault_seconds, broken_path
        self.pending_boot: Document = {}
        self.locked: set[str] = set()
        self.overlay: dict[str, Document | None] = {}
        """Documents that replace or extend the BMC's own, by their paths; None: 404."""

        self.requests: list[tuple[str, str, int]] = []
        """Method, path and status of each request."""
        self.bodies: list[tuple[str, str, Any]] = []
        """Method, path and parsed body of each request with a body, without logins."""
        self.resets: list[str] = []
        """ResetType of each reset that was accepted."""
        self.boots: list[str] = []
        """Target of each boot of the machine; Hdd without an override."""
        self.basic_requests = 0
        self.last_headers: dict[str, str] = {}
        self._last_body = b""
        self._first_time: float | None = None
        self._switched_off = float("-inf")
        self._leaving: dict[str, float] = {}
        """Time until which a slot reports its ejected medium."""
        self._task_reads: dict[str, int] = {}

    @property
    def serial(self) -> str:
        """The serial number of the machine."""
        return self.description.serial

    @serial.setter
    def serial(self, value: str) -> None:
        self.description = replace(self.description, serial=value)

    def writes(self) -> list[tuple[str, str, Any]]:
        """Return method, path and body of each request that changes something, without sessions."""
        return [each for each in self.bodies if SESSIONS not in each[1]]

    def _has(self, fault: Fault) -> bool:
        return fault in self.faults

    # --- requests -----------------------------------------------------------------------------------------------------

    def handle(self, method: str, path: str, headers: Mapping[str, str], body: bytes, now: float) -> FakeAnswer:
        """Answer a request at the time `now`, with the faults, and record it."""
        self.last_headers = {name.lower(): value for name, value in headers.items()}
        self._last_body = body
        self._first_time = now if self._first_time is None else self._first_time
        honest = super().handle(method, path, headers, body, now)
        answer = FakeAnswer(honest.status, honest.body, honest.headers)
        if path.rstrip("/") == self.broken_path and 200 <= answer.status < 300:
            answer = next((_BROKEN[fault](answer) for fault in sorted(self.faults & set(_BROKEN))), answer)
        self.requests.append((method, path, answer.status))
        return answer

    def _is_early(self) -> bool:
        return self._now < (self._first_time or 0.0) + self.fault_seconds

    def _answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> BmcAnswer:
        if self._has(Fault.STORM_503) and self._is_early():
            raise RefusalError(503, "ServiceTemporarilyUnavailable", "2")
        if self._has(Fault.GZIP_REQUIRED) and "gzip" not in headers.get("accept-encoding", ""):
            raise RefusalError(406, "HeaderInvalid", "Accept-Encoding")
        bare = path.partition("?")[0]
        if not bare.endswith("/"):
            if self._has(Fault.TRAILING_SLASH):
                raise RefusalError(404, "ResourceMissingAtURI", path)
            if self._has(Fault.REDIRECT_SAME):
                return BmcAnswer(308, headers={"Location": f"{bare}/"})
        bare = bare.rstrip("/")
        elsewhere = {
            Fault.REDIRECT_OTHER: f"https://other.invalid{bare}",
            Fault.REDIRECT_PLAIN: f"http://127.0.0.1{bare}",
            Fault.REDIRECT_LOOP: bare,
        }
        if bare == self.broken_path:
            for fault, location in elsewhere.items():
                if self._has(fault):
                    return BmcAnswer(302, headers={"Location": location})
            if self._has(Fault.LATE_401) and "x-auth-token" in headers:
                raise RefusalError(401, "NoValidSession")
        return super()._answer(method, path, headers, body)

    def _login(self, document: Document) -> BmcAnswer:
        if self.overlay.get(SESSIONS, {}) is None or self._has(Fault.NO_SESSION_SERVICE):
            raise RefusalError(404, "ResourceMissingAtURI", SESSIONS)
        try:
            answer = super()._login(document)
        except RefusalError as refusal:
            if refusal.status != 503:
                raise
            raise RefusalError(503, "RAC0218", registry="IDRAC.2.8") from None
        headers, session = dict(answer.headers), answer.json
        path = headers["Location"]
        if self._has(Fault.LOCATION_ELSEWHERE):
            headers["Location"] = f"https://other.invalid{path}"
        if self._has(Fault.LOCATION_ABSOLUTE):
            headers["Location"] = f"https://{{origin}}{path}"
        if self._has(Fault.PASSWORD_CHANGE_REQUIRED):
            session["@Message.ExtendedInfo"] = [{"MessageId": "Base.1.8.PasswordChangeRequired", "MessageArgs": [path]}]
        if self._has(Fault.NO_TOKEN):
            del headers["X-Auth-Token"]
        return BmcAnswer(answer.status, _encoded(session), headers)

    def _has_free_session(self) -> bool:
        return not self._has(Fault.LIMIT_REACHED) and super()._has_free_session()

    def _is_account(self, user: str, password: str) -> bool:
        is_account = super()._is_account(user, password) and user not in self.locked
        if not is_account and self._has(Fault.LOCK_OUT):
            self.locked.add(user)
        return is_account

    def _authenticate(self, headers: Mapping[str, str]) -> None:
        self.basic_requests += headers.get("authorization", "").startswith("Basic ")
        super()._authenticate(headers)

    def _routed(self, method: str, path: str, headers: Mapping[str, str], document: Document | None) -> BmcAnswer:
        is_public = path in ("/redfish", ROOT) or path.startswith(SESSIONS)
        if self._has(Fault.PASSWORD_CHANGE_REQUIRED) and not is_public:
            raise RefusalError(403, "PasswordChangeRequired", f"{ROOT}/AccountService/Accounts/1")
        if document is not None:
            self.bodies.append((method, path, dict(document)))
        if method in ("PATCH", "POST"):
            if self._has(Fault.SYS518) and self._is_early():
                raise RefusalError(400, "SYS518", registry="IDRAC.2.8")
            if self._has(Fault.NOT_READY) and self._now < self._power_changed + self.fault_seconds:
                raise RefusalError(400, "InvalidOperationForSystemState", registry="iLO.2.14")
        return super()._routed(method, path, headers, document)

    def _etag(self, body: bytes) -> str:
        if self._has(Fault.ETAG_EMPTY):
            return ""
        return f"W/{super()._etag(body)}" if self._has(Fault.ETAG_WEAK) else super()._etag(body)

    def _message(self, refusal: RefusalError) -> str:
        text = super()._message(refusal)
        if self._has(Fault.ECHO):
            text += f" for {self.last_headers.get('authorization', '')} in {self._last_body.decode(errors='replace')}"
        return text

    # --- documents ----------------------------------------------------------------------------------------------------

    def documents(self) -> dict[str, Document]:
        """Return all documents by their paths; for tests of readers of documents, too."""
        found = super().documents()
        if self._has(Fault.SETTINGS_RESOURCE) or self._has(Fault.ALLOWED_AT_SETTINGS):
            boot = self._boot_document() if self._has(Fault.ALLOWED_AT_SETTINGS) else {}
            found[SETTINGS] = {"@odata.id": SETTINGS, "Boot": {**boot, **self._allowed(), **self.pending_boot}}
        if self._has(Fault.ETHERNET_404):
            found = {path: each for path, each in found.items() if "/EthernetInterfaces" not in path}
        return {path: each for path, each in (found | self.overlay).items() if each is not None}

    def _root(self) -> Document:
        root = super()._root()
        if self._has(Fault.NO_SESSION_SERVICE):
            del root["SessionService"]
            root["Links"] = {}
        return root

    def _system(self) -> Document:
        system = super()._system()
        if self._has(Fault.NO_MANAGED_BY):
            del system["Links"]["ManagedBy"]
        if self._has(Fault.NO_LAST_RESET):
            del system["LastResetTime"]
        if self._has(Fault.SETTINGS_RESOURCE) or self._has(Fault.ALLOWED_AT_SETTINGS):
            system["@Redfish.Settings"] = {"SettingsObject": {"@odata.id": SETTINGS}}
        if self._has(Fault.ALLOWED_AT_SETTINGS):
            system["Boot"] = self._boot_document()
        if self._has(Fault.NO_BOOT_OVERRIDE):
            del system["Boot"]
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
        allowed = super()._allowed()
        targets, enabled = f"{TARGET}@Redfish.AllowableValues", f"{ENABLED}@Redfish.AllowableValues"
        del allowed[f"{MODE}@Redfish.AllowableValues"]  # which few BMCs list
        if self._has(Fault.CD_IS_USB_CD):
            allowed[targets] = ["UsbCd" if each == "Cd" else each for each in allowed[targets]]
        if self._has(Fault.HTTP_URI):
            allowed[targets] = [*allowed[targets], "UefiHttp"]
        if self._has(Fault.NO_CONTINUOUS):
            allowed[enabled].remove("Continuous")
        return allowed

    def _slot_document(self, slot: VirtualSlot) -> Document:
        document = super()._slot_document(slot)
        if self._has(Fault.IMAGE_STAYS):
            del document["Inserted"]
        is_broken = self._has(Fault.FIRST_SLOT_BROKEN) and slot is self.slots[0]
        if is_broken or self._has(Fault.MEDIA_BY_PATCH):
            del document["Actions"]
        return document

    # --- power --------------------------------------------------------------------------------------------------------

    def _reset(self, kind: str) -> BmcAnswer:
        if kind == "On" and self._has(Fault.ON_CONFLICT) and self._now < self._switched_off + self.fault_seconds:
            raise RefusalError(409, "ActionParameterValueConflict", "ResetType", kind)
        return super()._reset(kind)

    def _start_reset(self, kind: str) -> BmcAnswer:
        is_first_on = kind == "On" and "On" not in self.resets
        self.resets.append(kind)
        if self._has(Fault.RESET_IGNORED) or (self._has(Fault.FIRST_ON_IGNORED) and is_first_on):
            return BmcAnswer(204)
        return super()._start_reset(kind)

    def _reset_seconds(self) -> float:
        return super()._reset_seconds() + (self.fault_seconds if self._has(Fault.POWER_LATE) else 0.0)

    def machine_stopped(self) -> None:
        """Take note of the power-off."""
        if self.power != "Off":
            self._switched_off = self._now
        super().machine_stopped()

    def machine_started(self) -> None:
        """Take note of a start, which activates the settings resource."""
        self.boot |= self._next_override()
        self.pending_boot = {}
        super().machine_started()
        if self._has(Fault.POWER_LOST):
            self.call_later(self.fault_seconds, self.machine_stopped)

    def _next_override(self) -> Document:
        lost = {TARGET: "None", ENABLED: "Disabled"} if self._has(Fault.BOOT_LOST) else {}
        return self.boot | self.pending_boot | lost

    def _use_boot(self) -> None:
        target = self.next_boot.target
        self.boots.append("Hdd" if target == "None" else target)
        super()._use_boot()

    # --- boot override ------------------------------------------------------------------------------------------------

    def _patch(self, path: str, headers: Mapping[str, str], document: Document) -> BmcAnswer:
        slot = next((each for each in self.slots if each.path == path), None)
        if slot is None or not self._has(Fault.MEDIA_BY_PATCH):
            return super()._patch(path, headers, document)
        self._check_precondition(_encoded(self.documents()[path]), headers.get("if-match"))
        if not isinstance(document.get("Inserted"), bool):
            raise RefusalError(400, "PropertyMissing", "Inserted", properties=("Inserted",))
        return self._insert(slot, document) if document["Inserted"] else self._started(lambda: self._eject(slot))

    def _overrides(self) -> dict[str, Document]:
        is_separate = self._has(Fault.SETTINGS_RESOURCE)
        return super()._overrides() | {SETTINGS: self.pending_boot if is_separate else self.boot}

    def _check_precondition(self, body: bytes, if_match: str | None) -> None:
        if if_match is None and self._has(Fault.ETAG_REQUIRED):
            raise RefusalError(428, "PreconditionRequired")
        if if_match is not None and self._has(Fault.ETAG_REFUSED):
            raise RefusalError(412, "PreconditionFailed")
        super()._check_precondition(body, if_match)

    def _accepted_etag(self, body: bytes) -> str | None:
        return self._etag(body).removeprefix("W/") or None  # an empty ETag never matches

    def _set_boot(self, path: str, changes: Document) -> BmcAnswer:
        if self._has(Fault.SETTINGS_RESOURCE) and path != SETTINGS:
            raise RefusalError(400, "PropertyNotWritable", *list(changes)[:1], properties=tuple(changes))
        if self._has(Fault.POST_LOCK) and self._now < self._post_ends:
            raise RefusalError(400, "UnableToModifyDuringSystemPOST", registry="iLO.2.14")
        answer = super()._set_boot(path, changes)
        if self._has(Fault.ERROR_THOUGH_DONE) and answer.status == 204:
            raise RefusalError(400, "GeneralError")
        return answer

    def _check_boot(self, changes: Document) -> None:
        super()._check_boot(changes)
        if self._has(Fault.MODE_REFUSED) and MODE in changes:
            raise RefusalError(400, "PropertyNotWritable", MODE, properties=(MODE,))
        if self._has(Fault.MODE_ALONE) and MODE in changes and len(changes) > 1:
            raise RefusalError(400, "PropertyValueConflict", MODE, TARGET, properties=(MODE,))
        if self._has(Fault.ENABLED_SAME_REFUSED) and changes.get(ENABLED) == self.boot[ENABLED]:
            raise RefusalError(400, "PropertyValueConflict", ENABLED, properties=(ENABLED,))
        if self._has(Fault.TARGET_NONE_REFUSED) and changes.get(TARGET) == "None":
            raise RefusalError(400, "PropertyValueNotInList", "None", TARGET, properties=(TARGET,))
        required = {TARGET, ENABLED, MODE} if self._has(Fault.FULL_REQUEST_REQUIRED) else set()
        if self._has(Fault.ENABLED_REQUIRED) and TARGET in changes:
            required |= {ENABLED}
        for name in sorted(required - set(changes)):
            raise RefusalError(400, "PropertyMissing", name, properties=(name,))

    def _keep_boot(self, path: str, changes: Document) -> None:
        if self._has(Fault.BOOT_IGNORED):
            return
        kept = dict(changes)
        if self._has(Fault.WRONG_ENABLED) and kept.get(ENABLED) == "Once":
            kept[ENABLED] = "Continuous"
        if self._has(Fault.MODE_FALLS_BACK) and MODE not in kept:
            kept[MODE] = "Legacy"
        if self._has(Fault.ENABLED_FALLS_BACK) and TARGET in kept and ENABLED not in kept:
            kept[ENABLED] = "Once"
        if self._has(Fault.ONLY_TARGET_KEPT):
            kept |= {MODE: "Legacy", ENABLED: "Disabled"}
        super()._keep_boot(path, kept)

    # --- virtual media ------------------------------------------------------------------------------------------------

    def _media_action(self, slot: VirtualSlot, action: str, document: Document | None) -> BmcAnswer:
        if action == "EjectMedia" and document is None and self._has(Fault.EJECT_BODY_REQUIRED):
            raise RefusalError(415, "UnsupportedMediaType")
        return super()._media_action(slot, action, document)

    def _insert(self, slot: VirtualSlot, document: Document) -> BmcAnswer:
        if self._now < self._leaving.get(slot.path, float("-inf")):
            raise RefusalError(500, "InternalError")
        if self._has(Fault.MEDIA_IGNORED):
            self._check_insertion(slot, document)
            return self._started(lambda: None)
        return super()._insert(slot, document)

    def _check_insertion(self, slot: VirtualSlot, document: Document) -> None:
        super()._check_insertion(slot, document)
        properties = set(document) - {"Image"}
        if self._has(Fault.INSERTED_REFUSED) and properties:
            raise RefusalError(400, "ActionParameterUnknown", "InsertMedia", min(properties))
        for name in ("TransferProtocolType", "TransferMethod"):
            if self._has(Fault.TRANSFER_REQUIRED) and name not in properties:
                raise RefusalError(400, "ActionParameterMissing", "InsertMedia", name)

    def _eject(self, slot: VirtualSlot) -> None:
        if self._has(Fault.EJECT_LATE):
            self._leaving[slot.path] = self._now + self.fault_seconds
            self.call_later(self.fault_seconds, lambda: super(FakeBmc, self)._eject(slot))
        elif not self._has(Fault.MEDIA_IGNORED):
            super()._eject(slot)

    def _emptied(self, slot: VirtualSlot) -> None:
        image = slot.image
        super()._emptied(slot)
        if self._has(Fault.IMAGE_STAYS):
            slot.image = image

    # --- tasks --------------------------------------------------------------------------------------------------------

    def _started(self, effect: Callable[[], None]) -> BmcAnswer:
        self.task_seconds = TASK_SECONDS if self._has(Fault.TASKS) else None
        if not self.faults & (_TASK_FAULTS - {Fault.TASKS}):
            return super()._started(effect)
        task = self._new_task()
        if self._has(Fault.TASK_FAILS):
            self.call_later(TASK_SECONDS, lambda: setattr(task, "state", "Exception"))
        elif self._has(Fault.TASK_PENDING):
            task.state = "Pending"
            effect()
        return self._task_answer(task)

    def _task_answer(self, task: BmcTask) -> BmcAnswer:
        answer = super()._task_answer(task)
        return replace(answer, body=b"") if self._has(Fault.TASK_MONITOR_ONLY) else answer

    def _task_read(self, task: BmcTask, path: str) -> BmcAnswer:
        self._task_reads[task.path] = reads = self._task_reads.get(task.path, 0) + 1
        if self._has(Fault.TASK_404_FIRST) and reads <= 2:
            raise RefusalError(404, "ResourceMissingAtURI", path)
        has_ended = task.state not in ("Running", "Pending")
        if has_ended and path == task.monitor and self._has(Fault.TASK_MONITOR_DELETES):
            del self.tasks[task.path]
        return super()._task_read(task, path)


def _encoded(document: Document) -> bytes:
    return json.dumps(document).encode()


# --- broken answers ---------------------------------------------------------------------------------------------------


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


# --- without sockets --------------------------------------------------------------------------------------------------


class MemoryTransport:
    """A connection to a BMC inside this process, by the clock of the event loop, which may be virtual.

    seconds: the time that each answer takes. answer_seconds: the time after which an answer that never ends fails.
    """

    def __init__(self, bmc: SimulatedBmc, *, seconds: float = 0.0, answer_seconds: float = 30.0) -> None:
        self._bmc, self._seconds, self._answer_seconds = bmc, seconds, answer_seconds
        self.closed = 0

    async def exchange(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        """Return the answer of the BMC; raise BmcError where HTTPS would fail."""
        await asyncio.sleep(self._seconds)
        headers = {"Accept-Encoding": "gzip", **headers}
        answer = self._bmc.handle(method, path, headers, body or b"", asyncio.get_running_loop().time())
        coding = answer.headers.get("Content-Encoding", "gzip")
        delivery = answer.delivery if isinstance(answer, FakeAnswer) else Delivery.WHOLE
        if delivery is Delivery.CUT or coding != "gzip":
            raise BmcError(Cause.BAD_ANSWER, "the answer is cut off, or not HTTP")
        if delivery is not Delivery.WHOLE:
            await asyncio.sleep(self._answer_seconds)
            cause = Cause.UNREACHABLE if delivery is Delivery.HANG else Cause.BAD_ANSWER
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
    bmc: FakeBmc, *, address: str = "127.0.0.1", port: int = 0, clock: Callable[[], float] | None = None
) -> AsyncIterator[Served]:
    """Serve `bmc` on a port of loopback, 0 for a free one, until the context ends.

    `address`: the one in its certificate.
    """
    made = certificate(address)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    show(context, made.chain)
    server = _FaultyServer(bmc, context, clock)
    port = await server.start("127.0.0.1", port)
    try:
        yield Served(bmc, port, made, lambda: server.connections, server.accepted)
    finally:
        server.ended.set()
        await server.stop()


class _FaultyServer(BmcServer):
    """The server of a fake BMC, which also breaks connections and answers."""

    def __init__(self, bmc: FakeBmc, context: ssl.SSLContext, clock: Callable[[], float] | None) -> None:
        super().__init__(bmc, context, clock)
        self._fake = bmc
        self.ended = asyncio.Event()
        self.accepted: set[object] = set()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.accepted.add(request.protocol)
        if Fault.KEPT_CONNECTION_BREAKS in self._fake.faults and received_requests(request.protocol) > 1:
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        return await self._deliver(request, await self.ask(request))

    async def _deliver(self, request: web.BaseRequest, answer: BmcAnswer) -> web.StreamResponse:
        delivery = answer.delivery if isinstance(answer, FakeAnswer) else Delivery.WHOLE
        headers = {name: value.replace("{origin}", request.host) for name, value in answer.headers.items()}
        if delivery is Delivery.WHOLE:
            return http_response(replace(answer, headers=headers))
        if delivery is Delivery.HANG:
            await self.ended.wait()
            return web.Response(status=503)
        response = web.StreamResponse(status=answer.status, headers={"Content-Type": "application/json", **headers})
        if delivery is Delivery.CUT:
            response.content_length = len(answer.body)
        await response.prepare(request)
        with suppress(ConnectionError):
            if delivery is Delivery.CUT:
                await response.write(answer.body[: len(answer.body) // 2])
                if request.transport is not None:
                    request.transport.close()
            part = b" " if delivery is Delivery.DRIP else b" " * 65536
            while delivery is not Delivery.CUT and not self.ended.is_set():
                await response.write(part)
                await asyncio.sleep(0.005 if delivery is Delivery.DRIP else 0)
        return response
