"""The action's settings, read from its environment and checked before the first request and the first write."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from image2disk.errors import ActionError
from tink.net.proxies import NONE, Proxies
from tink.net.urls import shown

FORMATS: Final = ("auto", "raw", "qcow2")
MAX_RETRIES: Final = 100
ENDINGS: Final = {".gz": "gzip", ".zst": "zstd", ".zs": "zstd", ".xz": "xz", ".bz2": "bzip2"}
"""By how a name ends: how the file was compressed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`sha256` is in lower case, or empty; `layer` is the title or digest of an artefact's layer, or empty.

    `clears`: old signatures are removed from the parts of the disk that the image does not cover.
    """

    url: str = field(repr=False)
    disk: str
    is_compressed: bool = False
    sha256: str = ""
    format: str = "auto"
    layer: str = ""
    retries: int = 8
    clears: bool = True
    proxies: Proxies = NONE

    @property
    def shown_url(self) -> str:
        """The URL for messages, without its secrets."""
        return shown(self.url)

    @property
    def is_artefact(self) -> bool:
        """Return True if the image is in a registry."""
        return self.url.startswith(("oci://", "oci+http://"))


def read(environment: Mapping[str, str]) -> Settings:
    """Read the settings from environment variables. Raises ActionError (InvalidSetting)."""
    url, disk = environment.get("IMG_URL", ""), environment.get("DEST_DISK", "")
    if not url:
        raise _invalid("IMG_URL is not set")
    if not url.startswith(("http://", "https://", "oci://", "oci+http://")):
        raise _invalid(f"IMG_URL is {shown(url)}: it must begin with http://, https://, oci:// or oci+http://")
    if not disk:
        raise _invalid("DEST_DISK is not set")
    settings = Settings(
        url=url,
        disk=disk,
        is_compressed=_yes("COMPRESSED", environment.get("COMPRESSED", "") or "false"),
        sha256=_sha256(environment.get("IMG_SHA256", "")),
        format=environment.get("IMG_FORMAT", "") or "auto",
        layer=environment.get("IMG_LAYER", ""),
        retries=_retries(environment.get("IMG_RETRIES", "") or "8"),
        proxies=Proxies.of(environment),
        clears=_yes("CLEAR_DISK", environment.get("CLEAR_DISK", "") or "true"),
    )
    if settings.format not in FORMATS:
        raise _invalid(f"IMG_FORMAT is {settings.format[:40]}, not one of {', '.join(FORMATS)}")
    if settings.is_compressed and not settings.is_artefact and not compression_of(url):
        path = shown(_path(url))
        raise _invalid(f"COMPRESSED is true, but {path} does not end in .gz, .zst, .xz or .bz2")
    return settings


def compression_of(name: str) -> str:
    """How a file of this name or URL is compressed; empty if the name does not say."""
    path = _path(name).lower()
    return next((kind for ending, kind in ENDINGS.items() if path.endswith(ending)), "")


def _path(url: str) -> str:
    return re.split(r"[?#]", url, maxsplit=1)[0]


def _yes(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise _invalid(f"{name} is {text[:40]}, not true or false")
    return text == "true"


def _sha256(text: str) -> str:
    if re.search(r"[^0-9A-Fa-f]", text):
        raise _invalid("IMG_SHA256 is not a checksum in hex")
    if text and len(text) != 64:
        raise _invalid(f"IMG_SHA256 has {len(text)} digits, not 64")
    return text.lower()


def _retries(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,3}", text, re.ASCII) or int(text) > MAX_RETRIES:
        raise _invalid(f"IMG_RETRIES is {text[:40]}, not a number from 0 to {MAX_RETRIES}")
    return int(text)


def _invalid(message: str) -> ActionError:
    return ActionError("InvalidSetting", message)
