"""Agent tokens: made by the edge, checked by the server, with keys in a file that both read."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tink.files.key_file import KeyFileError
from tink.server.agents.tokens import CLOCK_SKEW_SECONDS, TokenError, TokenKeys, TokenSettings

MAC = "52:54:00:00:00:01"
NOW = 1_800_000_000.0
OLD, NEW = "a" * 64, "b" * 64


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def key_file(tmp_path: Path, *keys: str, mode: int = 0o600) -> Path:
    path = tmp_path / "agent-token.key"
    path.write_text("# the newest first\n\n" + "\n".join(keys) + "\n")
    path.chmod(mode)
    return path


@pytest.fixture
def keys(tmp_path: Path) -> TokenKeys:
    return TokenKeys(TokenSettings(key_file(tmp_path, OLD), lifetime=3600))


def test_a_token_says_whose_it_is_and_when_it_ends(keys: TokenKeys) -> None:
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


def test_not_a_character_of_a_token_can_be_changed(keys: TokenKeys) -> None:
    token = keys.mint(MAC, NOW)
    for at in range(len(token)):
        for other in "0A-":
            if token[at] != other:
                forged = token[:at] + other + token[at + 1 :]
                with pytest.raises(TokenError):
                    keys.verify(forged, NOW)


def test_another_key_signs_another_token(tmp_path: Path, keys: TokenKeys) -> None:
    (tmp_path / "other").mkdir()
    other = TokenKeys(TokenSettings(key_file(tmp_path / "other", NEW)))
    with pytest.raises(TokenError, match="not signed with a key of this server"):
        other.verify(keys.mint(MAC, NOW), NOW)


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> TokenKeys:
    return TokenKeys(TokenSettings(key_file(tmp_path_factory.mktemp("keys"), OLD)))


@given(
    st.one_of(st.text(max_size=200), st.from_regex(r"v1\.[0-9a-f]{12}\.[0-9]{1,12}\.[A-Za-z0-9_-]{43}", fullmatch=True))
)
def test_nothing_that_a_stranger_shows_is_a_token_or_a_crash(lasting: TokenKeys, text: str) -> None:
    with pytest.raises(TokenError) as caught:
        lasting.verify(text, NOW)
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


def test_a_file_that_is_spoilt_later_changes_nothing_and_is_said_once(
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
    assert [record.message.count("stay as they were") for record in caplog.records] == [1, 1]
    assert "short" not in caplog.text.replace("less than", ""), "keys are not logged, not even bad ones"


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "has no key"),
        ("# only words\n", "has no key"),
        ("0123456789abcdef\n", "less than 32"),
        (("k" * 32 + "\n") * 17, "more than 16"),
    ],
)
def test_a_key_file_that_protects_nobody_is_refused_at_the_start(tmp_path: Path, content: str, named: str) -> None:
    path = tmp_path / "key"
    path.write_text(content)
    with pytest.raises(KeyFileError, match=named):
        TokenKeys(TokenSettings(path))


def test_a_missing_key_file_says_how_to_make_one(tmp_path: Path) -> None:
    advice = "'openssl rand -hex 32' makes a key; give edge and server the same file"
    with pytest.raises(KeyFileError, match=f"No such file or directory; {advice}"):
        TokenKeys(TokenSettings(tmp_path / "key"))
    with pytest.raises(KeyFileError, match="Is a directory"):
        TokenKeys(TokenSettings(tmp_path))


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


def test_a_key_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KeyFileError, match="file/key can't be made"):
        TokenKeys(TokenSettings(tmp_path / "file" / "key", create=True))


@pytest.mark.parametrize("mac", ["", "52:54:00:00:00:0A", "525400000001", "x", MAC + " "])
def test_only_a_mac_as_we_spell_it_gets_a_token(keys: TokenKeys, mac: str) -> None:
    with pytest.raises(ValueError, match="is no MAC address"):
        keys.mint(mac, NOW)


@pytest.mark.parametrize("lifetime", [0, 59, -1, float("nan"), 1e10])
def test_a_lifetime_of_no_use_is_refused(tmp_path: Path, lifetime: float) -> None:
    with pytest.raises(ValueError, match="lifetime"):
        TokenSettings(tmp_path, lifetime)
