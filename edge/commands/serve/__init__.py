"""What the commands that serve have in common: their options, the settings made of them, and the process."""

from edge.commands.serve.agreement import Finding, disagreements, listeners
from edge.commands.serve.options import serving
from edge.commands.serve.parameter_types import namespaces as namespace_list
from edge.commands.serve.process import run
from edge.commands.serve.roles import ALWAYS, ROLES, services_of
from edge.commands.serve.settings_in_use import begin
from edge.commands.serve.stack_settings import settings
from edge.commands.serve.surroundings import obstacles
from edge.commands.serve.up import up as command_up

__all__ = [
    "ALWAYS",
    "ROLES",
    "Finding",
    "begin",
    "command_up",
    "disagreements",
    "listeners",
    "namespace_list",
    "obstacles",
    "run",
    "services_of",
    "serving",
    "settings",
]
