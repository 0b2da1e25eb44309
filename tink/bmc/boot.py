"""The ladder of a netboot: which ways of a BMC are tried, in which order, and how each is judged. Pure.

A machine has netbooted when its DISCOVER has arrived (`status.lastBoot` of its Hardware, which the edge writes), not
when the BMC has accepted a request. If none arrives, the next way is tried:

    pxe 1    off, boot device PXE for one boot, on
    pxe 2    the same again: a power cycle helps BMCs that lose the boot device at the first start
    http     UEFI HTTP boot from the URL of the edge
    cd       the machine's own boot medium as a virtual CD
    ipmi     boot device PXE by IPMI, of a BMC that was used by Redfish so far

After the last one the cause is named, and the machine is left on, with the boot device set: it still netboots when a
person has corrected the cause. `tink.bmc.workflows` carries the ladder out.
"""
