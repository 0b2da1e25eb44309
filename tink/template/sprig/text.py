"""Sprig's functions of text: cutting, joining, quoting, wrapping, the case of words, and regular expressions.

snakecase, kebabcase and camelcase follow the library that Sprig uses (huandu/xstrings). A word begins at a capital that
follows a small letter. A run of capitals is one word, whose last letter belongs to the next word if small letters
follow ("HTTPStatus" is HTTP, Status). Digits belong to the word before them, unless small letters follow ("HTTP2xx" is
HTTP, 2xx).

Go's regular expressions are RE2's, and google-re2 is the same engine. Matching takes time in proportion to the text,
but the factor can be large: these functions are metered, and the size of a compiled pattern is bounded.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import re2

from tink.golang import fmt, strconv
from tink.golang.strconv import from_bytes, to_bytes
from tink.golang.values import CallError, Value
from tink.template.signatures import ANY, INT, STRING, Function, Functions, ParameterType, table
from tink.template.sprig.numbers import Spend, bounded, by_bytes, joined, on_text, text_of, texts_of

_CONNECTORS: Final = "-_"
GO_SPACE: Final = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004"
    "\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
_Word = Enum("_Word", "NONE NUMBER UPPER LOWER CONNECTOR PUNCTUATION OTHER")
_CLASSES: Final = {"Lu": "U", "Ll": "a", "Lt": "a", "Lm": "o", "Lo": "o", "Nd": "0", "Nl": "0", "No": "0"}
_TOKENS: Final = re.compile(
    "(?P<CONNECTOR>-+)|(?P<PUNCTUATION>p+)|(?P<UPPER>U+(?=Ua)|UU+|Ua+|U)|(?P<LOWER>a+)|(?P<NUMBER>0+)|(?P<OTHER>o+)"
)


def _class(char: str) -> str:
    """Return one letter for the kind of a character."""
    if char in _CONNECTORS or char in GO_SPACE:
        return "-"
    category = unicodedata.category(char)
    return "p" if category[0] == "P" else _CLASSES.get(category, "o")


def snake_case(text: str, connector: str = "_") -> str:
    """Return first_name for FirstName. With another connector, kebabcase: first-name."""
    words = [
        (_Word[found.lastgroup or "OTHER"], text[found.start() : found.end()])
        for found in _TOKENS.finditer("".join(map(_class, text)))
    ]
    words.append((_Word.NONE, ""))
    apart = (_Word.NONE, _Word.CONNECTOR, _Word.PUNCTUATION)
    out: list[str] = []
    at = 0

    def take() -> None:
        nonlocal at
        kind, word = words[at]
        if kind is _Word.CONNECTOR:
            out.append(connector * len(word))
        else:
            out.append("".join(map(_lower_rune, word)) if kind is _Word.UPPER else word)
        at += 1

    def take_lower_and_numbers() -> None:
        while words[at][0] in (_Word.LOWER, _Word.NUMBER):
            take()

    while words[at][0] is not _Word.NONE:
        kind = words[at][0]
        take()
        following = words[at][0]
        if kind in (_Word.CONNECTOR, _Word.PUNCTUATION) or following is _Word.NONE:
            continue
        if kind is _Word.NUMBER:
            take_lower_and_numbers()
        elif following is _Word.NUMBER:
            if words[at + 1][0] is _Word.LOWER:
                out.append(connector)
                take()
                take_lower_and_numbers()
            else:
                take()
        if words[at][0] not in apart:
            out.append(connector)
    return "".join(out)


def _lower_rune(char: str) -> str:
    """Return the small letter alone, as Go does. Python makes an i with another dot above of U+0130."""
    return char.lower()[0]


def camel_case(text: str) -> str:
    """Return FirstName for first_name. Connectors before the first letter stay."""
    start = next((at for at, char in enumerate(text) if _class(char) != "-"), len(text))
    if start >= len(text):
        return text + text[-1:]  # The last connector, too, is taken for a first letter.
    out = [text[:start]]
    before = text[start].upper() if len(text[start].upper()) == 1 else text[start]
    capitals = text[start].isupper()
    for char in text[start + 1 :]:
        joins, joined = _class(char) == "-", _class(before) == "-"
        if joins and joined:
            out.append(before)
        elif joined:
            capitals = char.isupper()
            char = char.upper() if len(char.upper()) == 1 else char
        else:
            if capitals:
                capitals = char.isupper()
                char = _lower_rune(char) if capitals else char
            out.append(before)
        before = char
    out.append(before)
    return "".join(out)


_REGEX_MEMORY: Final = 1 << 17  # Bounds the compiled pattern, and so the time for each character of the subject.
_MAX_MATCHES: Final = 10_000
_SYNTAX_ERROR: Final = "error parsing regexp"


def _regex(pattern: str) -> Any:
    """Compile a pattern. Go's and Google's RE2 have the same syntax, and match in linear time."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _REGEX_MEMORY
    try:
        return re2.compile(to_bytes(pattern), options)
    except re2.error as error:
        problem, _, where = from_bytes(error.args[0]).partition(": ")
        raise CallError(f"{_SYNTAX_ERROR}: {_GO_WORDS.get(problem, problem)}: `{where}`") from None


