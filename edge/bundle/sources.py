"""The sources of a bundle's parts: Debian packages by apt, files by URL, container images by skopeo."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from edge.artifacts.layout import Descriptor, ImageLayout, LayoutError, is_name
from edge.bundle.archive import BundledProgram, BundleError
from tink.agent.images import parse
from tink.agent.model import ActionError
from tink.files.archive import Progress
from tink.net.opener import handlers
from tink.net.proxies import Proxies, ProxyError
from tink.net.urls import redacted, shown
from tink.registry.names import host_of

_LINES = 8


def run(
    command: list[str | Path], *, what: str, package: str, timeout: float = 3600, env: dict[str, str] | None = None
) -> str:
    """Run a program of a Debian `package` and return its output. Raises BundleError with its last lines."""
    name = str(command[0])
    if shutil.which(name) is None:
        raise BundleError(f"{what}: there is no {name}: apt-get install {package}")
    environment = {**os.environ, "LC_ALL": "C", **(env or {})}
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=timeout, env=environment
        )
    except subprocess.TimeoutExpired as error:
        raise BundleError(f"{what}: {name} has not ended after {timeout:.0f} s") from error
    if ran.returncode:
        # apt writes the cause to its output, and the fact of the error to its error output.
        last = "\n".join(f"{ran.stdout}\n{ran.stderr}".strip().splitlines()[-_LINES:])
        raise BundleError(f"{what}: {name} ended with {ran.returncode}:\n{last}")
    return ran.stdout


_SUITES = {"12": "bookworm", "13": "trixie"}
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_WANTED = ("ipxe", "ca-certificates", "ipmitool")
"""Packages that tinkedge recommends: boot programs, TLS authorities, and the program for BMCs without Redfish.

A site without a network could not install ipmitool later. It takes 3 MB.
"""
_INSTALLED = re.compile(r"^Inst (\S+) \((\S+) .*\)", re.MULTILINE)
_TARGETS = "$(ORIGIN) $(CODENAME) $(RELEASE) $(COMPONENT) $(REPO_URI)"

Say = Callable[[str], None]


def program_of(deb: Path) -> BundledProgram:
    """Read a Debian package of tinkedge, by its control file. Raises BundleError."""
    if not deb.is_file():
        raise BundleError(f"--deb {deb}: there is no such file; `make deb` makes one")
    words = ["dpkg-deb", "--showformat", "${Package} ${Version} ${Architecture}", "--show", str(deb)]
    name, version, architecture = run([*words], what=f"--deb {deb}", package="dpkg").split()
    if name != "tinkedge":
        raise BundleError(f"--deb {deb}: it is the package {name}, not tinkedge")
    release = re.search(r"\+deb([0-9]+)$", version)
    if release is None or release[1] not in _SUITES:
        raise BundleError(f"--deb {deb}: its version {version} does not say which Debian it is for (+deb12, +deb13)")
    return BundledProgram(version, _SUITES[release[1]], architecture)


def needed_packages(deb: Path, program: BundledProgram, cache: Path, say: Say) -> list[Path]:
    """Return the packages that an empty Debian needs for `deb`, downloaded to `cache`. Raises BundleError, OSError."""
    apt = _Apt(cache / f"apt-{program.suite}-{program.architecture}", program)
    say(f"asking apt what an empty Debian {program.suite} lacks")
    apt.update()
    there = apt.simulate("?essential", "apt")
    wanted = apt.simulate(str(deb.absolute()), *_WANTED)
    missing = {name: version for name, version in wanted.items() if name not in there and name != "tinkedge"}
    packages = cache / "debs"
    packages.mkdir(parents=True, exist_ok=True)
    absent = {name: version for name, version in missing.items() if apt.find(packages, name, version) is None}
    if absent:
        say(f"fetching {len(absent)} of {len(missing)} Debian packages")
        apt.download(packages, absent)
    found = {name: apt.find(packages, name, version) for name, version in sorted(missing.items())}
    if lost := [name for name, path in found.items() if path is None]:
        raise BundleError(f"apt has not brought {', '.join(lost[:3])} into {packages}")
    return [path for path in found.values() if path is not None]


class _Apt:
    """apt with its own configuration, in a persistent directory."""

    def __init__(self, directory: Path, program: BundledProgram) -> None:
        self._directory, self._program = directory, program
        self._configuration = directory / "apt.conf"
        self._environment = {"APT_CONFIG": str(self._configuration)}

    def update(self) -> None:
        """Download the lists of packages."""
        directory, architecture = self._directory, self._program.architecture
        if not _KEYRING.exists():
            raise BundleError(f"{_KEYRING} is missing: apt-get install debian-archive-keyring")
        for name in ("lists/partial", "cache/archives/partial", "empty"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        (directory / "status").write_text("")
        (directory / "sources.list").write_text("".join(f"{line}\n" for line in self._sources()))
        self._configuration.write_text(
            f'Dir::Etc::sourcelist "{directory}/sources.list";\nDir::Etc::sourceparts "{directory}/empty";\n'
            f'Dir::State "{directory}";\nDir::State::lists "{directory}/lists";\n'
            f'Dir::State::status "{directory}/status";\nDir::Cache "{directory}/cache";\n'
            f'APT::Architecture "{architecture}";\n#clear APT::Architectures;\n'
            f'APT::Architectures {{ "{architecture}"; }};\n'
            'APT::Install-Recommends "false";\nAPT::Sandbox::User "root";\nAcquire::Languages "none";\n'
        )
        self._get("update")

    def simulate(self, *wanted: str) -> dict[str, str]:
        """Return the packages that apt would install on an empty system: versions by name."""
        return dict(_INSTALLED.findall(self._get("--simulate", "--yes", "install", *wanted)))

    def download(self, into: Path, packages: dict[str, str]) -> None:
        """Download these versions; apt checks each against the signed lists."""
        # apt-get writes into its working directory.
        words = [f"{name}={version}" for name, version in packages.items()]
        script: list[str | Path] = ["sh", "-c", 'cd "$1" && shift && exec apt-get -q download "$@"', "sh", into, *words]
        run(script, what="fetching Debian packages", package="apt", env=self._environment)

    def find(self, directory: Path, name: str, version: str) -> Path | None:
        """Return the file of a downloaded package, or None."""
        stem = f"{name}_{version.replace(':', '%3a')}"
        candidates = (directory / f"{stem}_{which}.deb" for which in (self._program.architecture, "all"))
        return next((path for path in candidates if path.exists()), None)

    def _get(self, *words: str) -> str:
        command: list[str | Path] = ["apt-get", "-q", *words]
        return run(command, what=f"apt-get {' '.join(words)[:60]}", package="apt", env=self._environment)

    def _sources(self) -> list[str]:
        """Return sources.list lines: this host's mirrors that have the suite, else the suite on all its mirrors."""
        ask: list[str | Path] = ["apt-get", "indextargets", "--format", _TARGETS, "Created-By: Packages"]
        said = run(ask, what="apt's mirrors", package="apt")
        suite = self._program.suite
        found = [line.split() for line in said.splitlines()]
        debian = [one for one in found if len(one) == 5 and one[0] == "Debian" and one[3] == "main"]
        own = {(uri, release) for _, codename, release, _, uri in debian if codename.partition("-")[0] == suite}
        if not own:
            kinds = ("", "-updates", "-security")
            ends = {f"{one[1].partition('-')[0]}{kind}": f"{suite}{kind}" for one in debian for kind in kinds}
            own = {(uri, ends[release]) for _, _, release, _, uri in debian if release in ends}
        if not own:
            raise BundleError(
                f"apt knows no mirror of Debian to ask for {suite}: name one in /etc/apt/sources.list.d and apt-get "
                "update, or give the packages yourself with --package"
            )
        return sorted(f"deb [signed-by={_KEYRING}] {uri} {release} main" for uri, release in own)


