"""The parts of the trees: user-data, SSH keys, strings for YAML, and session tokens of EC2's kind."""

from __future__ import annotations

import base64
import gzip
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hegel.imds import SessionTokenError, TtlError, check, mint, ttl
from hegel.instance import SecretReference, SecretUnusableError, names, ssh_keys
from hegel.metadata import document, document_of_secret, quoted
from tink.files.key_file import KeyFile

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
    "text",
    [
        *("", "#!/bin/sh\necho ü\r\n", MULTIPART, "no newline", "H4", "H4sI is how it begins", " \n"),
        # Base64 of anything but gzip, and what is almost base64.
        *(base64.b64encode(raw).decode() for raw in (b"#!/bin/sh\n", b"\x1f\x80not gzip")),
        *(ENCODED[:-1], ENCODED.replace("+", "-").replace("/", "_") + "!", f"{ENCODED}====", f"ü{ENCODED}"),
    ],
)
def test_text_is_served_byte_for_byte(text):
    assert document(text) == text.encode()


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_is_served_byte_for_byte_and_what_utf8_cannot_hold_costs_a_character(text):
    assert document(text) == text.encode()
    assert document(f"a\ud800{text}") == f"a?{text}".encode()


@pytest.mark.parametrize(
    "text",
    [ENCODED, f"\n  {ENCODED}\n", "\r\n".join(ENCODED[i : i + 76] for i in range(0, len(ENCODED), 76)), f"\t{ENCODED}"],
)
def test_gzip_is_written_as_base64_and_served_as_gzip(text):
    assert document(text) == GZIP


def secret(**values: bytes) -> dict[str, Any]:
    return {"data": {key: base64.b64encode(value).decode() for key, value in values.items()}}


@pytest.mark.parametrize(
    ("reference", "values", "served"),
    [
        ("m1", {"userData": b"metal3", "value": b"capi"}, b"metal3"),
        ("m1", {"value": b"capi", "format": b"cloud-config"}, b"capi"),
        ("m1/cloud.cfg", {"cloud.cfg": b"x", "userData": b"y"}, b"x"),
        ("m1", {"userData": GZIP}, GZIP),
        ("m1", {"userData": ENCODED.encode()}, GZIP),
        ("m1", {"userData": b"\xff\x00binary"}, b"\xff\x00binary"),
        ("m1", {"userData": b""}, b""),
    ],
)
def test_document_of_a_secret_is_that_of_the_named_or_a_usual_key_and_may_be_any_bytes(reference, values, served):
    assert document_of_secret(SecretReference.parse(reference), secret(**values)) == served


@pytest.mark.parametrize(
    "broken", [{}, {"data": None}, {"data": {}}, {"data": ["userData"]}, {"data": {"other": "eA=="}}]
)
def test_secret_without_the_key_is_named_with_what_to_do(broken):
    with pytest.raises(SecretUnusableError, match="Secret m1-userdata has no key userData or value: add it"):
        document_of_secret(REFERENCE, broken)
    with pytest.raises(SecretUnusableError, match=r"Secret m1 has no key cloud\.cfg: add it"):
        document_of_secret(SecretReference.parse("m1/cloud.cfg"), broken)


@pytest.mark.parametrize("value", ["hunter2!", "hunter22!", 5, [], "ü"])
def test_value_that_is_not_base64_is_named_but_never_quoted(value):
    with pytest.raises(SecretUnusableError, match="Secret m1-userdata: the value of userData is not base64") as caught:
        document_of_secret(REFERENCE, {"data": {"userData": value}})
    assert "hunter2" not in repr(caught.value)
    assert caught.value.__suppress_context__


def key(kind: str, body: bytes = bytes(32)) -> str:
    blob = b"".join(len(part).to_bytes(4) + part for part in (kind.encode(), body))
    return f"{kind} {base64.b64encode(blob).decode()}"


ED25519 = key("ssh-ed25519")


