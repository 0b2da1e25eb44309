"""Sprig's functions against Sprig itself: every function with every few arguments, and the calls that are recorded.

The Go program is `gotemplate/` with `sprig/more.go`; the versions of the modules stand in `sprig/go.mod`.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.interop.go_templates import GO, MISSING, SETTINGS, SOURCES, Outcome, build, outcomes
from tests.unit.template.sprig_left_out import LEFT_OUT
from tink.golang.strconv import to_bytes
from tink.template.engine import render
from tink.template.errors import TemplateError
from tink.template.sprig import SPRIG

pytestmark = pytest.mark.skipif(GO is None, reason=MISSING)

RECORDED: dict[str, Any] = orjson.loads((Path(__file__).parents[1] / "unit" / "template" / "sprig.json").read_bytes())
DIFFERENCES: dict[str, str] = orjson.loads((SOURCES / "differences.json").read_bytes())["sprig"]
DATA: dict[str, Any] = RECORDED["data"]

_ARGUMENTS = """
.s .nil .l .m .w .t .i .f 0 3 -2 1.5 `` `a,b` `7` `1.2.3` `/dev/sda1/` `Two Words` `http://u:p@h:80/x?q#f` nil (list)
(dict) (list 1 2 2) (dict `a` (dict `b` 1))
"""
ARGUMENTS = [found[0] for found in re.finditer(r"`[^`]*`|\((?:[^()]|\([^()]*\))*\)|\S+", _ARGUMENTS)]
SLOW = {"derivePassword"}


def calls() -> Iterator[str]:
    """Each function with none and each one of the arguments, and with many pairs and triples of them."""
    rng = random.Random(20230222)
    pairs, triples = (list(itertools.product(ARGUMENTS, repeat=count)) for count in (2, 3))
    for name in sorted(set(SPRIG) - SLOW):
        yield name
        for argument in ARGUMENTS:
            yield f"{name} {argument}"
            yield f"{argument} | {name}"
        most = 9 if SPRIG[name].variadic is not None else len(SPRIG[name].parameters)
        for count, found in ((2, pairs), (3, triples)):
            if most >= count:
                yield from (" ".join([name, *arguments]) for arguments in rng.sample(found, 60))


def our_outcome(text: str) -> Outcome:
    try:
        return Outcome(to_bytes(render(text, DATA, "t")), "")
    except TemplateError as error:
        return Outcome(None, str(error))


def difference(call: str, our: Outcome, go: Outcome) -> str | None:
    """Which of the listed differences this one is."""
    words = set(re.findall(r"\w+", call))
    if words & {"keys", "values"} and our.output is not None and go.output is not None:
        return "keys of several" if sorted(our.output) == sorted(go.output) else None
    if words & {"b64dec", "b32dec"} and our.output is None:
        return "b64dec"
    if words & {"nospace", "initials"} and not call.isascii():
        return "bytes for characters"
    if words & {"duration", "durationRound", "typeOf", "typeIs", "typeIsLike", "deepEqual"}:
        return "one type of integers"
    return None


@pytest.fixture(scope="module")
def sprig(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = ("main.go", "tinkerbell.go", "sprig/more.go", "sprig/go.mod", "sprig/go.sum")
    directory = tmp_path_factory.mktemp("sprig")
    for name in names:
        (directory / Path(name).name).write_bytes((SOURCES / name).read_bytes())
    try:
        return build(directory, settings=SETTINGS)
    except subprocess.CalledProcessError as error:
        if re.search("dial tcp|no such host|lookup disabled|Forbidden|timeout", error.stderr):
            pytest.skip(f"the modules of Sprig are not on this machine and can't be fetched: {error.stderr[-200:]}")
        raise


def test_recorded_calls_are_what_sprig_says_today(sprig: Path) -> None:
    data = orjson.dumps(DATA)
    said = outcomes(sprig, ((f"{{{{{row[0]}}}}}", data) for row in RECORDED["rows"]))
    for (expression, output, *error), go in zip(RECORDED["rows"], said, strict=True):
        assert (go.output, go.error) == (output.encode() if output is not None else None, "".join(error)), expression


def test_every_function_of_sprig_is_there_or_left_out_for_a_reason(sprig: Path) -> None:
    done = subprocess.run([sprig, "names"], capture_output=True, check=True, env={**os.environ})
    assert set(orjson.loads(done.stdout)) == set(SPRIG) | set(LEFT_OUT)


def test_functions_give_and_fail_as_in_sprig(sprig: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = orjson.dumps(DATA)
    texts = [f"{{{{{call}}}}}" for call in dict.fromkeys(calls())]
    equal = failures = same_words = 0
    known = Counter[str]()
    new: list[str] = []
    for text, go in zip(texts, outcomes(sprig, ((text, data) for text in texts)), strict=True):
        our = our_outcome(text)
        if our.output == go.output:
            equal += 1
            failures += go.output is None
            same_words += our.error == go.error != ""
            continue
        found = difference(text, our, go)
        if found is not None:
            known[found] += 1
        else:
            new.append(f"{text}\n  ours: {our}\n  Go's: {go}")
    with capsys.disabled():
        print(f"\nas Sprig: {equal}/{len(texts)} = {equal / len(texts):.2%}; known differences: {dict(known)}")
        print(f"errors in the same words: {same_words}/{failures} = {same_words / failures:.1%}")
    assert set(known) <= set(DIFFERENCES)
    assert not new, f"{len(new)} new differences from Sprig:\n" + "\n".join(new[:40])
    assert equal >= 0.99 * len(texts)
