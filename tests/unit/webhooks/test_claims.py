"""The second of two Hardware with one address is refused, and no other Hardware is."""

import asyncio

import pytest

from tests.unit.webhooks.conftest import hardware, texts
from tink.kube.client import UnreachableError
from tink.kube.objects import ObjectReference
from tink.kube.resources import HARDWARE
from tink.webhooks.claims import MAX_REMEMBERED, REMEMBERED_SECONDS, ClaimKind, Claims, References, claims_of
from tink.webhooks.reviewer import Verdict


async def test_address_of_another_machine_is_refused_and_the_machine_and_its_field_are_named(world):
    world.store(hardware("a", ("m1", "1.1.1.1"), ("AA:BB", "")))
    verdict = await world.review("CREATE", hardware("b", ("m2", "1.1.1.1"), ("m1", ""), namespace="e"))
    assert texts(verdict) == [
        "spec.networkInterfaces[m2].dhcp.ip: IP address 1.1.1.1 is that of Hardware d/a already "
        "(spec.networkInterfaces[m1].dhcp.ip)",
        "spec.networkInterfaces[m1]: MAC address m1 is that of Hardware d/a already (spec.networkInterfaces[m1])",
    ]
    assert texts(await world.review("CREATE", hardware("b", ("aa:bb", "")))), "an older object may have capitals"
    world.api.fail("get", UnreachableError("away"))
    assert texts(await world.review("CREATE", hardware("b", ("m1", "")))), "what the informers know counts"


async def test_interfaces_of_one_hardware_may_share_an_address_that_no_other_hardware_may_have(world):
    shared = hardware("a", ("m1", "1.1.1.1"), ("m2", "1.1.1.1"))
    assert texts(await world.review("CREATE", shared)) == []
    world.store(shared)
    assert texts(await world.review("UPDATE", hardware("a", ("m2", "1.1.1.1"), ("m3", "1.1.1.1")), shared)) == []
    (refused,) = texts(await world.review("CREATE", hardware("b", ("m4", "1.1.1.1"), ("m5", "1.1.1.1"))))
    assert "IP address 1.1.1.1 is that of Hardware d/a already" in refused


def test_ipv6_address_is_claimed_in_its_one_spelling_and_odd_hardware_claims_nothing():
    def claims(address):
        dhcp = {"ip": "10.0.0.1", "ipv6": {"address": address}}
        return claims_of({"spec": {"networkInterfaces": {"m1": {"dhcp": dhcp}}}})

    assert claims("fd00::1") == claims("fd00:0:0:0:0:0:0:1")
    assert claims("fd00::1")[ClaimKind.IP, "fd00::1"] == "spec.networkInterfaces[m1].dhcp.ipv6.address"
    assert set(claims("nonsense")) == {(ClaimKind.MAC, "m1"), (ClaimKind.IP, "10.0.0.1"), (ClaimKind.IP, "nonsense")}
    for odd in (None, 1, [], {}, {"spec": 1}, {"spec": {"networkInterfaces": []}}):
        assert claims_of(odd) == {}


LEAVING = {"deletionTimestamp": "2027-01-15T08:00:00Z", "finalizers": ["example.org/held"]}


async def test_machine_with_a_conflict_can_be_labelled_corrected_and_deleted(world):
    world.store(hardware("a", ("m1", "1.1.1.1")))
    old = world.store(hardware("b", ("m1", "1.1.1.1"), ("m2", "")))
    assert not texts(await world.review("UPDATE", hardware("b", ("m1", "1.1.1.1"), ("m2", ""), labels={"x": "y"}), old))
    assert not texts(await world.review("UPDATE", hardware("b", ("m1", "1.1.1.1")), old))
    assert texts(await world.review("UPDATE", hardware("b", ("m1", "1.1.1.1"), ("m2", ""), ("m3", "")), old)) == []
    leaving = world.store(hardware("b", ("m1", "1.1.1.1"), **LEAVING))
    for change in ({"labels": {"x": "y"}}, {"finalizers": []}, {"annotations": {"x": "y"}}):
        new = hardware("b", ("m1", "1.1.1.1"), **{**LEAVING, **change})
        assert not texts(await world.review("UPDATE", new, leaving))