_GO_WORDS: Final = {
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "trailing \\": "trailing backslash at end of expression",
    "no argument for repetition operator": "missing argument to repetition operator",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid repetition size": "invalid repeat count",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid named capture group": "invalid named capture",
    "pattern too large - compile failed": "expression too large",
}
"""Messages of Go's engine for those of Google's that differ."""


def _matches(pattern: str, text: str) -> tuple[bytes, list[Any]]:
    """Return the subject as bytes, and the matches. As in Go, an empty match must not touch the one before."""
    raw = to_bytes(text)
    found = []
    end = -1
    for match in _regex(pattern).finditer(raw):
        # RE2 steps by bytes when it has matched nothing; within a character there is no match.
        inside = match.start() < len(raw) and raw[match.start()] & 0xC0 == 0x80
        if match.start() == match.end() and (match.start() == end or inside):
            continue
        found.append(match)
        end = match.end()
        if len(found) > _MAX_MATCHES:
            raise CallError(f"the pattern matches more than {_MAX_MATCHES} times")
    return raw, found


def _regex_match(pattern: str, text: str) -> bool:
    return _regex(pattern).search(to_bytes(text)) is not None


def _regex_find(pattern: str, text: str) -> str:
    match = _regex(pattern).search(to_bytes(text))
    return from_bytes(match.group()) if match else ""


def _regex_find_all(pattern: str, text: str, limit: int) -> Value:
    found = _matches(pattern, text)[1]
    return [from_bytes(match.group()) for match in (found if limit < 0 else found[:limit])]


def _regex_split(pattern: str, text: str, limit: int) -> Value:
    raw, found = _matches(pattern, text)
    if limit == 0:
        return []
    if pattern and not raw:
        return [""]
    parts: list[Value] = []
    start = end = 0
    for match in found if limit < 0 else found[:limit]:
        if limit > 0 and len(parts) == limit - 1:
            break
        end = match.start()
        if match.end() != 0:
            parts.append(from_bytes(raw[start:end]))
        start = match.end()
    if end != len(raw):
        parts.append(from_bytes(raw[start:]))
    return parts


_EXPANSION: Final = re.compile(rb"\$(?:(\$)|(\w+)|\{(\w+)\})")


def _regex_replace_all(pattern: str, text: str, replacement: str) -> str:
    raw, found = _matches(pattern, text)
    source = to_bytes(replacement)

    def expand(match: Any) -> bytes:
        def group(reference: re.Match[bytes]) -> bytes:
            if reference[1]:
                return b"$"
            name = reference[2] or reference[3]
            number = int(name) if name.isdigit() and len(name) < 5 else match.re.groupindex.get(name, -1)
            return (match.group(number) or b"") if 0 <= number <= match.re.groups else b""

        return _EXPANSION.sub(group, source)

    return _replaced(raw, found, expand)


def _regex_replace_literal(pattern: str, text: str, replacement: str) -> str:
    raw, found = _matches(pattern, text)
    literal = to_bytes(replacement)
    return _replaced(raw, found, lambda _match: literal)


def _replaced(raw: bytes, found: list[Any], replacement: Callable[[Any], bytes]) -> str:
    out = []
    size = end = 0
    for match in found:
        new = replacement(match)
        size += len(new)
        if size > fmt.MAX_CHARACTERS:
            raise CallError(f"the result is larger than {fmt.MAX_CHARACTERS} bytes")
        out += [raw[end : match.start()], new]
        end = match.end()
    out.append(raw[end:])
    return from_bytes(b"".join(out))


