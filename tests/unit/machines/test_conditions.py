"""The conditions of a Hardware's status: each shows what is so while it is so, whatever edges and APIs go through."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import pytest

from edge.machines import (
    BootProblem,
    BootProblemWriter,
    ConditionWriter,
    Inventory,
    Machine,
    MachineState,
    MistakeWriter,
    StateWriter,
    conditions,
)
from edge.machines import mistakes as mistake_writer
from edge.machines.conditions import ATTEMPTS, GRACE_SECONDS, StatusWriter
from edge.machines.mistakes import LISTING_SECONDS, WRITES_PER_SECOND
from ipxe.binaries import BootPath
from tests.support import objects
from tests.support.api import InProcessApi
from tests.support.informer import InMemoryInformer
from tests.support.virtual_time import elapse
from tink.api import mistakes
from tink.api.mistakes import NetworkSet, Reason, Site, hardware_mistakes, osie_mistakes
from tink.api.v1alpha2 import BootClient, Raw
from tink.discovery.model import has_declined
from tink.kube.client import ApiError, NotFoundError, UnreachableError
from tink.kube.objects import NamespacedName
from tink.kube.resources import EVENT, HARDWARE, OSIE
from tink.timestamps import rfc3339

pytestmark = pytest.mark.looptime

MAC, OTHER = "52:54:00:12:34:56", "52:54:00:12:34:57"


def hardware(ip: str | None = "10.0.0.5", *, name: str = "a", status: list[Raw] | None = None, **more: Any) -> Raw:
    """Return a Hardware; `status` are its conditions, `osie` is a name, `mac`, `annotations` and fields of `dhcp`."""
    mac, annotations, osie = more.pop("mac", MAC), more.pop("annotations", None), more.pop("osie", "")
    spec = {"osie": {"name": osie}} if osie else {}
    dhcp = {"netmask": "255.255.255.0", **more} if ip else {}
    made = objects.hardware(name, mac, ip, namespace="d", dhcp=dhcp, annotations=annotations, **spec)
    return made if status is None else made | {"status": {"conditions": status}}


def machine(obj: Raw | None = None, mac: str = MAC) -> Machine:
    inventory = Inventory()
    inventory.apply(obj or hardware(mac=mac))
    found = inventory.by_mac(mac)
    assert found is not None
    return found


def condition(api: InProcessApi, kind: str, name: str = "a") -> Raw:
    """Return this condition of a Hardware without its time; {} if it has none."""
    status = api.read(HARDWARE, name, "d").get("status", {})
    found = [one for one in status.get("conditions", []) if one["type"] == kind]
    assert len(found) <= 1
    return timeless(found[0]) if found else {}


def timeless(condition: Raw) -> Raw:
    return {field: value for field, value in condition.items() if field != "lastTransitionTime"}


@asynccontextmanager
async def running(writer: StatusWriter) -> AsyncIterator[Any]:
    task = asyncio.create_task(writer.run())
    await elapse(0.001)
    try:
        yield writer
    finally:
        task.cancel()
        await asyncio.wait([task])


# --- AddressConflict: the machine declined its address ----------------------------------------------------------------

NOW = 1_790_000_000.0
SAYS = f"10.0.0.5 is used by another host: {MAC} declined it; it is not offered until 2026-09-21T14:23:20Z"  # NOW + 600
CONFLICT = {"type": "AddressConflict", "status": "True", "reason": "DeclinedByClient", "message": SAYS}
READY, ODD = ({"type": kind, "status": "Unknown", "reason": "Test", "message": ""} for kind in ("Ready", "Odd"))


def edge(api: InProcessApi) -> Any:
    """Run an edge's writer; its informer lists first."""
    writer = ConditionWriter(api, lambda: NOW + asyncio.get_running_loop().time())
    api.informer(HARDWARE).add_event_handler(writer.apply, writer.remove)
    return running(writer)


def conflict(api: InProcessApi, name: str = "a") -> Raw:
    return condition(api, "AddressConflict", name)


@pytest.fixture
def api() -> InProcessApi:
    return InProcessApi(hardware())


async def test_operator_sees_the_conflict_and_that_it_is_over(api: InProcessApi) -> None:
    async with edge(api) as writer:
        writer.changed(machine(), "10.0.0.5", NOW + 600)
        await elapse(1)
        assert conflict(api) == CONFLICT
        assert has_declined(api.read(HARDWARE, "a", "d")), "discovery reads this condition"
        writer.changed(machine(), "10.0.0.5", None)
        await elapse(1)
        assert not has_declined(api.read(HARDWARE, "a", "d"))
        over = {"status": "False", "reason": "QuarantineEnded", "message": "the quarantine of 10.0.0.5 is over"}
        assert conflict(api) == CONFLICT | over
        await elapse(1000)
    assert api.count("patch") == 2


