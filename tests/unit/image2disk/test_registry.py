"""Disk images in registries, by digest."""

import gzip
import hashlib
import json

import pytest
from image2disk.errors import ActionError
from image2disk.registry import Registry
from image2disk.settings import read
from image2disk.web import AnswerError, Web

OCTETS = "application/octet-stream"
DISK = b"disk" * 1000
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def digest(content):
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@pytest.fixture
def repository(site):
    """Adds an artefact of these layers (media type, title, content); gives its IMG_URL."""

    def add(content, kind):
        where = "manifests" if "manifest" in kind or "index" in kind else "blobs"
        site.files[f"/v2/images/debian/{where}/{digest(content)}"] = (content, kind)
        return {"mediaType": kind, "digest": digest(content), "size": len(content)}

    def artefact(*layers, index=False, more=None):
        listed = []
        for kind, title, content in layers:
            notes = {"annotations": {"org.opencontainers.image.title": title}} if title else {}
            listed.append(add(content, kind) | notes)
        manifest = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "layers": listed, **(more or {})}).encode()
        entry = add(manifest, MANIFEST)
        if index:
            manifest = json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()
            add(manifest, "application/vnd.oci.image.index.v1+json")
        return f"{site.url.replace('http://', 'oci+http://')}/images/debian@{digest(manifest)}"

    return artefact


@pytest.mark.parametrize("index", [False, True])
@pytest.mark.parametrize("token", ["", "secret"])
def test_artefact_of_one_layer_is_written_and_goes_on_where_it_broke(
    site, target, repository, random_bytes, index, token
):
    disk = random_bytes(2_000_000)
    url = repository((OCTETS, "", disk), index=index)
    site.etag, site.token = "", token
    if token:
        site.files["/token"] = (json.dumps({"token": token}).encode(), "application/json")
    cuts = [None, *([None, None] if index else [None]), 700_000]
    site.cuts = ([None] if token else []) + cuts[1:]
    _, sha256 = target.copy(url)
    assert sha256 == hashlib.sha256(disk).hexdigest()
    assert target.content[: len(disk)] == disk
    assert site.asked[-1]["Range"] == "bytes=700000-"


@pytest.mark.parametrize(
    ("kind", "title"),
    [(OCTETS, "disk.raw.gz"), ("application/x-disk+gzip", ""), (OCTETS, "")],
)
def test_compression_is_what_title_or_type_or_the_bytes_say(target, repository, random_bytes, kind, title):
    disk = random_bytes(50_000)
    target.copy(repository((kind, title, gzip.compress(disk))), COMPRESSED="true")
    assert target.content[: len(disk)] == disk


def test_of_several_layers_it_is_the_one_that_is_a_disk_or_that_is_named(target, repository):
    disk, other = DISK, b"other" * 1000
    target.copy(repository(("text/plain", "README", b"notes"), (OCTETS, "debian.qcow2", disk)), IMG_FORMAT="raw")
    assert target.content.startswith(disk)
    two = repository((OCTETS, "a.raw", disk), (OCTETS, "b.raw", other))
    with pytest.raises(ActionError, match=r"Name it with IMG_LAYER: a\.raw, b\.raw"):
        target.copy(two)
    target.copy(two, IMG_LAYER="b.raw")
    assert target.content.startswith(other)
    target.copy(two, IMG_LAYER=digest(disk))
    assert target.content.startswith(disk)


@pytest.mark.parametrize(
    ("url", "reason", "message"),
    [
        ("oci://x/y:latest", "InvalidSetting", "such as oci://"),
        ("oci://x/y@sha256:12", "InvalidSetting", "such as oci://"),
        ("oci://x/../y@sha256:" + "0" * 64, "InvalidSetting", "such as oci://"),
        (("application/vnd.oci.image.layer.v1.tar+gzip", "", b"x"), "ImageUnsupported", "archive of files"),
        ((OCTETS, "", b"x"), "DownloadFailed", "token service sent no token"),
    ],
)
def test_image_that_can_not_be_had_is_refused_with_a_reason(site, target, repository, url, reason, message):
    if not isinstance(url, str):
        url = repository(url)
        if message.endswith("token"):
            site.token, site.files["/token"] = "secret", (b"{}", "application/json")
    with pytest.raises(ActionError, match=message) as caught:
        target.copy(url)
    assert caught.value.reason == reason


