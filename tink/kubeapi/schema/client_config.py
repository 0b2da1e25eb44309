"""Where a webhook is, and what it is sent: the `clientConfig` and the versions of reviews of webhook configurations and
of definitions with a conversion webhook.

Checked when it is stored, read when it is used. Pure. The checks are those of k8s.io/apiserver,
pkg/util/webhook/validation.go.
"""

from __future__ import annotations

import base64
import binascii
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from tink.kubeapi.schema import field_errors, meta
from tink.kubeapi.schema.field_errors import FieldError, invalid_whole

REVIEW_VERSIONS = ("v1", "v1beta1")
"""Versions of AdmissionReview and ConversionReview that can be sent."""


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Where a webhook is. `trust` are certificates in PEM; empty: the system's. `missing` names an absent Service."""

    url: str
    trust: bytes = b""
    missing: str = ""

    @staticmethod
    def of(config: Mapping[str, Any]) -> ClientConfig:
        """Read the clientConfig of a webhook that was found right when it was stored."""
        try:
            trust = base64.b64decode(config.get("caBundle") or "").strip()
        except binascii.Error:
            trust = b"no base64"  # no certificate either: calls fail, and nothing else
        service = config.get("service")
        if service is None:
            parts = urlsplit(config.get("url") or "")
            return ClientConfig(f"{parts.scheme}://{parts.netloc}{_clean(parts.path)}", trust)
        name, namespace, port = service.get("name", ""), service.get("namespace", ""), service.get("port") or 443
        return ClientConfig(f"https://{name}.{namespace}.svc:{port}{_clean(service.get('path') or '')}", trust, name)


def _clean(path: str) -> str:
    """Clean a path as client-go does when it joins it: no empty, `.` or `..` steps and no slash at the end."""
    return posixpath.normpath("/" + path.lstrip("/"))


# --- checks ------------------------------------------------------------------------------------------------------

_NEVER = re.compile(r"[\x00-\x1f\x7f]|//[^/]*[ \"<>\\^`{|}]")
_BAD_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
_FORM = "; desired format: https://host[/path]"


def check_client(client: Mapping[str, Any], at: str) -> list[FieldError]:
    """Check where a webhook is: exactly one of url and service (k8s.io/apiserver, pkg/util/webhook/validation.go)."""
    url, service = client.get("url"), client.get("service")
    if (url is None) == (service is None):
        return [field_errors.required(at, "exactly one of url or service is required")]
    if url is not None:
        return _check_url(url, f"{at}.url")
    return _check_service(service or {}, f"{at}.service")


def _check_url(url: str, at: str) -> list[FieldError]:
    try:
        parts = urlsplit(url)
        valid = parts.port is None or parts.port >= 0
    except ValueError:
        valid = False
    if not valid or _NEVER.search(url) or _BAD_ESCAPE.search(parts.path):
        return [field_errors.required(at, f"url must be a valid URL{_FORM}")]
    user, at_sign, host = parts.netloc.rpartition("@")
    found: list[FieldError] = []
    if parts.scheme != "https":
        found.append(field_errors.invalid(at, parts.scheme, f"'https' is the only allowed URL scheme{_FORM}"))
    if not host:
        found.append(field_errors.invalid(at, host, f"host must be specified{_FORM}"))
    if at_sign:
        found.append(field_errors.invalid(at, user, "user information is not permitted in the URL"))
    if parts.fragment:
        found.append(field_errors.invalid(at, unquote(parts.fragment), "fragments are not permitted in the URL"))
    if parts.query:
        found.append(field_errors.invalid(at, parts.query, "query parameters are not permitted in the URL"))
    return found


def _check_service(service: Mapping[str, Any], at: str) -> list[FieldError]:
    found = [field_errors.required(f"{at}.{key}") for key in ("name", "namespace") if not service.get(key)]
    port = service.get("port", 443)
    if not 1 <= port <= 65535:
        why = "port is not valid: must be between 1 and 65535, inclusive"
        found.append(field_errors.invalid(f"{at}.port", port, why))
    return found + _check_path(service.get("path") or "", f"{at}.path")


def _check_path(path: str, at: str) -> list[FieldError]:
    if path in ("", "/"):
        return []
    if path == "//":
        return [field_errors.invalid(at, path, "segment[0] may not be empty")]
    found: list[FieldError] = []
    if not path.startswith("/"):
        found.append(field_errors.invalid(at, path, "must start with a '/'"))
    for index, step in enumerate(path[1:].removesuffix("/").split("/")):
        if not step:
            found.append(field_errors.invalid(at, path, f"segment[{index}] may not be empty"))
        elif wrong := meta.subdomain(step):
            found.append(field_errors.invalid(at, path, f"segment[{index}]: {wrong}"))
    return found


def check_review_versions(versions: Sequence[str], at: str, *, known: bool, advice: str = "") -> list[FieldError]:
    """Find what is wrong with the versions of reviews; `known` demands one that can be sent. `advice` is for who names
    none."""
    if not versions:
        return [field_errors.required(at, advice)]
    found = []
    for index, version in enumerate(versions):
        if version in versions[:index]:
            found.append(invalid_whole(f"{at}[{index}]", version, "duplicate version"))
        elif wrong := meta.dns1035(version):
            found.append(invalid_whole(f"{at}[{index}]", version, wrong))
    if known and not set(versions) & set(REVIEW_VERSIONS):
        found.append(invalid_whole(at, list(versions), f"must include at least one of {', '.join(REVIEW_VERSIONS)}"))
    return found
