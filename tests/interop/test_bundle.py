"""`tinkedge bundle` as operators call it: keys and signatures with the real gpg, gpgv and sqv, images with skopeo.

The real apt selects the Debian packages, from a mirror that the test creates.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from cryptography import x509

from edge.artifacts.layout import ImageLayout
from edge.bundle import sources
from edge.bundle.archive import BundledProgram, BundleError
from edge.bundle.signature import verify
from edge.cli import main
from tests.interop.authority import Authority
from tests.interop.conftest import running_registry
from tests.unit.bundle import layouts

TOOLS = ("gpgv", "sqv")


class Operator:
    """Runs shell commands in a directory with `site.key`, `site.pgp` and `site.bundle`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.output_of("key", "site")
        (directory / "disk.raw").write_bytes(b"disk")
        self.output_of("create", "--key", "site.key", "--file", "disk.raw", "-o", "site.bundle")

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(main, ["bundle", *words])

    def output_of(self, *words: str) -> str:
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
    """Hide all programs that check signatures, except this one."""
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


def test_valid_bundle_is_verified_by_either_tool(operator: Operator, tool: str) -> None:
    assert "site.bundle: good, 2 files, signed by " in operator.output_of(
        "verify", "site.bundle", "--key", "site.pgp"
    ), tool
    shown = json.loads(operator.output_of("show", "site.bundle", "--key", "site.pgp", "-o", "json"))
    assert list(shown["sizes"]) == ["files/disk.raw", "sbom.cdx.json"]


def test_bundle_that_was_changed_or_signed_by_another_is_refused(operator: Operator, tool: str) -> None:
    with pytest.MonkeyPatch.context() as path:
        path.setenv("PATH", "/usr/bin:/bin")
        operator.output_of("key", "other")
    message = operator.refused("verify", "site.bundle", "--key", "other.pgp")
    assert "site.bundle: it was signed with another key" in message, tool
    assert "other.pgp has: is it the right file?" in message
    file = operator.directory / "site.bundle"
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"  files/disk.raw", b"  files/DISK.raw", 1))
    message = operator.refused("load", "site.bundle", "--key", "site.pgp", "--data-dir", "data")
    assert "SHA256SUMS is not what was signed: the bundle was changed or damaged; copy it again" in message
    assert not (operator.directory / "data").exists()
    at = whole.index(b"SHA256SUMS.sig") + 512
    file.write_bytes(whole[:at] + bytes(20) + whole[at + 20 :])
    message = operator.refused("verify", "site.bundle", "--key", "site.pgp")
    assert "its signature can't be checked with site.pgp" in message


def test_key_with_armor_is_accepted_and_a_file_without_a_key_is_reported(
    operator: Operator, tool: str, keyring: Path
) -> None:
    gpg("--import", "site.pgp")
    armored = operator.directory / "armored.asc"
    armored.write_bytes(gpg("--armor", "--export"))
    assert "good" in operator.output_of("verify", "site.bundle", "--key", "armored.asc"), tool
    for content, why in (
        (b"", "it has no bytes"),
        (b"x" * 2_000_000, "too many bytes"),
        (b"no key", "with wrong.pgp" if tool == "sqv" else "than wrong.pgp has: is it the right file?"),
    ):
        (operator.directory / "wrong.pgp").write_bytes(content)
        assert why in operator.refused("verify", "site.bundle", "--key", "wrong.pgp")
    assert "missing.pgp: No such file" in operator.refused("verify", "site.bundle", "--key", "missing.pgp")


def test_expired_and_revoked_keys_are_reported_with_a_hint_at_the_clock(keyring: Path, tmp_path: Path) -> None:
    begun, later = ("--faked-system-time", "20240101T000000!"), ("--faked-system-time", "20240101T000010!")
    text = tmp_path / "SHA256SUMS"
    text.write_bytes(b"sums")
    for name, lasts, why in (("short", "seconds=60", "expired .*this host's clock"), ("lost", "never", "been revoked")):
        gpg(*begun, "--passphrase", "", "--quick-gen-key", name, "ed25519", "sign", lasts)
        signature = gpg(*later, "--local-user", name, "--detach-sign", "-o", "-", str(text))
        if name == "lost":
            # gpg's revocation certificate has a leading colon, so that it is not imported by mistake.
            prepared = keyring / f"openpgp-revocs.d/{fingerprint(name)}.rev"
            prepared.write_text(prepared.read_text().replace(":-----BEGIN", "-----BEGIN"))
            gpg("--import", str(prepared))
        public = tmp_path / f"{name}.pgp"
        public.write_bytes(gpg("--export", name))
        with pytest.raises(BundleError, match=f"the key that signed it has {why}"):
            verify(public, b"sums", signature)


