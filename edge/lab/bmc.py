"""A simulated BMC: Redfish over HTTPS in front of a machine that it powers, for the lab and the fleet.

    bmc = SimulatedBmc(accounts={"root": password}, machine=machine)
    server = BmcServer(bmc, served_certificate("172.31.77.1"))
    await server.start("172.31.77.1", 443)

`SimulatedBmc` is pure: requests and times go in, answers come out. It does what the specification says (DSP0266 for the
protocol, DSP0268 for the resources): it has sessions, ETags, tasks, a boot override, resets and virtual media.
`BmcServer` is its thin shell of aiohttp. `PoweredMachine` is the port to the machine, and `MachineObserver` the way
back: the machine reports what really happened, and the BMC reports that to its clients.

All times are in seconds of the caller's clock; `BmcServer` uses the clock of the event loop.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import heapq
import itertools
import json
import secrets
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hmac import compare_digest
from ipaddress import ip_address
from typing import Any, Final, Protocol

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from tink.errors import TinkedgeError
from tink.kube.certificates import builder, common_name, new_key, private_pem, show

Document = dict[str, Any]

ROOT: Final = "/redfish/v1"
SYSTEM: Final = f"{ROOT}/Systems/1"
MANAGER: Final = f"{ROOT}/Managers/1"
CHASSIS: Final = f"{ROOT}/Chassis/1"
SESSIONS: Final = f"{ROOT}/SessionService/Sessions"
TASKS: Final = f"{ROOT}/TaskService/Tasks"
RESET: Final = f"{SYSTEM}/Actions/ComputerSystem.Reset"

RESETS: Final = ("On", "ForceOff", "GracefulShutdown", "ForceRestart", "PowerCycle")
"""The values of ResetType that the BMC allows."""
TARGETS: Final = ("None", "Pxe", "Cd", "Hdd", "BiosSetup", "Diags", "Utilities")
"""The default boot targets. A machine that boots by UEFI HTTP also has UefiHttp."""
TARGET, ENABLED, MODE = "BootSourceOverrideTarget", "BootSourceOverrideEnabled", "BootSourceOverrideMode"

SESSION_SECONDS: Final = 1800.0
"""Seconds without a request after which a session ends: SessionTimeout of the SessionService."""
MAX_TASKS: Final = 100
"""Maximum number of tasks that are remembered; the oldest is dropped first."""
MAX_BODY: Final = 64 * 1024
"""Maximum size in bytes of the body of a request."""
_READ_SECONDS: Final = 30.0
_CERTIFICATE_LIFE: Final = timedelta(days=30)
_PARTS: Final = ("EthernetInterfaces", "Memory", "Processors", "Storage")
_DISABLED: Final = {TARGET: "None", ENABLED: "Disabled"}


# --- the port to the machine ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MachineBoot:
    """The boot device of a machine's next start, in the words of Redfish's Boot (DSP0268, ComputerSystem).

    target: BootSourceOverrideTarget, such as Pxe, Cd, Hdd or UefiHttp; "None" is the machine's own boot order.
    mode: BootSourceOverrideMode, UEFI or Legacy. http_uri: HttpBootUri, the URL for UefiHttp; None: by DHCP.
    """

    target: str = "None"
    mode: str = "UEFI"
    http_uri: str | None = None


class MachineObserver(Protocol):
    """The BMC as its machine calls it: the machine reports each change when it has really happened."""

    def machine_started(self) -> None:
        """Report that the firmware starts: after a power-on, after a reset, and after a restart by the system."""

    def machine_stopped(self) -> None:
        """Report that the machine is off, for whatever cause."""

    def medium_inserted(self) -> None:
        """Report that the medium of the last `insert` is in the drive."""

    def medium_refused(self, reason: str) -> None:
        """Report that the medium of the last `insert` can't be used, such as a URL without a file."""

    def medium_ejected(self) -> None:
        """Report that the drive is empty."""


class PoweredMachine(Protocol):
    """A machine as its BMC controls it. Each method returns at once; the machine does slow work in the background.

    A method that changes nothing, such as `power_on` of a machine that is on, does nothing and reports nothing.
    """

    def connect(self, observer: MachineObserver) -> None:
        """Report all further changes to `observer`."""

    def prepare(self, boot: MachineBoot) -> None:
        """Use `boot` for each start from now on, until the next call, whatever causes the start.

        The BMC calls this before the first start, after each change of its boot override, and after each start that
        has used up a one-time override.
        """

    def power_on(self) -> None:
        """Start a machine that is off. It reports `machine_started`."""

    def power_off(self) -> None:
        """Cut the power. The machine reports `machine_stopped`; disk and firmware variables stay."""

    def reset(self) -> None:
        """Restart a machine that is on, without a power-off. It reports `machine_started`."""

    def press_power_button(self) -> None:
        """Ask the operating system to shut down (ACPI). A system that listens goes off: `machine_stopped`."""

    def insert(self, url: str) -> None:
        """Fetch the image at `url` and put it into the virtual CD drive: `medium_inserted` or `medium_refused`."""

    def eject(self) -> None:
        """Empty the virtual CD drive: `medium_ejected`."""


