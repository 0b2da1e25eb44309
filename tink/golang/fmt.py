"""Go's `fmt` for template values: print, println, printf with every verb and flag that JSON-like values can meet.

Go never fails on a wrong verb; it prints what is wrong (`%!d(string=hi)`), and so do we: templates that are rendered
with the one and then with the other must not differ (package fmt, "Format errors"). Fails only, with CallError, when
the text would grow beyond `LARGEST` characters or values are nested deeper than `DEEPEST`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from tink.golang.values import CallError, Uint8, Value, type_name
from tink.golang.verbs import DEEPEST, LARGEST, PLAIN, Flags, Room, argument

__all__ = ["DEEPEST", "LARGEST", "Room", "sprint", "sprintf", "sprintln", "text_of"]

_WIDEST: Final = 1_000_000  # Go ignores a width or precision above this.
_FLAGS: Final = {"-": "minus", "+": "plus", "#": "sharp", " ": "space", "0": "zero"}


# --- print ------------------------------------------------------------------------------------------------------


def text_of(value: Value) -> str:
    """`%v`: how `print`, and an action that is just a value, show it."""
    if type(value) is str:
        return value
    if type(value) is int:
        return str(value)
    return argument(PLAIN, value, "v", Room())


def sprint(arguments: Sequence[Value]) -> str:
    """Go's Sprint: a space between two neighbours that are both no strings."""
    room = Room()
    out: list[str] = []
    after_string = True
    for value in arguments:
        is_string = type(value) is str
        if not (is_string or after_string):
            out.append(" ")
        out.append(argument(PLAIN, value, "v", room))
        after_string = is_string
    return "".join(out)


def sprintln(arguments: Sequence[Value]) -> str:
    """Go's Sprintln: always a space between, and a newline at the end."""
    room = Room()
    return " ".join([argument(PLAIN, value, "v", room) for value in arguments]) + "\n"


# --- printf -----------------------------------------------------------------------------------------------------


def sprintf(template: str, arguments: Sequence[Value]) -> str:
    """Go's Sprintf, with explicit argument indexes, `*` widths and Go's own reports of misuse in the text."""
    directives = _regular(template)
    if directives is None or len(directives) != len(arguments) + 1:
        return _Format(template, arguments).run()
    room: Room | None = None
    out = []
    for (before, verb, flags, integer_format), value in zip(directives, arguments, strict=False):
        out.append(before)
        if integer_format is not None and type(value) is int:
            out.append(format(value, integer_format))
        elif flags is PLAIN and type(value) is str and verb in "sv":
            out.append(value)
        else:
            if room is None:
                room = Room()
            out.append(argument(flags, value, verb, room))
    out.append(directives[-1][0])
    if sum(map(len, out)) > LARGEST:
        raise CallError(f"the text is larger than {LARGEST} characters")
    return "".join(out)


_DIRECTIVE: Final = re.compile(r"%([-+# 0]*)([1-9]\d{0,5})?(?:\.(\d{0,5}))?([a-zA-Z%])")


@lru_cache(256)
def _regular(template: str) -> list[tuple[str, str, Flags, str | None]] | None:
    """The directives of a format that takes its arguments in order: the text before, the verb, its flags, and for an
    integer that needs none of Go's peculiarities, Python's format. The last is only text. None: it is no such format.
    """
    if len(template) > 1000:
        return None
    directives: list[tuple[str, str, Flags, str | None]] = []
    before = ""
    at = 0
    while True:
        percent = template.find("%", at)
        if percent < 0:
            return [*directives, (before + template[at:], "", PLAIN, None)]
        found = _DIRECTIVE.match(template, percent)
        if found is None:
            return None
        before += template[at:percent]
        at = found.end()
        marks, width, precision, verb = found.groups()
        if verb == "%":
            before += "%"
            continue
        flags = Flags()
        for mark in marks:
            setattr(flags, _FLAGS[mark], True)
        flags.width = int(width) if width else None
        flags.precision = int(precision or 0) if precision is not None else None
        flags.for_verb(verb)
        integer_format = None
        if verb in "dv" and precision is None and not (flags.plus or flags.space or "#" in marks or "+" in marks):
            integer_format = ("<" if flags.minus else "0" if flags.zero else "") + (width or "") + "d"
            integer_format = "d" if width is None else integer_format
        plain = not marks and width is None and precision is None
        directives.append((before, verb, PLAIN if plain else flags, integer_format))
        before = ""


