"""What `tinkedge doctor` finds without a network namespace: rules as nft prints them, clocks, directories, names."""

from __future__ import annotations

import json
import os
import socket
import time
from datetime import UTC, datetime, timedelta
from ipaddress import IPv6Interface
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from edge.commands import doctor as command
from edge.composition.checks import (
    Finding,
    Severity,
    agents_certificates,
    api_addresses,
    api_users,
    check_backups,
    check_clock,
    check_ipv6,
    check_space,
    names,
    osie_names,
)
from edge.composition.checks.findings import note, warning
from edge.composition.checks.firewall import Packet, Ruleset, judge
from edge.neighbour.links import Link
from tink.apiserver import USERS_FILE, issue_token
from tink.kube.certificates import builder, common_name, new_key

INPUT = {"family": "inet", "table": "f", "name": "in", "type": "filter", "hook": "input", "prio": 0}


def ruleset(*rules: list[Any], policy: str = "accept", **more: list[list[Any]]) -> Ruleset:
    """Rules of the chain `in`, and of chains without a hook."""
    entries: list[Any] = [{"chain": INPUT | {"policy": policy}}]
    entries += [{"chain": {"family": "inet", "table": "f", "name": name}} for name in more]
    for chain, expressions in (("in", rules), *more.items()):
        entries += [{"rule": {"family": "inet", "table": "f", "chain": chain, "expr": expr}} for expr in expressions]
    entries.append({"set": {"family": "inet", "table": "f", "name": "ports", "elem": [80, {"range": [60, 70]}]}})
    return Ruleset.read(json.dumps({"nftables": entries}))


def match(left: Any, right: Any, op: str = "==") -> Any:
    return {"match": {"op": op, "left": left, "right": right}}


def dport(right: Any, protocol: str = "udp", op: str = "==") -> Any:
    return match({"payload": {"protocol": protocol, "field": "dport"}}, right, op)


FROM = match({"payload": {"protocol": "ip", "field": "saddr"}}, "10.0.0.1")
ETH1 = match({"meta": {"key": "iifname"}}, "eth1")
STATE = match({"ct": {"key": "state"}}, ["established", "related"], "in")
DROP, ACCEPT = {"drop": None}, {"accept": None}


@pytest.mark.parametrize(
    ("rules", "severity"),
    [
        (ruleset([dport(69), DROP]), Severity.ERROR),
        (ruleset([dport({"set": [67, {"range": [68, 70]}]}), {"reject": {}}]), Severity.ERROR),
        (ruleset([dport("@ports"), {"xt": {"type": "target", "name": "REJECT"}}]), Severity.ERROR),
        (ruleset([dport(70), DROP], [dport(69, "tcp"), DROP]), Severity.OK),
        (ruleset([dport(69), ACCEPT], [DROP]), Severity.OK),
        (ruleset(policy="drop"), Severity.ERROR),
        (ruleset([STATE, ACCEPT], policy="drop"), Severity.ERROR),
        (ruleset([STATE, ACCEPT], [ETH1, ACCEPT], policy="drop"), Severity.OK),
        (ruleset([match({"meta": {"key": "iifname"}}, "eth*"), ACCEPT], policy="drop"), Severity.OK),
        (ruleset([match({"meta": {"key": "iifname"}}, "eth1", "!="), DROP]), Severity.OK),
        (ruleset([FROM, DROP]), Severity.OK),
        (ruleset([{"xt": {"type": "match", "name": "multiport"}}, DROP]), Severity.OK),
        (ruleset([FROM, ACCEPT], policy="drop"), Severity.WARNING),
        (ruleset([{"jump": {"target": "more"}}], more=[[dport(69), DROP]]), Severity.ERROR),
        (ruleset([{"jump": {"target": "more"}}], more=[[dport(69), {"return": None}], [DROP]]), Severity.OK),
        (ruleset([{"goto": {"target": "more"}}], [DROP], more=[]), Severity.OK),
        (ruleset([{"jump": {"target": "in"}}]), Severity.OK),
    ],
)
def test_rules_are_followed_as_far_as_they_can_be_read(rules: Ruleset, severity: Severity) -> None:
    (found,) = judge(rules, [Packet("udp", 69, "eth1")])
    assert found.how_bad == severity, found
    if severity > Severity.OK:
        assert "69/udp on eth1 is dropped by the chain inet f " in found.seen


