"""Which Debian packages a bundle brings: the real apt is asked, of a mirror that the test makes."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from edge.bundle import BundleError
from edge.bundle.sources import debian

PACKAGES = {
    "base": "Essential: yes",
    "apt": "Depends: base",
    "python3": "Depends: libpython (>= 3.11), base\nVersion: 3.11.2-1",
    "libpython": "Version: 1:3.11.2-6+deb12u9",
    "ipxe": "",
    "ca-certificates": "Depends: openssl",
    "openssl": "",
    "unrelated": "",
}


def make(directory: Path, name: str, more: str) -> Path:
    """A package without files."""
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
    """This host's apt knows nothing but a mirror of bookworm on its disk, signed with a key of the test's."""
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
    made = ["--passphrase", "", "--quick-gen-key", "mirror", "ed25519", "sign", "never"]
    subprocess.run([*gpg, *made], check=True, capture_output=True)
    signed = subprocess.run([*gpg, "--clear-sign"], input=release.encode(), check=True, capture_output=True).stdout
    (root / "dists/bookworm/InRelease").write_bytes(signed)
    keyring = tmp_path / "keyring.gpg"
    keyring.write_bytes(subprocess.run([*gpg, "--export"], check=True, capture_output=True).stdout)
    subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=True)
    host(tmp_path / "host", f"deb [arch=amd64 signed-by={keyring}] file:{root} bookworm main", monkeypatch)
    monkeypatch.setattr(debian, "_KEYRING", keyring)
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


@pytest.fixture
def said() -> list[str]:
    return []


def test_what_an_empty_debian_lacks_is_fetched_and_what_it_has_is_not(
    mirror: Path, tmp_path: Path, said: list[str]
) -> None:
    deb = tinkedge(tmp_path)
    program = debian.program_of(deb)
    assert (program.version, program.suite) == ("0.1.0+deb12", "bookworm")
    program = debian.Program(program.version, program.suite, "amd64")
    found = debian.needed(deb, program, tmp_path / "cache", said.append)
    names = ["ca-certificates_1.0_all.deb", "ipxe_1.0_all.deb", "libpython_1%3a3.11.2-6+deb12u9_all.deb"]
    assert [path.name for path in found] == [*names, "openssl_1.0_all.deb", "python3_3.11.2-1_all.deb"]
    assert said[-1] == "fetching 5 of 5 Debian packages"
    # Once more brings nothing again.
    assert debian.needed(deb, program, tmp_path / "cache", said.append) == found
    assert said[2:] == ["asking apt what an empty Debian bookworm lacks"]


def test_package_that_is_not_what_the_mirror_signed_is_refused(mirror: Path, tmp_path: Path, said: list[str]) -> None:
    (mirror / "pool/ipxe.deb").write_bytes((mirror / "pool/unrelated.deb").read_bytes())
    deb = tinkedge(tmp_path)
    with pytest.raises(BundleError, match="fetching Debian packages: sh ended with 100"):
        debian.needed(deb, debian.Program("0.1.0+deb12", "bookworm", "amd64"), tmp_path / "cache", said.append)


def test_dependency_that_debian_has_not_is_said_in_apts_words(mirror: Path, tmp_path: Path, said: list[str]) -> None:
    deb = tinkedge(tmp_path, depends="python3 (>= 3.13)")
    with pytest.raises(BundleError, match=r"python3 \(>= 3.13\)"):
        debian.needed(deb, debian.Program("0.1.0+deb12", "bookworm", "amd64"), tmp_path / "cache", said.append)


def test_package_for_an_unknown_debian_or_of_another_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="does not say which Debian it is for"):
        debian.program_of(tinkedge(tmp_path, version="0.1.0"))
    with pytest.raises(BundleError, match="it is the package other, not tinkedge"):
        debian.program_of(make(tmp_path, "other", ""))
    (tmp_path / "broken.deb").write_bytes(b"no package")
    with pytest.raises(BundleError, match=r"broken.deb: dpkg-deb ended with 2"):
        debian.program_of(tmp_path / "broken.deb")
