"""The lab: its refusals, its screen, its limits and its cleaning up; it builds only outdated parts."""

from __future__ import annotations

import os
import re
import subprocess
import zipfile
from contextlib import nullcontext
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from click.testing import CliRunner

from edge.building import builder as build
from edge.building.builder import Artifacts, Builder, Part, default_cache, locked, recipes
from edge.building.screen import Screen
from edge.building.shell import CommandError
from edge.commands.lab import lab as command
from edge.journey.events import Outcome
from edge.lab import namespaces as made
from edge.lab.discovery import ADDRESS, PORT, SECOND_PORT, SWITCH, ApprovalMode, expected_machines, rule
from edge.lab.machine import Firmware, MachineSettings
from edge.lab.namespaces import remove_abandoned
from edge.lab.rack import PREFIX, RackNetwork
from edge.lab.run import MAC, LabError, LabSettings, MachineProgress, check_boot_program
from tink.discovery.admission import read_rule
from tink.discovery.operators import prepare_list

# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        ("--ipv6 --dual-stack", "--ipv6 is a rack without IPv4, --dual-stack one with both"),
        ("--static", "--static is for a machine that boots from a medium"),
        ("--bmc --medium cdrom", "--bmc boots the machine from the network, not from a medium"),
        ("--bmc --ipv6", "the small one has no IPv6"),
        ("--full --firmware uefi-arm64", "uefi-arm64 can't do that: leave one of them out"),
        ("--bmc --full --firmware uefi-secure", "from the disk, whose loader has no signature, and uefi-secure"),
        ("--discover list --ipv6", "--discover admits a machine by its DHCPv4 DISCOVER"),
        ("--discover rule --medium cdrom", "--discover admits a machine by its DHCPv4 DISCOVER"),
        ("--discover rule --bmc", "--bmc with --discover needs the list"),
        ("--full --medium usb", "a BIOS boots a USB stick, but not the disk after it"),
    ],
)
def test_options_that_exclude_each_other_are_named(words, reported):
    result = CliRunner().invoke(command, words.split())
    assert result.exit_code == 2
    assert reported in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("firmware", "files", "problem"),
    [
        ("bios", [], ""),
        ("uefi", ["snponly.efi"], ""),
        ("uefi-arm64", ["snponly.efi"], "--firmware uefi-arm64: no iPXE binary for architecture 11 (UEFI ARM 64-bit)"),
        ("uefi-secure", ["shimx64.efi", "grubx64.efi"], ""),
        (
            "uefi-secure",
            ["shimx64.efi"],
            "boot path grub: shimx64.efi or grubx64.efi is missing",
        ),
        ("uefi-secure-http", ["shimx64.efi", "grubx64.efi"], "this grubx64.efi speaks no HTTP"),
    ],
)
def test_firmware_without_a_boot_program_is_refused_before_anything_starts(tmp_path, firmware, files, problem):
    for name in (*files, "undionly.kpxe"):
        (tmp_path / name).write_bytes(b"MZ")
    shims = tmp_path if "secure" in firmware else None
    settings = LabSettings(Firmware(firmware), full=False, cache=tmp_path, ipxe_dir=tmp_path, shim_dir=shims)
    with pytest.raises(LabError, match=re.escape(problem)) if problem else nullcontext():
        check_boot_program(settings)


# --- discovery --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("admission", "listed_only"), [(ApprovalMode.RULE, False), (ApprovalMode.LIST, True)])
def test_rule_of_the_lab_admits_machines_of_the_rack_to_addresses_that_no_hardware_has(admission, listed_only):
    network = RackNetwork()
    found = read_rule(rule(admission, network))
    assert found.listed_only is listed_only
    assert str(found.osie) == "default/lab"
    assert str(found.gateway) == network.address
    assert not found.first <= IPv4Address(ADDRESS) <= found.last


