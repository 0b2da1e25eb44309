"""Checks of TINKEDGE_ variables: those of this process, and those in the file that the systemd units read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from edge.settings.file import relative_path_problem
from edge.settings.options import PREFIX, SERVICES, TOOLS, Schema, nearest, settable, variable, was_removed

VARIABLES_FILE: Final = Path("/etc/default/tinkedge")  # the EnvironmentFile= of the systemd units
_MAX_BYTES: Final = 1 << 20
_ASSIGNMENT: Final = re.compile(r"\s*(export\s+)?(\w+)\s*=(.*)")
_ENVIRONMENT: Final = "the environment"
_NOT_OPTIONS: Final = frozenset({f"{PREFIX}CONFIG", f"{PREFIX}COMPLETE", f"{PREFIX}WORKFLOW_STATE"})
"""Variables that are not options. The agent sets the last one for its after-workflow command."""


@dataclass(frozen=True, slots=True)
class VariableProblem:
    """The problem of a variable, the place where it is set (`FILE:LINE`, or `the environment`), and the remedy."""

    name: str
    message: str
    where: str
    remedy: str

    @property
    def text(self) -> str:
        """The problem in one line."""
        return f"{self.message} ({self.where}): {self.remedy}"


def unknown_variables(
    environment: Iterable[str], command: click.Command, commands: Iterable[str], schema: Schema
) -> dict[str, str]:
    """Return a sentence for each TINKEDGE_ variable, by its name, that no command reads.

    The options of `commands` are imported only if a variable is not an option of `command`.
    """
    own = set(_variables(command))
    strange = sorted(
        name for name in environment if name.startswith(PREFIX) and name not in own and name not in _NOT_OPTIONS
    )
    if not strange:
        return {}
    known = own.union(*(_variables(schema(name)) for name in commands))
    found = {}
    for name in strange:
        removed = was_removed(name.removeprefix(PREFIX).lower().replace("_", "-"))
        if name not in known:
            found[name] = (
                f"the variable {name} {removed or f'is not an option, and does nothing{nearest(name, known)}'}"
            )
    return found


def _variables(command: click.Command) -> Iterator[str]:
    """Yield the variables of a command and its subcommands."""
    for option in settable(command):
        yield variable(option)
    if isinstance(command, click.Group):
        for child in command.commands.values():
            yield from _variables(child)


def variable_problems(
    environment: Mapping[str, str], command: click.Command, schema: Schema, file: Path = VARIABLES_FILE
) -> Iterator[VariableProblem]:
    """Yield the problems of the TINKEDGE_ variables of `environment`, and of those in `file`; `command` runs now.

    A name that is unknown in both is reported once. The values in `file` are checked as those of the services.
    """
    try:
        with file.open(errors="replace") as opened:
            lines = opened.read(_MAX_BYTES).splitlines()
    except (FileNotFoundError, NotADirectoryError):
        lines = []
    except OSError as error:
        lines = []
        remedy = "run this as root, or as the user that runs tinkedge, to have it checked"
        yield VariableProblem("", f"{file} can't be read: {error.strerror}", str(file), remedy)
    values: dict[str, tuple[str, str]] = {}
    places: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if (match := _ASSIGNMENT.match(line)) is None:
            continue
        export, name, value = match.groups()
        if not name.startswith(PREFIX):
            continue
        places[name] = f"{file}:{number}"
        values[name] = _unquoted(value), places[name]
        if export:
            message = f"systemd ignores the line of {name}, because it begins with 'export'"
            yield VariableProblem(name, message, places[name], "take that word out")
    places |= dict.fromkeys(environment, _ENVIRONMENT)
    for name, sentence in unknown_variables(places, command, (*SERVICES, *TOOLS), schema).items():
        yield VariableProblem(name, sentence, places[name], "correct its name, or remove it")
    yield from _value_problems(values, schema)


def _value_problems(values: Mapping[str, tuple[str, str]], schema: Schema) -> Iterator[VariableProblem]:
    """Yield the values that every service with such an option would refuse. `values` are by name, with their places."""
    commands = [(name, schema(name)) for name in SERVICES] if values else []
    for name, (value, where) in values.items():
        found = [
            _value_problem(command, service, option, value)
            for service, command in commands
            for option in settable(command)
            if variable(option) == name
        ]
        if value and found and all(found):
            yield VariableProblem(name, f"{name}: {found[0]}", where, "correct its value")


def _value_problem(command: click.Command, name: str, option: click.Option, value: str) -> str:
    parts = option.type.split_envvar_value(value) if option.multiple else [value]
    if problem := next(filter(None, (relative_path_problem(option, part) for part in parts)), ""):
        return problem
    try:
        option.type_cast_value(click.Context(command, info_name=name), parts if option.multiple else value)
    except click.UsageError as error:
        return error.message.rstrip(".")
    return ""


def _unquoted(value: str) -> str:
    """Return a value without the quotes around it (systemd.exec(5), EnvironmentFile=)."""
    value = value.strip()
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
