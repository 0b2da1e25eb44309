"""Machines that no Hardware describes yet, and whether a machine is the one that was expected.

    DHCP packet -> admission (pure) -> the edge creates a Hardware, so that the machine boots like any other
    agent's inventory -> the server writes status.inventory.inBand; `changes` (pure) finds what is new
    Hardware + expected machines + BMC -> `identity`, `verdict` (pure) -> `controller`: condition AsExpected,
                                          labels, and the approved Hardware under its own name (`approval`, pure)

`model` has the types that all of them share. `expected` reads lists of expected machines (CSV in ConfigMaps). The
collector of the inventory is in `tink.agent.inventory`.
"""
