"""Read the text of a v1alpha1 Template: YAML with Go template expressions in it, before they are rendered.

v1alpha1 rendered the whole text and then parsed it as YAML. v1alpha2 renders each field by itself. So this module finds
the expressions with Go's own lexer, replaces each with a placeholder word, parses the rest as YAML, and puts each
expression back into the scalar that it stood in. Control flow around several fields has no scalar to go back to: it is
a `TextProblem`.

Three rules keep the meaning exact:
- The Tink controller read all values as text (`MODE: 0600` is "0600"), so scalars are taken as written.
- `{{-` and `-}}` trim the text around them as it is written. In a literal block (`|`) they stay, and trim the same
  text. In other scalars, where YAML would fold or unescape that text, the trimming is done here.
- A variable that is set between fields is set again in each field that uses it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import lru_cache
from itertools import pairwise
from typing import Any

import yaml

from tink.api.yaml import MAX_BYTES, MAX_RATIO, Document, Parser, as_yaml_error
from tink.convert.documents import collect, has_comments
from tink.convert.findings import Comment
from tink.convert.v1alpha1.expressions import EXPRESSION, MAX_KNOWN_CHARACTERS, MAX_KNOWN_EXPRESSIONS
from tink.errors import TinkedgeError
from tink.template.lexer import Token, TokenKind, lex
from tink.template.parser import MAX_TEXT, MAX_TOKENS

BRACES = "{{"

_OPENING = (TokenKind.IF, TokenKind.RANGE, TokenKind.WITH, TokenKind.DEFINE, TokenKind.BLOCK)
_CONTROL = (*_OPENING, TokenKind.ELSE, TokenKind.END, TokenKind.BREAK, TokenKind.CONTINUE)
_QUOTING = ("quote", "squote")


class Role(Enum):
    """The effect of an expression on the text."""

    OUTPUT = auto()
    OPEN = auto()
    MIDDLE = auto()
    CLOSE = auto()
    DECLARE = auto()
    ASSIGN = auto()
    COMMENT = auto()


SILENT = (Role.COMMENT, Role.DECLARE, Role.ASSIGN)


@dataclass(slots=True)
class Expression:
    """One expression, from `{{` to `}}`."""

    start: int
    end: int
    line: int
    role: Role
    word: str
    """The keyword, for messages."""
    trims_left: bool
    trims_right: bool
    uses: frozenset[str]
    sets: str
    unquoted: str
    """The expression without its quote function; empty if it has none."""
    alone: bool = False
    """True if its line holds only expressions that print nothing."""
    joins: bool = False
    """True if it trims a line break."""
    before: str = ""
    after: str = ""
    """Spaces on its line, before and after, that it trims."""
    seen: bool = False


def find_expressions(text: str) -> list[Expression]:
    """Return the expressions of a text, in order. Raises TextError if the text is no Go template."""
    expressions = list(_each(text))
    # Mark expressions on lines that hold only expressions that print nothing.
    group: list[Expression] = []
    for index, each in enumerate(expressions):
        group.append(each)
        following = expressions[index + 1].start if index + 1 < len(expressions) else len(text)
        if "\n" not in text[each.end : following] and following < len(text):
            continue
        first = group[0].start
        around = [text[text.rfind("\n", 0, first) + 1 : first], text[each.end : following].partition("\n")[0]]
        around += [text[one.end : other.start] for one, other in pairwise(group)]
        if not any(part.strip() for part in around) and all(one.role is not Role.OUTPUT for one in group):
            for one in group:
                one.alone = True
        group = []
    at = 0
    for index, each in enumerate(expressions):
        following = expressions[index + 1].start if index + 1 < len(expressions) else len(text)
        before, after = text[at : each.start], text[each.end : following]
        if each.trims_left:
            run = before[len(before.rstrip(" \t\r\n")) :]
            each.joins = "\n" in run
            each.before = "" if each.joins or each.alone else run
        if each.trims_right:
            run = after[: len(after) - len(after.lstrip(" \t\r\n"))]
            each.joins = each.joins or "\n" in run
            each.after = "" if "\n" in run or each.alone else run
        at = each.end + len(each.after)
    return expressions


class TextError(TinkedgeError, ValueError):
    """The text is no Go template, or too long a one. `line` is counted from 1; 0 for the whole text."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class _Form:
    """The parts of an expression that do not depend on the text around it."""

    role: Role
    word: str
    uses: frozenset[str]
    sets: str
    unquoted: str