@pytest.mark.parametrize(
    "line",
    [
        ED25519,
        f"{ED25519} ops@example",
        f"{ED25519} two words, ü",
        key("ssh-rsa", bytes(256)),
        key("ecdsa-sha2-nistp256", bytes(72)),
        key("sk-ssh-ed25519@openssh.com"),
        key("sk-ecdsa-sha2-nistp256@openssh.com"),
        f"no-pty,no-port-forwarding {ED25519}",
        f'from="10.0.0.0/8",command="echo \\"hi there\\"" {ED25519} ops',
    ],
)
def test_what_openssh_takes_is_a_key(line):
    assert ssh_keys(f"\t{line} \r\n") == ([line], [])


@pytest.mark.parametrize(
    "line",
    [
        "ssh-ed25519",
        "ssh-ed25519 AAAA",
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI!!!",
        ED25519.replace("ssh-ed25519", "ssh-rsa"),
        ED25519[:-2],
        ED25519.split()[1],
        f"{ED25519}\x00",
        f"{ED25519} bell\x07",
        f"{ED25519} line\u2028break",
        f'from="open {ED25519}',
        "-----BEGIN OPENSSH PRIVATE KEY-----",
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5",
    ],
)
def test_what_is_no_key_is_named_by_its_line(line):
    assert ssh_keys(f"# comment\n\n{line}\n{ED25519}\n") == ([ED25519], [3])


def test_key_given_twice_is_one_key_and_tabs_between_the_fields_do_not_make_it_unprintable():
    assert ssh_keys(f"{ED25519}\n{ED25519}") == ([ED25519], [])
    assert ssh_keys(ED25519.replace(" ", "\t") + "\tops") == ([f"{ED25519} ops"], [])


def test_long_line_is_judged_in_bounded_time():
    for line in ('a"' * 100_000 + " x", "a" * 200_000, "a " * 100_000, '"' + "\\" * 200_000):
        assert ssh_keys(line)[1] == [1]


def test_names_are_unique_for_cloud_init_keeps_keys_by_name():
    lines = [f"{ED25519} ops", f"{ED25519} x ops", ED25519, f"{ED25519} key-1", f"{ED25519} a/b=", f"{ED25519} -x"]
    assert names(lines) == ["ops", "key-1", "key-2", "key-3", "key-4", "key-5"]
    assert names([f"{ED25519} key-1", f"{ED25519} ops", ED25519]) == ["key-0", "ops", "key-2"]
    assert names([f"{ED25519} key-1", ED25519]) == ["key-0", "key-1"]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_any_string_is_one_line_and_reads_back_as_itself(text):
    for odd in (text, "on", "0x1f", "1:30", "a: b # c", '\\"', "\x00\x7f\x85", "\u2028\ufeff", "\U0001f511", "\n"):
        assert len(quoted(odd).splitlines()) == 1
        assert yaml.safe_load(quoted(odd)) == odd


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeyFile:
    path: Path = tmp_path_factory.mktemp("keys") / "key"
    return KeyFile(path, "key", create=True)


def test_token_is_good_for_its_machine_until_its_end(keys):
    token = mint(keys, "default/m1", 1000)
    check(keys, token, "default/m1", 999.9)
    # The end and the name can't be moved into each other.
    assert mint(keys, "1/m1", 100) != mint(keys, "/m1", 1001)
    signature = mint(keys, "0\0m1", 100).partition(".")[2]
    for shown, machine, now in (
        (token, "default/m1", 1000.0),
        (token, "default/m2", 0.0),
        (token, "default/m", 0.0),
        (f"100.{signature}", "m1", 0.0),
    ):
        with pytest.raises(SessionTokenError):
            check(keys, shown, machine, now)


@given(token=st.text(max_size=80))
def test_invented_token_is_worth_nothing(keys, token):
    with pytest.raises(SessionTokenError):
        check(keys, token, "default/m1", 0)


@pytest.mark.parametrize(("header", "seconds"), [("1", 1), ("21600", 21600), (" 60 ", 60), ("007", 7)])
def test_lifetime_is_read(header, seconds):
    assert ttl(header) == seconds


@pytest.mark.parametrize("header", [None, "", "0", "21601", "-1", "+5", "1.0", "1e3", "99999999999", "\u0663"])
def test_lifetime_out_of_bounds_is_refused_with_the_bounds(header):
    with pytest.raises(TtlError, match="from 1 to 21600"):
        ttl(header)
