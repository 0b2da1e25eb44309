"""Metadata: what a machine's installed operating system is told about itself. Compiled here, served by `edge.http`."""