def _each(text: str) -> Iterator[Expression]:
    known = _known_forms(text) if len(text) <= MAX_TOKENS else None
    forms: Iterable[tuple[int, int, _Form]] = known if known is not None else _lexed_forms(text)
    line, counted = 1, 0
    for start, end, form in forms:
        line += text.count("\n", counted, start)
        counted = start
        yield Expression(
            start,
            end,
            line,
            form.role,
            form.word,
            trims_left=text[start + 2] == "-" and text[start + 3] in " \t\r\n",
            trims_right=text[end - 3] == "-" and text[end - 4] in " \t\r\n",
            uses=form.uses,
            sets=form.sets,
            unquoted=form.unquoted,
        )


def _known_forms(text: str) -> list[tuple[int, int, _Form]] | None:
    """Return start, end and form of each expression; None if one of them can't be read without what is before it."""
    found: list[tuple[int, int, _Form]] = []
    at = 0
    while (start := text.find(BRACES, at)) >= 0:
        match = EXPRESSION.match(text, start)
        form = _known_form(match[0]) if match is not None and len(match[0]) <= MAX_KNOWN_CHARACTERS else None
        if match is None or form is None:
            return None
        at = match.end()
        found.append((start, at, form))
    return found


@lru_cache(MAX_KNOWN_EXPRESSIONS)
def _known_form(expression: str) -> _Form | None:
    """Return the form of an expression; None if Go's lexer finds an error in it."""
    tokens = lex(expression)
    return None if any(token.kind is TokenKind.ERROR for token in tokens) else _form(expression, 0, tokens[1:-2])


def _lexed_forms(text: str) -> Iterator[tuple[int, int, _Form]]:
    tokens = lex(text)
    broken = next((token for token in tokens if token.kind is TokenKind.ERROR), None)
    if broken is not None:
        raise TextError(f"no Go template: {broken}", broken.line)
    if len(tokens) > MAX_TOKENS:
        raise TextError(f"the text has more than {MAX_TOKENS} tokens")
    ends = {token.position: index for index, token in enumerate(tokens) if token.kind is TokenKind.LEFT_DELIM}
    at = 0
    while (start := text.find(BRACES, at)) >= 0:
        index = ends.get(start)
        if index is None:
            at = text.find("}}", text.find("*/", start)) + 2
            yield start, at, _form(text, start, [])
        else:
            stop = next(at for at in range(index, len(tokens)) if tokens[at].kind is TokenKind.RIGHT_DELIM)
            at = tokens[stop].position + 2
            yield start, at, _form(text, start, tokens[index + 1 : stop])


def _form(text: str, start: int, tokens: list[Token]) -> _Form:
    """Return the form of the expression that begins at `start`. `tokens` are those between its braces."""
    inside = [token for token in tokens if token.kind is not TokenKind.SPACE]
    role, sets = _role(inside)
    return _Form(
        role,
        inside[0].text if inside else "",
        frozenset(token.text for token in inside if token.kind is TokenKind.VARIABLE and token.text != "$"),
        sets,
        _unquoted(text, start, inside) if role is Role.OUTPUT else "",
    )


def _role(inside: list[Token]) -> tuple[Role, str]:
    if not inside:
        return Role.COMMENT, ""
    kind = inside[0].kind
    if kind in _CONTROL:
        return Role.OPEN if kind in _OPENING else Role.CLOSE if kind is TokenKind.END else Role.MIDDLE, ""
    if kind is TokenKind.VARIABLE and len(inside) > 1:
        if inside[1].kind is TokenKind.DECLARE:
            return Role.DECLARE, inside[0].text
        if inside[1].kind is TokenKind.ASSIGN:
            return Role.ASSIGN, inside[0].text
    return Role.OUTPUT, ""


