"""Pulling images from Debian's docker-registry, filled by skopeo; and from registries that misbehave, ask for logins
and send the agent elsewhere (`fake_registry`)."""

import asyncio
import base64
import contextlib
import gzip
import json
import logging
import os
import shutil
import socketserver
import subprocess
import threading
from datetime import timedelta
from ipaddress import ip_address

import pytest
from cryptography import x509

import tink.agent.images.registry as connection_module
import tink.agent.images.registry as registry_module
import tink.agent.images.store as store_module
from tests.interop.authority import Authority
from tests.interop.conftest import running_registry
from tests.interop.images.fake_registry import FakeRegistry, digest_of, pull, refusal, tar
from tests.support.proxy import http_proxy
from tests.waiting import PATIENCE_SECONDS, until
from tink.agent.images import Credentials, Registries, parse
from tink.agent.images.registry import Session
from tink.agent.images.store import ImageBudget, ImageStore, UnpackError, apply_layer
from tink.agent.output import line_sink
from tink.net import addresses
from tink.net.addresses import special
from tink.net.proxies import Proxies


def run(*argv):
    done = subprocess.run([str(item) for item in argv], capture_output=True, text=True)
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"


@pytest.fixture
def make_store(tmp_path):
    def make(registries=None, sleep=lambda seconds: None):
        store = ImageStore(tmp_path / "state", registries or Registries(), architecture="amd64", sleep=sleep)
        tmp_path.joinpath("state").mkdir(exist_ok=True)
        store.prepare()
        return store

    return make


@pytest.fixture
def store(make_store):
    return make_store()


@pytest.fixture
def fake():
    with FakeRegistry() as registry:
        yield registry


@pytest.fixture
def big_layer():
    return tar(file=bytes(range(256)) * 8000)


# --- a real registry --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def registry(docker_registry, tmp_path_factory):
    """host:port of a docker-registry with t/two:1 (OCI, two layers, gzip), t/two:docker, t/two:zstd."""
    directory = tmp_path_factory.mktemp("images")
    layout, content = directory / "layout", directory / "content"
    content.mkdir()
    (content / "both").write_text("lower")
    (content / "gone").write_text("lower")
    run("umoci", "init", "--layout", layout)
    run("umoci", "new", "--image", f"{layout}:1")
    run("umoci", "insert", "--image", f"{layout}:1", content, "/data")
    (content / "both").write_text("upper")
    run("umoci", "insert", "--image", f"{layout}:1", content / "both", "/data/both")
    run("umoci", "insert", "--image", f"{layout}:1", "--whiteout", "/data/gone")
    run("umoci", "config", "--image", f"{layout}:1", "--config.cmd", "/bin/thing", "--config.env", "A=b")
    copy = ["skopeo", "copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false"]
    target = f"docker://{docker_registry}/t/two"
    run(*copy, f"oci:{layout}:1", f"{target}:1")
    run(*copy, "--format", "v2s2", f"oci:{layout}:1", f"{target}:docker")
    run(*copy, "--dest-compress-format", "zstd", "--dest-compress", f"oci:{layout}:1", f"{target}:zstd")
    return docker_registry


@pytest.mark.parametrize("tag", ["1", "docker", "zstd"])
async def test_image_is_pulled_and_unpacked(store, registry, tag):
    image = await pull(store, f"{registry}/t/two:{tag}")
    assert (image.rootfs / "data" / "both").read_text() == "upper"
    assert not (image.rootfs / "data" / "gone").exists()
    assert image.config["config"]["Cmd"] == ["/bin/thing"]
    assert "A=b" in image.config["config"]["Env"]
    assert list(store.work.iterdir()) == []


async def test_image_is_pulled_by_its_digest_and_its_layers_only_once(store, registry, monkeypatch):
    first = await pull(store, f"{registry}/t/two:1")
    second = await pull(store, f"{registry}/t/two@sha256:{first.rootfs.parent.name}")
    assert second.rootfs == first.rootfs

    def no_blob(*arguments):
        raise AssertionError("a layer was fetched again")

    monkeypatch.setattr(Session, "blob", no_blob)
    await pull(store, f"{registry}/t/two:1")


