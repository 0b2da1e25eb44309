"""Real containers in real engines: the agent's docker runtime with Debian's dockerd and podman, from a real registry.

Runs as root.
"""

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from tests.interop.containers.engines import Engine, run, start_podman
from tests.waiting import PATIENCE_SECONDS, until
from tink.agent.images.registry import Credentials, Registries
from tink.agent.model import Action, ActionError, Reason, RunResult, SettingsError
from tink.agent.output.lines import line_sink
from tink.agent.runtimes.docker.runtime import DockerRuntime

AGENT = "52:54:00:00:00:01"


@pytest.fixture(scope="module")
def engines(docker):
    """Both engines, by name."""
    # Podman takes no directory for what runs whose name is longer than 50 characters.
    with tempfile.TemporaryDirectory(prefix="podman-") as directory:
        podman = start_podman(Path(directory))
        yield {"docker": docker, "podman": podman}
        podman.end()


@pytest.fixture(scope="module")
def registry(actions, docker_registry, tmp_path_factory):
    """host:port of a registry with the example action `inspect`, and one that runs as a user and has a volume."""
    directory = tmp_path_factory.mktemp("engine-images")
    user = directory / "user"
    shutil.copytree(actions / "inspect", user)
    (directory / "etc").mkdir()
    (directory / "etc" / "passwd").write_text("root:x:0:0::/:/bin/sh\nwriter:x:1234:1235::/:/bin/sh\n")
    run("umoci", "insert", "--image", f"{user}:1", directory / "etc", "/etc")
    run("umoci", "config", "--image", f"{user}:1", "--config.user", "writer", "--config.volume", "/data")
    for layout in (actions / "inspect", user):
        run(
            "skopeo", "copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false",
            f"oci:{layout}:1", f"docker://{docker_registry}/engine/{layout.name}:1",
        )  # fmt: skip
    return docker_registry


@dataclass
class Machine:
    engine: Engine
    registry: str
    runtime: DockerRuntime

    def shell(self, script, image="inspect", **more):
        more.setdefault("id", "a")
        return Action(name="act", image=f"{self.registry}/engine/{image}:1", cmd="/bin/sh", args=("-c", script), **more)

    async def sh(self, script, stop=None, **more):
        stop = stop or asyncio.Event()
        action = self.shell(script, **more)
        await self.runtime.pull(action.image, stop)
        return await self.runtime.run(action, stop)


def runtime_of(engine, registries=None, **more):
    return DockerRuntime(f"unix://{engine.socket}", AGENT, registries or Registries(), grace_seconds=0.3, **more)


@pytest.fixture(scope="module")
def prepared():
    """The runtimes that are ready, by engine: asking Podman costs a quarter of a second each time."""
    return {}


@pytest.fixture(params=["docker", "podman"])
async def machine(request, engines, registry, prepared):
    """A runtime for each engine; after the test, no container is left."""
    engine = engines[request.param]
    if engine.name not in prepared:
        prepared[engine.name] = runtime_of(engine)
        await prepared[engine.name].prepare()
    yield Machine(engine, registry, prepared[engine.name])
    assert await engine.containers() == []


async def reached(path):
    await until(path.exists, f"{path} does not appear")


async def test_action_sees_its_environment_arguments_and_the_machine(machine, caplog):
    caplog.set_level("INFO")
    script = (
        "echo greeting=$GREETING; echo pid=$$; echo net=$(readlink /proc/self/ns/net); grep CapEff /proc/self/status; "
        "mknod /tmp/zero c 1 5 && head -c 2 /tmp/zero | od -An -tx1; test -b /dev/loop0 && echo disk; printf last"
    )
    assert await machine.sh(script, env={"GREETING": "hello world"}) == RunResult(0)
    said = [message.removeprefix("act: ") for message in caplog.messages if message.startswith("act: ")]
    mask = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))
    capabilities = int(mask.split()[1], 16) & 0x3FFFFFFFFF  # Docker 20.10 does not know the three newest
    assert int(said.pop(3).split()[1], 16) & 0x3FFFFFFFFF == capabilities
    net = Path("/proc/self/ns/net").readlink()
    assert said == ["greeting=hello world", "pid=1", f"net={net}", "00 00", "disk", "last"]


