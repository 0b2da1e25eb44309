"""Split template text into tokens (Go: text/template/parse, lex.go).

`lex` reads the whole text at once. An error does not raise here. It becomes an ERROR token, which the parser reports
with the line and in Go's words when it reaches the token. Trimming (`{{-`, `-}}`) and comments are done here; the
parser never sees them.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, NamedTuple

from tink.golang.strconv import quote

TokenKind = Enum(
    "TokenKind",
    "ERROR BOOL CHAR CHAR_CONSTANT COMPLEX ASSIGN DECLARE EOF FIELD IDENTIFIER LEFT_DELIM LEFT_PAREN NUMBER PIPE "
    "RAW_STRING RIGHT_DELIM RIGHT_PAREN SPACE STRING TEXT VARIABLE "
    "BLOCK BREAK CONTINUE DOT DEFINE ELSE END IF NIL RANGE TEMPLATE WITH",
)
"""The kind of a token. The last line has the keywords."""
_WORDS: Final = "block break continue define else end if nil range template with"
KEYWORDS: Final = {word: TokenKind[word.upper()] for word in _WORDS.split()}
_KEYWORD_KINDS: Final = frozenset(KEYWORDS.values()) | {TokenKind.DOT}


class Token(NamedTuple):
    """A piece of the text, with its position (characters from 0) and line (from 1)."""

    kind: TokenKind
    position: int
    text: str
    line: int

    def __str__(self) -> str:
        """Return the token as Go's error messages show it."""
        if self.kind is TokenKind.EOF:
            return "EOF"
        if self.kind is TokenKind.ERROR:
            return self.text
        if self.kind in _KEYWORD_KINDS:
            return f"<{self.text}>"
        if len(self.text.encode("utf-8", "replace")) > 10:
            return quote(self.text[:10]) + "..."
        return quote(self.text)


_SPACES: Final = " \t\r\n"
_SPACE_RUN = re.compile(r"[ \t\r\n]+")
_WORD = re.compile(r"\w*")
_COMMENT_END = re.compile(r"\*/([ \t\r\n]-)?\}\}")
_RIGHT_DELIM = re.compile(r"(?:[ \t\r\n]-)?\}\}")
_LEFT_TRIM = re.compile(r"-[ \t\r\n]")
_NUMBER = re.compile(
    r"[+-]?(?:0[xX][0-9a-fA-F_]*(?:\.[0-9a-fA-F_]*)?(?:[pP][+-]?[0-9_]*)?"
    r"|0[oO][0-7_]*(?:\.[0-7_]*)?"
    r"|0[bB][01_]*(?:\.[01_]*)?"
    r"|[0-9_]*(?:\.[0-9_]*)?(?:[eE][+-]?[0-9_]*)?)i?"
)
_QUOTED = {
    '"': (re.compile(r'(?:[^"\\\n]|\\[^\n])*"'), TokenKind.STRING, "unterminated quoted string"),
    "'": (re.compile(r"(?:[^'\\\n]|\\[^\n])*'"), TokenKind.CHAR_CONSTANT, "unterminated character constant"),
    "`": (re.compile(r"[^`]*`"), TokenKind.RAW_STRING, "unterminated raw quoted string"),
}
_SINGLE = {"=": TokenKind.ASSIGN, "|": TokenKind.PIPE}


class _LexError(Exception):
    """Ends the scan with an ERROR token. Its argument is the token's text."""


