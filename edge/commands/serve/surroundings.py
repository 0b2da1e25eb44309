"""What there must be on this host for settings to work: interfaces, files, a directory for the state.

Asked as `agreement` is. What the parts themselves find out later says less: it does not know where a value is from.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from edge.commands.serve.agreement import Finding, Options, Services
from edge.run.settings import EDGE, Service
from ipxe.binaries import BinariesError, BootBinaries
from tink.files import data_directory
from tink.files.key_file import KeyFile, KeyFileError
from tink.server import AgentAuth, TlsError, endings, what_ends


def _links() -> set[str]:
    return {each.name for each in Path("/sys/class/net").iterdir()}


@dataclass(frozen=True, slots=True)
class Host:
    """This host, as far as settings speak of it: its interfaces' names, the user (by number) who asks, Unix seconds."""

    interfaces: Callable[[], set[str]] = field(default=_links)
    user: Callable[[], int] = os.geteuid
    now: Callable[[], float] = time.time


def obstacles(services: Services, options: Options, host: Host | None = None) -> Iterator[Finding]:
    """What keeps a process with these services from working here; errors keep it from starting."""
    host = host or Host()
    yield from _interfaces(options, host)
    yield from _files(services, options)
    yield from _keys(options)
    yield from _boot_programs(services, options)
    yield from _certificates(services, options, host)
    yield from _data_dir(services, options, host)


def _interfaces(options: Options, host: Host) -> Iterator[Finding]:
    there = host.interfaces()
    for name in dict.fromkeys(name for name, _ in options.get("interface") or ()):
        if name not in there:
            yield Finding(
                ("interface",),
                f"there is no interface {name} on this host (there are: {', '.join(sorted(there))})",
                "machines there are served when it comes; see that it is spelled right",
                is_error=False,
            )


def _confined() -> bool:
    """Whether this is a service of systemd, whose unit says where it may write (ProtectSystem=, systemd.exec(5))."""
    return "NOTIFY_SOCKET" in os.environ


_READ: Final = ("grpc_tls_ca", "grpc_tls_cert", "grpc_tls_key", "grpc_client_ca", "kubeconfig")
_KEYS: Final = ("admin_token_file", "agent_token_key", "checkpoint_key", "metadata_token_key", "reports_key")
"""Files that are there before the start. Files with keys are made only in DATA_DIR, if the option is not given."""


_WAITED_FOR: Final = frozenset({"grpc-tls-ca", "grpc-tls-cert", "grpc-tls-key", "grpc-client-ca", "registry-ca"})
"""Files of agents. An edge serves machines without them, and its agents when they are good."""


def _is_error(services: Services, key: str) -> bool:
    return key not in _WAITED_FOR or not services & EDGE


def _files(services: Services, options: Options) -> Iterator[Finding]:
    given = [(name.replace("_", "-"), options.get(name)) for name in _READ]
    given += [("registry-ca", file) for _, file in options.get("registry_ca") or ()]
    for key, file in given:
        if file is None:
            continue
        wrong = partial(Finding, (key,), is_error=_is_error(services, key))
        try:
            with file.open("rb"):
                pass
        except FileNotFoundError:
            yield wrong(f"there is no file {file}", "put it there, or name another")
        except IsADirectoryError:
            yield wrong(f"{file} is a directory", "name the file in it")
        except OSError as error:
            user = data_directory.user_name(os.geteuid())
            yield wrong(f"{file} can't be read: {error.strerror}", f"let {user} read it, or name another")
    if (manifests := options.get("manifests")) is not None and not os.access(manifests, os.R_OK, effective_ids=True):
        seen = f"{manifests} can't be read" if os.path.lexists(manifests) else f"there is no directory {manifests}"
        remedy = "make or mount it, or name another: what it has is applied as soon as it can be read"
        yield Finding(("manifests",), seen, remedy, is_error=False)


