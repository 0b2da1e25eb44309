"""The other edges of a site: they serve the same machines, and share the files that they have fetched. docs/cluster.md.

messages       the messages between edges, and their signatures (HMAC with the key of the site)
membership     which edges live, and which one decides about a file (pure)
calls, caches  queries to other edges; files from their caches
upstream_edge  the edge of another site that this one fetches files through
leases         how the edges of a cluster find each other
publisher      journey events, sent to all edges and received from them
site           the parts together; `edge.http.peers` receives the requests of other edges
"""
