"""Reading YAML costs a small multiple of its length, checked by a grammar of everything that repeats."""

from __future__ import annotations

import gc
import math
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import orjson
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tink.api import yaml
from tink.api.yaml import YamlError, documents
from tink.convert.documents import read
from tink.convert.metal3 import network_data
from tink.kubeapi.apiserver.errors import StatusError
from tink.kubeapi.apiserver.media import APPLY_PATCH, decode, decode_patch

STEPS, STEPS_PER_BYTE = 2_000_000, 40
"""Maximum function calls, of Python and C. Aliases may repeat a short text up to a limit that does not depend on its
length: about 500,000 calls. Without that limit the bombs below take many millions.
"""
MEMORY, MEMORY_PER_BYTE = 128 << 20, 400


class TooDearError(BaseException):
    """Reading was stopped because it exceeded the allowed cost."""


@contextmanager
def counted(allowed: float = math.inf) -> Iterator[list[int]]:
    """Count the calls within the block. Raises TooDearError at more than `allowed`."""
    taken = [0]

    def count(*_: object) -> None:
        taken[0] += 1
        if taken[0] > allowed:
            raise TooDearError(f"more than {allowed} calls")

    sys.setprofile(count)
    try:
        yield taken
    finally:
        sys.setprofile(None)


@contextmanager
def bounded(length: int) -> Iterator[None]:
    """Fail if the block takes more calls or memory than a text of `length` bytes may cost."""
    tracemalloc.start()
    try:
        with counted(STEPS + STEPS_PER_BYTE * length):
            yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= MEMORY + MEMORY_PER_BYTE * length, f"{peak >> 20} MiB for {length} bytes"


