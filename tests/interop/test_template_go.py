"""Our Go templates against Go's own and Sprig's: the same output, failures and error messages.

- A small Go program (`gotemplate/main.go`) renders the same cases, of a generated corpus. With Sprig's functions, it is
  `gotemplate/` with `sprig/more.go`; `sprig/go.mod` has the versions of the modules. The first build on a machine
  compiles Go's library, which takes some ten seconds.
- Go's own tests are read from the sources of the installed Go. Go executes each row, too, with JSON-like data in place
  of Go's structs, methods and channels; our result must equal Go's, including the error message. Rows with the same
  meaning for such data (`EXPRESSIBLE`) must give the table's result.

`KNOWN_DIFFERENCES` and `gotemplate/differences.json` describe the intended differences; any other difference fails the
test.
"""

from __future__ import annotations

import base64
import itertools
import os
import random
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest

from tests.interop.go_templates import GO, MISSING, OFFLINE, PACKAGE, SETTINGS, SOURCES, Outcome, build
from tests.unit.template.sprig_left_out import LEFT_OUT
from tink.golang import fmt
from tink.golang.strconv import to_bytes
from tink.golang.values import Value, type_name
from tink.template.compile import compile_text, render
from tink.template.errors import TemplateError
from tink.template.functions import FUNCTIONS
from tink.template.lexer import TokenKind, lex
from tink.template.parser import parse
from tink.template.signatures import ANY, INT, STRING, Function, Functions, table
from tink.template.sprig import SPRIG

pytestmark = pytest.mark.skipif(GO is None, reason=MISSING)
RECORDED_DIFFERENCES: dict[str, dict[str, str]] = orjson.loads((SOURCES / "differences.json").read_bytes())


