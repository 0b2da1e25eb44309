"""What a bundle is refused for: nothing that was not signed is used, and nothing is looked at before the signature."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import replace

import pytest

from edge.bundle import BundleError, Manifest, Reader, archive, check, manifest
from tests.unit.bundle.conftest import NOW, Site, packed, quiet, sign


def refused(site: Site, content: bytes) -> str:
    with pytest.raises(BundleError) as caught:
        check(site.reader(content), quiet)
    return str(caught.value)


def test_bundle_as_it_was_made_is_read_to_its_end(site):
    reader = site.reader()
    check(reader, quiet)
    assert reader.signer == "tests"
    assert list(reader.manifest.sizes) == ["osie/lab/kernel", "osie/lab/initrd", "files/disk.raw", "sbom.cdx.json"]
    assert reader.manifest.osies == ("lab",)


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


@pytest.mark.parametrize("left", [0, 100, 511, 512, 2000])
def test_truncated_bundle_is_said_to_be_cut_off(site, left):
    assert "cut off" in refused(site, site.file.read_bytes()[:left])
    whole = site.file.read_bytes()
    assert "cut off" in refused(site, whole[: len(whole) - 512])


def test_changed_byte_is_said_of_the_file_that_has_it(site):
    members = site.members()
    members["osie/lab/initrd"] = members["osie/lab/initrd"].replace(b"initrd", b"INITRD", 1)
    assert refused(site, packed(members)) == (
        "osie/lab/initrd in it is damaged: its SHA-256 is not the one that was signed; copy it anew"
    )


def test_extra_file_ends_it_wherever_it_is(site):
    pairs = list(site.members().items())
    extra = ("debian/evil.deb", b"evil")
    assert "'debian/evil.deb' of 4 bytes where 'osie/lab/kernel' of 6000 should be" in refused(
        site, packed([*pairs[:3], extra, *pairs[3:]])
    )
    assert "a file more than SHA256SUMS names" in refused(site, packed([*pairs, extra]))
    assert "where SHA256SUMS should be" in refused(site, packed([extra, *pairs]))
    assert "goes on after its end" in refused(site, packed(pairs) + b"\0")


def test_missing_file_is_named(site):
    members = site.members()
    del members["osie/lab/initrd"]
    assert "where 'osie/lab/initrd' of 6000 should be" in refused(site, packed(members))


def test_signature_is_checked_before_what_it_is_of_is_read(site):
    seen = []

    def no(text, _signature):
        seen.append(text)
        raise BundleError("signed by somebody else")

    members = site.members() | {"SHA256SUMS": b"\xff no lines at all", "manifest.json": b"{"}
    file = site.directory / "other.bundle"
    file.write_bytes(packed(members))
    with file.open("rb") as opened, pytest.raises(BundleError, match="signed by somebody else"):
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
    ("kind", "name"), [(b"2", "a link"), (b"1", "a hard link"), (b"5", "a directory"), (b"3", "a device")]
)
def test_what_is_no_plain_file_is_refused(site, kind, name):
    content = bytearray(packed(site.members()))
    at = content.index(b"files/disk.raw", content.index(b"initrdinitrd"))
    header = content[at : at + 512]
    header[156:157] = kind
    header[148:156] = b"        "
    header[148:156] = b"%06o\0 " % sum(header)
    content[at : at + 512] = header
    assert "is no plain file" in refused(site, bytes(content)), name


def test_texts_that_would_fill_the_memory_are_not_read(site):
    huge = b"a" * ((4 << 20) + 1)
    assert "SHA256SUMS has 4194305 bytes, and 4194304 are the most" in refused(site, packed({"SHA256SUMS": huge}))
    members = site.members() | {"SHA256SUMS.sig": b"a" * ((64 << 10) + 1)}
    assert "SHA256SUMS.sig has 65537 bytes" in refused(site, packed(members))


def changed(site: Site, change: Callable[[dict[str, object]], object]) -> bytes:
    members = site.members()
    fields = json.loads(members["manifest.json"])
    change(fields)
    return packed(members | {"manifest.json": json.dumps(fields).encode()}, signed=True)


def test_formats_of_other_releases_are_told_apart(site):
    newer = refused(site, changed(site, lambda fields: fields.update(format=2)))
    assert newer == "manifest.json: format is 2, and this release reads 1: use a newer one"
    older = refused(site, changed(site, lambda fields: fields.update(format=0)))
    assert older.endswith("it was made by an older tinkedge: make it anew with `tinkedge bundle create`")
    assert "format" in refused(site, changed(site, lambda fields: fields.pop("format")))


@pytest.mark.parametrize("field", ["created", "sizes", "images", "program", "osies", "tinkedge"])
def test_manifest_without_a_field_is_refused_with_its_name(site, field):
    assert f"KeyError '{field}'" in refused(site, changed(site, lambda fields: fields.pop(field)))


def test_manifest_and_sums_have_to_name_the_same_files(site):
    def without(fields):
        sizes = fields["sizes"]
        assert isinstance(sizes, dict)
        del sizes["files/disk.raw"]

    said = refused(site, changed(site, without))
    assert said == "manifest.json and SHA256SUMS name different files: files/disk.raw; make the bundle anew"


def test_sums_are_lines_of_hash_and_name_and_nothing_else(site):
    for text, said in (
        (b"", "does not begin with manifest.json"),
        (b"0" * 64 + b"  osie/kernel\n", "does not begin with manifest.json"),
        (b"0" * 63 + b"  manifest.json\n", "line 1: it is no hash and name"),
        ((b"0" * 64 + b"  manifest.json\n") * 2, "line 2: 'manifest.json' stands there twice"),
        (b"0" * 64 + b" *manifest.json\n", "line 1: it is no hash and name"),
    ):
        members = site.members() | {"SHA256SUMS": text, "SHA256SUMS.sig": sign(text)}
        assert said in refused(site, packed(members))


def test_manifest_goes_around_unchanged(site):
    made = site.reader().manifest
    assert Manifest.from_json(made.to_json()) == made


def test_any_other_file_is_said_to_be_no_bundle(site):
    assert "it is no bundle of tinkedge" in refused(site, b"PK\x03\x04" + bytes(range(1, 200)) * 100)
    assert "there is 'manifest.json' where SHA256SUMS should be" in refused(site, packed({"manifest.json": b"{}"}))


@pytest.mark.parametrize("member", ["SHA256SUMS", "manifest.json", "files/disk.raw"])
def test_header_that_tar_would_read_otherwise_is_refused(site, member):
    content = bytearray(packed(site.members()))
    at = next(place for place in range(0, len(content), 512) if content[place:].startswith(member.encode() + b"\0"))
    header = content[at : at + 512]
    header[100:108] = b"0004755\0"  # set-user-id, with a checksum that fits
    header[148:156] = b"        "
    header[148:156] = b"%06o\0 " % sum(header)
    content[at : at + 512] = header
    assert refused(site, bytes(content)).startswith(f"{member} in it has another header than tinkedge writes")


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


def test_file_of_eight_gigabytes_has_a_header_that_tar_reads():
    made = archive._header("files/disk.raw", 9 << 30, NOW)
    assert len(made) == 512
    assert (found := tarfile.TarInfo.frombuf(made, "utf-8", "strict")).size == 9 << 30
    assert found.name == "files/disk.raw"
    with pytest.raises(BundleError, match="so large a file"):
        archive._header(f"files/{'x' * 100}", 9 << 30, NOW)


def test_headers_of_format_one_stay_as_they_are():
    """A bundle that one release has made is read by the next."""
    digests = [hashlib.sha256(archive._header("images/x", size, NOW)).hexdigest()[:16] for size in (5, 9 << 30)]
    assert (manifest.FORMAT, digests) == (1, ["5a72957502f35626", "b31ab2c0feb35444"])
