"""Connections: who may make them to our HTTPS listeners, and where this program makes them to."""