def test_bundle_signed_by_a_key_of_the_operators_own(operator: Operator, keyring: Path) -> None:
    gpg("--passphrase", "", "--quick-gen-key", "Operations <ops@example.org>", "ed25519", "sign", "never")
    operator.output_of("create", "--gpg-user", "ops@example.org", "--file", "disk.raw", "-o", "own.bundle")
    (operator.directory / "own.pgp").write_bytes(gpg("--export"))
    assert "good" in operator.output_of("verify", "own.bundle", "--key", "own.pgp")
    assert "gpg: signing failed" in operator.refused(
        "create", "--gpg-user", "nobody@example.org", "--file", "disk.raw", "-o", "no.bundle"
    )


def test_error_without_a_key_or_a_tool_names_the_remedy_and_no_key_is_overwritten(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = ("create", "--file", "disk.raw", "-o", "x.bundle")
    ran = operator.run(*create)
    assert ran.exit_code == 2
    assert "`tinkedge bundle key site` makes site.key and site.pgp" in ran.output
    assert "`tinkedge bundle key` makes one" in operator.refused(*create, "--key", "no.key")
    assert "there is no secret key in it" in operator.refused(*create, "--key", "site.pgp")
    assert "site.key is there already" in operator.refused("key", "site")
    assert (operator.directory / "site.key").stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("PATH", "/nowhere")
    message = operator.refused("verify", "site.bundle", "--key", "site.pgp")
    assert "neither gpgv nor sqv, which check signatures: apt-get install gpgv" in message
    assert "there is no gpg, which signs: apt-get install gnupg" in operator.refused("key", "another")
    image = ("create", "--key", "site.key", "--image", "a:1=oci:x:1", "-o", "x.bundle")
    assert "there is no skopeo: apt-get install skopeo" in operator.refused(*image)


def test_images_come_from_a_registry_for_the_requested_processors(operator: Operator, docker_registry: str) -> None:
    both(operator.directory / "both", docker_registry)
    image = ["--image", f"{docker_registry}/tools/both:1", "--insecure-registry", docker_registry]
    output = operator.output_of("create", "--key", "site.key", *image, "--platform", "arm64", "-o", "arm64.bundle")
    assert "image tools/both:1 for linux/arm64, sha256:" in output
    output = operator.output_of("create", "--key", "site.key", *image, "--platform", "all", "-o", "all.bundle")
    assert "image tools/both:1 for linux/amd64, linux/arm64, sha256:" in output
    for name, blobs in (("arm64", 3), ("all", 6)):  # a manifest, a configuration, a layer; an index, and five
        operator.output_of("load", f"{name}.bundle", "--key", "site.pgp", "--data-dir", name)
        layout = ImageLayout(operator.directory / name / "images")
        assert len(list(layout.blobs(layout.images()["tools/both:1"]))) == blobs
    assert f"it speaks plain HTTP: --insecure-registry {docker_registry}" in operator.refused(
        "create", "--key", "site.key", "--image", f"{docker_registry}/tools/none:1", "-o", "no.bundle"
    )


def test_registry_of_an_unknown_authority_is_refused_with_the_remedy(
    operator: Operator, registry_data: Path, tmp_path: Path
) -> None:
    certificate, key = Authority(tmp_path).sign("tls", x509.IPAddress(ip_address("127.0.0.1")))
    with running_registry(tmp_path, registry_data, f", tls: {{certificate: {certificate}, key: {key}}}") as host:
        command = ("create", "--key", "site.key", "--image", f"{host}/tools/both:1", "-o", "no.bundle")
        assert f"into /etc/containers/certs.d/{host}/ca.crt, or --insecure-registry {host}" in operator.refused(
            *command
        )


def both(layout: Path, registry: str) -> None:
    """Push an image for two processors to the registry."""
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


# --- Debian packages --------------------------------------------------------------------------------------------------

PACKAGES = {
    "base": "Essential: yes",
    "apt": "Depends: base",
    "python3": "Depends: libpython (>= 3.11), base\nVersion: 3.11.2-1",
    "libpython": "Version: 1:3.11.2-6+deb12u9",
    "ipmitool": "",
    "ipxe": "",
    "ca-certificates": "Depends: openssl",
    "openssl": "",
    "unrelated": "",
}


def make(directory: Path, name: str, more: str) -> Path:
    """Build a Debian package without files."""
    root = directory / f"root-{name}"
    (root / "DEBIAN").mkdir(parents=True)
    version = "" if "Version:" in more else "Version: 1.0\n"
    control = f"Package: {name}\n{version}Architecture: all\nMaintainer: t <t@localhost>\nDescription: t\n{more}"
    (root / "DEBIAN/control").write_text(control.strip() + "\n")
    command = ["dpkg-deb", "--root-owner-group", "-Zgzip", "--build", root, directory / f"{name}.deb"]
    subprocess.run(command, check=True, capture_output=True)
    return directory / f"{name}.deb"


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Configure apt with a local mirror of bookworm only, which is signed with a key of the test."""
    home, root = tmp_path / "gnupg", tmp_path / "mirror"
    home.mkdir(mode=0o700)
    (root / "pool").mkdir(parents=True)
    stanzas = []
    for name, more in PACKAGES.items():
        deb = make(root / "pool", name, more)
        control = subprocess.run(["dpkg-deb", "--field", deb], check=True, capture_output=True, text=True).stdout
        content = deb.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        stanzas.append(f"{control}Filename: pool/{name}.deb\nSize: {len(content)}\nSHA256: {digest}\n")
    folder = root / "dists/bookworm/main/binary-amd64"
    folder.mkdir(parents=True)
    listed = "\n".join(stanzas).encode()
    (folder / "Packages").write_bytes(listed)
    release = (
        "Origin: Debian\nSuite: stable\nCodename: bookworm\nDate: Mon, 01 Jan 2024 00:00:00 UTC\n"
        "Components: main\nArchitectures: amd64\n"
        f"SHA256:\n {hashlib.sha256(listed).hexdigest()} {len(listed)} main/binary-amd64/Packages\n"
    )
    gpg = ["gpg", "--homedir", home, "--batch", "--quiet"]
    key_options = ["--passphrase", "", "--quick-gen-key", "mirror", "ed25519", "sign", "never"]
    subprocess.run([*gpg, *key_options], check=True, capture_output=True)
    signed = subprocess.run([*gpg, "--clear-sign"], input=release.encode(), check=True, capture_output=True).stdout
    (root / "dists/bookworm/InRelease").write_bytes(signed)
    keyring = tmp_path / "keyring.gpg"
    keyring.write_bytes(subprocess.run([*gpg, "--export"], check=True, capture_output=True).stdout)
    subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=True)
    host(tmp_path / "host", f"deb [arch=amd64 signed-by={keyring}] file:{root} bookworm main", monkeypatch)
    monkeypatch.setattr(sources, "_KEYRING", keyring)
    return root


def host(directory: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lists/partial", "cache/archives/partial", "empty"):
        (directory / name).mkdir(parents=True)
    (directory / "status").write_text("")
    (directory / "sources.list").write_text(f"{source}\n")
    (directory / "apt.conf").write_text(
        f'Dir::Etc::sourcelist "{directory}/sources.list";\nDir::Etc::sourceparts "{directory}/empty";\n'
        f'Dir::State "{directory}";\nDir::State::status "{directory}/status";\nDir::Cache "{directory}/cache";\n'
        'APT::Architecture "amd64";\nAPT::Sandbox::User "root";\n'
    )
    monkeypatch.setenv("APT_CONFIG", str(directory / "apt.conf"))
    subprocess.run(["apt-get", "-qq", "update"], check=True, capture_output=True, env=dict(os.environ))


def tinkedge(directory: Path, version: str = "0.1.0+deb12", depends: str = "python3 (>= 3.11)") -> Path:
    return make(directory, "tinkedge", f"Version: {version}\nDepends: {depends}")


BOOKWORM = BundledProgram("0.1.0+deb12", "bookworm", "amd64")


def test_only_packages_missing_on_an_empty_debian_are_fetched(mirror: Path, tmp_path: Path) -> None:
    deb, output = tinkedge(tmp_path), list[str]()
    program = sources.program_of(deb)
    assert (program.version, program.suite) == (BOOKWORM.version, BOOKWORM.suite)
    found = sources.needed_packages(deb, BOOKWORM, tmp_path / "cache", output.append)
    names = ["ca-certificates_1.0_all.deb", "ipmitool_1.0_all.deb", "ipxe_1.0_all.deb"]
    names += ["libpython_1%3a3.11.2-6+deb12u9_all.deb", "openssl_1.0_all.deb", "python3_3.11.2-1_all.deb"]
    assert [path.name for path in found] == names
    assert output[-1] == "fetching 6 of 6 Debian packages"
    # A second call downloads nothing.
    assert sources.needed_packages(deb, BOOKWORM, tmp_path / "cache", output.append) == found
    assert output[2:] == ["asking apt what an empty Debian bookworm lacks"]


def test_package_without_the_mirrors_signature_or_not_on_the_mirror_is_refused(mirror: Path, tmp_path: Path) -> None:
    (tmp_path / "newer").mkdir()
    deb = tinkedge(tmp_path / "newer", depends="python3 (>= 3.13)")
    with pytest.raises(BundleError, match=r"python3 \(>= 3.13\)"):
        sources.needed_packages(deb, BOOKWORM, tmp_path / "cache", print)
    (mirror / "pool/ipxe.deb").write_bytes((mirror / "pool/unrelated.deb").read_bytes())
    with pytest.raises(BundleError, match="fetching Debian packages: sh ended with 100"):
        sources.needed_packages(tinkedge(tmp_path), BOOKWORM, tmp_path / "cache", print)


def test_package_for_an_unknown_debian_or_of_another_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="does not say which Debian it is for"):
        sources.program_of(tinkedge(tmp_path, version="0.1.0"))
    with pytest.raises(BundleError, match="it is the package other, not tinkedge"):
        sources.program_of(make(tmp_path, "other", ""))
    (tmp_path / "broken.deb").write_bytes(b"no package")
    with pytest.raises(BundleError, match=r"broken.deb: dpkg-deb ended with 2"):
        sources.program_of(tmp_path / "broken.deb")
