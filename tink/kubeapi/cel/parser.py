"""The parser: turns the text of an expression into a syntax tree.

It consists of the lexer, the values of literals, the expansion of macros, and a parser by precedence climbing. The
grammar is CEL's (cel-spec, doc/langdef.md) with the options that Kubernetes 1.36 sets: optional syntax (`?.`, `[?]`,
`{?k: v}`) is on, backquoted identifiers are off. The lexer reports and skips characters that are not part of a token,
so that one report contains all of them; the parser stops at its first syntax error.

Macros become plain syntax before the type check: `has`, the loops over lists and maps with one or two variables,
`optMap`, `sortBy`. Their expansion shows in error texts and in costs, so it is the same as Kubernetes'.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from tink.kubeapi.cel.errors import CelError, Issue, Source
from tink.kubeapi.cel.tree import (
    Call,
    Comprehension,
    Entry,
    Ident,
    ListNode,
    Literal,
    MapNode,
    Node,
    Select,
    StructNode,
)
from tink.kubeapi.cel.values import UInt

_OPERATORS = ("==", "!=", "<=", ">=", "&&", "||")
_SINGLE = frozenset("[]{}().,-!?:+*/%<>")
_WORDS = frozenset(("in", "true", "false", "null"))
_DIGITS = frozenset("0123456789")
_HEX = frozenset("0123456789abcdefABCDEF")
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_IDENT = _LETTERS | _DIGITS
_ESCAPED_IDENT = _IDENT | frozenset(".-/ ")
_SPACE = frozenset("\t \r\n\x0c")
_SIMPLE_ESCAPES = frozenset("abfnrtv\"'\\?`")


@dataclass(frozen=True, slots=True)
class _Token:
    """A token. `kind` is the symbol or word itself, or INT, UINT, FLOAT, STRING, BYTES, IDENT, ESC_IDENT, EOF."""

    kind: str
    text: str
    offset: int


class _UnterminatedError(Exception):
    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


def _escape_length(text: str, at: int) -> int:
    """Return the length of the escape sequence at a backslash, or 0 if it is invalid."""
    letter = text[at + 1 : at + 2]
    if letter and letter in _SIMPLE_ESCAPES:
        return 2
    digits = {"x": 2, "X": 2, "u": 4, "U": 8}.get(letter, 0)
    if digits:
        tail = text[at + 2 : at + 2 + digits]
        return 2 + digits if len(tail) == digits and all(c in _HEX for c in tail) else 0
    tail = text[at + 1 : at + 4]
    if len(tail) == 3 and tail[0] in "0123" and tail[1] in "01234567" and tail[2] in "01234567":
        return 4
    return 0


def _string_end(text: str, at: int, *, raw: bool) -> int:
    """Return the end of the string literal whose quote is at `at`.

    Raises _UnterminatedError with the offset of the wrong character.
    """
    quote = text[at]
    if text.startswith(quote * 3, at):
        end = _closing(text, at + 3, quote * 3, raw=raw, lines=True)
        if end >= 0:
            return end
        return at + 2  # two quotes are the empty string; the third starts another token
    end = _closing(text, at + 1, quote, raw=raw, lines=False)
    if end < 0:
        raise _UnterminatedError(-end - 1)
    return end


def _closing(text: str, at: int, mark: str, *, raw: bool, lines: bool) -> int:
    size = len(text)
    while at < size:
        char = text[at]
        if text.startswith(mark, at):
            return at + len(mark)
        if char == "\\" and not raw:
            length = _escape_length(text, at)
            if not length:
                return -(at + 1) - 1
            at += length
            continue
        if not lines and char in "\n\r":
            return -at - 1
        at += 1
    return -size - 1


def _number(text: str, at: int) -> tuple[str, int]:
    """Return the kind and the end of the number that starts at `at` (a digit, or a point before a digit)."""
    size = len(text)
    if text.startswith("0x", at) and at + 2 < size and text[at + 2] in _HEX:
        end = at + 2
        while end < size and text[end] in _HEX:
            end += 1
    else:
        end, kind = _decimal(text, at)
        if kind == "FLOAT":
            return kind, end
    if end < size and text[end] in "uU":
        return "UINT", end + 1
    return "INT", end


def _decimal(text: str, at: int) -> tuple[int, str]:
    size = len(text)

    def digits(end: int) -> int:
        while end < size and text[end] in _DIGITS:
            end += 1
        return end

    end, kind = digits(at), "INT"
    if end + 1 < size and text[end] == "." and text[end + 1] in _DIGITS:
        end, kind = digits(end + 1), "FLOAT"
    if end < size and text[end] in "eE":
        start = end + 2 if text[end + 1 : end + 2] in ("+", "-") and text[end + 1 : end + 2] else end + 1
        if start < size and text[start] in _DIGITS:
            end, kind = digits(start), "FLOAT"
    return end, kind


def _shown(text: str) -> str:
    return text.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def _word(text: str, at: int) -> _Token:
    """Return an identifier, a word of the language, or a literal with a prefix."""
    size = len(text)
    end = at + 1
    while end < size and text[end] in _IDENT:
        end += 1
    word = text[at:end]
    if end < size and text[end] in "\"'" and word.lower() in ("r", "b", "br"):
        close = _string_end(text, end, raw=word[-1] in "rR")
        return _Token("BYTES" if word[0] in "bB" else "STRING", text[at:close], at)
    return _Token(word if word in _WORDS else "IDENT", word, at)


def _escaped_ident(text: str, at: int) -> _Token:
    end = at + 1
    while end < len(text) and text[end] in _ESCAPED_IDENT:
        end += 1
    if end == at + 1 or text[end : end + 1] != "`":
        raise _UnterminatedError(end)
    return _Token("ESC_IDENT", text[at : end + 1], at)


def _next(text: str, at: int) -> _Token:
    char = text[at]
    if char in _LETTERS:
        return _word(text, at)
    if char in _DIGITS or (char == "." and text[at + 1 : at + 2] in _DIGITS and at + 1 < len(text)):
        kind, end = _number(text, at)
        return _Token(kind, text[at:end], at)
    if char in "\"'":
        return _Token("STRING", text[at : _string_end(text, at, raw=False)], at)
    pair = text[at : at + 2]
    if pair in _OPERATORS:
        return _Token(pair, pair, at)
    if char in _SINGLE:
        return _Token(char, char, at)
    if char == "`":
        return _escaped_ident(text, at)
    # '=', '&' and '|' begin an operator: the error contains the character after them as well.
    raise _UnterminatedError(at + 1 if char in "=&|" else at)


def _tokens(text: str) -> tuple[list[_Token], list[Issue]]:
    """Return all tokens, with EOF at the end, and the errors."""
    found: list[_Token] = []
    issues: list[Issue] = []
    at, size = 0, len(text)
    while at < size:
        if text[at] in _SPACE:
            at += 1
        elif text.startswith("//", at):
            end = text.find("\n", at)
            at = end if end >= 0 else size
        else:
            try:
                token = _next(text, at)
            except _UnterminatedError as stop:
                end = max(stop.at, at) + 1
                issues.append(
                    Issue(at, f"Syntax error: token recognition error at: '{_shown(text[at : min(end, size)])}'")
                )
                at = end
            else:
                found.append(token)
                at += len(token.text)
    found.append(_Token("EOF", "<EOF>", size))
    return found, issues


_SIMPLE = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92, "'": 39, '"': 34, "`": 96, "?": 63}
_MAX_UINT = 2**64 - 1


def _read_integer(text: str) -> int:
    """Return the value of a signed 64-bit integer, decimal or 0x, perhaps with a minus.

    Raises ValueError with Kubernetes' message if it does not fit.
    """
    sign, digits = (-1, text[1:]) if text[0] == "-" else (1, text)
    hexadecimal = digits.startswith("0x")
    if len(digits) > 40:
        raise ValueError("invalid int literal")
    value = sign * (int(digits[2:], 16) if hexadecimal else int(digits, 10))
    if not -(2**63) <= value < 2**63:
        raise ValueError("invalid int literal")
    return value


def _read_unsigned(text: str) -> UInt:
    """Return the value of an unsigned 64-bit integer that ends with u. Raises ValueError if it does not fit."""
    digits = text[:-1]
    if len(digits) > 40:
        raise ValueError("invalid uint literal")
    value = int(digits[2:], 16) if digits.startswith("0x") else int(digits, 10)
    if value > _MAX_UINT:
        raise ValueError("invalid uint literal")
    return UInt(value)


def _read_double(text: str) -> float:
    """Return the value of a double. Raises ValueError if it is too large."""
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError("invalid double literal")
    return value


def _body(token: str) -> tuple[str, bool]:
    """Return the text between the quotes, and whether it is raw."""
    raw = token[0] in "rR"
    quoted = token[1:] if raw else token
    width = 3 if len(quoted) >= 6 and quoted[:3] in ("'''", '"""') else 1
    return quoted[width:-width], raw


