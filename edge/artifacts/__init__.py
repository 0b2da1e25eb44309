"""Kernels and initrds: fetched once from where an OSIE says they are, kept on disk, streamed while they arrive."""