async def test_action_of_another_user_may_say_why_it_failed(machine, caplog):
    caplog.set_level("INFO")
    script = (
        "id -u; echo DiskNotFound >/tinkerbell/failure-reason; echo no /dev/sda >/tinkerbell/failure-message; exit 7"
    )
    volumes = await machine.engine.volumes()
    assert await machine.sh(script, image="user") == RunResult(7, "DiskNotFound", "no /dev/sda")
    assert "act: 1234" in caplog.messages
    assert await machine.engine.volumes() == volumes, "the image's anonymous volume is not left behind"


async def test_failure_files_that_are_no_files_or_too_large_do_no_harm(machine):
    script = (
        "cd /tinkerbell; rm failure-reason; ln -s /etc/hostname failure-reason; yes word | head -c 30000000 "
        ">failure-message; exit 7"
    )
    result = await machine.sh(script)
    assert (result.exit_code, result.reason) == (7, Reason.NON_ZERO_EXIT)
    assert len(result.message) <= 2048


async def test_flood_of_output_and_invalid_utf8_lose_nothing_of_the_end(machine):
    line = "0123456789" * 50
    result = await machine.sh(rf"printf '\377\n'; yes {line} | head -n 12000; printf 'end\377'; exit 3")
    assert result.message.endswith(f"{line} | end�"), "six megabytes are more than the engine keeps"
    assert (result.exit_code, result.reason) == (3, Reason.NON_ZERO_EXIT)


async def test_named_volume_stays_and_host_directory_is_made(machine, tmp_path):
    volumes = ("scratch:/mnt", f"{tmp_path}/new/dir:/host:rw")
    assert (await machine.sh("echo data >/mnt/file; touch /host/here", volumes=volumes)).succeeded
    assert (tmp_path / "new" / "dir" / "here").exists()
    result = await machine.sh("cat /mnt/file; echo x >/mnt/file", volumes=("scratch:/mnt:ro",))
    assert "data" in result.message
    assert "Read-only file system" in result.message


async def test_namespaces_are_the_machines_or_none(machine, caplog):
    caplog.set_level("INFO")
    await machine.sh("wc -l </proc/net/dev; echo $$", network_namespace="none", pid_namespace="/proc/1/ns/pid")
    assert "act: 3" in caplog.messages, "two lines of heading and lo"
    assert "act: 1" not in caplog.messages
    with pytest.raises(ActionError, match="/run/netns/x") as caught:
        await machine.sh("true", network_namespace="/run/netns/x")
    assert caught.value.reason == Reason.INVALID_ACTION


async def test_program_that_the_image_does_not_have_is_named(machine):
    action = Action("a", "act", f"{machine.registry}/engine/inspect:1", cmd="/no/such/program")
    await machine.runtime.pull(action.image, asyncio.Event())
    with pytest.raises(ActionError, match="/no/such/program") as caught:
        await machine.runtime.run(action, asyncio.Event())
    assert caught.value.reason == Reason.RUNTIME_ERROR


async def test_stopped_action_gets_term_and_then_kill(machine, tmp_path, monkeypatch):
    for script, code in (
        ("trap 'touch /host/tidy; exit 0' TERM; touch /host/up; while :; do sleep 0.05; done", 0),
        ("touch /host/up; sleep 600", 137),
    ):
        monkeypatch.setattr(machine.runtime, "_grace_seconds", 0.3 if code else 60)
        stop = asyncio.Event()
        running = asyncio.create_task(machine.sh(script, stop, volumes=(f"{tmp_path}:/host",)))
        await reached(tmp_path / "up")
        stop.set()
        assert (await asyncio.wait_for(running, PATIENCE_SECONDS)).exit_code == code
        (tmp_path / "up").unlink()
    assert (tmp_path / "tidy").exists()


