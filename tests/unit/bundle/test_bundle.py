"""Bundles: what they are made of, what is refused, and what is put into a data directory: whole and checked."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tarfile
import threading
from dataclasses import replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from edge.artifacts.layout import ImageLayout
from edge.bundle import archive
from edge.bundle.archive import BundleError, BundleReader, Manifest
from edge.bundle.creation import Contents, Osie
from edge.bundle.loading import check, load, next_steps
from edge.bundle.sources import Wanted, download, program_of
from tests.unit.bundle import layouts
from tests.unit.bundle.conftest import NOW, Site, packed, quiet, sign
from tink.files.data_directory import DataDirectoryError

# --- nothing that was not signed is used, and nothing is looked at before the signature -------------------------------


def refused(site, content):
    with pytest.raises(BundleError) as caught:
        check(site.reader(content), quiet)
    return str(caught.value)


def test_bundle_as_it_was_made_is_read_to_its_end_by_us_and_by_debians_tar_and_sha256sum(site, tmp_path):
    reader = site.reader()
    check(reader, quiet)
    assert reader.signer == "tests"
    assert list(reader.manifest.sizes) == ["osie/lab/kernel", "osie/lab/initrd", "files/disk.raw", "sbom.cdx.json"]
    assert reader.manifest.osies == ("lab",)
    assert Manifest.from_json(reader.manifest.to_json()) == reader.manifest
    there = tmp_path / "there"
    there.mkdir()
    subprocess.run(["tar", "-xf", site.file, "-C", there], check=True)
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], check=True, cwd=there)
    assert (there / "files/disk.raw").read_bytes() == (tmp_path / "disk.raw").read_bytes()
    listed = json.loads((there / "sbom.cdx.json").read_text())
    assert (listed["bomFormat"], listed["specVersion"]) == ("CycloneDX", "1.6")
    hashes = {one["name"]: one["hashes"][0]["content"] for one in listed["components"]}
    assert hashes["osie/lab/kernel"] == hashlib.sha256(b"kernel" * 1000).hexdigest()
    assert set(hashes) == {"osie/lab/kernel", "osie/lab/initrd", "files/disk.raw"}


def test_no_byte_of_it_can_be_another(site):
    whole = site.file.read_bytes()
    for position in [*range(0, len(whole), 97), len(whole) - 1]:
        changed = bytearray(whole)
        changed[position] ^= 0x20
        assert refused(site, bytes(changed)), position


EXTRA = ("debian/evil.deb", b"evil")
MANIFEST_LINE = b"0" * 64 + b"  manifest.json\n"


def with_initrd(members, initrd):
    return packed(members | {"osie/lab/initrd": initrd})


def with_sums(members, text):
    return packed(members | {"SHA256SUMS": text, "SHA256SUMS.sig": sign(text)})


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        *((lambda members, left=left: packed(members)[:left], "cut off") for left in (0, 100, 511, 512, 2000, -512)),
        (
            lambda members: with_initrd(members, members["osie/lab/initrd"].replace(b"initrd", b"INITRD", 1)),
            "osie/lab/initrd in it is damaged: its SHA-256 is another; copy it again",
        ),
        (
            lambda members: packed([*(pairs := [*members.items()])[:3], EXTRA, *pairs[3:]]),
            "'debian/evil.deb' of 4 bytes where 'osie/lab/kernel' of 6000 should be",
        ),
        (lambda members: packed([*members.items(), EXTRA]), "a file more than SHA256SUMS names"),
        (lambda members: packed([EXTRA, *members.items()]), "where SHA256SUMS should be"),
        (lambda members: packed(members) + b"\0", "goes on after its end"),
        (
            lambda members: packed({name: text for name, text in members.items() if name != "osie/lab/initrd"}),
            "where 'osie/lab/initrd' of 6000 should be",
        ),
        (
            lambda members: packed({"SHA256SUMS": b"a" * ((4 << 20) + 1)}),
            "SHA256SUMS has 4194305 bytes, and 4194304 are the most",
        ),
        (
            lambda members: packed(members | {"SHA256SUMS.sig": b"a" * ((64 << 10) + 1)}),
            "SHA256SUMS.sig has 65537 bytes",
        ),
        (lambda members: b"PK\x03\x04" + bytes(range(1, 200)) * 100, "it is no bundle of tinkedge"),
        (lambda members: packed({"manifest.json": b"{}"}), "there is 'manifest.json' where SHA256SUMS should be"),
        (lambda members: with_sums(members, b""), "does not begin with manifest.json"),
        (lambda members: with_sums(members, b"0" * 64 + b"  osie/kernel\n"), "does not begin with manifest.json"),
        (lambda members: with_sums(members, MANIFEST_LINE[1:]), "line 1: it is no hash and name"),
        (lambda members: with_sums(members, MANIFEST_LINE * 2), "line 2: 'manifest.json' stands there twice"),
        (lambda members: with_sums(members, b"0" * 64 + b" *manifest.json\n"), "line 1: it is no hash and name"),
    ],
)
def test_bundle_that_is_not_as_it_was_signed_is_refused(site, change, reported):
    assert reported in refused(site, change(site.members()))


def test_signature_is_checked_before_the_signed_text_is_parsed(site):
    seen = []

    def no(text, _signature):
        seen.append(text)
        raise BundleError("signed by another key")

    members = site.members() | {"SHA256SUMS": b"\xff no lines at all", "manifest.json": b"{"}
    file = site.directory / "other.bundle"
    file.write_bytes(packed(members))
    with file.open("rb") as opened, pytest.raises(BundleError, match="signed by another key"):
        BundleReader(opened, no)
    assert seen == [members["SHA256SUMS"]]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("../etc/passwd", "other characters"),
        ("osie/../../etc/passwd", "other characters"),
        ("/etc/passwd", "other characters"),
        ("osie/.hidden", "other characters"),
        ("osie//kernel", "other characters"),
        ("osie/-rf", "other characters"),
        ("osie/$(id)", "other characters"),
        ("etc/passwd", "no folder 'etc'"),
        ("evil", "no such file at its top"),
        (f"files/{'a' * 100}/{'b' * 60}/c", "its folder than 155"),
    ],
)
def test_name_that_leads_elsewhere_is_refused_even_if_it_is_signed(site, name, why):
    reported = refused(site, packed(site.members() | {name: b"x"}, signed=True))
    assert f"{name!r} can't be in a bundle" in reported
    assert why in reported


@pytest.mark.parametrize(
    ("member", "field", "reported"),
    [
        ("files/disk.raw", {156: b"2"}, "is no plain file"),  # a link
        ("files/disk.raw", {156: b"1"}, "is no plain file"),  # a hard link
        ("files/disk.raw", {156: b"5"}, "is no plain file"),  # a directory
        ("files/disk.raw", {156: b"3"}, "is no plain file"),  # a device
        # What tar would read otherwise: set-user-id.
        ("SHA256SUMS", {100: b"0004755\0"}, "SHA256SUMS in it has another header than tinkedge writes"),
        ("manifest.json", {100: b"0004755\0"}, "manifest.json in it has another header than tinkedge writes"),
        ("files/disk.raw", {100: b"0004755\0"}, "files/disk.raw in it has another header than tinkedge writes"),
    ],
)
def test_header_of_anything_but_a_plain_file_is_refused(site, member, field, reported):
    content = bytearray(packed(site.members()))
    at = next(place for place in range(0, len(content), 512) if content[place:].startswith(member.encode() + b"\0"))
    ((offset, value),) = field.items()
    content[at + offset : at + offset + len(value)] = value
    content[at + 148 : at + 156] = b"        "
    content[at + 148 : at + 156] = b"%06o\0 " % sum(content[at : at + 512])
    assert reported in refused(site, bytes(content))


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        (
            lambda fields: fields.update(format=2),
            "manifest.json: format is 2, and this release reads 1: use a newer one",
        ),
        (
            lambda fields: fields.update(format=0),
            "it was made by an older tinkedge: make it again with `tinkedge bundle create`",
        ),
        (lambda fields: fields.pop("format"), "format"),
        *(
            (lambda fields, name=name: fields.pop(name), f"{name}: Field required")
            for name in ("created", "sizes", "images", "program", "osies", "tinkedge")
        ),
        (
            lambda fields: fields["sizes"].pop("files/disk.raw"),
            "manifest.json and SHA256SUMS name different files: files/disk.raw; make the bundle again",
        ),
    ],
)
def test_manifest_of_another_release_or_without_a_field_is_refused(site, change, reported):
    members = site.members()
    fields = json.loads(members["manifest.json"])
    change(fields)
    assert reported in refused(site, packed(members | {"manifest.json": json.dumps(fields).encode()}, signed=True))


def test_name_that_is_as_long_as_a_wheels_comes_through_tar(site, tmp_path):
    name = "x" * 96 + ".whl"
    (tmp_path / name).write_bytes(b"wheel")
    site.create(replace(site.contents, files=(str(tmp_path / name),)))
    check(site.reader(), quiet)
    subprocess.run(["tar", "-xf", site.file, f"files/{name}"], check=True, cwd=tmp_path)
    assert (tmp_path / "files" / name).read_bytes() == b"wheel"
    (tmp_path / f"{name}x").write_bytes(b"wheel")
    with pytest.raises(BundleError, match="its name is longer than 100 bytes"):
        site.create(replace(site.contents, files=(str(tmp_path / f"{name}x"),)))


def test_headers_of_format_one_stay_as_they_are_and_tar_reads_those_of_eight_gigabytes():
    """A bundle that one release has made is read by the next."""
    digests = [hashlib.sha256(archive.BUNDLE.header("images/x", size, NOW)).hexdigest()[:16] for size in (5, 9 << 30)]
    assert (archive.FORMAT, digests) == (1, ["5a72957502f35626", "b31ab2c0feb35444"])
    made = archive.BUNDLE.header("files/disk.raw", 9 << 30, NOW)
    assert len(made) == 512
    found = tarfile.TarInfo.frombuf(made, "utf-8", "strict")
    assert (found.size, found.name) == (9 << 30, "files/disk.raw")
    with pytest.raises(BundleError, match="so large a file"):
        archive.BUNDLE.header(f"files/{'x' * 100}", 9 << 30, NOW)


# --- what a bundle brings is put into a data directory, and nowhere else ----------------------------------------------


def files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def data(tmp_path):
    made = tmp_path / "data"
    made.mkdir(mode=0o700)
    return made


def test_each_part_comes_to_its_place_for_its_owner_alone_and_the_osie_names_its_files_with_their_hashes(site, data):
    (site.directory / "kubectl").write_bytes(b"kubectl")  # a program is checked, and not put there
    site.create(replace(site.contents, kubectl=site.directory / "kubectl"))
    assert "bin/kubectl" in site.reader().manifest.sizes
    loaded = load(site.reader(), data, quiet)
    expected = {"osie/lab/kernel", "osie/lab/initrd", "files/disk.raw", "manifests/osie-lab.json", "bundle.json"}
    assert files(data) == expected
    assert (data / "osie/lab/kernel").read_bytes() == b"kernel" * 1000
    assert {path.stat().st_mode & 0o077 for path in data.rglob("*")} == {0}
    assert any("http://HOST:7080/files/" in line for line in next_steps(loaded, data))
    made = json.loads((data / "manifests/osie-lab.json").read_text())
    assert (made["kind"], made["metadata"]["name"]) == ("OSIE", "lab")
    urls = {f"{name}Url": f"file://{data}/osie/lab/{name}" for name in ("kernel", "initrd")}
    assert made["spec"] == urls
    digest = hashlib.sha256(b"kernel" * 1000).hexdigest()
    assert made["metadata"]["annotations"]["tinkerbell.org/kernel-sha256"] == digest


def test_damage_in_the_last_file_changes_nothing_and_does_not_count_as_loaded(site, data):
    site.create(now=NOW - timedelta(days=2))
    load(site.reader(), data, quiet)
    old = site.file.read_bytes()
    (site.directory / "osie/kernel").write_bytes(b"newer")
    site.create()
    members = site.members()
    members["sbom.cdx.json"] = members["sbom.cdx.json"][:-1] + b" "
    before = {name: (data / name).read_bytes() for name in files(data)}
    with pytest.raises(BundleError, match=r"sbom.cdx.json in it is damaged"):
        load(site.reader(packed(members)), data, quiet)
    assert {name: (data / name).read_bytes() for name in files(data)} == before
    load(site.reader(old), data, quiet)
    load(site.reader(), data, quiet)
    assert (data / "osie/lab/kernel").read_bytes() == b"newer"


def images(site: Site, data: Path, **named: dict[str, Any]) -> None:
    """A bundle with the images of a layout, loaded."""
    layout = site.directory / "layout"
    layouts.index(layout, **named)
    members = site.members()
    manifest = json.loads(members["manifest.json"])
    for path in sorted(layout.rglob("*")):
        if path.is_file():
            name = f"images/{path.relative_to(layout)}"
            members[name] = path.read_bytes()
            manifest["sizes"][name] = len(members[name])
    load(site.reader(packed(members | {"manifest.json": json.dumps(manifest).encode()}, signed=True)), data, quiet)


def test_images_of_earlier_bundles_stay_and_those_of_the_same_name_are_replaced(site, data):
    layout = site.directory / "layout"
    first, second, third = (layouts.image(layout, layer) for layer in (b"one", b"two", b"three"))
    images(site, data, actions_inspect=first, actions_reboot=second)
    images(site, data, actions_inspect=third)
    found = ImageLayout(data / "images").images()
    assert {name: image.digest for name, image in found.items()} == {
        "actions/inspect:1": third["digest"],
        "actions/reboot:1": second["digest"],
    }


def test_place_with_a_link_other_things_or_no_room_is_not_touched(site, data, tmp_path, monkeypatch):
    outside, home = tmp_path / "outside", tmp_path / "home"
    outside.mkdir()
    (data / "osie").symlink_to(outside)
    with pytest.raises(BundleError, match="it is a link"):
        load(site.reader(), data, quiet)
    assert list(outside.iterdir()) == []
    (data / "osie").unlink()
    home.mkdir(mode=0o755)
    (home / "letters").write_text("dear")
    with pytest.raises(DataDirectoryError, match="letters"):
        load(site.reader(), home, quiet)
    assert files(home) == {"letters"}
    before = files(data)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with pytest.raises(BundleError, match=r"67 MB are needed there, and 0 MB are free"):
        load(site.reader(), data, quiet)
    assert files(data) == before


# --- an older bundle


def test_older_bundle_with_a_good_signature_is_refused_with_both_dates(site, data):
    old = site.file.read_bytes()
    (site.directory / "osie/kernel").write_bytes(b"mended")
    site.create(now=NOW + timedelta(days=2))
    new = site.file.read_bytes()
    load(site.reader(new), data, quiet)
    load(site.reader(new), data, quiet)
    with pytest.raises(BundleError) as caught:
        load(site.reader(old), data, quiet)
    for reported in ("2026-11-23 12:00:00 UTC", "2026-11-25 12:00:00 UTC", "--allow-older"):
        assert reported in str(caught.value)
    assert (data / "osie/lab/kernel").read_bytes() == b"mended"
    load(site.reader(old), data, quiet, allow_older=True)
    assert (data / "osie/lab/kernel").read_bytes() == b"kernel" * 1000
    load(site.reader(old), data, quiet)
    load(site.reader(new), data, quiet)
    # One of other parts could bring back an object or a file that the newer bundle omits on purpose.
    site.create(Contents(files=site.contents.files), now=NOW + timedelta(days=1))
    with pytest.raises(BundleError, match="--allow-older"):
        load(site.reader(), data, quiet)


@pytest.mark.parametrize("record", ["", "[]", '{"created": 5}', '{"created": "2026-11-23T12:00:00"}', "x" * 9999])
def test_record_that_can_not_be_read_refuses_with_the_remedy(site, data, record):
    (data / "bundle.json").write_text(record)
    with pytest.raises(BundleError, match=r"bundle.json: .*--allow-older"):
        load(site.reader(), data, quiet)
    load(site.reader(), data, quiet, allow_older=True)
    load(site.reader(), data, quiet)


# --- what a bundle is made of -----------------------------------------------------------------------------------------


def test_same_name_twice_and_nothing_at_all_are_refused(site):
    (site.directory / "more").mkdir()
    (site.directory / "more/disk.raw").write_bytes(b"other")
    twice = replace(site.contents, files=(*site.contents.files, str(site.directory / "more/disk.raw")))
    with pytest.raises(BundleError, match=r"would both be files/disk.raw in the bundle: rename one"):
        site.create(twice)
    with pytest.raises(BundleError, match="two of this name"):
        site.create(replace(site.contents, osies=site.contents.osies * 2))
    with pytest.raises(BundleError, match="there is nothing in it"):
        site.create(Contents())
    before = site.file.read_bytes()
    with pytest.raises(BundleError, match="missing: there is no such file"):
        site.create(replace(site.contents, files=(str(site.directory / "missing"),)))
    assert site.file.read_bytes() == before
    for text in ("lab", "lab=", "Lab=dir", "=dir", "../x=dir"):
        with pytest.raises(BundleError, match="write NAME=DIR or NAME=KERNEL,INITRD"):
            Osie.of(text)
    with pytest.raises(BundleError, match="there is no such file; `make deb` makes one"):
        program_of(site.directory / "tinkedge.deb")


def test_osie_object_beside_the_one_that_the_bundle_makes_is_refused(site):
    objects = site.directory / "objects"
    objects.mkdir()
    osie = "apiVersion: tinkerbell.org/v1alpha2\nkind: OSIE\nmetadata: {name: %s}\n"
    (objects / "osies.yaml").write_text(osie % "other")
    site.create(replace(site.contents, objects=(objects,)))
    assert "manifests/osies.yaml" in site.reader().manifest.sizes
    (objects / "osies.yaml").write_text(osie % "lab")
    with pytest.raises(BundleError, match="the bundle makes that object, for --osie lab: take it out"):
        site.create(replace(site.contents, objects=(objects,)))
    (objects / "osies.yaml").write_text("kind: [")
    with pytest.raises(BundleError, match=r"--objects .*osies.yaml"):
        site.create(replace(site.contents, objects=(objects,)))


# --- what is fetched: URLs that break and come back, and how images are named -----------------------------------------


CONTENT = bytes(range(256)) * 4096


class Upstream:
    """Serves CONTENT with ranges; `breaks` of its answers end in the middle, `status` is another answer."""

    def __init__(self) -> None:
        self.breaks, self.status, self.tag = 0, 200, '"v1"'
        self.asked: list[str] = []
        self.logins: list[str | None] = []
        self.paths: list[str] = []
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                upstream.answer(self)

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/kernel"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range", "") if request.headers.get("If-Range") == self.tag else ""
        self.logins.append(request.headers.get("Authorization"))
        self.paths.append(request.path)
        self.asked.append(wanted or f"all{' unless ' + one if (one := request.headers.get('If-None-Match')) else ''}")
        if self.status != 200 or request.headers.get("If-None-Match") == self.tag:
            request.send_response(self.status if self.status != 200 else 304)
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        body = CONTENT[start:]
        request.send_response(206 if wanted else 200)
        request.send_header("ETag", self.tag)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if self.breaks:
            self.breaks -= 1
            body = body[: len(body) // 2]
        request.wfile.write(body)


@pytest.fixture
def upstream():
    made = Upstream()
    made.thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.thread.join()
        made.server.server_close()


def test_url_is_requested_unchanged_except_for_invalid_characters(upstream, tmp_path):
    for path in ("/a%2Fb%40?sig=%2B%2f+", "/my kernel/é"):
        download(upstream.url.replace("/kernel", path), tmp_path, quiet)
    assert upstream.paths == ["/a%2Fb%40?sig=%2B%2f+", "/my%20kernel/%C3%A9"]


def test_download_that_breaks_goes_on_where_it_was(upstream, tmp_path):
    upstream.breaks = 2
    assert download(upstream.url, tmp_path, quiet).read_bytes() == CONTENT
    assert upstream.asked == ["all", f"bytes={len(CONTENT) // 2}-", f"bytes={len(CONTENT) * 3 // 4}-"]
    upstream.asked.clear()
    assert download(upstream.url, tmp_path, quiet).read_bytes() == CONTENT
    assert upstream.asked == ['all unless "v1"'], "what is here is asked about and not fetched again"
    upstream.status = 404
    with pytest.raises(BundleError, match=r"/other: HTTP 404"):
        download(upstream.url.replace("kernel", "other"), tmp_path, quiet)


def test_download_sends_the_login_of_its_url_and_nothing_shows_its_secrets(upstream, tmp_path):
    shown: list[str] = []
    url = upstream.url.replace("//", "//me:secret@") + "?sig=secret"
    path = download(url, tmp_path, lambda line, *_: shown.append(line))
    assert path.read_bytes() == CONTENT
    assert upstream.logins == ["Basic bWU6c2VjcmV0"]
    shown += [each.read_text() for each in tmp_path.glob("*.json")]
    upstream.status = 403
    for bad in (url + "&more", url.replace("//", "//a:my/secret:b@"), url.replace("kernel", "a secret kernel?")):
        with pytest.raises(BundleError) as caught:
            download(bad, tmp_path, quiet)
        shown.append(str(caught.value))
    assert not [line for line in shown if "sig=" in line or "me:" in line or "secret:" in line]


@pytest.mark.parametrize(("tag", "again"), [('"v1"', f"bytes={len(CONTENT) * 15 // 16}-"), ('"v2"', "all")])
def test_download_that_was_given_up_goes_on_with_the_next_run_unless_the_file_has_changed(
    upstream, tmp_path, tag, again
):
    upstream.breaks = 4
    with pytest.raises(BundleError, match="once more goes on where this ended"):
        download(upstream.url, tmp_path, quiet)
    asked = len(upstream.asked)
    upstream.tag = tag
    assert download(upstream.url, tmp_path, quiet).read_bytes() == CONTENT
    assert upstream.asked[asked:] == [again]


@pytest.mark.parametrize(
    ("given", "name", "source"),
    [
        ("quay.io/x/y:v1", "x/y:v1", "docker://quay.io/x/y:v1"),
        ("127.0.0.1:5000/actions/inspect:1", "actions/inspect:1", "docker://127.0.0.1:5000/actions/inspect:1"),
        ("localhost:5000/a", "a:latest", "docker://localhost:5000/a"),
        ("busybox", "library/busybox:latest", "docker://busybox"),
        ("tools/busybox:1=busybox:1.36", "tools/busybox:1", "docker://busybox:1.36"),
        ("actions/inspect:1=oci:build/actions/inspect:1", "actions/inspect:1", "oci:build/actions/inspect:1"),
        ("a:1=docker-archive:/tmp/a.tar", "a:1", "docker-archive:/tmp/a.tar"),
        ("a:1=docker-daemon:a:1", "a:1", "docker-daemon:a:1"),
    ],
)
def test_image_is_named_as_machines_will_ask_for_it(given, name, source):
    assert Wanted.of(given) == Wanted(name, source)


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ("oci:build/inspect:1", "give it a name, as Templates will have it"),
        ("Upper=busybox", "no repository:tag"),
        ("notag=oci:dir:1", "no repository:tag"),
        ("quay.io/X", "quay.io/X"),
        (f"quay.io/x@sha256:{'0' * 64}", "give it a name"),
    ],
)
def test_image_without_a_name_that_a_template_can_have_is_refused(given, reported):
    with pytest.raises(BundleError, match=reported):
        Wanted.of(given)
