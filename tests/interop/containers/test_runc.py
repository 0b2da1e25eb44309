"""Real containers: the agent's runtime with Debian's runc and crun, images built with umoci, from a real registry.

Runs as root.
"""

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import tink.agent.runtimes.oci.runc as runc_module
from tests.interop.containers.engines import run
from tests.interop.containers.machine import Machine
from tests.waiting import PATIENCE_SECONDS, until
from tink.agent.model import Action, ActionError, RunResult


@pytest.mark.smoke
async def test_action_sees_its_environment_arguments_and_the_machine(machine, caplog):
    caplog.set_level("INFO")
    script = (
        "echo greeting=$GREETING; echo args=$0,$1; echo pid=$$; echo host=$(hostname); test -c /dev/null; "
        "ls /dev >/dev/null; echo net=$(readlink /proc/self/ns/net); grep -c . /proc/mounts >/dev/null"
    )
    action = machine.shell(script, env={"GREETING": "hello world"})
    action = Action(
        **{**{name: getattr(action, name) for name in action.__slots__}, "args": (*action.args, "x", "y z")}
    )
    assert await machine.action(action) == RunResult(0)
    said = [message.removeprefix("act: ") for message in caplog.messages]
    assert "greeting=hello world" in said
    assert "args=x,y z" in said
    assert "pid=1" in said
    assert f"host={socket.gethostname()}" in said
    assert f"net={Path('/proc/self/ns/net').readlink()}" in said


async def test_action_has_every_capability_that_the_agent_has(machine, caplog):
    caplog.set_level("INFO")
    await machine.sh("grep CapEff /proc/self/status | tr '\\t' ' '")
    agents = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))
    assert f"act: {' '.join(agents.split())}" in caplog.messages


async def test_action_may_use_a_device_that_it_makes_itself(machine):
    # The device cgroup lets everything through: partitions of a disk that is just written need that.
    assert await machine.sh(
        "mknod /tmp/zero c 1 5 && head -c 4 /tmp/zero | od -An -tx1 | grep -q '00 00 00 00'"
    ) == RunResult(0)


@pytest.mark.smoke
async def test_failing_action_says_its_reason_and_message(machine):
    script = "echo DiskNotFound >/tinkerbell/failure-reason; echo no /dev/sda >/tinkerbell/failure-message; exit 7"
    assert await machine.sh(script) == RunResult(7, "DiskNotFound", "no /dev/sda")


async def test_action_of_another_user_may_say_why_it_failed_and_has_no_capabilities(machine, caplog):
    caplog.set_level("INFO")
    script = "id; pwd; grep CapEff /proc/self/status; echo Denied >/tinkerbell/failure-reason; exit 7"
    result = await machine.sh(script, image="user")
    assert result.reason == "Denied"
    assert "act: uid=1234(writer) gid=1235(writer) groups=6(disk),1235(writer)" in caplog.messages
    assert "act: /tmp" in caplog.messages
    assert any("CapEff" in message and message.endswith("0000000000000000") for message in caplog.messages)


async def test_silent_failure_shows_exit_code_and_last_output(machine):
    result = await machine.sh("echo out; echo err >&2; exit 3")
    assert (result.exit_code, result.reason) == (3, "NonZeroExit")
    code, *lines = result.message.split(" | ")
    assert code == "exit code 3"
    assert sorted(lines) == ["err", "out"]  # of two pipes, either may be read first


async def test_one_containers_changes_are_not_the_next_ones(machine):
    assert (await machine.sh("echo x >/bin/new && rm /bin/ls")).succeeded
    assert (await machine.sh("test ! -e /bin/new && test -x /bin/ls")).succeeded


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"volumes": ("/run/gone.sock:/x",)}, "this machine has no /run/gone.sock"),
        ({"pid_namespace": "one"}, "'one' is neither"),
    ],
)
async def test_action_that_could_not_be_run_is_known_before_its_turn(machine, fields, why):
    """Of what waits for the end of its Workflow: a failure then would be nobody's."""
    action = machine.shell("exit 1")
    await machine.runtime.pull(action.image, asyncio.Event())
    machine.runtime.check(action)
    with pytest.raises(ActionError, match=why):
        machine.runtime.check(machine.shell("true", **fields))


async def test_named_volume_carries_files_from_action_to_action(machine):
    assert (await machine.sh("echo data >/mnt/file", volumes=("scratch:/mnt",))).succeeded
    assert (await machine.sh("test $(cat /mnt/deep/file) = data", volumes=("scratch:/mnt/deep:ro",))).succeeded
    result = await machine.sh("echo x >/mnt/file", volumes=("scratch:/mnt:ro",))
    assert "Read-only file system" in result.message


async def test_host_volume_is_made_when_it_is_missing(machine, tmp_path):
    assert (await machine.sh("touch /host/reboot", volumes=(f"{tmp_path}/requests:/host",))).succeeded
    assert (tmp_path / "requests" / "reboot").exists()


async def test_network_none_has_only_loopback_and_pid_host_sees_the_host(machine, caplog):
    caplog.set_level("INFO")
    await machine.sh("cat /proc/net/dev | wc -l; echo $$", network_namespace="none", pid_namespace="host")
    assert "act: 3" in caplog.messages, "two lines of heading and lo"
    assert "act: 1" not in caplog.messages


