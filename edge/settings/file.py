"""The settings file: YAML with one key for each option, and the values that a command takes from it.

    data-dir: /var/lib/tinkedge
    interface: [eth1, eth2]
    controller:               # keys for `tinkedge controller` only
      log-level: debug

A flag is stronger than a variable, a variable than the file, and the file than the default (click's parameter sources).
Scalars are texts, as on the command line, and not what YAML 1.1 makes of them: `no` is a word, and 22:30 not a number.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final, cast

import click
from click.core import ParameterSource

from edge.settings.options import (
    DEFAULT_FILE,
    READS_AS,
    SECRETS,
    SERVICES,
    Group,
    Schema,
    group_of,
    in_file,
    is_list,
    key,
    nearest,
    refuse_removed_variables,
    settable,
    variable_in_use,
    was_removed,
)
from tink.errors import TinkedgeError

if TYPE_CHECKING:
    import yaml

_MAX_BYTES: Final = 1 << 20
_WINDOWS_PATH: Final = re.compile(r"[A-Za-z]:[\\/]|\\\\")
_META: Final = "tinkedge.config"
_UNREADABLE: Final = "tinkedge.config.unreadable"


@dataclass(frozen=True, slots=True, order=True)
class FileProblem:
    """A problem of a settings file. `line` counts from 1; 0 means the whole file."""

    line: int
    key: str
    message: str

    def text(self, path: Path) -> str:
        """Return `FILE:LINE: KEY: MESSAGE`."""
        where = f"{path}:{self.line}" if self.line else str(path)
        return ": ".join(filter(None, (where, self.key, self.message)))


class ConfigError(TinkedgeError):
    """A settings file can't be used. The message lists all of its problems in the order of the lines."""

    def __init__(self, path: Path, problems: Collection[FileProblem]) -> None:
        self.path = path
        self.problems = sorted(set(problems))
        super().__init__("\n".join(problem.text(path) for problem in self.problems))


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A key of the file with its values as texts: one value, or those of a list."""

    key: str
    line: int
    values: tuple[str, ...]
    is_list: bool


@dataclass(slots=True)
class ConfigFile:
    """The entries of a settings file, those for all commands and those for one, and its problems as YAML."""

    path: Path
    common: dict[str, FileEntry] = field(default_factory=dict)
    sections: dict[str, dict[str, FileEntry]] = field(default_factory=dict)
    problems: list[FileProblem] = field(default_factory=list)

    def entries(self, command: str) -> Mapping[str, FileEntry]:
        """Return the entries for a command by key. Those in the command's section are stronger."""
        return self.common | self.sections.get(command, {})

    def all(self) -> Iterator[tuple[str, FileEntry]]:
        """Yield every entry with the command that it is for, or with an empty text if it is for all commands."""
        for entry in self.common.values():
            yield "", entry
        for command, section in self.sections.items():
            for entry in section.values():
                yield command, entry


# --- reading ----------------------------------------------------------------------------------------------------------


