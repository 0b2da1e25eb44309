"""What an edge knew, on its disk: for a start while the Kubernetes API is away.

`checkpoint` keeps it and gives it back, `file` is how it stands there; `secrets` are those that Hardware name,
encrypted.
"""

from edge.checkpoint.checkpoint import DIRECTORY, HARDWARE, Checkpoint, checkpoint_metrics, discard
from edge.checkpoint.file import LookedUpBy
from edge.checkpoint.secrets import KEY_FILE, KeptSecrets

__all__ = [
    "DIRECTORY",
    "HARDWARE",
    "KEY_FILE",
    "Checkpoint",
    "KeptSecrets",
    "LookedUpBy",
    "checkpoint_metrics",
    "discard",
]