def _unquoted(text: str, start: int, inside: list[Token]) -> str:
    """Return `{{ .x | quote }}` or `{{ quote .x }}` as `{{ .x }}`."""
    if len(inside) > 2 and inside[-1].text in _QUOTING and inside[-2].kind is TokenKind.PIPE:
        return text[start : inside[-2].position].rstrip() + " }}"
    pipes = any(token.kind is TokenKind.PIPE for token in inside)
    if len(inside) > 1 and inside[0].text in _QUOTING and not pipes:
        return (
            text[start : start + 2]
            + text[inside[0].position + len(inside[0].text) : inside[-1].position]
            + (f"{inside[-1].text} }}}}")
        )
    return ""


def strip_silent(inside: list[Expression], parts: list[str]) -> None:
    """Remove outer spaces between silent expressions. `parts` are alternating texts and expressions."""
    for index, each in enumerate(inside):
        if each.role not in SILENT or parts[2 * index]:
            break
        parts[2 * index + 2] = parts[2 * index + 2].lstrip(" ")
    for index in range(len(inside) - 1, -1, -1):
        if inside[index].role not in SILENT or parts[2 * index + 2]:
            break
        parts[2 * index] = parts[2 * index].rstrip(" ")


def strip_arms(inside: list[Expression], parts: list[str]) -> bool:
    """Remove the spaces around the arms of an unquoted `{{ if .x }} a {{ end }}`. Return True if spaces may be left.

    `parts` are alternating texts and expressions. YAML removed these spaces after rendering.
    """
    # Expressions that print nothing may stand before the first arm and behind the last.
    first, last = 0, len(inside) - 1
    while first < last and inside[first].role in SILENT and not parts[2 * first]:
        first += 1
    while last > first and inside[last].role in SILENT and not parts[2 * last + 2]:
        last -= 1
    opens = inside[first].role is Role.OPEN and not parts[2 * first]
    closes = inside[last].role is Role.CLOSE and not parts[2 * last + 2]
    if not (opens or closes) or all(part == part.strip(" ") for part in parts[::2]):
        return False
    edges, depth = [], 0
    for index, each in enumerate(inside):
        depth += each.role is Role.OPEN
        if depth == 1 and each.role is not Role.OUTPUT:
            edges.append(index)
        depth -= each.role is Role.CLOSE
        if not depth and index < len(inside) - 1:
            return True
    if parts[0] or parts[-1] or inside[0].word not in ("if", "with"):
        return True
    for index in edges:
        if inside[index].role in (Role.OPEN, Role.MIDDLE):
            parts[2 * index + 2] = parts[2 * index + 2].lstrip(" ")
        if inside[index].role in (Role.CLOSE, Role.MIDDLE):
            parts[2 * index] = parts[2 * index].rstrip(" ")
    # An arm may contain further control flow, which prints spaces or nothing at the arm's ends.
    return any(each.role is not Role.OUTPUT for index, each in enumerate(inside) if index not in edges)


def may_print_nothing(text: str, inside: list[Expression]) -> bool:
    """Return True if the line of the last expression consists of control flow, of which an arm may print nothing."""
    at = text.rfind("\n", 0, inside[-1].start) + 1
    depth, prints, has_else, is_blank = 0, False, False, False
    for each in inside:
        if each.start < at:
            continue
        prints_here = bool(text[at : each.start].strip()) or each.role is Role.OUTPUT
        at = each.end
        if prints_here and not depth:
            return False
        prints = prints or (prints_here and depth == 1)  # deeper control flow may print nothing itself
        if each.role is Role.OPEN:
            depth += 1
            if depth == 1:
                prints = has_else = False
        elif depth == 1 and each.role in (Role.MIDDLE, Role.CLOSE):
            is_closed = each.role is Role.CLOSE
            is_blank = is_blank or not prints or (is_closed and not has_else)
            has_else = text[each.start : each.end].strip("{}- ") == "else"
            prints = False
        depth -= each.role is Role.CLOSE
    return is_blank


_NULLS = ("", "~", "null", "Null", "NULL")
_FRAMING = (yaml.DocumentStartEvent, yaml.DocumentEndEvent, yaml.StreamEndEvent)
_OWN_TAGS = ("!", *(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null")))


@dataclass(frozen=True, slots=True)
class TextProblem:
    """A reason why the text can't be converted. `line` is counted from 1; 0 for the whole text."""

    line: int
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}" if self.line else self.message


@dataclass(slots=True)
class Content:
    """The result of `read`."""

    value: Any
    """The first document: mappings, lists, strings as they were written (with their expressions), and None."""
    problems: list[TextProblem] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)
    """String with expressions -> the line of its first expression."""
    edges: dict[str, str] = field(default_factory=dict)
    """String -> the kind of whitespace that YAML removed after rendering, and that may now stay."""
    comments: list[Comment] = field(default_factory=list)
    """The YAML comments, with their paths and lines in the text."""


