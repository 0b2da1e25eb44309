"""Pulling images from Debian's docker-registry, filled by skopeo; and from registries that misbehave.

The first half uses a real registry, the second `fake_registry`.
"""

import asyncio
import contextlib
import gzip
import json
import logging
import shutil
import socketserver
import subprocess
import threading

import pytest

import tink.agent.images.connection as connection_module
import tink.agent.images.store as store_module
from tests.interop.images.fake_registry import digest_of, pull, refusal, tar
from tests.waiting import PATIENCE_SECONDS, until
from tink.agent.images.reference import parse
from tink.agent.images.registry import Registries, Session
from tink.agent.output.lines import line_sink


def run(*argv):
    done = subprocess.run([str(item) for item in argv], capture_output=True, text=True)
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"


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
    assert list(store._work.iterdir()) == []


async def test_image_is_pulled_by_digest(store, registry):
    first = await pull(store, f"{registry}/t/two:1")
    digest = "sha256:" + first.rootfs.parent.name
    second = await pull(store, f"{registry}/t/two@{digest}")
    assert second.rootfs == first.rootfs


async def test_second_pull_fetches_no_layer(store, registry, monkeypatch):
    await pull(store, f"{registry}/t/two:1")

    def no_blob(*arguments):
        raise AssertionError("a layer was fetched again")

    monkeypatch.setattr(Session, "blob", no_blob)
    await pull(store, f"{registry}/t/two:1")


async def test_missing_tag_and_missing_repository_are_named(store, registry):
    assert "manifest unknown" in await refusal(store, f"{registry}/t/two:nothing")
    assert "manifest unknown" in await refusal(store, f"{registry}/no/such:1")
    digest = "sha256:" + "0" * 64
    assert "manifest unknown" in await refusal(store, f"{registry}/t/two@{digest}")


async def test_progress_is_told_in_bytes_of_all_layers(store, registry):
    told = []
    image = f"{registry}/t/two:1"
    line_sink.set(told.append)
    await store.pull(image, asyncio.Event())
    await asyncio.sleep(0)  # lines come from the pull's thread through the loop
    words = told[-1].removeprefix(f"image {image}: ").split()
    assert (words[0], words[1], words[3]) == (words[2], "of", "MB")


async def test_registry_that_is_not_there_is_named(store):
    assert "127.0.0.1:1: Connection refused" in await refusal(store, "127.0.0.1:1/x:1")


async def test_https_is_spoken_to_a_registry_that_is_not_insecure(make_store, registry, monkeypatch):
    monkeypatch.setattr(Registries, "is_insecure", lambda self, host: False)
    assert "is it an insecure registry?" in await refusal(make_store(), f"{registry}/t/two:1")


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
    begun = []

    def breaking(handler):
        offset = int(handler.headers.get("Range", "bytes=0-")[6:-1])
        begun.append(offset)
        part = big_layer[offset : offset + 700_000]
        headers = {"Content-Length": str(len(big_layer) - offset)}
        if offset:
            headers["Content-Range"] = f"bytes {offset}-{len(big_layer) - 1}/{len(big_layer)}"
        handler.reply(206 if offset else 200, headers, part)
        handler.close_connection = True
        return True

    fake.hooks[path] = breaking
    image = await pull(store, f"{fake.host}/x:1")
    assert (image.rootfs / "file").stat().st_size == 256 * 8000
    assert len(begun) == 3
    assert begun[0] == 0
    assert begun[1] > 0
    assert begun[2] > begun[1]


async def test_registry_that_cannot_resume_begins_anew(fake, store, big_layer):
    _, _, path, _ = fake.image(big_layer)
    attempts = []

    def break_once(handler):
        attempts.append(handler.headers.get("Range"))
        if len(attempts) > 1:
            return False
        handler.reply(200, {"Content-Length": str(len(big_layer))}, big_layer[:500_000])
        handler.close_connection = True
        return True

    fake.hooks[path] = break_once
    told = []
    line_sink.set(told.append)
    await store.pull(f"{fake.host}/x:1", asyncio.Event())
    await asyncio.sleep(0)
    assert len(attempts) == 2
    assert attempts[1].startswith("bytes=")
    megabytes = f"{len(big_layer) / 1e6:.1f}"
    assert told[-1].endswith(f": {megabytes} of {megabytes} MB"), "what came twice is not counted twice"
    assert any("continuing at byte" in line for line in told)


async def test_registry_that_is_overloaded_is_asked_again(fake, store):
    path, *_ = fake.image()
    answers = [503, 429, 500]

    def busy(handler):
        if not answers:
            return False
        handler.reply(answers.pop(), {}, b"busy")
        return True

    fake.hooks[path] = busy
    await pull(store, f"{fake.host}/x:1")
    assert answers == []


async def test_registry_that_stays_broken_is_given_up(fake, store):
    path, *_ = fake.image()
    fake.paths[path] = (503, {}, b"busy")
    assert "503" in await refusal(store, f"{fake.host}/x:1")
    assert len(fake.requests) == 5


async def test_layer_that_never_comes_is_given_up(fake, store):
    _, _, path, _ = fake.image()
    fake.paths[path] = (503, {}, b"busy")
    assert "503" in await refusal(store, f"{fake.host}/x:1")
    assert [asked for asked, _ in fake.requests].count(path) == 5