async def test_conditions_of_others_are_kept_in_their_order_though_they_change_meanwhile(api: InProcessApi) -> None:
    gate = api.hold("get")
    async with edge(api) as writer:
        writer.changed(machine(), "10.0.0.5", NOW + 600)
        await gate.reached.wait()
        api.put(hardware(status=[READY, CONFLICT | {"status": "False"}, ODD]))
        gate.open()
        await elapse(60)
    assert [*map(timeless, api.read(HARDWARE, "a", "d")["status"]["conditions"])] == [READY, CONFLICT, ODD]
    assert api.count("patch") == 2


async def test_api_gets_the_current_state_after_an_outage(api: InProcessApi) -> None:
    api.fail("patch", UnreachableError("away"), ApiError(503, "x", "busy"), ApiError(429, "x", "slow down"))
    async with edge(api) as writer:
        writer.changed(machine(), "10.0.0.5", NOW + 300)
        writer.changed(machine(), "10.0.0.5", NOW + 600)
        await elapse(60)
    assert conflict(api) == CONFLICT
    assert api.count("patch") == 4


async def test_long_outage_of_the_api_ends_the_attempts_with_one_line(
    api: InProcessApi, caplog: pytest.LogCaptureFixture
) -> None:
    api.fail("patch", *[UnreachableError("away")] * ATTEMPTS)
    async with edge(api) as writer:
        writer.changed(machine(), "10.0.0.5", NOW + 100_000)
        await elapse(600)
        assert (api.count("patch"), conflict(api), len(caplog.records)) == (ATTEMPTS, {}, 1)
        assert "Hardware d/a" in caplog.text
        writer.changed(machine(), "10.0.0.5", NOW + 100_000)
        await elapse(1)
    assert conflict(api)["status"] == "True"


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (ApiError(403, "Forbidden", "no"), "patch hardware/status"),
        (NotFoundError(404, "NotFound", "no"), "tinkedge crds"),
        (ApiError(422, "Invalid", "odd"), "odd"),
    ],
    ids=lambda value: getattr(value, "reason", None),
)
async def test_refused_write_is_not_retried_and_its_log_line_has_the_remedy(
    api: InProcessApi, caplog: pytest.LogCaptureFixture, error: ApiError, advice: str
) -> None:
    api.fail("patch", error)
    async with edge(api) as writer:
        writer.changed(machine(), "10.0.0.5", NOW + 600)
        await elapse(500)
    assert (api.count("patch"), conflict(api)) == (1, {})
    assert advice in caplog.text


async def test_hardware_that_is_gone_is_forgotten_silently(
    api: InProcessApi, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions, "MAX_CONFLICTS", 1)
    api.remove(HARDWARE, "a", "d")
    api.put(hardware(name="b"))
    async with edge(api) as writer:
        writer.changed(machine(), "10.0.0.5", NOW + 600)
        await elapse(1)
        assert (api.count("patch"), caplog.records) == (0, [])
        writer.changed(machine(hardware(name="b")), "10.0.0.5", NOW + 600)
        await elapse(1)
    assert conflict(api, "b") == CONFLICT, "there is room for another one"


@pytest.mark.parametrize("is_declined_here_too", [False, True])
@pytest.mark.parametrize("is_there_at_the_start", [True, False])
async def test_condition_of_another_process_is_left_alone_until_it_should_have_been_ended(
    api: InProcessApi, is_there_at_the_start: bool, is_declined_here_too: bool
) -> None:
    if is_there_at_the_start:
        api.put(hardware(status=[CONFLICT]))
    async with edge(api) as writer:
        api.put(hardware(status=[CONFLICT]))
        for change in (NOW + 300, None) if is_declined_here_too else ():
            writer.changed(machine(), "10.0.0.5", change)
            await elapse(10)
        await elapse(599 + GRACE_SECONDS - asyncio.get_running_loop().time())
        assert (api.count("patch"), conflict(api)) == (0, CONFLICT)
        await elapse(2)
        assert conflict(api)["status"] == "False"


async def test_conflict_of_another_interface_is_added_to_another_edges_condition(api: InProcessApi) -> None:
    api.put(hardware(status=[CONFLICT]))
    async with edge(api) as writer:
        writer.changed(machine(mac=OTHER), "10.0.0.6", NOW + 300)
        await elapse(1)
    assert "10.0.0.6" in conflict(api)["message"]


async def test_equal_condition_is_not_written_again(api: InProcessApi) -> None:
    async with edge(api) as writer:
        for _ in range(3):
            writer.changed(machine(), "10.0.0.5", NOW + 600)
            await elapse(1)
    assert api.count("patch") == 1


async def test_edges_that_see_the_same_conflict_write_it_once_and_end_it_once(api: InProcessApi) -> None:
    async with edge(api) as one, edge(api) as two:
        for writer in (one, two):
            writer.changed(machine(), "10.0.0.5", NOW + 600)
        await elapse(600)
        assert conflict(api) == CONFLICT
        assert api.count("patch") <= 2, "one of them may have lost a race"
        for writer in (one, two):
            writer.changed(machine(), "10.0.0.5", None)
        await elapse(100)
    assert conflict(api)["status"] == "False"
    assert api.count("patch") <= 4