async def test_missing_image_is_named(store, make_store, registry, monkeypatch):
    for image in ("t/two:nothing", "no/such:1", f"t/two@sha256:{'0' * 64}"):
        assert "manifest unknown" in await refusal(store, f"{registry}/{image}")
    assert "127.0.0.1:1: Connection refused" in await refusal(store, "127.0.0.1:1/x:1")
    monkeypatch.setattr(Registries, "is_insecure", lambda self, host: False)
    assert f"name it with --insecure-registry {registry}" in await refusal(make_store(), f"{registry}/t/two:1")


async def test_progress_is_reported_in_bytes_of_all_layers(store, registry):
    reported = []
    image = f"{registry}/t/two:1"
    line_sink.set(reported.append)
    await store.pull(image, asyncio.Event())
    await asyncio.sleep(0)  # lines come from the pull's thread through the loop
    words = reported[-1].removeprefix(f"image {image}: ").split()
    assert (words[0], words[1], words[3]) == (words[2], "of", "MB")


def test_damaged_zstd_is_noticed(tmp_path):
    packed = subprocess.run(["zstd", "-c"], input=tar(file=os.urandom(500_000)), capture_output=True, check=True).stdout
    half = packed[: len(packed) // 2]
    for number, damaged in enumerate((half, half + bytes(len(packed) - len(half)))):
        (tmp_path / "layer").write_bytes(damaged)
        (tmp_path / f"root{number}").mkdir()
        with pytest.raises(UnpackError):
            apply_layer(tmp_path / f"root{number}", tmp_path / "layer", ImageBudget(10**7))


# --- a registry of the test's own -------------------------------------------------------------------------------


async def test_index_gives_the_image_of_this_machine(fake, store):
    *_, other = fake.image(tar(file=b"arm"), tag="arm")
    *_, mine = fake.image(tar(file=b"amd"), tag="amd")
    index = {
        "schemaVersion": 2,
        "manifests": [
            {"digest": other, "size": 1, "platform": {"os": "linux", "architecture": "arm64"}},
            {"digest": mine, "size": 1, "platform": {"os": "linux", "architecture": "amd64"}},
        ],
    }
    fake.paths["/v2/x/manifests/1"] = (200, {}, json.dumps(index).encode())
    assert ((await pull(store, f"{fake.host}/x:1")).rootfs / "file").read_bytes() == b"amd"
    del index["manifests"][1]
    fake.paths["/v2/x/manifests/2"] = (200, {}, json.dumps(index).encode())
    message = await refusal(store, f"{fake.host}/x:2")
    assert "linux/amd64" in message
    assert "linux/arm64" in message


async def test_broken_transfer_is_continued_where_it_broke(fake, store, big_layer):
    _, _, path, _ = fake.image(big_layer)
    begun = fake.breaks(path, big_layer, [700_000] * 3)
    image = await pull(store, f"{fake.host}/x:1")
    assert (image.rootfs / "file").stat().st_size == 256 * 8000
    assert len(begun) == 3
    assert begun[0] == 0 < begun[1] < begun[2]


async def test_registry_that_cannot_resume_sends_the_layer_from_the_start(fake, store, big_layer):
    _, _, path, _ = fake.image(big_layer)
    begun = fake.breaks(path, big_layer, [500_000])
    reported = []
    line_sink.set(reported.append)
    await store.pull(f"{fake.host}/x:1", asyncio.Event())
    await asyncio.sleep(0)
    assert begun == [0]
    assert [headers.get("Range", "")[:6] for asked, headers in fake.requests if asked == path] == ["", "bytes="]
    megabytes = f"{len(big_layer) / 1e6:.1f}"
    assert reported[-1].endswith(f": {megabytes} of {megabytes} MB"), "what came twice is not counted twice"
    assert any("continuing at byte" in line for line in reported)


async def test_layer_that_arrives_byte_by_byte_times_out(fake, store, big_layer):
    """Each attempt brings something; and so it would go on for weeks."""
    _, _, path, _ = fake.image(big_layer)
    begun = fake.breaks(path, big_layer, [1] * 100)
    assert "the connection ended after" in await refusal(store, f"{fake.host}/x:1")
    assert len(begun) == 5


@pytest.mark.parametrize("what", [0, 2], ids=["manifest", "layer"])
async def test_pull_fails_if_the_registry_stays_broken(fake, store, what):
    path = fake.image()[what]
    fake.paths[path] = (503, {}, b"busy")
    assert "503" in await refusal(store, f"{fake.host}/x:1")
    assert [asked for asked, _ in fake.requests].count(path) == 5


async def test_configuration_that_is_too_large_is_not_fetched(fake, store, monkeypatch):
    _, path, _, _ = fake.image(config=json.dumps({"architecture": "amd64", "x": "x" * 2000}).encode())
    monkeypatch.setattr(store_module, "MANIFEST_LIMIT_BYTES", 1000)
    assert "its configuration has 2" in await refusal(store, f"{fake.host}/x:1")
    assert path not in [asked for asked, _ in fake.requests]


async def test_content_that_does_not_match_the_digest_is_rejected(fake, store):
    layer = tar(file=b"content")
    _, _, path, digest = fake.image(layer)
    fake.paths[path] = (200, {}, tar(file=b"evilent"))
    assert "what the registry sent has the digest" in await refusal(store, f"{fake.host}/x:1")
    fake.paths[path] = (200, {}, layer + b"more" * 100)
    assert "longer than" in await refusal(store, f"{fake.host}/x:1")
    fake.paths[f"/v2/x/manifests/{digest}"] = (200, {}, b"{}")
    assert "digest" in await refusal(store, f"{fake.host}/x@{digest}")


async def test_layer_that_is_larger_than_the_room_is_not_fetched(fake, store):
    fake.image(layers=[{"digest": digest_of(b""), "size": 1 << 60}])
    assert "room for" in await refusal(store, f"{fake.host}/x:1")
    assert not any("/blobs/" + digest_of(b"") in requested for requested, _ in fake.requests)


async def test_other_images_make_room_when_there_is_none(fake, store, monkeypatch):
    fake.image(tar(file=b"first"), tag="1")
    fake.image(gzip.compress(tar(file=b"x" * 100_000)), tag="2")
    first = await pull(store, f"{fake.host}/x:1")
    rooms = [5000, 1 << 30]
    monkeypatch.setattr(store_module, "_room", lambda directory: rooms.pop(0))
    await pull(store, f"{fake.host}/x:2")
    assert rooms == []
    assert not first.rootfs.exists()


async def test_answers_of_the_wrong_shape_are_refused(fake, store):
    path, *_ = fake.image()
    for body in [
        b"",
        b"<html>",
        b"[]",
        b"[" * 100_000,
        b'{"schemaVersion": 1, "fsLayers": []}',
        b'{"schemaVersion": 2, "layers": 7}',
        b'{"schemaVersion": 2, "layers": [{"digest": "sha256:../../etc", "size": 1}]}',
        b'{"schemaVersion": 2, "layers": [], "config": {"digest": "sha256:' + b"a" * 64 + b'", "size": -1}}',
        b'{"manifests": ["x", {"platform": 7}]}',
    ]:
        fake.paths[path] = (200, {}, body)
        await refusal(store, f"{fake.host}/x:1")
    fake.paths[path] = (200, {}, b" " * 5_000_000)
    assert "short answer" in await refusal(store, f"{fake.host}/x:1"), "it does not fill memory"


async def test_silent_registry_does_not_hold_up_a_cancel(fake, store, big_layer):
    _, _, path, _ = fake.image(big_layer)
    asked, release = threading.Event(), threading.Event()

    def silent(handler):
        asked.set()
        release.wait()
        handler.close_connection = True
        return True

    fake.hooks[path] = silent
    stop = asyncio.Event()
    pulling = asyncio.create_task(store.pull(f"{fake.host}/x:1", stop))
    await until(asked.is_set)
    stop.set()
    try:
        await asyncio.wait_for(pulling, PATIENCE_SECONDS)
    finally:
        release.set()  # until then the registry is silent
    assert list(store.work.iterdir()) == []


# --- time ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def flooding_registry(head, again, pause=0.0):
    """A registry that sends `head` and then `again` and again; its host:port."""
    ended = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.recv(65536)
            with contextlib.suppress(OSError):
                self.request.sendall(head)
                while not ended.wait(pause):
                    self.request.sendall(again)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            ended.set()
            server.shutdown()
            thread.join()


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "again", "pause"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100, 0),
        (b"HTTP/1.1 200 OK\r\n", b"X", 0.01),
        (b"", b"H", 0.01),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4000000\r\n\r\n", b" ", 0.05),
        (CHUNKED + b"1\r\n{\r\n0\r\n", b"X-Trailer: x\r\n" * 100, 0),
        (CHUNKED, b"1\r\n \r\n", 0.05),
    ],
    ids=["interim answers", "slow headers", "slow status", "slow body", "trailers", "slow chunks"],
)
async def test_pull_from_a_stalled_registry_times_out(store, monkeypatch, head, again, pause):
    monkeypatch.setattr(connection_module, "LOW_SPEED_SECONDS", 0.1)
    with flooding_registry(head, again, pause) as host:
        assert f"{host}: too slow: " in await refusal(store, f"{host}/x:1")


