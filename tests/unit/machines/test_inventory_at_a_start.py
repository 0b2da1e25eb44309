"""An inventory that has not read all Hardware yet: nobody who looks for a machine can tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edge.machines import Inventory
from tink.kube.cache import Informer, ObjectCompressor
from tink.kube.objects import NamespacedName
from tink.kube.resources import HARDWARE


def mac(number: int) -> str:
    return f"52:54:00:00:00:{number:02x}"


def hardware(number: int, ip: str, *, owner: int | None = None, ipv6: str | None = None) -> dict[str, Any]:
    dhcp: dict[str, Any] = {"ip": ip}
    if ipv6 is not None:
        dhcp["ipv6"] = {"address": ipv6}
    metadata = {"name": f"m{number}", "namespace": "d", "uid": f"u{number}", "resourceVersion": str(number)}
    return {"metadata": metadata, "spec": {"networkInterfaces": {mac(owner or number): {"dhcp": dhcp}}}}


SITE = [
    hardware(1, "10.0.0.1"),
    hardware(2, "10.0.0.2", ipv6="fd00:0:0::2"),
    hardware(3, "10.0.0.2"),  # as 2
    hardware(4, "10.0.0.4", owner=1),  # as 1
    {"metadata": {"name": "odd", "namespace": "d"}, "spec": {"networkInterfaces": {mac(9): {"dhcp": 7}}}},
    {"metadata": {"name": "none", "namespace": "d"}},
]

LOOK_UPS: list[Callable[[Inventory], Any]] = [
    lambda one: one.by_mac(mac(1)),
    lambda one: one.by_mac(mac(2)),
    lambda one: one.by_mac(mac(9)),
    lambda one: one.claimants(mac(1)),
    lambda one: one.by_ip("10.0.0.1"),
    lambda one: one.by_ip("10.0.0.2"),
    lambda one: one.by_ip("10.0.0.4"),
    lambda one: one.by_ip("fd00::2"),
    lambda one: one.claimants_of_ip("10.0.0.2"),
    lambda one: one.by_name("m3", "d"),
    lambda one: one.by_name("odd", "d"),
    lambda one: one.by_name("none", "d"),
]


def inventory() -> tuple[Inventory, Informer]:
    compressor = ObjectCompressor()
    client: Any = None
    informer, made = Informer(client, HARDWARE, compressor=compressor), Inventory(compressor)
    made.follow(informer)
    return made, informer


@pytest.mark.parametrize("look_up", range(len(LOOK_UPS)))
def test_first_look_up_finds_what_it_would_find_when_all_are_read(look_up: int) -> None:
    (early, informer), (late, other) = inventory(), inventory()
    for each in (informer, other):
        for obj in SITE:
            each._changed(obj)
    other.tell_all()
    assert informer.untold == len(SITE)
    assert repr(LOOK_UPS[look_up](early)) == repr(LOOK_UPS[look_up](late))


def test_machines_with_rivals_that_are_read_later_are_said_to_have_changed() -> None:
    """DHCP keeps what it has compiled until it hears otherwise."""
    made, informer = inventory()
    served: dict[str, Any] = {}
    made.on_change(lambda each: served.update({each: (m := made.by_mac(each)) and made.by_ip(m.ip or "")}))
    for obj in SITE:
        informer._changed(obj)
    informer.tell_all()
    assert {each: machine for each, machine in served.items() if machine} == {}
    assert set(served) == {mac(1), mac(2), mac(3)}


def test_what_is_kept_for_the_next_start_says_by_what_a_machine_is_looked_for() -> None:
    made, informer = inventory()
    informer._changed(SITE[1])
    key = NamespacedName("d", "m2")
    packed = informer.packed().objects[key]
    assert isinstance(packed, bytes)
    assert made.looked_up_by(key, packed) is None, "it is not read yet"
    informer.tell_all()
    assert made.looked_up_by(key, packed) == [mac(2), "10.0.0.2", "fd00::2"]
    changed = hardware(2, "10.0.0.7")
    changed["metadata"]["resourceVersion"] = "9"
    informer._changed(changed)
    assert made.looked_up_by(key, packed) is None, "of what it was, nothing is said"
