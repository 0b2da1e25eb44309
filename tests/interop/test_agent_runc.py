"""Real containers: the agent's runtime with Debian's runc and crun, images built with umoci, from a real registry.

Runs as root. The example actions of deploy/actions are built and used as they are.
"""

import asyncio
import hashlib
import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import grpc.aio
import pytest

import tink.agent.oci.runc as runc_module
from proto import workflow_pb2 as pb
from proto.workflow_pb2_grpc import WorkflowServiceServicer, add_WorkflowServiceServicer_to_server
from tests.waiting import until
from tink.agent.model import Action, ActionError, RunResult
from tink.agent.oci.registry import Registries
from tink.agent.oci.runc import ContainerRuntime
from tink.agent.oci.store import ImageStore

ACTIONS = Path(__file__).parents[2] / "deploy" / "actions"


def run(*argv, **more):
    done = subprocess.run([str(item) for item in argv], capture_output=True, text=True, **more)
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def registry(docker_registry, tmp_path_factory):
    """host:port of a docker-registry that holds the example actions and a few of the test's own."""
    directory = tmp_path_factory.mktemp("images")
    run(ACTIONS / "build.sh", directory / "actions")
    run(ACTIONS / "push.sh", directory / "actions", docker_registry)
    user = directory / "actions" / "user"
    shutil.copytree(directory / "actions" / "inspect", user)
    (directory / "etc").mkdir()
    (directory / "etc" / "passwd").write_text("root:x:0:0::/:/bin/sh\nwriter:x:1234:1235::/:/bin/sh\n")
    (directory / "etc" / "group").write_text("root:x:0:\nwriter:x:1235:\ndisk:x:6:writer\n")
    run("umoci", "insert", "--image", f"{user}:1", directory / "etc", "/etc")
    run("umoci", "config", "--image", f"{user}:1", "--config.user", "writer", "--config.workingdir", "/tmp")
    run(
        "skopeo", "copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false",
        f"oci:{user}:1", f"docker://{docker_registry}/actions/user:1",
    )  # fmt: skip
    return docker_registry


