"""What connections and calls of strangers may cost: docs/security.md.

options      what gRPC itself bounds, before a call reaches us
concurrency  how many calls are served at once, of one address and of all
accounts     which connections may stay (pure)
sockets      gRPC's connections as the kernel knows them
guard        looks after the connections, and ends those that may not stay
"""
