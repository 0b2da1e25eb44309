"""What a fleet runs against: the objects of its machines in an API, and a stack of its own where none is given."""

from edge.fleet.site.objects import Boots, Objects, ObjectsError, Outcome
from edge.fleet.site.stack import UPLINK, Stack, StackError, StackSettings, own_process

__all__ = [
    "UPLINK",
    "Boots",
    "Objects",
    "ObjectsError",
    "Outcome",
    "Stack",
    "StackError",
    "StackSettings",
    "own_process",
]
