"""The simulated BMC: it does what Redfish says, reports what its machine reports, and refuses bad requests."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from edge.lab.bmc import (
    ENABLED,
    MANAGER,
    MAX_BODY,
    MAX_TASKS,
    MODE,
    RESET,
    ROOT,
    SESSION_SECONDS,
    SESSIONS,
    SYSTEM,
    TARGET,
    TARGETS,
    TASKS,
    BmcAnswer,
    BmcServer,
    MachineBoot,
    MachineDescription,
    MachineObserver,
    SimulatedBmc,
    served_certificate,
)
from edge.lab.machine import Firmware, MachineSettings, ManagedMachine, VirtualMachine
from edge.lab.run import LabBmc
from tests.support.api import InProcessApi
from tests.support.bmc import CONNECTION, MemoryTransport
from tests.support.objects import hardware
from tests.support.virtual_time import elapse
from tests.waiting import until
from tink.api.yaml import objects
from tink.bmc.model import (
    BmcConnection,
    BmcCredentials,
    BmcError,
    BootDevice,
    BootMode,
    Cause,
    PowerAction,
    PowerState,
    Reset,
    ResetType,
    Wanted,
    WantedBoot,
    WantedMedium,
    WantedPower,
)
from tink.bmc.operation import perform
from tink.bmc.redfish import RedfishClient
from tink.kube.resources import HARDWARE, JOB, MACHINE, OSIE, SECRET, TEMPLATE, WORKFLOW

USER, PASSWORD = "lab", "green-Tea-19"
CREDENTIALS = BmcCredentials(USER, PASSWORD, version="1")
CD = f"{MANAGER}/VirtualMedia/CD"
INSERT, EJECT = f"{CD}/Actions/VirtualMedia.InsertMedia", f"{CD}/Actions/VirtualMedia.EjectMedia"
ISO = "http://172.31.77.1:7080/iso/boot.iso"
OWN_ORDER = MachineBoot()
PXE = MachineBoot("Pxe", "UEFI")
ONCE = {TARGET: "Pxe", ENABLED: "Once"}


class SlowMachine:
    """A machine that records what its BMC asks for, and reports only when the test says so."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.boot: MachineBoot | None = None
        self.observer: MachineObserver

    def connect(self, observer: MachineObserver) -> None:
        self.observer = observer

    def prepare(self, boot: MachineBoot) -> None:
        self.boot = boot

    def power_on(self) -> None:
        self.calls.append("power on")

    def power_off(self) -> None:
        self.calls.append("power off")

    def reset(self) -> None:
        self.calls.append("reset")

    def press_power_button(self) -> None:
        self.calls.append("button")

    def insert(self, url: str) -> None:
        self.calls.append(f"insert {url}")

    def eject(self) -> None:
        self.calls.append("eject")


class Operator:
    """A client of a BMC with a session, whose time stands still unless the test moves it."""

    def __init__(self, bmc: SimulatedBmc) -> None:
        self.bmc = bmc
        self.now = 0.0
        login = self.send("POST", SESSIONS, {"UserName": USER, "Password": PASSWORD})
        self.token = login.headers["X-Auth-Token"]

    def send(self, method: str, path: str, document: Any = None, **headers: str) -> BmcAnswer:
        """Send a request, with a document or with a body of bytes."""
        body = b"" if document is None else document if isinstance(document, bytes) else json.dumps(document).encode()
        token = {"X-Auth-Token": self.token} if hasattr(self, "token") else {}
        return self.bmc.handle(method, path, token | headers, body, self.now)

    def get(self, path: str) -> Any:
        return self.send("GET", path).json

    def reset(self, kind: str) -> int:
        return self.send("POST", RESET, {"ResetType": kind}).status

    def set_boot(self, **boot: Any) -> BmcAnswer:
        return self.send("PATCH", SYSTEM, {"Boot": boot})


@pytest.fixture
def machine() -> SlowMachine:
    return SlowMachine()


