"""The values of literal tokens: numbers within 64 bits, strings and bytes with their escapes."""

from tink.kubeapi.cel.values import UInt

_SIMPLE = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92, "'": 39, '"': 34, "`": 96, "?": 63}
_MAX_UINT = 2**64 - 1


def integer(text: str) -> int:
    """A signed 64-bit integer, decimal or 0x; `text` may begin with a minus.

    Raises ValueError: outside 64 bits; the message is Kubernetes'.
    """
    sign, digits = (-1, text[1:]) if text[0] == "-" else (1, text)
    hexadecimal = digits.startswith("0x")
    if len(digits) > 40:
        raise ValueError("invalid int literal")
    value = sign * (int(digits[2:], 16) if hexadecimal else int(digits, 10))
    if not -(2**63) <= value < 2**63:
        raise ValueError("invalid int literal")
    return value


def unsigned(text: str) -> UInt:
    """An unsigned 64-bit integer; `text` ends with u. Raises ValueError: outside 64 bits."""
    digits = text[:-1]
    if len(digits) > 40:
        raise ValueError("invalid uint literal")
    value = int(digits[2:], 16) if digits.startswith("0x") else int(digits, 10)
    if value > _MAX_UINT:
        raise ValueError("invalid uint literal")
    return UInt(value)


def double(text: str) -> float:
    """A double. Raises ValueError: larger than a double can be."""
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError("invalid double literal")
    return value


def _body(token: str) -> tuple[str, bool]:
    """The text between the quotes, and whether it is raw."""
    raw = token[0] in "rR"
    quoted = token[1:] if raw else token
    width = 3 if len(quoted) >= 6 and quoted[:3] in ("'''", '"""') else 1
    return quoted[width:-width], raw


def _escape(body: str, at: int) -> tuple[int, int]:
    """Value and length of the escape at `at` (the lexer has checked its form)."""
    letter = body[at + 1]
    if letter in _SIMPLE:
        return _SIMPLE[letter], 2
    width = {"x": 2, "X": 2, "u": 4, "U": 8}.get(letter)
    if width is None:
        return int(body[at + 1 : at + 4], 8), 4
    return int(body[at + 2 : at + 2 + width], 16), 2 + width


def string(token: str) -> str:
    """The value of a string token. Raises ValueError: an escape that is no Unicode code point."""
    body, raw = _body(token)
    body = body.replace("\r\n", "\n").replace("\r", "\n")
    if raw or "\\" not in body:
        return body
    out: list[str] = []
    at = 0
    while at < len(body):
        if body[at] != "\\":
            out.append(body[at])
            at += 1
            continue
        code, length = _escape(body, at)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise ValueError("invalid unicode code point")
        out.append(chr(code))
        at += length
    return "".join(out)


def octets(token: str) -> bytes:
    """The value of a bytes token; \\x and octal escapes are single bytes there.

    Raises ValueError: \\u and \\U, which bytes do not have.
    """
    body, raw = _body(token[1:])
    body = body.replace("\r\n", "\n").replace("\r", "\n")
    if raw or "\\" not in body:
        return body.encode("utf-8", "surrogatepass")
    out = bytearray()
    at = 0
    while at < len(body):
        if body[at] != "\\":
            out += body[at].encode("utf-8", "surrogatepass")
            at += 1
            continue
        if body[at + 1] in "uU":
            raise ValueError("unable to unescape string")
        code, length = _escape(body, at)
        out.append(code & 0xFF)
        at += length
    return bytes(out)