def _regular(name: str, call: Callable[..., Any], *after: ParameterType) -> Functions:
    """Return a function of a regular expression and a text, and its `must` variant, which fails on a bad expression."""
    parameters = (STRING, STRING, *after)
    insisting = f"must{name[0].upper()}{name[1:]}"

    def charged(spend: Spend, *arguments: Value) -> Value:
        # A match may take microseconds for each character.
        spend(100 + (sum(len(each) for each in arguments if type(each) is str) >> 2))
        return call(*arguments)

    def panicking(spend: Spend, pattern: str, *arguments: Value) -> Value:
        try:
            return charged(spend, pattern, *arguments)
        except CallError as error:
            if call is _regex_match:
                return False
            if not str(error).startswith(_SYNTAX_ERROR):
                raise
            shown = f"`{pattern}`" if strconv.can_backquote(pattern) else strconv.quote(pattern)
            raise CallError(f"regexp: Compile({shown}): {error}") from None

    return table(
        Function(name, panicking, parameters, metered=True), Function(insisting, charged, parameters, metered=True)
    )


REGEXES: Final[Functions] = {
    **_regular("regexMatch", _regex_match),
    **_regular("regexFind", _regex_find),
    **_regular("regexFindAll", _regex_find_all, INT),
    **_regular("regexReplaceAll", _regex_replace_all, STRING),
    **_regular("regexReplaceAllLiteral", _regex_replace_literal, STRING),
    **_regular("regexSplit", _regex_split, INT),
}


# --- upper and lower case ---------------------------------------------------------------------------------------


def _by_rune(convert: Callable[[str], str]) -> Callable[[str], str]:
    """Return a conversion that changes case rune by rune, as Go does: a rune that would become two stays."""

    def change(text: str) -> str:
        if text.isascii():
            return convert(text)
        return "".join(new if len(new := convert(char)) == 1 else char for char in text)

    return change


_upper: Final = _by_rune(str.upper)
_lower: Final = _by_rune(str.lower)
_title_rune: Final = _by_rune(str.title)


def _title(text: str) -> str:
    out = []
    before = " "
    for char in text:
        inside = (
            before == "_" or before.isalpha() or before.isdecimal() or (ord(before) > 127 and before not in GO_SPACE)
        )
        out.append(char if inside else _title_rune(char))
        before = char
    return "".join(out)


def _untitle(text: str) -> str:
    out = []
    begins = True
    for char in text:
        space = char in GO_SPACE
        out.append(_lower(char) if begins and not space else char)
        begins = space or (begins and space)
    return "".join(out)


def _swap_case(text: str) -> str:
    out = []
    after_space = True
    for char in text:
        category = unicodedata.category(char)
        if category in ("Lu", "Lt"):
            out.append(_lower(char))
            after_space = False
        elif category == "Ll":
            out.append(_title_rune(char) if after_space else _upper(char))
            after_space = False
        else:
            out.append(char)
            after_space = char in GO_SPACE
    return "".join(out)


def _initials(text: str) -> str:
    return "".join(
        char for before, char in zip(" " + text, text, strict=False) if before in GO_SPACE and char not in GO_SPACE
    )


# --- parts ------------------------------------------------------------------------------------------------------


def _trunc(length: int, text: str) -> str:
    raw = to_bytes(text)
    if length < 0:
        return from_bytes(raw[length:]) if len(raw) + length > 0 else text
    return from_bytes(raw[:length])


def _substr(start: int, end: int, text: str) -> str:
    raw = to_bytes(text)
    if start < 0:
        return from_bytes(raw[: _within(end, len(raw), "[:{}] with length {}")])
    if end < 0 or end > len(raw):
        return from_bytes(raw[_within(start, len(raw), "[{}:{}]") :])
    if start > end:
        raise CallError(f"runtime error: slice bounds out of range [{start}:{end}]")
    return from_bytes(raw[start:end])


def _within(bound: int, length: int, shown: str) -> int:
    if not 0 <= bound <= length:
        where = f"[:{bound}]" if bound < 0 else shown.format(bound, length)
        raise CallError(f"runtime error: slice bounds out of range {where}")
    return bound


def _abbrev(offset: int, width: int, text: str) -> str:
    if width < 4 or (offset > 0 and width < 7):
        return text
    return by_bytes(lambda raw: _abbreviated(raw, offset, width), text)


def _abbreviated(raw: bytes, offset: int, width: int) -> bytes:
    """Return at most `width` bytes from `offset` on. Dots replace the text that is left out."""
    if len(raw) <= width:
        return raw
    offset = min(offset, len(raw) - (width - 3))
    if offset <= 4:
        return raw[: width - 3] + b"..."
    if offset + width - 3 < len(raw):
        return b"..." + (_abbreviated(raw[offset:], 0, width - 3) if width >= 7 else b"")
    return b"..." + raw[len(raw) - (width - 3) :]


def _split_list(separator: str, text: str) -> list[Value]:
    return list(text.split(separator)) if separator else list(text)


def _split(separator: str, text: str) -> dict[str, Value]:
    return {f"_{index}": part for index, part in enumerate(_split_list(separator, text))}