def outcomes(program: Path, cases: Iterable[tuple[str, bytes]]) -> list[Outcome]:
    """Run the Go program on templates with their data as JSON; return its results."""
    lines = [b'{"text":%b,"data":%b}' % (orjson.dumps(text), data) for text, data in cases]
    done = subprocess.run([program], input=b"\n".join(lines) + b"\n", capture_output=True, check=True)
    results = [orjson.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(lines)
    decoded = (base64.b64decode(each["output"] or "") if each["ok"] else None for each in results)
    return [Outcome(output, each["error"]) for output, each in zip(decoded, results, strict=True)]


def our_outcome(text: str, data: Any) -> Outcome:
    try:
        return Outcome(to_bytes(render(text, data, "t")), "")
    except TemplateError as error:
        return Outcome(None, str(error))


class Comparison:
    """Counts equal results, and collects differences that are not listed."""

    def __init__(self) -> None:
        self.equal = self.total = self.failures = self.same_words = 0
        self.known: set[str] = set()
        self.new: list[str] = []

    def add(self, text: str, our: Outcome, go: Outcome, known: Callable[[], Iterable[str]]) -> None:
        """Compare two outcomes. `known` returns the names of the listed differences that match."""
        self.total += 1
        if our.output == go.output:
            self.equal += 1
            self.failures += go.output is None
            self.same_words += our.error == go.error != ""
            return
        names = set(known())
        self.known |= names
        if not names:
            self.new.append(f"{text!r}\n  ours: {our}\n  Go's: {go}")

    def check(self) -> None:
        assert not self.new, f"{len(self.new)} new differences from Go:\n" + "\n".join(self.new[:40])
        assert self.equal >= 0.99 * self.total


def tables(directory: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Read the tables of Go's own tests from its sources: of text/template, and of its parser."""
    assert GO is not None
    root = subprocess.run([GO, "env", "GOROOT"], capture_output=True, text=True, check=True).stdout.strip()
    package = Path(root) / "src" / PACKAGE
    overlay = {
        str(package / "tables_test.go"): str(SOURCES / "exec_tables.go"),
        str(package / "parse" / "tables_test.go"): str(SOURCES / "parse_tables.go"),
    }
    (directory / "overlay.json").write_bytes(orjson.dumps({"Replace": overlay}))
    files = {"TABLES": directory / "tables", "PARSE_TABLES": directory / "parse_tables"}
    command = [GO, "test", "-overlay", "overlay.json", "-vet=off", "-count=1", "-run", "TestGive"]
    subprocess.run(
        [*command, PACKAGE, f"{PACKAGE}/parse"],
        cwd=directory,
        env={**os.environ, **OFFLINE, "GOFLAGS": "", **{name: str(path) for name, path in files.items()}},
        check=True,
        capture_output=True,
        text=True,
    )
    executed, parsed = ([orjson.loads(line) for line in path.read_bytes().splitlines()] for path in files.values())
    return executed, parsed


# --- a generated corpus -----------------------------------------------------------------------------------------------

WRITTEN: dict[str, list[str]] = orjson.loads((SOURCES / "templates.json").read_bytes())
"""Templates, numbers, strings and formats written by hand, by subject."""


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
    "dev": "/dev/nvme0n1",
    "l": [1, "two", 3.5, None, True],
    "ints": [3, 1, 2],
    "words": ["a", "b", "c"],
    "el": [],
    "m": {"b": 2, "a": "one", "c": {"d": "deep", "n": None}},
    "em": {},
    "nested": [{"name": "x", "n": 1}, {"name": "y", "n": 2}],
}
SCALARS = [".s", ".digits", ".empty", ".uni", ".i", ".zero", ".neg", ".f", ".round", ".t", ".fl", ".nil"]
VALUES = [*SCALARS, ".fbig", ".fsmall", ".l", ".ints", ".el", ".m", ".em", ".special"]
LITERALS = ['"abc"', "`raw`", "42", "-7", "2.5", "0x1F", "'a'", "true", "false", "nil", "1e3", "(index .uni 1)"]


class Case(NamedTuple):
    text: str
    data: Any


class Difference(NamedTuple):
    reason: str
    recognise: Callable[[Case, Outcome, Outcome], bool]


# Intended differences from Go's results and errors: (case, our outcome, Go's outcome) -> True if it is this one.
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


def printf_templates() -> Iterator[str]:
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
    """Generate random templates from the whole grammar."""
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
    generators = [comparisons(), formats(), printf_templates(), parts(), fields(), control(), syntax(), composed(2000)]
    texts = dict.fromkeys(itertools.chain(*generators, WRITTEN["realistic"]))
    roots = itertools.product(WRITTEN["roots"], [None, 7, "text", [1, 2], True, 1.5])
    return [*(Case(text, DATA) for text in texts), *(Case(text, root) for text, root in roots)]


def test_templates_render_and_fail_as_in_go(tmp_path: Path) -> None:
    cases = corpus()
    program = build(tmp_path, *(SOURCES / name for name in ("main.go", "tinkerbell.go", "more.go")))
    # Most cases share their data, so it is serialised once.
    shared = orjson.dumps(DATA)
    theirs = outcomes(
        program, ((each.text, shared if each.data is DATA else orjson.dumps(each.data)) for each in cases)
    )
    compared = Comparison()
    for case, go in zip(cases, theirs, strict=True):
        our = our_outcome(case.text, case.data)

        def known(case: Case = case, our: Outcome = our, go: Outcome = go) -> Iterable[str]:
            return (name for name, listed in KNOWN_DIFFERENCES.items() if listed.recognise(case, our, go))

        compared.add(case.text, our, go, known)
    compared.check()
    assert compared.known == set(KNOWN_DIFFERENCES), "a known difference is no longer one: take it from the table"
    assert compared.same_words >= 0.97 * compared.failures


# --- Sprig ------------------------------------------------------------------------------------------------------------

RECORDED: dict[str, Any] = orjson.loads((Path(__file__).parents[1] / "unit" / "template" / "sprig.json").read_bytes())
SPRIGS_DATA: dict[str, Any] = RECORDED["data"]

_ARGUMENTS = """
.s .nil .l .m .w .t .i .f 0 3 -2 1.5 `` `a,b` `7` `1.2.3` `/dev/sda1/` `Two Words` `http://u:p@h:80/x?q#f` nil (list)
(dict) (list 1 2 2) (dict `a` (dict `b` 1))
"""
ARGUMENTS = [found[0] for found in re.finditer(r"`[^`]*`|\((?:[^()]|\([^()]*\))*\)|\S+", _ARGUMENTS)]
SLOW = {"derivePassword"}


def calls() -> Iterator[str]:
    """Generate calls of each function without an argument, with each one, and with many pairs and triples."""
    rng = random.Random(20230222)
    pairs, triples = (list(itertools.product(ARGUMENTS, repeat=count)) for count in (2, 3))
    for name in sorted(set(SPRIG) - SLOW):
        yield name
        for argument in ARGUMENTS:
            yield f"{name} {argument}"
            yield f"{argument} | {name}"
        most = 9 if SPRIG[name].variadic is not None else len(SPRIG[name].parameters)
        for count, combinations in ((2, pairs), (3, triples)):
            if most >= count:
                yield from (" ".join([name, *arguments]) for arguments in rng.sample(combinations, 60))


def difference(call: str, our: Outcome, go: Outcome) -> list[str]:
    """Return the names of the listed differences that match."""
    words = set(re.findall(r"\w+", call))
    if words & {"keys", "values"} and our.output is not None and go.output is not None:
        return ["keys of several"] if sorted(our.output) == sorted(go.output) else []
    if words & {"b64dec", "b32dec"} and our.output is None:
        return ["b64dec"]
    if words & {"nospace", "initials"} and not call.isascii():
        return ["bytes for characters"]
    if words & {"duration", "durationRound", "typeOf", "typeIs", "typeIsLike", "deepEqual"}:
        return ["one type of integers"]
    return []


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


def test_recorded_calls_match_sprig(sprig: Path) -> None:
    data = orjson.dumps(SPRIGS_DATA)
    results = outcomes(sprig, ((f"{{{{{row[0]}}}}}", data) for row in RECORDED["rows"]))
    for (expression, output, *error), go in zip(RECORDED["rows"], results, strict=True):
        assert (go.output, go.error) == (output.encode() if output is not None else None, "".join(error)), expression


def test_every_function_of_sprig_exists_or_is_left_out_for_a_reason(sprig: Path) -> None:
    done = subprocess.run([sprig, "names"], capture_output=True, check=True, env={**os.environ})
    assert set(orjson.loads(done.stdout)) == set(SPRIG) | set(LEFT_OUT)


def test_functions_return_and_fail_as_in_sprig(sprig: Path) -> None:
    data = orjson.dumps(SPRIGS_DATA)
    texts = [f"{{{{{call}}}}}" for call in dict.fromkeys(calls())]
    compared = Comparison()
    for text, go in zip(texts, outcomes(sprig, ((text, data) for text in texts)), strict=True):
        our = our_outcome(text, SPRIGS_DATA)
        compared.add(text, our, go, lambda text=text, our=our, go=go: difference(text, our, go))  # type: ignore[misc]
    compared.check()
    assert compared.known <= set(RECORDED_DIFFERENCES["sprig"])


# --- Go's own tests ---------------------------------------------------------------------------------------------------

EXPRESSIBLE = {"exec": 250, "multi": 11, "multi parse": 5, "cmp": 110}
"""Minimum number of rows of each table with the same meaning for JSON-like data; newer versions of Go have more."""
ROWS = {"lex": 40, "lex positions": 6, "parse": 100, "errors": 30, "is empty": 8, "number": 50}

_GOES = """
and call eq ge gt html index js le len lt ne not or print printf println slice urlquery
"""
BUILTINS: Functions = {name: FUNCTIONS[name] for name in _GOES.split()}


def _make_map(*pairs: str) -> Value:
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


# The functions that Go's tests define, if their arguments are JSON-like.
OF_THE_TESTS: Functions = table(
    Function("add", lambda *numbers: sum(numbers), (), INT),
    Function("dddArg", lambda first, *more: fmt.sprintln([first, list(more)]), (INT,), STRING),
    Function("echo", lambda value: value, (ANY,)),
    Function("makemap", _make_map, (), STRING),
    Function("mapOfThree", lambda: {"three": 3}),
    Function("oneArg", lambda text: f"oneArg={text}", (STRING,)),
    Function("returnInt", lambda: 7),
    Function("twoArgs", lambda one, other: f"twoArgs={one}{other}", (STRING, STRING)),
    Function("typeOf", type_name, (ANY,)),
    Function("valueString", lambda text: "value is ignored", (STRING,)),
    Function("zeroArgs", lambda: "zeroArgs"),
)


@pytest.fixture(scope="module")
def go_tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    return tables(tmp_path_factory.mktemp("tables"))


def test_the_test_tables_of_go_have_the_same_results(
    go_tables: tuple[list[dict[str, Any]], list[dict[str, Any]]],
) -> None:
    functions = {**BUILTINS, **OF_THE_TESTS}
    total, equal, expressible, as_table = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    different: dict[str, str] = {}
    for row in go_tables[0]:
        name = row["table"]
        try:
            ours, error = to_bytes(compile_text(row["text"], functions, "t").render(row["data"], "t")), ""
        except TemplateError as failure:
            ours, error = None, str(failure)
        go = base64.b64decode(row["output"] or "") if row["ok"] else None
        expected = row["want"].encode() if row["want_ok"] else None
        total[name] += 1
        expressible[name] += go == expected
        as_table[name] += ours == go == expected
        if (ours, error) == (go, row["error"]):
            equal[name] += 1
        else:
            different[f"{name}: {row['name']}"] = (
                f"{row['text']!r}\n  ours: {ours!r} {error}\n  Go's: {go!r} {row['error']}"
            )
    new = [f"{name}: {how}" for name, how in different.items() if name not in RECORDED_DIFFERENCES["tables"]]
    assert not new, f"{len(new)} new differences from Go:\n" + "\n".join(new[:20])
    assert set(RECORDED_DIFFERENCES["tables"]) <= set(different), "a listed difference does not occur any more"
    assert equal.total() >= 0.99 * total.total()
    assert as_table == expressible
    assert all(expressible[name] >= least for name, least in EXPRESSIBLE.items()), expressible


# The names in Go's tests, if they differ.
KINDS = {TokenKind.ASSIGN: "=", TokenKind.DECLARE: ":=", TokenKind.LEFT_PAREN: "(", TokenKind.RIGHT_PAREN: ")"}
KINDS |= {TokenKind.CHAR_CONSTANT: "charconst", TokenKind.DOT: ".", TokenKind.EOF: "EOF"}


def tokens(text: str) -> list[list[str]]:
    token_list = []
    for token in lex(text):
        kind = KINDS.get(token.kind, token.kind.name.lower().replace("_", " "))
        token_list.append([kind, "" if token.kind is TokenKind.EOF else token.text])
        if token.kind is TokenKind.ERROR:
            break
    return token_list


def test_lexer_and_parser_match_those_of_go(
    go_tables: tuple[list[dict[str, Any]], list[dict[str, Any]]],
) -> None:
    functions = {**BUILTINS, "contains": FUNCTIONS["contains"]}
    total = Counter[str]()
    wrong = []
    for row in go_tables[1]:
        total[row["table"]] += 1
        try:
            parse(row["text"], functions, "t")
            error = ""
        except TemplateError as failure:
            error = str(failure)
        if (found := tokens(row["text"])) != row["tokens"]:
            wrong.append(f"{row['table']}: {row['text']!r}\n  ours: {found}\n  Go's: {row['tokens']}")
        if error != row["error"]:
            wrong.append(f"{row['table']}: {row['text']!r}\n  ours: {error}\n  Go's: {row['error']}")
    assert not wrong, "\n".join(wrong[:20])
    assert all(total[name] >= least for name, least in ROWS.items()), total


def test_every_listed_difference_has_its_reason() -> None:
    assert all(reason for group in RECORDED_DIFFERENCES.values() for reason in group.values())
