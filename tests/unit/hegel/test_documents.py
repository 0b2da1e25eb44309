"""The bytes of user-data and vendor-data."""

from __future__ import annotations

import base64
import gzip
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hegel.documents import document, document_of_secret
from hegel.secret import SecretReference, SecretUnusableError

GZIP = gzip.compress(b"#cloud-config\n" * 50, mtime=0)
ENCODED = base64.b64encode(GZIP).decode()
REFERENCE = SecretReference("m1-userdata")

MULTIPART = """\
Content-Type: multipart/mixed; boundary="=="
MIME-Version: 1.0

--==
Content-Type: text/cloud-config

#cloud-config
--==--
"""


@pytest.mark.parametrize(
    "text", ["", "#!/bin/sh\necho ü\r\n", MULTIPART, "no newline", "H4", "H4sI is how it begins", " \n"]
)
def test_text_is_served_byte_for_byte(text: str) -> None:
    assert document(text) == text.encode()


@pytest.mark.parametrize(
    "text",
    [ENCODED, f"\n  {ENCODED}\n", "\r\n".join(ENCODED[i : i + 76] for i in range(0, len(ENCODED), 76)), f"\t{ENCODED}"],
)
def test_gzip_is_written_as_base64_and_served_as_gzip(text: str) -> None:
    assert document(text) == GZIP


@pytest.mark.parametrize(
    "text",
    [
        base64.b64encode(b"#!/bin/sh\n").decode(),
        ENCODED[:-1],
        ENCODED.replace("+", "-").replace("/", "_") + "!",
        f"{ENCODED}====",
        f"ü{ENCODED}",
        base64.b64encode(b"\x1f\x80not gzip").decode(),
    ],
)
def test_no_other_base64_is_touched(text: str) -> None:
    assert document(text) == text.encode()


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_is_served_byte_for_byte(text: str) -> None:
    assert document(text) == text.encode()


def test_text_that_utf8_cannot_hold_costs_a_character_and_not_the_tree() -> None:
    assert document("a\ud800b") == b"a?b"


def secret(**values: bytes) -> dict[str, Any]:
    return {"data": {key: base64.b64encode(value).decode() for key, value in values.items()}}


def test_secret_of_metal3_and_of_cluster_api_is_found_without_naming_a_key() -> None:
    assert document_of_secret(REFERENCE, secret(userData=b"metal3", value=b"capi")) == b"metal3"
    assert document_of_secret(REFERENCE, secret(value=b"capi", format=b"cloud-config")) == b"capi"


def test_named_key_is_the_only_one() -> None:
    reference = SecretReference.parse("m1/cloud.cfg")
    assert document_of_secret(reference, secret(**{"cloud.cfg": b"x", "userData": b"y"})) == b"x"
    with pytest.raises(SecretUnusableError, match=r"Secret m1 has no key cloud\.cfg: add it"):
        document_of_secret(reference, secret(userData=b"y"))


@pytest.mark.parametrize("content", [GZIP, ENCODED.encode(), b"\xff\x00binary", b""])
def test_secret_may_hold_gzip_itself_or_its_base64_and_any_bytes(content: bytes) -> None:
    served = GZIP if content == ENCODED.encode() else content
    assert document_of_secret(REFERENCE, secret(userData=content)) == served


@pytest.mark.parametrize(
    "broken", [{}, {"data": None}, {"data": {}}, {"data": ["userData"]}, {"data": {"other": "eA=="}}]
)
def test_secret_without_the_key_is_named_with_what_to_do(broken: dict[str, Any]) -> None:
    with pytest.raises(SecretUnusableError, match="Secret m1-userdata has no key userData or value: add it"):
        document_of_secret(REFERENCE, broken)


@pytest.mark.parametrize("value", ["hunter2!", "hunter22!", 5, [], "ü"])
def test_value_that_is_not_base64_is_named_but_never_quoted(value: Any) -> None:
    with pytest.raises(SecretUnusableError, match="Secret m1-userdata: the value of userData is not base64") as caught:
        document_of_secret(REFERENCE, {"data": {"userData": value}})
    assert "hunter2" not in repr(caught.value)
    assert caught.value.__suppress_context__
