"""Options: how a settings field declares one, the names that it has, and the commands that have options.

An option is declared once: as a field of a model (`Group.setting`, see `edge.settings.model`), or on a command
(`Group.option`). Its flag, its variable, its key in the settings file, its entry in `--help` and its schema in the Helm
chart all follow from that declaration.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import click
from click.core import ParameterSource

from edge.settings.types import FilePath, with_bounds

DEFAULT_FILE: Final = Path("/etc/tinkedge/tinkedge.yaml")
PREFIX: Final = "TINKEDGE_"

REMOVED: Final = {
    "workers": "take it out: one process serves all machines. If that is not enough, run a second edge (docs/edges.md)"
}
"""Options of earlier releases, by the key in the file, with the remedy. Using one is an error."""

SERVICES: Final = ("up", "edge", "controller", "server", "apiserver", "metal3", "metal3-webhook", "agent")
"""Commands that run until they are stopped. Each of their options is a key of the settings file."""

TOOLS: Final = (
    *("backup", "bundle", "doctor", "examples", "health", "image", "iso", "kubeconfig", "metadata-url", "move", "page"),
    *("prepare", "restore", "users", "watch"),
)
"""Commands that work with a service on this host. They read from the settings file how to find it."""

_SHARED: Final = frozenset(
    {
        *("admin-address", "admin-port", "admin-token-file", "api-address", "api-name", "api-port", "data-dir"),
        *("dhcp-mode", "disable", "grpc-port", "health-address", "http-port", "interface", "ipxe-dir", "kubeconfig"),
        *("manifests", "metadata-token-key", "metadata-token-lifetime", "metrics-address", "public-ip"),
    }
)
"""Keys that the tools read from the settings file."""
READS_AS: Final = {"doctor": "up"}
"""Tools that take every option of a service, and read from the file every value of that service."""
_TOOLS_OWN: Final = frozenset({"cache-dir", "json", "lab", "probe"})
"""Options of those tools that are not settings of a service."""
SECRETS: Final = frozenset({"registry-password", "token"})
"""Options that the settings file refuses, because every user may read it, and that `config show` does not print."""


class Group(StrEnum):
    """The groups of options in `--help` and in the example file, in their order."""

    FIRST = "First of all"
    NETWORK = "Network"
    NETBOOT = "Netboot"
    DISCOVERY = "Discovery"
    METADATA = "Metadata"
    WORKFLOWS = "Workflows and agents"
    API = "API and webhooks"
    METAL3 = "Metal3"
    BMC = "BMC control"
    STORAGE = "Storage and cache"
    OPERATORS = "Operators"
    LOGGING = "Logging"
    ADVANCED = "Advanced"
    OTHER = "Other options"

    def setting(self, default: Any, text: str, **attributes: Any) -> Any:
        """Declare a field of a settings model together with its option. `text` is its help; see `Setting`."""
        return field(default=default, metadata={Setting: self.declare(text, **attributes)})

    def repeatable(self, text: str, **attributes: Any) -> Any:
        """Declare a field of any number of values, together with the option that may be given several times."""
        return self.setting((), text, multiple=True, **attributes)

    def key_file(self, text: str, **attributes: Any) -> Any:
        """Declare a field for a file with keys or tokens, which must be readable at the start of a service."""
        return self.setting(None, text, type=FilePath(), holds=Holds.KEYS, **attributes)

    def declare(self, text: str, **attributes: Any) -> Setting:
        """Declare the option of a field of another package's model. `text` is its help."""
        return Setting(help=text, group=self, **attributes)

    def option(self, *flags: str, **attributes: Any) -> Callable[[Any], Any]:
        """Return a decorator that gives a command an option of this group. `attributes` are those of click.Option."""
        return click.option(*flags, cls=GroupedOption, group=self, **attributes)


class GroupedOption(click.Option):
    """An option that belongs to a group."""

    def __init__(self, *args: Any, group: Group = Group.OTHER, **attributes: Any) -> None:
        """`args` and `attributes` are those of click.Option."""
        super().__init__(*args, **attributes)
        self.group = group


# --- options that are fields of a model -------------------------------------------------------------------------------


class Holds(StrEnum):
    """The content of a file that must be readable at the start of a service."""

    KEYS = "keys"
    CERTIFICATES = "certificates"
    OTHER = "other"


Check = Callable[[str], Iterator[tuple[str, str]]]  # yields a message and a remedy for each problem of a value
Services = frozenset[str]

