"""Managed fields and server-side apply: the owners of the fields of an object, as in Kubernetes. Pure.

`field_manager` is what the verbs call; it also reads and writes the list of owners in the metadata. It uses `types`
(compare, merge and split values by schema) and `fields` (sets of fields).
"""
