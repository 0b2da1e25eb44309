"""The types of BMC control: what is wanted, what a BMC reports, and what can be sent to it. Plain data, no I/O.

The words are Redfish's (DSP0268, ComputerSystem and VirtualMedia); the IPMI client translates.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from tink.api.v1alpha2 import PowerState as PowerState
from tink.errors import TinkedgeError


class PowerAction(StrEnum):
    """The values of `powerAction` in a task."""

    ON = "on"
    OFF = "off"
    SOFT = "soft"
    STATUS = "status"
    CYCLE = "cycle"
    RESET = "reset"


class BootDevice(StrEnum):
    """The values of `device` in a task. HTTP is UEFI HTTP boot: the boot ladder uses it, tasks can't."""

    PXE = "pxe"
    DISK = "disk"
    BIOS = "bios"
    CDROM = "cdrom"
    SAFE = "safe"
    HTTP = "http"


class BootMode(StrEnum):
    """How firmware starts a boot program: BootSourceOverrideMode."""

    UEFI = "UEFI"
    LEGACY = "Legacy"


class Enabled(StrEnum):
    """How long a boot override holds: BootSourceOverrideEnabled."""

    DISABLED = "Disabled"
    ONCE = "Once"
    CONTINUOUS = "Continuous"


class ResetType(StrEnum):
    """The kinds of ComputerSystem.Reset that are used."""

    ON = "On"
    FORCE_OFF = "ForceOff"
    GRACEFUL_SHUTDOWN = "GracefulShutdown"
    FORCE_RESTART = "ForceRestart"
    POWER_CYCLE = "PowerCycle"


# --- what a BMC reports -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Identity:
    """Vendor, model and firmware of a BMC and its machine; empty strings for what the BMC does not report."""

    vendor: str = ""
    model: str = ""
    firmware: str = ""
    """Version of the BMC's firmware."""
    bios: str = ""
    serial: str = ""
    redfish: str = ""
    """RedfishVersion of the service root; empty for IPMI."""


@dataclass(frozen=True, slots=True)
class Boot:
    """The boot override as the BMC reports it. None: the BMC does not report this part.

    `allowed_targets` and `allowed_enabled` are the AllowableValues; empty if the BMC lists none.
    """

    target: str | None = None
    enabled: str | None = None
    mode: str | None = None
    http_uri: str | None = None
    allowed_targets: tuple[str, ...] = ()
    allowed_enabled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot for virtual media. `path` identifies it (its @odata.id); `kinds` are its MediaTypes."""

    path: str
    kinds: tuple[str, ...] = ()
    image: str = ""
    inserted: bool = False
    has_insert_action: bool = True
    """False if the slot has no InsertMedia action, so that only a PATCH of the slot can insert an image."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The present state of a BMC. `boot` and `slots` are None if they were not read or the BMC has none."""

    power: PowerState
    boot: Boot | None = None
    slots: tuple[Slot, ...] | None = None
    identity: Identity = Identity()
    allowed_resets: tuple[str, ...] = ()
    last_reset: str = ""
    """LastResetTime, which changes with each restart; empty if the BMC does not report it."""
    pending_boot: Boot | None = None
    """The boot override in the resource of @Redfish.Settings, which the BMC applies at the next restart.

    None if it was not read, or if the BMC has no such resource for the boot override.
    """


# --- what is wanted ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WantedPower:
    """A power action."""

    action: PowerAction


@dataclass(frozen=True, slots=True)
class WantedBoot:
    """A boot device for the next boot, or for all (`persistent`). `mode` None: the mode stays as it is."""

    device: BootDevice
    persistent: bool = False
    mode: BootMode | None = None
    http_uri: str = ""


@dataclass(frozen=True, slots=True)
class ClearedBoot:
    """No boot override: the machine boots by the boot order of its firmware."""


@dataclass(frozen=True, slots=True)
class WantedMedium:
    """An image in a virtual drive. An empty `url` means an empty drive. `kind` is a MediaType, such as CD."""

    kind: str
    url: str = ""


Wanted = WantedPower | WantedBoot | ClearedBoot | WantedMedium


# --- what can be sent -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reset:
    """ComputerSystem.Reset."""

    type: ResetType


