"""Our Go templates against Go's own, over a generated corpus: the same output, the same failures, the same words.

A small Go program (`gotemplate/main.go`, standard library only) renders the same cases. Where we differ on purpose,
`KNOWN_DIFFERENCES` says how and why; any other difference fails the test. The first build on a machine compiles Go's
library, some ten seconds.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest

from tests.interop.go_templates import GO, MISSING, SOURCES, Outcome, build, outcomes
from tink.golang.strconv import to_bytes
from tink.template.engine import render
from tink.template.errors import TemplateError

WRITTEN: dict[str, list[str]] = orjson.loads((SOURCES / "templates.json").read_bytes())
"""Templates, numbers, strings and formats written by hand, by what they are about."""


DATA: dict[str, Any] = {
    "s": "abc",
    "digits": "42",
    "empty": "",
    "uni": "héllo, 世界",
    "special": "<a href=\"x\">'&'\n\t\\</a>",
    "i": 42,
    "zero": 0,
    "neg": -7,
    "big": 9007199254740993,
    "f": 2.5,
    "round": 3.0,
    "fbig": 1.5e21,
    "fsmall": 1.25e-7,
    "t": True,
    "fl": False,
    "nil": None,
    "l": [1, "two", 3.5, None, True],
    "ints": [3, 1, 2],
    "words": ["a", "b", "c"],
    "el": [],
    "m": {"b": 2, "a": "one", "c": {"d": "deep", "n": None}},
    "em": {},
    "nested": [{"name": "x", "n": 1}, {"name": "y", "n": 2}],
    "dev": "/dev/nvme0n1",
}
SCALARS = [".s", ".digits", ".empty", ".uni", ".i", ".zero", ".neg", ".f", ".round", ".t", ".fl", ".nil"]
VALUES = [*SCALARS, ".fbig", ".fsmall", ".l", ".ints", ".el", ".m", ".em", ".special"]
LITERALS = ['"abc"', "`raw`", "42", "-7", "2.5", "0x1F", "'a'", "true", "false", "nil", "1e3", "(index .uni 1)"]


class Case(NamedTuple):
    group: str
    text: str
    data: Any


class Difference(NamedTuple):
    reason: str
    recognise: Callable[[Case, Outcome, Outcome], bool]


# Where we render, or fail, otherwise than Go on purpose: (case, our outcome, Go's outcome) -> is it this one?
KNOWN_DIFFERENCES: dict[str, Difference] = {
    "address": Difference(
        "%p shows the address of a list or map in Go's memory; here it is a bad verb",
        lambda case, our, go: '"%p"' in case.text and go.output is not None and go.output.startswith(b"0x"),
    ),
    "slice by a field": Difference(
        "Go's slice, unlike its index, refuses an index that comes straight out of the data; we take it",
        lambda case, our, go: (
            our.output is not None
            and "error calling slice: cannot index slice/array with type interface {}" in go.error
        ),
    ),
}


def comparisons() -> Iterator[str]:
    for name, one, other in itertools.product(("eq", "ne", "lt", "le", "gt", "ge"), VALUES, [*SCALARS, ".l", ".m"]):
        yield f"{{{{{name} {one} {other}}}}}"
    for name, one, other in itertools.product(("eq", "lt", "ge"), SCALARS, LITERALS):
        yield f"{{{{{name} {one} {other}}}}}"
        yield f"{{{{{name} {other} {one}}}}}"
    yield from WRITTEN["comparison"]
    yield from (f"{{{{{name} {one} {other}}}}}" for name in ("and", "or") for one in VALUES for other in SCALARS)
    yield from (f"{{{{not {value}}}}}" for value in [*VALUES, *LITERALS])


def formats() -> Iterator[str]:
    verbs = "vdsqtxXobOcUeEfFgGTwpz%"
    for verb, value in itertools.product(verbs, [*VALUES, ".big"]):
        yield f'{{{{printf "%{verb}" {value}}}}}'
    for verb, flag, value in itertools.product("vdsqxXobeEfgGUct", WRITTEN["printf flags"], VALUES):
        yield f'{{{{printf "%{flag}{verb}" {value}}}}}'
    for text in WRITTEN["printf formats"]:
        for arguments in ("", ".i", ".i .neg", ".i .neg .s", ".f .i", ".i .f", ".s", ".nil"):
            yield f'{{{{printf "{text}" {arguments}}}}}'
    yield from WRITTEN["printf"]


def printing() -> Iterator[str]:
    yield from (f"{{{{{value}}}}}" for value in [*VALUES, *LITERALS, "."])
    functions = ("print", "println", "html", "js", "urlquery")
    for name, value in itertools.product(functions, [*VALUES, *LITERALS]):
        yield f"{{{{{name} {value}}}}}"
        yield f"{{{{{value} | {name}}}}}"
    for name, one, other in itertools.product(functions, SCALARS, SCALARS):
        yield f"{{{{{name} {one} {other} {one}}}}}"


def parts() -> Iterator[str]:
    indexes = ["0", "1", "2", "5", "-1", '"a"', '"zz"', "nil", ".nil", "1.0", "1.5", "true", ".s", ".zero", "'a'"]
    for value, index in itertools.product(
        [".l", ".s", ".uni", ".m", ".em", ".el", ".i", ".nil", ".nested", ".f", "nil"], indexes
    ):
        yield f"{{{{index {value} {index}}}}}"
        yield f"{{{{slice {value} {index}}}}}"
        yield f"{{{{index {value} {index} {index}}}}}"
    for value, one, other in itertools.product([".l", ".s", ".uni", ".el"], ["0", "1", "3", "9"], ["0", "2", "3", "4"]):
        yield f"{{{{slice {value} {one} {other}}}}}"
    yield from (f"{{{{len {value}}}}}" for value in [*VALUES, *LITERALS])
    yield from WRITTEN["index, slice, len"]


def fields() -> Iterator[str]:
    for base, name in itertools.product(
        [*VALUES, ".nested", ".missing", "$.s", "$.m", "(.m)", "(.nil)", "(.s)", "(print 1)"], "abcx"
    ):
        yield f"{{{{{base}.{name}}}}}"
        yield f"{{{{{base}.{name}.d}}}}"
    yield from WRITTEN["fields"]


def control() -> Iterator[str]:
    for value in [*VALUES, *LITERALS]:
        yield f"{{{{if {value}}}}}yes{{{{else}}}}no{{{{end}}}}"
        yield f"{{{{with {value}}}}}[{{{{.}}}}]{{{{else}}}}no{{{{end}}}}"
        yield f"{{{{range {value}}}}}[{{{{.}}}}]{{{{else}}}}none{{{{end}}}}"
        yield f"{{{{range $i, $v := {value}}}}}[{{{{$i}}}}={{{{$v}}}}]{{{{else}}}}none{{{{end}}}}"
        yield f"{{{{range $v := {value}}}}}[{{{{$v}}}}]{{{{else}}}}{{{{$v}}}}{{{{end}}}}"
        yield f"{{{{$x := {value}}}}}{{{{with $y := $x}}}}{{{{$y}}}}{{{{$x}}}}{{{{end}}}}"
        yield f"{{{{if .fl}}}}1{{{{else if {value}}}}}2{{{{else}}}}3{{{{end}}}}"
        yield f'{{{{define "d"}}}}({{{{.}}}}){{{{end}}}}{{{{template "d" {value}}}}}'
        yield f'{{{{block "e" {value}}}}}<{{{{.}}}}>{{{{end}}}}'
    yield from WRITTEN["control flow"]


def syntax() -> Iterator[str]:
    for before, after in itertools.product(["", " ", "\n", "x \t\n", "  a"], ["", " ", "\n\n", " \tz", "b  "]):
        for inner in WRITTEN["trims"]:
            yield before + inner + after
    for number in WRITTEN["numbers"]:
        yield f"{{{{{number}}}}}"
        yield f'{{{{printf "%v %T" {number} {number}}}}}'
    for literal in WRITTEN["strings"]:
        yield f"{{{{{literal}}}}}"
        yield f'{{{{printf "%q" {literal}}}}}'
    yield from WRITTEN["syntax"]


def composed(count: int) -> Iterator[str]:
    """Random templates out of the whole grammar."""
    rng = random.Random(20230222)

    def operand(depth: int) -> str:
        choice = rng.random()
        if depth > 2 or choice < 0.5:
            return rng.choice([*VALUES, ".m.a", ".m.c.d", "$.s", "$", "."])
        if choice < 0.75:
            return rng.choice(LITERALS)
        return f"({pipe(depth + 1)})"

    def pipe(depth: int) -> str:
        stages = [command(depth, first=stage == 0) for stage in range(rng.choice([1, 1, 1, 2, 3]))]
        return " | ".join(stages)

    def command(depth: int, *, first: bool) -> str:
        if first and rng.random() < 0.4:
            return operand(depth)
        name = rng.choice(WRITTEN["commands"])
        arguments = [operand(depth) for _ in range(rng.choice([0, 1, 1, 2]))]
        return " ".join([name, *arguments])

    def body(depth: int) -> str:
        return "".join(statement(depth) for _ in range(rng.choice([1, 2, 3])))

    def statement(depth: int) -> str:
        left, right = rng.choice(["{{", "{{", "{{- "]), rng.choice(["}}", "}}", " -}}"])
        choice = rng.random()
        if depth > 2 or choice < 0.35:
            return f"{left}{pipe(0)}{right}"
        if choice < 0.55:
            return rng.choice(["text ", "\n", "  x  ", "a"])
        if choice < 0.65:
            return f"{{{{$v{depth} := {pipe(1)}}}}}{{{{$v{depth}}}}}"
        keyword = rng.choice(["if", "with", "range", "range $i, $e :="])
        otherwise = f"{{{{else}}}}{body(depth + 1)}" if rng.random() < 0.5 else ""
        return f"{left}{keyword} {pipe(1)}{right}{body(depth + 1)}{otherwise}{{{{end}}}}"

    for _ in range(count):
        yield body(0)


def corpus() -> list[Case]:
    groups = {
        "comparison": comparisons(),
        "printf": formats(),
        "print": printing(),
        "index, slice, len": parts(),
        "fields": fields(),
        "control flow": control(),
        "syntax": syntax(),
        "composed": composed(2000),
        "realistic": iter(WRITTEN["realistic"]),
    }
    cases = [Case(group, text, DATA) for group, texts in groups.items() for text in dict.fromkeys(texts)]
    roots = [None, 7, "text", [1, 2], True, 1.5]
    cases += [Case("roots", text, root) for text, root in itertools.product(WRITTEN["roots"], roots)]
    return cases


def our_outcome(case: Case) -> Outcome:
    try:
        return Outcome(to_bytes(render(case.text, case.data, "t")), "")
    except TemplateError as error:
        return Outcome(None, str(error))


@pytest.mark.skipif(GO is None, reason=MISSING)
def test_templates_render_and_fail_as_in_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = corpus()
    program = build(tmp_path, *(SOURCES / name for name in ("main.go", "tinkerbell.go", "more.go")))
    # Most cases share their data, so it is serialised once.
    shared = orjson.dumps(DATA)
    theirs = outcomes(
        program, ((case.text, shared if case.data is DATA else orjson.dumps(case.data)) for case in cases)
    )
    equal, total, known = Counter[str](), Counter[str](), Counter[str]()
    failures = same_words = 0
    new: list[str] = []
    for case, go in zip(cases, theirs, strict=True):
        our = our_outcome(case)
        total[case.group] += 1
        if our.output == go.output:
            equal[case.group] += 1
            failures += bool(go.error)
            same_words += our.error == go.error != ""
            continue
        found = [name for name, known_one in KNOWN_DIFFERENCES.items() if known_one.recognise(case, our, go)]
        known.update(found)
        if not found:
            new.append(f"[{case.group}] {case.text!r}\n  ours: {our}\n  Go's: {go}")
    with capsys.disabled():
        groups = ", ".join(f"{group} {equal[group]}/{count}" for group, count in total.items())
        print(f"\n{groups}\nas Go: {equal.total()}/{total.total()} = {equal.total() / total.total():.2%}")
        print(f"errors in the same words: {same_words}/{failures} = {same_words / failures:.1%}")
        print(f"known differences: {dict(known)}")
    assert not new, f"{len(new)} new differences from Go:\n" + "\n".join(new[:20])
    assert set(known) == set(KNOWN_DIFFERENCES), "a known difference does not occur any more: take it from the table"
    assert equal.total() >= 0.99 * total.total()
    assert same_words >= 0.97 * failures
