"""Control of machines by their BMC: power, boot devices, virtual media, inventory.

    Job, Task, Machine -> controllers -> operation -> decision (pure) -> redfish, ipmi
                                              ^            |
                                              +- observed -+

`decision` compares what is wanted with what the BMC reports, and names the next request. `operation` sends it by a
client, reads back, and asks again, until the effect is there or the cause of the failure is known. `quirks` is what is
known of vendors, models and firmware. `model` has the types that all of them share.
"""
