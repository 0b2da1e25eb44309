"""The journey of each machine: its events step by step, their storage, and diagnoses (`expectations`)."""