@pytest.mark.parametrize(
    ("rules", "dropped"),
    [
        (ruleset([dport(80, "tcp"), DROP]), {4, 6}),
        (ruleset([match({"meta": {"key": "nfproto"}}, "ipv6"), DROP]), {6}),
        (ruleset([match({"payload": {"protocol": "ip6", "field": "nexthdr"}}, "tcp"), DROP]), {6}),
        (ruleset([match({"payload": {"protocol": "ip", "field": "protocol"}}, "tcp"), DROP]), {4}),
        (ruleset([FROM, ACCEPT], policy="drop"), {4, 6}),
    ],
)
def test_rule_of_one_version_of_ip_drops_no_packet_of_the_other(rules: Ruleset, dropped: set[int]) -> None:
    found = {each: judge(rules, [Packet("tcp", 80, "eth1", version=each)]) for each in (4, 6)}
    said = {each: next(iter(one)) for each, one in found.items()}
    assert {each for each, one in said.items() if one.how_bad > Severity.OK} == dropped, said
    if 6 in dropped:
        assert said[6].seen.startswith("80/tcp of IPv6 on eth1 is dropped")


def test_clock_of_a_board_without_battery_is_found() -> None:
    epoch = check_clock(lambda: 0.0, lambda: False)
    assert (epoch.how_bad, epoch.seen) == (Severity.ERROR, "it is the year 1970 here")
    assert check_clock(time.time, lambda: True).how_bad == Severity.WARNING
    assert check_clock(time.time, lambda: False).how_bad == Severity.OK

    def refuses() -> bool:
        raise PermissionError(1, "Operation not permitted")

    assert check_clock(time.time, refuses).how_bad == Severity.NOTE
    check_clock()  # the real ones


