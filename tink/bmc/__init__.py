"""Control of machines by their BMC: power, boot devices, virtual media, inventory.

    Job, Task, Machine -> controllers -> operation -> decision (pure) -> redfish, ipmi
                                              ^            |
                                              +- observed -+

`machines` polls BMCs and keeps inventories; `jobs` carries out Jobs and Tasks. `connections` opens one connection to
each BMC at a time, and repeats no refused login (`credentials`). `manager` puts these together and holds the Lease of
Rufio's name. `operators` is the work of `tinkedge power` and `tinkedge bmc check`.

`boot` is the ladder of a netboot: the ways in which a BMC can make its machine netboot, and how each is judged by the
machine's own DHCP packet.

`decision` compares what is wanted with what the BMC reports, and names the next request. `operation` sends it by a
client, reads back, and asks again, until the effect is there or the cause of the failure is known. `quirks` is what is
known of vendors, models and firmware. `model` has the types that all of them share.
"""