async def test_quarantine_without_a_reported_end_is_ended(api: InProcessApi) -> None:
    async with edge(api) as writer:
        writer.changed(machine(), "10.0.0.5", NOW + 600)
        await elapse(599 + GRACE_SECONDS)
        assert conflict(api) == CONFLICT
        await elapse(2)
    assert conflict(api)["status"] == "False"


async def test_condition_set_by_hand_is_left_alone(api: InProcessApi, caplog: pytest.LogCaptureFixture) -> None:
    by_hand = CONFLICT | {"message": "I saw it"}
    api.put(hardware(status=[by_hand]))
    async with edge(api) as writer:
        writer.changed(machine(), "10.0.0.5", NOW + 600)
        writer.changed(machine(), "10.0.0.5", None)
        await elapse(1000)
    assert (api.count("get"), api.count("patch"), conflict(api), caplog.records) == (1, 0, by_hand, [])


@pytest.mark.parametrize(
    ("mac", "address"), [(MAC, "fd00:77::50"), (OTHER, "10.0.0.6")], ids=["two families", "two interfaces"]
)
async def test_condition_stays_until_no_address_of_the_machine_is_in_conflict(
    api: InProcessApi, mac: str, address: str
) -> None:
    async with edge(api) as writer:
        writer.changed(machine(), "10.0.0.5", NOW + 600)
        writer.changed(machine(mac=mac), address, NOW + 700)
        await elapse(1)
        both = conflict(api)["message"]
        assert "10.0.0.5 is used by another host" in both
        assert f"{address} is used by another host" in both
        assert has_declined(api.read(HARDWARE, "a", "d"))
        writer.changed(machine(mac=mac), address, None)
        await elapse(1)
        assert conflict(api) == CONFLICT
        writer.changed(machine(), "10.0.0.5", None)
        await elapse(1)
        assert conflict(api)["status"] == "False"


async def test_address_that_several_interfaces_share_is_shown_once(api: InProcessApi) -> None:
    async with edge(api) as writer:
        for mac in (MAC, OTHER):
            writer.changed(machine(mac=mac), "10.0.0.5", NOW + 600)
        await elapse(1)
        assert conflict(api) == CONFLICT, "with the MAC of the interface that declined it"
        for mac in (MAC, OTHER):
            writer.changed(machine(mac=mac), "10.0.0.5", None)
        await elapse(1)
        assert conflict(api)["status"] == "False"


async def test_clearing_an_address_without_a_conflict_calls_no_api(api: InProcessApi) -> None:
    async with edge(api) as writer:
        writer.changed(machine(), "10.0.0.5", None)
        await elapse(10)
    assert api.calls == []


async def test_number_of_conflicts_is_bounded_and_the_limit_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions, "MAX_CONFLICTS", 3)
    caplog.set_level(logging.INFO, "edge.machines.conditions")
    many = [hardware(name=f"m-{number}") for number in range(10)]
    api = InProcessApi(*many)
    async with edge(api) as writer:
        for obj in many:
            writer.changed(machine(obj), "10.0.0.5", NOW + 500)
        writer.changed(machine(many[0]), "10.0.0.5", NOW + 600)
        await elapse(1)
    shown = [conflict(api, f"m-{number}").get("status") for number in range(10)]
    assert (shown, len(caplog.records)) == (["True"] * 3 + [None] * 7, 1)
    assert conflict(api, "m-0") == CONFLICT


# --- Misconfigured: what can't work of it -----------------------------------------------------------------------------

HERE = IPv4Network("10.0.0.0/24")
SUM = "0" * 64
MISCONFIGURED = "Misconfigured"


def site(*networks: str, name: str = "the edge here", addresses: tuple[str, ...] = ("10.0.0.1",)) -> Site:
    return Site(tuple(map(IPv4Network, networks or ("10.0.0.0/24",))), (), frozenset(addresses), name)


def looking(api: InProcessApi, known: Site, hardware: InMemoryInformer | None = None) -> Any:
    """Run the writer of an edge that knows these networks; `hardware` is its informer if not a complete one."""

    writer: MistakeWriter | None = None

    def now() -> Site:
        return Site(known.networks, writer.relayed if writer is not None else (), known.addresses, known.name)

    followed, clock = hardware or api.informer(HARDWARE), asyncio.get_running_loop().time
    writer = MistakeWriter(api, followed, api.informer(OSIE), now, elapsed=clock)
    return running(writer)


async def shown(api: InProcessApi, kind: str = MISCONFIGURED) -> tuple[str, str]:
    """Return what the condition comes to within a minute: status and reason."""
    await elapse(60)
    found = condition(api, kind)
    return found.get("status", ""), found.get("reason", "")


def test_accepted_boot_paths_are_the_existing_ones() -> None:
    assert set(mistakes._BOOT_PATHS) == set(BootPath)


