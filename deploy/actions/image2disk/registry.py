"""Disk images in registries, by digest: `oci://registry/repository@sha256:...` (OCI distribution specification 1.1).

The digest proves the manifest, and the manifest proves the layer, so every written byte is the setting's. Names, logins
and the choice among an index's manifests are the agent's (`tink.registry`), with this action's HTTP. A registry that
requires a token for public images gives one without credentials; this action has none.
"""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from image2disk.errors import ActionError
from image2disk.settings import Settings, compression_of
from image2disk.web import AnswerError, BrokenError, Patience, UntrustedError, Web, said
from tink.registry.login import Login
from tink.registry.manifests import MANIFEST_LIMIT_BYTES, MANIFEST_TYPES, DigestError, resolve
from tink.registry.names import RegistryError, parse

_TITLE: Final = "org.opencontainers.image.title"
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_DISK: Final = re.compile(r"disk|qcow2|\braw\b|\.img\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Blob:
    """A layer that is a disk image. `compression` is from its title or media type; empty if unknown."""

    url: str
    sha256: str
    compression: str
    authorization: Callable[[AnswerError | None], str]


class Registry:
    """A repository in a registry."""

    def __init__(
        self,
        web: Web,
        settings: Settings,
        *,
        say: Callable[[str], None] = print,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Raises ActionError (InvalidSetting)."""
        scheme, _, name = settings.url.partition("://")
        example = "oci://registry.example.org/images/debian@sha256:<64 digits>"
        wrong = f"IMG_URL is {settings.shown_url}, which is not such as {example}"
        try:
            self._reference = parse(name, has_host=True)
        except RegistryError:  # its text may contain a login
            raise ActionError("InvalidSetting", wrong) from None
        if not _DIGEST.fullmatch(self._reference.digest):
            raise ActionError("InvalidSetting", wrong)
        self._web = web
        self._settings = settings
        self._say = say
        self._sleep = sleep
        host, path = self._reference.api_host, self._reference.path
        self._base = f"{'https' if scheme == 'oci' else 'http'}://{host}/v2/{path}"
        # The token service gets nothing secret, and digests prove the content: plain HTTP is allowed.
        self._login = Login(self._reference, None, insecure=True, remedy="this action has no credentials")
        self._answers: Iterator[str] | None = None

    def blob(self) -> Blob:
        """Return the image's layer. Raises ActionError (DownloadFailed, ImageUnsupported, ChecksumMismatch)."""
        manifest = self._manifest()
        layer = self._layer([one for one in _list(manifest.get("layers")) if isinstance(one, dict)])
        kind, title = str(layer.get("mediaType", "")), _title(layer)
        digest = layer.get("digest")
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise self._unsupported("its layer has no sha256 digest")
        if "tar" in re.split(r"[.+]", kind):
            raise self._unsupported(f"its layer is an archive of files ({kind[:80]}), not a disk image")
        compression = compression_of(title) or {"gzip": "gzip", "zstd": "zstd"}.get(kind.rpartition("+")[2], "")
        return Blob(f"{self._base}/blobs/{digest}", digest.partition(":")[2], compression, self._authorization)

    def _manifest(self) -> Mapping[str, Any]:
        try:
            _, manifest = resolve(
                self._reference.digest,
                lambda version: self._get(f"{self._base}/manifests/{version}"),
                lambda digest: self._get(f"{self._base}/blobs/{digest}"),
                for_disk=True,
            )
        except DigestError as error:
            raise ActionError("ChecksumMismatch", f"{self._settings.shown_url}: {error}") from None
        except RegistryError as error:
            raise self._unsupported(str(error)) from None
        return manifest

    def _get(self, url: str) -> bytes:
        patience = Patience(self._settings.retries, say=self._say, sleep=self._sleep)
        while True:
            try:
                return self._read(url)
            except (AnswerError, BrokenError) as error:
                if not patience.lasts(error, "requests the manifest again"):
                    raise ActionError("DownloadFailed", f"{self._settings.shown_url}: {error}") from None
            except UntrustedError as error:
                raise ActionError("DownloadFailed", f"{self._settings.shown_url}: {error}") from None

    def _read(self, url: str) -> bytes:
        headers = {"Accept": ", ".join(MANIFEST_TYPES)}
        with self._web.get_as(url, headers, self._authorization) as response:
            return self._content(response)

    def _content(self, response: http.client.HTTPResponse) -> bytes:
        try:
            content = self._web.content(response, MANIFEST_LIMIT_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise BrokenError(f"the connection broke: {said(error)}") from None
        if len(content) > MANIFEST_LIMIT_BYTES:
            raise self._unsupported(f"it sent more than {MANIFEST_LIMIT_BYTES} bytes instead of a short answer")
        if response.length:
            raise BrokenError(f"the connection ended {response.length} bytes early")
        return content

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
        """Return the header's value; after a refusal the next one to try. Raises AnswerError, BrokenError."""
        if refusal is None:
            self._answers = None
            return self._login.authorization
        if self._answers is None:
            self._answers = self._login.answers(refusal.challenges, self._token)
        try:
            return next(self._answers)
        except StopIteration:
            raise AnswerError(f"{refusal}; this action has no credentials", 401) from None
        except RegistryError as error:
            raise AnswerError(str(error), 401) from None

    def _token(self, url: str, headers: Mapping[str, str]) -> bytes:
        try:
            with self._web.get(url, headers) as response:
                return self._content(response)
        except AnswerError as error:
            if error.may_pass:
                raise
            raise RegistryError(f"its token service answers {error}") from None

    def _unsupported(self, why: str) -> ActionError:
        return ActionError("ImageUnsupported", f"{self._settings.shown_url}: {why}")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _title(layer: dict[str, Any]) -> str:
    notes = layer.get("annotations")
    title = notes.get(_TITLE) if isinstance(notes, dict) else None
    return title if isinstance(title, str) else ""


def _is_disk(layer: dict[str, Any]) -> bool:
    return bool(_DISK.search(_title(layer)) or _DISK.search(str(layer.get("mediaType", ""))))
