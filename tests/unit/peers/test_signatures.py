"""Whose word counts: forged, altered, old and repeated requests, and answers to something else."""

from dataclasses import replace

import pytest

from edge.peers.signatures import SKEW_SECONDS, Refusal, Request, Signatures, StrangerError, VerifiedRequest
from tests.unit.artifacts.conftest import Clock
from tests.unit.peers.conftest import key_file

REQUEST = Request("GET", "10.0.0.2:7080", "/peers/artifacts/0/1", b"", "bytes=5-")


@pytest.fixture
def clock():
    return Clock(1_800_000_000.0)


@pytest.fixture
def pair(tmp_path, clock):
    keys = key_file(tmp_path / "key", "k" * 64)
    return Signatures(keys, clock), Signatures(keys, clock)


def refusal(signatures, header, request=REQUEST):
    with pytest.raises(StrangerError) as refused:
        signatures.check(header, request)
    return refused.value.refusal


def test_request_of_an_edge_is_taken_once(pair):
    one, two = pair
    header, nonce = one.request(REQUEST)
    assert two.check(header, REQUEST) == VerifiedRequest(one.edge, nonce)
    assert refusal(two, header) is Refusal.REPLAYED


@pytest.mark.parametrize(
    "change",
    [
        {"method": "POST"},
        {"authority": "10.0.0.3:7080"},
        {"target": "/peers/artifacts/0/2"},
        {"body": b"x"},
        {"range": "bytes=6-"},
    ],
)
def test_request_that_was_altered_is_not_taken(pair, change):
    one, two = pair
    header, _ = one.request(REQUEST)
    assert refusal(two, header, replace(REQUEST, **change)) is Refusal.FORGED


@pytest.mark.parametrize("word", [1, 2, 3, 4])
def test_each_word_of_the_header_is_signed(pair, word):
    one, two = pair
    words = one.request(REQUEST)[0].split(" ")
    first = words[word][0]
    words[word] = ("1" if first != "1" else "2") + words[word][1:]
    assert refusal(two, " ".join(words)) is Refusal.FORGED


@pytest.mark.parametrize(
    "header", ["", "v1", "v2 a b c d", "v1 " + "é" * 32 + " 1 " + "A" * 22 + " " + "A" * 43, "x" * 4096]
)
def test_what_is_no_signature_is_told_apart(pair, header):
    assert refusal(pair[1], header) is Refusal.UNSIGNED


@pytest.mark.parametrize("seconds", [SKEW_SECONDS + 0.1, -SKEW_SECONDS - 0.1])
def test_request_of_another_time_is_not_taken(pair, clock, seconds):
    one, two = pair
    header, _ = one.request(REQUEST)
    clock.now += seconds
    assert refusal(two, header) is Refusal.STALE


def test_request_can_be_repeated_at_no_time_in_which_it_would_be_good(pair, clock):
    """By a clock that is as far ahead as may be, it is good for twice as long."""
    one, two = pair
    clock.now += SKEW_SECONDS - 1
    header, _ = one.request(REQUEST)
    clock.now -= SKEW_SECONDS - 1
    two.check(header, REQUEST)
    for _ in range(4):
        assert refusal(two, header) is Refusal.REPLAYED
        two.check(one.request(REQUEST)[0], REQUEST)
        clock.now += SKEW_SECONDS / 2 - 1
    clock.now += SKEW_SECONDS
    assert refusal(two, header) is Refusal.STALE


def test_requests_that_are_remembered_have_an_end_and_old_ones_go_and_strangers_fill_nothing(pair, clock, monkeypatch):
    monkeypatch.setattr("edge.peers.signatures.MAX_NONCES", 3)
    one, two = pair
    for _ in range(2):
        for _ in range(3):
            assert refusal(two, "v1 " + "0" * 32 + " 1 " + "A" * 22 + " " + "A" * 43) is Refusal.FORGED
        for _ in range(3):
            two.check(one.request(REQUEST)[0], REQUEST)
        assert refusal(two, one.request(REQUEST)[0]) is Refusal.FULL
        clock.now += 2 * SKEW_SECONDS + 1


def test_answer_is_to_this_request_and_as_it_was_given(pair):
    one, two = pair
    header, nonce = one.request(REQUEST)
    asked = two.check(header, REQUEST)
    said = two.sign_response(asked, 200, b"yes")
    assert one.is_response(nonce, 200, b"yes", said)
    assert not one.is_response(nonce, 206, b"yes", said)
    assert not one.is_response(nonce, 200, b"no", said)
    assert not one.is_response("another", 200, b"yes", said)
    assert not one.is_response(nonce, 200, b"yes", "é")
    digest = two.sign_digest(asked, "0" * 64).decode()
    assert one.is_digest(nonce, digest[:64], digest[64:])
    assert not one.is_digest(nonce, "1" * 64, digest[64:])
    assert not one.is_response(nonce, 200, b"0" * 64, digest[64:])  # for one purpose each
