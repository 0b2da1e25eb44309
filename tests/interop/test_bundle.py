"""`tinkedge bundle` as operators call it: keys and signatures with the real gpg, gpgv and sqv, images with skopeo."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from edge.artifacts import ImageLayout
from edge.bundle import BundleError, verify
from edge.cli import main
from tests.unit.bundle import layouts

TOOLS = ("gpgv", "sqv")


class Operator:
    """Somebody at a shell, in a directory with `site.key`, `site.pgp` and `site.bundle`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.says("key", "site")
        (directory / "disk.raw").write_bytes(b"disk")
        self.says("create", "--key", "site.key", "--file", "disk.raw", "-o", "site.bundle")

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(main, ["bundle", *words])

    def says(self, *words: str) -> str:
        ran = self.run(*words)
        assert ran.exit_code == 0, ran.output
        return ran.output

    def refused(self, *words: str) -> str:
        ran = self.run(*words)
        assert ran.exit_code == 1, ran.output
        assert "Error: " in ran.output
        return ran.output


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Operator:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Operator(tmp_path)


@pytest.fixture(params=TOOLS)
def tool(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """This is all that the host has to check signatures with."""
    only = tmp_path / "only"
    only.mkdir()
    (only / request.param).symlink_to(f"/usr/bin/{request.param}")
    monkeypatch.setenv("PATH", str(only))
    return str(request.param)


@pytest.fixture
def keyring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An operator's own keyring, with keys that gpg makes."""
    home = tmp_path / "gnupg"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("GNUPGHOME", str(home))
    yield home
    subprocess.run(["gpgconf", "--kill", "all"], check=True, env=os.environ | {"PATH": "/usr/bin"})


def gpg(*words: str) -> bytes:
    return subprocess.run(["/usr/bin/gpg", "--batch", "--quiet", *words], check=True, capture_output=True).stdout


def fingerprint(name: str) -> str:
    listed = gpg("--with-colons", "--list-keys", name).decode()
    return next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:"))


def test_good_bundle_is_good_for_either_tool(operator: Operator, tool: str) -> None:
    assert "site.bundle: good, 2 files, signed by " in operator.says("verify", "site.bundle", "--key", "site.pgp"), tool
    shown = json.loads(operator.says("show", "site.bundle", "--key", "site.pgp", "-o", "json"))
    assert list(shown["sizes"]) == ["files/disk.raw", "sbom.cdx.json"]


def test_bundle_that_was_changed_or_signed_by_another_is_refused(operator: Operator, tool: str) -> None:
    with pytest.MonkeyPatch.context() as path:
        path.setenv("PATH", "/usr/bin:/bin")
        operator.says("key", "other")
    said = operator.refused("verify", "site.bundle", "--key", "other.pgp")
    assert "site.bundle: it was signed with another key" in said, tool
    assert "other.pgp has: is it the right file?" in said
    file = operator.directory / "site.bundle"
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"  files/disk.raw", b"  files/DISK.raw", 1))
    said = operator.refused("load", "site.bundle", "--key", "site.pgp", "--data-dir", "data")
    assert "SHA256SUMS is not what was signed: the bundle was changed or damaged; copy it anew" in said
    assert not (operator.directory / "data").exists()
    at = whole.index(b"SHA256SUMS.sig") + 512
    file.write_bytes(whole[:at] + bytes(20) + whole[at + 20 :])
    assert "its signature can't be checked with site.pgp" in operator.refused(
        "verify", "site.bundle", "--key", "site.pgp"
    )


def test_key_with_armor_does_as_well_and_what_is_no_key_is_said(operator: Operator, tool: str, keyring: Path) -> None:
    gpg("--import", "site.pgp")
    armored = operator.directory / "armored.asc"
    armored.write_bytes(gpg("--armor", "--export"))
    assert "good" in operator.says("verify", "site.bundle", "--key", "armored.asc"), tool
    for content, why in (
        (b"", "it has no bytes"),
        (b"x" * 2_000_000, "too many bytes"),
        (b"no key", "with wrong.pgp" if tool == "sqv" else "than wrong.pgp has: is it the right file?"),
    ):
        (operator.directory / "wrong.pgp").write_bytes(content)
        assert why in operator.refused("verify", "site.bundle", "--key", "wrong.pgp")
    assert "missing.pgp: No such file" in operator.refused("verify", "site.bundle", "--key", "missing.pgp")