@dataclass(frozen=True, slots=True)
class SetBoot:
    """A change of the boot override; fields that are None are left out of the request.

    `at_settings`: send it to the resource of @Redfish.Settings, where some BMCs alone accept it.
    """

    target: str | None = None
    enabled: str | None = None
    mode: str | None = None
    http_uri: str | None = None
    at_settings: bool = False


@dataclass(frozen=True, slots=True)
class InsertMedium:
    """VirtualMedia.InsertMedia, or a PATCH of the slot. `properties` are sent beside Image."""

    slot: str
    url: str
    properties: tuple[tuple[str, str | bool], ...] = ()
    by_patch: bool = False


@dataclass(frozen=True, slots=True)
class EjectMedium:
    """VirtualMedia.EjectMedia, or a PATCH of the slot."""

    slot: str
    by_patch: bool = False


Request = Reset | SetBoot | InsertMedium | EjectMedium


class Cause(StrEnum):
    """Why a BMC did not do what was wanted: the reasons in conditions, events and metrics."""

    UNREACHABLE = "BmcUnreachable"
    CREDENTIALS_MISSING = "CredentialsMissing"
    """The Machine names no Secret, or the Secret does not exist, lacks a key or may not be used. No login was tried."""
    CREDENTIALS_REFUSED = "CredentialsRefused"
    LOGIN_UNCLEAR = "LoginUnclear"
    """An earlier process has begun to log in, and has not noted the result. No further login was tried."""
    CERTIFICATE = "CertificateNotTrusted"
    BUSY = "BmcBusy"
    """It has no session left, or answers 503."""
    CONFLICT = "ConflictingState"
    """It refuses the request in the present state of the machine, such as during POST; a later attempt may succeed."""
    REFUSED = "RequestRefused"
    """It refuses this request (4xx); another form of it may be accepted."""
    PRECONDITION = "PreconditionRefused"
    """It refuses the If-Match header, or its absence (412, 428)."""
    UNSUPPORTED = "NotSupported"
    BAD_ANSWER = "BadAnswer"
    """Its answer is too large, too deep, cut off, or not what the specification says."""
    IGNORED = "RequestIgnored"
    """It accepted the request, and the effect did not come."""


LOGIN_CAUSES: Final = (Cause.CREDENTIALS_REFUSED, Cause.LOGIN_UNCLEAR)
"""The BMC has refused the login, or may have."""


class BmcError(TinkedgeError):
    """A BMC did not do what was asked. The message names the BMC and what it answered, never a password.

    `message_ids` are the MessageIds of a Redfish error, such as `Base.1.8.PropertyNotWritable`; `properties` are the
    properties that the error names. `retry_after` is the time in seconds that the BMC asks for; 0: none.
    """

    def __init__(
        self,
        cause: Cause,
        message: str,
        *,
        status: int = 0,
        message_ids: tuple[str, ...] = (),
        properties: tuple[str, ...] = (),
        retry_after: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.cause = cause
        self.status = status
        self.message_ids = message_ids
        self.properties = properties
        self.retry_after = retry_after


# --- how to reach one -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BmcCredentials:
    """User and password of a BMC. `version` identifies the Secret's content: a refused one is not tried again."""

    username: str
    password: str = field(repr=False)
    version: str = ""


@dataclass(frozen=True, slots=True)
class BmcConnection:
    """Address and protocol settings of a BMC, from `spec.connection` of a Machine.

    `authority` is a PEM certificate authority, `fingerprint` the SHA-256 of the BMC's certificate in lower case hex.
    With neither, and `insecure_tls`, the certificate is not verified; otherwise by the authorities of this host.
    """

    host: str
    redfish_port: int = 443
    ipmi_port: int = 623
    insecure_tls: bool = False
    authority: str = ""
    fingerprint: str = ""
    use_basic_auth: bool = False
    system_name: str = ""
    cipher_suite: str = "17"
    protocols: tuple[str, ...] = ("redfish", "ipmi")
    """The protocols in the order in which they are tried."""


class BmcClient(Protocol):
    """A connection to one BMC, by Redfish or IPMI. It is an async context manager: the session ends on exit.

    All methods raise BmcError.
    """

    @property
    def protocol(self) -> str:
        """`redfish` or `ipmi`."""
        ...

    async def observe(self, *, boot: bool = False, media: bool = False) -> Observation:
        """Read the power state and the identity; with `boot` and `media` these as well."""
        ...

    async def send(self, request: Request) -> None:
        """Send a request and return when the BMC has accepted it and has ended its task, if it started one."""
        ...
