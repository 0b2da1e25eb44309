"""What a service that starts says of its settings, and what SIGHUP does with a file of them that has changed.

The log level is taken from it at once. Everything else is built into what runs: the log says what takes a restart.
"""

from __future__ import annotations

import logging
import os

import click
from click.core import ParameterSource

from edge.run.process import Step
from edge.settings import (
    SERVICES,
    TOOLS,
    file_of,
    key,
    origins,
    schema_of,
    settable,
    unknown_variables,
    unreadable,
)

log = logging.getLogger(__name__)


def begin(ctx: click.Context) -> tuple[Step, ...]:
    """Say where settings are from and which variables are nobody's; gives what SIGHUP has to do."""
    if (file := file_of(ctx)) is not None:
        log.info("settings from %s", file.path)
    if reason := unreadable(ctx):
        log.warning("the file with settings %s", reason)
    root, command = ctx.find_root(), ctx.command
    if not isinstance(root.command, click.Group) or not ctx.info_name:
        return ()
    schema = schema_of(ctx)
    for sentence in unknown_variables(os.environ, command, (*SERVICES, *TOOLS), schema).values():
        log.warning("%s", sentence)
    return (_Settings(ctx).again,)


class _Settings:
    """The values in use: those of `ctx`, and what was read since."""

    def __init__(self, ctx: click.Context) -> None:
        self._ctx = ctx
        self._values = dict(ctx.params)

    def again(self) -> None:
        """Read the file again, if there was one or is one now. Flags are stronger than any file, and stay."""
        ctx = self._ctx
        file = file_of(ctx)
        args = ["--config", str(file.path)] if file is not None else []
        try:
            with ctx.command.make_context(ctx.info_name, args, parent=ctx.parent) as made:
                found = {each.key: each for each in origins(made, args)}
        except click.ClickException as error:
            log.error("SIGHUP: the settings stay as they are: %s", error.format_message())
            return
        for option in settable(ctx.command):
            name, each = str(option.name), found[key(option)]
            if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE or self._values[name] == made.params[name]:
                continue
            if each.key == "log-level":
                logging.getLogger().setLevel(str(each.value).upper())
                log.info("SIGHUP: log-level is %s now (%s)", each.value, each.text)
                self._values[name] = made.params[name]
            else:
                log.warning("SIGHUP: %s has changed (%s) and takes a restart", each.key, each.text)
