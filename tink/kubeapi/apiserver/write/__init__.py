"""Writes: create, update, patch, apply and delete, on one way to the store.

`verbs` finds out what the new state is to be: `submitted` reads what the client hands in, `patch` and `managed_fields`
make it. `pipeline` takes it to the store by the steps of `strategy` (creating or updating), with `completion` (schema),
`admission` (webhooks) and `persistence`. `deletion` and `propagation` say what becomes of what is deleted.
"""

from tink.kubeapi.apiserver.write.pipeline import ORIGIN, AdmitCreate, Result, add_nothing
from tink.kubeapi.apiserver.write.reviews import REVIEWS, Reviewer, find_review
from tink.kubeapi.apiserver.write.scale import SCALE, Scales
from tink.kubeapi.apiserver.write.verbs import FOREGROUND, ORPHAN, Verbs

__all__ = [
    "FOREGROUND",
    "ORIGIN",
    "ORPHAN",
    "REVIEWS",
    "SCALE",
    "AdmitCreate",
    "Result",
    "Reviewer",
    "Scales",
    "Verbs",
    "add_nothing",
    "find_review",
]