def _escape(body: str, at: int) -> tuple[int, int]:
    """Return the value and length of the escape sequence at `at`. The lexer has checked its form."""
    letter = body[at + 1]
    if letter in _SIMPLE:
        return _SIMPLE[letter], 2
    width = {"x": 2, "X": 2, "u": 4, "U": 8}.get(letter)
    if width is None:
        return int(body[at + 1 : at + 4], 8), 4
    return int(body[at + 2 : at + 2 + width], 16), 2 + width


def _read_string(token: str) -> str:
    """Return the value of a string token. Raises ValueError for an escape that is not a Unicode code point."""
    body, raw = _body(token)
    body = body.replace("\r\n", "\n").replace("\r", "\n")
    if raw or "\\" not in body:
        return body
    out: list[str] = []
    at = 0
    while at < len(body):
        if body[at] != "\\":
            out.append(body[at])
            at += 1
            continue
        code, length = _escape(body, at)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise ValueError("invalid unicode code point")
        out.append(chr(code))
        at += length
    return "".join(out)


def _read_bytes(token: str) -> bytes:
    r"""Return the value of a bytes token. \x and octal escapes are single bytes.

    Raises ValueError for \u and \U, which bytes do not have.
    """
    body, raw = _body(token[1:])
    body = body.replace("\r\n", "\n").replace("\r", "\n")
    if raw or "\\" not in body:
        return body.encode("utf-8", "surrogatepass")
    out = bytearray()
    at = 0
    while at < len(body):
        if body[at] != "\\":
            out += body[at].encode("utf-8", "surrogatepass")
            at += 1
            continue
        if body[at + 1] in "uU":
            raise ValueError("unable to unescape string")
        code, length = _escape(body, at)
        out.append(code & 0xFF)
        at += length
    return bytes(out)


