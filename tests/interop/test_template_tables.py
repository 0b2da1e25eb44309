"""Go's own tests of its templates, run on ours: the tables come out of the sources of the Go that is here.

Each row is executed by Go, too, with JSON-like data in the place of Go's structs, methods and channels: what Go makes
of it, we must make of it, to the letter of the error. The rows that mean the same with such data (`EXPRESSIBLE`) must
give what the table says. Differences on purpose stand in `gotemplate/differences.json`, with their reasons.
"""

from __future__ import annotations

import base64
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.interop.go_templates import GO, MISSING, SOURCES, tables
from tink.golang import fmt
from tink.golang.strconv import to_bytes
from tink.golang.values import Value, type_name
from tink.template.compile import compile_text
from tink.template.errors import TemplateError
from tink.template.functions import FUNCTIONS
from tink.template.lexer import Kind, lex
from tink.template.parser import parse
from tink.template.signatures import ANY, INT, STRING, Function, Functions, table

pytestmark = pytest.mark.skipif(GO is None, reason=MISSING)

DIFFERENCES: dict[str, str] = orjson.loads((SOURCES / "differences.json").read_bytes())["tables"]
EXPRESSIBLE = {"exec": 250, "multi": 11, "multi parse": 5, "cmp": 110}
"""How many rows of each table mean the same with JSON-like data, at least; newer versions of Go have more."""
ROWS = {"lex": 40, "lex positions": 6, "parse": 100, "errors": 30, "is empty": 8, "number": 50}

_GOES = """
and call eq ge gt html index js le len lt ne not or print printf println slice urlquery
"""
BUILTINS: Functions = {name: FUNCTIONS[name] for name in _GOES.split()}


def _make_map(*pairs: str) -> Value:
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


# The functions that Go's tests give their templates, as far as their arguments are JSON-like.
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


def test_the_tables_of_go_give_here_what_they_give_in_go(
    go_tables: tuple[list[dict[str, Any]], list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
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
        wanted = row["want"].encode() if row["want_ok"] else None
        total[name] += 1
        expressible[name] += go == wanted
        as_table[name] += ours == go == wanted
        if (ours, error) == (go, row["error"]):
            equal[name] += 1
        else:
            different[f"{name}: {row['name']}"] = (
                f"{row['text']!r}\n  ours: {ours!r} {error}\n  Go's: {go!r} {row['error']}"
            )
    with capsys.disabled():
        shown = ", ".join(f"{name} {equal[name]}/{count}" for name, count in total.items())
        print(f"\nGo's tables, outputs and errors: {shown}; as the table says, where JSON can: {dict(as_table)}")
    new = [f"{name}: {how}" for name, how in different.items() if name not in DIFFERENCES]
    assert not new, f"{len(new)} new differences from Go:\n" + "\n".join(new[:20])
    assert set(DIFFERENCES) <= set(different), "a listed difference does not occur any more"
    assert equal.total() >= 0.99 * total.total()
    assert as_table == expressible
    assert all(expressible[name] >= least for name, least in EXPRESSIBLE.items()), expressible


KINDS = {
    Kind.ASSIGN: "=",
    Kind.DECLARE: ":=",
    Kind.LEFT_DELIM: "left delim",
    Kind.RIGHT_DELIM: "right delim",
    Kind.LEFT_PAREN: "(",
    Kind.RIGHT_PAREN: ")",
    Kind.RAW_STRING: "raw string",
    Kind.CHAR_CONSTANT: "charconst",
    Kind.DOT: ".",
    Kind.EOF: "EOF",
}


def tokens(text: str) -> list[list[str]]:
    found = []
    for token in lex(text):
        kind = KINDS.get(token.kind, token.kind.name.lower().replace("_", " "))
        found.append([kind, "" if token.kind is Kind.EOF else token.text])
        if token.kind is Kind.ERROR:
            break
    return found


def test_the_lexer_and_the_parser_say_what_those_of_go_say(
    go_tables: tuple[list[dict[str, Any]], list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
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
    with capsys.disabled():
        print(f"\nGo's tables, tokens and syntax errors: {total.total() - len(wrong)}/{total.total()} {dict(total)}")
    assert not wrong, "\n".join(wrong[:20])
    assert all(total[name] >= least for name, least in ROWS.items()), total


def test_every_listed_difference_has_its_reason() -> None:
    listed = orjson.loads(Path(SOURCES / "differences.json").read_bytes())
    assert all(reason for group in listed.values() for reason in group.values())
