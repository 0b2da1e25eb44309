"""User data and vendor data, from the Hardware or a Secret, and YAML text."""

from __future__ import annotations

import base64
import binascii
from json.encoder import encode_basestring

from hegel.instance import SecretReference, SecretUnusableError
from tink.api.v1alpha2 import Raw, as_mapping


def quoted(value: str) -> str:
    """Return a YAML scalar that stays a string, as "123", "on", or a MAC of digits, which YAML 1.1 reads in base 60.

    It is in double quotes (YAML 1.1, section 5.7): JSON's escapes mean the same, and all others are `\\U`. A general
    YAML writer takes a hundred times as long, and there may be 100,000 Hardware.
    """
    text = encode_basestring(value)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in text)


# --- Documents ---
#
# A document is served byte for byte: a script, a `#cloud-config` and a MIME multi-part are text, which a Hardware holds
# unchanged. gzip is not text, so a Hardware holds it as base64, which is decoded: NoCloud would take the base64 itself
# for the document. No other base64 is decoded, because it may be intended.

_GZIP_MAGIC = b"\x1f\x8b"
_BASE64_WHITESPACE = b" \t\r\n"


def document(text: str) -> bytes:
    """Return the bytes to serve for `userdata` or `vendordata` of a Hardware."""
    return _unwrapped(text.encode(errors="replace"))


def document_of_secret(reference: SecretReference, secret: Raw) -> bytes:
    """Return the bytes to serve for user-data or vendor-data from a Secret, as the Kubernetes API returned it.

    Raises SecretUnusableError, which names the Secret, its keys and the remedy, and never contains a value.
    """
    values = as_mapping(secret.get("data"))
    key = next((key for key in reference.keys if values.get(key) is not None), None)
    if key is None:
        raise SecretUnusableError(f"Secret {reference.name} has no key {' or '.join(reference.keys)}: add it")
    try:
        return _unwrapped(base64.b64decode(values[key], validate=True))
    except (TypeError, ValueError):
        # "from None": the error's text would quote the value.
        raise SecretUnusableError(f"Secret {reference.name}: the value of {key} is not base64: replace it") from None


def _unwrapped(content: bytes) -> bytes:
    """Return `content`, decoded if it is the base64 of gzip data."""
    # In base64 the magic begins with "H4": no text needs more than this check.
    if not content.lstrip(_BASE64_WHITESPACE).startswith(b"H4"):
        return content
    try:
        decoded = binascii.a2b_base64(content.translate(None, _BASE64_WHITESPACE), strict_mode=True)
    except binascii.Error:
        return content
    return decoded if decoded.startswith(_GZIP_MAGIC) else content