@pytest.fixture
def bmc(machine: SlowMachine) -> SimulatedBmc:
    found = SimulatedBmc(accounts={USER: PASSWORD}, machine=machine)
    machine.connect(found)
    return found


@pytest.fixture
def operator(bmc: SimulatedBmc) -> Operator:
    return Operator(bmc)


def message(answer: BmcAnswer) -> str:
    """Return the name of the message of a refusal."""
    return answer.json["error"]["@Message.ExtendedInfo"][0]["MessageId"].rpartition(".")[2]


# --- through the Redfish client of the product ------------------------------------------------------------------------


@pytest.mark.looptime
@pytest.mark.parametrize("task_seconds", [None, 2.0], ids=["at once", "by tasks"])
@pytest.mark.parametrize(
    "wanted",
    [
        WantedPower(PowerAction.ON),
        WantedPower(PowerAction.CYCLE),
        WantedBoot(BootDevice.PXE, mode=BootMode.UEFI),
        WantedBoot(BootDevice.CDROM, mode=BootMode.LEGACY),
        WantedMedium("CD", ISO),
        WantedMedium("CD"),
    ],
    ids=str,
)
async def test_each_operation_of_the_client_has_its_effect(wanted: Wanted, task_seconds: float | None) -> None:
    bmc = SimulatedBmc(accounts={USER: PASSWORD}, power_seconds=1.0, task_seconds=task_seconds)
    clock = asyncio.get_running_loop().time
    async with RedfishClient(CONNECTION, CREDENTIALS, transport=MemoryTransport(bmc)) as client:
        await perform(client, wanted, clock=clock, sleep=elapse)
        assert "reports" in await perform(client, wanted, clock=clock, sleep=elapse)
    assert (bmc.logins, bmc.failed_logins, bmc.open_sessions) == (1, 0, 0)


@pytest.mark.looptime
async def test_http_boot_uri_is_offered_by_a_machine_that_has_it() -> None:
    bmc = SimulatedBmc(accounts={USER: PASSWORD}, targets=(*TARGETS, "UefiHttp"))
    uri = "http://172.31.77.1:7080/ipxe.efi"
    async with RedfishClient(CONNECTION, CREDENTIALS, transport=MemoryTransport(bmc)) as client:
        wanted = WantedBoot(BootDevice.HTTP, mode=BootMode.UEFI, http_uri=uri)
        await perform(client, wanted, clock=asyncio.get_running_loop().time, sleep=elapse)
    assert bmc.next_boot == MachineBoot("UefiHttp", "UEFI", uri)


@pytest.mark.looptime
async def test_medium_that_the_machine_refuses_is_named() -> None:
    machine = SlowMachine()
    bmc = SimulatedBmc(accounts={USER: PASSWORD}, machine=machine)
    machine.insert = lambda url: bmc.call_later(  # type: ignore[method-assign]
        5.0, lambda: bmc.medium_refused(f"{url}: 404 Not Found")
    )
    async with RedfishClient(CONNECTION, CREDENTIALS, transport=MemoryTransport(bmc)) as client:
        clock = asyncio.get_running_loop().time
        with pytest.raises(BmcError, match="404 Not Found"):
            await perform(client, WantedMedium("CD", ISO), clock=clock, sleep=elapse)
    assert not bmc.slots[0].inserted


# --- power ------------------------------------------------------------------------------------------------------------


def test_power_state_is_the_one_that_the_machine_reports(
    bmc: SimulatedBmc, machine: SlowMachine, operator: Operator
) -> None:
    assert operator.reset("On") == 204
    assert (machine.calls, operator.get(SYSTEM)["PowerState"]) == (["power on"], "Off")
    bmc.machine_started()
    assert operator.get(SYSTEM)["PowerState"] == "On"
    operator.reset("ForceOff")
    assert operator.get(SYSTEM)["PowerState"] == "On"
    bmc.machine_stopped()
    assert operator.get(SYSTEM)["PowerState"] == "Off"


