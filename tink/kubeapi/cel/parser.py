"""The parser: turns the text of an expression into a syntax tree.

It consists of the lexer, the values of literals, the expansion of macros, and a parser by precedence climbing. The
grammar is CEL's (cel-spec, doc/langdef.md) with the options that Kubernetes 1.36 sets: optional syntax (`?.`, `[?]`,
`{?k: v}`) is on, backquoted identifiers are off. The lexer reports and skips characters that are not part of a token,
so that one report contains all of them; the parser stops at its first syntax error.

Macros become plain syntax before the type check: `has`, the loops over lists and maps with one or two variables,
`optMap`, `sortBy`. Their expansion shows in error texts and in costs, so it is the same as Kubernetes'.
"""

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from tink.kubeapi.cel.errors import CelError, Issue, report
from tink.kubeapi.cel.tree import (
    Call,
    Comprehension,
    Expr,
    Ident,
    ListNode,
    Literal,
    MapEntry,
    MapNode,
    Select,
    StructNode,
)
from tink.kubeapi.cel.types import KEYWORDS
from tink.kubeapi.cel.values import MAX_INT, MAX_UINT, MIN_INT, UInt

T = TypeVar("T")

MAX_SOURCE = 100_000
"""Maximum length of an expression in code points."""
MAX_DEPTH = 250
"""Maximum nesting of expressions. Chains of one operator count as well."""
_MAX_COPIED = 5_000
"""Maximum number of nodes that the copies of macro targets add to one expression. Nested optMap doubles its target."""


# Tokens

_WORDS = frozenset(("in", "true", "false", "null"))
_ESCAPE = r"""\\(?:[abfnrtv"'\\?`]|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2})"""


def _quoted(mark: str) -> str:
    """Return the pattern of strings in one kind of quotes: in three of them, or in one of them and on one line."""
    return rf"""
        [bB]?[rR] (?: {mark}{{3}} .*? {mark}{{3}} | {mark} [^{mark}\n\r]* {mark} )
        | [bB]? (?: {mark}{{3}} (?:{_ESCAPE}|[^\\])*? {mark}{{3}} | {mark} (?:{_ESCAPE}|[^\\{mark}\n\r])*+ {mark} )"""


def _unterminated(mark: str) -> str:
    """Return the pattern of a string without its end: up to the first wrong character, as ANTLR reports it."""
    return rf"[bB]?[rR]{mark}[^{mark}\n\r]*.? | [bB]?{mark}(?:{_ESCAPE}|[^\\{mark}\n\r])*+ (?:\\.?|.)?"


_TOKEN = re.compile(
    rf"""
    (?P<SPACE> [\t\x20\r\n\f]+ | //[^\n]* )
    | (?P<IDENT> (?![bB]?[rR]?['"]) [A-Za-z_][A-Za-z0-9_]* )
    | (?P<UINT> (?:0x[0-9a-fA-F]+|[0-9]+)[uU] )
    | (?P<FLOAT> [0-9]*\.[0-9]+(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+ )
    | (?P<INT> 0x[0-9a-fA-F]+ | [0-9]+ )
    | (?P<SYMBOL> [=!<>]= | && | \|\| | [\[\]{{}}().,\-!?:+*/%<>] )
    | (?P<STRING> {_quoted("'")} | {_quoted('"')} )
    | (?P<ESC_IDENT> `[A-Za-z0-9_.\-/\x20]+` )
    | (?P<WRONG_TEXT> {_unterminated("'")} | {_unterminated('"')} | `[A-Za-z0-9_.\-/\x20]*.? )
    | (?P<WRONG> [=&|].? | . )  # these three begin an operator: the error contains the character after them as well
    """,
    re.DOTALL | re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class _Token:
    """A token. `kind` is the symbol or word itself, or INT, UINT, FLOAT, STRING, BYTES, IDENT, ESC_IDENT, EOF."""

    kind: str
    text: str
    offset: int


def _tokens(source: str) -> tuple[list[_Token], list[Issue]]:
    """Return all tokens, with EOF at the end, and the errors."""
    found: list[_Token] = []
    issues: list[Issue] = []
    for match in _TOKEN.finditer(source):
        kind, text = match.lastgroup or "", match[0]
        if kind in ("WRONG", "WRONG_TEXT"):
            shown = text.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
            issues.append(Issue(match.start(), f"Syntax error: token recognition error at: '{shown}'"))
        elif kind != "SPACE":
            if kind == "SYMBOL" or text in _WORDS:
                kind = text
            elif kind == "STRING" and text[0] in "bB":
                kind = "BYTES"
            found.append(_Token(kind, text, match.start()))
    found.append(_Token("EOF", "<EOF>", len(source)))
    return found, issues


# Values of literals

_ESCAPED = re.compile(rf"({_ESCAPE})")
_SIMPLE = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92, "'": 39, '"': 34, "`": 96, "?": 63}
_KINDS = {"INT": "int", "UINT": "uint", "FLOAT": "double", "STRING": "string", "BYTES": "bytes"}


