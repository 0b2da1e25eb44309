"""What `tinkedge doctor` finds, and that its remedies bring what is missing."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from edge import doctor
from edge.doctor import Finding, Port
from edge.settings import Service

SETUP = Path(__file__).resolve().parents[3] / "deploy" / "setup.sh"


def package_set(name: str) -> set[str]:
    found = re.search(rf'^  \[{name}\]="([^"]*)"', SETUP.read_text(), re.MULTILINE)
    assert found is not None
    return set(found[1].split())


def named(findings: list[Finding], name: str) -> Finding:
    return next(finding for finding in findings if name in finding.name)


def test_every_package_that_doctor_names_is_installed_by_make_run() -> None:
    assert set(doctor.LAB_PROGRAMS.values()) | set(doctor.LAB_FILES.values()) <= package_set("lab")


def test_every_package_that_make_run_installs_is_looked_for() -> None:
    # seabios has no file of its own that only the lab needs: it comes with QEMU.
    assert package_set("lab") - {"seabios"} == {*doctor.LAB_PROGRAMS.values(), *doctor.LAB_FILES.values()}


def test_missing_packages_are_named_in_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = named(list(doctor.lab(tmp_path)), "lab packages")
    assert not finding.ok
    wanted = " ".join(sorted(set(doctor.LAB_PROGRAMS.values())))
    assert wanted in finding.remedy or set(wanted.split()) <= set(finding.remedy.split())
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
        monkeypatch.setattr(doctor, "PORTS", (Port("HTTP", socket.SOCK_STREAM, number, "http", loopback),))
        finding = named(list(doctor.serving("lo", tmp_path)), f"port {number}/tcp")
    assert not finding.ok
    assert "--disable http" in finding.remedy
    assert f"sport = :{number}" in finding.remedy
    assert named(list(doctor.serving("lo", tmp_path)), f"port {number}/tcp").ok


def test_port_taken_on_another_address_does_not_matter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.2", 0))
        other.listen()
        number = other.getsockname()[1]
        monkeypatch.setattr(doctor, "PORTS", (Port("HTTP", socket.SOCK_STREAM, number, "http"),))
        assert named(list(doctor.serving("lo", tmp_path)), f"port {number}/tcp").ok


def test_missing_interface_and_boot_programs_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PORTS", ())
    (tmp_path / "undionly.kpxe").touch()
    findings = list(doctor.serving("absent0", tmp_path))
    assert "there is no interface absent0" in named(findings, "interface").seen
    assert not named(findings, "iPXE").ok
    (tmp_path / "snponly.efi").touch()
    assert named(list(doctor.serving("lo", tmp_path)), "iPXE").ok


def test_names_of_services_are_those_of_disable() -> None:
    assert {port.name for port in doctor.PORTS} <= {service.value for service in Service}
