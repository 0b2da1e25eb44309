"""The networks that face machines.

follow          follows the addresses and links of this host's interfaces, and notifies the services
services        the services of one network: DHCP, TFTP, syslog, router advertisements; HTTP at its addresses
link_metadata   metadata at a link-local address that machines know without configuration
agents          the addresses of the gRPC server
"""
