"""A fleet is let loose on nobody by accident, and settings that do not fit together are told before it begins."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from edge.fleet import Boots, FleetSettings, HardwareSource, Link, Profile, SettingsError, parse
from edge.fleet.network.target import TargetError, check, is_hosts_namespace
from edge.neighbour.route import Route, RouteKind

TARGET = IPv4Address("10.0.0.1")


def networks(*texts: str) -> tuple[IPv4Network, ...]:
    return tuple(map(IPv4Network, texts))


@pytest.mark.parametrize(
    ("kind", "allow", "by_uplink", "says"),
    [
        (RouteKind.LINK, (), True, "interface of the host: say --allow 10.0.0.1"),
        (RouteKind.ROUTER, (), False, "behind a router"),
        (RouteKind.NONE, (), False, "--allow 10.0.0.1"),
        (RouteKind.ROUTER, ("10.1.0.0/24",), False, "behind a router"),
    ],
)
def test_address_that_is_not_named_is_refused(kind, allow, by_uplink, says):
    with pytest.raises(TargetError, match=says):
        check(TARGET, networks(*allow), is_hosts=False, by_uplink=by_uplink, route=lambda _: Route(kind))


@pytest.mark.parametrize("allow", [(), ("10.0.0.1/32",)])
def test_no_machine_is_ever_in_the_hosts_namespace(allow):
    with pytest.raises(TargetError, match="where no machine may be"):
        check(TARGET, networks(*allow), is_hosts=True, route=lambda _: Route(RouteKind.LINK))


@pytest.mark.parametrize(
    ("kind", "allow", "by_uplink"),
    [
        (RouteKind.LINK, (), False),
        (RouteKind.OWN, (), False),
        (RouteKind.ROUTER, ("10.0.0.1/32",), False),
        (RouteKind.LINK, ("10.0.0.0/24",), True),
    ],
)
def test_own_namespace_and_named_addresses_are_taken(kind, allow, by_uplink):
    check(TARGET, networks(*allow), is_hosts=False, by_uplink=by_uplink, route=lambda _: Route(kind))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"machines": 0}, "--machines"),
        ({"machines": 300, "network": IPv4Network("10.9.0.0/23")}, "room for 250"),
        ({"machines": 1001, "link": Link.DIRECT}, "direct is for 1000"),
        ({"relay": IPv4Address("10.200.0.1")}, "--relay-address"),
        ({"hardware": HardwareSource.CLUSTER}, "needs --target"),
        ({"interface": "eth1"}, "go with --target"),
        ({"bars": [parse("failled=0")]}, "there is no failled"),
        ({"target": TARGET}, "needs --kubeconfig"),
        ({"target": TARGET, "kubeconfig": Path("k")}, "say what generated machines boot"),
        ({"target": TARGET, "kubeconfig": Path("k"), "boots": Boots("lab"), "link": Link.DIRECT}, "needs --interface"),
        ({"target": TARGET, "kubeconfig": Path("k"), "boots": Boots("lab"), "roles": True}, "without --target"),
        (
            {
                "target": TARGET,
                "kubeconfig": Path("k"),
                "boots": Boots("lab"),
                "link": Link.DIRECT,
                "interface": "eth1",
                "uplink": "10.0.0.9/24",
            },
            "one MAC only",
        ),
    ],
)
def test_settings_that_do_not_fit_are_told(settings, says):
    with pytest.raises(SettingsError, match=says):
        FleetSettings(**{"machines": 10, "profile": Profile(), **settings})


def test_hosts_namespace_is_that_of_process_one(tmp_path):
    for name in ("host", "named/other"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    host, other, nowhere = tmp_path / "host", tmp_path / "named/other", tmp_path / "nowhere"
    assert is_hosts_namespace(host, host, tmp_path / "named")
    assert not is_hosts_namespace(host, other, tmp_path / "named")
    assert not is_hosts_namespace(nowhere, other, tmp_path / "named"), "it can't be seen, but this one has a name"
    assert is_hosts_namespace(nowhere, host, tmp_path / "named")
    assert is_hosts_namespace(nowhere, host, nowhere)
