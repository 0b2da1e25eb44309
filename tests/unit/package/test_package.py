"""Packages: the same sources give the same bytes, and tinkedge runs without the parts that are left out."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.package import deb, oci
from deploy.package.deb import without_missing
from deploy.package.papers import completions, manual
from deploy.package.target import PackageError, Target
from deploy.package.wheels import EXTRAS, fetch, needed
from deploy.supply.packages import Locked, Project
from edge.cli import main

CONFIG = oci.Config("amd64", "999:999", ("/usr/bin/tinkedge",), ("up",))


def tree(root: Path) -> Path:
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/b").write_text("b")
    (root / "usr/bin/a").symlink_to("b")
    return root


def test_image_of_the_same_files_is_the_same_whenever_they_were_written(tmp_path):
    one, other = tree(tmp_path / "one"), tree(tmp_path / "other")
    os.utime(other / "usr/bin/b", (2e9, 2e9))
    digests = [oci.write(root, CONFIG, "tinkedge:1", 1_600_000_000, root.with_suffix(".tar")) for root in (one, other)]
    assert digests[0] == digests[1]
    assert one.with_suffix(".tar").read_bytes() == other.with_suffix(".tar").read_bytes()
    (one / "usr/bin/b").write_text("c")
    assert oci.write(one, CONFIG, "tinkedge:1", 1_600_000_000, tmp_path / "b.tar") != digests[0], "other files"


def test_package_whose_parts_were_left_out_imports_only_what_is_there(tmp_path):
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack/kept.py").write_text("")
    text = (
        'import json\nimport pack.gone as gone\nfrom pack.kept import (\n  a,\n)\n__all__ = ["gone", "a"]\nLAST = 1\n'
    )
    assert (
        without_missing(text, tmp_path) == "import json\nfrom pack.kept import (\n  a,\n)\n__all__ = ['a']\nLAST = 1\n"
    )


def test_every_command_has_a_manual_page_with_its_variables_and_shells_ask_the_program_what_may_follow():
    pages = {paper.path.rpartition("/")[2]: paper.text for paper in manual(main, 0, "1.2.3")}
    assert pages.keys() >= {"tinkedge.1", *(f"tinkedge-{name}.1" for name in main.list_commands(click.Context(main)))}
    assert "TINKEDGE_DATA_DIR" in pages["tinkedge-up.1"]
    assert "1970\\-01\\-01" in pages["tinkedge.1"] or "1970-01-01" in pages["tinkedge.1"]
    assert all("_TINKEDGE_COMPLETE" in paper.text for paper in completions(main))


def test_packages_for_another_python_are_those_it_needs():
    wanted = (Requirement('old; python_version < "3.13"'), Requirement('new; python_version >= "3.13"'))
    project = Project("ours", "1", "Apache-2.0", wanted, dict.fromkeys(EXTRAS, ()), ())
    locked = {canonicalize_name(name): Locked(Requirement(f"{name}==1"), ()) for name in ("old", "new")}
    for suite, name in (("bookworm", "old"), ("trixie", "new")):
        found = needed(project, locked, {}, Target(suite, "x86_64"))
        assert [one.requirement.name for one in found] == [name]
    with pytest.raises(PackageError, match="sid: there are bookworm, trixie"):
        Target.of("sid")


def test_concurrent_fetches_of_wheels_do_not_conflict(tmp_path, monkeypatch):
    """`make deb` beside `make image`."""
    met = threading.Barrier(2)

    def download(command, *, what):
        made = Path(next(word for word in command if word.startswith("--dest=")).partition("=")[2])
        made.mkdir()
        (made / "a.whl").touch()
        met.wait(20)
        return what

    monkeypatch.setattr("deploy.package.wheels.run", download)
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(fetch, [], Target.of("bookworm"), tmp_path) for _ in range(2)]
        kept = {one.result() for one in both}
    assert [[file.name for file in directory.iterdir()] for directory in kept] == [["a.whl"]]


def test_only_programs_are_executable(tmp_path):
    """Some wheels have modules with that mode; the recipes bring a copy of the settings."""
    files = {"usr/bin/run": b"#!/bin/sh\n", "usr/lib/module.py": b"import x\n", "usr/lib/elf": b"\x7fELF\x02"}
    settings = {"usr/share/tinkedge/tinkedge.yaml": b"", "usr/lib/_deploy/systemd/tinkedge.yaml": b""}
    for name, content in (files | settings).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o755 if name in files else 0o644)
    deb.settle(tmp_path, 1_600_000_000)
    modes = {name: (tmp_path / name).stat().st_mode & 0o777 for name in files | settings}
    assert modes == dict.fromkeys(files | settings, 0o644) | {"usr/bin/run": 0o755, "usr/lib/elf": 0o755}
