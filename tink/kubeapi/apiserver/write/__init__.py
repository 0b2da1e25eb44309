"""Writes: create, update, patch, apply and delete, on one way to the store.

`verbs` determines the new state of an object: `submission` checks the client's input, `patch` and `managed_fields`
compute the result. `pipeline` brings it to the store. `scale` and `reviews` are the scale subresource and the reviews.
"""
