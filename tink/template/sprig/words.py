"""snakecase, kebabcase and camelcase, with the rules of the library that Sprig uses for them (huandu/xstrings).

Words begin at capitals that follow small letters; a run of capitals is one word, whose last letter belongs to the next
word if small letters follow ("HTTPStatus" is HTTP, Status); digits belong to the word before them, unless small
letters follow ("HTTP2xx" is HTTP, 2xx).
"""

from __future__ import annotations

import re
import unicodedata
from enum import Enum, auto
from typing import Final

_CONNECTORS: Final = "-_"
_SPACES: Final = frozenset("\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | {
    chr(code) for code in range(0x2000, 0x200B)
}


class _Word(Enum):
    NONE = auto()
    NUMBER = auto()
    UPPER = auto()
    LOWER = auto()
    CONNECTOR = auto()
    PUNCTUATION = auto()
    OTHER = auto()


_CLASSES: Final = {"Lu": "U", "Ll": "a", "Lt": "a", "Lm": "o", "Lo": "o", "Nd": "0", "Nl": "0", "No": "0"}
_TOKENS: Final = re.compile(
    "(?P<CONNECTOR>-+)|(?P<PUNCTUATION>p+)|(?P<UPPER>U+(?=Ua)|UU+|Ua+|U)|(?P<LOWER>a+)|(?P<NUMBER>0+)|(?P<OTHER>o+)"
)


def _class(char: str) -> str:
    """One letter for the kind of a character."""
    if char in _CONNECTORS or char in _SPACES:
        return "-"
    category = unicodedata.category(char)
    return "p" if category[0] == "P" else _CLASSES.get(category, "o")


def _words(text: str) -> list[tuple[_Word, str]]:
    classes = "".join(map(_class, text))
    return [
        (_Word[found.lastgroup or "OTHER"], text[found.start() : found.end()]) for found in _TOKENS.finditer(classes)
    ]


def snake_case(text: str) -> str:
    """first_name for FirstName."""
    return _joined_by("_", text)


def kebab_case(text: str) -> str:
    """first-name for FirstName."""
    return _joined_by("-", text)


def _joined_by(connector: str, text: str) -> str:
    words = _words(text)
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
            out.append("".join(map(_lower, word)) if kind is _Word.UPPER else word)
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


def _lower(char: str) -> str:
    """The small letter alone, as in Go; to Python, that of U+0130 is an i with another dot above it."""
    return char.lower()[0]


def camel_case(text: str) -> str:
    """FirstName for first_name; connectors before the first letter stay."""
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
                char = _lower(char) if capitals else char
            out.append(before)
        before = char
    out.append(before)
    return "".join(out)