_CHUNK = 1 << 18
_SILENCE_SECONDS = 60.0
"""Seconds without a received byte after which a download fails."""
_MAX_ATTEMPTS = 4


def is_url(text: str) -> bool:
    """Return True for a URL."""
    return text.startswith(("http://", "https://"))


def download(url: str, cache: Path, progress: Progress) -> Path:
    """Download `url` into `cache`; return the file. Raises BundleError, OSError.

    An interrupted download continues if the file is the same. A complete file is not downloaded again if the server
    confirms that it is unchanged (RFC 9110, section 13.1.2), or has no validator.
    """
    cache.mkdir(parents=True, exist_ok=True)
    kept = cache / hashlib.sha256(url.encode()).hexdigest()[:32]
    part, notes = kept.with_suffix(".part"), kept.with_suffix(".json")
    for left in range(_MAX_ATTEMPTS - 1, -1, -1):
        try:
            return _attempt(url, kept, part, notes, progress)
        except urllib.error.HTTPError as error:
            if error.code < 500 or not left:
                raise BundleError(f"{shown(url)}: HTTP {error.code} {redacted(str(error.reason))}") from error
        except http.client.InvalidURL:  # the error's text has a part of the URL
            raise BundleError(f"{shown(url)} has a port or characters that no URL has: percent-encode them") from None
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            if not left:
                reason = getattr(error, "reason", None) or error
                said = redacted(str(reason))
                raise BundleError(f"{shown(url)}: {said}; once more goes on where this ended") from error
        except ProxyError as error:
            raise BundleError(f"{shown(url)}: {error}") from error
        except ValueError as error:
            raise BundleError(f"{shown(url)} is no URL") from error
    raise AssertionError


