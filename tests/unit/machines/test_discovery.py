"""The Hardware of admitted machines: created by the API, whatever it answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from ipaddress import IPv4Network
from typing import Any

import pytest

from edge.journey.events import Outcome, Step
from edge.journey.recorder import Journey
from edge.machines import DiscoveryWriter, progress_of
from tests.support import objects
from tests.support.api import InProcessApi
from tests.support.virtual_time import elapse, turns
from tink.discovery.admission import (
    BOOT_FILE_SECONDS,
    Admission,
    AdmissionReason,
    Admitted,
    Candidate,
    Offered,
    Progress,
    read_rule,
)
from tink.discovery.model import discovered_name
from tink.kube.client import ApiError, ConflictError, UnreachableError
from tink.kube.resources import HARDWARE

pytestmark = pytest.mark.looptime

MAC = "52:54:00:00:00:01"
NAME = "discovery-52-54-00-00-00-01"
HERE = (IPv4Network("10.77.0.0/24"),)
RULE = "range=10.77.0.100-10.77.0.103/24,osie=hook,name=rack7"


class Site:
    """A writer over an API, whose time is that of the event loop."""

    def __init__(self, api: InProcessApi, rule: str = RULE, **informer: Any) -> None:
        self.api, self.rules = api, (read_rule(rule),)
        self.clock = asyncio.get_running_loop().time
        self.informer = api.informer(HARDWARE, **informer)
        self.events: list[tuple[str, Outcome, str]] = []
        self.admission = Admission(self.rules, lambda mac: mac in self.macs)
        self.writer = DiscoveryWriter(api, self.informer, self.admission, self.rules, self.record, self.clock)  # type: ignore[arg-type]

    @property
    def macs(self) -> set[str]:
        return {mac for each in self.informer.list() for mac in each["spec"]["networkInterfaces"]}

    def record(self, mac: str, step: Step, outcome: Outcome, message: str, **_: str | int | float) -> None:
        self.events.append((mac, outcome, message))

    def discover(self, mac: str = MAC) -> Any:
        """Return the decision about the machine's DISCOVER."""
        return self.writer.offer(Candidate(mac, HERE))

    def request(self, mac: str = MAC) -> Any:
        """Return the decision about the machine's REQUEST for its offer; without an offer, about its DISCOVER."""
        offered = self.discover(mac)
        return self.writer.request(Candidate(mac, HERE), offered.address) if isinstance(offered, Offered) else offered

    def admit(self, mac: str = MAC) -> Admitted:
        decision = self.request(mac)
        assert isinstance(decision, Admitted), decision
        return decision

    def addresses(self) -> list[str]:
        """Return the addresses of the created objects, in the order of the calls."""
        return [each["spec"]["networkInterfaces"][MAC]["dhcp"]["ip"] for each in self.api.bodies("create", of=HARDWARE)]

    def metric(self, name: str, **labels: str) -> float:
        (family,) = [each for each in self.writer.metrics() if each.name == name]
        return sum(each.value for each in family.samples if each.labels == labels)


@contextlib.asynccontextmanager
async def running(site: Site) -> AsyncIterator[Site]:
    task = asyncio.create_task(site.writer.run())
    try:
        yield site
    finally:
        task.cancel()
        await asyncio.wait([task])


def claimed(address: str) -> ApiError:
    """The answer of the review to a Hardware whose address another one has."""
    return ApiError(422, "Invalid", f"IP address {address} belongs to Hardware berlin/m7 already")


