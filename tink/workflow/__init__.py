"""What a Workflow may become, and because of what: the state machine that controller and server share.

`events` is what may happen, `machine` has the tables and applies events to a Workflow, `status` reads and writes the
fields of `.status`. Nothing here knows of Kubernetes' API, gRPC or the time: objects and a clock go in, a new status
comes out.
"""