async def test_action_that_ignores_term_is_killed(machine, tmp_path):
    stop = asyncio.Event()
    action = machine.shell("touch /host/up; sleep 600", volumes=(f"{tmp_path}:/host",))
    running = asyncio.create_task(machine.action(action, stop))
    await until(lambda: (tmp_path / "up").exists())
    stop.set()
    result = await asyncio.wait_for(running, PATIENCE_SECONDS)
    assert result.exit_code == 137


async def test_action_that_handles_term_tidies_up(machine, tmp_path):
    machine.runtime._grace_seconds = 60  # on a busy machine, too, it ends by itself and is not killed
    host = tmp_path
    script = "trap 'touch /host/tidy; exit 0' TERM; touch /host/up; while :; do sleep 0.05; done"
    stop = asyncio.Event()
    running = asyncio.create_task(machine.action(machine.shell(script, volumes=(f"{host}:/host",)), stop))
    await until(lambda: (host / "up").exists())
    stop.set()
    await asyncio.wait_for(running, PATIENCE_SECONDS)
    assert (host / "tidy").exists()


async def test_stop_in_the_moment_of_the_start_is_not_lost(machine):
    action = machine.shell("sleep 600")
    await machine.runtime.pull(action.image, asyncio.Event())
    for delay in (0, 0.03, 0.08):
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(delay, stop.set)
        await asyncio.wait_for(machine.runtime.run(action, stop), PATIENCE_SECONDS)


async def test_stop_before_the_container_is_there_does_not_wait_for_it_to_tidy_up(machine):
    machine.runtime._grace_seconds = 60
    action = machine.shell("sleep 600")
    await machine.runtime.pull(action.image, asyncio.Event())
    stop = asyncio.Event()
    stop.set()
    await asyncio.wait_for(machine.runtime.run(action, stop), PATIENCE_SECONDS)


async def test_program_that_the_image_does_not_have_is_named(machine):
    action = Action("a", "act", f"{machine.registry}/actions/inspect:1", cmd="/no/such/program")
    with pytest.raises(ActionError, match="/no/such/program") as caught:
        await machine.action(action)
    assert caught.value.reason == "RuntimeError"


async def test_missing_image_is_named(machine):
    image = f"{machine.registry}/actions/nothing:1"
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
    host = tmp_path
    script = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from tink.agent.model import Action\n"
        "from tink.agent.images.registry import Registries\n"
        "from tink.agent.runtimes.oci.runc import ContainerRuntime\n"
        "from tink.agent.images.store import ImageStore\n"
        "state, image, host = Path(sys.argv[1]), sys.argv[2], sys.argv[3]\n"
        "async def main():\n"
        "    runtime = ContainerRuntime('runc', state, ImageStore(state, Registries()))\n"
        "    await runtime.prepare()\n"
        "    await runtime.pull(image, asyncio.Event())\n"
        "    args = ('-c', 'touch /host/up; sleep 600')\n"
        "    action = Action('a', 'act', image, '/bin/sh', args, volumes=(host + ':/host',))\n"
        "    await runtime.run(action, asyncio.Event())\n"
        "asyncio.run(main())\n"
    )
    image = f"{machine.registry}/actions/inspect:1"
    agent = subprocess.Popen(
        [sys.executable, "-c", script, str(machine.state_dir), image, str(host)], cwd=Path(__file__).parents[3]
    )
    while not (host / "up").exists():
        assert agent.poll() is None
        await asyncio.sleep(0.02)
    agent.kill()
    agent.wait()
    [left] = (machine.state_dir / "run").iterdir()
    pid = json.loads(run("runc", "--root", machine.state_dir / "containers", "state", left.name))["pid"]
    assert Path(f"/proc/{pid}").exists()
    await machine.runtime.prepare()
    assert not Path(f"/proc/{pid}").exists()
    assert machine.leftovers() == ([], [], [])


async def test_missing_cgroups_are_explained(machine, tmp_path):
    # As under `ip netns exec`, which hides /sys/fs/cgroup.
    wrapper = tmp_path / "runc-without-cgroups"
    wrapper.write_text('#!/bin/sh\nexec unshare -m sh -c \'umount -R /sys/fs/cgroup; exec runc "$@"\' sh "$@"\n')
    wrapper.chmod(0o755)
    blind = Machine(machine.state_dir, machine.registry)
    blind.runtime._program = str(wrapper)
    with pytest.raises(ActionError, match="cgroup") as caught:
        await blind.sh("true")
    assert "nsenter" in str(caught.value)


async def test_crun_runs_the_same_bundle(tmp_path, registry):
    # crun refuses this machine's mixture of cgroup versions unless it does not see one of them.
    wrapper = tmp_path / "crun-v1"
    wrapper.write_text(
        "#!/bin/sh\nexec unshare -m sh -c '"
        'grep -q " /sys/fs/cgroup/unified " /proc/mounts && umount /sys/fs/cgroup/unified; exec crun "$@"\' sh "$@"\n'
    )
    wrapper.chmod(0o755)
    machine = Machine(tmp_path / "state", registry)
    machine.runtime._program = str(wrapper)
    await machine.runtime.prepare()
    assert await machine.sh("echo Broken >/tinkerbell/failure-reason; exit 4") == RunResult(4, "Broken", "exit code 4")
    with pytest.raises(ActionError, match="/no/such") as caught:
        await machine.action(Action("a", "act", f"{registry}/actions/inspect:1", cmd="/no/such"))
    assert caught.value.reason == "RuntimeError"
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.5, stop.set)
    result = await asyncio.wait_for(machine.action(machine.shell("sleep 600"), stop), PATIENCE_SECONDS)
    assert result.exit_code == 137
    assert machine.leftovers() == ([], [], [])