class Machine:
    """A runtime with its state, and one action of a shell script."""

    def __init__(self, state_dir, registry, program="runc", **more):
        self.state_dir = state_dir
        self.registry = registry
        self.runtime = ContainerRuntime(
            shutil.which(program), state_dir, ImageStore(state_dir, Registries()), grace_seconds=0.3, **more
        )

    async def action(self, action, stop=None):
        stop = stop or asyncio.Event()
        await self.runtime.pull(action.image, stop)
        return await self.runtime.run(action, stop)

    def shell(self, script, image="inspect", **more):
        image = f"{self.registry}/actions/{image}:1"
        return Action("a", "act", image, cmd="/bin/sh", args=("-c", script), **more)

    async def sh(self, script, **more):
        return await self.action(self.shell(script, **more))

    def leftovers(self):
        """What an ended action has left: its directory, mounts, container states."""
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        containers = self.state_dir / "containers"
        return (
            list((self.state_dir / "run").iterdir()),
            [mount for mount in mounts if mount.startswith(str(self.state_dir))],
            list(containers.iterdir()) if containers.exists() else [],
        )


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory):
    """One for all tests, so that each image is unpacked once."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture
async def machine(state_dir, registry):
    machine = Machine(state_dir, registry)
    await machine.runtime.prepare()
    yield machine
    assert machine.leftovers() == ([], [], [])


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
    await until((tmp_path / "up").exists)
    stop.set()
    result = await asyncio.wait_for(running, 10)
    assert result.exit_code == 137


async def test_action_that_handles_term_tidies_up(machine, tmp_path):
    host = tmp_path
    script = "trap 'touch /host/tidy; exit 0' TERM; touch /host/up; while :; do sleep 0.05; done"
    stop = asyncio.Event()
    running = asyncio.create_task(machine.action(machine.shell(script, volumes=(f"{host}:/host",)), stop))
    await until((host / "up").exists)
    stop.set()
    await asyncio.wait_for(running, 10)
    assert (host / "tidy").exists()


async def test_stop_in_the_moment_of_the_start_is_not_lost(machine):
    action = machine.shell("sleep 600")
    await machine.runtime.pull(action.image, asyncio.Event())
    for delay in (0, 0.03, 0.08):
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(delay, stop.set)
        await asyncio.wait_for(machine.runtime.run(action, stop), 10)


async def test_stop_before_the_container_is_there_does_not_wait_for_it_to_tidy_up(machine):
    machine.runtime._grace_seconds = 60
    action = machine.shell("sleep 600")
    await machine.runtime.pull(action.image, asyncio.Event())
    stop = asyncio.Event()
    stop.set()
    await asyncio.wait_for(machine.runtime.run(action, stop), 15)


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
        "from tink.agent.oci.registry import Registries\n"
        "from tink.agent.oci.runc import ContainerRuntime\n"
        "from tink.agent.oci.store import ImageStore\n"
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
        [sys.executable, "-c", script, str(machine.state_dir), image, str(host)], cwd=Path(__file__).parents[2]
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
    result = await asyncio.wait_for(machine.action(machine.shell("sleep 600"), stop), 10)
    assert result.exit_code == 137
    assert machine.leftovers() == ([], [], [])


# --- the whole agent --------------------------------------------------------------------------------------------


class Server(WorkflowServiceServicer):
    """Sends what is put into `commands` and keeps the events."""

    def __init__(self):
        self.commands = asyncio.Queue()
        self.events = []

    async def GetWorkflows(self, request, context):  # noqa: N802 - the service's name
        while True:
            yield await self.commands.get()

    async def PublishEvent(self, request, context):  # noqa: N802
        self.events.append(request.event)
        return pb.PublishEventResponse()

    def start(self, workflow_id, *actions):
        command = pb.GetWorkflowsResponse()
        command.start_workflow.workflow.workflow_id = workflow_id
        command.start_workflow.workflow.actions.extend(actions)
        self.commands.put_nowait(command)

    async def told(self, count):
        """Kind, action and reason of the first `count` events."""
        for _ in range(1000):
            if len(self.events) >= count:
                break
            await asyncio.sleep(0.02)
        found = [getattr(event, event.WhichOneof("event")) for event in self.events]
        return [(type(event).__name__, event.action_id, getattr(event, "failure_reason", "")) for event in found]


@pytest.fixture
async def server():
    servicer, grpc_server = Server(), grpc.aio.server()
    add_WorkflowServiceServicer_to_server(servicer, grpc_server)
    servicer.address = f"127.0.0.1:{grpc_server.add_insecure_port('127.0.0.1:0')}"
    await grpc_server.start()
    yield servicer
    await grpc_server.stop(None)


@pytest.fixture
async def agent(server, state_dir, tmp_path):
    """The agent in a process of its own, configured by a kernel command line."""
    script = (
        "import logging, sys\n"
        "from pathlib import Path\n"
        "from tink.agent import from_kernel_command_line, run\n"
        "logging.basicConfig(level=logging.INFO)\n"
        "sys.exit(run(from_kernel_command_line(sys.argv[1], state_dir=Path(sys.argv[2]), "
        "after_workflow=('sh', '-c', 'echo $TINKEDGE_WORKFLOW_STATE >>' + sys.argv[3]))))\n"
    )
    cmdline = f"quiet worker_id=52:54:00:00:00:01 grpc_authority={server.address}"
    with (tmp_path / "agent.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", script, cmdline, str(state_dir), str(tmp_path / "after")],
            cwd=Path(__file__).parents[2],
            stderr=log,
        )
    yield process
    if process.poll() is None:
        process.kill()
        process.wait()


async def ended(process):
    for _ in range(500):
        if process.poll() is not None:
            return process.returncode
        await asyncio.sleep(0.02)
    pytest.fail("the agent did not end")


async def test_agent_runs_workflows_and_tells_the_server(machine, server, agent, registry, tmp_path):
    image = f"{registry}/actions/inspect:1"
    sh = {"image": image, "cmd": "/bin/sh"}
    shared = {**sh, "volumes": ["e2e:/v"]}
    server.start(
        "w1",
        pb.Workflow.Action(id="1", name="one", args=["-c", "echo data >/v/file"], **shared),
        pb.Workflow.Action(
            id="2", name="two", args=["-c", "cat /v/file; test $A = b"], env={"A": "b"}, volumes=["e2e:/v"], **sh
        ),
    )
    assert await server.told(4) == [
        ("ActionStarted", "1", ""),
        ("ActionSucceeded", "1", ""),
        ("ActionStarted", "2", ""),
        ("ActionSucceeded", "2", ""),
    ]
    await until((tmp_path / "after").exists)
    await asyncio.sleep(0.2)
    server.start("w2", pb.Workflow.Action(id="1", name="bad", args=["-c", "exit 1"], **sh))
    assert (await server.told(6))[4:] == [("ActionStarted", "1", ""), ("ActionFailed", "1", "NonZeroExit")]
    await until(lambda: (tmp_path / "after").read_text() == "Succeeded\nFailed\n")
    agent.terminate()
    assert await ended(agent) == 0
    log = (tmp_path / "agent.log").read_text()
    assert "two: data" in log
    assert "Traceback" not in log


async def test_agent_that_is_terminated_takes_its_container_with_it(machine, server, agent, registry, tmp_path):
    action = pb.Workflow.Action(
        id="1", name="long", image=f"{registry}/actions/inspect:1", cmd="/bin/sh",
        args=["-c", "trap 'exit 0' TERM; touch /host/up; while :; do sleep 0.05; done"], volumes=[f"{tmp_path}:/host"],
    )  # fmt: skip
    server.start("w3", action)  # an id of its own: the agents of this file share a state directory, which remembers
    await until((tmp_path / "up").exists)
    agent.terminate()
    assert await ended(agent) == 0
    assert await server.told(1) == [("ActionStarted", "1", "")]
    assert machine.leftovers() == ([], [], [])


# --- the example actions ----------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path):
    """A loop device of 16 MiB and the file behind it."""
    file = tmp_path / "disk.img"
    file.write_bytes(bytes(16 * 1024 * 1024))
    device = run("losetup", "--find", "--show", file).strip()
    try:
        yield device, file
    finally:
        run("losetup", "--detach", device)


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_GET(self):
        if self.path == "/short.img":
            self.send_response(200)
            self.send_header("Content-Length", "1000000")
            self.end_headers()
            self.wfile.write(b"only the beginning")
            return
        super().do_GET()


@pytest.fixture
def website(tmp_path):
    """URL and directory of a web server."""
    directory = tmp_path / "www"
    directory.mkdir()
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), lambda *arguments: QuietHandler(*arguments, directory=str(directory))
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", directory
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def example(machine, name, **env):
    return Action("a", name, f"{machine.registry}/actions/{name}:1", env=env)


@pytest.mark.parametrize("pack", [None, "gzip", "zstd", "xz", "bzip2"])
async def test_image2disk_writes_the_image(machine, disk, website, pack, caplog):
    caplog.set_level("INFO")
    device, file = disk
    url, directory = website
    content = os.urandom(3_000_001)
    image = directory / "disk.img"
    image.write_bytes(content)
    if pack:
        ending = {"gzip": "gz", "zstd": "zst", "xz": "xz", "bzip2": "bz2"}[pack]
        packed = subprocess.run([pack, "-c", str(image)], capture_output=True, check=True).stdout
        image = directory / f"disk.img.{ending}"
        image.write_bytes(packed)
    env = {"IMG_URL": f"{url}/{image.name}", "DEST_DISK": device, "COMPRESSED": "true" if pack else "false"}
    env["IMG_SHA256"] = hashlib.sha256(image.read_bytes()).hexdigest().upper()
    assert await machine.action(example(machine, "image2disk", **env)) == RunResult(0)
    assert file.read_bytes()[: len(content)] == content
    assert f"image2disk: 3000001 bytes written to {device}" in caplog.text


@pytest.mark.parametrize(
    ("env", "reason", "said"),
    [
        ({"IMG_URL": "URL/nothing.img"}, "DownloadFailed", "404"),
        ({"IMG_URL": "http://127.0.0.1:1/x.img"}, "DownloadFailed", "refused"),
        ({"IMG_URL": "URL/short.img"}, "DownloadFailed", "short.img"),
        ({"IMG_URL": "URL/good.img", "IMG_SHA256": "0" * 64}, "ChecksumMismatch", "not 0000"),
        ({"IMG_URL": "URL/good.img", "IMG_SHA256": "abc"}, "InvalidSetting", "IMG_SHA256"),
        ({"IMG_URL": "URL/good.img", "COMPRESSED": "true"}, "InvalidSetting", ".gz"),
        ({"IMG_URL": "URL/bad.img.gz", "COMPRESSED": "true"}, "DecompressFailed", "bad.img.gz"),
        ({"IMG_URL": "URL/bad.img.zst", "COMPRESSED": "true"}, "DecompressFailed", "bad.img.zst"),
        ({"IMG_URL": "URL/big.img"}, "WriteFailed", "No space left"),
        ({"IMG_URL": "URL/empty.img"}, "DownloadFailed", "empty"),
        ({"DEST_DISK": "", "IMG_URL": "URL/good.img"}, "InvalidSetting", "DEST_DISK"),
        ({}, "InvalidSetting", "IMG_URL"),
    ],
)
async def test_image2disk_says_what_went_wrong(machine, disk, website, env, reason, said):
    url, directory = website
    (directory / "good.img").write_bytes(b"good" * 1000)
    (directory / "bad.img.gz").write_bytes(b"not compressed at all" * 1000)
    (directory / "bad.img.zst").write_bytes(b"not compressed at all" * 1000)
    (directory / "big.img").write_bytes(bytes(17 * 1024 * 1024))
    (directory / "empty.img").write_bytes(b"")
    env = {"DEST_DISK": disk[0], **{name: value.replace("URL", url) for name, value in env.items()}}
    result = await machine.action(example(machine, "image2disk", **env))
    assert (result.reason, said in result.message) == (reason, True), result


async def test_image2disk_can_be_stopped_while_the_server_is_silent(machine, disk):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/x.img"
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(0.7, stop.set)
        machine.runtime._grace_seconds = 60  # on a busy machine, too, it ends by itself and is not killed
        action = example(machine, "image2disk", IMG_URL=url, DEST_DISK=disk[0])
        result = await asyncio.wait_for(machine.action(action, stop), 20)
        assert result.exit_code == 143


async def test_inspect_names_the_partition_table_and_changes_nothing(machine, disk, caplog):
    caplog.set_level("INFO")
    device, file = disk
    before = hashlib.sha256(file.read_bytes()).digest()
    assert (await machine.action(example(machine, "inspect", DEST_DISK=device))).succeeded
    assert f"inspect: {device}: has no partition table" in caplog.messages
    assert hashlib.sha256(file.read_bytes()).digest() == before
    with file.open("r+b") as raw:
        raw.seek(510)
        raw.write(b"\x55\xaaEFI PART")
    assert (await machine.action(example(machine, "inspect", DEST_DISK=device))).succeeded
    assert f"inspect: {device}: has a GPT" in caplog.messages
    result = await machine.action(example(machine, "inspect", DEST_DISK="/dev/nothing"))
    assert (result.reason, "/dev/nothing" in result.message) == ("DiskNotFound", True)


async def test_reboot_leaves_its_request_where_the_osie_looks(machine, tmp_path):
    image = f"{machine.registry}/actions/reboot:1"
    action = Action("a", "reboot", image, volumes=(f"{tmp_path}/requests:/host",))
    assert (await machine.action(action)).succeeded
    assert (tmp_path / "requests" / "reboot").exists()
    assert (await machine.action(Action("a", "reboot", image))).reason == "HostNotMounted"