@pytest.mark.parametrize(
    ("free", "inodes", "found"),
    [
        (50 * 2**30, (10**6, 10**6), []),
        (50 * 2**30, (0, 0), []),  # btrfs counts none
        (10 * 2**20, (10**6, 10**6), [("data directory's space", Severity.ERROR)]),
        (500 * 2**20, (10**6, 10**6), [("data directory's space", Severity.WARNING)]),
        (50 * 2**30, (10**6, 10), [("data directory's inodes", Severity.WARNING)]),
        (50 * 2**30, (10**6, 0), [("data directory's inodes", Severity.ERROR)]),
    ],
)
def test_disk_that_is_nearly_full_is_found(
    monkeypatch: pytest.MonkeyPatch, free: int, inodes: tuple[int, int], found: list[tuple[str, Severity]]
) -> None:
    state = SimpleNamespace(f_bavail=free // 4096, f_frsize=4096, f_blocks=2**24, f_files=inodes[0], f_favail=inodes[1])
    monkeypatch.setattr(os, "statvfs", lambda _: state)
    assert [(one.name, one.how_bad) for one in check_space(Path("/"))] == found


def test_name_that_can_not_be_resolved_is_named_with_its_osie(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(name: str, *_: Any, **__: Any) -> list[Any]:
        if name != "kernels.example":
            raise socket.gaierror(-2, "Name or service not known")
        return []

    monkeypatch.setattr(names, "getproxies", dict)
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    urls = {"kernelUrl": "http://kernels.example/k", "initrdUrl": "https://gone.example/i"}
    osies = [
        {"metadata": {"namespace": "d", "name": "o"}, "spec": urls},
        {
            "metadata": {"namespace": "d", "name": "p"},
            "spec": {"kernelUrl": "file:///x", "initrdUrl": "http://10.0.0.1/"},
        },
        {"metadata": {}, "spec": {"kernelUrl": "http://[::1/", "initrdUrl": 7}},
    ]
    (found,) = osie_names(osies)
    assert found.how_bad == Severity.ERROR
    assert found.seen == "gone.example (OSIE d/o: initrdUrl): Name or service not known"
    monkeypatch.setattr(
        names, "getproxies", lambda: {"http": "http://kernels.example:3128", "https": "http://10.1.1.1"}
    )
    assert [one.seen for one in osie_names(osies)] == ["resolved: kernels.example"]


@pytest.mark.parametrize(
    ("worst", "status"),
    [
        (Finding("a", True, "well"), 0),
        (note("a", "not looked at"), 0),
        (warning("a", "odd", "mend"), 3),
        (Finding("a", False, "bad", "mend"), 1),
    ],
)
def test_exit_status_says_how_bad_it_is(monkeypatch: pytest.MonkeyPatch, worst: Finding, status: int) -> None:
    monkeypatch.setattr(command.examine, "serving", lambda *_, **__: iter([worst]))
    for name in ("data_directory", "lab"):
        monkeypatch.setattr(command.examine, name, lambda *_: iter(()))
    for name in ("running_edge", "_osies"):
        monkeypatch.setattr(command, name, lambda *_: iter(()))
    assert CliRunner().invoke(command.doctor, []).exit_code == status
    ran = CliRunner().invoke(command.doctor, ["--json"])
    assert ran.exit_code == status
    document = json.loads(ran.output)
    assert document["severity"] in ("note", worst.how_bad.name.lower())
    assert document["findings"][0]["severity"] == worst.how_bad.name.lower()


# --- the API from other hosts


def test_address_that_this_host_does_not_have_is_a_warning() -> None:
    here, there = api_addresses(["127.0.0.1", "192.0.2.7"])
    assert (here.name, here.how_bad) == ("--api-address 127.0.0.1", Severity.OK)
    assert (there.how_bad, "ip -brief address" in there.remedy) == (Severity.WARNING, True)


def test_tokens_that_end_soon_are_named_and_a_bad_file_is_an_error(tmp_path: Path) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert list(api_users(tmp_path, now)) == []
    issue_token(tmp_path, "bob", "view", (), now, None)
    assert [finding.how_bad for finding in api_users(tmp_path, now)] == [Severity.OK]
    credential, _ = issue_token(tmp_path, "alice", "view", (), now, now + timedelta(days=3))
    (found,) = api_users(tmp_path, now)
    assert (found.how_bad, found.name, found.seen) == (
        Severity.WARNING,
        "user alice of the API",
        f"token {credential.id} ends on 2026-01-04 00:00 UTC",
    )
    (tmp_path / USERS_FILE).write_text("{")
    (found,) = api_users(tmp_path, now)
    assert (found.how_bad, str(tmp_path / USERS_FILE) in found.seen) == (Severity.ERROR, True)


def test_backups_that_are_made_no_more_are_said(tmp_path: Path) -> None:
    now = time.time()

    def found(days: float = 0) -> list[tuple[Severity, str]]:
        return [(one.how_bad, one.seen) for one in check_backups(tmp_path / "b", now=lambda: now + days * 86_400)]

    assert found() == [], "they are made by other means, or not at all"
    (tmp_path / "b").mkdir()
    assert found() == [(Severity.WARNING, "there is none")]
    (tmp_path / "b" / "tinkedge-20261125T000000Z.tgz.age").touch()
    assert found() == [(Severity.OK, "1, the newest less than a day old")]
    assert found(1.9) == [(Severity.OK, "1, the newest 2 days old")]
    assert found(2.1) == [(Severity.WARNING, "1, the newest 2 days old")]


def test_certificates_of_the_agents_server_are_looked_at_before_they_end(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    key = new_key()
    name = common_name("server")
    made = builder(name, name, key, now, now + timedelta(days=30)).sign(key, hashes.SHA256())
    file = tmp_path / "tls.crt"
    file.write_bytes(made.public_bytes(Encoding.PEM))
    broken = tmp_path / "broken.crt"
    broken.write_bytes(b"")

    def found(path: Path | None, days: float) -> list[tuple[Severity, str]]:
        later = (now + timedelta(days=days)).timestamp()
        return [(one.how_bad, one.seen) for one in agents_certificates({"--grpc-tls-cert": path}, now=lambda: later)]

    end = f"{now + timedelta(days=30):%Y-%m-%d}"
    assert found(None, 0) == []
    assert found(file, 0) == [(Severity.OK, f"good until {end}")]
    assert found(file, 20) == [(Severity.WARNING, f"ends on {now + timedelta(days=30):%Y-%m-%d %H:%M} UTC")]
    assert [severity for severity, _ in found(file, 31)] == [Severity.ERROR]
    assert found(broken, 0)[0][0] is Severity.ERROR


@pytest.mark.parametrize(
    ("settings", "addresses", "worst", "said"),
    [
        ({}, ("fd00::1/64", "fd00::2/64"), Severity.OK, "machines are told fd00::1 (and 1 more)"),
        ({}, (), Severity.ERROR, "no address that machines can be told"),
        ({"lo/disable_ipv6": "1"}, ("fd00::1/64",), Severity.ERROR, "it is switched off"),
        ({"all/forwarding": "0"}, ("fd00::1/64",), Severity.WARNING, "it forwards nothing"),
    ],
)
def test_what_ipv6_needs_of_an_interface_is_said(
    tmp_path: Path, settings: dict[str, str], addresses: tuple[str, ...], worst: Severity, said: str
) -> None:
    for name, value in {"lo/disable_ipv6": "0", "all/forwarding": "1", **settings}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{value}\n")
    link = Link("lo", 1, up=True, carrier=True, mtu=1500, addresses6=tuple(map(IPv6Interface, addresses)))
    found = [*check_ipv6("lo", routes=True, dhcp=False, ask=lambda _: link, system=tmp_path)]
    assert max(each.how_bad for each in found) is worst
    assert any(said in each.seen for each in found), found
    assert [*check_ipv6("gone0", ask=lambda _: None)] == [], "that is told already"
