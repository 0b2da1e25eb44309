"""Go's strings and numbers as text: the part of Go's `strconv` that templates and `fmt` use.

A Go string is bytes. Here it is a Python str in which a byte that is not UTF-8 is a lone surrogate (PEP 383,
"surrogateescape"), so that `len`, `index` and `slice` can count bytes like Go.
"""

from __future__ import annotations

import math
import re
from typing import Final

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
UINT64_MAX: Final = 2**64 - 1
MAX_RUNE: Final = 0x10FFFF
RUNE_ERROR: Final = "\ufffd"

_FOREIGN_SURROGATE = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_ESCAPES = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92}
_QUOTED = {7: "\\a", 8: "\\b", 12: "\\f", 10: "\\n", 13: "\\r", 9: "\\t", 11: "\\v", 92: "\\\\"}
_HEX_WIDTH = {"x": 2, "u": 4, "U": 8}
_UNQUOTABLE = re.compile(r"[^ !#-\[\]-~]")
_SIMPLE = re.compile(r'[^"\\\n]*')

_INT = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+|0[0-7_]*|[1-9][0-9_]*)")
_DECIMAL_FLOAT = re.compile(r"[+-]?(?:[0-9_]+\.?[0-9_]*|\.[0-9_]+)(?:[eE][+-]?[0-9][0-9_]*)?")
_HEX_FLOAT = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F_]+\.?[0-9a-fA-F_]*|\.[0-9a-fA-F_]+)[pP][+-]?[0-9][0-9_]*")


def to_bytes(text: str) -> bytes:
    """Return the bytes of a Go string. A surrogate that is not a byte becomes U+FFFD, as in Go's JSON decoder."""
    if text.isascii():
        return text.encode()
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return _FOREIGN_SURROGATE.sub(RUNE_ERROR, text).encode("utf-8", "surrogateescape")


def from_bytes(raw: bytes) -> str:
    """Return the Go string of these bytes."""
    return raw.decode("utf-8", "surrogateescape")


def byte_length(text: str) -> int:
    """Return Go's len of a string."""
    return len(text) if text.isascii() else len(to_bytes(text))


# --- quoted literals --------------------------------------------------------------------------------------------


def unquote(literal: str) -> str:
    """Return the value of a "..." or `...` literal, or of a text in '...' (client-go, jsonpath.UnquoteExtend).

    Raises ValueError("invalid syntax"), like Go's strconv.Unquote.
    """
    if literal[0] == "`":
        return literal[1:-1].replace("\r", "")
    body = literal[1:-1]
    if _SIMPLE.fullmatch(body):
        return body
    out = bytearray()
    at = 0
    while at < len(body):
        code, multibyte, at = _unquote_one(body, at, literal[0])
        if code < 0x80 or not multibyte:
            out.append(code)
        else:
            out += to_bytes(chr(code))
    return from_bytes(bytes(out))


def unquote_char(literal: str) -> int:
    """Return the code point of a '...' literal. Raises ValueError."""
    code, _, end = _unquote_one(literal, 1, "'")
    if literal[end:] != "'":
        raise ValueError(f"malformed character constant: {literal}")
    return code


def _unquote_one(text: str, at: int, quote: str) -> tuple[int, bool, int]:
    """Decode a character or an escape: return its code, True if it is a character and not a byte, and its end."""
    char = text[at : at + 1]
    if char in ("", quote):
        raise ValueError("invalid syntax")
    if char != "\\":
        return ord(char), ord(char) >= 0x80, at + 1
    escape = text[at + 1 : at + 2]
    at += 2
    if escape in _ESCAPES:
        return _ESCAPES[escape], False, at
    if escape in _HEX_WIDTH:
        width = _HEX_WIDTH[escape]
        digits = text[at : at + width]
        if len(digits) != width or not re.fullmatch("[0-9a-fA-F]+", digits):
            raise ValueError("invalid syntax")
        code = int(digits, 16)
        if escape != "x" and not _valid_rune(code):
            raise ValueError("invalid syntax")
        return code, escape != "x", at + width
    if escape and escape in "01234567":
        digits = text[at - 1 : at + 2]
        if not re.fullmatch("[0-3][0-7]{2}", digits):
            raise ValueError("invalid syntax")
        return int(digits, 8), False, at + 2
    if escape and escape == quote:
        return ord(escape), False, at
    raise ValueError("invalid syntax")


def _valid_rune(code: int) -> bool:
    return 0 <= code <= MAX_RUNE and not 0xD800 <= code <= 0xDFFF


def rune(code: int) -> str:
    """Return Go's string(rune(code)), which is U+FFFD if the code is not a character."""
    return chr(code) if _valid_rune(code) else RUNE_ERROR


def quote(text: str, *, ascii_only: bool = False) -> str:
    """Return a text in quotes, like Go's strconv.Quote or QuoteToASCII."""
    if _UNQUOTABLE.search(text) is None:
        return f'"{text}"'
    body = text if text.isascii() else from_bytes(to_bytes(text))
    return '"' + "".join(_quoted(char, '"', ascii_only) for char in body) + '"'


def quote_rune(code: int, *, ascii_only: bool = False) -> str:
    """Return a character in quotes, like Go's strconv.QuoteRune or QuoteRuneToASCII."""
    return "'" + _quoted(rune(code), "'", ascii_only) + "'"


