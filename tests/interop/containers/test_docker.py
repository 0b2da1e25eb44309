"""Behaviour of engines only, Debian's dockerd and podman: how they pull, and what outlives an agent."""

import asyncio
import json
import signal
import urllib.parse

import aiohttp
import pytest
from aiodocker.containers import DockerContainer
from aiohttp import web

from tests.interop.containers.conftest import AGENT, shell
from tests.interop.containers.engines import run
from tests.waiting import PATIENCE_SECONDS, until
from tink.agent.images import Credentials, Registries
from tink.agent.model import ActionError, AgentSettingsError, Reason, RenderedAction, RunResult
from tink.agent.output import line_sink
from tink.agent.runtimes.docker import DockerRuntime


@pytest.fixture(params=["docker", "podman"])
def which(request):
    return request.param


async def test_pull_reports_its_progress_and_names_a_missing_image(machine):
    messages = []
    line_sink.set(messages.append)
    await machine.runtime.pull(f"{machine.registry}/alike/writer:1", asyncio.Event())
    await asyncio.sleep(0)
    for line in messages:
        assert line.startswith(f"image {machine.registry}/alike/writer:1: ")
    image = f"{machine.registry}/alike/nothing:1"
    with pytest.raises(ActionError, match=f"image {image}: .*manifest.unknown") as caught:
        await machine.runtime.pull(image, asyncio.Event())
    assert caught.value.reason == Reason.IMAGE_PULL_FAILED


async def test_image_is_pulled_by_its_digest_and_only_once(machine):
    index = json.loads(run("skopeo", "inspect", "--tls-verify=false", f"docker://{machine.registry}/alike/plain:1"))
    image = f"{machine.registry}/alike/plain@{index['Digest']}"
    messages = []
    line_sink.set(messages.append)
    for _ in range(2):
        await machine.runtime.pull(image, asyncio.Event())
    await asyncio.sleep(0)
    assert messages[-1] == f"image {image}: is here already"
    assert (await machine.runtime.run(RenderedAction("a", "act", image, "/bin/true"), asyncio.Event())).succeeded


async def test_agent_that_was_killed_takes_its_action_over(machine, tmp_path):
    script = (
        "echo early; touch /host/up; until test -e /host/go; do sleep 0.05; done; "
        "echo Late >/tinkerbell/failure-reason; echo late; exit 9"
    )
    action = await machine.kill_agent(script, tmp_path)
    again = machine.another()
    await again.prepare("died")
    assert len(await machine.engine.containers()) == 1
    messages = []
    line_sink.set(messages.append)
    waiting = asyncio.create_task(again.resume(action, asyncio.Event()))
    await until(lambda: "early" in "".join(messages), lambda: messages)
    (tmp_path / "go").touch()
    result = await asyncio.wait_for(waiting, PATIENCE_SECONDS)
    assert result == RunResult(9, "Late", "exit code 9 | early | late")
    assert await again.resume(action, asyncio.Event()) is None


@pytest.fixture
async def abandoned(machine, tmp_path):
    """Return a function that starts an action, abandons it, and returns the action as the next agent knows it."""

    async def begin(script):
        action = shell(machine.registry, script, id="died", volumes=(f"{tmp_path}:/host",))
        await machine.runtime.pull(action.image, asyncio.Event())
        async with machine.runtime._engine.open() as docker:
            _, attached = await machine.runtime._start(docker, action, asyncio.Event())
            await attached.close()
        await until((tmp_path / "up").exists)
        return action

    return begin


async def test_agent_that_was_killed_hears_how_its_action_ended_meanwhile(machine, abandoned):
    action = await abandoned("echo said; echo Meanwhile >/tinkerbell/failure-reason; touch /host/up; exit 4")

    async def has_exited():
        return [found["State"] for found in await machine.engine.get("containers/json?all=1")] == ["exited"]

    await until(has_exited)
    again = machine.another()
    await again.prepare("died")
    result = await asyncio.wait_for(again.resume(action, asyncio.Event()), PATIENCE_SECONDS)
    assert result == RunResult(4, "Meanwhile", "exit code 4 | said")


async def test_container_without_a_waiting_agent_is_removed_and_others_are_not(machine, abandoned):
    await abandoned("touch /host/up; sleep 600")
    other = machine.another(agent="52:54:00:00:00:02")
    await other.prepare()
    assert len(await machine.engine.containers()) == 1, "another agent's container is not this one's to remove"
    await machine.another().prepare("another")
    assert await machine.engine.containers() == []


async def test_action_survives_a_restart_of_the_engine(machine, tmp_path, monkeypatch):
    is_waiting = asyncio.Event()
    wait = DockerContainer.wait

    async def reported_wait(container, **options):
        is_waiting.set()
        return await wait(container, **options)

    monkeypatch.setattr(DockerContainer, "wait", reported_wait)
    script = "touch /host/up; until test -e /host/go; do sleep 0.05; done; echo after; exit 6"
    running = asyncio.create_task(machine.sh(script, volumes=(f"{tmp_path}:/host",)))
    await until((tmp_path / "up").exists)
    await is_waiting.wait()  # the agent has the engine's report of the start
    machine.engine.processes[0].send_signal(signal.SIGKILL)
    machine.engine.processes[0].wait()
    machine.engine.socket.unlink()
    machine.engine.processes[0] = await asyncio.to_thread(machine.engine.restart)
    (tmp_path / "go").touch()
    result = await asyncio.wait_for(running, PATIENCE_SECONDS)
    assert result.exit_code == 6


async def test_engine_that_is_not_there_is_named(tmp_path):
    runtime = DockerRuntime(str(tmp_path / "no.sock"), AGENT, Registries(), reconnect_seconds=0)
    with pytest.raises(AgentSettingsError, match=r"no\.sock"):
        await runtime.prepare()


@pytest.fixture
async def private(docker_registry):
    """A registry in front of the real one that requires a user and a password; what it was shown."""
    shown = []

    async def answer(request):
        shown.append(request.headers.get("Authorization", ""))
        if shown[-1] != "Basic dXNlcjpzZWNyZXQ=":
            body = {"errors": [{"code": "UNAUTHORIZED", "message": "authentication required"}]}
            return web.json_response(body, status=401, headers={"WWW-Authenticate": 'Basic realm="private"'})
        async with aiohttp.ClientSession() as session:
            headers = {"Accept": ", ".join(request.headers.getall("Accept", ["*/*"]))}
            url = f"http://{docker_registry}{request.path_qs}"
            async with session.get(url, headers=headers) as response:  # also for HEAD: the response has the length
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
    image = f"{host}/alike/plain:1"
    with pytest.raises(ActionError, match="registry_username"):
        await machine.runtime.pull(image, asyncio.Event())
    elsewhere = machine.another(registries=Registries((), (Credentials("elsewhere.example", "user", "secret"),)))
    await elsewhere.prepare()
    with pytest.raises(ActionError):
        await elsewhere.pull(image, asyncio.Event())
    assert set(shown) <= {"", "Basic Og=="}, "Podman shows an empty user to whom it knows none for"
    knowing = machine.another(registries=Registries((), (Credentials(host, "user", "secret"),)))
    await knowing.prepare()
    await knowing.pull(image, asyncio.Event())
    assert "Basic dXNlcjpzZWNyZXQ=" in shown
