"""Metadata for a machine's installed operating system, compiled from its Hardware. `edge.http` serves it."""