def test_machine_that_goes_off_by_itself_is_reported_off(bmc: SimulatedBmc, operator: Operator) -> None:
    bmc.machine_started()
    bmc.machine_stopped()
    assert operator.get(SYSTEM)["PowerState"] == "Off"


def test_power_cycle_waits_until_the_machine_is_off(
    bmc: SimulatedBmc, machine: SlowMachine, operator: Operator
) -> None:
    bmc.power_seconds = 5.0
    bmc.machine_started()
    operator.reset("PowerCycle")
    bmc.run_until(5.0)
    assert machine.calls == ["power off"]
    bmc.run_until(60.0)
    bmc.machine_stopped()
    bmc.run_until(64.0)
    assert machine.calls == ["power off"]
    bmc.run_until(65.0)
    assert machine.calls == ["power off", "power on"]


def test_power_off_after_a_power_cycle_stays(bmc: SimulatedBmc, machine: SlowMachine, operator: Operator) -> None:
    bmc.machine_started()
    operator.reset("PowerCycle")
    operator.reset("ForceOff")
    bmc.machine_stopped()
    assert "power on" not in machine.calls


def test_graceful_shutdown_is_the_power_button(bmc: SimulatedBmc, machine: SlowMachine, operator: Operator) -> None:
    bmc.machine_started()
    assert operator.reset("GracefulShutdown") == 204
    assert machine.calls == ["button"]


@pytest.mark.parametrize("kind", ["ForceRestart", "PowerCycle", "GracefulShutdown"])
def test_machine_that_is_off_is_not_restarted(machine: SlowMachine, operator: Operator, kind: str) -> None:
    assert operator.reset(kind) == 409
    assert machine.calls == []


def test_unknown_reset_is_refused(operator: Operator) -> None:
    assert operator.reset("Nmi") == 400


def test_each_start_has_another_time_of_reset(bmc: SimulatedBmc, operator: Operator) -> None:
    times = set()
    for _ in range(3):
        bmc.machine_started()
        times.add(operator.get(SYSTEM)["LastResetTime"])
    assert len(times) == 3


# --- boot override ----------------------------------------------------------------------------------------------------


def test_one_time_override_holds_for_one_start(bmc: SimulatedBmc, machine: SlowMachine, operator: Operator) -> None:
    operator.set_boot(**ONCE)
    operator.reset("On")
    assert machine.boot == PXE
    assert operator.get(SYSTEM)["Boot"][ENABLED] == "Once"
    bmc.machine_started()
    assert machine.boot == OWN_ORDER
    boot = operator.get(SYSTEM)["Boot"]
    assert (boot[TARGET], boot[ENABLED]) == ("None", "Disabled")


def test_one_time_override_holds_for_a_restart_by_the_system(
    bmc: SimulatedBmc, machine: SlowMachine, operator: Operator
) -> None:
    bmc.machine_started()
    operator.set_boot(**ONCE)
    assert machine.boot == PXE
    bmc.machine_started()
    assert machine.boot == OWN_ORDER


def test_one_time_override_is_reported_until_the_self_test_ends(bmc: SimulatedBmc, operator: Operator) -> None:
    bmc.post_seconds = 40.0
    operator.set_boot(**ONCE)
    bmc.machine_started()
    bmc.run_until(39.0)
    assert bmc.next_boot == PXE
    bmc.run_until(40.0)
    assert bmc.next_boot == OWN_ORDER


def test_self_test_that_a_reset_interrupts_does_not_use_up_the_override(bmc: SimulatedBmc, operator: Operator) -> None:
    bmc.post_seconds = 40.0
    operator.set_boot(**ONCE)
    bmc.machine_started()
    bmc.run_until(30.0)
    bmc.machine_started()
    bmc.run_until(69.0)
    assert bmc.next_boot == PXE
    bmc.run_until(70.0)
    assert bmc.next_boot == OWN_ORDER


def test_persistent_override_stays(bmc: SimulatedBmc, machine: SlowMachine, operator: Operator) -> None:
    operator.set_boot(**ONCE | {ENABLED: "Continuous"})
    for _ in range(2):
        bmc.machine_started()
        assert machine.boot == PXE


