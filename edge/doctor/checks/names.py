"""Whether the hosts that OSIEs name can be resolved here, as fetching their files needs it."""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from edge.doctor.checks.findings import Finding, note
from tink.net.proxies import Proxies, ProxyError

_PATIENCE_SECONDS: Final = 5.0
_MOST: Final = 64


def osie_names(osies: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """A finding for each name that can't be resolved, or one that all can be. `osies` are objects of the API.

    Where a proxy is to fetch, its name counts. A proxy that can't be used has a finding of its own.
    """
    yield from _unusable_proxies()
    users: dict[str, str] = {}
    for osie in osies:
        metadata, spec = osie.get("metadata") or {}, osie.get("spec") or {}
        for field in ("kernelUrl", "initrdUrl"):
            host = _host(str(spec.get(field) or ""))
            if host:
                users.setdefault(host, f"OSIE {metadata.get('namespace', 'default')}/{metadata.get('name')}: {field}")
    names = [*users][:_MOST]
    found = _resolve(names)
    for name in names:
        if found[name]:
            remedy = "see /etc/resolv.conf, or write an address into the OSIE"
            yield Finding("name of an OSIE's URL", False, f"{name} ({users[name]}): {found[name]}", remedy)
    if not names:
        yield note("names of OSIEs' URLs", f"none among {len(osies)} OSIEs")
    elif not any(found.values()):
        yield Finding("names of OSIEs' URLs", True, f"resolved: {', '.join(names)}")


def _unusable_proxies() -> Iterator[Finding]:
    for scheme in ("http", "https"):
        try:
            Proxies.of(os.environ).proxy_of(f"{scheme}://an.example/")
        except ProxyError as error:
            remedy = "correct the variable where the edge is started from, such as /etc/default/tinkedge"
            yield Finding("proxy of the environment", False, str(error), remedy)


def _host(url: str) -> str:
    """The name that has to be resolved for it; empty: none."""
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


def _resolve(names: Sequence[str]) -> dict[str, str]:
    """By name, why it can't be resolved; empty: it can. All at once, for a resolver that is away takes its time."""
    found = dict.fromkeys(names, f"no answer within {_PATIENCE_SECONDS:g} s")

    def ask(name: str) -> None:
        try:
            socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            found[name] = getattr(error, "strerror", None) or str(error)
        else:
            found[name] = ""

    threads = [threading.Thread(target=ask, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_PATIENCE_SECONDS)
    return dict(found)