def _quoted(char: str, quote_mark: str, ascii_only: bool) -> str:
    code = ord(char)
    if char == quote_mark:
        return "\\" + char
    if code in _QUOTED:
        return _QUOTED[code]
    if char.isprintable() and (code < 0x80 or not ascii_only):
        return char
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def can_backquote(text: str) -> bool:
    """Return True if a text can be in a raw string literal unchanged (strconv.CanBackquote)."""
    return not any(
        (ord(char) < 0x20 and char != "\t") or char in "`\x7f\ufeff" or 0xD800 <= ord(char) <= 0xDFFF for char in text
    )


# --- numbers ----------------------------------------------------------------------------------------------------


def parse_integer(text: str) -> int | None:
    """Return the value of an integer literal with Go's base prefixes and underscores, of any size; None if malformed.

    Like strconv.ParseInt with base 0.
    """
    if len(text) > 100 or not _INT.fullmatch(text) or not _underscores_fit(text):
        return None
    digits = text.replace("_", "")
    unsigned = digits.lstrip("+-")
    base = 10
    if len(unsigned) > 1 and unsigned[0] == "0":
        base = {"x": 16, "b": 2, "o": 8}.get(unsigned[1].lower(), 8)
        unsigned = unsigned[1 if unsigned[1].isdigit() else 2 :]
    value = int(unsigned, base)
    return -value if digits[0] == "-" else value


def parse_float(text: str) -> float | None:
    """Return the value of a float literal (strconv.ParseFloat); None if it is malformed or too large."""
    if not _underscores_fit(text):
        return None
    if _DECIMAL_FLOAT.fullmatch(text):
        digits = text.replace("_", "")
        if not any(char.isdigit() for char in digits):
            return None
        value = float(digits)
    elif _HEX_FLOAT.fullmatch(text):
        digits = text.replace("_", "")
        if digits.lstrip("+-")[2:3] == "." and digits.lstrip("+-")[3:4] in ("p", "P"):
            return None
        try:
            value = float.fromhex(digits)
        except OverflowError:
            return None
    else:
        return None
    return None if value in (float("inf"), float("-inf")) else value


def _underscores_fit(text: str) -> bool:
    """Return True if all underscores are between digits, or between a base prefix and a digit."""
    if "_" not in text:
        return True
    body = text.lstrip("+-")
    digit = "[0-9]"
    if body[:2].lower() in ("0x", "0b", "0o"):
        digit = "[0-9a-fA-F]" if body[1] in "xX" else digit
        body = "0" + body[2:]
    return not re.search(rf"(?<!{digit})_|_(?!{digit})", body)


def format_float(value: float, verb: str, precision: int = -1) -> str:
    """Return Go's strconv.FormatFloat for 64 bits. `verb` is one of e E f g G b x X; precision -1: shortest exact."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    if verb in "xX":
        text = _hex_float(value, precision)
        return text.upper() if verb == "X" else text
    if verb == "b":
        return _binary_float(value)
    if precision >= 0:
        # Python and Go both round the exact binary value half to even, and print exponents with two digits at least.
        return f"{value:.{precision}{verb}}"
    sign, digits, exponent = _shortest(value)
    if verb in "eE" or (verb in "gG" and not -4 <= exponent < 6):
        fraction = "." + digits[1:] if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{fraction}{'e' if verb in 'eg' else 'E'}{exponent:+03d}"
    return sign + _positional(digits, exponent)


def _shortest(value: float) -> tuple[str, str, int]:
    """Return the sign, the shortest digits that identify the value, and the decimal exponent of the first digit."""
    text = repr(value)
    sign = "-" if text[0] == "-" else ""
    mantissa, _, exponent = text.lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return sign, "0", 0
    first = len(whole) - 1 if whole != "0" else -1 - (len(fraction) - len(fraction.lstrip("0")))
    return sign, digits.rstrip("0"), first + int(exponent or 0)


def _positional(digits: str, exponent: int) -> str:
    if exponent < 0:
        return "0." + "0" * (-exponent - 1) + digits
    whole = digits[: exponent + 1].ljust(exponent + 1, "0")
    fraction = digits[exponent + 1 :]
    return f"{whole}.{fraction}" if fraction else whole


def _hex_float(value: float, precision: int) -> str:
    """Return 0x1.8p+01: one digit before the point, and at least two digits of the exponent to base two."""
    sign = "-" if repr(value)[0] == "-" else ""
    if value == 0:
        mantissa, exponent = 0, 0
    else:
        fraction, exponent = math.frexp(abs(value))
        mantissa, exponent = int(fraction * 2**53), exponent - 1
    digits = 13
    if 0 <= precision < 13:
        shift = 4 * (13 - precision)
        rest, mantissa = mantissa & ((1 << shift) - 1), mantissa >> shift
        half = 1 << (shift - 1)
        mantissa += rest > half or (rest == half and mantissa & 1)
        digits = precision
        if mantissa >> (4 * digits + 1):
            mantissa, exponent = mantissa >> 1, exponent + 1
    hexadecimal = f"{mantissa:0{digits + 1}x}"
    fraction_digits = hexadecimal[1:]
    fraction_digits = fraction_digits.rstrip("0") if precision < 0 else fraction_digits.ljust(precision, "0")
    point = "." if fraction_digits else ""
    return f"{sign}0x{hexadecimal[0]}{point}{fraction_digits}p{exponent:+03d}"


def _binary_float(value: float) -> str:
    """Return 4503599627370496p-52: the mantissa as an integer, and the exponent to base two."""
    sign = "-" if repr(value)[0] == "-" else ""
    if value == 0:
        return f"{sign}0p-1074"
    fraction, exponent = math.frexp(abs(value))
    mantissa, exponent = int(fraction * 2**53), exponent - 53
    if exponent < -1074:
        mantissa, exponent = mantissa >> (-1074 - exponent), -1074
    return f"{sign}{mantissa}p{exponent:+d}"
