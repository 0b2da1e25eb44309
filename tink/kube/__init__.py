"""How this program talks to a Kubernetes API, the operator's cluster and the embedded one alike. Names and meanings are
those of client-go and controller-runtime.

`resources` names what can be talked about, `objects` which one of it; `client` makes single calls, `pager` reads whole
collections, `manifests` applies files. `cache` keeps local copies and tells of their changes; `runtime` is what
controllers are made of. Everything above reads from informers and writes with the client.
"""