def _attempt(url: str, kept: Path, part: Path, notes: Path, progress: Progress) -> Path:
    tag = _tag(notes)
    request = urllib.request.Request(url)  # noqa: S310 - `is_url` has seen that it is http
    begun = part.stat().st_size if part.exists() and tag else 0
    if begun:
        request.add_header("Range", f"bytes={begun}-")
        request.add_header("If-Range", tag)
    elif kept.exists() and tag:
        request.add_header("If-None-Match", tag)
    try:
        opener = urllib.request.build_opener(*handlers(Proxies.of(os.environ)))
        response = opener.open(request, timeout=_SILENCE_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 304:
            return kept
        if error.code == 416:  # the file is shorter now
            part.unlink(missing_ok=True)
            return _attempt(url, kept, part, notes, progress)
        raise
    with response:
        if response.status != 206:
            begun = 0
        size = begun + int(response.headers.get("Content-Length") or 0)
        notes.write_text(json.dumps({"url": shown(url), "etag": response.headers.get("ETag") or ""}))
        with part.open("ab" if begun else "wb") as out:
            while chunk := response.read(_CHUNK):
                out.write(chunk)
                progress(f"{shown(url)}, in bytes", out.tell(), size)
            found = out.tell()
    if response.headers.get("Content-Length") and found != size:
        raise ConnectionError(f"the connection ended after {found} of {size} bytes")
    shutil.move(part, kept)
    return kept


def _tag(notes: Path) -> str:
    """Return the strong entity tag of the downloaded bytes; empty if the server gave none."""
    try:
        tag = json.loads(notes.read_text())["etag"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return tag if isinstance(tag, str) and not tag.startswith("W/") else ""


ALL = "all"
_TRANSPORTS = ("containers-storage:", "dir:", "docker:", "docker-archive:", "docker-daemon:", "oci:", "oci-archive:")
_POLICIES = (Path.home() / ".config/containers/policy.json", Path("/etc/containers/policy.json"))


@dataclass(frozen=True, slots=True)
class Wanted:
    """An image: its name for machines (`repository:tag`), and its source for skopeo (containers-transports(5))."""

    name: str
    source: str

    @classmethod
    def of(cls, text: str) -> Wanted:
        """Parse `REF`, `NAME:TAG=TRANSPORT:...` or `NAME:TAG=REF`. Raises BundleError."""
        name, given, source = text.partition("=")
        if not given:
            name, source = "", text
        if not source.startswith(_TRANSPORTS):
            try:
                reference = parse(source)
            except ActionError as error:
                raise BundleError(f"--image {text}: {error}") from error
            tag = reference.tag
            if reference.digest and not given:
                raise BundleError(f"--image {text}: give it a name: --image NAME:TAG={source}")
            name = name or f"{reference.path}:{tag}"
            source = f"docker://{source}"
        elif not given:
            raise BundleError(f"--image {text}: give it a name, as Templates will have it: --image NAME:TAG={source}")
        if not is_name(name):
            raise BundleError(f"--image {text}: {name!r} is no repository:tag in lower case")
        return cls(name, source)


def fetch_image(wanted: Wanted, layout: Path, *, platform: str, insecure: Iterable[str]) -> Descriptor:
    """Copy an image into the layout with skopeo. Raises BundleError, OSError.

    `platform`: a processor (`amd64`), or all. skopeo finds blobs of earlier runs by their digests, so an interrupted
    download continues at its layer.
    """
    layout.mkdir(parents=True, exist_ok=True)
    which = ["--multi-arch", "all"] if platform == ALL else []
    chosen = ["--override-os", "linux"] + (["--override-arch", platform] if platform != ALL else [])
    # skopeo needs a policy file or this option.
    policy = [] if any(path.exists() for path in _POLICIES) else ["--insecure-policy"]
    is_plain = any(wanted.source.startswith(f"docker://{host_of(host)}/") for host in insecure)
    plain = ["--src-tls-verify=false"] if is_plain else []
    command = ["skopeo", *policy, *chosen, "copy", "--quiet", "--retry-times", "3", *which, *plain]
    try:
        run([*command, wanted.source, f"oci:{layout}:{wanted.name}"], what=f"image {wanted.name}", package="skopeo")
    except BundleError as error:
        host = wanted.source.removeprefix("docker://").partition("/")[0]
        if "x509:" in str(error):
            place = f"/etc/containers/certs.d/{host}/ca.crt"
            raise BundleError(
                f"{error}\nput the certificate that signs its own into {place}, or --insecure-registry {host}"
            ) from error
        if "HTTP response to HTTPS client" not in str(error):
            raise
        raise BundleError(
            f"{error}\nit speaks plain HTTP: --insecure-registry {host}, if you trust the way there"
        ) from error
    try:
        return ImageLayout(layout).images()[wanted.name]
    except (LayoutError, KeyError) as error:
        raise BundleError(f"image {wanted.name}: what skopeo has made in {layout} can't be read: {error}") from error
