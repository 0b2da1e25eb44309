"""One value for one verb, as Go's `fmt` prints it: what is below `tink.golang.fmt`, which reads formats."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Final

from tink.golang import strconv
from tink.golang.values import CallError, Struct, Uint8, Value, type_name

LARGEST: Final = 1 << 20
DEEPEST: Final = 100


class Room:
    """How many characters may still be written."""

    __slots__ = ("left",)

    def __init__(self, left: int = LARGEST) -> None:
        self.left = left

    def take(self, count: int) -> None:
        """Raises CallError when the text becomes too large."""
        self.left -= count
        if self.left < 0:
            raise CallError(f"the text is larger than {LARGEST} characters")


class Flags:
    """The flags, width and precision of one directive."""

    __slots__ = ("minus", "plus", "plus_v", "precision", "sharp", "sharp_v", "space", "width", "zero")

    def __init__(self) -> None:
        self.minus = self.plus = self.sharp = self.space = self.zero = self.plus_v = self.sharp_v = False
        self.width: int | None = None
        self.precision: int | None = None

    def for_verb(self, verb: str) -> None:
        """For %v, sharp and plus ask for another syntax, not for another form of the numbers in it."""
        if verb in "vw":
            self.sharp_v, self.sharp = self.sharp, False
            self.plus_v, self.plus = self.plus, False


PLAIN: Final = Flags()
"""No flag, no width, no precision."""


def argument(flags: Flags, value: Value, verb: str, room: Room) -> str:
    """One value for one verb (Go: printArg). Raises CallError."""
    if value is None:
        return _pad(flags, "<nil>", room) if verb in "Tv" else f"%!{verb}(<nil>)"
    if verb == "T":
        return _string(flags, type_name(value), "s", room, 0)
    return _formatted(flags, value, verb, room, 0)


def _formatted(flags: Flags, value: Value, verb: str, room: Room, depth: int) -> str:
    if depth > DEEPEST:
        raise CallError(f"the value is nested deeper than {DEEPEST}")
    formatter = _FORMATTERS.get(type(value))
    if formatter is None:
        raise CallError(f"can't print a {type(value).__name__}")
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
    """(1+2i): both parts like floats, the second always with its sign. Only constants are complex."""
    if verb not in "vbgGxXfFeE":
        return _bad_verb(flags, value, verb, room, depth)
    signed = copy(flags)
    signed.plus = True
    real = _float_value(flags, value.real, verb, room, depth)
    return f"({real}{_float_value(signed, value.imag, verb, room, depth)}i)"


def _with_point(text: str, style: str, precision: int) -> str:
    """The `#` flag: always a decimal point, and the zeros that %g would drop."""
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
    if depth == 0 and verb in "pw":
        return _bad_verb(flags, value, verb, room, depth)
    room.take(2 + len(value))
    parts = [_element(flags, item, verb, room, depth) for item in value]
    if flags.sharp_v:
        return f"{type_name(value)}{{{', '.join(parts)}}}"
    return f"[{' '.join(parts)}]"


def _map(flags: Flags, value: dict[str, Value], verb: str, room: Room, depth: int) -> str:
    if depth == 0 and verb in "pw":
        return _bad_verb(flags, value, verb, room, depth)
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
    if depth == 0 and verb in "pw":
        return _bad_verb(flags, value, verb, room, depth)
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
    """An element of a map or slice: nil is printed alike for every verb."""
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
