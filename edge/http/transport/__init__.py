"""Connections of HTTP: how many and how long (`connections`), and plain requests answered at once (`fast_path`)."""