def lex(text: str) -> list[Token]:
    """Return all tokens of a template. The last one is EOF; an ERROR may precede it."""
    return _Lexer(text).tokens()


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.start = 0
        self.line = 1
        self.parens = 0
        self.out: list[Token] = []

    def tokens(self) -> list[Token]:
        try:
            while self._text():
                self._left_delim()
        except _LexError as broken:
            self.out.append(Token(TokenKind.ERROR, self.start, str(broken), self.line))
        self.out.append(Token(TokenKind.EOF, len(self.text), "EOF", self.line))
        return self.out

    def _emit(self, kind: TokenKind) -> None:
        """Add the text since the last token as a token."""
        text = self.text[self.start : self.at]
        self.out.append(Token(kind, self.start, text, self.line))
        self.line += text.count("\n")
        self.start = self.at

    def _skip(self, to: int) -> None:
        """Skip text without a token."""
        self.line += self.text.count("\n", self.start, to)
        self.at = self.start = to

    # --- outside of actions ---

    def _text(self) -> bool:
        """Read plain text up to the next action. Return False if there is no action."""
        opening = self.text.find("{{", self.at)
        if opening < 0:
            self.at = len(self.text)
            if self.at > self.start:
                self._emit(TokenKind.TEXT)
            return False
        self.at = opening
        if _LEFT_TRIM.match(self.text, opening + 2):
            self.at = self.start + len(self.text[self.start : opening].rstrip(_SPACES))
        if self.at > self.start:
            self._emit(TokenKind.TEXT)
        self._skip(opening)
        return True

    def _left_delim(self) -> None:
        """Read an action or a comment, with its delimiters."""
        after = self.at + 2
        inside = after + 2 if _LEFT_TRIM.match(self.text, after) else after
        if self.text.startswith("/*", inside):
            self._skip(inside)
            end = self.text.find("*/", self.at + 2)
            if end < 0:
                raise _LexError("unclosed comment")
            closing = _COMMENT_END.match(self.text, end)
            if closing is None:
                raise _LexError("comment ends before closing delimiter")
            self._skip(self._trimmed(closing.end()) if closing[1] else closing.end())
            return
        self.at = after
        self._emit(TokenKind.LEFT_DELIM)
        self._skip(inside)
        self.parens = 0
        while not self._inside():
            pass

    def _trimmed(self, at: int) -> int:
        spaces = _SPACE_RUN.match(self.text, at)
        return spaces.end() if spaces else at

    # --- inside of actions ---

    def _inside(self) -> bool:
        """Read one token of an action. Return True if the action has ended."""
        text, at = self.text, self.at
        closing = _RIGHT_DELIM.match(text, at)
        if closing is not None:
            if self.parens:
                raise _LexError("unclosed left paren")
            trim = closing.end() - at > 2
            if trim:
                self._skip(at + 2)
            self.at = closing.end()
            self._emit(TokenKind.RIGHT_DELIM)
            if trim:
                self._skip(self._trimmed(self.at))
            return True
        if at >= len(text):
            raise _LexError("unclosed action")
        char = text[at]
        if char in _SPACES:
            self._space()
        elif char in _SINGLE:
            self._take(1, _SINGLE[char])
        elif char in _QUOTED:
            self._quoted(*_QUOTED[char])
        elif char == "$":
            self._name(TokenKind.VARIABLE)
        elif char == "." and not ("0" <= text[at + 1 : at + 2] <= "9"):
            self._name(TokenKind.FIELD)
        elif char in "+-.0123456789":
            self._number()
        elif char == "_" or char.isalpha() or char.isdecimal():
            self.at = self._word_end(self.at)
            self._require_terminator()
            word = self.text[self.start : self.at]
            self._emit(KEYWORDS.get(word) or (TokenKind.BOOL if word in ("true", "false") else TokenKind.IDENTIFIER))
        else:
            self._punctuation(char)
        return False

    def _take(self, length: int, kind: TokenKind) -> None:
        self.at += length
        self._emit(kind)

    def _space(self) -> None:
        run = _SPACE_RUN.match(self.text, self.at)
        end = run.end() if run else self.at
        # The last space may belong to a trim marker of the closing delimiter.
        if self.text.startswith("-}}", end):
            end -= 1
        if end > self.at:
            self.at = end
            self._emit(TokenKind.SPACE)

    def _punctuation(self, char: str) -> None:
        if char == ":":
            if not self.text.startswith(":=", self.at):
                raise _LexError("expected :=")
            self._take(2, TokenKind.DECLARE)
        elif char == "(":
            self.parens += 1
            self._take(1, TokenKind.LEFT_PAREN)
        elif char == ")":
            self.parens -= 1
            if self.parens < 0:
                raise _LexError("unexpected right paren")
            self._take(1, TokenKind.RIGHT_PAREN)
        elif " " <= char <= "~":
            self._take(1, TokenKind.CHAR)
        else:
            raise _LexError(f"unrecognized character in action: {_unicode(char)}")

    def _quoted(self, pattern: re.Pattern[str], kind: TokenKind, complaint: str) -> None:
        found = pattern.match(self.text, self.at + 1)
        if found is None:
            raise _LexError(complaint)
        self.at = found.end()
        self._emit(kind)

    def _word_end(self, at: int) -> int:
        """Return the end of the letters, digits and underscores that start here."""
        found = _WORD.match(self.text, at)
        end = found.end() if found else at
        word = self.text[at:end]
        if not word.isascii():
            # \w also takes number signs such as U+00B2; Go takes letters and decimal digits only.
            for offset, char in enumerate(word):
                if not (char == "_" or char.isalpha() or char.isdecimal()):
                    return at + offset
        return end

    def _name(self, kind: TokenKind) -> None:
        """Read `.Field`, `$variable`, or the bare `.` and `$`."""
        self.at += 1
        if not self._at_terminator():
            self.at = self._word_end(self.at)
            self._require_terminator()
        elif kind is TokenKind.FIELD:
            kind = TokenKind.DOT
        self._emit(kind)

    def _number(self) -> None:
        # The pattern accepts some invalid numbers, which the parser refuses when it converts them.
        kind = TokenKind.NUMBER
        good = self._scan_number()
        if good and self.text[self.at : self.at + 1] in ("+", "-"):
            kind = TokenKind.COMPLEX
            good = self._scan_number() and self.text[self.at - 1] == "i"
        if not good:
            raise _LexError(f"bad number syntax: {quote(self.text[self.start : self.at])}")
        self._emit(kind)

    def _scan_number(self) -> bool:
        found = _NUMBER.match(self.text, self.at)
        self.at = found.end() if found else self.at
        if self._word_end(self.at) > self.at:
            self.at += 1
            return False
        return True

    def _at_terminator(self) -> bool:
        char = self.text[self.at : self.at + 1]
        return not char or char in " \t\r\n.,|:)(" or self.text.startswith("}}", self.at)

    def _require_terminator(self) -> None:
        if not self._at_terminator():
            raise _LexError(f"bad character {_unicode(self.text[self.at])}")


def _unicode(char: str) -> str:
    """Return a character as Go's `%#U` shows it."""
    shown = f" '{char}'" if char.isprintable() else ""
    return f"U+{ord(char):04X}{shown}"
