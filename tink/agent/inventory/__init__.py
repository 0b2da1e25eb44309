"""The inventory of the machine, and its report to the server.

    smbios     reads the SMBIOS table; pure
    lldp       reads LLDP frames, and receives them
    ioctls     calls of the kernel
    collector  collects everything
    reporter   sends it to the server, with gRPC

All but the reporter need only the standard library.
"""