def test_override_that_is_disabled_leaves_the_machine_its_own_order(machine: SlowMachine, operator: Operator) -> None:
    operator.set_boot(**ONCE)
    operator.set_boot(**{ENABLED: "Disabled"})
    assert machine.boot == OWN_ORDER


@pytest.mark.parametrize(
    ("boot", "name"),
    [
        ({TARGET: "UefiHttp"}, "PropertyValueNotInList"),
        ({ENABLED: "Twice"}, "PropertyValueNotInList"),
        ({MODE: ["UEFI"]}, "PropertyValueNotInList"),
        ({"HttpBootUri": "http://172.31.77.1/"}, "PropertyUnknown"),
        ({"Colour": "blue"}, "PropertyUnknown"),
    ],
)
def test_override_that_the_machine_does_not_have_is_refused(
    operator: Operator, boot: dict[str, Any], name: str
) -> None:
    answer = operator.set_boot(**boot)
    assert (answer.status, message(answer)) == (400, name)


def test_http_boot_uri_is_text(machine: SlowMachine) -> None:
    bmc = SimulatedBmc(accounts={USER: PASSWORD}, machine=machine, targets=(*TARGETS, "UefiHttp"))
    assert message(Operator(bmc).set_boot(HttpBootUri=7)) == "PropertyValueTypeError"


def test_mode_that_the_firmware_lacks_is_refused(machine: SlowMachine) -> None:
    operator = Operator(SimulatedBmc(accounts={USER: PASSWORD}, machine=machine, modes=("Legacy",)))
    assert operator.set_boot(**ONCE | {MODE: "UEFI"}).status == 400
    assert operator.set_boot(**ONCE | {MODE: "Legacy"}).status == 204
    assert machine.boot == MachineBoot("Pxe", "Legacy")


def test_change_with_an_old_etag_is_refused(operator: Operator) -> None:
    tag = operator.send("GET", SYSTEM).headers["ETag"]
    boot = {"Boot": ONCE}
    assert operator.send("PATCH", SYSTEM, boot, **{"If-Match": tag}).status == 204
    assert operator.send("PATCH", SYSTEM, boot, **{"If-Match": tag}).status == 412
    assert operator.send("PATCH", SYSTEM, boot, **{"If-Match": "*"}).status == 204


# --- virtual media ----------------------------------------------------------------------------------------------------


def test_insertion_is_a_task_that_ends_with_the_report_of_the_machine(
    bmc: SimulatedBmc, machine: SlowMachine, operator: Operator
) -> None:
    answer = operator.send("POST", INSERT, {"Image": ISO})
    assert (answer.status, machine.calls) == (202, [f"insert {ISO}"])
    task = answer.json["@odata.id"]
    assert operator.get(task)["TaskState"] == "Running"
    assert not operator.get(CD)["Inserted"]
    assert operator.send("GET", answer.headers["Location"]).status == 202
    assert operator.send("POST", INSERT, {"Image": ISO}).status == 400, "one at a time"
    bmc.medium_inserted()
    assert operator.get(task)["TaskState"] == "Completed"
    assert operator.send("GET", answer.headers["Location"]).status == 204
    assert (operator.get(CD)["Image"], operator.get(CD)["Inserted"]) == (ISO, True)


def test_refused_medium_ends_the_task_with_the_reason(bmc: SimulatedBmc, operator: Operator) -> None:
    answer = operator.send("POST", INSERT, {"Image": ISO})
    bmc.medium_refused("404 Not Found")
    task = operator.get(answer.json["@odata.id"])
    assert (task["TaskState"], task["Messages"][0]["Message"]) == ("Exception", "404 Not Found")
    assert operator.send("POST", INSERT, {"Image": ISO}).status == 202, "another one may follow"