def read(text: str, *, with_comments: bool = True) -> Content:
    """Read a Template's `spec.data`. Raises nothing: `problems` says what is wrong, and then `value` may be None.

    Without `with_comments`, YAML comments are ignored. To read a text with comments takes twice as long.
    """
    if len(text) > MAX_TEXT:
        return Content(None, [TextProblem(0, f"the text is longer than {MAX_TEXT} characters")])
    if text.count(BRACES) > MAX_TOKENS // 3:  # each has two delimiters and something inside
        return Content(None, [TextProblem(0, f"the text has more than {MAX_TOKENS} tokens")])
    try:
        expressions = find_expressions(text)
    except TextError as error:
        return Content(None, [TextProblem(error.line, str(error))])
    return _Reading(text, expressions, with_comments).content()


_UNSAFE = re.compile("[\r\x85\u2028\u2029\ufeff]")
"""Characters that YAML's readers and writers may take for line breaks, and a mark that they may leave out."""
_NO_BLOCK = re.compile(r" (?:\n|\Z)|[^\n\x20-\x7e]")
"""Text that YAML does not write as a block (`|`), where quotes stay as they are."""


def read_written(body: Any) -> Content | None:
    """Return the result of `read` for a text that PyYAML has written of `body`, without reading it.

    `body` consists of mappings, lists, texts and numbers. None if the text has to be read: an expression has an effect
    outside of itself, or might be written in another way inside of YAML's quotes.
    """
    try:
        return Content(_as_read(body))
    except _MustBeReadError:
        return None


class _MustBeReadError(Exception):
    """Only `read` knows the value of this text."""


