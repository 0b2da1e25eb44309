"""Known faults of BMCs, as data."""
