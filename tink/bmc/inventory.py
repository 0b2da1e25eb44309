"""The out-of-band inventory of a machine, from Redfish documents. Pure."""
