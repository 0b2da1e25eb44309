"""Where each value of a command is from: for `tinkedge config show`, and for what a reload finds changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click
from click.core import ParameterSource

from edge.settings.file import Entry
from edge.settings.options import READS_AS, SECRETS, key, settable, variable_in_use
from edge.settings.values import file_of


@dataclass(frozen=True, slots=True)
class Origin:
    """`value` as text, a list of texts, a truth value, a number or None; `source`: flag, env, file or default.

    `where` is the variable or FILE:LINE.
    """

    key: str
    value: Any
    source: str
    where: str = ""

    @property
    def text(self) -> str:
        """`default`, `flag`, `env TINKEDGE_DATA_DIR`, `FILE:LINE`."""
        return self.where if self.source == "file" else f"{self.source} {self.where}".strip()


def origins(ctx: click.Context, args: Sequence[str]) -> Iterator[Origin]:
    """Of all options of the command of `ctx`, which has been made from `args`."""
    command = ctx.command
    given, _, _ = command.make_parser(click.Context(command)).parse_args(list(args))
    for option in settable(command):
        name = str(option.name)
        source, where, entry = _source(ctx, option)
        if source == "flag":
            value = given[name]
        elif source == "env":
            value = option.value_from_envvar(ctx)
        elif entry is not None:
            value = entry.values if entry.is_list or option.multiple else entry.values[0]
        else:
            value = ctx.params.get(name)
        shown = "(not shown)" if key(option) in SECRETS and value is not None else _plain(value)
        yield Origin(key(option), shown, source, where)


def place(ctx: click.Context, name: str) -> str:
    """Where the value of one option is from, by its key, as `Origin.text` has it."""
    option = next(each for each in settable(ctx.command) if key(each) == name)
    source, where, _ = _source(ctx, option)
    return Origin(name, None, source, where).text


def _source(ctx: click.Context, option: click.Option) -> tuple[str, str, Entry | None]:
    """`source` and `where` of an `Origin`, and what the file says if it is that."""
    file, name = file_of(ctx), ctx.info_name or ""
    match ctx.get_parameter_source(str(option.name)):
        case ParameterSource.COMMANDLINE:
            return "flag", "", None
        case ParameterSource.ENVIRONMENT:
            return "env", variable_in_use(option), None
        case ParameterSource.DEFAULT_MAP if file is not None:
            entry = file.entries(READS_AS.get(name, name))[key(option)]
            return "file", f"{file.path}:{entry.line}", entry
        case _:
            return "default", "", None


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | bool | int | float | None) else str(value)
