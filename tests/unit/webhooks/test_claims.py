"""Of two Hardware with one address the second is refused, and nobody is refused without need."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.webhooks.world import World, hardware, said
from tink.kube.client import UnreachableError
from tink.kube.objects import ObjectReference
from tink.webhooks.claims import MOST_REMEMBERED, REMEMBERED_SECONDS, ClaimKind, Claims, claims_of
from tink.webhooks.references import References


async def test_address_of_another_machine_is_refused_and_the_machine_and_its_field_are_named(world: World) -> None:
    world.store(hardware("a", ("m1", "1.1.1.1")))
    verdict = await world.review("CREATE", hardware("b", ("m2", "1.1.1.1"), ("m1", ""), namespace="e"))
    assert said(verdict) == [
        "spec.networkInterfaces[m2].dhcp.ip: IP address 1.1.1.1 is that of Hardware d/a already "
        "(spec.networkInterfaces[m1].dhcp.ip)",
        "spec.networkInterfaces[m1]: MAC address m1 is that of Hardware d/a already (spec.networkInterfaces[m1])",
    ]


def test_ipv6_address_is_claimed_in_its_one_spelling() -> None:
    def claims(address: str) -> Any:
        dhcp = {"ip": "10.0.0.1", "ipv6": {"address": address}}
        return claims_of({"spec": {"networkInterfaces": {"m1": {"dhcp": dhcp}}}})

    assert claims("fd00::1") == claims("fd00:0:0:0:0:0:0:1")
    assert claims("fd00::1")[ClaimKind.IP, "fd00::1"] == "spec.networkInterfaces[m1].dhcp.ipv6.address"
    assert set(claims("nonsense")) == {(ClaimKind.MAC, "m1"), (ClaimKind.IP, "10.0.0.1"), (ClaimKind.IP, "nonsense")}


async def test_mac_in_capitals_of_an_older_object_is_the_same_mac(world: World) -> None:
    world.store(hardware("a", ("AA:BB", "")))
    assert said(await world.review("CREATE", hardware("b", ("aa:bb", ""))))


async def test_machine_with_a_conflict_can_be_labelled_mended_and_deleted(world: World) -> None:
    world.store(hardware("a", ("m1", "1.1.1.1")))
    old = world.store(hardware("b", ("m1", "1.1.1.1"), ("m2", "")))
    assert not said(await world.review("UPDATE", hardware("b", ("m1", "1.1.1.1"), ("m2", ""), labels={"x": "y"}), old))
    assert not said(await world.review("UPDATE", hardware("b", ("m1", "1.1.1.1")), old))
    assert said(await world.review("UPDATE", hardware("b", ("m1", "1.1.1.1"), ("m2", ""), ("m3", "")), old)) == []
    leaving = hardware("b", ("m1", "1.1.1.1"), deletionTimestamp="2027-01-15T08:00:00Z")
    assert not said(await world.review("UPDATE", leaving, hardware("b")))


async def test_machine_that_is_being_deleted_keeps_its_address_until_it_is_gone(world: World) -> None:
    leaving = world.store(hardware("a", ("m1", ""), deletionTimestamp="2027-01-15T08:00:00Z"))
    new = hardware("b", ("m1", ""))
    assert "which is being deleted: wait until it is gone" in said(await world.review("CREATE", new))[0]
    world.reviewer.claims.remove(leaving)
    assert not said(await world.review("CREATE", new))


async def test_second_of_two_creates_at_once_is_refused_until_the_first_can_not_come_any_more(world: World) -> None:
    first, second = hardware("a", ("m1", "")), hardware("b", ("m1", ""))
    verdicts = await asyncio.gather(world.review("CREATE", first), world.review("CREATE", second))
    assert [len(said(verdict)) for verdict in verdicts] == [0, 1]
    assert "Hardware d/a, which is written at this moment" in said(verdicts[1])[0]
    assert not said(await world.review("CREATE", first)), "an object never conflicts with itself"
    world.now += REMEMBERED_SECONDS + 0.1
    assert not said(await world.review("CREATE", second)), "the first was never stored"


async def test_create_that_was_stored_is_named_as_such_before_the_informer_knows(world: World) -> None:
    await world.review("CREATE", hardware("a", ("m1", "")))
    world.store(hardware("a", ("m1", "")), informed=False)
    assert "is that of Hardware d/a already" in said(await world.review("CREATE", hardware("b", ("m1", ""))))[0]


async def test_dry_run_and_refused_requests_claim_nothing(world: World) -> None:
    await world.review("CREATE", hardware("dry", ("m1", "")), dryRun=True)
    assert not said(await world.review("CREATE", hardware("a", ("m1", ""))))
    assert said(await world.review("CREATE", hardware("b", ("m1", ""), ("m2", ""))))
    assert not said(await world.review("CREATE", hardware("c", ("m2", ""))))


async def test_address_that_was_let_go_a_moment_ago_is_free(world: World) -> None:
    world.store(hardware("a", ("m1", "1.1.1.1")))
    world.store(hardware("a", ("m1", "1.1.1.2")), informed=False)
    assert not said(await world.review("CREATE", hardware("b", ("m2", "1.1.1.1"))))
    world.stored.clear()
    assert not said(await world.review("CREATE", hardware("c", ("m1", ""))))


async def test_what_the_informers_know_counts_while_the_api_can_not_be_asked(world: World) -> None:
    world.store(hardware("a", ("m1", "")))
    world.fault = UnreachableError("away")
    assert said(await world.review("CREATE", hardware("b", ("m1", ""))))


async def test_machine_that_is_made_anew_does_not_conflict_with_what_it_was(world: World) -> None:
    world.store(hardware("a", ("m1", ""), deletionTimestamp="2027-01-15T08:00:00Z"))
    assert not said(await world.review("CREATE", hardware("a", ("m1", ""))))
    assert world.asked == 0
    assert not world.reviewer.claims._arrivals, "the informer knows of it; there is nothing to remember"
    world.store(hardware("a", ("m1", "")))
    assert said(await world.review("CREATE", hardware("b", ("m1", ""))))[0].endswith(
        "already (spec.networkInterfaces[m1])"
    )


async def test_machine_that_came_and_went_leaves_its_address_at_once(world: World) -> None:
    machine = hardware("a", ("m1", ""))
    await world.review("CREATE", machine)
    world.inform(machine)
    world.reviewer.claims.remove(machine)
    assert not said(await world.review("CREATE", hardware("b", ("m1", ""))))


async def test_write_without_a_conflict_costs_no_call_however_many_machines_there_are(world: World) -> None:
    for number in range(1000):
        world.store(hardware(f"h{number}", (f"m{number}", f"1.1.{number}")))
    assert not said(await world.review("CREATE", hardware("b", ("new", "9.9.9.9"))))
    assert world.asked == 0


def test_admitted_but_never_stored_addresses_do_not_fill_the_memory() -> None:
    claims = Claims()
    for number in range(MOST_REMEMBERED + 10):
        claims.admitted(("d", "h"), {(ClaimKind.MAC, str(number)): "f"}, 0.0)
    assert len(claims._arrivals) == MOST_REMEMBERED
    claims.conflicts(("d", "x"), {}, REMEMBERED_SECONDS + 1)
    assert not claims._arrivals


def test_nothing_is_left_of_machines_that_are_gone() -> None:
    claims, references = Claims(), References()
    for machine in (hardware("a", ("m1", "1.1.1.1"), osie="o"), hardware("a", ("m2", "1.1.1.1"), osie="p")):
        claims.apply(machine)
        references.apply(machine)
    assert set(claims._holders) == {(ClaimKind.MAC, "m2"), (ClaimKind.IP, "1.1.1.1")}
    assert not references.referrers(ObjectReference("OSIE", "d", "o"))
    claims.remove(machine)
    references.remove(machine)
    assert not claims._holders
    assert not claims._of
    assert len(references._referrers) == 0


@pytest.mark.parametrize("odd", [None, 1, [], {}, {"spec": 1}, {"spec": {"networkInterfaces": []}}])
def test_odd_hardware_claims_nothing(odd: Any) -> None:
    assert claims_of(odd) == {}
