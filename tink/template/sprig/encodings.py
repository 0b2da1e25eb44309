"""Sprig's JSON, Base64 and Base32, checksums, and the two of its ciphers that are no game of chance."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import math
import re
import zlib
from collections.abc import Callable
from functools import partial
from typing import Final

from tink.golang import fmt, strconv
from tink.golang.strconv import from_bytes, to_bytes
from tink.golang.values import CallError, Struct, Uint8, Value
from tink.template.signatures import ANY, INT, STRING, Function, Functions, table
from tink.template.sprig.conversions import Spend, aliases, on_text

# --- JSON -------------------------------------------------------------------------------------------------------

_ALWAYS_ESCAPED: Final = '"\\\\\0-\x1f\u2028\u2029\ud800-\udfff'
_ESCAPED: Final = re.compile(f"[{_ALWAYS_ESCAPED}]")
_ESCAPED_FOR_HTML: Final = re.compile(f"[<>&{_ALWAYS_ESCAPED}]")
_SHORT: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    if char in _SHORT:
        return _SHORT[char]
    return "\\ufffd" if 0xD800 <= ord(char) <= 0xDFFF else f"\\u{ord(char):04x}"


def _float(value: float) -> str:
    if not math.isfinite(value):
        raise CallError(f"json: unsupported value: {strconv.format_float(value, 'g')}")
    if value != 0 and not 1e-6 <= abs(value) < 1e21:
        text = strconv.format_float(value, "e")
        return text[:-2] + text[-1] if text[-4:-1] == "e-0" else text
    return strconv.format_float(value, "f")


class _Writer:
    """Go's json.Marshal: the keys of maps in order."""

    def __init__(self, escaped: re.Pattern[str], indent: str = "") -> None:
        self._escaped = escaped
        self._indent = indent
        self._room = fmt.Room()

    def text(self, value: Value, depth: int = 0) -> str:
        if depth > fmt.MAX_DEPTH:
            raise CallError(f"the value is nested deeper than {fmt.MAX_DEPTH}")
        self._room.take(2)
        if value is None:
            return "null"
        if type(value) is bool:
            return "true" if value else "false"
        if type(value) is str:
            self._room.take(len(value))
            return '"' + self._escaped.sub(_escape, value) + '"'
        if type(value) is float:
            return _float(value)
        if type(value) in (int, Uint8):
            return str(int(value))
        if type(value) is Struct and value.text is not None:
            return self.text(value.text, depth)
        if type(value) is list:
            return self._brackets("[]", [self.text(item, depth + 1) for item in value], depth)
        if type(value) in (dict, Struct):
            members = value if type(value) is dict else value.fields
            names = sorted(members) if type(value) is dict else members
            colon = ": " if self._indent else ":"
            parts = [f"{self.text(name, depth)}{colon}{self.text(members[name], depth + 1)}" for name in names]
            return self._brackets("{}", parts, depth)
        raise CallError(f"json: unsupported type: {type(value).__name__}")

    def _brackets(self, brackets: str, parts: list[str], depth: int) -> str:
        if not self._indent or not parts:
            return brackets[0] + ",".join(parts) + brackets[1]
        outer = "\n" + self._indent * depth
        inner = outer + self._indent
        self._room.take(len(parts) * len(inner))
        return brackets[0] + inner + f",{inner}".join(parts) + outer + brackets[1]


def _parsed(text: str) -> Value:
    def number(digits: str) -> float:
        value = float(digits)
        if not math.isfinite(value):
            raise ValueError(f"cannot unmarshal number {digits} into a float64")
        return value

    def reject(name: str) -> Value:
        raise ValueError(f"{name} is no JSON")

    try:
        return json.loads(text, parse_int=number, parse_float=number, parse_constant=reject)
    except RecursionError:
        raise CallError("json: exceeded max depth") from None
    except ValueError as error:
        raise CallError(f"json: {error}") from None


def _from_json(text: str) -> Value:
    try:
        return _parsed(text)
    except CallError:
        return None


# --- Base64 and Base32 ------------------------------------------------------------------------------------------


def _decoded(name: str, decode: Callable[[bytes], bytes], text: str) -> str:
    try:
        return from_bytes(decode(to_bytes(re.sub("[\r\n]", "", text))))
    except binascii.Error as error:
        raise CallError(f"illegal {name} data: {error}") from None


_b64dec: Final = partial(_decoded, "base64", partial(base64.b64decode, validate=True))


# --- ciphers ----------------------------------------------------------------------------------------------------


