"""Simulated machines by the thousand: `tinkedge fleet`. To a server they look like real ones.

population   the machines, drawn from a profile and a seed
protocols    the clients: DHCP, TFTP, HTTP, iPXE's scripts, gRPC
network      the machines' addresses and sockets, and the check that a fleet may run here
bmc          the machines' BMCs and power supplies (--bmc)
machine      one machine's state
boot         one machine's life, a coroutine; agent is its part after the OSIE's start
objects      the machines' objects in the API
stack        a tinkedge of the fleet's own, in a network namespace
results      counters, the report, and the bars that a run must reach
run          one run, from the namespaces to the report
"""
