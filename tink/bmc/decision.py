"""The decision of BMC control: what to do next. Pure."""
