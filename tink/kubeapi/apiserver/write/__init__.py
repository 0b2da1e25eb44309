"""Writes: create, update, patch, apply and delete, on one way to the store.

`verbs` determines the new state of an object: `submission` checks the client's input, `patch` and `managed_fields`
compute the result. `pipeline` brings it to the store. `scale` and `reviews` are the scale subresource and the reviews.
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
