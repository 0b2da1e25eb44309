"""Discovery for operators: the work of `tinkedge discover`.

`survey` reads Hardware and the lists of expected machines. `approve` sets the annotation that
`tink.discovery.controller` acts on. `store_list` stores a list, and its passwords as Secrets. `adopt` records a machine
that is in use already: its Hardware has no address and permits no netboot, so nothing of the machine changes. All of it
goes through the API; `adopt` also reads a BMC.
"""

from __future__ import annotations

import asyncio
import base64
import csv
import io
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from tink.api.annotations import APPROVE_ANNOTATION, AUTO_DISCOVERED_LABEL, EXPECTED_MACHINES_LABEL
from tink.api.inventory import disk_size, mac_address
from tink.api.v1alpha2 import Raw, as_mapping
from tink.bmc.connections import CLIENTS, BmcConnections, ClientFactory, connection_of
from tink.bmc.credentials import CredentialsReader, LoginMemory
from tink.bmc.model import BmcError
from tink.discovery.expected import MAX_PROBLEMS, ExpectedMachines, is_secret_column, read_list, read_table
from tink.discovery.identity import facts_of, ports_of
from tink.discovery.model import ExpectedMachine, ListProblem, MachineFacts, condition_of, is_discovered
from tink.discovery.report import MAX_REPORT_BYTES, CollectionMethod, UnreadableReportError, read_report
from tink.errors import TinkedgeError
from tink.kube.client import ConflictError, KubeClient, NotFoundError
from tink.kube.objects import NamespacedName
from tink.kube.resources import CONFIG_MAP, HARDWARE, MACHINE, SECRET, ResourceType
from tink.printable import printable
from tink.timestamps import rfc3339
from tink.workflow.status import parse_timestamp

_POLL_SECONDS = 0.5
_UNNOTICED_SECONDS = 15.0
"""Time after which an approval that no controller has acted on is reported."""
_MAX_NAME = 200
_SELECTOR = f"{EXPECTED_MACHINES_LABEL}=true"


class DiscoveryError(TinkedgeError):
    """A machine could not be approved, recorded or listed; the message names it and the remedy."""


# --- survey -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FoundMachine:
    """A machine with a Hardware. Times are Unix seconds; 0 if unknown. A text is empty if the fact is unknown.

    reason, message: of the condition AsExpected; empty before the inventory is there.
    lists: the namespaces whose lists of expected machines count for it; `*` means all.
    """

    key: NamespacedName
    macs: tuple[str, ...]
    since: float
    vendor: str
    model: str
    serial: str
    ports: tuple[str, ...]
    disks: tuple[str, ...]
    memory_bytes: int
    has_inventory: bool
    reason: str
    message: str
    lists: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DiscoverySurvey:
    """The state of discovery.

    waiting: discovered machines that are not approved.
    missing: expected machines that have no Hardware yet.
    different: other machines that are not as expected.
    problems: lines of the lists that can't be used.
    expected: the number of lines that can be used.
    """

    waiting: tuple[FoundMachine, ...]
    missing: tuple[ExpectedMachine, ...]
    different: tuple[FoundMachine, ...]
    problems: tuple[ListProblem, ...]
    expected: int


async def survey(client: KubeClient, namespace: str | None) -> DiscoverySurvey:
    """Return the state of discovery in a namespace (None: in all). Raises ApiError."""
    hardware = await client.list(HARDWARE, namespace)
    lists = await client.list(CONFIG_MAP, namespace, label_selector=_SELECTOR)
    expected = ExpectedMachines()
    for each in lists.get("items") or ():
        expected.apply(each)
    return survey_of([each for each in hardware.get("items") or () if isinstance(each, dict)], expected)


def survey_of(hardware: list[Raw], expected: ExpectedMachines) -> DiscoverySurvey:
    """Return the state of discovery from all Hardware and all lists."""
    found = [(each, _found(each)) for each in hardware]
    present = {machine.key for obj, machine in found if not is_discovered(obj)}
    waiting = sorted((each for obj, each in found if is_discovered(obj)), key=lambda each: (each.since, each.key))
    different = [each for obj, each in found if not is_discovered(obj) and condition_of(obj).get("status") == "False"]
    missing = tuple(expected.missing(present.__contains__))
    return DiscoverySurvey(tuple(waiting), missing, tuple(different), expected.problems, len(expected))


