"""The docker runtime against an engine that does on purpose what real ones do rarely; volumes of all runtimes.

What real engines do is tested with them, in tests/interop/containers/test_docker.py.
"""

import asyncio
import base64
import io
import json
import re
import struct
import tarfile

import pytest
from aiohttp import web

from tests.support.virtual_time import turns
from tink.agent.images import Credentials, Registries
from tink.agent.model import ActionError, AgentSettingsError, Reason, RenderedAction
from tink.agent.output import line_sink
from tink.agent.runtimes.docker import (
    DockerRuntime,
    container_request,
    failure_archive,
    find_socket,
    image_name,
    text_of_archive,
)
from tink.agent.runtimes.runtime import ContainerHost, Volume, parse_volume, parse_volumes

IMAGE = "registry.example/a/b:1"
DONE = {"status": f"Status: Downloaded newer image for {IMAGE}"}


# --- what is asked of an engine -----------------------------------------------------------------------------------


def request_of(mask=None, **more):
    return container_request(RenderedAction("id", "act", more.pop("image", IMAGE), **more), "agent", mask)


def test_container_is_privileged_has_the_machines_devices_and_can_be_found_again():
    body = request_of(cmd="/bin/x", args=("a", "b"), env={"A": "b=c"})
    host = body["HostConfig"]
    assert (host["Privileged"], host["Binds"], host["RestartPolicy"]) == (True, ["/dev:/dev"], {"Name": "no"})
    assert (body["Entrypoint"], body["Cmd"], body["Env"]) == (["/bin/x"], ["a", "b"], ["A=b=c"])
    assert body["Labels"] == {"tinkedge.agent": "agent", "tinkedge.action": "id"}
    assert host["LogConfig"]["Config"]["max-size"] == "4m"


def test_image_keeps_its_own_command_where_the_action_names_none_and_is_named_in_full():
    """Or an engine completes its name otherwise."""
    digest = "sha256:" + "a" * 64
    assert image_name("busybox") == "docker.io/library/busybox:latest"
    assert image_name(f"r.example:5000/x:1@{digest}") == f"r.example:5000/x@{digest}"
    assert not {"Entrypoint", "Cmd"} & request_of().keys()
    assert "Cmd" not in request_of(cmd="/x")
    assert "Entrypoint" not in request_of(args=("x",))


def test_engine_that_lacks_a_capability_is_asked_for_the_others_and_all_devices():
    every = (1 << 41) - 1
    host = request_of(mask=every & ~(1 << 24) & ~(1 << 39))["HostConfig"]
    assert (host["Privileged"], host["CapAdd"], host["CapDrop"]) == (False, ["ALL"], ["SYS_RESOURCE"])
    assert host["DeviceCgroupRules"] == ["a *:* rwm"]
    assert host["MaskedPaths"] == host["ReadonlyPaths"] == []


def test_volumes_are_checked_and_an_action_may_have_its_own_dev():
    volumes = ("/a:/b:ro,rslave", "cache:/c")
    assert request_of(volumes=volumes)["HostConfig"]["Binds"] == ["/dev:/dev", *volumes]
    assert request_of(volumes=("/dev:/dev:ro",))["HostConfig"]["Binds"] == ["/dev:/dev:ro"]
    host = request_of(volumes=("/a:/b", "/run/x.sock:/x:ro,rslave"))["HostConfig"]
    assert host["Binds"] == ["/dev:/dev", "/a:/b"]
    # An engine makes a directory for a bind that has no source, and refuses a mount.
    mount = {"Type": "bind", "Source": "/run/x.sock", "Target": "/x", "ReadOnly": True}
    assert host["Mounts"] == [mount | {"BindOptions": {"Propagation": "rslave"}}]
    with pytest.raises(ActionError, match="volumes"):
        request_of(volumes=("/a:/b:exec",))


NETWORKS = {"": "host", "host": "host", "/proc/1/ns/net": "host", "none": "none", "bridge": "bridge"}
PIDS = {"": "", "private": "", "host": "host", "/proc/1/ns/pid": "host"}


def test_namespaces_mean_what_they_mean_without_an_engine():
    assert {asked: request_of(network_namespace=asked)["HostConfig"]["NetworkMode"] for asked in NETWORKS} == NETWORKS
    assert {asked: request_of(pid_namespace=asked)["HostConfig"]["PidMode"] for asked in PIDS} == PIDS