_FIELDS_OWN: Final = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The option of a field of a settings model. A command has it if it runs one of `services` and none of `unless`."""

    help: str
    group: Group
    services: Services = frozenset()  # empty: those of the model
    unless: Services = frozenset()
    flag: str = ""  # the flag, or a pair such as --ipv6/--no-ipv6. Empty: made from the name of the field.
    type: click.ParamType[Any] | None = None  # if it is None, the option has the type of the default
    option_default: Any = _FIELDS_OWN  # the default of the option, if it is not that of the field
    multiple: bool = False
    metavar: str | None = None
    convert: Callable[[Any], Any] | None = None  # turns the option's value into the field's value
    check: Check | None = None  # checks a value further. The option itself accepts what only a check refuses.
    holds: Holds | None = None  # for an option that names a file: the content that the file must have at the start


@dataclass(frozen=True, slots=True)
class SettingsField:
    """A field of a settings model with the default and the option that it has."""

    name: str
    default: Any
    setting: Setting
    services: Services

    @property
    def flags(self) -> str:
        """The flag, or the pair of flags."""
        setting, name = self.setting, self.name.replace("_", "-")
        is_pair = setting.type is None and (self.default is True or self.default is None)
        return setting.flag or (f"--{name}/--no-{name}" if is_pair else f"--{name}")

    @property
    def key(self) -> str:
        """The key in the settings file, such as `data-dir`."""
        return self.flags.partition("/")[0].removeprefix("--")

    @property
    def parameter(self) -> str:
        """The name of the option's value in click, such as `data_dir`."""
        return self.key.replace("-", "_")

    def option(self) -> Callable[[Any], Any]:
        """Return a decorator that gives a command the option."""
        setting = self.setting
        default = self.default if setting.option_default is _FIELDS_OWN else setting.option_default
        option_type = setting.type
        if isinstance(default, StrEnum):
            modes: type[StrEnum] = type(default)
            default, option_type = default.value, click.Choice([each.value for each in modes])
        if isinstance(default, tuple):
            default = None if setting.multiple else ""
        return setting.group.option(
            self.flags,
            type=option_type,
            default=default,
            multiple=setting.multiple,
            is_flag=True if isinstance(default, bool) or "/" in self.flags else None,
            metavar=setting.metavar,
            help=setting.help,
        )

    def value(self, given: Any) -> Any:
        """Return the field's value for the option's value. Raises ValueError."""
        if given is None:
            return self.default
        if self.setting.convert is not None:
            return self.setting.convert(given)
        return type(self.default)(given) if isinstance(self.default, StrEnum) else given


# --- the names of an option -------------------------------------------------------------------------------------------


def settable(command: click.Command) -> Iterator[click.Option]:
    """Yield the options of a command that have a value: all but --help and --config."""
    for param in command.params:
        if isinstance(param, click.Option) and not param.is_eager:
            yield param


def key(option: click.Option) -> str:
    """Return the key of an option: `data-dir` for --data-dir, `fast-path` for --fast-path/--no-fast-path."""
    return max(option.opts, key=len).lstrip("-")


def variable(option: click.Option) -> str:
    """Return the environment variable of an option: `TINKEDGE_DATA_DIR` for --data-dir."""
    return PREFIX + key(option).upper().replace("-", "_")


def variable_in_use(option: click.Option) -> str:
    """Return the variable of an option that is set in the environment, the strongest first; empty if none is."""
    return next((name for name in _variables(option) if os.environ.get(name)), "")


def _variables(option: click.Option) -> list[str]:
    return [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())


def in_file(command: str, option: click.Option) -> bool:
    """Return True if a command takes the value of this option from the settings file."""
    name = key(option)
    if command in SERVICES:
        return name not in SECRETS
    if command in READS_AS:
        return name not in SECRETS | _TOOLS_OWN
    return command in TOOLS and name in _SHARED


def is_list(option: click.Option) -> bool:
    """Return True if the settings file may have a list of values for this option."""
    return option.multiple or option.type.name.endswith(",...")


def nearest(name: str, known: set[str]) -> str:
    """Return `; do you mean NAME?` with the nearest known name, or an empty text."""
    found = get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return f"; do you mean {found[0]}?" if found else ""


# --- commands ---------------------------------------------------------------------------------------------------------

Schema = Callable[[str], click.Command]  # returns a command by its name, and imports it if necessary


def schema_of(ctx: click.Context) -> Schema:
    """Return the schema of the program that runs in `ctx`."""
    root = ctx.find_root()
    group = root.command

    def command(name: str) -> click.Command:
        found = group.get_command(root, name) if isinstance(group, click.Group) else None
        if found is None:
            raise click.UsageError(f"there is no command {name}")
        return found

    return command


