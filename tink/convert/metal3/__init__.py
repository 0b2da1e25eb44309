"""Convert Metal3's hosts: BareMetalHost between its two versions, and to Hardware (docs/metal3.md).

`versions` is the core of the conversion webhook. `to_hardware` makes Hardware: `safety` decides whether the machine may
netboot, `network_data` what DHCP serves, `root_disk` which disk is the root disk.
"""
