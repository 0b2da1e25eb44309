"""Disk images in registries, by digest: `oci://registry/repository@sha256:...` (OCI distribution specification 1.1).

The manifest is what the digest says, the layer what the manifest says: so each byte that is written is that of the
setting. Registries that want a token for what everybody may read give one without credentials; others are not asked.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import platform
import re
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from image2disk.errors import ActionError
from image2disk.patience import BrokenError, Patience
from image2disk.settings import Settings, compression_of
from image2disk.web import AnswerError, UntrustedError, Web, said

MAX_MANIFEST_BYTES: Final = 4 << 20
"""The specification's own limit."""
MAX_VALUES: Final = 100_000
"""Maximum number of values in a manifest: Python needs some 70 bytes for a value that is two bytes of JSON."""
MAX_TOKEN_BYTES: Final = 64 << 10
_INDEXES: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MANIFESTS: Final = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_TITLE: Final = "org.opencontainers.image.title"
_PATH: Final = r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*"
_REFERENCE: Final = re.compile(
    rf"(?P<scheme>oci|oci\+http)://(?P<host>[A-Za-z0-9.:\[\]-]{{1,255}})/(?P<name>{_PATH}(?:/{_PATH})*)"
    r"@(?P<digest>sha256:[0-9a-f]{64})",
    re.ASCII,
)
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_DISK: Final = re.compile(r"disk|qcow2|\braw\b|\.img\b", re.IGNORECASE)
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_PARAMETER: Final = re.compile(r'([a-z]+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Blob:
    """A layer that is a disk image. `compression` is what its title or media type says; empty: they don't."""

    url: str
    sha256: str
    compression: str
    authorization: Callable[[AnswerError | None], str]


class Registry:
    """One repository."""

    def __init__(
        self,
        web: Web,
        settings: Settings,
        *,
        say: Callable[[str], None] = print,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Raises ActionError (InvalidSetting)."""
        match = _REFERENCE.fullmatch(settings.url)
        if match is None:
            example = "oci://registry.example.org/images/debian@sha256:<64 digits>"
            raise ActionError("InvalidSetting", f"IMG_URL is {settings.shown[:200]}, which is not such as {example}")
        self._web = web
        self._settings = settings
        self._say = say
        self._sleep = sleep
        self._digest = match["digest"]
        self._name = match["name"]
        self._base = f"{'https' if match['scheme'] == 'oci' else 'http'}://{match['host']}/v2/{match['name']}"
        self._token = ""

    def blob(self) -> Blob:
        """The layer that is the image. Raises ActionError (DownloadFailed, ImageUnsupported, ChecksumMismatch)."""
        manifest = self._manifest(self._digest)
        if isinstance(manifest.get("manifests"), list):
            manifest = self._manifest(self._of_this_machine(manifest["manifests"]))
        layer = self._layer([one for one in _list(manifest.get("layers")) if isinstance(one, dict)])
        kind, title = str(layer.get("mediaType", "")), _title(layer)
        digest = layer.get("digest")
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise self._unsupported("its layer has no sha256 digest")
        if "tar" in re.split(r"[.+]", kind):
            raise self._unsupported(f"its layer is an archive of files ({kind[:80]}), not a disk image")
        compression = compression_of(title) or {"gzip": "gzip", "zstd": "zstd"}.get(kind.rpartition("+")[2], "")
        return Blob(f"{self._base}/blobs/{digest}", digest.partition(":")[2], compression, self._authorization)

    def _manifest(self, digest: str) -> dict[str, Any]:
        content = self._get(f"{self._base}/manifests/{digest}")
        if hashlib.sha256(content).hexdigest() != digest.partition(":")[2]:
            raise ActionError(
                "ChecksumMismatch", f"{self._settings.shown}: the registry gives another manifest than {digest}"
            )
        if sum(map(content.count, (b",", b"[", b"{"))) > MAX_VALUES:
            raise self._unsupported(f"its manifest has more than {MAX_VALUES} values")
        try:
            manifest = json.loads(content)
        except (ValueError, RecursionError):
            manifest = None
        if not isinstance(manifest, dict):
            raise self._unsupported("its manifest is no JSON object")
        return manifest

    def _get(self, url: str) -> bytes:
        patience = Patience(self._settings.retries, say=self._say, sleep=self._sleep)
        while True:
            try:
                return self._read(url)
            except (AnswerError, BrokenError) as error:
                if not patience.lasts(error, "asks for the manifest again"):
                    raise ActionError("DownloadFailed", f"{self._settings.shown}: {error}") from None
            except UntrustedError as error:
                raise ActionError("DownloadFailed", f"{self._settings.shown}: {error}") from None

    def _read(self, url: str) -> bytes:
        headers = {"Accept": ", ".join((*_MANIFESTS, *_INDEXES))}
        with self._web.get_as(url, headers, self._authorization) as response:
            try:
                content = self._web.content(response, MAX_MANIFEST_BYTES)
            except (OSError, http.client.HTTPException) as error:
                raise BrokenError(f"the connection broke: {said(error)}") from None
            if len(content) > MAX_MANIFEST_BYTES:
                raise self._unsupported(f"its manifest has more than {MAX_MANIFEST_BYTES} bytes")
            if response.length:
                raise BrokenError(f"the connection ended {response.length} bytes early")
        return content

    def _of_this_machine(self, manifests: list[Any]) -> str:
        listed = [one for one in manifests if isinstance(one, dict)]
        own = _ARCHITECTURES.get(platform.machine(), platform.machine())
        found = [one for one in listed if _architecture(one) == own] or (listed if len(listed) == 1 else [])
        digest = found[0].get("digest") if len(found) == 1 else None
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise self._unsupported(f"its index has {len(found)} manifests for {own}: name one by its digest")
        return digest

    def _layer(self, layers: list[dict[str, Any]]) -> dict[str, Any]:
        wanted = self._settings.layer
        if wanted:
            found = [one for one in layers if wanted in (_title(one), one.get("digest"))]
        else:
            found = layers if len(layers) == 1 else [one for one in layers if _is_disk(one)]
        if len(found) == 1:
            return found[0]
        names = ", ".join((_title(one) or str(one.get("digest", "")))[:80] for one in layers[:10]) or "none"
        raise self._unsupported(f"which of its layers is the disk image? Name it with IMG_LAYER: {names}")

    def _authorization(self, refusal: AnswerError | None) -> str:
        if refusal is not None:
            self._token = self._anonymous(refusal.challenge)
        return f"Bearer {self._token}" if self._token else ""

    def _anonymous(self, challenge: str) -> str:
        """A token for what everybody may read (distribution's token authentication). Raises AnswerError."""
        fields = dict(_PARAMETER.findall(challenge))
        realm = fields.get("realm", "")
        if not challenge.lower().startswith("bearer ") or not realm.startswith(("https://", "http://")):
            raise AnswerError("the registry wants credentials (401), and this action has none", 401)
        wanted = {"service": fields.get("service", ""), "scope": f"repository:{self._name}:pull"}
        try:
            with self._web.get(
                f"{realm}{'&' if '?' in realm else '?'}{urllib.parse.urlencode(wanted)}", {}
            ) as response:
                answer = json.loads(self._web.content(response, MAX_TOKEN_BYTES))
            token = answer.get("token") or answer.get("access_token")
        except (ValueError, AttributeError, OSError, http.client.HTTPException):
            token = None
        if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]+", token):
            raise AnswerError("the registry gives no token without credentials", 401)
        return token

    def _unsupported(self, why: str) -> ActionError:
        return ActionError("ImageUnsupported", f"{self._settings.shown}: {why}")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _title(layer: dict[str, Any]) -> str:
    notes = layer.get("annotations")
    title = notes.get(_TITLE) if isinstance(notes, dict) else None
    return title if isinstance(title, str) else ""


def _is_disk(layer: dict[str, Any]) -> bool:
    return bool(_DISK.search(_title(layer)) or _DISK.search(str(layer.get("mediaType", ""))))


def _architecture(manifest: dict[str, Any]) -> str:
    on = manifest.get("platform")
    return str(on.get("architecture", "")) if isinstance(on, dict) else ""
