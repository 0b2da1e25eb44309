"""From tokens to the syntax tree, by precedence climbing; macros are expanded on the way.

The grammar is CEL's (cel-spec, doc/langdef.md) as Kubernetes switches it on: optional syntax (`?.`, `[?]`,
`{?k: v}`) is part of it, backquoted identifiers are not. Parsing stops at the first syntax error.
"""

from collections.abc import Callable
from typing import Any

from tink.kubeapi.cel.errors import CelError, Issue, Source
from tink.kubeapi.cel.syntax import literals, macros
from tink.kubeapi.cel.syntax.lexer import Token, tokens
from tink.kubeapi.cel.syntax.tree import Call, Entry, Ident, ListNode, Literal, MapNode, Node, Select, StructNode

MAX_SOURCE = 100_000
"""Code points of the longest expression."""

MAX_DEPTH = 250
"""Nesting of expressions; longer chains of one operator count as well."""

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
    "INT": ("int", literals.integer),
    "UINT": ("uint", literals.unsigned),
    "FLOAT": ("double", literals.double),
    "STRING": ("string", literals.string),
    "BYTES": ("bytes", literals.octets),
}


class _StopError(Exception):
    """A syntax error that nothing after it can mend."""


class _Parser:
    def __init__(self, source: Source) -> None:
        self.items, self.issues = tokens(source.text)
        self.at = 0
        self.depth = 0

    @property
    def token(self) -> Token:
        return self.items[self.at]

    def peek(self) -> Token:
        return self.items[min(self.at + 1, len(self.items) - 1)]

    def take(self) -> Token:
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
        if self.depth > MAX_DEPTH + chain:  # the expression that a chain is in does not count for it
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
                left.overloads = ["open"]  # a chain that further terms join; an expression in brackets is closed
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
        """The closing mark."""
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
            node = macros.expand(offset, name, target, args)
        except macros.MacroError as error:
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
            # '!' after '-' and the like: unary operators do not mix.
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
        """A message literal, if the dotted name that was begun ends at a brace."""
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
    """The tree of an expression. Raises CelError: it is not an expression; the text lists every error found."""
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
