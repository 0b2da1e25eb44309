"""`tinkedge prepare`: the parts, the packages, the messages, and the OSIE object."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from edge.building import packages
from edge.building.builder import Part
from edge.building.packages import PackageHost, needed
from edge.building.prepare import PrepareError, Settings, announcement, apply, check
from edge.building.screen import Screen
from edge.building.shell import CommandError
from edge.commands.prepare import prepare as command

ALL = frozenset(Part)
DEBIAN_12 = PackageHost("amd64", (3, 11), has_pip=False, knows_suite=True)
DEBIAN_13 = PackageHost("amd64", (3, 13), has_pip=False, knows_suite=False)


def settings(
    *arches: str, parts: frozenset[Part] = ALL, host: str = "amd64", kernel: str = "", where: Path = Path("/d")
):
    return Settings(where, Path("/c"), parts, arches or (host,), host, kernel)


# --- parts, names, packages -------------------------------------------------------------------------------------------


def test_osie_for_machines_like_this_host_is_tinkedge_and_another_one_has_its_architecture_in_its_name():
    assert settings().osie_name("amd64") == "tinkedge"
    assert settings().osie_name("arm64") == "tinkedge-arm64"
    assert settings(host="arm64").osie_name("arm64") == "tinkedge"
    assert settings(host="arm64").osie_name("amd64") == "tinkedge-amd64"


def test_kernel_is_that_of_real_hardware_unless_one_is_named():
    assert settings().kernel_for("amd64") == "linux-image-amd64"
    assert settings().kernel_for("arm64") == "linux-image-arm64"
    assert settings(kernel="linux-image-cloud-amd64").kernel_for("amd64") == "linux-image-cloud-amd64"


def test_disk_image_is_amd64s_alone():
    assert settings().parts_for("amd64") == ALL
    assert settings().parts_for("arm64") == {Part.OSIE, Part.ACTIONS}
    assert settings(host="arm64").parts_for("amd64") == {Part.OSIE, Part.ACTIONS}


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        (
            settings("arm64", parts=frozenset({Part.IMAGE})),
            "--only image --arch arm64: the disk image is made for amd64",
        ),
        (
            settings("amd64", "arm64", kernel="k"),
            "--kernel k is a package for one processor: run tinkedge prepare once",
        ),
    ],
)
def test_options_that_contradict_each_other_are_named(given, reported):
    with pytest.raises(PrepareError, match=reported):
        check(given)


def test_packages_are_those_of_the_parts_that_are_made():
    assert needed(set(), ["amd64"], DEBIAN_12) == set()
    assert needed({Part.OSIE}, ["amd64"], DEBIAN_12) == {
        "busybox-static",
        "cpio",
        "kmod",
        "mmdebstrap",
        "squashfs-tools",
    }
    assert "umoci" in needed({Part.ACTIONS}, ["amd64"], DEBIAN_12)
    assert "mmdebstrap" not in needed({Part.ACTIONS}, ["amd64"], DEBIAN_12)
    assert "mmdebstrap" in needed({Part.ACTIONS}, ["arm64"], DEBIAN_12)
    assert {"syslinux", "systemd-boot-efi", "mtools", "gdisk"} <= needed({Part.IMAGE}, ["amd64"], DEBIAN_12)


@pytest.mark.parametrize(
    ("host", "arch", "expected"),
    [
        (DEBIAN_12, "amd64", False),
        (DEBIAN_12, "arm64", True),
        (DEBIAN_13, "amd64", True),
        (PackageHost("amd64", (3, 13), has_pip=True, knows_suite=False), "arm64", False),
    ],
)
def test_pip_is_needed_where_the_osie_cannot_have_the_libraries_that_are_installed(host, arch, expected):
    assert ("python3-pip" in needed({Part.OSIE}, [arch], host)) is expected


def test_another_debian_needs_the_keys_of_debian_12():
    assert "debian-archive-keyring" in needed({Part.ACTIONS}, ["amd64"], DEBIAN_13)
    assert "debian-archive-keyring" not in needed({Part.ACTIONS}, ["amd64"], DEBIAN_12)


def test_debian_package_suggests_all_that_may_be_needed():
    everything = needed(ALL, ["amd64", "arm64"], DEBIAN_13)
    assert everything - set(packages.SUGGESTED) == {"e2fsprogs", "libzstd1", "python3"}, "which every Debian host has"
    assert packages.command({"b", "a"}) == "apt-get install --no-install-recommends a b"


LOCKED = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1 (apt-get)"


async def test_installation_waits_while_another_apt_has_the_package_lists(tmp_path, monkeypatch):
    apt = tmp_path / "apt-get"
    asked = tmp_path / "asked"
    fails = f'[ "$(wc -l <{asked})" -gt 2 ] || {{ echo "{LOCKED}" >&2; exit 100; }}'
    apt.write_text(f'#!/bin/sh\necho "$*" >>{asked}\n{fails}\n')
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    shown, paused = [], []

    async def pause(seconds: float) -> None:
        paused.append(seconds)

    await packages.install({"zstd"}, shown.append, pause)
    assert [line.split()[-1] for line in asked.read_text().splitlines()] == ["update", "update", "update", "zstd"]
    assert len(paused) == shown.count("waiting for another apt, which has the package lists") == 2


async def test_installation_gives_up_after_five_minutes_of_a_lock(tmp_path, monkeypatch):
    apt = tmp_path / "apt-get"
    apt.write_text(f'#!/bin/sh\necho "{LOCKED}" >&2\nexit 100\n')
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    paused = []

    async def pause(seconds: float) -> None:
        paused.append(seconds)

    with pytest.raises(CommandError, match="held by process 1"):
        await packages.install({"zstd"}, lambda _line: None, pause)
    assert sum(paused) == 300


# --- announcements ----------------------------------------------------------------------------------------------------


def test_download_and_time_are_said_before_and_nothing_if_all_is_up_to_date():
    assert announcement({"amd64": set()}, "amd64") == ""
    whole = announcement({"amd64": set(ALL)}, "amd64")
    assert whole == "up to 160 MB to download, and 2 minutes (at 10 MB/s)"
    assert announcement({"amd64": {Part.ACTIONS}}, "amd64") == "up to 0 MB to download, and 1 minute (at 10 MB/s)"
    assert announcement({"amd64": {Part.OSIE}}, "amd64", 30) == "up to 125 MB to download, and 1 minute (at 10 MB/s)"
    foreign = announcement({"arm64": {Part.OSIE, Part.ACTIONS}}, "amd64")
    assert foreign == "up to 145 MB to download, and 1 minute (at 10 MB/s)"


def test_user_without_root_is_told_to_use_sudo(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    result = CliRunner().invoke(command, [])
    assert result.exit_code == 1
    assert "this needs root" in result.output
    assert "sudo" in result.output


# --- the OSIE object --------------------------------------------------------------------------------------------------


async def test_osie_waits_for_the_service_that_was_never_started(tmp_path, capsys):
    await apply(settings(where=tmp_path), [{"metadata": {"name": "tinkedge"}}], Screen())
    reported = capsys.readouterr().out
    assert f"OSIE tinkedge: not applied, because {tmp_path}/kubeconfig is not there yet" in reported
    assert "After 'systemctl start tinkedge' run this command again" in reported