@pytest.mark.parametrize("account", [None, ("root", 's3cret,"quoted"')])
def test_list_of_the_lab_describes_its_machine_by_its_serial_number_alone(account):
    machine = MachineSettings(MAC, "machine0", Firmware.UEFI, disk_mib=2048, more_disks_mib=(3072,))
    prepared = prepare_list("lab.csv", expected_machines("m", machine, RackNetwork(), account).encode(), "default")
    assert not prepared.problems
    (line,) = prepared.machines
    assert (line.serials, line.macs, line.uuids) == ((machine.serial,), (), ())
    assert [disks.size_bytes for disks in line.disks] == [2 * 10**9, 3 * 10**9]
    assert [(link.switch, link.port) for link in line.links] == [(SWITCH, PORT), (SWITCH, SECOND_PORT)]
    assert (line.bmc_address, line.bmc_secret) == (("172.31.77.1", "m-bmc") if account else ("", ""))
    assert len(prepared.secrets) == bool(account)
    assert "s3cret" not in str(prepared.config_map)


# --- one line a step, with times that mean something ------------------------------------------------------------------


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_times_are_the_labs_in_brackets_and_the_machines_from_power_on(clock, capsys):
    screen = Screen(clock)
    clock.now += 2.5
    screen.step("build", "OSIE")
    assert screen.since_power_on() == 0
    clock.now += 10
    screen.power_on()
    clock.now += 0.25
    screen.step("dhcp", "DHCPACK")
    assert screen.elapsed() == 12.75
    assert screen.since_power_on() == 0.25
    for outcome in (Outcome.INFO, Outcome.WARNING, Outcome.REFUSED, Outcome.FAILED):
        screen.step("step", "text", outcome)
    assert capsys.readouterr().out.splitlines() == [
        "[  2.50 s] ✓ build     OSIE",
        "   0.25 s ✓ dhcp      DHCPACK",
        *(f"   0.25 s {sign} step      text" for sign in "·?!✗"),
    ]


def test_errors_go_to_standard_error_and_without_a_terminal_without_colours(clock, capsys):
    screen = Screen(clock)
    screen.error("lab failed")
    screen.block("two\nlines")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("two\nlines\n", "lab failed\n")


def test_silence_is_broken_by_what_is_waited_for(clock, capsys):
    screen = Screen(clock, terminal=False)
    screen.step("build", "OSIE")
    clock.now += 1
    screen.waiting(lambda: "fetching")
    assert "fetching" not in capsys.readouterr().out
    clock.now += 2
    screen.waiting(lambda: "fetching")
    screen.waiting(lambda: "fetching")
    assert capsys.readouterr().out.splitlines() == ["[  3.00 s] · ...       fetching"]


