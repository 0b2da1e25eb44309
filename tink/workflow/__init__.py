"""What a Workflow may become, and because of what: the state machine that controller and server share.

table    states, causes, which follows from which, and who may write it: begin here
events   what happens, with the facts of it
machine  takes an event through the table: the only way to a new status
guards   what arrows depend on beside the state
protection  the finalizer: who has it, and how new ones get it
reasons  why a Workflow did not succeed, as its conditions say
status   the fields of `.status`, read and written

Nothing here knows of Kubernetes' API, gRPC or the time: objects and a clock go in, a new status comes out.
"""
