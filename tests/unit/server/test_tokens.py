"""Agent tokens: made by the edge, checked by the server, with keys in a file that both read; and forged ones, which are
worth nothing and cost the server next to nothing."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.callers import MetadataTokens
from proto import metadata
from proto import workflow_pb2 as pb
from tests.support.objects import MAC
from tests.unit.server.conftest import Rig
from tests.waiting import PATIENCE_SECONDS
from tink.files.key_file import KeyFile, KeyFileError
from tink.server.auth import CLOCK_SKEW_SECONDS, AgentAuth, TokenError, TokenKeys, TokenSettings
from tink.server.peer import read_call_metadata

OTHER = "52:54:00:00:00:09"
NOW = 1_800_000_000.0
KEYS = [letter * 64 for letter in "abc"]
OLD, NEW, _ = KEYS
CLAIMS = "v1.525400000001.1900000000"
LABEL = "tinkedge agent token"
WHOLE = f"{LABEL}\0{CLAIMS}"
"""Return the signed part of a token."""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def key_file(tmp_path: Path, *keys: str, mode: int = 0o600) -> Path:
    path = tmp_path / "agent-token.key"
    path.write_text("# the newest first\n\n" + "\n".join(keys) + "\n")
    path.chmod(mode)
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return key_file(tmp_path_factory.mktemp("keys"), *KEYS)


@pytest.fixture(scope="module")
def keys(path: Path) -> TokenKeys:
    return TokenKeys(TokenSettings(path, lifetime=3600))


def test_token_contains_its_machine_and_its_end(keys: TokenKeys) -> None:
    token = keys.mint(MAC, NOW)
    found = keys.verify(token, NOW)
    assert (found.mac, found.expires) == (MAC, int(NOW) + 3600)
    assert len(token) <= 73
    assert token.replace(".", "").replace("-", "").replace("_", "").isalnum(), (
        "iPXE and the kernel must take it as it is"
    )


def test_a_token_is_good_to_its_end_and_as_long_as_clocks_may_differ(keys: TokenKeys) -> None:
    token = keys.mint(MAC, NOW)
    keys.verify(token, NOW - 10 * 86_400)  # a server whose clock is behind
    keys.verify(token, NOW + 3600 + CLOCK_SKEW_SECONDS)
    with pytest.raises(TokenError, match="ended at 2027-01-15T09:00:00Z; the machine gets a new one when it boots"):
        keys.verify(token, NOW + 3600 + CLOCK_SKEW_SECONDS + 1)


@given(
    st.one_of(st.text(max_size=200), st.from_regex(r"v1\.[0-9a-f]{12}\.[0-9]{1,12}\.[A-Za-z0-9_-]{43}", fullmatch=True))
)
def test_nothing_that_a_stranger_shows_is_a_token_or_a_crash(keys: TokenKeys, text: str) -> None:
    with pytest.raises(TokenError) as caught:
        keys.verify(text, NOW)
    assert len(text) < 8 or text not in str(caught.value), "a message goes into the log, a token does not"


def test_a_new_key_on_top_signs_and_the_old_one_is_still_good(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    path = key_file(tmp_path, OLD)
    keys = TokenKeys(TokenSettings(path), clock)
    old = keys.mint(MAC, NOW)
    key_file(tmp_path, NEW, OLD)
    clock.now = 2.0
    assert keys.mint(MAC, NOW) == old, "others may not have the new one yet"
    clock.now = 122.0
    new = keys.mint(MAC, NOW)
    assert new != old
    keys.verify(old, NOW)
    key_file(tmp_path, NEW)
    clock.now = 124.0
    keys.verify(new, NOW)
    clock.now = 126.0
    keys.verify(new, NOW)
    assert caplog.text.count("read again") == 2, "once for each change"
    with pytest.raises(TokenError):
        keys.verify(old, NOW)


def test_file_that_is_damaged_later_changes_nothing_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    path = key_file(tmp_path, OLD)
    keys = TokenKeys(TokenSettings(path), clock)
    token = keys.mint(MAC, NOW)
    path.write_text("short\n")
    for _ in range(3):
        clock.now += 2.0
        keys.verify(token, NOW)
    path.unlink()
    clock.now += 2.0
    keys.verify(token, NOW)
    assert [record.message.count("the keys stay unchanged") for record in caplog.records] == [1, 1]
    assert "short" not in caplog.text.replace("less than", ""), "keys are not logged, not even bad ones"


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "has no key"),
        ("# only words\n", "has no key"),
        ("0123456789abcdef\n", "less than 32"),
        (("k" * 32 + "\n") * 17, "more than 16"),
        (None, "No such file or directory; 'openssl rand -hex 32' makes a key; give edge and server the same file"),
    ],
    ids=["empty", "words", "short", "many", "missing"],
)
def test_unsafe_key_file_is_rejected_at_the_start(
    tmp_path: Path, content: str | None, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_text(content)
    with pytest.raises(KeyFileError, match=named):
        TokenKeys(TokenSettings(path))
    with pytest.raises(KeyFileError, match="Is a directory"):
        TokenKeys(TokenSettings(tmp_path))
    path.write_text("")
    assert caplog.text == ""
    TokenKeys(TokenSettings(path / "new", create=True))
    assert "key/new can't be created: " in caplog.text, "one of our own is waited for"
    assert "Until then, agents that show a token are refused" in caplog.text


def test_a_key_file_that_everybody_can_read_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    TokenKeys(TokenSettings(key_file(tmp_path, OLD, mode=0o604)))
    assert "chmod 600" in caplog.text
    caplog.clear()
    TokenKeys(TokenSettings(key_file(tmp_path, OLD, mode=0o640)))  # how Kubernetes mounts a Secret
    assert not caplog.text


def test_the_key_is_made_for_its_owner_alone_and_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    settings = TokenSettings(tmp_path / "data" / "agent-token.key", create=True)
    made: list[TokenKeys] = []
    threads = [threading.Thread(target=lambda: made.append(TokenKeys(settings))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert settings.key.stat().st_mode & 0o777 == 0o600
    token = made[0].mint(MAC, NOW)
    for each in made:
        each.verify(token, NOW)
    assert list(settings.key.parent.iterdir()) == [settings.key]
    assert settings.key.read_text().strip() not in caplog.text


@pytest.mark.parametrize("mac", ["", "52:54:00:00:00:0A", "525400000001", "x", MAC + " "])
def test_only_a_mac_as_we_spell_it_gets_a_token(keys: TokenKeys, mac: str) -> None:
    with pytest.raises(ValueError, match="is no MAC address"):
        keys.mint(mac, NOW)


@pytest.mark.parametrize("lifetime", [0, 59, -1, float("nan"), 1e10])
def test_a_lifetime_of_no_use_is_refused(tmp_path: Path, lifetime: float) -> None:
    with pytest.raises(ValueError, match="lifetime"):
        TokenSettings(tmp_path, lifetime)


# --- forged ---


def encoded(signature: bytes) -> str:
    return base64.urlsafe_b64encode(signature).rstrip(b"=").decode()


def signed(message: str, key: str = KEYS[0], algorithm: str = "sha256") -> str:
    return encoded(hmac.digest(key.encode(), message.encode(), algorithm))


RIGHT = f"{CLAIMS}.{signed(WHOLE)}"
JWT = ".".join(encoded(part) for part in (b'{"alg":"none"}', b'{"sub":"52:54:00:00:00:01"}', b""))


def test_what_is_forged_below_would_be_good_if_it_were_right(keys: TokenKeys) -> None:
    assert keys.verify(RIGHT, NOW).mac == MAC


@pytest.mark.parametrize(
    "token",
    [
        # other algorithms, and none
        f"{CLAIMS}.{signed(WHOLE, algorithm='sha3_256')}",
        f"{CLAIMS}.{signed(WHOLE, algorithm='blake2s')}",
        f"{CLAIMS}.{signed(WHOLE, algorithm='sha512')}",
        f"{CLAIMS}.{signed(WHOLE, algorithm='sha1')}",
        f"{CLAIMS}.{encoded(hashlib.sha256((KEYS[0] + WHOLE).encode()).digest())}",
        f"{CLAIMS}.{encoded(hashlib.sha256(CLAIMS.encode()).digest())}",
        f"{CLAIMS}.",
        CLAIMS,
        f"{CLAIMS}.none",
        f"{CLAIMS}.{'A' * 43}",
        JWT,
        # other purposes of the same key, and other keys
        f"{CLAIMS}.{signed(CLAIMS)}",
        f"{CLAIMS}.{signed(f'{LABEL}{CLAIMS}')}",
        f"{CLAIMS}.{signed(WHOLE.replace('agent', 'metadata'))}",
        f"{CLAIMS}.{signed(WHOLE, key='')}",
        f"{CLAIMS}.{signed(WHOLE, key='z' * 64)}",
        KEYS[0],
        # other spellings of what is signed
        RIGHT.replace("v1", "v2"),
        RIGHT.replace("v1", "V1"),
        RIGHT.replace("v1.", "v1.0"),
        RIGHT.replace(".19", ".019"),
        RIGHT.replace(".19", ".+19"),
        RIGHT.replace(".19", ".1_9"),
        RIGHT.replace(".19", ".\u0661\u0669"),  # digits, in Arabic
        RIGHT.replace(".19", ".-19"),
        RIGHT.replace("1900000000", "999999999999"),
        RIGHT.replace("525400000001", "52:54:00:00:00:01"),
        RIGHT.replace("525400000001", "525400000009"),
        RIGHT.replace("525400000001", "52540000000\uff11"),
        # cut off, and with something behind or before it
        *(RIGHT[:length] for length in range(len(RIGHT))),
        *(RIGHT + more for more in (" ", "\n", "\r\n", "\0", "=", ".", "A", "\u200b", "\u00e9", "\udcff", "." + RIGHT)),
        *(less + RIGHT for less in (" ", "\n", "\0", "Bearer ", "\ufeff")),
        RIGHT + "A" * 1_000_000,
        "v1." * 300_000,
        "v1." + "0" * 1_000_000,
    ],
    ids=lambda token: f"{len(token)}",
)
def test_no_other_token_is_one(keys: TokenKeys, token: str) -> None:
    with pytest.raises(TokenError) as caught:
        keys.verify(token, NOW)
    assert len(str(caught.value)) < 120


@given(
    st.integers(0, len(RIGHT)),
    st.integers(0, len(RIGHT)),
    st.text("\0\n .=-_+v1Aaz\u00e9\u0661\uff11\ud800", max_size=6),
)
def test_nothing_but_the_token_is_the_token(keys: TokenKeys, begin: int, end: int, between: str) -> None:
    token = RIGHT[:begin] + between + RIGHT[end:]
    if token != RIGHT:
        with pytest.raises(TokenError):
            keys.verify(token, NOW)


def test_a_token_of_the_metadata_service_is_none_of_an_agent_though_the_key_is_the_same(
    path: Path, keys: TokenKeys
) -> None:
    token = MetadataTokens(KeyFile(path, "key"), lifetime=3600, clock=lambda: NOW).mint(MAC)
    for shown in (token, token.replace("M1", "v1")):
        with pytest.raises(TokenError):
            keys.verify(shown, NOW)


def test_a_bad_token_costs_a_signature_for_each_key_in_constant_time_or_none_at_all(
    keys: TokenKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[str, str]] = []
    compare = hmac.compare_digest

    def counting(one: Any, other: Any) -> bool:
        compared.append((one, other))
        return compare(one, other)

    monkeypatch.setattr("tink.files.key_file.hmac.compare_digest", counting)
    for token in ("", "x", RIGHT[:-1], RIGHT + "A" * 1_000_000, JWT):
        with pytest.raises(TokenError):
            keys.verify(token, NOW)
    assert compared == [], "what has not the shape of a token is not signed for"
    forged = RIGHT[:-43] + "A" * 43
    with pytest.raises(TokenError, match="not signed with a key of this server"):
        keys.verify(forged, NOW)
    assert [other for _, other in compared] == ["A" * 43] * len(KEYS)
    compared.clear()
    keys.verify(RIGHT, NOW)
    assert len(compared) == len(KEYS), "how long it takes does not say which key it was"


@given(
    st.lists(st.tuples(st.sampled_from([metadata.AUTHORIZATION, "other"]), st.text("bB \0\u200b\ud800") | st.binary()))
)
def test_no_header_of_a_stranger_breaks_the_reading_of_it(sent: list[tuple[str, str | bytes]]) -> None:
    assert isinstance(read_call_metadata(sent).token, str)


@pytest.mark.parametrize(
    ("value", "token"),
    [
        ("Bearer t", "t"),
        ("bearer t", "t"),
        ("BEARER  t ", "t"),
        ("Bearer", ""),
        ("Bearert", ""),
        ("Basic t", ""),
        ("t", ""),
        ("Bearer t u", "t u"),
    ],
)
def test_only_a_bearer_shows_a_token(value: str, token: str) -> None:
    assert read_call_metadata([(metadata.AUTHORIZATION, value)]).token == token


# --- on the wire ---


@pytest.fixture
async def ask(rig: Rig, path: Path) -> Callable[[str], Any]:
    """Asks a server that wants tokens for the stream of MAC: the code, and what is said."""
    await rig.start(agent_auth=AgentAuth.TOKEN, tokens=TokenSettings(path, 3600))
    rig.machine(ip="192.0.2.1")
    rig.machine("other", OTHER, ip="192.0.2.9")

    async def asking(value: str) -> tuple[grpc.StatusCode, str]:
        call = rig.agent().stub.GetWorkflows(
            pb.GetWorkflowsRequest(agent_id=MAC), metadata=((metadata.AUTHORIZATION, value),), timeout=PATIENCE_SECONDS
        )
        return await call.code(), await call.details()

    return asking


async def test_bad_tokens_open_no_stream_and_are_reported_once(
    rig: Rig, ask: Any, keys: TokenKeys, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    old = keys.mint(MAC, rig.now - 3600 - CLOCK_SKEW_SECONDS - 1)
    good = keys.mint(MAC, rig.now)
    forged = [good[:-1], good + "A", good + " A", good[:-43] + "A" * 43, "x" * 8000, JWT, keys.mint(OTHER, rig.now)]
    for token in (old, *forged):
        code, words = await ask(f"Bearer {token}")
        assert code is grpc.StatusCode.PERMISSION_DENIED, token
        assert len(words) < 200
        assert token not in caplog.text, "a token is never logged"
    assert "its token ended at" in (await ask(f"Bearer {old}"))[1]
    assert f"its token is that of {OTHER}" in (await ask(f"Bearer {forged[-1]}"))[1]
    code, _ = await ask("Bearer " + "x" * 20_000)
    assert code is not grpc.StatusCode.OK, "metadata has 16 kB"
    assert [(seen.hardware, seen.agent_id, str(seen.kind)) for seen in rig.seen] == [("d/h", MAC, "refused")]
    assert len([record for record in caplog.records if "refused" in record.message]) == 1
