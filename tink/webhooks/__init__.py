"""Admission webhooks: checks at the time of a write that need more than the object itself.

    informers -> `claims` (indexes) -> `reviewer` (decides) -> `admission` (answers)
    API server -> `server` (HTTPS) -> `admission`; `certificates` (own authority) -> `server`
    `server` -> `registration` (registers the address and the authority with the API server)

The embedded API asks the reviewer in its own process: commits -> `admission.ReviewPlugin` -> `reviewer`.

`server` serves other hooks beside `admission`: `conversion` converts objects between versions, of v1alpha1 and, with
`tink.metal3.webhook`, of Metal3's hosts.

Two Hardware must not have one MAC, one IP address or one agent id. No Hardware may have an address that another
tenant's machines use as their gateway, name server and the like. A Template must parse. A user who deletes an object
that others refer to, or refers to a missing object, receives a warning. All other checks are in the schemas
(`tink.api.rules`).

The embedded API rejects a write that can't be reviewed. On a cluster the failure policy of the registration decides:
Fail for the claims of Hardware, unless an operator sets Ignore, and Ignore for everything else. An unreviewed write
does little harm: the edge serves no address that two Hardware claim, and the controller fails a Workflow whose Template
does not parse.
"""
