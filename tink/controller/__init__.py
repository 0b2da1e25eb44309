"""The controller: prepares Workflows, watches over those that run, cancels and releases those that are deleted.

`reconcile` decides (pure), `queue` says which object is looked at when, `controller` is the shell that reads from
informers and writes to the API.
"""
