"""The expressions in a Template's text: from where to where each goes, what it does, and what its dashes trim.

They are found by Go's own lexer, before the text around them is read as YAML (`template_text`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise

from tink.template.lexer import Kind, Token

BRACES = "{{"

_OPENING = (Kind.IF, Kind.RANGE, Kind.WITH, Kind.DEFINE, Kind.BLOCK)
_CONTROL = (*_OPENING, Kind.ELSE, Kind.END, Kind.BREAK, Kind.CONTINUE)
_QUOTING = ("quote", "squote")


class Role(Enum):
    """What an expression does to the text."""

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
    """From `{{` to `}}`."""

    start: int
    end: int
    line: int
    role: Role
    word: str
    """Its keyword, for messages."""
    trims_left: bool
    trims_right: bool
    uses: set[str]
    sets: str
    unquoted: str
    """Without the function that puts its value in quotes for YAML; empty if there is none."""
    alone: bool = False
    """There is nothing else on its line but other such, and all of them print nothing."""
    joins: bool = False
    """It trims a line break."""
    before: str = ""
    after: str = ""
    """Spaces in its line that it trims."""
    seen: bool = False


def find(text: str, tokens: list[Token]) -> list[Expression]:
    """The expressions of a text, in order; `tokens` are those of Go's lexer, without an error among them."""
    expressions = list(_each(text, tokens))
    _mark_alone(text, expressions)
    _mark_trimmed(text, expressions)
    return expressions


def _each(text: str, tokens: list[Token]) -> Iterator[Expression]:
    ends = {token.position: index for index, token in enumerate(tokens) if token.kind is Kind.LEFT_DELIM}
    at, line, counted = 0, 1, 0
    while (start := text.find(BRACES, at)) >= 0:
        line += text.count("\n", counted, start)
        counted = start
        index = ends.get(start)
        if index is None:
            end = text.find("}}", text.find("*/", start)) + 2
            inside: list[Token] = []
        else:
            stop = next(at for at in range(index, len(tokens)) if tokens[at].kind is Kind.RIGHT_DELIM)
            end = tokens[stop].position + 2
            inside = [token for token in tokens[index + 1 : stop] if token.kind is not Kind.SPACE]
        role, sets = _role(inside)
        yield Expression(
            start,
            end,
            line,
            role,
            inside[0].text if inside else "",
            trims_left=text[start + 2] == "-" and text[start + 3] in " \t\r\n",
            trims_right=text[end - 3] == "-" and text[end - 4] in " \t\r\n",
            uses={token.text for token in inside if token.kind is Kind.VARIABLE and token.text != "$"},
            sets=sets,
            unquoted=_unquoted(text, start, inside) if role is Role.OUTPUT else "",
        )
        at = end


def _role(inside: list[Token]) -> tuple[Role, str]:
    if not inside:
        return Role.COMMENT, ""
    kind = inside[0].kind
    if kind in _CONTROL:
        return Role.OPEN if kind in _OPENING else Role.CLOSE if kind is Kind.END else Role.MIDDLE, ""
    if kind is Kind.VARIABLE and len(inside) > 1:
        if inside[1].kind is Kind.DECLARE:
            return Role.DECLARE, inside[0].text
        if inside[1].kind is Kind.ASSIGN:
            return Role.ASSIGN, inside[0].text
    return Role.OUTPUT, ""


def _unquoted(text: str, start: int, inside: list[Token]) -> str:
    """`{{ .x | quote }}` or `{{ quote .x }}` as `{{ .x }}`."""
    if len(inside) > 2 and inside[-1].text in _QUOTING and inside[-2].kind is Kind.PIPE:
        return text[start : inside[-2].position].rstrip() + " }}"
    pipes = any(token.kind is Kind.PIPE for token in inside)
    if len(inside) > 1 and inside[0].text in _QUOTING and not pipes:
        return (
            text[start : start + 2]
            + text[inside[0].position + len(inside[0].text) : inside[-1].position]
            + (f"{inside[-1].text} }}}}")
        )
    return ""


def _mark_alone(text: str, expressions: list[Expression]) -> None:
    """Mark expressions in lines that consist of nothing else and print nothing."""
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


def _mark_trimmed(text: str, expressions: list[Expression]) -> None:
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


def strip_silent(inside: list[Expression], parts: list[str]) -> None:
    """Take away spaces that only expressions which print nothing hold from the ends; `parts` are texts and
    expressions in turn."""
    for index, each in enumerate(inside):
        if each.role not in SILENT or parts[2 * index]:
            break
        parts[2 * index + 2] = parts[2 * index + 2].lstrip(" ")
    for index in range(len(inside) - 1, -1, -1):
        if inside[index].role not in SILENT or parts[2 * index + 2]:
            break
        parts[2 * index] = parts[2 * index].rstrip(" ")


def strip_arms(inside: list[Expression], parts: list[str]) -> bool:
    """`{{ if .x }} a {{ else }} b {{ end }}` without quotes: YAML took away the spaces around what came of it.

    `parts` are texts and expressions in turn. True: there may be spaces left.
    """
    # What prints nothing may stand before the first arm and behind the last.
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
    # Within an arm there may be some again, which print spaces or nothing at its ends.
    return any(each.role is not Role.OUTPUT for index, each in enumerate(inside) if index not in edges)
