"""Sprig's functions of encodings (JSON, base 64, base 32), digests, Linux paths and URLs (Go: path, net/url)."""

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
from urllib.parse import quote, unquote_to_bytes

from tink.golang import fmt, strconv
from tink.golang.strconv import from_bytes, to_bytes
from tink.golang.values import NIL, CallError, Struct, Uint8, Value, kind
from tink.template.signatures import ANY, INT, MAP, STRING, Function, Functions, table
from tink.template.sprig.numbers import NIL_POINTER, Spend, aliases, not_too_deep, on_text

# --- paths ------------------------------------------------------------------------------------------------------


def _base(path: str) -> str:
    if not path:
        return "."
    return path.rstrip("/").rpartition("/")[2] or "/"


def _clean(path: str) -> str:
    """Return the shortest equivalent path, by its text alone."""
    rooted = path.startswith("/")
    parts: list[str] = []
    for part in path.split("/"):
        if part in ("", "."):
            continue
        if part != "..":
            parts.append(part)
        elif parts and parts[-1] != "..":
            parts.pop()
        elif not rooted:
            parts.append(part)
    return ("/" if rooted else "") + "/".join(parts) or "."


def _dir(path: str) -> str:
    head, slash, _ = path.rpartition("/")
    return _clean(head + slash)


def _ext(path: str) -> str:
    name = path.rpartition("/")[2]
    dot = name.rfind(".")
    return name[dot:] if dot >= 0 else ""


# --- URLs -------------------------------------------------------------------------------------------------------

_SCHEME: Final = re.compile("([a-zA-Z][a-zA-Z0-9+.-]*):")
_BAD_ESCAPE: Final = re.compile("%(?![0-9a-fA-F]{2}).{0,2}", re.DOTALL)
_PORT: Final = re.compile("(?::[0-9]*)?")
_USERINFO: Final = re.compile("[A-Za-z0-9._:~!$&'()*+,;=%@-]*")
_KEPT_IN_PATH: Final = "$&+,/:;=@!'()*[]"
_KEPT_IN_FRAGMENT: Final = "$&+,/:;=?@!()*'"
_KEPT_IN_USER: Final = "$&+,;="
_KEPT_IN_HOST: Final = "!$&'()*+,;=:[]<>\""


def _url_parse(text: str) -> dict[str, Value]:
    """Return the parts of a URL. Raises CallError if the text is none."""

    def wrong(reason: str) -> CallError:
        return CallError(f"unable to parse url: parse {strconv.quote(text)}: {reason}")

    def unescaped(part: str) -> str:
        found = _BAD_ESCAPE.search(part)
        if found:
            raise wrong(f"invalid URL escape {strconv.quote(found[0])}")
        return from_bytes(unquote_to_bytes(to_bytes(part)))

    rest, _, fragment = text.partition("#")
    parts: dict[str, Value] = dict.fromkeys(
        ("scheme", "host", "hostname", "path", "query", "opaque", "fragment", "userinfo"), ""
    )
    if any(char < " " or char == "\x7f" for char in rest):
        raise wrong("net/url: invalid control character in URL")
    parts["fragment"] = unescaped(fragment)
    if rest.startswith(":"):
        raise wrong("missing protocol scheme")
    scheme = _SCHEME.match(rest)
    if scheme:
        parts["scheme"], rest = scheme[1].lower(), rest[scheme.end() :]
    rest, _, parts["query"] = rest.partition("?")
    if not rest.startswith("/"):
        if scheme:
            parts["opaque"] = rest
            return parts
        if ":" in rest.partition("/")[0]:
            raise wrong("first path segment in URL cannot contain colon")
    if rest.startswith("//") and (scheme or not rest.startswith("///")):
        authority, slash, rest = rest[2:].partition("/")
        rest = slash + rest
        user, at, host = authority.rpartition("@")
        if at:
            if not _USERINFO.fullmatch(user):
                raise wrong("net/url: invalid userinfo")
            name, colon, password = user.partition(":")
            parts["userinfo"] = _escaped(unescaped(name), _KEPT_IN_USER)
            parts["userinfo"] += colon + _escaped(unescaped(password), _KEPT_IN_USER)
        port_at = host.rfind(":", host.rfind("]") + 1)
        port = host[port_at:] if port_at >= 0 else ""
        if not _PORT.fullmatch(port):
            raise wrong(f"invalid port {strconv.quote(port)} after host")
        if host.startswith("[") and "]" not in host:
            raise wrong("missing ']' in host")
        found = re.search("[ \\\\^`{|}]", host)
        if found:
            raise wrong(f"invalid character {strconv.quote(found[0])} in host name")
        parts["host"] = unescaped(host)
        name = parts["host"][: len(parts["host"]) - len(port)]
        parts["hostname"] = name[1:-1] if name.startswith("[") and name.endswith("]") else name
    parts["path"] = unescaped(rest)
    return parts