# --- afterwards and around -----------------------------------------------------------------------------------------


async def test_image_of_the_last_pull_is_used_when_the_registry_is_away(fake, store):
    """A restart of the registry does not fail the second action of a Workflow."""
    path, *_ = fake.image()
    image = f"{fake.host}/x:1"
    first = await pull(store, image)
    reported = []
    for trouble in (503, 404):
        fake.paths[path] = (trouble, {}, b"gone")
        line_sink.set(reported.append)
        assert (await pull(store, image)).rootfs == first.rootfs
        await asyncio.sleep(0)
        assert f"HTTP {trouble}" in reported[-1]
        assert "the copy of the last pull is used" in reported[-1]
    shutil.rmtree(first.rootfs.parent)
    await refusal(store, image)
    await refusal(store, f"{fake.host}/x:other")


def test_which_registries_are_spoken_to_in_plain_http():
    registries = Registries(("172.31.0.1:5000", "reg.example:5000", "other.example", "10.0.0.0/8"))
    hosts = ["172.31.0.1:5000", "reg.example:5000", "reg.example:5001", "other.example", "other.example:8443"]
    hosts += ["10.1.2.3:5000", "11.1.2.3:5000", "127.0.0.1:5000", "localhost:5000", "[::1]:5000", "docker.io"]
    hosts += ["localhost.evil.example"]
    secure = [host for host in hosts if not registries.is_insecure(host)]
    assert secure == ["reg.example:5001", "11.1.2.3:5000", "docker.io", "localhost.evil.example"]