class InstantMachine:
    """A machine without hardware: it does at once what its BMC asks for.

    shutdown_seconds: time that its operating system takes to shut down; None: it ignores the power button.
    """

    def __init__(self, bmc: SimulatedBmc, shutdown_seconds: float | None = 0.0) -> None:
        self._bmc = bmc
        self.shutdown_seconds = shutdown_seconds
        self.boot = MachineBoot()
        """The boot device of the next start."""
        self.medium: str | None = None
        """The URL of the medium in the drive."""

    def connect(self, observer: MachineObserver) -> None:
        """Do nothing: this machine reports to its BMC, at the time of the BMC."""

    def prepare(self, boot: MachineBoot) -> None:
        """Remember the boot device."""
        self.boot = boot

    def power_on(self) -> None:
        """Report the start."""
        self._bmc.machine_started()

    def power_off(self) -> None:
        """Report the power-off."""
        self._bmc.machine_stopped()

    def reset(self) -> None:
        """Report the start."""
        self._bmc.machine_started()

    def press_power_button(self) -> None:
        """Report the power-off after the shutdown."""
        if self.shutdown_seconds is not None:
            self._bmc.call_later(self.shutdown_seconds, self._bmc.machine_stopped)

    def insert(self, url: str) -> None:
        """Report the insertion; nothing is fetched."""
        self.medium = url
        self._bmc.medium_inserted()

    def eject(self) -> None:
        """Report the ejection."""
        self.medium = None
        self._bmc.medium_ejected()


# --- the pure BMC -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MachineDescription:
    """The parts of a machine, as its BMC reports them.

    processors: cores of each. dimms: MiB of each. drives: bytes of each. macs: the MAC address of each network card.
    """

    vendor: str = "Contoso"
    model: str = "3500"
    serial: str = "437XR1138R2"
    uuid: str = "38947555-7742-3448-3784-823347823834"
    bios: str = "P79 v1.45"
    firmware: str = "1.45.455b66-rev4"
    macs: tuple[str, ...] = ("52:54:00:00:00:01",)
    processors: tuple[int, ...] = (32, 32)
    dimms: tuple[int, ...] = (32768, 32768)
    drives: tuple[int, ...] = (960197124096,)


