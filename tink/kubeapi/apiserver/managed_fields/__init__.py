"""Managed fields and server-side apply: the owners of the fields of an object, as in Kubernetes. Pure.

`field_manager` is what the verbs call. It uses `types` (compare, merge and split values by schema), `fields` (sets of
fields) and `entries` (the list of owners in the metadata).
"""

from tink.kubeapi.apiserver.managed_fields.field_manager import BLANK, FieldManager, keep_times, valid_or_before
from tink.kubeapi.apiserver.managed_fields.types import same

__all__ = ["BLANK", "FieldManager", "keep_times", "same", "valid_or_before"]
