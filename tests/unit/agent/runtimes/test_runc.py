"""What the runc runtime reads from the machine and from runc, and what it leaves behind."""

from __future__ import annotations

import asyncio
import errno
import json
import shutil
from pathlib import Path

import pytest

import tink.agent.runtimes.oci.runc as runc_module
from tink.agent.images.registry import Registries
from tink.agent.images.store import Image, ImageStore
from tink.agent.model import Action, ActionError, SettingsError
from tink.agent.runtimes.failure import FailureFiles
from tink.agent.runtimes.host import Host
from tink.agent.runtimes.oci.mounts import mount_overlay, root_is_initramfs, unmount
from tink.agent.runtimes.oci.runc import ContainerRuntime, logged_error

INITRAMFS = "rootfs / rootfs rw,size=100k 0 0"
TMPFS = "tmpfs / tmpfs rw 0 0"


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        ([INITRAMFS, "proc /proc proc rw 0 0"], True),
        (["none / ramfs rw 0 0"], True),
        ([INITRAMFS, TMPFS], False),
        ([TMPFS, "rootfs /mnt rootfs rw 0 0"], False),
        (["rootfs /mnt rootfs rw 0 0"], False),
        (["rootfs /", "rootfs", "", TMPFS], False),
        ([], False),
    ],
)
def test_root_that_can_not_be_pivoted_away_from_is_known_by_what_is_mounted_last(
    mounts: list[str], expected: bool
) -> None:
    assert root_is_initramfs("\n".join(mounts)) is expected


def test_mount_that_fails_is_an_error_with_its_path_and_not_an_empty_container(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nothing") as caught:
        mount_overlay(tmp_path, tmp_path, tmp_path, tmp_path / "nothing")
    assert caught.value.filename == str(tmp_path / "nothing")
    assert caught.value.errno


def test_unmounting_what_is_not_mounted_is_an_error_for_who_would_remove_it_next(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=str(tmp_path)) as caught:
        unmount(tmp_path)
    assert caught.value.errno


def entry(level: str, message: str) -> str:
    return json.dumps({"level": level, "msg": message})


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([entry("error", "first"), entry("error", "no such file"), entry("info", "bye")], "no such file"),
        ([entry("fatal", "two\nlines")], "two"),
        ([entry("error", "kept"), "{", "[]", '{"level": "error"}', "7"], "kept"),
        ([entry("warning", "slow"), entry("debug", "x")], ""),
        ([], ""),
    ],
)
def test_operator_reads_the_last_error_of_runc_and_nothing_less(tmp_path: Path, lines: list[str], said: str) -> None:
    log = tmp_path / "log"
    log.write_text("\n".join(lines))
    complaint = logged_error(log)
    assert complaint.startswith(said)
    assert bool(complaint) == bool(said)
    assert "\n" not in complaint
    assert "(" not in complaint, "a hint is for what it belongs to"


def test_runc_that_wrote_no_log_has_no_complaint(tmp_path: Path) -> None:
    assert logged_error(tmp_path / "log") == ""


def runtime_in(state_dir: Path) -> ContainerRuntime:
    return ContainerRuntime("/bin/false", state_dir, ImageStore(state_dir, Registries()), host=Host(0))


async def test_state_directory_that_cannot_be_made_ready_is_named_and_not_shown_as_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("in the way")
    with pytest.raises(SettingsError, match=f"state dir: {tmp_path}/run: .*make room there"):
        await runtime_in(tmp_path).prepare()


async def test_disk_that_is_full_when_a_container_is_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = runtime_in(tmp_path)
    await runtime.prepare()
    monkeypatch.setattr(ImageStore, "get", lambda *_: Image(tmp_path / "no-image", {}))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "run"))

    monkeypatch.setattr(FailureFiles, "create", full)
    action = Action("a", "act", "img:1", cmd="/x")
    with pytest.raises(ActionError, match=f"action act: {tmp_path}/run: No space left on device") as caught:
        await runtime.run(action, asyncio.Event())
    assert caught.value.reason == "RuntimeError"
    assert list((tmp_path / "run").iterdir()) == []
    (tmp_path / "run").rmdir()
    with pytest.raises(ActionError, match="No such file"):
        await runtime.run(action, asyncio.Event())


async def test_what_cannot_be_removed_is_told_and_does_not_undo_the_action(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that the action made immutable, in an image that was copied."""
    (tmp_path / "run" / "left").mkdir(parents=True)

    def refuse(path: Path, **_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted", f"{path}/rootfs/x")

    monkeypatch.setattr(shutil, "rmtree", refuse)
    await runtime_in(tmp_path)._remove(tmp_path / "run" / "left")
    assert f"cannot remove {tmp_path}/run/left/rootfs/x: Operation not permitted" in caplog.text


def test_only_files_of_the_machine_that_are_there_are_copied_and_the_action_may_write_them(tmp_path: Path) -> None:
    original = tmp_path / "resolv.conf"
    original.write_text("nameserver 192.0.2.1")
    original.chmod(0o400)
    copies = runc_module._copies((str(original), str(tmp_path / "hosts")), tmp_path)
    assert copies == {str(original): tmp_path / "shared-resolv.conf"}
    assert copies[str(original)].read_text() == original.read_text()
    assert copies[str(original)].stat().st_mode & 0o777 == 0o644


async def test_what_the_first_process_leaves_is_ended_when_that_has_ended_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over: list[str] = []

    async def kill_all(name: str) -> int:
        over.append(name)
        return 0

    monkeypatch.setattr(runc_module, "kill_all", kill_all)
    first = await asyncio.create_subprocess_exec("sleep", "60")
    watching = asyncio.create_task(runc_module._end_with_its_first_process("c", tmp_path / "pid"))
    await asyncio.sleep(0.05)
    (tmp_path / "pid").write_text("")  # crun is about to write it
    await asyncio.sleep(0.05)
    (tmp_path / "pid").write_text(str(first.pid))
    await asyncio.sleep(0.2)
    assert over == []
    first.kill()
    await asyncio.wait_for(watching, 5)
    await first.wait()
    assert over == ["c"]
    await asyncio.wait_for(runc_module._end_with_its_first_process("gone", tmp_path / "pid"), 5)
    assert over == ["c", "gone"], "a program that ended before anybody looked"
