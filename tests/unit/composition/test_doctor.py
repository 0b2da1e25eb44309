"""What `tinkedge doctor` finds, and that its remedies bring what is missing."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from edge.cli import main
from edge.composition import doctor
from edge.composition.checks import Severity
from edge.composition.doctor import Finding, Port
from edge.composition.settings import Service
from tests.unit.ipxe_medium import parts

SETUP = Path(__file__).resolve().parents[3] / "deploy" / "setup.sh"


def package_set(name: str) -> set[str]:
    found = re.search(rf'^  \[{name}\]="([^"]*)"', SETUP.read_text(), re.MULTILINE)
    assert found is not None
    return set(found[1].split())


def named(findings: list[Finding], name: str) -> Finding:
    return next(finding for finding in findings if name in finding.name)


def test_every_package_that_doctor_names_is_installed_by_make_run() -> None:
    wanted = set(doctor.LAB_PROGRAMS.values()) | set(doctor.LAB_FILES)
    assert wanted <= package_set("lab") | package_set("uefi") | package_set("arm64")
    assert package_set("arm64") == doctor.ARM64_PACKAGES


def test_every_package_that_make_run_installs_is_looked_for() -> None:
    # seabios has no file of its own that only the lab needs: it comes with QEMU.
    assert (package_set("lab") | package_set("uefi") | package_set("arm64")) - {"seabios"} == {
        *doctor.LAB_PROGRAMS.values(),
        *doctor.LAB_FILES,
    }


@pytest.mark.parametrize(
    ("checkout", "given", "looked"), [(True, [], True), (False, [], False), (False, ["--lab"], True)]
)
def test_lab_is_not_asked_for_where_tinkedge_is_installed(
    checkout: bool, given: list[str], looked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.commands.doctor.in_checkout", lambda: checkout)
    options = ["--interface", "lo", "--data-dir", str(tmp_path / "data"), "--config", "/dev/null", "--json"]
    found = json.loads(CliRunner().invoke(main, ["doctor", *options, *given]).output)["findings"]
    assert ("lab packages" in {finding["name"] for finding in found}) == looked


def test_missing_packages_are_named_in_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = named(list(doctor.lab(tmp_path)), "lab packages")
    assert not finding.ok
    wanted = set(doctor.LAB_PROGRAMS.values()) - doctor.ARM64_PACKAGES
    assert wanted <= set(finding.remedy.split())
    assert not doctor.ARM64_PACKAGES & set(finding.remedy.split())
    with_arm64 = named(list(doctor.lab(tmp_path, arm64=True)), "lab packages")
    assert "qemu-system-arm" in with_arm64.remedy
    assert "apt-get install" in finding.remedy


def test_kubectl_is_found_on_path_or_beside_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(doctor.sys, "executable", str(tmp_path / "python"))
    assert not named(list(doctor.lab(tmp_path)), "kubectl").ok
    (tmp_path / "kubectl").touch(mode=0o755)
    assert named(list(doctor.lab(tmp_path)), "kubectl").seen == str(tmp_path / "kubectl")


def test_too_small_disk_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert named(list(doctor.lab(tmp_path / "not" / "made" / "yet")), "disk space").ok
    monkeypatch.setattr(doctor, "_LAB_DISK_MB", 10**9)
    finding = named(list(doctor.lab(tmp_path)), "disk space")
    assert not finding.ok
    assert "--cache-dir" in finding.remedy


@pytest.mark.parametrize("loopback", [True, False])
def test_taken_port_is_found_with_how_to_go_without_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, loopback: bool
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        number = other.getsockname()[1]
        monkeypatch.setattr(
            doctor, "PORTS", (Port("HTTP", socket.SOCK_STREAM, number, "http", "127.0.0.1" if loopback else ""),)
        )
        finding = named(list(doctor.serving(["lo"], tmp_path)), f"port {number}/tcp")
    assert not finding.ok
    assert "--disable http" in finding.remedy
    assert f"process {os.getpid()})" in finding.remedy
    assert named(list(doctor.serving(["lo"], tmp_path)), f"port {number}/tcp").ok


def test_port_taken_on_another_address_does_not_matter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.2", 0))
        other.listen()
        number = other.getsockname()[1]
        monkeypatch.setattr(doctor, "PORTS", (Port("HTTP", socket.SOCK_STREAM, number, "http"),))
        assert named(list(doctor.serving(["lo"], tmp_path)), f"port {number}/tcp").ok


def test_port_that_tinkedge_itself_has_is_no_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        doctor, "_PROGRAM", {Path(word).name for word in Path("/proc/self/cmdline").read_text().split("\0")}
    )
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(type=kind) as own:
            own.bind(("127.0.0.1", 0))
            if kind is socket.SOCK_STREAM:
                own.listen()
            number = own.getsockname()[1]
            monkeypatch.setattr(doctor, "PORTS", (Port("it", kind, number, "it"),))
            finding = named(list(doctor.serving(["lo"], tmp_path)), f"port {number}/")
        assert finding.ok
        assert finding.seen == f"tinkedge serves here, process {os.getpid()}"


def test_every_interface_is_looked_at_with_the_address_that_was_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ports = (
        Port("DHCP", socket.SOCK_DGRAM, 1067, "dhcp"),
        Port("admin", socket.SOCK_STREAM, 1081, "admin", "127.0.0.1"),
    )
    monkeypatch.setattr(doctor, "PORTS", ports)
    findings = list(doctor.serving(["lo", "lo=127.0.0.9"], tmp_path))
    assert [finding.seen for finding in findings if finding.name == "interface"] == [
        "lo has 127.0.0.1",
        "lo has 127.0.0.9",
    ]
    names = [finding.name for finding in findings if finding.name.startswith("port")]
    assert names == ["port 1067/udp (DHCP) on lo"] * 2 + ["port 1081/tcp (admin)"]


def test_address_that_this_host_has_not_is_told_apart_from_a_missing_privilege(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor, "PORTS", (Port("HTTP", socket.SOCK_STREAM, 0, "http"),))
    finding = named(list(doctor.serving(["lo=192.0.2.1"], tmp_path)), "HTTP")
    assert not finding.ok
    assert "ip -brief address" in finding.remedy


def test_probe_without_the_extra_says_how_to_install_it_and_does_the_rest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "scapy.arch", None)
    monkeypatch.setitem(sys.modules, "tftpy", None)
    (tmp_path / "snponly.efi").touch()
    with socket.socket(type=socket.SOCK_DGRAM) as own:
        own.bind(("127.0.0.1", 0))
        port = Port("TFTP", socket.SOCK_DGRAM, own.getsockname()[1], "tftp")
        monkeypatch.setattr(doctor, "PORTS", (port,))
        findings = list(doctor.probe(["lo"], tmp_path))
    assert [finding.how_bad for finding in findings] == [Severity.ERROR, Severity.NOTE, Severity.NOTE], (
        "Debian has no package of tftpy"
    )
    assert all("pip install 'tinkedge[diagnose]'" in finding.remedy for finding in findings[:2])
    assert findings[2].seen == "not tried: lo is no Ethernet interface"


def test_probe_leaves_a_missing_interface_to_the_other_findings(tmp_path: Path) -> None:
    assert list(doctor.probe(["absent0"], tmp_path)) == []


def test_missing_interface_and_boot_programs_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PORTS", ())
    (tmp_path / "undionly.kpxe").touch()
    findings = list(doctor.serving(["absent0"], tmp_path))
    assert "there is no interface absent0" in named(findings, "interface").seen
    assert not named(findings, "iPXE").ok
    (tmp_path / "snponly.efi").touch()
    assert named(list(doctor.serving(["lo"], tmp_path)), "iPXE").ok


def test_what_boot_media_start_is_said_and_no_error(tmp_path: Path) -> None:
    none = named(list(doctor.serving(["lo"], tmp_path)), "boot media")
    assert (none.ok, none.how_bad) == (True, Severity.NOTE)
    assert "install the package ipxe" in none.seen
    parts.fill(tmp_path)
    whole = named(list(doctor.serving(["lo"], tmp_path)), "boot media")
    assert (whole.how_bad, whole.seen) == (Severity.OK, "0.1 MB, for BIOS, UEFI x86-64, UEFI arm64")
    (tmp_path / "ipxe-amd64.efi").write_bytes(b"MZ of 2019")
    old = named(list(doctor.serving(["lo"], tmp_path)), "boot media")
    assert (old.how_bad, "UEFI x86-64 by DHCP only" in old.seen) == (Severity.NOTE, True)


def test_names_of_services_are_those_of_disable() -> None:
    assert {port.name for port in doctor.PORTS} <= {service.value for service in Service}
