"""The controller: prepares Workflows, watches over those that run, cancels and releases those that are deleted.

`reconcile` decides (pure), `sightings` says how old timestamps are, `controller` is the shell that reads from informers
and writes to the API. Which object is looked at when is up to `tink.kube.workqueue`, which replica looks to
`tink.kube.leader`; `announcements` says what is worth an Event.
"""