class _Format:
    """One run over a format string (Go: doPrintf)."""

    def __init__(self, template: str, arguments: Sequence[Value]) -> None:
        self.template = template
        self.arguments = arguments
        self.room = Room()
        self.out: list[str] = []
        self.at = 0
        self.argument = 0
        self.reordered = False
        self.index_is_good = True
        self.after_index = False

    def run(self) -> str:
        template, end = self.template, len(self.template)
        while True:
            percent = template.find("%", self.at)
            stop = end if percent < 0 else percent
            self.room.take(stop - self.at)
            self.out.append(template[self.at : stop])
            if percent < 0:
                break
            self.at = percent + 1
            self.index_is_good = True
            self.after_index = False
            flags = self._flags()
            self._width(flags)
            self._precision(flags)
            if not self.after_index:
                self._index()
            if self.at >= end:
                self.out.append("%!(NOVERB)")
                break
            verb = template[self.at]
            self.at += 1
            self._directive(flags, verb)
        if not self.reordered and self.argument < len(self.arguments):
            self.out.append(self._extra())
        return "".join(self.out)

    def _flags(self) -> Flags:
        flags = Flags()
        while name := _FLAGS.get(self.template[self.at : self.at + 1]):
            setattr(flags, name, True)
            self.at += 1
        self._index()
        return flags

    def _width(self, flags: Flags) -> None:
        if self.template[self.at : self.at + 1] == "*":
            self.at += 1
            flags.width = self._star()
            if flags.width is None:
                self.out.append("%!(BADWIDTH)")
            elif flags.width < 0:
                flags.width = -flags.width
                flags.minus = True
                flags.zero = False
            self.after_index = False
            return
        flags.width = self._number()
        if self.after_index and flags.width is not None:
            self.index_is_good = False

    def _precision(self, flags: Flags) -> None:
        # A dot that ends the format is taken for the verb.
        if self.at + 1 >= len(self.template) or self.template[self.at] != ".":
            return
        self.at += 1
        if self.after_index:
            self.index_is_good = False
        self._index()
        if self.template[self.at : self.at + 1] == "*":
            self.at += 1
            flags.precision = self._star()
            if flags.precision is not None and flags.precision < 0:
                flags.precision = None
            if flags.precision is None:
                self.out.append("%!(BADPREC)")
            self.after_index = False
            return
        flags.precision = self._number() or 0

    def _number(self) -> int | None:
        """Digits at the current place; a number too large to be meant swallows the rest of the format, as in Go."""
        start = self.at
        while self.at < len(self.template) and self.template[self.at] in "0123456789":
            if self.at - start > 7:
                self.at = len(self.template)
                return None
            self.at += 1
        if self.at == start:
            return None
        # Go looks at the size before it takes the next digit: only what is above before the last digit is too large.
        if self.at - start > 1 and int(self.template[start : self.at - 1]) > _WIDEST:
            self.at = len(self.template)
            return None
        return int(self.template[start : self.at])

    def _star(self) -> int | None:
        if self.argument >= len(self.arguments):
            return None
        value = self.arguments[self.argument]
        self.argument += 1
        if type(value) not in (int, Uint8) or abs(value) > _WIDEST:
            return None
        return int(value)

    def _index(self) -> None:
        """An explicit argument index, `[3]`, if one stands here."""
        if self.template[self.at : self.at + 1] != "[":
            self.after_index = False
            return
        self.reordered = True
        close = self.template.find("]", self.at)
        if close < 0 or len(self.template) - self.at < 3:
            self.index_is_good = False
            self.after_index = False
            self.at += 1
            return
        digits = self.template[self.at + 1 : close]
        well_formed = bool(digits) and digits.isascii() and digits.isdigit() and len(digits) < 8
        self.at = close + 1
        self.after_index = well_formed
        if well_formed and 1 <= int(digits) <= len(self.arguments):
            self.argument = int(digits) - 1
        else:
            self.index_is_good = False

    def _directive(self, flags: Flags, verb: str) -> None:
        if verb == "%":
            self.out.append("%")
        elif not self.index_is_good:
            self.out.append(f"%!{verb}(BADINDEX)")
        elif self.argument >= len(self.arguments):
            self.out.append(f"%!{verb}(MISSING)")
        else:
            flags.for_verb(verb)
            value = self.arguments[self.argument]
            self.argument += 1
            self.out.append(argument(flags, value, verb, self.room))

    def _extra(self) -> str:
        shown = [
            "<nil>" if value is None else f"{type_name(value)}={argument(PLAIN, value, 'v', self.room)}"
            for value in self.arguments[self.argument :]
        ]
        return "%!(EXTRA " + ", ".join(shown) + ")"