def _escaped(text: str, kept: str) -> str:
    return quote(to_bytes(text), safe=kept)


def _url_join(parts: dict[str, Value]) -> str:
    """Return the URL of parts from `urlParse` (Go: URL.String)."""

    def part(name: str) -> str:
        value = parts.get(name, "")
        if type(value) is not str:
            found = kind(value)
            if found == NIL:
                raise CallError(NIL_POINTER)
            raise CallError(f"unable to parse {name} key, must be of type string, but {found} found")
        return value

    scheme, host, path, opaque, user = (part(name) for name in ("scheme", "host", "path", "opaque", "userinfo"))
    query, fragment = part("query"), part("fragment")
    out = f"{scheme}:" if scheme else ""
    if opaque:
        out += opaque
    else:
        if user:
            user = _url_parse(f"proto://{user}@host")["userinfo"]
        if scheme or host or user:
            if host or path.startswith("//") or user:
                out += "//"
            out += f"{user}@" if user else ""
            out += _escaped(host, _KEPT_IN_HOST)
        escaped_path = "*" if path == "*" else _escaped(path, _KEPT_IN_PATH)
        if escaped_path and not escaped_path.startswith("/") and host:
            out += "/"
        if not out and ":" in escaped_path.partition("/")[0]:
            out += "./"
        out += escaped_path
    out += f"?{query}" if query else ""
    return out + (f"#{_escaped(fragment, _KEPT_IN_FRAGMENT)}" if fragment else "")


PATHS: Final[Functions] = table(
    *aliases(on_text("base", _base), "osBase"),
    *aliases(on_text("dir", _dir), "osDir"),
    *aliases(on_text("clean", _clean), "osClean"),
    *aliases(on_text("ext", _ext), "osExt"),
    *aliases(on_text("isAbs", lambda path: path.startswith("/")), "osIsAbs"),
    on_text("urlParse", _url_parse),
    Function("urlJoin", _url_join, (MAP,)),
)


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


class _Writer:
    """Return JSON as Go's json.Marshal writes it: map keys in order."""

    def __init__(self, escaped: re.Pattern[str], indent: str = "") -> None:
        self._escaped = escaped
        self._indent = indent
        self._room = fmt.Room()

    def text(self, value: Value, depth: int = 0) -> str:
        not_too_deep(depth)
        self._room.take(2)
        if value is None:
            return "null"
        if type(value) is bool:
            return "true" if value else "false"
        if type(value) is str:
            self._room.take(len(value))
            return '"' + self._escaped.sub(_escape, value) + '"'
        if type(value) is float:
            if not math.isfinite(value):
                raise CallError(f"json: unsupported value: {strconv.format_float(value, 'g')}")
            if value != 0 and not 1e-6 <= abs(value) < 1e21:
                text = strconv.format_float(value, "e")
                return text[:-2] + text[-1] if text[-4:-1] == "e-0" else text
            return strconv.format_float(value, "f")
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
    """Decrypt Sprig's encryptAES: AES-256-CBC, the key padded with zeros, PKCS 7, Base64."""
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
