"""Where each value of a command is from: for `tinkedge config show`, and for what a reload finds changed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click
from click.core import ParameterSource

from edge.configuration.options import SECRETS, key, settable
from edge.configuration.values import file_of


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
    file = file_of(ctx)
    entries = file.entries(ctx.info_name or "") if file is not None else {}
    given, _, _ = command.make_parser(click.Context(command)).parse_args(list(args))
    for option in settable(command):
        name = str(option.name)
        match ctx.get_parameter_source(name):
            case ParameterSource.COMMANDLINE:
                found = Origin(key(option), _plain(given[name]), "flag")
            case ParameterSource.ENVIRONMENT:
                value = option.value_from_envvar(ctx)
                found = Origin(key(option), _plain(value), "env", _variable(option))
            case ParameterSource.DEFAULT_MAP if file is not None:
                entry = entries[key(option)]
                several = entry.is_list or option.multiple
                value = list(entry.values) if several else entry.values[0]
                found = Origin(key(option), value, "file", f"{file.path}:{entry.line}")
            case _:
                found = Origin(key(option), _plain(ctx.params.get(name)), "default")
        if found.key in SECRETS and found.value is not None:
            found = Origin(found.key, "(not shown)", found.source, found.where)
        yield found


def place(ctx: click.Context, name: str) -> str:
    """Where the value of one option is from, by its key, as `Origin.text` has it."""
    option = next(each for each in settable(ctx.command) if key(each) == name)
    file = file_of(ctx)
    match ctx.get_parameter_source(str(option.name)):
        case ParameterSource.COMMANDLINE:
            return "flag"
        case ParameterSource.ENVIRONMENT:
            return f"env {_variable(option)}"
        case ParameterSource.DEFAULT_MAP if file is not None:
            return f"{file.path}:{file.entries(ctx.info_name or '')[name].line}"
        case _:
            return "default"


def _variable(option: click.Option) -> str:
    names = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
    return next((name for name in names if os.environ.get(name)), "")


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | bool | int | float | None) else str(value)
