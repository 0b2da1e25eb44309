"""The Debian package of tinkedge, and what it needs that an empty Debian has not: Python, iPXE and what these need.

apt knows. It is asked with a configuration of its own, in which nothing is installed, so that the answer is about an
empty Debian of the package's suite and not about this host; only the mirrors, their keys and the proxy are this host's.
What apt itself and the essential packages are made of is left out: every Debian has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from edge.bundle.manifest import BundleError, Program
from edge.bundle.sources.shell import run

_SUITES = {"12": "bookworm", "13": "trixie"}
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_WANTED = ("ipxe", "ca-certificates")
"""What the package recommends: boot programs, and whom to trust by TLS."""
_INSTALLED = re.compile(r"^Inst (\S+) \((\S+) .*\)", re.MULTILINE)
_TARGETS = "$(ORIGIN) $(CODENAME) $(RELEASE) $(COMPONENT) $(REPO_URI)"

Say = Callable[[str], None]


def program_of(deb: Path) -> Program:
    """What a Debian package of tinkedge is, by its control file. Raises BundleError."""
    if not deb.is_file():
        raise BundleError(f"--deb {deb}: there is no such file; `make deb` makes one")
    words = ["dpkg-deb", "--showformat", "${Package} ${Version} ${Architecture}", "--show", str(deb)]
    name, version, architecture = run([*words], what=f"--deb {deb}", package="dpkg").split()
    if name != "tinkedge":
        raise BundleError(f"--deb {deb}: it is the package {name}, not tinkedge")
    release = re.search(r"\+deb([0-9]+)$", version)
    if release is None or release[1] not in _SUITES:
        raise BundleError(f"--deb {deb}: its version {version} does not say which Debian it is for (+deb12, +deb13)")
    return Program(version, _SUITES[release[1]], architecture)


def needed(deb: Path, program: Program, cache: Path, say: Say) -> list[Path]:
    """The packages that an empty Debian needs to install `deb`, fetched into `cache`. Raises BundleError, OSError."""
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
    """apt with a configuration of its own, in a directory that is kept."""

    def __init__(self, directory: Path, program: Program) -> None:
        self._directory, self._program = directory, program
        self._configuration = directory / "apt.conf"

    def update(self) -> None:
        """Get the lists of packages."""
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
        """What would be installed where nothing is: versions by name."""
        return dict(_INSTALLED.findall(self._get("--simulate", "--yes", "install", *wanted)))

    def download(self, into: Path, packages: dict[str, str]) -> None:
        """Fetch these versions; apt checks each against the signed lists."""
        # It writes into the directory that it is started in.
        words = [f"{name}={version}" for name, version in packages.items()]
        script: list[str | Path] = ["sh", "-c", 'cd "$1" && shift && exec apt-get -q download "$@"', "sh", into, *words]
        run(script, what="fetching Debian packages", package="apt", env=self._environment)

    def find(self, directory: Path, name: str, version: str) -> Path | None:
        """Where apt has put a package."""
        stem = f"{name}_{version.replace(':', '%3a')}"
        candidates = (directory / f"{stem}_{which}.deb" for which in (self._program.architecture, "all"))
        return next((path for path in candidates if path.exists()), None)

    @property
    def _environment(self) -> dict[str, str]:
        return {"APT_CONFIG": str(self._configuration)}

    def _get(self, *words: str) -> str:
        command: list[str | Path] = ["apt-get", "-q", *words]
        return run(command, what=f"apt-get {' '.join(words)[:60]}", package="apt", env=self._environment)

    def _sources(self) -> list[str]:
        """The mirrors of this host's apt that have the suite, or if none has, the suite on them."""
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
