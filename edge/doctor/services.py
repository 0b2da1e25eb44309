"""The services and what they talk to: the running edge, API users, certificates, an upstream edge, names in OSIEs."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from edge.admin_token import AdminTokenError, token_file
from edge.admin_token import read as read_token
from edge.doctor.findings import Finding, note, passed, problem, warning
from edge.doctor.ports import bind_error
from edge.neighbour.links import look
from tink.net.proxies import Proxies, ProxyError

# The packages of the services are imported in the functions, so that `tinkedge doctor --help` does not load them.

_ADMIN_TIMEOUT_SECONDS: Final = 3.0
_RESOLVER_TIMEOUT_SECONDS: Final = 5.0
_MAX_BODY_BYTES: Final = 1 << 20
_MAX_NAMES: Final = 64
_API_TIMEOUT_SECONDS: Final = 10.0
_TOKEN_WARNING: Final = timedelta(days=7)


# --- the edge that runs here ------------------------------------------------------------------------------------------


def check_running_edge(data_dir: Path, address: str = "127.0.0.1", port: int = 7081) -> Iterator[Finding]:
    """Ask the running edge at its admin port whether it is ready, and with which addresses it serves machines."""
    name = "running edge"
    try:
        status, text = _get(address, port, "/readyz")
    except (OSError, HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error)
        yield note(name, f"none answers at {address} port {port} ({reason})")
        return
    if status == 200:
        notes = text.strip().removeprefix("ok").removeprefix(": ")
        yield passed(name, f"ready; {notes}" if notes else "ready")
    else:
        text = text.strip().removeprefix("not ready: ")
        yield problem(name, f"not ready: {text}", "fix that; the edge then continues by itself. Its log says more")
    try:
        status, text = _get(address, port, "/api/v1/networks", read_token(token_file(data_dir, None)))
    except (AdminTokenError, OSError, HTTPException) as error:
        yield note("running edge's networks", f"not known: {error}")
        return
    if status != 200:
        yield note("running edge's networks", f"not known: the edge answers {status}")
        return
    for network in json.loads(text):
        yield from _check_network(network)


def _check_network(network: Mapping[str, Any]) -> Iterator[Finding]:
    """Check that the interface has the address that the edge serves with."""
    interface, served = str(network["interface"]), str(network["address"])
    if not served or network["problem"]:
        return  # /readyz has reported it.
    name = f"running edge's network {interface}"
    link = look(interface)
    if link is not None and not network["fixed"] and not link.has(served):
        addresses = ", ".join(str(each.ip) for each in link.addresses) or "none"
        yield problem(name, f"it serves with {served}, and {interface} has {addresses}", "restart tinkedge")
    else:
        yield passed(name, f"it serves with {served}")


def _get(address: str, port: int, path: str, token: str = "") -> tuple[int, str]:
    """Return the status and the body. Raises OSError, HTTPException."""
    connection = HTTPConnection(address, port, timeout=_ADMIN_TIMEOUT_SECONDS)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        return answer.status, answer.read(_MAX_BODY_BYTES).decode(errors="replace")
    finally:
        connection.close()


# --- the embedded API -------------------------------------------------------------------------------------------------


def check_api_addresses(addresses: Sequence[str]) -> Iterator[Finding]:
    """Check that this host has each address of `--api-address`."""
    for address in addresses:
        name = f"--api-address {address}"
        if (error := bind_error(socket.SOCK_DGRAM, (address, 0))) is None:
            yield passed(name, "this host has it")
            continue
        remedy = "see which addresses there are: ip -brief address. The API listens there once this host has it"
        yield warning(name, error.strerror or str(error), remedy)


def check_api_users(data_dir: Path, now: datetime) -> Iterator[Finding]:
    """Check the file of the API's users, and find tokens that expire within a week. No finding without users."""
    from tink.kubeapi import USERS_FILE, UserFileError, read_users

    path = data_dir / USERS_FILE
    try:
        users = read_users(path)
    except UserFileError as error:
        yield problem("users of the API", str(error), "see docs/api.md, Colleagues")
        return
    except OSError as error:
        yield warning("users of the API", f"{path}: {error.strerror}", "run it as root, or as tinkedge's user")
        return
    if not users.users:
        return
    expiring = users.expiring(now, _TOKEN_WARNING)
    if not expiring:
        yield passed("users of the API", f"{len(users.users)}, no token ends within a week")
    for name, credential in expiring:
        seen = f"token {credential.id} ends on {credential.expires:%Y-%m-%d %H:%M} UTC"
        yield warning(f"user {name} of the API", seen, f"`tinkedge kubeconfig --user {name}` makes another")


# --- agents, and the edge of another site -----------------------------------------------------------------------------


def check_certificates(files: Mapping[str, Path | None], *, now: Callable[[], float] = time.time) -> Iterator[Finding]:
    """Check that the certificates in files are valid, and for how long. `files` are by option; None: not given."""
    given = {option: path for option, path in files.items() if path is not None}
    if not given:
        return
    from tink.server import TlsError, endings, what_ends

    for option, path in given.items():
        name = f"{option} {path}"
        try:
            ((_, end),) = endings({option: path})
        except TlsError as error:
            yield problem(name, str(error).removeprefix(f"{name}: "), "give a file that can be used")
            continue
        lost = "pull images" if option.startswith("--registry-ca") else "connect"
        seen, remedy = what_ends(end, now()), f"renew it: agents can't {lost} from then on"
        if not seen:
            yield passed(name, f"good until {end:%Y-%m-%d}")
        elif end.timestamp() > now():
            yield warning(name, seen, remedy)
        else:
            yield problem(name, seen, remedy)