def _number(kind: str, text: str) -> int | float:
    """Return the value of a number. Raises ValueError with Kubernetes' message if it does not fit into 64 bits."""
    if kind == "FLOAT":
        if math.isfinite(value := float(text)):
            return value
    elif len(digits := text.rstrip("uU")) <= 40 + digits.startswith("-"):
        whole = int(digits, 16 if "x" in digits else 10)
        if kind == "UINT" and whole <= MAX_UINT:
            return UInt(whole)
        if kind == "INT" and MIN_INT <= whole <= MAX_INT:
            return whole
    raise ValueError(f"invalid {_KINDS[kind]} literal")


def _text(kind: str, token: str) -> str | bytes:
    """Return the value of a string or bytes token. Raises ValueError for an escape that this kind does not have."""
    quoted = token.lstrip("bBrR")
    raw = "r" in token[: -len(quoted)].lower()
    width = 3 if len(quoted) >= 6 and quoted[:3] in ("'''", '"""') else 1
    body = quoted[width:-width].replace("\r\n", "\n").replace("\r", "\n")
    pieces = [body] if raw else _ESCAPED.split(body)  # each second piece is an escape
    if kind == "BYTES":
        pairs = zip(pieces, itertools.cycle((False, True)))
        return b"".join(_byte(piece) if escape else piece.encode("utf-8", "surrogatepass") for piece, escape in pairs)
    pieces[1::2] = map(_character, pieces[1::2])
    return "".join(pieces)


def _code(escape: str) -> int:
    letter = escape[1]
    return _SIMPLE[letter] if letter in _SIMPLE else int(escape[1:], 8) if letter.isdigit() else int(escape[2:], 16)


def _character(escape: str) -> str:
    code = _code(escape)
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise ValueError("invalid unicode code point")
    return chr(code)


def _byte(escape: str) -> bytes:
    if escape[1] in "uU":  # bytes have no such escape; \x and octal escapes are single bytes
        raise ValueError("unable to unescape string")
    return bytes((_code(escape) & 0xFF,))


# Macros

_ACCUMULATOR = "@result"
_FORBIDDEN = (_ACCUMULATOR, "__result__")


class _MacroError(Exception):
    """The arguments of a macro are invalid."""

    def __init__(self, node: Expr, message: str) -> None:
        super().__init__(message)
        self.issue = Issue(node.offset, message)