def test_docker_hub_is_asked_where_it_really_is():
    assert Session(parse("busybox"), Registries())._base == "https://registry-1.docker.io/v2/library/busybox"


async def test_image_for_another_architecture_is_warned_of(fake, store, caplog):
    caplog.set_level(logging.INFO)
    fake.image(config=b'{"architecture": "arm64"}')
    await pull(store, f"{fake.host}/x:1")
    assert "it is for arm64" in caplog.text


async def test_interrupted_pull_is_cleared_away_at_the_next_start(store):
    (store.work / "left").mkdir()
    store.prepare()
    assert list(store.work.iterdir()) == []
    shutil.rmtree(store.images)


# --- where it may send us -----------------------------------------------------------------------------------------


@pytest.fixture
def far(fake, monkeypatch):
    """The registry is somewhere else: its address is no special one. 127.0.0.2 is this machine's as before."""

    def special_elsewhere(address):
        return "" if str(address) == "127.0.0.1" else special(address)

    monkeypatch.setattr(addresses, "special", special_elsewhere)
    with socketserver.TCPServer(("127.0.0.2", 0), socketserver.BaseRequestHandler) as server:
        server.socket.setblocking(False)
        yield f"127.0.0.2:{server.server_address[1]}"
        with pytest.raises(BlockingIOError):
            server.get_request()  # there was not even a connection


