"""The inventories that agents report: read as hostile data, stored in the status of their own machine's Hardware."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, get_args

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proto import inventory_pb2 as pb
from proto import metadata
from proto.inventory_pb2_grpc import InventoryServiceStub
from proto.workflow_pb2 import PublishEventRequest
from proto.workflow_pb2_grpc import WorkflowServiceStub
from tests.support.api import InProcessApi
from tests.support.objects import MAC, OTHER_MAC, hardware
from tests.support.virtual_time import elapse
from tests.unit.server.conftest import Rig
from tests.waiting import PATIENCE_SECONDS, until
from tink.api.bounds import MAX_INVENTORY_ITEMS
from tink.api.crds import generate
from tink.api.v1alpha2 import Attributes, FirmwareMode, Model
from tink.discovery.report import (
    MAX_REPORT_BYTES,
    CollectionMethod,
    UnreadableReportError,
    read_attributes,
    read_report,
)
from tink.kube.client import ApiError, UnreachableError
from tink.kube.objects import NamespacedName
from tink.kube.resources import EVENT, HARDWARE
from tink.kube.runtime import EventRecorder
from tink.kubeapi.schema.checker import Checker, compile_definition
from tink.server.auth import AgentAuth, TokenKeys, TokenSettings
from tink.server.inventory import (
    MAX_EVENTS,
    MAX_PENDING_BYTES,
    REFRESH_SECONDS,
    WRITE_SECONDS,
    InventoryKeeper,
    clock_offset,
)

Raw = dict[str, Any]
UUID = "4c4c4544-0051-3610-8052-b4c04f303333"
ZEROS = "00000000-0000-0000-0000-000000000000"
FOUND: Raw = {
    "architecture": "x86_64",
    "firmware": {"mode": "UEFI", "secureBoot": False},
    "product": {
        "vendor": "Dell",
        "model": "R650",
        "serialNumber": "S1",
        "uuid": UUID,
    },
    "cpu": {"totalCores": 32, "totalThreads": 64},
    "memory": {"totalBytes": 64 << 30, "modules": [{"slot": "A1", "sizeBytes": 64 << 30, "serialNumber": "M1"}]},
    "blockDevices": [
        {"name": "/dev/nvme0n1", "controllerType": "NVMe", "serialNumber": "D1", "sizeBytes": 960 << 30},
        {"name": "/dev/sda", "serialNumber": "D2", "sizeBytes": 480 << 30},
    ],
    "networkInterfaces": [{"model": "X710", "ports": [{"name": "eno1", "mac": MAC, "linkStatus": "LinkUp"}]}],
}


def without(*serials: str) -> Raw:
    """Return FOUND without the drives with these serial numbers."""
    return {**FOUND, "blockDevices": [each for each in FOUND["blockDevices"] if each["serialNumber"] not in serials]}


# --- reading ----------------------------------------------------------------------------------------------------------


@cache
def checker() -> Checker:
    return compile_definition(generate()[0])["v1alpha2"]


def assert_valid(attributes: Raw) -> None:
    """Assert that the API accepts the attributes, and that no field is unknown to it."""
    Attributes.model_validate(attributes)
    obj = hardware() | {"status": {"inventory": {"inBand": attributes}}}
    checked = checker().check(obj)
    assert checked.errors == []
    assert not checked.unknown
    json.dumps(attributes, allow_nan=False).encode("utf-8")


def read(raw: Raw) -> Raw:
    return read_report(json.dumps(raw).encode()).attributes


def test_an_inventory_is_stored_as_it_was_reported() -> None:
    report = read_report(json.dumps(FOUND).encode())
    assert (report.attributes, report.problems) == (FOUND, ())
    assert_valid(report.attributes)


def sample(kind: type[Model]) -> Raw:
    """Return an object with all fields of a model."""
    special = {"mac": MAC, "address": "192.0.2.7", "uuid": UUID}
    found: Raw = {}
    for name, info in kind.model_fields.items():
        (of,) = (each for each in get_args(info.annotation) if each is not type(None))
        if get_args(of):
            value: Any = [sample(get_args(of)[0])]
        elif issubclass(of, Model):
            value = sample(of)
        elif of is FirmwareMode:
            value = "BIOS"
        else:
            value = {bool: True, int: 7, float: 1.5}.get(of, special.get(name, f"a {name}"))
        found[info.alias or name] = value
    return found


def test_every_field_of_an_inventory_can_be_reported_but_those_that_the_server_writes() -> None:
    whole = sample(Attributes)
    assert {name for name in whole if name not in read(whole)} == {
        *("lastUpdated", "collectionMethod", "clockOffsetSeconds"),
    }
    assert_valid(read(whole))
    assert read(whole).items() <= whole.items()


@pytest.mark.parametrize(
    ("raw", "stored", "problem"),
    [
        ({"secret": "x", "cpu": {"totalCores": 4, "more": 1}}, {"cpu": {"totalCores": 4}}, ""),
        ({"architecture": "x86\x1b[31m_64\x00\n\u202e\u2028"}, {"architecture": "x86 [31m_64"}, ""),
        ({"product": {"serialNumber": "To Be Filled By O.E.M.", "vendor": "V"}}, {"product": {"vendor": "V"}}, ""),
        (
            {"product": {"uuid": ZEROS, "vendor": "V"}},
            {"product": {"vendor": "V"}},
            "",
        ),
        ({"architecture": "a" * 999}, {"architecture": "a" * 256}, ""),
        ({"architecture": None, "cpu": {"totalCores": 1}}, {"cpu": {"totalCores": 1}}, ""),
        ({"cpu": {"totalCores": -1, "totalThreads": 2}}, {"cpu": {"totalThreads": 2}}, "cpu.totalCores is no integer"),
        ({"cpu": {"totalCores": 1 << 63, "totalThreads": 2}}, {"cpu": {"totalThreads": 2}}, "cpu.totalCores is no"),
        ({"cpu": {"totalCores": 10**300, "totalThreads": 2}}, {"cpu": {"totalThreads": 2}}, "cpu.totalCores is no"),
        ({"cpu": {"totalCores": True, "totalThreads": 2}}, {"cpu": {"totalThreads": 2}}, "cpu.totalCores is no"),
        ({"cpu": {"totalCores": 1.5, "totalThreads": 2}}, {"cpu": {"totalThreads": 2}}, "cpu.totalCores is no"),
        (
            {"firmware": {"mode": "X", "secureBoot": True}},
            {"firmware": {"secureBoot": True}},
            "firmware.mode is none",
        ),
        (
            {"firmware": {"mode": "BIOS", "secureBoot": 1}},
            {"firmware": {"mode": "BIOS"}},
            "firmware.secureBoot is neither",
        ),
        ({"bmc": {"address": "x", "vendor": "V"}}, {"bmc": {"vendor": "V"}}, "bmc.address is no IP address"),
        ({"memory": [1], "architecture": "a"}, {"architecture": "a"}, "memory is no object"),
        ({"blockDevices": {"a": 1}, "architecture": "a"}, {"architecture": "a"}, "blockDevices is no list"),
        (
            {"blockDevices": [{"name": 5, "model": "M"}, 7, {"model": "N", "sizeBytes": "1"}]},
            {"blockDevices": [{"model": "M"}, {"model": "N"}]},
            "blockDevices[0].name is no text; blockDevices[1] is no object; blockDevices[2].sizeBytes is no integer",
        ),
        (
            {"networkInterfaces": [{"ports": [{"mac": "hello\n", "name": "eno1"}, {"mac": MAC.upper()}]}]},
            {"networkInterfaces": [{"ports": [{"mac": MAC}, {"name": "eno1"}]}]},
            "networkInterfaces[0].ports[0].mac is no MAC address",
        ),
    ],
)
def test_a_wrong_part_is_left_out_and_named_and_the_rest_is_stored(raw: Raw, stored: Raw, problem: str) -> None:
    report = read_report(json.dumps(raw).encode())
    assert report.attributes == stored
    assert "; ".join(report.problems).startswith(problem)
    assert bool(problem) == bool(report.problems)
    assert_valid(report.attributes)


@pytest.mark.parametrize(
    "text",
    [
        b"", b"null", b"[]", b"1", b'"x"', b"{}", b'{"unknown": 1}', b'{"cpu": {}}', b"{", b'{"cpu": NaN}',
        b'{"cpu": {"totalCores": Infinity}}', b'{"architecture": "\xff\xfe"}', b'{"architecture": "\\ud800"}',
        b'{"cpu": {"totalCores": 1%s}}' % (b"0" * 9999), b"[" * MAX_REPORT_BYTES,
        b'{"cpu":' * (MAX_REPORT_BYTES // 7), b"\x00" * MAX_REPORT_BYTES, b"\x1f\x8b" * 100,
    ],
    ids=lambda text: repr(text[:20]),
)  # fmt: skip
def test_what_is_no_inventory_is_refused_with_a_message_without_its_text(text: bytes) -> None:
    with pytest.raises(UnreadableReportError, match=r"^the inventory (is no JSON|has no part that can be stored)"):
        read_report(text)


def test_deep_nesting_below_a_known_field_is_left_out() -> None:
    depth = 900
    nested = b'{"product":' * depth + b"{}" + b"}" * depth
    report = read_report(b'{"architecture": "a", "product": ' + nested + b"}")
    assert report.attributes == {"architecture": "a"}


def test_of_ten_thousand_drives_the_first_are_stored_in_an_order_of_their_own() -> None:
    drives = [{"name": f"/dev/sd{number}"} for number in range(10_000)]
    report = read_attributes({"blockDevices": drives})
    assert [each["name"] for each in report.attributes["blockDevices"]] == [f"/dev/sd{at}" for at in range(256)]
    assert report.problems == (f"blockDevices has 10000 items, of which {MAX_INVENTORY_ITEMS} are stored",)
    few = drives[:200]
    random.Random(1).shuffle(few)
    assert read_attributes({"blockDevices": few}).attributes["blockDevices"] == drives[:200]
    assert_valid(report.attributes)


def test_a_report_full_of_wrong_values_names_a_few_of_them() -> None:
    report = read_attributes({"blockDevices": [{"name": 1}] * 10_000})
    assert (report.attributes, len(report.problems)) == ({}, 5)


NAMES = [
    *("architecture", "firmware", "mode", "secureBoot", "product", "serialNumber", "uuid", "bios", "bmc", "address"),
    *("nic", "ports", "mac", "lldp", "vlanID", "cpu", "sockets", "totalCores", "memory", "modules", "sizeBytes"),
    *("blockDevices", "name", "networkInterfaces", "pciDevices", "tpms", "status", "health", "lastUpdated", "chassis"),
]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=300) | st.just(MAC) | st.just("UEFI"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=6),
    max_leaves=30,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), json_values, max_size=8))
def test_any_json_becomes_what_the_api_accepts(raw: Raw) -> None:
    attributes = read_attributes(raw).attributes
    assert_valid(attributes)
    again = read_attributes(attributes)
    assert (again.attributes, again.problems) == (attributes, ())


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(text: bytes) -> None:
    with contextlib.suppress(UnreadableReportError):
        assert_valid(read_report(text).attributes)


def test_clock_offset_is_rounded_and_absent_if_small_or_unknown() -> None:
    assert clock_offset(1_003.4, 1_000.0) == 3.0
    assert clock_offset(997.6, 1_000.0) == -2.0
    assert clock_offset(1_001.4, 1_000.0) is None
    for unknown in (0.0, -5.0, float("nan"), float("inf"), float("-inf"), 1e300):
        assert clock_offset(unknown, 1_000.0) is None


# --- writing ----------------------------------------------------------------------------------------------------------


KEY = NamespacedName("default", "m1")


class Bench:
    """An InventoryKeeper over the API in this process, in virtual time."""

    def __init__(self, *objects: Raw) -> None:
        self.loop = asyncio.get_running_loop()
        self.tasks: set[asyncio.Task[None]] = set()
        self.api = InProcessApi(*(objects or (hardware(),)))
        self.informer = self.api.informer(HARDWARE)
        self.recorder = EventRecorder(self.api, "tinkedge-server", now=self.now, clock=self.loop.time)
        self.keeper = InventoryKeeper(
            self.api, self.informer.get, self.spawn, self.recorder, now=self.now, clock=self.loop.time
        )

    def now(self) -> float:
        return 1_800_000_000.0 + self.loop.time()

    def spawn(self, work: Any) -> None:
        self.tasks.add(self.loop.create_task(work))

    def store(self, attributes: Raw, key: NamespacedName = KEY, **options: Any) -> bool:
        if not self.tasks:  # not before: virtual time begins with the test
            self.spawn(self.recorder.run())
        return self.keeper.store(key, attributes, CollectionMethod.AGENT, **options)

    def stored(self, name: str = "m1") -> Raw:
        obj = self.api.read(HARDWARE, name)
        assert obj is not None
        return dict(obj.get("status", {}).get("inventory", {}).get("inBand", {}))

    @property
    def writes(self) -> int:
        return self.api.count("patch")

    @property
    def events(self) -> list[tuple[str, str, str]]:
        return [(each["type"], each["reason"], each["message"]) for each in self.api.objects(EVENT)]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    for task in made.tasks:
        task.cancel()
    await asyncio.wait(made.tasks)


@pytest.mark.looptime
async def test_parts_that_are_gone_are_removed_and_other_parts_of_the_status_stay(bench: Bench) -> None:
    bench.api.change(HARDWARE, "m1", status={"state": "Waiting", "inventory": {"outOfBand": {"architecture": "a"}}})
    bench.store(FOUND)
    await elapse(WRITE_SECONDS)
    assert bench.stored() == {**FOUND, "lastUpdated": "2027-01-15T08:00:00Z", "collectionMethod": "agent"}
    bench.store({"cpu": {"totalCores": 32}})
    await elapse(WRITE_SECONDS)
    assert bench.stored() == {
        "cpu": {"totalCores": 32}, "lastUpdated": "2027-01-15T08:00:05Z", "collectionMethod": "agent",
    }  # fmt: skip
    status = (bench.api.read(HARDWARE, "m1") or {})["status"]
    assert (status["state"], status["inventory"]["outOfBand"]) == ("Waiting", {"architecture": "a"})


@pytest.mark.looptime
async def test_unchanged_inventory_is_written_once_an_hour(bench: Bench) -> None:
    for _ in range(20):
        bench.store(FOUND, offset=float(random.Random(1).randrange(100)))
        await elapse(REFRESH_SECONDS / 10)
    assert bench.writes == 2


@pytest.mark.looptime
async def test_reports_without_pause_are_written_at_a_limited_rate_and_the_newest_wins(bench: Bench) -> None:
    for number in range(10_000):
        assert bench.store({"cpu": {"totalCores": number}})
        await elapse(0.001)
    await elapse(WRITE_SECONDS)
    assert bench.stored()["cpu"] == {"totalCores": 9_999}
    assert bench.writes <= 2 + 10 / WRITE_SECONDS


@pytest.mark.looptime
async def test_reports_wait_while_the_api_is_away_and_the_newest_of_each_machine_is_written(bench: Bench) -> None:
    bench.api.put(hardware("m2", OTHER_MAC, "192.0.2.2"))
    bench.api.fail("patch", *[UnreachableError("away")] * 9)
    bench.store(FOUND)
    bench.store(FOUND, NamespacedName("default", "m2"))
    await elapse(60)
    bench.store(without("D1"))
    await elapse(600)
    assert [len(bench.stored(name)["blockDevices"]) for name in ("m1", "m2")] == [1, 2]
    assert bench.writes <= 9 + 3


@pytest.mark.looptime
async def test_a_refused_write_is_logged_once_with_the_missing_right_and_tried_an_hour_later(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.api.fail("patch", ApiError(403, "Forbidden", "no"))
    for _ in range(5):
        bench.store(FOUND)
        await elapse(600)
    assert (bench.writes, bench.stored()) == (1, {})
    assert caplog.text.count("the server's role has no patch on hardware/status") == 1
    await elapse(3600)
    bench.store(FOUND)
    await elapse(1)
    assert bench.stored()["cpu"] == FOUND["cpu"]


@pytest.mark.looptime
async def test_an_invalid_write_is_dropped_and_does_not_stop_the_others(bench: Bench) -> None:
    bench.api.put(hardware("m2", OTHER_MAC, "192.0.2.2"))
    bench.api.fail("patch", ApiError(422, "Invalid", "no"), ValueError("a fault of this program"))
    for name in ("m1", "m2", "m1", "gone"):
        bench.store(FOUND, NamespacedName("default", name))
        await elapse(WRITE_SECONDS)
    assert bench.stored()["cpu"] == FOUND["cpu"]
    assert bench.writes == 3


@pytest.mark.looptime
async def test_pending_writes_have_a_maximum_size_together(bench: Bench) -> None:
    bench.api.fail("patch", *[UnreachableError("away")] * 10_000)
    large = {"pciDevices": [{"model": "m" * 256} for _ in range(256)]}
    names = [NamespacedName("default", f"n{number}") for number in range(2_000)]
    for key in names:
        bench.api.put(hardware(key.name, OTHER_MAC, None))
    taken = [key for key in names if bench.store(large, key)]
    assert MAX_PENDING_BYTES / 80_000 < len(taken) < MAX_PENDING_BYTES / 60_000
    assert bench.store(large, taken[0])  # in place of the one that waits
    bench.keeper.forget(taken[0])
    assert bench.store(large, names[-1])


@pytest.mark.looptime
async def test_a_rack_that_powers_on_is_stored_within_seconds(bench: Bench) -> None:
    names = [f"n{number}" for number in range(100)]
    for name in names:
        bench.api.put(hardware(name, OTHER_MAC, None))
        bench.store(FOUND, NamespacedName("default", name))
    await elapse(1)
    assert all(bench.stored(name)["cpu"] == FOUND["cpu"] for name in names)


@pytest.mark.looptime
async def test_another_servers_write_that_this_one_has_not_seen_leaves_no_part_behind(bench: Bench) -> None:
    bench.informer.hold()
    bench.api.change(HARDWARE, "m1", status={"inventory": {"inBand": {"tpms": [{"model": "old"}]}}})
    bench.store(FOUND)
    await elapse(WRITE_SECONDS)
    assert "tpms" not in bench.stored()


@pytest.mark.looptime
async def test_pending_writes_are_done_at_once_when_the_server_stops(bench: Bench) -> None:
    bench.store(FOUND)
    await elapse(0.1)
    bench.store(without("D1"))
    bench.keeper.close()
    await elapse(0.1)
    assert bench.stored()["blockDevices"] == without("D1")["blockDevices"]


# --- events -----------------------------------------------------------------------------------------------------------


@pytest.mark.looptime
async def test_changes_are_events_and_the_first_inventory_makes_none(bench: Bench) -> None:
    bench.store(FOUND)
    await elapse(60)
    assert bench.events == []
    bench.store({**without("D2"), "firmware": {"mode": "UEFI", "secureBoot": True}})
    await elapse(60)
    assert sorted(bench.events) == [
        ("Normal", "SecureBootChanged", "Secure Boot is now on; before off."),
        ("Warning", "DiskRemoved", "Disk /dev/sda was removed: 480 GiB, serial D2."),
    ]


@pytest.mark.looptime
async def test_events_of_one_report_and_of_one_machine_are_limited(bench: Bench) -> None:
    def drives(generation: int) -> Raw:
        return {"blockDevices": [{"name": f"/dev/sd{at}", "serialNumber": f"g{generation}-{at}"} for at in range(200)]}

    bench.store(drives(0))
    await elapse(60)
    bench.store(drives(1))
    await elapse(60)
    assert len(bench.events) == MAX_EVENTS
    for generation in range(2, 60):
        bench.store(drives(generation))
        await elapse(WRITE_SECONDS)
    await elapse(60)
    assert len(bench.events) <= 60 + 8


# --- the call ---------------------------------------------------------------------------------------------------------


async def report(rig: Rig, attributes: Any, agent_id: str = MAC, clock: float = 0.0, token: str = "") -> None:
    """Report an inventory as an agent does. Raises AioRpcError."""
    text = attributes if isinstance(attributes, bytes) else json.dumps(attributes).encode()
    request = pb.ReportInventoryRequest(agent_id=agent_id, attributes=text, clock_unix_seconds=clock)
    sent = [(metadata.AUTHORIZATION, f"Bearer {token}")] if token else None
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{rig.server.port}", options=options) as channel:
        if len(text) > 16 << 10:  # the server closes a connection that sends more before its first call
            workflows: Any = WorkflowServiceStub(channel)
            with contextlib.suppress(grpc.aio.AioRpcError):
                await workflows.PublishEvent(PublishEventRequest(), timeout=PATIENCE_SECONDS)
        stub: Any = InventoryServiceStub(channel)
        await stub.ReportInventory(request, metadata=sent, timeout=PATIENCE_SECONDS)


async def refused(rig: Rig, *arguments: Any, **options: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await report(rig, *arguments, **options)
    return caught.value.code(), caught.value.details() or ""


def in_band(rig: Rig, name: str = "h") -> Raw:
    return dict(rig.read(name, HARDWARE).get("status", {}).get("inventory", {}).get("inBand", {}))


async def test_an_agent_reports_its_machine(rig: Rig) -> None:
    await rig.serve()
    await report(rig, {**FOUND, "lastUpdated": "1999-01-01T00:00:00Z", "clockOffsetSeconds": 5}, clock=rig.now - 7200)
    await until(lambda: in_band(rig))
    stamp = datetime.fromtimestamp(rig.now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    own = {"lastUpdated": stamp, "collectionMethod": "agent", "clockOffsetSeconds": -7200.0}
    assert in_band(rig) == {**FOUND, **own}
    await report(rig, without("D1"))
    await rig.server.stop()
    assert in_band(rig) == {**without("D1"), "lastUpdated": stamp, "collectionMethod": "agent"}


async def test_no_agent_reports_for_another_machine(rig: Rig, tmp_path: Path) -> None:
    await rig.serve()
    rig.machine("other", OTHER_MAC, "192.0.2.2")
    for named in (OTHER_MAC, "other", "d/other", "nobody"):
        code, text = await refused(rig, FOUND, named)
        assert (code, FOUND["product"]["serialNumber"] in text) == (grpc.StatusCode.PERMISSION_DENIED, False)
    for missing in ("", "x" * 1000):
        assert (await refused(rig, FOUND, missing))[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert (in_band(rig, "other"), rig.patches) == ({}, 0)


async def test_token_of_another_machine_reports_for_that_one_alone(rig: Rig, tmp_path: Path) -> None:
    tokens = TokenSettings(tmp_path / "key", create=True)
    await rig.serve(agent_auth=AgentAuth.TOKEN, tokens=tokens)
    rig.machine("other", OTHER_MAC, "192.0.2.2")
    token = TokenKeys(tokens).mint(OTHER_MAC, rig.now)
    assert (await refused(rig, FOUND, MAC, token=token))[0] is grpc.StatusCode.PERMISSION_DENIED
    assert (await refused(rig, FOUND, MAC))[0] is grpc.StatusCode.UNAUTHENTICATED
    await report(rig, FOUND, OTHER_MAC, token=token)
    await until(lambda: in_band(rig, "other"))
    assert in_band(rig) == {}


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (b"x" * (MAX_REPORT_BYTES + 1), grpc.StatusCode.RESOURCE_EXHAUSTED, "has 262145 bytes; the maximum is 262144"),
        (b"[" * MAX_REPORT_BYTES, grpc.StatusCode.INVALID_ARGUMENT, "is no JSON"),
        (b'{"cpu": NaN}', grpc.StatusCode.INVALID_ARGUMENT, "is no JSON"),
        (b'{"architecture": "\xff"}', grpc.StatusCode.INVALID_ARGUMENT, "is no JSON"),
        (b"{}", grpc.StatusCode.INVALID_ARGUMENT, "has no part that can be stored"),
    ],
    ids=["one byte too many", "256 KiB of nesting", "NaN", "no UTF-8", "empty"],
)
async def test_a_hostile_report_is_refused_with_the_reason_and_changes_nothing(
    rig: Rig, text: bytes, code: grpc.StatusCode, message: str
) -> None:
    await rig.serve()
    refusal = await refused(rig, text)
    assert refusal[0] is code
    assert message in refusal[1]
    await report(rig, FOUND)  # the server serves on
    await until(lambda: in_band(rig))


async def test_a_message_of_100_mb_is_refused_and_the_server_serves_on(rig: Rig) -> None:
    await rig.serve()
    # gRPC refuses the message by its size, or the guard closes the connection that goes on sending.
    code, _ = await refused(rig, b"x" * 100_000_000)
    assert code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
    await report(rig, FOUND)
    await until(lambda: in_band(rig))
    assert rig.patches == 1


async def test_reports_without_pause_of_one_machine_are_refused_and_those_of_others_are_not(rig: Rig) -> None:
    await rig.serve()
    rig.machine("other", OTHER_MAC, "127.0.0.1")
    codes = set()
    for number in range(100):
        try:
            await report(rig, {"cpu": {"totalCores": number}}, "h")
        except grpc.aio.AioRpcError as error:
            codes.add(error.code())
    assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    await report(rig, FOUND, "other")
    await until(lambda: in_band(rig, "other"))
    assert rig.patches <= 4
    assert any("reports its inventory too often" in each.message for each in rig.seen)


async def test_left_out_parts_are_in_the_log_once_without_text_of_the_report(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    await rig.serve()
    for _ in range(3):
        await report(rig, {"architecture": "a", "memory": "forged\nline", "cpu": {"totalCores": "forged"}})
    (line,) = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert line == (
        "Hardware d/h: parts of the inventory are left out: cpu.totalCores is no integer from 0 to "
        "9223372036854775807; memory is no object"
    )
