"""Usage errors with more than click's own: the variable that a value is from, and the nearest command or option."""

from __future__ import annotations

import re
from typing import Final

import click
from click.core import ParameterSource

from edge.settings.options import key, variable_in_use
from edge.settings.removed import was_removed

_EXTRA: Final = re.compile(r"Got unexpected extra arguments? \((.*)\)", re.DOTALL)
_MAC: Final = re.compile(r"([0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}")
_TAKES_A_NAME: Final = ("filename", "hardware", "user")
"""Options whose value is often given as an argument."""


def explain(error: click.UsageError) -> click.UsageError:
    """Return an error that click has raised for the options and arguments of a command, with what its message lacks."""
    if isinstance(error, click.MissingParameter):
        return _with_help(error)
    if isinstance(error, click.BadParameter):
        _name_variable(error)
    elif isinstance(error, click.NoSuchOption) and (removed := was_removed(error.option_name.lstrip("-"))):
        return click.UsageError(f"{error.option_name} {removed}", error.ctx)
    elif match := _EXTRA.match(error.message):
        return click.UsageError(f"{error.message}{_meant(error, match[1])}", error.ctx)
    return error


def _name_variable(error: click.BadParameter) -> None:
    """Name the variable, if the value came from one and not from the command line."""
    ctx, option = error.ctx, error.param
    if ctx is None or not isinstance(option, click.Option) or error.param_hint is not None:
        return
    if ctx.get_parameter_source(str(option.name)) is ParameterSource.ENVIRONMENT:
        error.param_hint = f"'--{key(option)}' (env {variable_in_use(option)})"


def _with_help(error: click.MissingParameter) -> click.UsageError:
    """Add what a missing option is for."""
    option = error.param
    if not isinstance(option, click.Option) or error.message or not option.help:
        return error
    return click.MissingParameter(option.help, error.ctx, option, error.param_hint, error.param_type)


def _meant(error: click.UsageError, words: str) -> str:
    """Name the option that takes such a word, or say that the command takes options alone."""
    if error.ctx is None:
        return ""
    command = error.ctx.command
    options = {key(each): each for each in command.params if isinstance(each, click.Option)}
    meant = next((name for name in _TAKES_A_NAME if name in options), "")
    if "mac" in options and _MAC.match(words):
        meant = "mac"
    if meant:
        short = min(options[meant].opts, key=len)
        return f": did you mean '{short} {words.split(' ')[0]}'?"
    if any(isinstance(each, click.Argument) for each in command.params):
        return ""
    return f": {error.ctx.command_path} takes options alone, which begin with '-'"