@pytest.mark.parametrize("field", ["network_namespace", "pid_namespace"])
@pytest.mark.parametrize("asked", ["container:x", "/run/netns/x", "Host", "ns:/proc/1/ns/net"])
def test_namespace_that_no_engine_joins_is_an_error_of_the_action(field, asked):
    with pytest.raises(ActionError, match="runc") as caught:
        request_of(**{field: asked})
    assert (caught.value.reason, repr(asked) in str(caught.value)) == (Reason.INVALID_ACTION, True)


def test_failure_files_can_be_written_by_everybody():
    with tarfile.open(fileobj=io.BytesIO(failure_archive())) as archive:
        modes = {member.name: (member.mode, member.size) for member in archive if member.isfile()}
    assert modes == {"tinkerbell/failure-reason": (0o666, 0), "tinkerbell/failure-message": (0o666, 0)}


def archive_of(content, **attributes):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("failure-reason")
        member.size, member.mtime = len(content), 1.5  # a fraction makes a PAX header
        for name, value in attributes.items():
            setattr(member, name, value)
        archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def test_failure_file_is_read_only_if_it_is_a_file_and_only_its_beginning():
    assert text_of_archive(archive_of(b"Word\n")) == "Word\n"
    assert len(text_of_archive(archive_of(b"x" * 100_000)[:16384])) == 4096
    link = archive_of(b"", type=tarfile.SYMTYPE, linkname="/etc/shadow")
    # What comes behind a link that claims a size is not its content.
    assert text_of_archive(link) == text_of_archive(archive_of(b"secret", type=tarfile.DIRTYPE)) == ""
    assert text_of_archive(b"") == text_of_archive(b"\xff" * 2000) == text_of_archive(archive_of(b"Word")[:300]) == ""


def test_socket_is_a_path_or_a_unix_url(tmp_path, monkeypatch):
    assert str(find_socket("unix:///x/y.sock")) == str(find_socket("/x/y.sock")) == "/x/y.sock"
    for bad in ("tcp://127.0.0.1:2375", "x.sock", "ssh://host"):
        with pytest.raises(AgentSettingsError, match="docker host"):
            find_socket(bad)
    monkeypatch.setattr("tink.agent.runtimes.docker.DEFAULT_SOCKETS", (tmp_path / "docker", tmp_path / "podman"))
    with pytest.raises(AgentSettingsError, match="podman"):
        find_socket("")
    (tmp_path / "podman").touch()
    assert find_socket("") == tmp_path / "podman"


# --- an engine that misbehaves ------------------------------------------------------------------------------------


class FakeEngine:
    """Answers what a test puts into `pulls`, and keeps what it was asked for."""

    def __init__(self):
        self.headers = {"Api-Version": "1.41", "Server": "Docker/1 (linux)"}
        self.pulls, self.asked, self.logins, self.images = [], [], [], set()
        self.containers, self.starts, self.bodies, self.waits = [], [], [], []
        self.pauses, self.signals, self.killed = [], [], asyncio.Event()

    async def handle(self, request):
        path = re.sub(r"^/(v\d[^/]*/)?", "", request.path)
        self.asked.append(f"{request.method} {path}")
        if path == "_ping":
            return web.Response(text="OK", headers=self.headers)
        if path in ("images/create", "libpod/images/pull"):
            self.logins.append(request.headers.get("X-Registry-Auth"))
            return await self.pull(request)
        if path.startswith("images/"):
            name = path.removeprefix("images/").removesuffix("/json")
            if name not in self.images:
                return web.json_response({"message": "No such image"}, status=404)
            if request.method == "DELETE":
                self.images.discard(name)
                return web.json_response([])
            return web.json_response({"Id": name})
        return await self.container(request, path)

    async def pull(self, request):
        answer = self.pulls.pop(0)
        if callable(answer):
            return await answer(request)
        if isinstance(answer, tuple):
            return web.json_response({"message": answer[1]}, status=answer[0])
        return web.Response(body="".join(json.dumps(item) + "\r\n" for item in answer).encode())

    async def container(self, request, path):
        if path == "containers/json":
            return web.json_response(self.containers)
        if path == "containers/create":
            self.bodies.append(await request.json())
            return web.json_response({"Id": f"c{len(self.bodies)}"}, status=201)
        if path.endswith("/start"):
            status, message = self.starts.pop(0) if self.starts else (204, "")
            return web.json_response({"message": message}, status=status) if message else web.Response(status=status)
        if path.endswith("/wait"):
            answer = self.waits.pop(0)
            if callable(answer):
                return await answer(request)
            return web.json_response(*answer[:1], status=answer[1])
        if path.endswith("/json"):
            state = {"Status": "created" if "/c9/" in path else "running", "Running": False}
            return web.json_response({"Id": "c", "Config": {"Tty": False}, "State": state})
        if path.endswith("/kill"):
            self.signals.append(request.query["signal"])
            if self.signals[-1] == "SIGKILL":
                self.killed.set()
        if path.endswith("/attach"):
            response = web.StreamResponse(status=101, headers={"Connection": "Upgrade", "Upgrade": "tcp"})
            await response.prepare(request)
            request.transport.write(struct.pack(">BxxxL", 1, 5) + b"said\n")
            request.transport.close()
            return response
        if path.endswith("/archive") and request.method == "GET":
            return web.json_response({"message": "no such file"}, status=404)
        return web.Response(status=204 if request.method == "DELETE" else 200)