def _decrypt_aes(password: str, encrypted: str) -> str:
    """What Sprig's encryptAES made: AES-256 in CBC mode, the password padded with zeros as key, PKCS 7, Base64."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    if not encrypted:
        return ""
    raw = to_bytes(_b64dec(encrypted))
    if len(raw) < 16:
        raise CallError(f"runtime error: slice bounds out of range [:16] with capacity {len(raw)}")
    if len(raw) % 16:
        raise CallError("crypto/cipher: input not full blocks")
    if len(raw) == 16:
        raise CallError("runtime error: index out of range [-1]")
    key = to_bytes(password)[:32].ljust(32, b"\0")
    decryptor = Cipher(algorithms.AES(key), modes.CBC(raw[:16])).decryptor()
    plain = decryptor.update(raw[16:]) + decryptor.finalize()
    if plain[-1] > len(plain):
        raise CallError(f"runtime error: slice bounds out of range [:{len(plain) - plain[-1]}]")
    return from_bytes(plain[: len(plain) - plain[-1]])


# The Master Password algorithm: which shapes a password can have, and what stands for each letter of a shape.
_LONG: Final = """
CvcvnoCvcvCvcv CvcvCvcvnoCvcv CvcvCvcvCvcvno CvccnoCvcvCvcv CvccCvcvnoCvcv CvccCvcvCvcvno CvcvnoCvccCvcv
CvcvCvccnoCvcv CvcvCvccCvcvno CvcvnoCvcvCvcc CvcvCvcvnoCvcc CvcvCvcvCvccno CvccnoCvccCvcv CvccCvccnoCvcv
CvccCvccCvcvno CvcvnoCvccCvcc CvcvCvccnoCvcc CvcvCvccCvccno CvccnoCvcvCvcc CvccCvcvnoCvcc CvccCvcvCvccno
"""
_SHAPES: Final = {
    "maximum": ["anoxxxxxxxxxxxxxxxxx", "axxxxxxxxxxxxxxxxxno"],
    "long": _LONG.split(),
    "medium": ["CvcnoCvc", "CvcCvcno"],
    "short": ["Cvcn"],
    "basic": ["aaanaaan", "aannaaan", "aaannaaa"],
    "pin": ["nnnn"],
}
_VOWELS: Final = "AEIOU"
_CONSONANTS: Final = "BCDFGHJKLMNPQRSTVWXYZ"
_LETTERS: Final = _VOWELS + _VOWELS.lower() + _CONSONANTS + _CONSONANTS.lower()
_CHARACTERS: Final = {
    "V": _VOWELS,
    "C": _CONSONANTS,
    "v": _VOWELS.lower(),
    "c": _CONSONANTS.lower(),
    "a": _LETTERS,
    "n": "0123456789",
    "o": "@&%?,=[]_:-+*$#!'^~;()/.",
    "x": _LETTERS + "0123456789!@#$%^&*()",
}
_SEED: Final = b"com.lyndir.masterpassword"
_DERIVATION: Final = 25_000  # steps; it takes some 200 ms.


def _derive_password(spend: Spend, counter: int, shape: str, password: str, user: str, site: str) -> str:
    if shape not in _SHAPES:
        return f"cannot find password template {shape}"
    if not 0 <= counter < 2**32:
        raise CallError(f"the counter {counter} is no uint32")
    spend(_DERIVATION)
    name, place = to_bytes(user), to_bytes(site)
    salt = _SEED + len(name).to_bytes(4, "big") + name
    key = hashlib.scrypt(to_bytes(password), salt=salt, n=32768, r=8, p=2, maxmem=1 << 26, dklen=64)
    message = _SEED + len(place).to_bytes(4, "big") + place + counter.to_bytes(4, "big")
    seed = hmac.digest(key, message, "sha256")
    chosen = _SHAPES[shape][seed[0] % len(_SHAPES[shape])]
    return "".join(
        _CHARACTERS[kind][byte % len(_CHARACTERS[kind])] for kind, byte in zip(chosen, seed[1:], strict=False)
    )


ENCODINGS: Final[Functions] = table(
    *aliases(Function("toJson", lambda value: _Writer(_ESCAPED_FOR_HTML).text(value), (ANY,)), "mustToJson"),
    *aliases(
        Function("toPrettyJson", lambda value: _Writer(_ESCAPED_FOR_HTML, "  ").text(value), (ANY,)), "mustToPrettyJson"
    ),
    *aliases(Function("toRawJson", lambda value: _Writer(_ESCAPED).text(value), (ANY,)), "mustToRawJson"),
    on_text("fromJson", _from_json),
    on_text("mustFromJson", _parsed),
    on_text("b64enc", lambda text: base64.b64encode(to_bytes(text)).decode()),
    on_text("b64dec", _b64dec),
    on_text("b32enc", lambda text: base64.b32encode(to_bytes(text)).decode()),
    on_text("b32dec", partial(_decoded, "base32", base64.b32decode)),
    on_text("sha1sum", lambda text: hashlib.sha1(to_bytes(text), usedforsecurity=False).hexdigest()),
    on_text("sha256sum", lambda text: hashlib.sha256(to_bytes(text)).hexdigest()),
    on_text("sha512sum", lambda text: hashlib.sha512(to_bytes(text)).hexdigest()),
    on_text("adler32sum", lambda text: str(zlib.adler32(to_bytes(text)))),
    on_text("decryptAES", _decrypt_aes, STRING),
    Function("derivePassword", _derive_password, (INT, STRING, STRING, STRING, STRING), metered=True),
)