def _found(hardware: Raw) -> FoundMachine:
    facts = facts_of(hardware)
    metadata = as_mapping(hardware.get("metadata"))
    inventory = facts.in_band or facts.out_of_band
    product = as_mapping(inventory.get("product"))
    condition = condition_of(hardware)
    return FoundMachine(
        facts.key,
        tuple(sorted(as_mapping(as_mapping(hardware.get("spec")).get("networkInterfaces")))),
        parse_timestamp(metadata.get("creationTimestamp")) or 0.0,
        str(product.get("vendor") or ""),
        str(product.get("model") or ""),
        str(product.get("serialNumber") or ""),
        tuple(_ports(facts)),
        tuple(_disks(inventory)),
        int(as_mapping(inventory.get("memory")).get("totalBytes") or 0),
        bool(inventory),
        str(condition.get("reason") or ""),
        str(condition.get("message") or ""),
        tuple(sorted(facts.lists)),
    )


def _ports(facts: MachineFacts) -> Iterator[str]:
    for port in ports_of(facts.in_band):
        neighbour = as_mapping(port.get("lldp"))
        if switch := neighbour.get("systemName") or neighbour.get("chassisID"):
            yield f"{switch}/{neighbour.get('portID') or '?'}"


def _disks(inventory: Raw) -> Iterator[str]:
    for each in inventory.get("blockDevices") or ():
        disk = as_mapping(each)
        size = int(disk.get("sizeBytes") or 0)
        yield " ".join(
            filter(
                None, (str(disk.get("name") or ""), disk_size(size) if size else "", str(disk.get("driveType") or ""))
            )
        )


# --- approval ---------------------------------------------------------------------------------------------------------