def test_ejection_is_reported_when_the_drive_is_empty(
    bmc: SimulatedBmc, machine: SlowMachine, operator: Operator
) -> None:
    operator.send("POST", INSERT, {"Image": ISO})
    bmc.medium_inserted()
    assert operator.send("POST", EJECT, {}).status == 204
    assert (machine.calls[-1], operator.get(CD)["Inserted"]) == ("eject", True)
    bmc.medium_ejected()
    assert operator.get(CD)["Inserted"] is False
    assert operator.get(CD)["Image"] is None


def test_ejection_ends_an_insertion_that_is_under_way(
    bmc: SimulatedBmc, machine: SlowMachine, operator: Operator
) -> None:
    answer = operator.send("POST", INSERT, {"Image": ISO})
    operator.send("POST", EJECT, {})
    assert machine.calls[-1] == "eject"
    bmc.medium_inserted()
    assert operator.get(CD)["Inserted"] is False
    assert operator.get(answer.json["@odata.id"])["TaskState"] == "Exception"


def test_insertion_without_an_image_is_refused(operator: Operator) -> None:
    assert message(operator.send("POST", INSERT, {"Image": 7})) == "ActionParameterMissing"


def test_only_the_last_tasks_are_remembered(bmc: SimulatedBmc, operator: Operator) -> None:
    bmc.task_seconds = 1.0
    for _ in range(MAX_TASKS + 10):
        assert operator.set_boot(**ONCE).status == 202
    assert len(operator.get(TASKS)["Members"]) == MAX_TASKS


# --- sessions and accounts --------------------------------------------------------------------------------------------


def test_wrong_password_is_counted_and_refused(bmc: SimulatedBmc, operator: Operator) -> None:
    for password in ("wrong", "\ud800", PASSWORD + " "):
        assert operator.send("POST", SESSIONS, {"UserName": USER, "Password": password}).status == 401
    assert operator.send("POST", SESSIONS, {"UserName": "root", "Password": PASSWORD}).status == 401
    assert (bmc.failed_logins, bmc.logins) == (4, 5)


@pytest.mark.parametrize("headers", [{}, {"X-Auth-Token": "0"}, {"Authorization": "Basic !"}, {"Authorization": "X"}])
def test_request_without_a_session_is_refused(bmc: SimulatedBmc, operator: Operator, headers: dict[str, str]) -> None:
    assert bmc.handle("GET", SYSTEM, headers, b"", 0.0).status == 401
    assert bmc.handle("GET", f"{ROOT}/", headers, b"", 0.0).status == 200


def test_basic_authentication_needs_no_session(bmc: SimulatedBmc) -> None:
    words = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    assert bmc.handle("GET", SYSTEM, {"Authorization": f"Basic {words}"}, b"", 0.0).status == 200
    assert bmc.open_sessions == 0


def test_session_ends_by_its_deletion_or_after_half_an_hour_without_a_request(operator: Operator) -> None:
    operator.now = SESSION_SECONDS - 1
    assert operator.send("GET", SYSTEM).status == 200
    operator.now += SESSION_SECONDS - 1
    assert operator.send("GET", SYSTEM).status == 200
    operator.now += SESSION_SECONDS
    assert operator.send("GET", SYSTEM).status == 401
    again = Operator(operator.bmc)
    session = next(iter(operator.bmc.sessions))
    assert again.send("DELETE", session).status == 204
    assert again.send("GET", SYSTEM).status == 401


def test_login_without_a_free_session_is_refused_until_one_has_ended(bmc: SimulatedBmc, operator: Operator) -> None:
    bmc.session_limit = 1
    login = {"UserName": USER, "Password": PASSWORD}
    answer = operator.send("POST", SESSIONS, login)
    assert (answer.status, message(answer)) == (503, "SessionLimitExceeded")
    operator.now = SESSION_SECONDS
    assert operator.send("POST", SESSIONS, login).status == 201