def check_upstream_edge(authority: str, keys: Path | None) -> Iterator[Finding]:
    """Send a request to the edge of another site (`--upstream-edge`), signed with the keys of the file `keys`.

    No finding if `authority` is empty. Only a warning if the edge does not answer: files come from their origins then.
    """
    if not authority:
        return
    from edge.peers.calls import CallError
    from edge.peers.upstream_edge import probe
    from tink.files.key_file import KeyFile, KeyFileError

    name = f"--upstream-edge {authority}"
    if keys is None:
        yield problem(name, "no --metadata-token-key", "give both edges the same file with it")
        return
    try:
        asyncio.run(probe(authority, KeyFile(keys, "metadata token key"), time.time))
    except KeyFileError as error:
        yield problem(name, str(error), "give both edges the same file with --metadata-token-key")
    except CallError as error:
        yield warning(name, str(error), "until then files come from their origins; see docs/edges.md, Branches")
    else:
        yield passed(name, "fetches for this edge")


# --- the hosts of OSIEs' URLs -----------------------------------------------------------------------------------------


def check_osies(manifests: Path | None, kubeconfig: Path) -> Iterator[Finding]:
    """Resolve the host names in the URLs of the OSIEs in the manifests and in the API, if there is a kubeconfig."""
    from tink.kube.manifests import ManifestError, manifest_files, read

    osies: list[Mapping[str, Any]] = []
    try:
        for file in manifest_files(manifests) if manifests is not None else ():
            usable, problems = read(file)
            osies += [obj for obj in usable if obj["kind"] == "OSIE"]
            for each in problems:
                yield problem("manifests", str(each), "correct the file; the others are applied")
    except ManifestError as error:
        yield problem("manifests", str(error), "see --manifests")
    try:
        if kubeconfig.exists():
            osies += asyncio.run(_list_osies(kubeconfig))
    except Exception as error:  # An API fails in many ways, and the other checks go on.
        yield note("OSIEs of the API", f"not listed with {kubeconfig}: {error or type(error).__name__}")
    yield from check_osie_names(osies)


async def _list_osies(kubeconfig: Path) -> Sequence[Mapping[str, Any]]:
    from tink.kube.client import KubeClient
    from tink.kube.resources import OSIE

    async with await KubeClient.connect(kubeconfig) as client, asyncio.timeout(_API_TIMEOUT_SECONDS):
        return [*(await client.list(OSIE))["items"]]


def check_osie_names(osies: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Resolve the host names in the URLs of OSIEs, or of the proxy that fetches them. `osies` are API objects."""
    for scheme in ("http", "https"):
        try:
            Proxies.of(os.environ).proxy_of(f"{scheme}://an.example/")
        except ProxyError as error:
            remedy = "correct the variable where the edge is started from, such as /etc/default/tinkedge"
            yield problem("proxy of the environment", str(error), remedy)
    users: dict[str, str] = {}
    for osie in osies:
        metadata, spec = osie.get("metadata") or {}, osie.get("spec") or {}
        for field in ("kernelUrl", "initrdUrl"):
            host = _name_to_resolve(str(spec.get(field) or ""))
            if host:
                users.setdefault(host, f"OSIE {metadata.get('namespace', 'default')}/{metadata.get('name')}: {field}")
    names = [*users][:_MAX_NAMES]
    errors = _resolution_errors(names)
    for name, reason in errors.items():
        remedy = "see /etc/resolv.conf, or write an address into the OSIE"
        yield problem("name of an OSIE's URL", f"{name} ({users[name]}): {reason}", remedy)
    if not names:
        yield note("names of OSIEs' URLs", f"none among {len(osies)} OSIEs")
    elif not errors:
        yield passed("names of OSIEs' URLs", f"resolved: {', '.join(names)}")


def _name_to_resolve(url: str) -> str:
    """Return the host name of a URL, or of its proxy; empty if it is an address or can't be used."""
    try:
        parts = urlsplit(url)
        proxy = Proxies.of(os.environ).proxy_of(url)
        host = proxy.host if proxy is not None else parts.hostname or "" if parts.scheme in ("http", "https") else ""
    except ValueError:
        return ""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host
    return ""


def _resolution_errors(names: Sequence[str]) -> dict[str, str]:
    """Resolve names in parallel, because a resolver that is away takes long. Return the errors by name."""
    errors = dict.fromkeys(names, f"no answer within {_RESOLVER_TIMEOUT_SECONDS:g} s")

    def resolve(name: str) -> None:
        try:
            socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            errors[name] = getattr(error, "strerror", None) or str(error)
        else:
            errors[name] = ""

    threads = [threading.Thread(target=resolve, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_RESOLVER_TIMEOUT_SECONDS)
    return {name: error for name, error in list(errors.items()) if error}