@pytest.fixture
async def engine(tmp_path):
    fake = FakeEngine()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", fake.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    fake.socket = tmp_path / "engine.sock"
    await web.UnixSite(runner, str(fake.socket)).start()
    yield fake
    await runner.cleanup()


@pytest.fixture
async def runtime(engine):
    return await make(engine)


async def make(engine, registries=None):
    async def sleep(seconds):
        engine.pauses.append(seconds)
        await turns()

    host = ContainerHost(capability_mask=(1 << 41) - 1 - (1 << 24))
    more = {"host": host, "sleep": sleep, "grace_seconds": 0.05, "reconnect_seconds": 60.0}
    runtime = DockerRuntime(str(engine.socket), "agent", registries or Registries(), **more)
    await runtime.prepare()
    return runtime


async def pulled(runtime, image=IMAGE):
    """The lines that the action's output got."""
    reported = []
    line_sink.set(reported.append)
    await runtime.pull(image, asyncio.Event())
    await turns()
    return [line.removeprefix(f"image {image}: ") for line in reported]


async def broken_off(request):
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(json.dumps(DONE).encode()[:20])
    request.transport.abort()
    return response


async def test_pull_is_tried_again_after_failures_that_pass_with_growing_pauses(engine, runtime):
    engine.pulls = [
        (500, "Get https://registry.example/v2/: dial tcp: i/o timeout"),
        broken_off,
        [{"status": "Pulling from a/b"}],
        [DONE],
    ]
    reported = await pulled(runtime)
    assert engine.pauses == [0.5, 1.0, 2.0]
    assert len([line for line in reported if line.endswith("trying again")]) == 3
    assert "in the middle" in reported[2], "an answer that just ends is no success"


async def garbage(_request):
    return web.Response(body=b"<html>\n")


HELPLESS = ["manifest unknown", "pull access denied", "x509: unknown authority", "no basic auth credentials"]


@pytest.mark.parametrize(
    ("answer", "named", "tries"),
    [
        *(([{"error": logged, "errorDetail": {"message": logged}}], logged, 1) for logged in HELPLESS),
        ((500, "connection refused"), f"image {IMAGE}: connection refused", 5),
        ([{"error": "received unexpected HTTP status: 503 Service Unavailable"}], "503", 5),
        (garbage, "not JSON", None),
        ([[1, 2]], "not a JSON object", None),
    ],
)
async def test_pull_that_never_succeeds_ends_with_the_message_of_the_engine(engine, runtime, answer, named, tries):
    engine.pulls = [answer] * 9
    with pytest.raises(ActionError, match=named) as caught:
        await pulled(runtime)
    assert caught.value.reason == Reason.IMAGE_PULL_FAILED
    if tries is not None:
        assert (9 - len(engine.pulls), len(engine.pauses)) == (tries, tries - 1)