def _keys(options: Options) -> Iterator[Finding]:
    """Yield what is wrong with the files of keys and tokens, which the services read at the start."""
    unused = {"agent_token_key": options.get("agent_auth") != AgentAuth.TOKEN}
    unused["checkpoint_key"] = not options.get("checkpoint_secrets")
    for name in _KEYS:
        file = options.get(name)
        if file is None or unused.get(name):
            continue
        try:
            KeyFile(file, "the file")
        except KeyFileError as error:
            yield Finding((name.replace("_", "-"),), str(error), "put a good one there, or name another file")


def _boot_programs(services: Services, options: Options) -> Iterator[Finding]:
    """Yield what is wrong with the boot programs that options name."""
    files, shims = dict(options.get("boot_file") or ()), options.get("shim_dir")
    if Service.HTTP in services and (files or shims is not None):
        try:
            BootBinaries(options["ipxe_dir"], shims, named=files)
        except BinariesError as error:
            keys = ("boot-file",) if files else ("shim-dir",)
            yield Finding((*keys, "ipxe-dir"), str(error), "name files and a directory that are there")
    if options.get("otlp_endpoint") and find_spec("opentelemetry") is None:
        yield Finding(("otlp-endpoint",), "OpenTelemetry is not installed", "pip install 'tinkedge[otlp]'")


_CERTIFICATES: Final = ("grpc-tls-cert", "grpc-tls-ca", "grpc-client-ca")


def _certificates(services: Services, options: Options, host: Host) -> Iterator[Finding]:
    """Which end soon. A server's own that has ended keeps it from starting, and its reader says so."""
    given = [(key, options.get(key.replace("-", "_"))) for key in _CERTIFICATES]
    given += [("registry-ca", file) for _, file in options.get("registry_ca") or ()]
    for key, file in given:
        if file is None or not os.access(file, os.R_OK, effective_ids=True):
            continue  # `_files` has reported it
        try:
            ((_, end),) = endings({f"--{key}": file})
        except TlsError as error:
            seen = str(error).removeprefix(f"--{key} ")
            yield Finding((key,), seen, "put one there that can be used", is_error=_is_error(services, key))
            continue
        if said := what_ends(end, host.now()):
            remedy = "put a renewed one there: agents can't connect from then on. It is read again while tinkedge runs"
            if key == "grpc-tls-ca":
                remedy = (
                    "put its successor beside it in the file: agents can't connect from then on. Then restart the edges"
                )
            elif key == "registry-ca":
                remedy = "put its successor beside it in the file, and restart the edges: agents can't pull images then"
            yield Finding((key,), f"{file} {said}", remedy, is_error=False)


def _data_dir(services: Services, options: Options, host: Host) -> Iterator[Finding]:
    directory: Path | None = options.get("data_dir")
    if directory is None or not services & {Service.APISERVER, Service.HTTP}:
        return
    wrong = partial(Finding, ("data-dir",))
    try:
        there = next(each for each in (directory, *directory.absolute().parents) if each.exists())
        if there != directory:
            if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
                yield wrong(
                    f"{directory} can't be made in {there}",
                    f"make it: 'install -d -m 700 {shlex.quote(str(directory))}'",
                )
            return
        if not directory.is_dir():
            yield wrong(f"{directory} is no directory", "name one, or a path where nothing is")
            return
        # A command of root has become the owner of the directory, or would.
        for problem in data_directory.problems(directory, host.user() or directory.stat().st_uid):
            if not problem.is_fixable:
                yield wrong(f"{directory} {problem.seen}", problem.remedy)
        for problem in data_directory.out_of_reach(directory):
            yield wrong(f"{directory}: {problem.seen}", problem.remedy, is_error=False)
        if os.statvfs(directory).f_flag & os.ST_RDONLY:
            # Machines boot from what is there, and it is written again by itself when the disk lets it.
            yield wrong(
                f"the file system of {directory} is read-only",
                "nothing can be stored until it is writable again; "
                + (
                    "say so in the unit (systemctl edit): ReadWritePaths=" + str(directory)
                    if _confined()
                    else "look at the disk"
                ),
                is_error=False,
            )
        elif not os.access(directory, os.W_OK | os.X_OK):
            yield wrong(f"{directory} can't be written by this user", "run it as the user who has it, or name another")
    except OSError as error:
        yield wrong(f"{directory}: {error.strerror}", "run it as the user who may use it, or name another")