@dataclass(frozen=True)
class BmcAnswer:
    """The response of a simulated BMC."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)


@dataclass
class VirtualSlot:
    """A virtual drive. `properties`: the fields beside Image in the body of the last insertion."""

    path: str
    kinds: tuple[str, ...]
    image: str | None = None
    inserted: bool = False
    properties: Document = field(default_factory=dict)


@dataclass
class BmcTask:
    """A task of the BMC: its paths, its TaskState and, if it failed, the reason."""

    path: str
    monitor: str
    state: str = "Running"
    message: str = ""


@dataclass
class _Insertion:
    """An insertion that the machine has not reported yet."""

    slot: VirtualSlot
    image: str
    properties: Document
    task: BmcTask | None = None


class RefusalError(TinkedgeError):
    """A request that the simulated BMC refuses: the HTTP status and the message of a registry (DSP0266 section 8.6)."""

    def __init__(
        self, status: int, message_id: str, *args: str, properties: tuple[str, ...] = (), registry: str = "Base.1.8"
    ) -> None:
        super().__init__(message_id)
        self.status, self.message_id, self.message_args = status, f"{registry}.{message_id}", args
        self.properties = properties


class SimulatedBmc:
    """The state of a BMC, pure: requests and times in, answers out.

    accounts: passwords by user names. power: "On" or "Off". power_seconds: time from a reset to the new power state.
    post_seconds: time from the start of the machine to its boot, which uses up a one-time override. task_seconds: time
    that a task takes; None: changes need no task. session_limit: maximum number of sessions at once. targets: the boot
    targets; with UefiHttp, the BMC has HttpBootUri. modes: the boot modes, the present one first. slots: name and media
    types of each virtual drive; the machine has the first.
    """

    def __init__(
        self,
        *,
        accounts: Mapping[str, str],
        machine: PoweredMachine | None = None,
        description: MachineDescription | None = None,
        power: str = "Off",
        power_seconds: float = 0.0,
        post_seconds: float = 0.0,
        task_seconds: float | None = None,
        session_limit: int = 8,
        targets: Iterable[str] = TARGETS,
        modes: tuple[str, ...] = ("UEFI", "Legacy"),
        slots: tuple[tuple[str, tuple[str, ...]], ...] = (("CD", ("CD", "DVD")),),
        media_parent: str = MANAGER,
    ) -> None:
        self.accounts = dict(accounts)
        self.machine = machine or InstantMachine(self)
        self.description = description or MachineDescription()
        self.power, self.power_seconds, self.post_seconds = power, power_seconds, post_seconds
        self.task_seconds, self.session_limit = task_seconds, session_limit
        self.targets, self.modes, self.media_parent = tuple(targets), modes, media_parent
        self.boot: Document = {**_DISABLED, MODE: modes[0], "HttpBootUri": None}
        self.slots = [VirtualSlot(f"{media_parent}/VirtualMedia/{name}", kinds) for name, kinds in slots]
        self.tasks: dict[str, BmcTask] = {}
        self.sessions: dict[str, str] = {}
        """Tokens by the paths of their sessions."""
        self.logins = self.failed_logins = 0

        self._now = 0.0
        self._power_changed = self._post_ends = float("-inf")
        self._reset_at = 0.0
        self._is_cycling = False
        self._insertion: _Insertion | None = None
        self._used: dict[str, float] = {}
        """Time of the last request of each session."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count(1)

    # --- the door -----------------------------------------------------------------------------------------------------

    @property
    def open_sessions(self) -> int:
        """The number of sessions that nothing has ended."""
        return len(self.sessions)

    @property
    def next_boot(self) -> MachineBoot:
        """The boot device of the machine's next start, by the boot override."""
        boot = self._next_override()
        target = boot[TARGET] if boot[ENABLED] != "Disabled" else "None"
        return MachineBoot(target, boot[MODE], boot["HttpBootUri"] if target == "UefiHttp" else None)

    def _next_override(self) -> Document:
        return self.boot

    def handle(self, method: str, path: str, headers: Mapping[str, str], body: bytes, now: float) -> BmcAnswer:
        """Answer a request at the time `now`, after all that has happened until then."""
        self.run_until(now)
        lower = {name.lower(): value for name, value in headers.items()}
        try:
            return self._answer(method, path, lower, body)
        except RefusalError as refusal:
            return self._error(refusal)

    def run_until(self, now: float) -> None:
        """Let everything happen that is due at `now`: changes of power, boots, ends of tasks."""
        while self._events and self._events[0][0] <= now:
            due, _, happen = heapq.heappop(self._events)
            self._now = max(self._now, due)
            happen()
        self._now = max(self._now, now)

    @property
    def next_time(self) -> float | None:
        """The time of the next thing that happens without a request, or None."""
        return self._events[0][0] if self._events else None

    def call_later(self, seconds: float, happen: Callable[[], None]) -> None:
        """Call `happen` after `seconds`; at once if that is 0."""
        if seconds <= 0:
            happen()
        else:
            heapq.heappush(self._events, (self._now + seconds, next(self._count), happen))

    # --- the machine's reports ----------------------------------------------------------------------------------------

    def machine_started(self) -> None:
        """Take note of a start: the power is on, and a one-time boot override holds for this boot only."""
        if self.power != "On":
            self.power, self._power_changed = "On", self._now
        # Each restart has a time of its own, also in tests in which no time passes.
        self._reset_at, self._post_ends = self._now + next(self._count) * 1e-3, self._now + self.post_seconds
        self.call_later(self.post_seconds, self._boot_machine)

    def machine_stopped(self) -> None:
        """Take note of the power-off, and continue a PowerCycle."""
        if self.power != "Off":
            self.power, self._power_changed, self._post_ends = "Off", self._now, float("-inf")
        if self._is_cycling:
            self._is_cycling = False
            self.call_later(self.power_seconds, self._power_on)

    def medium_inserted(self) -> None:
        """Take note of the medium that the machine has inserted, and end the task of the insertion."""
        if self._insertion is None:
            return
        inserted, self._insertion = self._insertion, None
        slot = inserted.slot
        slot.image, slot.inserted, slot.properties = inserted.image, True, inserted.properties
        if inserted.task is not None:
            inserted.task.state = "Completed"

    def medium_refused(self, reason: str) -> None:
        """End the task of the insertion with the reason of the machine."""
        refused, self._insertion = self._insertion, None
        if refused is not None and refused.task is not None:
            refused.task.state, refused.task.message = "Exception", reason

    def medium_ejected(self) -> None:
        """Take note of the empty drive."""
        self._emptied(self.slots[0])

    # --- requests -----------------------------------------------------------------------------------------------------

    def _answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> BmcAnswer:
        bare = path.partition("?")[0].rstrip("/")
        document = self._parsed(method, body)
        if (method, bare) == ("POST", SESSIONS):
            return self._login(document or {})
        if bare not in ("/redfish", ROOT):
            self._authenticate(headers)
        return self._routed(method, bare, headers, document)

    def _parsed(self, method: str, body: bytes) -> Document | None:
        if method in ("GET", "DELETE") or not body:
            return None
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            raise RefusalError(400, "MalformedJSON") from None
        if not isinstance(document, dict):
            raise RefusalError(400, "UnrecognizedRequestBody")
        return document

    def _login(self, document: Document) -> BmcAnswer:
        self.logins += 1
        user = str(document.get("UserName"))
        self._check_account(user, str(document.get("Password")))
        self._end_idle_sessions()
        if not self._has_free_session():
            raise RefusalError(503, "SessionLimitExceeded")
        path, token = f"{SESSIONS}/{next(self._count)}", secrets.token_hex(32)
        self.sessions[path], self._used[path] = token, self._now
        body = _encoded(_resource(path, "Session", "v1_3_0", UserName=user))
        return BmcAnswer(201, body, {"Location": path, "X-Auth-Token": token})

    def _has_free_session(self) -> bool:
        return len(self.sessions) < self.session_limit

    def _check_account(self, user: str, password: str) -> None:
        if not self._is_account(user, password):
            self.failed_logins += 1
            raise RefusalError(401, "ResourceAtUriUnauthorized", SESSIONS, "the user or the password is wrong")

    def _is_account(self, user: str, password: str) -> bool:
        expected = self.accounts.get(user)
        return expected is not None and compare_digest(_bytes(expected), _bytes(password))

    def _end_idle_sessions(self) -> None:
        for path, used in list(self._used.items()):
            if path not in self.sessions or self._now - used >= SESSION_SECONDS:
                self.sessions.pop(path, None)
                del self._used[path]

    def _authenticate(self, headers: Mapping[str, str]) -> None:
        basic = headers.get("authorization", "")
        if basic.startswith("Basic "):
            try:
                user, _, password = base64.b64decode(basic.removeprefix("Basic ")).decode().partition(":")
            except (binascii.Error, ValueError):
                raise RefusalError(401, "NoValidSession") from None
            self._check_account(user, password)
            return
        self._end_idle_sessions()
        token = headers.get("x-auth-token")
        session = next((each for each, known in self.sessions.items() if known == token), None)
        if session is None:
            raise RefusalError(401, "NoValidSession")
        self._used[session] = self._now

    def _routed(self, method: str, path: str, headers: Mapping[str, str], document: Document | None) -> BmcAnswer:
        if method == "DELETE" and path in self.sessions:
            del self.sessions[path]
            return BmcAnswer(204)
        if method == "GET":
            return self._get(path)
        if method == "PATCH":
            return self._patch(path, headers, document or {})
        if method != "POST":
            raise RefusalError(405, "OperationNotAllowed")
        if path == RESET:
            return self._reset(str((document or {}).get("ResetType")))
        for slot in self.slots:
            if path.startswith(f"{slot.path}/Actions/"):
                return self._media_action(slot, path.rpartition(".")[2], document)
        raise RefusalError(404, "ResourceMissingAtURI", path)

    def _get(self, path: str) -> BmcAnswer:
        for task in self.tasks.values():
            if path in (task.path, task.monitor):
                return self._task_read(task, path)
        document = self.documents().get(path)
        if document is None:
            raise RefusalError(404, "ResourceMissingAtURI", path)
        body = _encoded(document)
        return BmcAnswer(200, body, {"ETag": self._etag(body)})

    def _etag(self, body: bytes) -> str:
        return f'"{hashlib.sha256(body).hexdigest()[:8]}"'

    def _error(self, refusal: RefusalError) -> BmcAnswer:
        info: Document = {
            "MessageId": refusal.message_id,
            "Message": self._message(refusal),
            "MessageArgs": list(refusal.message_args),
        }
        if refusal.properties:
            info["RelatedProperties"] = [f"#/Boot/{each}" for each in refusal.properties]
        error = {
            "code": "Base.1.8.GeneralError",
            "message": "A general error has occurred.",
            "@Message.ExtendedInfo": [info],
        }
        headers = {"Retry-After": "2"} if refusal.status == 503 else {}
        return BmcAnswer(refusal.status, _encoded({"error": error}), headers)

    def _message(self, refusal: RefusalError) -> str:
        return f"{refusal.message_id.rpartition('.')[2]}: {', '.join(refusal.message_args)}"

    # --- documents ----------------------------------------------------------------------------------------------------

    def documents(self) -> dict[str, Document]:
        """Return all documents by their paths, without tasks."""
        found = {ROOT: self._root(), SYSTEM: self._system(), "/redfish": {"v1": f"{ROOT}/"}}
        found |= {each["@odata.id"]: each for each in self._hardware()}
        found |= {slot.path: self._slot_document(slot) for slot in self.slots}
        found |= {path: _resource(path, "Session", "v1_3_0") for path in self.sessions}
        found[SESSIONS] = _collection(SESSIONS, "Session", list(self.sessions))
        media = f"{self.media_parent}/VirtualMedia"
        found[media] = _collection(media, "VirtualMedia", [slot.path for slot in self.slots])
        found[TASKS] = _collection(TASKS, "Task", list(self.tasks))
        return found

    def _root(self) -> Document:
        links = {name: _link(f"{ROOT}/{name}") for name in ("Systems", "Managers", "Chassis", "SessionService")}
        return _resource(
            ROOT, "ServiceRoot", "v1_15_0",
            RedfishVersion="1.15.0", UUID="92384634-2938-2342-8820-489239905423",
            Vendor=self.description.vendor, Product=self.description.model,
            Links={"Sessions": _link(SESSIONS)}, Tasks=_link(f"{ROOT}/TaskService"), **links,
        ) | {"@odata.id": f"{ROOT}/"}  # fmt: skip

    def _system(self) -> Document:
        about = self.description
        system = _resource(
            SYSTEM, "ComputerSystem", "v1_20_0",
            Manufacturer=about.vendor, Model=about.model, SerialNumber=about.serial, SKU="8675309",
            BiosVersion=about.bios, UUID=about.uuid, SystemType="Physical", PowerState=self.power, HostName="",
            LastResetTime=f"{datetime.fromtimestamp(self._reset_at, UTC):%Y-%m-%dT%H:%M:%S.%fZ}",
            Status={"State": "Enabled", "Health": "OK"},
            MemorySummary={"TotalSystemMemoryGiB": sum(about.dimms) / 1024},
            ProcessorSummary={"Count": len(about.processors), "Model": f"{about.vendor} 7000"},
            Boot=self._boot_document() | self._allowed(),
            Actions={"#ComputerSystem.Reset": {"target": RESET, "ResetType@Redfish.AllowableValues": list(RESETS)}},
            Links={"Chassis": [_link(CHASSIS)], "ManagedBy": [_link(MANAGER)]},
            **{each: _link(f"{SYSTEM}/{each}") for each in _PARTS},
        )  # fmt: skip
        if self.media_parent == SYSTEM:
            system["VirtualMedia"] = _link(f"{SYSTEM}/VirtualMedia")
        return system

    def _boot_document(self) -> Document:
        boot = dict(self.boot)
        if "UefiHttp" not in self.targets:
            del boot["HttpBootUri"]
        return boot

    def _allowed(self) -> Document:
        return {
            f"{TARGET}@Redfish.AllowableValues": list(self.targets),
            f"{ENABLED}@Redfish.AllowableValues": ["Disabled", "Once", "Continuous"],
            f"{MODE}@Redfish.AllowableValues": list(self.modes),
        }

    def _slot_document(self, slot: VirtualSlot) -> Document:
        actions = {
            f"#VirtualMedia.{name}": {"target": f"{slot.path}/Actions/VirtualMedia.{name}"}
            for name in ("InsertMedia", "EjectMedia")
        }
        return _resource(
            slot.path, "VirtualMedia", "v1_6_0", MediaTypes=list(slot.kinds), Image=slot.image, Inserted=slot.inserted,
            ImageName=(slot.image or "").rpartition("/")[2], ConnectedVia="URI" if slot.inserted else "NotConnected",
            WriteProtected=True, Actions=actions,
        )  # fmt: skip

    def _hardware(self) -> Iterable[Document]:
        """Yield the documents of an inventory: managers, services, chassis, network, processors, memory, storage."""
        yield _collection(f"{ROOT}/Systems", "ComputerSystem", [SYSTEM])
        yield _collection(f"{ROOT}/Managers", "Manager", [MANAGER])
        interfaces = f"{MANAGER}/EthernetInterfaces"
        media = {"VirtualMedia": _link(f"{MANAGER}/VirtualMedia")} if self.media_parent == MANAGER else {}
        yield _resource(
            MANAGER, "Manager", "v1_17_0", ManagerType="BMC", FirmwareVersion=self.description.firmware,
            Model=f"{self.description.vendor} BMC", EthernetInterfaces=_link(interfaces), **media,
        )  # fmt: skip
        yield from _members(interfaces, "EthernetInterface", {"eth0": {"MACAddress": "52:54:00:ff:00:01"}})
        yield _resource(
            f"{ROOT}/SessionService", "SessionService", "v1_1_8", Sessions=_link(SESSIONS),
            SessionTimeout=int(SESSION_SECONDS),
        )  # fmt: skip
        yield _resource(f"{ROOT}/TaskService", "TaskService", "v1_2_0", Tasks=_link(TASKS), ServiceEnabled=True)
        yield from self._chassis()
        yield from self._parts()

    def _chassis(self) -> Iterable[Document]:
        about, adapters, power = self.description, f"{CHASSIS}/NetworkAdapters", f"{CHASSIS}/PowerSubsystem"
        yield _collection(f"{ROOT}/Chassis", "Chassis", [CHASSIS])
        yield _resource(
            CHASSIS, "Chassis", "v1_21_0", ChassisType="RackMount", Manufacturer=about.vendor, Model=about.model,
            SerialNumber=about.serial, PartNumber="224071-J23", NetworkAdapters=_link(adapters),
            PowerSubsystem=_link(power),
        )  # fmt: skip
        supply = {"SerialNumber": "3488247", "PowerCapacityWatts": 800}
        yield _resource(power, "PowerSubsystem", "v1_1_0", PowerSupplies=_link(f"{power}/PowerSupplies"))
        yield from _members(f"{power}/PowerSupplies", "PowerSupply", {"Bay1": supply})
        ports = f"{adapters}/1/Ports"
        yield from _members(adapters, "NetworkAdapter", {"1": {"Manufacturer": about.vendor, "Ports": _link(ports)}})
        yield from _members(
            ports,
            "Port",
            {
                str(number): {"Ethernet": {"AssociatedMACAddresses": [mac.upper()]}, "LinkStatus": "LinkUp"}
                for number, mac in enumerate(about.macs, 1)
            },
        )

    def _parts(self) -> Iterable[Document]:
        about = self.description
        nics = {
            f"NIC{number}": {
                "MACAddress": mac.upper(), "PermanentMACAddress": mac.upper(), "SpeedMbps": 25000,
                "LinkStatus": "LinkUp",
            }
            for number, mac in enumerate(about.macs, 1)
        }  # fmt: skip
        yield from _members(f"{SYSTEM}/EthernetInterfaces", "EthernetInterface", nics)
        dimms = {
            f"DIMM{number}": {
                "CapacityMiB": mib, "MemoryDeviceType": "DDR5", "Manufacturer": about.vendor,
                "SerialNumber": str(1233 + number), "OperatingSpeedMhz": 4800,
            }
            for number, mib in enumerate(about.dimms, 1)
        }  # fmt: skip
        yield from _members(f"{SYSTEM}/Memory", "Memory", dimms)
        processors = {
            f"CPU{number}": {
                "Socket": f"CPU {number}", "Manufacturer": about.vendor, "Model": f"{about.vendor} 7000",
                "TotalCores": cores, "TotalThreads": 2 * cores,
            }
            for number, cores in enumerate(about.processors, 1)
        }  # fmt: skip
        yield from _members(f"{SYSTEM}/Processors", "Processor", processors)
        drives = [f"{SYSTEM}/Storage/1/Drives/{number}" for number in range(len(about.drives))]
        yield from _members(f"{SYSTEM}/Storage", "Storage", {"1": {"Drives": [_link(each) for each in drives]}})
        for number, (path, size) in enumerate(zip(drives, about.drives, strict=True)):
            yield _resource(
                path, "Drive", "v1_15_0", Manufacturer=about.vendor, Model="NVMe 7", MediaType="SSD", Protocol="NVMe",
                SerialNumber=f"S5XANX{number}R", CapacityBytes=size, Revision="1.0",
            )  # fmt: skip

    # --- power --------------------------------------------------------------------------------------------------------

    def _reset(self, kind: str) -> BmcAnswer:
        if kind not in RESETS:
            raise RefusalError(400, "ActionParameterNotSupported", kind, "ResetType")
        if kind in ("ForceRestart", "PowerCycle", "GracefulShutdown") and self.power == "Off":
            raise RefusalError(409, "ResourceCannotBeReset" if "Re" in kind else "ActionNotSupported", kind)
        return self._start_reset(kind)

    def _start_reset(self, kind: str) -> BmcAnswer:
        return self._started(lambda: self.call_later(self._reset_seconds(), lambda: self._apply_reset(kind)))

    def _reset_seconds(self) -> float:
        return self.power_seconds

    def _apply_reset(self, kind: str) -> None:
        self._is_cycling = kind == "PowerCycle"
        if kind == "On":
            self._power_on()
        elif kind == "GracefulShutdown":
            self.machine.press_power_button()
        elif kind == "ForceRestart":
            self.machine.prepare(self.next_boot)
            self.machine.reset()
        elif self.power == "Off":
            self.machine_stopped()
        else:
            self.machine.power_off()

    def _power_on(self) -> None:
        if self.power == "Off":
            self.machine.prepare(self.next_boot)
            self.machine.power_on()

    def _boot_machine(self) -> None:
        """Use up a one-time boot override, if the machine is still in this start."""
        if self.power == "Off" or self._now < self._post_ends:
            return
        self._use_boot()

    def _use_boot(self) -> None:
        if self.boot[ENABLED] == "Once":
            self.boot |= _DISABLED
            self.machine.prepare(self.next_boot)

    # --- boot override ------------------------------------------------------------------------------------------------

    def _patch(self, path: str, headers: Mapping[str, str], document: Document) -> BmcAnswer:
        present = self.documents().get(path)
        if present is None:
            raise RefusalError(404, "ResourceMissingAtURI", path)
        self._check_precondition(_encoded(present), headers.get("if-match"))
        if path not in self._overrides() or set(document) != {"Boot"} or not isinstance(document["Boot"], dict):
            raise RefusalError(400, "PropertyUnknown", ", ".join(document))
        return self._set_boot(path, document["Boot"])

    def _overrides(self) -> dict[str, Document]:
        """Return the writable boot overrides by the paths of their resources."""
        return {SYSTEM: self.boot}

    def _check_precondition(self, body: bytes, if_match: str | None) -> None:
        """Check If-Match against the present body of a resource (RFC 9110 section 13.1.1)."""
        if if_match is not None and if_match not in (self._accepted_etag(body), "*"):
            raise RefusalError(412, "PreconditionFailed")

    def _accepted_etag(self, body: bytes) -> str | None:
        return self._etag(body)

    def _set_boot(self, path: str, changes: Document) -> BmcAnswer:
        self._check_boot(changes)
        return self._started(lambda: self._keep_boot(path, changes))

    def _check_boot(self, changes: Document) -> None:
        allowed, known = self._allowed(), self._boot_document()
        for name, value in changes.items():
            if name not in known:
                raise RefusalError(400, "PropertyUnknown", name, properties=(name,))
            if value not in allowed.get(f"{name}@Redfish.AllowableValues", [value]):
                raise RefusalError(400, "PropertyValueNotInList", str(value), name, properties=(name,))
            if name == "HttpBootUri" and not isinstance(value, str | None):
                raise RefusalError(400, "PropertyValueTypeError", str(value), name, properties=(name,))

    def _keep_boot(self, path: str, changes: Document) -> None:
        self._overrides()[path].update(changes)
        self.machine.prepare(self.next_boot)

    # --- virtual media ------------------------------------------------------------------------------------------------

    def _media_action(self, slot: VirtualSlot, action: str, document: Document | None) -> BmcAnswer:
        if f"#VirtualMedia.{action}" not in self._slot_document(slot).get("Actions", {}):
            raise RefusalError(405, "OperationNotAllowed")
        if action == "EjectMedia":
            return self._started(lambda: self._eject(slot))
        return self._insert(slot, dict(document or {}))

    def _insert(self, slot: VirtualSlot, document: Document) -> BmcAnswer:
        self._check_insertion(slot, document)
        insertion = _Insertion(slot, document.pop("Image"), document)

        def insert() -> None:
            self._insertion = insertion
            if insertion.slot is self.slots[0]:
                self.machine.insert(insertion.image)
            else:
                self.medium_inserted()

        answer = self._started(insert)
        if self._insertion is insertion and insertion.task is None:  # the machine still fetches the image
            insertion.task = self._new_task()
            return self._task_answer(insertion.task)
        return answer

    def _check_insertion(self, slot: VirtualSlot, document: Document) -> None:
        if not isinstance(document.get("Image"), str):
            raise RefusalError(400, "ActionParameterMissing", "InsertMedia", "Image")
        if slot.inserted or self._insertion is not None:
            raise RefusalError(400, "ResourceInUse")

    def _eject(self, slot: VirtualSlot) -> None:
        is_coming = self._insertion is not None and self._insertion.slot is slot
        if is_coming:
            self.medium_refused("the medium was ejected before its insertion ended")
        if slot is self.slots[0] and (slot.inserted or is_coming):
            self.machine.eject()
        else:
            self._emptied(slot)

    def _emptied(self, slot: VirtualSlot) -> None:
        slot.image, slot.inserted = None, False

    # --- tasks --------------------------------------------------------------------------------------------------------

    def _started(self, effect: Callable[[], None]) -> BmcAnswer:
        """Cause an effect, at once or by a task, and return the answer to the request."""
        if self.task_seconds is None:
            effect()
            return BmcAnswer(204)
        task = self._new_task()

        def end() -> None:
            effect()
            if self._insertion is None or self._insertion.task is not None:
                task.state = "Completed"
            else:
                self._insertion.task = task

        self.call_later(self.task_seconds, end)
        return self._task_answer(task)

    def _new_task(self) -> BmcTask:
        number = next(self._count)
        task = BmcTask(f"{TASKS}/{number}", f"{ROOT}/TaskService/TaskMonitors/{number}")
        self.tasks[task.path] = task
        while len(self.tasks) > MAX_TASKS:
            del self.tasks[next(iter(self.tasks))]
        return task

    def _task_answer(self, task: BmcTask) -> BmcAnswer:
        return BmcAnswer(202, _encoded(self._task_document(task)), {"Location": task.monitor})

    def _task_document(self, task: BmcTask) -> Document:
        has_failed = task.state == "Exception"
        messages = [{"MessageId": "Base.1.8.InternalError", "Message": task.message}] if has_failed else []
        return _resource(
            task.path, "Task", "v1_7_1", TaskState=task.state, TaskStatus="Critical" if has_failed else "OK",
            TaskMonitor=task.monitor, Messages=messages,
        )  # fmt: skip

    def _task_read(self, task: BmcTask, path: str) -> BmcAnswer:
        document = _encoded(self._task_document(task))
        if path == task.path:
            return BmcAnswer(200, document)
        if task.state in ("Running", "Pending"):
            return BmcAnswer(202, document, {"Location": task.monitor})
        if task.state == "Exception":
            raise RefusalError(500, "InternalError")
        return BmcAnswer(204)