def _copy_tree(node: Expr) -> Expr:
    """Return a deep copy of a tree. The fields that the checker sets are not set yet."""
    left = iter(range(_MAX_COPIED))

    def copy(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(map(copy, value))
        if not isinstance(value, Expr | MapEntry):
            return value
        if isinstance(value, Expr) and next(left, None) is None:
            raise _MacroError(value, "expression size limit exceeded")
        return replace(value, **{each.name: copy(getattr(value, each.name)) for each in fields(value) if each.init})

    copied: Expr = copy(node)
    return copied


def _variables(args: list[Expr], message: str = "argument must be a simple name") -> tuple[str, str]:
    """Return the names of one or two variables of a loop. The second is "" if there is only one."""
    names: list[str] = []
    for arg in args:
        if not isinstance(arg, Ident):
            raise _MacroError(arg, message)
        if arg.name in names:
            raise _MacroError(arg, f"duplicate variable name: {arg.name}")
        names.append(arg.name)
    for arg, name in zip(args, names, strict=True):
        if name in _FORBIDDEN:
            raise _MacroError(arg, "iteration variable overwrites accumulator variable")
    return names[0], names[1] if len(names) > 1 else ""


def _accumulator(at: int) -> Ident:
    return Ident(at, _ACCUMULATOR)


def _quantifier(at: int, macro: str, target: Expr, args: list[Expr]) -> Expr:
    """Expand `all`, `exists` and `exists_one`."""
    variables, predicate = _variables(args[:-1]), args[-1]
    macro = "exists_one" if macro == "existsOne" else macro
    result: Expr = _accumulator(at)
    condition: Expr
    if macro == "exists_one":
        initial, condition, one = Literal(at, "int", 0), Literal(at, "bool", True), Literal(at, "int", 1)
        step = Call(at, "_?_:_", [predicate, Call(at, "_+_", [_accumulator(at), one]), _accumulator(at)])
        result = Call(at, "_==_", [result, Literal(at, "int", 1)])
    else:
        every = macro == "all"
        undecided: Expr = _accumulator(at) if every else Call(at, "!_", [_accumulator(at)])
        initial, condition = Literal(at, "bool", every), Call(at, "@not_strictly_false", [undecided])
        step = Call(at, "_&&_" if every else "_||_", [_accumulator(at), predicate])
    return Comprehension(at, macro, target, *variables, _ACCUMULATOR, initial, condition, step, result)


def _collect(at: int, macro: str, target: Expr, args: list[Expr]) -> Expr:
    """Expand the macros that make a list or map: `step` adds a value where the predicate, if there is one, holds."""
    if macro in ("map", "filter"):
        variables, rest = _variables(args[:1], "argument is not an identifier"), args[1:]
    else:
        variables, rest = _variables(args[:2]), args[2:]
    predicate, value = (rest[0], args[0]) if macro == "filter" else (rest[0] if len(rest) > 1 else None, rest[-1])
    initial: Expr
    if macro in ("transformMap", "transformMapEntry"):
        added = [value] if macro == "transformMapEntry" else [Ident(at, variables[0]), value]
        macro, initial = "transformMap", MapNode(at, [])
        step = Call(at, "cel.@mapInsert", [_accumulator(at), *added])
    else:
        macro, initial = "map", ListNode(at, [])
        step = Call(at, "_+_", [_accumulator(at), ListNode(at, [value])])
    if predicate is not None:
        step = Call(at, "_?_:_", [predicate, step, _accumulator(at)])
    loop = (initial, Literal(at, "bool", True), step, _accumulator(at))
    return Comprehension(at, macro, target, *variables, _ACCUMULATOR, *loop)


def _bind(at: int, variable: str, value: Expr, result: Expr) -> Expr:
    """Return `result` with `variable` bound to `value`, written as a loop over an empty list."""
    loop = (Literal(at, "bool", False), Ident(at, variable), result)
    return Comprehension(at, "bind", ListNode(at, []), "#unused", "", variable, value, *loop)


def _optional(at: int, macro: str, target: Expr, args: list[Expr]) -> Expr:
    """Expand `optMap` and `optFlatMap`."""
    if not isinstance(args[0], Ident):
        raise _MacroError(args[0], f"{macro}() variable name must be a simple identifier")
    bound = _bind(at, args[0].name, Call(at, "value", [], _copy_tree(target)), args[1])
    wrapped = Call(at, "optional.of", [bound]) if macro == "optMap" else bound
    return Call(at, "_?_:_", [Call(at, "hasValue", [], target), wrapped, Call(at, "optional.none", [])])


def _sort_by(at: int, _: str, target: Expr, args: list[Expr]) -> Expr:
    if isinstance(target, Literal | MapNode | StructNode):
        message = "sortBy can only be applied to a list, identifier, comprehension, call or select expression"
        raise _MacroError(target, message)
    name = "@__sortBy_input__"
    keys = _collect(at, "map", Ident(at, name), args)
    return _bind(at, name, target, Call(at, "@sortByAssociatedKeys", [keys], Ident(at, name)))


_MACROS: dict[tuple[str, int], Callable[[int, str, Expr, list[Expr]], Expr]] = {
    **{(name, count): _quantifier for name in ("all", "exists", "exists_one") for count in (2, 3)},
    ("existsOne", 3): _quantifier,
    **dict.fromkeys((("map", 2), ("map", 3), ("filter", 2)), _collect),
    **{(f"transform{kind}", count): _collect for kind in ("List", "Map", "MapEntry") for count in (3, 4)},
    ("optMap", 2): _optional,
    ("optFlatMap", 2): _optional,
    ("sortBy", 2): _sort_by,
}
"""The macros with a receiver, by their name and number of arguments."""


def _expand(at: int, name: str, target: Expr | None, args: list[Expr]) -> Expr:
    """Return a call, or its expansion if it is a macro. Raises _MacroError if the macro's arguments are invalid."""
    if target is None and name == "has" and len(args) == 1:
        operand = args[0]
        if not isinstance(operand, Select) or operand.test:
            raise _MacroError(operand, "invalid argument to has() macro")
        return Select(at, operand.operand, operand.field, test=True)
    if target is not None and (macro := _MACROS.get((name, len(args)))) is not None:
        return macro(at, name, target, args)
    return Call(at, name, args, target)


# Expressions

_BINARY = {
    "||": 1, "&&": 2,
    "<": 3, "<=": 3, ">": 3, ">=": 3, "==": 3, "!=": 3, "in": 3,
    "+": 4, "-": 4,
    "*": 5, "/": 5, "%": 5,
}  # fmt: skip
"""The binary operators and how strongly each binds."""


class _StopError(Exception):
    """A syntax error after which the parser cannot continue."""


class _Parser:
    def __init__(self, source: str) -> None:
        self.items, self.issues = _tokens(source)
        self.token = self.items[0]
        self.at = 0
        self.depth = 0

    def take(self) -> _Token:
        """Return the token and go on to the next one. EOF is never passed."""
        token = self.token
        if token.kind != "EOF":
            self.at += 1
            self.token = self.items[self.at]
        return token

    def skip(self, kind: str) -> bool:
        """Take a token of this kind if it is the next one."""
        return self.token.kind == kind and self.take() is not None

    def expect(self, kind: str, shown: str = "") -> _Token:
        if self.token.kind != kind:
            raise self.fail(shown or f"'{kind}'")
        return self.take()

    def report(self, offset: int, message: str) -> None:
        self.issues.append(Issue(offset, message))

    def fail(self, expected: str) -> _StopError:
        self.report(self.token.offset, f"Syntax error: mismatched input '{self.token.text}' expecting {expected}")
        return _StopError()

    def enter(self, *, chain: bool = True) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH + chain:  # the expression around a chain does not count
            text = "max recursion depth exceeded" if chain else f"expression recursion limit exceeded: {MAX_DEPTH}"
            self.report(-1, text)
            raise _StopError

    def expression(self) -> Expr:
        self.enter(chain=False)
        node = self.binary(1)
        if self.token.kind == "?":
            mark = self.take()
            truthy = self.binary(1)
            self.expect(":")
            node = Call(mark.offset, "_?_:_", [node, truthy, self.expression()])
        self.depth -= 1
        return node

    def binary(self, least: int) -> Expr:
        left = self.unary()
        chain = self.depth
        while (level := _BINARY.get(self.token.kind, 0)) >= least:
            symbol = self.take()
            right = self.binary(level + 1)
            function = "@in" if symbol.kind == "in" else f"_{symbol.kind}_"
            if level <= 2 and isinstance(left, Call) and left.function == function and left.overloads == ["open"]:
                left.args.append(right)
                continue
            if level > 2:
                self.enter()
            left = Call(symbol.offset, function, [left, right])
            if level <= 2:
                left.overloads = ["open"]  # further terms may join the chain; an expression in brackets is closed
        self.depth = chain
        if isinstance(left, Call) and left.overloads:
            left.overloads = []
        return left

    def unary(self) -> Expr:
        token, count = self.token, 0
        if token.kind == "!" or (token.kind == "-" and self.items[self.at + 1].kind not in ("INT", "FLOAT")):
            while self.skip(token.kind):
                count += 1
        node = self.primary()
        depth = self.depth
        while self.token.kind in (".", "["):
            self.enter()
            node = self.selection(node) if self.token.kind == "." else self.index(node)
        self.depth = depth
        return Call(token.offset, f"{token.kind}_", [node]) if count % 2 else node

    def selection(self, operand: Expr) -> Expr:
        """Read `.field`, `.?field` or `.method()`."""
        dot = self.take()
        optional = self.skip("?")
        name = self.token
        if name.kind not in ("IDENT", "ESC_IDENT"):
            raise self.fail("IDENTIFIER")
        self.take()
        if name.kind == "ESC_IDENT":
            self.report(name.offset, "unsupported syntax: '`'")
        if optional:
            return Call(dot.offset, "_?._", [operand, Literal(name.offset, "string", name.text)])
        if self.token.kind == "(":
            return self.call(name.text, operand)
        return Select(dot.offset, operand, name.text)

    def index(self, operand: Expr) -> Expr:
        """Read `[index]` or `[?index]`."""
        mark = self.take()
        function = "_[?_]" if self.skip("?") else "_[_]"
        at = self.expression()
        self.expect("]")
        return Call(mark.offset, function, [operand, at])

    def call(self, name: str, target: Expr | None) -> Expr:
        offset = self.token.offset
        args = self.listed(")", self.expression, trailing=False)
        try:
            return _expand(offset, name, target, args)
        except _MacroError as error:
            self.issues.append(error.issue)
            return Literal(offset, "null", None)

    def listed(self, closing: str, item: Callable[[], T], *, trailing: bool = True) -> list[T]:
        """Read items and their closing mark. `trailing` allows a comma after the last item, also without any item."""
        found: list[T] = []
        self.take()
        while self.token.kind != closing or (found and not trailing):
            if trailing and not found and self.skip(","):
                break
            found.append(item())
            if not self.skip(","):
                break
        self.expect(closing)
        return found

    def primary(self) -> Expr:
        token = self.token
        match token.kind:
            case "IDENT" | ".":
                return self.name()
            case "(":
                self.take()
                node = self.expression()
                self.expect(")")
                return node
            case "[":
                elements = self.listed("]", lambda: (self.skip("?"), self.expression()))
                optionals = frozenset(at for at, (optional, _) in enumerate(elements) if optional)
                return ListNode(token.offset, [node for _, node in elements], optionals)
            case "{":
                return MapNode(token.offset, self.listed("}", self.entry))
            case "true" | "false":
                return Literal(self.take().offset, "bool", token.kind == "true")
            case "null":
                return Literal(self.take().offset, "null", None)
        sign = self.take().text if token.kind == "-" else ""
        if self.token.kind not in (("INT", "FLOAT") if sign else _KINDS):  # unary operators do not mix, as in '-!'
            raise self.fail("an expression")
        value = self.take()
        try:
            read = _text if value.kind in ("STRING", "BYTES") else _number
            return Literal(token.offset, _KINDS[value.kind], read(value.kind, sign + value.text))
        except ValueError as error:
            self.report(token.offset, str(error))
            return Literal(token.offset, "null", None)

    def entry(self) -> MapEntry:
        optional = self.skip("?")
        key = self.expression()
        colon = self.expect(":")
        return MapEntry(colon.offset, key, self.expression(), optional=optional)

    def name(self) -> Expr:
        start = self.token
        leading = "." if self.skip(".") else ""
        word = self.expect("IDENT", "IDENTIFIER")
        name, ahead = leading + word.text, self.at
        dotted = name
        while self.items[ahead].kind == "." and self.items[ahead + 1].kind == "IDENT":
            dotted += "." + self.items[ahead + 1].text
            ahead += 2
        if self.items[ahead].kind == "{":
            self.at, self.token = ahead, self.items[ahead]
            return StructNode(self.token.offset, dotted, self.listed("}", self.struct_field))
        if word.text in KEYWORDS:
            self.report(start.offset, f"reserved identifier: {word.text}")
        return self.call(name, None) if self.token.kind == "(" else Ident(word.offset, name)

    def struct_field(self) -> tuple[int, str, Expr]:
        self.skip("?")
        field = self.expect("IDENT", "IDENTIFIER")
        colon = self.expect(":")
        return colon.offset, field.text, self.expression()


def parse(source: str) -> Expr:
    """Return the syntax tree of an expression. Raises CelError with every error in the text."""
    size = len(source)
    if size > MAX_SOURCE:
        issue = Issue(-1, f"expression code point size exceeds limit: size: {size}, limit {MAX_SOURCE}")
        raise CelError(report("", [issue]))
    parser = _Parser(source)
    node: Expr = Literal(0, "null", None)
    try:
        node = parser.expression()
        parser.expect("EOF", "<EOF>")
    except _StopError:
        pass
    if parser.issues:
        raise CelError(report(source, parser.issues))
    return node
