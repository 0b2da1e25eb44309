"""BMC control for operators: `tinkedge power` and `tinkedge bmc check`.

`power` goes through the API: it creates a Job, and the BMC control of the API carries it out. `check` connects to the
BMC itself, with the credentials of the Machine, and only reads.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from tink.api.annotations import JOB_TTL_ANNOTATION, RETRY_LOGIN_ANNOTATION
from tink.api.bmc import is_ended
from tink.api.v1alpha2 import Raw, as_mapping
from tink.bmc.connections import CLIENTS, BmcConnections, ClientFactory, bmc_of, connection_of
from tink.bmc.credentials import CredentialsReader, LoginMemory
from tink.bmc.model import BmcConnection, BmcError, Boot, Cause, Observation, PowerAction, Slot
from tink.bmc.quirks import rows_for
from tink.bmc.status import condition, is_true
from tink.errors import TinkedgeError
from tink.kube.client import KubeClient, NotFoundError
from tink.kube.objects import NamespacedName
from tink.kube.resources import HARDWARE, JOB, MACHINE, TASK
from tink.printable import printable

_TTL_SECONDS = 3600
_POLL_SECONDS = 0.5
_UNNOTICED_SECONDS = 15.0
"""Time after which a Job that no BMC control has taken is reported."""
_MAX_NAME = 50
"""Maximum length of the part of a Job's name that names the machine: the name is the value of a label, too."""


class PowerError(TinkedgeError):
    """A machine's power could not be changed or read; the message has the cause."""


async def find_machine(client: KubeClient, name: str, namespace: str) -> Raw:
    """Return the Machine that a Hardware of this name refers to, or the Machine of this name.

    Raises PowerError if there is neither, ApiError.
    """
    hardware: Raw = {}
    with suppress(NotFoundError):
        hardware = await client.get(HARDWARE, name, namespace)
    reference = as_mapping(as_mapping(hardware.get("spec")).get("bmcRef")).get("name")
    try:
        return await client.get(MACHINE, str(reference or name), namespace)
    except NotFoundError:
        pass
    if reference:
        text = f"Hardware {namespace}/{name} refers to Machine {reference} (spec.bmcRef), which does not exist"
    elif hardware:
        text = f"Hardware {namespace}/{name} refers to no Machine: set spec.bmcRef.name"
    else:
        text = f"there is no Hardware and no Machine {name} in namespace {namespace}"
    raise PowerError(text)


# --- power ------------------------------------------------------------------------------------------------------------


def power_status(machine: Raw) -> str:
    """Return the power state of a Machine as it was last read. Raises PowerError if its BMC does not answer."""
    contact = condition(machine, "Contactable")
    if not contact:
        raise PowerError("the BMC has not been polled yet: does `tinkedge up` or `tinkedge controller --bmc` run?")
    if contact.get("status") != "True":
        raise PowerError(f"unknown: {contact.get('reason') or 'not contactable'}: {contact.get('message', '')}")
    return str(as_mapping(machine.get("status")).get("powerState") or "unknown")


