"""What a bundle is refused for: nothing that was not signed is used, and nothing is looked at before the signature."""

import hashlib
import json
import subprocess
import tarfile
from dataclasses import replace

import pytest

from edge.bundle import BundleError, Manifest, Reader, archive, check, manifest
from tests.unit.bundle.conftest import NOW, packed, quiet, sign


def refused(site, content):
    with pytest.raises(BundleError) as caught:
        check(site.reader(content), quiet)
    return str(caught.value)


def test_bundle_as_it_was_made_is_read_to_its_end(site):
    reader = site.reader()
    check(reader, quiet)
    assert reader.signer == "tests"
    assert list(reader.manifest.sizes) == ["osie/lab/kernel", "osie/lab/initrd", "files/disk.raw", "sbom.cdx.json"]
    assert reader.manifest.osies == ("lab",)
    assert Manifest.from_json(reader.manifest.to_json()) == reader.manifest


def test_debians_tar_and_sha256sum_read_it(site, tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    subprocess.run(["tar", "-xf", site.file, "-C", there], check=True)
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], check=True, cwd=there)
    assert (there / "files/disk.raw").read_bytes() == (tmp_path / "disk.raw").read_bytes()


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
    ("change", "said"),
    [
        *((lambda members, left=left: packed(members)[:left], "cut off") for left in (0, 100, 511, 512, 2000, -512)),
        (
            lambda members: with_initrd(members, members["osie/lab/initrd"].replace(b"initrd", b"INITRD", 1)),
            "osie/lab/initrd in it is damaged: its SHA-256 is not the one that was signed; copy it anew",
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
def test_bundle_that_is_not_as_it_was_signed_is_refused(site, change, said):
    assert said in refused(site, change(site.members()))


def test_signature_is_checked_before_what_it_is_of_is_read(site):
    seen = []

    def no(text, _signature):
        seen.append(text)
        raise BundleError("signed by another key")

    members = site.members() | {"SHA256SUMS": b"\xff no lines at all", "manifest.json": b"{"}
    file = site.directory / "other.bundle"
    file.write_bytes(packed(members))
    with file.open("rb") as opened, pytest.raises(BundleError, match="signed by another key"):
        Reader(opened, no)
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
    said = refused(site, packed(site.members() | {name: b"x"}, signed=True))
    assert f"{name!r} can't be in a bundle" in said
    assert why in said


@pytest.mark.parametrize(
    ("member", "field", "said"),
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
def test_header_of_anything_but_a_plain_file_is_refused(site, member, field, said):
    content = bytearray(packed(site.members()))
    at = next(place for place in range(0, len(content), 512) if content[place:].startswith(member.encode() + b"\0"))
    ((offset, value),) = field.items()
    content[at + offset : at + offset + len(value)] = value
    content[at + 148 : at + 156] = b"        "
    content[at + 148 : at + 156] = b"%06o\0 " % sum(content[at : at + 512])
    assert said in refused(site, bytes(content))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda fields: fields.update(format=2),
            "manifest.json: format is 2, and this release reads 1: use a newer one",
        ),
        (
            lambda fields: fields.update(format=0),
            "it was made by an older tinkedge: make it anew with `tinkedge bundle create`",
        ),
        (lambda fields: fields.pop("format"), "format"),
        *(
            (lambda fields, name=name: fields.pop(name), f"KeyError '{name}'")
            for name in ("created", "sizes", "images", "program", "osies", "tinkedge")
        ),
        (
            lambda fields: fields["sizes"].pop("files/disk.raw"),
            "manifest.json and SHA256SUMS name different files: files/disk.raw; make the bundle anew",
        ),
    ],
)
def test_manifest_of_another_release_or_without_a_field_is_refused(site, change, said):
    members = site.members()
    fields = json.loads(members["manifest.json"])
    change(fields)
    assert said in refused(site, packed(members | {"manifest.json": json.dumps(fields).encode()}, signed=True))


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
    digests = [hashlib.sha256(archive._header("images/x", size, NOW)).hexdigest()[:16] for size in (5, 9 << 30)]
    assert (manifest.FORMAT, digests) == (1, ["5a72957502f35626", "b31ab2c0feb35444"])
    made = archive._header("files/disk.raw", 9 << 30, NOW)
    assert len(made) == 512
    found = tarfile.TarInfo.frombuf(made, "utf-8", "strict")
    assert (found.size, found.name) == (9 << 30, "files/disk.raw")
    with pytest.raises(BundleError, match="so large a file"):
        archive._header(f"files/{'x' * 100}", 9 << 30, NOW)
