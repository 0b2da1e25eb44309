"""How this program talks to a Kubernetes API, the operator's cluster and the embedded one alike. Names and meanings are
those of client-go and controller-runtime.

`resources` names what can be talked about, `objects` which one of it; `client` makes single calls, `pager` reads whole
collections. An `informer` keeps a local copy: its `reflector` lists and watches, its `store` holds the objects, event
handlers hear of changes. A `controller` puts keys into a `workqueue` and has them reconciled; of several replicas the
one that `leaderelection` chose. `events` records what is worth it. Everything above reads from informers and writes
with the client.
"""
