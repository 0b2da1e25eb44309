"""Manual pages and completions, from the commands themselves: what `--help` says, in troff (man(7)) and for shells."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click
from click.shell_completion import get_completion_class

_PROGRAM = "tinkedge"
_COMPLETIONS = {
    "bash": f"usr/share/bash-completion/completions/{_PROGRAM}",
    "zsh": f"usr/share/zsh/vendor-completions/_{_PROGRAM}",
    "fish": f"usr/share/fish/vendor_completions.d/{_PROGRAM}.fish",
}
"""Where the shells of Debian look, under the root."""


@dataclass(frozen=True, slots=True)
class Paper:
    """A file under the root, and what is in it."""

    path: str
    text: str


def manual(commands: click.Group, epoch: int, version: str) -> Iterator[Paper]:
    """`tinkedge(1)`, and a page for each command: `tinkedge-up(1)`."""
    root = click.Context(commands, info_name=_PROGRAM)
    names = commands.list_commands(root)
    pages = [_page(root, commands, epoch, version, also=[f"{_PROGRAM}-{name}" for name in names])]
    for name in names:
        command = commands.get_command(root, name)
        if command is not None and not command.hidden:
            context = click.Context(command, info_name=name, parent=root, auto_envvar_prefix="TINKEDGE")
            pages.append(_page(context, command, epoch, version, also=[_PROGRAM]))
    yield from pages


def completions(commands: click.Group) -> Iterator[Paper]:
    """Yield the completion scripts for bash, zsh and fish; each calls the program to complete a word."""
    for shell, path in _COMPLETIONS.items():
        made = get_completion_class(shell)
        if made is not None:
            source = made(commands, {}, _PROGRAM, f"_{_PROGRAM.upper()}_COMPLETE")
            yield Paper(path, source.source_template % source.source_vars())


def _page(context: click.Context, command: click.Command, epoch: int, version: str, *, also: list[str]) -> Paper:
    name = context.command_path.replace(" ", "-")
    day = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%d")
    said = " ".join((command.help or "").split("\f")[0].split())
    short = re.split(r"(?<=[.:;]) ", command.get_short_help_str(200), maxsplit=1)[0].rstrip(".")
    parts = [
        f'.TH "{_text(name.upper())}" "1" "{day}" "{_PROGRAM} {version}" "User Commands"',
        ".SH NAME",
        f"{_text(name)} \\- {_text(short)}",
        ".SH SYNOPSIS",
        f".B {_text(context.command_path)}",
        _text(" ".join(command.collect_usage_pieces(context))),
    ]
    if said:
        parts += [".SH DESCRIPTION", *_paragraphs(command.help or "")]
    parts += _options(context, command)
    if isinstance(command, click.Group):
        parts.append(".SH COMMANDS")
        for one in command.list_commands(context):
            found = command.get_command(context, one)
            if found is not None and not found.hidden:
                parts += [".TP", f".B {_text(one)}", _text(found.get_short_help_str(300))]
    parts += [".SH SEE ALSO", _text(", ".join(f"{one}(1)" for one in also))]
    return Paper(f"usr/share/man/man1/{name}.1", "\n".join(parts) + "\n")


def _options(context: click.Context, command: click.Command) -> Iterator[str]:
    records = [(one, record) for one in command.get_params(context) if (record := one.get_help_record(context))]
    if records:
        yield ".SH OPTIONS"
    for option, (names, said) in records:
        yield ".TP"
        yield f".B {_text(names)}"
        variable = option.envvar if isinstance(option.envvar, str) else None
        if variable is None and context.auto_envvar_prefix and isinstance(option, click.Option) and option.name:
            variable = f"{context.auto_envvar_prefix}_{option.name.upper()}"
        told = f" Variable: {variable}." if variable and option.name != "help" else ""
        yield _text(said + told)


def _paragraphs(said: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", said.split("\f")[0].strip()):
        yield ".PP"
        lines = paragraph.splitlines()
        if lines[0].strip() == "\b":  # click's mark of a paragraph that is not wrapped
            yield from (".nf", *(_text(line) for line in lines[1:]), ".fi")
        else:
            yield _text(" ".join(line.strip() for line in lines))


def _text(said: str) -> str:
    """Text as troff takes it for text (groff(7), "Escape sequences")."""
    safe = (
        said.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga").replace('"', "\\(dq")
    )
    return f"\\&{safe}" if safe.startswith(".") else safe


def write(root: Path, papers: Iterator[Paper], *, compressed: bool = False) -> None:
    """Put them under `root`; manual pages compressed, as Debian wants them, with no time in it."""
    for paper in papers:
        path = root / paper.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if compressed:
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(paper.text.encode(), 9, mtime=0))
        else:
            path.write_text(paper.text)
