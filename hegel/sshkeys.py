"""SSH keys of a Hardware: the lines of its annotation that are keys.

The annotation has the form of OpenSSH's authorized_keys (sshd(8), "AUTHORIZED_KEYS FILE FORMAT"): one key a line,
options before it and a comment after it allowed. What is no key is left out, so that one bad line locks out one person
and not the machine's whole metadata: a line break or a control character would end a value early.
"""

from __future__ import annotations

import base64
import re

_OPTIONS = re.compile(r'(?:[^\s"]|"(?:[^"\\]|\\.)*")+ +')
_KEY = re.compile(r"((?:sk-)?(?:ssh|ecdsa-sha2)-[a-z0-9-]+(?:@openssh\.com)?) +([A-Za-z0-9+/]{16,}={0,2})(?: +(.*))?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}")


def ssh_keys(annotation: str) -> tuple[list[str], list[int]]:
    """The keys, without repetition, and the numbers (from 1) of the lines that are none. Comment lines are neither."""
    keys: dict[str, None] = {}
    bad: list[int] = []
    for number, raw in enumerate(annotation.split("\n"), 1):
        line = raw.replace("\t", " ").strip()
        if not line or line.startswith("#"):
            continue
        if _is_key(line):
            keys[line] = None
        else:
            bad.append(number)
    return list(keys), bad


def names(keys: list[str]) -> list[str]:
    """A name for each key, as EC2 lists it: its comment if that is one plain word and nobody else's, else `key-N`."""
    found: dict[str, None] = {}
    for number, key in enumerate(keys):
        comment = key.rpartition(" ")[2]
        # cloud-init keeps keys by name: of two keys with one name, it would install one.
        is_usable = _NAME.fullmatch(comment) is not None and not comment.startswith("key-")
        found[comment if is_usable and comment not in found else f"key-{number}"] = None
    return list(found)


def _is_key(line: str) -> bool:
    if not line.isprintable():
        return False
    match = _KEY.fullmatch(line)
    if match is None and (options := _OPTIONS.match(line)) is not None:
        match = _KEY.fullmatch(line, options.end())
    if match is None:
        return False
    try:
        blob = base64.b64decode(match[2], validate=True)
    except ValueError:
        return False
    # RFC 4253 section 6.6: the key's bytes begin with its type, a string with its length before it.
    kind = match[1].encode()
    return blob.startswith(len(kind).to_bytes(4) + kind) and len(blob) > 4 + len(kind)
