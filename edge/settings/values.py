"""What of a file is for one command: checked by its options' own types, and given to click as its default_map."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import click

from edge.settings.file import ConfigError, ConfigFile, Entry, Problem, read
from edge.settings.options import (
    DEFAULT_FILE,
    PREFIX,
    READS_AS,
    SECRETS,
    SERVICES,
    Schema,
    in_file,
    is_list,
    key,
    settable,
    variable,
)
from edge.settings.removed import refuse_removed_variables, was_removed

_OF_WINDOWS: Final = re.compile(r"[A-Za-z]:[\\/]|\\\\")
_META: Final = "tinkedge.config"
_UNREADABLE: Final = "tinkedge.config.unreadable"


def apply(ctx: click.Context, name: str, given: Path | None, schema: Schema) -> None:
    """Have the command `name` of `ctx` take its values from the file. Raises click.UsageError with all that is wrong.

    `given` None: the default file, if it is there and can be read; /dev/null: none.
    """
    if name in SERVICES:
        refuse_removed_variables(ctx)
    if given == Path(os.devnull):
        return
    path = given or DEFAULT_FILE
    if given is None:
        try:
            with path.open("rb"):
                pass
        except FileNotFoundError:
            return
        except OSError as error:
            ctx.meta[_UNREADABLE] = f"{path} is not used: {error.strerror}"
            return
    try:
        file = read(path, SERVICES)
        command = ctx.command
        own = {key(option): option for option in settable(command) if in_file(name, option)}
        entries = file.entries(READS_AS.get(name, name))
        problems = [*file.problems, *_invalid(name, own, entries.values(), ctx)]
        # What an agent runs on may have nothing of the other commands: it looks at its own keys only.
        if name in (*SERVICES, *READS_AS) and name != "agent":
            problems += _unknown(file, set(own), schema)
        if problems:
            raise ConfigError(path, problems)
    except ConfigError as error:
        raise click.UsageError(f"the settings can't be used:\n{error}", ctx) from error
    ctx.default_map = {
        str(own[entry.key].name): _raw(own[entry.key], entry) for entry in entries.values() if entry.key in own
    }
    ctx.meta[_META] = file


def file_of(ctx: click.Context) -> ConfigFile | None:
    """The file that `apply` has read."""
    found: ConfigFile | None = ctx.meta.get(_META)
    return found


def unreadable(ctx: click.Context) -> str:
    """Why the default file is not used though it is there; empty: it is, or there is none."""
    return str(ctx.meta.get(_UNREADABLE, ""))


def check(path: Path, schema: Schema) -> ConfigFile:
    """Look at all of a file, for all commands. Raises ConfigError with everything that is wrong."""
    file = read(path, SERVICES)
    problems = list(file.problems)
    problems += _unknown(file, set(), schema)
    for section, entry in file.all():
        names = [section] if section else SERVICES
        found: list[list[Problem]] = []
        for name in names:
            command = schema(name)
            own = {key(option): option for option in settable(command) if in_file(name, option)}
            if entry.key in own:
                found.append(list(_invalid(name, own, [entry], click.Context(command, info_name=name))))
        if found and all(found):  # what is right for one command may be there for it
            problems += found[0]
    if problems:
        raise ConfigError(path, problems)
    return file


def nearest(name: str, known: Iterable[str]) -> str:
    """`; do you mean NAME?`, or nothing where none is near."""
    found = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; do you mean {found[0]}?" if found else ""


def _unknown(file: ConfigFile, own: set[str], schema: Schema) -> Iterator[Problem]:
    """Keys that no command knows. Other commands are imported only if there is a key that is not this one's."""
    known: dict[str, set[str]] = {}

    def of(name: str) -> set[str]:
        if name not in known:
            known[name] = {key(option) for option in settable(schema(name))}
        return known[name]

    for section, entry in file.all():
        if entry.key in SECRETS:
            yield Problem(entry.line, entry.key, "is a secret, which the file does not take: give it as a variable")
        elif was_removed(entry.key):
            yield Problem(entry.line, entry.key, was_removed(entry.key))
        elif section:
            if entry.key not in of(section):
                yield Problem(
                    entry.line, entry.key, f"tinkedge {section} has no such option{nearest(entry.key, of(section))}"
                )
        elif entry.key not in own and not any(entry.key in of(name) for name in SERVICES):
            every = set().union(*(of(name) for name in SERVICES)) - SECRETS
            yield Problem(entry.line, entry.key, f"is not known{nearest(entry.key, every)}")


def _invalid(
    name: str, own: dict[str, click.Option], entries: Iterable[Entry], ctx: click.Context
) -> Iterator[Problem]:
    for entry in entries:
        option = own.get(entry.key)
        if option is None:
            continue
        if entry.is_list and not is_list(option):
            yield Problem(entry.line, entry.key, f"tinkedge {name} takes one value, not a list")
            continue
        if problem := next(filter(None, (relative(option, value) for value in entry.values)), ""):
            yield Problem(entry.line, entry.key, problem)
            continue
        try:
            option.type_cast_value(ctx, _raw(option, entry))
        except click.UsageError as error:
            yield Problem(entry.line, entry.key, f"{error.message} (tinkedge {name})")


def relative(option: click.Option, value: str) -> str:
    """Return what is wrong with a value that is a relative path, or has one in it; empty if nothing is.

    A service is started in another directory than the user who writes its settings, under systemd in `/`.
    """
    path: str = getattr(option.type, "path_of", lambda _text: "")(value)
    if not path or path.startswith(("/", "~")):
        return ""
    if _OF_WINDOWS.match(path):
        return f"{path!r} is a path of Windows; here, paths begin with '/'"
    return (
        f"{path!r} is a relative path, and depends on the directory in which tinkedge is started: "
        f"write all of it, such as {Path(os.path.abspath(path))}"  # noqa: PTH100 - symbolic links stay as written
    )


def _raw(option: click.Option, entry: Entry) -> Any:
    """As click takes it from a default_map: text, or a list of texts."""
    if option.multiple:
        return list(entry.values)
    return ",".join(entry.values) if entry.is_list else entry.values[0]


_OTHERS: Final = frozenset({f"{PREFIX}CONFIG", f"{PREFIX}COMPLETE", f"{PREFIX}WORKFLOW_STATE"})
"""Variables that are no options; the agent sets the last one for its after-workflow command."""


def unknown_variables(
    environment: Iterable[str], command: click.Command, commands: Iterable[str], schema: Schema
) -> dict[str, str]:
    """Return a sentence for each TINKEDGE_ variable, by its name, that no command reads.

    The options of `commands` are looked at only if a variable is not an option of `command`.
    """
    own = set(_variables(command))
    # _TINKEDGE_COMPLETE is click's own.
    strange = sorted(
        name for name in environment if name.startswith(PREFIX) and name not in own and name not in _OTHERS
    )
    if not strange:
        return {}
    known = own.union(*(_variables(schema(name)) for name in commands))
    return {name: f"the variable {name} {_why_unknown(name, known)}" for name in strange if name not in known}


def _why_unknown(name: str, known: Iterable[str]) -> str:
    removed = was_removed(name.removeprefix(PREFIX).lower().replace("_", "-"))
    return removed or f"is no option, and does nothing{nearest(name, known)}"


def _variables(command: click.Command) -> Iterator[str]:
    """Yield the variables of a command and its subcommands."""
    for option in settable(command):
        yield variable(option)
    if isinstance(command, click.Group):
        for child in command.commands.values():
            yield from _variables(child)
