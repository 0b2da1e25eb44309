"""`tinkedge config`: check the file with settings, show the values that a command uses, and write a new file."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from edge.settings import (
    DEFAULT_FILE,
    SERVICES,
    CommandGroup,
    ConfigError,
    ConfigFile,
    FilePath,
    Schema,
    example_file,
    explain,
    origins,
    place,
    schema_of,
    variable_problems,
)
from edge.settings import check as check_file
from edge.settings.checks import SettingsFinding, contradictions, obstacles
from edge.settings.model import ROLES, services_of


@click.group(cls=CommandGroup)
def config() -> None:
    """Check, show or write the file with settings: /etc/tinkedge/tinkedge.yaml, or --config.

    It has one key for each option of the services.
    """


@config.command()
@click.argument("file", type=FilePath(), default=DEFAULT_FILE, envvar="TINKEDGE_CONFIG")
@click.option(
    "--for",
    "roles",
    type=click.Choice(ROLES),
    multiple=True,
    help="A service that this host runs with FILE. Repeatable. Default: a mistake for some services only is a warning.",
)
@click.pass_context
def check(ctx: click.Context, file: Path, roles: tuple[str, ...]) -> None:
    """List all mistakes in FILE, with line and key. Exits with 1 if there is one that is not only a warning.

    Values are checked as those of flags. Then the checks of each service at its start follow, with the variables of
    this environment: values that contradict each other, and files or interfaces that this host does not have.
    """
    schema = schema_of(ctx)
    try:
        found = check_file(file, schema)
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    errors, warnings = _together(ctx, schema, file, roles)
    warnings += [each.text for each in variable_problems(os.environ, ctx.command, schema)]
    for line in errors:
        click.echo(f"error: {line}", err=True)
    for line in warnings:
        click.echo(f"warning: {line}", err=True)
    if errors:
        sys.exit(1)
    click.echo(f"{file}: {_summary(found)}")


def _summary(found: ConfigFile) -> str:
    keys = [f"{entry.key} (for {command})" if command else entry.key for command, entry in found.all()]
    if not keys:
        return "good, but it sets nothing; 'tinkedge config init' prints every key"
    return f"good, {len(keys)} value{'s' if len(keys) > 1 else ''}: {', '.join(keys)}"


def _together(ctx: click.Context, schema: Schema, file: Path, roles: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return the errors and warnings of the services; without `roles`, only those about keys in the file."""
    by_line: dict[str, dict[str, SettingsFinding]] = {}
    asked: dict[str, set[str]] = {}
    for role in roles or ROLES:
        command = schema(role)
        try:
            made = command.make_context(role, ["--config", str(file)], parent=ctx.find_root())
        except click.UsageError as error:  # from a variable, because the file is valid
            by_line.setdefault(explain(error).format_message(), {})[role] = SettingsFinding((), "", "")
            continue
        with made:
            asked[role] = {str(param.name).replace("_", "-") for param in command.params}
            services = services_of(role, made.params)
            for finding in (*contradictions(services, made.params), *obstacles(services, made.params)):
                where = {key: place(made, key) for key in finding.keys}
                if roles or any(each.startswith(f"{file}:") for each in where.values()):
                    by_line.setdefault(finding.text(where.__getitem__), {})[role] = finding
    errors: list[str] = []
    warnings: list[str] = []
    for line, found in by_line.items():
        keys = set(next(iter(found.values())).keys)
        concerned = roles or [role for role, known in asked.items() if keys <= known]
        # A value that only some services reject may be right on this host, which may run the others.
        certain = bool(roles) or set(concerned) <= set(found)
        wrong = any(each.is_error for each in found.values()) and certain
        (errors if wrong else warnings).append(f"{line} (tinkedge {', '.join(found)})")
    return errors, warnings


@config.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("command", type=click.Choice(SERVICES), default="up")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", help="Format of the output.")
@click.pass_context
def show(ctx: click.Context, command: str, options: tuple[str, ...], output: str) -> None:
    """Show the values that COMMAND would use, and the source of each: flag, env, FILE:LINE or default.

    OPTIONS are those of COMMAND, such as --config. The YAML output can be used as a file with settings.
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
@click.argument("file", type=FilePath(), required=False)
@click.pass_context
def init(ctx: click.Context, file: Path | None) -> None:
    """Print a file with every key, its help and its default, commented out; or write it to FILE, a new one."""
    text = example_file(schema_of(ctx))
    if file is None:
        click.echo(text, nl=False)
        return
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise click.ClickException(f"{file} is there already, and is not overwritten: name a new file") from None
    except FileNotFoundError:
        raise click.ClickException(f"{file}: there is no directory {file.parent}: make it, or name another") from None
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from error
