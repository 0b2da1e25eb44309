"""Go's `fmt` for template values: print, println, printf with every verb and flag that JSON-like values can meet.

Go never fails on a wrong verb; it prints the error (`%!d(string=hi)`), and so does this module, because a template must
render the same with both (package fmt, "Format errors"). Raises CallError only when
the text would grow beyond `MAX_CHARACTERS` characters or values are nested deeper than `MAX_DEPTH`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from copy import copy
from functools import lru_cache
from typing import Final

from tink.golang import strconv
from tink.golang.values import CallError, Struct, Uint8, Value, type_name

MAX_CHARACTERS: Final = 1 << 20
MAX_DEPTH: Final = 100

_MAX_WIDTH: Final = 1_000_000  # Go ignores a width or precision above this.
_FLAGS: Final = {"-": "minus", "+": "plus", "#": "sharp", " ": "space", "0": "zero"}


# --- print ------------------------------------------------------------------------------------------------------


def text_of(value: Value) -> str:
    """Return the text of `%v`, which `print` and a template action with a value show."""
    if type(value) is str:
        return value
    if type(value) is int:
        return str(value)
    return argument(PLAIN, value, "v", Room())


def sprint(arguments: Sequence[Value]) -> str:
    """Return Go's Sprint: a space between two neighbours if neither is a string."""
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
    """Return Go's Sprintln: a space between all values, and a newline at the end."""
    room = Room()
    return " ".join([argument(PLAIN, value, "v", room) for value in arguments]) + "\n"


# --- printf -----------------------------------------------------------------------------------------------------


def sprintf(template: str, arguments: Sequence[Value]) -> str:
    """Return Go's Sprintf, with explicit argument indexes, `*` widths and Go's error texts."""
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
    if sum(map(len, out)) > MAX_CHARACTERS:
        raise CallError(f"the text is larger than {MAX_CHARACTERS} characters")
    return "".join(out)


_DIRECTIVE: Final = re.compile(r"%([-+# 0]*)([1-9]\d{0,5})?(?:\.(\d{0,5}))?([a-zA-Z%])")


@lru_cache(256)
def _regular(template: str) -> list[tuple[str, str, Flags, str | None]] | None:
    """Return the directives of a format that takes its arguments in order; None for any other format.

    Each has the text before it, the verb, its flags, and Python's format for an integer without peculiarities of Go.
    The last one is only text.
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
            flags = Flags()
            while name := _FLAGS.get(self.template[self.at : self.at + 1]):
                setattr(flags, name, True)
                self.at += 1
            self._index()
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
            shown = [
                "<nil>" if value is None else f"{type_name(value)}={argument(PLAIN, value, 'v', self.room)}"
                for value in self.arguments[self.argument :]
            ]
            self.out.append("%!(EXTRA " + ", ".join(shown) + ")")
        return "".join(self.out)

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
        """Return the number at the current place; a far too large one skips the rest of the format, as in Go."""
        start = self.at
        while self.at < len(self.template) and self.template[self.at] in "0123456789":
            if self.at - start > 7:
                self.at = len(self.template)
                return None
            self.at += 1
        if self.at == start:
            return None
        # Go looks at the size before it takes the next digit: only what is above before the last digit is too large.
        if self.at - start > 1 and int(self.template[start : self.at - 1]) > _MAX_WIDTH:
            self.at = len(self.template)
            return None
        return int(self.template[start : self.at])

    def _star(self) -> int | None:
        if self.argument >= len(self.arguments):
            return None
        value = self.arguments[self.argument]
        self.argument += 1
        if type(value) not in (int, Uint8) or abs(value) > _MAX_WIDTH:
            return None
        return int(value)

    def _index(self) -> None:
        """Process an explicit argument index such as `[3]`, if there is one here."""
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


# --- one value for one verb -------------------------------------------------------------------------------------------


class Room:
    """The number of characters that may still be written."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_CHARACTERS

    def take(self, count: int) -> None:
        """Count characters. Raises CallError if the text becomes too large."""
        self.left -= count
        if self.left < 0:
            raise CallError(f"the text is larger than {MAX_CHARACTERS} characters")


class Flags:
    """The flags, width and precision of one directive."""

    __slots__ = ("minus", "plus", "plus_v", "precision", "sharp", "sharp_v", "space", "width", "zero")

    def __init__(self) -> None:
        self.minus = self.plus = self.sharp = self.space = self.zero = self.plus_v = self.sharp_v = False
        self.width: int | None = None
        self.precision: int | None = None

    def for_verb(self, verb: str) -> None:
        """Note that for %v, `#` and `+` select another syntax, and not another form of the numbers in it."""
        if verb in "vw":
            self.sharp_v, self.sharp = self.sharp, False
            self.plus_v, self.plus = self.plus, False


