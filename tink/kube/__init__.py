"""How this program talks to a Kubernetes API, the operator's cluster and the embedded one alike.

`resources` names what can be talked about, `client` makes single calls, `informer` keeps a local copy of a collection
and tells of its changes; `announcer` writes Events. Everything above reads from informers and writes with the client.
"""
