"""Sprig's functions of paths and URLs (Go: path, net/url); the operating system whose paths are asked for is Linux."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from tink.golang import strconv
from tink.golang.strconv import from_bytes, to_bytes
from tink.golang.values import NIL, CallError, Value, kind
from tink.template.signatures import MAP, Function, Functions, table
from tink.template.sprig.conversions import NIL_POINTER, aliases, on_text

# --- paths ------------------------------------------------------------------------------------------------------


def _base(path: str) -> str:
    if not path:
        return "."
    return path.rstrip("/").rpartition("/")[2] or "/"


def _clean(path: str) -> str:
    """The shortest path that names the same, by its text alone."""
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
    """The parts of a URL. Raises CallError for what is none."""

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
    """The URL of such parts, as `urlParse` gives them (Go: URL.String)."""

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
