"""Checks of variables: those of a process, and those in the file that the systemd units read.

`unknown_variables` (`values`) finds the names that no command reads. Here are also the values in the file, which
nothing reads until the service starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from edge.settings.options import PREFIX, SERVICES, TOOLS, Schema, settable, variable
from edge.settings.values import relative, unknown_variables

VARIABLES_FILE: Final = Path("/etc/default/tinkedge")
"""The EnvironmentFile= of the systemd units."""
_LARGEST_BYTES: Final = 1 << 20
_ASSIGNMENT: Final = re.compile(r"\s*(export\s+)?(\w+)\s*=(.*)")
THE_ENVIRONMENT: Final = "the environment"


@dataclass(frozen=True, slots=True)
class VariableProblem:
    """The problem of a variable, the place where it is set (`FILE:LINE`, or `the environment`), and the remedy."""

    name: str
    message: str
    where: str
    remedy: str

    @property
    def text(self) -> str:
        """All of it in one line."""
        return f"{self.message} ({self.where}): {self.remedy}"


def variable_problems(
    environment: Mapping[str, str], command: click.Command, schema: Schema, file: Path = VARIABLES_FILE
) -> Iterator[VariableProblem]:
    """Yield what is wrong with TINKEDGE_ variables of `environment`, and with those in `file`.

    A name that is unknown in both is reported once, for `environment`. The values in `file` are checked as those of
    the services; a process checks its own at its start. `command` is the one that runs now.
    """
    try:
        with file.open(errors="replace") as opened:
            lines = opened.read(_LARGEST_BYTES).splitlines()
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
    places |= dict.fromkeys(environment, THE_ENVIRONMENT)
    for name, sentence in unknown_variables(places, command, (*SERVICES, *TOOLS), schema).items():
        yield VariableProblem(name, sentence, places[name], "correct its name, or remove it")
    yield from _values(values, schema)


def _values(values: Mapping[str, tuple[str, str]], schema: Schema) -> Iterator[VariableProblem]:
    """Yield the values that every service with such an option would refuse. `values` are by name, with their places."""
    commands = [(name, schema(name)) for name in SERVICES] if values else []
    for name, (value, where) in values.items():
        found = [
            _wrong(command, service, option, value)
            for service, command in commands
            for option in settable(command)
            if variable(option) == name
        ]
        if value and found and all(found):
            yield VariableProblem(name, f"{name}: {found[0]}", where, "correct its value")


def _wrong(command: click.Command, name: str, option: click.Option, value: str) -> str:
    parts = option.type.split_envvar_value(value) if option.multiple else [value]
    if problem := next(filter(None, (relative(option, part) for part in parts)), ""):
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