def _leaf(kind: str, size: int) -> str:
    match kind:
        case "text":
            return "'" + "x" * size + "'"
        case "map":
            return "{" + ", ".join(f"k{index}: {index}" for index in range(size // 4 + 1)) + "}"
        case "list":
            return "[" + ", ".join(str(index) for index in range(size // 4 + 1)) + "]"
    return "{" * min(size, 90) + "a: b" + "}" * min(size, 90)


def _level(kind: str, below: str, fan: int) -> str:
    stars = ", ".join([f"*{below}"] * fan)
    match kind:
        case "merge":
            return f"{{<<: [{stars}]}}"
        case "merge-and-own":
            return f"{{<<: [{stars}], {below}x: *{below}}}"
        case "merge-each":
            return "{" + ", ".join(f"{below}{index}: {{<<: *{below}}}" for index in range(fan)) + "}"
        case "map":
            return "{" + ", ".join(f"{below}{index}: *{below}" for index in range(fan)) + "}"
    return f"[{stars}]"


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Yield texts of levels, each of which repeats the one below it, or of the constructs that
    libyaml itself repeats.
    """
    kind = draw(st.sampled_from(["levels"] * 8 + ["directives", "anchors", "many", "documents"]))
    size = draw(st.integers(1, 3000))
    if kind == "directives":
        return "".join(f"%TAG !a{index}! x\n" for index in range(size * 30)) + "--- a\n"
    if kind == "anchors":
        return "[" + ", ".join(f"&a{index} {{}}" for index in range(size)) + "]"
    if kind == "many":
        return "{" + ", ".join(f"? '{index}'" for index in range(size)) + "}"
    if kind == "documents":
        return "--- a\n" * size
    leaf = draw(st.sampled_from(["text", "map", "list", "deep"]))
    same = draw(st.sampled_from(["merge", "merge", "merge-and-own", "merge-each", "map", "list", "", ""]))
    levels = draw(st.integers(1, 12))
    fan = draw(st.integers(2, 40))
    lines = [f"a0: &a0 {_leaf(leaf, size)}"]
    for number in range(levels):
        how = same or draw(st.sampled_from(["merge", "merge-and-own", "merge-each", "map", "list"]))
        lines.append(f"a{number + 1}: &a{number + 1} {_level(how, f'a{number}', fan)}")
    return "\n".join(lines)


def _documents(text: str) -> None:
    for document in documents(text):
        orjson.dumps(document)


def _body(text: str) -> None:
    decode("application/yaml", text.encode(), strict=True)


def _patch(text: str) -> None:
    decode_patch(APPLY_PATCH, text.encode(), strict=True)


def _converted(text: str) -> None:
    list(read("in.yaml", text.encode()))


def _network_data(text: str) -> None:
    network_data.parsed(text)


READERS: list[Callable[[str], None]] = [_documents, _body, _patch, _converted, _network_data]


def assert_cost_is_bounded(reader: Callable[[str], None], text: str) -> None:
    """Read a text, valid or not. Raises TooDearError, AssertionError."""
    gc.collect()
    with bounded(len(text)):
        try:
            reader(text)
        except (YamlError, StatusError, ValueError) as error:
            assert len(str(error)) < 3000, "a refusal repeats nothing long"  # noqa: PT017


def _assert_texts_have_bounded_cost(reader: Callable[[str], None], examples: int) -> None:
    @settings(max_examples=examples, deadline=None, phases=(Phase.generate,))
    @given(texts())
    def search(text: str) -> None:
        assert_cost_is_bounded(reader, text)

    search()


@pytest.mark.parametrize("reader", [_body, _converted, _network_data])
def test_no_text_costs_more_than_a_multiple_of_its_length(reader: Callable[[str], None]) -> None:
    _assert_texts_have_bounded_cost(reader, 8)


@pytest.mark.soak
@pytest.mark.parametrize("reader", [_body, _converted, _network_data])
def test_no_text_of_very_many_costs_more_than_a_multiple_of_its_length(reader: Callable[[str], None]) -> None:
    _assert_texts_have_bounded_cost(reader, 200)


# --- what was found ---------------------------------------------------------------------------------------------------


DIRECTIVES = "".join(f"%TAG !a{index}! x\n" for index in range(150_000)) + "--- a\n"
FOUND = {
    # 488 bytes that took 64 s and 2.4 GB
    "merge keys": "a0: &a0 {k: v}\n"
    + "\n".join(f"a{index + 1}: &a{index + 1} {{<<: [{','.join([f'*a{index}'] * 9)}]}}" for index in range(9)),
    "a long scalar, repeated": "a: &a '" + "x" * 300_000 + "'\nb: [" + ",".join(["*a"] * 1500) + "]\n",
    "directives, each compared with each": DIRECTIVES,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("text", FOUND.values(), ids=FOUND)
def test_found_texts_cost_at_most_a_multiple_of_their_length(text: str, reader: Callable[[str], None]) -> None:
    assert_cost_is_bounded(reader, text)


def test_too_many_directives_are_refused() -> None:
    with pytest.raises(YamlError):
        list(documents(DIRECTIVES))


def test_depth_is_counted_through_aliases() -> None:
    lines = ["a0: &a0 " + "[" * 30 + "]" * 30]
    lines += [f"a{index + 1}: &a{index + 1} " + "[" * 30 + f"*a{index}" + "]" * 30 for index in range(3)]
    with pytest.raises(YamlError, match="nested deeper than 100 levels"):
        list(documents("\n".join(lines)))


def test_honest_repetition_is_read() -> None:
    """Return a rack of 200 machines that share most of their fields."""
    shared = "\n".join(f"  key{index}: {'value' * 4}" for index in range(60))
    text = f"base: &base\n{shared}\nmachines:\n" + "".join(f"- {{<<: *base, name: n{i}}}\n" for i in range(200))
    (found,) = documents(text)
    assert found["machines"][199] == {**found["base"], "name": "n199"}


@pytest.mark.parametrize("text", ["[" + "{?}," * 999 + "a]", "{" + ",".join(map(str, range(9))) + "}", "- a\n" * 99])
def test_what_stands_in_a_text_without_aliases_fits_the_budget(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml, "MAX_BYTES", 0)
    assert list(yaml.read(text))


def test_meanings_of_long_scalars_are_not_kept() -> None:
    """A large text, or a secret, would stay in memory as long as the process lives."""
    gc.collect()
    tracemalloc.start()
    try:
        for index in range(50):
            _converted(f"a: {'x' * 1_000_000}{index}\n")
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 10 << 20


def test_long_text_is_read_in_steps_proportional_to_its_length() -> None:
    def steps(count: int) -> int:
        text = "".join(f"- {{a{index}: {index}, b: [1, 2, 3]}}\n" for index in range(count))
        with counted() as taken:
            assert sum(len(found) for found in documents(text)) == count
        return taken[0]

    assert steps(20_000) < 11 * steps(2_000)
