"""Checks of the project's own style, run by `make check`."""