@pytest.mark.parametrize("holder", [{}, LEAVING], ids=["live", "being deleted, too"])
@pytest.mark.parametrize("gained", [("m1", ""), ("m2", "1.1.1.1")], ids=["MAC", "IP"])
async def test_machine_that_is_being_deleted_gains_no_address_of_another_one(world, holder, gained):
    world.store(hardware("victim", ("m1", "1.1.1.1"), **holder))
    old = world.store(hardware("thief", ("m2", ""), namespace="e", **LEAVING))
    thief = hardware("thief", ("m2", ""), gained, namespace="e", **LEAVING)
    assert "is that of Hardware d/victim already" in texts(await world.review("UPDATE", thief, old))[0]
    assert not texts(await world.review("UPDATE", hardware("thief", ("m2", ""), ("m3", ""), **LEAVING), old))
    assert not texts(await world.review("CREATE", hardware("c", ("m3", "")))), "what it gains blocks nobody"


async def test_machine_that_is_being_deleted_blocks_no_other_one(world):
    thief = hardware("thief", ("m1", "1.1.1.1"), namespace="e")
    claims = Claims()
    assert claims.apply(thief) == set()
    leaving = hardware("thief", ("m1", "1.1.1.1"), namespace="e", **LEAVING)
    assert claims.apply(leaving) == {(ClaimKind.MAC, "m1"), (ClaimKind.IP, "1.1.1.1")}
    world.store(thief)
    world.store(leaving, informed=False)  # the informer does not know yet
    for _ in range(2):
        assert not texts(await world.review("CREATE", hardware("victim", ("m1", "1.1.1.1"))))
        world.inform(leaving)
    world.store(hardware("victim", ("m1", "1.1.1.1")))
    assert "d/victim" in texts(await world.review("CREATE", hardware("c", ("m1", ""), namespace="e")))[0]


async def test_second_of_two_creates_at_once_is_refused_until_the_first_can_not_come_any_more(world):
    first, second = hardware("a", ("m1", "")), hardware("b", ("m1", ""))
    verdicts = await asyncio.gather(world.review("CREATE", first), world.review("CREATE", second))
    assert [len(texts(verdict)) for verdict in verdicts] == [0, 1]
    assert "Hardware d/a, which is written at this moment" in texts(verdicts[1])[0]
    assert not texts(await world.review("CREATE", first)), "an object never conflicts with itself"
    world.now += REMEMBERED_SECONDS + 0.1
    assert not texts(await world.review("CREATE", second)), "the first was never stored"
    world.store(second, informed=False)
    assert "is that of Hardware d/b already" in texts(await world.review("CREATE", first))[0]


async def test_dry_run_and_refused_requests_claim_nothing(world):
    await world.review("CREATE", hardware("dry", ("m1", "")), dryRun=True)
    assert not texts(await world.review("CREATE", hardware("a", ("m1", ""))))
    assert texts(await world.review("CREATE", hardware("b", ("m1", ""), ("m2", ""))))
    assert not texts(await world.review("CREATE", hardware("c", ("m2", ""))))


async def test_address_that_was_let_go_a_moment_ago_is_free(world):
    world.store(hardware("a", ("m1", "1.1.1.1")))
    world.store(hardware("a", ("m1", "1.1.1.2")), informed=False)
    assert not texts(await world.review("CREATE", hardware("b", ("m2", "1.1.1.1"))))
    world.api.remove(HARDWARE, "a", "d")
    assert not texts(await world.review("CREATE", hardware("c", ("m1", ""))))


async def test_address_that_one_of_two_has_let_go_is_still_that_of_the_other(world):
    for name in ("a", "b"):
        world.store(hardware(name, ("m1", "")))
    world.store(hardware("a", ("m1", ""), **LEAVING), informed=False)
    assert "d/b already" in texts(await world.review("CREATE", hardware("c", ("m1", ""))))[0]
    world.api.remove(HARDWARE, "b", "d")
    assert not texts(await world.review("CREATE", hardware("c", ("m1", ""))))
    assert "d/c, which is written at this moment" in texts(await world.review("CREATE", hardware("d", ("m1", ""))))[0]


async def test_machine_that_is_created_again_does_not_conflict_with_what_it_was(world):
    leaving = world.store(hardware("a", ("m1", ""), **LEAVING))
    assert not texts(await world.review("CREATE", hardware("a", ("m1", ""))))
    assert world.asked == 0
    world.inform(leaving)
    assert "written at this moment" in texts(await world.review("CREATE", hardware("b", ("m1", ""))))[0], (
        "a late event of the old one does not make the new one forgotten"
    )
    world.store(hardware("a", ("m1", "")))
    assert texts(await world.review("CREATE", hardware("b", ("m1", ""))))[0].endswith(
        "already (spec.networkInterfaces[m1])"
    )


async def test_machine_that_came_and_went_leaves_its_address_at_once(world):
    machine = hardware("a", ("m1", ""))
    await world.review("CREATE", machine)
    world.inform(machine)
    world.reviewer.claims.remove(machine)
    assert not texts(await world.review("CREATE", hardware("b", ("m1", ""))))


