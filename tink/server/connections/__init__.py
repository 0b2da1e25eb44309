"""Limits of connections and calls on the gRPC port (docs/security.md). gRPC accepts its connections itself.

`tink.server.settings` has the limits that gRPC's core applies before a call reaches this program. Here are the others:

calls        the number of calls at once, for each address and in all, and their metrics
accounts     decides which connections have to be closed (pure)
guard        measures gRPC's sockets and closes those connections
"""
