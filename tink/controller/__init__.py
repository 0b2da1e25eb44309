"""The controller: prepares Workflows, watches over those that run, cancels and releases those that are deleted.

`reconcile` decides (pure), `ages` says how old timestamps are, `controller` reads from informers and writes to the API.
Which object is looked at when, and by which replica, is up to `tink.kube.runtime`; `events` says what is worth an
Event.
"""
