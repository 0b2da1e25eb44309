"""The network of this host as the kernel knows it: interfaces, addresses, routes, neighbours, arriving packets.

It also answers IPv6 router solicitations (`router_advertisement`).
"""