def prepare(name: str, command: click.Command, read: Callable[[click.Context, Path | None], None]) -> None:
    """Give each option its variable, numbers their bounds, and the command --config if it reads the settings file."""
    for option in settable(command):
        option.envvar = list(dict.fromkeys((variable(option), *_variables(option))))
        option.type = with_bounds(option.type)
    if isinstance(command, click.Group):
        for child in command.commands.values():
            prepare(name, child, read)
    if any("--config" in param.opts for param in command.params):
        return
    if name not in SERVICES and not any(in_file(name, option) for option in settable(command)):
        return

    # Called before all other options are processed, with the value of --config or TINKEDGE_CONFIG.
    def callback(ctx: click.Context, _param: click.Parameter, value: Path | None) -> None:
        if not ctx.resilient_parsing:
            read(ctx, value)

    command.params.append(
        GroupedOption(
            ["--config"],
            group=Group.FIRST,
            type=FilePath(),
            envvar=f"{PREFIX}CONFIG",
            is_eager=True,
            expose_value=False,
            callback=callback,
            help=f"File with values for these options (YAML), see tinkedge config. Default: {DEFAULT_FILE}, if it is "
            "there; /dev/null: none.",
        )
    )


class CommandGroup(click.Group):
    """A group of commands that suggests the nearest names if the given command does not exist."""

    words: Mapping[str, str] = MappingProxyType({})
    """The commands to suggest for words that are commands of other programs."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that `args` begin with. Raises click.UsageError."""
        names = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in names and not ctx.resilient_parsing:
            found = [self.words[args[0]]] if args[0] in self.words else get_close_matches(args[0], names)
            near = " or ".join(f"'{name}'" for name in found)
            raise click.UsageError(f"No such command '{args[0]}'.{f' Did you mean {near}?' if near else ''}", ctx)
        return super().resolve_command(ctx, args)


class GroupedCommand(click.Command):
    """A command whose `--help` lists its options in groups."""

    def __init__(self, *args: Any, group: Group = Group.OTHER, **attributes: Any) -> None:
        """`group` is that of options without one. The other arguments are those of click.Command."""
        super().__init__(*args, **attributes)
        self.group = group

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the groups in their order, and --help at the end."""
        records: dict[Group, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                records.setdefault(group_of(self, param), []).append(record)
        for group in Group:
            if group in records:
                with formatter.section(group.value):
                    formatter.write_dl(records[group])


def group_of(command: click.Command, option: click.Option) -> Group:
    """Return the group of an option of a command."""
    if isinstance(option, GroupedOption):
        return option.group
    return command.group if isinstance(command, GroupedCommand) and not option.is_eager else Group.OTHER


# --- usage errors -----------------------------------------------------------------------------------------------------

_EXTRA: Final = re.compile(r"Got unexpected extra arguments? \((.*)\)", re.DOTALL)
_MAC: Final = re.compile(r"([0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}")
_NAME_OPTIONS: Final = ("filename", "hardware", "user")  # options whose value users often give as an argument


def was_removed(key: str) -> str:
    """Return what to do about a removed option, as the rest of a sentence; empty if no such option was removed."""
    return f"was removed: {REMOVED[key]}" if key in REMOVED else ""


def refuse_removed_variables(ctx: click.Context) -> None:
    """Raise click.UsageError if the environment has a variable of a removed option."""
    for key in REMOVED:
        name = PREFIX + key.upper().replace("-", "_")
        if name in os.environ:
            raise click.UsageError(f"the variable {name} {was_removed(key)}", ctx)


def explain(error: click.UsageError) -> click.UsageError:
    """Return a usage error of click with the variable, the option's help, or the option to use; may change it."""
    ctx, option = error.ctx, error.param if isinstance(error, click.BadParameter) else None
    if isinstance(error, click.MissingParameter):
        if isinstance(option, click.Option) and option.help and not error.message:
            return click.MissingParameter(option.help, ctx, option, error.param_hint, error.param_type)
    elif isinstance(error, click.BadParameter):
        source = ctx.get_parameter_source(str(option.name)) if ctx is not None and option is not None else None
        if isinstance(option, click.Option) and error.param_hint is None and source is ParameterSource.ENVIRONMENT:
            error.param_hint = f"'--{key(option)}' (env {variable_in_use(option)})"
    elif isinstance(error, click.NoSuchOption) and (removed := was_removed(error.option_name.lstrip("-"))):
        return click.UsageError(f"{error.option_name} {removed}", error.ctx)
    elif match := _EXTRA.match(error.message):
        return click.UsageError(f"{error.message}{_suggestion(error, match[1])}", error.ctx)
    return error


def _suggestion(error: click.UsageError, words: str) -> str:
    """Name the option that takes such a word, or explain that the command takes options only."""
    if error.ctx is None:
        return ""
    command = error.ctx.command
    options = {key(each): each for each in command.params if isinstance(each, click.Option)}
    name = next((name for name in _NAME_OPTIONS if name in options), "")
    if "mac" in options and _MAC.match(words):
        name = "mac"
    if name:
        short = min(options[name].opts, key=len)
        return f": did you mean '{short} {words.split(' ')[0]}'?"
    if any(isinstance(each, click.Argument) for each in command.params):
        return ""
    return f": {error.ctx.command_path} takes options alone, which begin with '-'"
