"""Names of registries and images, normalised.

An image is `[host[:port]/]path[:tag][@algorithm:digest]`, with Docker's defaults: `busybox` is
`docker.io/library/busybox:latest`. The part before the first slash is a host if it has a dot, a colon or a capital
letter, or is `localhost`. People also write Docker Hub as `index.docker.io`, and registries as URLs
(`https://index.docker.io/v1/` in Docker's config.json): all of these name the same registry.

Sources: OCI distribution specification 1.1, "Pulling manifests"; Docker's reference package; containers-auth.json(5).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeGuard

from tink.errors import TinkedgeError

DEFAULT_HOST = "docker.io"
_HUB = frozenset({"index.docker.io", "registry-1.docker.io", "registry.hub.docker.com"})
"""Other names of Docker Hub. The first is the one in config.json, the second answers the API."""
_HUB_API = "registry-1.docker.io"
_PATH = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_API_PATH = re.compile(r"v[12](?:/|$)")
MAX_CHARACTERS = 255


class RegistryError(TinkedgeError):
    """A name is wrong, or a registry refused or sent what it should not. A retry does not help."""


@dataclass(frozen=True, slots=True)
class Reference:
    """An image's place: `host` (in lower case, with its port), `path`, and `tag` or `digest`; the digest wins."""

    host: str
    path: str
    tag: str
    digest: str = ""

    @property
    def version(self) -> str:
        """The tag or digest to request."""
        return self.digest or self.tag

    @property
    def api_host(self) -> str:
        """The host[:port] that answers the registry's API. Docker Hub's is not in the names of its images."""
        return _HUB_API if self.host == DEFAULT_HOST else self.host


def parse(image: str, *, has_host: bool = False) -> Reference:
    """Parse the name of an image. `has_host`: the part before the first slash is the host, whatever it looks like.

    Raises RegistryError.
    """
    rest, at, digest = image.partition("@")
    if at and not is_digest(digest):
        raise _invalid(image, f"{digest!r} is not a sha256 or sha512 digest")
    first, slash, path = rest.partition("/")
    if slash and (has_host or set(".:") & set(first) or first == "localhost" or first.lower() != first):
        host = first
    else:
        host, path = DEFAULT_HOST, rest
    path, colon, tag = path.partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise _invalid(image, f"{tag!r} is not a tag")
    if len(host) > MAX_CHARACTERS or not _HOST.fullmatch(host):
        raise _invalid(image, f"{host!r} is not a host")
    if len(path) > MAX_CHARACTERS or not _PATH.fullmatch(path):
        raise _invalid(image, f"{path!r} is not a repository (lower case letters, digits, dots, dashes, slashes)")
    host = _host(host)
    if host == DEFAULT_HOST and "/" not in path:
        path = f"library/{path}"
    return Reference(host, path, tag or "latest", digest)


def is_digest(text: object) -> TypeGuard[str]:
    """Return True if `text` is a digest that this program can check. Such a digest is safe as a file name."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def scope_of(registry: str) -> str:
    """Return `host[:port][/path]` for a registry or repository that a person wrote, perhaps as a URL.

    `https://index.docker.io/v1/` becomes `docker.io`, `HTTP://Reg.example:5000/team/` becomes `reg.example:5000/team`.
    """
    text = _SCHEME.sub("", registry.strip(), count=1)
    host, _, path = text.partition("/")
    path = "" if _API_PATH.match(path) else path.strip("/")
    return f"{_host(host)}/{path}" if path else _host(host)


def host_of(registry: str) -> str:
    """Return `host[:port]` for a registry that a person wrote, perhaps as a URL."""
    return scope_of(registry).partition("/")[0]


def _host(host: str) -> str:
    host = host.lower()
    return DEFAULT_HOST if host in _HUB else host


def _invalid(image: str, why: str) -> RegistryError:
    return RegistryError(f"image {image!r}: {why}")