async def test_stop_before_the_start_starts_nothing(machine, tmp_path):
    action = machine.shell("touch /host/up", volumes=(f"{tmp_path}:/host",))
    await machine.runtime.pull(action.image, asyncio.Event())
    stop = asyncio.Event()
    stop.set()
    assert not (await asyncio.wait_for(machine.runtime.run(action, stop), PATIENCE_SECONDS)).succeeded
    assert not (tmp_path / "up").exists()


async def test_pull_tells_its_progress_and_names_what_is_missing(machine):
    told = []
    line_sink.set(told.append)
    await machine.runtime.pull(f"{machine.registry}/engine/user:1", asyncio.Event())
    await asyncio.sleep(0)
    for line in told:
        assert line.startswith(f"image {machine.registry}/engine/user:1: ")
    image = f"{machine.registry}/engine/nothing:1"
    with pytest.raises(ActionError, match=f"image {image}: .*manifest.unknown") as caught:
        await machine.runtime.pull(image, asyncio.Event())
    assert caught.value.reason == Reason.IMAGE_PULL_FAILED


async def test_image_is_pulled_by_its_digest_and_only_once(machine):
    index = json.loads(run("skopeo", "inspect", "--tls-verify=false", f"docker://{machine.registry}/engine/inspect:1"))
    image = f"{machine.registry}/engine/inspect@{index['Digest']}"
    told = []
    line_sink.set(told.append)
    for _ in range(2):
        await machine.runtime.pull(image, asyncio.Event())
    await asyncio.sleep(0)
    assert told[-1] == f"image {image}: is here already"
    assert (await machine.runtime.run(Action("a", "act", image, "/bin/true"), asyncio.Event())).succeeded


SCRIPT = """
import asyncio, sys
from tink.agent.output.lines import line_sink
from tink.agent.runtimes.docker.runtime import DockerRuntime
from tink.agent.model import Action
from tink.agent.images.registry import Registries
socket, agent, image, host, script = sys.argv[1:]
async def main():
    runtime = DockerRuntime(socket, agent, Registries())
    await runtime.prepare()
    await runtime.pull(image, asyncio.Event())
    action = Action("died", "act", image, "/bin/sh", ("-c", script), volumes=(host + ":/host",))
    await runtime.run(action, asyncio.Event())
asyncio.run(main())
"""


@pytest.fixture
async def killed(machine, tmp_path):
    """Begins an action and kills its agent; the action as the next agent knows it."""

    async def begin(script):
        action = machine.shell(script, id="died", volumes=(f"{tmp_path}:/host",))
        argv = [sys.executable, "-c", SCRIPT, machine.engine.socket, AGENT, action.image, tmp_path, script]
        agent = subprocess.Popen([str(item) for item in argv], cwd=Path(__file__).parents[3])
        await reached(tmp_path / "up")
        agent.kill()
        agent.wait()
        return action

    return begin


async def test_agent_that_was_killed_takes_its_action_over(machine, killed, tmp_path):
    action = await killed(
        "echo early; touch /host/up; until test -e /host/go; do sleep 0.05; done; "
        "echo Late >/tinkerbell/failure-reason; echo late; exit 9"
    )
    again = runtime_of(machine.engine)
    await again.prepare("died")
    assert len(await machine.engine.containers()) == 1
    waiting = asyncio.create_task(again.resume(action, asyncio.Event()))
    await asyncio.sleep(0.2)
    (tmp_path / "go").touch()
    result = await asyncio.wait_for(waiting, PATIENCE_SECONDS)
    assert result == RunResult(9, "Late", "exit code 9 | early | late")
    assert await again.resume(action, asyncio.Event()) is None


@pytest.fixture
async def abandoned(machine, tmp_path):
    """Begins an action that nobody waits for; the action as the next agent knows it."""

    async def begin(script):
        action = machine.shell(script, id="died", volumes=(f"{tmp_path}:/host",))
        await machine.runtime.pull(action.image, asyncio.Event())
        async with machine.runtime._engine.open() as docker:
            _, attached = await machine.runtime._start(docker, action, asyncio.Event())
            await attached.close()
        await reached(tmp_path / "up")
        return action

    return begin


