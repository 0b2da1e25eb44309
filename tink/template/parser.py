"""Parse tokens into trees (Go: text/template/parse, parse.go).

A recursive descent with Go's grammar, messages and line numbers. Two things are decided here that Go leaves to the
execution. Each variable gets a slot in the frame: scopes are lexical, so no name is looked up at run time. And nesting
is limited, because every level needs stack when it runs.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from tink.golang import strconv
from tink.template import nodes
from tink.template.errors import TemplateSyntaxError, place
from tink.template.lexer import Token, TokenKind, lex

MAX_NESTING: Final = 64
"""Maximum nesting of parentheses and blocks."""

MAX_TEXT: Final = 1 << 20
"""Maximum characters of a text. Kubernetes stores no larger object."""

MAX_TOKENS: Final = 200_000
"""Maximum tokens of a text. Parsing this number takes a second or two."""

FIRST_SLOT: Final = 2
"""The first slot of variables in a frame. It holds `$`."""

_OPERAND_KINDS: Final = frozenset(
    {
        TokenKind.BOOL,
        TokenKind.CHAR_CONSTANT,
        TokenKind.COMPLEX,
        TokenKind.DOT,
        TokenKind.FIELD,
        TokenKind.IDENTIFIER,
        TokenKind.NUMBER,
        TokenKind.NIL,
        TokenKind.RAW_STRING,
        TokenKind.STRING,
        TokenKind.VARIABLE,
        TokenKind.LEFT_PAREN,
    }
)
_LITERALS = (nodes.BoolNode, nodes.DotNode, nodes.NilNode, nodes.NumberNode, nodes.StringNode)


def parse(text: str, functions: Container[str], name: str = "template") -> dict[str | None, nodes.Tree]:
    """Return the trees in a template's text: the main one under None, those of `define` and `block` under their names.

    Raises TemplateSyntaxError, whose text calls the template `name`.
    """
    if len(text) > MAX_TEXT:
        raise TemplateSyntaxError(f"template: {name}: the text is longer than {MAX_TEXT} characters", name=name)
    try:
        parser = _Parser(text, functions, name)
        if len(parser.source) > MAX_TOKENS:
            raise TemplateSyntaxError(f"template: {name}: the text has more than {MAX_TOKENS} tokens", name=name)
        return parser.parse()
    except RecursionError:
        raise TemplateSyntaxError(f"template: {name}: the template is nested too deeply", name=name) from None


class _Scope:
    """The variables of one tree: name -> slots, the innermost last. The slot None means assigned but never declared."""

    def __init__(self) -> None:
        self.slots: dict[str, list[int | None]] = {"$": [FIRST_SLOT]}
        self.order = ["$"]
        self.pending: list[str] = []
        self.size = 1

    def declare(self, name: str) -> int:
        slot = FIRST_SLOT + len(self.order)
        self._push(name, slot)
        return slot

    def assign(self, name: str) -> int | None:
        """Return the slot of an assigned variable. As in Go, the variable need not have been declared."""
        known = self.slots.get(name)
        if not known:
            self._push(name, None)
            return None
        return known[-1]

    def _push(self, name: str, slot: int | None) -> None:
        self.slots.setdefault(name, []).append(slot)
        self.order.append(name)
        self.size = max(self.size, len(self.order))

    def mark(self) -> int:
        return len(self.order)

    def pop(self, mark: int) -> None:
        while len(self.order) > mark:
            self.slots[self.order.pop()].pop()


class _Parser:
    def __init__(self, text: str, functions: Container[str], name: str) -> None:
        self.text = text
        self.functions = functions
        self.name = name
        self.source = lex(text)
        self.at = 0
        self.far = 0
        self.scope = _Scope()
        self.action_line = 0
        self.range_depth = 0
        self.depth = 0
        self.trees: dict[str | None, nodes.Tree] = {}

    # --- tokens and complaints ---

    def _next(self) -> Token:
        token = self._peek()
        if self.at < len(self.source) - 1:
            self.at += 1
        return token

    def _peek(self) -> Token:
        if self.at > self.far:
            self.far = self.at
        return self.source[self.at]

    def _next_non_space(self) -> Token:
        token = self._next()
        return self._next() if token.kind is TokenKind.SPACE else token

    def _peek_non_space(self) -> Token:
        if self._peek().kind is TokenKind.SPACE:
            self._next()
        return self._peek()

    def _error(self, message: str) -> TemplateSyntaxError:
        # Go reports the line of the last token that it has read, not the line of the wrong token.
        token = self.source[self.far]
        return TemplateSyntaxError(
            f"template: {self.name}:{token.line}: {message}",
            name=self.name,
            line=token.line,
            column=place(self.text, token.position)[1],
        )

    def _expect(self, context: str, *kinds: TokenKind) -> Token:
        token = self._next_non_space()
        if token.kind not in kinds:
            raise self._unexpected(token, context)
        return token

    def _unexpected(self, token: Token, context: str) -> TemplateSyntaxError:
        if token.kind is not TokenKind.ERROR:
            return self._error(f"unexpected {token} in {context}")
        extra = ""
        if self.action_line not in (0, token.line):
            extra = f" in action started at {self.name}:{self.action_line}"
            if token.text.endswith(" action"):
                extra = extra.removeprefix(" in action")
        return self._error(f"{token}{extra}")

    def _unquote(self, token: Token) -> str:
        try:
            return strconv.unquote(token.text)
        except ValueError as error:
            raise self._error(str(error)) from None

    def _deeper(self, complaint: str) -> None:
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise self._error(complaint)

    # --- trees ---

    def parse(self) -> dict[str | None, nodes.Tree]:
        body: list[nodes.Statement] = []
        while self._peek().kind is not TokenKind.EOF:
            if self._peek().kind is TokenKind.LEFT_DELIM:
                start = self.at
                self._next()
                if self._next_non_space().kind is TokenKind.DEFINE:
                    context = "define clause"
                    name = self._unquote(self._expect(context, TokenKind.STRING, TokenKind.RAW_STRING))
                    self._expect(context, TokenKind.RIGHT_DELIM)
                    self._subtree(name, context)
                    continue
                self.at = start
            node = self._text_or_action()
            if isinstance(node, Token):
                raise self._error("unexpected {{end}}" if node.kind is TokenKind.END else "unexpected {{else}}")
            body.append(node)
        self._add(nodes.Tree(None, body, self.scope.size))
        return self.trees

    def _add(self, tree: nodes.Tree) -> None:
        known = self.trees.get(tree.name)
        if known is None or known.is_empty:
            self.trees[tree.name] = tree
        elif not tree.is_empty:
            raise self._error(f"template: multiple definition of template {strconv.quote(tree.name or '')}")

    def _subtree(self, name: str, context: str) -> None:
        """Parse the body of a define or block up to its end: a tree of its own, which sees no outer variable."""
        outer = self.scope, self.action_line, self.range_depth
        self.scope, self.action_line, self.range_depth = _Scope(), 0, 0
        body, closing = self._list()
        if closing.kind is not TokenKind.END:
            raise self._error(f"unexpected {{{{else}}}} in {context}")
        self._add(nodes.Tree(name, body, self.scope.size))
        self.scope, self.action_line, self.range_depth = outer

    def _list(self) -> tuple[list[nodes.Statement], Token]:
        """Parse statements up to an `end` or `else`. Return that token, too."""
        self._deeper("blocks are nested too deeply")
        body: list[nodes.Statement] = []
        while self._peek_non_space().kind is not TokenKind.EOF:
            node = self._text_or_action()
            if isinstance(node, Token):
                self.depth -= 1
                return body, node
            body.append(node)
        raise self._error("unexpected EOF")

    def _text_or_action(self) -> nodes.Statement | Token:
        token = self._next_non_space()
        if token.kind is TokenKind.TEXT:
            return nodes.TextNode(token.position, token.text)
        if token.kind is TokenKind.LEFT_DELIM:
            self.action_line = token.line
            node = self._action()
            self.action_line = 0
            return node
        raise self._unexpected(token, "input")

    # --- actions ---

    def _action(self) -> nodes.Statement | Token:
        start = self.at
        token = self._next_non_space()
        kind = token.kind
        if kind in (TokenKind.IF, TokenKind.WITH):
            return self._branch(token)
        if kind is TokenKind.RANGE:
            return self._range()
        if kind is TokenKind.END:
            self._expect("end", TokenKind.RIGHT_DELIM)
            return token
        if kind is TokenKind.ELSE:
            # `else if` and `else with` leave their keyword to the branch that they continue.
            if self._peek_non_space().kind not in (TokenKind.IF, TokenKind.WITH):
                self._expect("else", TokenKind.RIGHT_DELIM)
            return token
        if kind in (TokenKind.BREAK, TokenKind.CONTINUE):
            return self._loop_exit(token)
        if kind is TokenKind.TEMPLATE:
            return self._invoke()
        if kind is TokenKind.BLOCK:
            return self._block()
        self.at = start
        position = self._peek_non_space().position
        return nodes.ActionNode(position, self._pipeline("command", TokenKind.RIGHT_DELIM))

    def _loop_exit(self, token: Token) -> nodes.Statement:
        closing = self._next_non_space()
        if closing.kind is not TokenKind.RIGHT_DELIM:
            raise self._unexpected(closing, f"{{{{{token.text}}}}}")
        if not self.range_depth:
            raise self._error(f"{{{{{token.text}}}}} outside {{{{range}}}}")
        return (nodes.BreakNode if token.kind is TokenKind.BREAK else nodes.ContinueNode)(token.position)

    def _branch(self, keyword: Token) -> nodes.BranchNode:
        """Parse if or with, and all `else if` or `else with` that follow."""
        mark = self.scope.mark()
        is_with = keyword.kind is TokenKind.WITH
        node: nodes.BranchNode | None = None
        while True:
            pipe = self._pipeline(keyword.text, TokenKind.RIGHT_DELIM)
            if node is None:
                node = nodes.BranchNode(pipe.position, [])
            body, closing = self._list()
            node.arms.append((is_with, pipe, body))
            if closing.kind is TokenKind.END:
                break
            if self._peek().kind is keyword.kind:
                self._next()
                continue
            node.otherwise = self._otherwise()
            break
        self.scope.pop(mark)
        return node

    def _otherwise(self) -> list[nodes.Statement]:
        body, closing = self._list()
        if closing.kind is not TokenKind.END:
            raise self._error("expected end; found {{else}}")
        return body

    def _range(self) -> nodes.RangeNode:
        mark = self.scope.mark()
        pipe = self._pipeline("range", TokenKind.RIGHT_DELIM)
        self.range_depth += 1
        body, closing = self._list()
        self.range_depth -= 1
        otherwise = self._otherwise() if closing.kind is TokenKind.ELSE else None
        self.scope.pop(mark)
        return nodes.RangeNode(pipe.position, pipe, body, otherwise)

    def _invoke(self) -> nodes.InvokeNode:
        context = "template clause"
        token = self._expect(context, TokenKind.STRING, TokenKind.RAW_STRING)
        name = self._unquote(token)
        if self._peek_non_space().kind is TokenKind.RIGHT_DELIM:
            self._next()
            return nodes.InvokeNode(token.position, name, None)
        return nodes.InvokeNode(token.position, name, self._pipeline(context, TokenKind.RIGHT_DELIM))

    def _block(self) -> nodes.InvokeNode:
        context = "block clause"
        token = self._expect(context, TokenKind.STRING, TokenKind.RAW_STRING)
        name = self._unquote(token)
        pipe = self._pipeline(context, TokenKind.RIGHT_DELIM)
        self._subtree(name, context)
        return nodes.InvokeNode(token.position, name, pipe)

    # --- pipelines ---

    def _pipeline(self, context: str, end: TokenKind) -> nodes.PipeNode:
        pipe = nodes.PipeNode(self._peek_non_space().position)
        declared = self._declarations(pipe, context)
        self.scope.pending += [token.text for token in declared]
        while True:
            token = self._peek_non_space()
            if token.kind is end:
                self._next()
                break
            if token.kind not in _OPERAND_KINDS:
                raise self._unexpected(self._next(), context)
            pipe.commands.append(self._command())
        if not pipe.commands:
            raise self._error(f"missing value for {context}")
        for stage, command in enumerate(pipe.commands[1:], 2):
            if isinstance(command.operands[0], _LITERALS):
                raise self._error(f"non executable command in pipeline stage {stage}")
        if declared:
            del self.scope.pending[-len(declared) :]
        for token in declared:
            slot = self.scope.assign(token.text) if pipe.is_assignment else self.scope.declare(token.text)
            pipe.variables.append(nodes.VariableNode(token.position, token.text, [], slot))
        return pipe

    def _declarations(self, pipe: nodes.PipeNode, context: str) -> list[Token]:
        """Parse the variables before `:=` or `=`; none if the pipeline only begins with a variable."""
        declared: list[Token] = []
        while self._peek_non_space().kind is TokenKind.VARIABLE:
            start = self.at
            variable = self._next()
            operator = self._peek_non_space()
            if operator.kind in (TokenKind.ASSIGN, TokenKind.DECLARE):
                self._next()
                pipe.is_assignment = operator.kind is TokenKind.ASSIGN
                declared.append(variable)
                break
            if operator.kind is not TokenKind.CHAR or operator.text != ",":
                self.at = start
                break
            self._next()
            declared.append(variable)
            if context != "range" or len(declared) > 1:
                raise self._error(f"too many declarations in {context}")
            if self._peek_non_space().kind not in (TokenKind.VARIABLE, TokenKind.RIGHT_DELIM, TokenKind.RIGHT_PAREN):
                raise self._error("range can only initialize variables")
        return declared

    def _command(self) -> nodes.CommandNode:
        command = nodes.CommandNode(self._peek_non_space().position)
        while True:
            self._peek_non_space()
            operand = self._operand()
            if operand is not None:
                command.operands.append(operand)
            token = self._next()
            if token.kind is TokenKind.SPACE:
                continue
            if token.kind in (TokenKind.RIGHT_DELIM, TokenKind.RIGHT_PAREN):
                self.at -= 1
            elif token.kind is not TokenKind.PIPE:
                raise self._unexpected(token, "operand")
            break
        if not command.operands:
            raise self._error("empty command")
        return command

    def _operand(self) -> nodes.Operand | None:
        base = self._term()
        if base is None or self._peek().kind is not TokenKind.FIELD:
            return base
        # Go's messages give the column of a chain for the whole operand.
        position = self._peek().position
        names: list[str] = []
        while self._peek().kind is TokenKind.FIELD:
            names.append(self._next().text[1:])
        if isinstance(base, nodes.FieldNode):
            return nodes.FieldNode(position, base.names + names)
        if isinstance(base, nodes.VariableNode):
            return nodes.VariableNode(position, base.name, base.names + names, base.slot)
        if isinstance(base, _LITERALS):
            raise self._error(f"unexpected . after term {strconv.quote(str(base))}")
        return nodes.ChainNode(position, base, names)

    def _term(self) -> nodes.Operand | None:
        start = self.at
        token = self._next_non_space()
        position, text = token.position, token.text
        match token.kind:
            case TokenKind.IDENTIFIER:
                if text not in self.functions:
                    raise self._error(f"function {strconv.quote(text)} not defined")
                return nodes.IdentifierNode(position, text)
            case TokenKind.DOT:
                return nodes.DotNode(position)
            case TokenKind.NIL:
                return nodes.NilNode(position)
            case TokenKind.VARIABLE:
                return self._variable(token)
            case TokenKind.FIELD:
                return nodes.FieldNode(position, [text[1:]])
            case TokenKind.BOOL:
                return nodes.BoolNode(position, text == "true")
            case TokenKind.CHAR_CONSTANT | TokenKind.COMPLEX | TokenKind.NUMBER:
                return self._number(token)
            case TokenKind.LEFT_PAREN:
                self._deeper("max expression depth exceeded")
                pipe = self._pipeline("parenthesized pipeline", TokenKind.RIGHT_PAREN)
                self.depth -= 1
                return pipe
            case TokenKind.STRING | TokenKind.RAW_STRING:
                return nodes.StringNode(position, text, self._unquote(token))
        self.at = start
        self._peek_non_space()
        return None

    def _variable(self, token: Token) -> nodes.VariableNode:
        slots = self.scope.slots.get(token.text)
        if slots:
            return nodes.VariableNode(token.position, token.text, [], slots[-1])
        if token.text in self.scope.pending:
            return nodes.VariableNode(token.position, token.text, [], None)
        raise self._error(f"undefined variable {strconv.quote(token.text)}")

    def _number(self, token: Token) -> nodes.NumberNode:
        """Return a constant with its values of all types (Go: newNumber)."""
        text, position = token.text, token.position
        if token.kind is TokenKind.CHAR_CONSTANT:
            try:
                code = strconv.unquote_char(text)
            except ValueError as error:
                raise self._error(str(error)) from None
            return nodes.NumberNode(position, text, code, float(code))
        if text.endswith("i"):
            return self._imaginary(token)
        looks_real = any(char in ".eEpP" for char in text)
        is_hex = text[:2].lower() == "0x" and not any(char in "pP" for char in text)
        value = strconv.parse_integer(text)
        if value is not None and strconv.INT64_MIN <= value <= strconv.UINT64_MAX:
            if value <= strconv.INT64_MAX:
                return nodes.NumberNode(position, text, value, float(value), looks_real and not is_hex)
            if text[0] not in "+-":
                return nodes.NumberNode(position, text, None, float(value))
        real = strconv.parse_float(text)
        if real is None:
            raise self._error(f"illegal number syntax: {strconv.quote(text)}")
        if not looks_real:
            raise self._error(f"integer overflow: {strconv.quote(text)}")
        whole = int(real) if real.is_integer() and -(2.0**63) <= real < 2.0**63 else None
        return nodes.NumberNode(position, text, whole, real, is_real=not is_hex)

    def _imaginary(self, token: Token) -> nodes.NumberNode:
        """Return a constant with an i. It is a plain number, too, if only zero precedes the i."""
        text = token.text
        real: float | None = 0.0
        imaginary = text
        if token.kind is TokenKind.COMPLEX:
            split = max(text.rfind("+"), text.rfind("-"))
            if text[split - 1] in "eEpP":  # the sign of an exponent
                split = max(text.rfind("+", 0, split), text.rfind("-", 0, split))
            real, imaginary = strconv.parse_float(text[:split]), text[split:]
        imaginary_value = strconv.parse_float(imaginary[:-1])
        if real is None or imaginary_value is None:
            raise self._error(f"illegal number syntax: {strconv.quote(text)}")
        if imaginary_value:
            return nodes.NumberNode(token.position, text, None, None, imaginary=complex(real, imaginary_value))
        whole = int(real) if real.is_integer() and -(2.0**63) <= real < 2.0**63 else None
        return nodes.NumberNode(token.position, text, whole, real, imaginary=complex(real, imaginary_value))
