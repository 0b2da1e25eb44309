"""`tinkedge doctor`: the findings of each check, and remedies that install what is missing."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Interface, IPv6Interface
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from edge.cli import main
from edge.commands import doctor as command
from edge.doctor import (
    PORTS,
    ExaminedServices,
    Finding,
    Port,
    Severity,
    check_api_addresses,
    check_api_users,
    check_backups,
    check_certificates,
    check_lab,
    check_serving,
    check_upstream_edge,
    lab,
    note,
    passed,
    ports,
    probe,
    problem,
    warning,
)
from edge.doctor.data_directory import check_space
from edge.doctor.firewall import FirstPacket, Ruleset, judge
from edge.doctor.host import check_clock
from edge.doctor.interfaces import check_ethernets, check_ipv6
from edge.doctor.services import check_osie_names
from edge.neighbour.links import HostLink
from edge.settings.model import Service
from tests.ports import free_port
from tests.support.objects import osie
from tests.unit.ipxe_medium import parts
from tink.kube.certificates import builder, common_name, new_key
from tink.kubeapi import USERS_FILE, issue_token

Check = Callable[..., list[Finding]]

SETUP = Path(__file__).resolve().parents[3] / "deploy" / "setup.sh"


def package_set(name: str) -> set[str]:
    found = re.search(rf'^  \[{name}\]="([^"]*)"', SETUP.read_text(), re.MULTILINE)
    assert found is not None
    return set(found[1].split())


def named(findings: list[Finding], name: str) -> Finding:
    return next(finding for finding in findings if name in finding.name)


def test_doctor_checks_exactly_the_packages_that_make_run_installs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {*lab.LAB_PROGRAMS.values(), *lab.LAB_FILES}
    # seabios has no file of its own that only the lab needs: it comes with QEMU.
    assert (package_set("lab") | package_set("uefi") | package_set("arm64")) - {"seabios"} == wanted
    assert package_set("arm64") == lab.ARM64_PACKAGES
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = named(list(check_lab(tmp_path)), "lab packages")
    assert not finding.is_fine
    assert set(lab.LAB_PROGRAMS.values()) - lab.ARM64_PACKAGES <= set(finding.remedy.split())
    assert not lab.ARM64_PACKAGES & set(finding.remedy.split())
    assert "apt-get install" in finding.remedy
    assert "qemu-system-arm" in named(list(check_lab(tmp_path, arm64=True)), "lab packages").remedy
    monkeypatch.setattr(sys, "executable", str(tmp_path / "beside" / "python"))
    assert not named(list(check_lab(tmp_path)), "kubectl").is_fine
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "kubectl").touch(mode=0o755)
    assert named(list(check_lab(tmp_path)), "kubectl").seen == str(tmp_path / "beside" / "kubectl")
    assert named(list(check_lab(tmp_path / "not" / "made" / "yet")), "disk space").is_fine
    monkeypatch.setattr(lab, "_DISK_MB", 10**9)
    finding = named(list(check_lab(tmp_path)), "disk space")
    assert (finding.is_fine, "--cache-dir" in finding.remedy) == (False, True)


@pytest.mark.parametrize(
    ("checkout", "given", "looked"), [(True, [], True), (False, [], False), (False, ["--lab"], True)]
)
def test_lab_is_examined_in_a_checkout_or_on_request_only(
    checkout: bool, given: list[str], looked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.commands.doctor.in_checkout", lambda: checkout)
    options = ["--interface", "lo", "--data-dir", str(tmp_path / "data"), "--config", "/dev/null", "--json"]
    found = json.loads(CliRunner().invoke(main, ["doctor", *options, *given]).output)["findings"]
    assert ("lab packages" in {finding["name"] for finding in found}) == looked


def test_variables_that_no_command_reads_are_named_with_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = tmp_path / "default"
    defaults.write_text("# TINKEDGE_OLD=1\nTINKEDGE_DATA_DIR=/d\n export TINKEDGE_INTERFAZE=eth1\n")
    monkeypatch.setattr(command, "VARIABLES_FILE", defaults)
    monkeypatch.setenv("TINKEDGE_HTTPPORT", "80")
    options = ["--interface", "lo", "--data-dir", str(tmp_path / "data"), "--config", "/dev/null", "--json"]
    found = json.loads(CliRunner().invoke(main, ["doctor", "--no-lab", *options]).output)["findings"]
    seen = [(each["name"], each["seen"]) for each in found if each["name"].startswith("variable ")]
    export = [sentence for _, sentence in seen if sentence.startswith("systemd")]
    unknown = {name: sentence for name, sentence in seen if sentence not in export}
    assert [*unknown] == ["variable TINKEDGE_HTTPPORT", "variable TINKEDGE_INTERFAZE"]
    assert export == [f"systemd ignores the line of TINKEDGE_INTERFAZE, because it begins with 'export' ({defaults}:3)"]
    assert "do you mean TINKEDGE_HTTP_PORT? (the environment)" in unknown["variable TINKEDGE_HTTPPORT"]
    assert f"do you mean TINKEDGE_INTERFACE? ({defaults}:3)" in unknown["variable TINKEDGE_INTERFAZE"]


@contextmanager
def taken(address: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> Iterator[int]:
    with socket.socket(type=kind) as other:
        other.bind((address, 0))
        if kind is socket.SOCK_STREAM:
            other.listen()
        yield other.getsockname()[1]


@pytest.fixture
def serving(tmp_path: Path) -> Check:
    """Return a function that checks these ports and interfaces."""

    def serving(*ports: Port, interfaces: Sequence[tuple[str, str]] = (("lo", ""),)) -> list[Finding]:
        return list(check_serving(ExaminedServices(interfaces, tmp_path, ports)))

    return serving


@pytest.mark.parametrize("address", ["127.0.0.1", ""])
def test_port_of_another_program_is_a_problem_with_the_option_to_disable_it(serving: Check, address: str) -> None:
    with taken("127.0.0.1") as number:
        port = Port("HTTP", socket.SOCK_STREAM, number, "http", address)
        finding = named(serving(port), f"port {number}/tcp")
    assert not finding.is_fine
    assert "--disable http" in finding.remedy
    assert f"process {os.getpid()})" in finding.remedy
    assert named(serving(port), f"port {number}/tcp").is_fine
    with taken("127.0.0.2") as number:  # on an address that is not served
        assert named(serving(Port("HTTP", socket.SOCK_STREAM, number, "http")), f"port {number}/tcp").is_fine
    finding = named(serving(Port("HTTP", socket.SOCK_STREAM, 0, "http"), interfaces=[("lo", "192.0.2.1")]), "HTTP")
    assert (finding.is_fine, "ip -brief address" in finding.remedy) == (False, True), "no lack of a privilege"
    assert {port.name for port in PORTS} <= {service.value for service in Service}, "else there is no --disable"


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_port_that_tinkedge_holds_is_no_problem(
    serving: Check, monkeypatch: pytest.MonkeyPatch, kind: socket.SocketKind
) -> None:
    words = Path("/proc/self/cmdline").read_text().split("\0")
    monkeypatch.setattr(ports, "_OUR_PROGRAMS", {Path(word).name for word in words})
    with taken("127.0.0.1", kind) as number:
        finding = named(serving(Port("it", kind, number, "it")), f"port {number}/")
    assert (finding.is_fine, finding.seen) == (True, f"tinkedge serves here, process {os.getpid()}")


def test_every_interface_is_examined_with_its_given_address(serving: Check) -> None:
    dhcp, admin = (
        Port("DHCP", socket.SOCK_DGRAM, 1067, "dhcp"),
        Port("admin", socket.SOCK_STREAM, 1081, "admin", "127.0.0.1"),
    )
    findings = serving(dhcp, admin, interfaces=[("lo", ""), ("lo", "127.0.0.9")])
    seen = [finding.seen for finding in findings if finding.name == "interface"]
    assert seen == ["lo has 127.0.0.1", "lo has 127.0.0.9"]
    names = [finding.name for finding in findings if finding.name.startswith("port")]
    assert names == ["port 1067/udp (DHCP) on lo"] * 2 + ["port 1081/tcp (admin)"]


def test_probe_without_the_extra_names_it_and_runs_the_other_checks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "scapy.arch", None)
    monkeypatch.setitem(sys.modules, "tftpy", None)
    (tmp_path / "snponly.efi").touch()
    with taken("127.0.0.1", socket.SOCK_DGRAM) as number:
        port = Port("TFTP", socket.SOCK_DGRAM, number, "tftp")
        findings = list(probe(ExaminedServices([("lo", "")], tmp_path, [port])))
    # Debian has no package of tftpy.
    assert [finding.severity for finding in findings] == [Severity.ERROR, Severity.NOTE, Severity.NOTE]
    assert all("pip install 'tinkedge[diagnose]'" in finding.remedy for finding in findings[:2])
    assert findings[2].seen == "not tried: lo is no Ethernet interface"


def test_missing_interface_and_boot_programs_are_found(serving: Check, tmp_path: Path) -> None:
    (tmp_path / "undionly.kpxe").touch()
    findings = serving(interfaces=[("absent0", "")])
    assert list(probe(ExaminedServices([("absent0", "")], tmp_path))) == [], "the probe leaves it to the others"
    assert "there is no interface absent0" in named(findings, "interface").seen
    assert not named(findings, "iPXE").is_fine
    (tmp_path / "snponly.efi").touch()
    assert named(serving(), "iPXE").is_fine


def test_boot_media_are_described_and_never_an_error(serving: Check, tmp_path: Path) -> None:
    none = named(serving(), "boot media")
    assert (none.is_fine, none.severity) == (True, Severity.NOTE)
    assert "install the package ipxe" in none.seen
    parts.fill(tmp_path)
    whole = named(serving(), "boot media")
    assert (whole.severity, whole.seen) == (Severity.OK, "0.1 MB, for BIOS, UEFI x86-64, UEFI arm64")
    (tmp_path / "ipxe-amd64.efi").write_bytes(b"MZ of 2019")
    old = named(serving(), "boot media")
    assert (old.severity, "UEFI x86-64 by DHCP only" in old.seen) == (Severity.NOTE, True)


INPUT = {"family": "inet", "table": "f", "name": "in", "type": "filter", "hook": "input", "prio": 0}


def ruleset(*rules: list[Any], policy: str = "accept", **more: list[list[Any]]) -> Ruleset:
    """Return a rule set with rules in the chain `in`, and in chains without a hook."""
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
def test_firewall_rules_are_followed(rules: Ruleset, severity: Severity) -> None:
    (found,) = judge(rules, [FirstPacket("udp", 69, "eth1")])
    assert found.severity == severity, found
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
def test_firewall_rule_for_one_ip_version_drops_no_packet_of_the_other(rules: Ruleset, dropped: set[int]) -> None:
    found = {each: judge(rules, [FirstPacket("tcp", 80, "eth1", version=each)]) for each in (4, 6)}
    expected = {each: next(iter(one)) for each, one in found.items()}
    assert {each for each, one in expected.items() if one.severity > Severity.OK} == dropped, expected
    if 6 in dropped:
        assert expected[6].seen.startswith("80/tcp of IPv6 on eth1 is dropped")


def test_wrong_year_is_a_problem_and_unsynchronised_clock_a_warning() -> None:
    epoch = check_clock(lambda: 0.0, lambda: True)
    assert (epoch.severity, epoch.seen) == (Severity.ERROR, "it is the year 1970 here")
    assert check_clock(time.time, lambda: False).severity == Severity.WARNING
    assert check_clock(time.time, lambda: True).severity == Severity.OK

    def refuses() -> bool:
        raise PermissionError(1, "Operation not permitted")

    assert check_clock(time.time, refuses).severity == Severity.NOTE
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
def test_low_disk_space_and_few_inodes_are_reported(
    monkeypatch: pytest.MonkeyPatch, free: int, inodes: tuple[int, int], found: list[tuple[str, Severity]]
) -> None:
    state = SimpleNamespace(f_bavail=free // 4096, f_frsize=4096, f_blocks=2**24, f_files=inodes[0], f_favail=inodes[1])
    monkeypatch.setattr(os, "statvfs", lambda _: state)
    assert [(one.name, one.severity) for one in check_space(Path("/"))] == found


def test_unresolved_name_is_reported_with_its_osie(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(name: str, *_: Any, **__: Any) -> list[Any]:
        if name != "kernels.example":
            raise socket.gaierror(-2, "Name or service not known")
        return []

    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    urls = {"kernelUrl": "http://kernels.example/k", "initrdUrl": "https://gone.example/i"}
    osies = [
        osie("o", namespace="d", **urls),
        osie("p", namespace="d", kernelUrl="file:///x", initrdUrl="http://10.0.0.1/"),
        {"metadata": {}, "spec": {"kernelUrl": "http://[::1/", "initrdUrl": 7}},
    ]
    (found,) = check_osie_names(osies)
    assert found.severity == Severity.ERROR
    assert found.seen == "gone.example (OSIE d/o: initrdUrl): Name or service not known"
    monkeypatch.setenv("HTTP_PROXY", "http://kernels.example:3128")
    monkeypatch.setenv("HTTPS_PROXY", "http://10.1.1.1")
    assert [one.seen for one in check_osie_names(osies)] == ["resolved: kernels.example"]
    monkeypatch.setenv("HTTPS_PROXY", "socks5://me:secret@10.1.1.1:1080")
    expected = "HTTPS_PROXY is socks5://10.1.1.1:1080: SOCKS is not supported; write http://HOST:PORT of an HTTP proxy"
    assert [one.seen for one in check_osie_names(osies)] == [expected, "resolved: kernels.example"]


WELL, BAD = passed("a", "well"), problem("a", "bad", "fix it")


@pytest.mark.parametrize(
    ("worst", "status"), [(WELL, 0), (note("a", "not looked at"), 0), (warning("a", "odd", "fix it"), 3), (BAD, 1)]
)
def test_exit_status_shows_the_worst_severity(monkeypatch: pytest.MonkeyPatch, worst: Finding, status: int) -> None:
    monkeypatch.setattr(command, "check_serving", lambda _: iter([worst]))
    for name in ("check_data_directory", "check_lab", "check_running_edge", "check_osies", "check_discovery"):
        monkeypatch.setattr(command, name, lambda *_, **_options: iter(()))
    assert CliRunner().invoke(command.doctor, []).exit_code == status
    ran = CliRunner().invoke(command.doctor, ["--json"])
    assert ran.exit_code == status
    document = json.loads(ran.output)
    assert document["severity"] in ("note", worst.severity.name.lower())
    assert document["findings"][0]["severity"] == worst.severity.name.lower()


def test_api_address_that_this_host_does_not_have_is_a_warning() -> None:
    here, there = check_api_addresses(["127.0.0.1", "192.0.2.7"])
    assert (here.name, here.severity) == ("--api-address 127.0.0.1", Severity.OK)
    assert (there.severity, "ip -brief address" in there.remedy) == (Severity.WARNING, True)


def test_expiring_tokens_are_named_and_a_broken_users_file_is_an_error(tmp_path: Path) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert list(check_api_users(tmp_path, now)) == []
    issue_token(tmp_path, "bob", "view", (), now, None)
    assert [finding.severity for finding in check_api_users(tmp_path, now)] == [Severity.OK]
    credential, _ = issue_token(tmp_path, "alice", "view", (), now, now + timedelta(days=3))
    (found,) = check_api_users(tmp_path, now)
    assert (found.severity, found.name) == (Severity.WARNING, "user alice of the API")
    assert found.seen == f"token {credential.id} ends on 2026-01-04 00:00 UTC"
    (tmp_path / USERS_FILE).write_text("{")
    (found,) = check_api_users(tmp_path, now)
    assert (found.severity, str(tmp_path / USERS_FILE) in found.seen) == (Severity.ERROR, True)


def test_old_backups_are_a_warning(tmp_path: Path) -> None:
    now = time.time()

    def found(days: float = 0) -> list[tuple[Severity, str]]:
        return [(one.severity, one.seen) for one in check_backups(tmp_path / "b", now=lambda: now + days * 86_400)]

    assert found() == [], "they are made by other means, or not at all"
    (tmp_path / "b").mkdir()
    assert found() == [(Severity.WARNING, "there is none")]
    (tmp_path / "b" / "tinkedge-20261125T000000Z.tgz.age").touch()
    assert found() == [(Severity.OK, "1, the newest less than a day old")]
    assert found(1.9) == [(Severity.OK, "1, the newest 2 days old")]
    assert found(2.1) == [(Severity.WARNING, "1, the newest 2 days old")]


def test_certificates_of_the_agent_server_are_reported_before_they_expire(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    key = new_key()
    name = common_name("server")
    made = builder(name, name, key, now, timedelta(days=30)).sign(key, hashes.SHA256())
    file = tmp_path / "tls.crt"
    file.write_bytes(made.public_bytes(Encoding.PEM))
    broken = tmp_path / "broken.crt"
    broken.write_bytes(b"")

    def found(path: Path | None, days: float) -> list[tuple[Severity, str]]:
        later = (now + timedelta(days=days)).timestamp()
        return [(one.severity, one.seen) for one in check_certificates({"--grpc-tls-cert": path}, now=lambda: later)]

    end = f"{now + timedelta(days=30):%Y-%m-%d}"
    assert found(None, 0) == []
    assert found(file, 0) == [(Severity.OK, f"good until {end}")]
    assert found(file, 20) == [(Severity.WARNING, f"ends on {now + timedelta(days=30):%Y-%m-%d %H:%M} UTC")]
    assert [severity for severity, _ in found(file, 31)] == [Severity.ERROR]
    assert found(broken, 0)[0][0] is Severity.ERROR


@pytest.mark.parametrize(
    ("settings", "addresses", "worst", "expected"),
    [
        ({}, ("fd00::1/64", "fd00::2/64"), Severity.OK, "machines use fd00::1 (and 1 more)"),
        ({}, (), Severity.ERROR, "it has no address that machines can use"),
        ({"lo/disable_ipv6": "1"}, ("fd00::1/64",), Severity.ERROR, "it is switched off"),
        ({"all/forwarding": "0"}, ("fd00::1/64",), Severity.WARNING, "it forwards nothing"),
    ],
)
def test_interface_without_the_requirements_of_ipv6_is_reported(
    tmp_path: Path, settings: dict[str, str], addresses: tuple[str, ...], worst: Severity, expected: str
) -> None:
    for name, value in {"lo/disable_ipv6": "0", "all/forwarding": "1", **settings}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{value}\n")
    link = HostLink("lo", 1, up=True, carrier=True, mtu=1500, addresses6=tuple(map(IPv6Interface, addresses)))
    found = [*check_ipv6("lo", is_router=True, serves_dhcp=False, look_up=lambda _: link, settings=tmp_path)]
    assert max(each.severity for each in found) is worst
    assert any(expected in each.seen for each in found), found
    assert [*check_ipv6("gone0", look_up=lambda _: None)] == [], "another check reports that"


def test_silent_upstream_edge_is_a_warning_and_missing_key_an_error(tmp_path: Path) -> None:
    assert list(check_upstream_edge("", None)) == [], "none is named"
    key = tmp_path / "key"
    key.write_text("k" * 64)
    key.chmod(0o600)
    authority = f"127.0.0.1:{free_port()}"
    (found,) = check_upstream_edge(authority, key)
    assert (found.severity, found.seen) == (Severity.WARNING, "nothing listens there")
    for missing in (None, tmp_path / "none"):
        (found,) = check_upstream_edge(authority, missing)
        assert found.severity is Severity.ERROR


HOST = ("10.0.0.50", "52:54:00:00:00:50")
ROUTER = "52:54:00:00:00:01"


def ethernet(name: str, index: int, address: str, mac: str, *, up: bool = True) -> HostLink:
    addresses = (IPv4Interface(address),) if address else ()
    return HostLink(name, index, up, True, 1500, addresses, mac=bytes.fromhex(mac.replace(":", "")))


def warnings_of(
    system: Path, *links: HostLink, seen: dict[int, set[tuple[str, str]]], served: str = "eth1"
) -> list[str]:
    by_name = {each.name: each for each in links}
    found = check_ethernets(
        [served],
        look_up=by_name.get,
        other_interfaces=lambda names: [name for name in by_name if name not in names],
        neighbours=lambda: {index: frozenset(pairs) for index, pairs in seen.items()},
        settings=system,
    )
    findings = [(each.severity, each.seen) for each in found]
    assert {severity for severity, _ in findings} <= {Severity.WARNING}
    return [seen for _, seen in findings]


MAC2 = "02:00:00:00:00:02"
ONE, OTHER = ethernet("eth1", 2, "10.0.0.1/24", "02:00:00:00:00:01"), ethernet("eth2", 3, "10.9.0.1/24", MAC2)


@pytest.mark.parametrize(
    ("other", "seen", "tells"),
    [
        (
            OTHER,
            {2: {HOST}, 3: {HOST}},
            "eth1 and eth2 of this host seem to be on one Ethernet (10.0.0.50, ",
        ),
        (OTHER, {2: {HOST}, 3: {HOST}}, "eth2 answers ARP for 10.0.0.1"),
        (ethernet("eth2", 3, "10.0.0.2/24", MAC2), {}, "10.0.0.1/24 and 10.0.0.2/24 are of one network"),
        (OTHER, {2: {("10.9.0.1", MAC2)}}, "eth2 itself is a neighbour of the other"),
        (OTHER, {}, ""),
        (OTHER, {2: {HOST}}, ""),
        # A router that has one MAC in all VLANs.
        (OTHER, {2: {("10.0.0.254", ROUTER)}, 3: {("10.9.0.254", ROUTER)}}, ""),
        (ethernet("eth2", 3, "10.9.0.1/24", MAC2, up=False), {2: {HOST}, 3: {HOST}}, ""),
        (ethernet("eth2", 3, "10.0.0.7/32", MAC2), {}, ""),
        # VLANs have the MAC of the interface that they are on.
        (ethernet("eth2", 3, "10.9.0.1/24", "02:00:00:00:00:01"), {2: {("10.0.0.9", "02:00:00:00:00:01")}}, ""),
    ],
)
def test_only_two_interfaces_on_one_ethernet_are_reported(
    tmp_path: Path, other: HostLink, seen: dict[int, set[tuple[str, str]]], tells: str
) -> None:
    found = warnings_of(tmp_path, ONE, other, seen=seen)
    assert len(found) == bool(tells)
    assert all(tells in line for line in found)


@pytest.mark.parametrize("where", ["all", "eth2"])
def test_arp_ignore_on_either_level_is_fine(tmp_path: Path, where: str) -> None:
    (tmp_path / where).mkdir()
    (tmp_path / where / "arp_ignore").write_text("1\n")
    assert warnings_of(tmp_path, ONE, OTHER, seen={2: {HOST}, 3: {HOST}}) == []


# --- the options of up ------------------------------------------------------------------------------------------------


def findings_of(tmp_path: Path, *options: str) -> dict[str, dict[str, str]]:
    """Return the findings of doctor with these options, by their names."""
    words = ["doctor", "--no-lab", "--json", "--config", "/dev/null", "--interface", "lo", *options]
    if "--data-dir" not in options:
        words += ["--data-dir", str(tmp_path / "data")]
    result = CliRunner().invoke(main, words)
    assert result.exit_code in (0, 1, 3), result.output
    return {finding["name"]: finding for finding in json.loads(result.stdout)["findings"]}


def test_consistent_options_are_one_good_finding(tmp_path: Path) -> None:
    assert findings_of(tmp_path)["options"]["severity"] == "ok"
    assert findings_of(tmp_path, "--log-level", "debug", "--insecure-registry", "r:5000")["options"]["severity"] == "ok"


@pytest.mark.parametrize(
    ("options", "name", "seen"),
    [
        (["--insecure-registry", "http://r/x"], "--insecure-registry (flag)", "must be HOST or HOST:PORT, not a URL"),
        (["--grpc-authority", "a b"], "--grpc-authority (flag)", "is not HOST or HOST:PORT"),
        (["--otlp-endpoint", "collector"], "--otlp-endpoint (flag)", "is not the URL of a collector"),
        (["--otlp-endpoint", "http://[::1"], "--otlp-endpoint (flag)", "is not the URL of a collector"),
        (["--bmc-edge-url", "http://192.0.2.1:70800"], "--bmc-edge-url (flag)", "is not the URL of an edge"),
        (["--bmc-edge-url", "http://u:secret@h"], "--bmc-edge-url (flag)", "'http://h' is not the URL of an edge"),
        (["--bmc-edge-url", "http://192.0.2.1/files"], "--bmc-edge-url (flag)", "is not the URL of an edge"),
        (["--metadata-token-key", "/nonexistent/key"], "--metadata-token-key (flag)", "No such file or directory"),
        (["--boot-file", "x86_64=none.efi"], "--boot-file (flag), --ipxe-dir (flag)", "no boot file none.efi"),
        (["--api-port", "7081"], "--admin-port (default), --api-port (flag)", "both would listen on port 7081"),
        (["--api-address", "0.0.0.0"], "--api-address (flag), --api-name (default)", "the certificate needs a name"),
    ],
)
def test_contradiction_or_missing_file_is_a_problem_of_its_option(
    tmp_path: Path, options: list[str], name: str, seen: str
) -> None:
    (tmp_path / "snponly.efi").write_bytes(b"program")
    found = findings_of(tmp_path, "--ipxe-dir", str(tmp_path), *options)
    assert (found[name]["severity"], seen in found[name]["seen"]) == ("error", True), found[name]
    assert found[name]["remedy"]


def test_missing_manifests_directory_is_a_warning(tmp_path: Path) -> None:
    found = findings_of(tmp_path, "--manifests", "/nonexistent")["--manifests (flag)"]
    assert (found["severity"], found["seen"]) == ("warning", "there is no directory /nonexistent")


def test_certificate_of_a_registry_is_examined(tmp_path: Path) -> None:
    found = findings_of(tmp_path, "--registry-ca", f"r.example.org={tmp_path}/none.pem")
    assert found[f"--registry-ca r.example.org {tmp_path}/none.pem"]["severity"] == "error"


def test_ports_of_other_options_are_examined(tmp_path: Path) -> None:
    with taken("127.0.0.1") as number:
        given = ["--legacy-ports", str(number), "--health-address", f"127.0.0.1:{number}"]
        (legacy, health) = (each for name, each in findings_of(tmp_path, *given).items() if f"port {number}/" in name)
    assert (legacy["severity"], health["severity"]) == ("error", "error")
    assert "leave --legacy-ports out, or give another" in legacy["remedy"]
    assert "port 514/udp (syslog) on lo" in findings_of(tmp_path, "--syslog", "on")
    assert "port 514/udp (syslog) on lo" not in findings_of(tmp_path, "--syslog", "on", "--disable", "http")


def test_data_directory_with_a_colon_is_a_warning_that_names_kubectls_option(tmp_path: Path) -> None:
    found = findings_of(tmp_path, "--data-dir", f"{tmp_path}/a:b")["--data-dir (flag)"]
    assert found["severity"] == "warning"
    assert f"kubectl --kubeconfig {tmp_path}/a:b/kubeconfig" in found["remedy"]


def test_dhcp_on_the_loopback_interface_is_a_warning(tmp_path: Path) -> None:
    assert findings_of(tmp_path)["DHCP on lo"]["severity"] == "warning"
    assert "DHCP on lo" not in findings_of(tmp_path, "--disable", "dhcp")
    assert "DHCP on lo" not in findings_of(tmp_path, "--dhcp-mode", "off")