def test_on_a_terminal_it_is_one_line_that_the_next_step_replaces(clock, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    screen = Screen(clock, terminal=True)
    clock.now += 1
    screen.waiting(lambda: "fetching " + "x" * 100)
    clock.now += 1
    screen.waiting(lambda: "unpacking")
    screen.step("build", "done")
    written = capsys.readouterr().out
    assert written.count("\n") == 1
    first, second, third = written.split("\r\033[K")
    assert len(first) == 39
    assert second == "[  2.00 s] · ...       unpacking"
    assert third == "[  2.00 s] ✓ build     done\n"


# --- the lab waits for a slow machine, and not for one that repeats a request -----------------------------------------


HEAD = "Inter-|   Receive                         |  Transmit\n face |bytes packets errs drop fifo frame compressed\n"


class Rack:
    """The lab's view of its rack: the machine's screen, and the kernel's counters of its interface."""

    def __init__(self, directory):
        self.screen, self.counters = directory / "screen.log", directory / "dev"
        self.screen.touch()
        self.served(0)
        self.progress = MachineProgress(self.screen, "machine0", self.counters)

    def served(self, count):
        lines = (
            "  {}: 7 0 0 0 0 0 0 0 {} 9 0 0 0 0 0 0\n".format(*each) for each in (("lo", 10**9), ("machine0", count))
        )
        self.counters.write_text(HEAD + "".join(lines))

    def shows(self, text):
        with self.screen.open("a") as screen:
            screen.write(text)


@pytest.fixture
def rack(tmp_path):
    return Rack(tmp_path)


def test_machine_that_loads_its_kernel_gets_on_and_one_that_only_asks_for_an_address_does_not(rack):
    assert not rack.progress.made()
    for sent in range(0, 60_000, 1000):
        rack.served(sent)
        assert not rack.progress.made()
    rack.served(5_000_000)
    assert rack.progress.made()
    assert not rack.progress.made()
    rack.served(5_060_000)
    assert not rack.progress.made()
    rack.served(5_070_000)
    assert rack.progress.made(), "a slow download counts as a whole"


def test_machine_that_shows_something_new_gets_on_and_one_that_repeats_itself_does_not(rack):
    rack.shows("[    1.000] Linux version 6.1\n")
    assert rack.progress.made()
    assert not rack.progress.made()
    for attempt in range(5):
        rack.shows(f"Configuring (net0 52:54)..{'.' * attempt}\r\nNo configuration methods succeeded ({attempt})\r\n")
        assert rack.progress.made() is (attempt == 0)
    rack.shows("half a li")
    assert not rack.progress.made()
    rack.shows("ne\n")
    assert rack.progress.made()


# --- racks of labs that were killed are cleared away; those of labs that run are not touched --------------------------


@pytest.fixture
def gone():
    """The pid of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.fixture
def namespaces(tmp_path, monkeypatch):
    directory = tmp_path / "netns"
    directory.mkdir()
    monkeypatch.setattr(made, "NAMESPACES", directory)

    async def run(command, **_):
        assert command[:3] == ["ip", "netns", "delete"]
        (directory / command[3]).unlink()
        return ""

    monkeypatch.setattr(made, "run", run)
    return directory


async def test_only_namespaces_of_ended_labs_are_removed(namespaces, gone):
    others = {f"{PREFIX}{os.getpid()}", f"{PREFIX}x", PREFIX, f"other-{gone}", str(gone)}
    for name in (f"{PREFIX}{gone}", *others):
        (namespaces / name).touch()
    await remove_abandoned(PREFIX)
    assert {entry.name for entry in namespaces.iterdir()} == others
    for entry in namespaces.iterdir():
        entry.unlink()
    namespaces.rmdir()
    await remove_abandoned(PREFIX)  # a host without any namespace is fine


@pytest.mark.parametrize("goes", [True, False])
async def test_namespace_that_another_lab_removes_meanwhile_is_fine_and_one_that_stays_is_an_error(
    namespaces, gone, monkeypatch, goes
):
    entry = namespaces / f"{PREFIX}{gone}"
    entry.touch()

    async def fail(*_):
        if goes:
            entry.unlink()
        raise CommandError("ip netns delete: Operation not permitted")

    monkeypatch.setattr(made, "run", fail)
    with nullcontext() if goes else pytest.raises(CommandError, match="not permitted"):
        await remove_abandoned(PREFIX)


RECIPES = {
    "osie/build.sh": 'mkdir -p "$out"; cp "$2" "$out/initrd"; echo kernel >"$out/kernel"',  # $2: the wheel
    "image/build-tiny.sh": 'echo tiny >"$out"',
    "image/build-cloud.sh": 'echo cloud >"$out"',
    "actions/build.sh": 'mkdir -p "$1"',  # $2: the architecture
}


class Lab:
    """Recipes and sources that a test may change."""

    def __init__(self, directory: Path) -> None:
        self.deploy, self.cache = directory / "deploy", directory / "cache"
        self.sources = directory / "checkout"
        self.log = directory / "log"
        self.wheel = directory / "a.whl"
        self.wheel.write_text("wheel")
        for name, text in RECIPES.items():
            file = self.deploy / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f'set -eu; out="${{@: -1}}"; echo {name} >>{self.log}\n{text}\n')
        for name in ("bookworm-apt", "kernel", "debian-sources"):  # this host's apt knows Debian 12
            (self.deploy / f"{name}.sh").write_text("")
        (self.deploy / "requirements.txt").write_text("x==1\n")
        for package in ("proto", "tink", "edge"):
            (self.sources / package / "agent").mkdir(parents=True)
            (self.sources / package / "agent" / "a.py").write_text("pass\n")
        self.reported: list[str] = []

    async def build(self, *, full: bool = False, wheel: bool = True) -> Artifacts:
        return await Builder(self.cache, self.reported.append, self.wheel if wheel else None).build(full=full)

    async def built(self, *, full: bool = False, wheel: bool = True) -> list[str]:
        """Build, and give which recipes ran."""
        self.log.write_text("")
        self.reported.clear()
        await self.build(full=full, wheel=wheel)
        ran = self.log.read_text().split()
        assert len(self.reported) == len(ran), "each recipe that runs is reported"
        return ran


@pytest.fixture
def lab(tmp_path, monkeypatch):
    lab = Lab(tmp_path)
    monkeypatch.setattr(build, "recipes", lambda: lab.deploy)
    monkeypatch.setattr(build, "_ROOT", lab.sources)
    return lab


async def test_second_lab_builds_nothing(lab):
    assert sorted(await lab.built()) == ["actions/build.sh", "image/build-tiny.sh", "osie/build.sh"]
    assert await lab.built() == []
    assert await lab.built(full=True) == ["image/build-cloud.sh"]
    assert await lab.built(full=True) == []
    artifacts = await lab.build()
    assert artifacts.kernel.read_text() == "kernel\n"
    assert artifacts.initrd.read_text() == "wheel"
    assert artifacts.image.name == "tiny.raw.gz"
    assert (await lab.build(full=True)).image.name == "debian-cloud.raw.zst"


async def test_machine_of_another_architecture_has_an_osie_and_actions_of_its_own(lab):
    (lab.deploy / "osie" / "build.sh").write_text(f'echo "$*" >>{lab.log}; mkdir -p "${{@: -1}}"')
    (lab.deploy / "actions" / "build.sh").write_text(f'echo "$*" >>{lab.log}; mkdir -p "$1"')
    await lab.build()
    artifacts = await Builder(lab.cache, lab.reported.append, lab.wheel, "arm64").build(full=False)
    assert artifacts.initrd == lab.cache / "osie-arm64" / "initrd"
    assert artifacts.actions == lab.cache / "actions-arm64"
    assert artifacts.actions_digest != (await lab.build()).actions_digest, "a registry is filled with the other"
    ran = lab.log.read_text()
    assert f"--arch arm64 --out {lab.cache}/osie-arm64" in ran
    assert f"--arch amd64 --out {lab.cache}/osie\n" in ran
    assert f"{lab.cache}/actions-arm64 arm64" in ran


@pytest.mark.parametrize(
    ("changed", "rebuilt"),
    [
        ("osie/files/init", ["osie/build.sh"]),
        ("kernel.sh", ["image/build-tiny.sh", "osie/build.sh"]),
        ("debian-sources.sh", ["image/build-tiny.sh", "osie/build.sh"]),
        ("requirements.txt", ["osie/build.sh"]),
        ("image/tiny/init", ["image/build-tiny.sh"]),
        ("actions/reboot/reboot.sh", ["actions/build.sh"]),
        ("osie/README.md", []),
        ("examples/hardware.yaml", []),
    ],
)
async def test_changed_recipe_builds_what_is_made_from_it_and_nothing_else(lab, changed, rebuilt):
    await lab.build()
    file = lab.deploy / changed
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("new")
    assert sorted(await lab.built()) == rebuilt
    assert await lab.built() == []


async def test_file_that_moves_within_a_recipe_or_becomes_executable_counts_as_changed(lab):
    file = lab.deploy / "image" / "etc" / "conf"
    file.parent.mkdir()
    file.write_text("x")
    await lab.build()
    (lab.deploy / "image" / "usr").mkdir()
    moved = file.rename(lab.deploy / "image" / "usr" / "conf")
    assert await lab.built() == ["image/build-tiny.sh"]
    moved.chmod(0o755)
    assert await lab.built() == ["image/build-tiny.sh"]
    moved.unlink()
    assert await lab.built() == ["image/build-tiny.sh"]


async def test_changed_agent_is_in_the_next_osie(lab):
    await lab.build(wheel=False)
    assert await lab.built(wheel=False) == []
    (lab.sources / "tink" / "agent" / "a.py").write_text("print()\n")
    assert await lab.built(wheel=False) == ["osie/build.sh"]
    (lab.sources / "proto" / "agent" / "a.pyc").write_text("compiled")
    assert await lab.built(wheel=False) == []
    lab.wheel.write_text("another")
    assert await lab.built() == ["osie/build.sh"]


async def test_failed_build_is_told_and_is_not_taken_for_done(lab):
    await lab.build()
    recipe = lab.deploy / "osie" / "build.sh"
    good = recipe.read_text()
    recipe.write_text(good + "echo no mirror >&2; exit 5\n")
    for _ in range(2):
        with pytest.raises(CommandError, match="status 5: no mirror"):
            await lab.build()
    recipe.write_text(good)
    # What the failed one has left in the place of the good one is not served.
    assert await lab.built() == ["osie/build.sh"]


async def test_lost_artifact_is_built_again_and_a_registry_filled_again_when_the_action_images_changed(lab):
    artifacts = await lab.build()
    artifacts.image.unlink()
    assert await lab.built() == ["image/build-tiny.sh"]
    assert (await lab.build()).actions_digest == artifacts.actions_digest
    (lab.deploy / "actions" / "new.sh").write_text("x")
    assert (await lab.build()).actions_digest != artifacts.actions_digest


async def test_installation_without_a_checkout_has_its_own_files_in_the_osie(lab):
    artifacts = await lab.build(wheel=False)  # there is no deploy/setup.sh, no pip and no hatchling
    with zipfile.ZipFile(artifacts.initrd) as wheel:
        assert "tink/agent/a.py" in wheel.namelist()


async def test_real_machines_have_a_kernel_of_their_choice_and_files_beside_those_of_the_lab(lab):
    for recipe in ("osie/build.sh", "image/build-cloud.sh"):
        (lab.deploy / recipe).write_text(f'echo "$*" >>{lab.log}; mkdir -p "${{@: -1}}"')
    await lab.build()
    builder = Builder(lab.cache, lab.reported.append, lab.wheel, kernel="linux-image-amd64")
    assert builder.outdated({Part.OSIE, Part.IMAGE}) == {Part.OSIE, Part.IMAGE}
    made = await builder.build_parts({Part.OSIE, Part.IMAGE})
    assert made == {
        Part.OSIE: lab.cache / "osie-linux-image-amd64",
        Part.IMAGE: lab.cache / "images" / "debian-server-linux-image-amd64.raw.zst",
    }
    assert builder.outdated(Part) == set(), "the actions are the lab's, too"
    ran = lab.log.read_text()
    assert f"--arch amd64 --kernel linux-image-amd64 --out {made[Part.OSIE]}\n" in ran
    assert f"--server --kernel linux-image-amd64 {made[Part.IMAGE]}\n" in ran
    assert await lab.built() == [], "the lab's own are as they were"
    again = Builder(lab.cache, lab.reported.append, lab.wheel, kernel="linux-image-amd64", again=True)
    assert again.outdated(Part) == set(Part)


def test_cache_is_used_by_one_process_at_a_time(tmp_path):
    with locked(tmp_path / "cache"):
        with (
            pytest.raises(CommandError, match=f"prepare uses {tmp_path}/cache; wait for it, or .* its own --cache-dir"),
            locked(tmp_path / "cache"),
        ):
            pass
        with locked(tmp_path / "another"):
            pass
    with locked(tmp_path / "cache"):
        pass


def test_cache_is_where_the_user_wants_caches(monkeypatch):
    monkeypatch.setenv("HOME", "/home/u")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_cache() == Path("/home/u/.cache/tinkedge")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/invalid")
    assert default_cache() == Path("/home/u/.cache/tinkedge")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/u")
    assert default_cache() == Path("/var/cache/u/tinkedge")


def test_every_recipe_that_is_run_is_there():
    assert all((recipes() / name).is_file() for name in RECIPES)


def test_what_a_recipe_says_and_how_far_its_apt_is_can_be_asked_meanwhile():
    reported = []
    work = build._Work(0.0)
    for line in ("osie: downloading linux-image: 24 MB", "dlstatus:1:23.6:Retrieving file 1 of 1", "Selecting package"):
        work.read_line(line, reported.append)
    assert (work.phase, work.percent) == ("downloading linux-image: 24 MB", " 23 %")
    assert reported == ["osie: downloading linux-image: 24 MB"]
    work.read_line("osie: squashing", reported.append)
    assert (work.phase, work.percent) == ("squashing", "")


async def test_packages_that_are_being_fetched_are_counted(lab):
    builder = Builder(lab.cache, lab.reported.append, lab.wheel)
    partial = lab.cache / "osie-build" / "build.x" / "root" / "var" / "cache" / "apt" / "archives" / "partial"
    partial.mkdir(parents=True)
    (partial / "python3.deb").write_bytes(bytes(1_500_000))
    assert builder.doing().endswith("1.5 MB of packages fetched")