def _splitn(separator: str, count: int, text: str) -> dict[str, Value]:
    if count < 0:
        return _split(separator, text)
    if not separator:
        parts = [*text[: count - 1], text[count - 1 :]] if len(text) > count - 1 else list(text)
    else:
        parts = text.split(separator, count - 1)
    return {f"_{index}": part for index, part in enumerate(parts if count else ())}


# --- made longer ------------------------------------------------------------------------------------------------


def _repeat(count: int, text: str) -> str:
    if count < 0:
        raise CallError("strings: negative Repeat count")
    bounded(count * len(text))
    return text * count


def _replace(old: str, new: str, text: str) -> str:
    bounded(len(text) + (text.count(old) + 1) * len(new))
    return text.replace(old, new)


def _indent(spaces: int, text: str) -> str:
    if spaces < 0:
        raise CallError("strings: negative Repeat count")
    bounded(len(text) + (text.count("\n") + 1) * spaces)
    pad = " " * spaces
    return pad + text.replace("\n", "\n" + pad)


def _wrapped(width: int, line_end: str, text: str, *, cut_words: bool) -> str:
    """Return lines of at most `width` bytes, broken at single spaces. Longer words are cut or kept."""
    raw, end = to_bytes(text), to_bytes(line_end)
    width = max(width, 1)
    bounded(len(raw) + (len(raw) // width + raw.count(b" ") + 1) * len(end))
    out = []
    at = 0
    while len(raw) - at > width:
        if raw[at] == 0x20:
            at += 1
            continue
        space = raw.rfind(b" ", at, at + width + 1)
        if space < 0 and cut_words:
            out += [raw[at : at + width], end]
            at += width
            continue
        if space < 0:
            space = raw.find(b" ", at + width)
        if space < 0:
            break
        out += [raw[at:space], end]
        at = space + 1
    out.append(raw[at:])
    return from_bytes(b"".join(out))


def _spaced(shown: Callable[[str], str]) -> Callable[..., str]:
    """Return a function that joins its arguments with spaces, each as `shown` writes it, without nils."""
    return lambda *arguments: joined(" ", [shown(text_of(value)) for value in arguments if value is not None])


_META: Final = re.compile(r"[\\.+*?()|\[\]{}^$]")

TEXT: Final[Functions] = table(
    Function("hello", lambda: "Hello!"),
    on_text("upper", _upper),
    on_text("lower", _lower),
    on_text("title", _title),
    on_text("untitle", _untitle),
    on_text("swapcase", _swap_case),
    on_text("initials", _initials),
    on_text("snakecase", snake_case),
    on_text("kebabcase", lambda text: snake_case(text, "-")),
    on_text("camelcase", camel_case),
    on_text("trim", lambda text: text.strip(GO_SPACE)),
    on_text("trimAll", lambda cut, text: text.strip(cut) if cut else text, STRING),
    on_text("trimall", lambda cut, text: text.strip(cut) if cut else text, STRING),
    on_text("trimPrefix", lambda prefix, text: text.removeprefix(prefix), STRING),
    on_text("trimSuffix", lambda suffix, text: text.removesuffix(suffix), STRING),
    on_text("nospace", lambda text: "".join(char for char in text if char not in GO_SPACE)),
    on_text("replace", _replace, STRING, STRING),
    on_text("repeat", _repeat, INT),
    on_text("trunc", _trunc, INT),
    on_text("substr", _substr, INT, INT),
    on_text("abbrev", lambda width, text: _abbrev(0, width, text), INT),
    on_text("abbrevboth", _abbrev, INT, INT),
    on_text("indent", _indent, INT),
    on_text("nindent", lambda spaces, text: "\n" + _indent(spaces, text), INT),
    on_text("wrap", lambda width, text: _wrapped(width, "\n", text, cut_words=False), INT),
    on_text("wrapWith", lambda width, end, text: _wrapped(width, end or "\n", text, cut_words=True), INT, STRING),
    on_text("regexQuoteMeta", lambda text: _META.sub(r"\\\g<0>", text)),
    Function("plural", lambda one, many, count: one if count == 1 else many, (STRING, STRING, INT)),
    Function("quote", _spaced(strconv.quote), (), ANY),
    Function("squote", _spaced("'{}'".format), (), ANY),
    Function("cat", _spaced(str), (), ANY),
    Function("toString", text_of, (ANY,)),
    Function("join", lambda separator, value: joined(separator, texts_of(value)), (STRING, ANY)),
    on_text("split", _split, STRING),
    on_text("splitn", _splitn, STRING, INT),
    on_text("splitList", _split_list, STRING),
)
