"""All objects from one Kubernetes API to another, such as from the embedded one to a cluster, and back.

objects   what becomes of one object on its way, pure
mover     the steps, each of which finds done what is done: it can be killed anywhere, and run again
"""

from tink.move.mover import MoveError, Mover, Report

__all__ = ["MoveError", "Mover", "Report"]
