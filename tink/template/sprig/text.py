"""Sprig's functions of text: cutting, joining, quoting, wrapping, and the forms of words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Final

from tink.golang import strconv
from tink.golang.strconv import from_bytes, to_bytes
from tink.golang.values import CallError, Value
from tink.template.signatures import ANY, INT, STRING, Function, Functions, table
from tink.template.sprig.conversions import bounded, by_bytes, joined, on_text, text_of, texts_of
from tink.template.sprig.words import camel_case, kebab_case, snake_case

GO_SPACE: Final = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004"
    "\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)


# --- upper and lower case ---------------------------------------------------------------------------------------


def _by_rune(convert: Callable[[str], str]) -> Callable[[str], str]:
    """Go changes case rune by rune: what would become two runes stays."""

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


def _abbrev(width: int, text: str) -> str:
    return text if width < 4 else by_bytes(lambda raw: _abbreviated(raw, 0, width), text)


def _abbrev_both(offset: int, width: int, text: str) -> str:
    if width < 4 or (offset > 0 and width < 7):
        return text
    return by_bytes(lambda raw: _abbreviated(raw, offset, width), text)


def _abbreviated(raw: bytes, offset: int, width: int) -> bytes:
    """At most `width` bytes, from `offset` on; dots stand for what is left out before and behind."""
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


def _numbered(parts: list[Value]) -> dict[str, Value]:
    return {f"_{index}": part for index, part in enumerate(parts)}


def _split(separator: str, text: str) -> dict[str, Value]:
    return _numbered(_split_list(separator, text))


def _splitn(separator: str, count: int, text: str) -> dict[str, Value]:
    if count < 0:
        return _split(separator, text)
    if count == 0:
        return {}
    if not separator:
        return _numbered([*text[: count - 1], text[count - 1 :]] if len(text) > count - 1 else list(text))
    return _numbered(list(text.split(separator, count - 1)))


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


def _wrap_with(width: int, line_end: str, text: str) -> str:
    return _wrapped(width, line_end or "\n", text, cut_words=True)


def _wrapped(width: int, line_end: str, text: str, *, cut_words: bool) -> str:
    """Lines of at most `width` bytes, broken at single spaces; longer words are cut, or stay."""
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


def _quote(*arguments: Value) -> str:
    return joined(" ", [strconv.quote(text_of(value)) for value in arguments if value is not None])


def _squote(*arguments: Value) -> str:
    return joined(" ", [f"'{text_of(value)}'" for value in arguments if value is not None])


def _cat(*arguments: Value) -> str:
    return joined(" ", [text_of(value) for value in arguments if value is not None])


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
    on_text("kebabcase", kebab_case),
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
    on_text("abbrev", _abbrev, INT),
    on_text("abbrevboth", _abbrev_both, INT, INT),
    on_text("indent", _indent, INT),
    on_text("nindent", lambda spaces, text: "\n" + _indent(spaces, text), INT),
    on_text("wrap", lambda width, text: _wrapped(width, "\n", text, cut_words=False), INT),
    on_text("wrapWith", _wrap_with, INT, STRING),
    on_text("regexQuoteMeta", lambda text: _META.sub(r"\\\g<0>", text)),
    Function("plural", lambda one, many, count: one if count == 1 else many, (STRING, STRING, INT)),
    Function("quote", _quote, (), ANY),
    Function("squote", _squote, (), ANY),
    Function("cat", _cat, (), ANY),
    Function("toString", text_of, (ANY,)),
    Function("join", lambda separator, value: joined(separator, texts_of(value)), (STRING, ANY)),
    on_text("split", _split, STRING),
    on_text("splitn", _splitn, STRING, INT),
    on_text("splitList", _split_list, STRING),
)
