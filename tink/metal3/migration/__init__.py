"""Migrate stored BareMetalHosts from v1alpha1 to v1beta1 without loss.

    `survey` (reads the cluster) -> `plan` (what is left to do, what prevents it, and the report) -> `carry_out`
        `compare` (what the conversion changes in one host)

The order of the phases makes the migration safe:

    hardware-data     every host with hardware details gets a HardwareData: v1beta1 has no place for the details
    storage           the definition names v1beta1: new writes are stored so
    rewrite           every host is written once, unchanged
    stored-versions   the definition records that no object is stored as v1alpha1 any more
    served            v1alpha1 is no longer served; only on request

The cluster alone shows what is done. So the next run continues after a killed run, and two runs at once do no harm.
Before any write, each host is converted to v1beta1 and back, and compared with the result of the registered webhook.
"""
