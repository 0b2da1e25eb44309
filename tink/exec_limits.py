"""The limits of execve(2) on the program, the arguments and the environment of an action.

Linux checks them when the action starts, after earlier actions have written disks. So they are checked before: in a
Template by the webhooks, in a rendered action by the controller, in a received action by the agent. All sizes are in
bytes of UTF-8. Source: execve(2), "Limits on size of arguments and environment".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

MAX_STRING_BYTES: Final = 131_072
"""One argument or one NAME=VALUE, with its final NUL (include/uapi/linux/binfmts.h, MAX_ARG_STRLEN: 32 pages)."""
MAX_PATH_BYTES: Final = 4096
"""The path of a program, with its final NUL (include/uapi/linux/limits.h, PATH_MAX)."""
MAX_TOTAL_BYTES: Final = 2 * 1024 * 1024
"""All arguments and variables: a quarter of the stack, whose usual limit is 8 MiB (fs/exec.c, bprm_stack_limits)."""
_POINTER_BYTES = 8
_SHOWN_CHARACTERS = 64
"""Maximum length of a variable's name in a message; the name may have 128 KiB."""
_REMEDY = "put the data into a file or at a URL, and let the action read it from there"


class Unstartable(NamedTuple):
    """A field because of which an action can't start, and the reason."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field} {self.message}"


def unstartable(action: Mapping[str, Any], at: str) -> list[Unstartable]:
    """Return the problems because of which Linux can't start an action; `at` is its path, such as spec.actions[0]."""
    return [*_unstartable(action, at), *_total(action, at, _sizes(action))]


def _unstartable(action: Mapping[str, Any], at: str) -> list[Unstartable]:
    found = []
    if problem := _problem(action.get("cmd"), "", MAX_PATH_BYTES, "PATH_MAX", "name a program with a shorter path"):
        found.append(Unstartable(f"{at}.cmd", problem))
    for index, argument in enumerate(_arguments(action)):
        if problem := _problem(argument, "", MAX_STRING_BYTES, "MAX_ARG_STRLEN", _REMEDY):
            found.append(Unstartable(f"{at}.args[{index}]", problem))
    return found + _variables(action, at)


def unstartable_template(template: Any) -> list[Unstartable]:
    """Return the problems of a Template that rendering can't remove: texts with `{{` have no size yet."""
    spec = _mapping(_mapping(template).get("spec"))
    shared = _literal(spec)
    shared_sizes, found = _sizes(shared), _variables(shared, "spec")
    actions = spec.get("actions")
    for index, action in enumerate(actions if isinstance(actions, list) else ()):
        own, at = _literal(_mapping(action)), f"spec.actions[{index}]"
        # The sizes of the shared variables are computed once: 128 actions may share 1 MB of them.
        found += _unstartable(own, at) + _total(own, at, {**shared_sizes, **_sizes(own)})
    return found


def text_count(template: Any) -> int:
    """Return the number of arguments and variables of a Template."""
    spec = _mapping(_mapping(template).get("spec"))
    actions = spec.get("actions")
    holders = [spec, *map(_mapping, actions if isinstance(actions, list) else ())]
    return sum(len(_mapping(holder.get("env"))) + len(_arguments(holder)) for holder in holders)


def _literal(holder: Mapping[str, Any]) -> dict[str, Any]:
    """Return the texts of an action that rendering does not change."""
    env = {key: value for key, value in _mapping(holder.get("env")).items() if not _templated(key)}
    return {
        "cmd": None if _templated(holder.get("cmd")) else holder.get("cmd"),
        "args": [None if _templated(argument) else argument for argument in _arguments(holder)],
        "env": {key: value for key, value in env.items() if not _templated(value)},
    }


def _templated(text: object) -> bool:
    return isinstance(text, str) and "{{" in text


def _variables(holder: Mapping[str, Any], at: str) -> list[Unstartable]:
    found = []
    for name, value in _mapping(holder.get("env")).items():
        counted = ' with its name and "="'
        if problem := _problem(f"{name}={value}", counted, MAX_STRING_BYTES, "MAX_ARG_STRLEN", _REMEDY):
            shown = name if len(name) <= _SHOWN_CHARACTERS else f"{name[:_SHOWN_CHARACTERS]}..."
            found.append(Unstartable(f"{at}.env[{json.dumps(shown)}]", problem))
    return found


def _problem(text: object, counted: str, most: int, limit: str, remedy: str) -> str:
    """Return the reason why Linux rejects a text, or "" if it accepts it."""
    if not isinstance(text, str):
        return ""
    if "\0" in text:
        return "contains a NUL character, at which Linux ends a text: remove it"
    size = _size(text)
    return "" if size <= most else f"has {size} bytes{counted} and a final NUL; Linux takes {most} ({limit}): {remedy}"


def _sizes(holder: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes of each variable, by its name."""
    env = _mapping(holder.get("env"))
    return {name: _size(f"{name}={value}") for name, value in env.items() if isinstance(value, str)}


def _total(action: Mapping[str, Any], at: str, variables: Mapping[str, int]) -> list[Unstartable]:
    texts = [text for text in (action.get("cmd"), *_arguments(action)) if isinstance(text, str)]
    total = sum(map(_size, texts)) + sum(variables.values()) + _POINTER_BYTES * (len(texts) + len(variables))
    if total <= MAX_TOTAL_BYTES:
        return []
    message = f"has {total} bytes of arguments and variables; Linux takes {MAX_TOTAL_BYTES} (a quarter of the stack)"
    return [Unstartable(at, f"{message}: {_REMEDY}")]


def _arguments(action: Mapping[str, Any]) -> Sequence[Any]:
    arguments = action.get("args")
    return arguments if isinstance(arguments, list | tuple) else ()


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _size(text: str) -> int:
    """Return the bytes of a text with its final NUL; half of a surrogate pair counts as 3."""
    return len(text.encode("utf-8", "surrogatepass")) + 1
