"""From the text of an expression to its tokens (the lexical part of CEL's grammar).

What is no token is reported and skipped, as Kubernetes does, so that one report names every slip.
"""

from dataclasses import dataclass

from tink.kubeapi.cel.errors import Issue

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
class Token:
    """`kind` is the symbol or word itself, or INT, UINT, FLOAT, STRING, BYTES, IDENT, ESC_IDENT, EOF."""

    kind: str
    text: str
    offset: int


class _UnterminatedError(Exception):
    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


def _escape_length(text: str, at: int) -> int:
    """Length of the escape sequence at a backslash; 0 if it is none."""
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
    """The end of the string literal whose quote stands at `at`.

    Raises _UnterminatedError: with the offset of the character that is wrong.
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
    """Kind and end of the number that starts at `at` (a digit, or a point before a digit)."""
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


def _word(text: str, at: int) -> Token:
    """An identifier, a word of the language, or a literal with a prefix."""
    size = len(text)
    end = at + 1
    while end < size and text[end] in _IDENT:
        end += 1
    word = text[at:end]
    if end < size and text[end] in "\"'" and word.lower() in ("r", "b", "br"):
        close = _string_end(text, end, raw=word[-1] in "rR")
        return Token("BYTES" if word[0] in "bB" else "STRING", text[at:close], at)
    return Token(word if word in _WORDS else "IDENT", word, at)


def _escaped_ident(text: str, at: int) -> Token:
    end = at + 1
    while end < len(text) and text[end] in _ESCAPED_IDENT:
        end += 1
    if end == at + 1 or text[end : end + 1] != "`":
        raise _UnterminatedError(end)
    return Token("ESC_IDENT", text[at : end + 1], at)


def _next(text: str, at: int) -> Token:
    char = text[at]
    if char in _LETTERS:
        return _word(text, at)
    if char in _DIGITS or (char == "." and text[at + 1 : at + 2] in _DIGITS and at + 1 < len(text)):
        kind, end = _number(text, at)
        return Token(kind, text[at:end], at)
    if char in "\"'":
        return Token("STRING", text[at : _string_end(text, at, raw=False)], at)
    pair = text[at : at + 2]
    if pair in _OPERATORS:
        return Token(pair, pair, at)
    if char in _SINGLE:
        return Token(char, char, at)
    if char == "`":
        return _escaped_ident(text, at)
    # '=', '&' and '|' begin an operator: the character after them is part of what is not understood.
    raise _UnterminatedError(at + 1 if char in "=&|" else at)


def tokens(text: str) -> tuple[list[Token], list[Issue]]:
    """All tokens, ended by EOF, and what could not be read."""
    found: list[Token] = []
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
    found.append(Token("EOF", "<EOF>", size))
    return found, issues