@pytest.mark.parametrize(
    ("obj", "reason", "reported"),
    [
        (hardware("10.0.0.1"), "ServerAddress", "dhcp.ip: 10.0.0.1 is the address of the edge here itself"),
        (hardware(gateway="10.0.1.1"), "GatewayOutsideNetwork", "10.0.1.1 is not in the network 10.0.0.0/24"),
        (hardware(None), "NoAddress", "dhcp.ip: is not set"),
        (hardware("10.9.0.5"), "NetworkNotServed", "10.9.0.5 is in 10.9.0.0/24, and the edge here is on 10.0.0.0/24"),
        (hardware(osie="none"), "OSIENotFound", "spec.osie.name: there is no OSIE d/none yet"),
        (hardware(osie="bad"), "InvalidChecksum", "OSIE d/bad: metadata.annotations[tinkerbell.org/kernel-sha256]: a "),
        (
            hardware(annotations={"tinkerbell.org/initrd-sha256": SUM}),
            "InvalidChecksum",
            "metadata.annotations[tinkerbell.org/initrd-sha256]: nothing reads it on a Hardware",
        ),
        (
            hardware(annotations={"tinkerbell.org/boot-path": "lilo"}),
            "UnknownBootPath",
            "metadata.annotations[tinkerbell.org/boot-path]: is none of ipxe, grub, auto, uki, and ignored",
        ),
    ],
)
def test_each_mistake_is_named_with_its_field(obj: Raw, reason: str, reported: str) -> None:
    osies = {"bad": {"metadata": {"annotations": {"tinkerbell.org/kernel-sha256": "sha256:12"}}}}
    (found,) = hardware_mistakes(obj, site(), lambda _, name: osies.get(name))
    assert found.reason == reason
    assert reported in str(found)


def test_machine_with_an_ipv6_address_alone_is_no_mistake_but_for_the_servers_own() -> None:
    alone = hardware(None)
    alone["spec"]["networkInterfaces"][MAC]["dhcp"] = {"ipv6": {"address": "fd00:0::5"}}
    assert hardware_mistakes(alone, site()) == []
    (mistake,) = hardware_mistakes(alone, site(addresses=("10.0.0.1", "fd00::5")))
    assert mistake.reason is Reason.SERVER_ADDRESS
    assert mistake.field.endswith(".dhcp.ipv6.address")


def test_valid_hardware_has_no_mistake() -> None:
    good = {"metadata": {"annotations": {"tinkerbell.org/kernel-sha256": f"sha256:{SUM}"}}}
    assert hardware_mistakes(hardware(gateway="10.0.0.1", osie="good"), site(), lambda *_: good) == []
    assert osie_mistakes(good) == []
    assert hardware_mistakes(hardware("10.9.0.5"), Site()) == [], "whoever knows no networks says nothing of them"
    off = hardware(None)
    off["spec"]["networkInterfaces"][MAC]["disableDhcp"] = True
    assert hardware_mistakes(off, site()) == []
    proxy = Site((HERE,), (), frozenset({"10.0.0.1"}), gives_addresses=False)
    assert hardware_mistakes(hardware("10.9.0.5"), proxy) == []
    for odd in (None, 7, {"spec": 7}, {"spec": {"networkInterfaces": {MAC: {"dhcp": {"ip": 7, "netmask": []}}}}}):
        hardware_mistakes(odd, site(), lambda *_: None)


@pytest.mark.parametrize(
    "address", ["9.255.255.255", "10.0.0.0", "10.255.255.255", "11.0.0.0", "192.0.2.63", "192.0.2.64", "198.51.100.7"]
)
def test_networks_are_found_as_by_comparing_with_each(address: str) -> None:
    given = [IPv4Network(each) for each in ("10.0.0.0/8", "10.1.0.0/16", "192.0.2.64/26", "198.51.100.7/32")]
    lookup, at = NetworkSet(given), IPv4Address(address)
    assert (at in lookup) == any(at in each for each in given)
    for length in range(33):
        network = IPv4Network(f"{address}/{length}", strict=False)
        assert lookup.overlaps(network) == any(network.overlaps(each) for each in given), network
    assert at in NetworkSet([IPv4Network("0.0.0.0/0")])
    assert at not in NetworkSet(())


def test_networks_of_many_cards_are_compared_with_none_of_many_relayed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Site((HERE,), tuple(IPv4Network(f"10.9.{each}.0/24") for each in range(200)))
    monkeypatch.setattr(IPv4Network, "__contains__", None)  # 64 cards, each with up to 1,024 networks
    cards = {f"52:54:00:00:00:{n:02x}": {"dhcp": {"ip": f"10.8.{n}.5", "netmask": "255.255.255.0"}} for n in range(64)}
    assert len(hardware_mistakes(objects.hardware(interfaces=cards), known)) == 64


@pytest.mark.parametrize("message", ["10.9.0.5/24 is reached through a relay", "999.9.9.9/99 is a network of mine"])
async def test_status_without_a_network_does_not_count_as_an_edges(message: str) -> None:
    known = {"type": MISCONFIGURED, "status": "False", "reason": "NetworkKnown", "message": message}
    api = InProcessApi(hardware("10.9.0.5", status=[known]))
    async with looking(api, site()) as writer:
        assert await shown(api) == ("Unknown", "NetworkNotServed")
        assert writer.relayed == ()