async def test_hardware_of_an_admitted_machine_is_created_at_once() -> None:
    async with running(Site(InProcessApi())) as site:
        decision = site.admit()
        await turns(5)
        created = site.api.read(HARDWARE, NAME)
        assert created is not None
        assert created["spec"]["networkInterfaces"][MAC]["dhcp"]["ip"] == str(decision.address)
        line = f"admitted by rule rack7: Hardware default/{NAME} created with address {decision.address}"
        assert site.events == [(MAC, Outcome.OK, f"{line}, OSIE default/hook")]
        assert site.metric("tinkedge_discovery_admitted") == 1
        assert site.metric("tinkedge_discovery_waiting") == 1
        assert site.metric("tinkedge_discovery_free_addresses", rule="rack7") == 3
        await elapse(60)
        assert site.api.count("create", of=HARDWARE) == 1
        assert not site.writer._creations


async def test_hardware_that_another_edge_has_created_is_success() -> None:
    async with running(Site(InProcessApi())) as site:
        site.informer.hold()
        decision = site.admit()
        other = objects.hardware(NAME, MAC, str(decision.address), metadata={"labels": {"a": "b"}})
        site.api.put(other)
        await turns(5)
        site.informer.release()
        await elapse(30)
        assert site.events == []
        assert site.metric("tinkedge_discovery_errors") == 0
        assert site.discover().reason is AdmissionReason.CLAIMED


async def test_machine_is_admitted_again_if_its_hardware_does_not_arrive() -> None:
    """The object of that name has another MAC address, for example."""
    async with running(Site(InProcessApi(objects.hardware(NAME, "52:54:00:00:00:09", None)))) as site:
        site.admit()
        await turns(5)
        assert site.request().reason is AdmissionReason.REGISTERING
        await elapse(11)
        assert isinstance(site.request(), Admitted)


async def test_rejected_address_is_replaced_by_another() -> None:
    async with running(Site(InProcessApi())) as site:
        decision = site.admit()
        site.api.fail("create", claimed(str(decision.address)), of=HARDWARE)
        await turns(20)
        first, second = site.addresses()
        assert first == str(decision.address)
        assert second != first
        assert site.api.read(HARDWARE, NAME) is not None
        assert [outcome for _, outcome, _ in site.events] == [Outcome.OK]
        assert site.metric("tinkedge_discovery_free_addresses", rule="rack7") == 2


async def test_machine_whose_mac_is_registered_elsewhere_is_reported_and_takes_no_address() -> None:
    error = ApiError(422, "Invalid", f"MAC address {MAC} belongs to Hardware berlin/m7 already")
    async with running(Site(InProcessApi())) as site:
        site.api.fail("create", *[error] * 9, of=HARDWARE)
        site.admit()
        await turns(20)
        assert site.api.count("create", of=HARDWARE) == 1
        ((_, outcome, message),) = site.events
        assert outcome is Outcome.FAILED
        assert f"the API has not created its Hardware default/{NAME}: MAC address {MAC} belongs to" in message
        assert "the Hardware that the message names" in message
        assert site.metric("tinkedge_discovery_free_addresses", rule="rack7") == 4
        refused = site.discover()
        assert (refused.reason, refused.text) == (AdmissionReason.REJECTED, message)
        assert site.metric("tinkedge_discovery_not_admitted", reason="rejected") == 1
        await elapse(61)
        assert isinstance(site.request(), Admitted)


