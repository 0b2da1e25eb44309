"""Settings: each option is declared once, and flag, variable, file key, help, group and check come from that.

    types      -> the types of values, one function for each
    options    -> how an option is declared, its names, and the commands that have options
    file       -> the settings file: reading, checking, the origin of each value, an example
    variables  -> checks of TINKEDGE_ variables
    model      -> the settings of the services, with their options; imported by its name, because it imports much
    checks     -> contradictions between settings, and obstacles on this host; imported by its name, too

This package must stay fast to import: `tinkedge --help` imports it.
"""

from edge.settings import types
from edge.settings.file import ConfigError, ConfigFile, apply, check, example_file, file_of, origins, place, unreadable
from edge.settings.options import (
    DEFAULT_FILE,
    PREFIX,
    REMOVED,
    SERVICES,
    TOOLS,
    CommandGroup,
    Group,
    GroupedCommand,
    GroupedOption,
    Schema,
    explain,
    group_of,
    in_file,
    key,
    prepare,
    schema_of,
    settable,
    variable,
)
from edge.settings.types import DataDirectory, FilePath, parsed
from edge.settings.variables import VARIABLES_FILE, VariableProblem, unknown_variables, variable_problems

__all__ = [
    "DEFAULT_FILE",
    "PREFIX",
    "REMOVED",
    "SERVICES",
    "TOOLS",
    "VARIABLES_FILE",
    "CommandGroup",
    "ConfigError",
    "ConfigFile",
    "DataDirectory",
    "FilePath",
    "Group",
    "GroupedCommand",
    "GroupedOption",
    "Schema",
    "VariableProblem",
    "apply",
    "check",
    "example_file",
    "explain",
    "file_of",
    "group_of",
    "in_file",
    "key",
    "origins",
    "parsed",
    "place",
    "prepare",
    "schema_of",
    "settable",
    "types",
    "unknown_variables",
    "unreadable",
    "variable",
    "variable_problems",
]
