"""Managed fields and server-side apply: the owners of the fields of an object, as in Kubernetes. Pure.

`field_manager` is what the verbs call. It uses `types` (compare, merge and split values by schema), `fields` (sets of
fields) and `entries` (the list of owners in the metadata).
"""