async def test_range_of_rejected_addresses_ends_with_a_report() -> None:
    async with running(Site(InProcessApi())) as site:
        # Each answer names the whole range, so every address counts as claimed.
        error = ApiError(422, "Invalid", "10.77.0.100 10.77.0.101 10.77.0.102 10.77.0.103 are claimed")
        site.api.fail("create", *[error] * 9, of=HARDWARE)
        site.admit()
        await turns(60)
        assert sorted(site.addresses()) == [f"10.77.0.{number}" for number in range(100, 104)]
        assert [outcome for _, outcome, _ in site.events] == [Outcome.FAILED]
        assert site.metric("tinkedge_discovery_free_addresses", rule="rack7") == 0
        assert not site.writer._creations


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (ApiError(403, "Forbidden", "edge cannot create hardware"), "deploy/rbac-edge-discovery.yaml"),
        (ApiError(404, "NotFound", 'namespaces "default" not found'), "create the namespace of the rule's OSIE"),
        (ApiError(401, "Unauthorized", "Unauthorized"), "a kubeconfig with a valid token"),
        (ApiError(500, "InternalError", "failed calling webhook"), "check that the API and its webhooks answer"),
        (UnreachableError("the API does not answer"), "check that the API and its webhooks answer"),
    ],
    ids=["403", "404", "401", "500", "away"],
)
async def test_failed_creation_is_reported_with_the_remedy_and_tried_again(error: ApiError, remedy: str) -> None:
    async with running(Site(InProcessApi())) as site:
        site.api.fail("create", error, error, error, of=HARDWARE)
        site.admit()
        await turns(5)
        ((_, outcome, message),) = site.events
        assert outcome is Outcome.FAILED
        assert str(error) in message
        assert remedy in message
        await elapse(10)
        assert site.api.read(HARDWARE, NAME) is not None
        assert [outcome for _, outcome, _ in site.events] == [Outcome.FAILED, Outcome.OK]
        assert site.metric("tinkedge_discovery_errors") == 3


async def test_creation_that_fails_for_long_ends_and_starts_again_with_a_packet() -> None:
    async with running(Site(InProcessApi())) as site:
        site.api.fail("create", *[ApiError(403, "Forbidden", "no")] * 10, of=HARDWARE)
        site.admit()
        await elapse(300)
        assert site.api.count("create", of=HARDWARE) == 10
        assert not site.writer._creations
        assert isinstance(site.request(), Admitted)
        await turns(5)
        assert site.api.read(HARDWARE, NAME) is not None


async def test_text_of_an_error_is_bounded_and_printable() -> None:
    async with running(Site(InProcessApi())) as site:
        site.api.fail("create", ApiError(500, "InternalError", "\x1b[31m" + "x" * 100_000), of=HARDWARE)
        site.admit()
        await turns(5)
        ((_, _, message),) = site.events
        assert len(message) < 1000
        assert message.isprintable()


async def test_no_machine_is_admitted_while_the_hardware_is_not_known() -> None:
    async with running(Site(InProcessApi(), synced=False)) as site:
        for _ in range(3):
            assert site.discover().reason is AdmissionReason.API_AWAY
            await elapse(3)
        site.informer.listed()
        assert isinstance(site.request(), Admitted)
        await turns(5)
        site.informer.failing_for = 5.0
        assert site.discover("52:54:00:00:00:02").reason is AdmissionReason.API_AWAY


async def test_admission_ends_if_an_operator_registers_the_machine_first() -> None:
    async with running(Site(InProcessApi())) as site:
        site.admit()
        site.api.put(objects.hardware("m1", MAC, "10.77.0.5"))
        await turns(5)
        assert site.api.read(HARDWARE, NAME) is None
        assert site.api.count("create", of=HARDWARE) == 0


async def test_conflict_of_names_is_no_error() -> None:
    async with running(Site(InProcessApi())) as site:
        site.api.fail("create", ConflictError(409, "AlreadyExists", "exists"), of=HARDWARE)
        site.admit()
        await turns(5)
        assert site.events == []


# --- machines that give way -------------------------------------------------------------------------------------------


def stranger(number: int) -> str:
    return f"02:00:00:00:00:{number:02x}"


async def fill(site: Site) -> list[str]:
    """Admit silent machines until the range is full and they must give way. Return the names of their Hardware."""
    for number in range(4):
        site.admit(stranger(number))
    await elapse(BOOT_FILE_SECONDS + 1)
    names = [discovered_name(stranger(number)) for number in range(4)]
    assert all(site.api.read(HARDWARE, name) for name in names)
    return names


def finalize(site: Site, name: str) -> None:
    """Remove a Hardware that is being deleted, as the controller does."""
    obj = site.api.read(HARDWARE, name)
    assert obj is not None
    assert obj["metadata"]["deletionTimestamp"]
    site.api.remove(HARDWARE, name)