@pytest.mark.parametrize("host", ["127.0.0.2:{port}", "[::ffff:127.0.0.2]:{port}", "169.254.169.254"])
async def test_redirect_of_a_registry_to_loopback_or_cloud_metadata_is_refused(fake, store, far, host):
    _, _, path, _ = fake.image()
    where = host.format(port=far.rpartition(":")[2])
    fake.paths[path] = (307, {"Location": f"http://{where}/latest/meta-data"}, b"")
    message = await refusal(store, f"{fake.host}/x:1")
    assert "it sends us to " in message
    assert "address, which registries may not" in message


async def test_token_service_is_not_the_machine_itself(fake, make_store, far):
    """Its response would go to the registry as a token, and it would receive the password."""
    fake.image()
    demand(fake, f'Bearer realm="http://{far}/token"', "Bearer t")
    assert "it sends us to 127.0.0.2" in await refusal(logged_in(fake, make_store), f"{fake.host}/x:1")


# --- authentication ---------------------------------------------------------------------------------------------

BASIC = "Basic " + base64.b64encode(b"user:hunter2").decode()


def logged_in(fake, make_store):
    return make_store(Registries((), (Credentials(fake.host, "user", "hunter2"),)))


def demand(fake, challenge, wanted):
    """Make every path under /v2/ answer 401 with `challenge` unless the Authorization header is `wanted`."""

    def check(handler):
        if handler.headers.get("Authorization") == wanted:
            return False
        handler.reply(401, {"WWW-Authenticate": challenge}, b"{}")
        return True

    fake.hooks.update({path: check for path in fake.paths if path.startswith("/v2/")})


@pytest.mark.parametrize(
    ("given_for", "wanted", "expected_message"),
    [
        ("HOST", BASIC, ""),
        ("", BASIC, "registry_username="),
        ("HOST", "Basic other", "401"),
        ("other.example", BASIC, "the credentials given are for other.example"),
        ("https://HOST/v2/", BASIC, ""),
        ("HOST/x", BASIC, ""),
        ("HOST/other", BASIC, "the credentials given are for HOST/other"),
    ],
    ids=["right", "none", "wrong", "another registry's", "a URL", "the repository's", "another repository's"],
)
async def test_password_is_for_its_registry_and_a_failure_explains_itself_without_it(
    fake, make_store, given_for, wanted, expected_message
):
    fake.image()
    demand(fake, 'Basic realm="r"', wanted)
    credentials = (Credentials(given_for.replace("HOST", fake.host), "user", "hunter2"),) if given_for else ()
    store = make_store(Registries((), credentials))
    if not expected_message:
        await pull(store, f"{fake.host}/x:1")
        return
    message = await refusal(store, f"{fake.host}/x:1")
    for part in expected_message.replace("HOST", fake.host).split(", "):
        assert part in message
    assert "hunter2" not in message
    if wanted == BASIC:
        assert all("Authorization" not in headers for _, headers in fake.requests)


@pytest.mark.parametrize("known", [True, False])
async def test_token_is_fetched_from_the_realm_with_the_users_credentials_if_there_are_any(
    fake, make_store, store, known
):
    fake.image()
    demand(
        fake, f'Bearer realm="http://{fake.host}/token",service="reg",scope="repository:mirror/x:pull"', "Bearer t0ken"
    )
    fake.paths["/token"] = (200, {}, b'{"token": "t0ken"}')
    await pull(logged_in(fake, make_store) if known else store, f"{fake.host}/x:1")
    [(path, headers)] = [request for request in fake.requests if request[0].startswith("/token")]
    assert path == "/token?service=reg&scope=repository%3Amirror%2Fx%3Apull"
    assert headers.get("Authorization") == (BASIC if known else None)


