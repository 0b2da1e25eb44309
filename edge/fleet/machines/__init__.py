"""The life of one machine, from power-on to its installed system."""

from edge.fleet.machines.machine import Machine
from edge.fleet.machines.surroundings import Surroundings

__all__ = ["Machine", "Surroundings"]