_ACCUMULATOR = "@result"
_FORBIDDEN = (_ACCUMULATOR, "__result__")
_MAX_COPIED = 5_000
"""Maximum number of nodes that the copies of macro targets add to one expression. Nested optMap doubles its target."""


class _MacroError(Exception):
    """The arguments of a macro are invalid."""

    def __init__(self, offset: int, message: str) -> None:
        super().__init__(message)
        self.offset = offset
        self.message = message


class _Copier:
    def __init__(self) -> None:
        self.left = _MAX_COPIED

    def copy(self, value: Any) -> Any:
        """Copy a node or a value of one. The fields that the checker sets are not set yet."""
        if isinstance(value, list | tuple):
            return type(value)(map(self.copy, value))
        if not isinstance(value, Node | Entry):
            return value
        if isinstance(value, Node):
            self.left -= 1
            if self.left < 0:
                raise _MacroError(value.offset, "expression size limit exceeded")
        given = [each.name for each in fields(value) if each.init]
        return replace(value, **{name: self.copy(getattr(value, name)) for name in given})


def _copy_tree(node: Node) -> Node:
    """Return a deep copy of a tree."""
    made: Node = _Copier().copy(node)
    return made


def _variable(node: Node, message: str) -> str:
    if not isinstance(node, Ident):
        raise _MacroError(node.offset, message)
    if node.name in _FORBIDDEN:
        raise _MacroError(node.offset, "iteration variable overwrites accumulator variable")
    return node.name