def _bytes(text: str) -> bytes:
    # JSON may have surrogates without their other half.
    return text.encode(errors="surrogatepass")


def _encoded(document: Document) -> bytes:
    return json.dumps(document).encode()


def _link(path: str) -> Document:
    return {"@odata.id": path}


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
        "Members": [_link(each) for each in members],
    }


def _members(path: str, kind: str, documents: Mapping[str, Document]) -> Iterable[Document]:
    yield _collection(path, kind, [f"{path}/{name}" for name in documents])
    for name, properties in documents.items():
        yield _resource(f"{path}/{name}", kind, "v1_0_0", **properties)


# --- on the network ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServedCertificate:
    """A BMC's certificate with its key, in PEM, and its SHA-256 fingerprint in hex digits."""

    chain: bytes = field(repr=False)
    fingerprint: str

    def context(self) -> ssl.SSLContext:
        """Return a TLS context that serves the certificate; many servers may share it."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        show(context, self.chain)
        return context


def served_certificate(address: str) -> ServedCertificate:
    """Return a new self-signed certificate for an IP address, as a BMC has one out of the box."""
    key, name = new_key(), common_name("bmc")
    certificate = (
        builder(name, name, key, datetime.now(UTC), _CERTIFICATE_LIFE)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    fingerprint = certificate.fingerprint(hashes.SHA256()).hex()
    return ServedCertificate(private_pem(key) + certificate.public_bytes(serialization.Encoding.PEM), fingerprint)


class BmcServer:
    """The HTTPS server of a simulated BMC. It is the observer of the BMC's machine, in the time of the event loop."""

    def __init__(self, bmc: SimulatedBmc, context: ssl.SSLContext, clock: Callable[[], float] | None = None) -> None:
        self.bmc = bmc
        self._context = context
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._runner: web.ServerRunner | None = None

    async def start(self, address: str, port: int = 0) -> int:
        """Listen, and return the port; 0 is a free one. Raises OSError if the port is taken."""
        # A client that has gone cancels the handler.
        server = web.Server(self._handle, handler_cancellation=True)
        self._runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, address, port, ssl_context=self._context).start()
        self.bmc.machine.connect(self)
        self.bmc.machine.prepare(self.bmc.next_boot)
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Close the connections and stop to listen. The machine stays as it is."""
        if self._timer is not None:
            self._timer.cancel()
        if self._runner is not None:
            await self._runner.cleanup()

    @property
    def connections(self) -> int:
        """The number of open connections."""
        server = self._runner.server if self._runner is not None else None
        return len(server.connections) if server is not None else 0

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        return http_response(await self.ask(request))

    async def ask(self, request: web.BaseRequest) -> BmcAnswer:
        """Read a request, and return the answer of the BMC."""
        try:
            async with asyncio.timeout(_READ_SECONDS):
                body = await _body(request)
        except TimeoutError:
            return BmcAnswer(408)
        if body is None:
            return BmcAnswer(413)
        answer = self.bmc.handle(request.method, request.path_qs, request.headers, body, self._now())
        self._set_timer()
        return answer

    def _now(self) -> float:
        return self._clock() if self._clock is not None else asyncio.get_running_loop().time()

    def _set_timer(self) -> None:
        """Wake up when the BMC does something without a request."""
        if self._timer is not None:
            self._timer.cancel()
        due = self.bmc.next_time
        self._timer = None if due is None else asyncio.get_running_loop().call_at(due, self._wake)

    def _wake(self) -> None:
        self.bmc.run_until(self._now())
        self._set_timer()

    # --- the machine's reports ----------------------------------------------------------------------------------------

    def _observe(self, report: Callable[[], None]) -> None:
        self.bmc.run_until(self._now())
        report()
        self._set_timer()

    def machine_started(self) -> None:
        """Pass the report on, at the present time."""
        self._observe(self.bmc.machine_started)

    def machine_stopped(self) -> None:
        """Pass the report on, at the present time."""
        self._observe(self.bmc.machine_stopped)

    def medium_inserted(self) -> None:
        """Pass the report on, at the present time."""
        self._observe(self.bmc.medium_inserted)

    def medium_refused(self, reason: str) -> None:
        """Pass the report on, at the present time."""
        self._observe(lambda: self.bmc.medium_refused(reason))

    def medium_ejected(self) -> None:
        """Pass the report on, at the present time."""
        self._observe(self.bmc.medium_ejected)


def http_response(answer: BmcAnswer) -> web.Response:
    """Return an answer of a BMC as a response of aiohttp."""
    headers = {"Content-Type": "application/json", "OData-Version": "4.0", **answer.headers}
    return web.Response(status=answer.status, body=answer.body, headers=headers)


async def _body(request: web.BaseRequest) -> bytes | None:
    """Return the body of a request, or None if it is too large."""
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > MAX_BODY:
            return None
    return bytes(body)