PLAIN: Final = Flags()
"""No flag, no width, no precision."""


def argument(flags: Flags, value: Value, verb: str, room: Room) -> str:
    """Return the text of a value for a verb (Go: printArg). Raises CallError."""
    if value is None:
        return _pad(flags, "<nil>", room) if verb in "Tv" else f"%!{verb}(<nil>)"
    if verb == "T":
        return _string(flags, type_name(value), "s", room, 0)
    return _formatted(flags, value, verb, room, 0)


def _formatted(flags: Flags, value: Value, verb: str, room: Room, depth: int) -> str:
    if depth > MAX_DEPTH:
        raise CallError(f"the value is nested deeper than {MAX_DEPTH}")
    formatter = _FORMATTERS.get(type(value))
    if formatter is None:
        raise CallError(f"can't print a {type(value).__name__}")
    if depth == 0 and verb in "pw" and formatter in (_slice, _map, _struct):
        return _bad_verb(flags, value, verb, room, depth)
    return formatter(flags, value, verb, room, depth)


def _bad_verb(flags: Flags, value: Value, verb: str, room: Room, depth: int) -> str:
    room.take(len(verb) + 8)
    return f"%!{verb}({type_name(value)}={_formatted(flags, value, 'v', room, depth)})"


def _pad(flags: Flags, text: str, room: Room, *, zeros: bool = True) -> str:
    room.take(max(len(text), flags.width or 0) + 1)
    if not flags.width or len(text) >= flags.width:
        return text
    if flags.minus:
        return text.ljust(flags.width)
    return text.rjust(flags.width, "0" if zeros and flags.zero else " ")


def _boolean(flags: Flags, value: bool, verb: str, room: Room, depth: int) -> str:
    if verb not in "tv":
        return _bad_verb(flags, value, verb, room, depth)
    return _pad(flags, "true" if value else "false", room)


def _string(flags: Flags, value: str, verb: str, room: Room, depth: int) -> str:
    if verb not in "vsqxX":
        return _bad_verb(flags, value, verb, room, depth)
    if verb in "xX":
        return _hex_string(flags, value, verb, room)
    room.take(len(value))
    text = value if flags.precision is None else value[: flags.precision]
    if verb == "q" or (verb == "v" and flags.sharp_v):
        if flags.sharp and strconv.can_backquote(text):
            text = f"`{text}`"
        else:
            text = strconv.quote(text, ascii_only=flags.plus)
    return _pad(flags, text, room)


def _hex_string(flags: Flags, value: str, verb: str, room: Room) -> str:
    raw = strconv.to_bytes(value)[: flags.precision]
    room.take(5 * len(raw))
    prefix = ("0X" if verb == "X" else "0x") if flags.sharp else ""
    digits = raw.hex(" ") if flags.space else raw.hex()
    digits = digits.upper() if verb == "X" else digits
    text = (prefix + digits.replace(" ", " " + prefix)) if raw else ""
    return _pad(flags, text, room)


def _integer_value(flags: Flags, value: int, verb: str, room: Room, depth: int) -> str:
    signed = type(value) is not Uint8
    if verb in "vd":
        if verb == "v" and flags.sharp_v and not signed:
            return _pad(flags, f"0x{int(value):x}", room)
        return _integer(flags, value, "d", "", room)
    if verb in "box":
        return _integer(flags, value, verb, {"b": "0b", "o": "0", "x": "0x"}[verb], room)
    if verb == "X":
        return _integer(flags, value, "X", "0X", room)
    if verb == "O":
        return _integer(flags, value, "o", "0", room, always="0o")
    if verb == "c":
        return _pad(flags, strconv.rune(value), room)
    if verb == "q":
        return _pad(flags, strconv.quote_rune(value, ascii_only=flags.plus), room)
    if verb == "U":
        return _unicode(flags, value, room)
    return _bad_verb(flags, value, verb, room, depth)


def _integer(flags: Flags, value: int, base: str, prefix: str, room: Room, *, always: str = "") -> str:
    magnitude = abs(value)
    precision = 0
    if flags.precision is not None:
        precision = flags.precision
        if precision == 0 and value == 0:
            room.take(flags.width or 0)
            return " " * (flags.width or 0)
    elif flags.zero and not flags.minus and flags.width is not None:
        precision = flags.width - (value < 0 or flags.plus or flags.space)
    room.take(precision)
    digits = format(magnitude, base).rjust(precision, "0")
    if flags.sharp and not (base == "o" and digits[0] == "0"):
        digits = prefix + digits
    digits = always + digits
    sign = "-" if value < 0 else "+" if flags.plus else " " if flags.space else ""
    return _pad(flags, sign + digits, room, zeros=False)