async def test_agent_that_was_killed_hears_how_its_action_ended_meanwhile(machine, abandoned):
    action = await abandoned("echo said; echo Meanwhile >/tinkerbell/failure-reason; touch /host/up; exit 4")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while [found["State"] for found in await machine.engine.get("containers/json?all=1")] != ["exited"]:
            await asyncio.sleep(0.02)
    again = runtime_of(machine.engine)
    await again.prepare("died")
    result = await asyncio.wait_for(again.resume(action, asyncio.Event()), PATIENCE_SECONDS)
    assert result == RunResult(4, "Meanwhile", "exit code 4 | said")


async def test_container_that_nobody_asks_back_is_removed_and_others_are_not(machine, abandoned):
    await abandoned("touch /host/up; sleep 600")
    other = DockerRuntime(str(machine.engine.socket), "52:54:00:00:00:02", Registries())
    await other.prepare()
    assert len(await machine.engine.containers()) == 1, "another agent's container is not this one's to remove"
    await runtime_of(machine.engine).prepare("another")
    assert await machine.engine.containers() == []


async def test_action_survives_a_restart_of_the_engine(machine, tmp_path):
    script = "touch /host/up; until test -e /host/go; do sleep 0.05; done; echo after; exit 6"
    running = asyncio.create_task(machine.sh(script, volumes=(f"{tmp_path}:/host",)))
    await reached(tmp_path / "up")
    await asyncio.sleep(2)  # until the engine has said that it is started
    machine.engine.processes[0].send_signal(signal.SIGKILL)
    machine.engine.processes[0].wait()
    machine.engine.socket.unlink()
    machine.engine.processes[0] = await asyncio.to_thread(machine.engine.restart)
    (tmp_path / "go").touch()
    result = await asyncio.wait_for(running, PATIENCE_SECONDS)
    assert result.exit_code == 6


async def test_engine_that_is_not_there_is_named(tmp_path):
    runtime = DockerRuntime(str(tmp_path / "no.sock"), AGENT, Registries(), reconnect_seconds=0)
    with pytest.raises(SettingsError, match=r"no\.sock"):
        await runtime.prepare()


@pytest.fixture
async def private(docker_registry):
    """A registry in front of the real one that wants a user and a password; what it was shown."""
    from aiohttp import web

    shown = []

    async def answer(request):
        shown.append(request.headers.get("Authorization", ""))
        if shown[-1] != "Basic dXNlcjpzZWNyZXQ=":
            body = {"errors": [{"code": "UNAUTHORIZED", "message": "authentication required"}]}
            return web.json_response(body, status=401, headers={"WWW-Authenticate": 'Basic realm="private"'})
        async with aiohttp.ClientSession() as session:
            headers = {"Accept": ", ".join(request.headers.getall("Accept", ["*/*"]))}
            url = f"http://{docker_registry}{request.path_qs}"
            async with session.get(url, headers=headers) as response:  # also for HEAD: its length is told
                kept = ("Content-Type", "Docker-Content-Digest", "Docker-Distribution-Api-Version")
                headers = {name: response.headers[name] for name in kept if name in response.headers}
                return web.Response(status=response.status, headers=headers, body=await response.read())

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield urllib.parse.urlsplit(f"//127.0.0.1:{runner.addresses[0][1]}").netloc, shown
    await runner.cleanup()


async def test_credentials_go_to_their_registry_and_to_no_other(machine, private):
    host, shown = private
    image = f"{host}/engine/inspect:1"
    with pytest.raises(ActionError, match="registry_username"):
        await machine.runtime.pull(image, asyncio.Event())
    elsewhere = runtime_of(machine.engine, Registries((), Credentials("elsewhere.example", "user", "secret")))
    await elsewhere.prepare()
    with pytest.raises(ActionError):
        await elsewhere.pull(image, asyncio.Event())
    assert set(shown) <= {"", "Basic Og=="}, "Podman shows an empty user to whom it knows none for"
    knowing = runtime_of(machine.engine, Registries((), Credentials(host, "user", "secret")))
    await knowing.prepare()
    await knowing.pull(image, asyncio.Event())
    assert "Basic dXNlcjpzZWNyZXQ=" in shown
