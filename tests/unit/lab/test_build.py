"""What the lab builds is built once, and again when, and only when, something that it is made of has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.lab import build
from edge.lab.build import Artifacts, Builder, default_cache, recipes
from edge.lab.shell import CommandError

RECIPES = {
    "osie/build.sh": 'mkdir -p "$out"; cp "$2" "$out/initrd"; echo kernel >"$out/kernel"',  # $2: the wheel
    "image/build-tiny.sh": 'echo tiny >"$out"',
    "image/build-cloud.sh": 'echo cloud >"$out"',
    "actions/build.sh": 'mkdir -p "$out"',
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
        self.said: list[str] = []

    async def build(self, *, full: bool = False, wheel: bool = True) -> Artifacts:
        return await Builder(self.cache, self.said.append, self.wheel if wheel else None).build(full=full)

    async def built(self, *, full: bool = False, wheel: bool = True) -> list[str]:
        """Build, and give which recipes ran."""
        self.log.write_text("")
        self.said.clear()
        await self.build(full=full, wheel=wheel)
        ran = self.log.read_text().split()
        assert len(self.said) == len(ran), "what takes long is told"
        return ran


@pytest.fixture
def lab(tmp_path, monkeypatch):
    lab = Lab(tmp_path)
    monkeypatch.setattr(build, "recipes", lambda: lab.deploy)
    monkeypatch.setattr(build, "_ROOT", lab.sources)

    async def make_wheel(_):
        return lab.wheel

    monkeypatch.setattr(Builder, "_make_wheel", make_wheel)
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
    artifacts = await Builder(lab.cache, lab.said.append, lab.wheel, "arm64").build(full=False)
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


async def test_installed_package_without_sources_asks_for_the_wheel(tmp_path, monkeypatch):
    lab = Lab(tmp_path)
    monkeypatch.setattr(build, "recipes", lambda: lab.deploy)
    monkeypatch.setattr(build, "_ROOT", lab.sources)  # has no deploy/setup.sh
    with pytest.raises(CommandError, match="give it with --wheel FILE"):
        await lab.build(wheel=False)


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
    said = []
    work = build._Work(0.0)
    for line in ("osie: downloading linux-image: 24 MB", "dlstatus:1:23.6:Retrieving file 1 of 1", "Selecting package"):
        work.hear(line, said.append)
    assert (work.phase, work.percent) == ("downloading linux-image: 24 MB", " 23 %")
    assert said == ["osie: downloading linux-image: 24 MB"]
    work.hear("osie: squashing", said.append)
    assert (work.phase, work.percent) == ("squashing", "")


async def test_packages_that_are_being_fetched_are_counted(lab):
    builder = Builder(lab.cache, lab.said.append, lab.wheel)
    partial = lab.cache / "osie-build" / "build.x" / "root" / "var" / "cache" / "apt" / "archives" / "partial"
    partial.mkdir(parents=True)
    (partial / "python3.deb").write_bytes(bytes(1_500_000))
    assert builder.doing().endswith("1.5 MB of packages fetched")
