"""The file: YAML, a flag's name without dashes and its value on each line; what is for one command, under its name.

    data-dir: /var/lib/tinkedge
    interface: [eth1, eth2]
    controller:
      log-level: debug

Scalars are taken as they are written and not as YAML 1.1 reads them (`no` is a word, 22:30 no number): each goes
through the type of its option, as a word of the command line does.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import yaml

_LARGEST_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """What is wrong in a file, at a line from 1 on; 0: with all of it."""

    line: int
    key: str
    message: str

    def text(self, path: Path) -> str:
        """`FILE:LINE: KEY: MESSAGE`."""
        where = f"{path}:{self.line}" if self.line else str(path)
        return ": ".join(filter(None, (where, self.key, self.message)))


class ConfigError(Exception):
    """A file can't be used: every problem that it has, in the order of the lines."""

    def __init__(self, path: Path, problems: Collection[Problem]) -> None:
        self.path = path
        self.problems = sorted(set(problems))
        super().__init__("\n".join(problem.text(path) for problem in self.problems))


@dataclass(frozen=True, slots=True)
class Entry:
    """The value of one key, as text: one, or those of a list."""

    key: str
    line: int
    values: tuple[str, ...]
    is_list: bool


@dataclass(slots=True)
class ConfigFile:
    """What a file says to all commands, and to single ones; and what is wrong with it as YAML."""

    path: Path
    common: dict[str, Entry] = field(default_factory=dict)
    sections: dict[str, dict[str, Entry]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def entries(self, command: str) -> Mapping[str, Entry]:
        """By key; what is under the command's name is stronger."""
        return self.common | self.sections.get(command, {})

    def all(self) -> Iterator[tuple[str, Entry]]:
        """Every entry, with the command that it is for; empty: for all that know it."""
        for entry in self.common.values():
            yield "", entry
        for command, section in self.sections.items():
            for entry in section.values():
                yield command, entry


def read(path: Path, commands: Collection[str]) -> ConfigFile:
    """Read the file; `commands` may have sections. Raises ConfigError where there is no YAML to read."""
    import yaml  # here: without a file, nobody waits for it

    try:
        with path.open("rb") as opened:
            content = opened.read(_LARGEST_BYTES + 1)
    except FileNotFoundError as error:
        message = f"there is no such file; 'tinkedge config init {shlex.quote(str(path))}' writes one"
        raise ConfigError(path, [Problem(0, "", message)]) from error
    except IsADirectoryError as error:
        raise ConfigError(path, [Problem(0, "", "is a directory: name the file in it")]) from error
    except OSError as error:
        raise ConfigError(path, [Problem(0, "", f"can't be read: {error.strerror}")]) from error
    if len(content) > _LARGEST_BYTES:
        raise ConfigError(path, [Problem(0, "", f"is larger than {_LARGEST_BYTES} bytes")])
    try:
        root = yaml.compose(content.decode(), Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise ConfigError(path, [Problem(content[: error.start].count(b"\n") + 1, "", "is no UTF-8")]) from error
    except RecursionError as error:
        raise ConfigError(path, [Problem(0, "", "is nested too deep")]) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or str(error)
        raise ConfigError(path, [Problem(mark.line + 1 if mark else 0, "", f"is no YAML: {what}")]) from error
    found = ConfigFile(path)
    if root is not None:
        _keys(found, root, commands, "")
    return found


def _keys(found: ConfigFile, node: yaml.Node, commands: Collection[str], command: str) -> None:
    """Take in the keys of a mapping: the whole file's, or the section's of `command`."""
    import yaml

    line = node.start_mark.line + 1
    if not isinstance(node, yaml.MappingNode):
        found.problems.append(Problem(line, command, "must be lines of the form KEY: VALUE"))
        return
    into = found.sections.setdefault(command, {}) if command else found.common
    seen: dict[str, int] = {}
    for name, value in node.value:
        line = name.start_mark.line + 1
        if not isinstance(name, yaml.ScalarNode):
            found.problems.append(Problem(line, command, "a key must be a word"))
            continue
        if (first := seen.setdefault(name.value, line)) != line:
            found.problems.append(Problem(line, name.value, f"stands in line {first}, too"))
        elif isinstance(value, yaml.MappingNode) and not command and name.value in commands:
            _keys(found, value, commands, name.value)
        elif isinstance(problem := _problem(value), str):
            found.problems.append(Problem(line, name.value, problem))
        else:
            nodes = value.value if isinstance(value, yaml.SequenceNode) else [value]
            into[name.value] = Entry(
                name.value, line, tuple(each.value for each in nodes), is_list=isinstance(value, yaml.SequenceNode)
            )


def _problem(value: yaml.Node) -> str | None:
    import yaml

    if isinstance(value, yaml.MappingNode):
        return "has keys below it, and no command has this name"
    for each in value.value if isinstance(value, yaml.SequenceNode) else [value]:
        if not isinstance(each, yaml.ScalarNode):
            return "must be a value, or a list of values"
        if each.tag == "tag:yaml.org,2002:null":
            return "has no value: write one, or take the line out"
    return None
