"""Access to a Kubernetes API: the operator's cluster or the embedded one. Names and meanings are those of client-go and
controller-runtime.

`resources` has the resource types, `objects` the keys of objects. `client` makes calls, `manifests` applies files,
`cache` keeps local copies and calls handlers for changes, and `runtime` has the parts of controllers. Components read
from informers and write with the client.
"""