async def approve(
    client: KubeClient,
    key: NamespacedName,
    name: str,
    *,
    seconds: float,
    progress: Callable[[str], None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> str:
    """Approve a discovered machine under `name` (empty: its present name), and return a line about its Hardware.

    Waits until the controller has made it, at most `seconds`. `progress` gets a line for each change. Raises
    DiscoveryError, ApiError.
    """
    try:
        hardware = await client.get(HARDWARE, key.name, key.namespace)
    except NotFoundError:
        raise DiscoveryError(
            f"there is no Hardware {key}; `tinkedge discover list` shows the discovered machines"
        ) from None
    if not is_discovered(hardware):
        raise DiscoveryError(f"Hardware {key} does not wait for an approval: it has no label {AUTO_DISCOVERED_LABEL}")
    target = NamespacedName(key.namespace, name or key.name)
    if name and name != key.name and await _exists(client, target):
        raise DiscoveryError(f"Hardware {target} exists already: give another name, or delete it first")
    value = name if name and name != key.name else "true"
    await client.patch(HARDWARE, key.name, key.namespace, {"metadata": {"annotations": {APPROVE_ANNOTATION: value}}})
    waited, shown = 0.0, ""
    while waited < seconds:
        with suppress(NotFoundError):
            approved = await client.get(HARDWARE, target.name, target.namespace)
            if not is_discovered(approved):
                return f"Hardware {target} is approved"
        message = await _why_not(client, key, waited)
        if message and message != shown:
            progress(message)
            shown = message
        await sleep(_POLL_SECONDS)
        waited += _POLL_SECONDS
    raise DiscoveryError(f"Hardware {key} was not approved within {seconds:g} s: {shown or 'no reason is known'}")


async def _exists(client: KubeClient, key: NamespacedName) -> bool:
    try:
        await client.get(HARDWARE, key.name, key.namespace)
    except NotFoundError:
        return False
    return True


async def _why_not(client: KubeClient, key: NamespacedName, waited: float) -> str:
    """Return what keeps the controller from the approval, as far as the object shows; empty if nothing does."""
    try:
        hardware = await client.get(HARDWARE, key.name, key.namespace)
    except NotFoundError:
        return ""
    if condition_of(hardware).get("status") == "False":
        return str(condition_of(hardware).get("message") or "")
    late = waited >= _UNNOTICED_SECONDS
    return "no controller acts on it: `tinkedge up` or `tinkedge controller --discovery` must run" if late else ""


# --- adoption ---------------------------------------------------------------------------------------------------------


def adopted_hardware(key: NamespacedName, attributes: Raw, bmc: str = "") -> Raw:
    """Return the Hardware of a machine that is in use: without an address and without netboot. `bmc` names its Machine.

    `attributes` is its inventory. Raises DiscoveryError if that has no MAC address.
    """
    macs = dict.fromkeys(mac for port in ports_of(attributes) if (mac := mac_address(port.get("mac"))))
    if not macs:
        raise DiscoveryError(f"Hardware {key}: the inventory has no MAC address, so nothing identifies the machine")
    spec: Raw = {"networkInterfaces": {mac: {"disableNetboot": True} for mac in macs}}
    if bmc:
        spec["bmcRef"] = {"name": bmc}
    return {
        "apiVersion": HARDWARE.api_version,
        "kind": HARDWARE.kind,
        "metadata": {"name": key.name, "namespace": key.namespace},
        "spec": spec,
    }


async def adopt_by_inventory(client: KubeClient, key: NamespacedName, content: bytes) -> str:
    """Record a machine by the inventory that its agent has printed (JSON), and return a line about its Hardware.

    Raises DiscoveryError, ApiError.
    """
    if len(content) > MAX_REPORT_BYTES:
        raise DiscoveryError(f"Hardware {key}: the inventory has more than {MAX_REPORT_BYTES} bytes")
    try:
        attributes = read_report(content).attributes
    except UnreadableReportError as error:
        raise DiscoveryError(
            f"Hardware {key}: {error}; give the output of `tinkedge agent --print-inventory`"
        ) from error
    hardware = adopted_hardware(key, attributes)
    await _create(client, hardware)
    attributes |= {"collectionMethod": CollectionMethod.AGENT.value, "lastUpdated": rfc3339(time.time())}
    await client.patch(
        HARDWARE, key.name, key.namespace, {"status": {"inventory": {"inBand": attributes}}}, subresource="status"
    )
    count = len(hardware["spec"]["networkInterfaces"])
    return f"Hardware {key} is recorded, with {count} network ports; it gets no address and boots from its disk"


async def adopt_by_bmc(
    client: KubeClient,
    key: NamespacedName,
    host: str,
    secret: str,
    *,
    insecure_tls: bool = False,
    clients: Mapping[str, ClientFactory] = CLIENTS,
) -> str:
    """Record a machine by its BMC, which is only read, and return a line about its Hardware.

    Creates the Machine `key` for the BMC at `host` with the Secret `secret`, and a Hardware that refers to it. BMC
    control then reads power and inventory. Raises DiscoveryError, ApiError.
    """
    machine = bmc_machine(key, host, secret, insecure_tls=insecure_tls)
    spec = as_mapping(as_mapping(machine["spec"]).get("connection"))
    reader = CredentialsReader(client)
    try:
        connection = connection_of(spec, await reader.authority(spec, key.namespace))
        credentials = await reader.credentials(spec, key.namespace)
        async with BmcConnections(LoginMemory(), clients=clients).open(key, connection, credentials) as session:
            attributes = await session.read_inventory()
    except BmcError as error:
        raise DiscoveryError(f"the BMC {printable(host)}: {error.cause.value}: {error}") from error
    hardware = adopted_hardware(key, attributes, bmc=key.name)
    if await _exists(client, key):  # else the Machine would be left behind
        raise DiscoveryError(f"Hardware {key} exists already: give another name")
    await _create(client, machine)
    await _create(client, hardware)
    return f"Hardware {key} and Machine {key} are recorded; BMC control reads the power and the inventory"


def bmc_machine(key: NamespacedName, host: str, secret: str, *, insecure_tls: bool = False) -> Raw:
    """Return the Machine (bmc.tinkerbell.org) of a BMC with the credentials of a Secret in the same namespace."""
    connection = {
        "host": host,
        "authSecretRef": {"name": secret, "namespace": key.namespace},
        "insecureTLS": insecure_tls,
    }
    return {
        "apiVersion": MACHINE.api_version,
        "kind": MACHINE.kind,
        "metadata": {"name": key.name, "namespace": key.namespace},
        "spec": {"connection": connection},
    }


async def _create(client: KubeClient, obj: Raw) -> None:
    kind, key = obj["kind"], NamespacedName.of(obj)
    try:
        await client.create({"Hardware": HARDWARE, "Machine": MACHINE}[kind], obj)
    except ConflictError:
        raise DiscoveryError(f"{kind} {key} exists already: give another name") from None


# --- lists ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PreparedList:
    """A list that can be stored: the ConfigMap, the Secrets of its BMCs, and what was found in it."""

    key: NamespacedName
    config_map: Raw
    secrets: tuple[Raw, ...]
    machines: tuple[ExpectedMachine, ...]
    problems: tuple[ListProblem, ...]


def prepare_list(file: str, content: bytes, namespace: str, name: str = "") -> PreparedList:
    """Return a list as it is stored: user names and passwords of BMCs become Secrets, and leave the text.

    file: the file's name, which is the key in the ConfigMap. name: the ConfigMap; empty: made from the file's name.
    Raises DiscoveryError.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DiscoveryError(f"{file}: not UTF-8 text: save the list as CSV (UTF-8): {error.reason}") from None
    stem = re.sub(r"[^a-z0-9]+", "-", file.lower().rsplit(".", 1)[0]).strip("-")
    key = NamespacedName(namespace, name or stem[:_MAX_NAME].strip("-") or "expected-machines")
    stored, secrets, lost = _without_passwords(text, file, namespace)
    data_key = re.sub(r"[^A-Za-z0-9._-]", "-", file)[:253]
    machines, problems = read_list(stored, namespace, file)
    config_map = {
        "apiVersion": CONFIG_MAP.api_version,
        "kind": CONFIG_MAP.kind,
        "metadata": {"name": key.name, "namespace": namespace, "labels": {EXPECTED_MACHINES_LABEL: "true"}},
        "data": {data_key: stored},
    }
    return PreparedList(key, config_map, tuple(secrets), tuple(machines), (*lost, *problems))


def _without_passwords(text: str, file: str, namespace: str) -> tuple[str, list[Raw], list[ListProblem]]:
    """Return a list whose user names and passwords are replaced by the names of Secrets, and these Secrets.

    The third value has the problems of lines that are left out, because a password may be anywhere in them. A list
    without such columns is returned as it is, with its comments. Raises DiscoveryError.
    """
    table = read_table(text, file)
    secret_columns = [at for at, title in enumerate(table.header) if is_secret_column(title)]
    if not secret_columns or "name" not in table.columns:
        return text, [], []
    lost = [each for each in table.problems if each.source != f"{file} header"]
    user_at = next((at for at in secret_columns if "user" in table.header[at].lower()), None)
    password_at = next((at for at in secret_columns if "pass" in table.header[at].lower()), None)
    if user_at is None or password_at is None:
        raise DiscoveryError(f"{file}: both a column bmc_username and a column bmc_password are needed for Secrets")
    name_at = table.columns.index("name")
    has_column = "bmc_secret" in table.columns
    header = [title for at, title in enumerate(table.header) if at not in secret_columns]
    out = io.StringIO()
    writer = csv.writer(out, delimiter=table.delimiter, lineterminator="\n")
    writer.writerow(header if has_column else [*header, "bmc_secret"])
    secrets: list[Raw] = []
    line = 2
    for number, cells in table.rows:
        if len(cells) < len(table.header) or any(map(str.strip, cells[len(table.header) :])):
            text = f"the line has {len(cells)} cells and the header {len(table.header)}, so any cell may be a password"
            lost.append(ListProblem(f"{file} line {number}", f"{text}: correct it, and import the list again"))
            continue
        out.write("\n" * (number - line))  # problems name the line of the file
        line = number + 1
        row = cells[: len(table.header)]
        user, password = row[user_at].strip(), row[password_at].strip()
        secret_name = f"{row[name_at].strip()}-bmc" if user or password else ""
        if secret_name:
            secrets.append(_secret(secret_name, namespace, user, password))
        if has_column and secret_name:
            row[table.columns.index("bmc_secret")] = secret_name
        kept = [cell for at, cell in enumerate(row) if at not in secret_columns]
        writer.writerow(kept if has_column else [*kept, secret_name])
    return out.getvalue(), secrets, lost[:MAX_PROBLEMS]


def _secret(name: str, namespace: str, user: str, password: str) -> Raw:
    data = {"username": user, "password": password}
    return {
        "apiVersion": SECRET.api_version,
        "kind": SECRET.kind,
        "metadata": {"name": name, "namespace": namespace},
        "type": "Opaque",
        "data": {field: base64.b64encode(value.encode()).decode() for field, value in data.items()},
    }


async def store_list(client: KubeClient, prepared: PreparedList) -> None:
    """Create or replace the Secrets and the ConfigMap of a list, the Secrets first. Raises ApiError, DiscoveryError."""
    for each in prepared.secrets:
        await _put(client, SECRET, each)
    try:
        present = await client.get(CONFIG_MAP, prepared.key.name, prepared.key.namespace)
    except NotFoundError:
        present = {}
    labels = as_mapping(as_mapping(present.get("metadata")).get("labels"))
    if present and labels.get(EXPECTED_MACHINES_LABEL) != "true":
        raise DiscoveryError(
            f"ConfigMap {prepared.key} exists and is no list of expected machines: give another --name, or label it "
            f"{EXPECTED_MACHINES_LABEL}=true"
        )
    await _put(client, CONFIG_MAP, prepared.config_map)


async def _put(client: KubeClient, resource: ResourceType, obj: Raw) -> None:
    """Create an object, or replace the data of the present one. Other keys of a Secret stay: they are an operator's."""
    key = NamespacedName.of(obj)
    try:
        await client.create(resource, obj)
    except ConflictError:
        present = await client.get(resource, key.name, key.namespace)
        others = as_mapping(present.get("data")).keys() - obj["data"].keys()
        gone = dict.fromkeys(others if resource is CONFIG_MAP else ())
        await client.patch(resource, key.name, key.namespace, {"data": obj["data"] | gone})