def _as_read(value: Any) -> Any:
    if isinstance(value, dict):
        return {_text_as_read(key, is_key=True): _as_read(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_as_read(each) for each in value]
    return _text_as_read(value) if isinstance(value, str) else str(value)


def _text_as_read(text: str, *, is_key: bool = False) -> str:
    """Return a text that `_Reading` restores as it is. Raises _MustBeReadError if that is not certain."""
    if _UNSAFE.search(text):
        raise _MustBeReadError
    if BRACES not in text:
        return text
    forms = _known_forms(text)
    is_line = "\n" not in text
    if forms is None or ((not is_line or '"' in text) and (is_key or _NO_BLOCK.search(text))):
        raise _MustBeReadError
    if not (_is_balanced(forms) and _trims_only_inside(text, forms, is_line=is_line)):
        raise _MustBeReadError
    roles = {form.role for _, _, form in forms}
    # A variable that is set on a line of its own is set again in later fields.
    sets_beside_output = is_line and Role.OUTPUT in roles and text.startswith(BRACES)
    if Role.COMMENT in roles or not (roles.isdisjoint(SILENT) or sets_beside_output):
        raise _MustBeReadError
    return text


def _is_balanced(forms: list[tuple[int, int, _Form]]) -> bool:
    depth = 0
    for _, _, form in forms:
        if form.role in (Role.MIDDLE, Role.CLOSE) and not depth:
            return False
        depth += (form.role is Role.OPEN) - (form.role is Role.CLOSE)
    return not depth


def _trims_only_inside(text: str, forms: list[tuple[int, int, _Form]], *, is_line: bool) -> bool:
    """Return True if dashes trim nothing but lines of the same block, and no expression has a line break in it."""
    for start, end, _ in forms:
        trims_left, trims_right = text[start + 2] == "-", text[end - 3] == "-"
        if (is_line and (trims_left or trims_right)) or "\n" in text[start:end]:
            return False
        if (trims_left and not text[:start].strip()) or (trims_right and not text[end:].strip()):
            return False
    return True


class _Reading:
    """The reading of one text."""

    def __init__(self, text: str, expressions: list[Expression], with_comments: bool) -> None:
        self._text = text
        self._expressions = expressions
        self._with_comments = with_comments
        self._word = "tplq"
        while self._word in text:
            self._word += "q"
        self._placeholder = re.compile(f"#{self._word}h([0-9]+)z|{self._word}v([0-9]+)z")
        self._content = Content(None)
        self._lines = [1]
        self._torn = False
        self._outside = [each for each in expressions if each.role is Role.DECLARE and each.alone]

    def content(self) -> Content:
        try:
            stand_in = self._stand_in()
            if self._with_comments and has_comments(stand_in):
                found = [self._comment(each) for each in collect(stand_in)]
                self._content.comments = [each for each in found if each.text.lstrip("# ")]
            self._parse(stand_in)
        except (yaml.YAMLError, ValueError) as cause:
            error = as_yaml_error(cause, stand_in)
            self._problem(self._lines[min(error.line, len(self._lines)) - 1] if error.line else 0, f"not YAML: {error}")
        if any(problem.message.startswith("not YAML") for problem in self._content.problems):
            left = [each for each in self._expressions if each.alone]
        else:
            left = [each for each in self._expressions if not each.seen]
        depth_of_line: dict[int, int] = {}
        for each in left:
            if each.alone and each.role is Role.OPEN:
                self._around_fields(each)
            elif each.alone and each.role is Role.ASSIGN:
                self._problem(each.line, f"{each.sets} is set again between fields: give it one value")
            elif not each.alone and each.role in (Role.OPEN, Role.CLOSE):
                step = 1 if each.role is Role.OPEN else -1
                depth_of_line[each.line] = depth_of_line.get(each.line, 0) + step
        for line, depth in depth_of_line.items():
            if depth:
                self._problem(line, "control flow begins or ends in a comment")
        self._content.problems.sort(key=lambda problem: problem.line)
        return self._content

    def _problem(self, line: int, message: str) -> None:
        self._content.problems.append(TextProblem(line, message))

    # --- to YAML

    def _stand_in(self) -> str:
        """Return the text with a placeholder word for each expression.

        An expression alone on its line becomes a comment: text inside a block, and nothing between fields.
        """
        parts: list[str] = []
        at, line, last = 0, 1, -1
        for number, each in enumerate(self._expressions):
            plain = self._text[at : each.start - len(each.before)]
            line = self._counted(plain, line)
            parts.append(plain)
            first_of_line = each.alone and (last < 0 or "\n" in self._text[self._expressions[last].end : each.start])
            parts.append(f"#{self._word}h{number}z" if first_of_line else f"{self._word}v{number}z")
            at, last = each.end + len(each.after), number
            line += self._text.count("\n", each.start, each.end)
        plain = self._text[at:]
        self._counted(plain, line)
        return "".join([*parts, plain])

    def _counted(self, plain: str, line: int) -> int:
        """Record the line in the text of each line of the placeholder text. Return the number of the last line."""
        breaks = plain.count("\n")
        self._lines += range(line + 1, line + breaks + 1)
        return line + breaks

    # --- and back

    def _parse(self, stand_in: str) -> None:
        """Build the value of the first document, with the original text of all scalars. Raises as `Parser` does."""
        document = Document(max(MAX_BYTES, MAX_RATIO * len(self._text)))
        count = 0
        for event in iter(Parser(stand_in).get_event, None):
            if event.__class__ is yaml.ScalarEvent and count == 1:
                self._restore(event)
                document.take_scalar(event)
                continue
            count += isinstance(event, yaml.DocumentStartEvent)
            if count == 1 and not isinstance(event, _FRAMING):
                document.take(event)
        self._content.value = document.value()
        if count > 1:
            self._problem(0, "the text has several YAML documents: only the first was ever read")

    def _comment(self, comment: Comment) -> Comment:
        """Return a comment as it was written. A comment that only stands for an expression has no text."""

        def source(match: re.Match[str]) -> str:
            each = self._expressions[int(match[1] or match[2])]
            return "" if each.alone else " ".join(self._text[each.start : each.end].split())

        text = self._placeholder.sub(source, comment.text)
        return replace(comment, text=text, line=self._lines[comment.line - 1])

    def _restore(self, node: yaml.ScalarEvent) -> None:
        if node.tag is None and not node.style and (node.value in _NULLS or node.value == "<<"):
            return
        if self._word in node.value:
            node.value = self._restored(node)
        elif BRACES in node.value:
            node.value = _escaped(node.value)
        if node.tag is None or node.tag in _OWN_TAGS:
            node.tag, node.style = "!", node.style or '"'

    def _restored(self, node: yaml.ScalarEvent) -> str:
        block = node.style == "|"
        parts: list[str] = []
        inside: list[Expression] = []
        at = 0
        for match in self._placeholder.finditer(node.value):
            each = self._expressions[int(match[1] or match[2])]
            each.seen = True
            inside.append(each)
            source = self._source(each, block)
            if each.unquoted and not node.style and match[0] == node.value:
                source = each.unquoted  # the quotes were YAML's, and are no part of the value
            parts += [_escaped(node.value[at : match.start()]), source]
            at = match.end()
        parts.append(_escaped(node.value[at:]))
        if not inside:
            return "".join(parts)
        opened: list[Expression] = []
        for each in inside:
            if each.role is Role.OPEN:
                opened.append(each)
            elif each.role is Role.CLOSE and opened:
                opened.pop()
            elif each.role in (Role.CLOSE, Role.MIDDLE) and not opened and not self._torn:
                opened.append(each)  # no expression before has opened it
                break
        if opened:
            self._torn = True
            self._around_fields(opened[0])
        loose = ""
        if not node.style:
            strip_silent(inside, parts)
            loose = "spaces" if strip_arms(inside, parts) else ""
        elif node.style == ">" and any(each.role is not Role.OUTPUT for each in inside):
            loose = "line breaks"
        elif block:
            loose = self._block_edges(inside, parts[0], parts[-1])
        text = "".join([*self._declarations(inside), *parts])
        if loose:
            self._content.edges[text] = loose
        self._content.lines.setdefault(text, inside[0].line)
        return text

    def _block_edges(self, inside: list[Expression], head: str, tail: str) -> str:
        """Return the kind of whitespace that may stay at the ends of a block.

        A dash that trims text outside of the block would join the block with it: a problem.
        """
        first, last = inside[0], inside[-1]
        starts, ends = not head.strip(), not tail.strip()
        if starts and first.trims_left and first.joins and not first.alone:
            self._problem(first.line, "the dash in {{- joins this with the line above: take it out")
        if ends and last.trims_right and last.joins and self._text[last.end :].strip():
            self._problem(last.line, "the dash in -}} joins this with the field below: take it out")
        begins_blank = starts and first.alone and first.trims_left
        ends_blank = ends and (last.alone or may_print_nothing(self._text, inside))
        return "blank lines" if begins_blank or ends_blank else ""

    def _source(self, each: Expression, block: bool) -> str:
        """Return the expression as it is written into a scalar."""
        if block:
            return each.before + self._text[each.start : each.end] + each.after
        if each.alone or each.joins:
            self._problem(
                each.line, "control flow over several lines is carried over in a block of text only: write it after |"
            )
        if each.role is Role.COMMENT:
            return ""
        return self._untrimmed(each)

    def _declarations(self, inside: list[Expression]) -> list[str]:
        """Return the outer declarations of variables that the expressions of one scalar use."""
        here = {each.sets for each in inside if each.role is Role.DECLARE}
        wanted = set[str]().union(*(each.uses for each in inside)) - here
        found: list[str] = []
        for each in reversed(self._outside if wanted else ()):
            if each.start < inside[0].start and each.sets in wanted:
                wanted = (wanted - {each.sets}) | (each.uses - {each.sets})
                found.append(self._untrimmed(each))
        return found[::-1]

    def _untrimmed(self, each: Expression) -> str:
        source = self._text[each.start : each.end]
        if each.trims_left:
            source = BRACES + source[3:]
        return source[:-3] + "}}" if each.trims_right else source

    # --- what has no place

    def _around_fields(self, each: Expression) -> None:
        self._problem(
            each.line,
            f"{{{{ {each.word} }}}} reaches over more than one field, and v1alpha2 renders each by itself: put it into "
            "the fields, or make a Template for each case",
        )


def _escaped(plain: str) -> str:
    """Escape braces that come from YAML escapes and were never an expression."""
    return plain.replace(BRACES, '{{ "{{" }}')
