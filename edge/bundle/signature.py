"""Signatures of bundles: OpenPGP (RFC 9580), which every Debian installation can check without more packages.

apt checks Debian's own signatures with `gpgv` (Debian 12) or `sqv` (13), so every Debian has one of them. A minimal
installation has no other program for signatures (openssl, ssh-keygen, Python). `gpg` signs: with a key in a file by
`make_key`, or with the caller's own key, which may be on a smart card.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from edge.bundle.archive import BundleError
from tink.files import private_files

_SECONDS = 120.0
"""Time to type a PIN."""
_MAX_KEY_BYTES = 1 << 20
_ARMOR = re.compile(
    rb"-----BEGIN PGP PUBLIC KEY BLOCK-----\r?\n(?:[^\n]+:[^\n]*\n)*\r?\n"
    rb"([A-Za-z0-9+/=\s]+?)(?:\n=\S{4}\s*)?\n-----END"
)
_STATUS = "[GNUPG:] "
_REFUSED = {
    "EXPKEYSIG": "the key that signed it has expired (or this host's clock is wrong: see `date`)",
    "EXPSIG": "its signature has expired (or this host's clock is wrong: see `date`); make the bundle again",
    "REVKEYSIG": "the key that signed it has been revoked",
    "BADSIG": "SHA256SUMS is not what was signed: the bundle was changed or damaged; copy it again",
    "NO_PUBKEY": "it was signed with another key",
}
"""Status words of gpgv (GnuPG, doc/DETAILS), the worst first."""


@dataclass(frozen=True, slots=True)
class Key:
    """A new key: the secret file for signing, the public file for checking, the fingerprint in hex."""

    secret: Path
    public: Path
    fingerprint: str


def make_key(prefix: Path, name: str) -> Key:
    """Make PREFIX.key (0600, without a passphrase) and PREFIX.pgp; neither may exist. Raises BundleError, OSError."""
    secret, public = prefix.with_name(f"{prefix.name}.key"), prefix.with_name(f"{prefix.name}.pgp")
    for path in (secret, public):
        if path.exists():
            raise BundleError(f"{path} is there already: a key that is overwritten can sign no more")
    with _gpg_home() as home:
        _gpg(home, "--passphrase", "", "--quick-gen-key", name, "ed25519", "sign", "never")
        listed = _gpg(home, "--with-colons", "--list-keys").decode()
        fingerprint = next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:"))
        private_files.write(secret, _gpg(home, "--export-secret-keys"))
        public.write_bytes(_gpg(home, "--export"))
    return Key(secret, public, fingerprint)


def sign_with_file(key: Path, text: bytes) -> bytes:
    """Return a detached signature by the key in a file. Raises BundleError."""
    if not key.is_file():
        raise BundleError(f"--key {key}: there is no such file; `tinkedge bundle key` makes one")
    with _gpg_home() as home:
        _gpg(home, "--import", str(key))
        if b"\nsec:" not in b"\n" + _gpg(home, "--with-colons", "--list-secret-keys"):
            raise BundleError(f"--key {key}: there is no secret key in it; the public one (.pgp) is for checking")
        return _gpg(home, "--detach-sign", stdin=text)


def sign_with_keyring(user: str, text: bytes) -> bytes:
    """Return a detached signature by a key of the caller's keyring or smart card. Raises BundleError."""
    return _gpg(None, "--local-user", user, "--detach-sign", stdin=text)


def verify(keyring: Path, text: bytes, signature: bytes) -> str:
    """Return the fingerprint of the key in `keyring` that signed `text`. Raises BundleError, OSError."""
    tool = shutil.which("gpgv") or shutil.which("sqv")
    if tool is None:
        raise BundleError("there is neither gpgv nor sqv, which check signatures: apt-get install gpgv")
    with tempfile.TemporaryDirectory(prefix="tinkedge-bundle.") as work:
        names = ("keyring", "signature", "text")
        ring, given, signed = (Path(work) / name for name in names)
        for path, content in ((ring, _public(keyring)), (given, signature), (signed, text)):
            path.write_bytes(content)
        if Path(tool).name == "sqv":
            ran = _run([tool, "--keyring", ring, given, signed])
            return _of_sqv(ran, keyring)
        # Without --homedir, gpgv looks for files in the user's home, which may not exist.
        return _of_gpgv(_run([tool, "--homedir", work, "--status-fd", "1", "--keyring", ring, given, signed]), keyring)


def _of_gpgv(ran: subprocess.CompletedProcess[bytes], keyring: Path) -> str:
    lines = [line.removeprefix(_STATUS).split() for line in ran.stdout.decode("utf-8", "replace").splitlines()]
    said = {words[0]: words[1:] for words in lines if words}
    for word, why in _REFUSED.items():
        if word in said:
            other = f" ({said[word][0]}) than {keyring} has: is it the right file?" if word == "NO_PUBKEY" else ""
            raise BundleError(why + other)
    if ran.returncode or "GOODSIG" not in said or not said.get("VALIDSIG"):
        raise BundleError(f"its signature can't be checked with {keyring}: {_last(ran.stderr)}")
    return said["VALIDSIG"][-1]


def _of_sqv(ran: subprocess.CompletedProcess[bytes], keyring: Path) -> str:
    fingerprints = ran.stdout.decode("utf-8", "replace").split()
    if ran.returncode or not fingerprints:
        why = ran.stderr.decode("utf-8", "replace").strip()
        if "Missing key" in why:
            raise BundleError(f"it was signed with another key than {keyring} has: is it the right file? sqv: {why}")
        if "manipulated" in why:
            raise BundleError(f"{_REFUSED['BADSIG']} (sqv: {why})")
        raise BundleError(f"its signature can't be checked with {keyring}: sqv: {why}")
    return fingerprints[0]


def _public(keyring: Path) -> bytes:
    """Return a keyring without armor, as gpgv needs it (RFC 9580, section 6.2). Raises BundleError, OSError."""
    with keyring.open("rb") as file:
        content = file.read(_MAX_KEY_BYTES + 1)
    if not content or len(content) > _MAX_KEY_BYTES:
        raise BundleError(f"{keyring}: it has {'no' if not content else 'too many'} bytes for a key")
    found = _ARMOR.search(content)
    if found is None:
        return content
    try:
        return base64.b64decode(b"".join(found[1].split()), validate=True)
    except binascii.Error as error:
        raise BundleError(f"{keyring}: it is no OpenPGP key: {error}") from error


@contextmanager
def _gpg_home() -> Iterator[Path]:
    """Provide a temporary keyring."""
    with tempfile.TemporaryDirectory(prefix="tinkedge-gpg.") as name:  # 0700
        home = Path(name)
        try:
            yield home
        finally:
            if (gpgconf := shutil.which("gpgconf")) is not None:  # gpg has started an agent
                _run([gpgconf, "--homedir", home, "--kill", "all"])


def _gpg(home: Path | None, *words: str, stdin: bytes = b"") -> bytes:
    gpg = shutil.which("gpg")
    if gpg is None:
        raise BundleError("there is no gpg, which signs: apt-get install gnupg")
    own: list[str | Path] = ["--batch", "--quiet", "--homedir", home] if home is not None else ["--quiet"]
    ran = _run([gpg, *own, *words], stdin)
    if ran.returncode:
        raise BundleError(f"gpg: {_last(ran.stderr)}")
    return ran.stdout


def _run(command: list[str | Path], stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=_SECONDS, env=environment)
    except subprocess.TimeoutExpired as error:
        raise BundleError(f"{Path(command[0]).name} has not ended after {_SECONDS:.0f} s") from error


def _last(said: bytes) -> str:
    lines = said.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