async def test_mistake_is_shown_until_it_is_corrected_and_a_valid_hardware_is_never_written() -> None:
    api = InProcessApi()
    async with looking(api, site()):
        api.put(hardware())
        assert (await shown(api), api.calls) == (("", ""), [])
        api.put(hardware(osie="late"))
        assert await shown(api) == ("True", "OSIENotFound")
        api.put(objects.osie("late", namespace="d"))
        assert await shown(api) == ("False", "Mended")
        api.remove(OSIE, "late", "d")
        assert await shown(api) == ("True", "OSIENotFound")


async def test_mistakes_wait_for_the_list_of_all_hardware_which_an_api_that_is_away_does_not_send() -> None:
    api = InProcessApi(hardware(osie="none"))
    informer = api.informer(HARDWARE)
    informer.listed(done=False)
    async with looking(api, site(), informer):
        assert (await shown(api), api.calls) == (("", ""), [])
        informer.listed()
        assert await shown(api) == ("True", "OSIENotFound")
    informer.listed(done=False)
    api.put(hardware(osie="none", name="b"))
    async with looking(api, site(), informer):
        await elapse(LISTING_SECONDS + 60)
        assert condition(api, MISCONFIGURED, "b")["reason"] == "OSIENotFound"


async def test_hardware_is_checked_once_after_a_restart_and_again_after_a_change_that_matters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[str] = []

    def check(obj: Raw, *others: Any) -> Any:
        checked.append(obj["metadata"]["name"])
        return hardware_mistakes(obj, *others)

    api = InProcessApi(hardware(osie="none"), hardware(name="b"))
    async with looking(api, site()):
        await elapse(60)
    monkeypatch.setattr(mistake_writer, "hardware_mistakes", check)
    async with looking(api, site()):
        await elapse(60)
        assert sorted(checked) == ["a", "b"]
        api.put(api.read(HARDWARE, "b", "d") | {"status": {"conditions": [READY], "state": "Waiting"}})
        await elapse(60)
        assert len(checked) == 2, "no mistake depends on another condition"
        api.put(hardware(name="b", osie="none"))
        assert await shown(api) == ("True", "OSIENotFound")
        assert set(checked[2:]) == {"b"}
    assert api.count("patch") == 2


async def test_error_in_the_check_of_one_hardware_is_logged_and_the_others_are_checked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def check(obj: Raw, *others: Any) -> Any:
        return hardware_mistakes(obj, *others) if obj["metadata"]["name"] != "b" else 1 / 0

    monkeypatch.setattr(mistake_writer, "hardware_mistakes", check)
    api = InProcessApi(*[hardware(osie="none", name=name) for name in "abc"])
    async with looking(api, site()):
        await elapse(60)
    assert [name for name in "abc" if condition(api, MISCONFIGURED, name)] == ["a", "c"]
    assert caplog.messages == ["Hardware d/b: its mistakes are not checked"]


async def test_conditions_of_an_earlier_run_count_for_the_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mistake_writer, "MAX_SHOWN", 2)
    api = InProcessApi()
    for names in ("ab", "cd"):
        for name in names:
            api.put(hardware(osie="none", name=name))
        async with looking(api, site()):
            await elapse(60)
    assert [name for name in "abcd" if condition(api, MISCONFIGURED, name)] == ["a", "b"]
    assert api.count("patch") == 2


async def test_conditions_of_many_hardware_are_written_at_a_steady_rate() -> None:
    api = InProcessApi(*[hardware(osie="none", name=f"m{n}") for n in range(1000)])
    async with looking(api, site()):
        await elapse(11)
        assert 0.9 * 10 * WRITES_PER_SECOND <= api.count("patch") <= 1.1 * 10 * WRITES_PER_SECOND
        await elapse(20)
    assert api.count("patch") == 1000


async def test_network_behind_a_relay_is_unknown_until_the_relay_is_seen_and_known_after_a_restart() -> None:
    api = InProcessApi(hardware("10.9.0.5"))
    async with looking(api, site()) as writer:
        assert await shown(api) == ("Unknown", "NetworkNotServed")
        writer.relay_heard(machine(hardware("10.8.0.5")), "10.8.0.1")
        writer.relay_heard(machine(hardware("10.9.0.5")), "10.9.0.1")
        assert await shown(api) == ("False", "NetworkKnown")
        assert writer.relayed == (IPv4Network("10.8.0.0/24"), IPv4Network("10.9.0.0/24"))
    written = api.count("patch")
    async with looking(api, site()) as again:
        await elapse(60)
        assert again.relayed == (IPv4Network("10.9.0.0/24"),)
        assert api.count("patch") == written