@pytest.mark.parametrize(
    ("challenge", "token", "expected_message"),
    [
        (
            'Bearer realm="http://HOST/token"',
            (403, {}, b'{"errors": [{"message": "denied by policy"}]}'),
            "denied by policy",
        ),
        ('Bearer realm="http://HOST/token"', (200, {}, b"{}"), "no token"),
        ('Bearer realm="http://HOST/token"', (200, {}, b'{"token": "a\\r\\nX: y"}'), "no token"),
        ('Bearer realm="file:///etc/passwd"', (200, {}, b""), "no http"),
        ("Negotiate", (200, {}, b""), "Negotiate"),
        ("", (200, {}, b""), "does not say how"),
    ],
)
async def test_authentication_that_cannot_work_is_explained(fake, store, challenge, token, expected_message):
    fake.image()
    demand(fake, challenge.replace("HOST", fake.host), "Bearer t0ken")
    fake.paths["/token"] = token
    assert expected_message in await refusal(store, f"{fake.host}/x:1")


@pytest.mark.parametrize("wanted", ["Bearer t2", BASIC])
async def test_of_several_ways_to_log_in_the_one_that_works_is_taken_and_a_token_that_expires_is_replaced(
    fake, make_store, wanted
):
    manifest, *blobs, _ = fake.image()
    tokens = iter(("t1", "t2", "t3"))
    fields = ("Negotiate", 'Basic realm = "x"', f'NTLM, Bearer realm="http://{fake.host}/token" , service = "s"')

    def check(handler):
        # The first token is good for the manifest alone.
        good = (wanted, "Bearer t1") if handler.path == manifest and wanted != BASIC else (wanted,)
        if handler.headers.get("Authorization") in good:
            return False
        handler.send_response(401)
        for field in fields:
            handler.send_header("WWW-Authenticate", field)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return True

    def token(handler):
        handler.reply(200, {}, json.dumps({"access_token": next(tokens)}).encode())
        return True

    fake.hooks |= {"/token": token} | dict.fromkeys((manifest, *blobs), check)
    await pull(logged_in(fake, make_store), f"{fake.host}/x:1")
    assert len([path for path, _ in fake.requests if path.startswith("/token")]) == (1 if wanted == BASIC else 2)


@pytest.fixture
def elsewhere():
    with FakeRegistry() as registry:
        yield registry


async def test_credentials_do_not_follow_a_redirect_to_another_host(fake, elsewhere, make_store):
    _, _, path, _ = fake.image()
    demand(fake, 'Basic realm="r"', BASIC)
    elsewhere.paths["/storage"] = fake.paths[path]
    fake.paths[path] = (307, {"Location": f"http://{elsewhere.host}/storage?sig=%2F%2b+&n=a b"}, b"")
    await pull(logged_in(fake, make_store), f"{fake.host}/x:1")
    [(requested, headers)] = elsewhere.requests
    assert requested == "/storage?sig=%2F%2b+&n=a%20b"
    assert "Authorization" not in headers


async def test_login_and_signature_of_a_redirect_are_used_and_not_shown(fake, elsewhere, store, caplog):
    caplog.set_level(logging.DEBUG)
    _, _, path, _ = fake.image()
    elsewhere.paths["/storage"] = fake.paths[path]
    fake.paths[path] = (307, {"Location": f"http://user:hunter2@{elsewhere.host}/storage?sig=secret"}, b"")
    await pull(store, f"{fake.host}/x:1")
    assert [headers["Authorization"] for _, headers in elsewhere.requests] == [BASIC]
    fake.paths[path] = (307, {"Location": "ftp://user:hunter2@h/storage?sig=secret"}, b"")
    shutil.rmtree(store.images)
    store.prepare()
    assert "ftp://h/storage?…" in (message := await refusal(store, f"{fake.host}/x:1"))
    assert not [secret for secret in ("hunter2", "sig=") if secret in message + caplog.text]


