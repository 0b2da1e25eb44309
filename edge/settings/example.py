"""A file to begin with: every key with its help and its default, all of it commented out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from textwrap import wrap
from typing import Any

import click

from edge.settings.groups import GROUPS, REST, group_of, place_in_group
from edge.settings.options import DEFAULT_FILE, SERVICES, Schema, in_file, is_list, key, settable

_HEAD = f"""\
# Settings of tinkedge: {DEFAULT_FILE}
#
# A key is an option without its dashes: --data-dir is data-dir. A flag is stronger than a variable (TINKEDGE_DATA_DIR),
# that than this file, and that than the default, which stands here. One file may serve several commands: each takes
# what it knows. What is for one command alone stands below its name:
#
#   controller:
#     log-level: debug
#
# tinkedge config check    says what is wrong in it
# tinkedge config show up  says what `tinkedge up` makes of it, and where each value is from
"""


def example_file(schema: Schema) -> str:
    """The text of it, for the commands that serve; the agent's settings come from the kernel command line."""
    options: dict[str, click.Option] = {}
    commands: dict[str, list[str]] = {}
    for name in SERVICES:
        if name == "agent":
            continue
        for option in settable(schema(name)):
            if in_file(name, option):
                options.setdefault(key(option), option)
                commands.setdefault(key(option), []).append(name)
    lines = [_HEAD]
    for group in (*GROUPS, REST):
        names = sorted((name for name in options if group_of(name) == group), key=place_in_group)
        if names:
            lines.append(f"\n# --- {group} {'-' * (100 - len(group))}\n")
        for name in names:
            lines.append("\n" + "".join(_entry(options[name], commands[name])))
    return "".join(lines)


def _entry(option: click.Option, commands: list[str]) -> Iterator[str]:
    text = " ".join((option.help or "").split())
    choices = getattr(option.type, "choices", ())
    if choices:
        text += f" One of: {', '.join(map(str, choices))}."
    text += f" For: {', '.join(commands)}."
    for line in wrap(text, 116):
        yield f"# {line}\n"
    yield f"#{key(option)}: {_default(option)}\n"


def _default(option: click.Option) -> str:
    value: Any = option.get_default(click.Context(click.Command("example")), call=True)
    if option.multiple:
        return "[]"
    if value is None or value == "":
        metavar = option.metavar or option.type.name.upper()
        return "[]" if is_list(option) else ('""' if value == "" else f"<{metavar}>")
    return json.dumps(value) if isinstance(value, bool | int | float) else str(value)
