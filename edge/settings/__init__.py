"""Settings: one schema for flags, variables and the file. The options of the commands are that schema.

    options  -> a flag's variable and its key in the file; which commands read the file
    file     -> YAML with the line of each key
    values   -> what of a file is for one command, checked by its options' types, as click's default_map; TINKEDGE_...
                that nobody knows
    numbers  -> what numbers of options say of their bounds
    variables -> what is wrong with variables, also with those that the systemd units read
    usage    -> what click's usage errors do not say
    groups   -> the order in which people are shown the options
    example, origin -> a file to begin with; where each value is from

A flag is stronger than a variable, that than the file, and that than the default (click's parameter sources).
"""

from edge.settings.example import example_file
from edge.settings.file import ConfigError, ConfigFile
from edge.settings.groups import GROUPS, REST, CommandGroup, GroupedCommand, group_of, place_in_group
from edge.settings.options import (
    DEFAULT_FILE,
    SERVICES,
    TOOLS,
    FilePath,
    Schema,
    key,
    prepare,
    schema_of,
    settable,
    variable,
)
from edge.settings.origin import origins, place
from edge.settings.removed import REMOVED
from edge.settings.usage import explain
from edge.settings.values import apply, check, file_of, unknown_variables, unreadable
from edge.settings.variables import VARIABLES_FILE, VariableProblem, variable_problems

__all__ = [
    "DEFAULT_FILE",
    "GROUPS",
    "REMOVED",
    "REST",
    "SERVICES",
    "TOOLS",
    "VARIABLES_FILE",
    "CommandGroup",
    "ConfigError",
    "ConfigFile",
    "FilePath",
    "GroupedCommand",
    "Schema",
    "VariableProblem",
    "apply",
    "check",
    "example_file",
    "explain",
    "file_of",
    "group_of",
    "key",
    "origins",
    "place",
    "place_in_group",
    "prepare",
    "schema_of",
    "settable",
    "unknown_variables",
    "unreadable",
    "variable",
    "variable_problems",
]