async def test_image_is_pulled_through_the_proxy(fake, make_store):
    fake.image()
    with http_proxy() as proxy:
        port = int(fake.host.rpartition(":")[2])
        proxy.hosts = {"reg.invalid:5000": ("127.0.0.1", port)}
        store = make_store(Registries(("reg.invalid:5000",), proxies=Proxies(proxy.url, no_proxy="10.0.0.0/8")))
        await pull(store, "reg.invalid:5000/x:1")
        assert len(proxy.asked) == len(fake.requests) == 3
        store = make_store(Registries(("reg.invalid:5000",), proxies=Proxies("socks5://s", no_proxy="10.0.0.0/8")))
        assert "SOCKS is not supported; write http://HOST:PORT" in await refusal(store, "reg.invalid:5000/y:1")


@pytest.mark.parametrize("scheme", ["Bearer", "Basic"])
async def test_password_does_not_go_to_the_realm_that_the_target_of_a_redirect_names(
    fake, elsewhere, make_store, scheme
):
    """Only the registry itself may say who checks the users of the registry."""
    _, _, path, _ = fake.image()
    demand(fake, 'Basic realm="r"', BASIC)
    challenge = {"WWW-Authenticate": f'{scheme} realm="http://{elsewhere.host}/token"'}
    elsewhere.paths["/storage"] = (401, challenge, b"{}")
    elsewhere.paths["/token"] = (200, {}, b'{"token": "t"}')
    fake.paths[path] = (307, {"Location": f"http://{elsewhere.host}/storage"}, b"")
    message = await refusal(logged_in(fake, make_store), f"{fake.host}/x:1")
    assert f"it redirects to {elsewhere.host}, which requires its own login" in message
    assert elsewhere.requests
    assert all("Authorization" not in headers for _, headers in elsewhere.requests)


@pytest.mark.parametrize(
    "where", ["http://[bad", "ftp://h/x", "http://h:99999/x", "http://h:0/", "http://", "//[:/", ""]
)
async def test_redirect_or_realm_that_is_no_url_is_reported_as_the_registrys_error(fake, store, where):
    """It is not reported as an internal error with a traceback."""
    path, *_ = fake.image()
    for answer in (
        (307, {"Location": where}, b""),
        (401, {"WWW-Authenticate": f'Bearer realm="{where}"'}, b""),
    ):
        fake.paths[path] = answer
        message = await refusal(store, f"{fake.host}/x:1")
        assert message.endswith((" URL", "redirects more than five times")), message


@pytest.mark.parametrize(
    ("retry_after", "longest"),
    [("", 4.0), ("7", 7.0), ("86400", 60.0), ("0", 4.0), ("-5", 4.0), ("Sun, 06 Nov 1994 08:49:37 GMT", 4.0)],
)
async def test_retry_after_of_a_registry_is_obeyed(fake, make_store, retry_after, longest):
    """A rack that boots at once meets a limit of requests a minute: five attempts in eight seconds are not enough."""
    manifest, _, layer, _ = fake.image()
    answers = [(manifest, 429), (manifest, 500), (manifest, 503), (layer, 429), (layer, 503), (layer, 429)]

    def busy(handler):
        path = handler.path.partition("?")[0]
        for number, (busy_path, status) in enumerate(answers):
            if busy_path == path:
                del answers[number]
                handler.reply(status, {"Retry-After": retry_after} if retry_after else {}, b"slowly")
                return True
        return False

    fake.hooks |= {manifest: busy, layer: busy}
    pauses = []
    store = make_store(sleep=pauses.append)
    await pull(store, f"{fake.host}/x:1")
    assert answers == []
    assert len(pauses) == 6
    assert max(pauses) == longest


async def test_redirect_in_a_circle_ends(fake, store):
    path, *_ = fake.image()
    fake.paths[path] = (302, {"Location": path}, b"")
    assert "redirects" in await refusal(store, f"{fake.host}/x:1")


# --- TLS ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pems(tmp_path_factory):
    """Certificates (PEM): of an authority, and of servers. Those of servers are files, too, with their keys (.key)."""
    directory, strange = tmp_path_factory.mktemp("tls"), tmp_path_factory.mktemp("strange")
    authority, here = Authority(directory), x509.IPAddress(ip_address("127.0.0.1"))
    files = {
        "good": authority.sign("good", here),
        "other": authority.sign("other", x509.IPAddress(ip_address("192.0.2.1"))),
        "old": authority.sign("old", here, timedelta(days=-3)),
        "strange": Authority(strange).sign("strange", here),
    }
    found = {"ca": authority.file.read_text(), "leaf": files["good"][0].read_text().partition("-----END")[0]}
    found["leaf"] += "-----END CERTIFICATE-----\n"
    return found, files