async def test_configuration_that_is_too_large_is_not_fetched(fake, store, monkeypatch):
    _, path, _, _ = fake.image(config=json.dumps({"architecture": "amd64", "x": "x" * 2000}).encode())
    monkeypatch.setattr(store_module, "MANIFEST_LIMIT_BYTES", 1000)
    assert "its configuration has 2" in await refusal(store, f"{fake.host}/x:1")
    assert path not in [asked for asked, _ in fake.requests]


async def test_layer_with_other_content_is_refused(fake, store):
    _, _, path, _ = fake.image(tar(file=b"content"))
    fake.paths[path] = (200, {}, tar(file=b"evilent"))
    assert "what the registry sent has the digest" in await refusal(store, f"{fake.host}/x:1")


async def test_manifest_with_other_content_than_its_digest_is_refused(fake, store):
    *_, digest = fake.image()
    fake.paths[f"/v2/x/manifests/{digest}"] = (200, {}, b"{}")
    assert "digest" in await refusal(store, f"{fake.host}/x@{digest}")


async def test_layer_that_is_longer_than_announced_is_cut_off(fake, store):
    layer = tar(file=b"content")
    _, _, path, _ = fake.image(layer)
    fake.paths[path] = (200, {}, layer + b"more" * 100)
    assert "longer than" in await refusal(store, f"{fake.host}/x:1")


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


async def test_endless_manifest_does_not_fill_memory(fake, store):
    path, *_ = fake.image()
    fake.paths[path] = (200, {}, b" " * 5_000_000)
    assert "short answer" in await refusal(store, f"{fake.host}/x:1")


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
    assert list(store._work.iterdir()) == []


# --- time ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(connection_module, "LOW_SPEED_SECONDS", 0.1)


@contextlib.contextmanager
def flooding(head, again, pause=0.0):
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
async def test_registry_that_goes_on_for_ever_and_says_nothing_is_given_up(store, impatient, head, again, pause):
    with flooding(head, again, pause) as host:
        assert f"{host}: too slow: " in await refusal(store, f"{host}/x:1")


async def test_layer_that_comes_byte_by_byte_is_given_up(fake, store, big_layer):
    """Each attempt brings something; and so it would go on for weeks."""
    _, _, path, _ = fake.image(big_layer)
    asked = []

    def one_byte(handler):
        asked.append(handler.headers.get("Range"))
        offset = len(asked) - 1
        span = {"Content-Range": f"bytes {offset}-{len(big_layer) - 1}/{len(big_layer)}"} if offset else {}
        length = {"Content-Length": str(len(big_layer) - offset)}
        handler.reply(206 if offset else 200, length | span, big_layer[offset : offset + 1])
        handler.close_connection = True
        return True

    fake.hooks[path] = one_byte
    assert "the connection ended after" in await refusal(store, f"{fake.host}/x:1")
    assert len(asked) == 5


# --- afterwards and around -----------------------------------------------------------------------------------------


async def test_image_of_the_last_pull_is_used_when_the_registry_is_away(fake, store):
    """As with an engine: the second action of a workflow does not fail because the registry is restarted."""
    path, *_ = fake.image()
    image = f"{fake.host}/x:1"
    first = await pull(store, image)
    told = []
    for trouble in (503, 404):
        fake.paths[path] = (trouble, {}, b"gone")
        line_sink.set(told.append)
        assert (await pull(store, image)).rootfs == first.rootfs
        await asyncio.sleep(0)
        assert f"HTTP {trouble}" in told[-1]
        assert "the copy of the last pull is used" in told[-1]
    shutil.rmtree(first.rootfs.parent)
    await refusal(store, image)
    await refusal(store, f"{fake.host}/x:other")


@pytest.mark.parametrize(
    ("host", "insecure"),
    [
        ("172.31.0.1:5000", True),
        ("reg.example:5000", True),
        ("reg.example:5001", False),
        ("other.example", True),
        ("other.example:8443", True),
        ("10.1.2.3:5000", True),
        ("11.1.2.3:5000", False),
        ("127.0.0.1:5000", True),
        ("localhost:5000", True),
        ("[::1]:5000", True),
        ("docker.io", False),
        ("localhost.evil.example", False),
    ],
)
def test_which_registries_are_spoken_to_in_plain_http(host, insecure):
    registries = Registries(("172.31.0.1:5000", "reg.example:5000", "other.example", "10.0.0.0/8"))
    assert registries.is_insecure(host) is insecure


def test_docker_hub_is_asked_where_it_really_is():
    assert Session(parse("busybox"), Registries())._base == "https://registry-1.docker.io/v2/library/busybox"


async def test_image_for_another_architecture_is_warned_of(fake, store, caplog):
    caplog.set_level(logging.INFO)
    fake.image(config=b'{"architecture": "arm64"}')
    await pull(store, f"{fake.host}/x:1")
    assert "it is for arm64" in caplog.text


async def test_interrupted_pull_is_cleared_away_at_the_next_start(store):
    (store._work / "left").mkdir()
    store.prepare()
    assert list(store._work.iterdir()) == []
    shutil.rmtree(store._images)
