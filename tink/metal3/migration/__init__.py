"""BareMetalHosts from storage as v1alpha1 to storage as v1beta1, without losing anything on the way.

    `survey` (looks at the cluster) -> `plan` (what is left to do, what stands in the way) -> `carry_out` -> `report`
        `compare` (what the conversion changes in one host)

The order is what makes it safe:

    hardware-data     every host with hardware details has a HardwareData: v1beta1 has no place for the details
    storage           the definition says v1beta1: new writes are stored so
    rewrite           every host is written once, unchanged
    stored-versions   the definition says that nothing is stored as v1alpha1 any more
    served            v1alpha1 is no longer served; only on request

What is done is seen from the cluster alone, so a run that was killed is continued by the next one, and two at once do
each other no harm. Before anything is written, each host is converted up and down again, and compared with what the
webhook that is registered made of it.
"""
