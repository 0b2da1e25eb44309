"""Containers by runc: their description, what an action has left running, and what goes wrong."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tink.agent.runtimes.oci as runc_module
from tests.support.virtual_time import elapse
from tink.agent.images.registry import Registries
from tink.agent.images.store import ImageStore, UnpackedImage
from tink.agent.model import ActionError, AgentSettingsError, RenderedAction
from tink.agent.runtimes import oci as cgroups
from tink.agent.runtimes.oci import (
    DEFAULT_PATH,
    ContainerRuntime,
    container_config,
    image_volumes,
    logged_error,
    mount_overlay,
    root_is_initramfs,
    unmount,
)
from tink.agent.runtimes.runtime import ContainerHost, FailureFiles

# --- the description of a container: what an action gets, from its own fields and the image's -------------------------


@pytest.fixture
def image_rootfs(tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text(
        "root:x:0:0::/root:/bin/sh\nwriter:x:12:34::/:/bin/sh\nbroken\nodd:x:-1:x::/:\n"
    )
    (tmp_path / "etc/group").write_text("root:x:0:\nwriter:x:34:\ndisk:x:6:root,writer\n")
    return tmp_path


@pytest.fixture
def describe(image_rootfs):
    def describe(settings=None, host=None, **fields):
        return container_config(
            RenderedAction(**{"id": "a", "name": "act", "image": "img", "cmd": "/prog", **fields}),
            UnpackedImage(image_rootfs, {"config": settings}),
            Path("/state/run/c"),
            volume_dir=Path("/state/volumes"),
            shared_files={"/etc/resolv.conf": Path("/state/run/c/resolv.conf")},
            host=host or ContainerHost((1 << 41) - 1),
        )

    return describe


@pytest.mark.parametrize(
    ("entrypoint", "command", "cmd", "args", "expected"),
    [
        (["/ep", "-x"], ["c1"], "", (), ["/ep", "-x", "c1"]),
        (["/ep"], ["c1"], "", ("a1", "a2"), ["/ep", "a1", "a2"]),
        (["/ep"], ["c1"], "/cmd", (), ["/cmd"]),
        (["/ep"], ["c1"], "/cmd with blank", ("a1",), ["/cmd with blank", "a1"]),
        (None, ["c1", "c2"], "", (), ["c1", "c2"]),
        (None, ["c1"], "", ("a1",), ["a1"]),
    ],
)
def test_program_is_chosen_as_docker_does(describe, entrypoint, command, cmd, args, expected):
    config = describe({"Entrypoint": entrypoint, "Cmd": command}, cmd=cmd, args=args)
    assert config["process"]["args"] == expected


def test_neither_image_nor_action_names_a_program(describe):
    with pytest.raises(ActionError, match="cmd") as caught:
        describe(None, cmd="")
    assert caught.value.reason == "InvalidAction"


def test_path_and_environment_of_the_action_win_over_the_images_and_that_over_the_default(describe):
    env = describe({"Env": ["A=image", "B=image=x", "C"]}, env={"A": "action", "D": "new"})["process"]["env"]
    assert env == [f"PATH={DEFAULT_PATH}", "A=action", "B=image=x", "C=", "D=new"]
    assert describe({"Env": ["PATH=/bin"]})["process"]["env"] == ["PATH=/bin"]


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("", (0, 0, [0, 6])),
        ("root", (0, 0, [0, 6])),
        ("writer", (12, 34, [34, 6])),
        ("12", (12, 34, [34, 6])),
        ("99", (99, 0, [0])),
        ("99:98", (99, 98, [98])),
        ("writer:disk", (12, 6, [6])),
    ],
)
def test_user_is_looked_up_in_the_image(describe, user, expected):
    user = describe({"User": user})["process"]["user"]
    assert (user["uid"], user["gid"], user["additionalGids"]) == expected


@pytest.mark.parametrize("user", ["nobody-here", "writer:no-group", "odd", "broken", "²"])
def test_unknown_user_is_named(describe, user):
    with pytest.raises(ActionError, match=user.split(":")[-1]):
        describe({"User": user})


def test_passwd_that_links_out_of_the_image_is_not_read_from_the_machine(describe, image_rootfs):
    (image_rootfs / "etc/passwd").unlink()
    (image_rootfs / "etc/passwd").symlink_to("/etc/passwd")
    with pytest.raises(ActionError, match="daemon"):
        describe({"User": "daemon"})


def test_only_the_capabilities_that_the_agent_has_are_given(describe):
    capabilities = describe(host=ContainerHost(0b101))["process"]["capabilities"]
    assert capabilities["effective"] == ["CAP_CHOWN", "CAP_DAC_READ_SEARCH"]
    assert "ambient" not in capabilities


@pytest.mark.parametrize(
    ("fields", "types"),
    [
        ({}, {"mount", "ipc", "pid"}),
        ({"network_namespace": "host", "pid_namespace": "host"}, {"mount", "ipc"}),
        ({"network_namespace": "/proc/1/ns/net", "pid_namespace": "/proc/1/ns/pid"}, {"mount", "ipc"}),
        ({"network_namespace": "none"}, {"mount", "ipc", "pid", "network"}),
    ],
)
def test_namespaces(describe, fields, types):
    assert {namespace["type"] for namespace in describe(**fields)["linux"]["namespaces"]} == types


def test_namespace_is_joined_by_path_and_an_unknown_one_is_not_taken_for_the_hosts(describe):
    namespaces = describe(network_namespace="/run/netns/x", pid_namespace="/proc/7/ns/pid")["linux"]["namespaces"]
    assert {"type": "network", "path": "/run/netns/x"} in namespaces
    assert {"type": "pid", "path": "/proc/7/ns/pid"} in namespaces
    for field in ("network_namespace", "pid_namespace"):
        with pytest.raises(ActionError, match="bridge"):
            describe(**{field: "bridge"})


def test_copy_of_the_resolver_goes_with_the_machines_network_only(describe):
    assert "/etc/resolv.conf" not in destinations(describe(network_namespace="none"))
    for network in ("", "host", "/proc/1/ns/net"):
        mounts = {mount["destination"]: mount for mount in describe(network_namespace=network)["mounts"]}
        assert mounts["/etc/resolv.conf"]["source"] == "/state/run/c/resolv.conf"
        assert "ro" not in mounts["/etc/resolv.conf"]["options"], "an engine lets an action write its own, too"


def destinations(config):
    return [mount["destination"] for mount in config["mounts"]]


def test_volumes_are_mounted_and_hide_neither_devices_nor_failure_files(describe):
    config = describe(volumes=("/host/dir:/a:ro", "cache:/b", "/x:/tinkerbell"))
    mounts = {mount["destination"]: mount for mount in config["mounts"]}
    assert mounts["/a"] == {"destination": "/a", "type": "none", "source": "/host/dir", "options": ["rbind", "ro"]}
    assert mounts["/b"]["source"] == "/state/volumes/cache"
    assert destinations(config)[-2:] == ["/tinkerbell/failure-reason", "/tinkerbell/failure-message"]


def test_volume_inside_of_another_is_mounted_after_it_in_whatever_order_they_are_merged(describe):
    volumes = ("/b:/m/n/o", "/c:/other", "/a:/m", "cache:/m/n")
    places = [place for place in destinations(describe(volumes=volumes)) if place.startswith("/m")]
    assert places == ["/m", "/m/n", "/m/n/o"]


def test_directories_that_the_image_calls_volumes_are_named():
    assert image_volumes({"config": {"Volumes": {"/data": {}, "var/lib": {}}}}) == ["/data", "/var/lib"]
    assert image_volumes({}) == image_volumes({"config": {"Volumes": None}}) == []


@pytest.mark.parametrize("settings", ["text", [1], {"Env": "x", "Cmd": {"a": 1}, "User": None, "WorkingDir": None}])
def test_image_configuration_of_the_wrong_shape_is_survived(describe, settings):
    assert describe(settings)["process"]["cwd"] == "/"


# --- what an action has left running, found by its control group; a directory plays the hierarchies -------------------


def hierarchy(directory: Path, *processes: int) -> None:
    directory.mkdir(parents=True)
    (directory / "cgroup.procs").write_text("".join(f"{process}\n" for process in processes))


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("place", ["c", "c/made/by/action", "memory/c", "unified/c/deep"])
async def test_process_is_killed_in_whatever_hierarchy_it_is(tmp_path, sleeper, place):
    hierarchy(tmp_path / "memory" / "other", os.getpid())
    hierarchy(tmp_path / place, sleeper.pid)
    ending = asyncio.create_task(cgroups.kill_all("c", tmp_path))
    assert await asyncio.to_thread(sleeper.wait) == -9
    (tmp_path / place / "cgroup.procs").write_text("")  # as the kernel does
    assert await ending == 0


async def test_neither_the_agent_nor_what_it_cannot_see_is_killed(tmp_path):
    """A process of a PID namespace elsewhere is shown as 0, and kill(0) would end the agent and its siblings."""
    hierarchy(tmp_path / "c", 0, os.getpid())
    assert await cgroups.kill_all("c", tmp_path) == 0


@pytest.mark.looptime
async def test_process_that_the_kernel_holds_is_counted_and_not_waited_for_without_end(tmp_path, sleeper):
    hierarchy(tmp_path / "c", sleeper.pid)
    assert await cgroups.kill_all("c", tmp_path) == 1


async def test_groups_that_are_empty_are_removed_from_within_and_a_machine_without_any_has_nothing_to_end(tmp_path):
    assert await cgroups.kill_all("c", tmp_path / "none") == 0
    assert await cgroups.kill_all("c", tmp_path) == 0
    (tmp_path / "memory" / "c" / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "cpu" / "c").mkdir(parents=True)
    assert await cgroups.kill_all("c", tmp_path) == 0
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["cpu", "memory"]


# --- what is read from the machine and from runc, and what is left behind ---------------------------------------------


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
def test_root_that_can_not_be_pivoted_away_from_is_known_by_what_is_mounted_last(mounts, expected):
    assert root_is_initramfs("\n".join(mounts)) is expected


def test_mount_that_fails_is_an_error_with_its_path_and_not_an_empty_container(tmp_path):
    with pytest.raises(OSError, match="nothing") as caught:
        mount_overlay(tmp_path, tmp_path, tmp_path, tmp_path / "nothing")
    assert caught.value.filename == str(tmp_path / "nothing")
    assert caught.value.errno


def test_unmounting_what_is_not_mounted_is_an_error_for_who_would_remove_it_next(tmp_path):
    with pytest.raises(OSError, match=str(tmp_path)) as caught:
        unmount(tmp_path)
    assert caught.value.errno


def entry(level: str, message: str) -> str:
    return json.dumps({"level": level, "msg": message})


@pytest.mark.parametrize(
    ("lines", "logged"),
    [
        ([entry("error", "first"), entry("error", "no such file"), entry("info", "bye")], "no such file"),
        ([entry("fatal", "two\nlines")], "two"),
        ([entry("error", "kept"), "{", "[]", '{"level": "error"}', "7"], "kept"),
        ([entry("warning", "slow"), entry("debug", "x")], ""),
        ([], ""),
    ],
)
def test_operator_reads_the_last_error_of_runc_and_nothing_less(tmp_path, lines, logged):
    log = tmp_path / "log"
    assert logged_error(log) == "", "it wrote none"
    log.write_text("\n".join(lines))
    complaint = logged_error(log)
    assert complaint.startswith(logged)
    assert bool(complaint) == bool(logged)
    assert "\n" not in complaint
    assert "(" not in complaint, "a hint is for what it belongs to"


def runtime_in(state_dir: Path) -> ContainerRuntime:
    return ContainerRuntime("/bin/false", state_dir, ImageStore(state_dir, Registries()), host=ContainerHost(0))


async def test_state_directory_that_cannot_be_made_ready_is_named_and_not_shown_as_a_traceback(tmp_path):
    (tmp_path / "run").write_text("in the way")
    with pytest.raises(AgentSettingsError, match=f"state dir: {tmp_path}/run: .*make room there"):
        await runtime_in(tmp_path).prepare()


async def test_disk_that_is_full_when_a_container_is_made_is_named(tmp_path, monkeypatch):
    runtime = runtime_in(tmp_path)
    await runtime.prepare()
    monkeypatch.setattr(ImageStore, "get", lambda *_: UnpackedImage(tmp_path / "no-image", {}))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "run"))

    monkeypatch.setattr(FailureFiles, "create", full)
    action = RenderedAction("a", "act", "img:1", cmd="/x")
    with pytest.raises(ActionError, match=f"action act: {tmp_path}/run: No space left on device") as caught:
        await runtime.run(action, asyncio.Event())
    assert caught.value.reason == "RuntimeError"
    assert list((tmp_path / "run").iterdir()) == []
    (tmp_path / "run").rmdir()
    with pytest.raises(ActionError, match="No such file"):
        await runtime.run(action, asyncio.Event())


async def test_failed_removal_is_logged_and_does_not_change_the_result(tmp_path, monkeypatch, caplog):
    """A file that the action made immutable, in an image that was copied."""
    (tmp_path / "run" / "left").mkdir(parents=True)

    def refuse(path, **_):
        raise OSError(errno.EPERM, "Operation not permitted", f"{path}/rootfs/x")

    monkeypatch.setattr(shutil, "rmtree", refuse)
    await runtime_in(tmp_path)._remove(tmp_path / "run" / "left")
    assert f"cannot remove {tmp_path}/run/left/rootfs/x: Operation not permitted" in caplog.text


def test_only_files_of_the_machine_that_are_there_are_copied_and_the_action_may_write_them(tmp_path):
    original = tmp_path / "resolv.conf"
    original.write_text("nameserver 192.0.2.1")
    original.chmod(0o400)
    copies = runc_module._copies((str(original), str(tmp_path / "hosts")), tmp_path)
    assert copies == {str(original): tmp_path / "shared-resolv.conf"}
    assert copies[str(original)].read_text() == original.read_text()
    assert copies[str(original)].stat().st_mode & 0o777 == 0o644


@pytest.mark.looptime
async def test_what_the_first_process_leaves_is_ended_when_that_has_ended_and_not_before(tmp_path, monkeypatch):
    over = []

    async def kill_all(name):
        over.append(name)
        return 0

    monkeypatch.setattr(runc_module, "kill_all", kill_all)
    first = subprocess.Popen(["sleep", "3600"])
    watching = asyncio.create_task(runc_module._end_with_its_first_process("c", tmp_path / "pid"))
    await elapse(1)
    (tmp_path / "pid").write_text("")  # crun is about to write it
    await elapse(1)
    (tmp_path / "pid").write_text(str(first.pid))
    await elapse(1)
    assert over == []
    first.kill()
    first.wait()
    await watching
    assert over == ["c"]
    await runc_module._end_with_its_first_process("gone", tmp_path / "pid")
    assert over == ["c", "gone"], "a program that ended before anybody looked"