async def test_write_without_a_conflict_costs_no_call_however_many_machines_there_are(world):
    for number in range(1000):
        world.inform(hardware(f"h{number}", (f"m{number}", f"1.1.{number}")))
    assert not texts(await world.review("CREATE", hardware("b", ("new", "9.9.9.9"))))
    assert world.asked == 0


def test_admitted_but_never_stored_addresses_and_machines_that_are_gone_do_not_fill_the_memory():
    claims, references = Claims(), References()
    for number in range(MAX_REMEMBERED + 10):
        claims.admitted(("d", "h"), {(ClaimKind.MAC, str(number)): "f"}, 0.0)
    assert len(claims._arrivals) == MAX_REMEMBERED
    claims.conflicts(("d", "x"), {}, REMEMBERED_SECONDS + 1)
    assert not claims._arrivals
    for machine in (hardware("a", ("m1", "1.1.1.1"), osie="o"), hardware("a", ("m2", "1.1.1.1"), osie="p")):
        claims.apply(machine)
        references.apply(machine)
    assert set(claims._holders) == {(ClaimKind.MAC, "m2"), (ClaimKind.IP, "1.1.1.1")}
    assert not references.referrers(ObjectReference("OSIE", "d", "o"))
    claims.remove(machine)
    references.remove(machine)
    assert (claims._holders, claims._of, len(references._referrers)) == ({}, {}, 0)


# --- addresses that a machine makes itself, and those that it uses ---

MAC, OTHER = "52:54:00:00:00:0a", "52:54:00:00:00:0b"
SLAAC = "fd00::5054:ff:fe00:a"


def networked(name, mac, ip, namespace="d", **dhcp):
    made = hardware(name, (mac, ip), namespace=namespace)
    made["spec"]["networkInterfaces"][mac]["dhcp"] |= dhcp
    return made


async def test_address_that_another_machine_makes_of_its_mac_is_refused_and_the_mac_of_such_an_address(world):
    world.store(hardware("victim", (MAC, "")))
    thief = networked("thief", OTHER, "10.0.0.2", "e", ipv6={"address": SLAAC})
    assert texts(await world.review("CREATE", thief)) == [
        f"spec.networkInterfaces[{OTHER}].dhcp.ipv6.address: the address is made of the MAC address {MAC} (SLAAC), "
        f"which is that of Hardware d/victim already (spec.networkInterfaces[{MAC}])"
    ]
    own = networked("own", "52:54:00:00:00:0c", "10.0.0.3", ipv6={"address": "fd00::5054:ff:fe00:c"})
    assert not texts(await world.review("CREATE", own))
    world.reviewer.claims.remove(hardware("victim", (MAC, "")))
    world.store(thief)
    assert texts(await world.review("CREATE", hardware("second", (MAC, "")))) == [
        f"spec.networkInterfaces[{MAC}]: MAC address {MAC} is that of Hardware e/thief already "
        f"(spec.networkInterfaces[{OTHER}].dhcp.ipv6.address)"
    ]


NETWORK = {
    "netmask": "255.255.255.0",
    "gateway": "10.0.0.1",
    "nameservers": ["10.0.0.53", "dns.example"],
    "timeservers": ["10.0.0.123"],
}
USED = {
    "10.0.0.0": "network address",
    "10.0.0.1": "gateway",
    "10.0.0.53": "name server",
    "10.0.0.123": "time server",
    "10.0.0.255": "broadcast address",
    "fd00::": "network address",
    "fd00::53": "name server",
}


def reserving(address, namespace):
    if ":" in address:
        return networked("thief", OTHER, "10.9.9.9", namespace, ipv6={"address": address})
    return networked("thief", OTHER, address, namespace)


@pytest.mark.parametrize("address", USED)
async def test_address_that_machines_of_another_namespace_use_is_refused_without_their_names(world, address):
    six = {"address": "fd00::a", "nameservers": ["fd00:0::53"]}
    world.store(networked("victim", MAC, "10.0.0.10", **NETWORK, ipv6=six))
    (refusal,) = texts(await world.review("CREATE", reserving(address, "e")))
    field = "dhcp.ipv6.address" if ":" in address else "dhcp.ip"
    assert refusal == (
        f"spec.networkInterfaces[{OTHER}].{field}: IP address {address} is the {USED[address]} of machines of another "
        "namespace: reserve another address"
    )
    verdict = await world.review("CREATE", reserving(address, "d"))
    assert verdict.causes == (), "a machine of the same tenant may be that server"
    assert f"{address} is the {USED[address]} of other machines of this namespace" in verdict.warnings[0]