def test_other_bytes_than_the_digest_says_are_never_a_success(site, target, repository):
    url = repository((OCTETS, "", b"good" * 1000))
    site.files[f"/v2/images/debian/blobs/{digest(b'good' * 1000)}"] = (b"evil" * 1000, OCTETS)
    with pytest.raises(ActionError) as caught:
        target.copy(url)
    assert caught.value.reason == "ChecksumMismatch"
    site.files = {path: (content + b" ", kind) for path, (content, kind) in site.files.items()}
    with pytest.raises(ActionError, match=r"manifest sha256:.*: what the registry sent has the digest"):
        target.copy(url)


@pytest.mark.parametrize(
    ("before", "retry_after", "cuts", "pauses", "said"),
    [
        ([503] * 30, "10", [], [10] * 30, "503 Service Unavailable; retries in 10 s, as the server requests"),
        ([500, 502], "", [], [1, 2], "500 Internal Server Error; requests the manifest again in 1 s (1 of 2)"),
        ([], "", [50], [1], "bytes early; requests the manifest again"),
    ],
    ids=["said when, however often", "broken", "broke off"],
)
def test_manifest_is_asked_for_again_as_an_image_is(site, target, repository, before, retry_after, cuts, pauses, said):
    url = repository((OCTETS, "", DISK), index=bool(retry_after))
    site.before, site.retry_after, site.cuts = list(before), retry_after, list(cuts)
    target.copy(url, IMG_RETRIES="2")
    assert target.content.startswith(DISK)
    assert target.pauses == pauses
    assert said in target.said[0]


@pytest.mark.parametrize(
    ("status", "pauses", "message"), [(500, [1, 2], r"debian@sha256:.*: 500 Internal Server Error"), (404, [], "404")]
)
def test_manifest_that_does_not_come_or_is_not_there_ends_the_action(site, target, repository, status, pauses, message):
    url = repository((OCTETS, "", b"x"))
    site.before = [status] * 10
    with pytest.raises(ActionError, match=message) as caught:
        target.copy(url, IMG_RETRIES="2")
    assert caught.value.reason == "DownloadFailed"
    assert target.pauses == pauses
    assert len(site.asked) == len(pauses) + 1
    if pauses:
        assert target.said[-1] == "500 Internal Server Error; requests the manifest again in 2 s (2 of 2)"


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("oci://docker.io/debian", "https://registry-1.docker.io/v2/library/debian/"),
        ("oci://index.docker.io/a/b:1", "https://registry-1.docker.io/v2/a/b/"),
        ("oci://Registry/a", "https://registry/v2/a/"),
        ("oci+http://[fd00::1]:5000/a", "http://[fd00::1]:5000/v2/a/"),
    ],
)
def test_registry_is_where_its_name_leads(url, where):
    asked = []

    class Offline(Web):
        def get(self, url, headers, authorization=""):
            asked.append(url)
            raise AnswerError("offline", 404)

    settings = read({"IMG_URL": f"{url}@sha256:{'0' * 64}", "DEST_DISK": "/dev/x"})
    with pytest.raises(ActionError, match="offline"):
        Registry(Offline(check_certificates=False), settings).blob()
    assert asked == [f"{where}manifests/sha256:{'0' * 64}"]


def test_registry_that_wants_a_password_is_refused_with_the_reason(site, target, repository):
    url = repository((OCTETS, "", b"x"))
    site.token, site.busy = "secret", {"/token": [403]}
    with pytest.raises(ActionError, match="its token service answers 403 Forbidden") as caught:
        target.copy(url)
    assert caught.value.reason == "DownloadFailed"


def test_token_is_asked_for_again_where_its_giver_is_busy(site, target, repository):
    url = repository((OCTETS, "", DISK))
    site.token, site.files["/token"] = "secret", (json.dumps({"token": "secret"}).encode(), "application/json")
    site.busy, site.retry_after = {"/token": [503, 503]}, "20"
    target.copy(url)
    assert target.content.startswith(DISK)
    assert target.pauses == [20, 20]
