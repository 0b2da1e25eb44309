"""The controller: prepares Workflows, watches over those that run, cancels and releases those that are deleted.

`reconcile` decides (pure), `ages` says how old timestamps are, `controller` reads from informers and writes to the API.
Which object is looked at when is up to `tink.kube.controller`, which replica looks to `tink.kube.leaderelection`;
`events` says what is worth an Event.
"""