async def test_address_that_was_leased_before_it_became_a_gateway_stays_and_the_writer_is_warned(world):
    router = world.store(networked("router", OTHER, "10.0.0.1", "e"))
    verdict = await world.review("CREATE", networked("a", MAC, "10.0.0.10", **NETWORK))
    assert verdict.causes == ()
    assert [w for w in verdict.warnings if "10.0.0.1, the gateway here, is reserved for a machine of another" in w]
    own = await world.review("CREATE", networked("b", MAC, "10.0.0.10", "e", **NETWORK))
    assert own.warnings == (), "a site's router may be a machine of the site"
    old = world.store(networked("a", MAC, "10.0.0.10", **NETWORK))
    assert (await world.review("UPDATE", {**old, "status": {}}, old)).warnings == (), "once is enough"
    assert not texts(await world.review("UPDATE", {**router, "status": {}}, router))


@pytest.mark.parametrize("how", ["changed", "being deleted", "gone"])
async def test_address_that_no_machine_uses_any_more_can_be_reserved(world, how):
    world.store(networked("a", MAC, "10.0.0.10", **NETWORK))
    last = world.store(networked("b", "52:54:00:00:00:0c", "10.0.0.11", **NETWORK))
    world.reviewer.claims.remove(world.store(networked("a", MAC, "10.0.0.10", **NETWORK)))
    assert texts(await world.review("CREATE", reserving("10.0.0.1", "e")))
    if how == "changed":
        gone = world.reviewer.claims.apply(hardware("b", ("52:54:00:00:00:0c", "10.0.0.11")))
    elif how == "gone":
        gone = world.reviewer.claims.remove(last)
    else:
        gone = world.reviewer.claims.apply({**last, "metadata": {**last["metadata"], **LEAVING}})
    assert (ClaimKind.IP, "10.0.0.1") in gone
    assert not texts(await world.review("CREATE", reserving("10.0.0.1", "e")))
    world.reviewer.claims.remove(last)
    assert not world.reviewer.claims._users


async def test_machine_that_is_its_own_gateway_or_has_a_network_of_two_is_not_warned(world):
    alone = world.store(networked("a", MAC, "10.0.0.10", netmask="255.255.255.254", gateway="10.0.0.10"))
    assert await world.review("UPDATE", networked("a", MAC, "10.0.0.11"), alone) == Verdict()
    assert await world.review("UPDATE", networked("a", OTHER, "10.0.0.10", gateway="10.0.0.10"), alone) == Verdict()


# --- agent ids ---


def identified(name, mac, agent_id, namespace="d"):
    return hardware(name, (mac, ""), namespace=namespace, annotations={"tinkerbell.org/agent-id": agent_id})


async def test_agent_id_of_another_machine_is_refused(world):
    world.store(identified("victim", MAC, "Rack1-U7"))
    (refusal,) = texts(await world.review("CREATE", identified("thief", OTHER, " rack1-u7", "e")))
    where = "metadata.annotations[tinkerbell.org/agent-id]"
    assert refusal == f"{where}: agent id rack1-u7 is that of Hardware d/victim already ({where})"
    (refusal,) = texts(await world.review("CREATE", identified("thief", OTHER, MAC.upper(), "e")))
    assert refusal == (
        f"{where}: agent id {MAC} is the MAC address of Hardware d/victim already (spec.networkInterfaces[{MAC}])"
    )
    assert not texts(await world.review("CREATE", identified("own", OTHER, OTHER, "e"))), "its own MAC"


async def test_mac_and_name_are_not_refused_for_an_agent_id_that_any_tenant_may_choose(world):
    world.store(identified("thief", OTHER, MAC, "e"))
    verdict = await world.review("CREATE", hardware("victim", (MAC, "")))
    assert verdict.causes == ()
    assert "another Hardware has 52:54:00:00:00:0a as its agent id" in verdict.warnings[0]
    world.store(identified("thief", OTHER, "node1", "e"))
    verdict = await world.review("CREATE", hardware("node1", ("52:54:00:00:00:0c", "")))
    assert verdict.causes == ()
    assert "metadata.name: another Hardware has node1 as its agent id" in verdict.warnings[0]


async def test_agent_id_that_is_a_name_in_its_namespace_is_warned_about(world):
    world.known = True
    verdict = await world.review("CREATE", identified("a", MAC, "node1"))
    assert verdict.causes == ()
    assert "node1 is also the name of Hardware d/node1" in verdict.warnings[0]
    assert (await world.review("CREATE", identified("node1", MAC, "node1"))).warnings == ()