# --- requests and documents -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"\xff", b"[" * 60_000, b'{"Boot": 7}', b"{}", b'{"Boot": {}, "Name": 1}']
)
def test_bad_body_is_refused(operator: Operator, body: bytes) -> None:
    assert operator.send("PATCH", SYSTEM, body).status == 400


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", f"{ROOT}/Fabrics", 404), ("POST", SYSTEM, 404), ("PUT", SYSTEM, 405), ("PATCH", f"{ROOT}/Fabrics", 404)],
)
def test_unknown_resource_or_method_is_refused(operator: Operator, method: str, path: str, status: int) -> None:
    assert operator.send(method, path, {}).status == status


def test_every_link_leads_to_a_document(operator: Operator) -> None:
    seen: set[str] = set()
    waiting = [ROOT]
    while waiting:
        path = waiting.pop().rstrip("/")
        if path not in seen:
            seen.add(path)
            waiting += links(operator.get(path))
    assert {SYSTEM, MANAGER, CD, TASKS} <= seen


def links(value: Any) -> list[str]:
    """Return all links in a document."""
    if isinstance(value, list):
        return [link for each in value for link in links(each)]
    if isinstance(value, dict):
        own = [value["@odata.id"]] if "@odata.id" in value else []
        return own + [link for each in value.values() for link in links(each)]
    return []


def test_description_of_the_machine_is_in_the_inventory(machine: SlowMachine) -> None:
    about = MachineDescription(
        vendor="tinkedge", model="lab", serial="LAB0001", macs=("52:54:00:12:34:56", "52:54:00:12:34:57"),
        processors=(2,), dimms=(1024,), drives=(64 << 20,),
    )  # fmt: skip
    operator = Operator(SimulatedBmc(accounts={USER: PASSWORD}, machine=machine, description=about))
    system = operator.get(SYSTEM)
    assert (system["Manufacturer"], system["Model"], system["SerialNumber"]) == ("tinkedge", "lab", "LAB0001")
    assert system["MemorySummary"]["TotalSystemMemoryGiB"] == 1
    assert operator.get(f"{SYSTEM}/EthernetInterfaces/NIC2")["MACAddress"] == "52:54:00:12:34:57"
    assert operator.get(f"{SYSTEM}/Storage/1/Drives/0")["CapacityBytes"] == 64 << 20


# --- the server -------------------------------------------------------------------------------------------------------


async def power_state(connection: BmcConnection) -> PowerState:
    """Return the power state that a new client reads."""
    async with RedfishClient(connection, CREDENTIALS) as client:
        return (await client.observe()).power


async def test_server_is_trusted_by_its_fingerprint_and_passes_delayed_power_on_to_the_machine(
    machine: SlowMachine,
) -> None:
    bmc = SimulatedBmc(accounts={USER: PASSWORD}, machine=machine, power_seconds=0.05)
    certificate = served_certificate("127.0.0.1")
    server = BmcServer(bmc, certificate.context())
    port = await server.start("127.0.0.1")
    try:
        connection = BmcConnection("127.0.0.1", redfish_port=port, fingerprint=certificate.fingerprint)
        assert await power_state(connection) is PowerState.OFF
        async with RedfishClient(connection, CREDENTIALS) as client:
            await client.observe()
            machine.power_on = lambda: machine.observer.machine_started()  # type: ignore[method-assign]
            await client.send(Reset(ResetType.ON))
            await until(lambda: bmc.power == "On", "nothing woke the BMC up")
        with pytest.raises(BmcError) as caught:
            await power_state(replace(connection, fingerprint="ab" * 32))
        assert caught.value.cause is Cause.CERTIFICATE
    finally:
        await server.stop()
    assert "PRIVATE KEY" not in repr(certificate)


async def test_server_refuses_a_large_body(machine: SlowMachine) -> None:
    bmc = SimulatedBmc(accounts={USER: PASSWORD}, machine=machine)
    server = BmcServer(bmc, served_certificate("127.0.0.1").context())
    port = await server.start("127.0.0.1")
    try:
        async with aiohttp.ClientSession() as session:
            url = f"https://127.0.0.1:{port}{SESSIONS}"
            async with session.post(url, data=b"x" * (MAX_BODY + 1), ssl=False) as answer:
                assert answer.status == 413
            async with session.post(url, data=b"x" * MAX_BODY, ssl=False) as answer:
                assert answer.status == 400
    finally:
        await server.stop()