async def test_edge_that_has_the_network_is_believed_by_the_others() -> None:
    api = InProcessApi(hardware("10.9.0.5"))
    async with looking(api, site()):
        assert await shown(api) == ("Unknown", "NetworkNotServed")
        async with looking(api, site("10.9.0.0/24", name="the edge there", addresses=("10.9.0.1",))):
            assert await shown(api) == ("False", "NetworkKnown")
            assert api.count("patch") == 2, "they do not take turns"


async def test_address_of_one_edge_is_not_cleared_by_another() -> None:
    api = InProcessApi(hardware("10.0.0.1"))
    async with looking(api, site()), looking(api, site(name="the edge there", addresses=("10.0.0.2",))):
        assert await shown(api) == ("True", "ServerAddress")
        assert api.count("patch") == 1
        changed = copy.deepcopy(api.read(HARDWARE, "a", "d"))
        api.put(changed | {"spec": hardware("10.0.0.7")["spec"]})
        assert await shown(api) == ("False", "Mended")


# --- BootProblem and its Events: why a machine does not boot ----------------------------------------------------------

BOOT_PROBLEM = "BootProblem"
LATE = BootProblem("NoTFTPRequest", "has 10.0.0.5, but for 8 s no TFTP request came in")
REFUSED = BootProblem("DhcpRefused", "disableNetboot is true", warning=False)


def telling(api: InProcessApi) -> Any:
    """Run the writer of boot problems."""
    return running(BootProblemWriter(api, api.informer(HARDWARE), asyncio.get_running_loop().time))


async def test_problem_is_shown_until_the_machine_progresses_and_is_one_event(api: InProcessApi) -> None:
    async with telling(api) as writer:
        for problem, expected in (
            (LATE, ("True", "NoTFTPRequest")),
            (None, ("False", "GetsOn")),
            (LATE, ("True", "NoTFTPRequest")),
        ):
            writer.found(machine(), problem)
            assert await shown(api, BOOT_PROBLEM) == expected
    (event,) = api.objects(EVENT)
    assert (event["type"], event["reason"]) == ("Warning", "NoTFTPRequest")
    assert event["message"] == f"{MAC}: {LATE.message}"
    assert event["involvedObject"]["kind"] == "Hardware"


async def test_machine_that_progresses_is_never_written(api: InProcessApi) -> None:
    async with telling(api) as writer:
        writer.found(machine(), None)
        await elapse(60)
    assert api.calls == []


async def test_intended_state_is_an_event_but_no_problem(api: InProcessApi) -> None:
    async with telling(api) as writer:
        writer.found(machine(), REFUSED)
        assert await shown(api, BOOT_PROBLEM) == ("False", "DhcpRefused")
    (event,) = api.objects(EVENT)
    assert event["type"] == "Normal"


async def test_problem_of_an_earlier_run_ends_when_the_machine_progresses(api: InProcessApi) -> None:
    before = {"type": BOOT_PROBLEM, "status": "True", "reason": "NoTFTPRequest", "message": "before"}
    api.put(hardware(status=[before]))
    async with telling(api) as writer:
        writer.found(machine(), None)
        assert await shown(api, BOOT_PROBLEM) == ("False", "GetsOn")


async def test_problem_of_another_machine_ends_by_itself_or_when_the_hardwares_own_machine_progresses(
    api: InProcessApi,
) -> None:
    key = NamespacedName("d", "a")
    async with telling(api) as writer:
        for end in (lambda: writer.found(machine(), None), lambda: writer.found_of_another(key, OTHER, None)):
            writer.found_of_another(key, OTHER, BootProblem("AlmostRegistered", "one digit off"))
            assert await shown(api, BOOT_PROBLEM) == ("True", "AlmostRegistered")
            end()
            assert await shown(api, BOOT_PROBLEM) == ("False", "GetsOn")
    assert [event["message"] for event in api.objects(EVENT)] == [f"{OTHER}: one digit off"]


async def test_problem_of_one_card_stays_while_the_other_card_progresses(api: InProcessApi) -> None:
    async with telling(api) as writer:
        writer.found(machine(), LATE)
        writer.found(machine(mac=OTHER), REFUSED)
        writer.found(machine(mac=OTHER), None)
        assert await shown(api, BOOT_PROBLEM) == ("True", "NoTFTPRequest")


async def test_column_of_boot_problems_has_the_reason_of_a_warning_and_is_empty_for_a_healthy_machine(
    api: InProcessApi,
) -> None:
    async with telling(api) as writer:
        for problem, column in ((LATE, "NoTFTPRequest"), (REFUSED, None), (LATE, "NoTFTPRequest"), (None, None)):
            writer.found(machine(), problem)
            await elapse(60)
            assert api.read(HARDWARE, "a", "d")["status"].get("bootProblem") == column
    assert condition(api, BOOT_PROBLEM)["message"] == "", "nor does the message say anything of it"
    assert api.count("patch") == 4, "in one write with the condition"


