"""Session tokens of EC2's kind: what is one, for whom, and until when."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hegel.imds import SessionTokenError, TtlError, check, mint, ttl
from tink.files.key_file import KeyFile


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeyFile:
    path: Path = tmp_path_factory.mktemp("keys") / "key"
    return KeyFile(path, "key", create=True)


def test_token_is_good_for_its_machine_until_its_end(keys: KeyFile) -> None:
    token = mint(keys, "default/m1", 1000)
    check(keys, token, "default/m1", 999.9)
    for machine, now in (("default/m1", 1000.0), ("default/m2", 0.0), ("default/m", 0.0)):
        with pytest.raises(SessionTokenError):
            check(keys, token, machine, now)


def test_end_and_name_can_not_be_moved_into_each_other(keys: KeyFile) -> None:
    assert mint(keys, "1/m1", 100) != mint(keys, "/m1", 1001)
    signature = mint(keys, "0\0m1", 100).partition(".")[2]
    with pytest.raises(SessionTokenError):
        check(keys, f"100.{signature}", "m1", 0)


@given(token=st.text(max_size=80))
def test_invented_token_is_worth_nothing(keys: KeyFile, token: str) -> None:
    with pytest.raises(SessionTokenError):
        check(keys, token, "default/m1", 0)


@pytest.mark.parametrize(("header", "seconds"), [("1", 1), ("21600", 21600), (" 60 ", 60), ("007", 7)])
def test_lifetime_is_read(header: str, seconds: int) -> None:
    assert ttl(header) == seconds


@pytest.mark.parametrize("header", [None, "", "0", "21601", "-1", "+5", "1.0", "1e3", "99999999999", "\u0663"])
def test_lifetime_out_of_bounds_is_refused_with_the_bounds(header: str | None) -> None:
    with pytest.raises(TtlError, match="from 1 to 21600"):
        ttl(header)
