"""What is true of runc alone: how it is started, stopped and cleared up after."""

import asyncio
import json
from pathlib import Path

import pytest

import tink.agent.runtimes.oci.runc as runc_module
from tests.interop.containers.conftest import Machine, shell
from tests.interop.containers.engines import run
from tests.waiting import PATIENCE_SECONDS
from tink.agent.model import ActionError


async def test_action_of_another_user_has_no_capabilities(machine, caplog):
    caplog.set_level("INFO")
    assert (await machine.sh("grep CapEff /proc/self/status", image="writer")).succeeded
    assert any("CapEff" in message and message.endswith("0000000000000000") for message in caplog.messages)


async def test_silent_failure_shows_both_kinds_of_output(machine):
    result = await machine.sh("echo out; echo err >&2; exit 3")
    assert sorted(result.message.split(" | ")) == [
        "err",
        "exit code 3",
        "out",
    ]  # of two pipes, either may be read first


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"volumes": ("/run/gone.sock:/x",)}, "this machine has no /run/gone.sock"),
        ({"pid_namespace": "one"}, "'one' is neither"),
    ],
)
async def test_action_that_could_not_be_run_is_known_before_its_turn(machine, fields, why):
    """Of what waits for the end of its Workflow: a failure then would be nobody's."""
    action = shell(machine.registry, "exit 1")
    await machine.runtime.pull(action.image, asyncio.Event())
    machine.runtime.check(action)
    with pytest.raises(ActionError, match=why):
        machine.runtime.check(shell(machine.registry, "true", **fields))


async def test_stop_in_the_moment_of_the_start_is_not_lost(machine):
    action = shell(machine.registry, "sleep 600")
    await machine.runtime.pull(action.image, asyncio.Event())
    for delay in (0, 0.03, 0.08):
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(delay, stop.set)
        await asyncio.wait_for(machine.runtime.run(action, stop), PATIENCE_SECONDS)


async def test_missing_image_is_named(machine):
    image = f"{machine.registry}/alike/nothing:1"
    with pytest.raises(ActionError, match=f"image {image}: manifest unknown") as caught:
        await machine.sh("true", image="nothing")
    assert caught.value.reason == "ImagePullFailed"


async def test_where_no_overlay_can_be_mounted_the_image_is_copied(machine, monkeypatch, caplog):
    def no_overlay(*paths):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(runc_module, "mount_overlay", no_overlay)
    assert (await machine.sh("echo x >/bin/new; test -x /bin/busybox")).succeeded
    assert (await machine.sh("test ! -e /bin/new")).succeeded
    assert "copied instead" in caplog.text


async def test_container_that_a_killed_agent_left_is_removed_before_a_new_one_writes(machine, tmp_path):
    await machine.kill_agent("touch /host/up; sleep 600", tmp_path)
    [left] = (machine.place / "run").iterdir()
    pid = json.loads(run("runc", "--root", machine.place / "containers", "state", left.name))["pid"]
    assert Path(f"/proc/{pid}").exists()
    await machine.runtime.prepare()
    assert not Path(f"/proc/{pid}").exists()
    assert await machine.leftovers() == []


async def test_missing_cgroups_are_explained(machine, tmp_path):
    # As under `ip netns exec`, which hides /sys/fs/cgroup.
    wrapper = tmp_path / "runc-without-cgroups"
    wrapper.write_text('#!/bin/sh\nexec unshare -m sh -c \'umount -R /sys/fs/cgroup; exec runc "$@"\' sh "$@"\n')
    wrapper.chmod(0o755)
    with pytest.raises(ActionError, match=r"cgroup.*nsenter"):
        await Machine(machine.registry, place=machine.place, program=str(wrapper)).sh("true")