def test_expired_and_revoked_keys_are_said_with_the_clock_in_mind(keyring: Path, tmp_path: Path) -> None:
    begun, later = ("--faked-system-time", "20240101T000000!"), ("--faked-system-time", "20240101T000010!")
    text = tmp_path / "SHA256SUMS"
    text.write_bytes(b"sums")
    for name, lasts, why in (("short", "seconds=60", "expired .*this host's clock"), ("lost", "never", "been revoked")):
        gpg(*begun, "--passphrase", "", "--quick-gen-key", name, "ed25519", "sign", lasts)
        signature = gpg(*later, "--local-user", name, "--detach-sign", "-o", "-", str(text))
        if name == "lost":
            # What gpg has made for that day, with a colon in front so that it is not imported by mistake.
            prepared = keyring / f"openpgp-revocs.d/{fingerprint(name)}.rev"
            prepared.write_text(prepared.read_text().replace(":-----BEGIN", "-----BEGIN"))
            gpg("--import", str(prepared))
        public = tmp_path / f"{name}.pgp"
        public.write_bytes(gpg("--export", name))
        with pytest.raises(BundleError, match=f"the key that signed it has {why}"):
            verify(public, b"sums", signature)


def test_bundle_signed_by_a_key_of_the_operators_own(operator: Operator, keyring: Path) -> None:
    gpg("--passphrase", "", "--quick-gen-key", "Operations <ops@example.org>", "ed25519", "sign", "never")
    operator.says("create", "--gpg-user", "ops@example.org", "--file", "disk.raw", "-o", "own.bundle")
    (operator.directory / "own.pgp").write_bytes(gpg("--export"))
    assert "good" in operator.says("verify", "own.bundle", "--key", "own.pgp")
    assert "gpg: signing failed" in operator.refused(
        "create", "--gpg-user", "nobody@example.org", "--file", "disk.raw", "-o", "no.bundle"
    )


def test_whoever_has_no_key_is_told_how_and_none_is_overwritten(operator: Operator) -> None:
    ran = operator.run("create", "--file", "disk.raw", "-o", "x.bundle")
    assert ran.exit_code == 2
    assert "`tinkedge bundle key site` makes site.key and site.pgp" in ran.output
    assert "`tinkedge bundle key` makes one" in operator.refused(
        "create", "--key", "no.key", "--file", "disk.raw", "-o", "x.bundle"
    )
    assert "there is no secret key in it" in operator.refused(
        "create", "--key", "site.pgp", "--file", "disk.raw", "-o", "x.bundle"
    )
    assert "site.key is there already" in operator.refused("key", "site")
    assert (operator.directory / "site.key").stat().st_mode & 0o777 == 0o600


def test_host_without_the_tools_is_told_which_package_has_them(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert "neither gpgv nor sqv, which check signatures: apt-get install gpgv" in operator.refused(
        "verify", "site.bundle", "--key", "site.pgp"
    )
    assert "there is no gpg, which signs: apt-get install gnupg" in operator.refused("key", "another")
    assert "there is no skopeo: apt-get install skopeo" in operator.refused(
        "create", "--key", "site.key", "--image", "a:1=oci:x:1", "-o", "x.bundle"
    )


def test_images_come_from_a_registry_for_the_processors_that_were_asked_for(
    operator: Operator, docker_registry: str
) -> None:
    both(operator.directory / "both", docker_registry)
    image = ["--image", f"{docker_registry}/tools/both:1", "--insecure-registry", docker_registry]
    told = operator.says("create", "--key", "site.key", *image, "--platform", "arm64", "-o", "arm64.bundle")
    assert "image tools/both:1 for linux/arm64, sha256:" in told
    told = operator.says("create", "--key", "site.key", *image, "--platform", "all", "-o", "all.bundle")
    assert "image tools/both:1 for linux/amd64, linux/arm64, sha256:" in told
    for name, blobs in (("arm64", 3), ("all", 6)):  # a manifest, a configuration, a layer; an index, and five
        operator.says("load", f"{name}.bundle", "--key", "site.pgp", "--data-dir", name)
        layout = ImageLayout(operator.directory / name / "images")
        assert len(list(layout.blobs(layout.images()["tools/both:1"]))) == blobs
    assert f"it speaks plain HTTP: --insecure-registry {docker_registry}" in operator.refused(
        "create", "--key", "site.key", "--image", f"{docker_registry}/tools/none:1", "-o", "no.bundle"
    )


def both(layout: Path, registry: str) -> None:
    """An image for two processors, in the registry."""
    entries: list[dict[str, Any]] = []
    for processor in ("amd64", "arm64"):
        one = layouts.image(layout, b"layer", processor)
        entries.append(one | {"platform": {"os": "linux", "architecture": processor}})
    index = layouts.blob(
        layout, {"schemaVersion": 2, "mediaType": layouts.INDEX_TYPE, "manifests": entries}, layouts.INDEX_TYPE
    )
    layouts.index(layout, both=index)
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    words = ["--insecure-policy", "copy", "--quiet", "--multi-arch", "all", "--dest-tls-verify=false"]
    subprocess.run(["skopeo", *words, f"oci:{layout}:both:1", f"docker://{registry}/tools/both:1"], check=True)
