"""What the commands that serve have in common: their options, the settings made of them, and the process."""

from edge.commands.serve.options import serving
from edge.commands.serve.process import run
from edge.commands.serve.stack_settings import settings

__all__ = ["run", "serving", "settings"]