def _variables(args: list[Node]) -> tuple[str, str]:
    for arg in args[:2]:
        if not isinstance(arg, Ident):
            raise _MacroError(arg.offset, "argument must be a simple name")
    first, second = args[0], args[1]
    if isinstance(first, Ident) and isinstance(second, Ident) and first.name == second.name:
        raise _MacroError(second.offset, f"duplicate variable name: {first.name}")
    message = "argument must be a simple name"
    return _variable(first, message), _variable(second, message)


def _quantifier(at: int, macro: str, target: Node, variables: tuple[str, str], predicate: Node) -> Node:
    def accumulated() -> Ident:
        return Ident(at, _ACCUMULATOR)

    condition: Node
    if macro == "all":
        initial = Literal(at, "bool", True)
        condition = Call(at, "@not_strictly_false", [accumulated()])
        step = Call(at, "_&&_", [accumulated(), predicate])
        result: Node = accumulated()
    elif macro == "exists":
        initial = Literal(at, "bool", False)
        condition = Call(at, "@not_strictly_false", [Call(at, "!_", [accumulated()])])
        step = Call(at, "_||_", [accumulated(), predicate])
        result = accumulated()
    else:
        initial = Literal(at, "int", 0)
        condition = Literal(at, "bool", True)
        one_more = Call(at, "_+_", [accumulated(), Literal(at, "int", 1)])
        step = Call(at, "_?_:_", [predicate, one_more, accumulated()])
        result = Call(at, "_==_", [accumulated(), Literal(at, "int", 1)])
    return Comprehension(at, macro, target, *variables, _ACCUMULATOR, initial, condition, step, result)


def _collect(
    at: int, macro: str, target: Node, variables: tuple[str, str], initial: Node, step: Node, predicate: Node | None
) -> Node:
    """Return a loop that collects values: `step` adds one where `predicate` holds."""
    if predicate is not None:
        step = Call(at, "_?_:_", [predicate, step, Ident(at, _ACCUMULATOR)])
    loop = (Literal(at, "bool", True), step, Ident(at, _ACCUMULATOR))
    return Comprehension(at, macro, target, *variables, _ACCUMULATOR, initial, *loop)


def _list_step(at: int, value: Node) -> Node:
    return Call(at, "_+_", [Ident(at, _ACCUMULATOR), ListNode(at, [value])])


def _one_variable(at: int, macro: str, target: Node, args: list[Node]) -> Node:
    variable = _variable(args[0], "argument must be a simple name")
    return _quantifier(at, macro, target, (variable, ""), args[1])


def _two_variables(at: int, macro: str, target: Node, args: list[Node]) -> Node:
    return _quantifier(at, macro, target, _variables(args), args[2])


def _map(at: int, target: Node, args: list[Node]) -> Node:
    variable = _variable(args[0], "argument is not an identifier")
    predicate = args[1] if len(args) == 3 else None
    return _collect(at, "map", target, (variable, ""), ListNode(at, []), _list_step(at, args[-1]), predicate)


def _filter(at: int, target: Node, args: list[Node]) -> Node:
    variable = _variable(args[0], "argument is not an identifier")
    return _collect(at, "map", target, (variable, ""), ListNode(at, []), _list_step(at, args[0]), args[1])


def _transform_list(at: int, target: Node, args: list[Node]) -> Node:
    names = _variables(args)
    predicate = args[2] if len(args) == 4 else None
    return _collect(at, "map", target, names, ListNode(at, []), _list_step(at, args[-1]), predicate)


def _transform_map(at: int, target: Node, args: list[Node]) -> Node:
    names = _variables(args)
    predicate = args[2] if len(args) == 4 else None
    step = Call(at, "cel.@mapInsert", [Ident(at, _ACCUMULATOR), Ident(at, names[0]), args[-1]])
    return _collect(at, "transformMap", target, names, MapNode(at, []), step, predicate)


def _transform_entry(at: int, target: Node, args: list[Node]) -> Node:
    names = _variables(args)
    predicate = args[2] if len(args) == 4 else None
    step = Call(at, "cel.@mapInsert", [Ident(at, _ACCUMULATOR), args[-1]])
    return _collect(at, "transformMap", target, names, MapNode(at, []), step, predicate)


def _bind(at: int, variable: str, value: Node, result: Node) -> Node:
    """Return `result` with `variable` bound to `value`, written as a loop over an empty list."""
    loop = (Literal(at, "bool", False), Ident(at, variable), result)
    return Comprehension(at, "bind", ListNode(at, []), "#unused", "", variable, value, *loop)