async def test_column_of_an_older_release_is_completed_by_the_edge_that_sees_the_machine_progress(
    api: InProcessApi,
) -> None:
    over = {"type": BOOT_PROBLEM, "status": "False", "reason": "GetsOn", "message": "the machine gets on"}
    api.put(hardware(status=[over]) | {"status": {"conditions": [over], "bootProblem": "NoTFTPRequest"}})
    async with telling(api) as writer:
        writer.found(machine(), None)
        await elapse(60)
    assert "bootProblem" not in api.read(HARDWARE, "a", "d")["status"]


async def test_time_of_a_condition_is_that_of_the_last_change_of_its_status(api: InProcessApi) -> None:
    def since() -> str:
        (found,) = api.read(HARDWARE, "a", "d")["status"]["conditions"]
        return str(found["lastTransitionTime"])

    async with edge(api) as writer:
        writer.changed(machine(), "10.0.0.5", NOW + 600)
        await elapse(1)
        begun = since()
        assert begun == "2026-09-21T14:13:20Z"
        writer.changed(machine(), "10.0.0.5", NOW + 700)
        await elapse(10)
        assert since() == begun, "only the message is another one"
        writer.changed(machine(), "10.0.0.5", None)
        await elapse(1)
        assert since() == "2026-09-21T14:13:31Z"


# --- state, mac and ip: where a machine is ----------------------------------------------------------------------------

STATES = ("state", "stateSince", "mac", "ip")


def placing(api: InProcessApi) -> Any:
    """Run an edge's writer of states."""
    loop = asyncio.get_running_loop()
    return running(StateWriter(api, api.informer(HARDWARE), lambda: NOW + loop.time(), loop.time))


def placed(api: InProcessApi, name: str = "a") -> list[str | None]:
    status = api.read(HARDWARE, name, "d").get("status", {})
    return [status.get(field) for field in STATES]


async def test_hardware_shows_its_first_address_before_its_machine_was_seen() -> None:
    two = {"52:54:00:00:00:01": {}, MAC: {"dhcp": {"ip": "10.0.0.5"}}}
    ipv6 = {OTHER: {"dhcp": {"ipv6": {"address": "fd00:77::50"}}}}
    api = InProcessApi(
        objects.hardware("a", interfaces=two, namespace="d"), objects.hardware("b", interfaces=ipv6, namespace="d")
    )
    async with placing(api):
        await elapse(60)
        assert placed(api) == [None, None, MAC, "10.0.0.5"]
        assert placed(api, "b") == [None, None, OTHER, "fd00:77::50"]
        assert api.count("patch") == 2
        api.put(api.read(HARDWARE, "a", "d") | {"spec": hardware("10.0.0.7", mac=OTHER)["spec"]})
        await elapse(60)
        assert placed(api)[2:] == [OTHER, "10.0.0.7"], "as the spec is now"


async def test_state_is_written_once_with_its_time_and_the_active_interface(api: InProcessApi) -> None:
    both = {MAC: {"dhcp": {"ip": "10.0.0.5"}}, OTHER: {"dhcp": {"ip": "10.0.0.6"}}}
    obj = api.put(objects.hardware("a", interfaces=both, namespace="d"))
    async with placing(api) as writer:
        await elapse(60)
        for _ in range(3):
            writer.seen(machine(obj, OTHER), MachineState.NETBOOTING)
            await elapse(10)
        assert placed(api) == ["Netbooting", "2026-09-21T14:14:20Z", OTHER, "10.0.0.6"]
    assert api.count("patch") == 2


async def test_state_is_written_again_to_the_hardware_that_a_machine_becomes_by_its_approval() -> None:
    old, new = hardware(name="discovery-x"), hardware(name="m7")
    api = InProcessApi(old)
    async with placing(api) as writer:
        writer.seen(machine(old), MachineState.WAITING)
        await elapse(60)
        api.put(new)
        writer.seen(machine(new), MachineState.WAITING)
        api.remove(HARDWARE, "discovery-x", "d")
        await elapse(60)
        assert placed(api, "m7")[0] == "Waiting"
        written = api.count("patch")
        writer.seen(machine(new), MachineState.WAITING)
        await elapse(60)
        assert api.count("patch") == written


async def test_states_that_follow_each_other_quickly_are_one_write(api: InProcessApi) -> None:
    async with placing(api) as writer:
        await elapse(60)
        for state in MachineState:
            writer.seen(machine(), state)
            await elapse(0.1)
        await elapse(60)
        assert placed(api)[0] == "Installed"
    assert api.count("patch") == 3, "the interface, the first state and the last one"


async def test_many_machines_that_boot_at_once_are_written_at_a_steady_rate() -> None:
    many = [hardware(None, name=f"m{n}", mac=f"52:54:00:00:{n // 256:02x}:{n % 256:02x}") for n in range(1000)]
    api = InProcessApi(*many)
    async with placing(api) as writer:
        for obj in many:
            writer.seen(machine(obj, next(iter(obj["spec"]["networkInterfaces"]))), MachineState.NETBOOTING)
        await elapse(10)
        assert 190 <= api.count("patch") <= 210
        await elapse(60)
        assert 1000 <= api.count("patch") <= 1001, "one of them before its machine was heard"
        assert placed(api, "m999")[0] == "Netbooting"


