"""What an option is called elsewhere: `--data-dir` is the variable TINKEDGE_DATA_DIR and `data-dir` in the file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click

from edge.settings.numbers import worded

DEFAULT_FILE: Final = Path("/etc/tinkedge/tinkedge.yaml")
PREFIX: Final = "TINKEDGE_"

SERVICES: Final = ("up", "edge", "controller", "server", "apiserver", "metal3", "metal3-webhook", "agent")
"""Commands that run for years. The file is theirs: each of their options is a key."""

TOOLS: Final = (
    *("backup", "bundle", "doctor", "examples", "health", "image", "iso", "kubeconfig", "metadata-url", "move", "page"),
    *("prepare", "restore", "users", "watch"),
)
"""Commands about a service on this host. They take from the file what says where that is."""

_SHARED: Final = frozenset(
    {
        *("admin-address", "admin-port", "admin-token-file", "api-address", "api-name", "api-port", "data-dir"),
        *("dhcp-mode", "disable", "grpc-port", "health-address", "http-port", "interface", "ipxe-dir", "kubeconfig"),
        *("manifests", "metadata-token-key", "metadata-token-lifetime", "metrics-address", "public-ip"),
    }
)
READS_AS: Final = {"doctor": "up"}
"""Tools that take every option of a service, and from the file every value of that service."""
_OWN: Final = frozenset({"cache-dir", "json", "lab", "probe"})
"""Options of those tools that are no settings of a service."""
SECRETS: Final = frozenset({"registry-password", "token"})
"""Values that no file of settings has: everybody may read it, and it is shown."""


class FilePath(click.Path):
    """The type of options and arguments that are paths. `~` and `~user` are the home directories that a shell means.

    The shell itself expands `~` neither in `--data-dir=~/d`, nor in a variable or the file of settings. `./~` is a file
    of that name.
    """

    def __init__(self, **constraints: Any) -> None:
        """`constraints` are those of click.Path."""
        super().__init__(path_type=Path, **constraints)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path. Raises click.BadParameter."""
        if str(value) == "":  # Path("") would be the working directory
            self.fail("the path is empty: name one, or leave the option out", param, ctx)
        if str(value).startswith("~"):
            try:
                value = Path(value).expanduser()
            except RuntimeError:
                self.fail(f"'{value}': there is no such user's home directory; './{value}' is a file", param, ctx)
        return super().convert(value, param, ctx)

    def path_of(self, text: str) -> str:
        """Return the part of a value that is a path: all of it."""
        return text


Schema = Callable[[str], click.Command]
"""A command by its name, imported if it was not."""


def schema_of(ctx: click.Context) -> Schema:
    """The commands of the program that `ctx` is a part of."""
    root = ctx.find_root()
    group = root.command

    def command(name: str) -> click.Command:
        found = group.get_command(root, name) if isinstance(group, click.Group) else None
        if found is None:
            raise click.UsageError(f"there is no command {name}")
        return found

    return command


def settable(command: click.Command) -> Iterator[click.Option]:
    """The options that have a value: not --help, and not --config, which says where the values are."""
    for param in command.params:
        if isinstance(param, click.Option) and not param.is_eager:
            yield param


def key(option: click.Option) -> str:
    """`data-dir` for --data-dir; for a pair, that of the first: `fast-path` for --fast-path/--no-fast-path."""
    return max(option.opts, key=len).lstrip("-")


def variable(option: click.Option) -> str:
    """`TINKEDGE_DATA_DIR` for --data-dir."""
    return PREFIX + key(option).upper().replace("-", "_")


def variable_in_use(option: click.Option) -> str:
    """Return the variable of an option that is set in the environment, the strongest first; empty if none is."""
    names = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
    return next((name for name in names if os.environ.get(name)), "")


def in_file(command: str, option: click.Option) -> bool:
    """Whether a command takes this option's value from the file."""
    name = key(option)
    if command in SERVICES:
        return name not in SECRETS
    if command in READS_AS:
        return name not in SECRETS | _OWN
    return command in TOOLS and name in _SHARED


def is_list(option: click.Option) -> bool:
    """Whether the file may have a list: several values, or one with commas in between."""
    return option.multiple or option.type.name.endswith(",...")


def prepare(name: str, command: click.Command, read: Callable[[click.Context, Path | None], None]) -> None:
    """Give each option its variable, numbers their own types, and the command --config if it reads the file.

    `read` is called before the options are looked at, with what --config or TINKEDGE_CONFIG says.
    """
    for option in settable(command):
        given = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
        own = variable(option)
        option.envvar = [own, *(each for each in given if each != own)]
        option.type = worded(option, "port" if key(option).endswith("port") else "number")
    if isinstance(command, click.Group):
        for child in command.commands.values():
            prepare(name, child, read)
    if any("--config" in param.opts for param in command.params):
        return
    if name not in SERVICES and not any(in_file(name, option) for option in settable(command)):
        return

    def callback(ctx: click.Context, _param: click.Parameter, value: Path | None) -> None:
        if not ctx.resilient_parsing:
            read(ctx, value)

    command.params.append(
        click.Option(
            ["--config"],
            type=FilePath(),
            envvar=f"{PREFIX}CONFIG",
            is_eager=True,
            expose_value=False,
            callback=callback,
            help=f"File with values for these options (YAML), see tinkedge config. Default: {DEFAULT_FILE}, if it is "
            "there; /dev/null: none.",
        )
    )
