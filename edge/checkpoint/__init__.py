"""The checkpoint of an edge: its objects on the disk, for a start while the Kubernetes API is away.

`checkpoint` has the objects, in an SQLite `database`. `secrets` has the Secrets that Hardware name, encrypted.
"""

from edge.checkpoint.checkpoint import DIRECTORY, HARDWARE, Checkpoint, checkpoint_metrics, discard
from edge.checkpoint.secrets import KEY_FILE, SecretStore

__all__ = ["DIRECTORY", "HARDWARE", "KEY_FILE", "Checkpoint", "SecretStore", "checkpoint_metrics", "discard"]