async def test_progress_is_in_bytes_of_all_layers_at_a_bounded_rate(engine, runtime):
    reports = [{"status": "Pulling fs layer", "id": "a", "progressDetail": {}}]
    for done in range(1001):
        for layer in ("a", "b"):
            detail = {"current": done * 1000, "total": 1_000_000}
            reports.append({"status": "Downloading", "id": layer, "progressDetail": detail})
    reports += [{"status": "Downloading", "id": "c", "progressDetail": {"current": 7, "total": -1}}, {"id": 7}]
    engine.pulls = [[*reports, DONE]]
    reported = await pulled(runtime)
    assert reported[-1] == "2.0 of 2.0 MB"
    assert len(reported) < 10


async def test_stop_ends_a_pull_at_once_and_without_an_error(engine, runtime):
    begun = asyncio.Event()

    async def silent(request):
        begun.set()
        await asyncio.Event().wait()

    engine.pulls = [silent]
    stop = asyncio.Event()
    pulling = asyncio.create_task(runtime.pull(IMAGE, stop))
    await begun.wait()
    stop.set()
    await pulling
    with pytest.raises(ActionError):
        await runtime.pull("BAD", asyncio.Event())


async def test_image_that_the_osie_brought_along_is_used_when_no_registry_has_it(engine, runtime):
    engine.images.add(IMAGE)
    engine.pulls = [(404, "manifest unknown")]
    assert "the engine's copy is used" in (await pulled(runtime))[-1]


async def test_earlier_images_of_this_agent_and_no_others_go_when_there_is_no_room(engine, runtime):
    other = "registry.example/other:1"
    engine.images |= {IMAGE, other, "mine:1"}
    engine.pulls = [[DONE], [{"error": "write /x: no space left on device"}], [DONE]]
    await pulled(runtime)
    reported = await pulled(runtime, other)
    assert "images of earlier actions were removed" in reported[0]
    assert engine.images == {other, "mine:1"}
    engine.images.clear()
    engine.pulls = [[{"error": "no space left on device"}]] * 5
    with pytest.raises(ActionError, match="no space left"):
        await pulled(runtime, "registry.example/third:1")


async def test_credentials_are_shown_for_their_registry_only(engine):
    runtime = await make(engine, Registries((), (Credentials("registry.example", "u", "ä"),)))
    engine.pulls = [[DONE], [DONE]]
    await pulled(runtime)
    await pulled(runtime, "elsewhere.example/x:1")
    login = json.loads(base64.urlsafe_b64decode(engine.logins[0]))
    assert login == {"username": "u", "password": "ä", "serveraddress": "registry.example"}
    assert engine.logins[1] is None


async def test_podman_receives_insecure_registries_and_the_error_for_docker_names_its_list(engine):
    registries = Registries(("10.0.0.0/8",))
    logged = "http: server gave HTTP response to HTTPS client"
    engine.pulls = [(500, logged)]
    with pytest.raises(ActionError, match="insecure-registries of the Docker daemon"):
        await pulled(await make(engine, registries), "10.1.2.3:5000/x:1")
    assert "POST libpod/images/pull" not in engine.asked
    engine.headers["Libpod-API-Version"] = "4.3.1"
    engine.pulls = [[{"stream": "Trying"}, {"images": ["x"], "id": "x"}], (500, logged)]
    podman = await make(engine, registries)
    await pulled(podman, "10.1.2.3:5000/x:1")
    assert "POST libpod/images/pull" in engine.asked
    with pytest.raises(ActionError, match="--insecure-registry"):
        await pulled(podman, "registry.example/x:1")
    engine.pulls = [(500, "x509: certificate signed by unknown authority")]
    with pytest.raises(ActionError, match=r"into /etc/containers/certs\.d/registry\.example/ca\.crt"):
        await pulled(podman, "registry.example/x:1")


ACTION = RenderedAction("id", "act", IMAGE, "/bin/x")


async def test_engine_without_a_capability_gets_a_second_request_and_is_remembered(engine, runtime):
    engine.starts = [(500, "OCI runtime create failed: unable to apply caps: operation not permitted")]
    engine.waits = [({"StatusCode": 0}, 200)] * 2
    assert (await runtime.run(ACTION, asyncio.Event())).succeeded
    assert [body["HostConfig"]["Privileged"] for body in engine.bodies] == [True, False]
    assert engine.asked.count("DELETE containers/c1") == 1
    await runtime.run(ACTION, asyncio.Event())
    assert [body["HostConfig"]["Privileged"] for body in engine.bodies] == [True, False, False]