def _opt_map(at: int, target: Node, args: list[Node]) -> Node:
    return _optional(at, target, args, "optMap", lambda bound: Call(at, "optional.of", [bound]))


def _opt_flat_map(at: int, target: Node, args: list[Node]) -> Node:
    return _optional(at, target, args, "optFlatMap", lambda bound: bound)


def _optional(at: int, target: Node, args: list[Node], macro: str, wrap: Callable[[Node], Node]) -> Node:
    if not isinstance(args[0], Ident):
        raise _MacroError(args[0].offset, f"{macro}() variable name must be a simple identifier")
    bound = _bind(at, args[0].name, Call(at, "value", [], _copy_tree(target)), args[1])
    present = Call(at, "hasValue", [], target)
    return Call(at, "_?_:_", [present, wrap(bound), Call(at, "optional.none", [])])


def _sort_by(at: int, target: Node, args: list[Node]) -> Node:
    if isinstance(target, Literal | MapNode | StructNode):
        message = "sortBy can only be applied to a list, identifier, comprehension, call or select expression"
        raise _MacroError(target.offset, message)
    name = "@__sortBy_input__"
    keys = _map(at, Ident(at, name), args)
    return _bind(at, name, target, Call(at, "@sortByAssociatedKeys", [keys], Ident(at, name)))


def _has(at: int, args: list[Node]) -> Node:
    operand = args[0]
    if not isinstance(operand, Select) or operand.test:
        raise _MacroError(operand.offset, "invalid argument to has() macro")
    return Select(at, operand.operand, operand.field, test=True)


_RECEIVER: dict[tuple[str, int], Callable[[int, Node, list[Node]], Node]] = {
    ("all", 2): lambda at, target, args: _one_variable(at, "all", target, args),
    ("exists", 2): lambda at, target, args: _one_variable(at, "exists", target, args),
    ("exists_one", 2): lambda at, target, args: _one_variable(at, "exists_one", target, args),
    ("all", 3): lambda at, target, args: _two_variables(at, "all", target, args),
    ("exists", 3): lambda at, target, args: _two_variables(at, "exists", target, args),
    ("exists_one", 3): lambda at, target, args: _two_variables(at, "exists_one", target, args),
    ("existsOne", 3): lambda at, target, args: _two_variables(at, "exists_one", target, args),
    ("map", 2): _map,
    ("map", 3): _map,
    ("filter", 2): _filter,
    ("transformList", 3): _transform_list,
    ("transformList", 4): _transform_list,
    ("transformMap", 3): _transform_map,
    ("transformMap", 4): _transform_map,
    ("transformMapEntry", 3): _transform_entry,
    ("transformMapEntry", 4): _transform_entry,
    ("optMap", 2): _opt_map,
    ("optFlatMap", 2): _opt_flat_map,
    ("sortBy", 2): _sort_by,
}


def expand(at: int, name: str, target: Node | None, args: list[Node]) -> Node | None:
    """Return the expansion of a call if it is a macro, else None.

    Raises _MacroError if it is a macro but its arguments are invalid.
    """
    if target is None:
        return _has(at, args) if name == "has" and len(args) == 1 else None
    macro = _RECEIVER.get((name, len(args)))
    return macro(at, target, args) if macro else None


MAX_SOURCE = 100_000
"""Maximum length of an expression in code points."""

MAX_DEPTH = 250
"""Maximum nesting of expressions. Chains of one operator count as well."""

_BINARY = {
    "||": 1, "&&": 2,
    "<": 3, "<=": 3, ">": 3, ">=": 3, "==": 3, "!=": 3, "in": 3,
    "+": 4, "-": 4,
    "*": 5, "/": 5, "%": 5,
}  # fmt: skip
_FUNCTION = {symbol: "@in" if symbol == "in" else f"_{symbol}_" for symbol in _BINARY}
_STARTS = frozenset(
    ("[", "{", "(", ".", "-", "!", "true", "false", "null", "FLOAT", "INT", "UINT", "STRING", "BYTES", "IDENT")
)
_RESERVED = frozenset(
    (
        "as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let", "loop",
        "package", "namespace", "null", "return", "true", "var", "void", "while",
    )
)  # fmt: skip
_NUMBERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "INT": ("int", _read_integer),
    "UINT": ("uint", _read_unsigned),
    "FLOAT": ("double", _read_double),
    "STRING": ("string", _read_string),
    "BYTES": ("bytes", _read_bytes),
}


