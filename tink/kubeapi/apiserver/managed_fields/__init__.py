"""Managed fields and server-side apply: who owns which field of an object, as Kubernetes keeps it.

`field_manager` is what the verbs call. It stands on `openapi` (from a schema to types), `types` and `lists` (compare,
merge and take apart values of a type), `fields` (sets of fields), `entries` (the list of owners in the metadata),
`conflicts` and `blank` (what built-in objects always have). `times` looks after the list in later steps of a write.
All pure: objects in, objects out.
"""

from tink.kubeapi.apiserver.managed_fields.field_manager import FieldManager, blank_of, keep_times, valid_or_before
from tink.kubeapi.apiserver.managed_fields.types import same

__all__ = ["FieldManager", "blank_of", "keep_times", "same", "valid_or_before"]
