"""`tinkedge config`: the file with settings: what is wrong in it, what a command makes of it, and one to begin with."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from edge.configuration import DEFAULT_FILE, SERVICES, ConfigError, example, origins, schema_of
from edge.configuration import check as check_file


@click.group()
def config() -> None:
    """The file with settings, /etc/tinkedge/tinkedge.yaml or --config: one key for each option of the services."""


@config.command()
@click.argument("file", type=click.Path(path_type=Path), default=DEFAULT_FILE, envvar="TINKEDGE_CONFIG")
@click.pass_context
def check(ctx: click.Context, file: Path) -> None:
    """Say all that is wrong in FILE, with line and key. Exits with 1 if something is.

    Values are checked as those of flags are. A key may be of any command that serves.
    """
    try:
        found = check_file(file, schema_of(ctx))
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    click.echo(f"{file}: good, {sum(1 for _ in found.all())} values")


@config.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("command", type=click.Choice(SERVICES), default="up")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", help="Form.")
@click.pass_context
def show(ctx: click.Context, command: str, options: tuple[str, ...], output: str) -> None:
    """Say what COMMAND would run with, and where each value is from: flag, env, FILE:LINE or default.

    OPTIONS are the command's own, --config among them. What is printed as YAML can be used as a file.
    """
    found = schema_of(ctx)(command)
    with found.make_context(command, list(options), parent=ctx.find_root()) as made:
        all_of = list(origins(made, options))
    if output == "json":
        entries: dict[str, Any] = {
            each.key: {"value": each.value, "source": each.source, "where": each.where} for each in all_of
        }
        click.echo(json.dumps(entries, indent=2))
        return
    for each in all_of:
        if each.value is None or each.value == [] or each.value == "(not shown)":
            click.echo(f"# {each.key}: {'' if each.value is None else each.value}  # {each.text}")
        else:
            click.echo(f"{each.key}: {json.dumps(each.value)}  # {each.text}")


@config.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.pass_context
def init(ctx: click.Context, file: Path | None) -> None:
    """Print a file with every key, its help and its default, commented out; or write it to FILE, a new one."""
    text = example(schema_of(ctx))
    if file is None:
        click.echo(text, nl=False)
        return
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from error