def read(path: Path, commands: Collection[str]) -> ConfigFile:
    """Read a file that may have sections for `commands`. Raises ConfigError if it is not YAML."""
    import yaml  # imported here: most commands run without a file

    try:
        with path.open("rb") as opened:
            content = opened.read(_MAX_BYTES + 1)
    except FileNotFoundError as error:
        message = f"there is no such file; 'tinkedge config init {shlex.quote(str(path))}' writes one"
        raise ConfigError(path, [FileProblem(0, "", message)]) from error
    except IsADirectoryError as error:
        raise ConfigError(path, [FileProblem(0, "", "is a directory: name the file in it")]) from error
    except OSError as error:
        raise ConfigError(path, [FileProblem(0, "", f"can't be read: {error.strerror}")]) from error
    if len(content) > _MAX_BYTES:
        raise ConfigError(path, [FileProblem(0, "", f"is larger than {_MAX_BYTES} bytes")])
    try:
        root = yaml.compose(content.decode(), Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise ConfigError(path, [FileProblem(content[: error.start].count(b"\n") + 1, "", "is not UTF-8")]) from error
    except RecursionError as error:
        raise ConfigError(path, [FileProblem(0, "", "is nested too deep")]) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or str(error)
        raise ConfigError(path, [FileProblem(mark.line + 1 if mark else 0, "", f"is not YAML: {what}")]) from error
    found = ConfigFile(path)
    if root is not None:
        _read_keys(found, root, commands, "")
    return found


def _read_keys(found: ConfigFile, node: yaml.Node, commands: Collection[str], command: str) -> None:
    """Add the keys of a mapping to `found`. `command` is the name of a section, or empty for the whole file."""
    import yaml

    line = node.start_mark.line + 1
    if not isinstance(node, yaml.MappingNode):
        found.problems.append(FileProblem(line, command, "must be lines of the form KEY: VALUE"))
        return
    into = found.sections.setdefault(command, {}) if command else found.common
    seen: dict[str, int] = {}
    for name, value in node.value:
        line = name.start_mark.line + 1
        if not isinstance(name, yaml.ScalarNode):
            found.problems.append(FileProblem(line, command, "a key must be a word"))
            continue
        if (first := seen.setdefault(name.value, line)) != line:
            found.problems.append(FileProblem(line, name.value, f"stands in line {first}, too"))
        elif isinstance(value, yaml.MappingNode) and not command and name.value in commands:
            _read_keys(found, value, commands, name.value)
        elif isinstance(problem := _value_problem(value), str):
            found.problems.append(FileProblem(line, name.value, problem))
        else:
            nodes = value.value if isinstance(value, yaml.SequenceNode) else [value]
            into[name.value] = FileEntry(
                name.value, line, tuple(each.value for each in nodes), is_list=isinstance(value, yaml.SequenceNode)
            )


def _value_problem(value: yaml.Node) -> str | None:
    import yaml

    if isinstance(value, yaml.MappingNode):
        return "has keys below it, and no command has this name"
    for each in value.value if isinstance(value, yaml.SequenceNode) else [value]:
        if not isinstance(each, yaml.ScalarNode):
            return "must be a value, or a list of values"
        if each.tag == "tag:yaml.org,2002:null":
            return "has no value: write one, or take the line out"
    return None


# --- values for a command ---------------------------------------------------------------------------------------------


def apply(ctx: click.Context, name: str, given: Path | None, schema: Schema) -> None:
    """Read the file and make its values the defaults of the command that runs in `ctx`. Raises click.UsageError.

    `given` is the file that the user named. None means the default file, if it can be read; /dev/null means no file.
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
        own = _options_in_file(name, ctx.command)
        entries = file.entries(READS_AS.get(name, name))
        problems = [*file.problems, *_invalid(name, own, entries.values(), ctx)]
        # The agent's environment may not have the other commands, so the agent checks its own keys only.
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
    """Return the file that `apply` has read, or None."""
    return cast("ConfigFile | None", ctx.meta.get(_META))


def unreadable(ctx: click.Context) -> str:
    """Return why the default file can't be read, or an empty text if it was read or does not exist."""
    return str(ctx.meta.get(_UNREADABLE, ""))


def check(path: Path, schema: Schema) -> ConfigFile:
    """Check a whole file, for all commands. Raises ConfigError with all problems."""
    file = read(path, SERVICES)
    problems = list(file.problems)
    problems += _unknown(file, set(), schema)
    for section, entry in file.all():
        names = [section] if section else SERVICES
        found: list[list[FileProblem]] = []
        for name in names:
            command = schema(name)
            own = _options_in_file(name, command)
            if entry.key in own:
                found.append(list(_invalid(name, own, [entry], click.Context(command, info_name=name))))
        if found and all(found):  # A value that one command accepts may be meant for that command.
            problems += found[0]
    if problems:
        raise ConfigError(path, problems)
    return file


def _options_in_file(name: str, command: click.Command) -> dict[str, click.Option]:
    return {key(option): option for option in settable(command) if in_file(name, option)}


def _unknown(file: ConfigFile, own: set[str], schema: Schema) -> Iterator[FileProblem]:
    """Yield the keys that no command has. Other commands are imported only if a key is not in `own`."""
    known: dict[str, set[str]] = {}

    def keys_of(name: str) -> set[str]:
        if name not in known:
            known[name] = {key(option) for option in settable(schema(name))}
        return known[name]

    for section, entry in file.all():
        if entry.key in SECRETS:
            yield FileProblem(entry.line, entry.key, "is a secret, which the file does not take: give it as a variable")
        elif was_removed(entry.key):
            yield FileProblem(entry.line, entry.key, was_removed(entry.key))
        elif section:
            if entry.key not in keys_of(section):
                near = nearest(entry.key, keys_of(section))
                yield FileProblem(entry.line, entry.key, f"tinkedge {section} has no such option{near}")
        elif entry.key not in own and not any(entry.key in keys_of(name) for name in SERVICES):
            every = set().union(*(keys_of(name) for name in SERVICES)) - SECRETS
            yield FileProblem(entry.line, entry.key, f"is not known{nearest(entry.key, every)}")


def _invalid(
    name: str, own: dict[str, click.Option], entries: Iterable[FileEntry], ctx: click.Context
) -> Iterator[FileProblem]:
    """Yield the entries whose values the options of the command refuse."""
    for entry in entries:
        option = own.get(entry.key)
        if option is None:
            continue
        if entry.is_list and not is_list(option):
            yield FileProblem(entry.line, entry.key, f"tinkedge {name} takes one value, not a list")
            continue
        if problem := next(filter(None, (relative_path_problem(option, value) for value in entry.values)), ""):
            yield FileProblem(entry.line, entry.key, problem)
            continue
        try:
            option.type_cast_value(ctx, _raw(option, entry))
        except click.UsageError as error:
            yield FileProblem(entry.line, entry.key, f"{error.message} (tinkedge {name})")


def relative_path_problem(option: click.Option, value: str) -> str:
    """Return the problem of a value that is or contains a relative path, or an empty text."""
    # A service starts in another directory than the user who writes its settings: systemd starts it in `/`.
    path: str = getattr(option.type, "path_of", lambda _text: "")(value)
    if not path or path.startswith(("/", "~")):
        return ""
    if _WINDOWS_PATH.match(path):
        return f"{path!r} is a path of Windows; here, paths begin with '/'"
    return (
        f"{path!r} is a relative path, and depends on the directory in which tinkedge is started: "
        f"write all of it, such as {Path(os.path.abspath(path))}"  # noqa: PTH100 - symbolic links stay as written
    )


def _raw(option: click.Option, entry: FileEntry) -> Any:
    """Return the value of an entry as click takes it from a default_map: a text, or a list of texts."""
    if option.multiple:
        return list(entry.values)
    return ",".join(entry.values) if entry.is_list else entry.values[0]


# --- the origin of a value --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OptionOrigin:
    """The value of an option and its source: flag, env, file or default.

    `value` is a text, a list of texts, a truth value, a number or None. `where` is the variable or FILE:LINE.
    """

    key: str
    value: Any
    source: str
    where: str = ""

    @property
    def text(self) -> str:
        """`default`, `flag`, `env TINKEDGE_DATA_DIR` or `FILE:LINE`."""
        return self.where if self.source == "file" else f"{self.source} {self.where}".strip()


def origins(ctx: click.Context, args: Sequence[str]) -> Iterator[OptionOrigin]:
    """Yield the origins of all options of the command in `ctx`, which was made from `args`."""
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
        yield OptionOrigin(key(option), shown, source, where)


def place(ctx: click.Context, name: str) -> str:
    """Return the text of the origin of one option, by its key."""
    option = next(each for each in settable(ctx.command) if key(each) == name)
    source, where, _ = _source(ctx, option)
    return OptionOrigin(name, None, source, where).text


def _source(ctx: click.Context, option: click.Option) -> tuple[str, str, FileEntry | None]:
    """Return `source` and `where` of an `OptionOrigin`, and the entry of the file if the value is from there."""
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


# --- the example file -------------------------------------------------------------------------------------------------

_HEAD: Final = f"""\
# Settings of tinkedge: {DEFAULT_FILE}
#
# A key is an option without its dashes: --data-dir is data-dir. A flag is stronger than a variable (TINKEDGE_DATA_DIR),
# a variable is stronger than this file, and the file is stronger than the default. The values below are the defaults.
# One file may serve several commands: each command takes the keys that it knows. Keys for one command alone stand
# below its name:
#
#   controller:
#     log-level: debug
#
# tinkedge config check    reports the mistakes in this file
# tinkedge config show up  prints the values with which `tinkedge up` would run, and where each value is from
"""


def example_file(schema: Schema) -> str:
    """Return a file with every key of the services, its help and its default, all commented out."""
    options: dict[str, click.Option] = {}
    commands: dict[str, list[str]] = {}
    groups: dict[Group, list[str]] = {}
    for name in SERVICES:
        if name == "agent":  # its settings come from the kernel command line
            continue
        command = schema(name)
        for option in settable(command):
            if key(option) not in options:
                options[key(option)] = option
                groups.setdefault(group_of(command, option), []).append(key(option))
            commands.setdefault(key(option), []).append(name)
    lines = [_HEAD]
    for group in Group:
        if group in groups:
            lines.append(f"\n# --- {group} {'-' * (100 - len(group))}\n")
        lines += ["\n" + "".join(_example_entry(options[name], commands[name])) for name in groups.get(group, ())]
    return "".join(lines)


def _example_entry(option: click.Option, commands: list[str]) -> Iterator[str]:
    text = " ".join((option.help or "").split())
    if choices := getattr(option.type, "choices", ()):
        text += f" One of: {', '.join(map(str, choices))}."
    yield from (f"# {line}\n" for line in wrap(f"{text} For: {', '.join(commands)}.", 116))
    yield f"#{key(option)}: {_example_value(option)}\n"


def _example_value(option: click.Option) -> str:
    value: Any = option.get_default(click.Context(click.Command("example")), call=True)
    if option.multiple:
        return "[]"
    if value is None or value == "":
        metavar = option.metavar or option.type.name.upper()
        return "[]" if is_list(option) else ('""' if value == "" else f"<{metavar}>")
    return json.dumps(value) if isinstance(value, bool | int | float) else str(value)