async def test_failed_start_leaves_no_container(engine, runtime):
    engine.starts = [(400, 'OCI runtime create failed: exec: "/bin/x": no such file')]
    with pytest.raises(ActionError, match="no such file") as caught:
        await runtime.run(ACTION, asyncio.Event())
    assert caught.value.reason == Reason.RUNTIME_ERROR
    assert engine.asked[-1] == "DELETE containers/c1"


async def test_wait_that_breaks_is_repeated_and_output_reaches_the_message(engine, runtime):
    async def broken(request):
        request.transport.abort()

    engine.waits = [broken, ({"message": "restarting"}, 500), ({"StatusCode": 3}, 200)]
    result = await runtime.run(ACTION, asyncio.Event())
    assert (result.exit_code, result.message) == (3, "exit code 3 | said")
    assert engine.asked[-1] == "DELETE containers/c1"


async def test_removed_container_is_a_failure_with_a_name(engine, runtime):
    engine.waits = [({"message": "No such container: c1"}, 404)]
    with pytest.raises(ActionError, match=r"action act: .*No such container"):
        await runtime.run(ACTION, asyncio.Event())


async def test_stopped_container_gets_term_then_kill(engine, runtime):
    stop = asyncio.Event()

    async def until_killed(request):
        stop.set()
        await engine.killed.wait()
        return web.json_response({"StatusCode": 137})

    engine.waits = [until_killed]
    result = await runtime.run(ACTION, stop)
    assert (result.exit_code, engine.signals[:2]) == (137, ["SIGTERM", "SIGKILL"])


async def test_container_that_never_started_is_removed_and_not_resumed(engine, runtime):
    engine.containers = [{"Id": "c9", "Labels": {}}]  # the engine shows it as created
    assert await runtime.resume(ACTION, asyncio.Event()) is None
    assert "DELETE containers/c9" in engine.asked
    assert "POST containers/c9/start" not in engine.asked


# --- volumes, as all runtimes read them -------------------------------------------------------------------------------


def test_volume_with_several_options():
    assert parse_volume("/a:/b:ro,rslave") == Volume("/a", "/b", ("ro", "rslave"), named=False)


@pytest.mark.parametrize(
    "text",
    [
        "/a", "", "/a:b", "/a:/", "/a:/.", "/a:/b/../..", "/a:/b:rw:x", "/a:/b:exec", ":/b", "../x:/b", "a/b:/c",
        "..:/c", "-x:/c", "/a:/b:ro,rw", "/a:/b:rw,ro", "/a:/b:ro,ro", "/a:/b:rshared,rslave", "name:/b:rshared",
    ],
)  # fmt: skip
def test_bad_volume_is_named(text):
    with pytest.raises(ActionError, match="volumes") as caught:
        parse_volume(text)
    assert repr(text) in str(caught.value)


def test_what_is_mounted_twice_at_one_place_is_an_error_that_names_both():
    with pytest.raises(ActionError, match="'/x:/m'") as caught:
        parse_volumes(["/x:/m", "/other:/o", "/y://m/"])
    assert "'/y://m/'" in str(caught.value)


def test_volume_inside_of_another_comes_after_it():
    assert [volume.target for volume in parse_volumes(["/c:/a/b/c", "x:/z", "/a:/a/"])] == ["/z", "/a", "/a/b/c"]


@pytest.mark.parametrize(
    ("text", "written"), [("/a:/b/:", "/a:/b"), ("/a:/b:ro,", "/a:/b:ro"), ("n:/b:rw", "n:/b:rw"), ("/a:/b", "/a:/b")]
)
def test_volume_is_written_without_what_an_engine_would_stumble_over(text, written):
    assert str(parse_volume(text)) == written


EXIST = ["/var/run/docker.sock", "/run/containerd/containerd.sock", "/etc/resolv.conf", "/etc/hosts", "/etc/app.yaml"]
EXIST += ["/dev/sdz", "/proc/cmdline", "/keys/id.pub", "/x/Disk.IMG"]
MADE = ["/worker", "/etc/conf.d", "/var/lib/v1.2", "/data/app.sock.d", "/etc", "cache.sock"]


@pytest.mark.parametrize("source", [*EXIST, *MADE])
def test_source_that_names_a_socket_a_file_or_a_device_is_never_made(source):
    assert parse_volume(f"{source}:/x").must_exist == (source in EXIST)