async def test_edges_that_see_different_states_do_not_overwrite_each_other_in_turn(api: InProcessApi) -> None:
    async with placing(api) as one, placing(api) as two:
        one.seen(machine(), MachineState.NETBOOTING)
        await elapse(10)
        two.seen(machine(), MachineState.WORKING)
        await elapse(600)
        assert placed(api)[0] == "Working"
    assert api.count("patch") <= 4


async def test_state_survives_an_api_that_is_away(api: InProcessApi) -> None:
    async with placing(api) as writer:
        await elapse(10)
        api.fail("patch", UnreachableError("away"), ApiError(503, "x", "busy"))
        writer.seen(machine(), MachineState.WAITING)
        await elapse(60)
        assert placed(api)[0] == "Waiting"
        api.remove(HARDWARE, "a", "d")
        writer.seen(machine(), MachineState.WORKING)
        await elapse(60)


async def test_api_that_refuses_states_is_called_at_the_same_rate_and_logged_in_a_few_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    many = [hardware(name=f"m{n}") for n in range(400)]
    api = InProcessApi(*many)
    api.fail("patch", *[ApiError(403, "Forbidden", "no")] * 1000)
    async with placing(api):
        await elapse(10)
    assert 190 <= api.count("patch") <= 210
    assert 1 <= len(caplog.records) <= 40
    assert "its state is not written" in caplog.text


def boot_in(api: InProcessApi) -> Raw:
    found: Raw = api.read(HARDWARE, "a", "d").get("status", {}).get("lastBoot", {})
    return found


async def test_boot_is_written_within_two_seconds_though_the_state_was_written_a_moment_ago(api: InProcessApi) -> None:
    async with placing(api) as writer:
        await elapse(60)
        for number in range(4):
            writer.seen(machine(), MachineState.FAILED)
            await elapse(1)
            writer.seen(machine(), MachineState.NETBOOTING if number % 2 else MachineState.INSTALLED)
            writer.booted(machine(), NOW + 61.25 + 20 * number, BootClient.NETBOOT)
            await elapse(2)
            at = rfc3339(NOW + 61.25 + 20 * number, "milliseconds")
            assert boot_in(api) == {"at": at, "client": "Netboot", "mac": MAC}
            await elapse(17)
    assert placed(api)[0] == "Netbooting"


async def test_earlier_boot_replaces_no_later_one_that_waits(api: InProcessApi) -> None:
    async with placing(api) as writer:
        writer.booted(machine(), NOW + 40, BootClient.NETBOOT)
        writer.booted(machine(), NOW + 20, BootClient.OPERATING_SYSTEM)
        await elapse(60)
        assert boot_in(api)["at"] == rfc3339(NOW + 40, "milliseconds")


async def test_boot_is_written_once_with_its_state(api: InProcessApi) -> None:
    async with placing(api) as writer:
        await elapse(60)
        written = api.count("patch")
        for _ in range(3):
            writer.booted(machine(), NOW + 60, BootClient.OPERATING_SYSTEM)
            writer.seen(machine(), MachineState.INSTALLED)
            await elapse(10)
        assert boot_in(api)["client"] == "OperatingSystem"
        assert api.count("patch") == written + 1


@pytest.mark.parametrize(
    ("others", "is_replaced"),
    [(0.0, False), (4.9, False), (5.0, True), (-3.0, False), (-60.0, False), (-7200.0, True)],
    ids=["same", "a-little-before", "another-boot", "a-little-later", "next-boot", "a-wrong-clock"],
)
async def test_boot_of_another_edge_is_replaced_by_a_later_boot_alone(
    api: InProcessApi, others: float, is_replaced: bool
) -> None:
    """`others`: how many seconds before this edge's boot the other edge's one is."""
    there = {"at": rfc3339(NOW + 60 - others, "milliseconds"), "client": "Netboot", "mac": OTHER}
    api.put(api.read(HARDWARE, "a", "d") | {"status": {"lastBoot": there}})
    async with placing(api) as writer:
        await elapse(120)
        writer.booted(machine(), NOW + 60, BootClient.NETBOOT)
        await elapse(10)
        assert (boot_in(api) != there) is is_replaced


async def test_two_edges_that_see_one_boot_write_it_once(api: InProcessApi) -> None:
    async with placing(api) as one, placing(api) as two:
        await elapse(60)
        for writer, at in ((one, 60.0), (two, 60.8)):
            writer.booted(machine(), NOW + at, BootClient.NETBOOT)
        await elapse(60)
        assert boot_in(api)["at"] in {rfc3339(NOW + at, "milliseconds") for at in (60.0, 60.8)}
        before = boot_in(api)
        for writer, at in ((two, 100.0), (one, 100.8)):
            writer.booted(machine(), NOW + at, BootClient.NETBOOT)
            await elapse(10)
        assert boot_in(api)["at"] == rfc3339(NOW + 100, "milliseconds") != before["at"]