# --- the BMC of the lab -----------------------------------------------------------------------------------------------


@pytest.fixture
def announced() -> list[str]:
    return []


@pytest.fixture
def lab_bmc(tmp_path: Path, announced: list[str]) -> LabBmc:
    settings = MachineSettings("52:54:00:12:34:56", "machine0", Firmware.BIOS, is_managed=True)
    managed = ManagedMachine(VirtualMachine(settings, tmp_path), tmp_path)
    return LabBmc(managed, "172.31.77.1", announced.append)


async def test_manifests_of_the_lab_boot_the_machine_by_its_bmc(lab_bmc: LabBmc) -> None:
    examples = Path(__file__).resolve().parents[3] / "deploy" / "examples"
    names = ("hardware.yaml", "osie.yaml", "template.yaml", "workflow.yaml")
    files = [examples / name for name in names]
    secret, machine, *found = json.loads(lab_bmc.manifests(files))["items"]
    given = [each for file in files for each in objects(file.read_bytes())]

    assert [each["kind"] for each in (secret, machine, *found)] == [
        "Secret", "Machine", "Hardware", "OSIE", "Template", "Workflow",
    ]  # fmt: skip
    async with InProcessApi() as api:
        kinds = (SECRET, MACHINE, HARDWARE, OSIE, TEMPLATE, WORKFLOW)
        for resource, obj in zip(kinds, (secret, machine, *found), strict=True):
            await api.create(resource, obj, "default")
    assert machine["spec"]["connection"]["host"] == "172.31.77.1"
    assert machine["spec"]["connection"]["authSecretRef"] == secret["metadata"]
    assert machine["spec"]["connection"]["insecureTLS"] is False
    assert found[0]["spec"].pop("bmcRef") == {"name": machine["metadata"]["name"]}
    assert found[3]["spec"].pop("bootOptions")["bootMode"] == "netboot"
    assert found == given
    password = secret["stringData"]["password"]
    assert lab_bmc.bmc.accounts == {secret["stringData"]["username"]: password}
    assert password not in json.dumps([machine, *found])


async def test_job_of_the_lab_boots_a_machine_that_is_off_from_the_network(lab_bmc: LabBmc) -> None:
    async with InProcessApi() as api:
        machine = await api.create(MACHINE, lab_bmc.machine("lab-machine"), "default")
        job = await api.create(JOB, lab_bmc.first_boot("lab-machine"), "default")
    assert job["spec"]["machineRef"]["name"] == machine["metadata"]["name"]
    assert [next(iter(task)) for task in job["spec"]["tasks"]] == ["bootDevice", "powerAction"]
    assert lab_bmc.account[1] not in json.dumps([machine, job])


def test_hardware_of_another_machine_gets_no_bmc(lab_bmc: LabBmc, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps(hardware("other", "52:54:00:00:00:99")))
    assert "bmcRef" not in json.loads(lab_bmc.manifests([other]))["items"][2]["spec"]


def test_bmc_of_a_bios_machine_has_neither_uefi_nor_http_boot(lab_bmc: LabBmc) -> None:
    assert lab_bmc.bmc.modes == ("Legacy",)
    assert "UefiHttp" not in lab_bmc.bmc.targets


async def test_lab_announces_each_start_with_its_boot_device(lab_bmc: LabBmc, announced: list[str]) -> None:
    lab_bmc.bmc.boot |= ONCE
    lab_bmc.machine_started()
    lab_bmc.machine_stopped()
    lab_bmc.machine_started()
    assert announced == [
        "machine 52:54:00:12:34:56 starts, boot device Pxe by its BMC",
        "machine 52:54:00:12:34:56 is off",
        "machine 52:54:00:12:34:56 starts, in its own boot order",
    ]