def _unicode(flags: Flags, value: int, room: Room) -> str:
    code = value & strconv.UINT64_MAX
    precision = max(4, flags.precision or 0)
    room.take(precision)
    text = f"U+{code:0{precision}X}"
    if flags.sharp and code <= strconv.MAX_RUNE and chr(code).isprintable():
        text += f" '{chr(code)}'"
    return _pad(flags, text, room, zeros=False)


def _float_value(flags: Flags, value: float, verb: str, room: Room, depth: int) -> str:
    if verb not in "vbgGxXfFeE":
        return _bad_verb(flags, value, verb, room, depth)
    precision = flags.precision
    if precision is None:
        precision = 6 if verb in "fFeE" else -1
    room.take(precision + 330)
    style = {"v": "g", "F": "f"}.get(verb, verb)
    text = strconv.format_float(value, style, precision)
    if text[0] not in "+-":
        text = "+" + text
    if flags.space and text[0] == "+" and not flags.plus:
        text = " " + text[1:]
    if text[1] in "IN":
        if text[1] == "N" and not flags.space and not flags.plus:
            text = text[1:]
        return _pad(flags, text, room, zeros=False)
    if flags.sharp and verb != "b":
        text = _with_point(text, style, precision)
    if not flags.plus and text[0] == "+":
        return _pad(flags, text[1:], room)
    if flags.zero and not flags.minus and flags.width is not None and flags.width > len(text):
        room.take(flags.width)
        return text[0] + text[1:].rjust(flags.width - 1, "0")
    return _pad(flags, text, room)


def _complex_value(flags: Flags, value: complex, verb: str, room: Room, depth: int) -> str:
    """Return a complex number, such as (1+2i): both parts like floats, the second one with its sign.

    Only constants are complex.
    """
    if verb not in "vbgGxXfFeE":
        return _bad_verb(flags, value, verb, room, depth)
    signed = copy(flags)
    signed.plus = True
    real = _float_value(flags, value.real, verb, room, depth)
    return f"({real}{_float_value(signed, value.imag, verb, room, depth)}i)"


def _with_point(text: str, style: str, precision: int) -> str:
    """Apply the `#` flag: always a decimal point, and the zeros that %g would drop."""
    wanted = 0
    if style in "gGx":
        wanted = 6 if precision == -1 else precision
    end = len(text)
    for letter in "pP" if style in "xX" else "eE":
        found = text.find(letter)
        end = found if found >= 0 else end
    number, tail = text[:end], text[end:]
    # Digits count from the first that is not zero. Go counts the x of 0x, too.
    significant = number[1:].replace(".", "").lstrip("0")
    wanted -= len(significant)
    if "." not in number:
        if number[1:] == "0":
            wanted -= 1
        number += "."
    return number + "0" * max(0, wanted) + tail


def _slice(flags: Flags, value: list[Value], verb: str, room: Room, depth: int) -> str:
    room.take(2 + len(value))
    parts = [_element(flags, item, verb, room, depth) for item in value]
    if flags.sharp_v:
        return f"{type_name(value)}{{{', '.join(parts)}}}"
    return f"[{' '.join(parts)}]"


def _map(flags: Flags, value: dict[str, Value], verb: str, room: Room, depth: int) -> str:
    room.take(5 + 2 * len(value))
    parts = [
        f"{_string(flags, key, verb, room, depth)}:{_element(flags, value[key], verb, room, depth)}"
        for key in sorted(value)
    ]
    if flags.sharp_v:
        return f"{type_name(value)}{{{', '.join(parts)}}}"
    return f"map[{' '.join(parts)}]"


def _struct(flags: Flags, value: Struct, verb: str, room: Room, depth: int) -> str:
    if value.text is not None and verb in "vsxXq" and not flags.sharp_v:
        return _string(flags, value.text, verb, room, depth)
    named = flags.plus_v or flags.sharp_v
    parts = [
        (f"{name}:" if named else "") + _formatted(flags, item, verb, room, depth + 1)
        for name, item in value.fields.items()
    ]
    room.take(sum(map(len, value.fields)) + 4)
    if flags.sharp_v:
        return f"{value.type_name}{{{', '.join(parts)}}}"
    return f"{{{' '.join(parts)}}}"


def _element(flags: Flags, value: Value, verb: str, room: Room, depth: int) -> str:
    """Return an element of a map or slice; nil has the same text for every verb."""
    if value is None:
        return "interface {}(nil)" if flags.sharp_v else "<nil>"
    return _formatted(flags, value, verb, room, depth + 1)


_Formatter = Callable[[Flags, Value, str, Room, int], str]
_FORMATTERS: Final[dict[type, _Formatter]] = {
    bool: _boolean,
    int: _integer_value,
    Uint8: _integer_value,
    float: _float_value,
    complex: _complex_value,
    str: _string,
    list: _slice,
    dict: _map,
    Struct: _struct,
    type(None): _element,
}