async def change_power(
    client: KubeClient,
    machine: Raw,
    name: str,
    action: PowerAction,
    *,
    seconds: float,
    progress: Callable[[str], None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> str:
    """Create a Job with one power action, wait for its end, and return what the BMC reports.

    `name` becomes a part of the Job's name. `progress` gets a line for each change. The Job is deleted an hour after
    its end. It continues if this is cancelled. Raises PowerError if the Job fails or does not end within `seconds`
    (seconds), and ApiError.
    """
    key = NamespacedName.of(machine)
    job = await client.create(JOB, _job(key, name, action))
    own = NamespacedName.of(job)
    progress(f"Job {own}: {action.value} of Machine {key}")
    shown, waited = "", 0.0
    while not is_ended(job):
        if waited >= seconds:
            raise PowerError(f"Job {own} has not ended within {seconds:g} s: {shown or 'it has not begun'}. It goes on")
        await sleep(_POLL_SECONDS)
        waited += _POLL_SECONDS
        try:
            job = await client.get(JOB, own.name, own.namespace)
        except NotFoundError:
            raise PowerError(f"Job {own} was deleted") from None
        present = await _progress_of(client, job, waited)
        if present and present != shown:
            progress(present)
            shown = present
    if is_true(job, "Failed"):
        failed = condition(job, "Failed")
        raise PowerError(f"{failed.get('reason') or 'Failed'}: {failed.get('message', '')}")
    return str(condition(await _first_task(client, job), "Completed").get("message") or "done")


async def _progress_of(client: KubeClient, job: Raw, waited: float) -> str:
    running = condition(job, "Running")
    if not running:
        late = waited >= _UNNOTICED_SECONDS
        return "no BMC control has taken the Job: `tinkedge up` or `tinkedge controller --bmc` must run" if late else ""
    if running.get("status") != "True":
        return f"{running.get('reason')}: {running.get('message', '')}"
    task = await _first_task(client, job)
    status = as_mapping(task.get("status"))
    if not status.get("startTime"):
        return "waiting for the BMC"
    stage, present = status.get("stage"), str(condition(task, "Running").get("message") or "")
    return ": ".join(filter(None, (f"running, {stage} is done" if stage else "running", present)))


async def _first_task(client: KubeClient, job: Raw) -> Raw:
    key = NamespacedName.of(job)
    try:
        return await client.get(TASK, f"{key.name}-task-0", key.namespace)
    except NotFoundError:
        return {}


def _job(machine: NamespacedName, name: str, action: PowerAction) -> Raw:
    return {
        "apiVersion": JOB.api_version,
        "kind": JOB.kind,
        "metadata": {
            "name": f"power-{name[:_MAX_NAME].rstrip('.-')}-{secrets.token_hex(3)}",
            "namespace": machine.namespace,
            "annotations": {JOB_TTL_ANNOTATION: str(_TTL_SECONDS)},
        },
        "spec": {
            "machineRef": {"name": machine.name, "namespace": machine.namespace},
            "tasks": [{"powerAction": action.value}],
        },
    }


# --- check ------------------------------------------------------------------------------------------------------------


class Verdict(StrEnum):
    """The result of one row of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class BmcFinding:
    """One row of the table of `tinkedge bmc check`."""

    subject: str
    verdict: Verdict
    text: str


async def check(
    client: KubeClient, machine: Raw, *, again: bool = False, clients: Mapping[str, ClientFactory] = CLIENTS
) -> list[BmcFinding]:
    """Read everything that BMC control needs from the BMC of a Machine, and return one finding for each part.

    Nothing is changed. A login that the BMC has refused before is tried only with `again`. Raises ApiError.
    """
    key, spec = NamespacedName.of(machine), as_mapping(as_mapping(machine.get("spec")).get("connection"))
    reader, logins = CredentialsReader(client), LoginMemory()
    try:
        connection = connection_of(spec, await reader.authority(spec, key.namespace))
        credentials = await reader.credentials(spec, key.namespace)
    except BmcError as error:
        return [BmcFinding("settings", Verdict.FAILED, str(error))]
    bmc = bmc_of(connection)
    logins.restore(MACHINE.kind, machine, bmc, credentials)
    is_doubtful = not logins.is_permitted(bmc, credentials)
    if again:
        logins = LoginMemory()
    secret = credentials.version.partition("@")[0]
    findings = [BmcFinding("settings", Verdict.OK, f"{connection.host}, Secret {secret}"), _trust(connection)]
    try:
        async with BmcConnections(logins, clients=clients).open(key, connection, credentials) as session:
            seen = await session.observe(boot=True, media=True)
            protocol = session.protocol
    except BmcError as error:
        return [*findings, *_unanswered(error)]
    name = "Redfish" if protocol == "redfish" else "IPMI"
    findings += [
        BmcFinding("reachable", Verdict.OK, f"by {name}"),
        BmcFinding("login", Verdict.OK, _accepted(key, is_doubtful)),
    ]
    return [*findings, *_observed(seen, protocol)]


def _accepted(machine: NamespacedName, is_doubtful: bool) -> str:
    """Return the text of an accepted login. `is_doubtful`: BMC control does not log in by itself."""
    if not is_doubtful:
        return "accepted"
    command = f"kubectl annotate --overwrite -n {machine.namespace} machines.bmc.tinkerbell.org/{machine.name}"
    return f'accepted; tinkedge itself logs in again after: {command} {RETRY_LOGIN_ANNOTATION}="$(date)"'


def _trust(connection: BmcConnection) -> BmcFinding:
    """Return how the certificate of the BMC is verified."""
    if connection.fingerprint:
        return BmcFinding("certificate", Verdict.OK, "must have the fingerprint in certificateFingerprint")
    if connection.authority:
        return BmcFinding("certificate", Verdict.OK, "must be of the authority in caSecretRef")
    if connection.insecure_tls:
        text = "not verified (insecureTLS): another host on the way can read the password; set certificateFingerprint"
        return BmcFinding("certificate", Verdict.WARNING, text)
    return BmcFinding("certificate", Verdict.OK, "must be of an authority that this host trusts")


def _unanswered(error: BmcError) -> Iterator[BmcFinding]:
    """Yield the findings about a BMC that could not be read."""
    match error.cause:
        case Cause.UNREACHABLE | Cause.UNSUPPORTED:
            yield BmcFinding("reachable", Verdict.FAILED, str(error))
            yield BmcFinding("login", Verdict.UNKNOWN, "not tried")
        case Cause.CERTIFICATE:
            yield BmcFinding("reachable", Verdict.FAILED, str(error))
            yield BmcFinding("login", Verdict.UNKNOWN, "not tried: the password is not sent to an untrusted BMC")
        case Cause.LOGIN_UNCLEAR:
            yield BmcFinding("reachable", Verdict.UNKNOWN, "not tried")
            yield BmcFinding("login", Verdict.FAILED, str(error))
        case Cause.CREDENTIALS_REFUSED:
            yield BmcFinding("reachable", Verdict.OK, "it answers")
            yield BmcFinding("login", Verdict.FAILED, str(error))
        case _:
            yield BmcFinding("reachable", Verdict.OK, "it answers")
            yield BmcFinding("login", Verdict.FAILED, f"{error.cause.value}: {error}")


def _observed(seen: Observation, protocol: str) -> Iterator[BmcFinding]:
    """Yield the findings about a BMC that answers."""
    resets = ", ".join(seen.allowed_resets) or "the BMC lists none"
    yield BmcFinding("power", Verdict.OK, f"{seen.power.value}; resets: {resets}")
    yield _boot_finding(seen.boot)
    yield _media_finding(seen.slots, protocol)
    identity = seen.identity
    named = {
        "": " ".join(filter(None, (identity.vendor, identity.model))),
        "BMC": identity.firmware,
        "BIOS": identity.bios,
        "Redfish": identity.redfish,
    }
    text = ", ".join(f"{name} {value}".strip() for name, value in named.items() if value)
    yield BmcFinding("firmware", Verdict.OK if text else Verdict.UNKNOWN, printable(text) or "the BMC reports none")
    rows = rows_for(identity)
    for row in rows:
        # A last affected version means that a later firmware does not have the fault.
        old = "; this firmware is old: a later one does not have the fault" if row.until else ""
        verdict = Verdict.WARNING if row.until or row.is_advice else Verdict.OK
        yield BmcFinding(f"quirk {row.number}", verdict, f"{row.symptom}: {row.remedy}{old}")
    if not rows:
        yield BmcFinding("quirks", Verdict.OK, "none is known of this model and firmware")


def _boot_finding(boot: Boot | None) -> BmcFinding:
    if boot is None:
        return BmcFinding("boot device", Verdict.FAILED, "the BMC has no boot override; DHCP alone decides")
    present = f"{boot.target or 'unknown'}, {boot.enabled or 'unknown'}, {boot.mode or 'no mode'}"
    allowed = boot.allowed_targets
    if not allowed:
        return BmcFinding("boot device", Verdict.UNKNOWN, f"{present}; the BMC does not list which it can set")
    verdict = Verdict.OK if "Pxe" in allowed else Verdict.WARNING
    lacks = "" if "Pxe" in allowed else "; Pxe is missing"
    return BmcFinding("boot device", verdict, f"{present}; can be set: {', '.join(allowed)}{lacks}")


def _media_finding(slots: Sequence[Slot] | None, protocol: str) -> BmcFinding:
    if not slots:
        what = "IPMI has no virtual media" if protocol == "ipmi" else "the BMC has none"
        return BmcFinding("virtual media", Verdict.WARNING, what)
    texts = [
        f"{slot.path.rpartition('/')[2]} ({', '.join(slot.kinds) or 'any'}{', inserted' if slot.inserted else ''})"
        for slot in slots
    ]
    return BmcFinding("virtual media", Verdict.OK, ", ".join(texts))
