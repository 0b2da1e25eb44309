"""Names of images: `[host[:port]/]path[:tag][@algorithm:digest]`, with Docker's defaults.

`busybox` is `docker.io/library/busybox:latest`. What comes before the first slash is a host only if it has a dot or a
colon or is `localhost`. Grammar: distribution specification, "Pulling manifests"; Docker's reference package.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tink.agent.model import ActionError, Reason

DEFAULT_HOST = "docker.io"
_PATH = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")


@dataclass(frozen=True, slots=True)
class Reference:
    """Where an image is: `host` (with its port), `path`, and `tag` or `digest`; the digest wins."""

    host: str
    path: str
    tag: str
    digest: str = ""

    @property
    def version(self) -> str:
        """What a registry is asked for."""
        return self.digest or self.tag


def parse(image: str) -> Reference:
    """The reference that `image` spells. Raises ActionError."""
    rest, at, digest = image.partition("@")
    if at and not is_digest(digest):
        raise _invalid(image, f"{digest!r} is not a sha256 or sha512 digest")
    first, slash, path = rest.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        host = first
    else:
        host, path = DEFAULT_HOST, rest
    path, colon, tag = path.partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise _invalid(image, f"{tag!r} is not a tag")
    if not _HOST.fullmatch(host):
        raise _invalid(image, f"{host!r} is not a host")
    if len(path) > 255 or not _PATH.fullmatch(path):
        raise _invalid(image, f"{path!r} is not a repository (lower case letters, digits, dots, dashes, slashes)")
    if host == DEFAULT_HOST and "/" not in path:
        path = f"library/{path}"
    return Reference(host, path, tag or "latest", digest)


def is_digest(text: str) -> bool:
    """Whether `text` is a digest that can be checked here. It is then also safe as a file name."""
    return _DIGEST.fullmatch(text) is not None


def _invalid(image: str, why: str) -> ActionError:
    return ActionError(Reason.IMAGE_PULL_FAILED, f"image {image!r}: {why}")