async def test_silent_machine_gives_way_and_the_next_one_is_created_without_another_packet() -> None:
    async with running(Site(InProcessApi())) as site:
        await fill(site)
        assert site.request().reason is AdmissionReason.PLACE
        address = str(site.admission.pending(MAC).address)  # type: ignore[union-attr]
        await turns(10)
        (deleted,) = [call for call in site.api.calls if call.verb == "delete"]
        gone = site.api.read(HARDWARE, deleted.name)
        assert gone is not None
        ((mac, interface),) = gone["spec"]["networkInterfaces"].items()
        assert interface["dhcp"]["ip"] == address
        assert set(deleted.body["preconditions"]) == {"uid", "resourceVersion"}
        assert site.events[-1][0] == mac
        assert "is deleted, because it makes no progress and others wait for an address" in site.events[-1][2]
        assert site.metric("tinkedge_discovery_displaced") == 1
        assert site.api.read(HARDWARE, NAME) is None
        finalize(site, deleted.name)
        await turns(10)
        assert site.api.read(HARDWARE, NAME)["spec"]["networkInterfaces"][MAC]["dhcp"]["ip"] == address


async def test_hardware_that_changes_at_the_last_moment_is_not_deleted() -> None:
    async with running(Site(InProcessApi())) as site:
        names = await fill(site)
        site.informer.hold()
        for name in names:
            site.api.change(HARDWARE, name, status={"inventory": {"inBand": {"product": {}}}})
        assert site.request().reason is AdmissionReason.PLACE
        await turns(10)
        assert all("deletionTimestamp" not in site.api.read(HARDWARE, name)["metadata"] for name in names)
        assert site.admission.pending(MAC) is None
        site.informer.release()
        assert site.metric("tinkedge_discovery_errors") == 0


async def test_edge_without_the_right_to_delete_tries_once_a_minute(caplog) -> None:
    async with running(Site(InProcessApi())) as site:
        await fill(site)
        site.api.fail("delete", *[ApiError(403, "Forbidden", "edge cannot delete hardware")] * 9, of=HARDWARE)
        for _ in range(15):
            site.request()
            await elapse(3)
        assert site.api.count("delete", of=HARDWARE) == 1
        (line,) = [each for each in caplog.messages if "can't give way" in each]
        assert "edge cannot delete hardware" in line
        assert "allow the edge to create and delete hardware: apply deploy/rbac-edge-discovery.yaml" in line
        await elapse(60)
        site.request()
        await elapse(1)
        assert site.api.count("delete", of=HARDWARE) == 2


@pytest.mark.parametrize(
    ("steps", "progress"),
    [
        ([], Progress.UNKNOWN),
        ([(Step.SEEN, {}), (Step.DHCP, {"stage": "PXE ROM", "dhcp": "offer"})], Progress.UNKNOWN),
        ([(Step.DHCP, {"stage": "PXE ROM", "dhcp": "ack"}), (Step.DHCP, {"dhcp": "offer"})], Progress.NONE),
        ([(Step.DHCP, {"server": "10.77.0.2"})], Progress.UNKNOWN),
        ([(Step.DHCP, {"dhcp": "ack"}), (Step.TFTP, {"phase": "begun"})], Progress.BOOTING),
        ([(Step.SCRIPT, {})], Progress.BOOTING),
    ],
    ids=["nothing", "offer", "ack", "other server", "boot file", "script"],
)
async def test_progress_of_a_machine_is_read_from_its_journey(
    steps: list[tuple[Step, dict[str, str]]], progress: Progress
) -> None:
    journey = Journey(lambda: 1_800_000_000.0)
    for step, detail in steps:
        journey.record(MAC, step, Outcome.INFO, "a step", **detail)
    assert progress_of(entry for _, entry in journey.after(MAC, 0.0, 50)) is progress
