"""Looking at the network from outside: what `tinkedge doctor --probe` and `tinkedge watch --capture` are made of.

    capture (scapy) -> frames, chosen by the kernel with the program of `selection`
        -> headers -> conversation (TFTP, HTTP, ARP) and dhcp_words -> lines for a terminal
    servers (scapy): which DHCP servers answer on a segment
    fetch (tftpy): a file from a TFTP server, as a client gets it
    inbound: whether our own ports answer what arrives on an interface

The only rooms that use scapy and tftpy, the extra `diagnose` of this distribution: scapy is GPL-2.0-only and both are
slow. Nothing that serves machines imports anything from here.
"""