class _StopError(Exception):
    """A syntax error after which the parser cannot continue."""


class _Parser:
    def __init__(self, source: Source) -> None:
        self.items, self.issues = _tokens(source.text)
        self.at = 0
        self.depth = 0

    @property
    def token(self) -> _Token:
        return self.items[self.at]

    def peek(self) -> _Token:
        return self.items[min(self.at + 1, len(self.items) - 1)]

    def take(self) -> _Token:
        token = self.items[self.at]
        if token.kind != "EOF":
            self.at += 1
        return token

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

    # whole and binary expressions

    def whole(self) -> Node:
        node = self.expression()
        if self.token.kind != "EOF":
            raise self.fail("<EOF>")
        return node

    def expression(self) -> Node:
        self.enter(chain=False)
        node = self.binary(1)
        if self.token.kind == "?":
            mark = self.take()
            truthy = self.binary(1)
            if self.token.kind != ":":
                raise self.fail("':'")
            self.take()
            falsy = self.expression()
            node = Call(mark.offset, "_?_:_", [node, truthy, falsy])
        self.depth -= 1
        return node

    def binary(self, least: int) -> Node:
        left = self.unary()
        chain = self.depth
        while (level := _BINARY.get(self.token.kind, 0)) >= least:
            symbol = self.take()
            right = self.binary(level + 1)
            function = _FUNCTION[symbol.kind]
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

    def unary(self) -> Node:
        token = self.token
        if token.kind == "!" or (token.kind == "-" and self.peek().kind not in ("INT", "FLOAT")):
            count = 0
            while self.token.kind == token.kind:
                self.take()
                count += 1
            node = self.member(self.primary())
            return Call(token.offset, f"{token.kind}_", [node]) if count % 2 else node
        return self.member(self.primary())

    # members: .field, .?field, .method(), [index], [?index]

    def member(self, node: Node) -> Node:
        depth = self.depth
        while self.token.kind in (".", "["):
            self.enter()
            node = self.selection(node) if self.token.kind == "." else self.index(node)
        self.depth = depth
        return node

    def selection(self, operand: Node) -> Node:
        dot = self.take()
        optional = self.token.kind == "?"
        if optional:
            self.take()
        name = self.token
        if name.kind not in ("IDENT", "ESC_IDENT"):
            raise self.fail("IDENTIFIER")
        self.take()
        field = name.text
        if name.kind == "ESC_IDENT":
            self.report(name.offset, "unsupported syntax: '`'")
        if optional:
            return Call(dot.offset, "_?._", [operand, Literal(name.offset, "string", field)])
        if self.token.kind == "(":
            mark = self.token
            args = self.arguments()
            return self.expanded(mark.offset, field, operand, args)
        return Select(dot.offset, operand, field)

    def index(self, operand: Node) -> Node:
        mark = self.take()
        optional = self.token.kind == "?"
        if optional:
            self.take()
        at = self.expression()
        self.close("]")
        return Call(mark.offset, "_[?_]" if optional else "_[_]", [operand, at])

    def close(self, mark: str) -> None:
        """Read the closing mark."""
        if self.token.kind != mark:
            raise self.fail(f"'{mark}'")
        self.take()

    def arguments(self) -> list[Node]:
        self.take()
        args: list[Node] = []
        if self.token.kind != ")":
            args.append(self.expression())
            while self.token.kind == ",":
                self.take()
                args.append(self.expression())
            self.close(")")
        else:
            self.take()
        return args

    def expanded(self, offset: int, name: str, target: Node | None, args: list[Node]) -> Node:
        try:
            node = expand(offset, name, target, args)
        except _MacroError as error:
            self.report(error.offset, error.message)
            return Literal(offset, "null", None)
        return node or Call(offset, name, args, target)

    # primaries

    def primary(self) -> Node:
        token = self.token
        if token.kind not in _STARTS:
            raise self.fail("an expression")
        if token.kind in ("IDENT", "."):
            return self.name()
        if token.kind == "(":
            self.take()
            node = self.expression()
            self.close(")")
            return node
        if token.kind == "[":
            return self.list_literal()
        if token.kind == "{":
            return self.map_literal()
        return self.literal()

    def literal(self) -> Node:
        token = self.take()
        if token.kind in ("true", "false"):
            return Literal(token.offset, "bool", token.kind == "true")
        if token.kind == "null":
            return Literal(token.offset, "null", None)
        text = token.text
        if token.kind == "-":
            token_kind = self.token.kind
            text += self.take().text
        else:
            token_kind = token.kind
        if token_kind not in _NUMBERS:
            # Unary operators do not mix, as in '-!'.
            self.at -= 1
            raise self.fail("an expression")
        kind, read = _NUMBERS[token_kind]
        try:
            return Literal(token.offset, kind, read(text))
        except ValueError as error:
            self.report(token.offset, str(error))
            return Literal(token.offset, "null", None)

    def name(self) -> Node:
        start = self.token
        leading = ""
        if start.kind == ".":
            self.take()
            leading = "."
            if self.token.kind != "IDENT":
                raise self.fail("IDENTIFIER")
        word = self.take()
        struct = self.struct(leading + word.text)
        if struct is not None:
            return struct
        if word.text in _RESERVED:
            self.report(start.offset, f"reserved identifier: {word.text}")
        if self.token.kind == "(":
            mark = self.token
            return self.expanded(mark.offset, leading + word.text, None, self.arguments())
        return Ident(word.offset, leading + word.text)

    def struct(self, name: str) -> Node | None:
        """Return a message literal if a brace follows the dotted name, else None."""
        ahead = self.at
        while self.items[ahead].kind == "." and self.items[ahead + 1].kind == "IDENT":
            name += "." + self.items[ahead + 1].text
            ahead += 2
        if self.items[ahead].kind != "{":
            return None
        self.at = ahead
        mark = self.take()
        fields: list[tuple[int, str, Node]] = []
        while self.token.kind != "}":
            if self.token.kind == "?":
                self.take()
            if self.token.kind != "IDENT":
                raise self.fail("IDENTIFIER")
            field = self.take()
            if self.token.kind != ":":
                raise self.fail("':'")
            colon = self.take()
            fields.append((colon.offset, field.text, self.expression()))
            if self.token.kind != ",":
                break
            self.take()
        self.close("}")
        return StructNode(mark.offset, name, fields)

    def list_literal(self) -> Node:
        mark = self.take()
        elements: list[Node] = []
        optionals: set[int] = set()
        while self.token.kind != "]":
            if self.token.kind == "," and not elements:
                self.take()
                break
            if self.token.kind == "?":
                self.take()
                optionals.add(len(elements))
            elements.append(self.expression())
            if self.token.kind != ",":
                break
            self.take()
        self.close("]")
        return ListNode(mark.offset, elements, frozenset(optionals))

    def map_literal(self) -> Node:
        mark = self.take()
        entries: list[Entry] = []
        while self.token.kind != "}":
            if self.token.kind == "," and not entries:
                self.take()
                break
            optional = self.token.kind == "?"
            if optional:
                self.take()
            key = self.expression()
            if self.token.kind != ":":
                raise self.fail("':'")
            colon = self.take()
            entries.append(Entry(colon.offset, key, self.expression(), optional=optional))
            if self.token.kind != ",":
                break
            self.take()
        self.close("}")
        return MapNode(mark.offset, entries)


def parse(source: Source) -> Node:
    """Return the syntax tree of an expression. Raises CelError with every error in the text."""
    size = len(source.text)
    if size > MAX_SOURCE:
        issue = Issue(-1, f"expression code point size exceeds limit: size: {size}, limit {MAX_SOURCE}")
        raise CelError(Source("").report([issue]))
    parser = _Parser(source)
    try:
        node = parser.whole()
    except _StopError:
        node = Literal(0, "null", None)
    if parser.issues:
        raise CelError(source.report(parser.issues))
    return node
