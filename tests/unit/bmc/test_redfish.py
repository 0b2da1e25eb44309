"""The Redfish client against BMCs with the faults of real ones, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.bmc import (
    CONNECTION,
    CREDENTIALS,
    ENABLED,
    MANAGER,
    MODE,
    PASSWORD,
    ROOT,
    SESSIONS,
    SETTINGS,
    SYSTEM,
    TARGET,
    FakeBmc,
    Fault,
    MemoryTransport,
)
from tests.support.virtual_time import elapse, turns
from tink.bmc.model import (
    BmcConnection,
    BmcCredentials,
    BmcError,
    Cause,
    EjectMedium,
    InsertMedium,
    Observation,
    PowerState,
    Request,
    Reset,
    ResetType,
    SetBoot,
    Slot,
)
from tink.bmc.redfish import RedfishClient, RedfishLayout, RedfishLimits, parse_document, redfish_path

pytestmark = pytest.mark.looptime

WRONG = BmcCredentials("root", "Summer2019!", version="1")
PXE_ONCE = SetBoot("Pxe", "Once", "UEFI")
ON = Reset(ResetType.ON)
CD = f"{MANAGER}/VirtualMedia/CD"
ISO = InsertMedium(CD, "http://192.0.2.1:7080/iso/52-54-00-00-00-01/boot.iso")


def fault_names(value: object) -> str | None:
    """The name of a parameter that is a set of faults."""
    return "-".join(sorted(each.name for each in value)) or "none" if isinstance(value, set) else None


def client_of(
    bmc: FakeBmc, credentials: BmcCredentials = CREDENTIALS, connection: BmcConnection = CONNECTION, **limits: Any
) -> RedfishClient:
    """A client of a fake BMC, without sockets."""
    return RedfishClient(connection, credentials, transport=MemoryTransport(bmc), limits=RedfishLimits(**limits))


async def observed(bmc: FakeBmc, connection: BmcConnection = CONNECTION) -> Observation:
    """All that a new client observes."""
    async with client_of(bmc, connection=connection) as client:
        return await client.observe(boot=True, media=True)


async def failure(bmc: FakeBmc, *requests: Request, connection: BmcConnection = CONNECTION) -> BmcError:
    """The error of a new client that observes, then sends requests."""
    with pytest.raises(BmcError) as caught:
        await sent(bmc, *requests, connection=connection)
    return caught.value


async def sent(bmc: FakeBmc, *requests: Request, connection: BmcConnection = CONNECTION) -> None:
    """Observe with a new client, then send requests."""
    async with client_of(bmc, connection=connection) as client:
        await client.observe(boot=True, media=True)
        for request in requests:
            await client.send(request)


def names(bmc: FakeBmc) -> list[str]:
    """Methods and paths of all requests."""
    return [f"{method} {path}" for method, path, _ in bmc.requests]


# --- observe ----------------------------------------------------------------------------------------------------------


async def test_poll_of_power_is_a_login_four_reads_and_a_logout() -> None:
    bmc = FakeBmc(power="On")
    async with client_of(bmc) as client:
        seen = await client.observe()
    assert seen.power is PowerState.ON
    assert (seen.boot, seen.slots) == (None, None)
    assert names(bmc) == [
        f"GET {ROOT}/",
        f"POST {SESSIONS}",
        f"GET {ROOT}/Systems",
        f"GET {SYSTEM}",
        f"GET {MANAGER}",
        f"DELETE {SESSIONS}/1",
    ]
    assert bmc.open_sessions == 0


async def test_second_look_is_one_request() -> None:
    bmc = FakeBmc()
    async with client_of(bmc) as client:
        await client.observe()
        bmc.requests.clear()
        bmc.power = "On"
        assert (await client.observe()).power is PowerState.ON
        assert names(bmc) == [f"GET {SYSTEM}"]


# --- the layout of an earlier session ---------------------------------------------------------------------------------


async def layout_of(bmc: FakeBmc, connection: BmcConnection = CONNECTION) -> RedfishLayout:
    """The layout that a session reads; the record of requests is empty after it."""
    async with client_of(bmc, connection=connection) as client:
        await client.observe()
    assert client.layout is not None
    bmc.requests.clear()
    return client.layout


async def resumed(
    bmc: FakeBmc,
    layout: RedfishLayout,
    credentials: BmcCredentials = CREDENTIALS,
    connection: BmcConnection = CONNECTION,
    **parts: bool,
) -> tuple[Observation, RedfishLayout | None]:
    """The observation of a client with the layout of an earlier session, and the layout that it has at the end."""
    client = client_of(bmc, credentials, connection)
    client.resume(layout)
    async with client:
        return await client.observe(**parts), client.layout


@pytest.mark.parametrize(
    ("faults", "end"), [(set(), ""), ({Fault.TRAILING_SLASH}, "/"), ({Fault.REDIRECT_SAME}, "/")], ids=fault_names
)
async def test_poll_with_a_known_layout_is_a_login_one_read_and_a_logout(faults: set[Fault], end: str) -> None:
    bmc = FakeBmc(power="On", faults=faults)
    first = await observed(bmc)
    layout = await layout_of(bmc)
    seen, kept = await resumed(bmc, layout)
    assert seen.identity == first.identity
    assert kept is layout
    assert [name.partition("/redfish")[0] for name in names(bmc)] == ["POST ", "GET ", "DELETE "]
    assert names(bmc)[1] == f"GET {SYSTEM}{end}"
    assert bmc.open_sessions == 0


async def test_poll_by_basic_authentication_with_a_known_layout_is_one_request() -> None:
    bmc, basic = FakeBmc(), replace(CONNECTION, use_basic_auth=True)
    layout = await layout_of(bmc, basic)
    await resumed(bmc, layout, connection=basic)
    assert names(bmc) == [f"GET {SYSTEM}"]


async def test_layout_without_sessions_is_of_no_use_to_a_connection_with_sessions() -> None:
    bmc = FakeBmc()
    layout = await layout_of(bmc, replace(CONNECTION, use_basic_auth=True))
    _, read = await resumed(bmc, layout)
    assert read is not None
    assert read.sessions == SESSIONS
    assert (names(bmc)[0], bmc.logins, bmc.failed_logins) == (f"GET {ROOT}/", 1, 0)


@pytest.mark.parametrize("path", ["/redfish/v1/Sessions", f"{ROOT}/SessionService/Old"])
async def test_moved_sessions_are_found_without_a_refused_login(path: str) -> None:
    bmc = FakeBmc()
    layout = replace(await layout_of(bmc), sessions=path)  # the fake answers 401 there, as many BMCs do
    seen, read = await resumed(bmc, layout)
    assert seen.power is PowerState.OFF
    assert read is not None
    assert read.sessions == SESSIONS
    assert (bmc.logins, bmc.failed_logins) == (2, 0)


async def test_wrong_password_with_a_known_layout_is_one_failed_login() -> None:
    bmc = FakeBmc()
    layout = await layout_of(bmc)
    client = client_of(bmc, WRONG)
    client.resume(layout)
    for _ in range(3):
        with pytest.raises(BmcError) as caught:
            await client.__aenter__()
        assert caught.value.cause is Cause.CREDENTIALS_REFUSED
    assert bmc.failed_logins == 1


async def test_moved_system_is_found_within_the_session() -> None:
    bmc = FakeBmc()
    layout = replace(await layout_of(bmc), system=f"{ROOT}/Systems/Old")
    seen, read = await resumed(bmc, layout)
    assert seen.identity.model == "3500"
    assert read is not None
    assert read.system == SYSTEM
    assert (bmc.logins, bmc.open_sessions) == (2, 0)


async def test_known_path_that_became_another_system_is_not_used() -> None:
    bmc, name = FakeBmc(), "blade-7"
    bmc.overlay[SYSTEM] = bmc.documents()[SYSTEM] | {"HostName": name}
    connection = replace(CONNECTION, system_name=name)
    layout = await layout_of(bmc, connection)
    other = f"{ROOT}/Systems/2"
    bmc.overlay[other] = bmc.documents()[SYSTEM] | {"@odata.id": other, "Id": "2", "PowerState": "On"}
    bmc.overlay[SYSTEM] = bmc.documents()[SYSTEM] | {"HostName": "blade-6"}
    bmc.overlay[f"{ROOT}/Systems"] = {"Members": [{"@odata.id": SYSTEM}, {"@odata.id": other}]}
    seen, read = await resumed(bmc, layout, connection=connection)
    assert seen.power is PowerState.ON
    assert read is not None
    assert read.system == other


async def test_firmware_that_was_not_known_is_read_again() -> None:
    bmc = FakeBmc()
    bmc.overlay[MANAGER] = None
    layout = await layout_of(bmc)
    assert layout.firmware == ""
    del bmc.overlay[MANAGER]
    seen, read = await resumed(bmc, layout)
    assert seen.identity.firmware == bmc.description.firmware
    assert read is not None
    assert read.firmware == bmc.description.firmware


async def test_session_with_a_known_layout_reads_boot_media_and_resets() -> None:
    bmc = FakeBmc()
    first = await observed(bmc)
    seen, _ = await resumed(bmc, await layout_of(bmc), boot=True, media=True)
    assert seen == first


async def test_layout_with_long_texts_is_not_small() -> None:
    bmc = FakeBmc()
    layout = await layout_of(bmc)
    assert layout.is_small()
    assert not replace(layout, sessions="/redfish/" + "x" * 2048).is_small()
    assert not replace(layout, resets=("x" * 200,) * 20).is_small()


# --- what is observed -------------------------------------------------------------------------------------------------


async def test_observation_has_identity_boot_and_slots() -> None:
    seen = await observed(FakeBmc())
    assert (seen.identity.vendor, seen.identity.model) == ("Contoso", "3500")
    assert (seen.identity.firmware, seen.identity.bios) == ("1.45.455b66-rev4", "P79 v1.45")
    assert (seen.identity.serial, seen.identity.redfish) == ("437XR1138R2", "1.15.0")
    assert seen.boot is not None
    assert (seen.boot.target, seen.boot.enabled, seen.boot.mode) == ("None", "Disabled", "UEFI")
    assert "Pxe" in seen.boot.allowed_targets
    assert seen.boot.allowed_enabled == ("Disabled", "Once", "Continuous")
    assert seen.slots == (Slot(CD, ("CD", "DVD")), Slot(f"{MANAGER}/VirtualMedia/USB", ("USBStick", "Floppy")))
    assert "ForceOff" in seen.allowed_resets


@pytest.mark.parametrize(
    ("state", "power"),
    [("On", "on"), ("off", "off"), ("PoweringOn", "unknown"), ("Paused", "unknown"), (None, "unknown")],
)
async def test_power_state_that_is_neither_on_nor_off_is_unknown(state: Any, power: str) -> None:
    assert (await observed(FakeBmc(power=state))).power == power


async def test_last_reset_changes_with_a_restart() -> None:
    bmc = FakeBmc(power="On")
    async with client_of(bmc) as client:
        before = (await client.observe()).last_reset
        await client.send(Reset(ResetType.FORCE_RESTART))
        assert (await client.observe()).last_reset != before


@pytest.mark.parametrize("fault", [Fault.NO_BOOT_OVERRIDE, Fault.NO_MODE, Fault.HTTP_URI])
async def test_part_of_the_boot_override_that_the_bmc_lacks_is_none(fault: Fault) -> None:
    bmc = FakeBmc(faults={fault})
    bmc.boot["HttpBootUri"] = "http://192.0.2.1/boot.efi"
    boot = (await observed(bmc)).boot
    assert (boot is None) is (fault is Fault.NO_BOOT_OVERRIDE)
    if boot is not None:
        assert (boot.mode is None) is (fault is Fault.NO_MODE)
        assert boot.http_uri == ("http://192.0.2.1/boot.efi" if fault is Fault.HTTP_URI else None)


async def test_allowable_values_in_the_settings_resource_count() -> None:
    seen = await observed(FakeBmc(faults={Fault.ALLOWED_AT_SETTINGS}))
    assert seen.boot is not None
    assert "Pxe" in seen.boot.allowed_targets


async def test_settings_resource_without_boot_is_read_once() -> None:
    bmc = FakeBmc(faults={Fault.SETTINGS_RESOURCE})
    bmc.overlay[SETTINGS] = {"@odata.id": SETTINGS}
    async with client_of(bmc) as client:
        assert (await client.observe(boot=True)).pending_boot is None
        await client.observe(boot=True)
    assert names(bmc).count(f"GET {SETTINGS}") == 1


async def test_missing_managed_by_leads_to_the_managers() -> None:
    seen = await observed(FakeBmc(faults={Fault.NO_MANAGED_BY}))
    assert seen.identity.firmware == "1.45.455b66-rev4"
    assert seen.slots is not None
    assert len(seen.slots) == 2


async def test_media_below_the_system_are_found() -> None:
    seen = await observed(FakeBmc(faults={Fault.MEDIA_AT_SYSTEM}))
    assert [slot.path for slot in seen.slots or ()] == [f"{SYSTEM}/VirtualMedia/CD", f"{SYSTEM}/VirtualMedia/USB"]


async def test_broken_manager_does_not_hide_the_power_state() -> None:
    bmc = FakeBmc(power="On", faults={Fault.CUT_JSON}, broken_path=MANAGER)
    seen = await observed(bmc)
    assert (seen.power, seen.identity.firmware, seen.slots) == (PowerState.ON, "", ())


async def test_broken_slot_does_not_hide_the_others() -> None:
    seen = await observed(FakeBmc(faults={Fault.XML}, broken_path=CD))
    assert [slot.path for slot in seen.slots or ()] == [f"{MANAGER}/VirtualMedia/USB"]


async def test_slot_with_a_stale_image_is_empty_if_it_is_not_connected() -> None:
    bmc = FakeBmc(faults={Fault.IMAGE_STAYS})
    bmc.slots[0].image = "http://192.0.2.1/old.iso"
    slots = (await observed(bmc)).slots or ()
    assert (slots[0].image, slots[0].inserted) == ("http://192.0.2.1/old.iso", False)


async def test_slots_without_insert_media_are_marked() -> None:
    slots = (await observed(FakeBmc(faults={Fault.FIRST_SLOT_BROKEN}))).slots or ()
    assert [slot.has_insert_action for slot in slots] == [False, True]


async def test_number_of_slots_is_limited() -> None:
    bmc = FakeBmc(slots=tuple((str(number), ("CD",)) for number in range(500)))
    assert len((await observed(bmc)).slots or ()) == 16


async def test_system_is_found_by_name() -> None:
    bmc = FakeBmc()
    hgx = f"{ROOT}/Systems/HGX"
    bmc.overlay[f"{ROOT}/Systems"] = {"Members": [{"@odata.id": hgx}, {"@odata.id": SYSTEM}]}
    bmc.overlay[hgx] = {"@odata.id": hgx, "Id": "HGX", "Name": "baseboard", "Model": "GB200"}
    for name, model in (("", "GB200"), ("HGX", "GB200"), ("baseboard", "GB200"), ("1", "3500")):
        seen = await observed(bmc, replace(CONNECTION, system_name=name))
        assert seen.identity.model == model
    error = await failure(bmc, connection=replace(CONNECTION, system_name="2"))
    assert error.cause is Cause.UNSUPPORTED
    assert "has no System '2'; it has HGX, 1" in str(error)


async def test_allowed_resets_come_from_the_action_info_if_the_system_lacks_them() -> None:
    bmc = FakeBmc()
    info = f"{SYSTEM}/ResetActionInfo"
    system = bmc.documents()[SYSTEM]
    system["Actions"]["#ComputerSystem.Reset"] = {"target": f"{SYSTEM}/Reset", "@Redfish.ActionInfo": info}
    bmc.overlay = {SYSTEM: system, info: {"Parameters": [7, {"Name": "ResetType", "AllowableValues": ["On", 7]}]}}
    async with client_of(bmc) as client:
        assert (await client.observe()).allowed_resets == ("On",)
        await client.observe()
    assert names(bmc).count(f"GET {info}") == 1


async def test_get_returns_a_document_for_the_inventory() -> None:
    bmc = FakeBmc()
    async with client_of(bmc) as client:
        assert (await client.get(f"{SYSTEM}/Memory/DIMM1#/Status"))["CapacityMiB"] == 32768
        for path in ("https://192.0.2.99/redfish/v1", "/admin", "/redfish/../admin", ""):
            with pytest.raises(BmcError, match="not below /redfish/"):
                await client.get(path)
    assert all(path.startswith("/redfish/v1") for _, path, _ in bmc.requests)


# --- send -------------------------------------------------------------------------------------------------------------


async def test_requests_reach_the_machine() -> None:
    bmc = FakeBmc()
    async with client_of(bmc) as client:
        await client.send(PXE_ONCE)
        await client.send(ISO)
        await client.send(ON)
        seen = await client.observe(media=True)
        await client.send(EjectMedium(CD))
    assert (bmc.power, bmc.boots, bmc.resets) == ("On", ["Pxe"], ["On"])
    assert (seen.slots or ())[0] == Slot(CD, ("CD", "DVD"), ISO.url, inserted=True)
    assert bmc.slots[0].image is None


async def test_fields_that_are_none_are_left_out() -> None:
    bmc = FakeBmc(faults={Fault.HTTP_URI})
    await sent(bmc, SetBoot("Pxe"), SetBoot(enabled="Once"), SetBoot("UefiHttp", http_uri="http://192.0.2.1/b.efi"))
    assert [body["Boot"] for _, _, body in bmc.writes()] == [
        {TARGET: "Pxe"},
        {ENABLED: "Once"},
        {TARGET: "UefiHttp", "HttpBootUri": "http://192.0.2.1/b.efi"},
    ]


async def test_boot_override_goes_to_the_settings_resource_on_demand() -> None:
    bmc = FakeBmc(faults={Fault.SETTINGS_RESOURCE, Fault.ETAG_REQUIRED})
    async with client_of(bmc) as client:
        with pytest.raises(BmcError) as caught:
            await client.send(PXE_ONCE)
        assert caught.value.cause is Cause.REFUSED
        await client.send(replace(PXE_ONCE, at_settings=True))
        seen = await client.observe(boot=True)
        assert seen.boot is not None
        assert seen.boot.target == "None"
        assert seen.pending_boot is not None
        assert (seen.pending_boot.target, seen.pending_boot.enabled) == ("Pxe", "Once")
        await client.send(ON)
    assert bmc.boots == ["Pxe"]


async def test_settings_resource_that_is_missing_is_not_supported() -> None:
    error = await failure(FakeBmc(), replace(PXE_ONCE, at_settings=True))
    assert error.cause is Cause.UNSUPPORTED


@pytest.mark.parametrize(
    "faults", [{Fault.INSERTED_REFUSED}, {Fault.EJECT_BODY_REQUIRED}, {Fault.MEDIA_AT_SYSTEM}], ids=fault_names
)
async def test_medium_goes_in_and_out_by_actions(faults: set[Fault]) -> None:
    bmc = FakeBmc(faults=faults)
    slot = bmc.slots[0]
    await sent(bmc, replace(ISO, slot=slot.path))
    assert (slot.image, slot.inserted) == (ISO.url, True)
    await sent(bmc, EjectMedium(slot.path))
    assert not slot.inserted


async def test_medium_goes_in_and_out_by_patch() -> None:
    bmc = FakeBmc(faults={Fault.MEDIA_BY_PATCH, Fault.ETAG_REQUIRED})
    error = await failure(bmc, ISO)
    assert (error.cause, error.status) == (Cause.UNSUPPORTED, 0)
    await sent(bmc, replace(ISO, by_patch=True, properties=(("Inserted", True),)))
    assert bmc.slots[0].inserted
    await sent(bmc, EjectMedium(CD, by_patch=True))
    assert not bmc.slots[0].inserted


async def test_properties_that_the_bmc_demands_are_named_and_sent() -> None:
    bmc = FakeBmc(faults={Fault.TRANSFER_REQUIRED})
    error = await failure(bmc, ISO)
    assert (error.cause, error.properties) == (Cause.REFUSED, ("InsertMedia", "TransferProtocolType"))
    await sent(bmc, replace(ISO, properties=(("TransferProtocolType", "HTTP"), ("TransferMethod", "Stream"))))
    assert bmc.slots[0].properties == {"TransferProtocolType": "HTTP", "TransferMethod": "Stream"}


@pytest.mark.parametrize("slot", ["/redfish/v1/../../x", "http://192.0.2.99/redfish/v1/x", "x"])
@pytest.mark.parametrize("by_patch", [False, True])
async def test_slot_is_a_path_below_redfish(slot: str, by_patch: bool) -> None:
    bmc = FakeBmc()
    for request in (replace(ISO, slot=slot, by_patch=by_patch), EjectMedium(slot, by_patch=by_patch)):
        assert (await failure(bmc, request)).cause is Cause.UNSUPPORTED
    assert bmc.writes() == []


# --- ETags ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("faults", "patches"),
    [
        (set(), 1),
        ({Fault.ETAG_REQUIRED}, 1),
        ({Fault.ETAG_REFUSED}, 2),
        ({Fault.ETAG_WEAK}, 2),
        ({Fault.ETAG_WEAK, Fault.ETAG_REQUIRED}, 2),
        ({Fault.ETAG_WEAK, Fault.ETAG_REFUSED}, 3),
        ({Fault.ETAG_EMPTY}, 1),
    ],
    ids=fault_names,
)
async def test_etag_is_sent_in_the_form_that_the_bmc_accepts(faults: set[Fault], patches: int) -> None:
    bmc = FakeBmc(faults=faults)
    await sent(bmc, PXE_ONCE)
    assert bmc.boot[TARGET] == "Pxe"
    assert len(bmc.writes()) == patches


async def test_stale_etag_is_read_again() -> None:
    bmc = FakeBmc(faults={Fault.ETAG_REQUIRED})
    async with client_of(bmc) as client:
        await client.observe(boot=True)
        bmc.power = "On"  # a change of the document by another client
        await client.send(PXE_ONCE)
        await client.send(replace(PXE_ONCE, target="Hdd"))
    assert bmc.boot[TARGET] == "Hdd"


async def test_bmc_that_refuses_every_form_of_etag_gets_few_requests() -> None:
    bmc = FakeBmc(faults={Fault.ETAG_REFUSED, Fault.ETAG_REQUIRED, Fault.ETAG_WEAK})
    error = await failure(bmc, PXE_ONCE)
    assert (error.cause, error.status) == (Cause.PRECONDITION, 428)
    assert len(bmc.writes()) == 3


async def test_etag_within_the_document_counts_if_the_header_is_missing() -> None:
    bmc = FakeBmc(faults={Fault.ETAG_EMPTY})
    bmc.overlay[SYSTEM] = bmc.documents()[SYSTEM] | {"@odata.etag": 'W/"17"'}
    seen: list[str | None] = []

    class Recording(MemoryTransport):
        async def exchange(self, method: str, path: str, headers: Any, body: bytes | None) -> Any:
            seen.append(headers.get("If-Match"))
            return await super().exchange(method, path, headers, body)

    async with RedfishClient(CONNECTION, CREDENTIALS, transport=Recording(bmc)) as client:
        await client.observe()
        await client.send(PXE_ONCE)
    assert [each for each in seen if each] == ['W/"17"', '"17"']


# --- tasks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "faults",
    [set(), {Fault.TASK_404_FIRST}, {Fault.TASK_MONITOR_ONLY}, {Fault.TASK_MONITOR_DELETES}, {Fault.REDIRECT_SAME}],
    ids=fault_names,
)
async def test_send_returns_when_the_task_has_ended(faults: set[Fault]) -> None:
    bmc = FakeBmc(faults={Fault.TASKS, *faults})
    async with client_of(bmc) as client:
        await client.send(PXE_ONCE)
        assert bmc.boot[TARGET] == "Pxe"
        await client.send(ON)
        assert bmc.power == "On"
    # The first read of a monitor names the Task.
    assert sum("TaskMonitors" in each for each in names(bmc)) == (2 if Fault.TASK_MONITOR_ONLY in faults else 0)


async def test_task_that_never_ends_is_a_conflict_after_its_limit() -> None:
    bmc = FakeBmc(faults={Fault.TASK_NEVER_ENDS})
    error = await failure(bmc, ON)
    assert error.cause is Cause.CONFLICT
    assert "has not ended after 45 s (TaskState Running)" in str(error)
    assert len(bmc.requests) < 40
    assert bmc.open_sessions == 0


async def test_task_that_waits_for_the_next_restart_counts_as_accepted() -> None:
    bmc = FakeBmc(faults={Fault.TASK_PENDING})
    await sent(bmc, PXE_ONCE)
    assert bmc.boot[TARGET] == "Pxe"


@pytest.mark.parametrize("faults", [set(), {Fault.TASK_MONITOR_ONLY}], ids=fault_names)
async def test_task_that_fails_is_an_error(faults: set[Fault]) -> None:
    error = await failure(FakeBmc(faults={Fault.TASK_FAILS, *faults}), ON)
    assert error.cause in (Cause.REFUSED, Cause.CONFLICT)
    assert error.message_ids == ("Base.1.8.InternalError",)


async def test_task_that_is_not_there_yet_is_read_again_after_a_pause() -> None:
    bmc = FakeBmc(faults={Fault.TASKS, Fault.TASK_404_FIRST})
    began = asyncio.get_running_loop().time()
    await sent(bmc, ON)
    assert asyncio.get_running_loop().time() - began >= 10
    assert bmc.power == "On"


async def test_task_that_stays_404_has_ended() -> None:
    bmc = FakeBmc(faults={Fault.TASKS})
    for number in range(2, 5):
        bmc.overlay[f"{ROOT}/TaskService/Tasks/{number}"] = None

    class Forgetful(MemoryTransport):
        async def exchange(self, method: str, path: str, headers: Any, body: bytes | None) -> Any:
            bmc.tasks.clear()
            return await super().exchange(method, path, headers, body)

    async with RedfishClient(CONNECTION, CREDENTIALS, transport=Forgetful(bmc)) as client:
        await client.send(ON)
    assert sum("/Tasks/" in each for each in names(bmc)) == 3
    assert bmc.power == "On"


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("faults", "request_", "cause", "status", "name"),
    [
        ({Fault.MODE_REFUSED}, PXE_ONCE, Cause.REFUSED, 400, "PropertyNotWritable"),
        ({Fault.NO_BOOT_OVERRIDE}, SetBoot("Nowhere"), Cause.REFUSED, 400, "PropertyValueNotInList"),
        ({Fault.SYS518}, PXE_ONCE, Cause.CONFLICT, 400, "SYS518"),
        ({Fault.FIRST_SLOT_BROKEN}, ISO, Cause.UNSUPPORTED, 0, ""),
        (set(), Reset(ResetType.FORCE_RESTART), Cause.CONFLICT, 409, "ResourceCannotBeReset"),
    ],
    ids=fault_names,
)
async def test_refusal_has_a_cause_and_the_words_of_the_bmc(
    faults: set[Fault], request_: Request, cause: Cause, status: int, name: str
) -> None:
    error = await failure(FakeBmc(faults=faults), request_)
    assert (error.cause, error.status) == (cause, status)
    assert [each.rpartition(".")[2] for each in error.message_ids] == ([name] if name else [])
    assert str(error).startswith("BMC 192.0.2.10: ")
    assert name in str(error)


async def test_refused_property_is_named_once() -> None:
    error = await failure(FakeBmc(faults={Fault.MODE_REFUSED}), PXE_ONCE)
    assert error.properties == (MODE,)


async def test_refusal_of_the_present_state_is_a_conflict() -> None:
    post = FakeBmc(faults={Fault.POST_LOCK}, post_seconds=60)
    assert (await failure(post, ON, PXE_ONCE)).cause is Cause.CONFLICT
    on = FakeBmc(power="On", faults={Fault.ON_CONFLICT})
    assert (await failure(on, Reset(ResetType.FORCE_OFF), ON)).cause is Cause.CONFLICT
    ejecting = FakeBmc(faults={Fault.EJECT_LATE})
    assert (await failure(ejecting, ISO, EjectMedium(CD), ISO)).cause is Cause.CONFLICT


async def test_busy_bmc_names_the_time_of_the_next_attempt() -> None:
    bmc = FakeBmc(faults={Fault.STORM_503})
    error = await failure(bmc)
    assert (error.cause, error.status, error.retry_after) == (Cause.BUSY, 503, 2.0)
    assert len(bmc.requests) == 1


@pytest.mark.parametrize(
    "faults", [{Fault.TRAILING_SLASH}, {Fault.REDIRECT_SAME}, {Fault.GZIP_REQUIRED}], ids=fault_names
)
async def test_habit_of_the_server_costs_at_most_one_request(faults: set[Fault]) -> None:
    bmc, plain = FakeBmc(faults=faults), FakeBmc()
    for each in (bmc, plain):
        await sent(each, PXE_ONCE, ON)
    assert (bmc.power, bmc.boots) == ("On", ["Pxe"])
    assert len(bmc.requests) <= len(plain.requests) + 1
    assert (bmc.logins, bmc.open_sessions) == (1 if Fault.GZIP_REQUIRED in faults else bmc.logins, 0)


async def test_missing_resource_of_a_bmc_without_slashes_is_asked_for_once() -> None:
    bmc = FakeBmc()
    bmc.overlay[MANAGER] = None
    await observed(bmc)
    assert [path for _, path, status in bmc.requests if status == 404] == [MANAGER]


@pytest.mark.parametrize("fault", [Fault.REDIRECT_OTHER, Fault.REDIRECT_PLAIN])
async def test_redirect_to_another_origin_is_not_followed(fault: Fault) -> None:
    bmc = FakeBmc(faults={fault})
    error = await failure(bmc)
    assert error.cause is Cause.BAD_ANSWER
    assert "redirects" in str(error)
    assert sum(status == 302 for _, _, status in bmc.requests) == 1


async def test_redirect_in_a_circle_ends() -> None:
    bmc = FakeBmc(faults={Fault.REDIRECT_LOOP})
    error = await failure(bmc)
    assert (error.cause, "more than 3 redirects" in str(error)) == (Cause.BAD_ANSWER, True)
    assert sum(status == 302 for _, _, status in bmc.requests) == 4


# --- sessions ---------------------------------------------------------------------------------------------------------


async def test_wrong_password_is_one_failed_login_whatever_follows() -> None:
    bmc = FakeBmc()
    client = client_of(bmc, WRONG)
    for _ in range(3):
        with pytest.raises(BmcError) as caught:
            async with client:
                pass
        assert caught.value.cause is Cause.CREDENTIALS_REFUSED
        with pytest.raises(BmcError) as caught:
            await client.observe()
        assert caught.value.cause is Cause.CREDENTIALS_REFUSED
    assert (bmc.logins, bmc.failed_logins, bmc.open_sessions) == (1, 1, 0)


async def test_password_that_is_a_word_of_the_message_does_not_show() -> None:
    messages = []
    for password in ("password", "zorro"):
        with pytest.raises(BmcError) as caught:
            await client_of(FakeBmc(), BmcCredentials("root", password)).__aenter__()
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


async def test_wrong_password_with_basic_authentication_is_one_failed_login() -> None:
    bmc = FakeBmc()
    async with client_of(bmc, WRONG, replace(CONNECTION, use_basic_auth=True)) as client:
        for call in (client.observe(), client.send(ON), client.get(SYSTEM), client.observe(boot=True, media=True)):
            with pytest.raises(BmcError) as caught:
                await call
            assert caught.value.cause is Cause.CREDENTIALS_REFUSED
    assert (bmc.failed_logins, bmc.logins) == (1, 0)


async def test_overlapping_calls_with_a_wrong_password_are_one_failed_login() -> None:
    bmc = FakeBmc()
    async with client_of(bmc, WRONG, replace(CONNECTION, use_basic_auth=True)) as client:
        results = await asyncio.gather(*(client.get(SYSTEM) for _ in range(5)), return_exceptions=True)
    assert [type(each) for each in results] == [BmcError] * 5
    assert bmc.failed_logins == 1


async def test_basic_authentication_makes_no_session() -> None:
    bmc = FakeBmc()
    seen = await observed(bmc, replace(CONNECTION, use_basic_auth=True))
    assert seen.power is PowerState.OFF
    assert (bmc.logins, bmc.basic_requests > 0) == (0, True)


async def test_locked_account_is_not_tried_again() -> None:
    bmc = FakeBmc(faults={Fault.LOCK_OUT})
    async with client_of(bmc):
        pass
    with pytest.raises(BmcError):
        await client_of(bmc, WRONG).__aenter__()
    error = await failure(bmc)
    assert error.cause is Cause.CREDENTIALS_REFUSED
    assert "locked" in str(error)


@pytest.mark.parametrize("basic", [False, True])
async def test_password_change_is_named(basic: bool) -> None:
    bmc = FakeBmc(faults={Fault.PASSWORD_CHANGE_REQUIRED})
    error = await failure(bmc, connection=replace(CONNECTION, use_basic_auth=basic))
    assert error.cause is Cause.CREDENTIALS_REFUSED
    assert "PasswordChangeRequired" in str(error)
    assert bmc.open_sessions == 0


async def test_session_limit_is_busy_and_no_wrong_password() -> None:
    for bmc in (FakeBmc(session_limit=0), FakeBmc(faults={Fault.LIMIT_REACHED})):
        error = await failure(bmc)
        assert error.cause is Cause.BUSY
        assert "password" not in str(error)
        assert "sessions may be in use" in str(error)


async def test_session_that_the_bmc_ends_is_no_wrong_password() -> None:
    bmc = FakeBmc()
    async with client_of(bmc) as client:
        await client.observe()
        bmc.sessions.clear()
        with pytest.raises(BmcError) as caught:
            await client.observe()
    assert caught.value.cause is Cause.BUSY
    assert (bmc.logins, bmc.failed_logins) == (1, 0)


async def test_bmc_without_sessions_names_the_remedy() -> None:
    bmc = FakeBmc()
    bmc.overlay[SESSIONS] = None
    error = await failure(bmc)
    assert error.cause is Cause.UNSUPPORTED
    assert "useBasicAuth" in str(error)
    assert await observed(bmc, replace(CONNECTION, use_basic_auth=True))


async def test_bmc_that_names_no_sessions_gets_basic_authentication() -> None:
    bmc = FakeBmc(faults={Fault.NO_SESSION_SERVICE})
    assert await observed(bmc)
    assert bmc.logins == 0


@pytest.mark.parametrize("protected", [False, True])
async def test_basic_authentication_reads_a_protected_service_root(protected: bool) -> None:
    bmc = FakeBmc()

    class Protected(MemoryTransport):
        async def exchange(self, method: str, path: str, headers: Any, body: bytes | None) -> Any:
            if protected and path == f"{ROOT}/" and "Authorization" not in headers:
                path = SYSTEM  # answers 401 without a login
            return await super().exchange(method, path, headers, body)

    basic = replace(CONNECTION, use_basic_auth=True)
    async with RedfishClient(basic, CREDENTIALS, transport=Protected(bmc)) as client:
        assert (await client.observe()).identity.redfish == "1.15.0"
    assert bmc.failed_logins == 0


async def test_login_without_a_token_is_a_bad_answer() -> None:
    error = await failure(FakeBmc(faults={Fault.NO_TOKEN}))
    assert error.cause is Cause.BAD_ANSWER


@pytest.mark.parametrize("fault", [Fault.LOCATION_ABSOLUTE, Fault.LOCATION_ELSEWHERE])
async def test_session_is_deleted_at_the_bmc_itself_whatever_host_its_location_has(fault: Fault) -> None:
    bmc = FakeBmc(faults={fault})
    await observed(bmc)
    assert bmc.open_sessions == 0


async def test_session_without_a_usable_location_is_found_by_its_document() -> None:
    bmc = FakeBmc(faults={Fault.LOCATION_ELSEWHERE})

    class NoLocation(MemoryTransport):
        async def exchange(self, method: str, path: str, headers: Any, body: bytes | None) -> Any:
            answer = await super().exchange(method, path, headers, body)
            return replace(
                answer, headers={name: value for name, value in answer.headers.items() if name != "Location"}
            )

    async with RedfishClient(CONNECTION, CREDENTIALS, transport=NoLocation(bmc)):
        assert bmc.open_sessions == 1
    assert bmc.open_sessions == 0


async def test_protected_service_root_is_read_after_the_login() -> None:
    bmc = FakeBmc()
    real = MemoryTransport(bmc)

    class Protected(MemoryTransport):
        async def exchange(self, method: str, path: str, headers: Any, body: bytes | None) -> Any:
            if path == f"{ROOT}/" and "X-Auth-Token" not in headers:
                path = SYSTEM  # answers 401 without a token
            return await real.exchange(method, path, headers, body)

    async with RedfishClient(CONNECTION, CREDENTIALS, transport=Protected(bmc)) as client:
        assert (await client.observe()).identity.redfish == "1.15.0"
    assert (bmc.logins, bmc.failed_logins, bmc.open_sessions) == (1, 0, 0)


async def test_error_in_the_body_ends_the_session() -> None:
    bmc, transport = FakeBmc(), None
    with pytest.raises(ZeroDivisionError):
        async with RedfishClient(CONNECTION, CREDENTIALS, transport=(transport := MemoryTransport(bmc))):
            raise ZeroDivisionError
    assert bmc.open_sessions == 0
    assert transport.closed == 1


def _in_body(bmc: FakeBmc) -> bool:
    return bmc.open_sessions == 1 and f"GET {MANAGER}" in names(bmc)


def _logging_in(bmc: FakeBmc) -> bool:
    return bmc.logins == 1


@pytest.mark.parametrize("reached", [_logging_in, _in_body])
async def test_cancelled_client_ends_its_session(reached: Callable[[FakeBmc], bool]) -> None:
    bmc = FakeBmc()

    async def run() -> None:
        async with RedfishClient(CONNECTION, CREDENTIALS, transport=MemoryTransport(bmc, seconds=1)) as client:
            await client.observe()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(run())
    while not reached(bmc):
        await elapse(0.25)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (bmc.logins, bmc.open_sessions) == (1, 0)


async def test_login_that_is_cancelled_before_its_answer_ends_the_session() -> None:
    bmc = FakeBmc()

    class LateAnswer(MemoryTransport):
        async def exchange(self, method: str, path: str, headers: Any, body: bytes | None) -> Any:
            answer = await super().exchange(method, path, headers, body)
            if method == "POST":
                await turns(50)
            return answer

    task = asyncio.ensure_future(RedfishClient(CONNECTION, CREDENTIALS, transport=LateAnswer(bmc)).__aenter__())
    while bmc.open_sessions == 0:
        await turns()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bmc.open_sessions == 0


async def test_logout_that_gets_no_answer_is_given_up() -> None:
    bmc = FakeBmc(faults={Fault.HANG}, broken_path=f"{SESSIONS}/1")
    loop = asyncio.get_running_loop()
    async with client_of(bmc, logout_seconds=5):
        began = loop.time()
    assert loop.time() - began == pytest.approx(5)


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("/redfish/v1/Systems/1", "/redfish/v1/Systems/1"),
        ("/redfish/v1/Systems/1/", "/redfish/v1/Systems/1/"),
        ("/redfish/v1/Chassis/1/Power#/PowerSupplies/0", "/redfish/v1/Chassis/1/Power"),
        ("/redfish/v1/Systems?$expand=.", "/redfish/v1/Systems?$expand=."),
        ("/redfish/v1/Memory/DIMM 1", "/redfish/v1/Memory/DIMM%201"),
        ("/redfish/v1/a%20b", "/redfish/v1/a%20b"),
        *((each, None) for each in (
            "", "redfish/v1", "/redfish", "/api", "//redfish/v1", "/redfish//v1", "/redfish/../api",
            "/redfish/%2e%2E/api", "/redfish/..", "/redfish/v1\\x", "https://192.0.2.1/redfish/v1",
            "//192.0.2.1/redfish/v1", "/redfish/v1\r\nX: y", "/redfish/v1/\x00", "/redfish/v1/ü",
            "/redfish/" + "x" * 4000, None, 7, ["/redfish/v1"], {},
        )),
    ],
)  # fmt: skip
def test_path_of_a_bmc_leads_below_redfish_or_nowhere(value: Any, path: str | None) -> None:
    assert redfish_path(value) == path


def test_document_is_a_bounded_object_in_utf_8() -> None:
    limits = RedfishLimits(answer_bytes=4000, depth=4, values=50)
    assert parse_document(b' {"a": {"b": [{"c": 1}]}} ', limits) == {"a": {"b": [{"c": 1}]}}
    assert parse_document(b'{"a": "' + b"x" * 3000 + b'"}', limits)
    for body, reason in (
        (b'{"a": "' + b"x" * 4000 + b'"}', "larger than 4000 bytes"),
        (b'{"a": {"b": [{"c": []}]}}', "deeper than 4 levels"),
        (b"[" * 1500 + b"]" * 1500, "more than 50 values"),
        (b'{"a": [' + b"1," * 60 + b"1]}", "more than 50 values"),
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b"", "not JSON"),
        (b'{"a": NaN}', "not JSON"),
        (b'{"a": "\xfc"}', "not JSON in UTF-8"),
        (b'{"a": "\\ud800"}', "not JSON"),
        ('{"a": 1}'.encode("utf-16"), "not JSON"),
        (b'{"a": 1} {"b": 2}', "not JSON"),
        (b"<a/>", "not JSON"),
    ):
        with pytest.raises(ValueError, match=reason):
            parse_document(body, limits)


def test_client_and_credentials_show_no_password() -> None:
    client = client_of(FakeBmc())
    assert PASSWORD not in repr(client) + repr(CREDENTIALS) + str(CREDENTIALS)