@pytest.fixture
def secured(pems, registry, registry_data, tmp_path):
    """`secured(certificate)`: host:port of a docker-registry with TLS that has what `registry` has."""
    with contextlib.ExitStack() as stack:

        def start(name):
            certificate, key = pems[1][name]
            tls = f", tls: {{certificate: {certificate}, key: {key}}}"
            return stack.enter_context(running_registry(tmp_path, registry_data, tls))

        yield start


@pytest.fixture
def nothing_is_insecure(monkeypatch):
    """Loopback is insecure by itself."""
    monkeypatch.setattr(Registries, "is_insecure", lambda self, host: host in self.insecure)


@pytest.mark.parametrize(
    ("certificate", "trusted", "expected_message"),
    [
        ("good", "ca", ""),
        ("good", "leaf", ""),
        ("good", "", "--registry-ca HOST=FILE, or name it with --insecure-registry HOST"),
        ("strange", "ca", "--registry-ca HOST=FILE, or name it with --insecure-registry HOST"),
        ("other", "ca", "use a name that its certificate has"),
        ("old", "ca", "renew its certificate, or set the clock of this machine"),
    ],
)
@pytest.mark.usefixtures("nothing_is_insecure")
async def test_registry_with_an_authority_of_its_own_is_pulled_from_once_that_is_given(
    secured, make_store, pems, certificate, trusted, expected_message
):
    host = secured(certificate)
    given = {f"https://{host}/": pems[0][trusted]} if trusted else {}
    store = make_store(Registries(authorities=given))
    if expected_message:
        assert expected_message.replace("HOST", host) in await refusal(store, f"{host}/t/two:1")
    else:
        await pull(store, f"{host}/t/two:1")


@pytest.mark.parametrize("certificate", ["other", "old", "strange"])
async def test_insecure_registry_is_spoken_to_over_tls_whatever_its_certificate(secured, make_store, certificate):
    host = secured(certificate)
    assert await pull(make_store(Registries((host,))), f"{host}/t/two:1") is not None


@pytest.mark.parametrize("speaks_tls", [True, False])
async def test_insecure_registry_that_is_silent_in_the_handshake_is_asked_over_http_and_then_given_time(
    secured, fake, make_store, monkeypatch, speaks_tls
):
    """Some HTTP servers wait for the end of a header that never comes. A server of HTTPS may only be slow."""
    fake.image(name="t/two")
    host = secured("good") if speaks_tls else fake.host
    silences, real = [True], registry_module.RegistryConnection

    def connection(scheme, *arguments, **more):
        if scheme == "https" and silences and silences.pop():
            raise TimeoutError("_ssl.c:990: The handshake operation timed out")
        return real(scheme, *arguments, **more)

    monkeypatch.setattr(registry_module, "RegistryConnection", connection)
    await pull(make_store(), f"{host}/t/two:1")
    assert silences == []


@pytest.mark.usefixtures("nothing_is_insecure")
async def test_authority_of_one_registry_is_not_used_for_another(secured, make_store, pems):
    host = secured("good")
    store = make_store(Registries(authorities={"other.example": pems[0]["ca"]}))
    assert f"--registry-ca {host}=FILE" in await refusal(store, f"{host}/t/two:1")


async def test_edge_is_asked_over_plain_http_at_once(fake, make_store):
    fake.image()
    bad = []
    fake.server.RequestHandlerClass.log_message = lambda _, *arguments: bad.append(arguments)
    fake.server.RequestHandlerClass.log_request = lambda *_: None
    await pull(make_store(Registries(plain=(fake.host,))), f"{fake.host}/x:1")
    assert bad == []
    await pull(make_store(), f"{fake.host}/x:1")
    assert len(bad) == 1  # what is TLS's
